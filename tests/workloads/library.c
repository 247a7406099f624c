/* A shared library that does the work of library_main.c. */
#include <stdint.h>

uint64_t library_work(uint64_t rounds, uint64_t x) {
    for (uint64_t i = 0; i < rounds; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        x ^= x >> 29;
    }
    return x;
}
