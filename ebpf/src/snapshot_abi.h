/* SPDX-License-Identifier: GPL-2.0-only
 *
 * Snapshots, and the programs that read ahead: the twins of ebpf/abi/src/snapshots.rs.
 */
#pragma once

#include "abi.h"

/* General registers, the program counter, and the flags. */
#if defined(ARCH_aarch64)
enum { SNAPSHOT_REGISTERS = 34 };
#else
enum { SNAPSHOT_REGISTERS = 18 };
#endif
enum {
	SNAPSHOTS_PER_CPU = 64,
	STACK_BYTES = 256,
	LINES_MAX = 16,
	LINE_BYTES = 64,
};
/* The registers of user code at a sample, the top of its stack, and lines of other memory. */
struct snapshot {
	u64 key;
	u32 space;
	unsigned short stack_len;
	unsigned short lines;
	u64 time_ns;
	u32 thread;
	u32 process;
	u32 switches;
	u32 reserved;
	u64 registers[SNAPSHOT_REGISTERS];
	unsigned char stack[STACK_BYTES];
	u64 line_addresses[LINES_MAX];
	unsigned char line_bytes[LINES_MAX][LINE_BYTES];
};

/* Positions in a CPU's ring of snapshots: the sampler writes the first cache line, the daemon the
 * second. All three numbers only grow, and wrap at 2^32. */
struct snapshot_ring {
	u32 written;
	u32 dropped;
	u32 reserved[14];
	u32 taken;
	u32 reserved_too[15];
} __attribute__((aligned(64)));

enum {
	AHEAD_MAX = 2048,
	AHEAD_OPERATIONS_MAX = 46,
	AHEAD_VALUES = 128,
	AHEAD_COUNTER = 32, /* numbers of the values after the general registers */
	AHEAD_ZERO = 33,
	AHEAD_RESULTS = 34, /* the first one's */
};
enum {
	AHEAD_LINE = 1,
	AHEAD_LOAD = 2,
	AHEAD_SUM = 3,
	AHEAD_SUBTRACT = 4,
	AHEAD_MULTIPLY = 5,
	AHEAD_AND = 6,
	AHEAD_OR = 7,
	AHEAD_XOR = 8,
	AHEAD_RIGHT = 9,
	AHEAD_RIGHT_SIGNED = 10,
	AHEAD_EXTENDED = 11,
	AHEAD_EXTENDED_SIGNED = 12,
};
struct ahead_operation {
	unsigned char kind;
	unsigned char a;
	unsigned char b;
	unsigned char argument;
	int immediate;
};
struct ahead {
	struct ahead_operation operations[AHEAD_OPERATIONS_MAX];
};
/* As in struct snapshot. */
struct ahead_key {
	u64 key;
	u32 space;
	u32 reserved;
};

/* A program that runs. Values: the general registers of the snapshot, the program counter, 0, and
 * the results of the operations. */
struct ahead_state {
	struct ahead_key key;
	u64 word;
	struct ahead program;
	u64 values[AHEAD_VALUES];
};
_Static_assert(AHEAD_RESULTS + AHEAD_OPERATIONS_MAX <= AHEAD_VALUES, "each has a place");

#define MORE_REGISTERS (8 * (SNAPSHOT_REGISTERS - 18))
ASSERT_SIZE(snapshot, 1592 + MORE_REGISTERS);
ASSERT_OFFSET(snapshot, lines, 14);
ASSERT_OFFSET(snapshot, registers, 40);
ASSERT_OFFSET(snapshot, stack, 184 + MORE_REGISTERS);
ASSERT_OFFSET(snapshot, line_addresses, 440 + MORE_REGISTERS);
ASSERT_OFFSET(snapshot, line_bytes, 568 + MORE_REGISTERS);
ASSERT_SIZE(snapshot_ring, 128);
ASSERT_OFFSET(snapshot_ring, taken, 64);
ASSERT_SIZE(ahead_operation, 8);
ASSERT_OFFSET(ahead_operation, immediate, 4);
ASSERT_SIZE(ahead, 368);
ASSERT_SIZE(ahead_key, 16);
