//! Graphs against what programs do: callgrind writes down every jump.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::process::{Command, Stdio};

use code::cfg::{Cfg, Entered, To};
use image::Vaddr;

use super::program::Program;
use super::programs;

/// What was executed of an object, in the process's addresses.
#[derive(Default)]
pub struct Executed {
    pub instructions: BTreeSet<u64>,
    pub jumps: BTreeSet<(u64, u64)>,
}

impl Executed {
    /// Of a program's code, in the file's addresses.
    fn moved(&self, distance: u64, program: &Program, is_jump: impl Fn(u64) -> bool) -> Self {
        let text = program.text();
        let within = |at: &u64| text.iter().any(|part| at.wrapping_sub(part.begin.0) < part.bytes.len() as u64);
        let jumps = self.jumps.iter().map(|(from, to)| (from.wrapping_sub(distance), to.wrapping_sub(distance)));
        Self {
            instructions: self.instructions.iter().map(|at| at.wrapping_sub(distance)).filter(within).collect(),
            jumps: jumps.filter(|(from, _)| within(from) && is_jump(*from)).collect(),
        }
    }
}

/// What callgrind saw, by object.
fn executed(program: &programs::Program, folder: &Path) -> HashMap<String, Executed> {
    let out = folder.join("callgrind");
    let native = program.command();
    let arguments =
        ["--tool=callgrind", "--dump-instr=yes", "--collect-jumps=yes", "--compress-pos=no", "--compress-strings=no"];
    let status = Command::new("valgrind")
        .args(arguments)
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(native.get_program())
        .args(native.get_args())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .expect("valgrind");
    assert!(status.success(), "valgrind {}: {status}", program.name);
    let hex = |text: Option<&str>| u64::from_str_radix(text?.strip_prefix("0x")?, 16).ok();
    let mut objects: HashMap<String, Executed> = HashMap::new();
    let mut object = String::new();
    let mut target = None;
    // "jump=COUNT TARGET" and "jcnd=TAKEN/EXECUTED TARGET": the line after begins with the jump's address (callgrind's manual, "Callgrind
    // Format"). Other lines that begin with an address are costs.
    for line in std::fs::read_to_string(&out).unwrap().lines() {
        if let Some(name) = line.strip_prefix("ob=") {
            name.clone_into(&mut object);
        } else if let Some(rest) = line.strip_prefix("jump=") {
            target = hex(rest.split_whitespace().nth(1));
        } else if let Some(rest) = line.strip_prefix("jcnd=") {
            target = hex(rest.split_whitespace().nth(1)).filter(|_| !rest.starts_with("0/"));
        } else if let Some(address) = hex(line.split_whitespace().next()) {
            let executed = objects.entry(object.clone()).or_default();
            executed.instructions.insert(address);
            executed.jumps.extend(target.take().map(|target| (address, target)));
        }
    }
    objects
}

/// How graphs and execution agree.
#[derive(Default, Debug)]
pub struct Agreement {
    instructions: usize,
    pub jumps: usize,
    /// Jumps whose block says that it may go elsewhere than its edges.
    pub incomplete: usize,
    /// Blocks that were executed although nothing leads to them, in graphs that miss no edges.
    unreferenced: Vec<u64>,
    /// Instructions in no procedure.
    nameless: usize,
    pub wrong: Vec<String>,
}

pub const TITLE: &str =
    "program    object                            instructions   jumps  incomplete  unreferenced  nameless  wrong";

impl Agreement {
    pub fn print(&self, program: &str, object: &str) {
        println!(
            "{program:10} {object:32} {:13} {:7} {:11} {:13} {:9} {:6}",
            self.instructions,
            self.jumps,
            self.incomplete,
            self.unreferenced.len(),
            self.nameless,
            self.wrong.len()
        );
        if std::env::var("GRAPHS_VERBOSE").is_ok() {
            println!("{:x?} {:#?}", self.unreferenced, self.wrong);
        }
    }
}

/// How far the object was from its file's addresses: as far as makes most jumps those of the file.
fn distance(executed: &Executed, edges: impl Iterator<Item = (u64, u64)>) -> Option<u64> {
    let mut shapes: HashMap<(u64, u64), Vec<u64>> = HashMap::new();
    for (at, to) in edges {
        shapes.entry((at & 4095, to.wrapping_sub(at))).or_default().push(at);
    }
    let mut votes: HashMap<u64, usize> = HashMap::new();
    for (from, to) in &executed.jumps {
        for at in shapes.get(&(from & 4095, to.wrapping_sub(*from))).into_iter().flatten() {
            *votes.entry(from.wrapping_sub(*at)).or_default() += 1;
        }
    }
    votes.into_iter().max_by_key(|(_, votes)| *votes).map(|(distance, _)| distance)
}

/// `is_jump`: whether the instruction at an address of the file jumps, if execution goes on elsewhere after it.
pub fn compare(program: &Program, executed: &Executed, is_jump: impl Fn(u64) -> bool) -> Option<Agreement> {
    let numbers = 0..program.procedures.len();
    let graphs: Vec<Cfg> = numbers.map(|number| program.graph(&program.parts(number), &[])).collect();
    let mut lasts = HashMap::new();
    let mut instructions = HashMap::new();
    for (graph, number) in graphs.iter().flat_map(|graph| (0..graph.blocks().len()).map(move |number| (graph, number)))
    {
        lasts.insert(graph.blocks()[number].last.0, (graph, number));
        instructions.extend(graph.instructions(number).map(|at| (at.0, (graph, number))));
    }
    let goals = |(graph, number): (&Cfg, usize)| -> Vec<u64> {
        let edges = graph.edges()[graph.out_of(number)].iter();
        edges
            .filter_map(|edge| match edge.to {
                To::Block(block) => Some(graph.blocks()[block].start.0),
                To::Outside(Vaddr(address)) => Some(address),
                _ => None,
            })
            .collect()
    };
    let all = lasts.iter().flat_map(|(&at, &block)| goals(block).into_iter().map(move |to| (at, to)));
    let distance = distance(executed, all)?;
    let executed = executed.moved(distance, program, is_jump);
    let mut found =
        Agreement { instructions: executed.instructions.len(), jumps: executed.jumps.len(), ..Agreement::default() };
    let mut blocks = BTreeSet::new();
    // Start-up code of the C library's objects has neither symbols nor unwind entries.
    let ranges = program.ranges();
    let in_procedure = |at: u64| ranges.iter().any(|range| range.contains(&at));
    for &at in &executed.instructions {
        match instructions.get(&at) {
            Some((graph, number)) => {
                let block = &graph.blocks()[*number];
                if block.padding {
                    found.wrong.push(format!("{at:x} is padding"));
                }
                if block.entered == Entered::Unreferenced && !graph.missing_edges() && blocks.insert(block.start) {
                    found.unreferenced.push(block.start.0);
                }
            }
            None if in_procedure(at) => found.wrong.push(format!("{at:x} is no instruction")),
            None => found.nameless += 1,
        }
    }
    for &(from, to) in &executed.jumps {
        // `rep` instructions jump to themselves, says valgrind.
        if from == to {
            continue;
        }
        let Some(&(graph, number)) = lasts.get(&from) else {
            if !in_procedure(from) {
                continue;
            }
            found.wrong.push(format!("{from:x} to {to:x}: no block ends there"));
            continue;
        };
        if goals((graph, number)).contains(&to) {
            continue;
        }
        if graph.blocks()[number].targets_incomplete {
            found.incomplete += 1;
        } else {
            let leaves = graph.edges()[graph.out_of(number)].iter().any(|edge| edge.to == To::Elsewhere);
            if !leaves || graph.block_of(Vaddr(to)).is_some() {
                found.wrong.push(format!("{from:x} to {to:x}: no edge"));
            }
        }
    }
    Some(found)
}

#[test]
#[ignore = "minutes, and needs valgrind and programs of a development machine: cargo xtask bench cfg"]
fn every_jump_that_is_executed_is_an_edge() {
    let folder = tempfile::tempdir().unwrap();
    let mut all = programs::that_are_everywhere(folder.path());
    all.extend(programs::of_a_development_machine(folder.path()));
    let mut wrong = Vec::new();
    println!("{TITLE}");
    let only = std::env::var("GRAPHS_PROGRAM").ok();
    for program in all.iter().filter(|program| only.as_ref().is_none_or(|only| *only == program.name)) {
        let mut objects: Vec<(String, Executed)> = executed(program, folder.path()).into_iter().collect();
        objects.sort_by(|a, b| a.0.cmp(&b.0));
        for (path, executed) in objects {
            let Some(image) = Program::open(Path::new(&path)).filter(|_| executed.jumps.len() > 30) else { continue };
            let Some(found) = compare(&image, &executed, |_| true) else { continue };
            let name = path.rsplit('/').next().unwrap_or_default();
            found.print(&program.name, name);
            wrong.extend(found.wrong.into_iter().map(|text| format!("{name}: {text}")));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
