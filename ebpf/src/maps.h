/* SPDX-License-Identifier: GPL-2.0-only
 *
 * The memory that the sampler shares with the daemon. The daemon sets max_entries for the machine's
 * CPUs before it loads the object.
 */
#pragma once

#include "abi.h"

/* Index: CPU. */
struct {
	int (*type)[BPF_MAP_TYPE_ARRAY];
	int (*map_flags)[BPF_F_MMAPABLE];
	int (*max_entries)[1];
	u32 *key;
	struct cpu_block *value;
} CPUS SECTION(".maps");

/* Index: (CPU, half, bucket). */
struct {
	int (*type)[BPF_MAP_TYPE_ARRAY];
	int (*map_flags)[BPF_F_MMAPABLE];
	int (*max_entries)[1];
	u32 *key;
	struct bucket *value;
} TABLE SECTION(".maps");

/* Index: (CPU, half, entry). */
struct {
	int (*type)[BPF_MAP_TYPE_ARRAY];
	int (*map_flags)[BPF_F_MMAPABLE];
	int (*max_entries)[1];
	u32 *key;
	struct entry *value;
} SPILL SECTION(".maps");

/* Index: (CPU, half). */
struct {
	int (*type)[BPF_MAP_TYPE_ARRAY];
	int (*map_flags)[BPF_F_MMAPABLE];
	int (*max_entries)[1];
	u32 *key;
	struct losses *value;
} LOSSES SECTION(".maps");

/* Index: CPU. */
struct {
	int (*type)[BPF_MAP_TYPE_ARRAY];
	int (*map_flags)[BPF_F_MMAPABLE];
	int (*max_entries)[1];
	u32 *key;
	struct snapshot_ring *value;
} SNAPSHOT_RINGS SECTION(".maps");

/* Index: (CPU, position in the ring). */
struct {
	int (*type)[BPF_MAP_TYPE_ARRAY];
	int (*map_flags)[BPF_F_MMAPABLE];
	int (*max_entries)[1];
	u32 *key;
	struct snapshot *value;
} SNAPSHOT_DATA SECTION(".maps");

/* Index: the low SLOT_BITS of a process's number in the root namespace. Of two processes with the
 * same index, the later one to exec, fork or map has the slot; samples of the other one are counted
 * without a slot, in their own address space. */
struct {
	int (*type)[BPF_MAP_TYPE_ARRAY];
	int (*map_flags)[BPF_F_MMAPABLE];
	int (*max_entries)[1 << SLOT_BITS];
	u32 *key;
	struct slot *value;
} SLOTS SECTION(".maps");

/* Changes of address spaces as they happen, which tell the daemon what each generation means. A
 * ring buffer takes a lock, which is no problem here: no writer runs in NMI context. */
struct {
	int (*type)[BPF_MAP_TYPE_RINGBUF];
	int (*max_entries)[256 << 10];
} CHANGES SECTION(".maps");
