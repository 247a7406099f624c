//! The control protocol: the requests to dcpid on its control socket, and its replies.
//!
//! The socket is a Unix stream socket. A client writes a [`Request`], dcpid writes a [`Reply`].
//! Each is one JSON object on one line that ends with a newline; a connection may carry several of
//! these pairs, one after the other. [`Client`] is the client of all our programs and of the tests.
//!
//! While a package is replaced, dcpictl, dcpi and dcpid of different versions talk to each other.
//! So no field is renamed, moved or removed, a new field has a default, and a field that is not
//! known is skipped; `tests/format.rs` pins the bytes.
//!
//! This crate knows no sample, no database and no event loop: reasons and kinds are text here.

#![forbid(unsafe_code)]

mod check;
mod client;
mod counts;
mod line;
mod reply;
mod request;
mod status;

pub use check::HostCheck;
pub use client::{Client, ClientError};
pub use counts::{Counts, EventCounts, ImageCounts, StackCounts};
pub use reply::{REPLY_BYTES_MAX, Reply};
pub use request::{REQUEST_BYTES_MAX, Registration, Request, RequestError};
pub use status::{
    ApartStatus, ChangeStatus, CodeStoreStatus, CostStatus, CpuStatus, DaemonStatus, DbStatus,
    EdgesStatus, EventStatus, GeneratedStatus, HandlerStatus, InspectorsStatus, LoaderStatus,
    OverheadStatus, ProgramStacksStatus, RateStatus, RestraintStatus, Samples, StacksStatus,
    Status, TableStatus, WaitStatus, WaitsStatus,
};
