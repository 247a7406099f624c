//! `bench walks --callgrind`: the error of dcpid's branch probabilities, against callgrind, which
//! counts every execution.
//!
//! Each program is run repeatedly, with one input, under dcpid at its highest rate of snapshots,
//! until the program's images have as many samples as were asked for; each sample of user code is
//! also a snapshot. Edges are those of the database, as `dcpi cat --edges` prints them. The
//! truth is one run with the same input under callgrind. Both run the same code: the C library is
//! configured not to use instructions that valgrind lacks. The C library and the loader, which all
//! processes share, are not compared, because edges are counted per image and not per process.
//!
//! Addresses differ from run to run, and so do branches that depend on them (Python's allocator
//! asks whether an address is in its arenas).

use super::profilers::{build, client, start_dcpid};
use super::repeatable::{self, Program};
use super::{FOLDER, machine, require_root};
use crate::packages;
use crate::process::{command, output};
use anyhow::{Context as _, bail, ensure};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::path::Path;
use std::time::Duration;
use wire::Request;

/// Most snapshots that dcpid takes per second, on all CPUs together.
const SNAPSHOTS_PER_S: usize = 4000;
/// Time for which a program is run before the samples in the database are counted.
const ROUND: Duration = Duration::from_secs(20);
/// Most rounds of a program: on a busy machine it may never reach the number of samples.
const ROUNDS_MAX: u32 = 40;
/// Prefixes of the names of images that all processes use.
const EVERYBODYS: [&str; 4] = ["libc.so", "libm.so", "ld-linux", "libpthread.so"];
/// Largest error of p(taken) that passes: the mean over a program's branches, weighted by
/// executions, then the mean over programs.
const ERROR_MAX: f64 = 0.03;

/// Executions of a conditional branch: all of them, and those that took it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Count {
    all: f64,
    taken: f64,
}

impl Count {
    fn p(self) -> f64 {
        self.taken / self.all
    }
}

/// A branch: its image's name, and its offset in the file.
type Branch = (String, u64);

/// The code of an image: its loadable segments, and its conditional branches by address, each with
/// the address of the next instruction.
struct Code {
    /// Segments: offset in the file, address, bytes.
    pieces: Vec<(u64, u64, u64)>,
    conditional: BTreeMap<u64, u64>,
}

/// Measures, and prints a line for each program. Returns whether the error is within [`ERROR_MAX`].
pub fn run(snapshots: u64) -> anyhow::Result<bool> {
    require_root("walks --callgrind")?;
    packages::ensure(&packages::CALLGRIND)?;
    let folder = format!("{FOLDER}/branches");
    fs::create_dir_all(&folder).with_context(|| format!("creating {folder}"))?;
    build(&folder, &["dcpid", "dcpi"])?;
    println!(
        "{:<8} {:>9} {:>8} {:>8} {:>7} {:>8} {:>7} {:>7}",
        "program", "snapshots", "yielding", "branches", "scored", "seen", "error", "chance"
    );
    let (mut sum, programs) = (0.0, repeatable::programs(&folder)?);
    for program in &programs {
        let mut codes = HashMap::new();
        let (truth, executed) = counted(program, &folder, &mut codes)?;
        let (sampled, seen) = sampled(program, &folder, snapshots, &truth, &codes)?;
        let fit = fit(&truth, &sampled);
        let scored: f64 = truth.values().map(|count| count.all).sum();
        println!(
            "{:<8} {:>9.0} {:>7.1}% {:>8} {:>6.1}% {:>7.1}% {:>7.4} {:>7.4}",
            program.name,
            seen.snapshots,
            100.0 * seen.yielding,
            truth.len(),
            100.0 * scored / executed,
            100.0 * fit.seen,
            fit.error,
            fit.chance
        );
        sum += fit.error;
    }
    let mean = sum / programs.len() as f64;
    println!("yielding: of all snapshots taken meanwhile, also those of other programs");
    println!("mean error of p(taken), weighted by executions: {mean:.4}, at most {ERROR_MAX}");
    Ok(mean <= ERROR_MAX)
}

/// Runs the program under callgrind. Returns the counts of branches in scored images, and the
/// executions of all conditional branches.
fn counted(
    program: &Program,
    folder: &str,
    codes: &mut HashMap<String, Code>,
) -> anyhow::Result<(HashMap<Branch, Count>, f64)> {
    let out = format!("{folder}/callgrind.out");
    let arguments = "--tool=callgrind --dump-instr=yes --collect-jumps=yes --compress-pos=no --compress-strings=no";
    let valgrind: Vec<String> = format!("valgrind {arguments} --callgrind-out-file={out}")
        .split(' ')
        .map(str::to_owned)
        .collect();
    let status = program.under(&valgrind).status().context("starting valgrind")?;
    ensure!(status.success(), "valgrind {}: {status}", program.name);
    let text = fs::read_to_string(&out).with_context(|| format!("reading {out}"))?;
    let counts = parse(&text, |object| match codes.entry(object.to_owned()) {
        std::collections::hash_map::Entry::Occupied(known) => Ok(known.get().conditional.clone()),
        std::collections::hash_map::Entry::Vacant(place) => {
            Ok(place.insert(Code::of(object)?).conditional.clone())
        }
    })?;
    let executed = counts.values().map(|count| count.all).sum();
    let mut truth = HashMap::new();
    for ((object, address), count) in counts {
        let name = file_name(&object);
        if count.all > 0.0 && !EVERYBODYS.iter().any(|everybodys| name.starts_with(everybodys)) {
            let offset = codes.get(&object).and_then(|code| code.offset(address));
            truth.insert((name, offset.context("callgrind counts what is in no file")?), count);
        }
    }
    Ok((truth, executed))
}

/// The conditional branches of callgrind's output (its manual, "Callgrind Format"), by object and
/// address in the object's file; `conditional` gives those of an object. Executions are the
/// instruction's own; `jcnd` is there for branches that were taken, and only of them.
fn parse(
    text: &str,
    mut conditional: impl FnMut(&str) -> anyhow::Result<BTreeMap<u64, u64>>,
) -> anyhow::Result<HashMap<(String, u64), Count>> {
    let mut counts: HashMap<(String, u64), Count> = HashMap::new();
    let (mut object, mut branches) = (String::new(), BTreeMap::new());
    // Set by a line about a jump or a call. The next line of costs then belongs to the target, not
    // to the instruction; a conditional jump's line holds the number of times that it was taken.
    let mut jumped: Option<f64> = None;
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("ob=") {
            if name != object {
                name.clone_into(&mut object);
                let is_file = object.starts_with('/') && !object.contains("valgrind");
                branches = if is_file { conditional(&object)? } else { BTreeMap::new() };
            }
        } else if let Some(rest) = line.strip_prefix("jcnd=") {
            jumped = rest.split('/').next().and_then(|taken| taken.parse().ok());
        } else if line.starts_with("jump=") || line.starts_with("calls=") {
            jumped = Some(0.0);
        } else if let Some(rest) = line.strip_prefix("0x") {
            let mut words = rest.split_whitespace();
            let address = words.next().and_then(|word| u64::from_str_radix(word, 16).ok());
            let cost: f64 = words.nth(1).and_then(|word| word.parse().ok()).unwrap_or(0.0);
            let taken = jumped.take();
            if let Some(address) = address.filter(|address| branches.contains_key(address)) {
                let count = counts.entry((object.clone(), address)).or_default();
                match taken {
                    Some(taken) => count.taken += taken,
                    None => count.all += cost,
                }
            }
        }
    }
    Ok(counts)
}

impl Code {
    fn of(path: &str) -> anyhow::Result<Self> {
        let headers = output(&mut command(&format!("readelf -lW {path}")))?;
        let listed = output(&mut command(&format!("objdump -d --no-show-raw-insn {path}")))?;
        Ok(Self { pieces: pieces(&headers), conditional: conditional(&listed) })
    }

    fn offset(&self, address: u64) -> Option<u64> {
        let piece =
            self.pieces.iter().find(|(_, begin, len)| (*begin..begin + len).contains(&address));
        piece.map(|(offset, begin, _)| address - begin + offset)
    }

    fn address(&self, offset: u64) -> Option<u64> {
        let piece =
            self.pieces.iter().find(|(begin, _, len)| (*begin..begin + len).contains(&offset));
        piece.map(|(begin, address, _)| offset - begin + address)
    }
}

/// The segments in the output of readelf: `LOAD 0xOFFSET 0xADDRESS 0xPHYSICAL 0xBYTES ...`.
fn pieces(headers: &str) -> Vec<(u64, u64, u64)> {
    let piece = |line: &str| {
        let words = line.trim().strip_prefix("LOAD")?.split_whitespace();
        let mut numbers =
            words.map_while(|word| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok());
        let (offset, address) = (numbers.next()?, numbers.next()?);
        Some((offset, address, numbers.nth(1)?))
    };
    headers.lines().filter_map(piece).collect()
}

/// The conditional branches in a listing of objdump, whose lines are `  ADDRESS:\tINSTRUCTION`.
fn conditional(listed: &str) -> BTreeMap<u64, u64> {
    let line = |line: &str| {
        let (address, text) = line.trim_start().split_once(":\t")?;
        let mnemonic = text.split_whitespace().find(|word| !matches!(*word, "bnd" | "notrack"))?;
        let is_conditional = mnemonic.starts_with("loop")
            || mnemonic.starts_with('j') && !mnemonic.starts_with("jmp");
        Some((u64::from_str_radix(address, 16).ok()?, is_conditional))
    };
    let lines: Vec<(u64, bool)> = listed.lines().filter_map(line).collect();
    let with_next = lines.iter().zip(lines.iter().skip(1));
    with_next
        .filter(|((_, is_conditional), _)| *is_conditional)
        .map(|((at, _), (next, _))| (*at, *next))
        .collect()
}

/// The snapshots of a program.
struct Seen {
    snapshots: f64,
    /// Share of all snapshots, of other programs too, from which dcpid derived an edge.
    yielding: f64,
}

/// Runs the program until its images have `snapshots` samples, and reads the edges of the database.
fn sampled(
    program: &Program,
    folder: &str,
    snapshots: u64,
    truth: &HashMap<Branch, Count>,
    codes: &HashMap<String, Code>,
) -> anyhow::Result<(HashMap<Branch, Count>, Seen)> {
    // One snapshot with each sample.
    let rate = (SNAPSHOTS_PER_S / machine::cpus()).max(1);
    let dcpid = start_dcpid(
        folder,
        &format!("--event cpu-clock@{rate} --edges {rate} --overhead-budget off --code-store off"),
    )?;
    let codes: HashMap<String, &Code> =
        codes.iter().map(|(path, code)| (file_name(path), code)).collect();
    let images: HashSet<&str> = truth.keys().map(|(image, _)| image.as_str()).collect();
    let cat = |arguments: &str| {
        output(&mut command(&format!(
            "{folder}/dcpi cat --db {folder}/db --format csv {arguments}"
        )))
    };
    let mut rounds = 0;
    let (samples, status) = loop {
        program.run_for(ROUND)?;
        client(folder).ask(&Request::Flush)?;
        let status = client(folder).status()?;
        let samples: f64 =
            rows(&cat("")?).filter(|row| images.contains(row.image)).map(|row| row.count).sum();
        rounds += 1;
        if samples >= snapshots as f64 || rounds >= ROUNDS_MAX {
            break (samples, status);
        }
    };
    drop(dcpid);
    let edges = status.edges.unwrap_or_default();
    let (taken, dropped) = (edges.taken as f64, edges.dropped as f64);
    if taken == 0.0 {
        bail!("dcpid took no snapshots; its log: {folder}/dcpid.log");
    }
    let seen = Seen {
        snapshots: samples * taken / (taken + dropped),
        yielding: edges.fruitful as f64 / taken,
    };
    let mut counts: HashMap<Branch, Count> = HashMap::new();
    for row in rows(&cat("--edges")?) {
        let branch = (row.image.to_owned(), row.from);
        let (true, Some(code)) = (truth.contains_key(&branch), codes.get(row.image)) else {
            continue;
        };
        let next = code.address(row.from).and_then(|address| code.conditional.get(&address));
        let count = counts.entry(branch).or_default();
        count.all += row.count;
        if next.copied() != code.address(row.to) {
            count.taken += row.count;
        }
    }
    Ok((counts, seen))
}

/// A line of `dcpi cat --format csv`.
struct Row<'a> {
    image: &'a str,
    from: u64,
    /// Target of the edge; 0 where the line counts samples.
    to: u64,
    count: f64,
}

/// `image,image_id,event,offset,count` or `image,image_id,from,to,count`.
fn rows(csv: &str) -> impl Iterator<Item = Row<'_>> {
    csv.lines().filter_map(|line| {
        let hex = |word: &str| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok();
        let mut words = line.rsplit(',');
        let (count, last, before) =
            (words.next()?.parse().ok()?, hex(words.next()?)?, words.next()?);
        let image = words.nth(1)?;
        Some(match hex(before) {
            Some(from) => Row { image, from, to: last, count },
            None => Row { image, from: last, to: 0, count },
        })
    })
}

/// The accuracy of a program's branch probabilities.
struct Fit {
    /// Mean error of p(taken), weighted by executions.
    error: f64,
    /// The mean error that independent, unbiased draws would have: chance alone.
    chance: f64,
    /// Share of all executions whose branches have an edge.
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
            // The mean distance of a normal distribution from its middle is sqrt(2/pi) standard
            // deviations.
            chance +=
                count.all * (std::f64::consts::FRAC_2_PI * p * (1.0 - p) / estimate.all).sqrt();
        }
    }
    Fit { error: error / seen, chance: chance / seen, seen: seen / all }
}

fn file_name(path: &str) -> String {
    let real = fs::canonicalize(path).unwrap_or_else(|_| path.into());
    Path::new(&real)
        .file_name()
        .map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executions_are_the_instructions_own() {
        // Never taken in one block, always in the other; a call's cost is not its own.
        let text = "ob=/bin/x\nfn=f\n0x10 3 80\nfn=f\n0x10 3 80\njcnd=80/80 0x40 0 \n0x10 3 \ncalls=1 0x20 0\n0x10 3 999\n\
            jump=5 0x10 0\n0x14 3\n0x14 3 7\nob=/lib/valgrind/y\n0x10 3 5\n";
        let counts = parse(text, |_| Ok(BTreeMap::from([(0x10, 0x12)]))).unwrap();
        assert_eq!(
            counts,
            HashMap::from([(("/bin/x".to_owned(), 0x10), Count { all: 160.0, taken: 80.0 })])
        );
    }

    #[test]
    fn branches_and_pieces_are_read() {
        let listed = "x:     file format elf64-x86-64\n\n0000000000001000 <f>:\n    1000:\tje     1010 <f+0x10>\n    1002:\tjmp    1000\n    \
            1004:\tbnd jae 1000\n    1007:\tret\n";
        assert_eq!(conditional(listed), BTreeMap::from([(0x1000, 0x1002), (0x1004, 0x1007)]));
        let headers = "  Type\n  PHDR 0x40 0x40 0x40 0x1 0x1 R 0x8\n  LOAD           0x003000 0x0000000000404000 0x0000000000404000 0x000100 0x000200 R E 0x1000\n";
        let code = Code { pieces: pieces(headers), conditional: BTreeMap::new() };
        assert_eq!((code.offset(0x40_4010), code.address(0x3010)), (Some(0x3010), Some(0x40_4010)));
        assert_eq!((code.offset(0x40_4100), code.address(0x3100)), (None, None));
    }

    #[test]
    fn rows_of_samples_and_of_edges() {
        let of = |line| {
            rows(line)
                .map(|row| (row.image.to_owned(), row.from, row.to, row.count))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            of("image,image_id,from,to,count\nx,ab,0x10,0x20,7\n"),
            [("x".to_owned(), 0x10, 0x20, 7.0)]
        );
        assert_eq!(
            of("image,image_id,event,offset,count\nx,ab,cpu-clock,0x10,7\n"),
            [("x".to_owned(), 0x10, 0, 7.0)]
        );
    }

    #[test]
    fn errors_weigh_by_executions() {
        let branch = |at| ("x".to_owned(), at);
        let truth = HashMap::from([
            (branch(1), Count { all: 90.0, taken: 45.0 }),
            (branch(2), Count { all: 10.0, taken: 0.0 }),
            (branch(3), Count { all: 100.0, taken: 1.0 }),
        ]);
        let sampled = HashMap::from([
            (branch(1), Count { all: 4.0, taken: 2.0 }),
            (branch(2), Count { all: 2.0, taken: 1.0 }),
        ]);
        let fit = fit(&truth, &sampled);
        assert!(
            (fit.error - 0.05).abs() < 1e-9 && (fit.seen - 0.5).abs() < 1e-9,
            "{} {}",
            fit.error,
            fit.seen
        );
    }
}
