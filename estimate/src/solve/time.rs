//! What the time of a block says of how often it is executed.

use super::ObservedBlock;

/// Standard deviation of the logarithm of cycles per instruction of blocks of one procedure.
const TIME_SD: f64 = 0.4;
/// Times that are off by so many standard deviations weigh the root of a half of others: of 3831
/// blocks of eight programs a twentieth took six times as long an instruction as the middle one of
/// their procedure. Of a normal distribution as wide in its middle it would be a two-hundredth.
const FAR: f64 = 3.0;
/// What a wrong way costs where the right one begins, in instructions that could have been executed
/// instead. Fitted to the same blocks: 6 to 8; 5 to 20 make hardly a difference. As many of a
/// block's executions were on a wrong way as its branches would make that are guessed by their
/// shares alone.
const WRONG_WAY: f64 = 10.0;

/// What a block's samples say of its executions: those of each of its instructions, or what its
/// issue points tell; never 0.
pub(super) fn rate(block: &ObservedBlock) -> f64 {
    // A class without issue points says nothing.
    let told = block.told.filter(|told| told.below.is_finite());
    told.map_or((block.samples + 0.3) / block.instructions.max(1.0), |told| told.rate)
}

/// How far off the logarithm of that may be, where no issue points tell.
pub(crate) fn spread(block: &ObservedBlock) -> f64 {
    (TIME_SD * TIME_SD + 1.0 / (block.samples + 0.5)).sqrt()
}

/// What they say of a block that so many of its executions come to after a wrong way.
pub(super) fn rate_after(block: &ObservedBlock, wrong: f64) -> f64 {
    rate(block) / (1.0 + wrong * WRONG_WAY / block.instructions.max(1.0))
}

/// How far off it may be where it is `over` what the flow says, by its logarithm: what is far off
/// is so for a reason of its own.
pub(super) fn doubted(block: &ObservedBlock, over: f64) -> f64 {
    spread(block).hypot(over / FAR)
}
