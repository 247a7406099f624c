// longjmp out of handlers, on a stack of their own and without, and out of deep calls.
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

void work(void);
__asm__(".text\n"
        "work:\n"
        "at_3000_begin: add $1, %rax\n"
        "test %eax, %eax\n"
        "at_3000_end: ret\n"
        "at_x_end:\n");

static sigjmp_buf place;
static jmp_buf deep;

static void handler(int signal) {
    (void)signal;
    siglongjmp(place, 1);
}

static void descend(int depth) {
    if (depth == 0) longjmp(deep, 1);
    descend(depth - 1);
    work();
}

int main(void) {
    stack_t stack = {.ss_sp = malloc(65536), .ss_size = 65536};
    if (sigaltstack(&stack, 0) != 0) return 1;
    struct sigaction action = {.sa_handler = handler};
    for (volatile int round = 0; round < 3000; round++) {
        action.sa_flags = round & 1 ? SA_ONSTACK : 0;
        sigaction(SIGSEGV, &action, 0);
        if (sigsetjmp(place, 1) == 0) *(volatile int *)(long)(round & 8) = 1;
        if (setjmp(deep) == 0) descend(20);
        work();
    }
    stack_t now;
    sigaltstack(0, &now);
    return now.ss_sp == stack.ss_sp && now.ss_flags == 0 ? 0 : 2;
}
