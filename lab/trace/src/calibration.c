/* Work that is known, without and with calls of an empty procedure: what the difference is, the
 * events of the calls cost. Build and trace this as the program of interest, then give the trace to
 * dcpi trace --correct FILE --calibration TRACE. */
#include <stdint.h>
#include <stdlib.h>

#define ROUNDS 9
#define STEPS 200
#define WORDS (1 << 22) /* 32 MiB */

static volatile uint64_t sink;
static uint64_t *memory;

__attribute__((noinline)) void dcpi_leaf(void)
{
    __asm__ volatile("");
}

/* Nothing, a chain of multiplications, loads from the cache, loads from memory, branches that no
 * predictor knows, divisions; a walk through 512 KiB, which pushes the tool's own code and data
 * out of the near caches, as large programs do. Macros: an inlined procedure would have events. */
#define WORK_0
#define WORK_1 for (int i = 0; i < 60; i++) x = x * 6364136223846793005u + 1442695040888963407u;
#define WORK_2 for (int i = 0; i < 100; i++) x += memory[(x + i * 8) % 512];
#define WORK_3                                                                                     \
    for (int i = 0; i < 8; i++) {                                                                  \
        x = x * 6364136223846793005u + 1;                                                          \
        x += memory[(x >> 33) % WORDS];                                                            \
    }
#define WORK_4                                                                                     \
    for (int i = 0; i < 40; i++) {                                                                 \
        x = x * 6364136223846793005u + 1;                                                          \
        if (x >> 63)                                                                               \
            sink = x;                                                                              \
        else                                                                                       \
            x ^= 5;                                                                                \
    }
#define WORK_5 for (int i = 0; i < 20; i++) x = 0x9e3779b97f4a7c15u / (x % 1000 + 3) + i;
#define WORK_6 for (int i = 0; i < 1 << 13; i++) x += memory[i * 8];

#define PLACE(n)                                                                                   \
    __attribute__((noinline)) void dcpi_bare_##n(void)                                             \
    {                                                                                              \
        uint64_t x = sink;                                                                         \
        for (int step = 0; step < STEPS; step++) {                                                 \
            WORK_##n __asm__ volatile("" : "+r"(x));                                               \
        }                                                                                          \
        sink = x;                                                                                  \
    }                                                                                              \
    __attribute__((noinline)) void dcpi_with_##n(void)                                             \
    {                                                                                              \
        uint64_t x = sink;                                                                         \
        for (int step = 0; step < STEPS; step++) {                                                 \
            WORK_##n __asm__ volatile("" : "+r"(x));                                               \
            dcpi_leaf();                                                                           \
        }                                                                                          \
        sink = x;                                                                                  \
    }

PLACE(0)
PLACE(1)
PLACE(2)
PLACE(3)
PLACE(4)
PLACE(5)
PLACE(6)

int main(void)
{
    memory = malloc(WORDS * sizeof *memory);
    if (!memory)
        return 2;
    for (uint64_t i = 0; i < WORDS; i++)
        memory[i] = i * 2654435761u;
    for (int round = 0; round < ROUNDS; round++) {
        dcpi_bare_0(), dcpi_with_0();
        dcpi_bare_1(), dcpi_with_1();
        dcpi_bare_2(), dcpi_with_2();
        dcpi_bare_3(), dcpi_with_3();
        dcpi_bare_4(), dcpi_with_4();
        dcpi_bare_5(), dcpi_with_5();
        dcpi_bare_6(), dcpi_with_6();
    }
    return 0;
}
