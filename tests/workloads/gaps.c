/* Stacks with pages that nobody has touched, and a worker of io_uring, which has the process's
   memory and never executes its code: for `argument 1` seconds. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/io_uring.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static volatile unsigned sum;

__attribute__((noinline)) static unsigned hot(unsigned n) {
	unsigned s = n;

	for (unsigned i = 0; i < 1000000; i++) {
		s = s * 33 + (i ^ s >> 3);
		__asm__ volatile("");
	}
	return s;
}

__attribute__((noinline)) static unsigned handle(unsigned n) {
	char line[32768];

	snprintf(line, sizeof line, "request %u", n);
	return hot(n) + line[3];
}

static void *ring_of(int ring, size_t bytes, off_t what) {
	return mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, what);
}

int main(int argc, char **arguments) {
	time_t end = time(NULL) + (argc > 1 ? atoi(arguments[1]) : 1);
	struct io_uring_params is = {0};
	int ring = syscall(SYS_io_uring_setup, 8, &is), file = memfd_create("written", 0);
	size_t bytes = 4 << 20;
	char *buffer = malloc(bytes), *queue;
	struct io_uring_sqe *entries;

	if (ring < 0 || file < 0)
		return 3;
	memset(buffer, 1, bytes);
	queue = ring_of(ring, is.sq_off.array + is.sq_entries * 4, IORING_OFF_SQ_RING);
	entries = ring_of(ring, is.sq_entries * sizeof *entries, IORING_OFF_SQES);
	for (unsigned n = 0; time(NULL) < end; n++) {
		struct io_uring_sqe entry = {.opcode = IORING_OP_WRITE, .flags = IOSQE_ASYNC};
		unsigned *tail = (unsigned *)(queue + is.sq_off.tail);

		entry.fd = file;
		entry.addr = (unsigned long)buffer;
		entry.len = bytes;
		entries[n % is.sq_entries] = entry;
		((unsigned *)(queue + is.sq_off.array))[n % is.sq_entries] = n % is.sq_entries;
		__atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
		syscall(SYS_io_uring_enter, ring, 1, 0, 0, NULL, 0);
		for (int i = 0; i < 4; i++)
			sum += handle(n);
	}
	return 0;
}
