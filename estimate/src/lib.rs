//! How often each block of a procedure ran, from samples of its time and of its branches.
//!
//! ```text
//! Cfg + samples -> observe -> solve -> Estimate
//! ```
//!
//! Against callgrind's counts (`cargo xtask bench truth`) of gzip, bzip2, xz, sqlite3, python3,
//! perl, and a C and a Rust program, 550,000 samples of each, on an AMD EPYC guest: within 5, 10,
//! 15 % are blocks with 70, 76, 79 % of the samples, and edges with 60, 70, 76 % of the executions
//! (means over programs). DCPI had 73, 87, 92 and 58 % of edges, of an in-order processor whose
//! cycles it knew (SOSP 1997, section 6.2).
//!
//! Executions are relative: of a procedure's blocks to each other. Samples of time alone do not
//! tell how long an execution took; with the best cases of a processor that issues in order they do
//! (`issue.rs`).
#![forbid(unsafe_code)]

pub mod issue;
pub mod observe;
mod observed;
pub mod rounds;
mod sampled;
pub mod solve;
pub mod truth;

mod chain;

use code::cfg::{Cfg, Loops};

pub use chain::{Chain, Order};
pub use issue::{Pace, Point};
pub use rounds::Trips;
pub use sampled::{Branch, Sampled, Turned};

/// How sure an estimate is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Confidence {
    /// It may be wrong by any factor.
    #[default]
    Low,
    /// It is probably right within 15 %.
    Medium,
    /// It is probably right within a tenth.
    High,
}

impl Confidence {
    /// That of a number whose logarithm has this standard deviation.
    #[must_use]
    pub fn of(spread: f64) -> Self {
        match spread {
            spread if spread < 0.05 => Self::High,
            spread if spread < 0.08 => Self::Medium,
            _ => Self::Low,
        }
    }
}

/// How often what of a procedure was executed.
#[derive(Clone, Debug, Default)]
pub struct Estimate {
    /// Each block of its graph.
    pub blocks: Vec<BlockEstimate>,
    /// Executions of each edge of its graph.
    pub edges: Vec<f64>,
    /// How many rounds its loops make, where their tests tell.
    pub trips: Vec<Trips>,
    /// How many samples a cycle of an execution makes, on processors that issue in order.
    pub pace: Option<Pace>,
}

/// How often a block was executed.
#[derive(Clone, Copy, Debug, Default)]
pub struct BlockEstimate {
    /// Samples that it took.
    pub samples: f64,
    /// Executions, beside those of other blocks of the procedure.
    pub executions: f64,
    /// Standard deviation of the logarithm of that.
    pub spread: f64,
    /// How sure that is.
    pub confidence: Confidence,
}

/// Largest graph that is solved: a compiler's largest procedures have a tenth.
const BLOCKS_MAX: usize = 1 << 16;
const EDGES_MAX: usize = 1 << 18;
/// And of instructions: each takes close to a kilobyte while it is explained.
const INSTRUCTIONS_MAX: usize = 1 << 21;
/// Largest graph of which it is found out how sure its solution is, and the fewest samples and
/// branches of a procedure of which anything is.
const SURE_BLOCKS_MAX: usize = 1 << 13;
const SURE_MIN: f64 = 100.0;
/// Standard deviation of the logarithm of what is not known at all: a factor of e^10 either way.
const UNSURE: f64 = 10.0;
/// How many times samples are drawn anew to see how sure an estimate is.
const REPLICAS: usize = 8;
/// What part of a sample what has none is taken to have.
const FEW: f64 = 0.5;
/// How far the share p of a branch is off however many samples there are: a standard deviation of
/// this times the root of p (1 - p). Branches are met where time is spent, and one way may take
/// more of it. `bench walks --callgrind` has a mean error of .026, and `bench truth` says how right
/// what is called sure is: with this 99 % of it are within a tenth, without 96 %.
const BIAS: f64 = 0.06;
/// Standard deviation of the logarithm of how often a guard that no sample tells of lets its loop
/// be entered: a factor of four either way, 19 times of 20. Any value above 0.08 calls it not sure.
const GUARDED: f64 = 0.7;
/// How much more solutions of those differ than is said to first order.
const CURVED: f64 = 1.15;

/// Estimates how often the blocks of `graph` were executed. None where nothing can be said: no
/// entry, a graph too large or too dense.
#[must_use]
pub fn estimate(graph: &Cfg, loops: &Loops, sampled: &Sampled<'_>) -> Option<Estimate> {
    let instructions: usize = graph.blocks().iter().map(|block| block.instructions).sum();
    if graph.blocks().len() > BLOCKS_MAX
        || graph.edges().len() > EDGES_MAX
        || instructions > INSTRUCTIONS_MAX
    {
        return None;
    }
    let mut trips = rounds::trips(graph, loops, sampled);
    let first = attempt(graph, loops, sampled, &trips)?;
    let contradicts = contradictions(graph, loops, &first, &trips);
    let mut decided = false;
    for (trips, _) in
        trips.iter_mut().zip(&contradicts).filter(|(trips, apart)| **apart > 0.0 && !trips.decides)
    {
        (trips.decides, decided) = (true, true);
    }
    let mut estimate = if decided { attempt(graph, loops, sampled, &trips)? } else { first };
    for (number, block) in estimate.blocks.iter_mut().enumerate() {
        let apart = trips
            .iter()
            .zip(&contradicts)
            .filter(|(trips, _)| loops.contains(trips.number, number));
        block.spread =
            apart.fold(block.spread, |spread, (_, apart)| spread.hypot(*apart)).min(UNSURE);
        block.confidence = Confidence::of(block.spread);
    }
    Some(Estimate { trips, ..estimate })
}

/// How far the rounds of each of `trips` are from what the branches of `estimate` say:
/// [`Trips::contradicts`].
fn contradictions(graph: &Cfg, loops: &Loops, estimate: &Estimate, trips: &[Trips]) -> Vec<f64> {
    if trips.is_empty() {
        return Vec::new();
    }
    let entries = rounds::entries(graph, loops, &estimate.edges);
    let apart = |trips: &Trips| {
        let header = loops.loops().get(trips.number)?.header;
        let rounds = estimate.blocks.get(header)?.executions / entries.get(trips.number)?;
        (rounds.is_finite() && rounds > 0.0).then(|| trips.contradicts(rounds))
    };
    trips.iter().map(|trips| apart(trips).unwrap_or(0.0)).collect()
}

/// Solves the graph once, with the tests of loops that decide.
fn attempt(graph: &Cfg, loops: &Loops, sampled: &Sampled<'_>, trips: &[Trips]) -> Option<Estimate> {
    let (observed, joint) = observe::observe(graph, loops, sampled, trips)?;
    let order = solve::order(&observed)?;
    let flow = solve::solve(&observed, &order)?;
    let known: f64 = observed.blocks.iter().map(|block| block.samples).sum::<f64>()
        + observed.ways.iter().map(|way| way.seen).sum::<f64>();
    let sure = known >= SURE_MIN && observed.blocks.len() <= SURE_BLOCKS_MAX;
    let spread = if sure { spread(&observed, &flow) } else { vec![UNSURE; observed.blocks.len()] };
    let states = observed.blocks.iter().zip(flow.blocks()).zip(spread);
    let blocks =
        states.take(graph.blocks().len()).map(|((block, executions), spread)| BlockEstimate {
            samples: block.samples,
            executions: *executions,
            spread,
            confidence: Confidence::of(spread),
        });
    let mut edges = vec![0.0; graph.edges().len()];
    for (way, flow) in observed.ways.iter().zip(&flow.ways) {
        way.edge.and_then(|edge| edges.get_mut(edge)).into_iter().for_each(|edge| *edge = *flow);
    }
    for (edge, executions) in flow.joint(&joint) {
        edges.get_mut(edge).into_iter().for_each(|edge| *edge += executions);
    }
    let pace = sampled.points.map(|_| flow.pace());
    Some(Estimate { blocks: blocks.collect(), edges, trips: Vec::new(), pace })
}

/// By how much the logarithms of executions, beside the mean of the procedure's samples, differ
/// where samples are drawn anew.
fn spread(observed: &observed::Observed, flow: &solve::Flow<'_>) -> Vec<f64> {
    let mut random = fastrand::Rng::with_seed(0x5eed);
    let mut seen = vec![0.0; observed.blocks.len()];
    for way in &observed.ways {
        seen.get_mut(way.from).into_iter().for_each(|seen| *seen += way.seen);
    }
    let drawn: [observed::Observed; REPLICAS] = std::array::from_fn(|_| {
        let mut drawn = observed.clone();
        for way in &mut drawn.ways {
            let all = seen.get(way.from).copied().unwrap_or(0.0);
            let bias = if way.seen < all { BIAS * BIAS * way.seen * all } else { 0.0 };
            // What was never seen may have been missed.
            way.seen =
                (way.seen + (way.seen + way.guess + bias).sqrt() * normal(&mut random)).max(0.0);
            way.told.iter_mut().for_each(|(share, spread)| {
                *share = (*share * (*spread * normal(&mut random)).exp()).min(1.0)
            });
        }
        for guarded in &observed.guarded {
            let way = drawn.ways.get_mut(*guarded);
            way.into_iter().for_each(|way| {
                way.told = Some((way.guess * (GUARDED * normal(&mut random)).exp(), 1.0))
            });
        }
        for (number, block) in drawn.blocks.iter_mut().enumerate() {
            // What has no sample could have had one.
            let factor = (solve::spread_of_time(block) * normal(&mut random)).exp();
            block.samples = ((block.samples + FEW) * factor - FEW).max(0.0);
            if let Some((told, spread)) = block.told.as_mut().zip(flow.spread(number)) {
                told.rate *= (spread * normal(&mut random)).exp();
            }
        }
        drawn
    });
    let differences = flow.differences(&drawn);
    let weights: f64 = observed.blocks.iter().map(|block| block.samples).sum::<f64>().max(1e-9);
    let mut means = [0.0; REPLICAS];
    for (differences, block) in differences.iter().zip(&observed.blocks) {
        means
            .iter_mut()
            .zip(differences)
            .for_each(|(mean, one)| *mean += one * block.samples / weights);
    }
    let square = |differences: &[f64; REPLICAS]| {
        differences.iter().zip(means).map(|(one, mean)| (one - mean).powi(2)).sum::<f64>()
            / REPLICAS as f64
    };
    // Of what is never come to nothing is known.
    let spread = |(differences, executions): (_, &f64)| {
        let spread = CURVED * square(differences).sqrt();
        if spread.is_finite() && *executions > 0.0 { spread.min(UNSURE) } else { UNSURE }
    };
    differences.iter().zip(flow.blocks()).map(spread).collect()
}

/// A number of mean 0 and standard deviation 1 (Box and Muller).
fn normal(random: &mut fastrand::Rng) -> f64 {
    let (a, b) = (random.f64().max(f64::MIN_POSITIVE), random.f64());
    (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos()
}
