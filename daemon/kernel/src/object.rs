//! Loads the sampler into the kernel.

use super::KernelError;
use super::runtime_bytes::{RuntimeBytes, runtime_bytes};
use super::sample_table::{MapFds, Table, TableSettings};
use super::sideband::{Program, RecordKind, TimedRecord};
use super::snapshots::Snapshots;
use super::stacks::{StackRings, WaitTimes};
use super::wait_samples::{self, WaitSamples};
use abi::{
    AHEAD_MAX, AheadKey, AheadWords, Change, ChangeKind, EVENTS_MAX, FILE_RANGES_MAX,
    FILE_SPACES_MAX, FileRange, FileRanges, HALVES, RULES_MAX, RuleKey, RuleWords, RuntimeLayout,
    SLOT_BITS, SNAPSHOTS_PER_CPU, WAIT_LINES,
};
use aya::maps::{HashMap, Map, MapData, RingBuf};
use aya::programs::{Iter, KProbe, PerfEvent, RawTracePoint};
use aya::{Btf, Ebpf, EbpfLoader};
use nix::sys::resource::{RLIM_INFINITY, Resource, setrlimit};
use std::io::Read as _;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::LazyLock;

/// Ways in which the sampler reads the task it interrupts, best first, and the kinds of call stacks
/// that it takes, if any; the numbers are those of the C source.
const TASK_ACCESS: [(&str, u32, u32); 4] = [
    ("typed, with registers at the entry to the kernel", 2, STACKS_OF_BOTH),
    ("typed", 2, 1),
    ("copied", 1, 1),
    ("hidden", 0, 1),
];

/// Stacks of kernel code too, with the registers of the user code that called it.
const STACKS_OF_BOTH: u32 = 2;

/// Entries of the map of rules where no stacks are taken.
const RULES_UNUSED: usize = 64;

/// Add a key only if it is not there (linux/bpf.h).
const BPF_NOEXIST: u64 = 1;

/// An [`abi::Identity`], for the library that we ask.
type IdentityWords = [u64; size_of::<abi::Identity>() / size_of::<u64>()];

/// [`FileRanges`], for the library that we ask.
type FileRangeWords = [[u64; size_of::<FileRange>() / size_of::<u64>()]; FILE_RANGES_MAX];

/// Most attempts of the daemon to lock a slot. Each takes a microsecond, as long as the sampler
/// holds one.
const LOCK_ATTEMPTS: u32 = 1000;

/// The kernel function that is called for every new mapping before its record is written
/// (kernel/events/core.c, 5.10 to 7.2).
const MAPPING_FUNCTION: &str = "perf_event_mmap";

/// The loaded object. Programs are verified one by one, as events need them.
pub struct Sampler {
    ebpf: Ebpf,
    settings: TableSettings,
    sharing: Sharing,
    cpus: usize,
    /// Ring of changes of address spaces; None where the sampler cannot tell generations apart.
    changes: Option<RingBuf<MapData>>,
    /// Messages from the ring that no [`ChangeKind`] describes.
    refused_changes: u64,
}

/// Programs that take the times of threads, and where.
const WAIT_TRACEPOINTS: [(&str, &str); 3] =
    [("woken_new", "sched_wakeup_new"), ("woken", "sched_wakeup"), ("switched", "sched_switch")];

/// Settings of code that is counted once for all processes, and of additional records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sharing {
    /// Kernel addresses are counted for each process.
    pub kernel_by_process: bool,
    /// Kernel addresses are counted once for each scope, and by process where the scope is not
    /// known yet.
    pub kernel_by_scope: bool,
    /// A program's own text, and that of libraries, is counted for each process.
    pub programs_by_process: bool,
    /// Snapshots of registers are taken. They cost memory; without this setting the sampler has no
    /// instruction for them.
    pub snapshots: bool,
    /// Call stacks are taken. They cost memory, too.
    pub stacks: bool,
    /// Times of threads may be taken, and stacks of their waits.
    pub waits: bool,
}

/// The program that samples waiting threads, called for each thread of a pass.
const WAIT_PASS: &str = "see_wait";

impl Sampler {
    /// Creates the maps for `cpus` possible CPUs, and uses the best access to the current task that
    /// this kernel accepts: typed pointers since 5.11 with BTF, copying since 5.10 with BTF, none
    /// without BTF. Where it accepts no program that takes call stacks, none are taken.
    pub fn load(
        settings: TableSettings,
        sharing: Sharing,
        cpus: usize,
    ) -> Result<Self, KernelError> {
        match Self::load_best(settings, sharing, cpus) {
            Err(error) if sharing.stacks => {
                tracing::warn!("no call stacks: this kernel refuses to take them: {error}");
                let without = Sharing { stacks: false, waits: false, ..sharing };
                Self::load_best(settings, without, cpus)
            }
            loaded => loaded,
        }
    }

    fn load_best(
        settings: TableSettings,
        sharing: Sharing,
        cpus: usize,
    ) -> Result<Self, KernelError> {
        // Before 5.11 maps are charged to RLIMIT_MEMLOCK. Where raising it fails, creating the map
        // reports it.
        let _ = setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY);
        let mut refusal = None;
        for (name, access, stacks) in TASK_ACCESS {
            if !sharing.stacks && stacks == STACKS_OF_BOTH {
                continue; // as the next one
            }
            let ways = (access, if sharing.stacks { stacks } else { 0 });
            let loaded = Self::load_with(settings, sharing, cpus, ways).and_then(|mut sampler| {
                sampler.program(0)?;
                if access != 0 {
                    sampler.follow_changes()?;
                }
                if sharing.waits && stacks == STACKS_OF_BOTH {
                    sampler.follow_switches()?;
                }
                Ok(sampler)
            });
            match loaded {
                Ok(sampler) if access == 0 => {
                    tracing::warn!(
                        "this kernel gives no BTF: processes are told apart by their number and time only"
                    );
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

    fn load_with(
        settings: TableSettings,
        sharing: Sharing,
        cpus: usize,
        (task_access, stacks): (u32, u32),
    ) -> Result<Self, KernelError> {
        let namespace = super::machine::pid_namespace();
        let (pidns_dev, pidns_ino) = namespace.unwrap_or_default();
        // The daemon finds a process's slot by its number in the root namespace, to keep it apart.
        let share_programs = !sharing.programs_by_process && namespace.is_none();
        let daemon = if namespace.is_none() { std::process::id() } else { 0 };
        let halves = (cpus * HALVES) as u32;
        let chosen = ebpf::Settings {
            spill_entries: settings.spill_entries,
            task_access,
            share_programs,
            kernel_by_process: sharing.kernel_by_process,
            snapshots: sharing.snapshots,
            buckets: settings.buckets,
            key: random_key()?,
            stacks,
        };
        let stack_cpus = if stacks > 0 { cpus as u32 } else { 1 };
        let ebpf = EbpfLoader::new()
            .override_global("PIDNS_DEV", &pidns_dev, true)
            .override_global("PIDNS_INO", &pidns_ino, true)
            .override_global("CHANGES_OF_USER_MAX", &changes_of_user(cpus), true)
            .override_global("DAEMON", &daemon, true)
            .override_global("COMPARES_WALKS", &u32::from(compares_walks()), true)
            .map_max_entries("SNAPSHOT_RINGS", if sharing.snapshots { cpus as u32 } else { 1 })
            .map_max_entries(
                "SNAPSHOT_DATA",
                if sharing.snapshots { (cpus * SNAPSHOTS_PER_CPU) as u32 } else { 1 },
            )
            .map_max_entries("AHEAD_STATES", if sharing.snapshots { cpus as u32 } else { 1 })
            .map_max_entries("AHEAD", if sharing.snapshots { AHEAD_MAX } else { 1 } as u32)
            .map_max_entries("STACK_RINGS", stack_cpus)
            .map_max_entries("STACK_DATA", stack_cpus)
            .map_max_entries("WALKS", stack_cpus)
            .map_max_entries(
                "FILE_RANGES",
                if stacks > 0 { FILE_SPACES_MAX } else { RULES_UNUSED } as u32,
            )
            .map_max_entries("RULES", if stacks > 0 { RULES_MAX } else { RULES_UNUSED } as u32)
            .map_max_entries("WAIT_TIMES", if sharing.waits { WAIT_LINES as u32 } else { 1 })
            .map_max_entries("CHANGES", ring_bytes(cpus))
            .map_max_entries("CPUS", cpus as u32)
            .map_max_entries("TABLE", halves.saturating_mul(settings.buckets).max(1))
            .map_max_entries("SPILL", halves.saturating_mul(settings.spill_entries))
            .map_max_entries("LOSSES", halves)
            .load(&ebpf::sampler(&chosen))
            .map_err(refused)?;
        Ok(Self { ebpf, settings, sharing, cpus, changes: None, refused_changes: 0 })
    }

    /// Whether kernel addresses are counted for each process.
    pub fn counts_kernel_by_process(&self) -> bool {
        self.sharing.kernel_by_process
    }

    /// Makes the kernel report every exec with the generation that begins, and note forks and
    /// mappings in the slots that samples read.
    fn follow_changes(&mut self) -> Result<(), KernelError> {
        let ring = self.ebpf.take_map("CHANGES").ok_or_else(|| missing("map CHANGES"))?;
        self.changes = Some(RingBuf::try_from(ring).map_err(refused)?);
        self.trace("process_exec", "sched_process_exec")?;
        self.trace("process_fork", "sched_process_fork")?;
        // A probe also keeps the kernel from taking a sample while it runs (trace_call_bpf,
        // kernel/trace/bpf_trace.c).
        if let Err(trace) = self.trace("mappings_write", "ma_write")
            && let Err(probe) = self.probe_mappings()
        {
            tracing::info!(
                "samples of two files mapped in turn at one address may stay unresolved here: {trace}; {probe}"
            );
        }
        Ok(())
    }

    fn trace(&mut self, name: &str, tracepoint: &str) -> Result<(), KernelError> {
        let program = self.ebpf.program_mut(name).ok_or_else(|| missing(name))?;
        let program: &mut RawTracePoint = program.try_into().map_err(refused)?;
        program.load().map_err(refused)?;
        program.attach(tracepoint).map_err(refused)?;
        Ok(())
    }

    /// Attaches the programs that take the times of threads. They do nothing before
    /// [`abi::CpuBlock::wait_scale_us`] is set. Later the daemon has no right to attach programs.
    fn follow_switches(&mut self) -> Result<(), KernelError> {
        for (name, tracepoint) in WAIT_TRACEPOINTS {
            self.trace(name, tracepoint)?;
        }
        if let Err(error) = self.load_pass() {
            tracing::info!("no samples of waits where threads change often: {error}");
        }
        Ok(())
    }

    /// Loads the program that samples waiting threads.
    fn load_pass(&mut self) -> Result<(), KernelError> {
        let program = self.ebpf.program_mut(WAIT_PASS).ok_or_else(|| missing(WAIT_PASS))?;
        let program: &mut Iter = program.try_into().map_err(refused)?;
        program.load("task", &Btf::from_sys_fs().map_err(refused)?).map_err(refused)
    }

    /// Maps the samples of waiting threads into this process; None where the kernel has refused the
    /// program that takes them.
    pub fn wait_samples(&self) -> Result<Option<WaitSamples>, KernelError> {
        let is_loaded = self.ebpf.program(WAIT_PASS).is_some_and(|program| program.info().is_ok());
        let samples = || WaitSamples::new(self.map("WAIT_PASS")?, self.map("WAIT_SAMPLES")?);
        is_loaded.then(samples).transpose()
    }

    /// Has the kernel iterate over all threads once. From Linux 5.19 on this needs no capability.
    pub fn pass_over_threads(&mut self) -> Result<(), KernelError> {
        let program = self.ebpf.program_mut(WAIT_PASS).ok_or_else(|| missing(WAIT_PASS))?;
        let program: &mut Iter = program.try_into().map_err(refused)?;
        let link = program.attach().map_err(refused)?;
        let mut pass = program.take_link(link).map_err(refused)?.into_file().map_err(refused)?;
        pass.read(&mut [0; 64]).map_err(refused)?; // it writes nothing
        Ok(())
    }

    /// Shares the samples of the next pass, about `samples`, equally among the payers that had
    /// waiting threads in the last one, and forgets the other payers. Returns N where one of N
    /// threads of a payer that appears in the next pass is to be sampled.
    pub fn share_wait_samples(&mut self, samples: u32) -> u32 {
        let Some(mut payers) = self.hash_map::<u64, [u32; 2]>("WAIT_PAYERS") else { return 1 };
        let seen: Vec<(u64, [u32; 2])> = payers.iter().flatten().collect();
        let threads: Vec<u32> = seen.iter().map(|(_, [threads, _])| *threads).collect();
        let shares = wait_samples::shares(&threads, samples);
        for ((key, [threads, _]), every) in seen.into_iter().zip(shares) {
            // Where this fails, the payer's threads are sampled as in the last pass.
            let _ = match threads {
                0 => payers.remove(&key),
                _ => payers.insert(key, [0, every], 0),
            };
        }
        let all = threads.iter().fold(0_u32, |all, threads| all.saturating_add(*threads));
        all.div_ceil(samples.max(1)).max(1)
    }

    /// Maps the times of threads into this process, where they are taken.
    pub fn wait_times(&self) -> Result<Option<WaitTimes>, KernelError> {
        self.sharing.waits.then(|| WaitTimes::new(self.map("WAIT_TIMES")?)).transpose()
    }

    /// Attaches the probe that runs before the kernel writes the record of a new mapping.
    fn probe_mappings(&mut self) -> Result<(), KernelError> {
        let program = self.ebpf.program_mut("mmap_probe").ok_or_else(|| missing("mmap_probe"))?;
        let program: &mut KProbe = program.try_into().map_err(refused)?;
        program.load().map_err(refused)?;
        program.attach(MAPPING_FUNCTION, 0).map_err(refused)?;
        Ok(())
    }

    /// Moves the changes that are in the ring to `into`. A message of an unknown kind is refused;
    /// the log states their number at each power of two, so that it cannot be flooded.
    pub fn changes(&mut self, into: &mut Vec<TimedRecord>) {
        let Some(ring) = &mut self.changes else { return };
        while let Some(bytes) = ring.next() {
            let record = change(&bytes).and_then(|change| {
                Some(TimedRecord { time_ns: change.time_ns, kind: told(&change)? })
            });
            if record.is_none() {
                self.refused_changes += 1;
                if self.refused_changes.is_power_of_two() {
                    let count = self.refused_changes;
                    tracing::error!(count, "messages of the sampler are of no known kind");
                }
            }
            into.extend(record);
        }
    }

    /// Maps the tables into this process.
    pub fn table(&self) -> Result<Table, KernelError> {
        let fds = MapFds {
            cpus: self.map("CPUS")?,
            table: self.map("TABLE")?,
            spill: self.map("SPILL")?,
            losses: self.map("LOSSES")?,
            slots: self.map("SLOTS")?,
            scopes: self.map("KERNEL_SCOPES")?,
        };
        Table::new(&fds, self.settings, self.cpus)
    }

    /// Maps the rings of snapshots into this process, where snapshots are taken.
    pub fn snapshots(&self) -> Result<Option<Snapshots>, KernelError> {
        let rings =
            || Snapshots::new(self.map("SNAPSHOT_RINGS")?, self.map("SNAPSHOT_DATA")?, self.cpus);
        self.sharing.snapshots.then(rings).transpose()
    }

    /// Maps the rings of call stacks into this process, where call stacks are taken.
    pub fn stacks(&self) -> Result<Option<StackRings>, KernelError> {
        let rings =
            || StackRings::new(self.map("STACK_RINGS")?, self.map("STACK_DATA")?, self.cpus);
        self.sharing.stacks.then(rings).transpose()
    }

    fn map(&self, name: &str) -> Result<BorrowedFd<'_>, KernelError> {
        match self.ebpf.map(name) {
            Some(Map::Array(data)) => Ok(MapData::fd(data).as_fd()),
            _ => Err(KernelError::Sampler { reason: format!("no array map {name} in the object") }),
        }
    }

    /// Verifies and loads the program that counts under event number `event`; its file descriptor
    /// stays owned by the sampler.
    pub fn program(&mut self, event: usize) -> Result<RawFd, KernelError> {
        if event >= EVENTS_MAX {
            return Err(KernelError::Sampler { reason: format!("more than {EVENTS_MAX} events") });
        }
        self.perf_event(&format!("sample_{event}"))
    }

    /// Verifies and loads the program that takes a snapshot at each interrupt.
    pub fn burst(&mut self) -> Result<RawFd, KernelError> {
        self.perf_event("sample_burst")
    }

    fn perf_event(&mut self, name: &str) -> Result<RawFd, KernelError> {
        let program = self.ebpf.program_mut(name);
        let program =
            program.ok_or_else(|| KernelError::Sampler { reason: format!("no program {name}") })?;
        let program: &mut PerfEvent = program.try_into().map_err(refused)?;
        if program.fd().is_err() {
            program.load().map_err(refused)?;
        }
        Ok(program.fd().map_err(refused)?.as_fd().as_raw_fd())
    }

    /// Calls `write`, which writes the slot of a process, while the sampler does not write that
    /// slot, if that can be; `write` is passed whether that was possible.
    pub fn writing_slot(&mut self, pid: u32, write: impl FnOnce(bool)) {
        let index = pid & ((1 << SLOT_BITS) - 1);
        let Some(mut writers) = self.hash_map::<u32, u32>("WRITERS") else { return write(false) };
        let is_ours = (0..LOCK_ATTEMPTS).any(|_| writers.insert(index, 1, BPF_NOEXIST).is_ok());
        write(is_ours);
        if is_ours && let Err(error) = writers.remove(&index) {
            tracing::error!("{error}; processes with the slot of {pid} are counted apart");
        }
    }

    /// Lets other code have the number.
    pub fn release_number(&mut self, number: u32) {
        if let Some(mut claims) = self.hash_map::<u32, IdentityWords>("CLAIMS") {
            let _ = claims.remove(&number); // the sampler may have taken it back
        }
    }

    /// Makes the number unusable: no file has this identity.
    pub fn dispute_number(&mut self, number: u32) {
        if let Some(mut claims) = self.hash_map::<u32, IdentityWords>("CLAIMS")
            && let Err(error) = claims.insert(number, IdentityWords::default(), 0)
        {
            tracing::warn!("{error}; processes may still be counted under number {number}");
        }
    }

    /// Copies the frames of runtimes in this address space, where `layout` says; None: no longer.
    pub fn set_runtime(&mut self, space: u32, layout: Option<&RuntimeLayout>) {
        let Some(mut spaces) = self.hash_map::<u32, RuntimeBytes>("RUNTIMES") else { return };
        let set = match layout {
            Some(layout) => spaces.insert(space, runtime_bytes(layout), 0),
            None => spaces.remove(&space),
        };
        if let Err(error) = set {
            tracing::debug!(space, "frames of runtimes: {error}");
        }
    }

    /// Adds rules by which stacks are walked, or replaces them.
    pub fn add_rules(&mut self, rules: &[(RuleKey, RuleWords)]) {
        let Some(mut map) = self.hash_map::<[u64; 2], RuleWords>("RULES") else { return };
        for (RuleKey { place, space, .. }, words) in rules {
            if let Err(error) = map.insert([*place, u64::from(*space)], words, 0) {
                return tracing::debug!("rules of frames: {error}");
            }
        }
    }

    /// Adds programs by which snapshots have the memory that the code ahead loads.
    pub fn add_ahead(&mut self, programs: &[(AheadKey, AheadWords)]) {
        let Some(mut map) = self.hash_map::<[u64; 2], AheadWords>("AHEAD") else { return };
        for ((key, space), words) in programs {
            if let Err(error) = map.insert([*key, u64::from(*space)], words, 0) {
                return tracing::debug!("programs that read ahead: {error}");
            }
        }
    }

    /// Tells which files a process has mapped, for rules that hold in all processes with these.
    pub fn set_file_ranges(&mut self, space: u32, ranges: &FileRanges) {
        let words = ranges.map(|FileRange { start, offset, len, number }| {
            [start, offset, u64::from(len) | u64::from(number) << 32]
        });
        if let Some(mut map) = self.hash_map::<u32, FileRangeWords>("FILE_RANGES")
            && let Err(error) = map.insert(space, words, 0)
        {
            tracing::debug!(space, "mappings for rules of frames: {error}");
        }
    }

    fn hash_map<K: aya::Pod, V: aya::Pod>(
        &mut self,
        name: &str,
    ) -> Option<HashMap<&mut MapData, K, V>> {
        HashMap::try_from(self.ebpf.map_mut(name)?).ok()
    }

    /// Run time in ns, and number of runs, of the programs that take samples.
    pub fn cost(&self) -> (u64, u64) {
        let samplers = self.ebpf.programs().filter(|(name, _)| name.starts_with("sample_"));
        let infos = samplers.filter_map(|(_, program)| program.info().ok());
        infos.fold((0, 0), |(ns, runs), info| {
            (ns + info.run_time().as_nanos() as u64, runs + info.run_count())
        })
    }
}

/// Whether stacks that the sampler has walked are walked by unwind tables too, and differences
/// logged at level `debug`: a check of the sampler's rules.
pub fn compares_walks() -> bool {
    static COMPARES: LazyLock<bool> =
        LazyLock::new(|| std::env::var_os("DCPID_COMPARE_WALKS").is_some());
    *COMPARES
}

/// Bytes of the ring of changes. Its pages count twice in the daemon's memory. It has room for 2730
/// changes for each CPU: a CPU starts about 750 programs a second, each program makes three changes
/// and one for each file that it maps to be executed, and the ring is read every 400 ms or sooner.
fn ring_bytes(cpus: usize) -> u32 {
    (cpus.min(64).next_power_of_two() as u32 * (128 << 10)).max(128 << 10)
}

/// Messages that processes of one ordinary user may have sent in 134 ms: a quarter of the ring,
/// which has 8 bytes of its own beside each.
fn changes_of_user(cpus: usize) -> u32 {
    ring_bytes(cpus) / (size_of::<Change>() as u32 + 8) / 4
}

/// The key of the sampler's hash, from the kernel's random numbers.
fn random_key() -> Result<[u32; 4], KernelError> {
    let mut bytes = [0; 16];
    std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes)).map_err(
        |error| KernelError::Sampler { reason: format!("/dev/urandom cannot be read: {error}") },
    )?;
    let mut key = [0; 4];
    for (word, bytes) in key.iter_mut().zip(bytes.as_chunks().0) {
        *word = u32::from_ne_bytes(*bytes);
    }
    Ok(key)
}

fn missing(what: &str) -> KernelError {
    KernelError::Sampler { reason: format!("no {what} in the object") }
}

fn change(bytes: &[u8]) -> Option<Change> {
    let word = |at: usize| bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes);
    let long = |at: usize| bytes.get(at..at + 8)?.try_into().ok().map(u64::from_ne_bytes);
    Some(Change {
        time_ns: long(0)?,
        kind: word(8)?,
        pid: word(12)?,
        text: long(16)?,
        text_len: word(24)?,
        program: word(28)?,
        generation: word(32)?,
        generation_before: word(36)?,
    })
}

/// The record of a change; None where its kind is unknown.
fn told(change: &Change) -> Option<RecordKind> {
    let (pid, generation) = (change.pid, change.generation as u16);
    let program =
        Program { number: change.program, text: change.text, len: u64::from(change.text_len) };
    Some(match ChangeKind::from_number(change.kind)? {
        ChangeKind::Exec => {
            let program = Some(program).filter(|program| program.len > 0);
            let user = Some(change.generation_before);
            RecordKind::Execed { pid, generation, program, user }
        }
        ChangeKind::Remap => {
            RecordKind::Remapped { pid, before: change.generation_before as u16, generation }
        }
        ChangeKind::Library => RecordKind::Library { pid, library: program },
        ChangeKind::File => RecordKind::File {
            pid,
            start: change.text,
            size_low: change.text_len,
            changed_ns: change.changed_ns(),
            number: change.program,
        },
    })
}

/// The chain of causes on one line. In a verifier's log of many lines, the reason is the last line
/// with content before the verifier's statistics.
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
    let says = |line: &&str| {
        !(line.trim().is_empty() || line.starts_with("processed ") && line.contains(" insns "))
    };
    let mut lines = reason.lines().filter(says);
    let first = lines.next().unwrap_or_default().to_owned();
    let reason = lines.next_back().map_or(first.clone(), |last| format!("{first} ... {last}"));
    KernelError::Sampler { reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message in the sampler's layout, with a value of its own in each field.
    fn message(kind: u32) -> Vec<u8> {
        let mut bytes = 5u64.to_ne_bytes().to_vec();
        bytes.extend([kind, 77].iter().flat_map(|word| word.to_ne_bytes()));
        bytes.extend(0x4000u64.to_ne_bytes());
        bytes.extend([0x123u32, 9, 3, 2].iter().flat_map(|word| word.to_ne_bytes()));
        bytes
    }

    #[test]
    fn each_kind_of_change_is_one_record_and_an_unknown_kind_is_none() {
        let record = |kind: u32| change(&message(kind)).and_then(|change| told(&change));
        let text = Program { number: 9, text: 0x4000, len: 0x123 };
        let execed =
            RecordKind::Execed { pid: 77, generation: 3, program: Some(text), user: Some(2) };
        assert_eq!(record(ChangeKind::Exec as u32), Some(execed));
        let remapped = RecordKind::Remapped { pid: 77, before: 2, generation: 3 };
        assert_eq!(record(ChangeKind::Remap as u32), Some(remapped));
        let library = RecordKind::Library { pid: 77, library: text };
        assert_eq!(record(ChangeKind::Library as u32), Some(library));
        let (size_low, changed_ns) = (0x123, 2 << 32 | 3);
        let file = RecordKind::File { pid: 77, start: 0x4000, size_low, changed_ns, number: 9 };
        assert_eq!(record(ChangeKind::File as u32), Some(file));
        assert_eq!(record(0), None);
        assert_eq!(record(5), None);
        assert_eq!(change(&message(1)[..39]), None, "a message that is cut off");
    }
}
