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
pub mod attributes;
mod charges;
mod outcomes;
mod placed;
mod registers;
mod rules;
pub mod runtimes;
mod walked;
mod walking;

pub use outcomes::{Outcomes, Totals};
pub use runtimes::NamedCode;
pub use walked::WalkedStack;
use walking::{Copies, walk};

use crate::sample_source::Order;
use crate::walk_cost::WalkCost;
use abi::{Entry, RuntimeLayout, Space, StackKind, StackRecord};
use address_spaces::mappings::{Mappings, Window};
use address_spaces::users::Payer;
use answers::without_answer;
use attributes::AttributeLooks;
use charges::Charges;
use inspect::pool::Inspectors;
use kernel::{RawStack, StacksTaken};
use model::{Attributes, Cut, KeptAttributes};
use placed::{PlacedStack, own_program, placed, program_of};
use registers::dwarf_registers;
use rules::{LearntRules, Rules};
use runtimes::{Looks, Marked};
use std::collections::HashMap;
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
    /// The attributes of threads that are kept.
    pub attributes: KeptAttributes,
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
            attributes: KeptAttributes::default(),
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
        let mut named_code: HashMap<u32, (bool, bool)> = HashMap::new();
        for raw in held {
            let space = raw.record.space;
            let pid = process_of(&raw.record).0;
            let payer = *payers.entry(space).or_insert_with(|| mappings.payer(pid));
            let mut stack = placed(raw, payer, mappings, window);
            if own.is_some() && stack.program_file() == own {
                continue;
            }
            // Of a stack without a map it is not known.
            if stack.space.is_some() {
                let known = named_code.entry(space).or_insert_with(|| stack.maps_named_code());
                (stack.has_named_code, stack.needs_words) = *known;
            }
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
            self.thread = Thread::start(self.inspectors.clone(), self.attributes)
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
        let (runs, functions, attributes) = (Vec::new(), Arc::default(), Attributes::default());
        Some(WalkedStack { record, kernel, user, runs, functions, attributes, cut, space })
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
    fn start(inspectors: Inspectors, attributes: KeptAttributes) -> std::io::Result<Self> {
        let (jobs, queue) = mpsc::sync_channel::<Vec<PlacedStack>>(QUEUE);
        let (sender, done) = mpsc::channel();
        std::thread::Builder::new().name("stacks".into()).spawn(move || {
            let copies = match Copies::new() {
                Ok(copies) => copies,
                Err(error) => return tracing::error!("no call stacks: memory for them: {error}"),
            };
            let mut looks = (Looks::default(), AttributeLooks::default(), attributes);
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
