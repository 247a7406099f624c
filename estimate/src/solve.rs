//! The most likely flow through a graph of blocks, from samples of time, which are everywhere and
//! say little, and from branches that were seen, which say much about a few.
//!
//! The unknowns are the probabilities of branches, so flow is conserved exactly, and how often each
//! block is executed follows from them ([`Chain`]). They are found by least squares in logarithms
//! (Gauss and Newton's steps, damped as Levenberg does; each step by conjugate gradients, which
//! need no matrix):
//!
//! * a branch that was seen n times agrees with the shares seen, to their standard deviation and no
//!   better than 0.012: samples are taken where time is spent, and that correlates with where
//!   branches go;
//! * what is executed takes time: samples per instruction are as executions, but only to a factor
//!   of e^±0.4, since instructions differ that much in what they cost, and some much more: what is
//!   farther off weighs less. What is come to from branches that go elsewhere as well pays for what
//!   was begun there. Where the processor issues in order, what issue points tell takes the place
//!   of that, as sure as it is.

use std::ops::Range;

use super::chain::{Chain, Order, add, add_each, at, at_each, each, products};
use super::issue::Pace;
use super::observed::{Joint, Observed, ObservedBlock, wanted};
pub(crate) use time::spread as spread_of_time;
use time::{doubted, rate, rate_after};
mod time;

/// Steps at most.
const STEPS: usize = 25;
/// Conjugate gradients end at this part of the square of what there is to explain: the next step
/// begins where one leads. And of samples drawn anew, which are chance. And after so many.
const REST: f64 = 0.03;
const REST_DRAWN: f64 = 0.01;
const GRADIENTS: usize = 40;
/// Largest change of an unknown in one step: of a logit, or of a logarithm.
const STRIDE: f64 = 3.0;
/// A step that changes the sum of squares by less than this part is the last; where issue points
/// tell; and before what is weighed changes.
const ENOUGH: f64 = 3e-4;
const ENOUGH_TOLD: f64 = 1e-5;
const ROUGHLY: f64 = 1e-2;
/// Standard deviation of the logarithm of how often a block is entered from aside.
const ASIDE_SD: f64 = 2.0;

/// How often times are weighed anew, and where issue points tell: more changes weights still, but
/// makes nothing better.
const DOUBTS: usize = 2;
const DOUBTS_TOLD: usize = 6;
/// By how much it is above what it should be at first, by its logarithm.
const ALIKE: f64 = 0.5;

/// How often what is executed.
#[derive(Debug)]
pub struct Flow<'a> {
    /// Executions of each way, for one of the entry.
    pub ways: Vec<f64>,
    problem: Problem<'a>,
    state: State,
}

/// Finds the flow. None when the graph has no block, or numbers run out.
#[must_use]
pub fn solve<'a>(observed: &'a Observed, order: &'a Order) -> Option<Flow<'a>> {
    let mut problem = Problem::of(observed, order)?;
    let mut unknowns = problem.begin();
    let (doubts, before, enough) = if problem.is_told() {
        (DOUBTS_TOLD, ENOUGH_TOLD, ENOUGH_TOLD)
    } else {
        (DOUBTS, ROUGHLY, ENOUGH)
    };
    let mut state = problem.least(&mut unknowns, before);
    for doubt in 1..=doubts {
        problem.doubt(&state);
        state = problem.least(&mut unknowns, if doubt < doubts { before } else { enough });
    }
    if !state.cost.is_finite() || !state.visits.iter().all(|visits| visits.is_finite()) {
        return None;
    }
    let ways = observed
        .ways
        .iter()
        .zip(&state.shares)
        .map(|(way, share)| at(&state.visits, way.from) * share)
        .collect();
    Some(Flow { ways, problem, state })
}

impl Flow<'_> {
    /// Executions of each block, for one of the entry; 0 for what is never reached.
    #[must_use]
    pub fn blocks(&self) -> &[f64] {
        &self.state.visits
    }

    /// How far off what issue points tell of a block may be, where they do: the standard deviation
    /// of its logarithm.
    #[must_use]
    pub(crate) fn spread(&self, block: usize) -> Option<f64> {
        let _ = self.problem.observed.blocks.get(block)?.told?;
        self.problem
            .time
            .get(block)
            .filter(|(_, weight)| *weight > 0.0)
            .map(|(_, weight)| 1.0 / weight)
    }

    /// How many samples a cycle of an execution makes, as far as issue points tell.
    #[must_use]
    pub(crate) fn pace(&self) -> Pace {
        let (problem, state) = (&self.problem, &self.state);
        let told = problem.observed.blocks.iter().zip(&state.visits).zip(&problem.time);
        let weight = |((block, visits), (rate, weight)): ((&ObservedBlock, &f64), &(f64, f64))| {
            let told = block.told.filter(|_| *weight > 0.0)?;
            // What fits exactly may be stalled all the same.
            Some(told.spread(state.over(*rate, *visits).max(f64::MIN_POSITIVE)).powi(2).recip())
        };
        let weights: f64 = told.filter_map(weight).sum();
        Pace {
            told: (-state.scale).exp(),
            spread: if weights > 0.0 { weights.sqrt().recip() } else { f64::INFINITY },
        }
    }

    /// Executions of the edges that are two ways each.
    pub fn joint<'b>(&'b self, joint: &'b [Joint]) -> impl Iterator<Item = (usize, f64)> + 'b {
        joint.iter().map(|one| {
            (one.edge, at(&self.ways, one.to_state) * at(&self.state.shares, one.from_state))
        })
    }

    /// By how much the logarithm of each block's executions would differ, to first order, if this
    /// had been seen of the same graph instead.
    #[must_use]
    pub fn differences<const N: usize>(&self, drawn: &[Observed; N]) -> Vec<[f64; N]> {
        let (problem, state) = (&self.problem, &self.state);
        let ways = drawn.each_ref().map(wanted);
        let ways = problem.choices.iter().map(|choice| {
            let drawn = ways
                .each_ref()
                .map(|drawn| drawn.get(choice.way).map_or(choice.wanted, |(drawn, _)| *drawn));
            drawn.map(|drawn| (choice.wanted - drawn) * choice.weight)
        });
        let time = problem.observed.blocks.iter().zip(&problem.time).enumerate().map(
            |(number, (block, (_, weight)))| {
                let known = rate(block);
                let drawn =
                    drawn.each_ref().map(|drawn| drawn.blocks.get(number).map_or(known, rate));
                drawn.map(|drawn| (known / drawn).ln() * weight)
            },
        );
        let rest = std::iter::repeat_n([0.0; N], problem.aside.len() + 1);
        let mut along = Residuals {
            unknowns: ways.chain(rest).collect(),
            time: time.collect(),
            groups: problem.room(),
        };
        along.unknowns = problem.solve(state, 0.0, &mut along, REST_DRAWN);
        problem.moved(state, &mut along);
        let of =
            |(change, visits): (&[f64; N], &f64)| change.map(|change| change / visits.max(1e-300));
        along.time.iter().zip(&state.visits).map(of).collect()
    }
}

/// An order for the graph: [`Order::of`].
#[must_use]
pub fn order(observed: &Observed) -> Option<Order> {
    Order::of(
        observed.blocks.len(),
        observed.ways.iter().filter_map(|way| Some((way.from, way.to?))),
    )
}

/// A way from a block that has others, too.
#[derive(Clone, Copy, Debug)]
struct Choice {
    /// Its number among all ways.
    way: usize,
    from: usize,
    /// The block that it goes to; [`NOWHERE`].
    to: u32,
    /// Logarithm of the share that was seen of it, and the weight of that.
    wanted: f64,
    weight: f64,
}

/// The number of no block.
const NOWHERE: u32 = u32::MAX;

/// What does not change from step to step. The unknowns are: a logit for each choice, the logarithm
/// of how often each block that is entered from aside is, and that of executions a sample per
/// instruction.
#[derive(Debug)]
struct Problem<'a> {
    observed: &'a Observed,
    order: &'a Order,
    /// In the order of their ways.
    choices: Vec<Choice>,
    /// How many of them each block has that has some, one block after the other.
    groups: Vec<usize>,
    /// Logarithm of samples per instruction, and the weight of that. 0 where nothing comes.
    time: Vec<(f64, f64)>,
    /// Blocks that are entered from aside, and the logarithm of how often, as far as is known.
    aside: Vec<(usize, f64)>,
}

/// A choice, with how it is made.
#[derive(Clone, Copy, Debug)]
struct Chosen {
    share: f64,
    /// How often it is taken.
    flow: f64,
    /// As of [`Choice`].
    weight: f64,
    to: u32,
    /// Which of those that have choices the block is.
    group: u32,
}

/// A block, with what its time weighs.
#[derive(Clone, Copy, Debug)]
struct Timed {
    /// Never 0.
    visits: f64,
    weight: f64,
}

/// Where the unknowns lead.
#[derive(Debug)]
struct State {
    /// Of all ways.
    shares: Vec<f64>,
    /// In the order of the choices.
    chosen: Vec<Chosen>,
    /// In the order of the blocks.
    timed: Vec<Timed>,
    /// How often each block that is entered from aside is.
    begins: Vec<f64>,
    chain: Chain,
    visits: Vec<f64>,
    residuals: Residuals<1>,
    /// Logarithm of executions for each sample per instruction, or cycle.
    scale: f64,
    cost: f64,
}

impl State {
    /// By how much the logarithm of what issue points tell of a block is above where the flow is.
    fn over(&self, rate: f64, visits: f64) -> f64 {
        rate + self.scale - visits.max(1e-300).ln()
    }
}

/// By how many standard deviations choices, entries and times differ, each of the sum of squares;
/// of several sets of them.
#[derive(Clone, Debug)]
struct Residuals<const N: usize> {
    /// Of choices, of entries from aside, and one place that is of none, for the last of the
    /// unknowns.
    unknowns: Vec<[f64; N]>,
    /// Of blocks.
    time: Vec<[f64; N]>,
    /// Room for a number of each block that has choices.
    groups: Vec<[f64; N]>,
}

impl<'a> Problem<'a> {
    fn of(observed: &'a Observed, order: &'a Order) -> Option<Self> {
        let blocks = observed.blocks.len();
        observed.blocks.get(observed.entry)?;
        let (mut choices, mut groups) = (Vec::new(), Vec::new());
        let mut ends = vec![0..0; blocks];
        let mut begin = 0;
        let wanted = wanted(observed);
        for ways in observed.ways.chunk_by(|a, b| a.from == b.from) {
            let range = begin..begin + ways.len();
            *ends.get_mut(ways.first()?.from)? = range.clone();
            begin = range.end;
            if ways.len() > 1 {
                let first = choices.len();
                choices.extend(ways.iter().zip(range.clone()).zip(wanted.get(range)?).map(
                    |((way, number), &(wanted, weight))| Choice {
                        way: number,
                        from: way.from,
                        to: way.to.and_then(|to| u32::try_from(to).ok()).unwrap_or(NOWHERE),
                        wanted,
                        weight,
                    },
                ));
                groups.push(choices.len() - first);
            }
        }
        let takes_time = |block: &&ObservedBlock| block.instructions > 0.0;
        let fastest = observed.blocks.iter().filter(takes_time).map(rate).fold(0.0, f64::max);
        let aside = observed
            .blocks
            .iter()
            .enumerate()
            .filter(|(number, block)| block.aside && *number != observed.entry);
        let aside = aside.map(|(number, block)| {
            let part =
                if block.samples > 0.0 && fastest > 0.0 { rate(block) / fastest } else { 0.0 };
            (number, f64::max(part.ln(), -9.0))
        });
        let aside: Vec<(usize, f64)> = aside.collect();
        let reached = reached(observed, &ends, &aside);
        let time = observed.blocks.iter().zip(reached).map(|(block, reached)| {
            let spread =
                block.told.map_or_else(|| spread_of_time(block), |told| told.spread(ALIKE));
            (rate(block).ln(), if reached && takes_time(&block) { 1.0 / spread } else { 0.0 })
        });
        Some(Self { observed, order, choices, groups, time: time.collect(), aside })
    }

    /// Where the sum of squares is least, from `unknowns` on, which become those, until a step
    /// makes less than the part `enough` of it.
    fn least(&self, unknowns: &mut Vec<f64>, enough: f64) -> State {
        let mut state = self.at(unknowns);
        let mut damping = 1e-3;
        for _ in 0..STEPS {
            let step = self.step(&state, damping);
            let (mut tried, mut next) = self.after(unknowns, &step, 1.0);
            // Half of it costs a fifth of a step with more damping, and mostly is as good.
            let halved = next.cost >= state.cost;
            if halved {
                (tried, next) = self.after(unknowns, &step, 0.5);
            }
            if next.cost < state.cost {
                let enough = state.cost - next.cost < enough * state.cost;
                (*unknowns, state) = (tried, next);
                if !halved {
                    damping = f64::max(damping / 4.0, 1e-6);
                }
                // Half a step may gain little because it is too long still.
                if enough && !halved {
                    break;
                }
            } else {
                damping *= 16.0;
                if damping > 1e6 {
                    break;
                }
            }
        }
        state
    }

    /// Where so much of a step leads.
    fn after(&self, unknowns: &[f64], step: &[f64], part: f64) -> (Vec<f64>, State) {
        let moved = unknowns
            .iter()
            .zip(step)
            .map(|(unknown, step)| unknown + part * step.clamp(-STRIDE, STRIDE));
        let moved: Vec<f64> = moved.collect();
        let state = self.at(&moved);
        (moved, state)
    }

    /// Whether issue points tell of blocks.
    fn is_told(&self) -> bool {
        self.observed.blocks.iter().any(|block| block.told.is_some())
    }

    /// Weighs times by where the flow is. Of what issue points tell, what is below it is hardly
    /// wrong, what is above was stalled, the more surely the further; other times are off both
    /// ways, but what is far off is so for a reason of its own.
    fn doubt(&mut self, state: &State) {
        let mut wrong = vec![0.0; self.observed.blocks.len()];
        for chosen in &state.chosen {
            add(&mut wrong, chosen.to as usize, chosen.flow * (1.0 - chosen.share));
        }
        let blocks = self.observed.blocks.iter().zip(&state.timed).zip(wrong);
        for (((block, timed), wrong), (time, weight)) in
            blocks.zip(&mut self.time).filter(|(_, time)| time.1 > 0.0)
        {
            let visits = timed.visits;
            if let Some(told) = block.told {
                *weight = 1.0 / told.spread(state.over(*time, visits));
            } else {
                *time = rate_after(block, wrong / visits).ln();
                *weight = 1.0 / doubted(block, state.over(*time, visits));
            }
        }
    }

    fn begin(&self) -> Vec<f64> {
        let logits = self.choices.iter().map(|choice| choice.wanted);
        let aside = self.aside.iter().map(|(_, known)| *known);
        let unknowns: Vec<f64> = logits.chain(aside).chain([0.0]).collect();
        // The scale that fits best.
        let state = self.at(&unknowns);
        let (mut sum, mut weights) = (0.0, 0.0);
        for ([residual], (_, weight)) in state.residuals.time.iter().zip(&self.time) {
            sum += residual * weight;
            weights += weight * weight;
        }
        let mut unknowns = unknowns;
        unknowns
            .last_mut()
            .into_iter()
            .for_each(|scale| *scale = if weights > 0.0 { sum / weights } else { 0.0 });
        unknowns
    }

    fn at(&self, unknowns: &[f64]) -> State {
        let (logits, rest) = unknowns.split_at(self.choices.len().min(unknowns.len()));
        let (aside, scale) = rest.split_at(self.aside.len().min(rest.len()));
        let scale = at(scale, 0);
        let mut shares = vec![1.0; self.observed.ways.len()];
        let mut chosen: Vec<f64> = Vec::with_capacity(logits.len());
        let mut others = logits;
        for group in &self.groups {
            let Some((logits, rest)) = others.split_at_checked(*group) else { break };
            others = rest;
            let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let first = chosen.len();
            chosen.extend(logits.iter().map(|logit| (logit - largest).exp()));
            let shares = chosen.get_mut(first..).unwrap_or_default();
            let sum: f64 = shares.iter().sum();
            shares.iter_mut().for_each(|share| *share /= sum);
        }
        for (choice, share) in self.choices.iter().zip(&chosen) {
            shares.get_mut(choice.way).into_iter().for_each(|of_way| *of_way = *share);
        }
        let begins: Vec<f64> = aside.iter().map(|aside| aside.exp()).collect();
        let mut visits = vec![0.0; self.observed.blocks.len()];
        add(&mut visits, self.observed.entry, 1.0);
        self.aside
            .iter()
            .zip(&begins)
            .for_each(|((block, _), begins)| add(&mut visits, *block, *begins));
        let chain = self.chain(&shares);
        chain.visits(visits.as_chunks_mut::<1>().0);
        let ways = self.choices.iter().zip(&chosen);
        let ways =
            ways.map(|(choice, share)| [(share.max(1e-300).ln() - choice.wanted) * choice.weight]);
        let time = self.time.iter().zip(&visits);
        let time = time
            .map(|((rate, weight), visits)| [(visits.max(1e-300).ln() - rate - scale) * weight]);
        let differs = |((_, known), aside): (&(usize, f64), &f64)| [(aside - known) / ASIDE_SD];
        let aside = self.aside.iter().zip(aside).map(differs);
        let unknowns = ways.chain(aside).chain([[0.0]]).collect();
        let residuals = Residuals { unknowns, time: time.collect(), groups: self.room() };
        let (ways, aside) =
            residuals.unknowns.split_at_checked(self.choices.len()).unwrap_or_default();
        let all = ways.iter().chain(&residuals.time).chain(aside);
        let cost = all.map(|[residual]| residual * residual).sum();
        let group =
            (0..).zip(&self.groups).flat_map(|(number, len)| std::iter::repeat_n(number, *len));
        let chosen =
            self.choices.iter().zip(chosen).zip(group).map(|((choice, share), group)| Chosen {
                share,
                flow: at(&visits, choice.from) * share,
                weight: choice.weight,
                to: choice.to,
                group,
            });
        let timed = visits.iter().zip(&self.time);
        let timed = timed
            .map(|(visits, (_, weight))| Timed { visits: visits.max(1e-300), weight: *weight });
        let (chosen, timed) = (chosen.collect(), timed.collect());
        State { shares, chosen, timed, begins, chain, visits, residuals, scale, cost }
    }

    /// Zeros: [`Residuals::groups`].
    fn room<const N: usize>(&self) -> Vec<[f64; N]> {
        vec![[0.0; N]; self.groups.len()]
    }

    fn chain(&self, shares: &[f64]) -> Chain {
        // What goes nowhere ends.
        let mut ends = vec![1.0; self.observed.blocks.len()];
        self.observed
            .ways
            .iter()
            .for_each(|way| ends.get_mut(way.from).into_iter().for_each(|end| *end = 0.0));
        let ways = self.observed.ways.iter().zip(shares);
        ways.clone()
            .filter(|(way, _)| way.to.is_none())
            .for_each(|(way, share)| add(&mut ends, way.from, *share));
        Chain::eliminate(self.order, ways.filter_map(|(way, share)| way.to.map(|_| *share)), &ends)
    }

    /// The step that makes the sum of squares least, were all linear: (J'J + damping D) step =
    /// -J'r.
    fn step(&self, state: &State, damping: f64) -> Vec<f64> {
        self.solve(state, damping, &mut state.residuals.clone(), REST).into_flattened()
    }

    /// Solves (J'J + damping D) x = -J' `residuals`, by conjugate gradients, until the part
    /// `enough` of its square is left. What is in `residuals` afterwards is of no use.
    fn solve<const N: usize>(
        &self,
        state: &State,
        damping: f64,
        residuals: &mut Residuals<N>,
        enough: f64,
    ) -> Vec<[f64; N]> {
        self.gradient(state, residuals);
        let choices = self.choices.iter().map(|choice| choice.weight * choice.weight + 0.1);
        let aside = self.aside.iter().map(|_| 1.0 / (ASIDE_SD * ASIDE_SD) + 0.1);
        let scale = self.time.iter().map(|(_, weight)| weight * weight).sum::<f64>().max(0.1);
        let diagonal: Vec<f64> = choices.chain(aside).chain([scale]).collect();
        let mut rest: Vec<[f64; N]> =
            residuals.unknowns.iter().map(|gradient| gradient.map(|gradient| -gradient)).collect();
        let image = residuals;
        let mut solved = vec![[0.0; N]; rest.len()];
        let mut direction: Vec<[f64; N]> =
            rest.iter().zip(&diagonal).map(|(r, d)| r.map(|r| r / d)).collect();
        let mut size = products(&rest, &direction);
        let small = size.map(|size| size * enough);
        for _ in 0..GRADIENTS {
            if size.iter().zip(&small).all(|(size, small)| size <= small) {
                break;
            }
            image.unknowns.clone_from(&direction);
            self.changes(state, image);
            self.gradient(state, image);
            let mut along = [0.0; N];
            for ((image, direction), diagonal) in
                image.unknowns.iter_mut().zip(&direction).zip(&diagonal)
            {
                image
                    .iter_mut()
                    .zip(direction)
                    .for_each(|(image, one)| *image += damping * diagonal * one);
                along = each(along, each(*direction, *image, |a, b| a * b), |sum, one| sum + one);
            }
            let ratio =
                |a: [f64; N], b: [f64; N]| each(a, b, |a, b| if b > 0.0 { a / b } else { 0.0 });
            let length = ratio(size, along);
            if length == [0.0; N] {
                break;
            }
            let mut next_size = [0.0; N];
            let directed = solved.iter_mut().zip(&direction);
            for (((solved, direction), (rest, image)), diagonal) in
                directed.zip(rest.iter_mut().zip(&image.unknowns)).zip(&diagonal)
            {
                *solved = each(*solved, each(*direction, length, |a, b| a * b), |a, b| a + b);
                *rest = each(*rest, each(*image, length, |a, b| a * b), |a, b| a - b);
                next_size =
                    each(next_size, rest.map(|rest| rest * rest / diagonal), |sum, square| {
                        sum + square
                    });
            }
            let turn = ratio(next_size, size);
            for ((direction, rest), diagonal) in direction.iter_mut().zip(&rest).zip(&diagonal) {
                *direction =
                    each(each(*direction, turn, |a, b| a * b), *rest, |a, b| a + b / diagonal);
            }
            size = next_size;
        }
        solved
    }

    /// Makes of a direction of the unknowns how logarithms of the shares of choices change along
    /// it, and how visits do.
    fn moved<const N: usize>(&self, state: &State, along: &mut Residuals<N>) {
        let Residuals { unknowns, time: comes, groups: means } = along;
        comes.fill([0.0; N]);
        means.fill([0.0; N]);
        let Some((ways, rest)) = unknowns.split_at_mut_checked(self.choices.len()) else { return };
        for (((block, _), begins), aside) in self.aside.iter().zip(&state.begins).zip(rest) {
            add_each(comes, *block, *aside, *begins);
        }
        for (change, chosen) in ways.iter().zip(&state.chosen) {
            add_each(means, chosen.group as usize, *change, chosen.share);
        }
        for (change, chosen) in ways.iter_mut().zip(&state.chosen) {
            let mean = at_each(means, chosen.group as usize);
            *change = each(*change, mean, |change, mean| change - mean);
            add_each(comes, chosen.to as usize, *change, chosen.flow);
        }
        state.chain.visits(comes);
    }

    /// Makes of a direction of the unknowns how the residuals change along it: J direction.
    fn changes<const N: usize>(&self, state: &State, along: &mut Residuals<N>) {
        let scale = along.unknowns.last().copied().unwrap_or([0.0; N]);
        self.moved(state, along);
        for (change, Timed { visits, weight }) in along.time.iter_mut().zip(&state.timed) {
            *change = each(*change, scale, |change, scale| (change / visits - scale) * weight);
        }
        let Some((ways, aside)) = along.unknowns.split_at_mut_checked(self.choices.len()) else {
            return;
        };
        for (change, chosen) in ways.iter_mut().zip(&state.chosen) {
            *change = change.map(|change| change * chosen.weight);
        }
        for (aside, _) in aside.iter_mut().zip(&self.aside) {
            *aside = aside.map(|aside| aside / ASIDE_SD);
        }
    }

    /// Makes of residuals J' residuals, in place of those of the unknowns; what becomes of those of
    /// time is of no use.
    fn gradient<const N: usize>(&self, state: &State, residuals: &mut Residuals<N>) {
        let Residuals { unknowns, time: worth, groups: sums } = residuals;
        let mut scale = [0.0; N];
        for (worth, Timed { visits, weight }) in worth.iter_mut().zip(&state.timed) {
            *worth = worth.map(|residual| residual * weight);
            scale = each(scale, *worth, |scale, worth| scale - worth);
            *worth = worth.map(|worth| worth / visits);
        }
        state.chain.values(worth);
        let values = worth;
        // By the logarithm of each share, then by the logits, of which only differences matter.
        sums.fill([0.0; N]);
        let Some((ways, rest)) = unknowns.split_at_mut_checked(self.choices.len()) else { return };
        for (gradient, chosen) in ways.iter_mut().zip(&state.chosen) {
            let value = at_each(values, chosen.to as usize);
            *gradient = each(*gradient, value, |residual, value| {
                residual * chosen.weight + chosen.flow * value
            });
            add_each(sums, chosen.group as usize, *gradient, 1.0);
        }
        for (gradient, chosen) in ways.iter_mut().zip(&state.chosen) {
            let sum = at_each(sums, chosen.group as usize);
            *gradient = each(*gradient, sum, |one, sum| one - chosen.share * sum);
        }
        for ((aside, (block, _)), begins) in rest.iter_mut().zip(&self.aside).zip(&state.begins) {
            *aside = each(at_each(values, *block), *aside, |value, aside| {
                value * begins + aside / ASIDE_SD
            });
        }
        rest.last_mut().into_iter().for_each(|last| *last = scale);
    }
}

/// Which blocks are ever executed.
fn reached(observed: &Observed, groups: &[Range<usize>], aside: &[(usize, f64)]) -> Vec<bool> {
    let mut reached = vec![false; observed.blocks.len()];
    let mut pending: Vec<usize> =
        aside.iter().map(|(block, _)| *block).chain([observed.entry]).collect();
    while let Some(block) = pending.pop() {
        let Some(seen) = reached.get_mut(block).filter(|seen| !**seen) else { continue };
        *seen = true;
        let ways = groups
            .get(block)
            .and_then(|group| observed.ways.get(group.clone()))
            .unwrap_or_default();
        pending.extend(ways.iter().filter_map(|way| way.to));
    }
    reached
}

#[cfg(test)]
mod tests;
