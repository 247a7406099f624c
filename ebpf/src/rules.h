/* SPDX-License-Identifier: GPL-2.0-only
 *
 * Rules of frames (struct rule_words): where a walk (walk.h) finds them, and what they say.
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
#include "rule.h"

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

	if (frame_below == SHORT_FRAME_LOST)
		frame_below = FRAME_LOST;
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
