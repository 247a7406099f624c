//! Edges of the control flow, from snapshots of registers that the sampler takes with some samples
//! of user code.
//!
//! At a sample the registers decide the next branches. An inspector follows the bytes of the
//! sampled image from there ([`inspect::walks`]), and each branch that it can follow is
//! counted as an edge: from the branch to the instruction executed next. Where the test of a loop
//! compares values that change by the same amount in each round, the number of rounds left is
//! counted too.
//!
//! Registers and stacks are private to their processes. They stay in this process's memory until
//! the next drain, or until many are held; then the records of mappings are read, an inspector
//! interprets the snapshots, and both processes wipe them. Only counts of edges and rounds are
//! written.

use crate::observed::Observed;
use crate::recording::steps::Step;
use crate::recording::tape::Tape;
use crate::sample_source::Order;
use crate::walk_cost::WalkCost;
use abi::{
    AHEAD_MAX, AHEAD_OPERATIONS_MAX, AheadKey, AheadWords, Entry, SNAPSHOTS_PER_CPU, Snapshot,
    Space,
};
use address_spaces::mapped_files::Image;
use address_spaces::mappings::{Found, Mappings, Window};
use image::{ImageId, ImageKind, ImageOffset};
use inspect::open_mapped::MappedAt;
use inspect::pool::Inspectors;
use inspect::questions::{FileAt, SampledRegisters, Walk, Walked, WalkedEdge};
use kernel::clock;
use model::{ACCESSES, EDGES, FIRST_EDGES, OUTCOMES, Observation, ROUNDS, TIMES};
use pending::Pending;
use std::collections::{BTreeMap, HashMap};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::time::Duration;

/// Time in which the sampler copies registers, stack and lines, in ns.
const COPY_NS: u64 = 1500;
/// Time of an interrupt in a virtual machine, in ns. A quarter of all snapshots are of bursts,
/// whose interrupts count nothing else.
const INTERRUPT_NS: u64 = 17_000;
/// Time of a snapshot outside the daemon, in ns.
const SNAPSHOT_NS: u64 = COPY_NS + INTERRUPT_NS / 4;
/// Most snapshots held; further ones are dropped and counted. More take memory, fewer drop
/// snapshots of a burst.
const HELD_MAX: usize = 512;
/// Number of held snapshots above which they are interpreted before the next drain.
const HELD_MANY: usize = HELD_MAX * 3 / 4;
/// The same, of snapshots from places that have no program to read ahead yet: until they have one,
/// walks from there end early.
const HELD_NEW_MANY: usize = 64;
/// Places whose snapshots are counted; beyond, all begin anew.
const PLACES_MAX: usize = 2 * AHEAD_MAX;
/// Time that a drain waits for the interpretation of its snapshots. Interpreting takes
/// milliseconds, unless a file system does not answer; a longer wait would let that file system
/// delay the drain.
const PATIENCE: Duration = Duration::from_millis(50);

/// Times between two snapshots that are looked at together, in ns: those of one burst, and of a
/// sample before or after. Shorter ones are of two timers that went off together.
const PAIR_NS: RangeInclusive<u64> = 30_000..=1_000_000;

/// Numbers of snapshots by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Totals {
    /// Snapshots taken.
    pub taken: u64,
    /// Snapshots dropped because the sampler's ring, this buffer or the interpreter's queue was
    /// full.
    pub dropped: u64,
    /// Snapshots taken whose image or file could not be read, or whose process or image is left
    /// out.
    pub unresolved: u64,
    /// Snapshots taken that gave at least one edge.
    pub fruitful: u64,
    /// Edges counted.
    pub edges: u64,
    /// CPU time of interpreting snapshots, in ns.
    pub cpu_ns: u64,
}

/// Interprets snapshots and counts their edges.
///
/// A thread of its own waits for the inspector: a file system that does not answer costs edges,
/// never the drain.
pub struct Edges {
    held: Vec<Snapshot>,
    inspectors: Inspectors,
    tape: Tape,
    thread: Option<Thread>,
    /// Snapshots so far from each place. Where walks have shown where branches lead, programs read
    /// further ahead: one is asked for at the first snapshot, and whenever there are four times as
    /// many.
    places: HashMap<AheadKey, u32, foldhash::fast::RandomState>,
    /// Held snapshots that want a program.
    held_new: usize,
    /// Outcomes of all snapshots so far.
    pub totals: Totals,
    /// Time that an interrupt takes from the thread, in ns.
    pub interrupt_ns: u64,
}

/// The thread that interprets, and the number of drains whose snapshots it has not given back.
struct Thread {
    jobs: SyncSender<Vec<PlacedSnapshot>>,
    done: Receiver<Batch>,
    outstanding: usize,
}

/// A snapshot with its place in an image.
struct PlacedSnapshot {
    snapshot: Snapshot,
    sampled: Sampled,
    wants_ahead: bool,
    /// As in [`SampledRegisters::until_next_ns`].
    until_next_ns: u64,
}

/// When a snapshot was taken, and of what.
#[derive(Clone, Copy)]
struct Moment {
    thread: u32,
    switches: u32,
    time_ns: u64,
    image: ImageId,
}

impl Moment {
    fn of(snapshot: &Snapshot, sampled: &Sampled) -> Self {
        let Snapshot { thread, switches, time_ns, .. } = *snapshot;
        Self { thread, switches, time_ns, image: sampled.image.id }
    }

    /// The thread's time to a later moment, without that of the interrupt, if it did not leave its
    /// CPU in between; else 0.
    fn until(self, later: &Self, interrupt_ns: u64) -> u64 {
        let is_same =
            (self.thread, self.switches, self.image) == (later.thread, later.switches, later.image);
        let ns = later.time_ns.saturating_sub(self.time_ns).saturating_sub(interrupt_ns);
        if is_same && PAIR_NS.contains(&ns) { ns } else { 0 }
    }
}

/// The observations from the snapshots of a drain.
#[derive(Default)]
struct Batch {
    observed: Vec<Observed>,
    ahead: Vec<(AheadKey, AheadWords)>,
    unresolved: u64,
    fruitful: u64,
    cpu_ns: u64,
}

impl Edges {
    /// No snapshots yet. Observations are recorded on `tape` too.
    pub fn new(tape: Tape, inspectors: Inspectors) -> Self {
        // The buffer has room for the most snapshots that can be there, because growing would leave
        // a copy of registers in freed memory.
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let held = Vec::with_capacity(HELD_MAX + cpus * SNAPSHOTS_PER_CPU);
        let (places, totals) = (HashMap::default(), Totals::default());
        let interrupt_ns = INTERRUPT_NS;
        Self { held, inspectors, tape, thread: None, places, held_new: 0, totals, interrupt_ns }
    }

    /// Holds the snapshots that `read` moves into the buffer. `read` returns the number of
    /// snapshots that the sampler had to drop.
    pub fn hold(&mut self, read: impl FnOnce(&mut Vec<Snapshot>) -> u64) {
        let before = self.held.len();
        self.totals.dropped += read(&mut self.held);
        self.totals.taken += (self.held.len() - before) as u64;
        let new = self.held.get(before..).unwrap_or_default();
        let is_new = |at: &&Snapshot| !self.places.contains_key(&(at.key, at.space));
        self.held_new += new.iter().filter(is_new).count();
        if self.held.len() > HELD_MAX {
            self.totals.dropped += (self.held.len() - HELD_MAX) as u64;
            self.held.get_mut(HELD_MAX..).unwrap_or_default().iter_mut().for_each(wipe);
            self.held.truncate(HELD_MAX);
        }
    }

    /// Whether enough snapshots are held that they should be interpreted soon.
    pub fn are_many(&self) -> bool {
        self.held.len() >= HELD_MANY || self.held_new >= HELD_NEW_MANY
    }

    /// Interprets and wipes all snapshots held, which were taken in `window`, and counts edges in
    /// `pending`: the edges of these snapshots or, where interpreting takes long, of an earlier
    /// drain's. Returns the order by which later snapshots have the memory that their walks need.
    #[must_use]
    pub fn interpret(
        &mut self,
        mappings: &mut Mappings,
        window: Window,
        pending: &mut Pending,
    ) -> Option<Order> {
        self.held_new = 0;
        if self.thread.is_none() && !self.held.is_empty() {
            self.thread = Thread::start(self.inspectors.clone())
                .inspect_err(|error| tracing::error!("no edges: {error}"))
                .ok();
        }
        let Some(thread) = &mut self.thread else {
            self.totals.dropped += self.held.len() as u64;
            self.held.iter_mut().for_each(wipe);
            self.held.clear();
            return None;
        };
        let mut ahead = Vec::new();
        if !self.held.is_empty() {
            let mut jobs = Vec::with_capacity(self.held.len());
            let mut before: Option<Moment> = None;
            for snapshot in &mut self.held {
                match sampled(snapshot, mappings, window) {
                    Some(sampled) => {
                        let wants_ahead = wants_ahead(&mut self.places, snapshot);
                        let moment = Moment::of(snapshot, &sampled);
                        if let Some((before, last)) = before.zip(jobs.last_mut()) {
                            let last: &mut PlacedSnapshot = last;
                            last.until_next_ns = before.until(&moment, self.interrupt_ns);
                        }
                        before = Some(moment);
                        jobs.push(PlacedSnapshot {
                            snapshot: *snapshot,
                            sampled,
                            wants_ahead,
                            until_next_ns: 0,
                        });
                    }
                    None => {
                        before = None;
                        self.totals.unresolved += 1;
                    }
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
                // A thread that did not answer in time is not waited for again before it has
                // answered.
                if thread.outstanding == 1
                    && let Ok(mut batch) = thread.done.recv_timeout(PATIENCE)
                {
                    thread.outstanding = 0;
                    ahead.append(&mut batch.ahead);
                    count(batch, &mut self.totals, pending, &self.tape);
                }
            }
        }
        while let Ok(mut batch) = thread.done.try_recv() {
            thread.outstanding = thread.outstanding.saturating_sub(1);
            ahead.append(&mut batch.ahead);
            count(batch, &mut self.totals, pending, &self.tape);
        }
        (!ahead.is_empty()).then_some(Order::AddAhead(ahead))
    }

    /// The cost of all walks so far.
    pub fn walk_cost(&self) -> WalkCost {
        let Totals { taken, dropped, cpu_ns, .. } = self.totals;
        let walked = taken.saturating_sub(self.held.len() as u64 + dropped);
        WalkCost { walked, cpu_ns, sampler_ns: walked * SNAPSHOT_NS }
    }
}

fn count(batch: Batch, totals: &mut Totals, pending: &mut Pending, tape: &Tape) {
    if !batch.observed.is_empty() {
        tape.note(|| Step::observed(&batch.observed));
    }
    for Observed { image, measure, observation, times } in &batch.observed {
        let counted = pending.observe_times(image, measure, *observation, *times);
        totals.edges += if counted && **measure == EDGES { *times } else { 0 };
    }
    totals.unresolved += batch.unresolved;
    totals.fruitful += batch.fruitful;
    totals.cpu_ns += batch.cpu_ns;
}

impl Thread {
    fn start(inspectors: Inspectors) -> std::io::Result<Self> {
        let (jobs, queue) = mpsc::sync_channel::<Vec<PlacedSnapshot>>(1);
        let (sender, done) = mpsc::channel();
        std::thread::Builder::new().name("edges".into()).spawn(move || {
            while let Ok(jobs) = queue.recv() {
                if sender.send(interpret(jobs, &inspectors)).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { jobs, done, outstanding: 0 })
    }
}

/// Has snapshots interpreted, those of one image together: an image whose file cannot be read costs
/// its own edges only.
fn interpret(mut jobs: Vec<PlacedSnapshot>, inspectors: &Inspectors) -> Batch {
    let cpu_ns = || clock::thread_cpu_ns() + inspectors.own_cpu_ns();
    let begun_ns = cpu_ns();
    let mut batch = Batch::default();
    let mut by_image: BTreeMap<ImageId, (Arc<Image>, Walk)> = BTreeMap::new();
    let mut asking: HashMap<(ImageId, usize), AheadKey> = HashMap::new();
    for PlacedSnapshot { snapshot, sampled, wants_ahead, until_next_ns } in &mut jobs {
        let stack = snapshot.stack.get(..usize::from(snapshot.stack_len)).unwrap_or_default();
        let lines = usize::from(snapshot.lines);
        let addresses = snapshot.line_addresses.get(..lines).unwrap_or_default();
        let bytes = snapshot.line_bytes.get(..lines).unwrap_or_default();
        let (image, id) = (&sampled.image, sampled.image.id);
        let walk = || Walk { image: id, file: sampled.file.clone(), samples: Vec::new() };
        let (_, walk) = by_image.entry(id).or_insert_with(|| (image.clone(), walk()));
        if *wants_ahead {
            asking.insert((id, walk.samples.len()), (snapshot.key, snapshot.space));
        }
        walk.samples.push(SampledRegisters {
            range: sampled.range,
            file_offset: sampled.file_offset,
            registers: snapshot.registers.to_vec(),
            stack: stack.to_vec(),
            line_addresses: addresses.to_vec(),
            lines: bytes.as_flattened().to_vec(),
            process: snapshot.process,
            thread: snapshot.thread,
            until_next_ns: *until_next_ns,
            wants_ahead: *wants_ahead,
        });
        wipe(snapshot);
    }
    for (image, walk) in by_image.into_values() {
        let samples = walk.samples.len() as u64;
        let Some(walked) = inspectors.ask(walk) else {
            batch.unresolved += samples;
            continue;
        };
        let Walked { edges, rounds, outcomes, times, accesses, unresolved, fruitful, ahead } =
            walked;
        batch.unresolved += unresolved;
        batch.fruitful += fruitful;
        for (number, words) in ahead {
            let mut program: AheadWords = [0; AHEAD_OPERATIONS_MAX];
            program.iter_mut().zip(words).for_each(|(to, word)| *to = word);
            batch.ahead.extend(asking.get(&(image.id, number)).map(|key| (*key, program)));
        }
        let observed = |measure, observation, times| Observed {
            image: image.clone(),
            measure,
            observation,
            times,
        };
        for WalkedEdge { from, to, first, all } in edges {
            let pair = Observation::Pair(ImageOffset(from), ImageOffset(to));
            batch.observed.push(observed(&EDGES, pair, all));
            if first > 0 {
                batch.observed.push(observed(&FIRST_EDGES, pair, first));
            }
        }
        let value = |(branch, value)| Observation::Value(ImageOffset(branch), value);
        batch.observed.extend(rounds.into_iter().map(|round| observed(&ROUNDS, value(round), 1)));
        batch.observed.extend(times.into_iter().map(|time| observed(&TIMES, value(time), 1)));
        let access = |(at, number, times)| observed(&ACCESSES, value((at, number)), times);
        batch.observed.extend(accesses.into_iter().map(access));
        let outcome = |(branch, number, times)| observed(&OUTCOMES, value((branch, number)), times);
        batch.observed.extend(outcomes.into_iter().map(outcome));
    }
    batch.cpu_ns = cpu_ns().saturating_sub(begun_ns);
    batch
}

fn wipe(snapshot: &mut Snapshot) {
    // `black_box` keeps the compiler from leaving out a write that nothing reads.
    *std::hint::black_box(snapshot) = Snapshot::EMPTY;
}

/// Whether a program that reads ahead is to be asked for, with one more snapshot of a place.
fn wants_ahead(
    places: &mut HashMap<AheadKey, u32, foldhash::fast::RandomState>,
    snapshot: &Snapshot,
) -> bool {
    if places.len() >= PLACES_MAX {
        places.clear();
    }
    let times = places.entry((snapshot.key, snapshot.space)).or_default();
    *times = times.saturating_add(1);
    // 1, 4, 16, 64...
    times.is_power_of_two() && times.trailing_zeros().is_multiple_of(2)
}

/// The place of a snapshot.
struct Sampled {
    image: Arc<Image>,
    file: FileAt,
    /// Addresses of the mapping, as the sampled process has it.
    range: (u64, u64),
    /// File offset that its first byte shows.
    file_offset: u64,
}

/// The place of a snapshot; None where it is in no known file, and where its image or process is
/// left out.
fn sampled(snapshot: &Snapshot, mappings: &mut Mappings, window: Window) -> Option<Sampled> {
    let entry = Entry { key: snapshot.key, space: snapshot.space, count: 1 };
    let [.., pc, _] = snapshot.registers;
    let (mapping, at) = match entry.whose() {
        Space::Kernel | Space::KernelScope(_) | Space::Foreign => return None,
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
    let begin = pc.wrapping_sub(entry.pc().checked_sub(mapping.start)?);
    let end = begin.checked_add(mapping.end - mapping.start)?;
    let file = mapping.file.at(at);
    Some(Sampled { image, file, range: (begin, end), file_offset: mapping.file_offset })
}
