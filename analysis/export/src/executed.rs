//! Executions of an image's code, estimated or counted, for tools that make programs faster: these
//! tools want executions, not samples of time.
//!
//! Executions of a procedure's blocks and edges come from its flow ([`estimate`]), which agrees
//! with its samples of time and with the observed edges. They are relative to one entry of the
//! procedure. To compare procedures, each is weighted so that all have the same number of samples
//! per executed instruction. Exact executions are those of the whole run.

use std::collections::BTreeMap;

use code::cfg::{EdgeKind, To};
use code::isa::Syntax;
use code::skid::Skid;
use image::{Site, Sites, Vaddr};
use stalls::Machine;

use annotate::graphs::{Graph, Surveyed};
use names::procedures::Known;
use query::load::{ImageSamples, Samples};
use query::problem::Problem;

/// Count of an instruction with one sample per execution. Formats hold whole numbers: a smaller
/// unit would round rarely executed instructions to 0.
pub const UNIT: u64 = 1000;
/// The source and the error of the counts, in a line.
pub const FIDELITY: &str = "counts are executions, estimated from samples of time and from branches computed from registers at samples; the error of branch probabilities is about 0.03 on Zen 3 and 4, up to 0.16 on other processors";

/// The reason why some samples of an image with executions are left out.
pub const LEFT_OUT: &str = "of code that is in no procedure's graph";

/// The remark on exact counts, in one line.
pub const EXACT: &str = "counts are executions, each of them counted (dcpi ideal)";

/// Executions of an image's instructions and edges.
#[derive(Clone, Debug, Default)]
pub struct Executed {
    /// Executions are counted ones, in parts of 1, not of [`UNIT`].
    pub exact: bool,
    /// Instructions of procedures with samples, by address.
    pub steps: Vec<Step>,
    /// Edges from instructions to the next executed ones, by address; including fall-throughs.
    pub edges: Vec<ExecutedEdge>,
}

/// Executions of an instruction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Its address, as [`super::Place::address`].
    pub address: u64,
    /// Executions, in parts of [`UNIT`].
    pub times: u64,
    /// Executions that enter a procedure here, in parts of [`UNIT`].
    pub entries: u64,
    /// Its places in the source; none if they were not asked for, or are not known.
    pub sites: Vec<Site>,
}

/// Executions of an edge: of a branch to one target, a fall-through, or a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecutedEdge {
    /// Address of the instruction that the edge leaves.
    pub from: u64,
    /// Address of the instruction that is executed next.
    pub to: u64,
    /// Whether the edge falls through to the next instruction in memory.
    pub falls_through: bool,
    /// Mangled name of the called procedure, if `to` is the first instruction of another procedure.
    pub callee: Option<String>,
    /// Executions, in parts of [`UNIT`].
    pub times: u64,
}

impl Executed {
    /// The executions in an image: exact ones where they were counted, else estimates from the
    /// samples of an event that counts time, and their skid. None where no procedure has any.
    pub fn of(
        samples: &Samples,
        image: &ImageSamples,
        known: &Known,
        time: (usize, Skid),
        problems: &mut Vec<Problem>,
    ) -> Option<Self> {
        let surveyed = Surveyed::of(samples, image, known, problems)?;
        let names: BTreeMap<u64, &str> = known
            .procedures
            .iter()
            .map(|procedure| (known.address(procedure.start), procedure.raw_name()))
            .collect();
        let mut executed = Self { exact: samples.executed() == Some(time.0), ..Self::default() };
        let machine = samples.cpuid().and_then(|cpuid| Machine::named(Machine::nearest(&cpuid)?));
        for (procedure, count) in surveyed.sampled(image, time.0) {
            let graph = surveyed.graph(
                image,
                known,
                procedure,
                Some(Syntax::Intel),
                time,
                machine.as_ref(),
            );
            let graph = graph.filter(|graph| graph.is_exact == executed.exact);
            graph.into_iter().for_each(|graph| executed.add(&graph, count, &names));
        }
        executed.steps.sort_by_key(|step| step.address);
        executed.steps.dedup_by(|again, first| {
            let same = again.address == first.address;
            if same {
                first.times = first.times.saturating_add(again.times);
                first.entries = first.entries.saturating_add(again.entries);
            }
            same
        });
        executed.edges.sort_by_key(|edge| (edge.from, edge.to));
        (!executed.steps.is_empty()).then_some(executed)
    }

    /// The remark on the counts.
    pub fn fidelity(&self) -> &'static str {
        if self.exact { EXACT } else { FIDELITY }
    }

    /// The executions of the instruction at an address.
    pub fn step(&self, address: u64) -> Option<&Step> {
        self.steps.get(self.steps.binary_search_by_key(&address, |step| step.address).ok()?)
    }

    /// Adds the places in the source to the instructions.
    pub fn locate(&mut self, sites: &Sites<'_>) {
        self.steps.iter_mut().for_each(|step| step.sites = sites.at(Vaddr(step.address)));
    }

    fn add(&mut self, graph: &Graph, samples: u64, names: &BTreeMap<u64, &str>) {
        let Some(estimate) = &graph.estimate else { return };
        let blocks = || graph.graph.blocks().iter().zip(&estimate.blocks);
        let all: f64 =
            blocks().map(|(block, runs)| block.instructions as f64 * runs.executions).sum();
        let weight = if self.exact { 1.0 } else { UNIT as f64 * samples as f64 / all };
        if !weight.is_finite() {
            return;
        }
        // The cast saturates.
        let times = |executions: f64| (executions * weight).round() as u64;
        let entry = graph.graph.entry();
        let back = graph.graph.edges().iter().zip(&estimate.edges);
        let back = back.filter(|(edge, _)| entry.is_some_and(|entry| edge.to == To::Block(entry)));
        let back: f64 = back.map(|(_, executions)| executions).sum();
        for (number, (_, runs)) in blocks().enumerate() {
            let entries =
                if entry == Some(number) { times((runs.executions - back).max(0.0)) } else { 0 };
            let step = |(at, address): (usize, Vaddr)| Step {
                address: address.0,
                times: times(runs.executions),
                entries: if at == 0 { entries } else { 0 },
                sites: Vec::new(),
            };
            self.steps.extend(graph.graph.instructions(number).enumerate().map(step));
        }
        let mut add = |(from, to): (Vaddr, Vaddr), kind: Kind, executions: f64| {
            let times = times(executions);
            if times > 0 {
                let callee =
                    names.get(&to.0).filter(|_| kind == Kind::Call).map(|name| (*name).to_owned());
                self.edges.push(ExecutedEdge {
                    from: from.0,
                    to: to.0,
                    falls_through: kind == Kind::Falls,
                    callee,
                    times,
                });
            }
        };
        for (edge, executions) in graph.graph.edges().iter().zip(&estimate.edges) {
            let Some(from) = graph.graph.blocks().get(edge.from).map(|block| block.last) else {
                continue;
            };
            match edge.to {
                To::Block(to) => {
                    let falls = matches!(edge.kind, EdgeKind::Next | EdgeKind::NotTaken);
                    let to = graph.graph.blocks().get(to);
                    to.into_iter()
                        .for_each(|to| add((from, to.start), Kind::within(falls), *executions));
                }
                To::Outside(to) => add((from, to), Kind::Call, *executions),
                To::Elsewhere => seen(graph, from, *executions, &mut add),
                To::Caller | To::Nowhere | To::Unknown => {}
            }
        }
        for call in graph.graph.calls() {
            let executions = estimate.blocks.get(call.block).map_or(0.0, |block| block.executions);
            match call.target {
                Some(to) => add((call.at, to), Kind::Call, executions),
                None => seen(graph, call.at, executions, &mut add),
            }
        }
    }
}

/// Where an edge leads.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// To the next instruction in memory.
    Falls,
    /// To another block of the procedure.
    Jump,
    /// To another procedure, or to the start of this one.
    Call,
}

impl Kind {
    fn within(falls: bool) -> Self {
        if falls { Self::Falls } else { Self::Jump }
    }
}

/// Divides the executions of an indirect jump or call among the observed targets.
fn seen(
    graph: &Graph,
    from: Vaddr,
    executions: f64,
    add: &mut impl FnMut((Vaddr, Vaddr), Kind, f64),
) {
    let seen = graph.branches.iter().filter(|branch| branch.from == from);
    let count = |branch: &estimate::Branch| branch.first as f64 + branch.later as f64;
    let all: f64 = seen.clone().map(count).sum();
    for branch in seen.filter(|branch| count(branch) > 0.0) {
        add((from, branch.to), Kind::Call, executions * count(branch) / all);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use code::cfg::{Cfg, Knowledge, Part};
    use code::isa::Isa;
    use estimate::{BlockEstimate, Estimate};

    #[test]
    fn rounds_of_a_loop_at_the_begin_are_no_entries() {
        // dec edi; jne 0x1000; ret: ten rounds
        let bytes = [0xff, 0xcf, 0x75, 0xfc, 0xc3];
        let part = Part { begin: Vaddr(0x1000), bytes: &bytes };
        let isa = Isa::of_elf_machine(62).unwrap();
        let mut graph = Graph::default();
        graph.graph = Cfg::build(isa, &[part], &mut (), &Knowledge::default());
        let edges = graph
            .graph
            .edges()
            .iter()
            .map(|edge| if edge.kind == EdgeKind::Taken { 9.0 } else { 1.0 });
        let edges = edges.collect();
        let runs = |executions| BlockEstimate { executions, ..BlockEstimate::default() };
        graph.estimate = Some(Estimate {
            blocks: vec![runs(10.0), runs(1.0)],
            edges,
            trips: Vec::new(),
            pace: None,
        });
        let mut executed = Executed::default();
        executed.add(&graph, 21, &BTreeMap::from([(0x1000, "f")]));
        let first = executed.steps.first().unwrap();
        assert_eq!((first.times, first.entries), (10_000, 1000));
        let back = executed.edges.iter().find(|edge| edge.to == 0x1000).unwrap();
        assert_eq!((back.times, &back.callee), (9000, &None), "it calls nothing");
    }

    #[test]
    fn executions_of_instructions_branches_and_calls() {
        // test edi, edi; je 0x1009; call 0x2000; ret
        let bytes = [0x85, 0xff, 0x74, 0x05, 0xe8, 0xf7, 0x0f, 0x00, 0x00, 0xc3];
        let part = Part { begin: Vaddr(0x1000), bytes: &bytes };
        let isa = Isa::of_elf_machine(62).unwrap();
        let mut graph = Graph::default();
        graph.graph = Cfg::build(isa, &[part], &mut (), &Knowledge::default());
        let runs = |executions| BlockEstimate { executions, ..BlockEstimate::default() };
        let edges = graph.graph.edges().iter().map(|edge| match edge.kind {
            EdgeKind::Taken => 3.0,
            EdgeKind::Return => 4.0,
            _ => 1.0,
        });
        let edges = edges.collect();
        graph.estimate = Some(Estimate {
            blocks: vec![runs(4.0), runs(1.0), runs(4.0)],
            edges,
            trips: Vec::new(),
            pace: None,
        });
        let mut executed = Executed::default();
        // As many samples as instructions executed.
        executed.add(&graph, 13, &BTreeMap::from([(0x2000, "f")]));
        let times: Vec<_> =
            executed.steps.iter().map(|step| (step.address, step.times, step.entries)).collect();
        assert_eq!(
            times,
            [(0x1000, 4000, 4000), (0x1002, 4000, 0), (0x1004, 1000, 0), (0x1009, 4000, 0)]
        );
        executed.edges.sort_by_key(|edge| (edge.from, edge.to));
        let edges = executed.edges.iter().map(|edge| {
            (edge.from, edge.to, edge.falls_through, edge.callee.as_deref(), edge.times)
        });
        let expected = [
            (0x1002, 0x1004, true, None, 1000),
            (0x1002, 0x1009, false, None, 3000),
            (0x1004, 0x1009, true, None, 1000),
            (0x1004, 0x2000, false, Some("f"), 1000),
        ];
        assert_eq!(edges.collect::<Vec<_>>(), expected);
        // Without executions there is no evidence.
        let mut executed = Executed::default();
        graph
            .estimate
            .iter_mut()
            .for_each(|estimate| estimate.blocks.iter_mut().for_each(|block| *block = runs(0.0)));
        executed.add(&graph, 13, &BTreeMap::new());
        assert!(executed.steps.is_empty() && executed.edges.is_empty());
    }
}
