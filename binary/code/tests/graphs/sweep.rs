//! Every procedure of everything that is installed: nothing panics, nothing takes long, and what is
//! not understood is counted.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use code::cfg::{BYTES_MAX, Cfg, Classes, EDGES_MAX, EdgeKind, Ending, Loops, To};

use super::program::Program;

/// Longest that one procedure may take, however busy the machine is: the largest take a tenth of a
/// second on an idle one.
const LONGEST: Duration = Duration::from_secs(20);

#[derive(Default)]
struct Sum {
    files: usize,
    bytes: u64,
    procedures: usize,
    blocks: usize,
    edges: usize,
    jumps: BTreeMap<&'static str, usize>,
    findings: BTreeMap<String, usize>,
    opening: Duration,
    graphs: Duration,
    slowest: (Duration, String),
    verbose: bool,
}

fn files(folder: &Path, into: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() {
            files(&entry.path(), into);
        } else if kind.is_file() {
            into.push(entry.path());
        }
    }
}

/// What became of an indirect jump.
fn fate(graph: &Cfg, block: usize) -> &'static str {
    let edges = &graph.edges()[graph.out_of(block)];
    let any = |test: fn(&code::cfg::Edge) -> bool| edges.iter().any(test);
    if any(|edge| edge.to == To::Unknown) {
        "unresolved"
    } else if any(|edge| edge.kind == EdgeKind::Case && matches!(edge.to, To::Block(_))) {
        "table"
    } else if any(|edge| edge.to == To::Elsewhere) {
        "leaves"
    } else {
        "other"
    }
}

impl Sum {
    fn add(&mut self, path: &Path) {
        let began = Instant::now();
        let Some(program) = Program::open(path) else { return };
        self.opening += began.elapsed();
        self.files += 1;
        for (number, procedure) in program.procedures.iter().enumerate() {
            let parts = program.parts(number);
            if parts.is_empty() {
                continue;
            }
            self.procedures += 1;
            self.bytes += parts.iter().map(|part| part.bytes.len() as u64).sum::<u64>();
            let began = Instant::now();
            let graph = program.graph(&parts, &[]);
            let loops = Loops::of(&graph);
            let classes = Classes::of(&graph);
            let took = began.elapsed();
            self.graphs += took;
            let (blocks, edges) = (graph.blocks().len(), graph.edges().len());
            let name = format!("{} of {}", procedure.name(), path.display());
            assert!(
                took < LONGEST && blocks <= BYTES_MAX && edges <= EDGES_MAX,
                "{name}: {took:?}"
            );
            if took > self.slowest.0 {
                let (loops, classes) = (loops.loops().len(), classes.count());
                self.slowest = (
                    took,
                    format!(
                        "{name}, {blocks} blocks, {edges} edges, {loops} loops, {classes} classes"
                    ),
                );
            }
            self.blocks += blocks;
            self.edges += edges;
            self.look(&graph, &name);
        }
    }

    fn look(&mut self, graph: &Cfg, name: &str) {
        for (number, block) in graph.blocks().iter().enumerate() {
            assert!(
                block.padding || !graph.out_of(number).is_empty(),
                "{name}: flow ends at {:x}",
                block.last.0
            );
            if block.ending == Ending::Indirect {
                *self.jumps.entry(fate(graph, number)).or_default() += 1;
            }
        }
        for finding in graph.findings() {
            *self.findings.entry(finding.kind.to_string()).or_default() += 1;
            if self.verbose {
                println!("{:x} {:?} in {name}", finding.address.0, finding.kind);
            }
        }
    }

    fn print(&self) {
        let speed = self.blocks as f64 / self.graphs.as_secs_f64();
        let of = |kind| self.jumps.get(kind).copied().unwrap_or_default();
        let resolved = 100.0 * of("table") as f64 / (of("table") + of("unresolved")).max(1) as f64;
        println!(
            "{} files, {} MB of code, {} procedures",
            self.files,
            self.bytes >> 20,
            self.procedures
        );
        println!(
            "{} blocks, {} edges; {speed:.0} blocks/s, {:?} in all, files read in {:?}",
            self.blocks, self.edges, self.graphs, self.opening
        );
        println!("slowest: {:?}, {}", self.slowest.0, self.slowest.1);
        println!(
            "indirect jumps: {:?}; of those inside of procedures {resolved:.2} % resolved",
            self.jumps
        );
        self.findings.iter().for_each(|(finding, count)| println!("{count:9} {finding}"));
    }

    fn print_json(&self) {
        let object = |counts: Vec<String>| format!("{{{}}}", counts.join(","));
        let jumps =
            object(self.jumps.iter().map(|(kind, count)| format!("{kind:?}:{count}")).collect());
        let findings =
            object(self.findings.iter().map(|(kind, count)| format!("{kind:?}:{count}")).collect());
        println!(
            "{{\"files\":{},\"code_bytes\":{},\"procedures\":{},\"blocks\":{},\"edges\":{},\"graphs_s\":{:.3},\"slowest_s\":{:.3},\"slowest\":{:?},\"indirect_jumps\":{jumps},\"findings\":{findings}}}",
            self.files,
            self.bytes,
            self.procedures,
            self.blocks,
            self.edges,
            self.graphs.as_secs_f64(),
            self.slowest.0.as_secs_f64(),
            self.slowest.1
        );
    }
}

#[test]
#[ignore = "takes minutes: cargo xtask bench cfg"]
fn everything_that_is_installed() {
    let roots = std::env::var("GRAPHS_OF").unwrap_or_else(|_| "/usr/bin:/usr/lib".to_owned());
    let mut all = Vec::new();
    for root in roots.split(':') {
        let root = std::fs::canonicalize(root).unwrap_or_else(|error| panic!("{root}: {error}"));
        if root.is_dir() { files(&root, &mut all) } else { all.push(root) }
    }
    all.sort();
    let mut sum = Sum { verbose: std::env::var("GRAPHS_VERBOSE").is_ok(), ..Sum::default() };
    all.iter().for_each(|path| sum.add(path));
    assert!(sum.procedures > 1000, "{} procedures in {roots}", sum.procedures);
    if std::env::var("GRAPHS_JSON").is_ok() { sum.print_json() } else { sum.print() }
}
