/* Threads of many short waits and then one long one. Prints the seconds of all long waits together,
 * as the threads saw them.
 *
 * Usage: surprising THREADS SECONDS */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { SHORT_WAITS = 300, THREADS_MAX = 64 };

static int seconds;
static double waited[THREADS_MAX];

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

static void *thread(void *own)
{
	double begin;

	for (int i = 0; i < SHORT_WAITS; i++)
		usleep(100);
	begin = now();
	sleep(seconds);
	*(double *)own = now() - begin;
	return 0;
}

int main(int count, char **arguments)
{
	pthread_t threads[THREADS_MAX];
	int of = count > 2 ? atoi(arguments[1]) : 0;
	double sum = 0;

	if (of < 1 || of > THREADS_MAX)
		return 2;
	seconds = atoi(arguments[2]);
	for (int i = 0; i < of; i++)
		pthread_create(&threads[i], 0, thread, &waited[i]);
	for (int i = 0; i < of; i++)
		pthread_join(threads[i], 0);
	for (int i = 0; i < of; i++)
		sum += waited[i];
	printf("{\"long\": %.6f}\n", sum);
	return 0;
}
