/*
 * Wants the samples of others to be counted as another file's, or as nobody's. Static; needs no
 * right:
 *
 *     number_thief page FILE OFFSET LEN SECONDS
 *         maps LEN bytes of FILE's code and execs itself, four times a second: the sampler takes
 *         FILE for a C library, and counts it under a number
 *     number_thief forge FILE OFFSET LEN SECONDS OTHER
 *         has the sampler give the number of that code of FILE to a mapping that has no record,
 *         a part cut off another, and then maps OTHER there, which has one
 *     number_thief victim CODE ROUNDS
 *         maps CODE at a fixed address, works there for a fraction of a millisecond, and execs
 *         itself, so many times; says {"cpu_s": N}
 *     number_thief twin LIBRARY PID SECONDS
 *         becomes a process whose slot is that of PID, and maps LIBRARY, a C library by its
 *         name, where the victim has CODE, and execs itself, as often as it can
 *
 * OFFSET and LEN are in hexadecimal; SECONDS and ROUNDS count down.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Where no kernel places anything: above the heap of a program without PIE, below all else. */
#define PLACE ((void *)0x100000000000)
enum { SLOTS = 1 << 15, PLACE_LEN = 1 << 20 };

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static void *mapped(void *at, size_t len, int rights, int flags, int fd, off_t offset)
{
	void *map = mmap(at, len, rights, MAP_PRIVATE | flags, fd, offset);

	if (map == MAP_FAILED)
		fail("mmap");
	return map;
}

static int opened(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		fail(path);
	return fd;
}

/* Execs itself with another number in that argument. */
static void again(char **argv, int argument, double number)
{
	char text[32];

	snprintf(text, sizeof text, "%f", number);
	argv[argument] = text;
	execv("/proc/self/exe", argv);
	fail("exec");
}

static void steal(int argc, char **argv)
{
	int fd = opened(argv[2]);
	off_t offset = strtoul(argv[3], NULL, 16);
	size_t len = strtoul(argv[4], NULL, 16);
	double left = atof(argv[5]);

	if (strcmp(argv[1], "page") == 0) {
		mapped(NULL, len, PROT_READ | PROT_EXEC, 0, fd, offset);
	} else if (argc > 6) {
		char *at = mapped(NULL, len + 4096, PROT_READ, 0, fd, offset);

		if (mprotect(at, len + 4096, PROT_READ | PROT_EXEC) || munmap(at + len, 4096))
			fail("cutting a mapping");
		mapped(at, len, PROT_READ | PROT_EXEC, MAP_FIXED, opened(argv[6]), 0);
	}
	usleep(250000);
	if (left > 0.25)
		again(argv, 5, left - 0.25);
}

static void be_victim(char **argv)
{
	double rounds = atof(argv[3]);
	struct timespec now;
	int n;

	mapped(PLACE, PLACE_LEN, PROT_READ | PROT_EXEC, MAP_FIXED, opened(argv[2]), 0);
	for (n = 0; n < 2; n++)
		((void (*)(void))PLACE)();
	if (rounds > 1)
		again(argv, 3, rounds - 1);
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
	printf("{\"cpu_s\": %.6f}\n", (double)now.tv_sec + 1e-9 * (double)now.tv_nsec);
}

static double now_s(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void be_twin(char **argv)
{
	int victim = atoi(argv[3]), status;
	double until_s = atof(argv[4]);

	if (until_s < 1e6) { /* the first time: seconds from now */
		until_s = now_s() + until_s;
		while (getpid() % SLOTS != victim % SLOTS || getpid() == victim) {
			pid_t child = fork();

			if (child > 0) {
				waitpid(child, &status, 0);
				if (child % SLOTS == victim % SLOTS)
					exit(status != 0);
				if (now_s() > until_s)
					exit(1);
			} else if (child < 0 || getpid() % SLOTS != victim % SLOTS) {
				_exit(1);
			}
		}
		until_s += 1e9;
	}
	mapped(PLACE, PLACE_LEN, PROT_READ | PROT_EXEC, MAP_FIXED, opened(argv[2]), 0);
	if (now_s() < until_s - 1e9)
		again(argv, 4, until_s);
}

int main(int argc, char **argv)
{
	if (argc >= 4 && strcmp(argv[1], "victim") == 0)
		be_victim(argv);
	else if (argc >= 5 && strcmp(argv[1], "twin") == 0)
		be_twin(argv);
	else if (argc >= 6)
		steal(argc, argv);
	return 0;
}
