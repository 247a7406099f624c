/* The first thread ends, and the second works for so many seconds: /proc/PID is then that of a
 * zombie, without mappings, root and memory. */
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

static int seconds;

__attribute__((noipa)) static unsigned works_on(unsigned rounds)
{
	unsigned sum = 1;

	for (unsigned i = 0; i < rounds; i++) {
		sum = sum * 33 + (i ^ sum >> 3);
		__asm__ volatile("");
	}
	return sum;
}

static void *second(void *argument)
{
	time_t end = time(NULL) + seconds;
	unsigned sum = 0;

	while (time(NULL) < end)
		sum += works_on(1000000);
	exit(sum == 0);
	return argument;
}

int main(int argc, char **argv)
{
	pthread_t thread;

	seconds = argc > 1 ? atoi(argv[1]) : 5;
	pthread_create(&thread, NULL, second, NULL);
	pthread_exit(NULL);
}
