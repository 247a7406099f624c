/*
 * Does what no compiler does, for the seconds of CPU time given: `hostile SECONDS WHAT`, where
 * WHAT is
 *
 *     middle   jumps into the middle of instructions
 *     modify   writes its own code, in a private mapping of its file and in memory of no file,
 *              while it runs it
 *     unmap    runs code of a file that it unmaps, cuts and writes anew
 *     stack    has stack pointers that lead nowhere
 *     zeros    runs the zeros of a hole, half a gigabyte of its own file (which somebody has made
 *              that long)
 *
 * and says {"rounds": N}.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static double until_s;
static uint64_t all;

static int goes_on(void)
{
	struct timespec now;

	all++;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9 < until_s;
}

static void middle(void)
{
	while (goes_on())
		asm volatile("mov $100000, %%ecx\n"
			     /* jmp to its own second byte: inc %eax */
			     "1: .byte 0xeb, 0xff, 0xc0\n"
			     ".byte 0x66, 0xb8, 0xeb, 0x01\n" /* mov, in which there is jmp +1 */
			     "test $3, %%al\n"
			     "jz 2f + 1\n"
			     "2: .byte 0x05, 0x90, 0x90, 0x90, 0x90\n" /* add, or four nops */
			     "dec %%ecx\n"
			     "jnz 1b\n" ::
				     : "eax", "ecx", "cc");
}

/* Counts down from 100000; byte 1 to 4 are the number, 6 is what is subtracted. */
static const uint8_t COUNTS[] = {0xb8, 0xa0, 0x86, 0x01, 0x00, 0x83, 0xe8, 0x01, 0x7f, 0xfb, 0xc3};

static void modify(const char *file)
{
	int fd = open(file, O_RDONLY);
	int all_allowed = PROT_READ | PROT_WRITE | PROT_EXEC;
	uint8_t *mapped = mmap(NULL, 8192, all_allowed, MAP_PRIVATE, fd, 4096);
	uint8_t *plain = mmap(NULL, 8192, all_allowed, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (fd < 0 || mapped == MAP_FAILED || plain == MAP_FAILED)
		exit(1);
	for (unsigned round = 0; goes_on(); round++) {
		uint8_t *code = (round & 1 ? mapped : plain) + round % 61 * 8;

		memcpy(code, COUNTS, sizeof COUNTS);
		((void (*)(void))code)();
		code[7] = 3;
		((void (*)(void))code)();
	}
}

static void unmap(const char *file)
{
	char name[4096];

	snprintf(name, sizeof name, "%s.code", file);
	while (goes_on()) {
		int fd = open(name, O_RDWR | O_CREAT, 0700);
		uint8_t page[8192];

		memset(page, 0xc3, sizeof page);
		memcpy(page + 4000, COUNTS, sizeof COUNTS);
		if (fd < 0 || pwrite(fd, page, sizeof page, 0) != sizeof page)
			exit(1);
		uint8_t *mapped = mmap(NULL, 8192, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0);
		if (mapped == MAP_FAILED)
			exit(1);
		munmap(mapped + 4096, 4096);
		for (int i = 0; i < 20; i++)
			((void (*)(void))(mapped + 4000))();
		munmap(mapped, 4096);
		if (ftruncate(fd, 0) != 0)
			exit(1);
		close(fd);
	}
	unlink(name);
}

static void stack(void)
{
	static const uint64_t NOWHERE[] = {0,
					   8,
					   0xfff,
					   0x10000,
					   0x7ffffffff000,
					   0x8000000000000000u,
					   0xffff800000000000u,
					   -8ull,
					   0xffffffffff600000u,
					   0xffffffffffffff00u};

	for (unsigned round = 0; goes_on(); round++)
		asm volatile("mov %%rsp, %%r12\n"
			     "mov %0, %%rsp\n"
			     "mov $300000, %%ecx\n"
			     "1: dec %%ecx\n"
			     "jz 2f\n"
			     "test $1, %%cl\n"
			     "jz 1b\n"
			     "jmp 1b\n"
			     "2: mov %%r12, %%rsp\n" ::"r"(
				     NOWHERE[round % (sizeof NOWHERE / sizeof *NOWHERE)])
			     : "rcx", "r12", "cc", "memory");
}

static sigjmp_buf back;

static void go_back(int signal)
{
	(void)signal;
	siglongjmp(back, 1);
}

static void zeros(const char *file)
{
	enum { LEN = 512 << 20 };
	static volatile uint8_t written;
	static char other_stack[1 << 16];
	stack_t stack = {.ss_sp = other_stack, .ss_size = sizeof other_stack};
	struct sigaction action = {.sa_handler = go_back, .sa_flags = SA_ONSTACK};
	struct itimerval soon = {.it_value = {.tv_usec = 200000}};
	int fd = open(file, O_RDONLY);
	void *volatile hole = mmap(NULL, LEN, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, LEN);

	if (fd < 0 || hole == MAP_FAILED)
		exit(1);
	sigaltstack(&stack, NULL);
	sigaction(SIGALRM, &action, NULL);
	sigaction(SIGSEGV, &action, NULL);
	sigaction(SIGBUS, &action, NULL);
	while (goes_on()) {
		if (sigsetjmp(back, 1) == 0) {
			setitimer(ITIMER_REAL, &soon, NULL);
			/* add %al, (%rax), again and again */
			asm volatile("jmp *%0" ::"r"(hole), "a"(&written) : "memory");
		}
	}
}

int main(int argc, char **argv)
{
	const char *what = argc > 2 ? argv[2] : "middle";

	until_s = argc > 1 ? atof(argv[1]) : 1;
	if (strcmp(what, "middle") == 0)
		middle();
	else if (strcmp(what, "modify") == 0)
		modify(argv[0]);
	else if (strcmp(what, "unmap") == 0)
		unmap(argv[0]);
	else if (strcmp(what, "stack") == 0)
		stack();
	else if (strcmp(what, "zeros") == 0)
		zeros(argv[0]);
	else
		return 1;
	printf("{\"rounds\": %llu}\n", (unsigned long long)all);
	return 0;
}
