/* A loop with a likely and a rare side, one call inlined and one not: what a compiler that is fed
 * with its profile should find out. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static unsigned seed = 2463534242u;

static inline __attribute__((always_inline)) unsigned mix(unsigned x)
{
	x ^= x << 13;
	x ^= x >> 17;
	x ^= x << 5;
	return x;
}

static __attribute__((noinline)) unsigned rare(unsigned x)
{
	return x * 3 + 1;
}

__attribute__((noinline)) unsigned hot(unsigned n)
{
	unsigned x = seed, sum = 0;

	for (unsigned i = 0; i < n; i++) {
		x = mix(x);
		if (x % 1000 == 0)
			sum += rare(x);
		else
			sum ^= x;
	}
	seed = x;
	return sum;
}

int main(int argc, char **argv)
{
	double seconds = argc > 1 ? atof(argv[1]) : 3;
	clock_t end = clock() + (clock_t)(seconds * CLOCKS_PER_SEC);
	unsigned sum = 0;

	while (clock() < end)
		sum += hot(100000);
	printf("{\"sum\": %u}\n", sum);
	return 0;
}
