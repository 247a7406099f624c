// A loop of known rounds, while a timer sends up to 2,000 signals a second.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>

void work(void);
__asm__(".text\n"
        "work:\n"
        "at_1_begin: mov $30000000, %ecx\n"
        "xor %eax, %eax\n"
        "at_30000000_round: add $3, %rax\n"
        "test $1, %al\n"
        "jz 1f\n"
        "at_15000000_odd: lea 7(%rax), %rdx\n"
        "push %rdx\n"
        "pop %rdx\n"
        "at_30000000_next: 1: cmp $0, %rcx\n"
        "adc $0, %rax\n"
        "dec %ecx\n"
        "jnz at_30000000_round\n"
        "at_1_end: ret\n"
        "at_x_end:\n");

void handled(void);
__asm__("handled: lock incq times(%rip)\n"
        "ret\n");
volatile long times;

static void handler(int signal) {
    (void)signal;
    handled();
}

int main(int argc, char **argv) {
    if (argc > 1) {
        struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
        sigaction(SIGALRM, &action, 0);
        struct itimerval timer = {{0, 500}, {0, 500}};
        setitimer(ITIMER_REAL, &timer, 0);
    }
    work();
    struct itimerval none = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &none, 0);
    printf("%ld\n", times);
    return 0;
}
