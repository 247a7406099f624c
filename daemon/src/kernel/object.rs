//! Loads the sampler into the kernel.

use super::KernelError;
use super::table::{MapFds, Table, TableSettings};
use abi::{EVENTS_MAX, HALVES};
use aya::maps::{Map, MapData};
use aya::programs::PerfEvent;
use aya::{Ebpf, EbpfLoader};
use nix::sys::resource::{RLIM_INFINITY, Resource, setrlimit};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

/// The loaded object. Programs are verified one by one, as events need them.
pub struct Sampler {
    ebpf: Ebpf,
    settings: TableSettings,
    cpus: usize,
}

impl Sampler {
    /// Creates the maps for `cpus` possible CPUs.
    pub fn load(settings: TableSettings, cpus: usize) -> Result<Self, KernelError> {
        // Before 5.11 maps are charged to RLIMIT_MEMLOCK; where raising it fails, creating the map tells.
        let _ = setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY);
        let (pidns_dev, pidns_ino) = super::probe::pid_namespace().unwrap_or_default();
        let halves = (cpus * HALVES) as u32;
        let ebpf = EbpfLoader::new()
            .override_global("BUCKET_BITS", &settings.bucket_bits, true)
            .override_global("SPILL_ENTRIES", &settings.spill_entries, true)
            .override_global("PIDNS_DEV", &pidns_dev, true)
            .override_global("PIDNS_INO", &pidns_ino, true)
            .map_max_entries("CPUS", cpus as u32)
            .map_max_entries("TABLE", halves << settings.bucket_bits)
            .map_max_entries("SPILL", halves * settings.spill_entries)
            .map_max_entries("LOSSES", halves)
            .load(ebpf::sampler())
            .map_err(refused)?;
        Ok(Self { ebpf, settings, cpus })
    }

    /// Maps the tables into this process.
    pub fn table(&self) -> Result<Table, KernelError> {
        let fds = MapFds {
            cpus: self.map("CPUS")?,
            table: self.map("TABLE")?,
            spill: self.map("SPILL")?,
            losses: self.map("LOSSES")?,
        };
        Table::new(&fds, self.settings, self.cpus)
    }

    fn map(&self, name: &str) -> Result<BorrowedFd<'_>, KernelError> {
        match self.ebpf.map(name) {
            Some(Map::Array(data)) => Ok(MapData::fd(data).as_fd()),
            _ => Err(KernelError::Sampler { reason: format!("no array map {name} in the object") }),
        }
    }

    /// Verifies and loads the program that counts under event number `event`; its file descriptor stays owned by the sampler.
    pub fn program(&mut self, event: usize) -> Result<RawFd, KernelError> {
        if event >= EVENTS_MAX {
            return Err(KernelError::Sampler { reason: format!("more than {EVENTS_MAX} events") });
        }
        let program = self.ebpf.program_mut(&format!("sample_{event}"));
        let program = program.ok_or_else(|| KernelError::Sampler { reason: format!("no program sample_{event}") })?;
        let program: &mut PerfEvent = program.try_into().map_err(refused)?;
        if program.fd().is_err() {
            program.load().map_err(refused)?;
        }
        Ok(program.fd().map_err(refused)?.as_fd().as_raw_fd())
    }

    /// Nanoseconds and runs of all loaded programs.
    pub fn cost(&self) -> (u64, u64) {
        let infos = self.ebpf.programs().filter_map(|(_, program)| program.info().ok());
        infos.fold((0, 0), |(ns, runs), info| (ns + info.run_time().as_nanos() as u64, runs + info.run_count()))
    }
}

/// The chain of causes on one line. A verifier log has many lines: the last one that says something is the reason.
fn refused(error: impl std::error::Error) -> KernelError {
    let mut reason = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let text = inner.to_string();
        if !reason.contains(&text) {
            reason = format!("{reason}: {text}");
        }
        cause = inner.source();
    }
    let mut lines = reason.lines().filter(|line| !line.trim().is_empty());
    let first = lines.next().unwrap_or_default().to_owned();
    let reason = lines.next_back().map_or(first.clone(), |last| format!("{first} ... {last}"));
    KernelError::Sampler { reason }
}
