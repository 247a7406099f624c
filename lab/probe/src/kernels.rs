//! Loops in assembly, so that no compiler changes their instructions. Each takes a number of
//! rounds, and runs at least one.

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

/// A loop of `$count` rounds of the processor's instructions, with these operands.
macro_rules! rounds {
    (
        $count:ident,
        x86_64: [$($x86_64:literal),+ $(,)?],
        aarch64: [$($aarch64:literal),+ $(,)?],
        $($operands:tt)+
    ) => {
        #[cfg(target_arch = "x86_64")]
        asm!(
            "2:", $($x86_64,)+ "sub {rounds}, 1", "jnz 2b",
            rounds = inout(reg) $count => _, $($operands)+
        );
        #[cfg(target_arch = "aarch64")]
        asm!(
            "2:", $($aarch64,)+ "subs {rounds}, {rounds}, #1", "b.ne 2b",
            rounds = inout(reg) $count => _, $($operands)+
        );
    };
}

/// Adds in a chain: [`LINKS`] additions a round, of one cycle each on every processor here. Both
/// operands are registers, since Golden Cove executes chains of small constants in no time (A. Fog,
/// microarchitecture, 2024).
pub fn adds(rounds: u64) {
    let rounds = rounds.max(1);
    // SAFETY: the code changes its operands only.
    unsafe {
        rounds!(
            rounds,
            x86_64: [".rept 64", "add {sum}, {one}", ".endr"],
            aarch64: [".rept 64", "add {sum}, {sum}, {one}", ".endr"],
            sum = inout(reg) 0_u64 => _,
            one = in(reg) 1_u64,
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
        rounds!(
            rounds,
            x86_64: [
                ".rept 16",
                "add {a}, {one}",
                "add {b}, {one}",
                "add {c}, {one}",
                "add {d}, {one}",
                ".endr",
            ],
            aarch64: [
                ".rept 16",
                "add {a}, {a}, {one}",
                "add {b}, {b}, {one}",
                "add {c}, {c}, {one}",
                "add {d}, {d}, {one}",
                ".endr",
            ],
            a = inout(reg) 0_u64 => _,
            b = inout(reg) 0_u64 => _,
            c = inout(reg) 0_u64 => _,
            d = inout(reg) 0_u64 => _,
            one = in(reg) 1_u64,
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
        rounds!(
            rounds,
            x86_64: [".rept 8", "mov {at}, [{at}]", ".endr"],
            aarch64: [".rept 8", "ldr {at}, [{at}]", ".endr"],
            at = inout(reg) at,
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
        rounds!(
            rounds,
            x86_64: [
                "mov {word}, [{at}]",
                "mov {word}, [{at} + {stride}]",
                "lea {at}, [{at} + 2 * {stride}]",
                "mov {word}, [{at}]",
                "mov {word}, [{at} + {stride}]",
                "lea {at}, [{at} + 2 * {stride}]",
            ],
            aarch64: [
                "ldr {word}, [{at}]",
                "ldr {word}, [{at}, {stride}]",
                "add {at}, {at}, {stride}, lsl #1",
                "ldr {word}, [{at}]",
                "ldr {word}, [{at}, {stride}]",
                "add {at}, {at}, {stride}, lsl #1",
            ],
            at = inout(reg) region.address(0) => _,
            stride = in(reg) stride,
            word = out(reg) _,
            options(readonly, nostack),
        );
    }
}

/// One branch per round, on a bit that no processor can predict: the highest of a linear
/// congruential generator (Knuth, MMIX). With `predictable`, the same instructions, and a branch
/// that is always taken.
pub fn branches(predictable: bool, rounds: u64) {
    let rounds = rounds.max(1);
    let mask = if predictable { 0_u64 } else { 1 << 63 };
    // SAFETY: the code changes its operands only.
    unsafe {
        rounds!(
            rounds,
            x86_64: [
                "imul {state}, {factor}",
                "add {state}, {term}",
                "test {state}, {mask}",
                "jz 3f",
                "add {count}, 1",
                "3:",
            ],
            aarch64: [
                "mul {state}, {state}, {factor}",
                "add {state}, {state}, {term}",
                "tst {state}, {mask}",
                "b.eq 3f",
                "add {count}, {count}, #1",
                "3:",
            ],
            state = inout(reg) crate::counter::read() => _,
            factor = in(reg) 6_364_136_223_846_793_005_u64,
            term = in(reg) 1_442_695_040_888_963_407_u64,
            mask = in(reg) mask,
            count = inout(reg) 0_u64 => _,
            options(nomem, nostack),
        );
    }
}

/// Stores a word and loads it again through another register, [`FORWARDS`] times per round. Each
/// store has the value of the load before.
pub fn forward(region: &mut Region, rounds: u64) {
    let rounds = rounds.max(1);
    // SAFETY: the words are in the region, which nothing else uses while this function borrows it.
    unsafe {
        rounds!(
            rounds,
            x86_64: [".rept 8", "mov [{to}], {word}", "mov {word}, [{from}]", ".endr"],
            aarch64: [".rept 8", "str {word}, [{to}]", "ldr {word}, [{from}]", ".endr"],
            word = inout(reg) 0_u64 => _,
            to = in(reg) region.address(0),
            from = in(reg) region.address(0),
            options(nostack),
        );
    }
}

/// Stores two bytes and loads a word that contains both, which the store buffer cannot forward;
/// [`FORWARDS`] loads per round. Each store has the value of the load before.
pub fn forward_failing(region: &mut Region, rounds: u64) {
    let rounds = rounds.max(1);
    // SAFETY: the words are in the region, which nothing else uses while this function borrows it.
    unsafe {
        rounds!(
            rounds,
            x86_64: [
                ".rept 8",
                "mov [{to}], {word:l}",
                "mov [{to} + 4], {word:l}",
                "mov {word}, [{from}]",
                ".endr",
            ],
            aarch64: [
                ".rept 8",
                "strb {word:w}, [{to}]",
                "strb {word:w}, [{to}, #4]",
                "ldr {word}, [{from}]",
                ".endr",
            ],
            word = inout(reg) 0_u64 => _,
            to = in(reg) region.address(0),
            from = in(reg) region.address(0),
            options(nostack),
        );
    }
}
