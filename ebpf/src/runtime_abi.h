/* SPDX-License-Identifier: GPL-2.0-only
 *
 * The bytes that the sampler and the daemon share about frames of functions that runtimes run
 * (CPython, Ruby, PHP, V8): twins of the structures and constants of the same names in
 * ebpf/abi/src/python.rs and ebpf/abi/src/runtimes.rs, which document each field.
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
/* Where a process has frames of functions that its runtimes run. */
struct runtime_layout {
	struct python_layout python; /* block_bytes 0: none */
	struct frame_layout frames;
};
/* Words of a frame that the sampler has walked. */
struct runtime_frame {
	u32 number; /* of the frame; 0: the innermost */
	u32 reserved;
	u64 words[RUNTIME_WORDS];
};

ASSERT_SIZE(python_frame, 24);
ASSERT_SIZE(python_layout, 32);
ASSERT_OFFSET(python_layout, flags_at, 28);
ASSERT_SIZE(frame_layout, 16);
ASSERT_OFFSET(frame_layout, words, 12);
ASSERT_SIZE(runtime_layout, 48);
ASSERT_OFFSET(runtime_layout, frames, 32);
ASSERT_SIZE(runtime_frame, 40);
ASSERT_OFFSET(runtime_frame, words, 8);
