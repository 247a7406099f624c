/* A shared library that does the work of library_main.c. Builds that differ in SEED have one size.
 */
#include <stdint.h>

#ifndef SEED
#define SEED 1442695040888963407u
#endif

#ifdef PADDED /* the work is not in the first pages of the code */
__asm__(".text\n\t.skip 65536\n");
#endif

uint64_t library_work(uint64_t rounds, uint64_t x) {
    for (uint64_t i = 0; i < rounds; i++) {
        x = x * 6364136223846793005u + SEED;
        x ^= x >> 29;
    }
    return x;
}
