//! How many samples a cycle of one execution makes. Samples tell of time only, so it is not known how often the procedure was executed,
//! but no instruction is faster than its best case: what comes nearest to it sets the scale, as the paper's clusters of the smaller S/M did
//! (section 6.1.3). Where all is stalled nothing sets it, and the executions may be far fewer: that is the other end of the range.

/// Some instructions, one after the other.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub struct Stretch {
    /// Samples of them.
    pub samples: f64,
    /// Cycles of all their executions at best, beside those of other stretches of the procedure.
    pub best: f64,
    /// The same at worst: with all that may have stalled them.
    pub worst: f64,
    /// Standard deviation of the logarithm of how many executions that is, times `best`.
    pub unsure: f64,
}

impl Stretch {
    /// Adds another.
    pub fn add(&mut self, other: &Self) {
        self.samples += other.samples;
        self.best += other.best;
        self.worst += other.worst;
        self.unsure += other.unsure;
    }
}

/// Samples for each cycle of an execution, beside which executions of blocks are given.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Scale {
    /// If the few instructions that come nearest to their best case run at it: what is told by default.
    pub told: f64,
    /// At most: if the blocks that come nearest to their best case run at it.
    pub most: f64,
    /// At least: if all was stalled by what may have stalled it.
    pub least: f64,
    /// Whether it was measured: by samples of executed instructions.
    pub measured: bool,
}

/// A stretch that should have fewer samples than this, were all alike, tells nothing alone.
const SAMPLES_MIN: f64 = 16.0;
/// What part of all cycles of the best case is taken to run at it.
const UNSTALLED: f64 = 0.25;

/// What is executed so often within a sixth or so, by its standard deviation, is looked at alone if it has this part of the samples: what is
/// thought to be executed more often than it is seems to run fastest.
const SURE: f64 = 0.15;
const SURE_MIN: f64 = 0.1;
/// Logarithm of the largest factor by which the scale is said to be off for that reason.
const UNSURE_MAX: f64 = 3.0;

impl Scale {
    /// The scale that blocks tell, each cut into stretches. None without samples.
    #[must_use]
    pub fn of(blocks: &[Vec<Stretch>]) -> Option<Self> {
        let whole = |blocks: &[&Vec<Stretch>]| -> Vec<Stretch> { blocks.iter().map(|block| sum(block)).collect() };
        let every: Vec<&Vec<Stretch>> = blocks.iter().collect();
        let all = sum(&whole(&every));
        if all.samples <= 0.0 || all.best <= 0.0 {
            return None;
        }
        let is_sure = |block: &Stretch| block.best > 0.0 && block.unsure <= SURE * block.best;
        let sure: Vec<&Vec<Stretch>> = blocks.iter().filter(|block| is_sure(&sum(block))).collect();
        let known = if sum(&whole(&sure)).samples >= SURE_MIN * all.samples { sure } else { every };
        let most = Nearest::of(&whole(&known))?;
        let told = Nearest::of(&known.into_iter().flatten().copied().collect::<Vec<_>>())?;
        // What runs at its best case may be executed more often than it is told to be; and where the ends contradict each other, one is wrong.
        let least = told.least.min(told.scale / told.unsure);
        Some(Self { told: told.scale, most: f64::max(most.scale, told.least).max(told.scale), least, measured: false })
    }
}

fn sum(stretches: &[Stretch]) -> Stretch {
    let mut all = Stretch::default();
    stretches.iter().for_each(|stretch| all.add(stretch));
    all
}

/// What those tell that come nearest to their best case.
struct Nearest {
    scale: f64,
    /// Even if all that may have stalled it has, a stretch's samples are not more than this many for a cycle.
    least: f64,
    /// A factor: their executions may be more or fewer by so much.
    unsure: f64,
}

impl Nearest {
    fn of(stretches: &[Stretch]) -> Option<Self> {
        let all = sum(stretches);
        if all.samples <= 0.0 || all.best <= 0.0 {
            return None;
        }
        // Chosen by what they should have, not by what they have, or those with few samples would be left out.
        let enough = SAMPLES_MIN / (all.samples / all.best);
        let mut told: Vec<Stretch> = Vec::new();
        for stretch in stretches {
            match told.last_mut() {
                Some(last) if last.best < enough => last.add(stretch),
                _ => told.push(*stretch),
            }
        }
        let ratio = |stretch: &Stretch| stretch.samples / stretch.best.max(f64::MIN_POSITIVE);
        told.sort_by(|a, b| ratio(a).total_cmp(&ratio(b)));
        // The mean of those that come nearest to their best case.
        let (mut samples, mut cycles, mut unsure) = (0.0, 0.0, 0.0);
        for stretch in &told {
            let taken = stretch.best.min(all.best * UNSTALLED - cycles);
            samples += ratio(stretch) * taken;
            cycles += taken;
            unsure += stretch.unsure / stretch.best.max(f64::MIN_POSITIVE) * taken;
            if cycles >= all.best * UNSTALLED && samples > 0.0 {
                break;
            }
        }
        let scale = if samples > 0.0 { samples / cycles } else { all.samples / all.best };
        let surely = told.iter().map(|stretch| (stretch.samples - 2.0 * stretch.samples.sqrt()) / stretch.worst);
        let least = surely.filter(|ratio| ratio.is_finite()).fold(0.0, f64::max);
        let unsure = (2.0 * unsure / cycles.max(f64::MIN_POSITIVE)).clamp(0.0, UNSURE_MAX).exp();
        Some(Self { scale, least, unsure })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_stalled_sets_the_scale() {
        let plain = Stretch { samples: 100.0, best: 20.0, worst: 30.0, unsure: 0.0 };
        let stalled = Stretch { samples: 4000.0, best: 10.0, worst: 5000.0, unsure: 0.0 };
        let scale = Scale::of(&[vec![plain, stalled]]).unwrap();
        assert!((scale.told - 5.0).abs() < 0.1 && scale.most > 100.0, "{scale:?}");
        assert!((2.0..4.0).contains(&scale.least), "{scale:?}");
        // Where nothing is known to run freely, executions may be many fewer.
        let scale = Scale::of(&[vec![stalled]]).unwrap();
        assert!(scale.told == 400.0 && scale.most == 400.0 && scale.least < 1.0, "{scale:?}");
        assert_eq!(Scale::of(&[vec![Stretch { samples: 0.0, ..plain }]]), None);
        // Many short ones, of which hardly any has a sample.
        let few: Vec<Vec<Stretch>> = (0..1000)
            .map(|number| vec![Stretch { samples: f64::from(number % 10 / 9), best: 1.0, worst: 100.0, unsure: 0.0 }])
            .collect();
        let scale = Scale::of(&few).unwrap();
        assert!((0.05..0.11).contains(&scale.told), "{scale:?}");
    }
}
