//! What happened, in the order in which the daemon was told.

use crate::kernel::{Drained, TimedRecord};
use crate::spaces::mapped_files::Image;
use crate::spaces::scopes::Rules;
use crate::spaces::vdso::StoredVdso;
use abi::Entry;
use image::{ImageId, ImageKind, ImageOffset};
use model::{EDGES, FIRST_EDGES, Facts, Measure, Observation, ROUNDS};
use profiledb::{EpochStart, EventMeta, PeriodChange};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::sync::Arc;
use wire::Registration;

/// The measures that snapshots give. Recordings name them by their place here, which never changes.
const OBSERVED: [&Measure; 3] = [&EDGES, &FIRST_EDGES, &ROUNDS];

/// What an epoch was begun with.
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
    /// What was kept apart and left out.
    pub rules: Rules,
    /// Tells the images of generated code from those of other runs of the daemon.
    pub run: u64,
    /// CLOCK_MONOTONIC, ns.
    pub now_ns: u64,
}

/// One observation, and of which measure.
pub type Measured = (&'static Measure, Observation);

/// Observations of one image: the place of the measure in the list of measures, the offset, and
/// the other end of an edge or the number of rounds.
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
    /// The image and what was observed of it. `None` when the id is none, or a measure is unknown.
    #[must_use]
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

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Step {
    /// The tables were drained.
    Drain {
        /// Before the first CPU was drained (CLOCK_MONOTONIC, ns).
        begun_ns: u64,
        /// After the last.
        ended_ns: u64,
        /// Key, address space and count of each entry, as in [`abi::Entry`].
        entries: Vec<(u64, u32, u32)>,
        /// The samplers' statistics.
        drained: Box<Drained>,
    },
    /// Records were read.
    Records {
        /// When (CLOCK_MONOTONIC, ns).
        time_ns: u64,
        /// In the order of the rings.
        records: Vec<TimedRecord>,
    },
    /// A notice of the loader hook told of a mapping that no record had told of.
    Learnt(TimedRecord),
    /// What snapshots of registers showed. The registers themselves are never written.
    Observed(Vec<Observed>),
    /// An event got another period.
    Period {
        /// Its number.
        event: usize,
        /// To what.
        change: PeriodChange,
    },
    /// A client had a process labelled.
    Label {
        /// Process.
        pid: u32,
        /// When it started, in clock ticks since boot, where the client knew.
        start_time: Option<u64>,
        /// The label.
        label: String,
        /// Its children of then too.
        with_children: bool,
    },
    /// A client told of a region of code.
    Register(Registration),
    /// A client took that back.
    Unregister {
        /// Process.
        pid: u32,
        /// First address.
        start: u64,
    },
    /// All that waited was handed to the disk.
    Merge {
        /// When, in seconds since 1970 UTC.
        unix_s: u64,
        /// What was stated with it.
        facts: Facts,
        /// What sampling had cost.
        cost: Option<Value>,
    },
    /// Another epoch began.
    Epoch(StoredEpoch),
}

impl Step {
    /// A drain.
    #[must_use]
    pub fn drain(begun_ns: u64, ended_ns: u64, entries: &[Entry], drained: &Drained) -> Self {
        let entries = entries.iter().map(|entry| (entry.key, entry.space, entry.count)).collect();
        Self::Drain { begun_ns, ended_ns, entries, drained: Box::new(drained.clone()) }
    }

    /// What snapshots showed, in that order.
    #[must_use]
    pub fn observed(all: &[(Arc<Image>, &'static Measure, Observation)]) -> Self {
        let mut observed: Vec<(ImageId, Observed)> = Vec::new();
        for (image, measure, observation) in all {
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
                observed.counts.push(count);
            }
        }
        Self::Observed(observed.into_iter().map(|(_, observed)| observed).collect())
    }
}
