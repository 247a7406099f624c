//! The tables of a fleet: their rows, and their bytes in Parquet (Apache Parquet format 2).
//!
//! A table is a list of rows of one type, whose fields are its columns in order; a column is a
//! 64-bit integer, a double or a text, and none is null. Names are known by numbers ([`id()`]), so
//! that a fact is a few bytes. [`SCHEMA`] is incremented when a column changes its meaning; readers
//! refuse unknown versions.
#![forbid(unsafe_code)]

mod columns;
mod id;
mod parquet_bytes;
mod rows;

pub use columns::{Column, Columns, batch, schema};
pub use id::{Digest, id};
pub use parquet_bytes::{ParquetFile, TableError, from_parquet, to_parquet};
pub use rows::{
    Build, Change, EpochRow, Fact, Head, HeadTime, HostShare, HostWeek, ImageWeek, Load, Missed,
    Name, Pair, PairSum, Rollup, Row, Service, Skew, Table,
};

/// The version of all tables.
pub const SCHEMA: u32 = 1;
