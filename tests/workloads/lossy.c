/* Three procedures of known loss: loads that miss all caches, branches that cannot be predicted,
 * and a chain of multiplications that loses nothing. Prints what each computed. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define CELLS (1u << 23)
/* More than any predictor remembers. */
#define BYTES (1u << 20)

static uint64_t random_state = 88172645463325252u;

static uint64_t random_bits(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

/* Each load needs the one before, and its address is in no cache. */
__attribute__((noinline)) uint64_t misses(const uint64_t *next, long rounds) {
    uint64_t at = 0;
    for (long i = 0; i < rounds; i++) at = next[at];
    return at;
}

/* Either way is as likely: half of the branches are mispredicted. */
__attribute__((noinline)) uint64_t mispredicts(const uint8_t *bits, long rounds) {
    uint64_t sum = 0;
    for (long i = 0; i < rounds; i++) {
        if (bits[i & (BYTES - 1)] & 1)
            __asm__ volatile("add $131,%0" : "+r"(sum));
        else
            __asm__ volatile("lea 77(%0,%0,2),%0" : "+r"(sum));
    }
    return sum;
}

/* A multiplication needs 3 cycles and an addition 1, each the result of the one before. */
__attribute__((noinline)) uint64_t steady(uint64_t x, long rounds) {
    for (long i = 0; i < rounds; i++) x = x * 0x5851f42d4c957f2du + 12345;
    return x;
}

int main(void) {
    uint64_t *next = malloc(CELLS * sizeof *next);
    static uint8_t bits[BYTES];
    if (!next) return 3;
    /* One cycle through all cells, in random order (Sattolo). */
    for (uint64_t i = 0; i < CELLS; i++) next[i] = i;
    for (uint64_t i = CELLS - 1; i > 0; i--) {
        uint64_t j = random_bits() % i, other = next[j];
        next[j] = next[i];
        next[i] = other;
    }
    for (unsigned i = 0; i < BYTES; i++) bits[i] = (uint8_t)random_bits();
    printf("%lu %lu %lu\n", misses(next, 4000000), mispredicts(bits, 30000000),
           steady(1, 300000000));
    return 0;
}
