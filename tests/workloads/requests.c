/* Publishes a record of OpenTelemetry's for each request, and says how to read it (OTEP 4947 and
 * 4719). Requests of one route take three times as long as those of another. Compile with
 * -DAS_LIBRARY for a shared library with the variable, with -DWITH_LIBRARY for a program that lacks
 * it, without both for one that has it. With `hostile` behind the seconds, records and what is said
 * of them make no sense. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

struct record {
	uint8_t trace_id[16];
	uint8_t span_id[8];
	uint8_t valid;
	uint8_t flags;
	uint16_t size;
	uint8_t attributes[64];
};

#if defined(AS_LIBRARY) || !defined(WITH_LIBRARY)
__attribute__((visibility("default"))) __thread struct record *otel_thread_ctx_v1;

/* Of a library, called by the program. */
__attribute__((noinline)) void publish(struct record *record)
{
	*(struct record *volatile *)&otel_thread_ctx_v1 = record;
}
#else
void publish(struct record *record);
#endif

#ifndef AS_LIBRARY
struct head {
	char signature[8];
	uint32_t version;
	uint32_t size;
	uint64_t published_ns;
	const uint8_t *payload;
};

/* A field of bytes of a message of protocol buffers. */
static size_t field(uint8_t *to, int number, const void *bytes, size_t size)
{
	to[0] = number << 3 | 2;
	to[1] = size;
	memcpy(to + 2, bytes, size);
	return size + 2;
}

/* A key with a value that is a message. */
static size_t pair(uint8_t *to, const char *key, const uint8_t *value, size_t size)
{
	uint8_t both[120];
	size_t len = field(both, 1, key, strlen(key));

	len += field(both + len, 2, value, size);
	return field(to, 2, both, len);
}

/* Says how to read records, and which names their keys have. */
static struct head *describe(void)
{
	static uint8_t payload[256];
	uint8_t value[64], names[48], name[16];
	size_t size, len, end;
	int memory = memfd_create("OTEL_CTX", MFD_CLOEXEC);
	struct head *head;

	size = field(value, 1, "tlsdesc_v1_dev", 14);
	len = pair(payload, "threadlocal.schema_version", value, size);
	size = field(name, 1, "route", 5);
	end = field(names, 1, name, size);
	size = field(name, 1, "method", 6);
	end += field(names + end, 1, name, size);
	size = field(value, 5, names, end);
	len += pair(payload + len, "threadlocal.attribute_key_map", value, size);
	if (memory < 0 || ftruncate(memory, 4096) != 0)
		exit(1);
	head = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, memory, 0);
	if (head == MAP_FAILED)
		exit(1);
	close(memory);
	head->version = 2;
	head->size = len;
	head->payload = payload;
	head->published_ns = 1;
	memcpy(head->signature, "OTEL_CTX", 8);
	return head;
}

static volatile uint64_t sink;

__attribute__((noinline)) static void handle(int rounds)
{
	uint64_t sum = sink;

	for (int round = 0; round < rounds; round++)
		sum = sum * 2862933555777941757u + 3037000493u;
	sink = sum;
}

/* Publishes what no reader expects. */
static void attack(unsigned number)
{
	static unsigned char *page;
	struct record *record;

	if (!page) {
		page = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (page == MAP_FAILED || munmap(page + 4096, 4096) != 0)
			exit(1);
	}
	for (unsigned at = 0; at < 4096; at++)
		page[at] = rand();
	/* Whole, cut by the end of the page at each place, and not there. */
	record = (void *)(page + (number & 1 ? 4096 - number % 128 : number % 2048));
	if (!(number & 1)) {
		record->attributes[0] = number & 3;
		record->attributes[1] = number % 80;
	}
	if (number % 7 == 0)
		record = (void *)(uintptr_t)(rand() * 0x1234567ull);
	else if (number % 128 > 26 || !(number & 1))
		record->valid = 1;
	publish(record);
}

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec * 1e-9;
}

int main(int argc, char **argv)
{
	static const char *const routes[2] = {"/checkout", "/search"};
	static const int rounds[2] = {3000000, 1000000};
	double end = now() + atof(argc > 1 ? argv[1] : "5"), seconds[2] = {0, 0};
	struct record record = {0};
	uint64_t request = 0;
	struct head *head = describe();

	if (argc > 2) {
		for (unsigned number = 0; now() < end; number++) {
			attack(number);
			handle(20000);
			/* By then readers know it. */
			if (now() > end - 3) {
				head->size = rand();
				((uint8_t *)head->payload)[rand() % 128] = rand();
			}
		}
		return 0;
	}
	while (now() < end) {
		for (int route = 0; route < 2; route++) {
			size_t len = strlen(routes[route]);
			double begun = now();

			request++;
			memset(record.trace_id, 0xab, 16);
			memcpy(record.span_id, &request, 8);
			record.attributes[0] = 0;
			record.attributes[1] = len;
			memcpy(record.attributes + 2, routes[route], len);
			memcpy(record.attributes + 2 + len, "\1\3GET", 5);
			record.size = len + 7;
			record.valid = 1;
			publish(&record);
			handle(rounds[route]);
			publish(0);
			seconds[route] += now() - begun;
		}
	}
	printf("{\"often\": %f, \"seldom\": %f}\n", seconds[0], seconds[1]);
	return 0;
}
#endif
