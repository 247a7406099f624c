//! Every procedure of everything that is installed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use code::cfg::{Classes, EdgeKind, Ending, FindingKind, Loops, To};

use super::program::Program;

#[derive(Default)]
struct Sum {
    files: usize,
    bytes: u64,
    procedures: usize,
    blocks: usize,
    edges: usize,
    jumps: BTreeMap<&'static str, usize>,
    findings: BTreeMap<FindingKind, usize>,
    opening: Duration,
    graphs: Duration,
    slowest: (Duration, String),
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

impl Sum {
    fn add(&mut self, path: &Path, verbose: bool) {
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
            if took > self.slowest.0 {
                self.slowest = (
                    took,
                    format!(
                        "{} of {} ({} blocks, {} edges, {} loops, {} classes)",
                        procedure.name(),
                        path.display(),
                        graph.blocks().len(),
                        graph.edges().len(),
                        loops.loops().len(),
                        classes.count()
                    ),
                );
            }
            self.blocks += graph.blocks().len();
            self.edges += graph.edges().len();
            for (number, block) in graph.blocks().iter().enumerate() {
                assert!(
                    block.padding || !graph.out_of(number).is_empty(),
                    "{} of {}",
                    procedure.name(),
                    path.display()
                );
                if block.ending == Ending::Indirect {
                    let mut edges = graph.edges()[graph.out_of(number)].iter();
                    let kind = if edges.clone().any(|edge| edge.to == To::Unknown) {
                        if verbose {
                            println!("{:x} {} of {}", block.last.0, procedure.name(), path.display());
                        }
                        "unresolved"
                    } else if edges.clone().any(|edge| edge.kind == EdgeKind::Case && matches!(edge.to, To::Block(_))) {
                        "table"
                    } else if edges.any(|edge| edge.to == To::Elsewhere) {
                        "leaves"
                    } else {
                        "other"
                    };
                    *self.jumps.entry(kind).or_default() += 1;
                }
            }
            for finding in graph.findings() {
                *self.findings.entry(finding.kind).or_default() += 1;
                if verbose && finding.kind != FindingKind::UnresolvedJump {
                    println!(
                        "{:x} {:?} in {} of {}",
                        finding.address.0,
                        finding.kind,
                        procedure.name(),
                        path.display()
                    );
                }
            }
        }
    }
}

#[test]
#[ignore = "takes minutes; cargo xtask bench cfg"]
fn everything_that_is_installed() {
    let mut all = Vec::new();
    let roots = std::env::var("GRAPHS_OF").unwrap_or_else(|_| "/usr/bin:/usr/lib".to_owned());
    for root in roots.split(':') {
        let root = Path::new(root);
        if root.is_file() { all.push(root.to_path_buf()) } else { files(root, &mut all) }
    }
    all.sort();
    let verbose = std::env::var("GRAPHS_VERBOSE").is_ok();
    let mut sum = Sum::default();
    for path in &all {
        sum.add(path, verbose);
    }
    println!(
        "{} files, {} procedures, {} MB, {} blocks, {} edges",
        sum.files,
        sum.procedures,
        sum.bytes >> 20,
        sum.blocks,
        sum.edges
    );
    println!(
        "{:?} opening, {:?} graphs: {:.0} blocks/s",
        sum.opening,
        sum.graphs,
        sum.blocks as f64 / sum.graphs.as_secs_f64()
    );
    println!("slowest {:?}", sum.slowest);
    println!("jumps {:?}", sum.jumps);
    println!("findings {:?}", sum.findings);
}
