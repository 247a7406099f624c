/* SPDX-License-Identifier: GPL-2.0-only
 *
 * New mappings: what they replace, which of them begin a generation, and which are of a library
 * that is counted once for all processes.
 */
#include "changes.h"
#include "process.h"
#include "settings.h"

struct mapping {
	u64 start;
	u64 end;
	u64 flags;
	u64 page; /* its first one in the file */
	struct file *file;
	int is_new; /* the kernel writes its record next, before anything else of the process */
};

/* The current process maps a file that is executable. In a process that has settled, another file
 * may have been at that place before: a new generation tells the samples before and after apart.
 * The first mappings of a program replace nothing, and are many: they begin no generation. */
INLINE void note_change(struct slot *slot, u64 mm)
{
	struct change change = { .time_ns = bpf_ktime_get_ns(),
				 .kind = CHANGE_REMAP,
				 .pid = process() };

	if (change.pid == 0)
		return;
	/* In the middle of an exec the process has its new memory and still the slot's knowledge of
	 * the old one. process_exec comes soon. */
	if (slot->mm != mm && slot->mm && (slot->space & PID_MASK) == change.pid)
		return;
	if (slot->mm != mm) {
		/* The process is older than the sampler, or another process had its slot. */
		int apart = is_apart(slot, change.pid);

		set_owner(slot, 0);
		slot->text_len = 0;
		forget_libraries(slot);
		slot->program = apart ? PROGRAM_APART : PROGRAM_NONE;
		slot->born = now_born();
		/* The time makes it differ from the generation that the process had when the
		 * sampler last knew it. */
		change.generation_before = generation();
		change.generation = (change.generation_before + slot->born) & GENERATION_MASK;
		slot->space = change.pid | (send(&change) ? change.generation
							  : change.generation_before)
						   << PID_BITS;
		set_owner(slot, mm);
		return;
	}
	if (now_born() - slot->born < SETTLED)
		return;
	change.generation_before = slot->space >> PID_BITS;
	change.generation = (change.generation_before + 1) & GENERATION_MASK;
	if (send(&change)) {
		u32 before = slot->space;

		slot->space = change.pid | change.generation << PID_BITS;
		inherit_ranges(before, slot->space);
	}
}

/* The addresses from start to end get another mapping: a library that was there ends. No thread
 * executes there before the mapping is complete, because its lock is held. */
INLINE void forget_library(struct library *library, u64 start, u64 end)
{
	if (start < library->start + library->len && library->start < end)
		*(volatile u32 *)&library->len = 0;
}

/* Whether a file's name is that of the C library: libc.so.6, or libc-2.31.so before glibc 2.34.
 * musl's C library is its interpreter. Names are compared as little-endian numbers. */
INLINE int is_libc(const struct file *file)
{
	struct dentry *dentry = (void *)copied(&file->f_path.dentry);
	u64 name = copied((void *)copied(&dentry->d_name.name));
	u8 fifth = name >> 32;

	return (u32)name == 0x6362696c && (fifth == '.' || fifth == '-');
}

/* Has a mapping of the interpreter or the C library counted once for all processes that have it. Of
 * the user code outside of programs that many short processes have in common, these two libraries
 * have nearly all samples: 4 and 7 % of a compile storm's, and no other library has 1 %. */
INLINE void note_library(struct slot *slot, const struct mapping *mapping, u64 mm)
{
	u64 len = mapping->end - mapping->start;
	struct change change = { .time_ns = bpf_ktime_get_ns(),
				 .kind = CHANGE_LIBRARY,
				 .text = mapping->start,
				 .text_len = len };
	struct mm_struct *memory = (void *)mm;
	struct library *library;
	struct claim claim;

	change.pid = root_process();
	if (!mapping->is_new || len >> 32)
		return;
	if (slot->program == PROGRAM_APART || (slot->space & PID_MASK) != change.pid)
		return;
	if (slot->mm == mm) {
		library = &slot->libraries[LIBC];
		if (library->number != PROGRAM_NONE || !is_libc(mapping->file))
			return;
	} else {
		/* An exec maps the program and then its interpreter, before process_exec. No sample
		 * uses the slot meanwhile. */
		if (slot->mm == 0 || copied(&memory->exe_file) == (u64)mapping->file)
			return;
		if (slot->mm != IN_EXEC(mm))
			forget_libraries(slot);
		set_owner(slot, IN_EXEC(mm));
		library = &slot->libraries[INTERPRETER];
	}
	claim = claim_number(mapping->file, LIBRARY_PART(mapping->page), len);
	if (claim.number == PROGRAM_NONE)
		return;
	change.program = claim.number;
	library->start = mapping->start;
	library->number = claim.number;
	if (!send(&change)) {
		give_back(claim);
		*library = (struct library){};
		return;
	}
	/* Other threads of the process may be sampled meanwhile, on other CPUs. Sending has ordered
	 * the two stores above before this one, also on arm64: bpf_ringbuf_commit exchanges the
	 * record's header (kernel/bpf/ringbuf.c, since 5.8), and a value-returning exchange is a
	 * full barrier (Documentation/atomic_t.txt). BPF has no release store before 6.15. */
	*(volatile u32 *)&library->len = len;
}

/* A mapping is about to be made, perhaps over others; the kernel writes its record after this.
 * Unmapping alone changes nothing here: no sample can be of an address without a mapping. */
INLINE void note_mapping(const struct mapping *mapping, u64 mm)
{
	u32 root_pid = root_process();
	struct slot *slot = slot_of(root_pid);

	if (TASK_ACCESS == TASK_HIDDEN || !slot)
		return;
	/* Zeros in lengths need no lock: code that is not counted together is counted right. */
	if (slot->mm == mm) {
		forget_library(&slot->libraries[INTERPRETER], mapping->start, mapping->end);
		forget_library(&slot->libraries[LIBC], mapping->start, mapping->end);
		if (mapping->start < slot->text + slot->text_len && slot->text < mapping->end)
			*(volatile u32 *)&slot->text_len = 0;
	}
	if (!mapping->file || !(mapping->flags & VM_EXEC))
		return;
	if (!lock_slot(root_pid)) {
		disown(slot, mm);
		return;
	}
	note_change(slot, mm);
	if (SHARE_PROGRAMS)
		note_library(slot, mapping, mm);
	unlock_slot(root_pid);
}

/* The ranges of a process that has none yet; 192 bytes are too many for the program's stack. */
static const struct file_ranges NO_RANGES;

/* Adds a mapping of a file to those of the process by which walks find rules of the file's code
 * (rules.h), in the place of those that it replaces. These are the first FILE_RANGES_MAX of its
 * files until the daemon chooses those whose rules it knows. */
INLINE void add_range(u32 space, const struct file_range *added)
{
	struct file_ranges *ranges = bpf_map_lookup_elem(&FILE_RANGES, &space);
	struct file_range *range;
	u32 place, is_added = 0;

	if (!ranges) {
		bpf_map_update_elem(&FILE_RANGES, &space, &NO_RANGES, BPF_ANY);
		ranges = bpf_map_lookup_elem(&FILE_RANGES, &space);
	}
	if (!ranges)
		return;
#pragma unroll
	for (place = 0; place < FILE_RANGES_MAX; place++) {
		range = &ranges->all[place];
		if (range->number && (range->start + range->len <= added->start ||
				      added->start + added->len <= range->start))
			continue;
		/* Walks of the process's other threads, on other CPUs, read the range meanwhile:
		 * while its number is 0 they find no rule by it. */
		*(volatile u32 *)&range->number = 0;
		if (is_added)
			continue;
		is_added = 1;
		*(volatile u64 *)&range->start = added->start;
		*(volatile u64 *)&range->offset = added->offset;
		*(volatile u32 *)&range->len = added->len;
		*(volatile u32 *)&range->number = added->number;
	}
}

/* Walks look for rules of a file under `number` where the current process maps it, unless its code
 * is counted under a number of its own. */
INLINE void note_range(const struct mapping *mapping, u64 mm, u32 number)
{
	struct file_range range = { .start = mapping->start,
				    .offset = mapping->page << 12,
				    .len = mapping->end - mapping->start,
				    .number = number };
	struct slot *slot;

	if (number == PROGRAM_NONE || (mapping->end - mapping->start) >> 32)
		return;
	slot = slot_of(root_process());
	/* What an exec maps has a number already, or will have one. */
	if (!slot || slot->mm != mm || slot->libraries[LIBC].start == mapping->start ||
	    slot->libraries[INTERPRETER].start == mapping->start)
		return;
	add_range(slot->space, &range);
}

/* Tells the daemon the state of the file that is being mapped: size and time of the last change.
 * The kernel's record has the inode alone, and the file may be written anew before the daemon
 * looks. Returns the number of the file in this state. */
INLINE u32 note_file(const struct mapping *mapping)
{
	struct change change = { .time_ns = bpf_ktime_get_ns(),
				 .kind = CHANGE_FILE,
				 .text = mapping->start };
	struct identity identity;
	u64 hash;

	if (!mapping->is_new || !mapping->file || !(mapping->flags & VM_EXEC))
		return PROGRAM_NONE;
	identity = identity_of(mapping->file, FILE_PART, 0);
	hash = keyed_hash(&identity);
	change.text_len = identity.size;
	change.program = NUMBER_OF_HASH(hash);
	change.generation = identity.change_time_ns;
	change.generation_before = identity.change_time_ns >> 32;
	change.pid = process();
	return change.pid != 0 && send(&change) ? change.program : PROGRAM_NONE;
}

/* Whether a mapping is being made, and not a part of one cut off, moved or grown: none of these has
 * a record, so the next record of the process would be taken for theirs, and anybody could choose
 * what that is of. A new mapping enters the tree of its file's mappings only after it has entered
 * the process's (mmap_region, 6.1 to 7.2); copies are made of those that are in it. A node that
 * was never in a red-black tree is zeroed, and one that was has a parent or a colour. */
INLINE int is_being_made(const struct vm_area_struct *area)
{
	return __builtin_preserve_field_info(area->shared.rb.__rb_parent_color, FIELD_EXISTS) &&
	       copied(&area->shared.rb.__rb_parent_color) == 0;
}

/* The first 8 bytes of the name of a function that writes into a maple tree, "mas_stor", as a
 * little-endian number. */
#define MAS_STORE 0x726f74735f73616dull

/* Linux 6.1 and later: called for each write into the tree of a process's mappings, whoever writes
 * and why (include/trace/events/maple_tree.h). */
SECTION("raw_tp/ma_write")
int mappings_write(u64 *arguments)
{
	struct ma_state *state = (void *)arguments[1];
	struct vm_area_struct *area = (void *)arguments[3];
	struct mm_struct *mm = (void *)current_mm();
	struct mapping mapping = {};
	u32 number;

	/* The kernel has other trees too, and a fork writes its child's. */
	if (!mm || copied(&state->tree) != (u64)&mm->mm_mt)
		return 0;
	/* mas_store_prealloc calls the tracepoint before it writes (lib/maple_tree.c, 6.1 to 7.2);
	 * the functions that it calls mostly do so again, under their own names. mas_store_gfp,
	 * which serves unmapping and brk, does not always call it. */
	if (copied((void *)arguments[0]) != MAS_STORE)
		return 0;
	mapping.start = copied(&state->index);
	mapping.end = copied(&state->last) + 1;
	if (area) {
		mapping.flags = copied(&area->vm_flags);
		mapping.page = copied(&area->vm_pgoff);
		mapping.file = (void *)copied(&area->vm_file);
		mapping.is_new = mapping.file && is_being_made(area);
	}
	number = note_file(&mapping);
	note_mapping(&mapping, (u64)mm);
	note_range(&mapping, (u64)mm, number);
	return 0;
}

/* Before Linux 6.1: called for each new mapping before the kernel writes its record
 * (kernel/events/core.c). */
SECTION("kprobe/perf_event_mmap")
int mmap_probe(struct context *context)
{
	struct vm_area_struct *area = (void *)context->registers[FIRST_ARGUMENT];
	struct mapping mapping = {
		.start = copied(&area->vm_start),
		.end = copied(&area->vm_end),
		.flags = copied(&area->vm_flags),
		.page = copied(&area->vm_pgoff),
		.file = (void *)copied(&area->vm_file),
		.is_new = 1,
	};
	u32 number = note_file(&mapping);

	note_mapping(&mapping, current_mm());
	note_range(&mapping, current_mm(), number);
	return 0;
}
