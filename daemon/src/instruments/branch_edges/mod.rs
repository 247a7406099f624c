//! Edges: which way branches go, from snapshots of registers that the sampler takes with some
//! samples of user code.
//!
//! At a sample the registers decide the next branches. The interpreter of the crate `code` follows
//! them through the bytes of the sampled image, and each branch that it can follow is counted as an
//! edge: from the branch, to what is executed next. Where a loop compares what changes by the same
//! amount in each round, it is counted how many rounds are left.
//!
//! Registers and stacks are the processes' own. They are held in this process's memory until the
//! next drain, or until many are held, and the records are read that tell what was mapped where;
//! then they are interpreted and wiped. Nothing of them is written anywhere: only counts of edges
//! and of rounds are.

mod texts;

use crate::clock;
use crate::pipeline::pending::Pending;
use crate::pipeline::rates::WalkCost;
use crate::replay::recording::Tape;
use crate::replay::steps::Step;
use crate::spaces::mapped_files::{Image, MappedFile};
use crate::spaces::mappings::{Found, Mappings, Window};
use crate::spaces::open_mapped::MappedAt;
use abi::{Entry, SNAPSHOTS_PER_CPU, Snapshot, Space};
use code::interpret::{BranchKind, Edge, Place, Rounds, Walker};
use code::isa::x86_64::{State, X86_64};
use image::{ImageKind, ImageOffset, Vaddr};
use model::{EDGES, FIRST_EDGES, Measure, Observation, ROUNDS, Turns};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::time::Duration;
use texts::{Texts, View};

/// Snapshots held at most; those beyond are dropped, and counted.
const HELD_MAX: usize = 1024;
/// When so many are held, they do not wait for the drain.
const HELD_MANY: usize = HELD_MAX * 3 / 4;
/// Decoded instructions kept.
const INSTRUCTIONS: usize = 4096;
/// How long a drain waits for its snapshots to be interpreted: they take milliseconds, unless a
/// file system does not answer.
const PATIENCE: Duration = Duration::from_millis(50);

/// What became of snapshots.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Totals {
    /// Snapshots taken.
    pub taken: u64,
    /// Dropped because the sampler's ring, this buffer or the interpreter's queue was full.
    pub dropped: u64,
    /// Of those taken, the ones whose image or its file could not be had, or that are of processes
    /// or images left out.
    pub unresolved: u64,
    /// Those that gave at least one edge.
    pub fruitful: u64,
    /// Edges counted.
    pub edges: u64,
    /// CPU time of interpreting them, ns.
    pub cpu_ns: u64,
}

/// Takes snapshots in and gives edges out.
///
/// Files are opened and read by a thread of its own: one that a dead network file system holds
/// costs edges, never the drain.
pub struct Edges {
    held: Vec<Snapshot>,
    tape: Tape,
    thread: Option<Thread>,
    /// What became of all so far.
    pub totals: Totals,
}

/// The thread that interprets, and how many drains' snapshots it has not given back.
struct Thread {
    jobs: SyncSender<Vec<Job>>,
    done: Receiver<Batch>,
    outstanding: usize,
}

/// A snapshot, and where it was taken.
struct Job {
    snapshot: Snapshot,
    sampled: Sampled,
}

/// What the snapshots of a drain gave.
#[derive(Default)]
struct Batch {
    /// What was observed, of which measure.
    observed: Vec<(Arc<Image>, &'static Measure, Observation)>,
    unresolved: u64,
    fruitful: u64,
    cpu_ns: u64,
}

impl Edges {
    /// None yet; what is observed is kept on `tape` too.
    #[must_use]
    pub fn new(tape: Tape) -> Self {
        // Room for all that may be there at once: what is moved to other memory leaves a copy
        // behind.
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let held = Vec::with_capacity(HELD_MAX + cpus * SNAPSHOTS_PER_CPU);
        Self { held, tape, thread: None, totals: Totals::default() }
    }

    /// Takes in what `read` moves into the buffer; it gives the number of snapshots that the
    /// sampler had to drop.
    pub fn hold(&mut self, read: impl FnOnce(&mut Vec<Snapshot>) -> u64) {
        let before = self.held.len();
        self.totals.dropped += read(&mut self.held);
        self.totals.taken += (self.held.len() - before) as u64;
        if self.held.len() > HELD_MAX {
            self.totals.dropped += (self.held.len() - HELD_MAX) as u64;
            self.held.get_mut(HELD_MAX..).unwrap_or_default().iter_mut().for_each(wipe);
            self.held.truncate(HELD_MAX);
        }
    }

    /// Whether so many are held that they should be interpreted soon.
    #[must_use]
    pub fn are_many(&self) -> bool {
        self.held.len() >= HELD_MANY
    }

    /// Has everything held, taken in `window`, interpreted and wiped, and counts the edges in
    /// `pending`: these, or where that takes long those of an earlier drain.
    pub fn interpret(&mut self, mappings: &mut Mappings, window: Window, pending: &mut Pending) {
        if self.thread.is_none() && !self.held.is_empty() {
            self.thread =
                Thread::start().inspect_err(|error| tracing::error!("no edges: {error}")).ok();
        }
        let Some(thread) = &mut self.thread else {
            self.totals.dropped += self.held.len() as u64;
            self.held.iter_mut().for_each(wipe);
            return self.held.clear();
        };
        if !self.held.is_empty() {
            let mut jobs = Vec::with_capacity(self.held.len());
            for snapshot in &mut self.held {
                match sampled(snapshot, mappings, window) {
                    Some(sampled) => jobs.push(Job { snapshot: *snapshot, sampled }),
                    None => self.totals.unresolved += 1,
                }
                wipe(snapshot);
            }
            self.held.clear();
            if let Err(TrySendError::Full(mut refused) | TrySendError::Disconnected(mut refused)) =
                thread.jobs.try_send(jobs)
            {
                self.totals.dropped += refused.len() as u64;
                refused.iter_mut().for_each(|job| wipe(&mut job.snapshot));
            } else {
                thread.outstanding += 1;
                // Who did not answer in time once is not waited for again until he has.
                if thread.outstanding == 1
                    && let Ok(batch) = thread.done.recv_timeout(PATIENCE)
                {
                    thread.outstanding = 0;
                    count(batch, &mut self.totals, pending, &self.tape);
                }
            }
        }
        while let Ok(batch) = thread.done.try_recv() {
            thread.outstanding = thread.outstanding.saturating_sub(1);
            count(batch, &mut self.totals, pending, &self.tape);
        }
    }

    /// What the walks have cost so far.
    #[must_use]
    pub fn walk_cost(&self) -> WalkCost {
        let Totals { taken, dropped, cpu_ns, .. } = self.totals;
        WalkCost { walked: taken.saturating_sub(self.held.len() as u64 + dropped), cpu_ns }
    }
}

fn count(batch: Batch, totals: &mut Totals, pending: &mut Pending, tape: &Tape) {
    if !batch.observed.is_empty() {
        tape.note(|| Step::observed(&batch.observed));
    }
    for (image, measure, observation) in &batch.observed {
        let counted = pending.observe(image, measure, *observation);
        totals.edges += u64::from(counted && **measure == EDGES);
    }
    totals.unresolved += batch.unresolved;
    totals.fruitful += batch.fruitful;
    totals.cpu_ns += batch.cpu_ns;
}

impl Thread {
    fn start() -> std::io::Result<Self> {
        let (jobs, queue) = mpsc::sync_channel::<Vec<Job>>(1);
        let (sender, done) = mpsc::channel();
        std::thread::Builder::new().name("edges".into()).spawn(move || {
            let mut interpreter =
                Interpreter { walker: Walker::new(INSTRUCTIONS), texts: Texts::default() };
            while let Ok(jobs) = queue.recv() {
                if sender.send(interpreter.interpret(jobs)).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { jobs, done, outstanding: 0 })
    }
}

struct Interpreter {
    walker: Walker<X86_64>,
    texts: Texts,
}

impl Interpreter {
    fn interpret(&mut self, mut jobs: Vec<Job>) -> Batch {
        let (begun_ns, opened) = (clock::thread_cpu_ns(), self.texts.opened());
        let mut batch = Batch::default();
        self.texts.close_unused();
        for job in &mut jobs {
            let before = batch.observed.len();
            match self.walk(job, &mut batch) {
                Some(()) => batch.fruitful += u64::from(batch.observed.len() > before),
                None => batch.unresolved += 1,
            }
            wipe(&mut job.snapshot);
        }
        if self.texts.opened() != opened {
            crate::kernel::give_back(); // tables of relocations are large
        }
        batch.cpu_ns = clock::thread_cpu_ns().saturating_sub(begun_ns);
        batch
    }

    fn walk(&mut self, Job { snapshot, sampled }: &Job, batch: &mut Batch) -> Option<()> {
        let Sampled { image, place, file, at } = sampled;
        let text = self.texts.get(image.id, || file.open_build(&image.id, *at))?;
        let place = Place { image: text.number(), ..*place };
        let [registers @ .., rip, rflags] = &snapshot.registers;
        let stack = snapshot.stack.get(..snapshot.stack_len as usize).unwrap_or_default();
        let rsp = registers.get(4).copied()?;
        let stack = code::interpret::Window { begin: Vaddr(rsp), bytes: stack };
        let mut view = View::new(text, place, Vaddr(*rip))?;
        let (edges, _) =
            self.walker.walk(Vaddr(*rip), State::sampled(*registers, *rflags), stack, &mut view);
        let offset = |address: Vaddr| {
            let inside = place.begin <= address && address < place.end;
            inside.then(|| ImageOffset(place.offset.0 + (address.0 - place.begin.0)))
        };
        for (number, Edge { from, to, .. }) in edges.iter().enumerate() {
            // Of a branch that is met again the first time is what tells: the more rounds a loop
            // makes, the more of them are seen here.
            let again = edges.iter().take(number).any(|before| before.from == *from);
            // What leaves the image is no edge of it.
            if let (Some(from), Some(to), false) = (offset(*from), offset(*to), again) {
                let measures = [&EDGES, &FIRST_EDGES];
                for measure in measures.into_iter().take(if number == 0 { 2 } else { 1 }) {
                    batch.observed.push((image.clone(), measure, Observation::Pair(from, to)));
                }
            }
        }
        for Rounds { edge, rounds } in self.walker.rounds() {
            if let Some(branch) = offset(edge.from) {
                let jumps = edge.kind == BranchKind::Taken;
                if let Some((branch, number)) = (Turns { branch, jumps, rounds }).value() {
                    batch.observed.push((
                        image.clone(),
                        &ROUNDS,
                        Observation::Value(branch, number),
                    ));
                }
            }
        }
        Some(())
    }
}

fn wipe(snapshot: &mut Snapshot) {
    // The compiler may not leave it out: what it writes is looked at by nobody.
    *std::hint::black_box(snapshot) =
        Snapshot { key: 0, space: 0, stack_len: 0, registers: [0; 18], stack: [0; 256] };
}

/// Where a snapshot was taken.
struct Sampled {
    image: Arc<Image>,
    /// The mapping, at the addresses that the sampled process has it at.
    place: Place,
    file: Arc<MappedFile>,
    at: MappedAt,
}

/// None where it is in no file that is known, and where its image or process is left out.
fn sampled(snapshot: &Snapshot, mappings: &mut Mappings, window: Window) -> Option<Sampled> {
    let entry = Entry { key: snapshot.key, space: snapshot.space, count: 1 };
    let rip = *snapshot.registers.get(16)?;
    let (mapping, at) = match entry.whose() {
        Space::Kernel | Space::Foreign => return None,
        Space::Process { pid, generation } => {
            let Found { mapping, tags } =
                mappings.find_known(pid, generation, entry.pc(), window).ok()?;
            if tags.excluded() {
                return None;
            }
            let at = MappedAt { pid, start: mapping.start, end: mapping.end };
            (mapping, at)
        }
        Space::Program(program) => mappings.find_known_in_program(program, entry.pc()).ok()?,
    };
    let left_out = &mappings.tagger.rules().exclude_images;
    let image = mapping.file.image_kept_unless(at, None, |image| left_out.contain(image)).ok()?;
    if image.kind != ImageKind::File || left_out.contain(&image) {
        return None;
    }
    let begin = rip.wrapping_sub(entry.pc().checked_sub(mapping.start)?);
    let place = Place {
        image: 0,
        begin: Vaddr(begin),
        end: Vaddr(begin.checked_add(mapping.end - mapping.start)?),
        offset: ImageOffset(mapping.file_offset),
    };
    Some(Sampled { image, place, file: mapping.file, at })
}
