/*
 * Threads that wait for known things. Each prints what it saw itself: wall-clock time less its CPU
 * time (clock_gettime(2)).
 *
 *   waits known SECONDS FILE   waits for a lock, a pipe, a clock, a disk, page faults of FILE, and,
 *                              after these, for a CPU: six threads on each compute. Prints seconds
 *                              by kind: {"futex": 9.8, ...}
 *   waits crowd SECONDS N      N threads that compute and sleep. Prints the seconds that they lived
 *                              and ran: {"wall": 2000.1, "on": 12.5}
 *   waits storm SECONDS PAIRS  pairs of threads, each pair on one CPU, that hand a byte back and
 *                              forth through pipes and compute between, and as many threads that
 *                              sleep. Prints the seconds of all of them off the CPUs, and bytes
 *                              handed over: {"off": 15.2, "turns": 9000}
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { BLOCK = 2 << 20, STEP = 64 << 10, FILE_BYTES = 64 << 20, THREADS_MAX = 4096 };
/* Some 60,000 switches a second on two CPUs. */
enum { TURN_ROUNDS = 12000 };
enum { LOCK, PIPE, TIMER, DISK, FAULT, QUEUE, KINDS };

static const char *const names[KINDS] = {"futex", "pipe",       "timer",
                                         "disk",  "page_fault", "runnable"};
static double until, waited[KINDS];
static int ends[2], file;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t sums = PTHREAD_MUTEX_INITIALIZER;
static volatile uint64_t sink;

static double seconds(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static double now(void) {
    return seconds(CLOCK_MONOTONIC);
}

static double cpu(void) {
    return seconds(CLOCK_THREAD_CPUTIME_ID);
}

/* Time off the CPU so far, but for a constant. */
static double off(void) {
    return now() - cpu();
}

static void pause_us(long us) {
    struct timespec time = {.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000};
    nanosleep(&time, NULL);
}

static void compute(int rounds) {
    uint64_t value = sink;
    for (int i = 0; i < rounds; i++)
        value = value * 6364136223846793005u + 1;
    sink = value;
}

__attribute__((noipa)) static void of_lock(void) {
    while (now() < until) {
        double begin = off();
        pthread_mutex_lock(&lock);
        waited[LOCK] += off() - begin;
        pthread_mutex_unlock(&lock);
        /* Longer than the holder lets go of it. */
        for (double again = now() + 0.002; now() < again;)
            compute(1000);
    }
}

__attribute__((noipa)) static void of_pipe(void) {
    char byte;
    for (;;) {
        double begin = off();
        if (read(ends[0], &byte, 1) != 1)
            return;
        waited[PIPE] += off() - begin;
    }
}

__attribute__((noipa)) static void of_timer(void) {
    while (now() < until) {
        double begin = off();
        pause_us(20000);
        waited[TIMER] += off() - begin;
    }
}

/* Requests are made before the time begins: a virtual machine gives its CPU away at each, which its
 * clocks of CPU time may leave out, so that it would seem to wait. */
__attribute__((noipa)) static void of_disk(void) {
    off_t at = 0;
    char byte;
    while (now() < until) {
        posix_fadvise(file, at, BLOCK, POSIX_FADV_DONTNEED);
        posix_fadvise(file, at, BLOCK, POSIX_FADV_WILLNEED);
        double begin = off();
        /* Little of it, so that little time goes by at anything else. */
        for (off_t part = STEP - 1; part < BLOCK; part += STEP)
            if (pread(file, &byte, 1, at + part) != 1)
                return;
        waited[DISK] += off() - begin;
        at = (at + BLOCK) % (FILE_BYTES / 2);
    }
}

__attribute__((noipa)) static void of_fault(void) {
    /* The other half of the file. */
    const size_t half = FILE_BYTES / 2;
    volatile char *bytes = mmap(NULL, half, PROT_READ, MAP_SHARED, file, half);
    if (bytes == MAP_FAILED)
        return;
    madvise((void *)bytes, half, MADV_RANDOM);
    uint64_t random = 1;
    while (now() < until) {
        double begin = off();
        for (int i = 0; i < 512; i++) {
            random = random * 6364136223846793005u + 1;
            sink += (uint64_t)bytes[random % half];
        }
        waited[FAULT] += off() - begin;
        /* Both, or the pages stay. */
        madvise((void *)bytes, half, MADV_DONTNEED);
        posix_fadvise(file, half, half, POSIX_FADV_DONTNEED);
    }
    munmap((void *)bytes, half);
}

__attribute__((noipa)) static void of_queue(void) {
    double begin = off();
    while (now() < until)
        compute(10000);
    pthread_mutex_lock(&sums);
    waited[QUEUE] += off() - begin;
    pthread_mutex_unlock(&sums);
}

typedef void kind(void);
static kind *const kinds[KINDS] = {of_lock, of_pipe, of_timer, of_disk, of_fault, of_queue};

static void *run(void *number) {
    kinds[(intptr_t)number]();
    return NULL;
}

/* Holds the lock most of the time, and writes to the pipe after each time. */
static void hold(void) {
    while (now() < until) {
        pthread_mutex_lock(&lock);
        pause_us(15000);
        pthread_mutex_unlock(&lock);
        if (write(ends[1], "x", 1) != 1)
            exit(1);
        pause_us(1000);
    }
    close(ends[1]);
}

static int known(double length, const char *path) {
    pthread_t threads[64];
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    int queued = cpus * 3 < 60 ? (int)cpus * 3 : 60;
    file = open(path, O_RDONLY);
    if (file < 0 || pipe(ends) != 0)
        return 2;
    until = now() + length;
    for (intptr_t i = 0; i < QUEUE; i++)
        if (pthread_create(&threads[i], NULL, run, (void *)i) != 0)
            return 2;
    hold();
    for (int i = 0; i < QUEUE; i++)
        pthread_join(threads[i], NULL);
    until = now() + length;
    for (int i = 0; i < queued; i++)
        if (pthread_create(&threads[i], NULL, run, (void *)(intptr_t)QUEUE) != 0)
            return 2;
    for (int i = 0; i < queued; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < KINDS; i++)
        printf("%s\"%s\": %.6f", i ? ", " : "{", names[i], waited[i]);
    printf("}\n");
    return 0;
}

static double lived, ran;
static uint64_t turns;

static void add(double begin, double cpu_begin, uint64_t handed) {
    pthread_mutex_lock(&sums);
    lived += now() - begin;
    ran += cpu() - cpu_begin;
    turns += handed;
    pthread_mutex_unlock(&sums);
}

static void *member(void *number) {
    double begin = now(), cpu_begin = cpu();
    while (now() < until) {
        compute(20000);
        pause_us(50000 + (long)(intptr_t)number % 1000 * 100);
    }
    add(begin, cpu_begin, 0);
    return NULL;
}

struct side {
    int in, out, cpu;
};

static void *side(void *given) {
    struct side *of = given;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(of->cpu, &set);
    pthread_setaffinity_np(pthread_self(), sizeof set, &set);
    double begin = now(), cpu_begin = cpu();
    uint64_t handed = 0;
    char byte = 0;
    while (now() < until) {
        if (write(of->out, &byte, 1) != 1 || read(of->in, &byte, 1) != 1)
            break;
        compute(TURN_ROUNDS);
        handed++;
    }
    close(of->out); /* ends the other one's read */
    while (read(of->in, &byte, 1) == 1)
        ;
    add(begin, cpu_begin, handed);
    return NULL;
}

static int many(int is_storm, double length, int count) {
    static pthread_t threads[THREADS_MAX];
    static struct side sides[THREADS_MAX];
    pthread_attr_t small;
    int cpus = (int)sysconf(_SC_NPROCESSORS_ONLN), all = is_storm ? 4 * count : count;
    if (count < 1 || all > THREADS_MAX)
        return 2;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 64 << 10);
    double begin = now(), cpu_begin = cpu();
    until = begin + length;
    for (int i = 0; is_storm && i < all / 2; i += 2) {
        int one[2], other[2];
        if (pipe(one) != 0 || pipe(other) != 0)
            return 2;
        sides[i] = (struct side){one[0], other[1], i / 2 % cpus};
        sides[i + 1] = (struct side){other[0], one[1], i / 2 % cpus};
    }
    for (intptr_t i = 0; i < all; i++) {
        int is_side = is_storm && i < all / 2;
        void *of = is_side ? (void *)&sides[i] : (void *)i;
        if (pthread_create(&threads[i], &small, is_side ? side : member, of) != 0)
            return 2;
    }
    for (int i = 0; i < all; i++)
        pthread_join(threads[i], NULL);
    add(begin, cpu_begin, 0);
    printf("{\"wall\": %.6f, \"on\": %.6f, \"off\": %.6f, \"turns\": %llu}\n", lived, ran,
           lived - ran, (unsigned long long)turns);
    return 0;
}

int main(int argc, char **argv) {
    double length = argc == 4 ? atof(argv[2]) : 0;
    if (length <= 0) {
        fprintf(stderr, "waits: say known|crowd|storm SECONDS FILE|N\n");
        return 2;
    }
    if (strcmp(argv[1], "known") == 0)
        return known(length, argv[3]);
    return many(strcmp(argv[1], "storm") == 0, length, atoi(argv[3]));
}
