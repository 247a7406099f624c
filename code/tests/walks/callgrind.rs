//! How well walks from samples tell how often branches are taken: against callgrind, which counts them all.

use std::collections::HashMap;
use std::path::Path;
use std::process::{Command, Stdio};

use code::interpret::{BranchKind, Walker};
use code::isa::x86_64::{State, X86_64};
use code::isa::{Isa, Syntax};
use fastrand::Rng;
use image::{Layout, Vaddr};

use crate::process::general;
use crate::programs::Program;
use crate::truth;
use crate::view::Files;

/// Microseconds between samples. After an interruption caches are cold for a while: what is sampled then is not what the program does.
const APART: std::ops::Range<u64> = 300..1700;

/// How often a conditional branch was executed, and taken.
#[derive(Copy, Clone, Debug, Default)]
struct Count {
    all: f64,
    taken: f64,
}

impl Count {
    fn p(self) -> f64 {
        self.taken / self.all
    }
}

/// A branch: its file, and its address there.
type Branch = (String, u64);

/// What callgrind counts in one run: for each object its branches by address, and where each goes.
fn counted(program: &Program, folder: &Path) -> HashMap<String, HashMap<(u64, u64), Count>> {
    let out = folder.join("callgrind");
    let native = program.command();
    let status = Command::new("valgrind")
        .args([
            "--tool=callgrind",
            "--dump-instr=yes",
            "--collect-jumps=yes",
            "--compress-pos=no",
            "--compress-strings=no",
        ])
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(native.get_program())
        .args(native.get_args())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .expect("valgrind");
    assert!(status.success(), "valgrind {}: {status}", program.name);
    let mut objects: HashMap<String, HashMap<(u64, u64), Count>> = HashMap::new();
    let mut object = String::new();
    let mut pending = None;
    let hex = |text: Option<&str>| u64::from_str_radix(text?.strip_prefix("0x")?, 16).ok();
    // "jcnd=TAKEN/EXECUTED TARGET", and the line after it begins with the branch's address (callgrind's manual, "Callgrind Format").
    for line in std::fs::read_to_string(&out).unwrap().lines() {
        if let Some(name) = line.strip_prefix("ob=") {
            name.clone_into(&mut object);
        } else if let Some(rest) = line.strip_prefix("jcnd=") {
            let mut words = rest.split_whitespace();
            let counts = words.next().and_then(|counts| counts.split_once('/'));
            let counts = counts.and_then(|(taken, all)| Some((taken.parse::<f64>().ok()?, all.parse::<f64>().ok()?)));
            pending = counts.zip(hex(words.next()));
        } else if let Some(((taken, all), target)) = pending.take()
            && let Some(source) = hex(line.split_whitespace().next())
        {
            let count = objects.entry(object.clone()).or_default().entry((source, target)).or_default();
            count.all += all;
            count.taken += taken;
        }
    }
    objects
}

/// The same by addresses in files. Where an object was is found by laying its branches over those of the file.
fn in_files(objects: HashMap<String, HashMap<(u64, u64), Count>>) -> HashMap<Branch, Count> {
    let total: f64 = objects.values().flat_map(HashMap::values).map(|count| count.all).sum();
    let mut found = HashMap::new();
    for (path, branches) in objects {
        let executed: f64 = branches.values().map(|count| count.all).sum();
        // What hardly matters, and what callgrind did not run as it is natively: the loader, and the C library that chooses by processor.
        let is_library = ["libc.so", "libc-2", "ld-linux", "ld-2", "libm.so"].iter().any(|name| path.contains(name));
        let Some(bytes) = std::fs::read(&path).ok().filter(|_| executed > total * 0.02 && !is_library) else {
            continue;
        };
        let layout = Layout::of(&bytes).unwrap();
        let mut by_shape: HashMap<(u64, u64), Vec<u64>> = HashMap::new();
        for segment in layout.segments().iter().filter(|segment| segment.executable) {
            let code = &bytes[segment.offset.0 as usize..][..segment.file_size_bytes as usize];
            for line in Isa::X86_64.disassemble(code, segment.vaddr, Syntax::Intel) {
                if let Some(target) =
                    line.target.filter(|_| line.text.starts_with('j') && !line.text.starts_with("jmp"))
                {
                    let shape = (line.address.0 & 4095, target.0.wrapping_sub(line.address.0));
                    by_shape.entry(shape).or_default().push(line.address.0);
                }
            }
        }
        let shape = |&(source, target): &(u64, u64)| (source & 4095, target.wrapping_sub(source));
        let mut votes: HashMap<u64, u64> = HashMap::new();
        for branch in branches.keys() {
            for address in by_shape.get(&shape(branch)).into_iter().flatten() {
                *votes.entry(branch.0.wrapping_sub(*address)).or_default() += 1;
            }
        }
        let Some((&distance, &agreeing)) = votes.iter().max_by_key(|(_, votes)| **votes) else { continue };
        assert!(agreeing * 2 > branches.len() as u64, "{path}: {agreeing} of {} branches are found", branches.len());
        let real = std::fs::canonicalize(&path).unwrap().to_str().unwrap().to_owned();
        for ((source, target), count) in branches {
            let address = source.wrapping_sub(distance);
            if by_shape.get(&shape(&(source, target))).is_some_and(|addresses| addresses.contains(&address)) {
                let sum: &mut Count = found.entry((real.clone(), address)).or_default();
                sum.all += count.all;
                sum.taken += count.taken;
            }
        }
    }
    found
}

/// What walks from samples say: of all branches met, and of those that are the first met.
struct Sampled {
    samples: u64,
    yielding: u64,
    all: HashMap<Branch, Count>,
    first: HashMap<Branch, Count>,
}

fn sampled(program: &Program, samples: u64) -> Sampled {
    let mut sampled = Sampled { samples: 0, yielding: 0, all: HashMap::new(), first: HashMap::new() };
    let mut files = Files::default();
    let mut walker = Walker::<X86_64>::new(1 << 14);
    let mut random = Rng::with_seed(1);
    while sampled.samples < samples {
        truth::interrupt(program, &mut files, &mut random, APART, |traced, registers, view| {
            let stack = truth::stack(traced, &registers);
            let state = State::sampled(general(&registers), registers.eflags);
            let (edges, _) = walker.walk(Vaddr(registers.rip), state, truth::window(&registers, &stack), view);
            sampled.samples += 1;
            sampled.yielding += u64::from(edges.iter().any(|edge| edge.kind.depends()));
            for (index, edge) in edges
                .iter()
                .enumerate()
                .filter(|(_, edge)| matches!(edge.kind, BranchKind::Taken | BranchKind::NotTaken))
            {
                let Some((path, at)) = view.in_file(edge.from) else { continue };
                let of_orders = if index == 0 {
                    &mut [&mut sampled.all, &mut sampled.first][..]
                } else {
                    &mut [&mut sampled.all][..]
                };
                for counts in of_orders {
                    let count = counts.entry((path.to_owned(), at.0)).or_default();
                    count.all += 1.0;
                    count.taken += f64::from(u8::from(edge.kind == BranchKind::Taken));
                }
            }
            sampled.samples < samples
        });
    }
    sampled
}

/// How good the probabilities are.
struct Fit {
    /// The mean error, weighted by executions.
    error: f64,
    /// What it would be if each branch met were a draw of its own and without bias: chance alone.
    chance: f64,
    /// The part of all executions whose branches were met at all.
    seen: f64,
}

fn fit(truth: &HashMap<Branch, Count>, sampled: &HashMap<Branch, Count>) -> Fit {
    let (mut error, mut chance, mut seen, mut all) = (0.0, 0.0, 0.0, 0.0);
    for (branch, count) in truth {
        all += count.all;
        if let Some(estimate) = sampled.get(branch) {
            let p = count.p();
            seen += count.all;
            error += count.all * (estimate.p() - p).abs();
            // The mean distance of a normal distribution from its middle is sqrt(2/pi) standard deviations.
            chance += count.all * (std::f64::consts::FRAC_2_PI * p * (1.0 - p) / estimate.all).sqrt();
        }
    }
    Fit { error: error / seen, chance: chance / seen, seen: seen / all }
}

pub fn compare(program: &Program, folder: &Path, samples: u64) -> (String, f64) {
    let truth = in_files(counted(program, folder));
    let sampled = sampled(program, samples);
    let (all, first) = (fit(&truth, &sampled.all), fit(&truth, &sampled.first));
    let row = format!(
        "{:<10} {:>8}  {:>7.1}%  {:>8}  {:>6.1}%  {:>6.4}  {:>6.4}  {:>7.1}%  {:>9.4}",
        program.name,
        sampled.samples,
        100.0 * sampled.yielding as f64 / sampled.samples as f64,
        truth.len(),
        100.0 * all.seen,
        all.error,
        all.chance,
        100.0 * first.seen,
        first.error
    );
    (row, all.error)
}

pub const HEADER: &str = "program     samples  yielding  branches     seen   error  chance  seen 1st  error 1st";
