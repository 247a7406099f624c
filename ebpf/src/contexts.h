/* SPDX-License-Identifier: GPL-2.0-only
 *
 * Calls of an interpreter that keeps them among other contexts: Perl's. Each of its stacks has a
 * row of contexts and a link to the stack before. Contexts of calls, evaluations and blocks that
 * begin a loop of the interpreter's are copied, as its frames (python.h) are; others, of the
 * language's loops and blocks, are passed. The first copied frame is none: it has the interpreter,
 * its place, and whether the contexts are complete.
 */
#pragma once

#include "abi.h"
#include "kernel.h"

/* Kinds of contexts: CXTYPEMASK, CXt_EVAL, and a bit for
 * each of CXt_NULL, CXt_SUB, CXt_FORMAT, CXt_EVAL and CXt_DEFER (cop.h of perl 5.28 to 5.40). */
enum {
	CONTEXT_KINDS = 15,
	CONTEXT_EVAL = 11,
	CONTEXTS_KEPT = 1 << 0 | 1 << 9 | 1 << 10 | 1 << CONTEXT_EVAL | 1 << 13,
};
/* In the body of a function (struct xpvcv, cv.h of the same versions): where what is read begins;
 * from there on the first operation, the name, the flags, and in these CVf_NAMED. */
enum { BODY_AT = 32, BODY_BYTES = 64, START_AT = 8, NAME_AT = 24, FLAGS_AT = 56 };
#define IS_NAMED (1ull << (32 + 15))

/* 1 where a word is 0, and otherwise 0; without a branch, of which the verifier would follow both
 * ways in each round. */
INLINE u64 is_zero(u64 word)
{
	u64 borrow = word - 1;

	__asm__ volatile("" : "+r"(word), "+r"(borrow));
	return (borrow & ~word) >> 63;
}

/* Makes the context at a frame, whose kind is in `flags`, the frame. A function may be freed soon,
 * closures are: so what tells it is copied, too. A name that only the function has is read later.
 */
INLINE void copy_context(struct python_frame *frame, const struct context_layout *layout,
			 u64 flags)
{
	u64 is_eval = is_zero((flags & CONTEXT_KINDS) ^ CONTEXT_EVAL);
	u64 function, start, is_named;

	flags |= is_zero(word_of(frame, layout->return_at)) * CONTEXT_BEGINS;
	frame->instruction = word_of(frame, layout->caller_at);
	function = word_of(frame, layout->sub_at + is_eval * (layout->eval_at - layout->sub_at));
	/* What cannot be read is 0. The second block's end is the next frame's. */
	bpf_probe_read_user(frame + 1, BODY_BYTES, (void *)(user_word(function) + BODY_AT));
	start = word_of(frame + 1, START_AT) * (1 - is_eval);
	is_named = word_of(frame + 1, FLAGS_AT) / IS_NAMED & 1;
	frame->flags = flags | is_named * CONTEXT_NAMED | start << CONTEXT_START_SHIFT;
	is_named |= is_eval;
	frame->code = is_named * function + (1 - is_named) * word_of(frame + 1, NAME_AT);
}

/* Copies the contexts of the current thread's interpreter, which is at `state`, behind the record
 * that is just written. What one round leaves to the next is in the first frame, where the verifier
 * does not tell it apart: the last context, those left of its row, the stack before. A function of
 * its own to the verifier, as walk_step. */
__attribute__((noinline)) int copy_contexts(u32 cpu, u64 state)
{
	struct stack_ring *ring = bpf_map_lookup_elem(&STACK_RINGS, &cpu);
	struct stack_data *data = bpf_map_lookup_elem(&STACK_DATA, &cpu);
	const struct runtime_layout *layouts;
	const struct context_layout *layout;
	struct python_frame *frames, *to;
	volatile struct python_frame *head;
	struct stack_record *record;
	u64 info, entry, left, is_whole = 0;

	if (!ring || !data || !state)
		return 0;
	record = (void *)(data->bytes + (ring->written & (STACK_RING_BYTES - 8)));
	layouts = bpf_map_lookup_elem(&RUNTIMES, &record->space);
	if (!layouts)
		return 0;
	layout = &layouts->contexts;
	head = frames = (void *)(record + 1);
	head->instruction = user_word(state + layout->info_at);
	head->flags = 0;
	record->python_frames = 1;
	for (u32 looked = 0; looked < CONTEXTS_MAX; looked++) {
		u32 number = record->python_frames;

		info = head->instruction;
		left = head->flags;
		entry = head->code - layout->entry_bytes;
		if (!left && !info) {
			is_whole = 1;
			break;
		}
		if (!left) {
			left = (u32)user_word(info + layout->last_at) + 1;
			entry = user_word(info + layout->row_at);
			head->flags = (u32)left;
			head->code = entry + (u32)left * (u64)layout->entry_bytes;
			head->instruction = user_word(info + layout->previous_at);
			continue;
		}
		left--;
		head->flags = left;
		head->code = entry;
		if (number >= PYTHON_FRAMES_MAX)
			break;
		to = frames + (number & (PYTHON_FRAMES_MAX - 1));
		if (bpf_probe_read_user(to, PYTHON_BLOCK_MAX, (void *)entry) != 0)
			break;
		if (!(CONTEXTS_KEPT >> (to->code & CONTEXT_KINDS) & 1))
			continue;
		copy_context(to, layout, (to->code & 0xff) | is_zero(left) * CONTEXT_FIRST);
		record->python_frames = number + 1;
	}
	head->code = state;
	head->instruction = user_word(state + layout->place_at);
	head->flags = is_whole;
	return 1;
}
