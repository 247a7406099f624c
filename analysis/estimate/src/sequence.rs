//! Outcomes of a conditional branch that walks met again.

use crate::samples::BranchBias;

/// How often a conditional branch jumped and did not, after equal outcomes before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcomes {
    /// Times that it jumped.
    pub jumped: u64,
    /// Times that it did not.
    pub went_on: u64,
}

impl Outcomes {
    fn sum(self) -> f64 {
        self.jumped as f64 + self.went_on as f64
    }
}

/// What the outcomes of a branch in turn say.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sequence {
    /// Outcomes of the branch where walks met it again.
    pub again: Outcomes,
    /// Of those, the ones that followed a jump, and the ones that did not: how often a walk went on
    /// from an outcome of each kind to the next.
    pub after: Outcomes,
    /// The probability that it jumps, from what follows the first outcome of a walk.
    pub steady: Option<Steady>,
    /// The same from all outcomes but first ones, where walks meet the branch often. It holds where
    /// they go on as often after a jump as after none.
    pub pooled: Option<Steady>,
    /// An upper limit (95 % confidence) of the share of its outcomes that those before do not tell.
    /// None: not known.
    pub untold: Option<f64>,
}

/// A probability, and how many independent observations it is worth.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Steady {
    /// The probability, between 0 and 1.
    pub probability: f64,
    /// Observations.
    pub worth: f64,
    /// The bias of the odds that no number of observations removes, as a standard deviation of
    /// their logarithm.
    pub bias: f64,
}

/// The bias of probabilities from walks where outcomes come in long runs: a walk begins where time
/// is spent, so it sees more of the slow parts of a program's work. A smaller value lets them
/// overrule first branches, which are no worse on Zen 3 (six programs: with 0 as 1.0 % fewer blocks
/// within 10 %); a larger one leaves the bias of first branches on Sapphire Rapids.
const RUNS_BIAS: f64 = 0.2;
/// The bias of probabilities from walks where an outcome says nothing of the next, as a standard
/// deviation of the logarithm of the odds. A branch of random data is right to 0.01 on an Intel
/// processor (family 6, model 167).
const CHANCE_BIAS: f64 = 0.03;
/// Fewest outcomes of a branch for each walk that meets it again, with which its probability is
/// that of all outcomes. Shorter walks mostly end at memory that was not copied, and which walks
/// end there depends on the data: with 2, eight points fewer of the blocks of gzip are within 10 %.
const POOLED_MIN: f64 = 16.0;

/// Fewest outcomes that [`Sequence::untold`] is told of. A larger number leaves more branches
/// unknown; with fewer the limit says little.
const OUTCOMES_MIN: f64 = 40.0;
/// Histories of four outcomes are at least this.
const FULL_HISTORY: u8 = 1 << 4;
/// Outcomes of one walk that are worth one: they depend on data that lie together.
const OUTCOMES_ALIKE: f64 = 4.0;

impl Sequence {
    /// From the outcomes after each history, as the measure `OUTCOMES` has them; 2 and 3 are those
    /// of one outcome.
    pub fn of(outcomes: &[(u8, Outcomes)]) -> Self {
        let mut again = Outcomes::default();
        for (_, Outcomes { jumped, went_on }) in outcomes {
            again.jumped = again.jumped.saturating_add(*jumped);
            again.went_on = again.went_on.saturating_add(*went_on);
        }
        let after = |history| {
            let of = outcomes.iter().find(|(known, _)| *known == history);
            of.map_or_else(Outcomes::default, |(_, outcomes)| *outcomes)
        };
        // The last bit of a history is the outcome before.
        let following = |outcome: u8| {
            let (mut jumped, mut went_on) = (0_u64, 0_u64);
            for (_, of) in outcomes.iter().filter(|(history, _)| history & 1 == outcome) {
                jumped = jumped.saturating_add(of.jumped);
                went_on = went_on.saturating_add(of.went_on);
            }
            Outcomes { jumped, went_on }
        };
        let (second_jump, second_other) = (after(0b11), after(0b10));
        let walks = [second_jump, second_other].map(Outcomes::sum).iter().sum();
        let (after_jump, after_other) = (following(1), following(0));
        Self {
            again,
            after: Outcomes { jumped: after_jump.sum() as u64, went_on: after_other.sum() as u64 },
            steady: steady(second_jump, second_other),
            pooled: pooled(after_jump, after_other, walks),
            untold: untold(outcomes),
        }
    }
}

/// Independent observations that `all` of a branch are worth for the share of one of its ways,
/// which `observed` are of.
pub fn independent(
    (observed, all): (u64, u64),
    sequence: Option<Sequence>,
    bias: BranchBias,
) -> f64 {
    let again =
        sequence.map_or(0.0, |Sequence { again, .. }| again.jumped as f64 + again.went_on as f64);
    let share = (observed as f64 + 0.5) / (all as f64 + 1.0);
    let all = (all as f64 - again).max(0.0) + again / OUTCOMES_ALIKE;
    // The bias is one of the odds: of a way that is seldom taken it is as small a part as of
    // others.
    let of_odds = 2.0 * bias.full;
    all / (1.0 + all * share * (1.0 - share) * of_odds * of_odds)
}

/// The probability of a jump of the chain in which an outcome depends on the one before, from the
/// second outcomes of walks.
///
/// The first outcome after a sample is chosen by time. How far a walk comes depends on its outcomes
/// as well: one that leaves a loop seldom meets the loop's branch again. What follows one outcome
/// depends on neither.
fn steady(after_jump: Outcomes, after_other: Outcomes) -> Option<Steady> {
    let changes = |changed: u64, stayed: u64| {
        let all = changed as f64 + stayed as f64 + 1.0;
        let share = (changed as f64 + 0.5) / all;
        (share, (1.0 - share) / (share * all))
    };
    let (leaves, leaves_variance) = changes(after_jump.went_on, after_jump.jumped);
    let (comes, comes_variance) = changes(after_other.jumped, after_other.went_on);
    let is_known = after_jump != Outcomes::default() || after_other != Outcomes::default();
    let probability = comes / (leaves + comes);
    // Of the logarithm of the odds.
    let variance = leaves_variance + comes_variance;
    let worth = 1.0 / (probability * (1.0 - probability) * variance);
    is_known.then_some(Steady { probability, worth, bias: RUNS_BIAS })
}

/// The probability of a jump from the second and later outcomes in each of the `walks`; the first
/// outcome of a walk is left out, because it is sampled in proportion to its time. Outcomes that
/// resemble the one before count as fewer observations, but each walk counts as one at least.
fn pooled(after_jump: Outcomes, after_other: Outcomes, walks: f64) -> Option<Steady> {
    let all = after_jump.sum() + after_other.sum();
    let jumped = after_jump.jumped as f64 + after_other.jumped as f64;
    let share_after = |of: Outcomes| (of.jumped as f64 + 0.5) / (of.sum() + 1.0);
    let alike = (share_after(after_jump) - share_after(after_other)).max(0.0);
    let worth = (all * (1.0 - alike) / (1.0 + alike)).max(walks.min(all));
    let bias = CHANCE_BIAS.max(RUNS_BIAS * alike);
    let probability = (jumped + 0.5) / (all + 1.0);
    (all >= POOLED_MIN * walks && all > 0.0).then_some(Steady { probability, worth, bias })
}

/// From full histories, where there are enough; the beginnings of walks tell less. Each outcome is
/// guessed from all others after equal ones; a processor that looks further back, or at other
/// branches, guesses better.
fn untold(outcomes: &[(u8, Outcomes)]) -> Option<f64> {
    let of = |history_min: u8| {
        let (mut told, mut sum) = (0.0, 0.0);
        for (_, Outcomes { jumped, went_on }) in
            outcomes.iter().filter(|(history, _)| *history >= history_min)
        {
            let (more, fewer) = (jumped.max(went_on), jumped.min(went_on));
            told += if more > fewer { *more as f64 } else { 0.0 };
            sum += *jumped as f64 + *went_on as f64;
        }
        (told, sum)
    };
    let full = Some(of(FULL_HISTORY)).filter(|(_, sum)| *sum >= OUTCOMES_MIN);
    let (told, sum) = full.unwrap_or_else(|| of(0));
    let independent = sum / OUTCOMES_ALIKE;
    let share = 1.0 - told / sum;
    // Two standard deviations, and the rule of three for a share of 0.
    let limit = share + 2.0 * (share * (1.0 - share) / independent).sqrt() + 3.0 / independent;
    (sum >= OUTCOMES_MIN).then_some(limit.min(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The outcomes of walks of `len` outcomes each from a sequence, by history.
    fn outcomes(len: usize, mut next: impl FnMut(usize) -> bool) -> Vec<(u8, Outcomes)> {
        let mut all = std::collections::BTreeMap::<u8, Outcomes>::new();
        for walk in 0..2000 {
            let mut history = 1;
            for number in 0..len {
                let jumps = next(walk * 7 + number);
                if history > 1 {
                    let of = all.entry(history).or_default();
                    *if jumps { &mut of.jumped } else { &mut of.went_on } += 1;
                }
                history =
                    if history >= 16 { history & 7 | 8 } else { history } << 1 | u8::from(jumps);
            }
        }
        all.into_iter().collect()
    }

    #[test]
    fn sorted_is_told_from_random() {
        let mut random = fastrand::Rng::with_seed(3);
        let at_random = Sequence::of(&outcomes(8, |_| random.f64() < 0.75));
        assert!((0.25..0.29).contains(&at_random.untold.unwrap()), "{at_random:?}");
        let steady = at_random.steady.unwrap();
        assert!((steady.probability - 0.75).abs() < 0.03, "{steady:?}");
        assert!((1000.0..2100.0).contains(&steady.worth), "{steady:?}");
        let sorted = Sequence::of(&outcomes(8, |at| at > 3000));
        assert!(sorted.untold.unwrap() < 0.01, "{sorted:?}");
        let of_five = Sequence::of(&outcomes(12, |at| [true, true, false, true, false][at % 5]));
        assert!(of_five.untold.unwrap() < 0.06, "{of_five:?}");
        let steady = of_five.steady.unwrap();
        assert!((steady.probability - 0.6).abs() < 0.03, "{steady:?}");
        assert_eq!(Sequence::of(&[]).steady, None);
        assert_eq!(Sequence::of(&[]).pooled, None);
    }

    #[test]
    fn all_later_outcomes_count_as_often_as_they_are_independent() {
        let mut random = fastrand::Rng::with_seed(4);
        let pooled = |outcomes: &[(u8, Outcomes)]| Sequence::of(outcomes).pooled.unwrap();
        let at_random = pooled(&outcomes(21, |_| random.f64() < 0.75));
        assert!((at_random.probability - 0.75).abs() < 0.02, "{at_random:?}");
        assert!((34_000.0..40_001.0).contains(&at_random.worth), "{at_random:?}");
        assert!(at_random.bias < 0.04, "{at_random:?}");
        let sorted = pooled(&outcomes(21, |at| at > 7000));
        assert!((sorted.probability - 0.5).abs() < 0.02, "{sorted:?}");
        assert!((1999.0..2100.0).contains(&sorted.worth), "{sorted:?}");
        assert!(sorted.bias > 0.19, "{sorted:?}");
        assert_eq!(Sequence::of(&outcomes(8, |at| at % 3 == 0)).pooled, None);
        // Walks that begin at one outcome of a pattern, which takes most of the time.
        let mut outcome = (0..61).cycle().map(|at| [true, true, false, true, false][at % 5]);
        let of_five = pooled(&outcomes(61, |_| outcome.next().unwrap()));
        assert!((of_five.probability - 0.6).abs() < 0.02, "{of_five:?}");
    }

    #[test]
    fn outcomes_of_one_walk_and_a_bias_make_observations_worth_less() {
        let none = BranchBias { full: 0.0, ..BranchBias::ZEN };
        assert_eq!(independent((50, 100), None, none), 100.0);
        let again = Outcomes { jumped: 50, went_on: 30 };
        let after = Outcomes::default();
        let sequence = Some(Sequence { again, after, steady: None, pooled: None, untold: None });
        assert_eq!(independent((50, 100), sequence, none), 40.0);
        assert!(independent((1 << 39, 1 << 40), None, BranchBias::ZEN) < 279.0);
        assert!(independent((10, 10_000), None, BranchBias::ZEN) > 8000.0);
    }

    #[test]
    fn where_a_walk_ends_does_not_matter() {
        // A loop of ten rounds; walks end when the loop does, all but one of ten.
        let mut random = fastrand::Rng::with_seed(5);
        let (mut after_jump, mut after_other) = (Outcomes::default(), Outcomes::default());
        for _ in 0..40_000 {
            let [first, second] = [random.f64() < 0.9, random.f64() < 0.9];
            let of = if first { &mut after_jump } else { &mut after_other };
            if first || random.f64() < 0.1 {
                *if second { &mut of.jumped } else { &mut of.went_on } += 1;
            }
        }
        let steady = steady(after_jump, after_other).unwrap();
        assert!((steady.probability - 0.9).abs() < 0.01, "{steady:?}");
    }
}
