/* SPDX-License-Identifier: GPL-2.0-only
 *
 * Frames of Erlang's: of code that BEAM's just-in-time compiler has generated, on x86-64. Such code
 * runs on the stack of its process of Erlang's, which rsp points to. A frame there has a return
 * address and terms, but no size that is told anywhere, and no frame pointer. A term is never the
 * address of generated code (its low bits are a tag, and heaps lie elsewhere), so the next word
 * that is such an address is the return address, as Erlang's own stack traces take it.
 *
 * C code runs on the thread's own stack. Generated code goes there to call it, and keeps its own
 * stack pointer in rbp or in the process of Erlang's (r13) meanwhile. So a walk through C code that
 * comes to generated code goes on where that pointer leads. The daemon says where all of this is
 * (daemon/inspect/src/erlang/).
 */
#pragma once

#include "abi.h"
#include "kernel.h"
#include "maps.h"
#include "python.h"
#include "rules.h"

enum {
	ERLANG_BLOCK_BYTES = ERLANG_BLOCK_WORDS * 8,
	/* Blocks of words that a frame has at most: 256 words, where most frames have below 10. */
	ERLANG_FRAME_BLOCKS = 16,
	/* Bytes of code behind a call of C in which the stack pointer is taken back. */
	ERLANG_AHEAD = 40,
	/* Bytes of code before an instruction in which a frame may just have been made. */
	ERLANG_BACK = 64,
	/* Three bytes of instructions: mov %rbp, %rsp; mov distance(%r13), %rsp with a distance of
	 * 8 bits; sub and add of a number of 8 bits with %rsp. */
	FROM_RBP = 0xec8948,
	FROM_R13 = 0x658b49,
	SUB_RSP = 0xec8348,
	ADD_RSP = 0xc48348,
};

/* Whether generated code of Erlang's is at an address. */
INLINE int is_erlang(const struct walk *walk, u64 at)
{
	u32 number;

#pragma unroll
	for (number = 0; number < ERLANG_AREAS_MAX; number++) {
		if (at - walk->erlang.areas[number].start < walk->erlang.areas[number].len)
			return 1;
	}
	return 0;
}

/* Four bytes of the code that was copied to walk->blocks. */
INLINE u32 code_in(const struct walk *walk, u32 at)
{
	u32 word = at / 8, bits = at % 8 * 8;
	u64 low = walk->blocks[word & (ERLANG_BLOCK_WORDS - 1)];
	u64 high = walk->blocks[(word + 1) & (ERLANG_BLOCK_WORDS - 1)];

	return low >> bits | high << 1 << (63 - bits);
}

/* The thread's scheduler, if its generated code calls C with this stack pointer; otherwise 0. */
INLINE u64 scheduler_on(const struct walk *walk, u64 sp)
{
	u64 scheduler = user_word(thread_pointer() + walk->erlang.scheduler_at);

	return user_word(scheduler) == sp ? scheduler : 0;
}

/* From the thread's own stack, on which generated code at walk->pc has called or is about to call
 * C, to the stack of Erlang's. A function of its own to the verifier, as walk_step. */
__attribute__((noinline)) int enter_erlang(u32 cpu)
{
	struct walk *walk = bpf_map_lookup_elem(&WALKS, &cpu);
	u32 at, code = 0;
	u64 scheduler;

	if (!walk)
		return 0;
	if (walk->pc - walk->erlang.loop < walk->erlang.loop_bytes) {
		walk->end = WALK_WHOLE;
		return 0;
	}
	if (bpf_probe_read_user(walk->blocks, ERLANG_AHEAD + 8, (void *)walk->pc) != 0)
		return 0;
	for (at = 0; at < ERLANG_AHEAD; at++) {
		code = code_in(walk, at) & 0xffffff;
		if (code == FROM_RBP || code == FROM_R13)
			break;
	}
	if (code == FROM_RBP) {
		walk->sp = walk->fp;
		return 1;
	}
	scheduler = scheduler_on(walk, walk->sp);
	if (code != FROM_R13 || !scheduler)
		return 0;
	walk->sp = user_word(user_word(scheduler + walk->erlang.process_at) +
			     walk->erlang.stack_at);
	return 1;
}

/* Passes the words of a frame that was just made: until they are written, they may be addresses
 * that an earlier call has left. Likewise. */
__attribute__((noinline)) int pass_new_frame(u32 cpu)
{
	struct walk *walk = bpf_map_lookup_elem(&WALKS, &cpu);
	u64 begin, bytes = 0;
	u32 at, code;

	if (!walk)
		return 0;
	begin = walk->pc - ERLANG_BACK;
	if (bpf_probe_read_user(walk->blocks, ERLANG_BACK, (void *)begin) != 0)
		return 0;
	for (at = 0; at <= ERLANG_BACK - 4; at++) {
		code = code_in(walk, at);
		if ((code & 0xffffff) == SUB_RSP)
			bytes = code >> 24;
		if ((code & 0xffffff) == ADD_RSP)
			bytes = 0;
	}
	if (bytes < 128 && is_erlang(walk, user_word(walk->sp + bytes)))
		walk->sp += bytes;
	return 1;
}

/* Looks for a return address among the next words of a stack of Erlang's, and goes behind it, or
 * behind the words. Whether there is one, which is walk->pc then. Likewise. */
__attribute__((noinline)) int find_erlang_return(u32 cpu)
{
	struct walk *walk = bpf_map_lookup_elem(&WALKS, &cpu);
	u64 word, bytes;
	u32 number;

	if (!walk || !walk->erlang_blocks)
		return 0;
	walk->erlang_blocks--;
	/* What cannot be read is 0. A stack may end within a page behind which there is none. */
	if (bpf_probe_read_user(walk->blocks, ERLANG_BLOCK_BYTES, (void *)walk->sp) != 0) {
		bytes = -walk->sp & 4095;
		AT_MOST(bytes, ERLANG_BLOCK_BYTES);
		bpf_probe_read_user(walk->blocks, bytes, (void *)walk->sp);
	}
	for (number = 0; number < ERLANG_BLOCK_WORDS; number++) {
		word = walk->blocks[number & (ERLANG_BLOCK_WORDS - 1)];
		if (is_erlang(walk, word)) {
			walk->pc = word;
			walk->sp += 8 * (number + 1);
			return 1;
		}
	}
	walk->sp += ERLANG_BLOCK_BYTES;
	return 0;
}

/* To the caller of generated code, as walk_step. */
__attribute__((noinline)) int leave_erlang(u32 cpu)
{
	struct walk *walk = bpf_map_lookup_elem(&WALKS, &cpu);
	u32 number, is_found = 0;

	if (!walk)
		return 0;
	walk->end = WALK_GENERATED;
	if (walk->is_exact ? scheduler_on(walk, walk->sp) != 0 : !walk->is_erlang) {
		if (!enter_erlang(cpu))
			return 0;
	} else if (walk->is_exact) {
		pass_new_frame(cpu);
	}
	for (number = 0; number < ERLANG_FRAME_BLOCKS && !is_found; number++)
		is_found = find_erlang_return(cpu);
	if (!is_found)
		return 0;
	if (walk->pc == walk->erlang.exit) {
		walk->end = WALK_WHOLE;
		return 0;
	}
	if (!follows_call(walk, walk->pc - 1))
		return 0;
	walk->end = WALK_WITHOUT_RULE;
	walk->is_exact = walk->fp = 0;
	walk->is_erlang = 1;
	return 1;
}
