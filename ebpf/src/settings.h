/* SPDX-License-Identifier: GPL-2.0-only
 *
 * What the daemon chooses when it loads the sampler.
 *
 * Each setting is an instruction that loads a marker, which the daemon replaces with the setting's
 * value before it loads the object (ebpf/src/lib.rs). The verifier then knows the value and removes
 * the branches that it rules out. The verifier does so for read-only globals too, but keeps their
 * loads, and the page of the globals is in no cache: those loads were a third of the cost of a
 * sample of a loop. Only settings that few samples need are globals.
 */
#pragma once

#include "kernel.h"

/* The marker of setting number 0; the twin of SETTING in ebpf/src/lib.rs. */
enum { SETTING = 0x5e771e00 };
#define CHOSEN(number)                                                             \
	({                                                                         \
		u64 value;                                                         \
		__asm__ volatile("%0 = %1" : "=r"(value) : "i"(SETTING | number)); \
		value;                                                             \
	})
/* Entries of a half's spill buffer; the map SPILL has as many for each CPU and half. */
#define SPILL_ENTRIES ((u32)CHOSEN(1))
/* How the sampler reads the current task: not at all (no BTF), by copying (5.10), or through typed
 * pointers (5.11). */
enum { TASK_HIDDEN, TASK_COPIED, TASK_TYPED };
#define TASK_ACCESS CHOSEN(2)
/* Not 0: a program's own text, and that of two libraries, is counted once for all processes. */
#define SHARE_PROGRAMS CHOSEN(3)
/* Not 0: kernel addresses are counted for each process. */
#define KERNEL_BY_PROCESS CHOSEN(4)
/* Not 0: samples of event 0 may take snapshots of registers. */
#define SNAPSHOTS CHOSEN(5)
/* Buckets of a half in the map TABLE; 0: the buckets are those of the CPU's page. */
#define TABLE_BUCKETS ((u32)CHOSEN(6))

/* Not 0: samples of event 0 may take call stacks. 2: of kernel code with the registers of the user
 * code that called it (bpf_task_pt_regs, Linux 5.15, which needs TASK_TYPED). */
enum { STACKS_OF_USER = 1, STACKS_OF_BOTH = 2 };
#define STACKS CHOSEN(11)

/* A random key of 128 bits, another one at each start of the daemon, in words of 32 bits: who
 * chooses a file's inode, size and times still cannot choose its number. */
#define KEY_WORD(number) ((u64)(u32)CHOSEN(number))
#define KEY_LOW (KEY_WORD(7) | KEY_WORD(8) << 32)
#define KEY_HIGH (KEY_WORD(9) | KEY_WORD(10) << 32)

/* The daemon's pid namespace; 0 when it is the root namespace. */
const volatile u64 PIDNS_DEV = 0;
const volatile u64 PIDNS_INO = 0;
/* The daemon's process number in the root pid namespace; 0: not known. */
const volatile u32 DAEMON = 0;
/* Not 0: stacks that were walked are copied too, so that the daemon can compare. */
const volatile u32 COMPARES_WALKS = 0;
/* Messages about changes that processes of one ordinary user may have in 134 ms. */
const volatile u32 CHANGES_OF_USER_MAX = 1;
