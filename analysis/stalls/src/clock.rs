//! The clock of a processor's core, measured by instructions of known latency.

use std::hint::black_box;
use std::time::Instant;

/// Multiplications and rotations per round, each dependent on the previous result.
const LINKS: u32 = 1 << 15;
/// Number of rounds. The fastest round counts, because other load only makes rounds slower.
const ROUNDS: u32 = 3000;

/// Cycles a second of a busy CPU, measured in about 0.1 s. A multiplication of 64 bits takes 3
/// cycles and a rotation by a constant 1, on all x86-64 processors since 2008 (A. Fog, instruction
/// tables). None on others.
#[expect(
    clippy::manual_rotate,
    reason = "`rotate_left` is a call where only this crate is optimised"
)]
pub fn hertz() -> Option<f64> {
    let round = |_| {
        let begun = Instant::now();
        let mut link = black_box(1_u64);
        let mut left = LINKS;
        // Where only this crate is optimised, a range's iterator is a call.
        while left > 0 {
            link = link.wrapping_mul(0x5851_f42d_4c95_7f2d);
            link = link << 7 | link >> 57;
            left = left.wrapping_sub(1);
        }
        black_box(link);
        begun.elapsed().as_secs_f64()
    };
    let fastest = (0..ROUNDS).map(round).fold(f64::INFINITY, f64::min);
    (cfg!(target_arch = "x86_64") && fastest > 0.0).then(|| f64::from(LINKS) * 4.0 / fastest)
}

#[cfg(test)]
mod tests {
    use super::hertz;

    /// A clock that other instructions than the chain's slowed down would be far below.
    #[test]
    fn the_clock_is_one_of_a_processor_of_today() {
        let hertz = hertz();
        assert_eq!(hertz.is_some(), cfg!(target_arch = "x86_64"));
        assert!(hertz.is_none_or(|hertz| (1e9..8e9).contains(&hertz)), "{hertz:?}");
    }
}
