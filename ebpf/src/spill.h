/* SPDX-License-Identifier: GPL-2.0-only
 *
 * Entries that leave the table: they go to the half's spill buffer, and when that is full, the
 * sample that would have evicted one is counted as lost.
 */
#pragma once

#include "abi.h"
#include "maps.h"
#include "settings.h"

/* Copies the oldest entry of a full bucket to the spill buffer. 0 when the buffer is full. */
OUT_OF_LINE int spill(struct half_stats *stats, u32 half_index, const struct entry *oldest)
{
	u32 used = stats->spilled;
	u32 index = half_index * SPILL_ENTRIES + used;
	struct entry *slot;

	if (used >= SPILL_ENTRIES)
		return 0;
	slot = bpf_map_lookup_elem(&SPILL, &index);
	if (!slot)
		return 0;
	*slot = *oldest;
	stats->spilled = used + 1;
	return 1;
}

/* Counts a lost sample. The counters are not in the CPU's page, so that the words which every
 * sample touches stay in one cache line. */
OUT_OF_LINE int lose(u32 half_index, u64 event)
{
	struct losses *losses = bpf_map_lookup_elem(&LOSSES, &half_index);

	if (losses)
		losses->spill_full[event]++;
	return 0;
}
