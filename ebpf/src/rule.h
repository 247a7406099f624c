/* SPDX-License-Identifier: GPL-2.0-only
 *
 * The parts of a rule of frames (abi.h).
 */
#pragma once

#include "abi.h"
#include "kernel.h"

/* In words of 8 bytes there, in bytes here. */
INLINE u32 rule_kind(u64 rule)
{
	return rule & 15;
}
INLINE u32 rule_end(u64 rule)
{
	return rule >> 4 & 15;
}
INLINE s64 rule_cfa(u64 rule)
{
	return (s64)(rule << 36) >> 44 << 3;
}
INLINE u64 rule_return_below(u64 rule)
{
	return (rule >> 28 & 1023) << 3;
}
INLINE u64 rule_frame_below(u64 rule)
{
	return (rule >> 38 & 1023) << 3;
}
INLINE u32 rule_check(u64 rule)
{
	return rule >> 48;
}

/* The parts of RULE_GOROUTINE beside the distances above, in bytes. */
INLINE u64 rule_first_slot(u64 rule)
{
	return (rule >> 38 & 15) << 3;
}
INLINE u64 rule_second_slot(u64 rule)
{
	return (rule >> 42 & 15) << 3;
}
INLINE u64 rule_frame_bytes(u64 rule)
{
	return (rule >> 46 & 3) << 3;
}
