/* One leaf, called on two ways, by each of two threads: three quarters of its time for `often`,
 * through three frames of a recursion, and a quarter for `seldom`. Prints the seconds of CPU time
 * that each way took.
 *
 * Usage: called SECONDS */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double now(clockid_t clock)
{
	struct timespec time;

	clock_gettime(clock, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

struct state {
	volatile unsigned long sum;
	double until, often, seldom;
};

/* Takes about 1 ms for 500,000 rounds. The compiler cannot know the sum. */
__attribute__((noinline)) void leaf(struct state *state, long rounds)
{
	for (long i = 0; i < rounds; i++)
		state->sum += i ^ state->sum >> 3;
}

__attribute__((noinline)) void recursion(struct state *state, int depth)
{
	if (depth > 0)
		recursion(state, depth - 1);
	else
		leaf(state, 1500000);
	state->sum++; /* no tail call */
}

__attribute__((noinline)) void often(struct state *state)
{
	recursion(state, 2);
	state->sum++;
}

__attribute__((noinline)) void seldom(struct state *state)
{
	leaf(state, 500000);
	state->sum++;
}

static void *work(void *argument)
{
	struct state *state = argument;
	double begin = now(CLOCK_THREAD_CPUTIME_ID), middle, end;

	while (now(CLOCK_MONOTONIC) < state->until) {
		often(state);
		middle = now(CLOCK_THREAD_CPUTIME_ID);
		seldom(state);
		end = now(CLOCK_THREAD_CPUTIME_ID);
		state->often += middle - begin;
		state->seldom += end - middle;
		begin = end;
	}
	return state;
}

int main(int count, char **arguments)
{
	double until = now(CLOCK_MONOTONIC) + (count > 1 ? atof(arguments[1]) : 1);
	struct state first = { .until = until }, second = { .until = until };
	pthread_t thread;

	if (pthread_create(&thread, 0, work, &second))
		return 1;
	work(&first);
	pthread_join(thread, 0);
	printf("{\"often\": %.6f, \"seldom\": %.6f}\n", first.often + second.often,
	       first.seldom + second.seldom);
	return 0;
}
