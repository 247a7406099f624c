//! From what happened in runs to metrics: named columns of records of equal CPU time.

use std::collections::HashMap;
use std::path::Path;

use exact::series::{Captured, Happened, Place};

use image::{ImageOffset, Procedures, default_debug_roots};
use measure::perturbation::Series;

/// Smallest share of the time for which a procedure is a separate metric. A smaller procedure has
/// less than one of the 40 ticks in a record, and its correlations are noise.
const SHARE_MIN: f64 = 0.03;
/// Procedures that are metrics at most: each more multiplies the comparisons, and what is left of
/// the sight for each.
const PROCEDURES_MAX: usize = 12;
/// Most records in a run, as in the paper.
pub(super) const RECORDS_MAX: usize = 3000;
/// Records of a run at least: of fewer a correlation says nothing (its standard deviation is
/// 1 / sqrt(n - 3)).
pub(super) const RECORDS_MIN: usize = 20;
/// Name of the image for code that is in no file.
const ELSEWHERE: &str = "no file";
const KERNEL: &str = "kernel";

/// Where a tick was, as far as metrics need it: numbers of names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Code {
    procedure: u32,
    image: u32,
}

/// A run, with ticks by number of name.
#[derive(Clone, Debug)]
pub(super) struct Run {
    /// Time from start to end, s.
    pub(super) wall_s: f64,
    /// CPU time of the program, s.
    pub(super) cpu_s: f64,
    ticks: Vec<Code>,
    /// Occurrences of events: before which tick, which event, how many.
    events: Vec<(usize, u32, u64)>,
}

impl Run {
    /// Ticks of CPU time.
    pub(super) fn ticks(&self) -> usize {
        self.ticks.len()
    }
}

/// Names of procedures and images, of all runs.
#[derive(Default)]
pub(super) struct Names {
    files: HashMap<String, Option<Procedures>>,
    numbers: HashMap<String, u32>,
    names: Vec<String>,
}

impl Names {
    /// A run, with names for its code. Code of a file whose name is one of `programs` is code of
    /// the program, whichever build of it that was.
    pub(super) fn run(&mut self, captured: &Captured, period_ns: u64, programs: &[String]) -> Run {
        let codes: Vec<Code> =
            captured.places.iter().map(|place| self.code(place, programs)).collect();
        let (mut ticks, mut events) = (Vec::new(), Vec::new());
        for happened in &captured.happened {
            match *happened {
                Happened::Tick(place) => {
                    let code = usize::try_from(place).ok().and_then(|at| codes.get(at));
                    ticks.extend(code);
                }
                Happened::Event(event, count) => events.push((ticks.len(), event, count)),
            }
        }
        let cpu_s = ticks.len() as f64 * period_ns as f64 / 1e9;
        Run { wall_s: captured.took.as_secs_f64(), cpu_s, ticks, events }
    }

    fn code(&mut self, place: &Place, programs: &[String]) -> Code {
        let (procedure, image) = match place {
            Place::Kernel => (None, KERNEL.to_owned()),
            Place::Elsewhere => (None, ELSEWHERE.to_owned()),
            Place::File(path, offset) => {
                let file = Path::new(path).file_name().unwrap_or_default();
                let file = file.to_string_lossy().into_owned();
                let image = match programs.contains(&file) {
                    true => "the program".to_owned(),
                    false => file,
                };
                (self.procedure(path, *offset), image)
            }
        };
        let image = self.number(format!("[{image}]"));
        Code { procedure: procedure.map_or(image, |name| self.number(name)), image }
    }

    fn procedure(&mut self, path: &str, offset: u64) -> Option<String> {
        if !self.files.contains_key(path) {
            let found = image::procedures(Path::new(path), None, &default_debug_roots());
            self.files.insert(path.to_owned(), found.ok().map(|(procedures, _)| procedures));
        }
        let procedures = self.files.get(path)?.as_ref()?;
        Some(procedures.find(ImageOffset(offset))?.name().to_owned())
    }

    fn number(&mut self, name: String) -> u32 {
        if let Some(number) = self.numbers.get(&name) {
            return *number;
        }
        let number = u32::try_from(self.names.len()).unwrap_or(u32::MAX);
        self.names.push(name.clone());
        self.numbers.insert(name, number);
        number
    }

    fn name(&self, number: u32) -> String {
        let name = usize::try_from(number).ok().and_then(|at| self.names.get(at));
        name.cloned().unwrap_or_default()
    }
}

/// The quantity that a column counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    /// Ticks in the procedure of that number.
    Procedure(u32),
    /// Ticks in other code of the image of that number.
    Image(u32),
    /// Occurrences of the event of that number.
    Event(u32),
}

#[derive(Clone, Debug)]
pub(super) struct Columns {
    columns: Vec<Column>,
    pub(super) names: Vec<String>,
    pub(super) records: usize,
    /// Ticks of a run: of one that has more, some are left out, evenly. Otherwise a run that is
    /// slower would have less chance in its records, and for that alone higher correlations.
    ticks: usize,
}

impl Columns {
    /// Chooses metrics by runs without an observer, each with records of `per_record` ticks.
    pub(super) fn choose(
        baselines: &[Run],
        names: &Names,
        events: &[String],
        per_record: usize,
    ) -> Self {
        let mut by_procedure: HashMap<(u32, u32), usize> = HashMap::new();
        for code in baselines.iter().flat_map(|run| &run.ticks) {
            *by_procedure.entry((code.procedure, code.image)).or_default() += 1;
        }
        let all = by_procedure.values().sum::<usize>().max(1) as f64;
        let mut shares: Vec<_> = by_procedure.into_iter().collect();
        shares.sort_by_key(|(code, count)| (std::cmp::Reverse(*count), *code));
        let mut columns = Vec::new();
        let mut images: Vec<(u32, usize)> = Vec::new();
        for ((procedure, image), count) in shares {
            let is_large = count as f64 / all >= SHARE_MIN && procedure != image;
            if is_large && columns.len() < PROCEDURES_MAX {
                columns.push(Column::Procedure(procedure));
                continue;
            }
            match images.iter_mut().find(|(known, _)| *known == image) {
                Some((_, sum)) => *sum += count,
                None => images.push((image, count)),
            }
        }
        let large = images.iter().filter(|(_, count)| *count as f64 / all >= SHARE_MIN);
        columns.extend(large.map(|(image, _)| Column::Image(*image)));
        columns.extend((0_u32..).zip(events).map(|(event, _)| Column::Event(event)));
        let name = |column: &Column| match *column {
            Column::Procedure(number) => names.name(number),
            Column::Image(number) => names.name(number),
            Column::Event(number) => {
                let event = usize::try_from(number).ok().and_then(|at| events.get(at));
                event.cloned().unwrap_or_default()
            }
        };
        let column_names = columns.iter().map(name).collect();
        let mut lengths: Vec<usize> = baselines.iter().map(Run::ticks).collect();
        lengths.sort_unstable();
        let ticks = lengths.get(lengths.len() / 2).copied().unwrap_or_default();
        let records = (ticks / per_record.max(1)).min(RECORDS_MAX);
        Self { columns, names: column_names, records, ticks }
    }

    /// Whether a column is of CPU time, not of an event.
    pub(super) fn is_time(&self, at: usize) -> bool {
        !matches!(self.columns.get(at), Some(Column::Event(_)) | None)
    }

    fn column(&self, code: Code) -> Option<usize> {
        let of_procedure = |column: &Column| *column == Column::Procedure(code.procedure);
        let of_image = |column: &Column| *column == Column::Image(code.image);
        let found = self.columns.iter().position(of_procedure);
        found.or_else(|| self.columns.iter().position(of_image))
    }

    /// The columns of a run: it is cut into records by its own CPU time.
    pub(super) fn series(&self, run: &Run) -> Series {
        let mut columns = vec![vec![0.0; self.records]; self.columns.len()];
        let all = run.ticks.len();
        let keep = all.min(self.ticks);
        let mut add = |column: usize, record: usize, count: f64| {
            let record = record.min(self.records.saturating_sub(1));
            if let Some(of) = columns.get_mut(column).and_then(|of| of.get_mut(record)) {
                *of += count;
            }
        };
        // Tick `at` is the `at * keep / all`-th of the kept ones, where that number is a new one.
        let record = |at: usize| at * self.records / all.max(1);
        for (at, code) in run.ticks.iter().enumerate() {
            let is_kept = (at + 1) * keep / all.max(1) > at * keep / all.max(1);
            if let Some(column) = self.column(*code).filter(|_| is_kept) {
                add(column, record(at), 1.0);
            }
        }
        for (before, event, count) in &run.events {
            let is_it = |column: &Column| *column == Column::Event(*event);
            if let Some(column) = self.columns.iter().position(is_it) {
                add(column, record(*before), *count as f64);
            }
        }
        Series { columns }
    }

    /// The part of a run's time in a column, 0 to 1; of an event its occurrences.
    pub(super) fn amount(&self, run: &Run, at: usize) -> f64 {
        match self.columns.get(at) {
            Some(Column::Event(event)) => {
                let of = run.events.iter().filter(|(_, is, _)| is == event);
                of.map(|(.., count)| *count as f64).sum()
            }
            Some(_) => {
                let in_it = |code: &&Code| self.column(**code) == Some(at);
                run.ticks.iter().filter(in_it).count() as f64 / run.ticks.len().max(1) as f64
            }
            None => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(procedures: &[u32]) -> Run {
        let ticks = procedures.iter().map(|procedure| Code { procedure: *procedure, image: 9 });
        Run { wall_s: 1.0, cpu_s: 1.0, ticks: ticks.collect(), events: vec![(0, 0, 5), (99, 0, 2)] }
    }

    fn names() -> Names {
        let mut names = Names::default();
        for name in ["a", "b", "c", "d", "e", "f", "g", "h", "i", "[lib]"] {
            names.number(name.to_owned());
        }
        names
    }

    /// 100 ticks: first all in 0, then all in 1; of each ten the last is in a small procedure.
    fn two_halves() -> Run {
        let procedure = |at: u32| if at % 10 == 9 { 2 + at / 20 } else { at / 50 };
        run(&(0..100).map(procedure).collect::<Vec<_>>())
    }

    #[test]
    fn large_procedures_are_metrics_and_the_others_are_their_image() {
        let runs = [two_halves(), two_halves(), two_halves()];
        let events = ["page-faults".to_owned()];
        let columns = Columns::choose(&runs, &names(), &events, 10);
        // The small ones have 2 % each.
        assert_eq!(columns.names, ["a", "b", "[lib]", "page-faults"]);
        assert_eq!(columns.records, 10);
        let series = columns.series(&runs[0]).columns;
        assert_eq!(series[0], [9.0, 9.0, 9.0, 9.0, 9.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
        assert_eq!(series[2], [1.0; 10]);
        assert_eq!(series[3], [5.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 2.0]);
        let amounts: Vec<f64> = (0..4).map(|at| columns.amount(&runs[0], at)).collect();
        assert_eq!(amounts, [0.45, 0.45, 0.1, 7.0]);
        assert!(columns.is_time(2) && !columns.is_time(3) && !columns.is_time(4));
    }

    #[test]
    fn a_slower_run_has_as_many_records_and_ticks() {
        let base = two_halves();
        let columns = Columns::choose(&[base.clone(), base.clone()], &names(), &[], 10);
        let slow = Run {
            ticks: base.ticks.iter().flat_map(|code| [*code; 4]).collect(),
            events: Vec::new(),
            ..base.clone()
        };
        assert_eq!(columns.series(&slow), columns.series(&base));
        let fast = Run { ticks: base.ticks.iter().copied().step_by(2).collect(), ..base };
        let sum: f64 = columns.series(&fast).columns.iter().flatten().sum();
        assert_eq!(sum, 50.0);
        let none = Run { ticks: Vec::new(), ..fast };
        assert_eq!(columns.series(&none).columns[0].len(), 10);
        assert_eq!(columns.amount(&none, 0), 0.0);
    }
}
