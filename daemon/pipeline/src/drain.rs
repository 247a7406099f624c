//! One drain: takes the counts out of the source, applies the records in order of time, and
//! attributes every sample to its image or to a reason.

use crate::cpu_ledger::CpuLedgers;
use crate::resolve::{Spaces, coalesce};
use crate::watches::Watches;
use abi::{Entry, StackKind};
use address_spaces::kernel_text::KernelText;
use address_spaces::library::Library;
use address_spaces::loader_notices::Notices;
use address_spaces::mapped_files::Image;
use address_spaces::mappings::{LabelError, Mappings, Window};
use address_spaces::system::System;
use inspect::pool::THREAD_PATIENCE;
use kernel::{Drained, RecordKind, TimedRecord};
use model::Loss;
use pending::Pending;
use pending::ledger::Account;
use profiledb::PeriodChange;
use sampling::branch_edges::Edges;
use sampling::call_stacks::{CallStacks, NamedCode, WalkedStack, process_of, process_of_space};
use sampling::recording::steps::Step;
use sampling::recording::tape::Tape;
use sampling::sample_source::{Order, SampleSource, Steered};
use sampling::waits::{self, CountedWait, Waits};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::Registration;

/// Most records kept between drains. Further records stay in the kernel's rings, which drop and
/// count what does not fit.
const HELD_MAX: usize = 200_000;

/// Fill level of a spill buffer, 0 to 1, above which a drain comes early. The rest has to last
/// until the next look: a higher level loses samples in a storm, a lower one drains too often.
const SPILL_USED_MAX: f64 = 0.7;
/// Ended processes since the last drain above which a drain comes early: their mappings stay in
/// memory until their samples have been drained.
const ENDED_MAX: usize = 4096;

/// Time in ns after the mapping of a new file in which drains come early: the code and the
/// generated names of a process can only be read while it lives.
const NEWS_NS: u64 = 3_000_000_000;
/// Time between drains, in ns, in the time of [`NEWS_NS`].
const NEWS_DRAIN_NS: u64 = 1_000_000_000;
/// Records in a drain above which their memory is returned to the kernel afterwards. The records
/// are small pieces between others that stay, so the allocator would keep it.
const RECORDS_MANY: usize = 30_000;

/// The part of a collector in a recording or a replay. The default has neither.
pub struct Replay {
    /// Answers questions about processes and files.
    pub system: System,
    /// Keeps the steps of a recording.
    pub tape: Tape,
    /// Random number of this run, which distinguishes its images of generated code from those of
    /// other runs.
    pub run: u64,
}

impl Default for Replay {
    fn default() -> Self {
        Self { system: System::default(), tape: Tape::default(), run: fastrand::u64(..) }
    }
}

/// The instruments beside the counts.
pub struct Instruments {
    /// Edges from snapshots of registers.
    pub edges: Edges,
    /// Call stacks that are being walked.
    pub call_stacks: CallStacks,
    /// Waits of threads that go on.
    pub waits: Waits,
}

/// Records that were read out of the kernel's rings, and what they say of the next drain.
#[derive(Default)]
struct HeldRecords {
    /// Records later than the last drain, for the next one.
    held: Vec<TimedRecord>,
    /// Processes that ended since the last drain.
    ended: usize,
    /// Time when a file was last mapped that no process had mapped before.
    news_ns: Option<u64>,
    /// Whether the last records had one of throttling.
    saw_throttle: bool,
    /// Records that were applied since the last drain.
    applied: usize,
}

/// Counters of the samplers' tables over all drains.
#[derive(Clone, Copy, Default)]
pub struct TableCounts {
    /// Samples that found no entry of theirs.
    pub misses: u64,
    /// Distinct places of all drains, summed up.
    pub places: u64,
}

/// The state between drains.
pub struct Collector<Source> {
    source: Source,
    /// Processes, mappings and images: whose a sample is.
    pub spaces: Spaces,
    /// Edges, call stacks and waits.
    pub instruments: Instruments,
    records: HeldRecords,
    /// Notices of the loader hook.
    pub notices: Notices,
    /// The recording under way.
    pub tape: Tape,
    /// Counts that wait for the next merge.
    pub pending: Pending,
    /// Samples by CPU.
    pub cpus: CpuLedgers,
    /// Misses and places of the samplers' tables.
    pub table: TableCounts,
    /// Clients that watch the counts.
    pub watches: Watches,
    /// Time before the first half of the last drain was taken.
    drained_from_ns: u64,
    // These are kept for their memory.
    entries: Vec<Entry>,
}

impl<Source: SampleSource> Collector<Source> {
    /// A collector that knows all running processes; images are looked up in `library`. The
    /// source's records must flow already, so that no mapping falls between records and scan.
    pub fn new(
        source: Source,
        kernel: KernelText,
        vdso: Option<Arc<Image>>,
        periods: &[u64],
        library: Library,
        replay: Replay,
    ) -> Self {
        let now_ns = source.now_ns();
        let mut mappings = Mappings::default();
        mappings.files.library = library;
        let Replay { system, tape, run } = replay;
        (mappings.system, mappings.files.system) = (system.clone(), system.clone());
        mappings.scan(now_ns);
        let inspectors = || system.inspectors().another(THREAD_PATIENCE);
        Self {
            source,
            spaces: Spaces::new(mappings, kernel, vdso, run),
            instruments: Instruments {
                edges: Edges::new(tape.clone(), inspectors()),
                call_stacks: CallStacks::new(inspectors()),
                waits: Waits::default(),
            },
            records: HeldRecords::default(),
            notices: Notices::default(),
            tape,
            pending: Pending::new(periods.iter().copied()),
            cpus: CpuLedgers::default(),
            table: TableCounts::default(),
            watches: Watches::default(),
            drained_from_ns: now_ns,
            entries: Vec::new(),
        }
    }

    /// Adds the notices of the loader hook.
    #[must_use]
    pub fn hearing(self, notices: Notices) -> Self {
        let notices = notices.asking(self.spaces.mappings.system.clone());
        Self { notices, ..self }
    }

    /// Takes the records out of the kernel's rings, which a storm of mappings can fill between two
    /// drains. Returns their number.
    pub fn collect_records(&mut self) -> usize {
        let known = self.records.held.len();
        if known < HELD_MAX {
            self.read_records();
        }
        self.instruments.edges.hold(|into| self.source.snapshots(into));
        self.instruments.call_stacks.hold(|into| self.source.stacks(into));
        let ended = self.records.held.get(known..).unwrap_or_default();
        self.records.ended +=
            ended.iter().filter(|record| matches!(record.kind, RecordKind::Exit { .. })).count();
        self.records.held.len() - known
    }

    /// Whether the rings should be read again soon: a spill buffer fills fast, a new file makes a
    /// drain near, or throttled events wait to be revived.
    pub fn is_watchful(&self) -> bool {
        self.has_news()
            || self.records.saw_throttle
            || self.source.spill_used() > SPILL_USED_MAX / 4.0
    }

    fn has_news(&self) -> bool {
        self.records.news_ns.is_some_and(|news| self.source.now_ns() < news + NEWS_NS)
    }

    /// Whether the next drain should come early.
    pub fn wants_drain(&self) -> bool {
        let news = self.has_news() && self.source.now_ns() >= self.drained_from_ns + NEWS_DRAIN_NS;
        let records = self.records.held.len() + self.records.applied;
        news || self.records.ended > ENDED_MAX
            || records >= HELD_MAX / 4
            || self.source.spill_used() > SPILL_USED_MAX
    }

    /// Interprets snapshots, where many are held, and has call stacks walked. The tables wait for
    /// their drain, so the records that are read here belong to its window.
    pub fn follow_branches(&mut self) {
        let (edges_are_many, holds_stacks) =
            (self.instruments.edges.are_many(), self.instruments.call_stacks.is_holding());
        if !edges_are_many && !holds_stacks {
            return;
        }
        let window = Window { from_ns: self.drained_from_ns, to_ns: self.source.now_ns() };
        self.apply_records(window);
        self.instruments.call_stacks.walk(&mut self.spaces.mappings, window, false);
        if edges_are_many {
            self.interpret_snapshots(window);
        }
        self.watched(|this| this.count_stacks(window, false));
    }

    fn interpret_snapshots(&mut self, window: Window) {
        let (mappings, pending) = (&mut self.spaces.mappings, &mut self.pending);
        if let Some(order) = self.instruments.edges.interpret(mappings, window, pending) {
            self.source.steer(order);
        }
    }

    /// Counts the call stacks that were walked meanwhile.
    fn count_stacks(&mut self, window: Window, is_drain: bool) {
        self.instruments
            .call_stacks
            .take_ends()
            .iter()
            .for_each(|end| self.instruments.waits.end(end));
        let crowded = std::mem::take(&mut self.instruments.call_stacks.crowded);
        self.instruments.waits.totals.lost += crowded;
        let mut walked = self.instruments.call_stacks.take_walked(is_drain);
        let is_wait = |stack: &mut WalkedStack| stack.record.kind == StackKind::Wait as u32;
        walked.extract_if(.., is_wait).for_each(|stack| self.instruments.waits.begin(stack));
        for record in self.instruments.call_stacks.take_waits_dropped() {
            self.instruments.waits.begin(waits::without_stack(record));
        }
        self.count_waits(window);
        // Before the rules, by which the sampler walks frames whose words it would not note.
        for (space, layout) in self.instruments.call_stacks.take_runtimes() {
            self.source.steer(Order::Runtime { space, layout });
        }
        for order in self.instruments.call_stacks.take_rules(&self.spaces.mappings) {
            self.source.steer(order);
        }
        for NamedCode { space, piece, name } in self.instruments.call_stacks.take_codes() {
            self.spaces.jit.learn(process_of_space(space), window.to_ns, piece, &name);
        }
        if walked.is_empty() {
            return;
        }
        self.tape.note(|| Step::Stacks(walked.iter().map(WalkedStack::stored).collect()));
        self.resolve_stacks(walked, window);
    }

    /// Counts call stacks of a recording.
    pub fn count_restored_stacks(&mut self, mut stacks: Vec<WalkedStack>) {
        let window = Window { from_ns: self.drained_from_ns, to_ns: self.source.now_ns() };
        for stack in &mut stacks {
            let (process, time_ns) = (process_of(&stack.record), stack.record.time_ns);
            stack.space = self.spaces.mappings.space_known(process, window, time_ns);
        }
        self.resolve_stacks(stacks, window);
    }

    fn resolve_stacks(&mut self, walked: Vec<WalkedStack>, window: Window) {
        let (mut resolver, pending) = (self.spaces.resolver(window), &mut self.pending);
        let excluded = resolver.resolve_stacks(walked, pending);
        self.instruments.call_stacks.totals.excluded += excluded;
    }

    /// Counts waits that have ended, and what of others has gone by.
    fn count_waits(&mut self, window: Window) {
        let mut waits = std::mem::take(&mut self.instruments.waits);
        let (mut resolver, pending) = (self.spaces.resolver(window), &mut self.pending);
        let thread = kernel::thread_record;
        waits.count(window.to_ns, thread, |wait| resolver.resolve_wait(&wait, pending));
        self.instruments.waits = waits;
    }

    /// Samples waiting threads in a pass over all threads. Each sample counts as a wait of
    /// `covered`, the time that the pass stands for. False where no pass is possible.
    pub fn see_waits(&mut self, covered: Duration) -> bool {
        let mut seen = Vec::new();
        let chosen = self.source.see_waits(waits::SAMPLES, &mut seen);
        let Some(chosen) = chosen else { return false };
        self.instruments.waits.totals.lost += u64::from(chosen) - seen.len() as u64;
        if self.records.held.len() < HELD_MAX {
            self.read_records();
        }
        let window = Window { from_ns: self.drained_from_ns, to_ns: self.source.now_ns() };
        self.apply_records(window);
        let covered_ns = u64::try_from(covered.as_nanos()).unwrap_or(u64::MAX);
        for raw in seen {
            let is_blocked = raw.record.kind == StackKind::SeenBlocked as u32;
            let mappings = &mut self.spaces.mappings;
            let Some(stack) = self.instruments.call_stacks.seen(raw, mappings, window) else {
                continue;
            };
            self.instruments.waits.totals.seen += 1;
            let (blocked_ns, runnable_ns) =
                if is_blocked { (covered_ns, 0) } else { (0, covered_ns) };
            let wait = CountedWait::seen(&stack, blocked_ns, runnable_ns);
            self.spaces.resolver(window).resolve_wait(&wait, &mut self.pending);
        }
        true
    }

    fn read_records(&mut self) {
        let known = self.records.held.len();
        self.source.records(&mut self.records.held);
        let new = self.records.held.get(known..).unwrap_or_default();
        self.spaces.jit.notice(new, self.source.now_ns());
        let throttled: BTreeSet<u32> = new.iter().filter_map(throttled_cpu).collect();
        self.records.saw_throttle = !throttled.is_empty();
        for cpu in throttled {
            self.source.steer(Order::Revive { cpu });
        }
        let were_lost = new.iter().any(|record| matches!(record.kind, RecordKind::Lost { .. }));
        self.spaces.mappings.files.look_anew();
        let mut news = false;
        let new = self.records.held.get_mut(known..).unwrap_or_default();
        new.sort_by_key(|record| record.time_ns);
        for record in new {
            news |= self.spaces.mappings.foresee(record);
        }
        if news {
            self.records.news_ns = Some(self.source.now_ns());
        }
        self.notices.read(were_lost, self.source.now_ns());
    }

    /// Moves everything sampled before the call to `pending`.
    pub fn drain(&mut self) {
        self.watched(Self::drain_to_pending);
    }

    /// Does a step of the work, of which watches see what it counts.
    fn watched(&mut self, step: impl FnOnce(&mut Self)) {
        if !self.watches.any(Instant::now()) {
            return step(self);
        }
        let before = self.pending.take();
        step(self);
        self.watches.note(&self.pending);
        self.pending.absorb(before);
    }

    fn drain_to_pending(&mut self) {
        self.entries.clear();
        self.records.ended = 0;
        let begun_ns = self.source.now_ns();
        let drained = self.source.drain(&mut self.entries);
        self.instruments.edges.hold(|into| self.source.snapshots(into));
        self.instruments.call_stacks.hold(|into| self.source.stacks(into));
        // Samples of the present are in a CPU's other half as soon as that CPU has been drained,
        // before the others are.
        let window = Window { from_ns: self.drained_from_ns, to_ns: self.source.now_ns() };
        self.drained_from_ns = begun_ns;
        if !drained.back.is_empty() {
            // The rings of these CPUs have just been opened; what ran there before left no record.
            let kind = RecordKind::Lost { records: 0 };
            self.records.held.push(TimedRecord { time_ns: window.to_ns, kind });
        }
        self.apply_records(window);
        let records = std::mem::take(&mut self.records.applied);
        self.notices.judge(&mut self.spaces.mappings, window.to_ns);
        for record in std::mem::take(&mut self.spaces.mappings.learnt) {
            self.tape.note(|| Step::Learnt(record));
        }
        self.keep_unmarked_apart();
        self.cpus.book(&drained, window.to_ns);
        coalesce(&mut self.entries);
        self.book(&drained);
        let entries = std::mem::take(&mut self.entries);
        let (mut resolver, pending) = (self.spaces.resolver(window), &mut self.pending);
        let unscoped = resolver.resolve(&entries, pending);
        self.entries = entries;
        for pid in unscoped {
            self.set_kernel_scope(pid);
        }
        self.instruments.call_stacks.walk(&mut self.spaces.mappings, window, true);
        self.interpret_snapshots(window);
        // Otherwise each thread does what it did when it was last followed.
        if self.instruments.waits.scale().is_some() {
            self.instruments.waits.look(|into| {
                self.source.wait_times(into);
                self.source.now_ns()
            });
        }
        self.count_stacks(window, true);
        self.resolve_late(window, false);
        self.spaces.mappings.forget_ended(window);
        for number in self.spaces.mappings.take_disputed() {
            self.source.steer(Order::DisputeNumber { number });
        }
        for number in self.spaces.mappings.take_released() {
            self.source.steer(Order::ReleaseNumber { number });
        }
        self.spaces.jit.forget(&self.spaces.mappings, window.from_ns);
        self.spaces.mappings.repair(window.to_ns);
        self.keep_unmarked_apart();
        if records > RECORDS_MANY {
            kernel::give_back();
        }
        self.spaces.kernel.forget_gone(window.from_ns);
        if self.spaces.kernel.wants_refresh(window.to_ns, kernel::kernel_modules) {
            self.spaces.kernel.refresh(kernel::kernel_symbols().ok(), window.to_ns);
        }
    }

    fn keep_unmarked_apart(&mut self) {
        for pid in self.spaces.mappings.take_unmarked() {
            self.source.steer(Order::KeepApart { pid });
        }
    }

    /// Labels a process from now on; see [`Mappings::label`].
    ///
    /// # Errors
    /// The reason why the process is not labelled.
    pub fn label(
        &mut self,
        pid: u32,
        start_time: Option<u64>,
        label: &str,
        with_children: bool,
    ) -> Result<(), LabelError> {
        self.tape.note(|| Step::Label { pid, start_time, label: label.to_owned(), with_children });
        let (label, now_ns) = ((label, with_children), self.source.now_ns());
        let labelled = self.spaces.mappings.label(pid, start_time, label, now_ns)?;
        for pid in labelled {
            self.source.steer(Order::KeepApart { pid });
            self.set_kernel_scope(pid);
        }
        Ok(())
    }

    /// Counts samples of generated code that has got its name since; with `is_final` those without
    /// name as well, so that nothing waits. The librarian keeps the bytes of all that was counted.
    pub fn resolve_late(&mut self, window: Window, is_final: bool) {
        let (mut resolver, pending) = (self.spaces.resolver(window), &mut self.pending);
        resolver.resolve_late(is_final, pending);
        self.spaces.jit.offer_bytes(&self.spaces.mappings);
    }

    /// Counts everything that waits for a name of generated code.
    pub fn end_wait_for_names(&mut self) {
        let window = Window { from_ns: self.drained_from_ns, to_ns: self.source.now_ns() };
        // A process that has just ended may have written its names with its last breath.
        self.apply_records(window);
        self.spaces.jit.look_again();
        self.resolve_late(window, true);
    }

    /// Has kernel code that runs for the process counted under its scope from now on.
    fn set_kernel_scope(&mut self, pid: u32) {
        if let Some(number) = self.spaces.mappings.kernel_scope(pid) {
            self.source.steer(Order::SetKernelScope { pid, number });
        }
    }

    /// Registers a region as code; see
    /// [`Jit::register`](address_spaces::jit::Jit::register). The process's own text is counted by
    /// process from now on, because the region may be in it.
    ///
    /// # Errors
    /// One line with the next step.
    pub fn register(&mut self, told: &Registration) -> Result<usize, String> {
        self.tape.note(|| Step::Register(told.clone()));
        let regions = self.spaces.jit.register(told, self.source.now_ns())?;
        self.source.steer(Order::KeepApart { pid: told.pid });
        Ok(regions)
    }

    /// Forgets a registered region; see
    /// [`Jit::unregister`](address_spaces::jit::Jit::unregister).
    ///
    /// # Errors
    /// One line with the next step.
    pub fn unregister(&mut self, pid: u32, start: u64) -> Result<usize, String> {
        self.tape.note(|| Step::Unregister { pid, start });
        self.spaces.jit.unregister(pid, start)
    }

    /// The source of samples.
    pub fn source_mut(&mut self) -> &mut Source {
        &mut self.source
    }

    /// Gives the source an order that needs no state of the collector.
    pub fn steer(&mut self, order: Order) -> Steered {
        self.source.steer(order)
    }

    /// Changes the mean period of an event. Earlier samples are drained first; the few samples that
    /// CPUs take between the drain and their change count with the new period.
    pub fn set_period(&mut self, event: usize, change: PeriodChange) {
        self.drain();
        let order = Order::SetPeriod { event, period: change.period };
        if self.source.steer(order) == Steered::Done {
            self.tape.note(|| Step::Period { event, change: change.clone() });
            // Samples that wait were taken at the period before.
            self.end_wait_for_names();
            self.pending.set_period(event, change);
        }
    }

    /// Run time in ns and number of runs of the sampler, where the kernel measures them.
    pub fn handler_cost(&self) -> Option<(u64, u64)> {
        self.source.handler_cost()
    }

    /// Applies the records of this window.
    fn apply_records(&mut self, window: Window) {
        self.read_records();
        let mut records = std::mem::take(&mut self.records.held);
        records.sort_by_key(|record| record.time_ns);
        let later = records.partition_point(|record| record.time_ns <= window.to_ns);
        self.records.held = records.split_off(later);
        self.records.applied += records.len();
        for record in records {
            self.spaces.jit.apply(&record);
            match &record.kind {
                RecordKind::KernelText(symbol) => self.spaces.kernel.apply(symbol, record.time_ns),
                RecordKind::Lost { .. } => self.spaces.kernel.doubt(),
                RecordKind::Exit { pid } => self.instruments.call_stacks.end_program(*pid, None),
                RecordKind::Execed { pid, generation, .. } => {
                    self.instruments.call_stacks.end_program(*pid, Some(*generation));
                }
                RecordKind::Throttled { cpu } => self.cpus.throttled(*cpu),
                _ => {}
            }
            self.spaces.mappings.apply(record);
        }
    }

    /// Adds the samples taken to the ledger, and compares the samplers' own count with the sum of
    /// the entries.
    fn book(&mut self, drained: &Drained) {
        self.table.misses += drained.misses;
        self.table.places += self.entries.len() as u64;
        let mut counted = 0;
        for entry in &self.entries {
            counted += u64::from(entry.count);
            if let Some(account) = self.pending.account(entry.event()) {
                account.taken += u64::from(entry.count);
            }
        }
        for (event, (lost, measured)) in drained.lost.iter().zip(drained.counted).enumerate() {
            if let Some(account) = self.pending.account(event) {
                account.counted.add(measured);
                account.taken += lost;
                account.lose(Loss::SpillFull, *lost);
                counted += lost;
            }
        }
        if counted != drained.taken {
            tracing::error!(
                counted,
                taken = drained.taken,
                "the sampler's count differs from the sum of its entries; please report this"
            );
        }
        let uncounted = drained.taken.saturating_sub(counted);
        if let Some(account) = self.pending.account(0) {
            account.taken += uncounted;
            account.lose(Loss::Uncounted, uncounted);
        }
    }
}

fn throttled_cpu(record: &TimedRecord) -> Option<u32> {
    match record.kind {
        RecordKind::Throttled { cpu } => Some(cpu),
        _ => None,
    }
}

/// The sum of an event's accounts.
pub fn total<'a>(accounts: impl Iterator<Item = &'a Account>) -> Account {
    accounts.fold(Account::default(), |mut sum, account| {
        sum.add(account);
        sum
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batches::Batches;
    use kernel::clock;
    use kernel::{CpuDrained, MappedFileId, Record};
    use model::Unresolved;

    const PID: u32 = (1 << abi::PID_BITS) - 9;

    fn mmap(time_ns: u64, name: &str) -> TimedRecord {
        let file = MappedFileId::BuildId(vec![7; 20]);
        let record = Record {
            pid: PID,
            start: 0x1000,
            len: 0x1000,
            file_offset: 0,
            path: name.into(),
            file,
        };
        TimedRecord { time_ns, kind: RecordKind::Mmap(record) }
    }

    fn collector(batches: Vec<(Vec<Entry>, Drained, Vec<TimedRecord>)>) -> Collector<Batches> {
        let kernel =
            KernelText::new("6.1", image::ImageId::from_name("kernel", ""), System::default());
        Collector::new(
            Batches::new(batches),
            kernel,
            None,
            &[1, 1],
            Default::default(),
            Replay::default(),
        )
    }

    #[test]
    fn every_sample_is_booked_somewhere() {
        let mut lost = [0; abi::EVENTS_MAX];
        lost[1] = 4;
        let entries = vec![
            Entry::new(0, 0x1010, PID, 3),
            Entry::new(1, 0x9000, PID, 2),
            Entry::new(0, u64::MAX, 0, 5),
        ];
        let drained = Drained { taken: 3 + 2 + 5 + 4 + 1, misses: 2, lost, ..Drained::default() };
        let mut collector = collector(vec![(entries, drained.clone(), vec![mmap(1, "a")])]);
        collector.drain();
        let accounts: Vec<&Account> =
            collector.pending.accounts().map(|(_, account)| account).collect();
        assert_eq!(accounts[0].taken + accounts[1].taken, drained.taken);
        assert_eq!(
            accounts[0].lost.get(&Loss::Uncounted),
            Some(&1),
            "the sampler said one more than it wrote"
        );
        assert_eq!(accounts[1].lost.get(&Loss::SpillFull), Some(&4));
        assert_eq!(accounts[0].unresolved.get(&Unresolved::KernelAddressesHidden), Some(&5));
        assert_eq!(accounts[1].unresolved.get(&Unresolved::NoMapping), Some(&2));
        assert!(accounts.iter().all(|account| account.ledger().closes()));
        assert_eq!((collector.pending.samples(0), collector.table.misses), (3, 2));
    }

    #[test]
    fn the_time_in_which_a_cpu_was_offline_is_counted() {
        let away = |gone: &[(u32, u64)], back: &[u32]| Drained {
            gone: gone.into(),
            back: back.into(),
            ..Drained::default()
        };
        let now = clock::monotonic_ns();
        let batches = [
            away(&[(1, now - 5_000)], &[]),
            away(&[], &[1]),
            away(&[(1, now)], &[1]),
            away(&[], &[0]),
        ];
        let mut collector =
            collector(batches.into_iter().map(|drained| (vec![], drained, vec![])).collect());
        collector.drain();
        let gone = collector.cpus.of(1);
        assert_eq!((gone.offline, gone.offline_ns(now)), (1, 5_000));
        assert_eq!(gone.offline_ns(now + 1_000), 6_000, "it goes on");
        collector.drain();
        let back = collector.cpus.of(1);
        assert!(back.offline_ns(now) >= 5_000 && back.offline_ns(now) == back.offline_ns(u64::MAX));
        collector.drain();
        collector.drain();
        assert_eq!(
            (collector.cpus.of(1).offline, collector.cpus.of(0).offline),
            (2, 0),
            "gone and back between two looks; new"
        );
        assert_eq!(collector.cpus.of(0).offline_ns(u64::MAX), 0);
    }

    /// What ran on a CPU before its ring was open left no record; programs that began there had no
    /// names, and processes that ended there were believed alive.
    #[test]
    fn when_a_cpu_comes_online_processes_are_read_from_proc() {
        let kind = RecordKind::Fork { pid: u32::MAX, parent: u32::MAX - 1 };
        let back = Drained { back: vec![1], ..Drained::default() };
        let mut collector = collector(vec![
            (vec![], Drained::default(), vec![TimedRecord { time_ns: 1, kind }]),
            (vec![], back, vec![]),
        ]);
        collector.drain();
        assert!(collector.spaces.mappings.knows(u32::MAX));
        collector.drain();
        assert!(!collector.spaces.mappings.knows(u32::MAX), "there is no such process");
    }

    /// Where snapshots were interpreted between two drains, and the records with them, the drain
    /// after did not know of the throttling.
    #[test]
    fn a_cpu_that_was_throttled_between_two_drains_was_so_in_the_second() {
        let batch = || {
            let cpus = vec![CpuDrained { cpu: 1, taken: 3, implied: 10 }];
            (vec![], Drained { cpus, ..Drained::default() }, vec![])
        };
        let mut collector = collector(vec![batch(), batch(), batch()]);
        collector.drain();
        assert_eq!((collector.cpus.of(1).throttled, collector.cpus.of(1).late()), (0, 7));
        collector
            .records
            .held
            .push(TimedRecord { time_ns: 1, kind: RecordKind::Throttled { cpu: 1 } });
        collector.apply_records(Window { from_ns: 0, to_ns: clock::monotonic_ns() });
        collector.drain();
        assert_eq!((collector.cpus.of(1).throttled, collector.cpus.of(1).throttles), (7, 1));
        collector.drain();
        assert_eq!(collector.cpus.of(1).throttled, 7, "once");
    }

    /// A record may arrive with a drain although it happened after it: the samples of that drain
    /// were taken before.
    #[test]
    fn records_of_a_later_time_wait_for_the_next_drain() {
        let far = clock::monotonic_ns() + 3_600_000_000_000;
        let batch = |records| {
            (
                vec![Entry::new(0, 0x1010, PID, 1)],
                Drained { taken: 1, ..Drained::default() },
                records,
            )
        };
        let mut collector =
            collector(vec![batch(vec![mmap(far, "later"), mmap(1, "now")]), batch(vec![])]);
        collector.drain();
        let names: Vec<_> = collector
            .pending
            .delta(&["a".into(), "b".into()], 0)
            .images
            .into_values()
            .map(|image| image.name)
            .collect();
        assert_eq!(names, ["now"]);
        assert_eq!(collector.records.held.len(), 1);
    }
}
