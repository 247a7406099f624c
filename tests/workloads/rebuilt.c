/*
 * A program of which there are several builds: the same but for SEED, so that they are of one size.
 * It uses the seconds of CPU time given; the last line of output is the truth: {"cpu_s": 0.5}
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static volatile uint64_t sink;

__attribute__((noinline)) static uint64_t build(uint64_t rounds, uint64_t x) {
    for (uint64_t i = 0; i < rounds; i++) {
        x = x * 6364136223846793005u + SEED;
        x ^= x >> 29;
    }
    return x;
}

static double cpu_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

int main(int argc, char **argv) {
    double seconds = argc > 1 ? atof(argv[1]) : 1;
    while (cpu_s() < seconds)
        sink = build(20000, sink | 1);
    printf("{\"cpu_s\": %.6f}\n", cpu_s());
    return 0;
}
