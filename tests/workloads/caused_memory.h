/*
 * The programs of caused.c whose time goes to memory, and what all programs share.
 */
#pragma once

#define KEPT __attribute__((noinline, noclone))
#define USED(value) __asm__ volatile("" : "+r"(value))
#define KIB 1024L
#define MIB (1024L * KIB)

static double now_s(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec / 1e9;
}

static uint64_t seed = 88172645463325252u;
static uint64_t random64(void)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	return seed ^= seed << 17;
}

struct node {
	struct node *next;
};

static struct node *nodes;
static uint8_t *bytes;
static uint32_t *words;
static long many, size;
static volatile long sink;

/* Nodes `apart` bytes from each other, each pointing to the next in random order. */
static void make_chain(long all, long apart)
{
	long count = all / apart;
	long *order = malloc(count * sizeof(*order));
	char *memory = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	madvise(memory, all, MADV_NOHUGEPAGE);
	for (long i = 0; i < count; i++)
		order[i] = i;
	for (long i = count - 1; i > 0; i--) {
		long other = random64() % (i + 1), kept = order[i];

		order[i] = order[other];
		order[other] = kept;
	}
	for (long i = 0; i < count; i++)
		((struct node *)(memory + order[i] * apart))->next =
			(struct node *)(memory + order[(i + 1) % count] * apart);
	nodes = (struct node *)(memory + order[0] * apart);
	free(order);
}

KEPT void chase(void)
{
	struct node *at = nodes;

	for (long i = 0; i < many; i++)
		at = at->next;
	nodes = at;
}

/* The addresses come from a table, so that they depend on nothing. */
KEPT void look_up(void)
{
	long sum = 0;

	for (long i = 0; i < many; i++)
		sum += bytes[words[i & 0xffff] & (size - 1)];
	sink += sum;
}

KEPT void gather(void)
{
	long sum = 0;
	uint64_t state = seed;

	for (long i = 0; i < many; i++) {
		state = state * 6364136223846793005u + 1442695040888963407u;
		sum += bytes[(state >> 20) & (size - 1)];
	}
	seed = state;
	sink += sum;
}

KEPT void stream_in(void)
{
	uint64_t sum = 0;
	uint64_t *from = (uint64_t *)bytes;

	for (long i = 0; i < size / 8; i++)
		sum += from[i];
	sink += sum;
}

KEPT void stream_out(void)
{
	uint64_t *to = (uint64_t *)bytes;

	for (long i = 0; i < size / 8; i++) {
		to[i] = i;
		__asm__ volatile("" ::: "memory");
	}
}

KEPT void scatter(void)
{
	uint64_t state = seed;

	for (long i = 0; i < many; i++) {
		state = state * 6364136223846793005u + 1442695040888963407u;
		bytes[(state >> 20) & (size - 1)] = i;
	}
	seed = state;
}

KEPT void forward(void)
{
	volatile uint32_t *halves = (volatile uint32_t *)bytes;
	uint64_t sum = 0;

	for (long i = 0; i < many; i++) {
		halves[0] = sum;
		halves[1] = i;
		sum += *(volatile uint64_t *)bytes;
	}
	sink += sum;
}

KEPT void split(void)
{
	uint64_t sum = 0;

	for (long i = 0; i < many; i++) {
		uint8_t *at = bytes + 60 + (sum & 0x1c0);
		uint64_t value;

		memcpy(&value, at, 8);
		sum += value;
		USED(sum);
	}
	sink += sum;
}

KEPT void alias(void)
{
	uint64_t sum = 0;

	for (long i = 0; i < many; i++) {
		volatile uint64_t *to = (volatile uint64_t *)(bytes + (i & 63) * 8 + 4096);
		volatile uint64_t *from = (volatile uint64_t *)(bytes + (i & 63) * 8);

		*to = sum;
		sum += *from;
	}
	sink += sum;
}

