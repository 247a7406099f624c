/* SPDX-License-Identifier: GPL-2.0-only
 *
 * Walks of user stacks, by rules of frames.
 *
 * The daemon learns rules from the stacks that it walks by unwind tables, and keeps them in RULES:
 * how to get from a frame to its caller, for a block of code or one place. A walk looks up one rule
 * for each frame and reads the caller's words from the user stack, so neither the depth of a stack
 * nor the size of a frame matters. Where there is no rule, the walk ends, the stack is copied, and
 * the daemon has it walked (stack.h).
 *
 * A place is counted as samples are: code of a program and of two libraries by number and distance,
 * so that all processes share its rules. Code of further files is known by a number of the file
 * (FILE_RANGES), other code by address space and address. What a process has mapped at an address
 * may change at any time, so such a rule holds only where the code around it is still the code that
 * it was learnt for (code_check).
 */
#pragma once

#include "abi.h"
#include "calls.h"
#include "kernel.h"
#include "maps.h"
#include "place.h"
#include "runtime_frames.h"

/* The parts of a rule. A distance is in words of 8 bytes. */
INLINE u32 rule_kind(u64 rule)
{
	return rule & 15;
}
INLINE u32 rule_end(u64 rule)
{
	return rule >> 4 & 15;
}
INLINE s64 rule_cfa(u64 rule)
{
	return (s64)(rule << 36) >> 44 << 3;
}
INLINE u64 rule_return_below(u64 rule)
{
	return (rule >> 28 & 1023) << 3;
}
INLINE u64 rule_frame_below(u64 rule)
{
	return (rule >> 38 & 1023) << 3;
}
INLINE u32 rule_check(u64 rule)
{
	return rule >> 48;
}

/* A number for the 16 bytes of code around a place. */
INLINE u32 code_check(const u64 *code)
{
	return (code[0] * 0x9e3779b97f4a7c15ull ^ code[1] * 0xc2b2ae3d27d4eb4full) >> 48;
}

#if defined(ARCH_x86_64)
enum { FP_REGISTER = 4, LR_REGISTER = 4 /* there is none */ };
/* Where the kernel saves rbp, and rsp with rip behind it, above the stack pointer that a signal
 * handler returns with (struct rt_sigframe, arch/x86/include/uapi/asm/sigcontext.h). */
enum { SIGNAL_FP = 40 + 80, SIGNAL_SP = 40 + 120 };
enum { HAS_LINK_REGISTER = 0 };
INLINE u64 address_of(u64 pc)
{
	return pc;
}
#else
enum { FP_REGISTER = 29, LR_REGISTER = 30 };
/* Likewise x29 and x30, and sp and pc (arch/arm64/include/uapi/asm/sigcontext.h). */
enum { SIGNAL_FP = 312 + 29 * 8, SIGNAL_SP = 312 + 31 * 8 };
enum { HAS_LINK_REGISTER = 1 };
/* Return addresses are signed in the bits above an address. */
INLINE u64 address_of(u64 pc)
{
	return pc & ((1ull << 48) - 1);
}
#endif

/* Sets walk->key to the number of the code at `at` and the distance. 0: it has no number. */
INLINE int set_shared_key(struct walk *walk, u64 at, u64 extent)
{
	const struct shared_code *code = &walk->code;
	const struct library *libc = &code->libraries[LIBC];
	const struct library *interpreter = &code->libraries[INTERPRETER];

	if (at - code->text < code->text_len) {
		walk->key.space = code->program;
		walk->key.place = at - code->text;
	} else if (at - libc->start < libc->len) {
		walk->key.space = libc->number;
		walk->key.place = at - libc->start;
	} else if (at - interpreter->start < interpreter->len) {
		walk->key.space = interpreter->number;
		walk->key.place = at - interpreter->start;
	} else {
		return 0;
	}
	walk->key.place |= IN_PROGRAM | extent;
	return 1;
}

/* Whether the code that begins at `code` is, or may be, that with the number `check`. Code that is
 * not in memory cannot be told: a child has not executed there since its parent made it, but may
 * have to return there, and has mapped there what its parent had. */
INLINE int may_be(struct walk *walk, u64 code, u32 check)
{
	return bpf_probe_read_user(walk->words, 16, (void *)code) != 0 ||
	       code_check(walk->words) == check;
}

/* A further rule of a block as the first one is, without code_check(). */
INLINE u64 long_rule(u32 rule)
{
	u64 frame_below = rule >> 11 & 63;
	u64 return_below = rule >> 17 & 1 ? frame_below - 1 : !HAS_LINK_REGISTER;
	u64 distance = (int)rule >> 18 & 0xfffff;

	return (rule >> 8 & 7) | distance << 8 | (return_below & 1023) << 28 | frame_below << 38;
}

/* The rule in walk->key for `at`, if it is for the code that begins at `code`; otherwise 0. */
INLINE u64 rule_in(struct walk *walk, u64 at, u64 extent, u64 code)
{
	struct rule_words *words = bpf_map_lookup_elem(&RULES, &walk->key);
	u32 number, into = at & (RULE_BLOCK_BYTES - 1), found = 0;

	if (!words)
		return 0;
	if (code && !may_be(walk, code, rule_check(words->first)))
		return 0;
	if (extent != RULE_BLOCK)
		return words->first;
#pragma unroll
	for (number = 0; number < EXTENT_RULES_MAX - 1; number++) {
		u32 next = words->next[number];

		if (next && (next & (RULE_BLOCK_BYTES - 1)) <= into)
			found = next;
	}
	return found ? long_rule(found) : words->first;
}

/* The rule of a place, or of its block; 0: none, or for other code. Also code of files may have
 * rules that are true in one process only: its program may be known to keep frame pointers. A
 * function of its own to the verifier, as walk_step. */
__attribute__((noinline)) u64 find_rule_of(u32 cpu, u64 at, u64 extent)
{
	struct walk *walk = bpf_map_lookup_elem(&WALKS, &cpu);
	u64 begin = at, code = at - RULE_CODE_BEFORE, rule;
	u32 number, is_in_file = 0;

	if (!walk)
		return 0;
	if (extent == RULE_BLOCK)
		code = begin = at & ~(RULE_BLOCK_BYTES - 1ull);
	if (set_shared_key(walk, begin, extent)) {
		rule = rule_in(walk, at, extent, 0);
		if (rule)
			return rule;
	}
#pragma unroll
	for (number = 0; number < FILE_RANGES_MAX; number++) {
		struct file_range *range = &walk->files.all[number];

		if (begin - range->start < range->len) {
			walk->key.space = range->number;
			walk->key.place = RULE_IN_FILE | extent |
					  (begin - range->start + range->offset);
			is_in_file = 1;
		}
	}
	if (is_in_file) {
		rule = rule_in(walk, at, extent, code);
		if (rule)
			return rule;
	}
	walk->key.space = walk->space;
	walk->key.place = begin | extent;
	return rule_in(walk, at, extent, code);
}

/* Whether the code before the return address after `at` calls. What no call has pushed is no return
 * address. */
INLINE int follows_call(struct walk *walk, u64 at)
{
	return bpf_probe_read_user(walk->words, 8, (void *)(at - RULE_CODE_BEFORE)) == 0 &&
	       ends_with_call(walk->words[0]);
}

/* The rule of the frame at `at` in RULES; RULE_OTHER: none. */
INLINE u64 look_rule_up(struct walk *walk, u32 cpu, u64 at)
{
	u64 rule = 0;

	if (walk->is_exact || follows_call(walk, at))
		rule = find_rule_of(cpu, at, RULE_BLOCK);
	if (rule && rule_kind(rule) != RULE_OTHER)
		return rule;
	rule = find_rule_of(cpu, at, walk->is_exact ? RULE_EXACT : 0);
	return rule ? rule : RULE_OTHER;
}

/* Sets walk->key to the place of the frame at `at`. Whether its code has a number. */
INLINE int set_frame_key(struct walk *walk, u64 at)
{
	u64 exact = walk->is_exact ? RULE_EXACT : 0;

	if (set_shared_key(walk, at, exact))
		return 1;
	walk->key.space = walk->space;
	walk->key.place = at | exact;
	return 0;
}

/* The entry of the CPU's cache that may have the rule for walk->key. */
INLINE struct cached_rule *cached(struct walk *walk)
{
	u64 hash = (walk->key.place ^ (u64)walk->key.space << 20) * 0x9e3779b97f4a7c15ull;

	_Static_assert(CACHED_RULES == 1 << (64 - 56), "the index has as many bits");
	return &walk->cache[hash >> 56 & (CACHED_RULES - 1)];
}

/* Looks a rule up in RULES and keeps it. */
__attribute__((noinline)) u64 cache_rule(u32 cpu, u64 at)
{
	struct walk *walk = bpf_map_lookup_elem(&WALKS, &cpu);
	struct cached_rule *entry;
	u64 rule;

	if (!walk)
		return RULE_OTHER;
	rule = look_rule_up(walk, cpu, at);
	if (rule_kind(rule) == RULE_OTHER)
		return rule;
	/* Where it fails, the words are zero, which is no code. */
	bpf_probe_read_user(walk->words, 16, (void *)(at - RULE_CODE_BEFORE));
	set_frame_key(walk, at);
	entry = cached(walk);
	entry->key = walk->key;
	entry->rule = rule;
	entry->check = code_check(walk->words);
	return rule;
}

/* The rule of the frame at `at`; RULE_OTHER: none. */
INLINE u64 find_rule(struct walk *walk, u32 cpu, u64 at)
{
	int is_shared = set_frame_key(walk, at);
	struct cached_rule *entry = cached(walk);

	if (LIKELY(entry->key.place == walk->key.place && entry->key.space == walk->key.space) &&
	    (is_shared || may_be(walk, at - RULE_CODE_BEFORE, entry->check)))
		return entry->rule;
	return cache_rule(cpu, at);
}

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
		if (frame_below) {
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
	rule = find_rule(walk, cpu, at);
	switch (rule_kind(rule)) {
	case RULE_FROM_SP:
	case RULE_FROM_FP:
	case RULE_THROUGH_FP:
		return leave_by_rule(walk, rule);
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
	copy_shared_code(&walk->code);
	begin_notes(walk, record);
	for (number = 0; number <= WALK_FRAMES_MAX / STEPS; number++) {
		if (!walk_steps(cpu))
			break;
	}
	return walk;
}
