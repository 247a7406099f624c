/*
 * Compute-bound, a fixed amount of work: `compute UNITS`. A unit is a million rounds of an integer
 * recurrence that waits for nothing but the multiplier. Prints a value that depends on all of it,
 * so that nothing can be left out.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

__attribute__((noinline)) static uint64_t unit(uint64_t x) {
    for (int round = 0; round < 1000000; round++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        x ^= x >> 29;
    }
    return x;
}

int main(int argc, char **argv) {
    long units = argc == 2 ? atol(argv[1]) : 0;
    uint64_t x = 1;
    if (units <= 0) {
        fprintf(stderr, "compute: say how many units of work, at least 1\n");
        return 2;
    }
    while (units-- > 0)
        x = unit(x);
    printf("%llu\n", (unsigned long long)x);
    return 0;
}
