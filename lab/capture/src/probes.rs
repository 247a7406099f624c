//! Probes of places in files, as tracepoints that this process defines in tracefs
//! (Documentation/trace/uprobetracer.rst).
//!
//! Not by the PMU of uprobes: when a traced program forks, the kernel makes its events again for
//! the child, and reads the probe's path from the memory of the *forking* process then
//! (perf_uprobe_init, kernel/trace/trace_event_perf.c, 6.18), where it is not. Their fork(2) fails.
//! Tracepoints are inherited without. They are also one probe for all CPUs' events, where the PMU
//! makes one for each.
//!
//! Definitions outlive the process, so they are removed at its end; those of a killed process are
//! removed by the next tracer.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use crate::TraceError;
use crate::tracefs::Tracefs;

/// Prefix of the group of a process's probes; the process number follows.
const GROUP: &str = "dcpi_";
/// Most bytes of the kernel's list that are searched for probes of ended processes.
const LIST_BYTES_MAX: u64 = 4 << 20;

/// Probes of this process.
#[derive(Debug)]
pub(crate) struct Probes<'a> {
    tracefs: &'a Tracefs,
    list: File,
    group: String,
    names: Vec<String>,
    /// Open files whose paths tracefs cannot parse; their probes name the descriptor.
    files: Vec<OwnedFd>,
}

impl<'a> Probes<'a> {
    pub(crate) fn new(tracefs: &'a Tracefs) -> Result<Self, TraceError> {
        // The file is opened for appending: any other mode removes all users' probes.
        let list = tracefs.append("uprobe_events").map_err(|error| match error.raw_os_error() {
            Some(2) => TraceError::Refused(
                "this kernel has no uprobes (CONFIG_UPROBE_EVENTS); trace --syscalls or --sched"
                    .to_owned(),
            ),
            _ => TraceError::new("cannot define probes in tracefs", &error),
        })?;
        let group = format!("{GROUP}{}", std::process::id());
        let mut probes = Self { tracefs, list, group, names: Vec::new(), files: Vec::new() };
        probes.remove_what_was_left();
        Ok(probes)
    }

    /// Defines a probe. Returns the number of its tracepoint.
    pub(crate) fn define(
        &mut self,
        path: &Path,
        offset: u64,
        is_return: bool,
    ) -> Result<u64, TraceError> {
        let failed = |error: &io::Error| {
            let place = format!("{} at offset {offset:#x}", path.display());
            TraceError::Refused(match error.raw_os_error() {
                // EINVAL, EILSEQ
                Some(22 | 84) => format!(
                    "the kernel cannot probe {place}: no instruction begins there, or it is one \
                     that cannot be probed; leave it out"
                ),
                // EIO
                Some(5) => format!(
                    "the kernel cannot probe {place}: its file system does not allow it; copy the \
                     file to another one"
                ),
                Some(1 | 13) => {
                    "the kernel lets only root define probes; run dcpi trace as root".to_owned()
                }
                _ => format!("the kernel cannot probe {place}: {error}"),
            })
        };
        let kind = if is_return { 'r' } else { 'p' };
        let name = format!("{kind}{}", self.names.len());
        let mut line = format!("{kind}:{}/{name} ", self.group).into_bytes();
        line.extend(self.spelling(path).map_err(|error| failed(&error))?);
        line.extend(format!(":{offset:#x}\n").into_bytes());
        self.list.write_all(&line).map_err(|error| failed(&error))?;
        let id = self.tracefs.tracepoint(&format!("{}/{name}", self.group));
        self.names.push(name);
        id.map(|tracepoint| tracepoint.id).map_err(|error| failed(&error))
    }

    /// A path that tracefs can parse: it splits lines at white space.
    fn spelling(&mut self, path: &Path) -> io::Result<Vec<u8>> {
        let bytes = path.as_os_str().as_bytes();
        let is_plain = |byte: &u8| byte.is_ascii_graphic() && !b"\\:#\"'".contains(byte);
        if path.is_absolute() && bytes.iter().all(is_plain) {
            return Ok(bytes.to_vec());
        }
        let file = OwnedFd::from(File::open(path)?);
        let spelling = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        self.files.push(file);
        Ok(spelling.into_bytes())
    }

    /// Removes probes of processes that are gone. One that is in use after all stays: the kernel
    /// refuses to remove it.
    fn remove_what_was_left(&mut self) {
        let mut text = String::new();
        let Ok(list) = self.tracefs.read("uprobe_events") else { return };
        if list.take(LIST_BYTES_MAX).read_to_string(&mut text).is_err() {
            return;
        }
        for line in text.lines() {
            // `p:dcpi_123/p0 /bin/a:0x1234`
            let name = line.split_once(':').and_then(|(_, rest)| rest.split(' ').next());
            let left = name.and_then(|name| {
                let (pid, _) = name.strip_prefix(GROUP)?.split_once('/')?;
                let pid: u32 = pid.parse().ok()?;
                (!Path::new(&format!("/proc/{pid}")).exists()).then_some(name)
            });
            if let Some(name) = left {
                let _ = self.list.write_all(format!("-:{name}\n").as_bytes());
            }
        }
    }
}

impl Drop for Probes<'_> {
    fn drop(&mut self) {
        for name in &self.names {
            // Probes that cannot be removed now are removed by the next tracer.
            let _ = self.list.write_all(format!("-:{}/{name}\n", self.group).as_bytes());
        }
    }
}
