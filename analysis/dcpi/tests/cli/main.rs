//! The `dcpi` program on real databases.
//!
//! - golden: whole reports, compared with files; `BLESS=1 cargo test -p analysis` writes them again
//! - browser: flame graphs and the HTML report, drawn and operated by Chromium
//! - builds: recordings of two builds, and the verdict on them
//! - prof: what is counted, selected and named
//! - epochs: what is in a database
//! - doctor: what a host and a database lack
//! - everything: every procedure that is installed is explained
//! - excerpts: what a recording keeps of code is enough for reports on its samples
//! - export: files for other tools
//! - guide: the commands of README and guide, and what they print
//! - html: the page for browsers
//! - ideal: exact counts of two engines
//! - ideal_files: files that are replaced or deleted during the run
//! - inlined: functions that a compiler inlined, as rows of their own
//! - mcp: tools for agents
//! - push, push_store: a receiver of what is new in a database; the store of a fleet
//! - replayed: reports on what recordings of real hosts become
//! - python: the Python package
//! - sets: what is compared, and with what
//! - slices: slices of ten seconds, sets of stretches of time, clocks, files that are gone
//! - stacks: call stacks: callers, trees, flame graphs
//! - time: stretches of time, and what happened when
//! - timing: whether a command is faster than another
//! - transfer: copies and archives, and whether a database is whole
//! - truth: counts of other programs and builds
//! - why: calc, whatcg, topstalls, flow of a program that is made byte by byte
//! - output: the fields of JSON and CSV, and the page that names them
//! - process: exit codes, one-line errors, pipes

#[cfg(test)]
#[path = "../../../../tests/src/guide.rs"]
mod blocks;
#[cfg(test)]
mod browser;
#[cfg(test)]
mod builds;
#[cfg(test)]
mod count;
#[cfg(test)]
mod database;
#[cfg(test)]
mod doctor;
#[cfg(test)]
mod epochs;
#[cfg(test)]
mod everything;
#[cfg(test)]
mod excerpts;
#[cfg(test)]
mod export;
#[cfg(test)]
mod golden;
#[cfg(test)]
mod guide;
mod html;
#[cfg(test)]
mod ideal;
#[cfg(test)]
mod ideal_files;
#[cfg(test)]
mod inlined;
#[cfg(test)]
mod list;
#[cfg(test)]
mod mcp;
#[cfg(test)]
mod output;
#[cfg(test)]
mod process;
#[cfg(test)]
mod prof;
#[cfg(test)]
mod push;
#[cfg(test)]
mod push_store;
#[cfg(test)]
mod python;
#[cfg(test)]
mod replayed;
#[cfg(test)]
mod runs;
#[cfg(test)]
mod serve;
#[cfg(test)]
mod sets;
#[cfg(test)]
mod slices;
#[cfg(test)]
mod stacks;
#[cfg(test)]
mod time;
#[cfg(test)]
mod timing;
#[cfg(test)]
mod transfer;
#[cfg(test)]
mod truth;
#[cfg(test)]
mod weights;
#[cfg(test)]
mod why;
