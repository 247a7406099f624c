//! Counts entries into one procedure by a uprobe, which costs about a microsecond each, so the time
//! of such a run is not used.

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use image::{Binary, ImageOffset, Procedure, default_debug_roots};
use perf_event::events::Software;
use perf_event::{Builder, Counter};

use crate::Streams;

/// The type of uprobes as events (perf_event_open(2), dynamic PMUs).
const KIND: &str = "/sys/bus/event_source/devices/uprobe/type";
/// The list of online CPUs.
const ONLINE: &str = "/sys/devices/system/cpu/online";
/// Most names in a message.
const NAMED: usize = 4;

/// The entry of a procedure.
#[derive(Clone, Debug)]
pub struct Entries {
    path: PathBuf,
    name: String,
    offset: ImageOffset,
    address: u64,
}

/// Why entries cannot be counted: one line with the next step.
#[derive(Debug, thiserror::Error)]
pub enum EntriesError {
    /// The file cannot be read.
    #[error("cannot read {}: {why}; name the file that has the procedure", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// There is no such procedure, or more than one.
    #[error("{} has {found} procedure {name:?}; dcpi prof lists names", path.display())]
    Name {
        /// The file.
        path: PathBuf,
        /// The name, as typed.
        name: String,
        /// `no`, or how many and which.
        found: String,
    },
    /// The kernel refuses the probe.
    #[error("cannot count calls by a uprobe: {0}; try as root")]
    Refused(io::Error),
    /// The command cannot be run.
    #[error("cannot run the command to count its calls: {0}; try it without dcpi time")]
    NotRun(io::Error),
}

fn no_uprobes() -> io::Error {
    io::Error::other("this kernel or file has no uprobes")
}

impl Entries {
    /// Finds the procedure of this name, demangled or raw, in the file at `path`.
    ///
    /// # Errors
    /// [`EntriesError`] where the file cannot be read, or has no or several such procedures.
    pub fn find(path: &Path, name: &str) -> Result<Self, EntriesError> {
        let unread = |why: String| EntriesError::File { path: path.to_owned(), why };
        // A probe lies in the file that is mapped, not in a link to it.
        let path = path.canonicalize().map_err(|error| unread(error.to_string()))?;
        let unread = |error: image::ImageError| unread(error.to_string());
        let binary = Binary::open(&path, None).map_err(unread)?;
        let (procedures, _) = binary.procedures(&default_debug_roots()).map_err(unread)?;
        let is_named = |of: &&Procedure| of.name() == name || of.raw_name() == name;
        let is_of = |of: &&Procedure| of.name().split('(').next() == Some(name);
        let mut found: Vec<&Procedure> = procedures.iter().filter(is_named).collect();
        if found.is_empty() {
            found = procedures.iter().filter(is_of).collect();
        }
        let [procedure] = found.as_slice() else {
            let names: Vec<&str> = found.iter().take(NAMED).map(|of| of.name()).collect();
            let found = match found.len() {
                0 => "no".to_owned(),
                several => format!("{several} ({}) as", names.join(", ")),
            };
            return Err(EntriesError::Name { path, name: name.to_owned(), found });
        };
        let offset = procedure.start;
        let address = binary.layout().file_offset_to_vaddr(offset).map_or(0, |vaddr| vaddr.0);
        Ok(Self { path, name: procedure.name().to_owned(), offset, address })
    }

    /// The procedure's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The address of the entry in its file (ELF's `st_value`).
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Runs a command to its end and counts how often any process entered meanwhile: an event that
    /// children inherit would read the file's path again at each fork, in the memory of the process
    /// that forks, where it is not (Linux 6.18, `perf_uprobe_init`), and the fork would fail.
    ///
    /// # Errors
    /// [`EntriesError::Refused`], [`EntriesError::NotRun`].
    pub fn count(
        &self,
        (program, arguments): (&OsStr, &[OsString]),
        streams: Streams,
    ) -> Result<u64, EntriesError> {
        let online = std::fs::read_to_string(ONLINE).map_err(EntriesError::Refused)?;
        let counters: Result<Vec<Counter>, EntriesError> =
            events::parse_cpu_list(&online).into_iter().map(|cpu| self.counter(cpu)).collect();
        let mut counters = counters?;
        for counter in &mut counters {
            counter.enable().map_err(EntriesError::Refused)?;
        }
        let mut command = Command::new(program);
        streams.give(command.args(arguments));
        command.status().map_err(EntriesError::NotRun)?;
        let counts: io::Result<Vec<u64>> = counters.iter_mut().map(Counter::read).collect();
        Ok(counts.map_err(EntriesError::NotRun)?.iter().sum())
    }

    /// Counts entries on one CPU, once it is enabled.
    fn counter(&self, cpu: usize) -> Result<Counter, EntriesError> {
        let kind = std::fs::read_to_string(KIND).map_err(EntriesError::Refused)?;
        let kind = kind.trim().parse().map_err(|_| EntriesError::Refused(no_uprobes()))?;
        let path = CString::new(self.path.as_os_str().as_bytes())
            .map_err(|_| EntriesError::Refused(no_uprobes()))?;
        let mut builder = Builder::new(Software::DUMMY);
        let attributes = builder.attrs_mut();
        // perf_event_open(2), uprobe_path and probe_offset: the kernel copies the path while the
        // event is opened.
        (attributes.type_, attributes.config) = (kind, 0);
        (attributes.config1, attributes.config2) = (path.as_ptr() as u64, self.offset.0);
        builder.any_pid().one_cpu(cpu).enabled(false);
        // A uprobe's event happens in the kernel, on behalf of user code.
        builder.exclude_kernel(false).exclude_hv(false);
        let counter = builder.build().map_err(EntriesError::Refused);
        drop(path);
        counter
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_or_told_in_one_line() {
        let own = std::env::current_exe().unwrap();
        let name = "exact::entries::tests::entered"; // never inlined, so it has a symbol
        let found = Entries::find(&own, name).unwrap();
        assert!(found.name() == name && found.address() > 0, "{found:?}");
        for (path, name) in [(own.as_path(), "no_such"), (Path::new("/no/such"), "x")] {
            let error = Entries::find(path, name).unwrap_err().to_string();
            assert!(error.contains("; ") && !error.contains('\n'), "{error}");
        }
    }

    /// The kernel asks for privilege for every uprobe.
    #[test]
    #[ignore = "needs root: uprobes"]
    fn entries_of_a_command_and_its_children_are_counted() {
        let own = std::env::current_exe().unwrap();
        let name = "exact::entries::tests::entered";
        let entries = Entries::find(&own, name).unwrap();
        let script = format!(
            "for n in 1 2; do {} --exact entries::tests::enters_three_times; done",
            own.display()
        );
        let words = ["-c".into(), script.into()];
        let count = entries.count(("sh".as_ref(), &words), Streams::none()).unwrap();
        assert_eq!(count, 6);
    }

    #[inline(never)]
    fn entered(n: u64) -> u64 {
        std::hint::black_box(n)
    }

    #[test]
    fn enters_three_times() {
        assert_eq!((1..=3).map(entered).sum::<u64>(), 6);
    }
}
