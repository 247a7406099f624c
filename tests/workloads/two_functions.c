/*
 * Spends three quarters of its CPU time in three_quarters() and one quarter in one_quarter(), for
 * the seconds of CPU time given, and measures that itself: each phase is a few milliseconds of
 * random length, timed with the thread's CPU clock. The last line of its output is the truth that a
 * profile is held against:
 *
 *     {"three_quarters": 0.7512, "one_quarter": 0.2488, "work_s": 7.998, "cpu_s": 8.003}
 *
 * The phases are of random length so that no sampling period keeps step with them. Neither function
 * calls anything, so that no sample of theirs can be elsewhere in user mode; their bodies differ,
 * so that no linker folds them into one.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static volatile uint64_t sink;

__attribute__((noinline)) uint64_t three_quarters(uint64_t rounds, uint64_t x) {
    for (uint64_t i = 0; i < rounds; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        x ^= x >> 29;
    }
    return x;
}

__attribute__((noinline)) uint64_t one_quarter(uint64_t rounds, uint64_t x) {
    for (uint64_t i = 0; i < rounds; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
    }
    return x;
}

static double cpu_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return 1e9 * (double)now.tv_sec + (double)now.tv_nsec;
}

/* Uniform from 0 to 1; xorshift64*, not the function that is measured. */
static double uniform(void) {
    static uint64_t state = 88172645463325252u;
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return (double)((state * 2685821657736338717u) >> 11) / 9007199254740992.0;
}

struct phase {
    uint64_t (*work)(uint64_t, uint64_t);
    double mean_ns;      /* length asked for, on average */
    double ns_per_round; /* as last measured */
    double spent_ns;
};

static void run(struct phase *phase) {
    double wanted_ns = phase->mean_ns * (0.5 + uniform());
    uint64_t rounds = 1 + (uint64_t)(wanted_ns / phase->ns_per_round);
    double start = cpu_ns();
    sink = phase->work(rounds, sink | 1);
    double spent_ns = cpu_ns() - start;
    phase->spent_ns += spent_ns;
    phase->ns_per_round = spent_ns / (double)rounds;
}

int main(int argc, char **argv) {
    double seconds = argc > 1 ? atof(argv[1]) : 1;
    struct phase three = {three_quarters, 3e6, 1, 0}, one = {one_quarter, 1e6, 1, 0};
    do {
        run(&three);
        run(&one);
    } while (cpu_ns() < 1e9 * seconds);
    double total = three.spent_ns + one.spent_ns;
    printf("{\"three_quarters\": %.6f, \"one_quarter\": %.6f, \"work_s\": %.6f, \"cpu_s\": %.6f}\n",
           three.spent_ns / total, one.spent_ns / total, total / 1e9, cpu_ns() / 1e9);
    return 0;
}
