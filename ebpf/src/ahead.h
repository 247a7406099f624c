/* SPDX-License-Identifier: GPL-2.0-only
 *
 * Memory that the code ahead of a sample is going to load.
 *
 * From the registers of a snapshot the daemon interprets what the thread executes next, as far as
 * it knows the memory that branches depend on. Which addresses these are follows from the code: the
 * daemon has it read ahead (binary/code/src/interpret/ahead.rs), and keeps for each place of code
 * with snapshots a program that computes the addresses from the registers. It runs here, a bounded
 * number of operations, and copies whole lines. A program that is wrong for where the thread goes
 * copies lines in vain.
 */
#pragma once

#include "abi.h"
#include "maps.h"

/* Copies the line with the byte at `address`, unless the snapshot has it. */
INLINE void copy_line(struct snapshot *snapshot, u64 address)
{
	u64 line = address & ~(LINE_BYTES - 1ull);
	u32 number, lines = snapshot->lines;

	for (number = 0; number < LINES_MAX; number++) {
		if (number < lines && snapshot->line_addresses[number] == line)
			return;
	}
	if (lines >= LINES_MAX)
		return;
	lines &= LINES_MAX - 1;
	if (bpf_probe_read_user(snapshot->line_bytes[lines], LINE_BYTES, (void *)line) != 0)
		return;
	snapshot->line_addresses[lines] = line;
	snapshot->lines = lines + 1;
}

INLINE u64 loaded(struct ahead_state *state, u64 address, u32 bytes)
{
	state->word = 0;
	if (bytes == 1)
		bpf_probe_read_user(&state->word, 1, (void *)address);
	else if (bytes == 2)
		bpf_probe_read_user(&state->word, 2, (void *)address);
	else if (bytes == 4)
		bpf_probe_read_user(&state->word, 4, (void *)address);
	else
		bpf_probe_read_user(&state->word, 8, (void *)address);
	return state->word;
}

/* One operation of a CPU's program. Whether another one follows. A function of its own to the
 * verifier, which is verified once and not again for each operation. */
__attribute__((noinline)) int ahead_step(u32 cpu, u32 index, u32 number)
{
	struct ahead_state *state = bpf_map_lookup_elem(&AHEAD_STATES, &cpu);
	struct snapshot *snapshot = bpf_map_lookup_elem(&SNAPSHOT_DATA, &index);
	struct ahead_operation *operation;
	u64 a, b, result = 0;
	u32 argument;

	if (!state || !snapshot || number >= AHEAD_OPERATIONS_MAX)
		return 0;
	operation = &state->program.operations[number];
	a = state->values[operation->a & (AHEAD_VALUES - 1)];
	b = state->values[operation->b & (AHEAD_VALUES - 1)];
	argument = operation->argument & 63;
	switch (operation->kind) {
	case AHEAD_LINE:
		copy_line(snapshot, a + operation->immediate);
		break;
	case AHEAD_LOAD:
		result = loaded(state, a + operation->immediate, argument);
		break;
	case AHEAD_SUM:
		result = a + (b << argument) + operation->immediate;
		break;
	case AHEAD_SUBTRACT:
		result = a - b;
		break;
	case AHEAD_MULTIPLY:
		result = a * b;
		break;
	case AHEAD_AND:
		result = a & b;
		break;
	case AHEAD_OR:
		result = a | b;
		break;
	case AHEAD_XOR:
		result = a ^ b;
		break;
	case AHEAD_RIGHT:
		result = a >> (b & 63);
		break;
	case AHEAD_RIGHT_SIGNED:
		result = (s64)a >> (b & 63);
		break;
	case AHEAD_EXTENDED:
		result = a << ((64 - argument) & 63) >> ((64 - argument) & 63);
		break;
	case AHEAD_EXTENDED_SIGNED:
		result = (s64)(a << ((64 - argument) & 63)) >> ((64 - argument) & 63);
		break;
	default:
		return 0;
	}
	state->values[(AHEAD_RESULTS + number) & (AHEAD_VALUES - 1)] = result;
	return 1;
}

/* Adds the lines to a snapshot that the program of its place copies. */
__attribute__((noinline)) int read_ahead(u32 cpu, u32 index)
{
	struct ahead_state *state = bpf_map_lookup_elem(&AHEAD_STATES, &cpu);
	struct snapshot *snapshot = bpf_map_lookup_elem(&SNAPSHOT_DATA, &index);
	struct ahead *program;
	u32 number;

	if (!state || !snapshot)
		return 0;
	state->key.key = snapshot->key;
	state->key.space = snapshot->space;
	program = bpf_map_lookup_elem(&AHEAD, &state->key);
	if (!program)
		return 0;
	state->program = *program;
	for (number = 0; number < SNAPSHOT_REGISTERS - 2; number++)
		state->values[number] = snapshot->registers[number];
	state->values[AHEAD_COUNTER] = snapshot->registers[SNAPSHOT_REGISTERS - 2];
	state->values[AHEAD_ZERO] = 0;
	for (number = 0; number < AHEAD_OPERATIONS_MAX; number++) {
		if (!ahead_step(cpu, index, number))
			break;
	}
	return 0;
}
