/*
 * Looks like LuaJIT to those who read its memory, and lies: `luajit-liar SECONDS`. Its interpreter
 * is one loop, above which are Lua stacks whose calls lead nowhere, in circles, or on through a
 * million; its table has more traces than there can be, which another thread writes anew all the
 * time. x86-64.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { SLOTS = 1 << 21, TRACES = 1 << 20, CODE_BYTES = 1 << 20, FUNCTION_TAG = 0x1fff7 };

void luaJIT_setmode(void) {}
void lua_newstate(void) {}

/* A procedure of 16 KiB with the frame of the interpreter's, and the instructions that tell where
 * LuaJIT has what. Arguments: the state, rdx and rbx as the interpreter has them, and rounds. */
__asm__(".globl interpret\n.type interpret, @function\ninterpret:\n"
	".cfi_startproc\n.cfi_def_cfa_offset 80\n.cfi_offset %rbp, -16\n.cfi_offset %rbx, -24\n"
	"push %rbp\npush %rbx\npush %r15\npush %r14\nsub $40, %rsp\n"
	"mov %rdi, 16(%rsp)\nmov %rsi, 24(%rsp)\nmovq $0, 8(%rsp)\n"
	"mov %rsi, %rbx\nmov %rsp, 80(%rdi)\n"
	"1: dec %rcx\njnz 1b\n"
	"cmp $0, %r8\nje 2f\nlea 3f(%rip), %rax\nsub $64, %rsp\npush %rax\njmp *%r8\n"
	"3: add $64, %rsp\n"
	"2: add $40, %rsp\npop %r14\npop %r15\npop %rbx\npop %rbp\nret\n"
	"add $0xf80, %r14\n"
	".byte 0x49, 0x8b, 0x8e, 0xd8, 0xf4, 0xff, 0xff, 0x48, 0x8b, 0x04, 0xc1\n"
	".byte 0x48, 0x8b, 0x40, 0x58, 0x48, 0x8b, 0x6c, 0x24, 0x10\n"
	".byte 0x49, 0x89, 0x96, 0xf8, 0xf1, 0xff, 0xff, 0x49, 0x89, 0xae, 0x60, 0xf1, 0xff, 0xff\n"
	".byte 0x48, 0x83, 0xec, 0x10, 0x4c, 0x89, 0x64, 0x24, 0x10, 0x4c, 0x89, 0x6c, 0x24, 0x08\n"
	".fill 16384, 1, 0x90\n.cfi_endproc\n.size interpret, .-interpret\n");
void interpret(void *state, uint64_t next, uint64_t base, uint64_t rounds, void *code);

static struct {
	uint64_t state[12];
	uint64_t global[512];
} all;
static unsigned char *objects;
static uint64_t *slots, *traces;

static void put(uint64_t at, uint64_t word)
{
	memcpy(objects + at, &word, 8);
}

/* A function, its description and its instructions, all in one place, and a trace that is another
 * one each time. */
static void make(unsigned char *code, uint32_t number)
{
	uint64_t begin = (uint64_t)objects;

	put(8, 0x0801);
	put(32, begin + 4096);
	put(4096 - 104 + 8, 0xffffff0701ull);
	put(4096 - 104 + 32, begin + number % 65536);
	put(4096 - 104 + 48, ~0ull);
	put(4096 - 104 + 64, begin + number % 512 * 8);
	put(4096 - 104 + 72, ~0ull);
	for (int at = 80; at < 104; at += 8)
		put(4096 - 104 + at, begin + number % 4096);
	put(8192 + 8, number << 16 | 0x0901);
	put(8192 + 32, begin - 0x40000 + number % 4096 * 8);
	put(8192 + 40, (uint64_t)number << 32 | number % 0x8000);
	put(8192 + 48, begin + number % 8192);
	put(8192 + 56, begin + 16384);
	put(8192 + 64, begin + 4096 - 104);
	put(8192 + 80, (uint64_t)(number & 1 ? CODE_BYTES : number) << 32);
	put(8192 + 88, (uint64_t)code);
	put(8192 + 96, (uint64_t)number << 48);
	put(8192 + 104, number);
}

static void *rewrite(void *code)
{
	for (uint32_t number = 0;; number++)
		make(code, number);
	return 0;
}

int main(int argc, char **argv)
{
	double seconds = argc > 1 ? atof(argv[1]) : 1;
	int access = PROT_READ | PROT_WRITE, kind = MAP_PRIVATE | MAP_ANONYMOUS;
	unsigned char *code = mmap(0, CODE_BYTES, access | PROT_EXEC, kind, -1, 0);
	clock_t until = clock() + seconds * CLOCKS_PER_SEC;
	pthread_t writer;

	objects = mmap(0, 1 << 20, access, kind, -1, 0);
	slots = mmap(0, SLOTS * 8, access, kind, -1, 0);
	traces = mmap(0, TRACES * 8, access, kind, -1, 0);
	if (code == MAP_FAILED || objects == MAP_FAILED || slots == MAP_FAILED ||
	    traces == MAP_FAILED)
		return 1;
	/* Code of traces: it counts down, and returns by a call that is none. */
	memset(code, 0xe8, CODE_BYTES);
	memcpy(code + 64, "\xb9\x00\x00\x00\x01\xff\xc9\x75\xfc\xc3", 10);
	for (int number = 0; number < TRACES; number++)
		traces[number] = (uint64_t)objects + 8192;
	all.state[1] = 0x0601;
	all.state[2] = (uint64_t)all.global;
	all.state[7] = (uint64_t)slots;
	all.global[0x458 / 8] = (uint64_t)traces;
	all.global[0x460 / 8] = ~0ull;
	make(code, 0);
	if (pthread_create(&writer, 0, rewrite, code))
		return 1;
	while (clock() < until) {
		/* Distances of one call, of none, backwards, and to instructions. */
		static const int64_t links[] = {0x13, 0x15, 2, -13, 0};
		uint64_t base = (uint64_t)(slots + SLOTS - 8), next = (uint64_t)objects + 4096;

		for (unsigned link = 0; link < sizeof(links) / sizeof(*links); link++) {
			uint64_t word = links[link] ? (uint64_t)links[link] : next + 8;

			for (int slot = 0; slot < SLOTS; slot += 2) {
				slots[slot] = (uint64_t)FUNCTION_TAG << 47 | (uint64_t)objects;
				slots[slot + 1] = word;
			}
			all.state[4] = base;
			all.global[0x178 / 8] = base;
			interpret(all.state, next + 4, base, 20000000, 0);
			interpret(all.state, next + 4, base, 20000000, code + 64);
			/* A base that cannot be read. */
			all.state[4] = all.global[0x178 / 8] = 8;
			interpret(all.state, 8, 8, 20000000, code + 64);
		}
	}
	return 0;
}
