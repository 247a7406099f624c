/*
 * Loops whose rounds take a known time, each for the seconds of CPU time given:
 *
 *     rounds SECONDS
 *     {"chase": 240.1, "divide": 5.2, ...}
 *
 * in ns of a round.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define KEPT __attribute__((noinline, noclone))

struct node {
	struct node *next;
	long unused[7];
};

static double now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return now.tv_sec * 1e9 + now.tv_nsec;
}

/* The pointer tells nothing, the counter does. */
KEPT struct node *chase(struct node *at, long rounds)
{
	for (long i = 0; i < rounds; i++)
		at = at->next;
	return at;
}

KEPT long divide(long value, long rounds)
{
	for (long i = 0; i < rounds; i++) {
		value = (value | 1) * 1000003 / (i | 3) + 7;
		__asm__ volatile("" : "+r"(value));
	}
	return value;
}

/* A walk ends at the test for negative operands. */
KEPT double root(double value, long rounds)
{
	for (long i = 0; i < rounds; i++) {
		value = sqrt(value + 2.0);
		__asm__ volatile("" : "+x"(value));
	}
	return value;
}

/* Each side of the branch has an addition of its own. */
KEPT long choose(const unsigned *values, long rounds)
{
	long sum = 0;

	for (long i = 0; i < rounds; i++) {
		if (values[i & 0xffff] & 1) {
			sum = sum * 3 + values[i & 0xff];
			__asm__ volatile("" : "+r"(sum));
		} else {
			sum ^= values[i & 0xff] >> 3;
			__asm__ volatile("" : "+r"(sum));
		}
	}
	return sum;
}

/* Inner loops of 200 rounds are over long before the next sample. */
KEPT long nested(long rounds)
{
	long sum = 0;

	for (long i = 0; i < rounds; i++)
		for (long inner = 0; inner < 200; inner++) {
			sum = sum * 3 + inner;
			__asm__ volatile("" : "+r"(sum));
		}
	return sum;
}

/* One call takes about a ms: some pairs of samples lie in two of them. */
KEPT long briefly(const unsigned char *bytes, long rounds)
{
	long sum = 0;

	for (long i = 0; i < rounds; i++) {
		sum += bytes[i];
		__asm__ volatile("" : "+r"(sum));
	}
	return sum;
}

enum { NODES = 1 << 21, VALUES = 1 << 16, BRIEF = 2000000 };

int main(int argc, char **argv)
{
	double seconds = argc > 1 ? atof(argv[1]) : 1;
	struct node *nodes = malloc(NODES * sizeof(*nodes)), *at = nodes;
	unsigned *values = malloc(VALUES * sizeof(*values));
	unsigned char *bytes = malloc(BRIEF);
	long *order = malloc(NODES * sizeof(*order)), sink = 0;
	const char *names[] = { "chase", "divide", "root", "choose", "nested", "briefly" };

	for (long i = 0; i < NODES; i++)
		order[i] = i;
	for (long i = NODES - 1; i > 0; i--) {
		long other = ((long)rand() << 20 ^ rand()) % (i + 1), kept = order[i];

		order[i] = order[other];
		order[other] = kept;
	}
	for (long i = 0; i < NODES; i++)
		nodes[order[i]].next = &nodes[order[(i + 1) % NODES]];
	for (long i = 0; i < VALUES; i++)
		values[i] = rand() >> 3;
	memset(bytes, 1, BRIEF);
	for (int which = 0; which < 6; which++) {
		double begin = now_ns(), end;
		long rounds = 0;

		do {
			long many = which == 0 ? 1000000 : which == 4 ? 100000 : 20000000;

			switch (which) {
			case 0: at = chase(at, many); break;
			case 1: sink += divide(7, many); break;
			case 2: sink += root(7, many); break;
			case 3: sink += choose(values, many); break;
			case 4: sink += nested(many); break;
			default:
				many = BRIEF;
				sink += briefly(bytes, many);
			}
			rounds += many;
			end = now_ns();
		} while (end - begin < seconds * 1e9);
		printf("%s\"%s\": %.4f", which ? ", " : "{", names[which],
		       (end - begin) / rounds);
	}
	puts("}");
	fprintf(stderr, "%ld %p\n", sink, (void *)at);
	return 0;
}
