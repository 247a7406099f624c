/* SPDX-License-Identifier: GPL-2.0-only
 *
 * From the stack of a thread to that of the goroutine which runs on the thread. Go's runtime works
 * for a goroutine on a stack of the thread's own: the collector of garbage, the allocator, C. The
 * procedures that change to that stack (systemstack, asmcgocall) come back by a few loads, and the
 * daemon has read these loads in the code behind their calls (binary/unwind/src/goroutine.rs). The
 * walk does the same loads.
 */
#pragma once

#include "abi.h"
#include "kernel.h"
#include "maps.h"
#include "python.h"
#include "rule.h"

/* The goroutine for which the thread is on its own stack, and its stack pointer; 0: none. The
 * runtime's g is in the thread's memory, g.m is the thread's m, whose first word is the g of the
 * thread's own stack, and m.curg the goroutine. In a signal handler g is another one. */
INLINE u64 current_goroutine(u64 rule, u64 *sp)
{
	u64 thread = thread_pointer(), own, m, goroutine;

	if (!thread)
		return 0;
	own = user_word(thread + rule_cfa(rule));
	m = user_word(own + rule_first_slot(rule));
	if (!m || user_word(m) != own)
		return 0;
	goroutine = user_word(m + rule_return_below(rule));
	*sp = user_word(goroutine + rule_second_slot(rule));
	return goroutine;
}

/* The goroutine that called C, which asmcgocall has kept in its frame with the depth of its stack;
 * 0: it was not called by one. */
INLINE u64 calling_goroutine(const struct walk *walk, u64 rule, u64 *sp)
{
	u64 goroutine = user_word(walk->sp + rule_first_slot(rule));

	*sp = user_word(goroutine + rule_return_below(rule)) -
	      user_word(walk->sp + rule_second_slot(rule));
	return goroutine;
}

/* To the caller of the procedure that has changed from a goroutine's stack. Where there is no
 * goroutine, or the stack pointer is not within its stack (the first two words of a g), the thread
 * works for none, and the procedure is the first of the stack. A function of its own to the
 * verifier, as walk_step. */
__attribute__((noinline)) int leave_to_goroutine(u32 cpu, u64 rule)
{
	struct walk *walk = bpf_map_lookup_elem(&WALKS, &cpu);
	u64 goroutine, sp = 0;

	if (!walk)
		return 0;
	walk->end = WALK_WHOLE;
	/* A thread has two stacks; who seems to have more has none. */
	if (walk->has_switched)
		return 0;
	goroutine = rule_end(rule) == GOROUTINE_IN_C ? calling_goroutine(walk, rule, &sp)
					     : current_goroutine(rule, &sp);
	if (!goroutine || sp & 7 ||
	    bpf_probe_read_user(walk->words, 16, (void *)goroutine) != 0 ||
	    sp - walk->words[0] >= walk->words[1] - walk->words[0])
		return 0;
	sp += rule_frame_bytes(rule);
	if (bpf_probe_read_user(walk->words, 8, (void *)sp) != 0)
		return 0;
	walk->end = WALK_WITHOUT_RULE;
	walk->has_switched = 1;
	walk->pc = walk->words[0];
	walk->sp = sp + 8;
	walk->fp = LOST_FP;
	walk->is_exact = 0;
	return 1;
}
