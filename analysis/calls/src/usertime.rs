//! SpeedShop's `usertime`: wall-clock time of threads, running or not, by procedure.
//!
//! SpeedShop took the call stack of a thread every 30 ms of wall-clock time. Here the time is the
//! sum of three events: the time on a CPU by its samples, divided among callers by stacks; the time
//! blocked; and the time awake without CPU, both by the weights of their stacks. Like SpeedShop's,
//! stacks end at the innermost procedure of the program: what the kernel does for a procedure, and
//! what the procedure waits for, is the procedure's own time.

use image::ImageKind;
use model::{OFF_CPU, RUNNABLE, Value};

use crate::contexts::{Contexts, Entry, NodeId, SubjectId};
use crate::load::{Calls, EventCalls, Roots};
use crate::subjects::Subject;
use crate::timed::Timed;
use query::load::USERTIME;

/// Wall-clock time between two samples of SpeedShop's, ns.
pub const USERTIME_SAMPLE_NS: f64 = 30e6;

impl Calls {
    /// Wall-clock time of threads, if there are stacks of the time on a CPU in ns, `clock`, or of
    /// waits.
    pub fn usertime(&mut self, clock: &str) -> Option<EventCalls> {
        let is_part =
            |event: &&EventCalls| [clock, OFF_CPU, RUNNABLE].contains(&event.name.as_str());
        let parts: Vec<EventCalls> = self.events.iter().filter(is_part).cloned().collect();
        let mut sum: Option<Contexts> = None;
        for part in parts {
            let timed = self.timed(&part, Roots::Procedures);
            let own = timed.within_programs(|subject| self.frame_of(subject));
            sum = Some(match sum {
                Some(sum) => sum.merged(&own),
                None => own,
            });
        }
        let contexts = sum?;
        Some(EventCalls { name: USERTIME.to_owned(), sampled: None, contexts })
    }

    fn frame_of(&self, subject: SubjectId) -> FrameOf {
        let Some(subject) = self.subjects.get(subject) else { return FrameOf::Other };
        match subject {
            Subject::Wait(_) => return FrameOf::Wait,
            // Below it are procedures whose callers are not known.
            Subject::NoStack => return FrameOf::Program,
            _ => {}
        }
        match self.subjects.image(subject).map(|image| image.record.kind) {
            None
            | Some(ImageKind::Kernel | ImageKind::Module | ImageKind::Bpf | ImageKind::Idle) => {
                FrameOf::Other
            }
            Some(_) => FrameOf::Program,
        }
    }
}

/// The subject of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameOf {
    /// A procedure of a program.
    Program,
    /// The reason why a thread did not run.
    Wait,
    /// A frame of the kernel, or one that stands for frames that are not known.
    Other,
}

impl Timed {
    /// The stacks with their times as weights, without frames of the kernel and reasons of waits
    /// below procedures of programs. Threads of the kernel have nothing else, and keep theirs.
    pub fn within_programs(&self, of: impl Fn(SubjectId) -> FrameOf) -> Contexts {
        let contexts = self.contexts();
        let mut own = Contexts::with_threads_of(contexts);
        // By node: its place in `own`, and whether a procedure of a program is at it or above it.
        let mut new: Vec<(NodeId, bool)> = Vec::with_capacity(contexts.len());
        for (parent, subject) in contexts.nodes() {
            let above = parent.and_then(|parent| new.get(parent as usize)).copied();
            let of = of(subject);
            let is_program = of == FrameOf::Program;
            let below_program = above.is_some_and(|(_, below_program)| below_program);
            let is_left_out = !is_program && (below_program || of == FrameOf::Wait);
            new.push(match above.filter(|_| is_left_out) {
                Some(above) => above,
                None => {
                    let node = own.node(above.map(|(node, _)| node), subject);
                    (node, is_program || below_program)
                }
            });
        }
        for (entry, time) in self.entries() {
            let Some((node, _)) = new.get(entry.node as usize) else { continue };
            let weight = entry.value.weight as f64;
            let factor = if weight > 0.0 { time / weight } else { 0.0 };
            let value = Value {
                stacks: entry.value.stacks,
                weight: time.round() as u64,
                squares: (entry.value.squares as f64 * factor * factor).round() as u64,
            };
            own.add(Entry { node: *node, thread: entry.thread, value });
        }
        own
    }
}
