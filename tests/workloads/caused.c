/*
 * Programs of one cause each, for the seconds of time given:
 *
 *     caused NAME SECONDS
 *     caused               names, each with the mechanism that takes its time
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "caused_memory.h"

struct slot {
	volatile long count;
} __attribute__((aligned(8)));
static struct slot slots[64] __attribute__((aligned(128)));

KEPT void count_in(struct slot *slot)
{
	for (long i = 0; i < many; i++)
		__atomic_fetch_add(&slot->count, 1, __ATOMIC_SEQ_CST);
}

KEPT void add_to(long *shared)
{
	for (long i = 0; i < many; i++)
		__atomic_fetch_add(shared, 1, __ATOMIC_SEQ_CST);
}

static volatile int stopped;
static long shared_count;
static void *other_slot(void *none)
{
	while (!stopped)
		count_in(&slots[1]);
	return none;
}
static void *other_add(void *none)
{
	while (!stopped)
		add_to(&shared_count);
	return none;
}
static void share_falsely(void)
{
	count_in(&slots[0]);
}
static void contend(void)
{
	add_to(&shared_count);
}
static long own_count;
static void lock_alone(void)
{
	add_to(&own_count);
}

KEPT void branch(void)
{
	long sum = 0;

	for (long i = 0; i < many; i++) {
		uint32_t word = words[i & 0xffff];

		if (word & 1) {
			sum = sum * 5 + word;
			USED(sum);
		} else {
			sum ^= word >> 3;
			USED(sum);
		}
	}
	sink += sum;
}

#define TARGET(n) KEPT long target_##n(long x) { USED(x); return x * (n + 3) + n; }
TARGET(0) TARGET(1) TARGET(2) TARGET(3) TARGET(4) TARGET(5) TARGET(6) TARGET(7)
static long (*targets[8])(long) = { target_0, target_1, target_2, target_3,
				    target_4, target_5, target_6, target_7 };
KEPT void dispatch(void)
{
	long sum = 1;

	for (long i = 0; i < many; i++)
		sum = targets[words[i & 0xffff] & 7](sum);
	sink += sum;
}

KEPT void divide(void)
{
	uint64_t value = 1;

	for (long i = 0; i < many; i++) {
		value = (value | 1) * 1000003 / (i | 3) + 7;
		USED(value);
	}
	sink += value;
}

KEPT void root(void)
{
	double value = 7;

	for (long i = 0; i < many; i++) {
		value = sqrt(value + 2.0);
		__asm__ volatile("" : "+x"(value));
	}
	sink += value;
}

KEPT void chain_of_adds(void)
{
	double sum = 0;

	for (long i = 0; i < many; i++) {
		sum += 1.5;
		__asm__ volatile("" : "+x"(sum));
	}
	sink += sum;
}

KEPT void chain_of_products(void)
{
	uint64_t product = 3;

	for (long i = 0; i < many; i++) {
		product *= 0x9e3779b97f4a7c15u;
		USED(product);
	}
	sink += product;
}

/* One unit multiplies. */
KEPT void multiply(void)
{
	uint64_t a = 1, b = 2, c = 3, d = 4, e = 5, f = 6;

	for (long i = 0; i < many; i++) {
		__asm__ volatile("imul $3, %0, %0\n imul $5, %1, %1\n imul $7, %2, %2\n"
				 "imul $3, %3, %3\n imul $5, %4, %4\n imul $7, %5, %5"
				 : "+r"(a), "+r"(b), "+r"(c), "+r"(d), "+r"(e), "+r"(f));
	}
	sink += a + b + c + d + e + f;
}

KEPT void add_up(void)
{
	uint64_t a = 1, b = 2, c = 3, d = 4, e = 5, f = 6, g = 7, h = 8;

	for (long i = 0; i < many; i++) {
		__asm__ volatile("add $3, %0\n add $5, %1\n add $7, %2\n add $9, %3\n"
				 "xor $3, %4\n xor $5, %5\n xor $7, %6\n xor $9, %7"
				 : "+r"(a), "+r"(b), "+r"(c), "+r"(d), "+r"(e), "+r"(f),
				   "+r"(g), "+r"(h));
	}
	sink += a + b + c + d + e + f + g + h;
}

KEPT void denormal(void)
{
	double value = 1e-300, sum = 0;

	for (long i = 0; i < many; i++) {
		double product = value * 1e-10;

		__asm__ volatile("" : "+x"(product), "+x"(value));
		sum += product;
	}
	sink += sum;
}

KEPT void fence(void)
{
	long sum = 0;

	for (long i = 0; i < many; i++) {
		sum += i;
		USED(sum);
		__asm__ volatile("lfence" ::: "memory");
	}
	sink += sum;
}

KEPT void full_fence(void)
{
	for (long i = 0; i < many; i++) {
		*(volatile long *)bytes = i;
		__asm__ volatile("mfence" ::: "memory");
	}
}

KEPT void trap(void)
{
	for (long i = 0; i < many / 1000; i++) {
		unsigned a = 0, b, c = 0, d;

		__asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
	}
}

KEPT void fault(void)
{
	char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	madvise(memory, size, MADV_NOHUGEPAGE);
	for (long i = 0; i < size; i += 4096)
		memory[i] = 1;
	munmap(memory, size);
}

KEPT void call_kernel(void)
{
	for (long i = 0; i < many / 100; i++)
		syscall(SYS_getppid);
}

static int file = -1;
KEPT void copy_in(void)
{
	lseek(file, 0, SEEK_SET);
	while (read(file, bytes, 256 * KIB) > 0)
		;
}

static volatile int turn;
static void *other_turn(void *none)
{
	while (!stopped) {
		double until = now_s() + 0.002;

		while (now_s() < until && !stopped)
			sink++;
		turn = 1;
	}
	turn = 1;
	return none;
}
KEPT void spin(void)
{
	while (!turn)
		__builtin_ia32_pause();
	turn = 0;
}

KEPT void allocate(void)
{
	void *held[64];

	for (long i = 0; i < many / 64; i++) {
		for (int j = 0; j < 64; j++)
			held[j] = malloc(24 + (i * j) % 1500);
		for (int j = 0; j < 64; j++)
			free(held[(j * 37) % 64]);
	}
}

#define ONE(n) KEPT long piece_##n(long x) { \
	USED(x); x ^= n; x += x >> 7; USED(x); x = x * 31 + n; USED(x); x ^= x >> 3; USED(x); \
	x += 77 * n; USED(x); x ^= x >> 9; USED(x); x = x * 33 + n; USED(x); x ^= x >> 5; \
	USED(x); x -= n; USED(x); x ^= 0x1234567 + n; USED(x); x += x >> 11; USED(x); return x; }
#define FOUR(n) ONE(n##0) ONE(n##1) ONE(n##2) ONE(n##3)
#define MANY(n) FOUR(n##0) FOUR(n##1) FOUR(n##2) FOUR(n##3)
#define MORE(n) MANY(n##0) MANY(n##1) MANY(n##2) MANY(n##3)
#define MOST(n) MORE(n##0) MORE(n##1) MORE(n##2) MORE(n##3)
MOST(1) MOST(2) MOST(3)
#define P1(n) piece_##n,
#define P4(n) P1(n##0) P1(n##1) P1(n##2) P1(n##3)
#define P16(n) P4(n##0) P4(n##1) P4(n##2) P4(n##3)
#define P64(n) P16(n##0) P16(n##1) P16(n##2) P16(n##3)
#define P256(n) P64(n##0) P64(n##1) P64(n##2) P64(n##3)
static long (*pieces[])(long) = { P256(1) P256(2) P256(3) };
KEPT void wander(void)
{
	long sum = 1;

	for (unsigned i = 0; i < sizeof(pieces) / sizeof(*pieces); i++)
		sum = pieces[i](sum);
	sink += sum;
}

KEPT void probe(void)
{
	uint64_t state = seed;
	long found = 0;

	for (long i = 0; i < many; i++) {
		state = state * 6364136223846793005u + 1442695040888963407u;
		uint64_t slot = (state >> 20) & (size / 8 - 1);

		while (((uint64_t *)bytes)[slot] == state)
			slot++;
		found += ((uint64_t *)bytes)[slot] == 0;
	}
	seed = state;
	sink += found;
}

static struct {
	const char *name, *mechanism;
	void (*run)(void);
	long bytes, apart;
	void *(*other)(void *);
} all[] = {
	{ "chase_first", "dependency_chain", chase, 16 * KIB, 64, NULL },
	{ "chase_second", "load_from_l2", chase, 512 * KIB, 64, NULL },
	{ "chase_third", "load_from_l3", chase, 7 * MIB, 64, NULL },
	{ "chase_memory", "load_from_memory", chase, 256 * MIB, 64, NULL },
	{ "chase_pages", "page_walk", chase, 64 * MIB, 4096, NULL },
	{ "gather", "load_from_memory", gather, 256 * MIB, 0, NULL },
	{ "look_up", "load_from_l2", look_up, 1 * MIB, 0, NULL },
	{ "stream_in", "memory_bandwidth", stream_in, 256 * MIB, 0, NULL },
	{ "stream_out", "memory_bandwidth", stream_out, 256 * MIB, 0, NULL },
	{ "scatter", "store_buffer", scatter, 256 * MIB, 0, NULL },
	{ "forward", "store_forwarding", forward, 4 * KIB, 0, NULL },
	{ "split", "split_access", split, 4 * KIB, 0, NULL },
	{ "alias", "aliasing_4k", alias, 16 * KIB, 0, NULL },
	{ "share_falsely", "false_sharing", share_falsely, 0, 0, other_slot },
	{ "contend", "contended_line", contend, 0, 0, other_add },
	{ "lock_alone", "locked_instruction", lock_alone, 0, 0, NULL },
	{ "branch", "branch_mispredict", branch, 0, 0, NULL },
	{ "dispatch", "indirect_mispredict", dispatch, 0, 0, NULL },
	{ "divide", "divider", divide, 0, 0, NULL },
	{ "root", "divider", root, 0, 0, NULL },
	{ "chain_of_adds", "dependency_chain", chain_of_adds, 0, 0, NULL },
	{ "chain_of_products", "dependency_chain", chain_of_products, 0, 0, NULL },
	{ "multiply", "throughput", multiply, 0, 0, NULL },
	{ "add_up", "at_limit", add_up, 0, 0, NULL },
	{ "denormal", "assist", denormal, 0, 0, NULL },
	{ "fence", "serialising_instruction", fence, 0, 0, NULL },
	{ "full_fence", "serialising_instruction", full_fence, 4 * KIB, 0, NULL },
	{ "trap", "hypervisor_trap", trap, 0, 0, NULL },
	{ "fault", "page_fault", fault, 64 * MIB, 0, NULL },
	{ "call_kernel", "system_call", call_kernel, 0, 0, NULL },
	{ "copy_in", "kernel_copy", copy_in, 256 * KIB, 0, NULL },
	{ "spin", "spinning", spin, 0, 0, other_turn },
	{ "allocate", "allocator", allocate, 0, 0, NULL },
	{ "wander", "instruction_fetch", wander, 0, 0, NULL },
	{ "probe", "load_from_memory", probe, 256 * MIB, 0, NULL },
};

int main(int argc, char **argv)
{
	double seconds = argc > 2 ? atof(argv[2]) : 1;

	if (argc < 2) {
		for (unsigned i = 0; i < sizeof(all) / sizeof(*all); i++)
			printf("%s %s\n", all[i].name, all[i].mechanism);
		return 0;
	}
	for (unsigned i = 0; i < sizeof(all) / sizeof(*all); i++) {
		pthread_t other;

		if (strcmp(all[i].name, argv[1]))
			continue;
		many = 10000000;
		size = all[i].bytes;
		if (all[i].run == chase) {
			make_chain(size, all[i].apart);
		} else if (size && all[i].run != fault) {
			bytes = aligned_alloc(4096, size + 4096);
			memset(bytes, 0, size + 4096);
		}
		words = malloc(4 << 16);
		for (long j = 0; j < 1 << 16; j++)
			words[j] = random64() >> 11;
		if (all[i].run == copy_in) {
			file = memfd_create("copied", 0);
			if (ftruncate(file, 64 * MIB) || file < 0)
				return 1;
		}
		if (all[i].other)
			pthread_create(&other, NULL, all[i].other, NULL);
		for (double end = now_s() + seconds; now_s() < end;)
			all[i].run();
		stopped = 1;
		if (all[i].other)
			pthread_join(other, NULL);
		return 0;
	}
	fprintf(stderr, "caused: no program %s\n", argv[1]);
	return 2;
}
