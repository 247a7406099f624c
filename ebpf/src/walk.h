/* SPDX-License-Identifier: GPL-2.0-only
 *
 * Walks of user stacks, by rules of frames.
 *
 * The daemon learns rules from the stacks that it walks by unwind tables, and keeps them in RULES:
 * how to get from a frame to its caller, for a block of code or one place. A walk looks up one rule
 * for each frame (rules.h) and reads the caller's words from the user stack, so neither the depth
 * of a stack nor the size of a frame matters. Where there is no rule, the walk ends, the stack is
 * copied, and the daemon has it walked (stack.h).
 */
#pragma once

#include "abi.h"
#include "erlang.h"
#include "goroutine.h"
#include "kernel.h"
#include "list_frames.h"
#include "luajit.h"
#include "maps.h"
#include "rules.h"
#include "runtime_frames.h"

/* From the registers that the kernel saved for a signal to those in the interrupted frame. */
INLINE int leave_signal(struct walk *walk)
{
	u64 sp = walk->sp;

	if (!sp || bpf_probe_read_user(walk->words, 16, (void *)(sp + SIGNAL_FP)) != 0)
		return 0;
	walk->fp = walk->words[0];
	walk->lr = walk->words[1];
	if (bpf_probe_read_user(walk->words, 16, (void *)(sp + SIGNAL_SP)) != 0)
		return 0;
	walk->sp = walk->words[0];
	walk->pc = address_of(walk->words[1]);
	walk->is_exact = 1;
	return 1;
}

/* To the caller, by the frame record that the frame pointer points to, as `by_frame_pointer` in
 * binary/unwind/src/step.rs does. A rule with a distance says where the caller's sp is kept. */
INLINE int leave_by_frame_pointer(struct walk *walk, u64 rule)
{
	u64 fp = walk->fp;
	s64 kept_at = rule_cfa(rule);

	if (fp == 0) {
		walk->end = WALK_WHOLE;
		return 0;
	}
	if (fp < walk->sp || fp & 7 || bpf_probe_read_user(walk->words, 16, (void *)fp) != 0)
		return 0;
	if (walk->words[0] != 0 && walk->words[0] <= fp)
		return 0;
	walk->fp = walk->words[0];
	walk->pc = address_of(walk->words[1]);
	/* An arm64 frame record does not say how large its frame is. */
	walk->sp = HAS_LINK_REGISTER ? 0 : fp + 16;
	walk->is_exact = 0;
	if (!kept_at)
		return 1;
	return bpf_probe_read_user(&walk->sp, 8, (void *)(fp + kept_at)) == 0 &&
	       walk->sp >= fp + 16 && !(walk->sp & 7);
}

/* To the caller, by a row of an unwind table. */
INLINE int leave_by_rule(struct walk *walk, u64 rule)
{
	u64 below = rule_return_below(rule), frame_below = rule_frame_below(rule);
	u32 kind = rule_kind(rule);
	u64 base = kind == RULE_FROM_SP ? walk->sp : walk->fp;
	u64 cfa = base + rule_cfa(rule);

	if (!base)
		return 0;
	if (kind == RULE_THROUGH_FP) {
		if (bpf_probe_read_user(walk->words, 8, (void *)cfa) != 0)
			return 0;
		cfa = walk->words[0];
		frame_below = cfa - base;
	}
	if (cfa & 7 || cfa < walk->sp || (cfa == walk->sp && !walk->is_exact))
		return 0;
	if (below && frame_below == below + 8) {
		if (bpf_probe_read_user(walk->words, 16, (void *)(cfa - frame_below)) != 0)
			return 0;
		walk->fp = walk->words[0];
		walk->pc = address_of(walk->words[1]);
	} else {
		if (below) {
			if (bpf_probe_read_user(&walk->words[1], 8, (void *)(cfa - below)) != 0)
				return 0;
		} else if (HAS_LINK_REGISTER && walk->is_exact) {
			walk->words[1] = walk->lr;
		} else {
			return 0;
		}
		if (frame_below == FRAME_LOST * 8) {
			walk->fp = LOST_FP;
		} else if (frame_below) {
			if (bpf_probe_read_user(walk->words, 8, (void *)(cfa - frame_below)) != 0)
				return 0;
			walk->fp = walk->words[0];
		}
		walk->pc = address_of(walk->words[1]);
	}
	walk->sp = cfa;
	walk->is_exact = 0;
	return 1;
}

/* Notes the frame that a CPU's walk has come to, and goes on to its caller. Whether it has: where
 * not, `end` of the walk says why. A function of its own to the verifier (a global one), which is
 * verified once and not again for each frame. */
__attribute__((noinline)) int walk_step(u32 cpu)
{
	struct walk *walk = bpf_map_lookup_elem(&WALKS, &cpu);
	u32 number;
	u64 at, rule;

	if (!walk)
		return 0;
	number = walk->frames;
	if (number >= WALK_FRAMES_MAX) {
		walk->end = WALK_TOO_DEEP;
		return 0;
	}
	at = walk->pc - (walk->is_exact ? 0 : 1);
	walk->addresses[number & (WALK_FRAMES_MAX - 1)] = at;
	walk->frames = number + 1;
	if (walk->erlang.areas[0].len && is_erlang(walk, at))
		return leave_erlang(cpu);
	if (at - walk->luajit.vm < walk->luajit.vm_bytes && leave_procedure(cpu))
		return 1;
	rule = find_rule(walk, cpu, at);
	switch (rule_kind(rule)) {
	case RULE_FROM_SP:
	case RULE_FROM_FP:
	case RULE_THROUGH_FP:
		walk->left_fp = walk->fp;
		return leave_by_rule(walk, rule) && note_loop(walk, cpu, number, at) &&
		       note_luajit(walk, cpu, number, at);
	case RULE_FRAME_POINTER:
		if (walk->layout.block_bytes)
			note_frame(cpu, number);
		return leave_by_frame_pointer(walk, rule);
	case RULE_SIGNAL:
		/* Nothing has called the code that a handler returns to. */
		walk->addresses[number & (WALK_FRAMES_MAX - 1)] = walk->pc;
		return leave_signal(walk);
	case RULE_END:
		walk->end = rule_end(rule);
		return 0;
	case RULE_GOROUTINE:
		return leave_to_goroutine(cpu, rule);
	default:
		return 0;
	}
}

/* A loop over all frames would take the verifier half a second: two nested ones take none. */
enum { STEPS = 32 };

/* Takes some steps of a CPU's walk. Whether it goes on. */
__attribute__((noinline)) int walk_steps(u32 cpu)
{
	u32 number;

	for (number = 0; number < STEPS; number++) {
		if (!walk_step(cpu))
			return 0;
	}
	return 1;
}

/* Which of the current process's code is counted under numbers. */
INLINE void copy_shared_code(struct shared_code *code)
{
	struct slot *slot;
	u64 mm;

	*code = (struct shared_code){};
	slot = own_slot(&mm);
	if (!slot)
		return;
	code->text = slot->text;
	code->text_len = slot->text_len;
	code->program = slot->program;
	code->libraries[INTERPRETER] = slot->libraries[INTERPRETER];
	code->libraries[LIBC] = slot->libraries[LIBC];
	if (!is_still_own(slot, mm))
		*code = (struct shared_code){};
}

/* Walks the user stack of the current thread from the registers of the record. */
INLINE struct walk *walk_user(const struct stack_record *record, u32 cpu)
{
	struct walk *walk = bpf_map_lookup_elem(&WALKS, &cpu);
	struct file_ranges *files = bpf_map_lookup_elem(&FILE_RANGES, &record->space);
	u32 number;

	if (!walk)
		return 0;
	if (files)
		walk->files = *files;
	else
		walk->files = (struct file_ranges){};
	walk->pc = record->registers[PC_REGISTER];
	walk->sp = record->registers[SP_REGISTER];
	walk->fp = record->registers[FP_REGISTER];
	walk->lr = record->registers[LR_REGISTER];
	walk->space = record->space;
	walk->is_exact = 1;
	walk->frames = 0;
	walk->end = WALK_WITHOUT_RULE;
	walk->has_switched = 0;
	copy_shared_code(&walk->code);
	begin_notes(walk, record);
	for (number = 0; number <= WALK_FRAMES_MAX / STEPS; number++) {
		if (!walk_steps(cpu))
			break;
	}
	return walk;
}
