//! What `dcpictl` asks and what it is answered: one JSON object on one line, each way.

use crate::jit::Registration;
use crate::watch::Counts;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "lowercase")]
pub enum Request {
    /// How the daemon is.
    Status,
    /// Put everything sampled before this on disk.
    Flush,
    /// The same, then open a new epoch.
    Epoch {
        /// A name for it.
        #[serde(default)]
        label: Option<String>,
    },
    /// Keep the samples of a process and its children apart from now on.
    Label {
        /// The process as the daemon numbers it, with the children that it has. None: the client itself, which has none yet.
        #[serde(default)]
        pid: Option<u32>,
        /// When it started, as in field 22 of /proc/PID/stat: another process that has the number by now is not labelled.
        #[serde(default)]
        start_time: Option<u64>,
        /// The label.
        label: String,
    },
    /// What was sampled since the last such request of this client; its first one begins the watch.
    Counts {
        /// A number that the client chose at random.
        watch: u64,
        /// Whose client it is: filled in by the control socket, whatever the client says.
        #[serde(default)]
        user: Option<u32>,
    },
    /// The same as flush, then end.
    Quit,
    /// Tell what a region of a process is.
    Register(Registration),
    /// Forget a region.
    Unregister {
        /// Process.
        pid: u32,
        /// Where the region begins.
        start: u64,
    },
}

/// The answer: an error, or what was asked for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    /// Why it was not done, on one line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Answer to `status`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Box<Status>>,
    /// The epoch that is open now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<String>,
    /// Samples taken and written since the daemon started, in all its epochs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken: Option<u64>,
    /// Of those, samples in profiles; the rest is unresolved or lost, by reason in the status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub merged: Option<u64>,
    /// Answer to `counts`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counts: Option<Box<Counts>>,
    /// Regions of the process that are registered now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub regions: Option<u64>,
}

impl Reply {
    /// Not done, because.
    #[must_use]
    pub fn error(error: impl Into<String>) -> Self {
        Self { error: Some(error.into()), ..Self::default() }
    }
}

/// How the daemon is. Counts are since it started.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Of dcpid.
    pub version: String,
    /// Host name in the database.
    pub host: String,
    /// Seconds since it started.
    pub uptime_s: u64,
    /// The open epoch.
    pub epoch: String,
    /// What is sampled.
    pub events: Vec<EventStatus>,
    /// Where the samples went, all events together.
    pub samples: Samples,
    /// By CPU: what it took, and what it should have.
    pub cpus: Vec<CpuStatus>,
    /// Samples by whether the sampler found their place in the table.
    pub table: TableStatus,
    /// The sampler's cost.
    pub handler: HandlerStatus,
    /// The daemon's own cost.
    pub daemon: DaemonStatus,
    /// What all of it costs, and may.
    pub overhead: OverheadStatus,
    /// What is kept apart.
    #[serde(default)]
    pub apart: ApartStatus,
    /// Processes known.
    pub processes: u64,
    /// Files known that processes map.
    pub images: u64,
    /// Records of processes that the kernel dropped.
    pub lost_records: u64,
    /// Processes and mappings refused because of a limit; their samples are unresolved.
    pub refused: u64,
    /// Code that is in no file.
    #[serde(default)]
    pub generated: GeneratedStatus,
    /// Which way branches went, from snapshots of registers; None: none are taken.
    #[serde(default)]
    pub edges: Option<EdgesStatus>,
    /// The code kept beside the profiles; None: it is off.
    #[serde(default)]
    pub code_store: Option<CodeStoreStatus>,
    /// What the loader hook said.
    #[serde(default)]
    pub loader: LoaderStatus,
    /// How much is done.
    #[serde(default)]
    pub restraint: RestraintStatus,
    /// When the last merge succeeded, seconds since 1970; None before the first.
    pub last_merge: Option<u64>,
    /// Why the last merge failed, if it did.
    pub merge_error: Option<String>,
    /// The database.
    pub db: DbStatus,
}

/// One event.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EventStatus {
    /// perf's name.
    pub name: String,
    /// Mean period.
    pub period: u64,
    /// What the period counts: ns, cycles, count.
    pub unit: String,
    /// Samples taken.
    pub samples: u64,
    /// Time in which it should have counted, all CPUs together, ns.
    #[serde(default)]
    pub enabled_ns: u64,
    /// Time in which it did: less where events are more than counters, or take turns.
    #[serde(default)]
    pub running_ns: u64,
    /// What the reader should know.
    pub note: Option<String>,
}

impl EventStatus {
    fn text(&self) -> String {
        let note = self.note.as_ref().map(|note| format!(" - {note}")).unwrap_or_default();
        let share = self.running_ns as f64 / self.enabled_ns as f64; // of nothing: no number, and none is shown
        let part = if share < 0.999 { format!(", counted {:.1} % of the time", 100.0 * share) } else { String::new() };
        format!("{} every {} {} on average: {} samples{part}{note}", self.name, self.period, self.unit, self.samples)
    }
}

/// taken = merged + pending + unresolved + lost.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Samples {
    /// By the sampler.
    pub taken: u64,
    /// On disk, in profiles.
    pub merged: u64,
    /// In the daemon's memory, on the way there: summed up from the profiles themselves.
    pub pending: u64,
    /// Without an image, by reason.
    pub unresolved: BTreeMap<String, u64>,
    /// In no profile, by reason.
    pub lost: BTreeMap<String, u64>,
}

/// One CPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CpuStatus {
    /// Which.
    pub cpu: u32,
    /// Samples taken.
    pub taken: u64,
    /// Samples that the events' counts and periods imply.
    pub implied: u64,
    /// Implied and not taken, by reason: `throttled` by the kernel, `late`: the interrupt did not come in time.
    pub missed: BTreeMap<String, u64>,
    /// How often it went offline.
    #[serde(default)]
    pub offline: u64,
    /// How long it was not sampled because of that, s.
    #[serde(default)]
    pub offline_s: f64,
}

/// Snapshots of registers, and the edges that were computed from them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EdgesStatus {
    /// Snapshots a second and CPU that are taken at most now.
    pub rate_per_s: f64,
    /// Snapshots taken.
    pub taken: u64,
    /// Snapshots dropped because a buffer was full.
    pub dropped: u64,
    /// Of those taken, the ones of images that could not be read, or are left out.
    pub unresolved: u64,
    /// Of those taken, the ones that gave an edge.
    pub fruitful: u64,
    /// Edges counted.
    pub edges: u64,
    /// CPU time of interpreting one; None before the first.
    pub ns_per_snapshot: Option<f64>,
}

impl EdgesStatus {
    fn text(&self) -> String {
        let Self { rate_per_s, taken, dropped, unresolved, edges, .. } = self;
        let each = self.ns_per_snapshot.map(|ns| format!(", {ns:.0} ns each")).unwrap_or_default();
        format!(
            "{edges} from {taken} snapshots of registers ({dropped} dropped, {unresolved} unresolved){each}; at most {rate_per_s:.0}/s/CPU"
        )
    }
}

/// Code made at run time, or registered.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GeneratedStatus {
    /// Processes that have such code.
    pub processes: u64,
    /// Pieces of code in their maps.
    pub pieces: u64,
    /// Memory for these, bytes.
    pub bytes: u64,
    /// Registered regions.
    pub regions: u64,
    /// Processes and pieces refused because of a limit.
    pub refused: u64,
}

impl GeneratedStatus {
    fn text(&self) -> String {
        let (kib, refused) = (self.bytes / 1024, self.refused);
        let refused = if refused > 0 { format!("; {refused} refused at the limits") } else { String::new() };
        let Self { pieces, regions, processes, .. } = self;
        format!("{pieces} pieces of code and {regions} registered regions of {processes} processes, {kib} KiB{refused}")
    }
}

/// A reason with what it means.
fn explained(reason: &str) -> String {
    profiledb::meaning(reason).map_or_else(|| reason.to_owned(), |meaning| format!("{reason}: {meaning}"))
}

/// Hits and misses of the samplers' tables, each a page of its CPU's own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TableStatus {
    /// Samples that only incremented a count.
    pub hits: u64,
    /// Samples that took a place in it, for which another left.
    pub misses: u64,
    /// Different places, summed up over the drains: what the daemon has to find the image of. Samples to a place are what counting saves.
    pub places: u64,
    /// Kernel memory of the tables, per CPU.
    pub bytes_per_cpu: u64,
}

impl TableStatus {
    fn text(&self) -> String {
        let Self { hits, misses, places, bytes_per_cpu } = self;
        let samples = (hits + misses) as f64;
        let (found, together) = (100.0 * *hits as f64 / samples.max(1.0), samples / (*places).max(1) as f64);
        format!(
            "{found:.1} % of samples found their place; {together:.1} to a place and drain; {bytes_per_cpu} bytes per CPU"
        )
    }
}

/// The sampler's cost as the kernel measures it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HandlerStatus {
    /// Nanoseconds per sample; None unless `sysctl kernel.bpf_stats_enabled=1`.
    pub ns_per_sample: Option<f64>,
    /// Runs that were measured.
    pub calls: u64,
}

/// The daemon's own cost.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DaemonStatus {
    /// CPU time, user and system, s.
    pub cpu_s: f64,
    /// Resident memory.
    pub rss_bytes: u64,
    /// Of this, until the first sample: reading the kernel's types and symbols, what runs already, and what a sample costs.
    pub start_cpu_s: f64,
    /// CPU time since then per sample taken, without that of the code store and of edges, which are not for each sample and have bills of
    /// their own: `code_store.cpu_s`, `edges.ns_per_snapshot`.
    pub ns_per_sample: Option<f64>,
}

impl DaemonStatus {
    fn text(&self) -> String {
        let Self { cpu_s, start_cpu_s, rss_bytes, ns_per_sample } = self;
        let each = ns_per_sample.map(|ns| format!(", {ns:.0} ns per sample")).unwrap_or_default();
        format!("{cpu_s:.2} s of CPU time, {start_cpu_s:.2} of it to start{each}; {} KiB resident", rss_bytes / 1024)
    }
}

/// What sampling costs, and may.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OverheadStatus {
    /// The part of all CPU time that it may cost (0.01 is 1 %); None: no limit.
    pub budget: Option<f64>,
    /// The part that it cost in the last minute; None before the first.
    pub share: Option<f64>,
    /// Of this, interrupts and the sampler.
    #[serde(default)]
    pub sampling_share: Option<f64>,
    /// Of this, the daemon's own CPU time.
    #[serde(default)]
    pub daemon_share: Option<f64>,
    /// What one sample takes from the program it interrupts, interrupt and all; None: not known.
    pub ns_per_sample: Option<f64>,
    /// How that was measured; None: it is assumed.
    #[serde(default)]
    pub measured: Option<CostStatus>,
    /// The rate that the budget chose; None: it is not the budget's to choose.
    #[serde(default)]
    pub rate: Option<RateStatus>,
}

/// How the cost of a sample was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CostStatus {
    /// The last time, in seconds since 1970 UTC.
    pub unix_s: u64,
    /// Windows that were measured.
    pub windows: u64,
    /// Of these, windows that nothing disturbed, whose median is the cost.
    pub quiet: u64,
    /// The cheapest quiet window, ns per sample.
    pub low_ns: f64,
    /// The dearest.
    pub high_ns: f64,
}

/// The rate, and why it is what it is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RateStatus {
    /// Samples per second and CPU, of each event.
    pub per_s: u64,
    /// The highest rate that the budget allows by the measured cost alone.
    pub allowed_per_s: u64,
    /// The last change; None: none since the start.
    pub last_change: Option<ChangeStatus>,
}

/// A change of the rate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeStatus {
    /// When, in seconds since 1970 UTC.
    pub unix_s: u64,
    /// Samples per second and CPU before it.
    pub from_per_s: u64,
    /// And after it.
    pub to_per_s: u64,
    /// Why.
    pub why: String,
}

impl OverheadStatus {
    /// What there is to say, with what it is about; `now_unix_s` makes times ages.
    fn lines(&self, now_unix_s: u64) -> Vec<(&'static str, String)> {
        let (Some(budget), Some(ns)) = (self.budget, self.ns_per_sample) else { return Vec::new() };
        let ago = |unix_s: u64| {
            let s = now_unix_s.saturating_sub(unix_s);
            if s < 120 { format!("{s} s ago") } else { format!("{} min ago", s / 60) }
        };
        let measured = self.measured.as_ref().map_or("assumed: it could not be measured".to_owned(), |cost| {
            let CostStatus { unix_s, windows, quiet, low_ns, high_ns } = cost;
            format!("{low_ns:.0} to {high_ns:.0} in {quiet} quiet of {windows} windows, {}", ago(*unix_s))
        });
        let percent = |share: Option<f64>| 100.0 * share.unwrap_or(0.0);
        let now = self.share.map_or(String::new(), |share| {
            let (share, sampling, daemon) = (100.0 * share, percent(self.sampling_share), percent(self.daemon_share));
            format!(", {share:.2} % in the last minute: interrupts and sampler {sampling:.2} %, dcpid {daemon:.2} %")
        });
        let cost = format!("{ns:.0} ns per sample with its interrupt ({measured})");
        let mut lines = vec![("overhead", cost), ("budget", format!("{} % of all CPU time{now}", 100.0 * budget))];
        lines.extend(self.rate.as_ref().map(|rate| {
            let RateStatus { per_s, allowed_per_s, last_change } = rate;
            let change = last_change.as_ref().map_or("the same since the start".to_owned(), |change| {
                let ChangeStatus { unix_s, from_per_s, to_per_s, why } = change;
                format!("{from_per_s} became {to_per_s} {}: {why}", ago(*unix_s))
            });
            ("rate", format!("{per_s}/s/CPU; the cost allows {allowed_per_s}/s/CPU; {change}"))
        }));
        lines
    }
}

/// What is kept apart.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ApartStatus {
    /// Labels in force, in order.
    pub labels: Vec<String>,
    /// Processes whose unit is not told apart because too many were in force.
    pub units_refused: u64,
    /// Samples on disk that are told apart less finely than asked for, because an epoch has room for so many labels, units and processes.
    pub samples_widened: u64,
}

/// The code of images that had samples, kept beside their profiles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CodeStoreStatus {
    /// Images in it.
    pub images: u64,
    /// Its size on disk.
    pub bytes: u64,
    /// What it may be.
    pub limit_bytes: u64,
    /// Images kept since the daemon started.
    pub kept: u64,
    /// Images that had to go for others since then.
    pub removed: u64,
    /// Images refused since then: too large, no room on the disk, or an error, which the log names.
    pub refused: u64,
    /// Attempts since then that found the file gone, or another build in its place.
    pub gone: u64,
    /// Requests put off since then because too many were waiting; they are made again.
    pub put_off: u64,
    /// Files opened and not kept yet.
    pub waiting: u64,
    /// CPU time of keeping them since the daemon started, s.
    pub cpu_s: f64,
}

impl CodeStoreStatus {
    fn text(&self) -> String {
        let Self { images, bytes, limit_bytes, waiting, refused, removed, .. } = self;
        let more = [(*waiting, "waiting"), (*refused, "refused"), (*removed, "removed for others")];
        let more: String = more.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!(", {n} {what}")).collect();
        format!("{images} images kept, {bytes} of {limit_bytes} bytes{more}")
    }
}

/// Notices of the loader hook: received = known + learnt + refused + those that wait for the next drain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoaderStatus {
    /// Objects that somebody said he has mapped; a datagram that makes no sense counts as one.
    pub received: u64,
    /// The kernel's records had told of them.
    pub known: u64,
    /// No record had, and /proc confirmed them.
    pub learnt: u64,
    /// Wrong, or gone before they were looked at, or beyond the limits: not believed.
    pub refused: u64,
}

/// How much is done: under pressure, or while somebody wants it so, less.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestraintStatus {
    /// `all`; `counts only`, without snapshots of registers; `nothing`.
    pub doing: String,
    /// Why, where it is not all.
    pub why: Option<String>,
    /// How often that has changed since the daemon started.
    pub changes: u64,
}

/// The database.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DbStatus {
    /// Its directory.
    pub path: String,
    /// Its size after the last merge.
    pub bytes: u64,
}

impl ApartStatus {
    /// What there is to say, with what it is about.
    fn lines(&self) -> Vec<(&'static str, String)> {
        const SHOWN: usize = 8;
        let mut lines = Vec::new();
        if !self.labels.is_empty() {
            let shown: Vec<_> = self.labels.iter().take(SHOWN).map(String::as_str).collect();
            let more = self.labels.len() - shown.len();
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            lines.push(("labels", format!("{}{more}", shown.join(", "))));
        }
        let (samples, processes) = (self.samples_widened, self.units_refused);
        if samples + processes > 0 {
            let why = "too many labels, units and processes are kept apart; begin a new epoch, or keep fewer";
            lines
                .push(("apart", format!("{samples} samples, {processes} processes less finely than asked for: {why}")));
        }
        lines
    }
}

impl LoaderStatus {
    fn text(&self) -> Option<String> {
        let Self { received, known, learnt, refused } = self;
        (*received > 0).then(|| {
            format!("{received} notices: {known} known already, {learnt} learnt from /proc, {refused} refused")
        })
    }
}

impl Status {
    /// For people.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        let samples = &self.samples;
        let of_taken = |part: u64| if samples.taken == 0 { 0.0 } else { 100.0 * part as f64 / samples.taken as f64 };
        let mut line = |name: &str, value: String| {
            let _ = writeln!(text, "{name:<12}{value}"); // writing to a String cannot fail
        };
        line("dcpid", format!("{} on {}, up {} s", self.version, self.host, self.uptime_s));
        line("epoch", format!("{} in {} ({} bytes)", self.epoch, self.db.path, self.db.bytes));
        for event in &self.events {
            line("event", event.text());
        }
        line("samples", format!("{} taken, {} merged, {} pending", samples.taken, samples.merged, samples.pending));
        for (name, reasons) in [("unresolved", &samples.unresolved), ("lost", &samples.lost)] {
            for (reason, count) in reasons {
                line(name, format!("{count} ({:.3} %) {}", of_taken(*count), explained(reason)));
            }
        }
        for cpu in self.cpus.iter().filter(|cpu| cpu.missed.values().sum::<u64>() * 1000 > cpu.implied) {
            let reasons: Vec<_> = cpu.missed.iter().map(|(reason, samples)| format!("{samples} {reason}")).collect();
            line("missed", format!("CPU {}: {} of {} that its events imply", cpu.cpu, reasons.join(", "), cpu.implied));
        }
        for CpuStatus { cpu, offline, offline_s, .. } in self.cpus.iter().filter(|cpu| cpu.offline > 0) {
            let times = if *offline == 1 { "once".to_owned() } else { format!("{offline} times") };
            line("offline", format!("CPU {cpu}: {times}, not sampled for {offline_s:.1} s because of that"));
        }
        line("table", self.table.text());
        self.handler.ns_per_sample.iter().for_each(|ns| line("handler", format!("{ns:.0} ns per sample")));
        line("daemon", self.daemon.text());
        self.overhead.lines(crate::clock::unix_s()).into_iter().for_each(|(name, value)| line(name, value));
        self.apart.lines().into_iter().for_each(|(name, value)| line(name, value));
        line("knows", format!("{} processes, {} mapped files", self.processes, self.images));
        self.edges.iter().for_each(|edges| line("edges", edges.text()));
        self.code_store.iter().for_each(|store| line("code", store.text()));
        if self.generated.processes > 0 {
            line("generated", self.generated.text());
        }
        if self.lost_records > 0 {
            let meaning =
                "the rings were full; those processes are looked up in /proc, or their samples are unresolved";
            line("records", format!("{} of mappings dropped by the kernel: {meaning}", self.lost_records));
        }
        if let refused @ 1.. = self.refused {
            line("refused", format!("{refused} processes and mappings beyond the limits; their samples unresolved"));
        }
        if let Some(why) = &self.restraint.why {
            let doing =
                if self.restraint.doing == "nothing" { "nothing is sampled" } else { "counts only, no snapshots" };
            line("restraint", format!("{doing}: {why}"));
        }
        self.loader.text().into_iter().for_each(|value| line("loader", value));
        if let Some(error) = &self.merge_error {
            line("merge", format!("FAILED: {error}"));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The status said what a sample costs, but not of what that was the median, nor why the rate was what it was.
    #[test]
    fn the_rate_is_explained() {
        let now = 1_800_000_000;
        let last_change = Some(ChangeStatus {
            unix_s: now - 600,
            from_per_s: 2600,
            to_per_s: 1300,
            why: "sampling cost 1.9 times the budget".into(),
        });
        let overhead = OverheadStatus {
            budget: Some(0.01),
            share: Some(0.0062),
            sampling_share: Some(0.0052),
            daemon_share: Some(0.001),
            ns_per_sample: Some(4010.0),
            measured: Some(CostStatus { unix_s: now - 7, windows: 24, quiet: 18, low_ns: 3890.0, high_ns: 4620.0 }),
            rate: Some(RateStatus { per_s: 1300, allowed_per_s: 1850, last_change }),
        };
        let shown = |overhead: &OverheadStatus| {
            let lines = overhead.lines(now).into_iter().map(|(name, value)| format!("{name}: {value}"));
            lines.collect::<Vec<_>>().join("\n")
        };
        assert_eq!(
            shown(&overhead),
            "overhead: 4010 ns per sample with its interrupt (3890 to 4620 in 18 quiet of 24 windows, 7 s ago)\n\
             budget: 1 % of all CPU time, 0.62 % in the last minute: interrupts and sampler 0.52 %, dcpid 0.10 %\n\
             rate: 1300/s/CPU; the cost allows 1850/s/CPU; 2600 became 1300 10 min ago: sampling cost 1.9 times the budget"
        );
        let fresh = OverheadStatus { share: None, measured: None, rate: Some(RateStatus::default()), ..overhead };
        assert_eq!(
            shown(&fresh),
            "overhead: 4010 ns per sample with its interrupt (assumed: it could not be measured)\n\
             budget: 1 % of all CPU time\nrate: 0/s/CPU; the cost allows 0/s/CPU; the same since the start"
        );
        assert_eq!(shown(&OverheadStatus::default()), "");
    }
}
