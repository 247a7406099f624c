/*
 * Looks like the virtual machine of Erlang to those who read its memory, and lies: `beam.smp
 * SECONDS`. Its list of modules leads in a circle of a hundred thousand, one of which another
 * thread writes anew all the time; generated code runs on stacks of Erlang's that are as bad for a
 * walk as can be. x86-64.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { MODULES = 100000, CODE_BYTES = 1 << 20, WORDS = 1 << 17, TEXT_BYTES = 1 << 20 };

struct entry {
	struct entry *next, *previous;
	const void *text;
	uint64_t bytes;
};
struct {
	uint32_t version, action;
	struct entry *relevant, *first;
} __jit_debug_descriptor = {1, 1, 0, 0};
const char etp_otp_release[] = "25";
const int etp_beamasm = 1;
void *beam_normal_exit;
static pthread_key_t key;

/* As GCC compiles it for BEAM. */
__asm__(".globl erts_get_scheduler_data\nerts_get_scheduler_data:\n"
	"mov key(%rip), %edi\n.byte 0xe9\n.long 0\n");

static struct entry entries[MODULES];
static uint64_t scheduler[64];

static unsigned char *put(unsigned char *at, const void *bytes, size_t len)
{
	memcpy(at, bytes, len);
	return at + len;
}

static unsigned char *put_number(unsigned char *at, uint32_t number)
{
	return put(at, &number, 4);
}

static unsigned char *put_name(unsigned char *at, const char *name)
{
	uint16_t len = strlen(name) + 1;

	at = put(at, &len, 2);
	at = put(at, name, len);
	return put(at, "\0", 2);
}

/* What is told of a module with half of the code. Returns the bytes. */
static uint64_t write_text(unsigned char *text, uint64_t code, uint32_t number)
{
	unsigned char *at = put_number(put_number(text, 1), 0);

	at = put_number(put_number(put(at, &code, 8), 2), CODE_BYTES / 2);
	at = put_number(put_name(at, "global"), 0);
	at = put_number(put_number(put_number(at, 0), 4096), 0);
	at = put_name(at, "global::process_main");
	at = put_number(put_number(at, 4096), CODE_BYTES / 2);
	at = put_number(at, number & 1 ? 1u << 31 : 0);
	return put_name(at, "global::endless") - text;
}

static void *rewrite(void *text)
{
	uint64_t code = ((uint64_t)beam_normal_exit & ~4095ull) + CODE_BYTES / 2;

	for (uint32_t number = 0;; number++)
		write_text(text, code, number);
	return 0;
}

/* Runs generated code at `at` on this stack: it counts down. */
__attribute__((noinline)) static void run_on(const void *at, const void *stack)
{
	__asm__ volatile("mov %%rsp, %%r12\n\tmov %1, %%rsp\n\tmov $20000000, %%ecx\n\tjmp *%0"
			 "\n\t.globl back\nback:\tmov %%r12, %%rsp"
			 :
			 : "r"(at), "r"(stack)
			 : "rcx", "r12", "r11", "memory", "cc");
}
extern char back[];

int main(int argc, char **argv)
{
	double seconds = argc > 1 ? atof(argv[1]) : 1;
	unsigned char *code = mmap(0, CODE_BYTES, PROT_READ | PROT_WRITE | PROT_EXEC,
				   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint64_t *words = mmap(0, WORDS * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
			       -1, 0);
	unsigned char *text = malloc(TEXT_BYTES), *torn = malloc(TEXT_BYTES), *at;
	uint64_t target = (uint64_t)back;
	clock_t until = clock() + seconds * CLOCKS_PER_SEC;
	pthread_t writer;

	if (code == MAP_FAILED || words == MAP_FAILED || !text || !torn)
		return 1;
	if (pthread_key_create(&key, 0))
		return 1;
	pthread_setspecific(key, scheduler);
	/* A scheduler that is its own process, whose stack is where the thread's is. */
	scheduler[0xa8 / 8] = (uint64_t)scheduler;
	/* Calls everywhere, at the begin what the scheduler's loop has, and a loop. */
	memset(code, 0xe8, CODE_BYTES);
	put(code, "\x49\x8b\x65\x58", 4);
	at = put(code + 8192, "\xff\xc9\x75\xfc\x49\xbb", 6); /* dec ecx; jne; mov target, r11 */
	at = put(at, &target, 8);
	put(at, "\x41\xff\xe3", 3); /* jmp r11 */
	beam_normal_exit = code + 64;
	for (int number = 0; number < MODULES; number++) {
		entries[number].next = &entries[(number + 1) % MODULES];
		entries[number].text = number % 2 ? torn : (void *)(uintptr_t)number;
		entries[number].bytes = write_text(text, (uint64_t)code, 0);
	}
	entries[0].text = text;
	__jit_debug_descriptor.first = entries;
	if (pthread_create(&writer, 0, rewrite, torn))
		return 1;
	while (clock() < until) {
		/* A frame in every word, in every 250 words; none; a stack that cannot be read. */
		for (int step = 1; step <= 250; step += 249) {
			memset(words, 0x11, WORDS * 8);
			for (int word = 0; word < WORDS; word += step)
				words[word] = (uint64_t)code + 16384 + word % 4096;
			run_on(code + 8192, words);
		}
		memset(words, 0x11, WORDS * 8);
		run_on(code + 8192, words);
		run_on(code + 8192, (void *)8);
	}
	return 0;
}
