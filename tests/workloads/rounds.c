/*
 * Loops whose rounds take a known time, each for the seconds of CPU time given:
 *
 *     rounds SECONDS
 *     {"chase": 240.1, "divide": 5.2, ...}
 *
 * in ns of a round: the median of short bursts, most of which no interrupt falls into. The clock of
 * long ones has the time of interrupts too, and of those of other profilers beside.
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

KEPT long divide(long value, long from, long rounds)
{
	for (long i = from; i < rounds; i++) {
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

enum { NODES = 1 << 21, VALUES = 1 << 16, BRIEF = 4000000, BURSTS = 4001 };

static struct node *at;
static unsigned *values;
static unsigned char *bytes;
static long sink;

/* That many rounds of one loop, or a few, as the loop is in the midst of many. */
static void go(int which, long many, long turn)
{
	switch (which) {
	case 0: at = chase(at, many); break;
	case 1: sink += divide(7, turn ? 10000000 : 0, turn ? 10000000 + many : many); break;
	case 2: sink += root(7, many); break;
	case 3: sink += choose(values + turn * many % VALUES, many); break;
	case 4: sink += nested(many); break;
	default: sink += briefly(bytes + turn * many % (BRIEF - many + 1), many);
	}
}

static int ascending(const void *a, const void *b)
{
	double one = *(const double *)a, other = *(const double *)b;

	return (one > other) - (one < other);
}

int main(int argc, char **argv)
{
	double seconds = argc > 1 ? atof(argv[1]) : 1;
	struct node *nodes = malloc(NODES * sizeof(*nodes));
	long *order = malloc(NODES * sizeof(*order));
	static double bursts[BURSTS];
	const char *names[] = { "chase", "divide", "root", "choose", "nested", "briefly" };

	at = nodes;
	values = malloc(2 * VALUES * sizeof(*values));
	bytes = malloc(BRIEF);
	for (long i = 0; i < NODES; i++)
		order[i] = i;
	for (long i = NODES - 1; i > 0; i--) {
		long other = ((long)rand() << 20 ^ rand()) % (i + 1), kept = order[i];

		order[i] = order[other];
		order[other] = kept;
	}
	for (long i = 0; i < NODES; i++)
		nodes[order[i]].next = &nodes[order[(i + 1) % NODES]];
	for (long i = 0; i < 2 * VALUES; i++)
		values[i] = rand() >> 3;
	memset(bytes, 1, BRIEF);
	for (int which = 0; which < 6; which++) {
		static const long all[] = { 1000000, 20000000, 20000000, 20000000, 100000, BRIEF };
		static const long some[] = { 100, 5000, 5000, 4096, 200, 50000 };
		double begin = now_ns();
		int count = 0;

		do {
			go(which, all[which], 0);
			for (int turn = 1; turn <= 25 && count < BURSTS; turn++) {
				double burst = now_ns();

				go(which, some[which], turn);
				bursts[count++] = (now_ns() - burst) / some[which];
			}
		} while (now_ns() - begin < seconds * 1e9);
		qsort(bursts, count, sizeof(*bursts), ascending);
		printf("%s\"%s\": %.4f", which ? ", " : "{", names[which], bursts[count / 2]);
	}
	puts("}");
	fprintf(stderr, "%ld %p\n", sink, (void *)at);
	return 0;
}
