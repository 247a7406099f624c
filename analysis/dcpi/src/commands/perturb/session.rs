//! Runs without and with an observer, in turns, and their judgement.

use std::ffi::{OsStr, OsString};
use std::process::ExitStatus;

use exact::series::{Plan, SeriesError};
use measure::perturbation::{Correlations, Judgement, judge};
use query::error::AnalysisError;
use query::progress::stage;
use report::Moved;

use super::amounts::Amounts;
use super::columns::{Columns, Names, RECORDS_MIN, Run};
use super::observer::Observer;
use crate::commands::input::Input;
use crate::commands::passing::Stopped;

/// Everything that runs share.
pub(super) struct Session<'a> {
    pub(super) plan: Plan,
    pub(super) command: &'a [OsString],
    pub(super) observer: Observer,
    pub(super) names: Names,
    pub(super) input: Input,
    /// How the first run without an observer ended.
    pub(super) ended: Option<ExitStatus>,
    pub(super) per_record: usize,
    /// Probability of finding a perturbation where there is none.
    pub(super) level: f64,
    /// Remarks for the reader, without duplicates.
    pub(super) notes: Vec<String>,
    pub(super) stopped: Stopped,
}

/// Runs of one comparison.
#[derive(Clone, Debug, Default)]
pub(super) struct Runs {
    pub(super) baselines: Vec<Run>,
    pub(super) observed: Vec<Run>,
}

pub(super) struct Judged {
    pub(super) columns: Columns,
    pub(super) judgement: Judgement,
    pub(super) moved: Vec<Moved>,
    pub(super) shares_moved: bool,
}

impl Session<'_> {
    /// The order of this many runs without and with the observer, evenly interleaved so that
    /// changes of the machine affect both alike.
    pub(super) fn runs(
        &mut self,
        baselines: usize,
        observed: usize,
        items: &[String],
    ) -> Result<Runs, AnalysisError> {
        let all = baselines + observed;
        let stage = stage("running the command", all as u64);
        let mut runs = Runs::default();
        for at in 0..all {
            if is_observed(at, observed, all) {
                runs.observed.push(self.observed(items)?);
            } else {
                runs.baselines.push(self.baseline()?);
            }
            stage.advance(1);
        }
        Ok(runs)
    }

    pub(super) fn baseline(&mut self) -> Result<Run, AnalysisError> {
        let program = Observer::Own.program(self.command);
        let words = self.command.to_vec();
        self.run(&words, &program, false)
    }

    fn observed(&mut self, items: &[String]) -> Result<Run, AnalysisError> {
        let observed = self.observer.observe(self.command, items)?;
        let program = self.observer.program(self.command);
        self.run(&observed.words, &program, true)
    }

    fn run(
        &mut self,
        words: &[OsString],
        program: &OsStr,
        observed: bool,
    ) -> Result<Run, AnalysisError> {
        self.go_on()?;
        let streams = self.input.streams(false)?;
        let refused = |error: SeriesError| AnalysisError::Refused(error.to_string());
        let captured = self.plan.run(words, program, streams).map_err(refused)?;
        self.go_on()?;
        let name = program.to_string_lossy();
        if !captured.executed {
            let (runner, hint) = match observed {
                true => ("the observer", "run the observer's command alone to see why"),
                false => ("the command", "name the program itself, not a script that leaves it"),
            };
            return Err(AnalysisError::Refused(format!(
                "{runner} never ran {name} ({}); {hint}",
                captured.status
            )));
        }
        let first = *self.ended.get_or_insert(captured.status);
        if captured.status != first {
            let how = if observed { "with the observer" } else { "once" };
            self.note(format!("{name} ended otherwise {how}: {}, not {first}", captured.status));
        }
        if captured.lost > 0 {
            self.note("some samples were lost: records of that time have too few".to_owned());
        }
        let of = |words: &[OsString]| {
            let first = words.first().map(std::path::Path::new);
            first.and_then(|path| path.file_name()).map(|name| name.to_string_lossy().into_owned())
        };
        let programs: Vec<String> =
            of(self.command).into_iter().chain([name.into_owned()]).collect();
        Ok(self.names.run(&captured, self.plan.period_ns(), &programs))
    }

    /// Whether no signal has asked to stop. A run that one has cut is no run.
    fn go_on(&self) -> Result<(), AnalysisError> {
        self.stopped.signal().map_or(Ok(()), |signal| {
            let why = format!("signal {signal} ended the runs; nothing is judged");
            Err(AnalysisError::Refused(why))
        })
    }

    fn note(&mut self, note: String) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Whether a run with this many ticks has enough records.
    ///
    /// # Errors
    /// [`AnalysisError::Refused`] where it is too short.
    pub(super) fn long_enough(&self, ticks: usize, cpu_s: f64) -> Result<(), AnalysisError> {
        let records = ticks / self.per_record;
        if records >= RECORDS_MIN {
            return Ok(());
        }
        Err(AnalysisError::Refused(format!(
            "a run has {records} records of CPU time, and {RECORDS_MIN} are needed: it takes \
             {cpu_s:.2} s; give the command more work, or a shorter --interval"
        )))
    }

    /// The columns that runs without an observer have.
    pub(super) fn columns(&self, baselines: &[Run]) -> Result<Columns, AnalysisError> {
        let events: Vec<String> = self.plan.events().map(str::to_owned).collect();
        let columns = Columns::choose(baselines, &self.names, &events, self.per_record);
        let cpu_s = baselines.iter().map(|run| run.cpu_s).fold(0.0, f64::max);
        self.long_enough(columns.records * self.per_record, cpu_s)?;
        Ok(columns)
    }

    /// Judges runs with an observer against those without.
    pub(super) fn judge(&self, runs: &Runs) -> Result<Judged, AnalysisError> {
        let columns = self.columns(&runs.baselines)?;
        let all = runs.baselines.iter().chain(&runs.observed);
        let series: Vec<_> = all.map(|run| columns.series(run)).collect();
        let baselines: Vec<usize> = (0..runs.baselines.len()).collect();
        let observed: Vec<usize> = (runs.baselines.len()..series.len()).collect();
        let correlations = Correlations::of(&series, &baselines);
        let judgement = judge(&correlations, &baselines, &observed, self.level);
        let amounts = Amounts::of(&columns, runs.baselines.iter().chain(&runs.observed));
        let moved = amounts.moved(&baselines, &observed, self.level);
        let shares_moved = amounts.shares_moved(&moved);
        Ok(Judged { columns, judgement, moved, shares_moved })
    }

    /// The number of comparisons of runs without an observer that find a perturbation; each
    /// comparison treats some runs of a pool as observed.
    pub(super) fn false_alarms(
        &mut self,
        trials: usize,
        baselines: usize,
        observed: usize,
    ) -> Result<(usize, usize), AnalysisError> {
        let pool = POOL * (baselines + observed);
        let runs = self.runs(pool, 0, &[])?.baselines;
        let columns = self.columns(&runs)?;
        let series: Vec<_> = runs.iter().map(|run| columns.series(run)).collect();
        let mut numbers: Vec<usize> = (0..pool).collect();
        let correlations = Correlations::of(&series, &numbers);
        let amounts = Amounts::of(&columns, runs.iter());
        let mut random = fastrand::Rng::new();
        let mut flagged = 0;
        for _ in 0..trials {
            random.shuffle(&mut numbers);
            let (of, rest) = numbers.split_at(observed);
            let against = rest.get(..baselines).unwrap_or(rest);
            let moved = amounts.moved(against, of, self.level);
            let any = judge(&correlations, against, of, self.level).any;
            flagged += usize::from(any || amounts.shares_moved(&moved));
        }
        Ok((flagged, pool))
    }

    /// Splits what the observer collects over several runs, so that none of them is perturbed:
    /// greedily, each item goes to the first group that stays unperturbed with it. Returns the
    /// groups, and whether each is still perturbed, which only a group of one item is.
    pub(super) fn split(
        &mut self,
        items: &[String],
        runs: &mut Runs,
        observed: usize,
    ) -> Result<Vec<(Vec<String>, bool)>, AnalysisError> {
        let mut groups: Vec<(Vec<String>, bool)> = Vec::new();
        for item in items {
            let mut joined = false;
            for at in 0..groups.len() {
                let Some((group, false)) = groups.get(at) else { continue };
                let together: Vec<String> = group.iter().chain([item]).cloned().collect();
                if !self.is_perturbed(&together, runs, observed)? {
                    if let Some(of) = groups.get_mut(at) {
                        of.0 = together;
                    }
                    joined = true;
                    break;
                }
            }
            if !joined {
                let alone = vec![item.clone()];
                let is_perturbed = self.is_perturbed(&alone, runs, observed)?;
                groups.push((alone, is_perturbed));
            }
        }
        Ok(groups)
    }

    /// Whether runs that collect these items are perturbed. Further runs without an observer lie
    /// between them, and count from then on.
    fn is_perturbed(
        &mut self,
        items: &[String],
        runs: &mut Runs,
        observed: usize,
    ) -> Result<bool, AnalysisError> {
        let more = self.runs(observed.div_ceil(2), observed, items)?;
        runs.baselines.extend(more.baselines);
        let these = Runs { baselines: runs.baselines.clone(), observed: more.observed };
        // Probes always take a share of the time of what they are on: a split by shares would end
        // with each item alone.
        Ok(self.judge(&these)?.judgement.any)
    }
}

/// Runs of the pool of false alarms over those of one comparison: with fewer, the same runs would
/// be compared again and again.
const POOL: usize = 3;

/// Whether run `at` of `all` is one of `observed`, which are spread evenly.
fn is_observed(at: usize, observed: usize, all: usize) -> bool {
    (at + 1) * observed / all.max(1) > at * observed / all.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn observed_runs_lie_evenly_among_the_others() {
        let at = |observed: usize, all: usize| {
            (0..all).filter(|at| is_observed(*at, observed, all)).collect::<Vec<_>>()
        };
        assert_eq!(at(4, 16), [3, 7, 11, 15]);
        assert_eq!(at(3, 10), [3, 6, 9]);
        assert_eq!(at(0, 5), Vec::<usize>::new());
        assert_eq!(at(5, 5), [0, 1, 2, 3, 4]);
    }
}
