/*
 * Goes round two loops for the seconds of CPU time given:
 *
 *     branched SECONDS
 *     {"share": 0.7502, "rounds": 200000, "round_ns": 34.59}
 *
 * share: of the executions of the branch in `sided` that random data in memory decide, those that
 * go one way. rounds: of the loop in `always`, for each entry; round_ns: time of one.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { LEN = 1 << 14, ROUNDS = 200000 };
static uint8_t values[LEN];
static uint64_t sum;

static double cpu_s(void)
{
	struct timespec now;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

__attribute__((noinline)) static unsigned sided(void)
{
	unsigned taken = 0;

	for (unsigned i = 0; i < LEN; i++) {
		if (values[i] < 192) {
			taken++;
			asm volatile("nop" ::"r"(taken));
		} else {
			sum += i;
			asm volatile("" ::"r"(sum));
		}
	}
	return taken;
}

__attribute__((noinline)) static void always(unsigned rounds)
{
	uint64_t x = 1;

	for (unsigned i = 0; i < rounds; i++)
		x = x * 6364136223846793005u + i;
	sum += x;
}

int main(int count, char **arguments)
{
	double seconds = count > 1 ? atof(arguments[1]) : 1, in_always = 0;
	uint64_t x = 88172645463325252u, taken = 0, all = 0, rounds = 0;

	for (unsigned i = 0; i < LEN; i++) {
		x ^= x << 13, x ^= x >> 7, x ^= x << 17;
		values[i] = (uint8_t)(x >> 20);
	}
	while (cpu_s() < seconds) {
		double begin = cpu_s();

		/* Some ms: longer than a burst of snapshots, or no two are of one entry. */
		always(ROUNDS);
		in_always += cpu_s() - begin;
		rounds += ROUNDS;
		for (unsigned i = 0; i < 5; i++)
			taken += sided(), all += LEN;
	}
	printf("{\"share\": %.4f, \"rounds\": %d, \"round_ns\": %.3f}\n",
	       (double)taken / (double)all, ROUNDS, in_always / (double)rounds * 1e9);
	return 0;
}
