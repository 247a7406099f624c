/* SPDX-License-Identifier: GPL-2.0-only
 *
 * Snapshots of the registers and the memory of user code, from which the daemon interprets what the
 * thread executes next.
 */
#pragma once

#include "abi.h"
#include "ahead.h"
#include "maps.h"
#include "place.h"
#include "settings.h"

/* Samples of user code until the daemon's snapshot_every is read again, while it is 0. A larger
 * number delays the first snapshot after the daemon asks for some; a smaller one reads the word
 * more often for nothing. */
enum { RECHECK_SAMPLES = 64 };

/* In the order of their encoding. */
INLINE void copy_registers(struct context *context, u64 *to)
{
#if defined(ARCH_x86_64)
	to[0] = context->registers[10]; /* ax */
	to[1] = context->registers[11]; /* cx */
	to[2] = context->registers[12]; /* dx */
	to[3] = context->registers[5];	/* bx */
	to[4] = context->registers[19]; /* sp */
	to[5] = context->registers[4];	/* bp */
	to[6] = context->registers[13]; /* si */
	to[7] = context->registers[14]; /* di */
	to[8] = context->registers[9];	/* r8 */
	to[9] = context->registers[8];
	to[10] = context->registers[7];
	to[11] = context->registers[6];
	to[12] = context->registers[3]; /* r12 */
	to[13] = context->registers[2];
	to[14] = context->registers[1];
	to[15] = context->registers[0];
	to[16] = context->registers[PC_REGISTER];
	to[17] = context->registers[18]; /* flags */
#else
	u32 number;

#pragma unroll
	for (number = 0; number < SNAPSHOT_REGISTERS; number++)
		to[number] = context->registers[number];
#endif
}

/* Copies registers and as much of the top of the stack as is in memory to the CPU's ring. The
 * daemon frees a place of the ring by incrementing `taken`. */
OUT_OF_LINE void take_snapshot(struct context *context, u32 cpu, struct place place)
{
	struct snapshot_ring *ring = bpf_map_lookup_elem(&SNAPSHOT_RINGS, &cpu);
	struct task_struct *task = bpf_get_current_task();
	struct snapshot *snapshot;
	u64 from, rest, numbers;
	u32 index, written;

	if (!ring)
		return;
	written = ring->written;
	index = cpu * SNAPSHOTS_PER_CPU + written % SNAPSHOTS_PER_CPU;
	snapshot = bpf_map_lookup_elem(&SNAPSHOT_DATA, &index);
	if (!snapshot)
		return;
	if (written - *(volatile u32 *)&ring->taken >= SNAPSHOTS_PER_CPU) {
		ring->dropped++;
		return;
	}
	snapshot->time_ns = bpf_ktime_get_ns();
	numbers = bpf_get_current_pid_tgid();
	snapshot->thread = numbers;
	snapshot->process = numbers >> 32;
	snapshot->switches = copied(&task->nvcsw) + copied(&task->nivcsw);
	snapshot->key = place.key;
	snapshot->space = place.space;
	snapshot->lines = 0;
	copy_registers(context, snapshot->registers);
	from = context->registers[SP_REGISTER];
	snapshot->stack_len = STACK_BYTES;
	if (bpf_probe_read_user(snapshot->stack, STACK_BYTES, (void *)from) != 0) {
		/* The next page may be absent: the second attempt ends with this page. */
		rest = (4096 - (from & 4095)) & 4095;
		if (rest > STACK_BYTES)
			rest = 0;
		if (bpf_probe_read_user(snapshot->stack, rest, (void *)from) != 0)
			rest = 0;
		snapshot->stack_len = rest;
	}
	read_ahead(cpu, index);
	/* After the writes above, as the compiler has it: the daemon reads up to `written`. On
	 * arm64 see daemon/kernel/src/snapshots.rs. */
	__sync_fetch_and_add(&ring->written, 1);
}
