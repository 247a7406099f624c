/*
 * Spends so many ms of CPU time in each of steady(), variable() and other(), in turns of a fraction of a ms:
 *
 *     portions STEADY VARIABLE OTHER
 *
 * Prints {"steady_s": ..., "variable_s": ..., "other_s": ...}, by the thread's CPU clock.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static volatile uint64_t sink;

#define WORK(name, a, b, c)                                                \
    __attribute__((noinline)) uint64_t name(uint64_t rounds, uint64_t x) { \
        for (uint64_t i = 0; i < rounds; i++) {                            \
            x ^= x << a;                                                   \
            x ^= x >> b;                                                   \
            x ^= x << c;                                                   \
        }                                                                  \
        return x;                                                          \
    }

WORK(steady, 13, 7, 17)
WORK(variable, 7, 9, 8)
WORK(other, 5, 15, 27)

static double cpu_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

struct part {
    uint64_t (*work)(uint64_t, uint64_t);
    double wanted_s;
    double spent_s;
};

int main(int argc, char **argv) {
    struct part parts[] = {{steady, 0, 0}, {variable, 0, 0}, {other, 0, 0}};
    double longest_s = 0;
    for (int i = 0; i < 3 && i + 1 < argc; i++) {
        parts[i].wanted_s = atof(argv[i + 1]) / 1000;
        longest_s = parts[i].wanted_s > longest_s ? parts[i].wanted_s : longest_s;
    }
    /* Each has its part of every turn, so that whatever slows the machine down slows all. */
    for (double done = 0; done < 1; done += 0.0005 / longest_s)
        for (int i = 0; i < 3; i++)
            while (parts[i].spent_s < parts[i].wanted_s * done) {
                double start = cpu_s();
                sink = parts[i].work(20000, sink | 1);
                parts[i].spent_s += cpu_s() - start;
            }
    printf("{\"steady_s\": %.6f, \"variable_s\": %.6f, \"other_s\": %.6f}\n", parts[0].spent_s, parts[1].spent_s, parts[2].spent_s);
    return 0;
}
