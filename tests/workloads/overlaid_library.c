/* A library with a function that has a page of code to itself, where overlaid.c maps other code,
 * and one that stays. */
#include <stdint.h>

#define WORK                                                  \
    for (uint64_t i = 0; i < rounds; i++) {                   \
        x = x * 6364136223846793005u + 1442695040888963407u;  \
        x ^= x >> 29;                                         \
    }                                                         \
    return x;

#define OWN_PAGE __attribute__((aligned(4096), section(".text.page"), used))

OWN_PAGE uint64_t page_work(uint64_t rounds, uint64_t x) { WORK }
OWN_PAGE void after_page(void) {}

uint64_t own_work(uint64_t rounds, uint64_t x) { WORK }
