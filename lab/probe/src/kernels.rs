//! Loops whose instructions are known to the last one, since compilers would change them. Each
//! takes a number of rounds, of which it runs at least one.

use std::arch::asm;

use crate::region::Region;

/// Additions of a round of [`adds`], each of the result of the one before.
pub const LINKS: u64 = 64;
/// Loads of a round of `chase`.
pub const STEPS: u64 = 8;
/// Loads of a round of [`read`].
pub const READS: u64 = 4;
/// Loads of a round of [`forward`] and [`forward_failing`].
pub const FORWARDS: u64 = 8;

/// Adds in a chain: [`LINKS`] additions a round, of one cycle each on every processor here. Both
/// operands are registers, since Golden Cove executes chains of small constants in no time (A. Fog,
/// microarchitecture, 2024).
pub fn adds(rounds: u64) {
    let rounds = rounds.max(1);
    // SAFETY: the code changes its operands only.
    unsafe {
        asm!(
            "2:",
            #[cfg(target_arch = "x86_64")]
            ".rept 64",
            #[cfg(target_arch = "x86_64")]
            "add {sum}, {one}",
            #[cfg(target_arch = "x86_64")]
            ".endr",
            #[cfg(target_arch = "x86_64")]
            "sub {rounds}, 1",
            #[cfg(target_arch = "x86_64")]
            "jnz 2b",
            #[cfg(target_arch = "aarch64")]
            ".rept 64",
            #[cfg(target_arch = "aarch64")]
            "add {sum}, {sum}, {one}",
            #[cfg(target_arch = "aarch64")]
            ".endr",
            #[cfg(target_arch = "aarch64")]
            "subs {rounds}, {rounds}, #1",
            #[cfg(target_arch = "aarch64")]
            "b.ne 2b",
            sum = inout(reg) 0_u64 => _,
            one = in(reg) 1_u64,
            rounds = inout(reg) rounds => _,
            options(nomem, nostack),
        );
    }
}

/// Adds in four chains, which a processor can execute at the same time: [`LINKS`] additions a
/// round.
pub fn adds_apart(rounds: u64) {
    let rounds = rounds.max(1);
    // SAFETY: the code changes its operands only.
    unsafe {
        asm!(
            "2:",
            #[cfg(target_arch = "x86_64")]
            ".rept 16",
            #[cfg(target_arch = "x86_64")]
            "add {a}, {one}",
            #[cfg(target_arch = "x86_64")]
            "add {b}, {one}",
            #[cfg(target_arch = "x86_64")]
            "add {c}, {one}",
            #[cfg(target_arch = "x86_64")]
            "add {d}, {one}",
            #[cfg(target_arch = "x86_64")]
            ".endr",
            #[cfg(target_arch = "x86_64")]
            "sub {rounds}, 1",
            #[cfg(target_arch = "x86_64")]
            "jnz 2b",
            #[cfg(target_arch = "aarch64")]
            ".rept 16",
            #[cfg(target_arch = "aarch64")]
            "add {a}, {a}, {one}",
            #[cfg(target_arch = "aarch64")]
            "add {b}, {b}, {one}",
            #[cfg(target_arch = "aarch64")]
            "add {c}, {c}, {one}",
            #[cfg(target_arch = "aarch64")]
            "add {d}, {d}, {one}",
            #[cfg(target_arch = "aarch64")]
            ".endr",
            #[cfg(target_arch = "aarch64")]
            "subs {rounds}, {rounds}, #1",
            #[cfg(target_arch = "aarch64")]
            "b.ne 2b",
            a = inout(reg) 0_u64 => _,
            b = inout(reg) 0_u64 => _,
            c = inout(reg) 0_u64 => _,
            d = inout(reg) 0_u64 => _,
            one = in(reg) 1_u64,
            rounds = inout(reg) rounds => _,
            options(nomem, nostack),
        );
    }
}

/// Follows pointers: each of [`STEPS`] loads a round has its address from the one before. Returns
/// the address it arrived at.
///
/// # Safety
/// The word at address `from`, and every word that pointers lead to from there, must be the address
/// of a word that nothing writes meanwhile.
pub(crate) unsafe fn chase(from: usize, rounds: u64) -> usize {
    let rounds = rounds.max(1);
    let mut at = from;
    // SAFETY: the caller answers for the addresses.
    unsafe {
        asm!(
            "2:",
            #[cfg(target_arch = "x86_64")]
            ".rept 8",
            #[cfg(target_arch = "x86_64")]
            "mov {at}, [{at}]",
            #[cfg(target_arch = "x86_64")]
            ".endr",
            #[cfg(target_arch = "x86_64")]
            "sub {rounds}, 1",
            #[cfg(target_arch = "x86_64")]
            "jnz 2b",
            #[cfg(target_arch = "aarch64")]
            ".rept 8",
            #[cfg(target_arch = "aarch64")]
            "ldr {at}, [{at}]",
            #[cfg(target_arch = "aarch64")]
            ".endr",
            #[cfg(target_arch = "aarch64")]
            "subs {rounds}, {rounds}, #1",
            #[cfg(target_arch = "aarch64")]
            "b.ne 2b",
            at = inout(reg) at,
            rounds = inout(reg) rounds => _,
            options(readonly, nostack),
        );
    }
    at
}

/// Reads a word every `stride` bytes: [`READS`] a round, from the start of the region on, as many
/// rounds as its size allows.
pub fn read(region: &Region, stride: usize, rounds: u64) {
    let rounds = rounds.max(1);
    let room = region.bytes() as u64 / (stride.max(1) as u64 * READS);
    let rounds = rounds.min(room);
    if rounds == 0 {
        return;
    }
    // SAFETY: the rounds end within the region, which this function borrows.
    unsafe {
        asm!(
            "2:",
            #[cfg(target_arch = "x86_64")]
            "mov {word}, [{at}]",
            #[cfg(target_arch = "x86_64")]
            "mov {word}, [{at} + {stride}]",
            #[cfg(target_arch = "x86_64")]
            "lea {at}, [{at} + 2 * {stride}]",
            #[cfg(target_arch = "x86_64")]
            "mov {word}, [{at}]",
            #[cfg(target_arch = "x86_64")]
            "mov {word}, [{at} + {stride}]",
            #[cfg(target_arch = "x86_64")]
            "lea {at}, [{at} + 2 * {stride}]",
            #[cfg(target_arch = "x86_64")]
            "sub {rounds}, 1",
            #[cfg(target_arch = "x86_64")]
            "jnz 2b",
            #[cfg(target_arch = "aarch64")]
            "ldr {word}, [{at}]",
            #[cfg(target_arch = "aarch64")]
            "ldr {word}, [{at}, {stride}]",
            #[cfg(target_arch = "aarch64")]
            "add {at}, {at}, {stride}, lsl #1",
            #[cfg(target_arch = "aarch64")]
            "ldr {word}, [{at}]",
            #[cfg(target_arch = "aarch64")]
            "ldr {word}, [{at}, {stride}]",
            #[cfg(target_arch = "aarch64")]
            "add {at}, {at}, {stride}, lsl #1",
            #[cfg(target_arch = "aarch64")]
            "subs {rounds}, {rounds}, #1",
            #[cfg(target_arch = "aarch64")]
            "b.ne 2b",
            at = inout(reg) region.address(0) => _,
            stride = in(reg) stride,
            word = out(reg) _,
            rounds = inout(reg) rounds => _,
            options(readonly, nostack),
        );
    }
}

/// A branch a round, on a bit that no processor can predict: the highest of a linear congruential
/// generator (Knuth, MMIX). With `predictable`, the same instructions with a branch that always
/// goes the same way.
pub fn branches(predictable: bool, rounds: u64) {
    let rounds = rounds.max(1);
    let mask = if predictable { 0_u64 } else { 1 << 63 };
    // SAFETY: the code changes its operands only.
    unsafe {
        asm!(
            "2:",
            #[cfg(target_arch = "x86_64")]
            "imul {state}, {factor}",
            #[cfg(target_arch = "x86_64")]
            "add {state}, {term}",
            #[cfg(target_arch = "x86_64")]
            "test {state}, {mask}",
            #[cfg(target_arch = "x86_64")]
            "jz 3f",
            #[cfg(target_arch = "x86_64")]
            "add {count}, 1",
            #[cfg(target_arch = "x86_64")]
            "3:",
            #[cfg(target_arch = "x86_64")]
            "sub {rounds}, 1",
            #[cfg(target_arch = "x86_64")]
            "jnz 2b",
            #[cfg(target_arch = "aarch64")]
            "mul {state}, {state}, {factor}",
            #[cfg(target_arch = "aarch64")]
            "add {state}, {state}, {term}",
            #[cfg(target_arch = "aarch64")]
            "tst {state}, {mask}",
            #[cfg(target_arch = "aarch64")]
            "b.eq 3f",
            #[cfg(target_arch = "aarch64")]
            "add {count}, {count}, #1",
            #[cfg(target_arch = "aarch64")]
            "3:",
            #[cfg(target_arch = "aarch64")]
            "subs {rounds}, {rounds}, #1",
            #[cfg(target_arch = "aarch64")]
            "b.ne 2b",
            state = inout(reg) crate::counter::read() => _,
            factor = in(reg) 6_364_136_223_846_793_005_u64,
            term = in(reg) 1_442_695_040_888_963_407_u64,
            mask = in(reg) mask,
            count = inout(reg) 0_u64 => _,
            rounds = inout(reg) rounds => _,
            options(nomem, nostack),
        );
    }
}

/// Stores a word and loads it again, by another register: [`FORWARDS`] times a round, each store of
/// what was loaded before.
pub fn forward(region: &mut Region, rounds: u64) {
    let rounds = rounds.max(1);
    // SAFETY: the words are in the region, which nothing else uses while this function borrows it.
    unsafe {
        asm!(
            "2:",
            #[cfg(target_arch = "x86_64")]
            ".rept 8",
            #[cfg(target_arch = "x86_64")]
            "mov [{to}], {word}",
            #[cfg(target_arch = "x86_64")]
            "mov {word}, [{from}]",
            #[cfg(target_arch = "x86_64")]
            ".endr",
            #[cfg(target_arch = "x86_64")]
            "sub {rounds}, 1",
            #[cfg(target_arch = "x86_64")]
            "jnz 2b",
            #[cfg(target_arch = "aarch64")]
            ".rept 8",
            #[cfg(target_arch = "aarch64")]
            "str {word}, [{to}]",
            #[cfg(target_arch = "aarch64")]
            "ldr {word}, [{from}]",
            #[cfg(target_arch = "aarch64")]
            ".endr",
            #[cfg(target_arch = "aarch64")]
            "subs {rounds}, {rounds}, #1",
            #[cfg(target_arch = "aarch64")]
            "b.ne 2b",
            word = inout(reg) 0_u64 => _,
            to = in(reg) region.address(0),
            from = in(reg) region.address(0),
            rounds = inout(reg) rounds => _,
            options(nostack),
        );
    }
}

/// Stores two bytes and loads a word with both, which the store buffer cannot forward: [`FORWARDS`]
/// loads a round, each store of what was loaded before.
pub fn forward_failing(region: &mut Region, rounds: u64) {
    let rounds = rounds.max(1);
    // SAFETY: the words are in the region, which nothing else uses while this function borrows it.
    unsafe {
        asm!(
            "2:",
            #[cfg(target_arch = "x86_64")]
            ".rept 8",
            #[cfg(target_arch = "x86_64")]
            "mov [{to}], {word:l}",
            #[cfg(target_arch = "x86_64")]
            "mov [{to} + 4], {word:l}",
            #[cfg(target_arch = "x86_64")]
            "mov {word}, [{from}]",
            #[cfg(target_arch = "x86_64")]
            ".endr",
            #[cfg(target_arch = "x86_64")]
            "sub {rounds}, 1",
            #[cfg(target_arch = "x86_64")]
            "jnz 2b",
            #[cfg(target_arch = "aarch64")]
            ".rept 8",
            #[cfg(target_arch = "aarch64")]
            "strb {word:w}, [{to}]",
            #[cfg(target_arch = "aarch64")]
            "strb {word:w}, [{to}, #4]",
            #[cfg(target_arch = "aarch64")]
            "ldr {word}, [{from}]",
            #[cfg(target_arch = "aarch64")]
            ".endr",
            #[cfg(target_arch = "aarch64")]
            "subs {rounds}, {rounds}, #1",
            #[cfg(target_arch = "aarch64")]
            "b.ne 2b",
            word = inout(reg) 0_u64 => _,
            to = in(reg) region.address(0),
            from = in(reg) region.address(0),
            rounds = inout(reg) rounds => _,
            options(nostack),
        );
    }
}
