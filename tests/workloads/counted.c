/*
 * Goes round loops for the seconds of CPU time given:
 *
 *     counted SECONDS
 *     {"always": 1000, "short": 1000, "long": 19000}
 *
 * The loop of `always` makes 1000 rounds for each entry, that of `either` 1000 or 19000, in turns:
 * far more than a processor has in flight, or the short one would overlap with what comes after it
 * and take less of the time than its rounds do.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { ALWAYS = 1000, SHORT = 1000, LONG = 19000 };
static volatile uint64_t sink;

static double cpu_s(void)
{
	struct timespec now;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

__attribute__((noinline)) static void always(unsigned rounds)
{
	uint64_t x = 1;

	for (unsigned i = 0; i < rounds; i++)
		x = x * 6364136223846793005u + i;
	sink = x;
}

__attribute__((noinline)) static void either(long rounds)
{
	uint64_t x = 1;

	for (; rounds > 0; rounds--)
		x = x * 6364136223846793005u + (uint64_t)rounds;
	sink = x;
}

int main(int count, char **arguments)
{
	double seconds = count > 1 ? atof(arguments[1]) : 1;

	while (cpu_s() < seconds) {
		for (int i = 0; i < 100; i++) {
			always(ALWAYS);
			either(i % 2 ? SHORT : LONG);
		}
	}
	printf("{\"always\": %d, \"short\": %d, \"long\": %d}\n", ALWAYS, SHORT, LONG);
	return 0;
}
