//! Call stacks at some of the samples. The sampler walks most of them by rules of frames. The
//! others have registers and a copy of part of the stack, and are walked by an inspector
//! (`daemon/inspect/src/stack_walks.rs`), which tells the rules that it met: the sampler is given
//! them ([`CallStacks::take_rules`]).
//!
//! The walk needs what the process had mapped, which the records of mappings tell. So a look takes
//! the stacks first and applies the records second, and gives each stack the map of its process as
//! it is then; the process may end before it is walked. Names and images come last, on the loop,
//! from the same map.
//!
//! Registers and stacks are private to their processes. They stay in the memory of this process and
//! of an inspector, are wiped once they are walked, and are written nowhere.

mod answers;
mod charges;
mod outcomes;
mod placed;
mod registers;
mod rules;
pub mod runtimes;
mod walked;

pub use outcomes::{Outcomes, Totals};
pub use runtimes::NamedCode;
pub use walked::WalkedStack;

use crate::sample_source::Order;
use crate::walk_cost::WalkCost;
use abi::{Entry, RuntimeLayout, Space, StackKind, StackRecord};
use address_spaces::mappings::{Mappings, Window};
use address_spaces::users::Payer;
use answers::{asks, cut_of, differs, walked, without_answer};
use charges::Charges;
use inspect::pool::Inspectors;
use inspect::questions::{SampledStack, Unwind, Unwound, UnwoundStack};
use kernel::clock;
use kernel::{RawStack, StacksTaken};
use model::Cut;
use placed::{PlacedStack, mapped_code, own_program, placed, program_of};
use registers::dwarf_registers;
use rules::{LearntRules, Rules};
use runtimes::{Looks, Marked};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::time::{Duration, Instant};

/// Most stacks that are held between two looks; further ones are dropped. A CPU's ring has room for
/// 300 of the smallest.
const HELD_MAX: usize = 1024;
/// Most bytes of copies that are held between two looks, or wait for the walker. Further stacks
/// lose theirs, and keep the frames that the sampler has walked: dropping them would make deep
/// stacks seem rarer than they are.
const HELD_BYTES_MAX: usize = 8 << 20;
/// Time in which the sampler takes a stack without its user frames, walks one of these, and copies
/// a stack, in ns: by the kernel's statistics of BPF programs, on a virtual machine.
const TAKE_NS: u64 = 2000;
const FRAME_NS: u64 = 500;
const COPY_NS: u64 = 5000;
/// Batches that wait for the walker; stacks of further ones keep the frames that are known.
const QUEUE: usize = 4;
/// Longest time that stacks wait for others to be walked with: a question to an inspector costs as
/// much as walking several stacks of one process.
const WALK_EVERY: Duration = Duration::from_millis(250);
/// Stacks, and bytes of them, that wait for no others.
const WALK_MANY: (usize, usize) = (256, 1 << 20);
/// Time between two looks at the rings: a CPU at work fills a ring within 0.1 s, one without work
/// never.
const LOOK_WITHIN: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(400));
/// Part of a ring that may be filled at a look, before looks come sooner.
const FILL_MAX: f64 = 0.4;
/// Time that a drain waits for stacks that are being walked.
const PATIENCE: Duration = Duration::from_millis(50);
/// Bytes of the file shared with the inspector that stay in memory between two looks.
const COPIES_BYTES_KEPT: u64 = 1 << 20;
/// Most programs with separate outcomes.
const PROGRAMS_MAX: usize = 256;
/// Most mappings of a process that are sent with its stacks; code in further mappings has no
/// frames.
const MAPPED_MAX: usize = 4096;

/// The stacks of a batch that were walked.
#[derive(Default)]
struct Batch {
    stacks: Vec<WalkedStack>,
    /// Rules of frames that were met.
    rules: Vec<LearntRules>,
    /// Stacks that the inspector has walked, and those that the sampler has walked otherwise.
    by_inspector: u64,
    differing: u64,
    /// Address spaces in which frames of runtimes were found, and where.
    runtimes: Vec<(u32, RuntimeLayout, Payer)>,
    /// Generated code of named functions.
    codes: Vec<NamedCode>,
    /// Stacks whose frames of Python do not fit the native ones.
    python_differs: u64,
    cpu_ns: u64,
    /// Stacks of users, and the CPU time of walking them, ns.
    charges: Vec<(Payer, u64, u64)>,
}

/// The thread that has stacks walked, and the number of batches that it has not given back.
struct Thread {
    jobs: SyncSender<Vec<PlacedStack>>,
    done: Receiver<Batch>,
    outstanding: usize,
}

/// Takes stacks, has them walked, and gives them back.
pub struct CallStacks {
    held: Vec<RawStack>,
    /// Stacks with their maps, until they are many or old enough to be walked.
    placed: Vec<PlacedStack>,
    placed_since: Option<Instant>,
    /// Ends of waits.
    ends: Vec<StackRecord>,
    /// Waits of threads without a place for their times, which the caller takes.
    pub crowded: u64,
    inspectors: Inspectors,
    thread: Option<Thread>,
    /// Stacks of batches that found no room.
    unwalked: Vec<WalkedStack>,
    rules: Rules,
    /// Rules that are not yet passed on to the sampler.
    learnt: Vec<LearntRules>,
    /// Processes whose frames of runtimes the sampler copies.
    marked: Marked,
    /// Generated code of named functions that was not asked for yet.
    codes: Vec<NamedCode>,
    /// Changes of these that are not yet passed on to the sampler.
    runtimes: Vec<(u32, Option<RuntimeLayout>)>,
    look_within: Duration,
    /// Outcomes by file name of the program.
    programs: HashMap<String, Outcomes>,
    charges: Charges,
    /// Begins of waits whose stacks were dropped.
    waits_dropped: Vec<StackRecord>,
    own_program: Option<(u64, u64)>,
    /// Outcomes of all stacks so far.
    pub totals: Totals,
}

impl CallStacks {
    /// No stacks yet.
    pub fn new(inspectors: Inspectors) -> Self {
        Self {
            held: Vec::new(),
            placed: Vec::new(),
            placed_since: None,
            ends: Vec::new(),
            crowded: 0,
            inspectors,
            thread: None,
            unwalked: Vec::new(),
            rules: Rules::default(),
            learnt: Vec::new(),
            marked: Marked::default(),
            codes: Vec::new(),
            runtimes: Vec::new(),
            look_within: LOOK_WITHIN.1,
            programs: HashMap::new(),
            charges: Charges::default(),
            waits_dropped: Vec::new(),
            own_program: own_program(),
            totals: Totals::default(),
        }
    }

    /// Holds the stacks that `read` moves into the buffer.
    pub fn hold(&mut self, read: impl FnOnce(&mut Vec<RawStack>) -> StacksTaken) {
        let before = self.held.len();
        let StacksTaken { dropped, crowded, fill } = read(&mut self.held);
        self.totals.dropped += dropped;
        self.crowded += crowded;
        self.look_within = match fill {
            FILL_MAX.. => self.look_within.mul_f64(FILL_MAX / 2.0 / fill),
            _ if fill < FILL_MAX / 4.0 => self.look_within * 2,
            _ => self.look_within,
        };
        let (soonest, latest) = LOOK_WITHIN;
        self.look_within = self.look_within.clamp(soonest, latest);
        let ends = [StackKind::WaitEnd as u32, StackKind::LongWait as u32];
        let is_end = |raw: &mut RawStack| ends.contains(&raw.record.kind);
        self.ends.extend(self.held.extract_if(before.., is_end).map(|raw| raw.record));
        let new = self.held.get(before..).unwrap_or_default();
        self.totals.taken += new.len() as u64;
        self.totals.sampler_frames += new.iter().map(|stack| stack.user.len() as u64).sum::<u64>();
        self.totals.bytes += new.iter().map(|stack| stack.stack.len() as u64).sum::<u64>();
        let dropped = self.held.split_off(self.held.len().min(HELD_MAX));
        self.drop(dropped.into_iter().map(|raw| raw.record));
        let mut bytes = 0;
        for stack in &mut self.held {
            bytes += stack.stack.len();
            if bytes > HELD_BYTES_MAX {
                stack.lose_copy();
            }
        }
    }

    /// Longest time until the rings should be looked at again.
    pub fn look_within(&self) -> Duration {
        self.look_within
    }

    /// Whether stacks are held.
    pub fn is_holding(&self) -> bool {
        !self.held.is_empty() || !self.placed.is_empty()
    }

    /// The ends of waits that came since the last call.
    pub fn take_ends(&mut self) -> Vec<StackRecord> {
        std::mem::take(&mut self.ends)
    }

    /// Gives the stacks that are held, and were taken in `window`, their maps, and has them walked
    /// with those before them at a drain, or once they are many or `WALK_EVERY` old. All records
    /// of that window are applied to `mappings`.
    pub fn walk(&mut self, mappings: &mut Mappings, window: Window, is_drain: bool) {
        let held = std::mem::take(&mut self.held);
        let own = self.own_program;
        let mut payers: HashMap<u32, Payer> = HashMap::new();
        let mut named_code: HashMap<u32, bool> = HashMap::new();
        for raw in held {
            let space = raw.record.space;
            let pid = process_of(&raw.record).0;
            let payer = *payers.entry(space).or_insert_with(|| mappings.payer(pid));
            let mut stack = placed(raw, payer, mappings, window);
            if own.is_some() && stack.program_file() == own {
                continue;
            }
            let has_named_code = named_code.entry(space).or_insert_with(|| stack.maps_named_code());
            stack.has_named_code = *has_named_code;
            // Waits have a part of the budget and a pace of their own.
            if stack.raw.record.kind == StackKind::Sample as u32 {
                let every = self.charges.taken(payer);
                if every > 1 && fastrand::u32(..every) > 0 {
                    self.totals.thinned += 1;
                    continue;
                }
                let weight = &mut stack.raw.record.weight;
                *weight = weight.saturating_mul(every);
            }
            self.runtimes.extend(self.marked.sampled(space, payer));
            self.placed.push(stack);
        }
        if self.placed.is_empty() {
            return;
        }
        let bytes: usize = self.placed.iter().map(|stack| stack.raw.stack.len()).sum();
        let since = *self.placed_since.get_or_insert_with(Instant::now);
        let is_due = self.placed.len() >= WALK_MANY.0 || bytes >= WALK_MANY.1;
        if !is_drain && !is_due && since.elapsed() < WALK_EVERY {
            return;
        }
        self.placed_since = None;
        if self.thread.is_none() {
            self.thread = Thread::start(self.inspectors.clone())
                .inspect_err(|error| tracing::error!("no call stacks: {error}"))
                .ok();
        }
        let jobs = std::mem::take(&mut self.placed);
        let refused = match &mut self.thread {
            None => jobs,
            Some(thread) => match thread.jobs.try_send(jobs) {
                Ok(()) => {
                    thread.outstanding += 1;
                    return;
                }
                Err(TrySendError::Full(refused) | TrySendError::Disconnected(refused)) => refused,
            },
        };
        self.unwalked.extend(refused.into_iter().map(|job| without_answer(job, Arc::default())));
    }

    /// The frames of a wait that was seen: those in the kernel, and the user code that called it.
    /// None for dcpid's own.
    pub fn seen(
        &self,
        raw: RawStack,
        mappings: &mut Mappings,
        window: Window,
    ) -> Option<WalkedStack> {
        let stack = placed(raw, Payer::Nobody, mappings, window);
        if self.own_program.is_some() && stack.program_file() == self.own_program {
            return None;
        }
        let PlacedStack { mut raw, space, .. } = stack;
        let has_user = raw.record.user == abi::USER_REGISTERS;
        let pc = has_user.then(|| dwarf_registers(&raw.record).last().copied()).flatten();
        let cut = (raw.record.user != abi::USER_NONE).then_some(Cut::SeenWaiting);
        let kernel = std::mem::take(&mut raw.kernel);
        raw.wipe();
        let (record, user) = (raw.record, pc.into_iter().collect());
        let (runs, functions) = (Vec::new(), Arc::default());
        Some(WalkedStack { record, kernel, user, runs, functions, cut, space })
    }

    /// Counts stacks that are not walked, and keeps what is told of waits: they have their time.
    fn drop(&mut self, records: impl Iterator<Item = StackRecord>) {
        for record in records {
            self.totals.dropped += 1;
            if record.kind == StackKind::Wait as u32 {
                self.waits_dropped.push(record);
            }
        }
    }

    /// The begins of waits whose stacks were dropped since the last call.
    pub fn take_waits_dropped(&mut self) -> Vec<StackRecord> {
        std::mem::take(&mut self.waits_dropped)
    }

    /// The stacks that were walked since the last call. A drain waits for those that are about to
    /// be.
    pub fn take_walked(&mut self, is_drain: bool) -> Vec<WalkedStack> {
        let mut walked = std::mem::take(&mut self.unwalked);
        while let Some(thread) = self.thread.as_mut().filter(|thread| thread.outstanding > 0) {
            let batch = match is_drain && thread.outstanding == 1 {
                true => thread.done.recv_timeout(PATIENCE).ok(),
                false => thread.done.try_recv().ok(),
            };
            let Some(batch) = batch else { break };
            thread.outstanding -= 1;
            self.totals.cpu_ns += batch.cpu_ns;
            self.learnt.extend(batch.rules);
            self.totals.by_inspector += batch.by_inspector;
            self.totals.differing += batch.differing;
            walked.extend(batch.stacks);
            self.totals.named_differs += batch.python_differs;
            self.codes.extend(batch.codes);
            for (space, layout, payer) in batch.runtimes {
                self.runtimes.extend(self.marked.mark(space, layout, payer));
            }
            for (payer, stacks, ns) in batch.charges {
                self.charges.walked(payer, stacks, ns);
            }
        }
        for stack in &walked {
            self.totals.by_sampler += u64::from(stack.record.user == abi::USER_WALKED);
            self.totals.named += u64::from(!stack.runs.is_empty());
            self.totals.frames += (stack.user.len() + stack.kernel.len()) as u64;
            self.totals.outcomes.count(stack.cut);
            let map = stack.space.as_ref().map(|(map, _)| map.as_ref());
            let Some(program) = map.and_then(program_of) else { continue };
            let (name, _) = program.file.shown();
            if self.programs.len() < PROGRAMS_MAX || self.programs.contains_key(&name) {
                self.programs.entry(name).or_default().count(stack.cut);
            }
        }
        walked
    }

    /// Orders by which the sampler has the rules of frames that were learnt since the last call.
    pub fn take_rules(&mut self, mappings: &Mappings) -> Vec<Order> {
        let learnt = std::mem::take(&mut self.learnt);
        let now = Instant::now();
        learnt.iter().flat_map(|learnt| self.rules.orders(learnt, mappings, now)).collect()
    }

    /// Address spaces for which the sampler should start or stop copying frames of runtimes.
    pub fn take_runtimes(&mut self) -> Vec<(u32, Option<RuntimeLayout>)> {
        std::mem::take(&mut self.runtimes)
    }

    /// Generated code whose function was told since the last call.
    pub fn take_codes(&mut self) -> Vec<NamedCode> {
        std::mem::take(&mut self.codes)
    }

    /// Notes that a process has ended, or runs a program that has this generation.
    pub fn end_program(&mut self, pid: u32, generation: Option<u16>) {
        let space = self.marked.unmark(pid, generation);
        self.runtimes.extend(space.map(|space| (space, None)));
    }

    /// Programs, each with the outcomes of its stacks.
    pub fn programs(&self) -> impl Iterator<Item = (&str, &Outcomes)> {
        self.programs.iter().map(|(program, outcomes)| (program.as_str(), outcomes))
    }

    /// Shares what walks may cost among users: `ns_per_s`, where `more` times as many stacks were
    /// taken if they cost nothing.
    pub fn share(&mut self, ns_per_s: f64, more: f64) {
        self.charges.share(Instant::now(), ns_per_s, more);
    }

    /// Processes whose frames of runtimes are not copied, since others were sampled later.
    pub fn runtimes_without(&self) -> u64 {
        self.marked.without() as u64
    }

    /// The cost of all walks so far. Stacks that others stand for cost nothing.
    pub fn walk_cost(&self) -> WalkCost {
        let walked = self.totals.outcomes.all() + self.totals.thinned;
        let Totals { by_inspector, sampler_frames, .. } = self.totals;
        let sampler_ns = walked * TAKE_NS + sampler_frames * FRAME_NS + by_inspector * COPY_NS;
        WalkCost { walked, cpu_ns: self.totals.cpu_ns, sampler_ns }
    }
}

impl Thread {
    fn start(inspectors: Inspectors) -> std::io::Result<Self> {
        let (jobs, queue) = mpsc::sync_channel::<Vec<PlacedStack>>(QUEUE);
        let (sender, done) = mpsc::channel();
        std::thread::Builder::new().name("stacks".into()).spawn(move || {
            let copies = match Copies::new() {
                Ok(copies) => copies,
                Err(error) => return tracing::error!("no call stacks: memory for them: {error}"),
            };
            let mut looks = Looks::default();
            while let Ok(jobs) = queue.recv() {
                if sender.send(walk(jobs, &inspectors, &copies, &mut looks)).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { jobs, done, outstanding: 0 })
    }
}

/// Process and generation of a record; 0: a process that this pid namespace cannot see.
pub fn process_of(record: &StackRecord) -> (u32, u16) {
    process_of_space(record.space)
}

/// Likewise of an address space.
pub fn process_of_space(space: u32) -> (u32, u16) {
    match Entry::new(0, 0, space, 1).whose() {
        Space::Process { pid, generation } => (pid, generation),
        _ => (0, 0),
    }
}

/// A file in memory that this process shares with its inspector.
struct Copies(File);

impl Copies {
    fn new() -> std::io::Result<Self> {
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        Ok(Self(File::from(rustix::fs::memfd_create("stacks", flags)?)))
    }

    /// As an inspector finds it.
    fn named(&self) -> (u32, i32) {
        (std::process::id(), self.0.as_raw_fd())
    }

    fn write(&self, at: u64, stack: &[u8]) -> bool {
        self.0.write_all_at(stack, at).is_ok()
    }

    /// Overwrites its first `len` bytes.
    fn wipe(&self, len: u64) {
        static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
        let mut at = 0;
        while at < len {
            let piece = ZEROS.get(..(len - at).min(ZEROS.len() as u64) as usize);
            let piece = piece.unwrap_or_default();
            if self.0.write_all_at(piece, at).is_err() {
                return;
            }
            at += piece.len() as u64;
        }
        if len > COPIES_BYTES_KEPT {
            let _ = self.0.set_len(0); // what is left behind is zeros
        }
    }
}

/// Has the stacks walked, those of one address space together.
fn walk(
    jobs: Vec<PlacedStack>,
    inspectors: &Inspectors,
    copies: &Copies,
    looks: &mut Looks,
) -> Batch {
    let cpu_ns = || clock::thread_cpu_ns() + inspectors.own_cpu_ns();
    let begun_ns = cpu_ns();
    let mut batch = Batch::default();
    let mut by_space: BTreeMap<(u32, usize), Vec<PlacedStack>> = BTreeMap::new();
    for job in jobs {
        let map = job.space.as_ref().map_or(0, |(map, _)| Arc::as_ptr(map) as usize);
        by_space.entry((job.raw.record.space, map)).or_default().push(job);
    }
    let mut before_ns = begun_ns;
    for ((space, _), jobs) in by_space {
        let (payer, stacks) = (jobs.first().map(|job| job.payer), jobs.len() as u64);
        walk_space(space, jobs, (inspectors, copies), looks, &mut batch);
        let now_ns = cpu_ns();
        let ns = now_ns.saturating_sub(std::mem::replace(&mut before_ns, now_ns));
        batch.charges.extend(payer.map(|payer| (payer, stacks, ns)));
    }
    batch.cpu_ns = cpu_ns().saturating_sub(begun_ns);
    batch
}

fn walk_space(
    space: u32,
    jobs: Vec<PlacedStack>,
    (inspectors, copies): (&Inspectors, &Copies),
    looks: &mut Looks,
    batch: &mut Batch,
) {
    let pid = jobs.first().map_or(0, |job| process_of(&job.raw.record).0);
    let payer = jobs.first().map_or(Payer::Unknown, |job| job.payer);
    let first = jobs.iter().find_map(|job| Some((job.space.as_ref()?, job.program.as_ref())));
    let now = Instant::now();
    let looks_for_runtime = first.is_some_and(|((map, _), _)| looks.wants(space, map, now))
        || jobs.iter().any(PlacedStack::lacks_words);
    let mut end = 0;
    let stacks: Vec<SampledStack> = jobs
        .iter()
        .filter_map(|job| Some((job, asks(job)?)))
        .map(|(job, to_walk)| {
            let (at, stack) = (end, job.raw.stack.as_slice());
            let len = if copies.write(at, stack) { stack.len() } else { 0 };
            end += len as u64;
            let registers = dwarf_registers(&job.raw.record);
            let python = &job.raw.python;
            let python = python.iter().map(|it| [it.code, it.instruction, it.flags]).collect();
            let noted = job.raw.runtime.iter().map(|frame| (frame.number, frame.words)).collect();
            let (begin, walked, len) = (job.raw.record.begin, job.raw.user.clone(), len as u32);
            SampledStack { registers, begin, at, len, walked, to_walk, python, noted }
        })
        .collect();
    let unwound = match first {
        Some(((map, _), program)) if !stacks.is_empty() || looks_for_runtime => {
            let (map, copies) = (mapped_code(pid, map, program), copies.named());
            inspectors.ask(Unwind { pid, space, map, looks_for_runtime, copies, stacks })
        }
        _ => None,
    };
    copies.wipe(end);
    // A question without an answer is no look: on a busy host the next ones would come ever later.
    let is_looked = looks_for_runtime && unwound.is_some();
    let Unwound { stacks, functions, codes, runtime, rules } = unwound.unwrap_or_default();
    batch.codes.extend(NamedCode::of(space, &codes, &functions));
    if is_looked {
        tracing::debug!(pid, ?runtime, "looked for a runtime");
        let layout = looks.note(space, runtime, now);
        batch.runtimes.extend(layout.map(|layout| (space, layout, payer)));
    }
    batch.rules.extend(LearntRules::of(&jobs, rules));
    let functions = Arc::new(functions);
    let mut stacks = stacks.into_iter();
    for job in jobs {
        let answer = asks(&job).and_then(|_| stacks.next());
        let Some(answer) = answer else {
            batch.stacks.push(without_answer(job, functions.clone()));
            continue;
        };
        let UnwoundStack { mut addresses, end, runs, python_differs } = answer;
        batch.python_differs += u64::from(python_differs);
        batch.by_inspector += u64::from(job.raw.record.user != abi::USER_WALKED);
        batch.differing += u64::from(differs(&job, &addresses, end));
        // A stack that found no room for its copy has the frames that the sampler has walked.
        if addresses.len() < job.raw.user.len() && runs.is_empty() {
            addresses.clone_from(&job.raw.user);
        }
        batch.stacks.push(walked(job, addresses, cut_of(end), (runs, functions.clone())));
    }
}
