/* SPDX-License-Identifier: GPL-2.0-only
 *
 * The time of threads: on a CPU, blocked, and awake without CPU; and the stacks of some waits.
 *
 * Every wait is added to its thread's times. Of waits that are likely to be long the stack is taken
 * when the thread leaves the CPU, with a probability in proportion to the length of its last waits:
 * most waits are short and most time is in long ones, so one probability for all would have an
 * error of 93 % where this one has 4 %. What is taken is weighed with the inverse of its
 * probability, unless it was a long wait: all of those are told, with a stack or without.
 */
#include "abi.h"
#include "kernel.h"
#include "maps.h"
#include "process.h"
#include "settings.h"
#include "stack.h"

/* Largest weight of a wait: a thread whose waits were short may have a long one. */
enum { WAIT_WEIGHT_MAX = 256 };
/* In a weight: there was no room for the stack. */
enum { WAIT_UNTAKEN = 0x8000 };
/* The unit of time owed, and the most of it. */
enum { WAIT_OWED_SHIFT = 18, WAIT_OWED_UNIT_NS = 1 << WAIT_OWED_SHIFT, WAIT_OWED_MAX = 0xffff };
/* The length of waits that are always taken, up to which a thread's first wait is too: where it is
 * longer, too many waits are taken already. */
enum { FIRST_TAKEN_US = 480000 };
/* The length that a thread's first wait is expected to have: that of waits whose stacks are always
 * taken on a quiet machine (SCALE_MIN_US in daemon/sampling/src/waits/mod.rs). */
enum { FIRST_WAIT_US = 30000 };
/* A wait is long from this length on, or from the scale on, whichever is shorter. */
enum { LONG_WAIT_US = 1000000 };
/* The unit of typical lengths, of which the largest stands for all that are longer. */
enum { WAIT_UNIT_US = 16, WAIT_UNITS_MAX = 0xffff };
/* Time after which the line of a waiting thread may be given to another: the thread may have ended
 * while no times were taken. */
#define WAIT_STALE_NS 60000000000ull

/* Begins to count a thread's times. */
INLINE void begin_line(struct wait_line *line, u64 now_ns)
{
	line->on_ns = line->blocked_ns = line->runnable_ns = 0;
	line->since_ns = line->born_ns = now_ns;
	line->woken_ns = 0;
	line->state = THREAD_UNKNOWN;
	line->weight = 0;
	line->typical[0] = line->typical[1] = line->owed[0] = line->owed[1] = 0;
}

/* The two lines that a thread may have. Nobody can choose a thread number that shares both with a
 * victim's: the key is secret. */
INLINE struct wait_line *first_line(u32 tid)
{
	u32 index = tid & (WAIT_LINES - 1);

	return bpf_map_lookup_elem(&WAIT_TIMES, &index);
}

INLINE struct wait_line *second_line(u32 tid)
{
	u32 index = (((u64)tid ^ KEY_LOW) * (KEY_HIGH | 1)) >> 50;

	_Static_assert(WAIT_LINES == 1 << (64 - 50), "the index has as many bits");
	return bpf_map_lookup_elem(&WAIT_TIMES, &index);
}

/* The line that a thread has; NULL if it has none. */
INLINE struct wait_line *known_line(u32 tid)
{
	struct wait_line *line = first_line(tid);

	if (line && line->tid == tid)
		return line;
	line = second_line(tid);
	return line && line->tid == tid ? line : 0;
}

/* Whether another thread may have a line: its own has ended, or has waited for so long that it may
 * have ended unseen. Otherwise anybody could erase the waits of a chosen thread, by beginning
 * threads until one has its line. */
INLINE int is_free(const struct wait_line *line, u64 now_ns)
{
	if (line->tid == 0 || line->state == THREAD_ENDED || line->state == THREAD_UNKNOWN)
		return 1;
	return line->state != THREAD_RUNS && now_ns - line->since_ns > WAIT_STALE_NS;
}

/* A wait of a thread without a line, or one that lost its line: told to the daemon. */
INLINE void note_crowd(void)
{
	u32 cpu = bpf_get_smp_processor_id();
	struct stack_ring *ring = bpf_map_lookup_elem(&STACK_RINGS, &cpu);

	if (ring)
		ring->crowded++;
}

/* A thread's line, which it gets if it has none; NULL where both lines that it may have are other
 * threads'. */
INLINE struct wait_line *line_of(u32 tid, u64 now_ns)
{
	struct wait_line *line = known_line(tid);

	if (line)
		return line;
	line = first_line(tid);
	if (!line || !is_free(line, now_ns))
		line = second_line(tid);
	if (!line || !is_free(line, now_ns))
		return 0;
	if (line->tid != 0 && (line->state == THREAD_BLOCKED || line->state == THREAD_RUNNABLE))
		note_crowd();
	line->tid = 0;
	begin_line(line, now_ns);
	COMPILER_BARRIER();
	line->tid = tid;
	return line;
}

/* What a thread does, in the bits of the kernel. */
INLINE u32 state_of(struct task_struct *task)
{
	struct task_struct___5_10 *before_5_14 = (void *)task;

	if (__builtin_preserve_field_info(task->__state, FIELD_EXISTS))
		return copied_u32(&task->__state);
	return copied(&before_5_14->state);
}

/* Whether a quarter of a CPU's ring is in use at most. */
INLINE int has_room(u32 cpu)
{
	struct stack_ring *ring = bpf_map_lookup_elem(&STACK_RINGS, &cpu);

	return ring && used_bytes(ring) <= STACK_RING_BYTES / 4;
}

/* Takes the stack of the current thread, which leaves the CPU. Whether there was room. */
OUT_OF_LINE int take_wait(void *context, u32 cpu, u64 now_ns, u32 weight)
{
	struct stack_ring *ring = bpf_map_lookup_elem(&STACK_RINGS, &cpu);
	struct stack_data *data = bpf_map_lookup_elem(&STACK_DATA, &cpu);
	struct stack_record *record;
	s64 kernel_bytes;

	if (!ring || !data)
		return 0;
	record = begin_record(ring, data);
	if (!record)
		return 0;
	/* Samples that interrupt from here on are dropped: interrupts are off, but not those of
	 * counters. */
	*(volatile u32 *)&ring->is_busy = 1;
	record->kind = STACK_WAIT;
	record->time_ns = now_ns;
	record->weight = weight;
	copy_runtimes(record);
	kernel_bytes = bpf_get_stack(context, after_attributes(record), STACK_KERNEL_FRAMES * 8, 0);
	record->kernel_bytes = kernel_bytes < 0 ? 0 : kernel_bytes;
	record->user = copy_entry_registers(record);
	end_record(ring, record, cpu);
	*(volatile u32 *)&ring->is_busy = 0;
	return 1;
}

/* The kind of a wait, by what the thread does at its begin: one that is pushed off the CPU for a
 * moment now and then may go to sleep for long. */
INLINE u32 kind_of(const struct wait_line *line)
{
	return line->state == THREAD_BLOCKED;
}

/* Writes names and numbers of a thread that is not the current one into a record. */
OUT_OF_LINE void name_thread(struct stack_record *record, struct task_struct *task)
{
	struct task_struct *leader = task;
	u32 pid, generation = 0;
	struct slot *slot;
	u64 mm;

	if (TASK_ACCESS != TASK_HIDDEN) {
		leader = (void *)copied(&task->group_leader);
		generation = hashed_generation(copied(&task->self_exec_id),
					       copied(&leader->start_boottime));
	}
	pid = number_of(leader);
	record->space = pid == 0 ? SPACE_FOREIGN : pid | generation << PID_BITS;
	if (TASK_ACCESS != TASK_HIDDEN && pid != 0) {
		/* As current_space() has it. */
		slot = slot_of(copied_u32(&task->tgid));
		mm = copied(&task->mm);
		if (slot && mm && *(volatile u64 *)&slot->mm == mm)
			record->space = slot->space;
	}
	record->tid = number_of(task);
	bpf_probe_read_kernel(record->name, COMM_BYTES, task->comm);
	bpf_probe_read_kernel(record->command, COMM_BYTES, leader->comm);
}

/* Tells that a wait that was taken, or a long one, has ended. Whether there was room. */
OUT_OF_LINE int end_wait(u32 cpu, const struct wait_line *line, struct task_struct *task,
			 u64 blocked_ns, u64 waited_ns)
{
	struct stack_ring *ring = bpf_map_lookup_elem(&STACK_RINGS, &cpu);
	struct stack_data *data = bpf_map_lookup_elem(&STACK_DATA, &cpu);
	struct stack_record *record;
	u32 written;

	if (!ring || !data || ring->is_busy)
		return 0;
	written = ring->written;
	if (STACK_RING_BYTES - used_bytes(ring) < sizeof(*record)) {
		ring->dropped++;
		return 0;
	}
	*(volatile u32 *)&ring->is_busy = 1;
	record = (void *)(data->bytes + (written & (STACK_RING_BYTES - 8)));
	record->bytes = sizeof(*record);
	record->kind = STACK_WAIT_END;
	record->time_ns = line->since_ns;
	record->space = 0;
	record->tid = 0;
	record->root_tid = line->tid;
	record->weight = line->weight;
	record->user = record->kernel_bytes = record->stack_bytes = 0;
	record->python_frames = record->user_frames = record->runtime_frames = 0;
	record->begin = blocked_ns;
	record->registers[0] = waited_ns - blocked_ns;
	record->registers[1] = (u64)line->owed[kind_of(line)] << WAIT_OWED_SHIFT;
	if (line->weight & WAIT_UNTAKEN) {
		record->kind = STACK_LONG_WAIT;
		record->weight = 1;
		name_thread(record, task);
	}
	__sync_fetch_and_add(&ring->written, sizeof(*record));
	*(volatile u32 *)&ring->is_busy = 0;
	return 1;
}

/* One of so many waits such as the one that begins is taken: a thread's first one if there is
 * room and not too many are taken, as it says what the next ones are like. */
INLINE u32 weight_of(const struct wait_line *line, u32 cpu, u32 scale_us)
{
	u32 units = line->typical[kind_of(line)], weight;

	if (units == WAIT_UNITS_MAX ||
	    (units == 0 && scale_us <= FIRST_TAKEN_US && has_room(cpu)))
		return 1;
	weight = scale_us / (units ? units * WAIT_UNIT_US : FIRST_WAIT_US);
	if (weight > WAIT_WEIGHT_MAX)
		return WAIT_WEIGHT_MAX;
	return weight ? weight : 1;
}

/* The current thread leaves the CPU. */
INLINE void leave(void *context, u32 cpu, u64 now_ns, int is_preempted, u32 scale_us)
{
	struct task_struct *task = bpf_get_current_task();
	u32 tid = bpf_get_current_pid_tgid(), state, weight;
	struct wait_line *line;

	if (tid == 0)
		return;
	line = line_of(tid, now_ns);
	if (!line) {
		note_crowd();
		return;
	}
	if (line->state == THREAD_RUNS)
		line->on_ns += now_ns - line->since_ns;
	else if (line->state == THREAD_BLOCKED || line->state == THREAD_RUNNABLE)
		/* Its arrival was not told: some kernels hide the switches of some threads. */
		line->runnable_ns += now_ns - line->since_ns;
	else
		begin_line(line, now_ns);
	state = state_of(task);
	line->since_ns = now_ns;
	line->woken_ns = 0;
	line->weight = 0;
	if (state & TASK_ENDS) {
		line->state = THREAD_ENDED;
		return;
	}
	line->state = is_preempted || state == 0 ? THREAD_RUNNABLE : THREAD_BLOCKED;
	weight = weight_of(line, cpu, scale_us);
	if (weight > 1 && bpf_get_prandom_u32() % weight)
		return;
	line->weight = weight;
	if (!take_wait(context, cpu, now_ns, weight))
		line->weight |= WAIT_UNTAKEN;
}

/* The typical length of waits after a further one. The error of a sum is least where the
 * probability is in proportion to the root of the mean square, above the mean where lengths vary:
 * it rises at once and falls slowly. */
INLINE u64 typical(u64 before, u64 length)
{
	return length > before ? length : (before * 7 + length) / 8;
}

/* Notes the length of a wait for the next ones that begin as it did. */
INLINE void note_length(struct wait_line *line, u64 waited_us)
{
	u64 units = waited_us / WAIT_UNIT_US + 1;
	u32 kind = kind_of(line);

	line->typical[kind] =
		typical(line->typical[kind], units > WAIT_UNITS_MAX ? WAIT_UNITS_MAX : units);
}

/* Tells the end of a wait that was chosen or long, if it has a stack or `is_surprise`. What was
 * chosen and found no room is owed as time, not as a weight: waits are shorter while there is no
 * room. */
INLINE void note_end(u32 cpu, struct wait_line *line, struct task_struct *task, u64 blocked_ns,
		     u64 waited_ns, int is_surprise)
{
	u32 kind = kind_of(line);
	u64 weight = line->weight & ~WAIT_UNTAKEN, owed;

	if ((is_surprise || !(line->weight & WAIT_UNTAKEN)) &&
	    end_wait(cpu, line, task, blocked_ns, waited_ns)) {
		line->owed[kind] = 0;
		return;
	}
	owed = line->owed[kind];
	owed += (waited_ns * weight + WAIT_OWED_UNIT_NS / 2) >> WAIT_OWED_SHIFT;
	line->owed[kind] = owed > WAIT_OWED_MAX ? WAIT_OWED_MAX : owed;
}

/* A thread comes to the CPU. */
INLINE void arrive(struct task_struct *task, u32 cpu, u64 now_ns, u32 scale_us)
{
	u64 waited_ns, blocked_ns = 0, waited_us;
	u32 tid = copied_u32(&task->pid);
	struct wait_line *line;
	int is_surprise = 0;

	if (tid == 0)
		return;
	line = line_of(tid, now_ns);
	if (!line)
		return;
	if (line->state == THREAD_BLOCKED || line->state == THREAD_RUNNABLE) {
		waited_ns = now_ns - line->since_ns;
		if (line->state == THREAD_BLOCKED)
			blocked_ns = line->woken_ns ? line->woken_ns - line->since_ns : waited_ns;
		if (blocked_ns > waited_ns)
			blocked_ns = waited_ns;
		line->blocked_ns += blocked_ns;
		line->runnable_ns += waited_ns - blocked_ns;
		waited_us = waited_ns / 1000;
		note_length(line, waited_us);
		if (waited_us >= scale_us || waited_us >= LONG_WAIT_US) {
			/* As if it had been chosen with certainty. What is not owed: a wait of a
			 * second, of which the daemon has counted a part. */
			is_surprise = line->weight == 0 || waited_us >= LONG_WAIT_US;
			if (line->weight == 0 || line->weight & WAIT_UNTAKEN)
				line->weight = WAIT_UNTAKEN | 1;
			else
				line->weight = 1;
		}
		if (line->weight)
			note_end(cpu, line, task, blocked_ns, waited_ns, is_surprise);
	} else if (line->state == THREAD_RUNS) {
		line->on_ns += now_ns - line->since_ns; /* its leaving was not told */
	} else {
		begin_line(line, now_ns);
	}
	line->weight = 0;
	line->state = THREAD_RUNS;
	line->since_ns = now_ns;
}

/* Between two threads of a CPU: it is still the first one's (kernel/sched/core.c, __schedule). */
SECTION("raw_tp/sched_switch")
int switched(u64 *arguments)
{
	u32 cpu = bpf_get_smp_processor_id();
	struct cpu_block *block = bpf_map_lookup_elem(&CPUS, &cpu);
	u32 scale_us = block ? *(volatile u32 *)&block->wait_scale_us : 0;
	u64 now_ns;

	if (!scale_us)
		return 0;
	now_ns = bpf_ktime_get_ns();
	leave(arguments, cpu, now_ns, arguments[0] & 1, scale_us);
	arrive((struct task_struct *)arguments[2], cpu, now_ns, scale_us);
	return 0;
}

/* Whether times of threads are taken. Where not, a switch costs no more than this. */
INLINE int takes_times(void)
{
	u32 cpu = bpf_get_smp_processor_id();
	struct cpu_block *block = bpf_map_lookup_elem(&CPUS, &cpu);

	return block && *(volatile u32 *)&block->wait_scale_us != 0;
}

/* A thread is awake, and may have to wait for a CPU. */
SECTION("raw_tp/sched_wakeup")
int woken(u64 *arguments)
{
	struct task_struct *task = (void *)arguments[0];
	struct wait_line *line;

	if (!takes_times())
		return 0;
	line = known_line(copied_u32(&task->pid));
	if (line && line->state == THREAD_BLOCKED && line->woken_ns == 0)
		line->woken_ns = bpf_ktime_get_ns();
	return 0;
}

/* A thread begins. */
SECTION("raw_tp/sched_wakeup_new")
int woken_new(u64 *arguments)
{
	struct task_struct *task = (void *)arguments[0];
	u64 now_ns = bpf_ktime_get_ns();
	struct wait_line *line;

	if (!takes_times())
		return 0;
	line = line_of(copied_u32(&task->pid), now_ns);
	if (line && line->state != THREAD_RUNS) {
		begin_line(line, now_ns);
		line->state = THREAD_RUNNABLE;
	}
	return 0;
}
