// Eight threads that do the same work at once, with signals to all of them.
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

void work(void);
__asm__(".text\n"
        "work:\n"
        "at_1_begin: mov $2000000, %ecx\n"
        "at_2000000_round: call callee\n"
        "dec %ecx\n"
        "jnz at_2000000_round\n"
        "at_1_end: ret\n"
        "callee:\n"
        "at_2000000_callee: add $1, %rax\n"
        "ret\n"
        "at_x_end:\n");

static void handler(int signal) { (void)signal; }

static void *thread(void *argument) {
    work();
    return argument;
}

int main(int argc, char **argv) {
    (void)argv;
    pthread_t threads[8];
    signal(SIGUSR1, handler);
    for (int i = 0; i < 8; i++) pthread_create(&threads[i], 0, thread, 0);
    if (argc > 1)
        for (int i = 0; i < 2000; i++) {
            pthread_kill(threads[i % 8], SIGUSR1);
            usleep(50);
        }
    for (int i = 0; i < 8; i++) pthread_join(threads[i], 0);
    return 0;
}
