/* SPDX-License-Identifier: GPL-2.0-only
 *
 * The bytes that the sampler and the daemon share about frames of functions that runtimes run
 * (CPython, Ruby, PHP, Lua, LuaJIT, Perl, V8, BEAM), and about attributes of threads: twins of the
 * structures and constants of the same names in ebpf/abi/src/{python,runtimes,attributes}.rs, which
 * document each field.
 */
#pragma once

#include "kernel.h"

enum {
	PYTHON_FRAMES_MAX = 128,
	PYTHON_BLOCK_MAX = 96,
	PYTHON_DIRECT = 65535,
	PYTHON_FLAGS_THERE = 32768,
	RUNTIME_PROCESSES_MAX = 1024,
	RUNTIME_FRAMES_MAX = 128,
	RUNTIME_BLOCK_BYTES = 64,
	RUNTIME_WORDS = 4,
	LIST_ENTRY_BYTES = 128,
	LIST_ENTRY = 1u << 31,
	ERLANG_AREAS_MAX = 4,
	ERLANG_BLOCK_WORDS = 2 * RUNTIME_BLOCK_BYTES / 8,
	ERLANG_BLOCKS_MAX = 2048,
	CONTEXTS_MAX = 160,
	CONTEXT_BEGINS = 1 << 8,
	CONTEXT_FIRST = 1 << 9,
	CONTEXT_NAMED = 1 << 10,
	CONTEXT_START_SHIFT = 16,
	ATTRIBUTES_MAX = 8,
	ATTRIBUTE_KEY_BYTES = 32,
	ATTRIBUTE_VALUE_BYTES = 64,
	ATTRIBUTES_HEAD_BYTES = 28,
	ATTRIBUTES_RECORD_BYTES = 640,
};

/* A frame in a list of an interpreter's. */
struct python_frame {
	u64 code;
	u64 instruction;
	u64 flags;
};
/* Where an interpreter has what the sampler follows. */
struct python_layout {
	u64 root;
	int state_at;
	unsigned short id_at;
	unsigned short frame_at;
	unsigned short current_at;
	unsigned short block_at;
	unsigned short block_bytes;
	unsigned short code_at;
	unsigned short previous_at;
	unsigned short instruction_at;
	unsigned short flags_at;
	unsigned short step;
	unsigned short table_at;
	unsigned short reserved[3];
};
/* Which words of a frame that is kept by a frame pointer tell its function. A frame has two blocks,
 * of RUNTIME_BLOCK_BYTES at most: words 0 to 7 are from the stack, 8 to 15 from an object that one
 * of the former points to. */
struct frame_layout {
	short block_at; /* from the frame pointer */
	unsigned short block_bytes; /* 0: no frames */
	short object_at; /* from the address in word `object` */
	unsigned short object_bytes; /* 0: there is no object */
	unsigned char object;
	unsigned char tag; /* the word whose bits in tag_mask are tag_bits in frames of interest */
	unsigned char tag_mask;
	unsigned char tag_bits;
	unsigned char words[RUNTIME_WORDS]; /* that are copied */
};
/* Where a list of frames is that the native frame of an interpreter's loop leads to: a state is
 * among the registers that the loop saves, and has a list of entries. */
struct list_layout {
	u64 loop; /* the address of its code */
	u32 loop_bytes; /* 0: there are no such frames */
	unsigned char tag; /* the byte in a state that tells it from other objects */
	unsigned char tag_at;
	unsigned char saved_at; /* in a state: a word that is copied */
	unsigned char code_at; /* in a function */
	unsigned short entry_at; /* in a state: the innermost entry */
	unsigned short first_at; /* in a state: where entries in a row begin */
	unsigned short entry_bytes;
	unsigned short function_at; /* this and the following are in an entry */
	unsigned short previous_at;
	unsigned short instruction_at;
	unsigned short flags_at;
	unsigned short step; /* 0: entries have links */
};
/* Where an interpreter has its calls among other contexts, in rows. */
struct context_layout {
	u64 base; /* 0: the interpreter is where python_layout says */
	u32 info_at; /* this and the following are in the interpreter */
	u32 place_at;
	unsigned short row_at; /* this and the following are in a stack's description */
	unsigned short last_at;
	unsigned short previous_at;
	unsigned short entry_bytes; /* 0: there are none */
	unsigned short caller_at; /* this and the following are in a context */
	unsigned short return_at;
	unsigned short sub_at;
	unsigned short eval_at;
};
/* Generated code of Erlang's, and where a thread has the stack of Erlang's that it runs. */
struct erlang_area {
	u64 start;
	u64 len; /* 0: not used */
};
struct erlang_layout {
	struct erlang_area areas[ERLANG_AREAS_MAX];
	u64 loop; /* the scheduler's, on the thread's own stack */
	u32 loop_bytes;
	int scheduler_at; /* in the thread */
	u64 exit; /* where the first function of a process of Erlang's returns to */
	unsigned short process_at; /* in the scheduler */
	unsigned short stack_at; /* in the process of Erlang's */
	u32 reserved;
};
/* The kinds of an attribute_layout: none; Go's, in a map or in a list; OpenTelemetry's record. */
enum { ATTRIBUTES_NONE, ATTRIBUTES_IN_MAP, ATTRIBUTES_IN_LIST, ATTRIBUTES_IN_RECORD };
/* Where threads have the attributes that the program sets for them. */
struct attribute_layout {
	u32 kind;
	int thread_at; /* in the thread, or in the module's memory of it: the g; the record */
	u32 module; /* 0: in the thread */
	unsigned short m_at; /* in a g */
	unsigned short current_at; /* in an m */
	unsigned short labels_at; /* in a g */
	unsigned short module_bytes; /* of an entry in the thread's table of modules */
	u32 reserved;
};
/* An attribute of Go's: lengths, and the begins of its texts. */
struct attribute {
	u32 key_bytes;
	u32 value_bytes;
	unsigned char key[ATTRIBUTE_KEY_BYTES];
	unsigned char value[ATTRIBUTE_VALUE_BYTES];
};
/* Where LuaJIT has its interpreter, and what tells where a trace began. */
struct luajit_layout {
	u64 vm; /* the address of the interpreter's code */
	u32 vm_bytes; /* 0: there is no LuaJIT */
	u32 jit_base_at; /* in the global state */
};
/* Where a process has frames of functions that its runtimes run. */
struct runtime_layout {
	struct python_layout python; /* block_bytes 0: none */
	struct frame_layout frames;
	struct list_layout list;
	struct context_layout contexts;
	struct erlang_layout erlang;
	struct attribute_layout attributes;
	struct luajit_layout luajit;
};
/* Words of a frame that the sampler has walked, of a state that it may be of, or of an entry in the
 * list of the last state. */
struct runtime_frame {
	u32 number; /* of the frame; 0: the innermost. LIST_ENTRY: of an entry */
	u32 reserved;
	u64 words[RUNTIME_WORDS];
};

ASSERT_SIZE(python_frame, 24);
ASSERT_SIZE(python_layout, 40);
ASSERT_OFFSET(python_layout, flags_at, 28);
ASSERT_OFFSET(python_layout, table_at, 32);
ASSERT_SIZE(frame_layout, 16);
ASSERT_OFFSET(frame_layout, words, 12);
ASSERT_SIZE(list_layout, 32);
ASSERT_OFFSET(list_layout, step, 30);
ASSERT_SIZE(context_layout, 32);
ASSERT_OFFSET(context_layout, eval_at, 30);
ASSERT_SIZE(erlang_layout, 96);
ASSERT_OFFSET(erlang_layout, exit, 80);
ASSERT_OFFSET(erlang_layout, stack_at, 90);
ASSERT_SIZE(attribute_layout, 24);
ASSERT_OFFSET(attribute_layout, module_bytes, 18);
ASSERT_SIZE(attribute, 104);
ASSERT_SIZE(luajit_layout, 16);
ASSERT_OFFSET(luajit_layout, jit_base_at, 12);
ASSERT_SIZE(runtime_layout, 256);
ASSERT_OFFSET(runtime_layout, frames, 40);
ASSERT_OFFSET(runtime_layout, list, 56);
ASSERT_OFFSET(runtime_layout, contexts, 88);
ASSERT_OFFSET(runtime_layout, erlang, 120);
ASSERT_OFFSET(runtime_layout, attributes, 216);
ASSERT_OFFSET(runtime_layout, luajit, 240);
ASSERT_SIZE(runtime_frame, 40);
ASSERT_OFFSET(runtime_frame, words, 8);
