/* SPDX-License-Identifier: GPL-2.0-only
 *
 * The memory that the sampler shares with the daemon. The daemon sets max_entries for the machine's
 * CPUs before it loads the object.
 */
#pragma once

#include "abi.h"
#include "snapshot_abi.h"

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

/* The programs that read ahead, by the place that they begin at. The daemon writes them, and the
 * kernel removes those that were used least lately when there is no room. */
struct {
	int (*type)[BPF_MAP_TYPE_LRU_HASH];
	int (*max_entries)[AHEAD_MAX];
	struct ahead_key *key;
	struct ahead *value;
} AHEAD SECTION(".maps");

/* Index: CPU. */
struct {
	int (*type)[BPF_MAP_TYPE_ARRAY];
	int (*max_entries)[1];
	u32 *key;
	struct ahead_state *value;
} AHEAD_STATES SECTION(".maps");

/* Index: CPU. */
struct {
	int (*type)[BPF_MAP_TYPE_ARRAY];
	int (*map_flags)[BPF_F_MMAPABLE];
	int (*max_entries)[1];
	u32 *key;
	struct stack_ring *value;
} STACK_RINGS SECTION(".maps");

/* Index: CPU. */
struct {
	int (*type)[BPF_MAP_TYPE_ARRAY];
	int (*map_flags)[BPF_F_MMAPABLE];
	int (*max_entries)[1];
	u32 *key;
	struct stack_data *value;
} STACK_DATA SECTION(".maps");

/* Index: the low bits of a thread's number in the root namespace. */
struct {
	int (*type)[BPF_MAP_TYPE_ARRAY];
	int (*map_flags)[BPF_F_MMAPABLE];
	int (*max_entries)[1];
	u32 *key;
	struct wait_line *value;
} WAIT_TIMES SECTION(".maps");

/* What a pass over all threads has found. */
struct {
	int (*type)[BPF_MAP_TYPE_ARRAY];
	int (*map_flags)[BPF_F_MMAPABLE];
	int (*max_entries)[1];
	u32 *key;
	struct wait_pass *value;
} WAIT_PASS SECTION(".maps");

/* Index: the number of the sample within its pass. */
struct {
	int (*type)[BPF_MAP_TYPE_ARRAY];
	int (*map_flags)[BPF_F_MMAPABLE];
	int (*max_entries)[WAIT_SAMPLES_MAX];
	u32 *key;
	struct wait_sample *value;
} WAIT_SAMPLES SECTION(".maps");

/* Key: as payer_of in wait_samples.c. The daemon gives each its part of the samples. */
struct {
	int (*type)[BPF_MAP_TYPE_HASH];
	int (*max_entries)[WAIT_PAYERS_MAX];
	u64 *key;
	struct wait_payer *value;
} WAIT_PAYERS SECTION(".maps");

/* Rules of frames, which the daemon writes. The kernel removes those that walks used least lately
 * when there is no room. */
struct {
	int (*type)[BPF_MAP_TYPE_LRU_HASH];
	int (*max_entries)[RULES_MAX];
	struct rule_key *key;
	struct rule_words *value;
} RULES SECTION(".maps");

/* Key: as struct stack_record.space. The programs that follow mappings and forks write it,
 * and so does the daemon. */
struct {
	int (*type)[BPF_MAP_TYPE_LRU_HASH];
	int (*max_entries)[FILE_SPACES_MAX];
	u32 *key;
	struct file_ranges *value;
} FILE_RANGES SECTION(".maps");

/* Index: CPU. */
struct {
	int (*type)[BPF_MAP_TYPE_ARRAY];
	int (*max_entries)[1];
	u32 *key;
	struct walk *value;
} WALKS SECTION(".maps");

/* Where processes with a runtime that is known have what leads to its frames. Key: as struct
 * stack_record.space. The daemon writes it. */
struct {
	int (*type)[BPF_MAP_TYPE_HASH];
	int (*max_entries)[RUNTIME_PROCESSES_MAX];
	u32 *key;
	struct runtime_layout *value;
} RUNTIMES SECTION(".maps");

/* Index: the low SLOT_BITS of a process's number in the root namespace. Of two processes with the
 * same index, the later one to exec, fork or map has the slot; samples of the other one are counted
 * without a slot, in their own address space. Whoever writes more than zeros into lengths is in
 * WRITERS meanwhile. */
struct {
	int (*type)[BPF_MAP_TYPE_ARRAY];
	int (*map_flags)[BPF_F_MMAPABLE];
	int (*max_entries)[1 << SLOT_BITS];
	u32 *key;
	struct slot *value;
} SLOTS SECTION(".maps");

/* Index: the low SLOT_BITS of a process's number in the root namespace. Value: a struct
 * kernel_scope, written and read as one word. The daemon writes it, and children inherit it. */
struct {
	int (*type)[BPF_MAP_TYPE_ARRAY];
	int (*map_flags)[BPF_F_MMAPABLE];
	int (*max_entries)[1 << SLOT_BITS];
	u32 *key;
	u64 *value;
} KERNEL_SCOPES SECTION(".maps");

/* Key: an index of SLOTS, present while one CPU writes that slot. Processes of numbers 32,768 apart
 * have one slot, and may exec on two CPUs at the same time. Adding a key that must not be there is
 * the one test-and-set that every kernel since 5.10 has (BPF's compare-and-swap is of 5.12). A CPU
 * holds two keys at most. */
struct {
	int (*type)[BPF_MAP_TYPE_HASH];
	int (*max_entries)[1024];
	u32 *key;
	u32 *value;
} WRITERS SECTION(".maps");

/* Key: the number of a program or a library. The first identity that has a number keeps it until
 * the daemon forgets the number; code of another identity is not counted together. When the map is
 * full, further code is not counted together. */
struct {
	int (*type)[BPF_MAP_TYPE_HASH];
	int (*max_entries)[CLAIMS_MAX];
	u32 *key;
	struct identity *value;
} CLAIMS SECTION(".maps");

/* Messages that processes of a user have sent in a window of time. */
enum { ALLOWANCES_MAX = 256, SUBORDINATE_BEGIN = 100000, SUBORDINATE_USERS = 65536 };
/* The user to whom limits are charged: of a row of subordinate users (subuid(5)) the first. */
INLINE u32 first_of_row(u32 user)
{
	if (user < SUBORDINATE_BEGIN)
		return user;
	return SUBORDINATE_BEGIN + (user - SUBORDINATE_BEGIN) / SUBORDINATE_USERS;
}

struct allowance {
	u32 window;
	u32 sent;
};

/* Index: the low bits of a user's number. */
struct {
	int (*type)[BPF_MAP_TYPE_ARRAY];
	int (*max_entries)[ALLOWANCES_MAX];
	u32 *key;
	struct allowance *value;
} ALLOWANCES SECTION(".maps");

/* Changes of address spaces as they happen, which tell the daemon what each generation means. A
 * ring buffer takes a lock, which is no problem here: no writer runs in NMI context. */
struct {
	int (*type)[BPF_MAP_TYPE_RINGBUF];
	int (*max_entries)[256 << 10];
} CHANGES SECTION(".maps");
