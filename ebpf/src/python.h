/* SPDX-License-Identifier: GPL-2.0-only
 *
 * Frames of interpreters (CPython, Ruby, PHP, Perl) at a sample. They lie in the heap and are gone
 * when the daemon looks: so the sampler copies of each frame its code object, its instruction and
 * what kind it is. Each frame has a link to the next one, or lies a constant distance before it.
 * Names come from the code objects, later. Processes without a runtime that is known pay for one
 * look-up.
 */
#pragma once

#include "abi.h"
#include "kernel.h"
#include "maps.h"
#include "settings.h"

#if defined(ARCH_x86_64)
/* What the thread keeps in %fs: with the C library's threads, the address of what pthread_self
 * names. The kernel has it here while the thread runs, too, since nobody changes it otherwise than
 * by a system call (arch_prctl, clone). */
INLINE u64 thread_pointer(void)
{
	struct task_struct *task = bpf_get_current_task();

	return TASK_ACCESS == TASK_HIDDEN ? 0 : copied(&task->thread.fsbase);
}
#else
/* Here a thread's pointer is not what pthread_self names. */
INLINE u64 thread_pointer(void)
{
	return 0;
}
#endif

/* A word of the process's memory; 0 when the address cannot be read. */
INLINE u64 user_word(u64 at)
{
	u64 word = 0;

	bpf_probe_read_user(&word, sizeof(word), (void *)at);
	return word;
}

/* The word of a block at an offset, which is a multiple of 8 below PYTHON_BLOCK_MAX. */
INLINE u64 word_of(const void *block, u64 at)
{
	return *(const u64 *)((const unsigned char *)block + (at & 0x78));
}

/* What leads to the current thread's frames; 0: nothing. */
INLINE u64 list_state(const struct python_layout *layout)
{
	u64 thread, words, state;

	if (layout->root)
		return user_word(layout->root);
	words = thread = thread_pointer();
	if (!thread)
		return 0;
	if (layout->table_at)
		words = user_word(thread + layout->table_at);
	state = user_word(words + layout->state_at);
	/* The word may be another library's, or of a thread that never ran Python. */
	if (!state || layout->id_at == PYTHON_DIRECT)
		return state;
	return user_word(state + layout->id_at) == thread ? state : 0;
}

/* The current thread's innermost frame; 0: none. `end`: where frames in a row end. */
OUT_OF_LINE u64 innermost_python(const struct python_layout *layout, u64 *end)
{
	u64 state = list_state(layout), frame;

	if (!state)
		return 0;
	*end = layout->step ? user_word(state) + 8 * user_word(state + 8) : 0;
	if (layout->frame_at == PYTHON_DIRECT)
		return state;
	frame = user_word(state + layout->frame_at);
	if (frame && layout->current_at != PYTHON_DIRECT)
		frame = user_word(frame + layout->current_at);
	return frame;
}

#include "contexts.h"

/* Copies the frames of the current thread behind the record. */
OUT_OF_LINE void copy_python(struct stack_record *record, const struct python_layout *layout)
{
	struct python_frame *frames = (void *)(record + 1);
	u64 frame, size, end = 0;
	u32 number;

	frame = innermost_python(layout, &end);
	for (number = 0; number < PYTHON_FRAMES_MAX; number++) {
		struct python_frame *to = frames + number;

		if (!frame)
			break;
		size = layout->block_bytes;
		AT_MOST(size, PYTHON_BLOCK_MAX);
		/* The block's other words are overwritten by the next frame. */
		if (bpf_probe_read_user(to, size, (void *)(frame + layout->block_at)) != 0)
			break;
		size = word_of(to, layout->flags_at);
		if (layout->flags_at & PYTHON_FLAGS_THERE)
			size = user_word(size);
		if (!layout->step)
			frame = word_of(to, layout->previous_at);
		else if (frame + layout->step < end)
			frame += layout->step;
		else
			frame = 0;
		*to = (struct python_frame){
			.code = word_of(to, layout->code_at),
			.instruction = word_of(to, layout->instruction_at),
			.flags = size,
		};
	}
	record->python_frames = number;
}

/* Most bytes of a record's frames of CPython. */
enum { PYTHON_BYTES_MAX = PYTHON_FRAMES_MAX * sizeof(struct python_frame) };

/* What follows them. */
INLINE unsigned char *after_python(struct stack_record *record)
{
	u64 bytes = record->python_frames * (u64)sizeof(struct python_frame);

	AT_MOST(bytes, PYTHON_BYTES_MAX);
	return (unsigned char *)(record + 1) + bytes;
}

#include "attributes.h"

/* Copies what the process's runtimes have for the current thread behind the record: frames of
 * interpreters, and attributes. Notes whether the process has further frames on its stack
 * (runtime_frames.h). */
OUT_OF_LINE void copy_runtimes(struct stack_record *record)
{
	const struct runtime_layout *layouts = bpf_map_lookup_elem(&RUNTIMES, &record->space);
	const struct python_layout *layout;

	if (!layouts)
		return;
	record->has_frame_layout = layouts->frames.block_bytes || layouts->list.loop_bytes ||
				   layouts->erlang.areas[0].len || layouts->luajit.vm_bytes;
	layout = &layouts->python;
	if (layouts->contexts.entry_bytes)
		copy_contexts(bpf_get_smp_processor_id(),
			      layouts->contexts.base ?: list_state(layout));
	if (layout->block_bytes)
		copy_python(record, layout);
	if (layouts->attributes.kind)
		copy_attributes(bpf_get_smp_processor_id());
}
