//! Contexts with the time that each stands for, and how sure sums of them are.

use stats::tally::Tally;
use stats::{Confidence, Share};

use crate::contexts::{Contexts, Entry, NodeId, SubjectId};

/// Unit of the weights in [`model::Value::squares`].
const SQUARES_UNIT: f64 = 1024.0;

/// Contexts with times.
#[derive(Clone, Debug)]
pub struct Timed {
    contexts: Contexts,
    /// Entries of `contexts`, those of one innermost procedure together.
    order: Vec<usize>,
    /// By subject, what it is as innermost procedure.
    leaves: Vec<Leaf>,
    /// The total that shares refer to.
    whole: Tally,
    /// Whether times come from samples, or else from the weights of stacks.
    is_sampled: bool,
}

/// A procedure as the innermost one of stacks.
#[derive(Clone, Copy, Debug, Default)]
struct Leaf {
    /// Sum of the weights of its stacks, and of their squares.
    weight: f64,
    squares: f64,
    /// Its own time, and the sum of the squared weights of the samples that tell it.
    time: f64,
    sample_squares: f64,
}

impl Leaf {
    /// Time that a unit of weight of its stacks stands for.
    fn factor(&self) -> f64 {
        if self.weight > 0.0 { self.time / self.weight } else { 0.0 }
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
}

impl Timed {
    /// Contexts of an event that has samples: `times` has the samples of each subject, `whole` is
    /// what shares are of. Procedures with samples and without stacks stand below `no_stack`, a
    /// root.
    ///
    /// Stacks whose innermost procedure has no samples (frames that were left out to bound a tree)
    /// stand for time of procedures without stacks, as far as there is some.
    pub fn sampled(
        mut contexts: Contexts,
        times: &[Tally],
        whole: Tally,
        no_stack: SubjectId,
    ) -> Self {
        let mut leaves = leaves(&contexts, times.len());
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
        let root = (unwalked > taken).then(|| contexts.node(None, no_stack));
        for (subject, leaf) in leaves.iter_mut().enumerate() {
            let own = of(subject);
            leaf.sample_squares = own.squares;
            leaf.time = own.occurrences;
            if own.occurrences <= 0.0 && leaf.weight > 0.0 {
                leaf.time = leaf.weight * taken / orphans;
            }
            if own.occurrences > 0.0 && leaf.weight <= 0.0 {
                leaf.time = own.occurrences * left;
                // Its only stack is itself: certain, and no stack that was taken.
                leaf.weight = leaf.time.round();
                let node = root.map(|root| contexts.node(Some(root), subject as SubjectId));
                let weight = leaf.weight as u64;
                if let Some(node) = node.filter(|_| weight > 0) {
                    let value = model::Value { stacks: 0, weight, squares: 0 };
                    contexts.add(Entry { node, thread: u32::MAX, value });
                }
            }
        }
        Self::new(contexts, leaves, whole, true)
    }

    /// Contexts of an event that has stacks only: their weights are the time.
    pub fn weighted(contexts: Contexts, subjects: usize) -> Self {
        let mut leaves = leaves(&contexts, subjects);
        leaves.iter_mut().for_each(|leaf| leaf.time = leaf.weight);
        let whole = contexts.entries().iter().map(tally).sum();
        Self::new(contexts, leaves, whole, false)
    }

    fn new(contexts: Contexts, leaves: Vec<Leaf>, whole: Tally, is_sampled: bool) -> Self {
        let mut order: Vec<usize> = (0..contexts.entries().len()).collect();
        let leaf_of =
            |at: &usize| contexts.entries().get(*at).map(|entry| contexts.subject(entry.node));
        order.sort_by_cached_key(|at| {
            (leaf_of(at), contexts.entries().get(*at).map(|entry| entry.node))
        });
        Self { contexts, order, leaves, whole, is_sampled }
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
        let subject = self.contexts.subject(entry.node).unwrap_or(SubjectId::MAX);
        self.leaves.get(subject as usize).copied().unwrap_or_default()
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
        let mut whole = Tally::default();
        for (leaf, of) in leaves.iter_mut().zip(&self.leaves) {
            let part = if of.weight > 0.0 { leaf.weight / of.weight } else { 0.0 };
            leaf.time = of.time * part;
            leaf.sample_squares = of.sample_squares * part;
            whole.occurrences += leaf.time;
            whole.squares += leaf.sample_squares;
        }
        if !self.is_sampled {
            whole = kept.entries().iter().map(tally).sum();
        }
        Self::new(kept, leaves, whole, self.is_sampled)
    }

    /// Sums of times by key, of `keys` keys: `keys_of` gives those of a node, each once.
    pub fn estimates(
        &self,
        keys: usize,
        confidence: Confidence,
        mut keys_of: impl FnMut(NodeId, &mut Vec<u32>),
    ) -> Vec<Estimate> {
        let mut sums = vec![Sums::default(); keys];
        let mut of_leaf: Vec<(f64, f64, u64)> = vec![(0.0, 0.0, 0); keys];
        let mut touched: Vec<u32> = Vec::new();
        let mut current: Vec<u32> = Vec::new();
        let (mut node, mut leaf_subject) = (None, None);
        let mut leaf = Leaf::default();
        for at in &self.order {
            let Some(entry) = self.contexts.entries().get(*at) else { continue };
            let subject = self.contexts.subject(entry.node);
            if leaf_subject != subject {
                self.close(leaf, &mut sums, &mut of_leaf, &mut touched);
                (leaf_subject, leaf) = (subject, self.leaf(entry));
            }
            if node != Some(entry.node) {
                node = Some(entry.node);
                current.clear();
                keys_of(entry.node, &mut current);
            }
            let value = tally(entry);
            for key in &current {
                let Some(sum) = of_leaf.get_mut(*key as usize) else { continue };
                if *sum == (0.0, 0.0, 0) {
                    touched.push(*key);
                }
                sum.0 += value.occurrences;
                sum.1 += value.squares;
                sum.2 = sum.2.saturating_add(entry.value.stacks);
            }
        }
        self.close(leaf, &mut sums, &mut of_leaf, &mut touched);
        let common = self.common();
        sums.iter().map(|sums| self.estimate(sums, common, confidence)).collect()
    }

    /// Adds the stacks of one innermost procedure to the sums of their keys.
    ///
    /// The share of a procedure's stacks that go through a key is taken for a binomial share with
    /// one more stack, of which the key's share of all time `p` is in it: a procedure with one
    /// stack is not certain to be called by that caller only. Its variance is a polynomial in `p`.
    fn close(
        &self,
        leaf: Leaf,
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
        }
    }

    /// The coefficients that all keys share, of `p` and of its square, and the number of stacks
    /// that would be as unsure.
    fn common(&self) -> (f64, f64, f64) {
        let whole = self.whole.occurrences.max(f64::MIN_POSITIVE);
        let mut common = (0.0, self.whole.squares / whole / whole, 0.0);
        let (mut times, mut squares) = (0.0, 0.0);
        for leaf in self.leaves.iter().filter(|leaf| leaf.time > 0.0) {
            let (_, prior) = weights(*leaf);
            let time = leaf.time / whole;
            common.0 += time * time * prior * prior;
            common.1 -= time * time * prior * prior * prior;
            if leaf.squares > 0.0 {
                times += leaf.time;
                squares += leaf.squares * leaf.factor() * leaf.factor();
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
            };
            stats::share(part, self.whole, confidence)
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
/// latter.
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
    Tally { samples: entry.value.stacks, occurrences: entry.value.weight as f64, squares, heaviest }
}

fn leaves(contexts: &Contexts, subjects: usize) -> Vec<Leaf> {
    let mut leaves = vec![Leaf::default(); subjects];
    for entry in contexts.entries() {
        let subject = contexts.subject(entry.node).unwrap_or(SubjectId::MAX);
        if let Some(leaf) = leaves.get_mut(subject as usize) {
            let of = tally(entry);
            leaf.weight += of.occurrences;
            leaf.squares += of.squares;
        }
    }
    leaves
}
