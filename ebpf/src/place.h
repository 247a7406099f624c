/* SPDX-License-Identifier: GPL-2.0-only
 *
 * Under which key and address space a program counter is counted.
 */
#pragma once

#include "abi.h"
#include "process.h"

struct place {
	u64 key; /* as in struct entry, without the event number */
	u32 space;
};

/* The space that kernel code is counted under where processes have scopes: that of the process, and
 * above it IN_PROGRAM where it is the number of a scope. A kernel thread works for no process. A
 * thread that ends has no memory any more while it frees it, which is much of a short process. */
OUT_OF_LINE u64 kernel_space(u32 scopes)
{
	u32 root_pid = root_process();
	u64 *word = kernel_scope_of(root_pid);
	u64 scope = word ? *(volatile u64 *)word : 0;

	if (TASK_ACCESS != TASK_HIDDEN && is_kernel_thread())
		return SPACE_KERNEL;
	if (LIKELY((u32)scope == root_pid && scope >> 32))
		return IN_PROGRAM | scope >> 32;
	if (scopes != SCOPES_ALL)
		return SPACE_KERNEL;
	return current_space();
}

INLINE struct place inside(const struct library *library, u64 pc)
{
	return (struct place){ .key = IN_PROGRAM | (pc - library->start),
			       .space = library->number };
}

/* Kernel addresses mean the same in every process and are counted once, or once for each scope. A
 * program's own text is counted by the distance from its begin, wherever it is loaded, so that a
 * thousand runs of the compiler share their entries; so are the interpreter and the C library. All
 * other code is counted by its address in its address space. */
INLINE struct place place_of(u64 pc, u32 scopes)
{
	const u64 address = (1ull << PC_BITS) - 1;
	struct slot *slot;
	struct place place;
	u64 mm, space;

	if (!LIKELY((s64)pc >= 0 || KERNEL_BY_PROCESS)) {
		space = scopes == SCOPES_NONE ? SPACE_KERNEL : kernel_space(scopes);
		return (struct place){ .key = (pc & address) | (space & IN_PROGRAM),
				       .space = space };
	}
	slot = own_slot(&mm);
	if (!LIKELY(slot))
		return (struct place){ .key = pc & address, .space = own_space() };
	if (LIKELY(pc - slot->text < slot->text_len))
		place = (struct place){ .key = IN_PROGRAM | (pc - slot->text),
					.space = slot->program };
	else if (pc - slot->libraries[LIBC].start < slot->libraries[LIBC].len)
		place = inside(&slot->libraries[LIBC], pc);
	else if (pc - slot->libraries[INTERPRETER].start < slot->libraries[INTERPRETER].len)
		place = inside(&slot->libraries[INTERPRETER], pc);
	else
		place = (struct place){ .key = pc & address, .space = slot->space };
	if (!is_still_own(slot, mm))
		return (struct place){ .key = pc & address, .space = own_space() };
	return place;
}
