#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <ucontext.h>
/* Chance values for registers; those of x20 to x27 point into `memory`. */
uint64_t table[128];
unsigned char memory[1 << 16];
static char other_stack[1 << 16];
extern void chance(void);
/* The instruction is left out. */
void faulted(int signal, siginfo_t *why, void *context)
{
    (void)signal, (void)why;
    ((ucontext_t *)context)->uc_mcontext.pc += 4;
}
int main(void)
{
    stack_t stack = {.ss_sp = other_stack, .ss_size = sizeof other_stack};
    struct sigaction action = {.sa_sigaction = faulted,
                               .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
    sigaltstack(&stack, NULL);
    sigaction(SIGILL, &action, NULL);
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
    sigaction(SIGTRAP, &action, NULL);
    uint64_t x = 1;
    for (int i = 0; i < 128; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        uint64_t one = 1ull << (x >> 58), values[] = {x ^ x >> 31, one, one - 1, x >> 57, -one, -1};
        table[i] = i / 8 % 2 ? (uint64_t)memory + sizeof memory / 2 : values[(x >> 40) % 6];
    }
    for (int i = -1024; i < 1024; i++)
        memory[(int)sizeof memory / 2 + i] = (unsigned char)((i ^ i >> 3) * 37);
    chance();
}
