//! A week of a fleet, closed: facts by service, sums of them, and what changed.
//!
//! [`close`] reads what was ingested and writes what a review reads, service after service, so that
//! the memory needed is that of the largest one. Sums over facts are SQL (`sql/`), for any engine;
//! what of a difference is chance, `judge` says.
#![forbid(unsafe_code)]

mod assemble;
mod builds;
mod changes;
mod close;
mod compact;
mod compare;
mod dimensions;
mod fellows;
mod sums;

pub use assemble::{assemble, settings};
pub use close::{CloseError, Closed, Closing, close, compact};
pub use compare::{Asked, Comparison, compare};

/// Statements, for benchmarks and for other engines: each by its name.
pub const STATEMENTS: [(&str, &str); 6] = [
    ("compact", include_str!("../sql/compact.sql")),
    ("rollups", include_str!("../sql/rollups.sql")),
    ("heads", include_str!("../sql/heads.sql")),
    ("builds", include_str!("../sql/builds.sql")),
    ("movers", include_str!("../sql/movers.sql")),
    ("fellows", include_str!("../sql/fellows.sql")),
];

/// A statement with its service.
fn statement(name: &str, service: i64) -> String {
    let of = STATEMENTS.iter().find(|(of, _)| *of == name).map_or("", |(_, sql)| *sql);
    of.replace(":service", &service.to_string())
}
