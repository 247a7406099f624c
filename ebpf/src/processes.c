/* SPDX-License-Identifier: GPL-2.0-only
 *
 * Execs and forks: which process runs which program, and where its text is.
 */
#include "changes.h"
#include "process.h"
#include "settings.h"

/* Gives a process a scope, or none: then another process that has the word keeps it. */
INLINE void set_kernel_scope(u32 root_pid, u32 number)
{
	u64 *word = kernel_scope_of(root_pid);

	if (word && (number || *(volatile u32 *)word == root_pid))
		*(volatile u64 *)word = root_pid | (u64)number << 32;
}

/* After an exec, in the new program's name (fs/exec.c, exec_binprm). */
SECTION("raw_tp/sched_process_exec")
int process_exec(void *context)
{
	struct change change = { .time_ns = bpf_ktime_get_ns(),
				 .kind = CHANGE_EXEC,
				 .pid = process(),
				 .generation = generation(),
				 .generation_before = bpf_get_current_uid_gid() };
	u32 root_pid = root_process();
	struct slot *slot = slot_of(root_pid);
	struct task_struct *task = bpf_get_current_task();
	struct claim claim = {};
	struct mm_struct *mm;
	int apart, told;

	(void)context;
	if (!slot)
		return 0;
	/* Service managers exec after they have moved the process to its control group: until the
	 * daemon has looked, nobody knows the scope. A label stays. */
	if (kernel_scopes() == SCOPES_ALL)
		set_kernel_scope(root_pid, 0);
	if (TASK_ACCESS == TASK_HIDDEN) {
		if (change.pid != 0)
			send(&change);
		return 0;
	}
	mm = (void *)copied(&task->mm);
	if (!lock_slot(root_pid)) {
		disown(slot, (u64)mm);
		if (change.pid != 0)
			send(&change);
		return 0;
	}
	apart = is_apart(slot, change.pid);
	if (slot->mm != IN_EXEC(mm) || apart)
		forget_libraries(slot);
	set_owner(slot, 0);
	if (change.pid == 0) {
		unlock_slot(root_pid);
		return 0;
	}
	if (SHARE_PROGRAMS && !apart) {
		u64 text_len;

		change.text = copied(&mm->start_code);
		text_len = copied(&mm->end_code) - change.text;
		if (text_len && !(text_len >> 32))
			claim = claim_number((void *)copied(&mm->exe_file),
					     PROGRAM_PART(change.text), text_len);
		change.program = claim.number;
		change.text_len = claim.number == PROGRAM_NONE ? 0 : text_len;
	}
	slot->text = change.text;
	told = send(&change);
	if (!told)
		give_back(claim);
	slot->text_len = told ? change.text_len : 0;
	slot->program = apart ? PROGRAM_APART : change.program;
	slot->space = change.pid | change.generation << PID_BITS;
	slot->born = now_born();
	set_owner(slot, (u64)mm);
	unlock_slot(root_pid);
	return 0;
}

/* A child has its parent's scope. What an earlier process of its number had is forgotten. */
INLINE void inherit_kernel_scope(u32 parent_pid, u32 pid)
{
	u64 *word = kernel_scope_of(parent_pid);
	u64 scope = word ? *(volatile u64 *)word : 0;

	set_kernel_scope(pid, (u32)scope == parent_pid ? scope >> 32 : 0);
}

/* Fills the slot of a child, which is the one that its parent has where `from` is `slot`. */
INLINE void fill_childs_slot(struct slot *slot, const struct slot *from,
			     const struct task_struct *parent, const struct task_struct *child)
{
	int is_parents = from != slot && from->mm == copied(&parent->mm);

	set_owner(slot, 0);
	/* No helper tells the child's number in another pid namespace than the root one. */
	if (PIDNS_INO != 0)
		return;
	if (is_parents) {
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
	if (is_parents)
		inherit_ranges(from->space, slot->space);
	set_owner(slot, copied(&child->mm));
}

/* A new process runs its parent's program (kernel/fork.c, kernel_clone). The child has not run yet
 * when this is called. */
SECTION("raw_tp/sched_process_fork")
int process_fork(u64 *arguments)
{
	struct task_struct *parent = (void *)arguments[0], *child = (void *)arguments[1];
	u32 pid, parent_pid;
	struct slot *slot, *from;

	if (TASK_ACCESS == TASK_HIDDEN)
		return 0;
	pid = copied_u32(&child->tgid);
	if (pid != copied_u32(&child->pid))
		return 0; /* a thread */
	parent_pid = copied_u32(&parent->tgid);
	if (kernel_scopes() != SCOPES_NONE)
		inherit_kernel_scope(parent_pid, pid);
	slot = slot_of(pid);
	from = slot_of(parent_pid);
	if (!slot || !from)
		return 0;
	/* The parent's slot is copied while nobody writes it: the child has all or nothing. */
	if (!lock_slot(pid)) {
		disown(slot, copied(&child->mm));
		return 0;
	}
	if (from == slot || lock_slot(parent_pid)) {
		fill_childs_slot(slot, from, parent, child);
		if (from != slot)
			unlock_slot(parent_pid);
	} else {
		disown(slot, copied(&child->mm));
	}
	unlock_slot(pid);
	return 0;
}
