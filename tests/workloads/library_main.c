/* Spends the seconds of CPU time given in library_work() of library.c. Prints {"cpu_s": ...}. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

uint64_t library_work(uint64_t rounds, uint64_t x);

static volatile uint64_t sink;

static double cpu_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

int main(int argc, char **argv) {
    double seconds = argc > 1 ? atof(argv[1]) : 1;
    while (cpu_s() < seconds)
        sink = library_work(1000000, sink | 1);
    printf("{\"cpu_s\": %.6f}\n", cpu_s());
    return 0;
}
