/* SPDX-License-Identifier: GPL-2.0-only
 *
 * Attributes that a program sets for its own threads, at a sample: labels of Go's goroutines
 * (runtime/pprof), and OpenTelemetry's record of the current request (OTEP 4947). They belong to
 * somebody else a microsecond later, so their texts are copied, as far as there is room. The daemon
 * has read in the program's files where they are (daemon/inspect/src/attributes/). Processes
 * without them pay for one comparison, and those without a known runtime for nothing.
 */
#pragma once

#include "abi.h"
#include "kernel.h"
#include "maps.h"

enum {
	GO_BYTES_MAX = ATTRIBUTES_MAX * sizeof(struct attribute),
	ATTRIBUTES_BYTES_MAX = GO_BYTES_MAX,
	/* The mask of their bytes, a multiple of 8. */
	ATTRIBUTES_ROOM = 1024 - 8,
	/* Of a list of Go's, of the head of a map, and of a bucket of a map without its link. */
	LIST_BYTES = 24,
	MAP_BYTES = 24,
	BUCKET_BYTES = LABEL_WORDS * 8,
	/* Of a description of a text: address and length; of a pair of key and value. */
	PAIR_BYTES = 32,
	/* The least hash of a place in a bucket that is in use (minTopHash, Go 1.11 to 1.23). */
	HASH_MIN = 5,
	/* In a record: whether it is valid; the length of its attributes. */
	VALID_AT = 24,
	LENGTH_AT = 26,
};
_Static_assert(ATTRIBUTES_RECORD_BYTES <= ATTRIBUTES_BYTES_MAX, "a record fits");
_Static_assert(ATTRIBUTES_BYTES_MAX < ATTRIBUTES_ROOM, "the mask keeps all bits");

/* Reads where the labels of the current goroutine are into the scratch of a CPU's walk: for a map
 * its first bucket, for a list pairs. Returns their number, also of those that are elsewhere. A
 * function of its own to the verifier, as walk_step. */
__attribute__((noinline)) u64 find_labels(u32 cpu, u64 labels, u32 kind)
{
	struct walk *walk = bpf_map_lookup_elem(&WALKS, &cpu);
	u64 count, bytes;

	if (!walk || !labels)
		return 0;
	if (kind == ATTRIBUTES_IN_MAP) {
		/* The set is the address of a map, which begins with the number of its entries,
		 * flags, and the address of its buckets. */
		labels = user_word(labels);
		if (bpf_probe_read_user(walk->labels, MAP_BYTES, (void *)labels) != 0)
			return 0;
		count = walk->labels[0];
		labels = walk->labels[2];
		if (!count || bpf_probe_read_user(walk->labels, BUCKET_BYTES, (void *)labels) != 0)
			return 0;
		return count;
	}
	if (bpf_probe_read_user(walk->labels, LIST_BYTES, (void *)labels) != 0)
		return 0;
	labels = walk->labels[0];
	count = walk->labels[1];
	bytes = count < ATTRIBUTES_MAX ? count * PAIR_BYTES : ATTRIBUTES_MAX * PAIR_BYTES;
	AT_MOST(bytes, ATTRIBUTES_MAX * PAIR_BYTES);
	if (!bytes || bpf_probe_read_user(walk->labels, bytes, (void *)labels) != 0)
		return 0;
	return count;
}

/* The record that a CPU is writing. */
INLINE struct stack_record *current_record(u32 cpu)
{
	struct stack_ring *ring = bpf_map_lookup_elem(&STACK_RINGS, &cpu);
	struct stack_data *data = bpf_map_lookup_elem(&STACK_DATA, &cpu);

	if (!ring || !data)
		return 0;
	return (void *)(data->bytes + (ring->written & (STACK_RING_BYTES - 8)));
}

/* Copies the label of this number whose texts are described in the scratch behind those before it.
 * Whether it is one, and could be read. A function of its own to the verifier, which would go
 * through the ways of all labels otherwise. */
__attribute__((noinline)) int copy_label(u32 cpu, u32 number)
{
	struct walk *walk = bpf_map_lookup_elem(&WALKS, &cpu);
	struct stack_record *record = current_record(cpu);
	struct attribute *to;
	u64 at, size, key, key_bytes, value, value_bytes, place;

	if (!walk || !record)
		return 0;
	at = record->attribute_bytes;
	AT_MOST(at, GO_BYTES_MAX - sizeof(struct attribute));
	to = (void *)(after_python(record) + at);
	number &= ATTRIBUTES_MAX - 1;
	if (record->attribute_kind == ATTRIBUTES_IN_MAP) {
		if ((walk->labels[0] >> (8 * number) & 0xff) < HASH_MIN)
			return 0;
		place = 1 + 2 * number;
		at = place + 2 * ATTRIBUTES_MAX;
	} else {
		place = 4 * number;
		at = place + 2;
	}
	AT_MOST(place, LABEL_WORDS - 2);
	AT_MOST(at, LABEL_WORDS - 2);
	key = walk->labels[place];
	key_bytes = walk->labels[place + 1];
	value = walk->labels[at];
	value_bytes = walk->labels[at + 1];
	to->key_bytes = key_bytes > 0xffff ? 0xffff : key_bytes;
	to->value_bytes = value_bytes > 0xffff ? 0xffff : value_bytes;
	size = key_bytes;
	AT_MOST(size, ATTRIBUTE_KEY_BYTES);
	if (!size || bpf_probe_read_user(to->key, size, (void *)key) != 0)
		return 0;
	size = value_bytes;
	AT_MOST(size, ATTRIBUTE_VALUE_BYTES);
	if (size && bpf_probe_read_user(to->value, size, (void *)value) != 0)
		return 0;
	record->attribute_bytes += sizeof(struct attribute);
	return 1;
}

/* Copies labels of the current goroutine. */
INLINE void copy_labels(struct stack_record *record, const struct attribute_layout *layout, u32 cpu)
{
	u64 goroutine, count;
	u32 number;

	goroutine = user_word(thread_pointer() + layout->thread_at);
	goroutine = user_word(user_word(goroutine + layout->m_at) + layout->current_at);
	if (!goroutine)
		return;
	count = find_labels(cpu, user_word(goroutine + layout->labels_at), layout->kind);
	record->attribute_kind = layout->kind;
	for (number = 0; number < ATTRIBUTES_MAX; number++) {
		/* In a list there are no gaps. */
		if (layout->kind == ATTRIBUTES_IN_LIST && number >= count)
			break;
		copy_label(cpu, number);
	}
	count -= record->attribute_bytes / sizeof(struct attribute);
	record->attributes_left_out = count > 0xffff ? 0xffff : count;
}

/* Copies the record that the current thread has. */
INLINE void copy_thread_context(struct stack_record *record,
				const struct attribute_layout *layout)
{
	unsigned char *to = after_python(record);
	u64 at = thread_pointer(), context, size;

	if (!at)
		return;
	if (layout->module)
		/* The second word of a thread leads to the table of the modules' memory. */
		at = user_word(user_word(at + 8) + (u64)layout->module * layout->module_bytes);
	context = user_word(at + layout->thread_at);
	if (!context || bpf_probe_read_user(to, ATTRIBUTES_HEAD_BYTES, (void *)context) != 0 ||
	    to[VALID_AT] != 1)
		return;
	size = *(unsigned short *)(to + LENGTH_AT);
	AT_MOST(size, ATTRIBUTES_RECORD_BYTES - ATTRIBUTES_HEAD_BYTES);
	if (size && bpf_probe_read_user(to + ATTRIBUTES_HEAD_BYTES, size,
					(void *)(context + ATTRIBUTES_HEAD_BYTES)) != 0)
		size = 0;
	record->attribute_kind = ATTRIBUTES_IN_RECORD;
	record->attribute_bytes = (ATTRIBUTES_HEAD_BYTES + size + 7) & ~7ull;
}

/* Copies the attributes of the current thread into the record that the CPU is writing, behind its
 * frames of CPython. A function of its own to the verifier, as walk_step: within its callers the
 * verifier would go through the ways of each label twice. */
__attribute__((noinline)) int copy_attributes(u32 cpu)
{
	struct stack_record *record = current_record(cpu);
	const struct runtime_layout *layouts;

	if (!record)
		return 0;
	layouts = bpf_map_lookup_elem(&RUNTIMES, &record->space);
	if (!layouts)
		return 0;
	if (layouts->attributes.kind == ATTRIBUTES_IN_RECORD)
		copy_thread_context(record, &layouts->attributes);
	else
		copy_labels(record, &layouts->attributes, cpu);
	return 1;
}
