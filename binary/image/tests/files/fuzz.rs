//! ELF files, debug files and debug information that no compiler wrote: programs with changed bytes
//! where their meaning is. Whatever is asked of them, nothing panics, and nothing takes time or
//! memory without end.

use std::fs::{read_to_string, write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use image::{Binary, DebugInfo, Finding, KeptFile, KeptRanges, Vaddr};

use crate::compile::{Workshop, read};
use crate::handmade::Handmade;
use crate::hostile::{some_are_as_among_all, use_all};
use crate::lines::{build, work};

/// Seconds of the long run.
const SECONDS: &str = "IMAGE_FUZZ_S";
/// The number of the first execution, to do one again that was found.
const FIRST: &str = "IMAGE_FUZZ_FIRST";
/// CPU time that everything asked of one small file may take: a hundred times what most take.
const CPU_MAX: Duration = Duration::from_secs(10);
/// Memory that all of it may take.
const MEMORY_MAX_KIB: u64 = 1 << 20;
/// The value of `frames` that is documented.
const FRAMES_MAX: usize = 64;

/// xorshift64* (Vigna 2016), begun with any number.
pub struct Random(u64);

impl Random {
    /// The random number of execution `number`: splitmix64 (Steele et al. 2014) decorrelates
    /// neighbours.
    pub fn of(number: u64) -> Self {
        let mut state = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        state = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        state = (state ^ state >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        Self((state ^ state >> 31).max(1))
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.next() >> 11) as usize % end.max(1)
    }

    fn of_slice<T: Clone>(&mut self, slice: &[T]) -> T {
        slice[self.below(slice.len())].clone()
    }

    /// Changes a part of a file in one of the ways that decoders fear; the part keeps its length.
    pub fn change(&mut self, part: &mut [u8]) {
        let len = part.len();
        let at = self.below(len);
        let some = (1 + self.below(8)).min(len - at);
        match self.below(9) {
            0 | 1 => part[at] ^= 1 << self.below(8),
            2 => part[at] = self.of_slice(&[0, 1, 0x7f, 0x80, 0xff]),
            3 => part[at] = self.next() as u8,
            4 => {
                let number = self.of_slice(&[
                    0,
                    1,
                    len as u64,
                    u64::MAX,
                    u64::MAX - 7,
                    1 << 63,
                    1 << 32,
                    1 << 31,
                    1 << 20,
                ]);
                let bytes = number.to_le_bytes();
                part[at..at + some].copy_from_slice(&bytes[..some]);
            }
            // A number without end, or a very large one.
            5 => part[at..at + some].fill(0x80 | self.next() as u8),
            6 => {
                let from = self.below(len - some + 1);
                part.copy_within(from..from + some, at);
            }
            // Inserts or removes some bytes, which moves everything after them.
            7 => part[at..].rotate_right(some),
            _ => part[at..].rotate_left(some),
        }
    }
}

/// A file to be changed, and its surroundings.
struct Seed {
    bytes: Vec<u8>,
    /// Where it is written to: the program itself, or its debug file.
    place: PathBuf,
    program: PathBuf,
    /// Addresses of the procedure whose lines are asked for.
    work: Range<u64>,
    /// The ranges to be changed: the header and each section; sections that are decoded are chosen
    /// more often.
    parts: Vec<Range<usize>>,
}

impl Seed {
    fn new(program: PathBuf, place: PathBuf, (start, size): (u64, u64)) -> Self {
        let bytes = read(&place);
        let parts = parts(&bytes);
        Self { bytes, place, program, work: start..start + size, parts }
    }

    /// Changes it and asks everything. How many source lines were reported.
    fn run(&self, random: &mut Random) -> usize {
        let mut bytes = self.bytes.clone();
        let part = random.of_slice(&self.parts);
        for _ in 0..=random.below(6) {
            // Most changes are near each other: one alone is often overlooked.
            let part =
                if random.below(4) > 0 { part.clone() } else { random.of_slice(&self.parts) };
            random.change(&mut bytes[part]);
        }
        if random.below(20) == 0 {
            bytes.truncate(random.below(bytes.len()));
        }
        write(&self.place, &bytes).unwrap();
        let _ = use_all(&bytes);
        kept(&bytes, random);
        let told = self.lines(random);
        // Others are of the same directory, and each execution is to be one that can be done again.
        write(&self.place, &self.bytes).unwrap();
        told
    }

    fn lines(&self, random: &mut Random) -> usize {
        let mut findings = Vec::new();
        let Ok(binary) = Binary::open(&self.program, None) else { return 0 };
        some_are_as_among_all(&binary);
        let _ = (binary.build_id(), binary.imports(), binary.constants());
        let info = DebugInfo::of(&binary, &[], &mut findings);
        assert!(findings.iter().all(|finding: &Finding| !finding.to_string().contains('\n')));
        let Some(info) = info else { return 0 };
        let mut told = 0;
        let mut addresses: Vec<Vaddr> = self.work.clone().map(Vaddr).collect();
        addresses.extend([Vaddr(0), Vaddr(u64::MAX), Vaddr(random.next())]);
        if let Ok(lines) = info.lines() {
            for &address in &addresses {
                let frames = lines.frames(address);
                assert!(frames.len() <= FRAMES_MAX);
                told += frames.iter().filter(|frame| frame.line.is_some()).count();
            }
            let _ = lines.cut().map(|cut| cut.to_string());
        }
        if let Ok(sites) = info.sites() {
            for &address in &addresses {
                assert!(sites.at(address).len() <= FRAMES_MAX + 1);
            }
        }
        told
    }
}

/// The excerpt of a file, and the excerpt of a file with other ranges.
fn kept(bytes: &[u8], random: &mut Random) {
    let Ok(kept) = KeptFile::of(bytes) else { return };
    assert!(kept.ranges().len() <= bytes.len() as u64);
    let _ = (
        kept.identify(),
        kept.layout(),
        kept.procedures(None, None, &[]),
        kept.get(random.next(), 9),
    );
    let ranges: Vec<Range<u64>> = kept.ranges().ranges().to_vec();
    let mut changed = ranges.clone();
    if let Some(range) = changed.first_mut() {
        range.end = random.below(bytes.len() + 99) as u64;
    }
    if let Ok(other) = KeptRanges::new(random.next() >> random.below(64), changed) {
        let some = bytes.iter().copied().cycle().take(other.len() as usize).collect();
        let other = KeptFile::new(other, some).unwrap();
        let _ = (other.identify(), other.procedures(None, None, &[]));
    }
}

/// The file header with the program headers, each section, and the section headers of a file of 64
/// bits, lowest byte first.
fn parts(bytes: &[u8]) -> Vec<Range<usize>> {
    let number = |at: usize, len: usize| {
        bytes[at..at + len].iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte))
    };
    let (table, count, names) = (number(0x28, 8), number(0x3c, 2), number(0x3e, 2));
    let section = |index: usize| {
        let header = table + index * 64;
        (number(header, 4), number(header + 4, 4), number(header + 24, 8), number(header + 32, 8))
    };
    let mut parts = vec![0..0x40, 0x40..0x40 + 56 * number(0x38, 2), table..table + count * 64];
    let (_, _, names, _) = section(names);
    for (name, kind, at, size) in (1..count).map(section) {
        let name: Vec<u8> =
            bytes[names + name..].iter().copied().take_while(|byte| *byte != 0).collect();
        let name = String::from_utf8(name).unwrap();
        const NOBITS: usize = 8;
        if kind == NOBITS || size == 0 {
            continue;
        }
        let decoded = [
            ".debug_",
            ".zdebug_",
            ".gnu_debug",
            ".symtab",
            ".strtab",
            ".eh_frame",
            ".rela",
            ".relr",
            ".dyn",
            ".got",
            ".note",
        ];
        let weight = if decoded.iter().any(|prefix| name.starts_with(prefix)) { 4 } else { 1 };
        let weight = if [".debug_info", ".debug_abbrev", ".debug_line"].contains(&&*name) {
            16
        } else {
            weight
        };
        parts.extend(std::iter::repeat_n(at..at + size, weight));
    }
    parts
}

/// Programs with debug information in all the places it may be.
struct Fuzzer {
    seeds: Vec<Seed>,
    /// Their files are gone with them.
    _workshops: Vec<Workshop>,
}

impl Fuzzer {
    fn new() -> Self {
        let mut seeds = Vec::new();
        let mut workshops = Vec::new();
        for flags in [
            &["-gdwarf-5", "-O2"][..],
            &["-gdwarf-4"],
            &["-gdwarf-5", "-gz=zlib"],
            &["-gdwarf-4", "-gz=zlib-gnu"],
        ] {
            let workshop = Workshop::new();
            let program = build(&workshop, flags);
            let work = work(&workshop, "program");
            seeds.push(Seed::new(program.clone(), program, work));
            workshops.push(workshop);
        }
        workshops.extend([
            zstandard(&mut seeds),
            separate(&mut seeds),
            compressed_symbols(&mut seeds),
        ]);
        workshops.push(packed_relocations(&mut seeds));
        Self { seeds, _workshops: workshops }
    }

    /// The execution of that number, on whatever machine; how many source lines were reported.
    fn run(&self, number: u64) -> usize {
        let mut random = Random::of(number);
        let told = if random.below(16) == 0 { other_machines(&mut random) } else { 0 };
        told + self.seeds[random.below(self.seeds.len())].run(&mut random)
    }
}

fn zstandard(seeds: &mut Vec<Seed>) -> Workshop {
    let workshop = Workshop::new();
    build(&workshop, &["-gdwarf-5"]);
    let work = work(&workshop, "program");
    workshop.tool("objcopy", &["--compress-debug-sections=zstd", "program", "packed"]);
    seeds.push(Seed::new(workshop.path("packed"), workshop.path("packed"), work));
    workshop
}

/// A stripped program, its debug file, and the file that both would share with others.
fn separate(seeds: &mut Vec<Seed>) -> Workshop {
    let workshop = Workshop::new();
    build(&workshop, &["-gdwarf-5"]);
    let work = work(&workshop, "program");
    let id = workshop.build_id("program");
    let id: Vec<u8> = (0..id.len() / 2)
        .map(|at| u8::from_str_radix(&id[2 * at..2 * at + 2], 16).unwrap())
        .collect();
    write(workshop.path("alt"), [&b"shared.debug\0"[..], &id].concat()).unwrap();
    workshop.tool("objcopy", &["--only-keep-debug", "program", "shared.debug"]);
    let link = "--add-section=.gnu_debugaltlink=alt";
    workshop.tool("objcopy", &["--only-keep-debug", link, "program", "program.debug"]);
    workshop.tool(
        "objcopy",
        &["--strip-all", "--add-gnu-debuglink=program.debug", "program", "stripped"],
    );
    for name in ["program.debug", "shared.debug", "stripped"] {
        seeds.push(Seed::new(workshop.path("stripped"), workshop.path(name), work));
    }
    workshop
}

fn compressed_symbols(seeds: &mut Vec<Seed>) -> Workshop {
    let workshop = Workshop::new();
    build(&workshop, &[]);
    let work = work(&workshop, "program");
    workshop.tool("objcopy", &["--strip-debug", "--only-keep-debug", "program", "mini"]);
    workshop.tool("objcopy", &["-S", "program", "stripped"]);
    // Without a checksum, so that changes are looked at.
    workshop.tool("xz", &["--check=none", "mini"]);
    workshop.tool("objcopy", &["--add-section", ".gnu_debugdata=mini.xz", "stripped", "carries"]);
    seeds.push(Seed::new(workshop.path("carries"), workshop.path("carries"), work));
    workshop
}

/// A program that calls others through words that it may not change, and has few bytes besides.
fn packed_relocations(seeds: &mut Vec<Seed>) -> Workshop {
    let workshop = Workshop::new();
    build(&workshop, &["-pie", "-Wl,-z,now,-z,pack-relative-relocs"]);
    let work = work(&workshop, "program");
    workshop.tool("strip", &["--strip-debug", "program"]);
    seeds.push(Seed::new(workshop.path("program"), workshop.path("program"), work));
    workshop
}

/// Headers of 32 bits, and with the highest byte first.
fn other_machines(random: &mut Random) -> usize {
    let mut file = Handmade::new(random.below(2) == 0, random.below(2) == 0);
    file.build_id = vec![7; random.below(24)];
    file.symbol("a", (1, 2), 0x10, 0x20);
    file.symbol("b", (0, 10), 0x18, random.next() >> random.below(64));
    let mut bytes = file.build();
    for _ in 0..=random.below(4) {
        random.change(&mut bytes);
    }
    kept(&bytes, random);
    use_all(&bytes).map_or(0, |(procedures, _)| usize::from(procedures.len() == usize::MAX))
}

/// Says which execution it was that panicked.
struct Running(u64);

impl Drop for Running {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("that was execution {}: {FIRST}={} does it again", self.0, self.0);
        }
    }
}

/// CPU time of this thread.
fn cpu() -> Duration {
    let text = read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
}

fn highest_memory_kib() -> u64 {
    let text = read_to_string(Path::new("/proc/self/status")).unwrap();
    let line = text.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn broken_programs_break_nothing() {
    let fuzzer = Fuzzer::new();
    let told: usize = (0..2000).map(|number| usize::from(fuzzer.run(number) > 0)).sum();
    assert!(told > 500, "{told}: what is changed so much tests nothing but headers");
}

#[test]
#[ignore = "runs for as long as IMAGE_FUZZ_S says, a minute without"]
fn fuzz_for_long() {
    let variable = |name| std::env::var(name).ok().map(|number| number.parse::<u64>().unwrap());
    let seconds = variable(SECONDS).unwrap_or(60);
    let first = variable(FIRST).unwrap_or_else(|| u64::from(std::process::id()) << 40);
    let (fuzzer, started) = (Fuzzer::new(), Instant::now());
    let (mut executions, mut told, mut slowest) = (0, 0, (Duration::ZERO, 0));
    while started.elapsed() < Duration::from_secs(seconds) {
        let number = Running(first + executions);
        let before = cpu();
        told += u64::from(fuzzer.run(number.0) > 0);
        slowest = slowest.max((cpu() - before, number.0));
        assert!(slowest.0 < CPU_MAX, "took {} s", slowest.0.as_secs_f64());
        executions += 1;
    }
    let memory = highest_memory_kib();
    println!(
        "{executions} executions in {seconds} s from {first}, {told} of them with source lines: no finding; the slowest ({}) took {} ms of CPU, at most {memory} KiB of memory",
        slowest.1,
        slowest.0.as_millis()
    );
    assert!(told > 0 && memory < MEMORY_MAX_KIB);
}
