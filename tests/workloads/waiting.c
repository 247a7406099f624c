/* Threads that wait for known things: a clock, a pipe, a lock. Prints the seconds of wall-clock
 * time that each thread waited, as it saw them itself.
 *
 * Usage: waiting SECONDS */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static double until, waited[3];
static int ends[2];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

static void pause_ms(long ms)
{
	struct timespec time = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000 };

	nanosleep(&time, 0);
}

static void *of_timer(void *nothing)
{
	while (now() < until) {
		double begin = now();

		pause_ms(100);
		waited[0] += now() - begin;
	}
	return nothing;
}

static void *of_pipe(void *nothing)
{
	char byte;

	for (;;) {
		double begin = now();

		if (read(ends[0], &byte, 1) != 1)
			return nothing;
		waited[1] += now() - begin;
	}
}

static void *of_lock(void *nothing)
{
	while (now() < until) {
		double begin = now();

		pthread_mutex_lock(&lock);
		waited[2] += now() - begin;
		pthread_mutex_unlock(&lock);
		/* Longer than the lock is free: each wait for it is as long as it is held, and
		 * all waits of this thread are long, so that all of their stacks are taken. */
		usleep(20000);
	}
	return nothing;
}

int main(int count, char **arguments)
{
	void *(*kinds[])(void *) = { of_timer, of_pipe, of_lock };
	pthread_t threads[3];

	until = now() + (count > 1 ? atof(arguments[1]) : 1);
	if (pipe(ends))
		return 1;
	for (int kind = 0; kind < 3; kind++)
		if (pthread_create(&threads[kind], 0, kinds[kind], 0))
			return 1;
	while (now() < until) {
		pthread_mutex_lock(&lock);
		pause_ms(150);
		pthread_mutex_unlock(&lock);
		pause_ms(5);
		if (write(ends[1], "x", 1) != 1)
			return 1;
	}
	close(ends[1]);
	for (int kind = 0; kind < 3; kind++)
		pthread_join(threads[kind], 0);
	printf("{\"timer\": %.6f, \"pipe\": %.6f, \"futex\": %.6f}\n", waited[0], waited[1],
	       waited[2]);
	return 0;
}
