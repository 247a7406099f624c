/*
 * A program of an ordinary user with the build id of a program of root's. Static; started by root,
 * becomes the user 12345:
 *
 *     impostor spin SECONDS
 *         works in not_what_root_ran()
 *     impostor mapped SECONDS
 *         maps its own code once more, to be read, makes that executable, and works there
 *     impostor bound SECONDS PATH
 *         as root of namespaces of its own mounts itself over PATH, which it then executes
 *     impostor risen SECONDS PATH
 *         does as mapped in 64 processes, one after another, which then execute PATH, a build of
 *         this program that is set-user-ID root: it only waits
 *
 * SECONDS are of CPU time. The last line of output is {"cpu_s": N}.
 */
#include "enemy.h"

#include <elf.h>
#include <link.h>
#include <time.h>

extern const ElfW(Ehdr) __ehdr_start;

__attribute__((noinline)) uint64_t not_what_root_ran(uint64_t rounds)
{
	volatile uint64_t x = 0;

	while (rounds--)
		x += rounds;
	return x;
}

typedef uint64_t work(uint64_t rounds);

static double cpu_s(void)
{
	struct timespec now;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void spend(work *work, double seconds)
{
	while (cpu_s() < seconds)
		work(1000000);
	printf("{\"cpu_s\": %.3f}\n", cpu_s());
}

/* The same code at another address, in a mapping that was not executable at first. */
static work *mapped_again(void)
{
	const ElfW(Phdr) *part = (const void *)((const char *)&__ehdr_start + __ehdr_start.e_phoff);
	uintptr_t code = (uintptr_t)not_what_root_ran;
	int file = open("/proc/self/exe", O_RDONLY);
	char *map;

	while (part->p_type != PT_LOAD || code - part->p_vaddr >= part->p_memsz)
		part++;
	map = mmap(NULL, part->p_filesz, PROT_READ, MAP_PRIVATE, file, (off_t)part->p_offset);
	if (map == MAP_FAILED || mprotect(map, part->p_filesz, PROT_READ | PROT_EXEC))
		fail("mapped again");
	return (work *)(map + (code - part->p_vaddr));
}

enum { RISEN = 64 };

static void spend_and_rise(double seconds, char *path)
{
	volatile double *spent = mmap(NULL, RISEN * sizeof *spent, PROT_READ | PROT_WRITE,
			     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	double sum = 0;
	pid_t children[RISEN];
	int number;

	for (number = 0; number < RISEN; number++) {
		children[number] = fork();
		if (children[number] == 0) {
			work *work = mapped_again();

			while (cpu_s() < seconds / RISEN)
				work(100000);
			spent[number] = cpu_s();
			execl(path, path, "wait", (char *)NULL);
			fail(path);
		}
		/* The next one begins when this one has worked. */
		while (spent[number] == 0 && waitpid(children[number], NULL, WNOHANG) == 0)
			usleep(1000);
	}
	for (number = 0; number < RISEN; number++) {
		waitpid(children[number], NULL, 0);
		sum += spent[number];
	}
	printf("{\"cpu_s\": %.3f}\n", sum);
}

int main(int count, char **arguments)
{
	double seconds = count > 2 ? strtod(arguments[2], NULL) : 0;

	if (count == 3 && strcmp(arguments[1], "spin") == 0) {
		if (getuid() == 0)
			become_enemy();
		spend(not_what_root_ran, seconds);
	} else if (count == 3 && strcmp(arguments[1], "mapped") == 0) {
		become_enemy();
		spend(mapped_again(), seconds);
	} else if (count == 4 && strcmp(arguments[1], "risen") == 0) {
		become_enemy();
		spend_and_rise(seconds, arguments[3]);
	} else if (count == 2 && strcmp(arguments[1], "wait") == 0) {
		sleep(12); /* beyond the next drain */
	} else if (count == 4 && strcmp(arguments[1], "bound") == 0) {
		become_enemy_in_namespace();
		if (mount(arguments[0], arguments[3], NULL, MS_BIND, NULL))
			fail("bind");
		execl(arguments[3], arguments[3], "again", arguments[2], (char *)NULL);
		fail(arguments[3]);
	} else if (count == 3 && strcmp(arguments[1], "again") == 0) {
		spend(not_what_root_ran, seconds);
	} else {
		return 2;
	}
	return 0;
}
