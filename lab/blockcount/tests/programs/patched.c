// Threads that execute and write functions of one page at once, as JIT compilers do.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

enum { THREADS = 4, ROUNDS = 20000 };
static unsigned char *page;
static volatile int wrong;

// mov $value, %eax; ret
static void write_code(unsigned char *at, int value) {
    at[0] = 0xb8;
    memcpy(at + 1, &value, 4);
    at[5] = 0xc3;
}

static void *thread(void *argument) {
    long number = (long)argument;
    unsigned char *own = page + 64 * (number + 1);
    for (int round = 0; round < ROUNDS; round++) {
        if (((int (*)(void))page)() != 7) wrong = 1;
        if (round % 8 == number) write_code(own, round);
        if (((int (*)(void))own)() != round - (round + 8 - (int)number) % 8) wrong = 2;
    }
    return 0;
}

int main(void) {
    page = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    write_code(page, 7);
    pthread_t threads[THREADS];
    for (long i = 0; i < THREADS; i++) {
        write_code(page + 64 * (i + 1), -8 + (int)i);
        pthread_create(&threads[i], 0, thread, (void *)i);
    }
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], 0);
    printf("%lx %d\n", (long)page, THREADS * ROUNDS);
    return wrong;
}
