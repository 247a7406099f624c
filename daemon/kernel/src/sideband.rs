//! Records of processes and mappings: one dummy event per CPU whose ring carries MMAP2, COMM, FORK,
//! EXIT and KSYMBOL records.
//!
//! The records have an event of their own, so that they continue whatever happens to the sampled
//! events. Times are CLOCK_MONOTONIC.

use super::KernelError;
use super::counters::RECORD_FIELDS;
use crate::clock;
use image::ImageId;
use perf_event::data::parse::{ParseConfig, Parser};
use perf_event::data::{
    Comm, Exit, Fork, KSymbol, KSymbolFlags, KSymbolType, Lost, Mmap2, RecordMetadata, Throttle,
    Visitor,
};
use perf_event::events::Software;
use perf_event::{Builder, Clock, Sampler};
use std::io;
use std::os::fd::{AsRawFd, RawFd};

/// Bytes of one CPU's ring: about 5000 mappings between two readings. The kernel drops and counts
/// records that do not fit.
const RING_BYTES: usize = 512 << 10;

/// PERF_RECORD_MISC_COMM_EXEC (linux/perf_event.h): the command changed because of an exec.
const MISC_COMM_EXEC: u16 = 1 << 13;

/// Something that happened to a process or to the kernel's own text.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct TimedRecord {
    /// CLOCK_MONOTONIC, ns.
    pub time_ns: u64,
    /// The event that the record reports.
    pub kind: RecordKind,
}

/// Code that the kernel made for itself (PERF_RECORD_KSYMBOL, linux/perf_event.h): a BPF program, a
/// trampoline, instructions to be executed out of line. No record reports modules.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct KernelSymbol {
    /// Address of its first byte.
    pub address: u64,
    /// Length in bytes.
    pub len: u32,
    /// True for a BPF program or trampoline, false for other code.
    pub is_bpf: bool,
    /// True when the code is gone, false when it is new.
    pub is_gone: bool,
    /// Name as in /proc/kallsyms.
    pub name: String,
}

/// Kinds of records.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum RecordKind {
    /// Memory became executable.
    Mmap(Record),
    /// The process runs another program from now on.
    Exec {
        /// Process.
        pid: u32,
    },
    /// The sampler's message about an exec, which arrives after the records of the exec and of its
    /// first mappings.
    Execed {
        /// Process.
        pid: u32,
        /// As in [`abi::Entry::generation`].
        generation: u16,
        /// The program, where the sampler counts its text once for all processes that run it.
        program: Option<Program>,
        /// The real user of the process; None in a recording made before the sampler reported it.
        #[serde(default)]
        user: Option<u32>,
    },
    /// The code that the process maps next is counted once for all processes that map it.
    Library {
        /// Process.
        pid: u32,
        /// The mapping.
        library: Program,
    },
    /// The next record of the process is of a mapping at this address, of a file in this state.
    File {
        /// Process.
        pid: u32,
        /// First address.
        start: u64,
        /// Lower half of the size in bytes.
        size_low: u32,
        /// Time of the last change, ns since 1970.
        changed_ns: u64,
        /// As in [`abi::FileRange`]; 0: not known, as in recordings of older versions.
        #[serde(default)]
        number: u32,
    },
    /// A file is about to be mapped where another may have been; samples from now on have this
    /// generation.
    Remapped {
        /// Process.
        pid: u32,
        /// The generation until now.
        before: u16,
        /// As in [`abi::Entry::generation`].
        generation: u16,
    },
    /// A process began its second or a later thread, which may outlive its first.
    Thread {
        /// Process.
        pid: u32,
    },
    /// A process was born.
    Fork {
        /// The new process.
        pid: u32,
        /// Its parent, whose memory it has a copy of.
        parent: u32,
    },
    /// The first thread of a process ended.
    Exit {
        /// Process.
        pid: u32,
    },
    /// The kernel's text grew or shrank: a BPF program or a trampoline came or went.
    KernelText(KernelSymbol),
    /// The kernel stopped an event for the rest of a clock tick: too many samples, or too dear
    /// (kernel.perf_event_max_sample_rate, kernel.perf_cpu_time_max_percent).
    Throttled {
        /// The CPU.
        cpu: u32,
    },
    /// Records are missing: a ring was full, or a CPU ran without a ring.
    Lost {
        /// Records that the kernel counted; 0: nobody did.
        records: u64,
    },
}

/// A program, or a mapping of a library, whose text the sampler counts by its distance from the
/// start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Program {
    /// As in [`abi::Space::Program`].
    pub number: u32,
    /// First address of its text in the process that the record is about.
    pub text: u64,
    /// Length in bytes.
    pub len: u64,
}

/// An executable mapping.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Record {
    /// Process.
    pub pid: u32,
    /// First address.
    pub start: u64,
    /// Bytes.
    pub len: u64,
    /// Offset of the first byte in the file.
    pub file_offset: u64,
    /// The file's path as the process named it, or a label of the kernel: `[vdso]`, `//anon`.
    #[serde(with = "crate::latin1")]
    pub path: Vec<u8>,
    /// Identity of the file.
    pub file: MappedFileId,
}

/// The kernel's identification of a mapped file.
#[derive(
    Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
pub enum MappedFileId {
    /// Its GNU build id, 1 to 20 bytes. Only recordings of older versions have it: those asked the
    /// kernel for build ids.
    BuildId(#[serde(with = "crate::latin1")] Vec<u8>),
    /// Place of the file; inode 0: not a file.
    Inode {
        /// Major device number.
        major: u32,
        /// Minor device number.
        minor: u32,
        /// Inode.
        inode: u64,
    },
    /// Place of a file whose content was identified after it was mapped.
    Version {
        /// Major device number.
        major: u32,
        /// Minor device number.
        minor: u32,
        /// Inode.
        inode: u64,
        /// Number of its content (`file_versions.rs` of the crate `address-spaces`); None: the
        /// content could not be identified any more.
        content: Option<u64>,
    },
}

impl MappedFileId {
    /// The image that a recording names; None where the file's place is known only.
    pub fn build(&self) -> Option<ImageId> {
        match self {
            Self::BuildId(bytes) => ImageId::from_build_id(bytes),
            Self::Inode { .. } | Self::Version { .. } => None,
        }
    }
}

/// The rings of all CPUs.
pub struct Sideband {
    rings: Vec<Ring>,
    /// Records of rings that were closed since the last reading.
    of_closed: Vec<TimedRecord>,
}

/// The ring of one CPU.
struct Ring {
    cpu: usize,
    sampler: Sampler,
    /// When the ring's event began to run.
    begun_ns: u64,
    /// Time for which the event had run, and the time of that reading.
    running_ns: u64,
    read_ns: u64,
}

impl Sideband {
    /// Opens and starts the rings of these CPUs.
    pub fn open(cpus: &[usize]) -> Result<Self, KernelError> {
        let mut sideband = Self { rings: Vec::new(), of_closed: Vec::new() };
        for &cpu in cpus {
            sideband.add(cpu)?;
        }
        Ok(sideband)
    }

    /// Opens the ring of one more CPU.
    pub fn add(&mut self, cpu: usize) -> Result<(), KernelError> {
        let sampler = open_ring(cpu).map_err(|source| KernelError::Sideband { cpu, source })?;
        self.rings.push(Ring {
            cpu,
            sampler,
            begun_ns: clock::monotonic_ns(),
            running_ns: 0,
            read_ns: 0,
        });
        Ok(())
    }

    /// Closes the ring of a CPU. The next reading has its last records.
    pub fn remove(&mut self, cpu: usize) {
        for mut ring in self.rings.extract_if(.., |ring| ring.cpu == cpu) {
            ring.read(&mut self.of_closed);
        }
    }

    /// Makes the CPU take an interrupt and answer: reading an event that is active on another CPU
    /// runs there by smp_call_function_single and waits for it (kernel/events/core.c,
    /// perf_event_read, 5.10 to 6.18), and the dummy event is always active. It disturbs no
    /// sampling. Samplers run with interrupts off or in NMIs, so none that began before the answer
    /// is left. On a CPU that is offline no sampler runs either. False: the CPU did not answer.
    pub fn quiesce(&mut self, cpu: usize) -> bool {
        let Some(ring) = self.rings.iter_mut().find(|ring| ring.cpu == cpu) else { return false };
        ring.sampler.as_counter_mut().read_count_and_time().is_ok()
    }

    /// CPUs whose events the kernel has taken away: the CPUs were offline since the events were
    /// opened, and the events stay dead when the CPUs are online again.
    pub fn dead(&mut self, now_ns: u64) -> Vec<usize> {
        let mut dead = Vec::new();
        for ring in &mut self.rings {
            let Ok(read) = ring.sampler.as_counter_mut().read_count_and_time() else { continue };
            if ring.read_ns != 0 && read.time_running == ring.running_ns && now_ns > ring.read_ns {
                dead.push(ring.cpu);
            }
            (ring.running_ns, ring.read_ns) = (read.time_running, now_ns);
        }
        dead
    }

    /// Time until which the event of that CPU has run, CLOCK_MONOTONIC: now, or when the CPU went
    /// offline.
    pub fn alive_until(&mut self, cpu: usize) -> Option<u64> {
        let ring = self.rings.iter_mut().find(|ring| ring.cpu == cpu)?;
        let read = ring.sampler.as_counter_mut().read_count_and_time().ok()?;
        Some(ring.begun_ns.saturating_add(read.time_running))
    }

    /// The descriptor whose ring is that of `cpu`.
    pub fn descriptor(&self, cpu: usize) -> Option<RawFd> {
        self.rings
            .iter()
            .find(|ring| ring.cpu == cpu)
            .map(|ring| ring.sampler.as_counter().as_raw_fd())
    }

    /// Moves every record that is in the rings now to `into`, CPU by CPU; the caller sorts by time.
    pub fn read(&mut self, into: &mut Vec<TimedRecord>) {
        into.append(&mut self.of_closed);
        self.rings.iter_mut().for_each(|ring| ring.read(into));
    }
}

impl Ring {
    fn read(&mut self, into: &mut Vec<TimedRecord>) {
        let mut bytes = Vec::new();
        let config = self.sampler.as_counter().config().clone();
        while let Some(record) = self.sampler.next_record() {
            bytes.clear();
            // The parser needs the header in front, which the ring's reader has taken off.
            bytes.extend(record.ty().to_ne_bytes());
            bytes.extend(record.misc().to_ne_bytes());
            bytes.extend(((record.len() + 8) as u16).to_ne_bytes());
            record.data().iter().for_each(|part| bytes.extend_from_slice(part));
            into.extend(parse(&bytes, &config));
        }
    }
}

/// Opens the ring of one CPU. It does not ask for build ids in MMAP2 records: from the first
/// listener that does, the kernel marks the records of all later listeners as having one
/// (`perf_event_mmap_output`, kernel/events/core.c, 5.12 to 6.18, sets
/// `PERF_RECORD_MISC_MMAP_BUILD_ID` in a header that listeners share and does not clear it). perf
/// 6.1 then misreads its own records and crashes.
fn open_ring(cpu: usize) -> io::Result<Sampler> {
    let mut builder = Builder::new(Software::DUMMY);
    builder.any_pid().one_cpu(cpu).include_kernel().include_hv();
    builder.mmap(true).mmap2(true).comm(true).comm_exec(true).task(true).ksymbol(true);
    builder.sample_id_all(true).sample(RECORD_FIELDS).clockid(Clock::MONOTONIC);
    let mut ring = builder.build()?.sampled(RING_BYTES)?;
    ring.as_counter_mut().enable()?;
    Ok(ring)
}

fn parse(
    bytes: &[u8],
    config: &ParseConfig<perf_event::data::endian::Native>,
) -> Option<TimedRecord> {
    Parser::new(bytes, config.clone()).parse_record(ToRecord).ok().flatten()
}

/// Converts each record to the fields that the daemon needs; None for other records.
struct ToRecord;

impl ToRecord {
    fn timed(metadata: &RecordMetadata, kind: RecordKind) -> Option<TimedRecord> {
        Some(TimedRecord { time_ns: metadata.sample_id().time().unwrap_or(0), kind })
    }
}

impl<'a> Visitor<'a> for ToRecord {
    type Output = Option<TimedRecord>;

    fn visit_unimplemented(self, _: RecordMetadata) -> Self::Output {
        None
    }

    fn visit_mmap2(self, mmap: Mmap2<'a>, metadata: RecordMetadata) -> Self::Output {
        let place = (mmap.maj(), mmap.min(), mmap.ino());
        let (major, minor, inode) = match place {
            (Some(major), Some(minor), Some(inode)) => (major, minor, inode),
            _ => (0, 0, 0),
        };
        let file = MappedFileId::Inode { major, minor, inode };
        let record = Record {
            pid: mmap.pid,
            start: mmap.addr,
            len: mmap.len,
            file_offset: mmap.pgoff,
            path: until_zero(&mmap.filename).to_vec(),
            file,
        };
        Self::timed(&metadata, RecordKind::Mmap(record))
    }

    fn visit_comm(self, comm: Comm<'a>, metadata: RecordMetadata) -> Self::Output {
        let exec = metadata.misc() & MISC_COMM_EXEC != 0;
        if exec { Self::timed(&metadata, RecordKind::Exec { pid: comm.pid }) } else { None }
    }

    fn visit_fork(self, fork: Fork, metadata: RecordMetadata) -> Self::Output {
        // A thread has its parent's process id.
        let (pid, parent) = (fork.pid, fork.ppid);
        let kind = if pid == parent {
            RecordKind::Thread { pid }
        } else {
            RecordKind::Fork { pid, parent }
        };
        Self::timed(&metadata, kind)
    }

    fn visit_exit(self, exit: Exit, metadata: RecordMetadata) -> Self::Output {
        let leader = exit.pid == exit.tid;
        if leader { Self::timed(&metadata, RecordKind::Exit { pid: exit.pid }) } else { None }
    }

    fn visit_ksymbol(self, symbol: KSymbol<'a>, metadata: RecordMetadata) -> Self::Output {
        let symbol = KernelSymbol {
            address: symbol.addr,
            len: symbol.len,
            is_bpf: symbol.ksym_type == KSymbolType::BPF,
            is_gone: symbol.flags.contains(KSymbolFlags::UNREGISTER),
            name: String::from_utf8_lossy(until_zero(&symbol.name)).into_owned(),
        };
        Self::timed(&metadata, RecordKind::KernelText(symbol))
    }

    fn visit_throttle(self, _: Throttle, metadata: RecordMetadata) -> Self::Output {
        let cpu = metadata.sample_id().cpu()?;
        Self::timed(&metadata, RecordKind::Throttled { cpu })
    }

    fn visit_lost(self, lost: Lost, metadata: RecordMetadata) -> Self::Output {
        Self::timed(&metadata, RecordKind::Lost { records: lost.lost })
    }
}
/// The text of a record's field, which ends with a zero; the bytes after it belong to another
/// field.
fn until_zero(field: &[u8]) -> &[u8] {
    field.split(|byte| *byte == 0).next().unwrap_or_default()
}
