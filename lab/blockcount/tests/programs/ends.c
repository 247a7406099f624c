// Ends of all kinds: exit_group in a thread while others run, a thread that ends first, a signal.
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void work(void);
__asm__(".text\n"
        "work:\n"
        "at_1_begin: mov $500000, %ecx\n"
        "at_500000_round: add $1, %rax\n"
        "dec %ecx\n"
        "jnz at_500000_round\n"
        "at_1_end: ret\n"
        "at_x_end:\n");

static void *end(void *argument) {
    work();
    _exit(strcmp(argument, "thread") == 0 ? 0 : 1);
}

static void *spin(void *argument) {
    for (;;) __asm__ volatile("pause");
    return argument;
}

int main(int argc, char **argv) {
    (void)argc;
    pthread_t thread;
    if (strcmp(argv[1], "thread") == 0) {
        pthread_create(&thread, 0, spin, 0);
        pthread_create(&thread, 0, end, argv[1]);
        pthread_join(thread, 0);
    } else if (strcmp(argv[1], "main first") == 0) {
        pthread_create(&thread, 0, end, "thread");
        pthread_exit(0);
    } else {
        work();
        puts("done");
        fflush(stdout);
        if (strcmp(argv[1], "signal") == 0) raise(SIGTERM);
        if (strcmp(argv[1], "fault") == 0) *(volatile int *)8 = 1;
        if (strcmp(argv[1], "abort") == 0) abort();
        for (;;) pause();
    }
    return 1;
}
