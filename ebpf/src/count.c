/* SPDX-License-Identifier: GPL-2.0-only
 *
 * Counting a sample in this CPU's table, and the programs that do it, one for each event number.
 */
#include "abi.h"
#include "kernel.h"
#include "maps.h"
#include "place.h"
#include "settings.h"
#include "spill.h"
#include "snapshot.h"
#include "stack.h"

/* Fibonacci hashing: the top bits of the product depend on every bit (Knuth, TAOCP 3, 6.4). */
INLINE u32 bucket_number(u32 buckets, u32 place, u32 space, u32 event)
{
	u32 hash = (place ^ event << 12 ^ space * 0x85ebca6bu) * 0x9e3779b1u;

	return ((u64)hash * buckets) >> 32;
}

INLINE struct bucket *bucket_of(struct bucket *table, u32 place, u32 space, u32 event)
{
	return &table[bucket_number(BUCKETS, place, space, event)];
}

/* The bucket in the map TABLE, where the daemon asked for more buckets than the page has. The
 * verifier makes callers test for null; the index is always inside TABLE. */
OUT_OF_LINE struct bucket *far_bucket(u32 half_index, u32 place, u32 event)
{
	u32 index = half_index * TABLE_BUCKETS + bucket_number(TABLE_BUCKETS, place, 0, event);

	return bpf_map_lookup_elem(&TABLE, &index);
}

/* Takes a snapshot, if this sample of user code is the one. */
INLINE void count_to_snapshot(struct context *context, u32 cpu, struct cpu_block *block,
			      struct place place)
{
	u32 every;

	if (LIKELY(block->snapshot_in != 0)) {
		block->snapshot_in--;
		return;
	}
	every = *(volatile u32 *)&block->snapshot_every;
	block->snapshot_in = every ? every - 1 : RECHECK_SAMPLES;
	if (every && IS_64_BIT(context))
		take_snapshot(context, cpu, place);
}

/* Takes a call stack, if this sample is the one. */
INLINE void count_to_stack(struct context *context, u32 cpu, struct cpu_block *block)
{
	u32 every;

	if (LIKELY(block->stack_in != 0)) {
		block->stack_in--;
		return;
	}
	every = *(volatile u32 *)&block->stack_every;
	block->stack_in = every ? every - 1 : STACK_RECHECK_SAMPLES;
	if (every)
		take_stack(context, cpu, every);
}

/* Counts one sample. The entries of a bucket are in the order of their use, the latest first. */
INLINE int take_sample(struct context *context, u64 event)
{
	u64 pc = context->registers[PC_REGISTER];
	u32 cpu = bpf_get_smp_processor_id();
	struct cpu_block *block = bpf_map_lookup_elem(&CPUS, &cpu);
	struct half_stats *stats;
	struct bucket *bucket;
	struct entry *entry;
	struct place place;
	u64 key;
	u32 half, way, space;

	if (!LIKELY(block))
		return 0;
	half = block->half & 1;
	stats = &block->stats[half];
	stats->taken++;
	/* Shared code is counted in the bucket of the low 12 bits of its address, which are the
	 * same wherever a file is mapped. The processor fetches that bucket while it waits for the
	 * process's slot, so a sample waits for the slower of two cold lines, not for their sum. */
	bucket = TABLE_BUCKETS ? far_bucket(half + cpu * HALVES, pc & 4095, event)
			       : bucket_of(block->table[half], pc & 4095, 0, event);
	if (!LIKELY(bucket))
		return 0;
	*(volatile u64 *)&bucket->entries[0].key;
	place = place_of(pc, *(volatile u32 *)&block->kernel_scopes);
	key = (event << PC_BITS) | place.key;
	space = place.space;
	/* Code of one process or scope alone: its bucket depends on the space too, or a hundred
	 * workers in one procedure would compete for four entries. Not so in the map TABLE, where
	 * a second look-up would need stack, which is cold. */
	if (!LIKELY(((place.key & IN_PROGRAM) && (s64)pc >= 0) || space == SPACE_KERNEL) &&
	    !TABLE_BUCKETS)
		bucket = bucket_of(block->table[half], pc, space, event);
	entry = &bucket->entries[0];
	if (event == 0 && SNAPSHOTS && LIKELY((s64)pc >= 0))
		count_to_snapshot(context, cpu, block, place);
	if (event == 0 && STACKS)
		count_to_stack(context, cpu, block);
	if (LIKELY(entry->key == key && entry->space == space)) {
		entry->count++;
		return 0;
	}
	/* A hit further back swaps with the front, so that the next sample finds it at once (SOSP
	 * 1997, section 5.4). */
#pragma unroll
	for (way = 1; way < WAYS; way++) {
		struct entry *found = &bucket->entries[way];

		if (found->key == key && found->space == space) {
			u32 count = found->count + 1;

			*found = *entry;
			entry->key = key;
			entry->space = space;
			entry->count = count;
			return 0;
		}
	}

	stats->misses++;
	if (bucket->entries[WAYS - 1].count != 0 &&
	    !spill(stats, half + cpu * HALVES, &bucket->entries[WAYS - 1]))
		return lose(half + cpu * HALVES, event);
	bucket->entries[3] = bucket->entries[2];
	bucket->entries[2] = bucket->entries[1];
	bucket->entries[1] = bucket->entries[0];
	entry->key = key;
	entry->space = space;
	entry->count = 1;
	return 0;
}

/* The event number is a constant in each program. A return of 0 keeps the sample out of the event's
 * ring buffer: perf writes no record, the counts are all there is. */
#define SAMPLER(n)                              \
	SECTION("perf_event")                   \
	int sample_##n(struct context *context) \
	{                                       \
		return take_sample(context, n); \
	}

/* An interrupt of a burst: a snapshot without a sample. A return of 1 lets perf count the
 * interrupt, after so many of which the event ends; since nothing is mapped it writes no record. */
SECTION("perf_event")
int sample_burst(struct context *context)
{
	u64 pc = context->registers[PC_REGISTER];
	u32 cpu = bpf_get_smp_processor_id();

	if (SNAPSHOTS && (s64)pc >= 0 && IS_64_BIT(context))
		take_snapshot(context, cpu, place_of(pc, 0));
	return 1;
}

SAMPLER(0)
SAMPLER(1)
SAMPLER(2)
SAMPLER(3)
SAMPLER(4)
SAMPLER(5)
SAMPLER(6)
SAMPLER(7)
SAMPLER(8)
SAMPLER(9)
SAMPLER(10)
SAMPLER(11)
SAMPLER(12)
SAMPLER(13)
SAMPLER(14)
SAMPLER(15)
