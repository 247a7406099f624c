/*
 * Spends so many ms of CPU time in each of steady(), variable() and other(), in turns of a fraction
 * of a ms:
 *
 *     portions STEADY VARIABLE OTHER
 *
 * Turns are of random order and length: a period of sampling lasts for a thousand samples, and
 * would beat against regular ones.
 *
 * Prints {"steady_s": ..., "variable_s": ..., "other_s": ...}, by the thread's CPU clock.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

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
    /* By the clock and the process: runs of the same are not the same run. */
    srandom((unsigned)time(NULL) * 31 + (unsigned)getpid());
    for (int i = 0; i < 3 && i + 1 < argc; i++)
        parts[i].wanted_s = atof(argv[i + 1]) / 1000;
    for (;;) {
        double left_s = 0, at_s;
        for (int i = 0; i < 3; i++)
            left_s +=
                parts[i].wanted_s > parts[i].spent_s ? parts[i].wanted_s - parts[i].spent_s : 0;
        if (left_s <= 0)
            break;
        /* Each comes as often as it has time left, so that whatever slows the machine down slows
         * all. */
        at_s = left_s * ((double)random() / 2147483648.0);
        for (int i = 0; i < 3; i++) {
            double part_s =
                parts[i].wanted_s > parts[i].spent_s ? parts[i].wanted_s - parts[i].spent_s : 0;
            if (at_s < part_s) {
                double start = cpu_s();
                sink = parts[i].work(1 + (uint64_t)random() % 80000, sink | 1);
                parts[i].spent_s += cpu_s() - start;
                break;
            }
            at_s -= part_s;
        }
    }
    printf("{\"steady_s\": %.6f, \"variable_s\": %.6f, \"other_s\": %.6f}\n", parts[0].spent_s,
           parts[1].spent_s, parts[2].spent_s);
    return 0;
}
