/* SPDX-License-Identifier: GPL-2.0-only
 *
 * Frames of functions that a runtime runs, where they lie on the stack and are kept by a frame
 * pointer: V8's. To the walk (walk.h) such a frame is one of an interpreter or of generated code;
 * its words tell the function. They are copied in passing, since the stack is another one a
 * microsecond later, and so is the object that one of them points to, which the runtime may move.
 * Names come from the process's memory, later. Which words it is, the daemon says by process.
 */
#pragma once

#include "abi.h"
#include "kernel.h"
#include "maps.h"

#if defined(ARCH_x86_64)
/* rdx and rbx, in which LuaJIT's interpreter has its base and its next instruction. */
enum { LUA_BASE_REGISTER = 12, LUA_NEXT_REGISTER = 5 };
#else
enum { LUA_BASE_REGISTER = 19, LUA_NEXT_REGISTER = 21 };
#endif

/* Words of a frame's two blocks. */
enum { BLOCK_WORDS = RUNTIME_BLOCK_BYTES / 8, ALL_BLOCK_WORDS = 2 * BLOCK_WORDS };

/* Copies a block of the process's memory. Whether it could be read. */
INLINE int copy_block(u64 *to, u64 at, u64 bytes)
{
	AT_MOST(bytes, RUNTIME_BLOCK_BYTES);
	return bpf_probe_read_user(to, bytes, (void *)at) == 0;
}

/* Notes the words of the frame that a CPU's walk has come to, which has this number. A function of
 * its own to the verifier, as walk_step. */
__attribute__((noinline)) int note_frame(u32 cpu, u32 number)
{
	struct walk *walk = bpf_map_lookup_elem(&WALKS, &cpu);
	struct frame_layout *layout;
	struct runtime_frame *to;
	u64 *blocks, at, object;
	u32 word;

	if (!walk || walk->noted >= RUNTIME_FRAMES_MAX)
		return 0;
	layout = &walk->layout;
	blocks = walk->blocks;
	at = walk->fp + layout->block_at;
	/* What a frame that is just being built has not written yet is an earlier one's. */
	if (at + layout->object * 8 < walk->sp || !copy_block(blocks, at, layout->block_bytes))
		return 0;
	if ((blocks[layout->tag & (BLOCK_WORDS - 1)] & layout->tag_mask) != layout->tag_bits)
		return 0;
	object = blocks[layout->object & (BLOCK_WORDS - 1)] + layout->object_at;
	if (layout->object_bytes && !copy_block(blocks + BLOCK_WORDS, object, layout->object_bytes))
		return 0;
	to = &walk->runtime_frames[walk->noted & (RUNTIME_FRAMES_MAX - 1)];
	to->number = number;
#pragma unroll
	for (word = 0; word < RUNTIME_WORDS; word++)
		to->words[word] = blocks[layout->words[word] & (ALL_BLOCK_WORDS - 1)];
	walk->noted++;
	return 1;
}

/* Prepares a walk of a process's stack for noting frames, if it has any of interest. */
INLINE void begin_notes(struct walk *walk, const struct stack_record *record)
{
	const struct runtime_layout *layouts;

	walk->noted = 0;
	walk->layout.block_bytes = 0;
	walk->list.loop_bytes = 0;
	walk->erlang.areas[0].len = 0;
	walk->luajit.vm_bytes = 0;
	if (!record->has_frame_layout)
		return;
	layouts = bpf_map_lookup_elem(&RUNTIMES, &record->space);
	if (!layouts)
		return;
	walk->layout = layouts->frames;
	walk->list = layouts->list;
	walk->erlang = layouts->erlang;
	walk->luajit = layouts->luajit;
	walk->lua_base = record->registers[LUA_BASE_REGISTER];
	walk->lua_next = record->registers[LUA_NEXT_REGISTER];
	walk->erlang_blocks = ERLANG_BLOCKS_MAX;
	walk->is_erlang = 0;
	walk->listed[0] = walk->listed[1] = 0;
}
