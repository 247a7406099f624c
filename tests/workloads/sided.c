/*
 * Goes one way at a branch three times of four, as random data say, for the seconds of CPU time
 * given:
 *
 *     sided SECONDS SEED
 *     {"taken": 2999120, "all": 4000000, "held": 1}
 *
 * The branch, `the_branch`, is taken to `the_target`; `the_next` follows it. All the while a
 * secret, made of SEED at run time, is in registers, at the top of the stack and in the lines of
 * memory with the data: `held` says that it was there to the end. -DTHROUGH_TABLE: each round goes
 * through a table of jumps and a call through the procedure linkage table.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { LEN = 1 << 16 };
/* Beside each value that the branch depends on is the secret. */
static struct {
	uint64_t secret;
	uint8_t value;
} table[LEN];

static uint64_t mixed(uint64_t x)
{
	x += 0x9e3779b97f4a7c15u;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

static double cpu_s(void)
{
	struct timespec now;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

#ifdef THROUGH_TABLE
__attribute__((noinline)) static uint64_t stirred(uint64_t x, unsigned how)
{
	switch (how) {
	case 0: return x + 7;
	case 1: return x ^ x >> 3;
	case 2: return x * 5;
	case 3: return x - (x >> 9);
	case 4: return ~x;
	case 5: return x << 1 | 1;
	case 6: return x ^ 0x55;
	default: return x + (x >> 2);
	}
}
#define CALLED(x) ((unsigned)abs((int)(x)))
#else
#define CALLED(x) 0
#endif

__attribute__((noinline)) static uint64_t rounds(uint64_t *held, uint64_t *sum)
{
	register uint64_t kept asm("r12") = *held, also asm("r13") = ~*held;
	volatile uint64_t top[4] = {kept, also, kept, also};
	uint64_t taken = 0, x = *sum;

	for (unsigned i = 0; i < LEN; i++, x += CALLED(x)) {
		unsigned one = table[i].value;

#ifdef THROUGH_TABLE
		x = stirred(x, one & 7);
#endif
		asm goto("cmp $64, %0\n"
			 ".globl the_branch\nthe_branch: jae %l[side]\n"
			 ".globl the_next\nthe_next: nop\n" ::"r"(one)
			 : "cc"
			 : side);
		x += 3;
		continue;
	side:
		asm volatile(".globl the_target\nthe_target: nop");
		asm volatile("" : "+r"(kept), "+r"(also));
		taken++;
		x ^= x << 5;
	}
	*held = kept == ~also && top[0] == kept && top[3] == also ? kept : 0;
	*sum = x;
	return taken;
}

int main(int argc, char **argv)
{
	double seconds = argc > 1 ? atof(argv[1]) : 1;
	uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
	uint64_t secret = mixed(seed), held = secret;
	uint64_t random = secret, taken = 0, all = 0, sum = 1;

	for (unsigned i = 0; i < LEN; i++) {
		table[i].secret = secret;
		table[i].value = (uint8_t)((random = mixed(random)) >> 40);
	}
	while (cpu_s() < seconds) {
		taken += rounds(&held, &sum);
		all += LEN;
	}
	printf("{\"taken\": %llu, \"all\": %llu, \"held\": %d, \"sum\": %u}\n",
	       (unsigned long long)taken, (unsigned long long)all, held == secret, (unsigned)sum);
	return 0;
}
