/* SPDX-License-Identifier: GPL-2.0-only
 *
 * Samples of waiting threads, for machines on which tracing every switch would cost too much. At a
 * random moment of each period, the daemon has the kernel iterate over all threads (a pass), and
 * this program samples some of those that wait. A thread that waits for a tenth of the time is
 * waiting at a tenth of the passes, so the number of samples of a wait, times the period, estimates
 * the time of that wait. The cost depends on the number of threads and passes, not on that of
 * switches. Where switches are traced, passes sample only threads without a wait_line, which have
 * not switched since tracing began.
 *
 * The bytes of user stacks are not copied: the stack of another process may lie in a file of FUSE
 * or under userfaultfd, and reading it could block for as long as its owner likes.
 */
#include "abi.h"
#include "kernel.h"
#include "maps.h"
#include "process.h"
#include "settings.h"
#include "stack.h"

/* Bits of a payer's key that is no user's number: threads of the kernel, or a control group. */
#define PAYER_KERNEL (1ull << 63)
#define PAYER_GROUP (1ull << 62)
/* The argument of a program that is called for each task (include/linux/bpf.h,
 * DEFINE_BPF_ITER_FUNC). */
struct task_pass {
	void *meta;
	struct task_struct *task; /* NULL at the end */
};

/* The payer of a thread: its user, or for root, who runs many services, its control group. Each
 * payer has an equal part of a pass's samples. */
INLINE u64 payer_of(struct task_struct *task)
{
	struct css_set *set;
	u32 user;

	if (copied_u32(&task->flags) & PF_KTHREAD)
		return PAYER_KERNEL;
	user = copied_u32(&((struct cred *)copied(&task->real_cred))->uid);
	if (user != 0)
		return first_of_row(user);
	set = (void *)copied(&task->cgroups);
	return PAYER_GROUP |
	       copied(&((struct kernfs_node *)copied(
				&((struct cgroup *)copied(&set->dfl_cgrp))->kn))
			       ->id);
}

/* Whether the times of a thread are measured at its switches. */
INLINE int is_followed(struct task_struct *task)
{
	struct wait_line *line = known_line(copied_u32(&task->pid));

	return line && line->state != THREAD_UNKNOWN && line->state != THREAD_ENDED;
}

/* Counts a waiting thread of a payer. Returns N where one of N of its threads is sampled. */
INLINE u32 every_of(u64 key, struct wait_pass *pass)
{
	struct wait_payer *payer = bpf_map_lookup_elem(&WAIT_PAYERS, &key);
	struct wait_payer new = {.threads = 1, .every = pass->every};

	if (payer) {
		payer->threads++;
		return payer->every;
	}
	/* Where there is no room for it, its threads are sampled as those of a new payer. */
	bpf_map_update_elem(&WAIT_PAYERS, &key, &new, BPF_NOEXIST);
	return pass->every;
}

/* The frames of a thread in the kernel, and the registers of the user code that called it. */
INLINE void take_frames(struct wait_sample *sample, struct task_struct *task)
{
	struct stack_record *record = &sample->record;
	void *registers;
	s64 bytes = bpf_get_task_stack(task, sample->kernel, STACK_KERNEL_FRAMES * 8, 0);

	record->kernel_bytes = bytes < 0 ? 0 : bytes;
	record->user = USER_HIDDEN;
	if (copied(&task->mm) == 0 ||
	    copied_u32(&task->flags) & (PF_IO_WORKER | PF_USER_WORKER | PF_KTHREAD)) {
		record->user = USER_NONE;
		return;
	}
	registers = bpf_task_pt_regs(task);
	if (bpf_probe_read_kernel(record->registers, sizeof(struct context), registers) == 0)
		record->user = USER_REGISTERS;
}

SECTION("iter/task")
int see_wait(struct task_pass *context)
{
	struct task_struct *task = context->task;
	struct wait_sample *sample;
	struct wait_pass *pass;
	u32 zero = 0, state, every, number;

	if (!task)
		return 0;
	pass = bpf_map_lookup_elem(&WAIT_PASS, &zero);
	state = state_of(task);
	if (!pass || state & TASK_ENDS || copied_u32(&task->on_cpu))
		return 0;
	if (pass->is_rest && is_followed(task))
		return 0;
	every = every_of(payer_of(task), pass);
	if (every > 1 && bpf_get_prandom_u32() % every)
		return 0;
	number = pass->chosen++;
	sample = bpf_map_lookup_elem(&WAIT_SAMPLES, &number);
	if (!sample)
		return 0;
	sample->record.bytes = sizeof(*sample);
	sample->record.kind = state == 0 ? STACK_SEEN_RUNNABLE : STACK_SEEN_BLOCKED;
	sample->record.time_ns = bpf_ktime_get_ns();
	sample->record.weight = every ? every : 1;
	sample->record.stack_bytes = sample->record.python_frames = 0;
	sample->record.user_frames = sample->record.runtime_frames = 0;
	sample->record.root_tid = copied_u32(&task->pid);
	name_thread(&sample->record, task);
	take_frames(sample, task);
	return 0;
}
