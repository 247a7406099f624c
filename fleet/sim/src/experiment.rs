//! How often judgements are right: simulated services, judged in several ways.
//!
//! Judged are the first service's own image by builds in one week, and the service by weeks. The
//! ways that a page might have taken instead are here too, to see what they would mark.

use std::collections::{BTreeMap, BTreeSet};

use judge::{Group, Judged, LEVEL, Rule, Sums, discoveries, mark, paired};
use stats::Confidence;
use stats::significance::{Counted, Measure, Spread, change};
use stats::tails;

use crate::sums::{Paired, by_build, by_week};
use crate::{Fleet, Plant, What};

/// A way to judge.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// Samples of all hosts added up, as if one had taken them.
    Pooled,
    /// Hosts of each side for themselves: the spread of shares between hosts.
    Unpaired,
    /// Hosts paired, by the differences between them alone.
    Paired,
    /// As the review does: [`judge::paired`].
    Review,
}

/// The compared sets.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Sides {
    /// The builds of the week.
    Builds,
    /// The week before and the one after: no roll-out has begun, and all are through.
    Weeks,
}

/// The marked rows, over several fleets.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub struct Marks {
    /// Procedures marked.
    pub marked: usize,
    /// The unchanged procedures.
    pub wrong: usize,
    /// Procedures changed.
    pub real: usize,
    /// Tables with a mark.
    pub alarms: usize,
}

impl Marks {
    /// The part of the changed procedures that was marked.
    #[must_use]
    pub fn found(&self) -> f64 {
        (self.marked - self.wrong) as f64 / self.real.max(1) as f64
    }
}

impl std::ops::AddAssign for Marks {
    fn add_assign(&mut self, other: Self) {
        self.marked += other.marked;
        self.wrong += other.wrong;
        self.real += other.real;
        self.alarms += other.alarms;
    }
}

/// A comparison of the first service in a week.
pub struct Table {
    group: Group,
    /// One entry per row of the group.
    rows: Vec<Row>,
    rule: Rule,
    /// Hosts of each side.
    hosts: [f64; 2],
}

/// The properties of a procedure that are not in the sums of pairs.
struct Row {
    /// Whether the procedure was changed.
    real: bool,
    /// For each side, sums over hosts of shares, and of their squares.
    shares: [(f64, f64); 2],
}

/// The sums of a comparison.
#[must_use]
pub fn table(fleet: &Fleet, week: i64, sides: Sides) -> Table {
    let mut sums = Paired::default();
    let mut shares: [BTreeMap<(i64, i64), (f64, f64)>; 2] = Default::default();
    let mut hosts = [0.0; 2];
    let (service, image, builds) = fleet.first(week);
    for host in 0..fleet.hosts() {
        let [old, new] = match sides {
            Sides::Builds => {
                let mut by_build = by_build(&fleet.host_week(week, host), service, image);
                builds.map(|build| by_build.remove(&build).unwrap_or_default())
            }
            Sides::Weeks => {
                [week - 1, week + 1].map(|week| by_week(&fleet.host_week(week, host), service))
            }
        };
        for ((side, shares), hosts) in [&old, &new].into_iter().zip(&mut shares).zip(&mut hosts) {
            *hosts += f64::from(u8::from(side.events > 0.0));
            for (key, (_, x)) in &side.rows {
                let share = x / side.events;
                let slot = shares.entry(*key).or_default();
                slot.0 += share;
                slot.1 += share * share;
            }
        }
        sums.add(&old, &new);
    }
    let changed: BTreeSet<i64> = fleet
        .truth()
        .iter()
        .filter(|truth| truth.week == week && truth.service_id == service)
        .flat_map(|truth| truth.procedures.iter().map(|(id, ..)| *id))
        .collect();
    let (group, keys) = sums.group();
    let row = |key: &(i64, i64)| Row {
        real: changed.contains(&key.1),
        shares: shares.each_ref().map(|side| side.get(key).copied().unwrap_or_default()),
    };
    let rows = keys.iter().map(row).collect();
    let rule = if sides == Sides::Builds { Rule::builds() } else { Rule::weeks() };
    Table { group, rows, rule, hosts }
}

impl Table {
    /// What a way to judge marks. All test the same procedures, and correct for their number alike.
    #[must_use]
    pub fn marks(&self, way: Way) -> Marks {
        let judged = self.judged();
        let rows = self.group.rows.iter().zip(&self.rows).zip(&judged);
        let tested = || rows.clone().filter(|(_, judged)| judged.untested.is_none());
        let marked: Vec<bool> = if way == Way::Review {
            tested().map(|(_, judged)| judged.marked).collect()
        } else {
            let p: Vec<f64> = tested().map(|((sums, row), _)| self.p(way, sums, row)).collect();
            discoveries(&p, LEVEL).marked
        };
        let real = tested().map(|((_, row), _)| row.real).zip(marked);
        let marked: Vec<bool> = real.filter(|(_, marked)| *marked).map(|(real, _)| real).collect();
        Marks {
            marked: marked.len(),
            wrong: marked.iter().filter(|real| !**real).count(),
            real: self.rows.iter().filter(|row| row.real).count(),
            alarms: usize::from(!marked.is_empty()),
        }
    }

    /// The review's intervals of the relative changes of the procedures that were changed.
    #[must_use]
    pub fn changes(&self) -> Vec<(f64, f64)> {
        let judged = self.judged().into_iter().zip(&self.rows);
        judged.filter(|(_, row)| row.real).map(|(judged, _)| (judged.low, judged.high)).collect()
    }

    /// The rows as the review judges them.
    fn judged(&self) -> Vec<Judged> {
        let groups = std::slice::from_ref(&self.group);
        let mut judged = paired(groups, &self.rule).pop().unwrap_or_default().1;
        mark(&mut judged, LEVEL);
        judged
    }

    /// The probability of a change by chance, as a way to judge has it.
    fn p(&self, way: Way, sums: &Sums, row: &Row) -> f64 {
        let group = &self.group;
        match way {
            Way::Pooled => {
                let counted =
                    |samples: u64, of: u64| Counted { samples: samples as f64, of: of as f64 };
                let old = counted(sums.samples_old, group.samples_old);
                let new = counted(sums.samples_new, group.samples_new);
                change(Measure::Share, old, new, Spread::default(), Confidence::default()).p
            }
            Way::Unpaired => {
                let mean = |((sum, squares), hosts): ((f64, f64), f64)| {
                    (sum / hosts, (squares / hosts - (sum / hosts).powi(2)) / (hosts - 1.0))
                };
                let ([old, new], [of_old, of_new]) = (row.shares, self.hosts);
                let ((old, v1), (new, v2)) = (mean((old, of_old)), mean((new, of_new)));
                tails::student((new - old) / (v1 + v2).sqrt(), of_old + of_new - 2.0)
            }
            Way::Paired | Way::Review => {
                let hosts = group.pairs as f64;
                let change = sums.wd / group.w;
                let squares = sums.w2d2 - 2.0 * change * sums.w2d + change * change * group.w2;
                let sd = (squares * hosts / (hosts - 1.0)).sqrt() / group.w;
                tails::student(change / sd, hosts - 1.0)
            }
        }
    }
}

/// This many planted changes of the first service in week 1, each of this relative size, at ranks
/// drawn evenly by their logarithm from `ranks`; the same of the same seed.
#[must_use]
pub fn plants(count: usize, relative: f64, ranks: std::ops::Range<usize>, seed: u64) -> Vec<Plant> {
    let mut random = fastrand::Rng::with_seed(seed);
    let (low, high) = ((ranks.start as f64 + 3.0).ln(), (ranks.end as f64 + 3.0).ln());
    let mut chosen = BTreeSet::new();
    while chosen.len() < count.min(ranks.len()) {
        let rank = (low + (high - low) * random.f64()).exp() - 3.0;
        chosen.insert((rank.max(0.0) as usize).clamp(ranks.start, ranks.end - 1));
    }
    let plant = |rank| Plant { service: 0, week: 1, what: What::Cost { rank, relative } };
    chosen.into_iter().map(plant).collect()
}
