/* SPDX-License-Identifier: GPL-2.0-only
 *
 * Frames of functions that an interpreter keeps in lists which nothing but its loop leads to:
 * Lua's. No variable of the process or of a thread has the address of the running lua_State. The
 * loop is called with it by procedures that need it afterwards, so they keep it in a register that
 * the loop saves, or at the top of their own frame. A walk that has left the loop's frame notes
 * which of these words are addresses of states, and each state's list. The daemon knows what is
 * what.
 */
#pragma once

#include "abi.h"
#include "kernel.h"
#include "maps.h"
#include "python.h"

/* Words below and above the end of the loop's frame: six saved registers and the return address
 * (AMD64 ABI, 3.2.1), and two words of its caller's. */
enum { SAVED_WORDS = 7, CALLER_WORDS = 2 };

/* The place of the next note. */
INLINE struct runtime_frame *next_note(struct walk *walk)
{
	u32 noted = walk->noted;

	if (noted >= RUNTIME_FRAMES_MAX)
		return 0;
	walk->noted = noted + 1;
	return &walk->runtime_frames[noted & (RUNTIME_FRAMES_MAX - 1)];
}

/* Notes the list of a state. A function of its own to the verifier, as walk_step. */
__attribute__((noinline)) int note_list(u32 cpu, u64 state)
{
	struct walk *walk = bpf_map_lookup_elem(&WALKS, &cpu);
	struct list_layout *layout;
	struct runtime_frame *to;
	u64 entry, first, bytes, function;
	u32 number;

	if (!walk)
		return 0;
	layout = &walk->list;
	entry = user_word(state + layout->entry_at);
	first = user_word(state + layout->first_at);
	for (number = 0; number < RUNTIME_FRAMES_MAX; number++) {
		if (!entry || entry == first)
			break;
		bytes = layout->entry_bytes;
		AT_MOST(bytes, LIST_ENTRY_BYTES);
		if (bpf_probe_read_user(walk->blocks, bytes, (void *)entry) != 0)
			break;
		to = next_note(walk);
		if (!to)
			break;
		to->number = LIST_ENTRY;
		/* A value with a tag; 0: it cannot be read. The function may be freed soon, its
		 * code hardly ever. */
		to->words[0] = to->words[1] = 0;
		function = word_of(walk->blocks, layout->function_at);
		bpf_probe_read_user(to->words, 16, (void *)function);
		to->words[0] = user_word(to->words[0] + layout->code_at);
		to->words[2] = word_of(walk->blocks, layout->instruction_at);
		to->words[3] = word_of(walk->blocks, layout->flags_at);
		if (layout->step)
			entry -= layout->step;
		else
			entry = word_of(walk->blocks, layout->previous_at);
	}
	return 1;
}

/* Notes the states that the loop's frame with this number, which was left, may be of. */
__attribute__((noinline)) int note_states(u32 cpu, u32 number)
{
	struct walk *walk = bpf_map_lookup_elem(&WALKS, &cpu);
	struct runtime_frame *to;
	u64 at, state, last = 0;
	u32 word;

	if (!walk)
		return 0;
	at = walk->sp - SAVED_WORDS * 8;
	for (word = 0; word < SAVED_WORDS + CALLER_WORDS; word++) {
		state = user_word(at + word * 8);
		if (state == last || state & 7 ||
		    (user_word(state + walk->list.tag_at) & 0xff) != walk->list.tag)
			continue;
		last = state;
		to = next_note(walk);
		if (!to)
			break;
		to->number = number;
		to->words[0] = state;
		to->words[1] = user_word(state + walk->list.saved_at);
		to->words[2] = to->words[3] = 0;
		if (state == walk->listed[0] || state == walk->listed[1])
			continue;
		walk->listed[1] = walk->listed[0];
		walk->listed[0] = state;
		note_list(cpu, state);
	}
	return 1;
}

/* Notes what the frame at `at`, which the walk has left, leads to, if it is the loop's. */
INLINE int note_loop(struct walk *walk, u32 cpu, u32 number, u64 at)
{
	if (at - walk->list.loop < walk->list.loop_bytes)
		note_states(cpu, number);
	return 1;
}
