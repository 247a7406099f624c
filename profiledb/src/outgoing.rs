//! The parts of an epoch that leave its host for the store of a fleet.

use std::collections::BTreeMap;

use image::{ImageId, ImageKind};
use model::{Attributes, Stacks, Thread};

use crate::images::ImageRecord;
use crate::scope::Scope;

/// What of an epoch leaves its host. What stays is neither named nor counted apart; samples are
/// never left out.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a choice of its own")]
pub struct Outgoing {
    /// Labels of runs.
    pub labels: bool,
    /// Names of systemd units and containers.
    pub units: bool,
    /// Numbers of processes and threads.
    pub pids: bool,
    /// Names and attributes of threads; commands leave with call stacks.
    pub threads: bool,
    /// Paths in home directories, of programs and of source files.
    pub homes: bool,
    /// Names of code that programs made at run time.
    pub generated: bool,
    /// Call stacks.
    pub stacks: bool,
}

impl Default for Outgoing {
    /// Labels, units and call stacks: what a review of services needs.
    fn default() -> Self {
        Self {
            labels: true,
            units: true,
            pids: false,
            threads: false,
            homes: false,
            generated: false,
            stacks: true,
        }
    }
}

impl Outgoing {
    /// Everything.
    pub(crate) const ALL: Self = Self {
        labels: true,
        units: true,
        pids: true,
        threads: true,
        homes: true,
        generated: true,
        stacks: true,
    };

    /// The scope that samples of a scope are counted under.
    pub(crate) fn scope(&self, scope: &Scope) -> Scope {
        Scope {
            label: scope.label.clone().filter(|_| self.labels),
            unit: scope.unit.clone().filter(|_| self.units),
            pid: scope.pid.filter(|_| self.pids),
        }
    }

    /// The thread that stacks of a thread are of.
    pub(crate) fn thread(&self, thread: &Thread) -> Thread {
        let number = |number: u32| if self.pids { number } else { 0 };
        Thread {
            command: thread.command.clone(),
            pid: number(thread.pid),
            name: if self.threads { thread.name.clone() } else { String::new() },
            tid: number(thread.tid),
            attributes: if self.threads {
                thread.attributes.clone()
            } else {
                Attributes::default()
            },
        }
    }

    /// Adds stacks to others, as those of the threads that leave.
    pub(crate) fn add_stacks(&self, all: &mut Stacks, more: &Stacks) {
        all.merge_threads(more, |thread| self.thread(thread));
    }

    /// The images by what of their names leaves.
    pub(crate) fn images(
        &self,
        records: BTreeMap<ImageId, ImageRecord>,
    ) -> BTreeMap<ImageId, ImageRecord> {
        let record = |(id, mut record): (ImageId, ImageRecord)| {
            if !self.homes && is_in_home(&record.path) {
                record.path = format!("~/{}", record.name);
            }
            if !self.pids && record.kind == ImageKind::Jit {
                record.name = without_number(&record.name).to_owned();
                record.path = without_number(&record.path).to_owned();
            }
            (id, record)
        };
        records.into_iter().map(record).collect()
    }

    /// Whether names of procedures of an image leave, and its code.
    pub fn has_symbols(&self, record: Option<&ImageRecord>) -> bool {
        self.generated || record.is_some_and(|record| record.kind != ImageKind::Jit)
    }
}

/// Whether a path is in a user's home directory.
fn is_in_home(path: &str) -> bool {
    ["/home/", "/root/", "/var/home/", "/run/user/"].iter().any(|home| path.starts_with(home))
}

/// The name of an image of generated code, `[jit] PROGRAM PID`, without the number of its process.
fn without_number(name: &str) -> &str {
    match name.rsplit_once(' ') {
        Some((front, number)) if number.bytes().all(|byte| byte.is_ascii_digit()) => front,
        _ => name,
    }
}
