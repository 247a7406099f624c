/* SPDX-License-Identifier: GPL-2.0-only
 *
 * Waits where threads change so often that following each switch would cost too much: a pass over
 * all threads at a random moment, which takes some of those that wait. A thread is seen waiting
 * with a probability in proportion to the time that it waits, so the samples that show a wait,
 * times the mean time between two passes, estimate its time. The cost is that of the passes,
 * however many switches there are. Where switches are followed, passes meet the threads that have
 * not switched since.
 *
 * The stack of user code is not taken: its pages may be anybody's (FUSE, userfaultfd), and a read
 * of them may wait for whoever made them.
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

/* Whom the samples of a thread are charged to: an ordinary user, of a row of subordinate users the
 * first; of root, whose services are many, the control group. */
INLINE u64 payer_of(struct task_struct *task)
{
	struct css_set *set;
	u32 user;

	if (copied_u32(&task->flags) & PF_KTHREAD)
		return PAYER_KERNEL;
	user = copied_u32(&((struct cred *)copied(&task->real_cred))->uid);
	if (user >= SUBORDINATE_BEGIN)
		return SUBORDINATE_BEGIN + (user - SUBORDINATE_BEGIN) / SUBORDINATE_USERS;
	if (user != 0)
		return user;
	set = (void *)copied(&task->cgroups);
	return PAYER_GROUP |
	       copied(&((struct kernfs_node *)copied(
				&((struct cgroup *)copied(&set->dfl_cgrp))->kn))
			       ->id);
}

/* Whether the times of a thread are taken at its switches. */
INLINE int is_followed(struct task_struct *task)
{
	struct wait_line *line = known_line(copied_u32(&task->pid));

	return line && line->state != THREAD_UNKNOWN && line->state != THREAD_ENDED;
}

/* One of so many waiting threads of a payer is chosen. */
INLINE u32 every_of(u64 key, struct wait_pass *pass)
{
	struct wait_payer *payer = bpf_map_lookup_elem(&WAIT_PAYERS, &key);
	struct wait_payer new = {.threads = 1, .every = pass->every};

	if (payer) {
		payer->threads++;
		return payer->every;
	}
	if (bpf_map_update_elem(&WAIT_PAYERS, &key, &new, BPF_NOEXIST) != 0)
		pass->unpaid++;
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
	pass->threads++;
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
	sample->record.root_tid = copied_u32(&task->pid);
	name_thread(&sample->record, task);
	take_frames(sample, task);
	return 0;
}
