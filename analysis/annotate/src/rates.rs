//! Rounds per second of a procedure's loops, and what they say of its executions.

use estimate::times::ExecutionNs;
use stalls::{Scale, ScaleBasis};

use crate::graphs::Graph;

/// Time of one round of a loop.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoundNs {
    /// The mean, in ns, calls included.
    pub value: f64,
    /// Limits of 95 % confidence.
    pub low: f64,
    /// The upper one.
    pub high: f64,
    /// Pairs of samples that tell it.
    pub pairs: u64,
    /// Whether the loop calls nothing, so that the time is the loop's own.
    pub is_own: bool,
}

/// Largest standard deviation of the logarithm of a loop's rounds, beside the procedure's other
/// executions, with which they scale these: cycles are then within a factor of two.
const ROUNDS_LOG_SD_MAX: f64 = 0.35;

/// Fewest pairs of samples of a loop, and its smallest share of the procedure's samples, with which
/// its rounds scale the procedure's executions. With fewer, one of some loops of a Rust program was
/// wrong by a factor of 27.
const PAIRS_MIN: u64 = 20;
const SHARE_MIN: f64 = 0.2;

/// Share of a loop's rounds in which a call is seldom enough to take no time worth mentioning.
const SELDOM: f64 = 0.01;

impl Graph {
    /// The time of one round of the loop with this number, where registers at pairs of samples
    /// tell it.
    pub fn round_ns(&self, number: usize) -> Option<RoundNs> {
        let estimate = self.estimate.as_ref()?;
        let header = self.loops.loops().get(number)?.header;
        let rounds = estimate.blocks.get(header)?;
        let timed = |one: &ExecutionNs| {
            let block = self.graph.block_of(one.at)?;
            let runs = estimate.blocks.get(block)?;
            // An instruction of an inner loop counts that loop's rounds.
            let is_of = self.loops.innermost(block) == Some(number) && runs.executions > 0.0;
            let times = if one.is_round { 1.0 } else { runs.executions / rounds.executions };
            // What is executed in each round needs no estimate.
            let is_sure = one.is_round || block == header || (times - 1.0).abs() < 1e-9;
            let sd = if is_sure { 0.0 } else { 2.0 * runs.log_sd.max(rounds.log_sd) };
            let (low, high) = (one.low * times * (-sd).exp(), one.high * times * sd.exp());
            let round =
                RoundNs { value: one.value * times, low, high, pairs: one.pairs, is_own: false };
            is_of.then_some((sd, round))
        };
        // The surest, and of these the one with the most pairs.
        let all = self.times.iter().filter_map(timed);
        let surest = all.min_by(|(a, x), (b, y)| a.total_cmp(b).then(y.pairs.cmp(&x.pairs)));
        let runs = |block: usize| estimate.blocks.get(block).map_or(0.0, |runs| runs.executions);
        let blocks = 0..self.graph.blocks().len();
        let is_own = blocks
            .filter(|block| self.loops.contains(number, *block))
            .filter(|block| runs(*block) > SELDOM * rounds.executions)
            .all(|block| self.graph.calls_in(block).is_empty());
        surest.map(|(_, round)| RoundNs { is_own, ..round })
    }

    /// Samples of a loop's own code.
    pub fn loop_samples(&self, number: usize) -> f64 {
        let blocks = 0..self.graph.blocks().len();
        self.samples_of(blocks.filter(|block| self.loops.contains(number, *block)))
    }

    /// The scale by the rounds per second of the loop with the most samples that calls nothing,
    /// where CPUs have so many cycles in a ns.
    pub fn scale_by_rounds(&self, ghz: f64) -> Option<Scale> {
        let estimate = self.estimate.as_ref()?;
        let loops = self.loops.loops().iter().enumerate();
        let timed = loops.filter_map(|(number, one)| {
            let round = self.round_ns(number).filter(|round| round.is_own)?;
            let rounds = estimate.blocks.get(one.header)?;
            Some((self.loop_samples(number), round, rounds))
        });
        let all = self.samples_of(0..self.graph.blocks().len());
        let sure = timed.filter(|(samples, round, rounds)| {
            rounds.log_sd <= ROUNDS_LOG_SD_MAX
                && round.pairs >= PAIRS_MIN
                && *samples >= SHARE_MIN * all
        });
        let (samples, round, rounds) = sure.max_by(|(a, ..), (b, ..)| a.total_cmp(b))?;
        // Samples, for each cycle of the rounds that the loop made.
        let scale = |ns: f64| samples / (ns * ghz * rounds.executions);
        let factor = (2.0 * rounds.log_sd).exp() * (1.0 + 2.0 / samples.sqrt());
        let measured = Scale::measured(scale(round.value), ScaleBasis::Rounds)?;
        let (upper, lower) = (scale(round.low) * factor, scale(round.high) / factor);
        Some(Scale { upper, lower, lower_if_stalled: lower, ..measured })
    }
}
