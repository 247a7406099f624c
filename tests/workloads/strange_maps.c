/*
 * Maps what no compiler does and runs it: `strange_maps SECONDS WHAT`, in its working directory,
 * where WHAT is
 *
 *     names    files whose names have newlines, escapes, bytes that are no text, or are others'
 *              names
 *     giant    sixty thousand mappings, one of them of a terabyte
 *     storm    maps, runs and unmaps files as fast as it can
 *     links    the same with sixteen thousand names of one file
 *
 * and says {"maps": N}.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static double until_s;
static uint64_t maps;

static double now_s(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Counts down from a million: x86-64, and arm64. */
#if defined(__x86_64__)
static const uint8_t CODE[] = {0xb8, 0x40, 0x42, 0x0f, 0x00, 0x83, 0xe8, 0x01, 0x7f, 0xfb, 0xc3};
#else
static const uint32_t CODE[] = {0x52884800, 0x72a001e0, 0x71000400, 0x54ffffec, 0xd65f03c0};
#endif

static int made(const char *name)
{
	int fd = open(name, O_RDWR | O_CREAT, 0700);

	if (fd < 0 || write(fd, CODE, sizeof CODE) != sizeof CODE || ftruncate(fd, 1 << 16))
		exit(1);
	return fd;
}

static void *mapped(int fd, size_t len, off_t offset)
{
	void *at = mmap(NULL, len, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, offset);

	if (at == MAP_FAILED)
		exit(1);
	maps++;
	return at;
}

static void names(void)
{
	static const char *const NAMES[] = {
		"a\nb", "\x1b[2J\x1b[31mred", "\xff\xfe\x80", "x (deleted)", "[vdso]",
		"[kernel.kallsyms]", "anon_inode:x", "a\tb\\040c", "memfd:x", "name with spaces",
		"\"quoted\",csv;<b>&amp;", "\r", "$(reboot)`reboot`", "..."};
	char longest[256];

	memset(longest, '\n', 255);
	longest[255] = 0;
	while (now_s() < until_s)
		for (size_t i = 0; i <= sizeof NAMES / sizeof *NAMES; i++) {
			int fd = made(i < sizeof NAMES / sizeof *NAMES ? NAMES[i] : longest);
			void *at = mapped(fd, 4096, 0);

			for (int round = 0; round < 20; round++)
				((void (*)(void))at)();
			munmap(at, 4096);
			close(fd);
		}
}

static void giant(void)
{
	int fd = made("small"), huge = open("huge", O_RDWR | O_CREAT, 0700);
	void *at = mapped(fd, 4096, 0);

	if (huge < 0 || ftruncate(huge, 1L << 40))
		exit(1);
	mapped(huge, 1L << 40, 0);
	/* Neighbours of one file are one mapping unless their offsets do not follow. */
	for (int i = 0; i < 60000; i++)
		mapped(fd, 4096, i % 2 ? 4096 : 8192);
	while (now_s() < until_s)
		((void (*)(void))at)();
}

static void storm(void)
{
	int fds[16];

	for (int i = 0; i < 16; i++) {
		char name[16];

		snprintf(name, sizeof name, "storm-%d", i);
		fds[i] = made(name);
	}
	for (unsigned round = 0; now_s() < until_s; round++) {
		void *at = mapped(fds[round % 16], 4096, 0);

		if (round % 512 == 0)
			((void (*)(void))at)();
		munmap(at, 4096);
	}
}

static void links(void)
{
	enum { LINKS = 16000 };
	char name[16];
	int fd = made("link-0");

	for (int i = 1; i < LINKS; i++) {
		snprintf(name, sizeof name, "link-%d", i);
		if (link("link-0", name))
			exit(1);
	}
	close(fd);
	for (unsigned round = 0; now_s() < until_s; round++) {
		void *at;

		snprintf(name, sizeof name, "link-%d", round % LINKS);
		fd = open(name, O_RDONLY);
		at = mapped(fd, 4096, 0);
		close(fd);
		if (round % 64 == 0)
			((void (*)(void))at)();
		munmap(at, 4096);
	}
}

int main(int argc, char **argv)
{
	if (argc != 3)
		return 2;
	until_s = now_s() + atof(argv[1]);
	if (strcmp(argv[2], "names") == 0)
		names();
	else if (strcmp(argv[2], "giant") == 0)
		giant();
	else if (strcmp(argv[2], "links") == 0)
		links();
	else
		storm();
	printf("{\"maps\": %llu}\n", (unsigned long long)maps);
	return 0;
}
