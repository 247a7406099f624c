//! How many samples a cycle of one execution makes. Samples tell of time only, so how often a
//! procedure was executed is not known. But no instruction is faster than its best case, and most
//! code is slower by much the same factor, whatever it does: where time is compared with exact
//! counts (`dcpi truth`), 290 procedures of eight programs took about 3 times the mean that is
//! taken here, with a standard deviation of .56 in the logarithm. (The paper took what comes
//! nearest to its best case for unstalled, section 6.1.3; but hardly anything is on a processor
//! that runs many instructions at once, and what seems to be is what is executed less often than it
//! is thought to be. Where a processor issues in order, that is done: see [`estimate::issue`].)

use estimate::Pace;

/// A block.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub struct Block {
    /// Samples of it.
    pub samples: f64,
    /// Cycles of all its executions at best, beside those of other blocks of the procedure.
    pub best: f64,
    /// The same at worst: with all that may have stalled them.
    pub worst: f64,
    /// Standard deviation of the logarithm of how many executions that is.
    pub spread: f64,
}

/// Samples for each cycle of an execution, beside which executions of blocks are given.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Scale {
    /// If the procedure is as far from its best case as most are; where nothing is known, as far as
    /// it can be.
    pub told: f64,
    /// At most, for 19 of 20 procedures.
    pub most: f64,
    /// At least, for 19 of 20 procedures.
    pub least: f64,
    /// At least for all: if all was stalled by what may have stalled it.
    pub stalled: f64,
    /// What it is known by.
    pub by: By,
}

/// What a scale is known by.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum By {
    /// By how far most code is from its best case.
    Most,
    /// By instructions that seem not to have been stalled, of a processor that issues in order.
    Points,
    /// By samples of executed instructions.
    Instructions,
    /// By nothing: most of its time is where it may have waited for memory, for as long as that
    /// takes or not at all, and the rest is too little to tell how long an execution took.
    Nothing,
}

/// Samples and best cases of instructions that do not wait for memory, as parts of a procedure's.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Steady {
    /// Part of the samples.
    pub samples: f64,
    /// Part of the best case of all executions.
    pub best: f64,
}

/// With less than this part of a procedure's best case in instructions that do not wait for memory,
/// these do not tell how long an execution took, if they have not most of the samples either.
/// Smaller values let single instructions tell.
const STEADY_MIN: f64 = 0.1;

/// How many times its best case a procedure takes; see above. Measured on a Zen 3 processor.
const TYPICAL: f64 = 3.0;
/// By what factor 19 of 20 of all 428 procedures are off at most, also those with few samples.
const OFF: f64 = 4.0;
/// What is executed so often within a sixth or so, by its standard deviation, counts twice as much
/// as what is known less well.
const SURE: f64 = 0.15;
/// Samples as of the whole procedure that are added to each block's, or those with few would tell
/// anything.
const FEW: f64 = 4.0;

impl Scale {
    /// That of samples of executed instructions.
    #[must_use]
    pub fn measured(scale: f64) -> Self {
        Self { told: scale, most: scale, least: scale, stalled: scale, by: By::Instructions }
    }

    /// That of issue points, if they tell one.
    #[must_use]
    pub fn paced(pace: Pace, blocks: &[Block]) -> Option<Self> {
        let off = (2.0 * pace.log_sd).exp();
        let (told, most, least) =
            (pace.samples_per_cycle, pace.samples_per_cycle * off, pace.samples_per_cycle / off);
        // All issue points may have been stalled: then executions are fewer.
        let known = told > 0.0 && least > 0.0 && most.is_finite();
        known.then_some(Self {
            told,
            most,
            least,
            stalled: stalled(blocks).min(least),
            by: By::Points,
        })
    }

    /// The scale that blocks tell. None without samples.
    #[must_use]
    pub fn of(blocks: &[Block]) -> Option<Self> {
        let sum = |of: fn(&Block) -> f64| blocks.iter().map(of).sum::<f64>();
        let (samples, best) = (sum(|block| block.samples), sum(|block| block.best));
        if samples <= 0.0 || best <= 0.0 {
            return None;
        }
        let fastest = samples / best;
        // The geometric mean: what is stalled has many samples, and what is executed less often
        // than it is thought to be has few.
        let (mut weights, mut logs) = (0.0, 0.0);
        for block in blocks {
            let weight = block.best / (1.0 + (block.spread / SURE).powi(2));
            weights += weight;
            logs += weight * ((block.samples + FEW) / (block.best + FEW / fastest)).ln();
        }
        let typical = if weights > 0.0 { (logs / weights).exp() } else { fastest };
        let told = (typical / TYPICAL).min(fastest);
        let least = told / OFF;
        Some(Self {
            told,
            most: (told * OFF).min(fastest),
            least,
            stalled: stalled(blocks).min(least),
            by: By::Most,
        })
    }
}

impl Scale {
    /// This, or that nothing is known where `steady` instructions, if stalled as most code is, say
    /// that executions took longer than this allows.
    #[must_use]
    pub fn unless_waiting(self, steady: Steady, blocks: &[Block]) -> Self {
        let sum = |of: fn(&Block) -> f64| blocks.iter().map(of).sum::<f64>();
        let fastest = sum(|block| block.samples) / sum(|block| block.best);
        let by_steady = fastest * steady.samples / steady.best.max(f64::MIN_POSITIVE) / TYPICAL;
        let tells = steady.best >= STEADY_MIN || steady.samples >= 0.5;
        if tells && by_steady >= self.least {
            return self;
        }
        let told = if self.stalled > 0.0 { self.stalled } else { self.least };
        Self { told, most: fastest, least: self.stalled, by: By::Nothing, ..self }
    }

    /// Whether cycles of an execution are told, or only what they are at least and at most.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.by != By::Nothing
    }
}

/// Even if all that may have stalled it has, a block's samples are not more than this many for a
/// cycle.
fn stalled(blocks: &[Block]) -> f64 {
    let surely =
        blocks.iter().map(|block| (block.samples - 2.0 * block.samples.sqrt()) / block.worst);
    surely.filter(|ratio| ratio.is_finite()).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pointer chase through memory took "15 cycles, at most 60" an execution: 3 times its best
    /// case, where 570 were true.
    #[test]
    fn a_range_is_not_told_where_memory_may_have_taken_all_the_time() {
        let chase = Block { samples: 48_000.0, best: 5.0, worst: 3605.0, spread: 0.0 };
        let scale = Scale::of(&[chase]).unwrap();
        assert!((scale.told * 15.0 / 48_000.0 - 1.0).abs() < 0.01, "{scale:?}");
        let all_waits = scale.unless_waiting(Steady { samples: 0.001, best: 0.05 }, &[chase]);
        assert!(all_waits.by == By::Nothing && !all_waits.is_known());
        let cycles = |samples: f64| 48_000.0 / samples;
        assert!(
            (cycles(all_waits.most) - 5.0).abs() < 0.01 && cycles(all_waits.least) > 3605.0,
            "{all_waits:?}"
        );
        // Some that do not wait have hardly a sample, though they are a third of the best case.
        let others = scale.unless_waiting(Steady { samples: 0.02, best: 0.3 }, &[chase]);
        assert!(!others.is_known());
        // A third of the time in a third of the best case is as most code is.
        assert_eq!(scale.unless_waiting(Steady { samples: 0.3, best: 0.3 }, &[chase]), scale);
        // What may wait without end: at least the best case, and no most.
        let endless = Block { worst: f64::INFINITY, ..chase };
        let scale = Scale::of(&[endless])
            .unwrap()
            .unless_waiting(Steady { samples: 0.0, best: 0.0 }, &[endless]);
        assert!(scale.least == 0.0 && scale.told > 0.0 && !scale.is_known(), "{scale:?}");
    }

    #[test]
    fn most_code_sets_the_scale() {
        let plain = Block { samples: 600.0, best: 20.0, worst: 300.0, spread: 0.0 };
        let stalled = Block { samples: 40_000.0, best: 10.0, worst: 50_000.0, spread: 0.0 };
        let scale = Scale::of(&[plain]).unwrap();
        assert!(
            (scale.told - 10.0).abs() < 0.01 && (scale.most - 30.0).abs() < 0.01,
            "never faster than at best: {scale:?}"
        );
        assert!(
            (scale.least - 2.5).abs() < 0.01 && (1.8..1.9).contains(&scale.stalled),
            "{scale:?}"
        );
        // What is stalled for long leaves the rest to tell; where there is no rest, it is told too
        // fast.
        let with = Scale::of(&[plain, stalled]).unwrap();
        assert!((1.0..10.0).contains(&(with.told / scale.told)), "{with:?}");
        let alone = Scale::of(&[stalled]).unwrap();
        assert!(alone.told > 1000.0 && alone.stalled < 1.0, "{alone:?}");
        // Who is not known to be executed so often has less to say.
        let unsure = Block { samples: 10.0, spread: 1.0, ..plain };
        let with = Scale::of(&[plain, unsure]).unwrap();
        assert!((0.4..1.0).contains(&(with.told / scale.told)), "{with:?}");
        assert_eq!(Scale::of(&[Block { samples: 0.0, ..plain }]), None);
        // Many short ones, of which hardly any has a sample, are the same all together.
        let few: Vec<Block> = (0..1000)
            .map(|number| Block {
                samples: f64::from(number % 10 / 9),
                best: 1.0,
                worst: 100.0,
                spread: 0.0,
            })
            .collect();
        let scale = Scale::of(&few).unwrap();
        assert!((0.02..0.05).contains(&scale.told), "{scale:?}");
    }
}
