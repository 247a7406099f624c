/* SPDX-License-Identifier: GPL-2.0-only
 *
 * Whether code calls, as `call_before` in binary/unwind/src/call.rs has it.
 */
#pragma once

#include "kernel.h"

#if defined(ARCH_x86_64)
/* The bytes of an operand after its ModRM byte (Intel SDM, volume 2, tables 2-2 and 2-3). */
INLINE u32 operand_bytes(u32 modrm, u32 sib)
{
	u32 mode = modrm >> 6 & 3, has_sib = mode != 3 && (modrm & 7) == 4;

	if (mode == 2 || (mode == 0 && ((modrm & 7) == 5 || (has_sib && (sib & 7) == 5))))
		return has_sib + 4;
	return has_sib + (mode == 1);
}

/* Whether the last of 8 bytes of code are those of a call. */
INLINE int ends_with_call(u64 code)
{
	u32 length;

	if ((code >> 24 & 0xff) == 0xe8)
		return 1;
#pragma unroll
	for (length = 2; length <= 7; length++) {
		u32 begin = code >> (64 - 8 * length);
		u32 modrm = begin >> 8 & 0xff;

		if ((begin & 0xff) == 0xff && (modrm >> 3 & 7) == 2 &&
		    operand_bytes(modrm, begin >> 16 & 0xff) == length - 2)
			return 1;
	}
	return 0;
}

#else
INLINE int ends_with_call(u64 code)
{
	u32 word = code >> 32;

	/* BL, BLR, and BLRAA, BLRAAZ, BLRAB, BLRABZ (Arm ARM, section C6.2). */
	return word >> 26 == 0x25 || (word & 0xfffffc1f) == 0xd63f0000 ||
	       (word & 0xfefff800) == 0xd63f0800;
}
#endif
