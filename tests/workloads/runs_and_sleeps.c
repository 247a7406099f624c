/* A program that runs and sleeps in turn, and prints the seconds of both as it saw them itself; a
 * second thread, which sleeps until the first is done, prints its number first.
 *
 * Usage: runs_and_sleeps TURNS */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static volatile unsigned long sum;

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

__attribute__((noipa)) static double runs(double seconds)
{
	double begin = now();

	while (now() - begin < seconds)
		for (int i = 0; i < 10000; i++)
			sum += i * sum;
	return now() - begin;
}

__attribute__((noipa)) static double sleeps(long ms)
{
	struct timespec time = { .tv_nsec = ms * 1000000 };
	double begin = now();

	nanosleep(&time, 0);
	return now() - begin;
}

__attribute__((noipa)) static void *other(void *until)
{
	printf("%ld\n", (long)syscall(SYS_gettid));
	fflush(stdout);
	while (now() < *(double *)until)
		sleeps(100);
	return 0;
}

int main(int count, char **arguments)
{
	int turns = count > 1 ? atoi(arguments[1]) : 10;
	double until = now() + turns * 0.2, running = 0, sleeping = 0;
	pthread_t thread;

	if (count > 2 && pthread_create(&thread, 0, other, &until))
		return 1;
	while (turns-- > 0) {
		running += runs(0.1);
		sleeping += sleeps(100);
	}
	if (count > 2)
		pthread_join(thread, 0);
	printf("{\"runs\": %.6f, \"sleeps\": %.6f}\n", running, sleeping);
	return 0;
}
