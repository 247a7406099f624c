/* SPDX-License-Identifier: GPL-2.0-only
 *
 * Calls of LuaJIT 2.1 on x86-64, whose interpreter is written in assembler and keeps all of a call
 * in one frame of the thread's stack. Traces, which are compiled Lua code, run on top of that
 * frame. The frame leads to the state (a coroutine or a main program), whose Lua stack has the
 * calls. A walk that has left a frame of the interpreter's or of a trace notes the state and its
 * calls. The daemon knows what is what (daemon/inspect/src/luajit/).
 *
 * Offsets are those of builds whose references have 64 bits (LJ_GC64: lj_obj.h, lj_frame.h and
 * vm_x64.dasc of 2.1.0-beta3 and of 2026). Builds that differ are not given a layout.
 */
#pragma once

#include "abi.h"
#include "kernel.h"
#include "list_frames.h"
#include "maps.h"
#include "python.h"
#include "rules.h"

enum {
	/* Of the interpreter's frame: its bytes, and from its begin the number of results, with
	 * the state and the instruction behind. */
	VM_FRAME_BYTES = 80,
	VM_RESULTS_AT = 8,
	VM_STATE_AT = 16,
	/* In a state, what is read of it; in words of that: its header, the global state, the base,
	 * the begin of the Lua stack, the frame of the interpreter's. */
	STATE_AT = 8,
	STATE_BYTES = 80,
	STATE_HEADER = 0,
	STATE_GLOBAL = 1,
	STATE_BASE = 3,
	STATE_STACK = 6,
	STATE_FRAME = 9,
	/* The second byte of a header is the kind of an object, the third is that of a function. */
	THREAD_KIND = 6,
	FUNCTION_KIND = 8,
	/* In a function: the address of its instructions. Before these, the number of them. */
	FUNCTION_CODE_AT = 32,
	CODE_COUNT_BEFORE = 96,
	/* A value that is a function has its address in the lower 47 bits, this number above. */
	ADDRESS_BITS = 47,
	FUNCTION_TAG = 0x1fff7,
	/* The kinds of links between calls: 0 is the caller's instruction. */
	LINK_KIND = 3,
	LINK_BITS = 7,
	LINK_CONTINUES = 2,
	/* The continuation of a callback of C code. */
	CONTINUES_CALLBACK = 1,
	LUA_CALLBACK_BIT = 32,
	/* Places, 16 bytes apart, that the interpreter's frame may have above saved registers: 400
	 * bytes, and room of a trace, which has mostly below 200. */
	SAVED_MAX = 64,
};

/* The address in a value. */
INLINE u64 value_address(u64 value)
{
	return value & ((1ull << ADDRESS_BITS) - 1);
}

/* Whether the function of a base just begins, or is one in Lua that has the instruction before the
 * next one. */
INLINE int is_running(u64 base, u64 next)
{
	u64 function = user_word(base - 16), code, count;

	if (function >> ADDRESS_BITS != FUNCTION_TAG)
		return 0;
	function = value_address(function);
	code = user_word(function + FUNCTION_CODE_AT);
	if (next - code <= 4)
		return 1;
	count = user_word(code - CODE_COUNT_BEFORE) >> 32;
	return (user_word(function + 8) >> 8 & 0xffff) == FUNCTION_KIND &&
	       next - code <= count * 4;
}

/* Bytes from the base of a call to its caller's, which calls before this instruction. */
INLINE u64 base_distance(u64 next)
{
	return 16 + 8 * (user_word(next - 4) >> 8 & 0xff);
}

/* The base of the innermost call of the interpreter, where a sample was in its code. The register
 * for it has another value around calls of C, after which the state has it. While a call begins or
 * ends, the next instruction is the caller's. 0: it is not known. A function of its own to the
 * verifier, as walk_step. */
__attribute__((noinline)) u64 running_base(u32 cpu, u64 saved)
{
	struct walk *walk = bpf_map_lookup_elem(&WALKS, &cpu);
	u64 base, next, distance;

	if (!walk)
		return 0;
	base = walk->lua_base;
	next = walk->lua_next;
	if (is_running(base, next))
		return base;
	distance = base_distance(next);
	if (is_running(base - distance, next))
		return base - distance;
	if (is_running(saved, next))
		return saved;
	if (is_running(saved - distance, next))
		return saved - distance;
	return user_word(base - 8) == next ? base : 0;
}

/* Notes the calls of a state from a base on. Likewise. */
__attribute__((noinline)) int note_calls(u32 cpu, u64 base, u64 stack)
{
	struct walk *walk = bpf_map_lookup_elem(&WALKS, &cpu);
	struct runtime_frame *to;
	u64 link, continues, instruction, function, distance;
	u32 number, is_continued;

	if (!walk)
		return 0;
	for (number = 0; number < RUNTIME_FRAMES_MAX; number++) {
		/* Of the first function of a stack nothing has a name. */
		if (base - stack > 1ull << 32 || base < stack + 24 ||
		    bpf_probe_read_user(walk->blocks, 32, (void *)(base - 32)) != 0)
			break;
		continues = walk->blocks[0];
		instruction = walk->blocks[1];
		function = value_address(walk->blocks[2]);
		link = walk->blocks[3];
		if (bpf_probe_read_user(walk->blocks, 32, (void *)(function + 8)) != 0)
			break;
		to = next_note(walk);
		if (!to)
			break;
		is_continued = (link & LINK_BITS) == LINK_CONTINUES;
		to->number = LIST_ENTRY;
		to->words[0] = walk->blocks[3];
		to->words[1] = (u32)walk->blocks[0];
		if (is_continued && continues == CONTINUES_CALLBACK)
			to->words[1] |= 1ull << LUA_CALLBACK_BIT;
		to->words[2] = link;
		to->words[3] = is_continued ? instruction : base;
		distance = link & ~7ull;
		if ((link & LINK_KIND) == 0)
			distance = base_distance(link);
		if (!distance)
			break;
		base -= distance;
	}
	return 1;
}

/* Notes the state that the frame with this number, which was left, is of. Of other code than the
 * interpreter's only that of a trace is of interest: the state says that it runs above the
 * interpreter's frame which ends here. Likewise. */
__attribute__((noinline)) int note_state(u32 cpu, u32 number, u32 is_vm)
{
	struct walk *walk = bpf_map_lookup_elem(&WALKS, &cpu);
	struct runtime_frame *to;
	u64 frame, state, results, next, base, stack;

	if (!walk)
		return 0;
	frame = walk->sp - VM_FRAME_BYTES;
	if (bpf_probe_read_user(walk->blocks, 24, (void *)(frame + VM_RESULTS_AT)) != 0)
		return 0;
	results = walk->blocks[0];
	state = walk->blocks[1];
	next = walk->blocks[2];
	if (!state || state & 7 || state >> ADDRESS_BITS ||
	    bpf_probe_read_user(walk->blocks, STATE_BYTES, (void *)(state + STATE_AT)) != 0 ||
	    (walk->blocks[STATE_HEADER] >> 8 & 0xff) != THREAD_KIND)
		return 0;
	if (!is_vm && (walk->blocks[STATE_FRAME] & ~3ull) != frame)
		return 0;
	base = walk->blocks[STATE_BASE];
	stack = walk->blocks[STATE_STACK];
	to = next_note(walk);
	if (!to)
		return 0;
	to->number = number;
	to->words[0] = state;
	to->words[1] = stack;
	to->words[2] = next;
	to->words[3] = results;
	if (state == walk->listed[0] || state == walk->listed[1])
		return 1;
	walk->listed[1] = walk->listed[0];
	walk->listed[0] = state;
	/* C code that is called without the state keeps the base in rbp meanwhile, other code has
	 * the state there. */
	if (!is_vm)
		base = user_word(walk->blocks[STATE_GLOBAL] + walk->luajit.jit_base_at) ?: base;
	else if (number == 0)
		base = running_base(cpu, base);
	else if (walk->left_fp != state &&
		 user_word(walk->left_fp - 16) >> ADDRESS_BITS == FUNCTION_TAG)
		base = walk->left_fp;
	return note_calls(cpu, base, stack);
}

/* Whether a state is at an address. */
INLINE int is_state(u64 at)
{
	return (user_word(at + STATE_AT) >> 8 & 0xff) == THREAD_KIND;
}

/* Goes to the interpreter's frame above the registers that the code which leaves a trace has saved
 * on the stack, and the room of the trace. Likewise. */
__attribute__((noinline)) int pass_saved(u32 cpu)
{
	struct walk *walk = bpf_map_lookup_elem(&WALKS, &cpu);
	u64 at, state;
	u32 number;

	if (!walk)
		return 0;
	at = (walk->sp + 15) & ~15ull;
	for (number = 0; number < SAVED_MAX; number++) {
		state = user_word(at + VM_STATE_AT);
		if (state && !(state & 7) && is_state(state) &&
		    (user_word(state + STATE_AT + 8 * STATE_FRAME) & ~3ull) == at) {
			walk->sp = at;
			return 0;
		}
		at += 16;
	}
	return 0;
}

/* Makes sp that of the interpreter's frame in code of the interpreter, whose table of frames has
 * all of it as if it were in that frame. Leaves a procedure there that has no frame, as that for
 * remainders: one that the interpreter itself has called is taken for a part of it. Whether there
 * was one to leave. Likewise. */
__attribute__((noinline)) int leave_procedure(u32 cpu)
{
	struct walk *walk = bpf_map_lookup_elem(&WALKS, &cpu);
	u64 to;

	if (!walk || is_state(user_word(walk->sp + VM_STATE_AT)))
		return 0;
	if (!walk->is_exact)
		return pass_saved(cpu);
	to = user_word(walk->sp);
	if (!follows_call(walk, to - 1))
		return 0;
	if (to - walk->luajit.vm < walk->luajit.vm_bytes) {
		if (is_state(user_word(walk->sp + 8 + VM_STATE_AT)))
			walk->sp += 8;
		return 0;
	}
	walk->sp += 8;
	walk->pc = to;
	walk->is_exact = 0;
	return 1;
}

/* Notes what the frame at `at`, which the walk has left, leads to, if it is LuaJIT's. */
INLINE int note_luajit(struct walk *walk, u32 cpu, u32 number, u64 at)
{
	if (walk->luajit.vm_bytes)
		note_state(cpu, number, at - walk->luajit.vm < walk->luajit.vm_bytes);
	return 1;
}
