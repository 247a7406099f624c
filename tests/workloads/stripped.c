/*
 * Spends the seconds of CPU time given in a static function, and prints {"cpu_s": ...}. Built with
 * -s: nothing names the function, only .eh_frame knows where it begins and ends.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static volatile uint64_t sink;

__attribute__((noinline)) static uint64_t nameless(uint64_t rounds, uint64_t x) {
    for (uint64_t i = 0; i < rounds; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
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
        sink = nameless(1000000, sink | 1);
    printf("{\"cpu_s\": %.6f}\n", cpu_s());
    return 0;
}
