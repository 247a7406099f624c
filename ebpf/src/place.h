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

/* The current process's address space, for a process without a slot. */
OUT_OF_LINE u32 own_space(void)
{
	u32 pid = process();

	return pid == 0 ? SPACE_FOREIGN : pid | generation() << PID_BITS;
}

INLINE struct place inside(const struct library *library, u64 pc)
{
	return (struct place){ .key = IN_PROGRAM | (pc - library->start),
			       .space = library->number };
}

/* Kernel addresses mean the same in every process and are counted once. A program's own text is
 * counted by the distance from its begin, wherever it is loaded, so that a thousand runs of the
 * compiler share their entries; so are the interpreter and the C library. All other code is
 * counted by its address in its address space. */
INLINE struct place place_of(u64 pc)
{
	const u64 address = (1ull << PC_BITS) - 1;
	struct slot *slot;
	struct place place;
	u64 mm;

	if (!LIKELY((s64)pc >= 0 || KERNEL_BY_PROCESS))
		return (struct place){ .key = pc & address, .space = SPACE_KERNEL };
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
