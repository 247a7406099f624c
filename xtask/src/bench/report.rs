//! The paper's tables from measured runs, for people and as JSON.

use super::json::{array, number, object, optional, text};
use super::machine::cpus;
use super::profilers::{Configuration, Reading};
use super::runs::{OTHERS_MAX, Run, Runs};
use super::statistics::Spread;
use super::workloads::Kind;
use std::fmt::Write as _;

/// The data of the report.
pub struct Report<'a> {
    /// The machine.
    pub machine: String,
    /// Rounds.
    pub rounds: u64,
    /// Approximate seconds of each run.
    pub seconds: u64,
    /// The measurements.
    pub runs: &'a Runs,
}

fn shown(spread: Option<Spread>, decimals: usize) -> String {
    spread.map_or_else(|| "-".to_owned(), |spread| format!("{spread:.decimals$}"))
}

fn median(spread: Option<Spread>, decimals: usize) -> String {
    spread.map_or_else(|| "-".to_owned(), |spread| format!("{:.decimals$}", spread.median))
}

fn ratio(part: f64, whole: f64) -> Option<f64> {
    (whole > 0.0).then(|| part / whole)
}

/// CPU time of dcpid while the workload ran, without the interpretation of snapshots.
fn while_it_ran(run: &Run) -> Option<f64> {
    Some(run.seen.during.cpu_s - run.seen.during.edges_cpu_s)
}

/// Mean time of the BPF handler, ns, by the kernel's statistics.
fn handler_ns(run: &Run) -> Option<f64> {
    let Reading { handler_ns, handler_runs, .. } = run.seen.during;
    ratio(handler_ns, handler_runs)
}

impl Report<'_> {
    fn every(&self, kind: Kind, configuration: Configuration) -> Vec<&Run> {
        self.runs
            .timed
            .iter()
            .filter(|run| run.kind == kind && run.configuration == configuration)
            .collect()
    }

    /// The undisturbed runs of a configuration; all of them when none is undisturbed.
    fn timed(&self, kind: Kind, configuration: Configuration) -> Vec<&Run> {
        let all = self.every(kind, configuration);
        let calm: Vec<&Run> = all.iter().copied().filter(|run| run.others <= OTHERS_MAX).collect();
        if calm.is_empty() { all } else { calm }
    }

    /// By how much `what` is larger under one configuration than under another, in %, round by
    /// round.
    fn more(
        &self,
        kind: Kind,
        configuration: Configuration,
        than: Configuration,
        what: fn(&Run) -> f64,
    ) -> Option<Spread> {
        let of = |runs: &[&Run], peers: &[&Run]| {
            Spread::of(runs.iter().filter_map(|run| {
                let peer = peers.iter().find(|peer| peer.round == run.round)?;
                Some(100.0 * (ratio(what(run), what(peer))? - 1.0))
            }))
        };
        let undisturbed = of(&self.timed(kind, configuration), &self.timed(kind, than));
        undisturbed.or_else(|| of(&self.every(kind, configuration), &self.every(kind, than)))
    }

    fn dcpid(&self, kind: Kind, what: impl Fn(&Run) -> Option<f64>) -> Option<Spread> {
        Spread::of(self.timed(kind, Configuration::Dcpid).into_iter().filter_map(what))
    }

    /// The undisturbed runs with statistics; all of them when none is undisturbed.
    fn settled(&self, kind: Kind, configuration: Configuration) -> impl Iterator<Item = &Run> {
        let of = move |run: &&Run| run.kind == kind && run.configuration == configuration;
        let is_calm = |run: &Run| run.others <= OTHERS_MAX;
        let all = !self.runs.handler.iter().filter(of).any(is_calm);
        self.runs.handler.iter().filter(of).filter(move |run| all || is_calm(run))
    }

    fn handler_ns(&self, kind: Kind, configuration: Configuration) -> Option<Spread> {
        Spread::of(self.settled(kind, configuration).filter_map(handler_ns))
    }

    /// Handler time of dcpid minus that of the empty program, ns, round by round.
    fn above_ns(&self, kind: Kind) -> Option<Spread> {
        Spread::of(self.settled(kind, Configuration::Dcpid).filter_map(|run| {
            let empty =
                self.settled(kind, Configuration::Empty).find(|empty| empty.round == run.round)?;
            Some(handler_ns(run)? - handler_ns(empty)?)
        }))
    }

    /// The tables.
    pub fn text(&self) -> String {
        [self.slowdown(), self.components(), self.space(), self.noise()].join("\n")
    }

    /// CPU time of dcpid, ns per sample.
    fn daemon_ns(&self, kind: Kind, cpu_s: fn(&Run) -> Option<f64>) -> Option<Spread> {
        let runs = self.settled(kind, Configuration::Dcpid);
        Spread::of(runs.filter_map(|run| ratio(1e9 * cpu_s(run)?, run.seen.during.taken)))
    }

    fn slowdown(&self) -> String {
        let mut out = format!(
            "Table 3: slowdown, % of the wall time without a profiler: median [min..max] and number of\n\
             those of {} paired rounds that nobody disturbed (all rounds, where none was \
             undisturbed)\n\n\
             {:<9} {:>9}  {:>22} {:>22} {:>22}   {:>22}\n",
            self.rounds,
            "workload",
            "nothing s",
            "empty",
            "dcpid",
            "perf record",
            "dcpid above empty"
        );
        let mut rows = |suffix: &str, what: fn(&Run) -> f64| {
            for kind in Kind::ALL.into_iter().filter(|kind| *kind != Kind::Idle) {
                let against = |configuration, than| {
                    let spread = self.more(kind, configuration, than, what);
                    spread.map_or_else(
                        || "-".to_owned(),
                        |spread| format!("{spread:.1} x{}", spread.count),
                    )
                };
                let nothing =
                    Spread::of(self.timed(kind, Configuration::Nothing).into_iter().map(what));
                let slower = |configuration| against(configuration, Configuration::Nothing);
                let _ = writeln!(
                    out,
                    "{:<9} {:>9}  {:>22} {:>22} {:>22}   {:>22}",
                    format!("{}{suffix}", kind.name()),
                    median(nothing, 2),
                    slower(Configuration::Empty),
                    slower(Configuration::Dcpid),
                    slower(Configuration::Perf),
                    against(Configuration::Dcpid, Configuration::Empty),
                );
            }
        };
        rows("", |run| run.wall_s);
        rows("*", |run| run.cpu_s);
        out += "* the same for the workload's CPU time: others on the machine disturb it less; a profiler's own process is not in it.\n\n";
        out += "The profiler's own process, % of one CPU: median [min..max]\n\n";
        let _ = writeln!(out, "{:<9} {:>22} {:>22}", "workload", "dcpid", "perf record");
        for kind in Kind::ALL {
            let own = |configuration| {
                shown(
                    Spread::of(
                        self.timed(kind, configuration)
                            .into_iter()
                            .map(|run| 100.0 * run.seen.during.cpu_s / run.wall_s),
                    ),
                    2,
                )
            };
            let _ = writeln!(
                out,
                "{:<9} {:>22} {:>22}",
                kind.name(),
                own(Configuration::Dcpid),
                own(Configuration::Perf)
            );
        }
        out
    }

    fn components(&self) -> String {
        let mut out = format!(
            "Table 4: components of the cost of a sample, ns: median [min..max] of undisturbed rounds, dcpid's when it had run the workload once before\n\n\
             {:<9} {:>6} {:>8} {:>22}   {:>18} {:>18} {:>18}\n",
            "workload", "empty", "handler", "above", "daemon", "edges", "flush"
        );
        for kind in Kind::ALL {
            let each = |cpu_s| shown(self.daemon_ns(kind, cpu_s), 0);
            let _ = writeln!(
                out,
                "{:<9} {:>6} {:>8} {:>22}   {:>18} {:>18} {:>18}",
                kind.name(),
                median(self.handler_ns(kind, Configuration::Empty), 0),
                median(self.handler_ns(kind, Configuration::Dcpid), 0),
                shown(self.above_ns(kind), 0),
                each(while_it_ran),
                each(|run| Some(run.seen.during.edges_cpu_s)),
                each(|run| run.seen.flush_cpu_s),
            );
        }
        out += "\nThe same as multiples of the empty program's time, which is what this machine makes of cold code and one cold line: handler above it, daemon\n\n";
        for kind in Kind::ALL {
            let empty = self.handler_ns(kind, Configuration::Empty).map(|spread| spread.median);
            let times = |spread: Option<Spread>| {
                let times =
                    spread.zip(empty).and_then(|(spread, empty)| ratio(spread.median, empty));
                times.map_or_else(|| "-".to_owned(), |times| format!("{times:.2}"))
            };
            let daemon = self.daemon_ns(kind, while_it_ran);
            let _ = writeln!(
                out,
                "{:<9} {:>6} {:>6}",
                kind.name(),
                times(self.above_ns(kind)),
                times(daemon)
            );
        }
        out += "\nempty, handler, above: in the BPF program, by the kernel's statistics: the empty one's, dcpid's, and dcpid's above it; daemon: CPU time of\n\
                dcpid while the workload ran, but edges: interpreting snapshots of registers; \
                flush: of bringing the samples to disk after it, once (a\n\
                running daemon does it every 10 minutes).\n\n";
        let _ = writeln!(
            out,
            "Of the samples, %: median [min..max] of undisturbed rounds\n\n{:<9} {:>9} {:>22} {:>22} {:>10} {:>10}",
            "workload", "samples", "misses", "places", "unresolved", "lost"
        );
        for kind in Kind::ALL {
            let of_taken = |part: fn(&Reading) -> f64| {
                self.dcpid(kind, |run| {
                    Some(100.0 * ratio(part(&run.seen.during), run.seen.during.taken)?)
                })
            };
            let _ = writeln!(
                out,
                "{:<9} {:>9} {:>22} {:>22} {:>10} {:>10}",
                kind.name(),
                median(self.dcpid(kind, |run| Some(run.seen.during.taken)), 0),
                shown(of_taken(|reading| reading.misses), 2),
                shown(of_taken(|reading| reading.places), 2),
                median(of_taken(|reading| reading.unresolved), 3),
                median(of_taken(|reading| reading.lost), 3),
            );
        }
        out + "misses: their place was not in the table, a page of the CPU's own; places: different ones of each drain, which the daemon looks up; no\ntable that drains empty can miss fewer than that.\n"
    }

    fn space(&self) -> String {
        let mut out = format!(
            "Table 5: space, KiB: median [min..max]\n\n{:<9} {:>26} {:>26} {:>20} {:>20}\n",
            "workload", "resident, mean", "resident, peak", "database", "perf.data"
        );
        for kind in Kind::ALL {
            let kib = |what: fn(&Run) -> Option<f64>| {
                shown(self.dcpid(kind, |run| Some(what(run)? / 1024.0)), 0)
            };
            let peer = self
                .timed(kind, Configuration::Perf)
                .into_iter()
                .filter_map(|run| Some(run.seen.disk_bytes? / 1024.0));
            let _ = writeln!(
                out,
                "{:<9} {:>26} {:>26} {:>20} {:>20}",
                kind.name(),
                kib(|run| run.seen.rss_mean_bytes),
                kib(|run| run.seen.rss_peak_bytes),
                kib(|run| run.seen.disk_bytes),
                shown(Spread::of(peer), 0),
            );
        }
        let table =
            self.dcpid(Kind::Idle, |run| Some(run.seen.during.table_bytes_per_cpu / 1024.0));
        let start = Spread::of(self.of_dcpid().map(|run| 1e3 * run.seen.start_cpu_s));
        let _ = writeln!(
            out,
            "Peak: start and flush included. In the kernel: {} KiB per CPU. dcpid's start takes {} ms of CPU time.",
            table.map_or_else(|| "?".to_owned(), |spread| format!("{:.0}", spread.median)),
            shown(start, 0),
        );
        out
    }

    fn of_dcpid(&self) -> impl Iterator<Item = &Run> {
        self.runs.timed.iter().filter(|run| run.configuration == Configuration::Dcpid)
    }

    /// Noise of the machine during the measurement, in words.
    fn noise(&self) -> String {
        let nothing = |kind| {
            let spread = Spread::of(
                self.timed(kind, Configuration::Nothing).into_iter().map(|run| run.wall_s),
            )?;
            Some(format!(
                "{} {:.1}",
                kind.name(),
                100.0 * (spread.max - spread.min) / spread.median
            ))
        };
        let spreads: Vec<_> =
            Kind::ALL.into_iter().filter(|kind| *kind != Kind::Idle).filter_map(nothing).collect();
        let all = || self.runs.timed.iter().chain(&self.runs.handler);
        let disturbed = all().filter(|run| run.others > OTHERS_MAX).count();
        let others = Spread::of(all().map(|run| 100.0 * run.others));
        let mut out = format!(
            "Noise: without a profiler the runs of a workload differ by (max - min) / median, %: {}.\n\
             A difference that is smaller than that is none. Others used {} % of the CPUs; \
             {disturbed} of {} runs stayed disturbed (above {:.0} %) and are left out where others \
             are left.\n",
            spreads.join(", "),
            shown(others, 1),
            all().count(),
            100.0 * OTHERS_MAX,
        );
        if !self.runs.strangers.is_empty() {
            let strangers: Vec<_> = self.runs.strangers.iter().map(String::as_str).collect();
            let _ = writeln!(
                out,
                "OTHER PROFILERS ran meanwhile, so the figures are too high: {}.",
                strangers.join(", ")
            );
        }
        out
    }

    /// All runs as JSON.
    pub fn json(&self) -> String {
        let runs = |runs: &[Run]| array(runs.iter().map(run_json));
        let strangers: Vec<_> = self.runs.strangers.iter().map(|name| text(name)).collect();
        let members = [
            ("machine", text(&self.machine)),
            ("cpus", number(cpus() as f64)),
            ("rounds", number(self.rounds as f64)),
            ("seconds", number(self.seconds as f64)),
            ("other_profilers", format!("[{}]", strangers.join(", "))),
            ("timed", runs(&self.runs.timed)),
            ("with_bpf_statistics", runs(&self.runs.handler)),
        ];
        object(&members) + "\n"
    }
}

fn run_json(run: &Run) -> String {
    let (seen, during) = (&run.seen, &run.seen.during);
    object(&[
        ("workload", text(run.kind.name())),
        ("configuration", text(run.configuration.name())),
        ("round", number(run.round as f64)),
        ("wall_s", number(run.wall_s)),
        ("workload_cpu_s", number(run.cpu_s)),
        ("profiler_cpu_s", number(during.cpu_s)),
        ("edges_cpu_s", number(during.edges_cpu_s)),
        ("profiler_start_cpu_s", number(seen.start_cpu_s)),
        ("flush_cpu_s", optional(seen.flush_cpu_s)),
        ("others_share", number(run.others)),
        ("tries", number(f64::from(run.tries))),
        ("taken", number(during.taken)),
        ("misses", number(during.misses)),
        ("places", number(during.places)),
        ("unresolved", number(during.unresolved)),
        ("lost", number(during.lost)),
        ("handler_ns", number(during.handler_ns)),
        ("handler_runs", number(during.handler_runs)),
        ("rss_mean_bytes", optional(seen.rss_mean_bytes)),
        ("rss_peak_bytes", optional(seen.rss_peak_bytes)),
        ("disk_bytes", optional(seen.disk_bytes)),
    ])
}
