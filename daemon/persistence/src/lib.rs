//! The threads that write to disk beside the loop, which hands counts over and never waits.
//!
//! [`database_thread`] merges, folds and removes epochs, and answers when a merge is on disk.
//! [`librarian`] copies code of images with samples into the code store, slowly, and saves the
//! catalogue of files. [`measured_machine`] reads what `dcpi machine` measured of this processor.
//! The crate takes no sample and decides nothing about rates. Begin with
//! [`database_thread::Flusher`].

#![forbid(unsafe_code)]

pub mod database_thread;
mod generated;
pub mod librarian;
pub mod measured_machine;
mod plausible_clock;
mod worth;
