/* Has stacks too large to copy: frames of 20 KiB, one of 300 KiB and 600 small ones, in part below
 * a signal handler, with a procedure that aligns its stack. Argument: seconds to run. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

__attribute__((noinline)) static unsigned spin(unsigned rounds)
{
	unsigned sum = rounds;

	while (rounds--)
		sum = sum * 1103515245 + 12345;
	return sum;
}

static volatile unsigned sink;

__attribute__((noinline)) static unsigned small(int depth)
{
	unsigned sum = depth ? small(depth - 1) : spin(200000);

	sink = sum;
	return sum + 1;
}

__attribute__((noinline)) static unsigned aligned(int depth)
{
	_Alignas(64) volatile char line[64];
	unsigned sum;

	line[depth & 63] = 1;
	sum = depth % 8 ? aligned(depth - 1) : small(600);
	return sum + line[depth & 63];
}

__attribute__((noinline)) static unsigned huge(void)
{
	volatile char block[300 << 10];
	unsigned sum;

	block[0] = 1;
	sum = aligned(7);
	return sum + block[0];
}

__attribute__((noinline)) static unsigned large(int depth)
{
	volatile char block[20 << 10];
	unsigned sum;

	block[0] = depth;
	sum = depth ? large(depth - 1) : huge();
	return sum + block[0];
}

static void handle(int signal)
{
	sink = large(signal % 4);
}

int main(int count, char **arguments)
{
	double end = now() + (count > 1 ? atof(arguments[1]) : 1);
	unsigned sum = 0;

	signal(SIGUSR1, handle);
	while (now() < end) {
		sum += large(6);
		raise(SIGUSR1);
	}
	return sum == 42;
}
