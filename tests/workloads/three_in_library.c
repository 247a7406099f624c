/*
 * Spends three quarters of its CPU time in library_work() of library.c and one quarter in
 * own_work(), for the seconds of CPU time given, and says what it measured:
 *
 *     {"library": 0.7512, "own": 0.2488}
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

uint64_t library_work(uint64_t rounds, uint64_t x);

static volatile uint64_t sink;

__attribute__((noinline)) uint64_t own_work(uint64_t rounds, uint64_t x)
{
	for (uint64_t i = 0; i < rounds; i++) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
	}
	return x;
}

static double cpu_s(void)
{
	struct timespec now;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
	return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Works for about so long, and gives how long it was. */
static double spend(uint64_t (*work)(uint64_t, uint64_t), double seconds)
{
	double begun = cpu_s();

	do
		sink = work(10000, sink | 1);
	while (cpu_s() - begun < seconds);
	return cpu_s() - begun;
}

int main(int argc, char **argv)
{
	double seconds = argc > 1 ? atof(argv[1]) : 1, library = 0, own = 0;

	while (cpu_s() < seconds) {
		library += spend(library_work, 3e-3);
		own += spend(own_work, 1e-3);
	}
	printf("{\"library\": %.6f, \"own\": %.6f}\n", library / (library + own),
	       own / (library + own));
	return 0;
}
