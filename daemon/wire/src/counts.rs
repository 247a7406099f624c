//! Samples as they come, for a client that watches them.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Samples since the watch was asked last; none at its first request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Milliseconds since the last request.
    pub since_ms: u64,
    /// The events. [`ImageCounts::places`] has their order.
    pub events: Vec<EventCounts>,
    /// The images with samples.
    pub images: Vec<ImageCounts>,
    /// Resolved samples that are in no image here, because their places were too many.
    pub beyond: u64,
    /// Call stacks, in the order of `events`; empty where an event has none.
    #[serde(default)]
    pub stacks: Vec<StackCounts>,
}

/// Call stacks of an event: a tree of frames, and the times of its contexts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StackCounts {
    /// Ids of the images of frames. A name in brackets stands for frames that are not known.
    pub images: Vec<String>,
    /// Frames: number of the frame that called it, from 1 (0: none; it comes before), number of
    /// the image, from 0, and offset in it.
    pub frames: Vec<(u32, u32, u64)>,
    /// Command and number of each process; 0 for processes of a command that have no number.
    pub processes: Vec<(String, u32)>,
    /// Innermost frame and process, by their numbers from 0, with the number of their stacks and
    /// the time (or the occurrences) that these stand for, in the event's unit.
    pub times: Vec<(u32, u32, u64, u64)>,
    /// Frames of interpreters' loops and of compiled scripts, by their numbers from 0: their time
    /// is that of the script function that called them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub loops: Vec<u32>,
}

/// The samples of an event.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventCounts {
    /// perf's name of the event.
    pub name: String,
    /// Unit of the period: ns, cycles or count.
    pub unit: String,
    /// Mean period, in that unit.
    pub period: u64,
    /// Samples that the sampler took.
    pub taken: u64,
    /// Samples without an image, by reason.
    pub unresolved: BTreeMap<String, u64>,
    /// Samples in no profile, by reason.
    pub lost: BTreeMap<String, u64>,
}

/// The samples of an image, of all processes together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageCounts {
    /// Id of the image, as in the database.
    pub id: String,
    /// Kind of the image, as in the database.
    pub kind: String,
    /// Name of the image.
    pub name: String,
    /// Path of the image; empty where it has none.
    pub path: String,
    /// Offsets in the image with their samples, by event.
    pub places: Vec<Vec<(u64, u64)>>,
    /// Start, end and name of the procedures with samples that no file names.
    pub symbols: Vec<(u64, u64, String)>,
}
