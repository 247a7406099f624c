//! Procedures and source lines of samples: from executables, their debug files, and symbols that
//! dcpid recorded.
//!
//! # Example
//!
//! The procedures of one image with their samples of the first event, the most first:
//!
//! ```
//! use names::procedures::{Place, Places, Rows, attribute};
//! use query::{AnalysisError, Question};
//!
//! fn procedures(db: &str, image: &str) -> Result<Vec<(Place, u64)>, AnalysisError> {
//!     let images = vec![image.to_owned()];
//!     let samples = Question { db: db.into(), images, ..Question::default() }.samples()?;
//!     let images: Vec<_> = samples.images.iter().filter(|image| image.wanted).collect();
//!     let places = Places::with_debug_roots(Vec::new());
//!     let by_procedure = attribute(&samples, &images, Rows::Procedures, &places);
//!     let rows = by_procedure.into_iter().flat_map(|image| image.rows);
//!     let mut rows: Vec<_> = rows.map(|row| (row.place, row.counts[0].samples)).collect();
//!     rows.sort_by_key(|(_, samples)| std::cmp::Reverse(*samples));
//!     Ok(rows)
//! }
//! assert!(procedures("/nowhere", "libc").is_err());
//! ```
#![forbid(unsafe_code)]

pub mod by_line;
pub mod debuginfod;
pub mod inlined;
pub mod interpreted;
pub mod named;
pub mod parallel;
pub mod procedures;
pub mod sent;
mod shared_code;
pub mod shorten;
pub mod sources;
