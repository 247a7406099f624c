/*
 * Many processes with many executable mappings: crowd SECONDS PROCESSES LIBRARY... has each process
 * load the libraries, at addresses of its own, and call each of them now and then. The last line of
 * output is the truth: {"processes": 2000, "mappings": 20000}
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef uint64_t work(uint64_t, uint64_t);

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static int member(int number, double end, int libraries, char **paths) {
    static volatile uint64_t sink;
    work *calls[64];
    /* So that no two have their libraries at the same addresses. */
    if (mmap(NULL, (size_t)(number + 1) << 12, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) ==
        MAP_FAILED)
        return 1;
    for (int i = 0; i < libraries; i++) {
        void *library = dlopen(paths[i], RTLD_NOW);
        calls[i] = library ? (work *)dlsym(library, "library_work") : NULL;
        if (calls[i] == NULL)
            return 1;
    }
    while (now() < end) {
        for (int i = 0; i < libraries; i++)
            sink = calls[i](10000, sink | 1);
        usleep(500000 + number * 500);
    }
    return 0;
}

int main(int argc, char **argv) {
    int processes = argc > 2 ? atoi(argv[2]) : 0, libraries = argc - 3, failed = 0, status;
    if (libraries < 1 || libraries > 64)
        return 2;
    double end = now() + atof(argv[1]);
    for (int number = 0; number < processes; number++) {
        pid_t pid = fork();
        if (pid == 0)
            _exit(member(number, end, libraries, argv + 3));
        if (pid < 0)
            return 2;
    }
    for (int number = 0; number < processes; number++)
        failed += wait(&status) < 0 || status != 0;
    printf("{\"processes\": %d, \"mappings\": %d}\n", processes - failed,
           (processes - failed) * libraries);
    return failed != 0;
}
