/* SPDX-License-Identifier: GPL-2.0-only
 *
 * Which process and which address space the current task belongs to.
 */
#pragma once

#include "abi.h"
#include "kernel.h"
#include "maps.h"
#include "settings.h"

INLINE u32 hashed_generation(u64 exec_id, u64 birth)
{
	return ((exec_id + birth) * 0x9e3779b97f4a7c15ull) >> (64 - GENERATION_BITS);
}

/* The generation of the current process: it tells this address space from the others that the same
 * process number had or will have. An exec increments self_exec_id, and a process that reuses the
 * number was born at another time. All threads of a process have the same generation: a new thread
 * copies self_exec_id, and the birth is the first thread's. The generation has 10 bits of a hash,
 * so two successive address spaces are mistaken for each other once in 1024 times. */
INLINE u32 generation(void)
{
	if (TASK_ACCESS == TASK_TYPED) {
		struct task_struct *task = bpf_get_current_task_btf();

		return hashed_generation(task->self_exec_id, task->group_leader->start_boottime);
	}
	if (TASK_ACCESS == TASK_COPIED) {
		struct task_struct *task = bpf_get_current_task();
		struct task_struct *leader = (void *)copied(&task->group_leader);

		return hashed_generation(copied(&task->self_exec_id),
					 copied(&leader->start_boottime));
	}
	return 0;
}

/* The current process's number in the daemon's pid namespace; 0 when it has none there. */
INLINE u32 process(void)
{
	struct bpf_pidns_info info = {};

	if (PIDNS_INO == 0)
		return bpf_get_current_pid_tgid() >> 32;
	if (bpf_get_ns_current_pid_tgid(PIDNS_DEV, PIDNS_INO, &info, sizeof(info)) != 0)
		return 0;
	return info.tgid;
}

/* The current thread's number in the daemon's pid namespace; 0 when it has none there. */
INLINE u32 own_thread(void)
{
	struct bpf_pidns_info info = {};

	if (PIDNS_INO == 0)
		return bpf_get_current_pid_tgid();
	if (bpf_get_ns_current_pid_tgid(PIDNS_DEV, PIDNS_INO, &info, sizeof(info)) != 0)
		return 0;
	return info.pid;
}

/* Levels of pid namespaces that are looked through. */
enum { PIDNS_LEVELS = 4 };

/* The number of any thread in the daemon's pid namespace; 0 when it has none there, or it is deeper
 * than that. */
OUT_OF_LINE u32 number_of(struct task_struct *task)
{
	struct pid *pid;
	struct upid *upid;
	u32 found = 0;

	if (TASK_ACCESS == TASK_HIDDEN)
		return 0;
	if (PIDNS_INO == 0)
		return copied_u32(&task->pid);
	pid = (void *)copied(&task->thread_pid);
#pragma unroll
	for (u32 level = 0; level < PIDNS_LEVELS; level++) {
		upid = (void *)((char *)&pid->numbers + level * sizeof(*upid));
		if (level <= copied_u32(&pid->level) &&
		    copied_u32(&((struct pid_namespace *)copied(&upid->ns))->ns.inum) == PIDNS_INO)
			found = copied_u32(&upid->nr);
	}
	return found;
}

/* The current process's number in the root pid namespace. */
INLINE u32 root_process(void)
{
	return bpf_get_current_pid_tgid() >> 32;
}

INLINE u64 current_mm(void)
{
	struct task_struct *task = bpf_get_current_task();

	return copied(&task->mm);
}

/* Whether the current thread executes user code when it is not in the kernel. In an exec, between
 * the old program and the new one, it has the new memory and the registers of the old code:
 * load_elf_binary (fs/binfmt_elf.c) sets end_code last. */
INLINE int has_user_code(void)
{
	struct task_struct *task = bpf_get_current_task();
	struct mm_struct *mm = (void *)copied(&task->mm);

	return mm && copied(&mm->end_code) != 0 &&
	       !(copied_u32(&task->flags) & (PF_IO_WORKER | PF_USER_WORKER | PF_KTHREAD));
}

INLINE int is_kernel_thread(void)
{
	struct task_struct *task = bpf_get_current_task();

	return (copied_u32(&task->flags) & PF_KTHREAD) != 0;
}

/* The slot where a process's knowledge is kept; another process may have it. */
INLINE struct slot *slot_of(u32 root_pid)
{
	u32 index = root_pid & ((1 << SLOT_BITS) - 1);

	return bpf_map_lookup_elem(&SLOTS, &index);
}

/* The word of a process in KERNEL_SCOPES: a struct kernel_scope, perhaps another process's. */
INLINE u64 *kernel_scope_of(u32 root_pid)
{
	u32 index = root_pid & ((1 << SLOT_BITS) - 1);

	return bpf_map_lookup_elem(&KERNEL_SCOPES, &index);
}

/* An enum kernel_scopes. */
INLINE u32 kernel_scopes(void)
{
	u32 cpu = bpf_get_smp_processor_id();
	struct cpu_block *block = bpf_map_lookup_elem(&CPUS, &cpu);

	return block ? *(volatile u32 *)&block->kernel_scopes : SCOPES_NONE;
}

/* The current process's slot; null when another process has it, and for a kernel thread, which has
 * no memory. One access to the task yields both the process number and the memory: each call of a
 * helper costs as much as a cache miss. */
INLINE struct slot *own_slot(u64 *own_mm)
{
	struct slot *slot;
	u32 root_pid;
	u64 mm;

	if (TASK_ACCESS == TASK_TYPED) {
		struct task_struct *task = bpf_get_current_task_btf();

		mm = (u64)task->mm;
		root_pid = task->tgid;
	} else if (TASK_ACCESS == TASK_COPIED) {
		struct task_struct *task = bpf_get_current_task();

		mm = copied(&task->mm);
		root_pid = root_process();
	} else {
		return 0;
	}
	slot = slot_of(root_pid);
	*own_mm = mm;
	/* An unused slot's mm is 0, and so is a kernel thread's. */
	if (!LIKELY(slot && mm && *(volatile u64 *)&slot->mm == mm))
		return 0;
	COMPILER_BARRIER();
	return slot;
}

/* Whether the slot is still the process's after it was read: another process may have taken it on
 * another CPU meanwhile. Such a one writes 0 first. x86-64 keeps the order of reads and of writes;
 * on arm64, in the nanoseconds in which the slot changes hands, one sample may be taken for one of
 * the other process. */
INLINE int is_still_own(const struct slot *slot, u64 own_mm)
{
	COMPILER_BARRIER();
	return LIKELY(*(volatile u64 *)&slot->mm == own_mm);
}

/* The current process's address space, for a process without a slot. */
OUT_OF_LINE u32 own_space(void)
{
	u32 pid = process();

	return pid == 0 ? SPACE_FOREIGN : pid | generation() << PID_BITS;
}

/* The current process's address space, which a mapping of another file may have begun. */
INLINE u32 current_space(void)
{
	struct slot *slot;
	u32 space;
	u64 mm;

	slot = own_slot(&mm);
	if (!slot)
		return own_space();
	space = slot->space;
	return is_still_own(slot, mm) ? space : own_space();
}
