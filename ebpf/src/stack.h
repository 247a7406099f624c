/* SPDX-License-Identifier: GPL-2.0-only
 *
 * Call stacks: the addresses of user code, walked by rules (walk.h), and the return addresses in
 * the kernel. A stack with a frame that has no rule leaves the registers of user code and a copy of
 * part of its stack, which the daemon walks by the files' unwind tables. It learns the rules
 * meanwhile.
 */
#pragma once

#include "abi.h"
#include "maps.h"
#include "place.h"
#include "python.h"
#include "settings.h"
#include "walk.h"

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

/* Copies `size` bytes from `begin` on, or the whole pages of them that are in memory: nobody has
 * written to the others, as to the unused part of a large array, and they are zeros in the copy.
 * Returns the bytes up to the end of the last page that is there. */
INLINE u32 copy_stack(unsigned char *to, u64 begin, u64 size)
{
	u64 done, piece, end;
	s64 failed;
	int page;

	AT_MOST(size, STACK_COPY_BYTES);
	if (bpf_probe_read_user(to, size, (void *)begin) == 0)
		return size;
	/* The stack ends within, or a page of it is not there, as that of the red zone. */
	piece = PAGE - (begin & (PAGE - 1));
	if (piece > size)
		return 0;
	done = piece;
	end = bpf_probe_read_user(to, piece, (void *)begin) == 0 ? piece : 0;
	for (page = 1; page < STACK_COPY_BYTES / PAGE; page++) {
		if (done + PAGE > size)
			break;
		AT_MOST(done, STACK_COPY_BYTES - PAGE);
		failed = bpf_probe_read_user(to + done, PAGE, (void *)(begin + done));
		done += PAGE;
		/* Without a branch: before Linux 6.5 the verifier goes through all ways in which
		 * pages may be there or not, since it takes all numbers of a program with functions
		 * for decisive. 0, or all bits set: */
		failed >>= 63;
		__asm__ volatile("" : "+r"(failed));
		end = (end & failed) | (done & ~failed);
	}
	/* The first frames are in the last part of a page. */
	if (done < size && size - done < PAGE) {
		AT_MOST(done, STACK_COPY_BYTES - PAGE);
		piece = size - done;
		AT_MOST(piece, PAGE);
		if (bpf_probe_read_user(to + done, piece, (void *)(begin + done)) == 0)
			end = done + piece;
	}
	return end;
}

/* The thread's names. */
OUT_OF_LINE void copy_names(struct stack_record *record)
{
	struct task_struct *task = bpf_get_current_task();

	bpf_get_current_comm(record->name, COMM_BYTES);
	if (TASK_ACCESS == TASK_HIDDEN)
		bpf_get_current_comm(record->command, COMM_BYTES);
	else
		bpf_probe_read_kernel(record->command, COMM_BYTES,
				      ((struct task_struct *)copied(&task->group_leader))->comm);
}

/* Copies at most `size` bytes of the user stack. Returns the bytes. */
OUT_OF_LINE u32 copy_user(struct stack_record *record, unsigned char *to, u32 size)
{
	struct task_struct *task = bpf_get_current_task();
	u64 begin = record->begin;
	u64 first, length = size;

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
	WALK_BYTES_MAX = WALK_FRAMES_MAX * 8,
	RUNTIME_BYTES_MAX = RUNTIME_FRAMES_MAX * sizeof(struct runtime_frame),
	RECORD_BYTES_MAX = sizeof(struct stack_record) + PYTHON_BYTES_MAX + ATTRIBUTES_ROOM +
			   STACK_KERNEL_BYTES + WALK_BYTES_MAX + RUNTIME_BYTES_MAX,
};
_Static_assert(STACK_RING_BYTES + STACK_COPY_BYTES + RECORD_BYTES_MAX <= STACK_DATA_BYTES,
	       "the longest record fits behind the ring");

/* The part of a ring that is kept for ends of waits: a wait without end counts for nothing. */
enum { ENDS_BYTES = 16 * sizeof(struct stack_record) };

/* What follows a record's attributes. */
INLINE unsigned char *after_attributes(struct stack_record *record)
{
	/* Without a branch, which would double all ways that follow for the verifier. */
	return after_python(record) + (record->attribute_bytes & ATTRIBUTES_ROOM);
}

/* Bytes of a CPU's ring that are in use. */
INLINE u32 used_bytes(const struct stack_ring *ring)
{
	return ring->written - *(volatile u32 *)&ring->taken;
}

/* How much of a stack may be copied: the less, the fuller the ring is. Records without copy need
 * the last quarter: of a stack without copy the frames up to the one without rule are known. */
INLINE u32 copy_size(const struct stack_ring *ring)
{
	u32 used = used_bytes(ring);

	if (used <= STACK_RING_BYTES / 4)
		return STACK_COPY_BYTES;
	if (used <= STACK_RING_BYTES / 2)
		return STACK_COPY_BYTES / 2;
	return used <= STACK_RING_BYTES / 4 * 3 ? STACK_COPY_BYTES / 4 : 0;
}

/* The place of the next record in a CPU's ring; null, and counted, when there is none or another
 * record is just being written there. */
INLINE struct stack_record *begin_record(struct stack_ring *ring, struct stack_data *data)
{
	u32 at = ring->written & (STACK_RING_BYTES - 8);
	struct stack_record *record = (void *)(data->bytes + at);

	if (ring->is_busy ||
	    used_bytes(ring) + RECORD_BYTES_MAX > STACK_RING_BYTES - ENDS_BYTES) {
		ring->dropped++;
		return 0;
	}
	copy_names(record);
	record->time_ns = bpf_ktime_get_ns();
	record->space = current_space();
	record->tid = own_thread();
	record->root_tid = bpf_get_current_pid_tgid();
	record->user_frames = record->user_end = 0;
	record->runtime_frames = record->has_frame_layout = 0;
	record->attribute_kind = record->attribute_bytes = record->attributes_left_out = 0;
	return record;
}

/* Whether the registers are those of code that can be walked here. */
INLINE int is_walkable(const struct stack_record *record)
{
#if defined(ARCH_x86_64)
	return IS_64_BIT(record);
#else
	return has_stack(record->registers);
#endif
}

/* Writes the walk of the user stack to `to`, behind the rest of the record: addresses, and words of
 * frames. Returns its bytes.
 * Where it ends at a frame without rule that is beyond the half of a copy of `size` bytes, or on
 * the stack of a goroutine, the copy is to begin at that frame. Only the stack pointer and the
 * frame pointer are known there. */
OUT_OF_LINE u32 put_walk(struct stack_record *record, unsigned char *to, u32 cpu, u32 size)
{
	u64 top = record->registers[SP_REGISTER];
	struct walk *walk;
	u64 bytes, noted;

	if (!is_walkable(record))
		return 0;
	walk = walk_user(record, cpu);
	if (!walk)
		return 0;
	bytes = walk->frames * 8ull;
	AT_MOST(bytes, WALK_BYTES_MAX);
	if (bpf_probe_read_kernel(to, bytes, walk->addresses) != 0)
		return 0;
	noted = walk->noted * (u64)sizeof(struct runtime_frame);
	AT_MOST(noted, RUNTIME_BYTES_MAX);
	if (noted && bpf_probe_read_kernel(to + bytes, noted, walk->runtime_frames) != 0)
		return 0;
	record->runtime_frames = walk->noted;
	record->user_frames = walk->frames;
	record->user_end = walk->end;
	record->code = walk->code;
	if (walk->end != WALK_WITHOUT_RULE) {
		record->user = USER_WALKED;
	} else if (!walk->is_exact && walk->sp &&
		   (walk->has_switched || walk->sp - top >= size / 2)) {
		record->user = USER_RESUMED;
		record->registers[PC_REGISTER] = walk->pc;
		record->registers[SP_REGISTER] = walk->sp;
		record->registers[FP_REGISTER] = walk->fp;
	}
	return bytes + noted;
}

/* Whether the current process is the daemon, or one of its inspectors: the daemon has nobody walk
 * their stacks. */
INLINE int is_daemons(void)
{
	struct task_struct *task = bpf_get_current_task(), *parent;

	if (TASK_ACCESS == TASK_HIDDEN || DAEMON == 0)
		return 0;
	parent = (void *)copied(&task->real_parent);
	return root_process() == DAEMON || copied_u32(&parent->tgid) == DAEMON ||
	       copied_u32(&((struct task_struct *)copied(&parent->real_parent))->tgid) == DAEMON;
}

/* Adds frames of user code, and a copy of the user stack where these are not all, to a record that
 * has its registers and its kernel part, and ends the record. */
OUT_OF_LINE void end_record(struct stack_ring *ring, struct stack_record *record, u32 cpu)
{
	unsigned char *after = after_attributes(record);
	u32 total = sizeof(*record) + record->python_frames * sizeof(struct python_frame) +
		    record->attribute_bytes;
	u32 size = is_daemons() ? 0 : copy_size(ring);
	u64 walked = 0;

	record->stack_bytes = 0;
	if (record->kernel_bytes) {
		total += STACK_KERNEL_BYTES;
		after += STACK_KERNEL_BYTES;
	}
	/* Of arm's 32-bit code the innermost frame is known. */
	if (record->user == USER_REGISTERS && has_stack(record->registers)) {
		walked = put_walk(record, after, cpu, size);
		AT_MOST(walked, WALK_BYTES_MAX + RUNTIME_BYTES_MAX);
		record->begin = record->registers[SP_REGISTER] - RED_ZONE;
		if (size && (record->user != USER_WALKED || COMPARES_WALKS))
			record->stack_bytes = copy_user(record, after + walked, size);
	}
	total = (total + walked + record->stack_bytes + 7) & ~7u;
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

	/* Number 0 is a CPU without work. */
	if (!ring || !data || bpf_get_current_pid_tgid() == 0)
		return;
	record = begin_record(ring, data);
	if (!record)
		return;
	record->kind = STACK_SAMPLE;
	record->weight = weight;
	record->python_frames = 0;
	copy_runtimes(record);
	if ((s64)context->registers[PC_REGISTER] < 0) {
		kernel_bytes = bpf_get_stack(context, after_attributes(record),
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
	end_record(ring, record, cpu);
}
