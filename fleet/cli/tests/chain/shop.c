/* A service of two procedures: shop ROUNDS. PRICE_STEPS, the steps of one price, is what its builds
 * differ in; the search waits for the data cache in both. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define CELLS (8u << 20) /* of 8 bytes: 64 MiB, more than second-level caches hold */
#define SEARCH_STEPS 10000
#define PRICES 120000

/* Each load waits for the one before, at a place that nobody foresees. */
__attribute__((noinline)) static uint64_t search(const uint64_t *cells, uint64_t from)
{
	for (long i = 0; i < SEARCH_STEPS; i++)
		from = cells[from];
	return from;
}

/* Work in registers alone. */
__attribute__((noinline)) static uint64_t price(uint64_t seed)
{
	uint64_t sum = seed | 1;

	for (long i = 0; i < PRICES; i++) {
		for (int step = 0; step < PRICE_STEPS; step++)
			sum = (sum ^ sum >> 29) * 0x9e3779b97f4a7c15u;
		if (sum % 1000 == 0)
			sum += 2;
	}
	return sum;
}

/* One ring through all cells: a step is odd times the last one, so each number comes once. */
static uint64_t *ring(void)
{
	uint64_t *cells = malloc(CELLS * sizeof *cells), at = 0;

	if (!cells)
		exit(3);
	for (uint32_t i = 0; i < CELLS; i++) {
		uint64_t next = (at * 1664525 + 1013904223) % CELLS;

		cells[at] = next;
		at = next;
	}
	return cells;
}

int main(int argc, char **argv)
{
	long rounds = argc > 1 ? atol(argv[1]) : 1;
	uint64_t *cells = ring(), at = 0, sum = 0;

	for (long i = 0; i < rounds; i++) {
		at = search(cells, at);
		sum += price(at);
	}
	printf("%llu\n", (unsigned long long)(sum + at));
	return 0;
}
