//! The store of a fleet: which objects there are, and putting one where there is none.
//!
//! A store is a prefix of an object store (`object_store`): a directory, or a bucket of S3, Google
//! Cloud Storage or Azure. Objects never change: each is put where there is none of its key, so
//! that every put may be repeated, and of two writers one has the key. What hosts put (`dcpi push`)
//! is checked before it is taken. What readers read, a [`Manifest`] lists; they list no keys.
#![forbid(unsafe_code)]

mod durable;
mod keys;
mod listed;
mod manifest;
mod objects;
mod week;

pub use keys::{Key, OBJECT_BYTES_MAX};
pub use manifest::{EpochName, FileEntry, Manifest};
pub use object_store;
pub use objects::{Found, Put, Store, StoreError};
pub use week::Week;
