/*
 * Programs whose slowness has one known cause each, for `bench why`; the rules of `dcpi why` were
 * not tuned on them.
 *
 *     others              a line for each: its name, and the mechanisms that are right, the first
 * one best others NAME SECONDS
 */
#include <cpuid.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#define NOINLINE __attribute__((noinline))

static double end_s;
static volatile uint64_t sink;
static uint64_t state = 88172645463325252u;

static double now_s(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static int goes_on(void) { return now_s() < end_s; }

static uint64_t random_number(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

struct node {
	struct node *next;
	long values[7];
};

NOINLINE static long follow(struct node *node, long rounds)
{
	long sum = 0;
	while (rounds--) {
		sum += node->values[1];
		node = node->next;
	}
	sink = (uintptr_t)node;
	return sum;
}

/* Nodes with a value each, in a circle in random order. */
static void chase(long bytes)
{
	long count = bytes / (long)sizeof(struct node);
	struct node *nodes = aligned_alloc(4096, (size_t)bytes / 4096 * 4096 + 4096);
	long *order = malloc(count * sizeof(*order));
	for (long i = 0; i < count; i++)
		order[i] = i;
	for (long i = count - 1; i > 0; i--) {
		long other = random_number() % (i + 1), kept = order[i];
		order[i] = order[other];
		order[other] = kept;
	}
	for (long i = 0; i < count; i++) {
		nodes[order[i]].next = &nodes[order[(i + 1) % count]];
		nodes[order[i]].values[1] = i;
	}
	while (goes_on())
		sink += follow(nodes, 200000);
}

static void list_in_l2(void) { chase(200000); }
static void list_in_l3(void) { chase(3000000); }
static void list_in_memory(void) { chase(400000000); }

enum { SIDE = 4096 };
static double from[SIDE][SIDE], to[SIDE][SIDE];

NOINLINE static void transpose_once(void)
{
	for (int i = 0; i < SIDE; i++)
		for (int j = 0; j < SIDE; j++)
			to[j][i] = from[i][j];
}

static void transpose(void)
{
	while (goes_on()) {
		transpose_once();
		sink += to[5][7];
	}
}

NOINLINE static void add_scaled(double *to, const double *from, double factor, long count)
{
	for (long i = 0; i < count; i++)
		to[i] += factor * from[i];
}

static void daxpy(void)
{
	long count = 16 << 20;
	double *x = calloc(count, sizeof(*x)), *y = calloc(count, sizeof(*y));
	memset(x, 1, count * sizeof(*x));
	while (goes_on())
		add_scaled(y, x, 1.0001, count);
}

NOINLINE static double polynomial_of(const double *factors, int count, double x)
{
	double value = 0;
	for (int i = 0; i < count; i++)
		value = value * x + factors[i];
	return value;
}

static void polynomial(void)
{
	double factors[256] = {1.0, 0.5, 0.25}, sum = 0;
	while (goes_on())
		for (int i = 0; i < 20000; i++)
			sum += polynomial_of(factors, 256, 0.3 + i * 1e-6);
	sink = (uint64_t)sum;
}

NOINLINE static uint64_t hash_of(const unsigned char *bytes, long count)
{
	uint64_t hash = 14695981039346656037u;
	for (long i = 0; i < count; i++)
		hash = (hash ^ bytes[i]) * 1099511628211u;
	return hash;
}

static void hash(void)
{
	static unsigned char bytes[16384];
	while (goes_on())
		for (int i = 0; i < 100; i++)
			sink += hash_of(bytes, sizeof(bytes));
}

NOINLINE static uint64_t divisor_of(uint64_t a, uint64_t b)
{
	while (b) {
		uint64_t rest = a % b;
		a = b;
		b = rest;
	}
	return a;
}

static void divisor(void)
{
	while (goes_on())
		for (int i = 0; i < 10000; i++)
			sink += divisor_of(random_number() | 1, random_number() | 1);
}

NOINLINE static void normalise_all(double *x, double *y, int count)
{
	for (int i = 0; i < count; i++) {
		double by = 1.0 / sqrt(x[i] * x[i] + y[i] * y[i]);
		x[i] *= by;
		y[i] *= by;
	}
}

static void normalise(void)
{
	static double x[2048], y[2048];
	for (int i = 0; i < 2048; i++)
		x[i] = i + 1, y[i] = 2 * i + 1;
	while (goes_on())
		for (int i = 0; i < 100; i++)
			normalise_all(x, y, 2048);
}

static void own_atomics(void)
{
	static uint64_t counters[512];
	while (goes_on())
		for (int i = 0; i < 100000; i++)
			__atomic_fetch_add(&counters[i & 511], 1, __ATOMIC_SEQ_CST);
}

/* Runs a function in two threads. */
static void twice(void *(*function)(void *))
{
	static int numbers[2] = {0, 1};
	pthread_t other;
	pthread_create(&other, NULL, function, &numbers[1]);
	function(&numbers[0]);
	pthread_join(other, NULL);
}

static void *add_to_one(void *unused)
{
	static uint64_t shared;
	while (goes_on())
		for (int i = 0; i < 10000; i++)
			__atomic_fetch_add(&shared, 1, __ATOMIC_SEQ_CST);
	return unused;
}

static void one_atomic(void) { twice(add_to_one); }

static void *add_beside(void *number)
{
	static volatile uint64_t counters[2] __attribute__((aligned(64)));
	while (goes_on())
		for (int i = 0; i < 100000; i++)
			counters[*(int *)number] += i;
	return number;
}

static void neighbours(void) { twice(add_beside); }

static void one_byte(void)
{
	int zero = open("/dev/zero", O_RDONLY);
	char byte;
	while (goes_on())
		for (int i = 0; i < 1000; i++)
			sink += read(zero, &byte, 1);
}

static void read_file(void)
{
	static char buffer[1 << 20];
	char name[] = "/tmp/dcpi-why-XXXXXX";
	int file = mkstemp(name);
	unlink(name);
	for (int i = 0; i < 64; i++)
		sink += write(file, buffer, sizeof(buffer));
	while (goes_on()) {
		lseek(file, 0, SEEK_SET);
		while (read(file, buffer, sizeof(buffer)) > 0)
			;
	}
}

static void fresh_pages(void)
{
	long size = 16 << 20;
	while (goes_on()) {
		char *pages =
		    mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		madvise(pages, size, MADV_NOHUGEPAGE);
		for (long i = 0; i < size; i += 4096)
			pages[i] = 1;
		munmap(pages, size);
	}
}

NOINLINE static void decay(float *values, int count)
{
	for (int i = 0; i < count; i++)
		values[i] = values[i] * 0.5f + 1e-40f;
}

static void denormals(void)
{
	static float values[4096];
	while (goes_on())
		for (int i = 0; i < 100; i++)
			decay(values, 4096);
}

NOINLINE static uint64_t pack_all(const unsigned char *bytes, int count)
{
	union {
		volatile unsigned char bytes[8];
		volatile uint64_t word;
	} packed;
	uint64_t sum = 0;
	for (int i = 0; i + 8 <= count; i += 8) {
		for (int j = 0; j < 8; j++)
			packed.bytes[j] = bytes[i + j] ^ j;
		sum += packed.word;
	}
	return sum;
}

static void bytes_then_word(void)
{
	static unsigned char bytes[8192];
	while (goes_on())
		for (int i = 0; i < 100; i++)
			sink += pack_all(bytes, sizeof(bytes));
}

NOINLINE static uint64_t across_lines(const char *bytes, long count)
{
	uint64_t sum = 0;
	for (long i = 0; i < count; i++) {
		uint64_t value;
		memcpy(&value, bytes + i * 64 + 60, sizeof(value));
		sum += value;
	}
	return sum;
}

static void across(void)
{
	char *bytes = aligned_alloc(64, 32768);
	memset(bytes, 1, 32768);
	while (goes_on())
		for (int i = 0; i < 1000; i++)
			sink += across_lines(bytes, 500);
}

static void fences(void)
{
	static volatile int values[64];
	while (goes_on())
		for (int i = 0; i < 10000; i++) {
			values[i & 63] = i;
			__asm__ volatile("mfence" ::: "memory");
		}
}

static void processor_names(void)
{
	unsigned a, b, c, d;
	while (goes_on())
		for (int i = 0; i < 100; i++) {
			__cpuid(0, a, b, c, d);
			sink += a + b + c + d;
		}
}

NOINLINE static uint64_t sum_at(const uint32_t *values, const uint32_t *places, long count)
{
	uint64_t sum = 0;
	for (long i = 0; i < count; i++)
		sum += values[places[i]];
	return sum;
}

static void gather(void)
{
	long count = 96 << 20, places_count = 1 << 22;
	uint32_t *values = calloc(count, sizeof(*values));
	uint32_t *places = malloc(places_count * sizeof(*places));
	for (long i = 0; i < count; i += 512)
		values[i] = i;
	for (long i = 0; i < places_count; i++)
		places[i] = random_number() % count;
	while (goes_on())
		sink += sum_at(values, places, places_count);
}

NOINLINE static long interpreted(const unsigned char *code, long count)
{
	long a = 0, b = 1;
	for (long i = 0; i < count; i++)
		switch (code[i]) {
		case 0: a += b; break;
		case 1: b ^= a; break;
		case 2: a <<= 1; break;
		case 3: b -= 3; break;
		case 4: a ^= 0x55; break;
		case 5: b += a >> 3; break;
		case 6: a = -a; break;
		case 7: b *= 3; break;
		case 8: a |= 1; break;
		case 9: b &= 0xffff; break;
		}
	return a + b;
}

static void machine(void)
{
	static unsigned char code[1 << 20];
	for (int i = 0; i < 1 << 20; i++)
		code[i] = random_number() % 10;
	while (goes_on())
		sink += interpreted(code, sizeof(code));
}

NOINLINE static long keep_large(const int *values, int *kept, long count)
{
	long length = 0;
	for (long i = 0; i < count; i++)
		if (values[i] > 100) {
			kept[length] = values[i] * 3;
			length += values[i] & 1 ? 1 : 2;
			__asm__ volatile("" ::"r"(length) : "memory");
		}
	return length;
}

static void filter(void)
{
	static int values[65536], kept[131080];
	for (int i = 0; i < 65536; i++)
		values[i] = random_number() % 200;
	while (goes_on())
		sink += keep_large(values, kept, 65536);
}

static const struct {
	const char *name, *mechanisms;
	void (*run)(void);
} programs[] = {
    {"list_in_l2", "load_from_l2", list_in_l2},
    {"list_in_l3", "load_from_l3,page_walk", list_in_l3},
    {"list_in_memory", "load_from_memory,page_walk", list_in_memory},
    {"transpose", "store_buffer,page_walk,load_from_memory,memory_bandwidth", transpose},
    {"daxpy", "memory_bandwidth", daxpy},
    {"polynomial", "dependency_chain", polynomial},
    {"hash", "dependency_chain", hash},
    {"divisor", "divider", divisor},
    {"normalise", "divider", normalise},
    {"own_atomics", "locked_instruction", own_atomics},
    {"one_atomic", "contended_line", one_atomic},
    {"neighbours", "false_sharing", neighbours},
    {"one_byte", "system_call", one_byte},
    {"read_file", "kernel_copy", read_file},
    {"fresh_pages", "page_fault", fresh_pages},
    {"denormals", "assist", denormals},
    {"bytes_then_word", "store_forwarding", bytes_then_word},
    {"across", "split_access", across},
    {"fences", "serialising_instruction", fences},
    {"processor_names", "hypervisor_trap", processor_names},
    {"gather", "load_from_memory,page_walk", gather},
    {"machine", "indirect_mispredict", machine},
    {"filter", "branch_mispredict", filter},
};

int main(int argc, char **argv)
{
	for (size_t i = 0; i < sizeof(programs) / sizeof(*programs); i++) {
		if (argc < 3) {
			printf("%s %s\n", programs[i].name, programs[i].mechanisms);
		} else if (strcmp(argv[1], programs[i].name) == 0) {
			end_s = now_s() + atof(argv[2]);
			programs[i].run();
			return 0;
		}
	}
	return argc < 3 ? 0 : 2;
}
