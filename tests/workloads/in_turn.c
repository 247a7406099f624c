/*
 * Three branches that go both ways equally often, for the seconds of CPU time given, as data say
 * that are random, sorted, or have a period of five:
 *
 *     in_turn SECONDS
 *     {"random": 0.5, "sorted": 0.5, "of_five": 0.6}
 *
 * Each is in a procedure of its own, and is its only branch that both ways are taken of often.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { LEN = 1 << 15 };
static int32_t random_values[LEN], sorted_values[LEN], of_five_values[LEN];
static uint64_t sum;

static double cpu_s(void)
{
	struct timespec now;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

#define BRANCH(name)                                              \
	__attribute__((noinline)) static unsigned of_##name(void) \
	{                                                         \
		unsigned taken = 0;                               \
		for (unsigned i = 0; i < LEN; i++) {              \
			if (name##_values[i] >= 0) {              \
				taken++;                          \
				asm volatile("nop" ::"r"(taken)); \
			} else {                                  \
				sum += i;                         \
				asm volatile("" ::"r"(sum));      \
			}                                         \
		}                                                 \
		return taken;                                     \
	}
BRANCH(random)
BRANCH(sorted)
BRANCH(of_five)

int main(int argc, char **argv)
{
	double seconds = argc > 1 ? atof(argv[1]) : 1;
	uint64_t x = 88172645463325252u;
	unsigned random = 0, sorted = 0, of_five = 0, rounds = 0;

	for (unsigned i = 0; i < LEN; i++) {
		x ^= x << 13, x ^= x >> 7, x ^= x << 17;
		random_values[i] = (int32_t)(x >> 20);
		sorted_values[i] = (int32_t)i - LEN / 2;
		of_five_values[i] = (0x16 >> i % 5 & 1) - 1;
	}
	while (cpu_s() < seconds) {
		random += of_random(), sorted += of_sorted(), of_five += of_of_five();
		rounds += LEN;
	}
	printf("{\"random\": %f, \"sorted\": %f, \"of_five\": %f}\n", random / (double)rounds,
	       sorted / (double)rounds, of_five / (double)rounds);
	return 0;
}
