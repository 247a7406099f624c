//! What call stacks say: for whom the kernel works, and what threads wait for.

use std::collections::BTreeMap;

use calls::{Calls, EventCalls, Roots, Subject, SubjectId, Timed};
use image::ImageOffset;
use model::{OFF_CPU, RUNNABLE, SourcePlace, Wait};
use names::procedures::{Places, Rows};
use query::error::AnalysisError;
use query::load::Samples;
use query::problem::Problem;
use verdict::{Entry, Mechanism, of_kernel, of_runtime};

/// A procedure of a program, by image and name.
pub(super) type Site = (String, String);

/// The stacks of the selection.
pub(super) struct Stacked {
    calls: Calls,
}

/// What the kernel did, from call stacks that end in it.
#[derive(Default)]
pub(super) struct KernelWork {
    /// Time by what it did and for whom. What it did for interrupts is in none.
    pub(super) sites: BySite,
    /// The same time by the kernel's innermost procedure.
    pub(super) names: BTreeMap<Mechanism, BTreeMap<String, f64>>,
    /// All its time, in the event's unit.
    pub(super) all: f64,
    /// Number of stacks.
    pub(super) stacks: u64,
}

/// Time by mechanism, and by the procedure of a program that it is for.
pub(super) type BySite = BTreeMap<Mechanism, BTreeMap<Site, f64>>;

impl Stacked {
    pub(super) fn of(
        samples: &Samples,
        places: &Places,
        problems: &mut Vec<Problem>,
    ) -> Result<Self, AnalysisError> {
        let stacks = samples.stacks(&[], problems)?;
        let rows = (Rows::Procedures, places);
        Ok(Self { calls: calls::load(samples, &stacks, (false, false), rows, problems) })
    }

    fn timed(&mut self, name: &str) -> Option<Timed> {
        let event: EventCalls = self.calls.events.iter().find(|event| event.name == name)?.clone();
        Some(self.calls.timed(&event, Roots::Procedures))
    }

    fn name(&self, subject: SubjectId) -> String {
        self.calls.subjects.get(subject).map(Subject::name).unwrap_or_default()
    }

    /// The innermost procedure of a program.
    fn site(&self, path: &[SubjectId]) -> Site {
        let of_program = path.iter().filter_map(|subject| self.calls.subjects.get(*subject));
        let mut of_program = of_program.filter_map(|subject| match subject {
            Subject::Code { image, name, .. } => {
                let row = self.calls.subjects.images().get(*image)?;
                use image::ImageKind::{Bpf, Idle, Kernel, Module};
                let is_kernel = matches!(row.record.kind, Kernel | Module | Bpf | Idle);
                (!is_kernel).then(|| (row.record.name.clone(), name.clone()))
            }
            _ => None,
        });
        let innermost = of_program.next().unwrap_or_default();
        // A library's wrapper tells less than what called it.
        match of_program.next() {
            Some(caller) if is_library(&innermost.0) => caller,
            _ => innermost,
        }
    }

    /// What the kernel did, by the event.
    pub(super) fn kernel(&mut self, event: &str) -> KernelWork {
        let mut work = KernelWork::default();
        let Some(timed) = self.timed(event) else { return work };
        for (entry, time) in timed.entries() {
            let path: Vec<SubjectId> =
                timed.contexts().path(entry.node).map(|(_, subject)| subject).collect();
            let Some(innermost) = path.first().filter(|one| self.calls.is_kernel(**one)) else {
                continue;
            };
            work.stacks = work.stacks.saturating_add(entry.value.stacks);
            work.all += time;
            let mut in_kernel = path.iter().take_while(|one| self.calls.is_kernel(**one));
            let name = self.name(*innermost);
            // The innermost entry: an interrupt may come within a system call.
            let entry = in_kernel.find_map(|one| Entry::of(&self.name(*one)));
            let by_name = of_kernel(&name);
            let mechanism = match (entry, by_name) {
                (Some(Entry::Interrupt), _) => None,
                (None, _) | (_, Some(Mechanism::Spinning)) => by_name,
                (Some(Entry::Fault), _) => Some(Mechanism::PageFault),
                (_, Some(Mechanism::KernelCopy)) => by_name,
                (Some(Entry::SystemCall), _) => Some(Mechanism::SystemCall),
            };
            let Some(mechanism) = mechanism else { continue };
            let site = self.site(&path);
            *work.sites.entry(mechanism).or_default().entry(site).or_default() += time;
            *work.names.entry(mechanism).or_default().entry(name).or_default() += time;
        }
        work
    }

    /// The time of interpreters and of what they call, by the interpreter's image and the function
    /// that it runs.
    pub(super) fn interpreted(&mut self, event: &str) -> BTreeMap<String, BTreeMap<Site, f64>> {
        let mut all: BTreeMap<String, BTreeMap<Site, f64>> = BTreeMap::new();
        let Some(timed) = self.timed(event) else { return all };
        for (entry, time) in timed.entries() {
            let path: Vec<SubjectId> =
                timed.contexts().path(entry.node).map(|(_, subject)| subject).collect();
            let script = path.iter().find_map(|subject| self.script(*subject));
            let interpreter = path.iter().find_map(|subject| self.interpreter(*subject));
            if let Some((script, image)) = script.zip(interpreter) {
                *all.entry(image).or_default().entry(script).or_default() += time;
            }
        }
        all
    }

    /// The file of a function that a runtime ran, its line where that is known, and its name.
    fn script(&self, subject: SubjectId) -> Option<Site> {
        let Subject::Code { image, name, address: Some(at), .. } =
            self.calls.subjects.get(subject)?
        else {
            return None;
        };
        let record = &self.calls.subjects.images().get(*image)?.record;
        // A source file has no id but its name; of a file that is gone there are no names.
        let is_source = record.id.is_name() && record.kind == image::ImageKind::File;
        let first_line = SourcePlace::of(ImageOffset(*at)).first_line;
        let place = match first_line {
            0 => record.name.clone(),
            line => format!("{}:{line}", record.name),
        };
        is_source.then(|| (place, name.clone()))
    }

    /// The image of a procedure of an interpreter.
    fn interpreter(&self, subject: SubjectId) -> Option<String> {
        let Subject::Code { image, name, .. } = self.calls.subjects.get(subject)? else {
            return None;
        };
        let image = &self.calls.subjects.images().get(*image)?.record.name;
        (of_runtime(image, name) == Some(Mechanism::Interpreter)).then(|| image.clone())
    }

    /// The time in which threads did not run, in ns.
    pub(super) fn waits(&mut self) -> BySite {
        let mut all = BySite::new();
        for event in [OFF_CPU, RUNNABLE] {
            let Some(timed) = self.timed(event) else { continue };
            for (entry, time) in timed.entries() {
                let path: Vec<SubjectId> =
                    timed.contexts().path(entry.node).map(|(_, subject)| subject).collect();
                let mut reasons =
                    path.iter().filter_map(|one| match self.calls.subjects.get(*one) {
                        Some(Subject::Wait(wait)) => Some(of_wait(*wait)),
                        _ => None,
                    });
                let usual = if event == RUNNABLE { Mechanism::NoCpu } else { Mechanism::Unknown };
                let mechanism = reasons.next_back().unwrap_or(usual);
                let site = self.site(&path);
                *all.entry(mechanism).or_default().entry(site).or_default() += time;
            }
        }
        all
    }
}

/// Whether an image is a library of the C runtime, which wraps system calls and waits.
fn is_library(image: &str) -> bool {
    ["libc.", "libc-", "libpthread", "ld-linux", "ld-musl", "libstdc++", "[vdso]"]
        .iter()
        .any(|name| image.starts_with(name))
}

fn of_wait(wait: Wait) -> Mechanism {
    match wait {
        Wait::Futex | Wait::KernelLock => Mechanism::WaitLock,
        Wait::Timer => Mechanism::WaitTimer,
        Wait::Socket | Wait::Poll => Mechanism::WaitNetwork,
        Wait::Disk | Wait::PageFault => Mechanism::WaitDisk,
        Wait::Pipe | Wait::Child | Wait::Signal | Wait::Terminal => Mechanism::WaitProcess,
        Wait::Preempted | Wait::Runnable => Mechanism::NoCpu,
        Wait::Other => Mechanism::Unknown,
    }
}
