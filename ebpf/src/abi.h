/* SPDX-License-Identifier: GPL-2.0-only
 *
 * The bytes that the sampler and the daemon share: twins of the structures and constants of the
 * same names in ebpf/abi/src/lib.rs, which documents each field.
 */
#pragma once

#include "kernel.h"
#include "runtime_abi.h"

enum {
	WAYS = 4,
	BUCKETS = 31,
	HALVES = 2,
	PC_BITS = 57,
	EVENTS_MAX = 16,
	PID_BITS = 22,
	GENERATION_BITS = 10,
	SLOT_BITS = 15,
	CLAIMS_MAX = 8192,
};
#define SPACE_KERNEL 0u
#define SPACE_FOREIGN (1u << PID_BITS)
#define IN_PROGRAM (1ull << 63)
#define PROGRAM_NONE 0u
#define PROGRAM_APART (~0u)
#define PID_MASK ((1u << PID_BITS) - 1)
#define GENERATION_MASK ((1u << GENERATION_BITS) - 1)

struct entry {
	u64 key;
	u32 space;
	u32 count;
};

struct bucket {
	struct entry entries[WAYS];
} __attribute__((aligned(64)));

struct half_stats {
	u64 taken;
	u32 misses;
	u32 spilled;
};

/* One page of 4096 bytes. The table is this small because the sampled program has made the
 * processor forget the translation of each further page that a sample would touch. */
struct cpu_block {
	u32 half;
	u32 snapshot_in; /* samples of user code before the one with the next snapshot */
	struct half_stats stats[HALVES];
	u32 snapshot_every; /* samples of user code per snapshot; 0: no snapshots */
	u32 stack_in;	    /* samples before the one with the next stack */
	u32 stack_every;    /* samples per stack; 0: no stacks */
	u32 wait_scale_us;  /* waits of this length are always taken; 0: no stacks of waits */
	u32 kernel_scopes;  /* enum kernel_scopes */
	struct bucket table[HALVES][BUCKETS];
} __attribute__((aligned(4096)));

/* What kernel code is counted under, unless it is counted for each process. */
enum kernel_scopes {
	SCOPES_NONE = 0,     /* once for all processes */
	SCOPES_LABELLED = 1, /* a process's scope, if it has one, or once for all others */
	SCOPES_ALL = 2,	     /* a process's scope, or the process until it has one */
};
/* The scope of a process: the number that the daemon gave to its label and unit. */
struct kernel_scope {
	u32 pid; /* in the root namespace */
	u32 number; /* 0: none */
};

struct losses {
	u64 spill_full[EVENTS_MAX];
};

/* A mapping of a file whose code is counted once for all processes that map it. An element of
 * slot.libraries is filled once: its len may become 0 later, and then stays 0. */
struct library {
	u64 start;
	u32 len;
	u32 number;
};
enum { INTERPRETER, LIBC, LIBRARIES };

/* What the sampler knows of a process. Forks, execs and mappings write it, samples read it. */
struct slot {
	u64 mm; /* address of the memory that the rest is true of; 0: of none */
	u64 text;
	u32 text_len;
	u32 program;
	u32 space;
	u32 born; /* when the process began to run its program, in units of 2^BORN_SHIFT ns */
	struct library libraries[LIBRARIES];
} __attribute__((aligned(64)));

/* What a message to the daemon tells. 0 is no kind, so that a zeroed message is refused. */
enum change_kind {
	CHANGE_EXEC = 1,    /* the process runs another program */
	CHANGE_REMAP = 2,   /* a file is being mapped where another may have been */
	CHANGE_LIBRARY = 3, /* a library is being mapped whose code is counted once */
	CHANGE_FILE = 4,    /* the state of the file that the process maps next */
};
struct change {
	u64 time_ns;
	u32 kind; /* enum change_kind */
	u32 pid;
	u64 text;     /* EXEC, LIBRARY, FILE */
	u32 text_len; /* EXEC, LIBRARY; FILE: the lower half of its size */
	u32 program;  /* EXEC, LIBRARY; FILE: its number in struct file_range */
	/* FILE: lower and upper half of the time of its last change, ns since 1970. */
	u32 generation;	       /* EXEC, REMAP */
	u32 generation_before; /* REMAP; EXEC: the user */
};

/* What identifies the code that is counted under a number. A file that was built anew has another
 * size or time of last change, even in the same inode; another mapping of the same file has another
 * part or length. */
struct identity {
	u64 inode;
	u64 size;
	u64 change_time_ns;
	u64 part; /* PROGRAM_PART, LIBRARY_PART or FILE_PART */
	u64 len;  /* bytes of the code */
	u64 device;
};
/* The part of a file that a program's text begins in is the ELF file's own affair; where in a page
 * the text begins is known. Of a library the part is the mapping's first page. A file as a whole
 * has a part and no length. No two of these are the same. */
#define PROGRAM_PART(text) ((text) & 4095)
#define LIBRARY_PART(page) (((page) + 1) << 12)
#define FILE_PART 0

/* A CPU's ring of stacks. A record begins at its position modulo STACK_RING_BYTES and may reach
 * beyond that, into the slack behind the ring, so no record is in two pieces. */
enum {
	STACK_RING_BYTES = 128 << 10,
	STACK_COPY_BYTES = 16 << 10,
	STACK_REGISTERS = 34,
	STACK_KERNEL_FRAMES = 127,
	STACK_KERNEL_BYTES = 1024,
	COMM_BYTES = 16,
};
/* What a record has of user code: nothing that is known; registers and frames, up to one without a
 * rule; there is no user code below the kernel's (its threads, workers of io_uring and vhost); all
 * frames; or frames, and the registers in the last of them. */
enum {
	USER_HIDDEN = 0,
	USER_REGISTERS = 1,
	USER_NONE = 2,
	USER_WALKED = 3,
	USER_RESUMED = 4,
};

/* Rules of frames (rules.h), in words of 64 bits: the kind in the low 4 bits, the end of a walk in
 * 4, the distance of the canonical frame address (CFA) from its register in 20, signed; how far
 * below the CFA the return address and the caller's frame pointer are, in 10 each, where 0 is: in
 * the register still; and code_check() of the code. Distances are in words of 8 bytes. */
enum {
	RULE_FROM_SP = 1, /* CFA = stack pointer + distance */
	RULE_FROM_FP = 2, /* CFA = frame pointer + distance */
	/* The CFA is at frame pointer + distance, and the caller's frame pointer where the frame
	 * pointer points (realigned stacks). */
	RULE_THROUGH_FP = 3,
	RULE_FRAME_POINTER = 4, /* a frame record is where the frame pointer points */
	RULE_SIGNAL = 5, /* the kernel's frame of a signal is where the stack pointer points */
	RULE_END = 6,	 /* there is no caller, or none that could be found */
	RULE_OTHER = 7,	 /* the rule cannot be said in a word */
	RULE_GOROUTINE = 8, /* the caller is on the stack of a goroutine (goroutine.h) */
};
/* In place of words below the CFA: the caller's frame pointer is not known; the same in a short
 * rule; and the value of such a frame pointer, which no rule can use. */
enum { FRAME_LOST = 1023, SHORT_FRAME_LOST = 63, LOST_FP = 1 };
/* RULE_GOROUTINE has in place of the end how the goroutine is found, and in place of distances, as
 * words: GOROUTINE_OF_THREAD: of g from the thread's pointer; of m.curg; and in 4, 4 and 2 bits of
 * g.m, of g.sched.sp, and of the return address from there. GOROUTINE_IN_C: nothing; of g.stack.hi;
 * and of the goroutine and the depth of its stack from the stack pointer, and as before. */
enum { GOROUTINE_OF_THREAD = 0, GOROUTINE_IN_C = 1 };
/* The end of a walk: 0, or 1 more than the place in End::ALL of binary/unwind. */
enum { WALK_WITHOUT_RULE = 0, WALK_WHOLE = 1, WALK_GENERATED = 4, WALK_TOO_DEEP = 7 };
enum {
	RULES_MAX = 32768,
	WALK_FRAMES_MAX = 1024,
	RULE_CODE_BEFORE = 7, /* bytes before a place that code_check() is of, of 16 */
	RULE_BLOCK_BYTES = 256,
	EXTENT_RULES_MAX = 15,
};
#define RULE_EXACT (1ull << 62)
#define RULE_IN_FILE (1ull << 61)
#define RULE_BLOCK (1ull << 60)

/* The place of a rule: as in struct entry, of event 0, or RULE_IN_FILE, an offset in a file and the
 * file's number. RULE_EXACT: the address is that of the next instruction, otherwise one less than a
 * return address. RULE_BLOCK: the rules are of all code in the RULE_BLOCK_BYTES from there on. */
struct rule_key {
	u64 place;
	u32 space;
	u32 reserved;
};

struct rule_words {
	u64 first;
	u32 next[EXTENT_RULES_MAX - 1]; /* as `short` in ebpf/abi/src/rules.rs; 0: none */
};

/* Where a process has code that is counted under numbers, as in struct slot. */
struct shared_code {
	u64 text;
	u32 text_len;
	u32 program;
	struct library libraries[LIBRARIES];
};

/* Mappings of files of one process, for rules that hold in every process with these files. */
enum { FILE_RANGES_MAX = 8, FILE_SPACES_MAX = 2048 };
struct file_range {
	u64 start;
	u64 offset; /* in the file, of the byte at start */
	u32 len;
	u32 number; /* of the file: a hash of its state, or drawn; 0: no range */
};
struct file_ranges {
	struct file_range all[FILE_RANGES_MAX];
};

/* A rule that a CPU has used. The translations of the pages of RULES are in no cache when a sample
 * comes, so each rule that is looked up there costs a microsecond. */
struct cached_rule {
	struct rule_key key; /* in_program or in_space */
	u64 rule;
	u32 check; /* code_check() of the code around the place */
	u32 reserved;
};
enum { CACHED_RULES = 256 };

/* Words of a bucket of Go's maps, without its link: bytes of hashes, keys, values. */
enum { LABEL_WORDS = 1 + 4 * ATTRIBUTES_MAX };

/* A CPU's walk: the registers in the frame that it has come to, and the frames up to that. */
struct walk {
	u64 pc;
	u64 sp; /* 0: not known */
	u64 fp;
	u64 lr;
	u32 space;
	u32 is_exact; /* pc is that of the next instruction, not a return address */
	u32 frames;
	u32 end;
	struct shared_code code;
	struct file_ranges files;
	struct rule_key key;
	u64 words[2];
	struct cached_rule cache[CACHED_RULES];
	u64 addresses[WALK_FRAMES_MAX];
	struct frame_layout layout;
	struct list_layout list;
	u64 listed[2]; /* the last states whose lists were noted */
	u32 noted;
	u32 is_erlang; /* sp is that of a process of Erlang's */
	struct erlang_layout erlang;
	struct luajit_layout luajit;
	u64 left_fp; /* the frame pointer in the frame that was left last */
	u64 lua_base; /* these are rdx and rbx of the sample: LuaJIT's registers */
	u64 lua_next;
	u32 erlang_blocks; /* of words that may still be looked at */
	u32 has_switched; /* to the stack of a goroutine */
	u64 blocks[2 * RUNTIME_BLOCK_BYTES / 8];
	struct runtime_frame runtime_frames[RUNTIME_FRAMES_MAX];
	u64 labels[LABEL_WORDS]; /* of a goroutine, as Go has them */
};

/* A stack: registers, then the frames of CPython, then attributes, then STACK_KERNEL_BYTES of
 * return addresses in the kernel if kernel_bytes is not 0, then user_frames addresses of user code,
 * then runtime_frames, then the copied bytes of the user stack. */
struct stack_record {
	u32 bytes;
	u32 kind;
	u64 time_ns;
	u32 space;
	u32 tid;
	u32 weight;
	u32 user;
	u32 kernel_bytes;
	u32 stack_bytes;
	unsigned char command[COMM_BYTES];
	unsigned char name[COMM_BYTES];
	u64 begin;
	u32 root_tid;
	u32 python_frames;
	u32 user_frames;
	u32 user_end; /* of the walk */
	u32 runtime_frames;
	u32 has_frame_layout; /* the process has frames that a walk notes */
	u32 attribute_kind; /* as attribute_layout's */
	u32 attribute_bytes; /* a multiple of 8 */
	u32 attributes_left_out;
	u32 reserved;
	struct shared_code code;
	u64 registers[STACK_REGISTERS];
};
/* Bytes of a CPU's element of STACK_DATA: whole pages, with room for the longest record behind the
 * ring. */
enum { STACK_DATA_BYTES = STACK_RING_BYTES + STACK_COPY_BYTES + 20480 };
struct stack_data {
	unsigned char bytes[STACK_DATA_BYTES];
};
/* Positions in bytes; as struct snapshot_ring otherwise. */
struct stack_ring {
	u32 written;
	u32 dropped;
	u32 is_busy; /* a record is being written, and may be interrupted by a sample */
	u32 crowded; /* waits of threads without a wait_line, or whose line another took */
	u32 reserved[12];
	u32 taken;
	u32 reserved_too[15];
} __attribute__((aligned(64)));

/* The kinds of a stack_record. */
enum {
	STACK_SAMPLE,
	STACK_WAIT,
	STACK_WAIT_END,
	STACK_LONG_WAIT,
	STACK_SEEN_BLOCKED,
	STACK_SEEN_RUNNABLE
};

enum { WAIT_LINES = 16384 };
/* What a thread does. */
enum { THREAD_UNKNOWN, THREAD_RUNS, THREAD_BLOCKED, THREAD_RUNNABLE, THREAD_ENDED };
/* A thread's time. */
struct wait_line {
	u64 since_ns;
	u64 woken_ns;
	u64 on_ns;
	u64 blocked_ns;
	u64 runnable_ns;
	u64 born_ns;
	u32 tid;
	unsigned short state;
	unsigned short weight;
	/* Of waits that begin awake, and of those that begin blocked: */
	unsigned short typical[2]; /* in WAIT_UNIT_US */
	unsigned short owed[2];    /* in WAIT_OWED_UNIT_NS */
} __attribute__((aligned(64)));

/* Most samples of one pass over all threads, and most payers with separate parts of them. */
enum { WAIT_SAMPLES_MAX = 256, WAIT_PAYERS_MAX = 1024 };

/* A sample of a waiting thread: its registers and return addresses in the kernel, no bytes of its
 * user stack. */
struct wait_sample {
	struct stack_record record;
	u64 kernel[STACK_KERNEL_FRAMES + 1];
};

/* A pass over all threads. The daemon writes it before the pass, the sampler counts in `chosen`. */
struct wait_pass {
	u32 is_rest; /* not 0: sample only threads whose switches are not traced */
	u32 every;   /* of a payer without a wait_payer, one of so many threads is sampled */
	u32 chosen;  /* threads sampled, including those beyond WAIT_SAMPLES_MAX */
	u32 reserved;
};

/* A payer of samples of waiting threads: a user, a control group of root's, or the kernel. */
struct wait_payer {
	u32 threads; /* waiting threads in the last pass; the daemon resets it */
	u32 every;   /* one of so many is sampled */
};

/* The same sizes and offsets are asserted in ebpf/abi/src/lib.rs. */
ASSERT_SIZE(entry, 16);
ASSERT_OFFSET(entry, space, 8);
ASSERT_OFFSET(entry, count, 12);
ASSERT_SIZE(bucket, 64);
ASSERT_SIZE(half_stats, 16);
ASSERT_OFFSET(half_stats, misses, 8);
ASSERT_OFFSET(half_stats, spilled, 12);
ASSERT_SIZE(cpu_block, 4096);
ASSERT_OFFSET(cpu_block, stats, 8);
ASSERT_OFFSET(cpu_block, snapshot_every, 40);
ASSERT_OFFSET(cpu_block, stack_in, 44);
ASSERT_OFFSET(cpu_block, stack_every, 48);
ASSERT_OFFSET(cpu_block, wait_scale_us, 52);
ASSERT_OFFSET(cpu_block, table, 64);
ASSERT_SIZE(losses, 128);
ASSERT_SIZE(slot, 64);
ASSERT_OFFSET(slot, text_len, 16);
ASSERT_OFFSET(slot, space, 24);
ASSERT_OFFSET(slot, libraries, 32);
ASSERT_OFFSET(library, len, 8);
ASSERT_OFFSET(library, number, 12);
ASSERT_SIZE(change, 40);
ASSERT_OFFSET(change, kind, 8);
ASSERT_OFFSET(change, pid, 12);
ASSERT_OFFSET(change, text, 16);
ASSERT_OFFSET(change, text_len, 24);
ASSERT_OFFSET(change, program, 28);
ASSERT_OFFSET(change, generation, 32);
ASSERT_OFFSET(change, generation_before, 36);
ASSERT_SIZE(identity, 48);
ASSERT_OFFSET(identity, part, 24);
ASSERT_OFFSET(identity, device, 40);
ASSERT_SIZE(stack_record, 440);
ASSERT_OFFSET(stack_record, command, 40);
ASSERT_OFFSET(stack_record, begin, 72);
ASSERT_OFFSET(stack_record, user_frames, 88);
ASSERT_OFFSET(stack_record, attribute_kind, 104);
ASSERT_OFFSET(stack_record, code, 120);
ASSERT_OFFSET(stack_record, registers, 168);
ASSERT_SIZE(rule_key, 16);
ASSERT_SIZE(shared_code, 48);
ASSERT_SIZE(file_range, 24);
ASSERT_SIZE(file_ranges, 192);
ASSERT_SIZE(wait_line, 64);
ASSERT_OFFSET(wait_line, tid, 48);
ASSERT_OFFSET(wait_line, owed, 60);
ASSERT_SIZE(wait_sample, 1464);
ASSERT_SIZE(wait_pass, 16);
ASSERT_SIZE(wait_payer, 8);
ASSERT_SIZE(stack_ring, 128);
ASSERT_OFFSET(stack_ring, taken, 64);
