/* SPDX-License-Identifier: GPL-2.0-only
 *
 * Call stacks: the registers of user code and a copy of part of its stack, which the daemon walks
 * by the files' unwind tables, and the return addresses in the kernel.
 *
 * Copying costs less than walking here: 16 KiB take some 2.6 us, while each word that a walk reads
 * takes 0.23 us (bpf_probe_read_user), and a stack has some 20 frames of two words.
 */
#pragma once

#include "abi.h"
#include "maps.h"
#include "place.h"
#include "python.h"
#include "settings.h"

#if defined(ARCH_x86_64)
enum { RED_ZONE = 128 }; /* bytes below the stack pointer that code uses (AMD64 ABI, 3.2.2) */
/* Whether SP_REGISTER is the user code's stack pointer: also 32-bit code's. */
INLINE int has_stack(const u64 *registers)
{
	return registers != 0;
}
#else
enum { RED_ZONE = 0 };
/* 32-bit code has its stack pointer in another register (PSR_MODE32_BIT of pstate). */
INLINE int has_stack(const u64 *registers)
{
	return !(registers[REGISTERS - 1] & 1 << 4);
}
#endif

/* Samples until the daemon's stack_every is read again, while it is 0. */
enum { STACK_RECHECK_SAMPLES = 64, PAGE = 4096 };

/* The number of a thread's name in STACK_WINDOWS. */
INLINE u32 name_number(const unsigned char *name)
{
	u64 low = *(const u64 *)name, high = *(const u64 *)(name + 8);

	return (low * 0x9e3779b97f4a7c15ull ^ high * 0xc2b2ae3d27d4eb4full) >> 52;
}

/* Copies `size` bytes from `begin` on, or the whole pages of them that are in memory: nobody has
 * written to the others, as to the unused part of a large array, and they are zeros in the copy.
 * Returns the bytes up to the end of the last page that is there. */
INLINE u32 copy_stack(unsigned char *to, u64 begin, u64 size)
{
	u64 done, piece, end;
	s64 failed;
	int page;

	AT_MOST(size, STACK_WINDOW_MAX);
	if (bpf_probe_read_user(to, size, (void *)begin) == 0)
		return size;
	/* The stack ends within, or a page of it is not there, as that of the red zone. */
	piece = PAGE - (begin & (PAGE - 1));
	if (piece > size)
		return 0;
	done = piece;
	end = bpf_probe_read_user(to, piece, (void *)begin) == 0 ? piece : 0;
	for (page = 1; page < STACK_WINDOW_MAX / PAGE; page++) {
		if (done + PAGE > size)
			break;
		AT_MOST(done, STACK_WINDOW_MAX - PAGE);
		failed = bpf_probe_read_user(to + done, PAGE, (void *)(begin + done));
		done += PAGE;
		/* Without a branch: before Linux 6.5 the verifier goes through all 32,768 ways in
		 * which pages may be there or not, since it takes all numbers of a program with
		 * functions for decisive. 0, or all bits set: */
		failed >>= 63;
		__asm__ volatile("" : "+r"(failed));
		end = (end & failed) | (done & ~failed);
	}
	/* The first frames are in the last part of a page. */
	if (done < size && size - done < PAGE) {
		AT_MOST(done, STACK_WINDOW_MAX - PAGE);
		piece = size - done;
		AT_MOST(piece, PAGE);
		if (bpf_probe_read_user(to + done, piece, (void *)(begin + done)) == 0)
			end = done + piece;
	}
	return end;
}

/* The thread's names, and how many bytes of its stack to copy at most. */
OUT_OF_LINE u32 copy_names(struct stack_record *record)
{
	struct task_struct *task = bpf_get_current_task();
	u64 *class;
	u32 number;

	bpf_get_current_comm(record->name, COMM_BYTES);
	if (TASK_ACCESS == TASK_HIDDEN)
		bpf_get_current_comm(record->command, COMM_BYTES);
	else
		bpf_probe_read_kernel(record->command, COMM_BYTES,
				      ((struct task_struct *)copied(&task->group_leader))->comm);
	number = name_number(record->name);
	class = bpf_map_lookup_elem(&STACK_WINDOWS, &number);
	return class && *class < 7 ? 1024u << *class : 8192;
}

/* The user part of a record whose registers are there: returns the bytes of stack. */
OUT_OF_LINE u32 copy_user(struct stack_record *record, unsigned char *to, u32 size)
{
	struct task_struct *task = bpf_get_current_task();
	u64 begin = record->registers[SP_REGISTER] - RED_ZONE;
	u64 first, length = size;

	record->begin = begin;
	if (TASK_ACCESS != TASK_HIDDEN) {
		/* Behind the first frame of a process's first thread are arguments and environment,
		 * which no walk needs. */
		first = copied(&((struct mm_struct *)copied(&task->mm))->start_stack);
		if (first - begin < length)
			length = (first - begin + 15) & ~7ull;
	}
	return copy_stack(to, begin, length);
}

/* Copies the user code's registers for a sample of kernel code; whether there are any. */
INLINE u32 copy_entry_registers(struct stack_record *record)
{
	void *registers;

	if (TASK_ACCESS != TASK_HIDDEN && !has_user_code())
		return USER_NONE;
	if (STACKS != STACKS_OF_BOTH)
		return USER_HIDDEN;
	registers = bpf_task_pt_regs(bpf_get_current_task_btf());
	if (bpf_probe_read_kernel(record->registers, sizeof(struct context), registers) != 0)
		return USER_HIDDEN;
	return USER_REGISTERS;
}

/* Most bytes of a record without the user stack. */
enum {
	PYTHON_BYTES_MAX = PYTHON_FRAMES_MAX * sizeof(struct python_frame),
	RECORD_BYTES_MAX = sizeof(struct stack_record) + PYTHON_BYTES_MAX + STACK_KERNEL_BYTES,
};

/* The part of a ring that is kept for ends of waits: a wait without end counts for nothing. */
enum { ENDS_BYTES = 16 * sizeof(struct stack_record) };

/* What follows a record's frames of CPython. */
INLINE unsigned char *after_python(struct stack_record *record)
{
	u64 bytes = record->python_frames * (u64)sizeof(struct python_frame);

	AT_MOST(bytes, PYTHON_BYTES_MAX);
	return (unsigned char *)(record + 1) + bytes;
}

/* The place of the next record in a CPU's ring; null, and counted, when there is none or another
 * record is just being written there. Sets the bytes of user stack that the thread's name asks for,
 * at most size_max. Large records fill the ring to fill_max only: others need the rest. */
INLINE struct stack_record *begin_record(struct stack_ring *ring, struct stack_data *data,
					 u32 *size, u32 size_max, u32 fill_max)
{
	u32 written = ring->written;
	u32 used = written - *(volatile u32 *)&ring->taken;
	u32 room = used < STACK_RING_BYTES - ENDS_BYTES ? STACK_RING_BYTES - ENDS_BYTES - used : 0;
	struct stack_record *record = (void *)(data->bytes + (written & (STACK_RING_BYTES - 8)));

	if (!ring->is_busy && room >= RECORD_BYTES_MAX) {
		*size = copy_names(record);
		if (*size > size_max)
			*size = size_max;
		if (*size > STACK_WINDOW_MAX / 4)
			room = fill_max > used ? fill_max - used : 0;
		if (room >= RECORD_BYTES_MAX + *size) {
			record->time_ns = bpf_ktime_get_ns();
			record->space = current_space();
			record->tid = own_thread();
			record->root_tid = bpf_get_current_pid_tgid();
			return record;
		}
	}
	ring->dropped++;
	return 0;
}

/* Copies the user stack behind a record that has its registers and its kernel part, and ends the
 * record. */
OUT_OF_LINE void end_record(struct stack_ring *ring, struct stack_record *record, u32 size)
{
	unsigned char *after = after_python(record);
	u32 total = sizeof(*record) + record->python_frames * sizeof(struct python_frame);

	if (record->user == USER_REGISTERS && has_stack(record->registers)) {
		if (record->kernel_bytes) {
			total += STACK_KERNEL_BYTES;
			size = copy_user(record, after + STACK_KERNEL_BYTES, size);
		} else {
			size = copy_user(record, after, size);
		}
	} else {
		/* Of arm's 32-bit code the innermost frame is known. */
		total += record->kernel_bytes ? STACK_KERNEL_BYTES : 0;
		size = 0;
	}
	record->stack_bytes = size;
	total = (total + size + 7) & ~7u;
	record->bytes = total;
	/* Atomic, which orders it after the writes above: the daemon reads up to `written`. */
	__sync_fetch_and_add(&ring->written, total);
}

/* Takes the stack of the current thread at a sample that stands for `weight` samples. */
OUT_OF_LINE void take_stack(struct context *context, u32 cpu, u32 weight)
{
	struct stack_ring *ring = bpf_map_lookup_elem(&STACK_RINGS, &cpu);
	struct stack_data *data = bpf_map_lookup_elem(&STACK_DATA, &cpu);
	struct stack_record *record;
	s64 kernel_bytes = 0;
	u32 size = 0, thin;

	/* Number 0 is a CPU without work. */
	if (!ring || !data || bpf_get_current_pid_tgid() == 0)
		return;
	record = begin_record(ring, data, &size, STACK_WINDOW_MAX, STACK_RING_BYTES * 5 / 8);
	if (!record)
		return;
	/* Of threads with large windows fewer stacks are taken, each for as many more samples. */
	thin = size / (STACK_WINDOW_MAX / 4);
	if (thin > 1) {
		if (bpf_get_prandom_u32() % thin)
			return;
		weight *= thin;
	}
	record->kind = STACK_SAMPLE;
	record->weight = weight;
	record->python_frames = 0;
	copy_python(record);
	if ((s64)context->registers[PC_REGISTER] < 0) {
		kernel_bytes = bpf_get_stack(context, after_python(record),
					     STACK_KERNEL_FRAMES * 8, 0);
		if (kernel_bytes < 0)
			kernel_bytes = 0;
		record->user = copy_entry_registers(record);
	} else {
#pragma unroll
		for (u32 number = 0; number < REGISTERS; number++)
			record->registers[number] = context->registers[number];
		record->user = USER_REGISTERS;
	}
	record->kernel_bytes = kernel_bytes;
	end_record(ring, record, size);
}
