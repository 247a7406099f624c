//! Events of threads in time: their format on disk, the formats of other tools, and their times
//! corrected for what tracing cost. Pure: captures nothing.
#![forbid(unsafe_code)]
