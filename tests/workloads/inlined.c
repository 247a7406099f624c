/* A function without code of its own: `normalise`, with `mix` in it, is inlined into `filter`,
 * whose loop is inlined into `smooth`, and into `rank`. Half of the time is that of `smooth`, a
 * quarter each of `rank` and of `apart`, which has nothing to do with it. Prints the seconds of CPU
 * time of each.
 *
 * Usage: inlined SECONDS */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define INLINED static inline __attribute__((always_inline))

static double now(clockid_t clock)
{
	struct timespec time;

	clock_gettime(clock, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

INLINED unsigned long mix(unsigned long x)
{
	x ^= x >> 33;
	return x * 0xff51afd7ed558ccd;
}

INLINED unsigned long normalise(unsigned long x)
{
	for (int i = 0; i < 32; i++)
		x = mix(x) + i;
	return x;
}

INLINED unsigned long filter(unsigned long x, long rounds)
{
	for (long i = 0; i < rounds; i++)
		x ^= normalise(x + i);
	return x;
}

__attribute__((noinline)) unsigned long smooth(unsigned long x)
{
	return filter(x, 20000);
}

__attribute__((noinline)) unsigned long rank(unsigned long x)
{
	for (long i = 0; i < 10000; i++)
		x += normalise(x);
	return x;
}

__attribute__((noinline)) unsigned long apart(unsigned long x)
{
	for (long i = 0; i < 80000; i++)
		x = x / 3 + 0x9e3779b97f4a7c15;
	return x;
}

int main(int count, char **arguments)
{
	double until = now(CLOCK_MONOTONIC) + (count > 1 ? atof(arguments[1]) : 1);
	double times[4], seconds[3] = { 0 };
	volatile unsigned long sum = 1;

	while (now(CLOCK_MONOTONIC) < until) {
		times[0] = now(CLOCK_THREAD_CPUTIME_ID);
		sum = smooth(sum);
		times[1] = now(CLOCK_THREAD_CPUTIME_ID);
		sum = rank(sum);
		times[2] = now(CLOCK_THREAD_CPUTIME_ID);
		sum = apart(sum);
		times[3] = now(CLOCK_THREAD_CPUTIME_ID);
		for (int i = 0; i < 3; i++)
			seconds[i] += times[i + 1] - times[i];
	}
	printf("{\"smooth\": %.6f, \"rank\": %.6f, \"apart\": %.6f}\n", seconds[0], seconds[1],
	       seconds[2]);
	return 0;
}
