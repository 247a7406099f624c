//! The steps of a recording, in the order in which the daemon was reported.

use abi::Entry;
use address_spaces::mapped_files::Image;
use address_spaces::scopes::Rules;
use image::{ImageId, ImageKind, ImageOffset};
use inspect::questions::RuntimeFunction;
use inspect::vdso::StoredVdso;
use kernel::{Drained, TimedRecord};
use model::{ACCESSES, EDGES, FIRST_EDGES, Facts, Measure, OUTCOMES, Observation, ROUNDS, TIMES};
use profiledb::{EpochStart, EventMeta, PeriodChange};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::sync::Arc;
use wire::Registration;

/// The measures of observations from snapshots. Recordings name a measure by its index here, which
/// never changes.
const OBSERVED: [&Measure; 6] = [&EDGES, &FIRST_EDGES, &ROUNDS, &OUTCOMES, &TIMES, &ACCESSES];

/// The parameters that an epoch was begun with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredEpoch {
    label: Option<String>,
    machine: profiledb::Machine,
    /// Events in the order of their numbers.
    pub events: Vec<EventMeta>,
    now_unix_s: u64,
    writer_version: String,
}

impl From<&EpochStart> for StoredEpoch {
    fn from(start: &EpochStart) -> Self {
        let EpochStart { label, machine, events, now_unix_s, writer_version } = start.clone();
        Self { label, machine, events, now_unix_s, writer_version }
    }
}

impl From<StoredEpoch> for EpochStart {
    fn from(stored: StoredEpoch) -> Self {
        let StoredEpoch { label, machine, events, now_unix_s, writer_version } = stored;
        Self { label, machine, events, now_unix_s, writer_version }
    }
}

/// The daemon's state when the recording began.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Start {
    /// Name of the host in the database.
    pub host: String,
    /// `uname -r`.
    pub kernel_release: String,
    /// The kernel's image id, as text.
    pub kernel_id: String,
    /// The kernel's vdso.
    pub vdso: Option<StoredVdso>,
    /// The epoch that was open.
    pub epoch: StoredEpoch,
    /// The rules on what was kept apart and left out.
    pub rules: Rules,
    /// Random number of the run, which distinguishes its images of generated code from those of
    /// other runs.
    pub run: u64,
    /// Time of the start (CLOCK_MONOTONIC, ns).
    pub now_ns: u64,
}

/// An observation with its measure.
pub type Measured = (&'static Measure, Observation);

/// Observations of one image: the index of the measure in the list of measures, the offset, and the
/// other end of an edge or the number of rounds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Observed {
    id: String,
    name: String,
    path: String,
    size_bytes: Option<u64>,
    counts: Vec<(usize, u64, i64)>,
}

impl Observed {
    /// The image and its observations. `None` when the id is not an image id, or a measure is
    /// unknown.
    pub fn restored(&self) -> Option<(Arc<Image>, Vec<Measured>)> {
        let image = Image {
            id: self.id.parse().ok()?,
            kind: ImageKind::File,
            name: self.name.clone(),
            path: self.path.clone(),
            size_bytes: self.size_bytes,
            procedures: None,
        };
        let observation = |(measure, at, other): &(usize, u64, i64)| {
            let (measure, at) = (*OBSERVED.get(*measure)?, ImageOffset(*at));
            Some(match measure.shape {
                model::Shape::Places => (measure, Observation::Place(at)),
                model::Shape::Pairs => {
                    (measure, Observation::Pair(at, ImageOffset(other.cast_unsigned())))
                }
                model::Shape::Values => (measure, Observation::Value(at, *other)),
            })
        };
        let observations: Option<Vec<_>> = self.counts.iter().map(observation).collect();
        Some((Arc::new(image), observations?))
    }
}

/// Functions of a runtime in the place of a native frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredRun {
    /// Place of the native frame in [`StoredStack::user`].
    pub depth: u32,
    /// Function and line, innermost first; None: it could not be read.
    pub frames: Vec<Option<(RuntimeFunction, u32)>>,
    /// The native frame ran further ones, and stays.
    pub is_part: bool,
}

/// A call stack that was walked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredStack {
    /// Process and generation, as in [`abi::StackRecord::space`].
    pub space: u32,
    /// Thread.
    pub tid: u32,
    /// Samples that the stack stands for.
    pub weight: u32,
    /// Name of the process's first thread.
    pub command: Vec<u8>,
    /// Name of the thread.
    pub name: Vec<u8>,
    /// Return addresses in the kernel, innermost first.
    pub kernel: Vec<u64>,
    /// Addresses of user code, innermost first.
    pub user: Vec<u64>,
    /// Functions of runtimes in the place of native frames, the innermost first. The name is that
    /// of the first runtime.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub python: Vec<StoredRun>,
    /// What the program had set for the thread: keys and values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attributes: Vec<(String, String)>,
    /// Name of the reason why the first frames are not known ([`model::Cut::name`]).
    pub cut: Option<String>,
}

/// A step: one event in the daemon's life.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Step {
    /// The tables were drained.
    Drain {
        /// Time before the first CPU was drained (CLOCK_MONOTONIC, ns).
        begun_ns: u64,
        /// Time after the last CPU was drained.
        ended_ns: u64,
        /// Key, address space and count of each entry, as in [`abi::Entry`].
        entries: Vec<(u64, u32, u32)>,
        /// The samplers' statistics.
        drained: Box<Drained>,
    },
    /// Records were read.
    Records {
        /// Time of the reading (CLOCK_MONOTONIC, ns).
        time_ns: u64,
        /// The records, in the order of the rings.
        records: Vec<TimedRecord>,
    },
    /// A notice of the loader hook reported a mapping that had no record.
    Learnt(TimedRecord),
    /// Observations from snapshots. The registers themselves are never written.
    Observed(Vec<Observed>),
    /// Call stacks that were walked. Their registers and bytes are never written.
    Stacks(Vec<StoredStack>),
    /// An event got another period.
    Period {
        /// Number of the event.
        event: usize,
        /// The new period.
        change: PeriodChange,
    },
    /// A client labelled a process.
    Label {
        /// Process.
        pid: u32,
        /// Start time of the process, in clock ticks since boot, where the client gave it.
        start_time: Option<u64>,
        /// The label.
        label: String,
        /// True when the children that the process had are labelled too.
        with_children: bool,
    },
    /// A client registered a region of code.
    Register(Registration),
    /// A client unregistered a region.
    Unregister {
        /// Process.
        pid: u32,
        /// First address.
        start: u64,
    },
    /// All waiting counts were sent to the disk.
    Merge {
        /// Time of the merge, in seconds since 1970 UTC.
        unix_s: u64,
        /// Facts that were stated with it.
        facts: Facts,
        /// Cost of sampling until then.
        cost: Option<Value>,
    },
    /// Another epoch began.
    Epoch(StoredEpoch),
}

impl Step {
    /// A drain.
    pub fn drain(begun_ns: u64, ended_ns: u64, entries: &[Entry], drained: &Drained) -> Self {
        let entries = entries.iter().map(|entry| (entry.key, entry.space, entry.count)).collect();
        Self::Drain { begun_ns, ended_ns, entries, drained: Box::new(drained.clone()) }
    }

    /// A step with these observations, in this order.
    pub(crate) fn observed(all: &[crate::observed::Observed]) -> Self {
        let mut observed: Vec<(ImageId, Observed)> = Vec::new();
        for crate::observed::Observed { image, measure, observation, times } in all {
            let Some(measure) = OBSERVED.iter().position(|known| known == measure) else {
                continue;
            };
            let count = match *observation {
                Observation::Place(at) => (measure, at.0, 0),
                Observation::Pair(from, to) => (measure, from.0, to.0.cast_signed()),
                Observation::Value(at, number) => (measure, at.0, number),
            };
            let known = observed.iter().position(|(id, _)| *id == image.id);
            let at = known.unwrap_or_else(|| {
                observed.push((
                    image.id,
                    Observed {
                        id: image.id.to_string(),
                        name: image.name.clone(),
                        path: image.path.clone(),
                        size_bytes: image.size_bytes,
                        counts: Vec::new(),
                    },
                ));
                observed.len() - 1
            });
            if let Some((_, observed)) = observed.get_mut(at) {
                observed.counts.extend((0..*times).map(|_| count));
            }
        }
        Self::Observed(observed.into_iter().map(|(_, observed)| observed).collect())
    }
}
