//! Contexts with the time that each stands for, and how sure sums of them are.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use stats::tally::Tally;
use stats::{Confidence, Share};

use crate::contexts::{Contexts, Entry, NodeId, SubjectId};
use crate::inlined::{Spot, fit};
use crate::lent::{Group, Lenders, lent_to};

/// Unit of the weights in [`model::Value::squares`].
pub(crate) const SQUARES_UNIT: f64 = 1024.0;

/// Contexts with times.
#[derive(Clone, Debug)]
pub struct Timed {
    contexts: Contexts,
    /// Entries of `contexts`, those of one innermost procedure together.
    order: Vec<usize>,
    /// By subject, what it is as innermost procedure.
    leaves: Vec<Leaf>,
    /// The samples of inlined functions themselves.
    inlined: BTreeMap<SubjectId, Tally>,
    /// For each group of procedures, those without a stack as one: their time, and the stacks that
    /// lend them callers.
    lent: Vec<Leaf>,
    /// The frame between a procedure without a stack and the callers lent to it, with the group of
    /// each procedure.
    unseen: Option<(SubjectId, Vec<Group>)>,
    /// For each thread, the time of its long waits without a stack that no other of its waits
    /// resembles.
    unknown: HashMap<u32, f64>,
    /// The total that shares refer to.
    whole: Tally,
    /// Whether times come from samples, or else from the weights of stacks.
    is_sampled: bool,
}

/// A procedure, or a group of them, as the innermost one of stacks.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Leaf {
    /// Sum of the weights of its stacks, and of their squares.
    pub(crate) weight: f64,
    pub(crate) squares: f64,
    /// Its own time, and the sum of the squared weights of the samples that tell it.
    pub(crate) time: f64,
    pub(crate) sample_squares: f64,
}

impl Leaf {
    /// Time that a unit of weight of its stacks stands for.
    fn factor(&self) -> f64 {
        if self.weight > 0.0 { self.time / self.weight } else { 0.0 }
    }

    /// The leaf of which a share `part` (0 to 1) of the stacks is kept, and as much of its time.
    fn part(self, part: f64) -> Self {
        Self {
            weight: self.weight * part,
            squares: if self.squares.is_finite() { self.squares * part } else { self.squares },
            time: self.time * part,
            sample_squares: self.sample_squares * part,
        }
    }
}

/// A time with its share of the whole.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    /// The time, in the event's unit.
    pub time: f64,
    /// Its share of the whole, with its interval.
    pub share: Share,
    /// Number of stacks behind it.
    pub stacks: u64,
}

/// Sums over the stacks of one key: the coefficients of a variance that is a polynomial in the
/// share, and what the tally of a key is where weights are the time.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    time: f64,
    stacks: u64,
    squares: f64,
    constant: f64,
    linear: f64,
    /// Variance of the time of waits without a stack that is given to the key.
    lent_squares: f64,
    /// Time that may be the key's.
    unknown: f64,
}

impl Timed {
    /// Contexts of an event that has samples: `spots` has those of each of `subjects` subjects by
    /// the functions that are inlined there; shares are of all of them.
    ///
    /// A flat program has thousands of procedures and some hundred stacks, so most procedures have
    /// samples and no stack. They get callers from the procedures of the same `group` (image) that
    /// have exactly one stack: what random samples have not seen resembles what they have seen once
    /// (I. J. Good, "The Population Frequencies of Species and the Estimation of Population
    /// Parameters", Biometrika 40, 1953). Between the lent callers and the procedure stands the
    /// frame `unseen`, since the procedure's own caller is not known. Where nobody of the group has
    /// a stack, `unseen` is a root; if all stacks are of one process, those of its user code lend
    /// theirs.
    ///
    /// Stacks whose innermost procedure has no samples (frames that were left out to bound a tree)
    /// stand for time of procedures without stacks, as far as there is some.
    pub fn sampled(
        mut contexts: Contexts,
        subjects: usize,
        spots: &[Spot<'_>],
        unseen: SubjectId,
        group: impl Fn(SubjectId) -> Group,
    ) -> Self {
        let whole: Tally = spots.iter().map(|(_, samples)| *samples).sum();
        let mut times = vec![Tally::default(); subjects];
        let mut inlined: BTreeMap<SubjectId, Tally> = BTreeMap::new();
        for (path, samples) in spots {
            let procedure = path.first().and_then(|of| times.get_mut(*of as usize));
            procedure.into_iter().for_each(|sum| *sum += *samples);
            if let [_, .., innermost] = path {
                *inlined.entry(*innermost).or_default() += *samples;
            }
        }
        let mut leaves = leaves(&contexts, subjects);
        let of = |subject: usize| times.get(subject).copied().unwrap_or_default();
        let (mut unwalked, mut orphans) = (0.0, 0.0);
        for (subject, leaf) in leaves.iter().enumerate() {
            match (of(subject).occurrences > 0.0, leaf.weight > 0.0) {
                (true, false) => unwalked += of(subject).occurrences,
                (false, true) => orphans += leaf.weight,
                _ => {}
            }
        }
        let taken = f64::min(unwalked, orphans);
        let left = if unwalked > 0.0 { 1.0 - taken / unwalked } else { 0.0 };
        let groups: Vec<Group> = (0..subjects as SubjectId).map(group).collect();
        let mut borrowers: BTreeMap<Group, Vec<SubjectId>> = BTreeMap::new();
        for ((subject, leaf), group) in (0..).zip(&mut leaves).zip(&groups) {
            let own = of(subject as usize);
            leaf.sample_squares = own.squares + own.divided;
            leaf.time = own.occurrences;
            if own.occurrences <= 0.0 && leaf.weight > 0.0 {
                leaf.time = leaf.weight * taken / orphans;
            }
            if own.occurrences > 0.0 && leaf.weight <= 0.0 {
                leaf.time = own.occurrences * left;
                leaf.weight = leaf.time;
                borrowers.entry(*group).or_default().push(subject);
            }
        }
        let groups_end = groups.iter().map(|group| group.number as usize + 1).max();
        let mut lent = vec![Leaf::default(); groups_end.unwrap_or(1)];
        let lenders = Lenders::of(&contexts, &groups);
        for (group, subjects) in borrowers {
            let entries = lenders.of_group(group);
            let sum = lent_to(&mut contexts, &mut leaves, &entries, &subjects, unseen);
            if let Some(lent) = lent.get_mut(group.number as usize) {
                *lent = sum;
            }
        }
        if contexts.has_inlined() {
            fit(&mut contexts, spots, unseen);
            for (leaf, fitted) in leaves.iter_mut().zip(self::leaves(&contexts, subjects)) {
                (leaf.weight, leaf.squares) = (fitted.weight, fitted.squares);
            }
        }
        let unseen = Some((unseen, groups));
        Self { lent, inlined, ..Self::new(contexts, leaves, whole, unseen, true) }
    }

    /// Contexts of an event that has stacks only: their weights are the time.
    ///
    /// `unexpected` stands for long waits without a stack. A thread that waits regularly has others
    /// as long with a stack, and its time goes to those. What is left may be anybody's of the
    /// thread, which intervals allow for.
    pub fn weighted(
        mut contexts: Contexts,
        subjects: usize,
        unexpected: Option<SubjectId>,
    ) -> Self {
        let unknown = unexpected.map(|of| contexts.lend_waits(of)).unwrap_or_default();
        let mut leaves = leaves(&contexts, subjects);
        leaves.iter_mut().for_each(|leaf| leaf.time = leaf.weight);
        let whole = whole(&contexts);
        Self { unknown, ..Self::new(contexts, leaves, whole, None, false) }
    }

    fn new(
        contexts: Contexts,
        leaves: Vec<Leaf>,
        whole: Tally,
        unseen: Option<(SubjectId, Vec<Group>)>,
        is_sampled: bool,
    ) -> Self {
        let mut order: Vec<usize> = (0..contexts.entries().len()).collect();
        let leaf_of = |at: &usize| contexts.entries().get(*at).map(|entry| contexts.leaf(entry));
        order.sort_by_cached_key(|at| {
            (leaf_of(at), contexts.entries().get(*at).map(|entry| entry.node))
        });
        let (inlined, lent, unknown) = (BTreeMap::new(), Vec::new(), HashMap::new());
        Self { contexts, order, leaves, inlined, lent, unseen, unknown, whole, is_sampled }
    }

    /// The frame above a procedure without a stack, if the node is such a procedure's, or that of
    /// a function inlined into it.
    pub(crate) fn unseen_above(&self, node: NodeId) -> Option<NodeId> {
        let (unseen, _) = self.unseen.as_ref()?;
        let above = self.contexts.parent(self.contexts.procedure(node));
        above.filter(|above| self.contexts.subject(*above) == Some(*unseen))
    }

    /// Whether a subject stands between a procedure without a stack and the callers lent to it.
    pub(crate) fn is_unseen(&self, subject: SubjectId) -> bool {
        self.unseen.as_ref().is_some_and(|(unseen, _)| *unseen == subject)
    }

    /// The contexts.
    pub fn contexts(&self) -> &Contexts {
        &self.contexts
    }

    /// The total that shares refer to.
    pub fn whole(&self) -> Tally {
        self.whole
    }

    /// Whether times come from samples, or else from the weights of stacks.
    pub fn is_sampled(&self) -> bool {
        self.is_sampled
    }

    /// The share of procedures without a stack, whose callers are lent or not known.
    pub fn lent(&self) -> f64 {
        let lent: f64 = self.lent.iter().map(|lent| lent.time).sum();
        lent / self.whole.occurrences.max(f64::MIN_POSITIVE)
    }

    /// For each subject, by its number, the stacks whose innermost frame it is, as samples of the
    /// stacks' weights.
    pub fn innermost(&self) -> Vec<Tally> {
        let mut tallies = vec![Tally::default(); self.leaves.len()];
        for entry in self.contexts.entries() {
            let subject = self.contexts.subject(entry.node).unwrap_or(SubjectId::MAX);
            if let Some(sum) = tallies.get_mut(subject as usize) {
                *sum += tally(entry);
            }
        }
        tallies
    }

    /// The entries with their times, in no order.
    pub fn entries(&self) -> impl Iterator<Item = (&Entry, f64)> + '_ {
        self.contexts.entries().iter().map(|entry| (entry, self.time(entry)))
    }

    fn time(&self, entry: &Entry) -> f64 {
        entry.value.weight as f64 * self.leaf(entry).factor()
    }

    fn leaf(&self, entry: &Entry) -> Leaf {
        self.leaves.get(self.contexts.leaf(entry) as usize).copied().unwrap_or_default()
    }

    /// Only the stacks of nodes that `wanted` accepts; shares are of their time.
    pub fn narrowed(&self, mut wanted: impl FnMut(NodeId) -> bool) -> Self {
        let mut kept = Contexts::with_threads_of(&self.contexts);
        self.contexts.nodes().for_each(|(parent, subject)| {
            let _ = kept.node(parent, subject);
        });
        let mut last: Option<(NodeId, bool)> = None;
        for at in &self.order {
            let Some(entry) = self.contexts.entries().get(*at) else { continue };
            let is_wanted = match last {
                Some((node, is_wanted)) if node == entry.node => is_wanted,
                _ => wanted(entry.node),
            };
            last = Some((entry.node, is_wanted));
            if is_wanted {
                kept.add(*entry);
            }
        }
        let mut leaves = leaves(&kept, self.leaves.len());
        let mut lent = vec![Leaf::default(); self.lent.len()];
        for entry in kept.entries().iter().filter(|entry| self.unseen_above(entry.node).is_some()) {
            if let Some(lent) = self.group(entry.node).and_then(|group| lent.get_mut(group)) {
                lent.time += self.time(entry);
            }
        }
        for (lent, of) in lent.iter_mut().zip(&self.lent) {
            let part = if of.time > 0.0 { lent.time / of.time } else { 0.0 };
            *lent = of.part(part);
        }
        let mut whole = Tally::default();
        for (leaf, of) in leaves.iter_mut().zip(&self.leaves) {
            let part = of.part(if of.weight > 0.0 { leaf.weight / of.weight } else { 0.0 });
            (leaf.time, leaf.sample_squares) = (part.time, part.sample_squares);
            whole.occurrences += leaf.time;
            whole.squares += leaf.sample_squares;
        }
        if !self.is_sampled {
            whole = self::whole(&kept);
        }
        let new = Self::new(kept, leaves, whole, self.unseen.clone(), self.is_sampled);
        Self { lent, unknown: self.unknown.clone(), ..new }
    }

    /// The group of a node's procedure.
    fn group(&self, node: NodeId) -> Option<usize> {
        let (_, groups) = self.unseen.as_ref()?;
        let procedure = self.contexts.subject(self.contexts.procedure(node))?;
        Some(groups.get(procedure as usize)?.number as usize)
    }

    /// Sums of times by key, of `keys` keys: `keys_of` gives those of a node, each once.
    pub fn estimates(
        &self,
        keys: usize,
        confidence: Confidence,
        keys_of: impl FnMut(NodeId, &mut Vec<u32>),
    ) -> Vec<Estimate> {
        self.sums(keys, true, confidence, keys_of)
    }

    /// The same of keys that are below one innermost procedure each: whom procedures without a
    /// stack are called by makes these no less sure.
    pub(crate) fn estimates_of_leaves(
        &self,
        keys: usize,
        confidence: Confidence,
        keys_of: impl FnMut(NodeId, &mut Vec<u32>),
    ) -> Vec<Estimate> {
        self.sums(keys, false, confidence, keys_of)
    }

    fn sums(
        &self,
        keys: usize,
        borrows: bool,
        confidence: Confidence,
        mut keys_of: impl FnMut(NodeId, &mut Vec<u32>),
    ) -> Vec<Estimate> {
        let mut sums = vec![Sums::default(); keys];
        let mut of_leaf: Vec<(f64, f64, u64)> = vec![(0.0, 0.0, 0); keys];
        let (mut touched, mut current): (Vec<u32>, Vec<u32>) = Default::default();
        let (mut node, mut leaf_subject, mut borrowed) = (None, None, None);
        let mut leaf = Leaf::default();
        let add = |of_leaf: &mut [(f64, f64, u64)], touched: &mut Vec<u32>, key: u32, value| {
            let (weight, squares, stacks): (f64, f64, u64) = value;
            let Some(sum) = of_leaf.get_mut(key as usize) else { return };
            if *sum == (0.0, 0.0, 0) {
                touched.push(key);
            }
            sum.0 += weight;
            sum.1 += squares;
            sum.2 = sum.2.saturating_add(stacks);
        };
        let (owners, mut with_unknown) = (self.contexts.owners(), BTreeSet::<(u32, u32)>::new());
        // By group and frame: the keys of the lent callers, and the time of who borrows them.
        let mut lent: BTreeMap<(usize, NodeId), (Vec<u32>, f64)> = BTreeMap::new();
        for at in &self.order {
            let Some(entry) = self.contexts.entries().get(*at) else { continue };
            let subject = self.contexts.leaf(entry);
            if leaf_subject != Some(subject) {
                self.close((leaf, borrows), &mut sums, &mut of_leaf, &mut touched);
                (leaf_subject, leaf) = (Some(subject), self.leaf(entry));
            }
            if node != Some(entry.node) {
                node = Some(entry.node);
                current.clear();
                keys_of(entry.node, &mut current);
                // What the lent callers have is as sure as they are; the rest is the procedure's.
                let above = self.unseen_above(entry.node);
                if let Some(of) = self.group(entry.node).zip(above) {
                    let (keys, _) = lent.entry(of).or_insert_with(|| {
                        let mut keys = Vec::new();
                        keys_of(of.1, &mut keys);
                        (keys, 0.0)
                    });
                    current.retain(|key| !keys.contains(key));
                    borrowed = Some(of);
                } else {
                    borrowed = None;
                }
            }
            if let Some((_, time)) = borrowed.and_then(|of| lent.get_mut(&of)) {
                *time += self.time(entry);
            }
            let owner = owners.get(entry.thread as usize).copied().unwrap_or_default();
            if self.unknown.contains_key(&owner) && entry.value.stacks > 0 {
                with_unknown.extend(current.iter().map(|key| (*key, owner)));
            }
            let mut value = tally(entry);
            if !self.is_sampled && entry.value.stacks == 0 {
                // A wait that was lent is in the whole in any case.
                for key in &current {
                    let sum = sums.get_mut(*key as usize);
                    sum.into_iter().for_each(|sum| sum.lent_squares += value.squares);
                }
                value.squares = 0.0;
            }
            for key in &current {
                let value = (value.occurrences, value.squares, entry.value.stacks);
                add(&mut of_leaf, &mut touched, *key, value);
            }
        }
        self.close((leaf, borrows), &mut sums, &mut of_leaf, &mut touched);
        for (key, thread) in with_unknown {
            if let Some(sums) = sums.get_mut(key as usize) {
                sums.unknown += self.unknown.get(&thread).copied().unwrap_or_default();
            }
        }
        let mut group = None;
        for ((of, _), (keys, time)) in lent {
            if group != Some(of) {
                self.close((leaf, borrows), &mut sums, &mut of_leaf, &mut touched);
                (group, leaf) = (Some(of), self.lent.get(of).copied().unwrap_or_default());
            }
            for key in keys {
                add(&mut of_leaf, &mut touched, key, (time / leaf.factor(), 0.0, 0));
            }
        }
        self.close((leaf, borrows), &mut sums, &mut of_leaf, &mut touched);
        let common = self.common(borrows);
        sums.iter().map(|sums| self.estimate(sums, common, confidence)).collect()
    }

    /// Adds the stacks of one innermost procedure to the sums of their keys.
    ///
    /// The share of a procedure's stacks that go through a key is taken for a binomial share with
    /// one more stack, of which the key's share of all time `p` is in it: a procedure with one
    /// stack is not certain to be called by that caller only. Its variance is a polynomial in `p`.
    fn close(
        &self,
        (leaf, borrows): (Leaf, bool),
        sums: &mut [Sums],
        of_leaf: &mut [(f64, f64, u64)],
        touched: &mut Vec<u32>,
    ) {
        let whole = self.whole.occurrences.max(f64::MIN_POSITIVE);
        let (time, chance) = (leaf.time / whole, leaf.sample_squares / whole / whole);
        let (stacks, prior) = weights(leaf);
        for key in touched.drain(..) {
            let (Some(part), Some(sum)) =
                (of_leaf.get_mut(key as usize), sums.get_mut(key as usize))
            else {
                continue;
            };
            let (weight, squares, count) = std::mem::take(part);
            let share = if leaf.weight > 0.0 { (weight / leaf.weight).min(1.0) } else { 0.0 };
            let seen = share * stacks;
            sum.time += leaf.time * share;
            sum.stacks = sum.stacks.saturating_add(count);
            sum.squares += squares;
            sum.constant += time * time * prior * (seen - seen * seen) + chance * share * share;
            sum.linear -= 2.0 * (time * time * seen * prior * prior + chance * share);
            if leaf.squares <= 0.0 && borrows {
                // The common part has this procedure's callers as unsure; here it is the procedure.
                sum.constant += time.powi(4);
                sum.linear -= time * time;
            }
        }
    }

    /// The share of each subject's own time, where times come from samples; a procedure's with
    /// that of the functions inlined into it.
    pub(crate) fn own(&self, confidence: Confidence) -> Vec<Share> {
        let whole = if self.is_sampled { self.whole.occurrences } else { f64::INFINITY };
        let of = |(subject, leaf): (SubjectId, &Leaf)| {
            let inlined = self.inlined.get(&subject).map(|own| (own.occurrences, own.squares));
            let (time, squares) = inlined.unwrap_or((leaf.time, leaf.sample_squares));
            let p = time / whole.max(f64::MIN_POSITIVE);
            let chance = squares * (1.0 - 2.0 * p) + p * p * self.whole.squares;
            stats::estimated(p, chance / whole / whole, 1.0, confidence)
        };
        (0..).zip(&self.leaves).map(of).collect()
    }

    /// The coefficients that all keys share, of `p` and of its square, and the number of stacks
    /// that would be as unsure.
    fn common(&self, borrows: bool) -> (f64, f64, f64) {
        let whole = self.whole.occurrences.max(f64::MIN_POSITIVE);
        let mut common = (0.0, self.whole.squares / whole / whole, 0.0);
        let (mut times, mut squares) = (0.0, 0.0);
        let lent = if borrows { self.lent.as_slice() } else { &[] };
        for leaf in self.leaves.iter().chain(lent).filter(|leaf| leaf.time > 0.0) {
            let (_, prior) = weights(*leaf);
            let time = leaf.time / whole;
            common.0 += time * time * prior * prior;
            common.1 -= time * time * prior * prior * prior;
            if leaf.squares > 0.0 && leaf.squares.is_finite() {
                times += leaf.time;
                squares += leaf.squares * leaf.factor() * leaf.factor();
            } else if leaf.squares <= 0.0 && borrows {
                // Each procedure without a stack has callers of its own, unlike the lent ones.
                common.0 += time * time;
                common.1 -= time * time;
            }
        }
        common.2 = if squares > 0.0 { times * times / squares } else { 1.0 };
        common
    }

    fn estimate(
        &self,
        sums: &Sums,
        (linear, square, stacks): (f64, f64, f64),
        confidence: Confidence,
    ) -> Estimate {
        let whole = self.whole.occurrences;
        let share = if !self.is_sampled {
            let part = Tally {
                samples: sums.stacks,
                occurrences: sums.time,
                squares: sums.squares,
                heaviest: self.whole.heaviest,
                ..Tally::default()
            };
            let share = stats::share(part, self.whole, confidence);
            let whole = whole.max(f64::MIN_POSITIVE);
            let lent = confidence.z() * sums.lent_squares.sqrt() / whole;
            let (below, above) = (share.value - share.low, share.high - share.value);
            let high = share.value + above.hypot(lent) + sums.unknown / whole;
            let low = share.value - below.hypot(lent);
            Share { low: low.max(0.0), high: high.min(1.0), ..share }
        } else if whole > 0.0 {
            let p = (sums.time / whole).clamp(0.0, 1.0);
            let variance = sums.constant + p * (linear + sums.linear) + p * p * square;
            stats::estimated(p, variance, stacks, confidence)
        } else {
            Share { value: 0.0, low: 0.0, high: 1.0 }
        };
        Estimate { time: sums.time, share, stacks: sums.stacks }
    }
}

/// Of a procedure's stacks: their part in its share beside that one more stack, and the part of the
/// latter. Without squares nothing is unsure; with infinite squares nothing is known.
fn weights(leaf: Leaf) -> (f64, f64) {
    if leaf.squares <= 0.0 {
        return (1.0, 0.0);
    }
    let stacks = leaf.weight * leaf.weight / leaf.squares;
    (stacks / (stacks + 1.0), 1.0 / (stacks + 1.0))
}

fn tally(entry: &Entry) -> Tally {
    let squares = entry.value.squares as f64 * SQUARES_UNIT * SQUARES_UNIT;
    let heaviest =
        if entry.value.stacks > 0 { (squares / entry.value.stacks as f64).sqrt() } else { 0.0 };
    Tally {
        samples: entry.value.stacks,
        occurrences: entry.value.weight as f64,
        squares,
        heaviest,
        ..Tally::default()
    }
}

/// All time of stacks; that of lent waits is certain.
fn whole(contexts: &Contexts) -> Tally {
    let of = |entry: &Entry| match entry.value.stacks {
        0 => Tally { squares: 0.0, ..tally(entry) },
        _ => tally(entry),
    };
    contexts.entries().iter().map(of).sum()
}

fn leaves(contexts: &Contexts, subjects: usize) -> Vec<Leaf> {
    let mut leaves = vec![Leaf::default(); subjects];
    for entry in contexts.entries() {
        if let Some(leaf) = leaves.get_mut(contexts.leaf(entry) as usize) {
            let of = tally(entry);
            leaf.weight += of.occurrences;
            leaf.squares += of.squares;
        }
    }
    leaves
}
