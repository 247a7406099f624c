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

/* When an inode was last changed, in ns: another number after each change. */
INLINE u64 change_time_ns(struct inode *inode)
{
	struct inode___6_6 *since_6_6 = (void *)inode;
	struct inode___5_10 *since_5_10 = (void *)inode;

	if (__builtin_preserve_field_info(inode->i_ctime_sec, FIELD_EXISTS))
		return copied(&inode->i_ctime_sec) * 1000000000 + copied_u32(&inode->i_ctime_nsec);
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

/* The number under which a part of a file is counted: a hash of its device, inode, size, time of
 * last change and of the part, so that a file built anew has another number, even in the same
 * inode. A program is part 0; a mapping of a library is its first page in the file, plus 1. */
INLINE u32 program_number(const struct file *file, u64 part)
{
	struct inode *inode = (void *)copied(&file->f_inode);
	struct super_block *super = (void *)copied(&inode->i_sb);
	u64 identity = (copied(&inode->i_ino) ^ part << 40) * 0x9e3779b97f4a7c15ull;

	if (!inode)
		return PROGRAM_NONE;
	identity = (identity ^ copied_u32(&super->s_dev)) * 0x9e3779b97f4a7c15ull;
	identity = (identity ^ copied(&inode->i_size)) * 0x9e3779b97f4a7c15ull;
	identity = (identity ^ change_time_ns(inode)) * 0x9e3779b97f4a7c15ull;
	return NUMBER_OF_HASH(identity);
}

/* Sends a change to the daemon. 0 when the ring is full: the daemon then knows less of the process,
 * but no sample is lost. */
INLINE int send(const struct change *change)
{
	return bpf_ringbuf_output(&CHANGES, change, sizeof(*change), BPF_RB_NO_WAKEUP) == 0;
}

INLINE void forget_libraries(struct slot *slot)
{
	slot->libraries[INTERPRETER] = (struct library){};
	slot->libraries[LIBC] = (struct library){};
}

/* Whether the process's samples are kept apart from those of others. */
INLINE int is_apart(const struct slot *slot, u32 pid)
{
	return slot->program == PROGRAM_APART && (slot->space & PID_MASK) == pid;
}
