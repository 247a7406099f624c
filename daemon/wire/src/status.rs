//! The daemon's state. Counts are since the daemon started, unless a field says otherwise.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The daemon's state.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Version of dcpid.
    pub version: String,
    /// Host name in the database.
    pub host: String,
    /// Seconds since the daemon started.
    pub uptime_s: u64,
    /// Name of the open epoch.
    pub epoch: String,
    /// The sampled events.
    pub events: Vec<EventStatus>,
    /// Samples of all events by where they went.
    pub samples: Samples,
    /// Samples taken and samples implied by the timers, by CPU.
    pub cpus: Vec<CpuStatus>,
    /// Hits and misses of the samplers' tables.
    pub table: TableStatus,
    /// The sampler's own cost.
    pub handler: HandlerStatus,
    /// The daemon's own cost.
    pub daemon: DaemonStatus,
    /// Cost of sampling, with its limit.
    pub overhead: OverheadStatus,
    /// Labels and units.
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
    /// Edges from snapshots of registers. None: no snapshots are taken.
    #[serde(default)]
    pub edges: Option<EdgesStatus>,
    /// Call stacks. None: none are taken.
    #[serde(default)]
    pub stacks: Option<StacksStatus>,
    /// Times of threads, and stacks of waits. None: off.
    #[serde(default)]
    pub waits: Option<WaitsStatus>,
    /// The code kept beside the profiles. None: the code store is off.
    #[serde(default)]
    pub code_store: Option<CodeStoreStatus>,
    /// Notices of the loader hook.
    #[serde(default)]
    pub loader: LoaderStatus,
    /// Processes that look into other processes and files for dcpid.
    #[serde(default)]
    pub inspectors: InspectorsStatus,
    /// The level of activity: all, or less.
    #[serde(default)]
    pub restraint: RestraintStatus,
    /// Time of the last merge that succeeded, in seconds since 1970 UTC. None before the first.
    pub last_merge: Option<u64>,
    /// Why the last merge failed. None: it did not.
    pub merge_error: Option<String>,
    /// The database.
    pub db: DbStatus,
}

/// An event.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EventStatus {
    /// perf's name of the event.
    pub name: String,
    /// Mean period, in the event's unit.
    pub period: u64,
    /// Unit of the period: ns, cycles or count.
    pub unit: String,
    /// Samples taken.
    pub samples: u64,
    /// Time in which the event should have counted, all CPUs together, in ns.
    #[serde(default)]
    pub enabled_ns: u64,
    /// Time in which the event counted, in ns: less where the events are more than the counters,
    /// or take turns.
    #[serde(default)]
    pub running_ns: u64,
    /// A peculiarity of the event that readers should know.
    pub note: Option<String>,
}

/// Samples by where they went: taken = merged + pending + unresolved + lost.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Samples {
    /// Samples that the sampler took.
    pub taken: u64,
    /// Samples on disk, in profiles.
    pub merged: u64,
    /// Samples in the daemon's memory, on their way to the disk: summed up from the profiles
    /// themselves, not subtracted.
    pub pending: u64,
    /// Samples without an image, by reason.
    pub unresolved: BTreeMap<String, u64>,
    /// Samples in no profile, by reason.
    pub lost: BTreeMap<String, u64>,
}

impl Samples {
    /// Samples without an image, of all reasons.
    pub fn unresolved(&self) -> u64 {
        self.unresolved.values().sum()
    }

    /// Samples in no profile, of all reasons.
    pub fn lost(&self) -> u64 {
        self.lost.values().sum()
    }
}

/// A CPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CpuStatus {
    /// Number of the CPU.
    pub cpu: u32,
    /// Samples taken.
    pub taken: u64,
    /// Samples that the events' counts and periods imply.
    pub implied: u64,
    /// Samples implied and not taken, by reason: `throttled` by the kernel; `late`, the interrupt
    /// did not come in time.
    pub missed: BTreeMap<String, u64>,
    /// Times that the CPU went offline.
    #[serde(default)]
    pub offline: u64,
    /// Time in which the CPU was not sampled because of that, in seconds.
    #[serde(default)]
    pub offline_s: f64,
}

/// Snapshots of registers, and the edges that were computed from them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EdgesStatus {
    /// Most snapshots that are taken now, per second and CPU.
    pub rate_per_s: f64,
    /// Snapshots taken.
    pub taken: u64,
    /// Snapshots dropped because a buffer was full.
    pub dropped: u64,
    /// Snapshots taken in images that cannot be read, or are excluded.
    pub unresolved: u64,
    /// Snapshots taken that gave an edge.
    pub fruitful: u64,
    /// Edges counted.
    pub edges: u64,
    /// CPU time of interpreting snapshots, in s.
    #[serde(default)]
    pub cpu_s: f64,
    /// CPU time of interpreting a snapshot, in ns. None for the first 1000 snapshots: reading each
    /// program's code once would be most of the quotient.
    pub ns_per_snapshot: Option<f64>,
}

/// Times of threads, and stacks of waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WaitsStatus {
    /// Waits of this length, in s, and longer always have their stacks taken. None: switches are
    /// too many to follow.
    pub scale_s: Option<f64>,
    /// Where they are too many: mean time, in s, between two passes over all threads, which meet
    /// those that wait. None: there are no passes.
    #[serde(default)]
    pub pass_s: Option<f64>,
    /// Waits that passes have met.
    #[serde(default)]
    pub seen: u64,
    /// Switches between threads, per second and CPU.
    pub switches_per_s: f64,
    /// Waits whose stacks were taken.
    pub taken: u64,
    /// Waits that are not counted: of these, and of threads for whose times there was no room.
    pub lost: u64,
    /// Threads whose times are known.
    pub threads: u64,
    /// Time since each thread was first seen, in s: the sum of the three below.
    pub wall_s: f64,
    /// Time on a CPU, in s.
    pub on_s: f64,
    /// Time blocked, in s.
    pub blocked_s: f64,
    /// Time awake without CPU, in s.
    pub runnable_s: f64,
}

/// Call stacks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StacksStatus {
    /// Most stacks that are taken now, per second and CPU.
    pub rate_per_s: f64,
    /// Stacks taken.
    pub taken: u64,
    /// Stacks dropped because a buffer was full.
    pub dropped: u64,
    /// Stacks taken of processes or through images that are excluded.
    pub excluded: u64,
    /// Stacks that were walked to the thread's first frame.
    pub whole: u64,
    /// Other stacks that were walked, by the reason why their first frames are not known.
    pub cut: BTreeMap<String, u64>,
    /// Frames of all stacks that were walked.
    pub frames: u64,
    /// Bytes of stacks that the sampler copied.
    pub bytes: u64,
    /// CPU time of walking, in s.
    pub cpu_s: f64,
    /// CPU time of walking a stack, in ns. None for the first 1000 stacks, as for edges.
    pub ns_per_stack: Option<f64>,
    /// Stacks by program, those with the most cut stacks first.
    pub programs: Vec<ProgramStacksStatus>,
    /// Stacks with functions of runtimes: CPython, Ruby, PHP, V8, HotSpot and so on.
    #[serde(default)]
    pub named: u64,
    /// Stacks whose frames of Python did not fit the native ones, and were left out.
    #[serde(default)]
    pub named_differs: u64,
    /// Processes whose frames of runtimes are not copied, since others were sampled later.
    #[serde(default)]
    pub named_without: u64,
    /// Stacks that others of their user stand for, since that user's cost too much to walk all.
    #[serde(default)]
    pub thinned: u64,
    /// Stacks of user code that the sampler has walked.
    #[serde(default)]
    pub by_sampler: u64,
    /// Stacks that were copied and walked by an inspector, as the sampler did not know some code.
    #[serde(default)]
    pub by_inspector: u64,
    /// Stacks that the sampler has walked otherwise than an inspector, where it was asked to
    /// compare.
    #[serde(default)]
    pub differing: u64,
}

/// Call stacks of one program.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProgramStacksStatus {
    /// File name of the program.
    pub program: String,
    /// Whole stacks.
    pub whole: u64,
    /// Others, by reason.
    pub cut: BTreeMap<String, u64>,
}

/// Code made at run time, or registered.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GeneratedStatus {
    /// Processes that have such code.
    pub processes: u64,
    /// Pieces of code in the maps of these processes.
    pub pieces: u64,
    /// Memory for the pieces, in bytes.
    pub bytes: u64,
    /// Registered regions.
    pub regions: u64,
    /// Processes and pieces refused because of a limit.
    pub refused: u64,
}

/// Hits and misses of the samplers' tables. Each CPU has a table of its own, of one page.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TableStatus {
    /// Samples that only incremented a count.
    pub hits: u64,
    /// Samples that took a place in a table, for which another entry left.
    pub misses: u64,
    /// Different places, summed up over the drains. The daemon finds the image of each; samples
    /// per place are the work that counting in the kernel saves.
    pub places: u64,
    /// Kernel memory of the tables, in bytes per CPU.
    pub bytes_per_cpu: u64,
}

/// The sampler's own cost, as the kernel measures it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HandlerStatus {
    /// Nanoseconds per sample. None unless `sysctl kernel.bpf_stats_enabled=1`.
    pub ns_per_sample: Option<f64>,
    /// Runs of the sampler that were measured.
    pub calls: u64,
}

/// The daemon's own cost.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DaemonStatus {
    /// CPU time, user and system, in seconds.
    pub cpu_s: f64,
    /// Resident memory in bytes.
    pub rss_bytes: u64,
    /// CPU time until the first sample, in seconds: the daemon reads the kernel's types and
    /// symbols, finds what runs already, and measures what a sample costs.
    pub start_cpu_s: f64,
    /// CPU time since the first sample, in ns per sample taken. The CPU time of the code store and
    /// of edges is not in it, because it does not grow with the samples: see
    /// [`CodeStoreStatus::cpu_s`] and [`EdgesStatus::ns_per_snapshot`]. None for the first 10,000
    /// samples, of which most CPU time is for reading each new file once.
    pub ns_per_sample: Option<f64>,
}

/// Cost of sampling, with its limit. Shares are of all CPU time: 0.01 is 1 %.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OverheadStatus {
    /// Largest share that sampling may cost. None: no limit.
    pub budget: Option<f64>,
    /// Share that sampling cost in the last minute. None before the first.
    pub share: Option<f64>,
    /// Part of that share for interrupts and the sampler.
    #[serde(default)]
    pub sampling_share: Option<f64>,
    /// Part of that share for the daemon's own CPU time.
    #[serde(default)]
    pub daemon_share: Option<f64>,
    /// That share by what it was for, which add up to it: `samples` (interrupts and the sampler),
    /// `stacks` (copying and walking call stacks and snapshots), `waits` (switches between
    /// threads), `keeping_code`, and `rest`. Empty before the first minute.
    #[serde(default)]
    pub items: BTreeMap<String, f64>,
    /// Time that one sample takes from the program it interrupts, with the interrupt, in ns. None:
    /// not known.
    pub ns_per_sample: Option<f64>,
    /// Measurement of that time. None: the time is assumed.
    #[serde(default)]
    pub measured: Option<CostStatus>,
    /// The rate that the budget chose. None: the budget does not choose the rate.
    #[serde(default)]
    pub rate: Option<RateStatus>,
}

/// Measurement of a sample's cost.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CostStatus {
    /// Time of the last measurement, in seconds since 1970 UTC.
    pub unix_s: u64,
    /// Windows that were measured.
    pub windows: u64,
    /// Number of those windows that no other task or interrupt disturbed. The cost of a sample is
    /// the median of their costs.
    pub quiet: u64,
    /// Cost in the cheapest quiet window, in ns per sample.
    pub low_ns: f64,
    /// Cost in the dearest quiet window, in ns per sample.
    pub high_ns: f64,
}

/// The sampling rate, with the reason for it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RateStatus {
    /// Samples per second and CPU, of each event.
    pub per_s: u64,
    /// Highest rate that the budget allows by the measured cost alone, in samples per second and
    /// CPU.
    pub allowed_per_s: u64,
    /// The last change. None: the rate is the same since the start.
    pub last_change: Option<ChangeStatus>,
}

/// A change of the sampling rate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeStatus {
    /// Time of the change, in seconds since 1970 UTC.
    pub unix_s: u64,
    /// Samples per second and CPU before the change.
    pub from_per_s: u64,
    /// Samples per second and CPU after the change.
    pub to_per_s: u64,
    /// Reason for the change, in words.
    pub why: String,
}

/// Labels and units: samples that are kept apart.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ApartStatus {
    /// Labels in force, in order.
    pub labels: Vec<String>,
    /// Processes without a unit because too many units were in force.
    pub units_refused: u64,
    /// Samples on disk that are kept apart less finely than asked for, because an epoch has room
    /// for a limited number of labels, units and processes.
    pub samples_widened: u64,
}

/// The code store: code of images that had samples, kept beside their profiles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CodeStoreStatus {
    /// Images in the store.
    pub images: u64,
    /// Size of the store on disk, in bytes.
    pub bytes: u64,
    /// Largest size that the store may have, in bytes.
    pub limit_bytes: u64,
    /// Images kept.
    pub kept: u64,
    /// Images removed to make room for others.
    pub removed: u64,
    /// Images refused: too large, no room on the disk, or an error, which the log names.
    pub refused: u64,
    /// Images whose files are not world-readable, so that their code is not kept.
    #[serde(default)]
    pub private: u64,
    /// Attempts that found the file gone, or another build in its place.
    pub gone: u64,
    /// Requests put off because too many were waiting. The daemon makes them again.
    pub put_off: u64,
    /// Files open and not kept yet, now.
    pub waiting: u64,
    /// CPU time of keeping images, in seconds.
    pub cpu_s: f64,
}

/// Notices of the loader hook: received = known + learnt + refused + those that wait for the next
/// drain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoaderStatus {
    /// Objects that a notice says are mapped; a datagram that makes no sense counts as one.
    pub received: u64,
    /// Objects that the kernel's records had reported.
    pub known: u64,
    /// Objects that no record had reported and that /proc confirmed.
    pub learnt: u64,
    /// Objects that were not believed: wrong, gone before they were looked at, or beyond the
    /// limits.
    pub refused: u64,
}

/// Inspectors: processes that look into other processes and files for dcpid, so that a file system
/// that does not answer holds up an inspector and not dcpid.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InspectorsStatus {
    /// Inspectors started.
    pub started: u64,
    /// Questions asked.
    pub asked: u64,
    /// Questions without an answer in time.
    pub unanswered: u64,
    /// Questions not asked, because the process or its user kept inspectors waiting before.
    pub withheld: u64,
    /// The most memory that any inspector had resident, in bytes.
    #[serde(default)]
    pub peak_bytes: u64,
    /// Whether an inspector could be reached at the last attempt.
    pub reachable: bool,
    /// Users whose processes kept inspectors waiting, most questions first, at most 16.
    pub users: Vec<WaitStatus>,
}

/// A user whose processes kept inspectors waiting.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitStatus {
    /// Number of the user; of a range of users (subuid(5)), the first number.
    pub uid: u32,
    /// Questions about the user's processes without an answer in time.
    pub unanswered: u64,
    /// The last of these processes.
    pub pid: u32,
    /// Name of the program of that process.
    pub program: String,
}

/// The level of activity: less than all under pressure, or on request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestraintStatus {
    /// `all`; `counts only`, without snapshots of registers; `nothing`.
    pub doing: String,
    /// Why the daemon does not do all.
    pub why: Option<String>,
    /// Changes of `doing`.
    pub changes: u64,
}

/// The database.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DbStatus {
    /// Directory of the database.
    pub path: String,
    /// Size of the database after the last merge, in bytes.
    pub bytes: u64,
}
