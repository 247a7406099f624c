//! Graphs against what programs do: callgrind counts every instruction, every jump and every call.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::process::{Command, Stdio};

use code::cfg::{Cfg, Edge, Ending, Entered, To};
use image::Vaddr;

use super::program::Program;
use super::programs;

/// What was executed of an object, in the process's addresses.
#[derive(Default)]
pub struct Executed {
    /// How often each instruction was, and each jump was taken. Not told by qemu: once.
    pub instructions: BTreeMap<u64, u64>,
    pub jumps: BTreeMap<(u64, u64), u64>,
    /// Places that were called, or jumped to from another procedure, and how often. None if that is
    /// not known.
    pub entered: Option<HashMap<u64, u64>>,
}

impl Executed {
    /// Of a program's code, in the file's addresses.
    fn moved(&self, distance: u64, program: &Program, is_jump: impl Fn(u64) -> bool) -> Self {
        let text = program.text();
        let within = |at: u64| {
            text.iter().any(|part| at.wrapping_sub(part.begin.0) < part.bytes.len() as u64)
        };
        let moved = |at: u64| at.wrapping_sub(distance);
        let instructions = self.instructions.iter().map(|(&at, &count)| (moved(at), count));
        let jumps =
            self.jumps.iter().map(|(&(from, to), &count)| ((moved(from), moved(to)), count));
        Self {
            instructions: instructions.filter(|(at, _)| within(*at)).collect(),
            jumps: jumps.filter(|((from, _), _)| within(*from) && is_jump(*from)).collect(),
            entered: self
                .entered
                .as_ref()
                .map(|all| all.iter().map(|(&at, &count)| (moved(at), count)).collect()),
        }
    }
}

/// What callgrind saw, by object. Addresses are the object's own.
fn executed(program: &programs::Program, folder: &Path) -> HashMap<String, Executed> {
    let out = folder.join("callgrind");
    let native = program.command();
    let arguments =
        ["--tool=callgrind", "--dump-instr=yes", "--collect-jumps=yes", "--compress-pos=no"];
    let status = Command::new("valgrind")
        .args(arguments)
        // Else what stubs cost is added to calls.
        .args(["--compress-strings=no", "--skip-plt=no"])
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(native.get_program())
        .args(native.get_args())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .expect("valgrind");
    assert!(status.success(), "valgrind {}: {status}", program.name);
    read(&std::fs::read_to_string(&out).unwrap())
}

/// "jump=COUNT TARGET" and "jcnd=TAKEN/EXECUTED TARGET": the line after begins with the jump's
/// address; "calls=COUNT TARGET": that line has the call's address and what the call cost with all
/// in it; other lines that begin with an address are costs ("Callgrind Format", in callgrind's
/// manual).
fn read(text: &str) -> HashMap<String, Executed> {
    let hex = |text: Option<&str>| u64::from_str_radix(text?.strip_prefix("0x")?, 16).ok();
    let mut objects: HashMap<String, Executed> = HashMap::new();
    let (mut object, mut called) = (String::new(), None);
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(name) = line.strip_prefix("ob=") {
            name.clone_into(&mut object);
        } else if let Some(name) = line.strip_prefix("cob=") {
            called = Some(name.to_owned());
        } else if let Some(rest) = line.strip_prefix("calls=") {
            let mut fields = rest.split_whitespace();
            let count: u64 = fields.next().unwrap().parse().unwrap();
            let target = hex(fields.next()).unwrap();
            let of = objects.entry(called.take().unwrap_or_else(|| object.clone())).or_default();
            *of.entered.get_or_insert_default().entry(target).or_default() += count;
            lines.next();
        } else if let Some(rest) = line.strip_prefix("jump=").or_else(|| line.strip_prefix("jcnd="))
        {
            let mut fields = rest.split_whitespace();
            let count: u64 = fields.next().unwrap().split('/').next().unwrap().parse().unwrap();
            let target = hex(fields.next()).unwrap();
            let from = hex(lines.next().unwrap().split_whitespace().next()).unwrap();
            if count > 0 {
                *objects
                    .entry(object.clone())
                    .or_default()
                    .jumps
                    .entry((from, target))
                    .or_default() += count;
            }
        } else if let Some(address) = hex(line.split_whitespace().next()) {
            let count: u64 = line.split_whitespace().nth(2).unwrap().parse().unwrap();
            *objects.entry(object.clone()).or_default().instructions.entry(address).or_default() +=
                count;
        }
    }
    objects
}

/// How graphs and execution agree.
#[derive(Default, Debug)]
pub struct Agreement {
    instructions: usize,
    pub jumps: usize,
    /// Indirect jumps to places inside of their procedure, by whether all their targets are known.
    resolved: usize,
    unresolved: usize,
    /// Jumps whose block says that it may go elsewhere than its edges.
    incomplete: usize,
    /// Instructions in no procedure.
    nameless: usize,
    /// Blocks that nothing leads to, in a file that has landing pads of exceptions.
    pads: Vec<u64>,
    pub wrong: Vec<String>,
}

/// The section that says where landing pads are.
const TABLE_OF_PADS: &[u8] = b".gcc_except_table";

pub const TITLE: &str = "program    object                            instructions   jumps  resolved  unresolved  nameless  pads  wrong";

impl Agreement {
    pub fn print(&self, program: &str, object: &str) {
        println!(
            "{program:10} {object:32} {:13} {:7} {:9} {:11} {:9} {:5} {:6}",
            self.instructions,
            self.jumps,
            self.resolved,
            self.unresolved,
            self.nameless,
            self.pads.len(),
            self.wrong.len()
        );
        if std::env::var("GRAPHS_VERBOSE").is_ok() {
            println!("{:x?} {:#?}", self.pads, self.wrong);
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
    for (from, to) in executed.jumps.keys() {
        for at in shapes.get(&(from & 4095, to.wrapping_sub(*from))).into_iter().flatten() {
            *votes.entry(from.wrapping_sub(*at)).or_default() += 1;
        }
    }
    votes.into_iter().max_by_key(|(_, votes)| *votes).map(|(distance, _)| distance)
}

/// A block, and the graph that has it.
type Place<'a> = (&'a Cfg, usize);

/// Where blocks are, by their instructions.
struct Graphs<'a> {
    instructions: HashMap<u64, Place<'a>>,
    lasts: HashMap<u64, Place<'a>>,
}

impl<'a> Graphs<'a> {
    fn of(graphs: &'a [Cfg]) -> Self {
        let mut this = Self { instructions: HashMap::new(), lasts: HashMap::new() };
        for place in graphs
            .iter()
            .flat_map(|graph| (0..graph.blocks().len()).map(move |number| (graph, number)))
        {
            let (graph, number) = place;
            this.lasts.insert(graph.blocks()[number].last.0, place);
            this.instructions.extend(graph.instructions(number).map(|at| (at.0, place)));
        }
        this
    }
}

fn edges<'a>((graph, number): Place<'a>) -> &'a [Edge] {
    &graph.edges()[graph.out_of(number)]
}

/// Where an edge goes.
fn goal(graph: &Cfg, edge: &Edge) -> Option<u64> {
    match edge.to {
        To::Block(block) => Some(graph.blocks()[block].start.0),
        To::Outside(Vaddr(address)) => Some(address),
        _ => None,
    }
}

/// `is_jump`: whether the instruction at an address of the file jumps, if execution goes on
/// elsewhere after it.
pub fn compare(
    program: &Program,
    executed: &Executed,
    is_jump: impl Fn(u64) -> bool,
) -> Option<Agreement> {
    let numbers = 0..program.procedures.len();
    let all: Vec<Cfg> = numbers.map(|number| program.graph(&program.parts(number), &[])).collect();
    let graphs = Graphs::of(&all);
    let known = graphs.lasts.iter().flat_map(|(&at, &place)| {
        edges(place).iter().filter_map(move |edge| Some((at, goal(place.0, edge)?)))
    });
    let executed = executed.moved(distance(executed, known)?, program, is_jump);
    let mut found = Agreement {
        instructions: executed.instructions.len(),
        jumps: executed.jumps.len(),
        ..Agreement::default()
    };
    // Start-up code of the C library's objects has neither symbols nor unwind entries.
    let ranges = program.ranges();
    let in_procedure = |at: u64| ranges.iter().any(|range| range.contains(&at));
    let mut blocks: Vec<Place<'_>> = Vec::new();
    for &at in executed.instructions.keys() {
        match graphs.instructions.get(&at) {
            Some(&(graph, number)) => {
                let block = &graph.blocks()[number];
                if block.padding {
                    found.wrong.push(format!("{at:x} is padding"));
                }
                if block.start.0 == at {
                    blocks.push((graph, number));
                }
            }
            None if in_procedure(at) => found.wrong.push(format!("{at:x} is no instruction")),
            None => found.nameless += 1,
        }
    }
    found.jumped(&executed, &graphs, in_procedure);
    if executed.entered.is_some() {
        let has_pads =
            program.bytes.windows(TABLE_OF_PADS.len()).any(|bytes| bytes == TABLE_OF_PADS);
        found.flowed(&executed, &graphs, &blocks, has_pads);
    }
    Some(found)
}

impl Agreement {
    /// Holds jumps against edges.
    fn jumped(
        &mut self,
        executed: &Executed,
        graphs: &Graphs<'_>,
        in_procedure: impl Fn(u64) -> bool,
    ) {
        for &(from, to) in executed.jumps.keys() {
            // `rep` instructions jump to themselves, says valgrind.
            if from == to {
                continue;
            }
            let Some(&place) = graphs.lasts.get(&from) else {
                if in_procedure(from) {
                    self.wrong.push(format!("{from:x} to {to:x}: no block ends there"));
                }
                continue;
            };
            let (graph, number) = place;
            let block = &graph.blocks()[number];
            if block.ending == Ending::Indirect && graph.block_of(Vaddr(to)).is_some() {
                *if block.targets_incomplete {
                    &mut self.unresolved
                } else {
                    &mut self.resolved
                } += 1;
            }
            if edges(place).iter().any(|edge| goal(graph, edge) == Some(to)) {
                continue;
            }
            if block.targets_incomplete {
                self.incomplete += 1;
                continue;
            }
            let leaves = edges(place).iter().any(|edge| edge.to == To::Elsewhere);
            if !leaves || graph.block_of(Vaddr(to)).is_some() {
                self.wrong.push(format!("{from:x} to {to:x}: no edge"));
            }
        }
    }

    /// Holds how often each block was executed against what leads to it: where that was less, an
    /// edge is missing, or a call that is said never to return did.
    fn flowed(
        &mut self,
        executed: &Executed,
        graphs: &Graphs<'_>,
        blocks: &[Place<'_>],
        has_pads: bool,
    ) {
        let mut jumped_to: HashMap<u64, u64> = HashMap::new();
        for (&(_, to), &count) in executed.jumps.iter().filter(|((from, to), _)| from != to) {
            *jumped_to.entry(to).or_default() += count;
        }
        let entered = executed.entered.as_ref().into_iter().flatten();
        entered.for_each(|(&at, &count)| *jumped_to.entry(at).or_default() += count);
        for &(graph, number) in
            blocks.iter().filter(|(graph, number)| Some(*number) != graph.entry())
        {
            let block = &graph.blocks()[number];
            let at = block.start.0;
            let came = jumped_to.get(&at).copied().unwrap_or(0);
            let ran = executed.ran(at) - executed.jumps.get(&(at, at)).copied().unwrap_or(0);
            let fallen = graphs.fallen(executed, at);
            if ran <= came + fallen {
                // Entered from outside, then.
                continue;
            }
            // A call that is said never to return, and ran as often, returned rather than threw.
            let before = number.checked_sub(1).map(|before| &graph.blocks()[before]);
            let returned = before.is_some_and(|before| {
                before.end.0 == at
                    && before.ending == Ending::NoReturn
                    && executed.ran(before.last.0) >= ran
            });
            if has_pads && came + fallen == 0 && block.entered == Entered::Unreferenced && !returned
            {
                self.pads.push(at);
            } else {
                self.wrong.push(format!(
                    "{at:x} ran {ran} times: {came} jumps and calls, {fallen} from before"
                ));
            }
        }
    }
}

impl Executed {
    /// How often an instruction was executed.
    fn ran(&self, at: u64) -> u64 {
        self.instructions.get(&at).copied().unwrap_or(0)
    }
}

impl Graphs<'_> {
    /// How often execution went on to an address from the instruction before it. Jumps to there are
    /// no jumps for callgrind.
    fn fallen(&self, executed: &Executed, at: u64) -> u64 {
        let Some((&before, &count)) =
            executed.instructions.range(at.saturating_sub(15)..at).next_back()
        else {
            return 0;
        };
        let Some(&place) = self.instructions.get(&before) else { return count };
        let (graph, number) = place;
        let block = &graph.blocks()[number];
        if block.end.0 != at
            || block.last.0 != before
            || edges(place).iter().all(|edge| goal(graph, edge) != Some(at))
        {
            return 0;
        }
        let away = executed.jumps.range((before, 0)..=(before, u64::MAX));
        count - away.map(|(_, count)| count).sum::<u64>().min(count)
    }
}

/// Others that Debian has, with much code of their own.
fn of_debian() -> Vec<programs::Program> {
    let perl = "my %h; for (1..20000) { $h{$_ % 77} .= \"$_,\" if /[13]7?/ } print join '|', map { sprintf '%s', $h{$_} } sort keys %h";
    let bash = "for ((i=0;i<3000;i++)); do case $i in 1*) a+=x;; *2) b=${a/x/y};; esac; done; printf '%d %s\n' 3 $b | while read c; do echo $c; done";
    let text = "/usr/share/perl/5.36/perl5db.pl";
    let program =
        |name: &str, path: &str, arguments: &[&str]| programs::Program::new(name, path, arguments);
    vec![
        program("perl", "/usr/bin/perl", &["-e", perl]),
        program("bash", "/bin/bash", &["-c", bash]),
        program("grep", "/bin/grep", &["-E", "-c", "(.)[a-z]+\\1|foo(bar)*|^#.*s$", text]),
        program(
            "openssl",
            "/usr/bin/openssl",
            &[
                "req",
                "-x509",
                "-newkey",
                "rsa:1024",
                "-nodes",
                "-keyout",
                "/dev/null",
                "-subj",
                "/CN=x",
            ],
        ),
    ]
}

#[test]
#[ignore = "minutes, and needs valgrind and programs of a development machine: cargo xtask bench cfg"]
fn every_jump_that_is_executed_is_an_edge() {
    let folder = tempfile::tempdir().unwrap();
    let mut all = programs::that_are_everywhere(folder.path());
    all.extend(programs::of_a_development_machine(folder.path()));
    all.extend(of_debian());
    let (mut wrong, mut held) = (Vec::new(), 0);
    println!("{TITLE}");
    let only = std::env::var("GRAPHS_PROGRAM").ok();
    for program in
        all.iter().filter(|program| only.as_ref().is_none_or(|only| *only == program.name))
    {
        let mut objects: Vec<(String, Executed)> =
            executed(program, folder.path()).into_iter().collect();
        objects.sort_by(|a, b| a.0.cmp(&b.0));
        for (path, executed) in objects {
            let Some(image) = Program::open(Path::new(&path)).filter(|_| executed.jumps.len() > 30)
            else {
                continue;
            };
            let Some(found) = compare(&image, &executed, |_| true) else { continue };
            let name = path.rsplit('/').next().unwrap_or_default();
            found.print(&program.name, name);
            held += found.jumps;
            wrong.extend(found.wrong.into_iter().map(|text| format!("{name}: {text}")));
        }
    }
    assert!(only.is_some() || held > 50_000, "{held}");
    assert!(wrong.is_empty(), "{wrong:#?}");
}
