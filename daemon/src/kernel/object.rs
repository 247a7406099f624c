//! Loads the sampler into the kernel.

use super::KernelError;
use super::sideband::{RecordKind, TimedRecord};
use super::table::{MapFds, Table, TableSettings};
use abi::{EVENTS_MAX, Exec, HALVES};
use aya::maps::{Map, MapData, RingBuf};
use aya::programs::{PerfEvent, RawTracePoint};
use aya::{Ebpf, EbpfLoader};
use nix::sys::resource::{RLIM_INFINITY, Resource, setrlimit};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

/// How the sampler looks into the task it interrupts, best first; the numbers are those in the C source.
const TASK_ACCESS: [(&str, u32); 3] = [("typed", 2), ("copied", 1), ("hidden", 0)];

/// The loaded object. Programs are verified one by one, as events need them.
pub struct Sampler {
    ebpf: Ebpf,
    settings: TableSettings,
    cpus: usize,
    /// Execs as they happen; None where the sampler cannot tell generations apart.
    execs: Option<RingBuf<MapData>>,
}

impl Sampler {
    /// Creates the maps for `cpus` possible CPUs, and takes the best access to the current task that this kernel accepts: typed
    /// pointers since 5.11 with BTF, copying since 5.10 with BTF, none without.
    pub fn load(settings: TableSettings, cpus: usize) -> Result<Self, KernelError> {
        // Before 5.11 maps are charged to RLIMIT_MEMLOCK; where raising it fails, creating the map tells.
        let _ = setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY);
        let mut refusal = None;
        for (name, access) in TASK_ACCESS {
            let loaded = Self::load_with(settings, cpus, access).and_then(|mut sampler| {
                sampler.program(0)?;
                if access != 0 {
                    sampler.follow_execs()?;
                }
                Ok(sampler)
            });
            match loaded {
                Ok(sampler) if access == 0 => {
                    tracing::warn!("this kernel gives no BTF: processes are told apart by their number and time only");
                    return Ok(sampler);
                }
                Ok(sampler) => return Ok(sampler),
                Err(error) => {
                    tracing::debug!("task access {name}: {error}");
                    refusal.get_or_insert(error);
                }
            }
        }
        Err(refusal.unwrap_or(KernelError::Sampler { reason: "no variant".to_owned() }))
    }

    fn load_with(settings: TableSettings, cpus: usize, task_access: u32) -> Result<Self, KernelError> {
        let (pidns_dev, pidns_ino) = super::probe::pid_namespace().unwrap_or_default();
        let halves = (cpus * HALVES) as u32;
        let ebpf = EbpfLoader::new()
            .override_global("BUCKET_BITS", &settings.bucket_bits, true)
            .override_global("SPILL_ENTRIES", &settings.spill_entries, true)
            .override_global("PIDNS_DEV", &pidns_dev, true)
            .override_global("PIDNS_INO", &pidns_ino, true)
            .override_global("TASK_ACCESS", &task_access, true)
            .map_max_entries("CPUS", cpus as u32)
            .map_max_entries("TABLE", halves << settings.bucket_bits)
            .map_max_entries("SPILL", halves * settings.spill_entries)
            .map_max_entries("LOSSES", halves)
            .load(ebpf::sampler())
            .map_err(refused)?;
        Ok(Self { ebpf, settings, cpus, execs: None })
    }

    /// Has the kernel report every exec with the generation it begins.
    fn follow_execs(&mut self) -> Result<(), KernelError> {
        let missing = |what| KernelError::Sampler { reason: format!("no {what} in the object") };
        let ring = self.ebpf.take_map("EXECS").ok_or_else(|| missing("map EXECS"))?;
        self.execs = Some(RingBuf::try_from(ring).map_err(refused)?);
        let program = self.ebpf.program_mut("process_exec").ok_or_else(|| missing("program process_exec"))?;
        let program: &mut RawTracePoint = program.try_into().map_err(refused)?;
        program.load().map_err(refused)?;
        program.attach("sched_process_exec").map_err(refused)?;
        Ok(())
    }

    /// Moves the execs that are in the ring now to `into`.
    pub fn execs(&mut self, into: &mut Vec<TimedRecord>) {
        let Some(ring) = &mut self.execs else { return };
        while let Some(bytes) = ring.next() {
            let word = |at: usize| bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes);
            let time = |at: usize| bytes.get(at..at + 8)?.try_into().ok().map(u64::from_ne_bytes);
            let exec = || Some(Exec { time_ns: time(0)?, pid: word(8)?, generation: word(12)? });
            let Some(exec) = exec() else { continue };
            let kind = RecordKind::Generation { pid: exec.pid, generation: exec.generation as u16 };
            into.push(TimedRecord { time_ns: exec.time_ns, kind });
        }
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
