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
}

impl Stretch {
    /// Adds another.
    pub fn add(&mut self, other: &Self) {
        self.samples += other.samples;
        self.best += other.best;
        self.worst += other.worst;
    }
}

/// Samples for each cycle of an execution, beside which executions of blocks are given.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Scale {
    /// At most, if what comes nearest to its best case runs at it.
    pub most: f64,
    /// At least.
    pub least: f64,
    /// Whether it was measured: by samples of executed instructions.
    pub measured: bool,
}

/// A stretch that should have fewer samples than this, were all alike, tells nothing alone.
const SAMPLES_MIN: f64 = 16.0;
/// What part of all cycles of the best case is taken to run at it.
const UNSTALLED: f64 = 0.25;

impl Scale {
    /// The scale that `stretches` tell. None without samples.
    #[must_use]
    pub fn of(stretches: &[Stretch]) -> Option<Self> {
        let mut all = Stretch::default();
        stretches.iter().for_each(|stretch| all.add(stretch));
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
        let (mut samples, mut cycles) = (0.0, 0.0);
        for stretch in &told {
            let taken = stretch.best.min(all.best * UNSTALLED - cycles);
            samples += ratio(stretch) * taken;
            cycles += taken;
            if cycles >= all.best * UNSTALLED && samples > 0.0 {
                break;
            }
        }
        let most = if samples > 0.0 { samples / cycles } else { all.samples / all.best };
        // Even if all that may have stalled it has, a stretch's samples are not more than this many for a cycle.
        let surely = told.iter().map(|stretch| (stretch.samples - 2.0 * stretch.samples.sqrt()) / stretch.worst);
        let least = surely.filter(|ratio| ratio.is_finite()).fold(0.0, f64::max);
        Some(Self { most, least: least.min(most), measured: false })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_stalled_sets_the_scale() {
        let plain = Stretch { samples: 100.0, best: 20.0, worst: 30.0 };
        let stalled = Stretch { samples: 4000.0, best: 10.0, worst: 5000.0 };
        let scale = Scale::of(&[plain, stalled]).unwrap();
        assert!((scale.most - 5.0).abs() < 0.1, "{scale:?}");
        assert!((2.0..4.0).contains(&scale.least), "{scale:?}");
        // Where nothing is known to run freely, executions may be many fewer.
        let scale = Scale::of(&[stalled]).unwrap();
        assert!(scale.most == 400.0 && scale.least < 1.0, "{scale:?}");
        assert_eq!(Scale::of(&[Stretch { samples: 0.0, ..plain }]), None);
        // Many short ones, of which hardly any has a sample.
        let few: Vec<Stretch> =
            (0..1000).map(|number| Stretch { samples: f64::from(number % 10 / 9), best: 1.0, worst: 100.0 }).collect();
        let scale = Scale::of(&few).unwrap();
        assert!((0.05..0.11).contains(&scale.most), "{scale:?}");
    }
}
