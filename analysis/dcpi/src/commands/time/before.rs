//! `--baseline`: a measurement of before.

use std::path::Path;

use report::RunRow;
use serde::Deserialize;

use super::RUNS_MAX;
use crate::commands::baseline;
use query::error::AnalysisError;

/// Shortest and longest time of a run, s.
const RUN_S: (f64, f64) = (1e-6, 1e7);
/// Times of the fixed loop on processors of 10 MHz to 100 GHz.
const LOOP_NS: std::ops::Range<f64> = 1.0..1e7;

/// What `dcpi time --format json` wrote of one command.
pub(super) struct Before {
    pub(super) command: String,
    pub(super) rows: Vec<RunRow>,
    /// When it ended (RFC 3339, UTC).
    ended: String,
    /// Time of a fixed loop, ns ([`super::host::Host::loop_ns`]).
    loop_ns: Option<f64>,
}

#[derive(Deserialize)]
struct Json {
    a: Command,
    b: Option<Command>,
    ended: String,
    loop_ns: Option<f64>,
    runs: Vec<Run>,
}

#[derive(Deserialize)]
struct Command {
    command: String,
}

#[derive(Deserialize)]
struct Run {
    layout: usize,
    pair: usize,
    wall_s: f64,
    user_s: f64,
    system_s: f64,
    delayed_s: f64,
    padding: usize,
    code: Option<i32>,
}

impl Before {
    /// # Errors
    /// Those of [`baseline::read`], and [`AnalysisError::Refused`] for two commands, and for runs
    /// without times.
    pub(super) fn read(path: &Path) -> Result<Self, AnalysisError> {
        let Json { a, b, ended, loop_ns, runs } = baseline::read(path, "time")?;
        if b.is_some() {
            return Err(AnalysisError::Refused(format!(
                "baseline {}: it has two commands; time one alone with --format json",
                path.display()
            )));
        }
        let times = |run: &Run| [run.user_s, run.system_s, run.delayed_s];
        let is_run = |run: &Run| {
            (RUN_S.0..RUN_S.1).contains(&run.wall_s)
                && times(run).iter().all(|time| (0.0..RUN_S.1).contains(time))
                && run.user_s + run.system_s > 0.0
        };
        if !(1..=RUNS_MAX as usize).contains(&runs.len()) || !runs.iter().all(is_run) {
            return Err(AnalysisError::Refused(format!(
                "baseline {}: its runs have no times, or are too many; make it anew with \
                 --format json",
                path.display()
            )));
        }
        let loop_ns = loop_ns.filter(|ns| LOOP_NS.contains(ns));
        let row = |run: Run| {
            let Run { layout, pair, wall_s, user_s, system_s, delayed_s, padding, code } = run;
            RunRow {
                layout,
                pair,
                command: 0,
                wall_s,
                user_s,
                system_s,
                delayed_s,
                padding,
                warm_up: false,
                code,
            }
        };
        let rows = runs.into_iter().map(row).collect();
        Ok(Self { command: a.command, rows, ended, loop_ns })
    }

    /// How much faster or slower the fixed loop is now, as a part of its time then.
    fn change_of_loop(&self, now: Option<f64>) -> Option<f64> {
        let change = now? / self.loop_ns.filter(|before| *before > 0.0)? - 1.0;
        change.is_finite().then_some(change)
    }

    /// The part by which times of one program may differ between then and now: `effect`, or what
    /// the loop's time has changed by.
    pub(super) fn drift(&self, now: Option<f64>, effect: f64) -> f64 {
        self.change_of_loop(now).map_or(effect, |change| change.abs().max(effect))
    }

    /// What the reader must know of it.
    pub(super) fn note(&self, now: Option<f64>) -> String {
        let change = self.change_of_loop(now);
        let of_loop = change.map_or_else(String::new, |change| {
            format!("; a fixed loop takes {:+.1} % of its time then", change * 100.0)
        });
        format!(
            "A was measured until {}{of_loop}; the interval allows for that, and for --effect: \
             what else the machine does otherwise counts as B's",
            self.ended
        )
    }
}
