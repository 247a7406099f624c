//! Events of threads in time: their format on disk, the formats of other tools, and their times
//! corrected for what tracing cost. Pure: captures nothing.
//!
//! [`event`] has the types, [`writer`] writes a trace while it is captured, [`reader`] reads one
//! back; `FORMAT.md` describes every byte. [`formats`] has the formats of other tools, [`gantt`]
//! draws threads in time.
#![forbid(unsafe_code)]

pub mod calibration;
mod codec;
pub mod correct;
pub mod event;
pub mod formats;
pub mod gantt;
pub mod pairs;
pub mod reader;
pub mod sequence;
pub mod summary;
pub mod writer;

pub use event::{
    Corrected, Cost, Event, EventKind, Facts, Interval, Lost, Name, NameId, NameKind, Sampled,
    Thread, ThreadId, Trace, Untraced,
};
pub use reader::ReadError;
pub use writer::{Writer, Written};
