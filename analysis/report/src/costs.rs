//! Executions, cycles and stalls of instructions, as reports show them.

use std::collections::BTreeMap;
use std::io::{self, Write};

use stalls::{Cause, Culprit, Explanation, Scale, ScaleBasis};

use super::Style;
use super::fields::{Address, Approximate, Shown};
use super::quantity::thousands;
use super::text::{detail, head, machine};
use super::{BlockRow, InstructionCost, LoopRow, Model, Runs};

/// Fewest samples of an instruction whose stall is shown.
const STALL_SAMPLES: u64 = 10;
/// Smallest part of the procedure's samples that a stall has to be shown.
const STALL_SHARE: f64 = 0.005;
/// Factor between the ends of a range below which the range is shown as one number.
pub(super) const ROUGHLY: f64 = 1.2;
/// Smallest ratio of the ends of an interval at which it counts as unbounded.
pub(super) const UNKNOWN: f64 = 100.0;

/// Executions, cycles and stalls of a listing's instructions.
#[derive(Debug)]
pub struct Costs {
    /// The model of the processor that gives the best cases.
    pub machine: Model,
    /// Samples per cycle, and the basis of this estimate; none without samples.
    pub scale: Option<Scale>,
    /// Samples of time of the whole procedure.
    pub samples: f64,
    /// Instructions by address, with their executions.
    pub rows: BTreeMap<u64, (Runs, InstructionCost)>,
    /// The procedure's loops, those with the most samples first.
    pub loops: Vec<LoopRow>,
}

/// The stall of an instruction.
pub(super) struct Stall {
    /// Estimated cycles of one execution beyond the best case.
    pub(super) least: f64,
    /// Upper bound of these cycles.
    pub(super) most: f64,
    /// Letters of the causes that may have stalled the instruction.
    pub(super) letters: String,
}

impl InstructionCost {
    /// The instruction's stall, if it is large enough to be shown in a procedure with `all`
    /// samples.
    pub(super) fn stall(&self, scale: Option<Scale>, all: f64) -> Option<Stall> {
        let why = &self.why;
        let stall: f64 = why.cycles - why.best.cycles;
        let largest = why.culprits.first().map_or(0.0, |culprit| culprit.high);
        let part = if why.cycles > 0.0 {
            largest.max(stall) / why.cycles * self.samples as f64
        } else {
            0.0
        };
        let told = scale.is_some() && self.samples >= STALL_SAMPLES && part >= all * STALL_SHARE;
        let letters = || letters(&why.culprits, why.unexplained > stall / 10.0);
        told.then(|| Stall { least: stall.max(0.0), most: largest.max(stall), letters: letters() })
    }
}

impl InstructionCost {
    /// What may have stalled the instruction, the largest first, with the places of causes that are
    /// elsewhere.
    pub(super) fn causes(&self) -> String {
        let culprits: Vec<&Culprit> = told(&self.why.culprits).collect();
        // Misses of the data cache and of the data TLB, which samples hardly tell apart.
        let is_whole = |at: u64| {
            let of_data =
                |cause: &Cause| culprits.iter().any(|of| (of.cause, of.at) == (*cause, at));
            Cause::ALL.iter().filter(|cause| cause.is_of_data()).all(of_data)
        };
        let mut causes: Vec<String> = Vec::new();
        for culprit in &culprits {
            let what = match culprit.cause.is_of_data() && is_whole(culprit.at) {
                true => "cache or TLB miss".to_owned(),
                false => culprit.cause.to_string(),
            };
            let at = match culprit.at == self.address {
                true => String::new(),
                false => format!(" at {:#x}", culprit.at),
            };
            let cause = format!("{what}{at}");
            if !causes.contains(&cause) {
                causes.push(cause);
            }
        }
        if causes.is_empty() { "no cause explains it".to_owned() } else { causes.join(", or ") }
    }
}

/// The meaning and the error of cycles, in words.
pub(super) fn cycles(scale: Option<Scale>) -> String {
    if let Some(why) = not_known(scale) {
        return why.to_owned();
    }
    let Some(Scale { samples_per_cycle, upper, lower, basis, .. }) = scale else {
        return String::new();
    };
    let (down, up) = (number(samples_per_cycle / upper), number(samples_per_cycle / lower));
    let by = match basis {
        ScaleBasis::RetiredInstructions => {
            return "of one execution, measured with samples of instructions".to_owned();
        }
        ScaleBasis::ExactCounts => {
            return "of one execution: samples of time, divided by exact counts".to_owned();
        }
        ScaleBasis::Unknown => return NOT_KNOWN.to_owned(),
        ScaleBasis::Rounds => "the rounds that a loop makes between two samples; true cycles:",
        ScaleBasis::IssuePoints => "instructions that hardly ever stalled; true cycles: probably",
    };
    format!("of one execution, by {by} {down}–{up} times that")
}

/// The line `cycles` of a procedure whose cycles are not known.
const NOT_KNOWN: &str = "not known: samples of time alone do not tell how often this ran here; dcpi ideal --sampled counts executions";

/// Whether cycles have an estimate, and not only bounds.
pub(super) fn is_known(scale: Option<Scale>) -> bool {
    scale.is_some_and(|scale| scale.is_known())
}

/// The reason why the cycles of one execution have only bounds; `None` where they are estimated.
pub(super) fn not_known(scale: Option<Scale>) -> Option<&'static str> {
    match scale {
        None => Some("not known: the procedure has no samples of time"),
        Some(Scale { basis: ScaleBasis::Unknown, .. }) => Some(NOT_KNOWN),
        Some(_) => None,
    }
}

/// Titles of the columns of a listing, and the line above them.
pub(super) const TITLES: [&str; 4] = ["call", "confidence", "typical", "worst"];
pub(super) const TITLES_ABOVE: [&str; 4] = ["times per", "", "cycles:", ""];
/// Titles of the same columns in CSV.
pub(super) const COLUMNS: [&str; 8] =
    ["runs", "runs_low", "runs_high", "confidence", "best_cpi", "cpi", "cpi_most", "letters"];

impl Costs {
    /// The costs of the instructions of these blocks.
    pub fn of(
        blocks: Vec<BlockRow>,
        loops: Vec<LoopRow>,
        machine: Model,
        scale: Option<Scale>,
        samples: f64,
    ) -> Self {
        let row = |runs: Runs| move |line: InstructionCost| (line.address, (runs, line));
        let rows = blocks
            .into_iter()
            .flat_map(|block| block.instructions.into_iter().map(row(block.runs)));
        Self { machine, scale, samples, rows: rows.collect(), loops }
    }

    /// The lines of a report's head.
    pub(super) fn text(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        machine(style, out, &self.machine)?;
        detail(
            style,
            out,
            "times",
            "per call of the procedure, with the confidence in their number",
        )?;
        head(style, out, "cycles", &cycles(self.scale))
    }

    /// An instruction's cells of the columns [`TITLES`]; empty where the instruction is not known.
    pub(super) fn cells(&self, address: u64) -> [String; TITLES.len()] {
        let Some((runs, line)) = self.rows.get(&address) else { return Default::default() };
        let Explanation { cycles, cycles_max: cycles_most, .. } = line.why;
        let took = line.samples > 0 && self.scale.is_some() && runs.value > 0.0;
        let known = is_known(self.scale);
        let most = took && cycles_most.is_finite() && (cycles_most > cycles * ROUGHLY || !known);
        [
            number(runs.value),
            word(runs.confidence).to_owned(),
            if took && known { cycle(cycles) } else { String::new() },
            if most { cycle(cycles_most) } else { String::new() },
        ]
    }

    /// What may have stalled an instruction, in words; none where it did not stall for long.
    pub(super) fn causes(&self, address: u64) -> Option<String> {
        let (_, line) = self.rows.get(&address)?;
        line.stall(self.scale, self.samples).map(|_| line.causes())
    }

    /// An instruction for JSON.
    pub(super) fn json(&self, address: u64) -> Option<Cost> {
        let (runs, line) = self.rows.get(&address)?;
        let letters = line.stall(self.scale, self.samples).map(|stall| stall.letters);
        Some(Cost { letters, ..Cost::of(*runs, &line.why, self.scale) })
    }
}

crate::fields! {
    /// Executions.
    #[derive(Debug)]
    pub struct Frequency {
        value: f64 as Approximate, "runs";
        /// lower end of its interval; `null`: not known, where the confidence is low
        low: Option<Approximate>, "runs";
        /// upper end of its interval, likewise
        high: Option<Approximate>, "runs";
        /// `high` (within 10 %), `medium` (15 %), `low`
        confidence: &'static str;
    }

    /// Executions, cycles and stalls of an instruction. Cycles that are not known are null.
    #[derive(Debug)]
    pub struct Cost {
        frequency: Frequency => "runs" | "runs_low" | "runs_high" | "confidence";
        /// cycles at best
        best_cpi: Option<Approximate>, "cycles" => "best_cpi";
        /// estimated cycles
        cpi: Option<Approximate>, "cycles" => "cpi";
        /// cycles at most; `null`: without bound
        cpi_most: Option<Approximate>, "cycles" => "cpi_most";
        /// cycles that no cause explains
        unexplained: Option<Approximate>, "cycles";
        culprits: Vec<CulpritEntry>;
        /// letters of the largest causes
        letters (csv): Option<String> => "letters";
    }

    /// A possible cause of a stall.
    #[derive(Debug)]
    pub struct CulpritEntry {
        /// a possible cause of the stall
        cause: String;
        /// the cause's letter
        letter: char;
        /// address of the instruction to blame
        address: Address;
        /// cycles of the stall, at least
        low: Option<Approximate>, "cycles";
        /// cycles of the stall, at most
        high: Option<Approximate>, "cycles";
    }
}

impl Shown<&Runs> for Frequency {
    fn shown(runs: &Runs) -> Self {
        let Runs { value, low, high, confidence } = *runs;
        // Then the number of entries, which all are counted by, is a guess.
        let end = |end: f64| {
            (confidence != estimate::Confidence::Low && end.is_finite()).then_some(Approximate(end))
        };
        Self { value, low: end(low), high: end(high), confidence: word(confidence) }
    }
}

impl Cost {
    pub(super) fn of(runs: Runs, why: &Explanation, scale: Option<Scale>) -> Self {
        let cycles = |cycles: f64| {
            Some(Approximate(cycles)).filter(|_| scale.is_some() && cycles.is_finite())
        };
        let known = is_known(scale);
        Self {
            frequency: Frequency::shown(&runs),
            best_cpi: cycles(why.best.cycles),
            cpi: cycles(why.cycles).filter(|_| known),
            cpi_most: cycles(why.cycles_max),
            unexplained: cycles(why.unexplained).filter(|_| known),
            culprits: CulpritEntry::all(why.culprits.iter(), known),
            letters: None,
        }
    }
}

impl CulpritEntry {
    /// Cycles are null where they are not known.
    pub(super) fn all<'a>(of: impl Iterator<Item = &'a Culprit>, known: bool) -> Vec<Self> {
        let entry = |culprit: &Culprit| Self {
            cause: culprit.cause.name().to_owned(),
            letter: culprit.cause.letter(),
            address: Address(culprit.at),
            low: known.then_some(Approximate(culprit.low)),
            high: known.then_some(Approximate(culprit.high)),
        };
        of.map(entry).collect()
    }
}

/// The causes that have a letter, the largest first: those that may have taken at least a tenth of
/// the cycles of the largest.
pub(super) fn told(culprits: &[Culprit]) -> impl Iterator<Item = &Culprit> {
    let largest = culprits.first().map_or(0.0, |culprit| culprit.high);
    culprits.iter().filter(move |culprit| culprit.high >= largest / 10.0)
}

/// Letters of culprits, and a question mark if the culprits do not explain the whole stall.
pub(super) fn letters(culprits: &[Culprit], unexplained: bool) -> String {
    let mut letters: String = told(culprits).map(|culprit| culprit.cause.letter()).collect();
    if unexplained {
        letters.push('?');
    }
    letters
}

/// The letters of these causes with their meanings, each followed by a comma.
pub(super) fn meanings(causes: &[Cause]) -> String {
    causes.iter().map(|cause| format!("{} {cause}, ", cause.letter())).collect()
}

/// Cycles, with the significant decimals only.
pub(super) fn cycle(value: f64) -> String {
    match value {
        value if value < 10.0 => format!("{value:.2}"),
        value if value < 1000.0 => format!("{value:.1}"),
        value => number(value),
    }
}

/// A number for JSON, rounded to six digits, and to 0 below a billionth: further digits are noise
/// and differ between machines.
pub(super) fn digits(value: f64) -> f64 {
    if !value.is_finite() {
        return value;
    }
    if value.abs() < 1e-9 {
        return 0.0;
    }
    let scale = 10_f64.powi(5 - value.abs().log10().floor() as i32);
    (value * scale).round() / scale
}

/// A number with three or four digits.
pub(super) fn number(value: f64) -> String {
    match value {
        0.0 => "0".to_owned(),
        value if !(1e-3..1e9).contains(&value) => format!("{value:.2e}"),
        value if value >= 100.0 => thousands(in_digits(value, 3)),
        value if value >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.3}"),
    }
}

/// A whole number, rounded to `digits` digits.
pub(super) fn in_digits(value: f64, digits: i32) -> u64 {
    let unit = 10_f64.powi((value.max(1.0).log10().floor() as i32 + 1 - digits).max(0));
    ((value / unit).round() * unit) as u64
}

pub(super) fn word(confidence: estimate::Confidence) -> &'static str {
    match confidence {
        estimate::Confidence::Low => "low",
        estimate::Confidence::Medium => "medium",
        estimate::Confidence::High => "high",
    }
}
