/* SPDX-License-Identifier: GPL-2.0-only
 *
 * What exec, fork and mappings have in common: numbers of programs, and messages to the daemon.
 */
#pragma once

#include "abi.h"
#include "kernel.h"
#include "maps.h"

/* slot.born counts units of 2^20 ns. A process has settled after 4 of them, 4.2 ms: most programs
 * have mapped their first libraries by then. A longer time would mix the samples of a file and of
 * another one that replaces it early; a shorter one would begin generations for first mappings. */
enum { BORN_SHIFT = 20, SETTLED = 4 };

/* slot.mm between the mapping of an interpreter and process_exec: the new memory's address with a
 * bit that no task's has, so that no sample uses the slot meanwhile. */
#define IN_EXEC(mm) ((u64)(mm) | 1)

INLINE u32 now_born(void)
{
	return bpf_ktime_get_ns() >> BORN_SHIFT;
}

/* When an inode was last changed, in ns: another number after each change. Since Linux 6.13 bit 31
 * of the nanoseconds says that somebody asked for the time (I_CTIME_QUERIED, include/linux/fs.h).
 */
#define NANOSECONDS 0x7fffffff
INLINE u64 change_time_ns(struct inode *inode)
{
	struct inode___6_6 *since_6_6 = (void *)inode;
	struct inode___5_10 *since_5_10 = (void *)inode;

	if (__builtin_preserve_field_info(inode->i_ctime_sec, FIELD_EXISTS))
		return copied(&inode->i_ctime_sec) * 1000000000 +
		       (copied_u32(&inode->i_ctime_nsec) & NANOSECONDS);
	if (__builtin_preserve_field_info(since_6_6->__i_ctime, FIELD_EXISTS))
		return copied(&since_6_6->__i_ctime.tv_sec) * 1000000000 +
		       copied(&since_6_6->__i_ctime.tv_nsec);
	if (__builtin_preserve_field_info(since_5_10->i_ctime, FIELD_EXISTS))
		return copied(&since_5_10->i_ctime.tv_sec) * 1000000000 +
		       copied(&since_5_10->i_ctime.tv_nsec);
	return 0;
}

/* A number made of the top 32 bits of a hash, never PROGRAM_NONE nor PROGRAM_APART: bit 0 is set,
 * and the one result that equals PROGRAM_APART is replaced by 1. A macro, so that the compiler can
 * check it. */
#define ODD_TOP_HALF(hash) ((u32)((hash) >> 32) | 1)
#define NUMBER_OF_HASH(hash) (ODD_TOP_HALF(hash) == PROGRAM_APART ? 1 : ODD_TOP_HALF(hash))
_Static_assert(NUMBER_OF_HASH(0xffffffff00000000ull) == 1, "all bits are set");
_Static_assert(NUMBER_OF_HASH(0xfffffffeffffffffull) == 1, "bit 0 makes it all bits");
_Static_assert(NUMBER_OF_HASH(0xfffffffd00000000ull) == 0xfffffffd, "not PROGRAM_APART");
_Static_assert(NUMBER_OF_HASH(0x00000000ffffffffull) == 1, "not PROGRAM_NONE");

/* A round of SipHash (Aumasson and Bernstein, SipHash: a fast short-input PRF, 2012). */
#define ROTATED(word, bits) ((word) << (bits) | (word) >> (64 - (bits)))
INLINE void sip_round(u64 *v)
{
	v[0] += v[1];
	v[1] = ROTATED(v[1], 13) ^ v[0];
	v[0] = ROTATED(v[0], 32);
	v[2] += v[3];
	v[3] = ROTATED(v[3], 16) ^ v[2];
	v[0] += v[3];
	v[3] = ROTATED(v[3], 21) ^ v[0];
	v[2] += v[1];
	v[1] = ROTATED(v[1], 17) ^ v[2];
	v[2] = ROTATED(v[2], 32);
}

/* SipHash-1-3 of the identity, without the length that the hash of a string ends with: all
 * identities have one length. */
INLINE u64 keyed_hash(const struct identity *identity)
{
	const u64 words[] = { identity->inode, identity->size, identity->change_time_ns,
			      identity->part,  identity->len,  identity->device };
	u64 v[4] = { KEY_LOW ^ 0x736f6d6570736575ull, KEY_HIGH ^ 0x646f72616e646f6dull,
		     KEY_LOW ^ 0x6c7967656e657261ull, KEY_HIGH ^ 0x7465646279746573ull };
	u32 word;

#pragma unroll
	for (word = 0; word < sizeof(words) / sizeof(*words); word++) {
		v[3] ^= words[word];
		sip_round(v);
		v[0] ^= words[word];
	}
	v[2] ^= 0xff;
	sip_round(v);
	sip_round(v);
	sip_round(v);
	return v[0] ^ v[1] ^ v[2] ^ v[3];
}

INLINE int is_same(const struct identity *one, const struct identity *other)
{
	return one->inode == other->inode && one->size == other->size &&
	       one->change_time_ns == other->change_time_ns && one->part == other->part &&
	       one->len == other->len && one->device == other->device;
}

struct claim {
	u32 number; /* PROGRAM_NONE: the code is not counted together */
	int is_new; /* nobody had the number before */
};

/* What identifies `len` bytes of a part of a file, as it is now. */
INLINE struct identity identity_of(const struct file *file, u64 part, u64 len)
{
	struct inode *inode = (void *)copied(&file->f_inode);
	struct super_block *super = (void *)copied(&inode->i_sb);

	return (struct identity){ .inode = copied(&inode->i_ino),
				  .size = copied(&inode->i_size),
				  .change_time_ns = change_time_ns(inode),
				  .part = part,
				  .len = len,
				  .device = copied_u32(&super->s_dev) };
}

/* The number under which `len` bytes of a part of a file are counted. It belongs to this identity
 * alone: where the hash of another one is the same, the other code is not counted together. The
 * comparison makes that certain; that the hash has a key keeps anybody from taking the number of a
 * file before its first use. */
INLINE struct claim claim_number(const struct file *file, u64 part, u64 len)
{
	struct identity identity = identity_of(file, part, len);
	u64 hash = keyed_hash(&identity);
	struct claim claim = { .number = NUMBER_OF_HASH(hash) };
	struct identity *holder;

	if (!copied(&file->f_inode))
		return (struct claim){ .number = PROGRAM_NONE };
	holder = bpf_map_lookup_elem(&CLAIMS, &claim.number);
	if (!holder) {
		claim.is_new = bpf_map_update_elem(&CLAIMS, &claim.number, &identity,
						   BPF_NOEXIST) == 0;
		holder = bpf_map_lookup_elem(&CLAIMS, &claim.number);
	}
	if (!holder || !is_same(holder, &identity))
		return (struct claim){ .number = PROGRAM_NONE };
	return claim;
}

/* The daemon was not told of the number, so it would never forget it. */
INLINE void give_back(struct claim claim)
{
	if (claim.is_new)
		bpf_map_delete_elem(&CLAIMS, &claim.number);
}

/* Whether a process of this user may have another message sent now: an ordinary user has a quarter
 * of the ring in 134 ms (2^27 ns), which is no longer than the daemon waits before it reads the
 * ring in a storm. Without an allowance one user's mappings would fill the ring for all. Users of
 * one row of subordinate users (65536 from 100000 on, login.defs(5)) share one allowance, and so
 * do users 256 apart. The count is not exact: two CPUs may write it at the same time. */
INLINE int has_allowance(void)
{
	u32 user = bpf_get_current_uid_gid(), window = bpf_ktime_get_ns() >> 27, index;
	struct allowance *allowance;

	if (user == 0)
		return 1;
	index = first_of_row(user) & (ALLOWANCES_MAX - 1);
	allowance = bpf_map_lookup_elem(&ALLOWANCES, &index);
	if (!allowance)
		return 1;
	if (allowance->window != window) {
		allowance->window = window;
		allowance->sent = 0;
	}
	if (allowance->sent >= CHANGES_OF_USER_MAX)
		return 0;
	allowance->sent++;
	return 1;
}

/* Sends a change to the daemon. 0 when the ring is full, or the user has sent too many: the daemon
 * then knows less of the process, but no sample is lost. */
INLINE int send(const struct change *change)
{
	return has_allowance() &&
	       bpf_ringbuf_output(&CHANGES, change, sizeof(*change), BPF_RB_NO_WAKEUP) == 0;
}

INLINE void forget_libraries(struct slot *slot)
{
	slot->libraries[INTERPRETER] = (struct library){};
	slot->libraries[LIBC] = (struct library){};
}

/* Takes the slot of a process for writing. 0 when somebody writes it on another CPU: nobody waits,
 * the process then has no slot. */
INLINE int lock_slot(u32 root_pid)
{
	u32 index = root_pid & ((1 << SLOT_BITS) - 1), value = 1;

	return bpf_map_update_elem(&WRITERS, &index, &value, BPF_NOEXIST) == 0;
}

INLINE void unlock_slot(u32 root_pid)
{
	u32 index = root_pid & ((1 << SLOT_BITS) - 1);

	bpf_map_delete_elem(&WRITERS, &index);
}

/* Says of which memory the slot tells; 0: of none. Before it is written for another memory it tells
 * of none: a sample of the old one sees that when it looks again (is_still_own). No barrier of the
 * processor is needed for the new one: only its own threads look for it, which run after this. */
INLINE void set_owner(struct slot *slot, u64 mm)
{
	COMPILER_BARRIER();
	*(volatile u64 *)&slot->mm = mm;
	COMPILER_BARRIER();
}

/* What the slot says of this memory is true no longer, and somebody else writes the slot. It may be
 * the other process's already: that one then has no slot either. */
INLINE void disown(struct slot *slot, u64 mm)
{
	if (slot->mm == mm || slot->mm == IN_EXEC(mm))
		set_owner(slot, 0);
}

/* Whether the process's samples are kept apart from those of others. */
INLINE int is_apart(const struct slot *slot, u32 pid)
{
	return slot->program == PROGRAM_APART && (slot->space & PID_MASK) == pid;
}

/* Gives an address space the mappings of files of the one that it begins with. */
INLINE void inherit_ranges(u32 from, u32 to)
{
	struct file_ranges *ranges = bpf_map_lookup_elem(&FILE_RANGES, &from);

	if (ranges)
		bpf_map_update_elem(&FILE_RANGES, &to, ranges, BPF_ANY);
}
