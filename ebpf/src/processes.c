/* SPDX-License-Identifier: GPL-2.0-only
 *
 * Execs and forks: which process runs which program, and where its text is.
 */
#include "changes.h"
#include "process.h"
#include "settings.h"

/* After an exec, in the new program's name (fs/exec.c, exec_binprm). */
SECTION("raw_tp/sched_process_exec")
int process_exec(void *context)
{
	struct change change = { .time_ns = bpf_ktime_get_ns(),
				 .kind = CHANGE_EXEC,
				 .pid = process(),
				 .generation = generation() };
	struct slot *slot = slot_of(root_process());
	struct task_struct *task = bpf_get_current_task();
	struct mm_struct *mm;
	int apart;

	(void)context;
	if (!slot)
		return 0;
	if (TASK_ACCESS == TASK_HIDDEN) {
		if (change.pid != 0)
			send(&change);
		return 0;
	}
	apart = is_apart(slot, change.pid);
	mm = (void *)copied(&task->mm);
	if (slot->mm != IN_EXEC(mm) || apart)
		forget_libraries(slot);
	slot->mm = 0;
	if (change.pid == 0)
		return 0;
	if (SHARE_PROGRAMS && !apart) {
		u64 text_len;

		change.text = copied(&mm->start_code);
		text_len = copied(&mm->end_code) - change.text;
		change.program = program_number((void *)copied(&mm->exe_file), 0);
		change.text_len = change.program == PROGRAM_NONE || text_len >> 32 ? 0 : text_len;
	}
	slot->text = change.text;
	slot->text_len = send(&change) ? change.text_len : 0;
	slot->program = apart ? PROGRAM_APART : change.program;
	slot->space = change.pid | change.generation << PID_BITS;
	slot->born = now_born();
	*(volatile u64 *)&slot->mm = (u64)mm;
	return 0;
}

/* A new process runs its parent's program (kernel/fork.c, kernel_clone). The child has not run yet
 * when this is called. */
SECTION("raw_tp/sched_process_fork")
int process_fork(u64 *arguments)
{
	struct task_struct *parent = (void *)arguments[0], *child = (void *)arguments[1];
	u32 pid;
	struct slot *slot, *from;

	if (TASK_ACCESS == TASK_HIDDEN)
		return 0;
	pid = copied_u32(&child->tgid);
	if (pid != copied_u32(&child->pid))
		return 0; /* a thread */
	slot = slot_of(pid);
	from = slot_of(copied_u32(&parent->tgid));
	if (!slot || !from)
		return 0;
	slot->mm = 0;
	/* No helper tells the child's number in another pid namespace than the root one. */
	if (PIDNS_INO != 0)
		return 0;
	if (from != slot && from->mm == copied(&parent->mm)) {
		slot->text = from->text;
		slot->text_len = from->text_len;
		slot->program = from->program;
		slot->born = from->born;
		slot->libraries[INTERPRETER] = from->libraries[INTERPRETER];
		slot->libraries[LIBC] = from->libraries[LIBC];
	} else {
		slot->text_len = 0;
		forget_libraries(slot);
		slot->program =
			from != slot && from->program == PROGRAM_APART &&
					(from->space & PID_MASK) == copied_u32(&parent->tgid)
				? PROGRAM_APART
				: PROGRAM_NONE;
		slot->born = now_born();
	}
	slot->space = copied_u32(&child->tgid) |
		      hashed_generation(copied(&child->self_exec_id),
					copied(&child->start_boottime))
			      << PID_BITS;
	*(volatile u64 *)&slot->mm = copied(&child->mm);
	return 0;
}
