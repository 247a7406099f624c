//! One drain: takes the counts out of the source, applies the records in order of time, and
//! attributes every sample to its image or to a reason.

use crate::image_allowance::ImageAllowances;
use crate::resolve::{Resolver, coalesce};
use crate::watches::Watches;
use abi::{Entry, StackKind};
use address_spaces::jit::Jit;
use address_spaces::kernel_text::KernelText;
use address_spaces::library::Library;
use address_spaces::loader_notices::Notices;
use address_spaces::mapped_files::Image;
use address_spaces::mappings::{LabelError, Mappings, Window};
use address_spaces::python_files::PythonFiles;
use address_spaces::system::System;
use address_spaces::unknown_code::UnknownCode;
use address_spaces::vdso32::NarrowVdso;
use inspect::pool::THREAD_PATIENCE;
use kernel::{Drained, RecordKind, TimedRecord};
use model::Loss;
use pending::Pending;
use pending::ledger::Account;
use profiledb::PeriodChange;
use sampling::branch_edges::Edges;
use sampling::call_stacks::{CallStacks, WalkedStack, process_of};
use sampling::recording::file::Tape;
use sampling::recording::steps::Step;
use sampling::sample_source::{Order, SampleSource, Steered};
use sampling::waits::Waits;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;
use wire::Registration;

/// Samples of one CPU: taken, implied and missed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuLedger {
    /// Samples taken.
    pub taken: u64,
    /// Samples that the events' counts and periods imply.
    pub implied: u64,
    /// Samples that were implied and not taken in drains in which the kernel throttled an event of
    /// the CPU.
    pub throttled: u64,
    /// Number of times that the kernel throttled an event.
    pub throttles: u64,
    /// Value of `throttles` at the last drain.
    throttles_booked: u64,
    /// Number of times that the CPU went offline.
    pub offline: u64,
    /// Time without sampling because the CPU was offline, in ns, without the time since
    /// `offline_since_ns`.
    pub offline_ns: u64,
    /// Time since which the CPU is offline.
    pub offline_since_ns: Option<u64>,
}

impl CpuLedger {
    /// Samples implied that were neither taken nor throttled: the timer came late because a
    /// hypervisor ran another machine, or an interrupt came while another BPF program held this
    /// CPU.
    #[must_use]
    pub fn late(&self) -> u64 {
        self.implied.saturating_sub(self.taken + self.throttled)
    }

    /// Time without sampling until `now_ns` because the CPU was offline, in ns.
    #[must_use]
    pub fn offline_ns(&self, now_ns: u64) -> u64 {
        self.offline_ns + self.offline_since_ns.map_or(0, |since| now_ns.saturating_sub(since))
    }

    fn went_offline(&mut self, since_ns: u64) {
        self.offline += 1;
        self.offline_since_ns = Some(since_ns);
    }

    fn came_back(&mut self, now_ns: u64) {
        self.offline_ns = self.offline_ns(now_ns);
        self.offline_since_ns = None;
    }
}

/// Most records kept between drains. Further records stay in the kernel's rings, which drop and
/// count what does not fit.
const HELD_MAX: usize = 200_000;

/// Fill level of a spill buffer, 0 to 1, from which on a drain comes early. The rest has to last
/// until the next look: a higher level loses samples in a storm, a lower one drains too often.
const SPILL_USED_MAX: f64 = 0.7;
/// Ended processes since the last drain from which on a drain comes early: their mappings stay in
/// memory until their samples have been drained.
const ENDED_MAX: usize = 4096;

/// Time in ns after the mapping of a new file in which drains come early: the code and the
/// generated names of a process can only be read while it lives.
const NEWS_NS: u64 = 3_000_000_000;
/// Time between drains, in ns, in the time of [`NEWS_NS`].
const NEWS_DRAIN_NS: u64 = 1_000_000_000;
/// Records in a drain from which on their memory is returned to the kernel afterwards. The records
/// are small pieces between others that stay, so the allocator would keep it.
const RECORDS_MANY: usize = 30_000;

/// The part of a collector in a recording or a replay. The default has neither.
pub struct Replay {
    /// Answers questions about processes and files.
    pub system: System,
    /// Keeps the steps of a recording.
    pub tape: Tape,
    /// Random number of this run, which tells its images of generated code from those of other
    /// runs.
    pub run: u64,
}

impl Default for Replay {
    fn default() -> Self {
        Self { system: System::default(), tape: Tape::default(), run: fastrand::u64(..) }
    }
}

/// The state between drains.
pub struct Collector<Source> {
    source: Source,
    /// Processes and their mappings.
    pub mappings: Mappings,
    kernel: KernelText,
    vdso: Option<Arc<Image>>,
    narrow_vdso: NarrowVdso,
    /// Code that is in no file.
    pub jit: Jit,
    /// Images that stand for unknown code.
    unknown: UnknownCode,
    /// How many images each user may bring into the open epoch.
    pub allowances: ImageAllowances,
    /// Source files of interpreted functions.
    python: PythonFiles,
    /// The recording under way.
    pub tape: Tape,
    /// Edges from snapshots of registers.
    pub edges: Edges,
    /// Call stacks that are being walked.
    pub call_stacks: CallStacks,
    /// Waits of threads that go on.
    pub waits: Waits,
    /// Counts that wait for the next merge.
    pub pending: Pending,
    /// Samples that found no entry of theirs in the samplers' tables.
    pub misses: u64,
    /// Distinct places of all drains, summed up.
    pub places: u64,
    /// Samples by CPU.
    pub cpus: BTreeMap<u32, CpuLedger>,
    /// Notices of the loader hook.
    pub notices: Notices,
    /// Clients that watch the counts.
    pub watches: Watches,
    /// Time before the first half of the last drain was taken.
    drained_from_ns: u64,
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
        Self {
            source,
            mappings,
            kernel,
            vdso,
            narrow_vdso: NarrowVdso::default(),
            jit: Jit::new(run, system.clone()),
            python: PythonFiles::default(),
            unknown: UnknownCode::default(),
            allowances: ImageAllowances::default(),
            edges: Edges::new(tape.clone(), system.inspectors().another(THREAD_PATIENCE)),
            call_stacks: CallStacks::new(system.inspectors().another(THREAD_PATIENCE)),
            waits: Waits::default(),
            tape,
            pending: Pending::new(periods.iter().copied()),
            misses: 0,
            places: 0,
            cpus: BTreeMap::new(),
            notices: Notices::default(),
            watches: Watches::default(),
            drained_from_ns: now_ns,
            held: Vec::new(),
            ended: 0,
            news_ns: None,
            saw_throttle: false,
            applied: 0,
            entries: Vec::new(),
        }
    }

    /// Adds the notices of the loader hook.
    #[must_use]
    pub fn hearing(self, notices: Notices) -> Self {
        let notices = notices.asking(self.mappings.system.clone());
        Self { notices, ..self }
    }

    /// Takes the records out of the kernel's rings, which a storm of mappings can fill between two
    /// drains. Returns their number.
    pub fn collect_records(&mut self) -> usize {
        let known = self.held.len();
        if known < HELD_MAX {
            self.read_records();
        }
        self.edges.hold(|into| self.source.snapshots(into));
        self.call_stacks.hold(|into| self.source.stacks(into));
        let ended = self.held.get(known..).unwrap_or_default();
        self.ended +=
            ended.iter().filter(|record| matches!(record.kind, RecordKind::Exit { .. })).count();
        self.held.len() - known
    }

    /// Whether the rings should be read again soon: a spill buffer fills fast, a new file makes a
    /// drain near, or throttled events wait to be revived.
    pub fn is_watchful(&self) -> bool {
        self.has_news() || self.saw_throttle || self.source.spill_used() > SPILL_USED_MAX / 4.0
    }

    fn has_news(&self) -> bool {
        self.news_ns.is_some_and(|news| self.source.now_ns() < news + NEWS_NS)
    }

    /// Whether the next drain should come early.
    pub fn wants_drain(&self) -> bool {
        let news = self.has_news() && self.source.now_ns() >= self.drained_from_ns + NEWS_DRAIN_NS;
        let records = self.held.len() + self.applied;
        news || self.ended > ENDED_MAX
            || records >= HELD_MAX / 4
            || self.source.spill_used() > SPILL_USED_MAX
    }

    /// Interprets snapshots, where many are held, and has call stacks walked. The tables wait for
    /// their drain, so the records that are read here belong to its window.
    pub fn follow_branches(&mut self) {
        let (edges_are_many, holds_stacks) = (self.edges.are_many(), self.call_stacks.is_holding());
        if !edges_are_many && !holds_stacks {
            return;
        }
        let window = Window { from_ns: self.drained_from_ns, to_ns: self.source.now_ns() };
        self.apply_records(window);
        self.call_stacks.walk(&mut self.mappings, window, false);
        if edges_are_many {
            self.edges.interpret(&mut self.mappings, window, &mut self.pending);
        }
        self.count_stacks(window, false);
    }

    /// Counts the call stacks that were walked meanwhile.
    fn count_stacks(&mut self, window: Window, is_drain: bool) {
        self.call_stacks.take_ends().iter().for_each(|end| self.waits.end(end));
        let mut walked = self.call_stacks.take_walked(is_drain);
        let is_wait = |stack: &mut WalkedStack| stack.record.kind == StackKind::Wait as u32;
        walked.extract_if(.., is_wait).for_each(|stack| self.waits.begin(stack));
        self.count_waits(window);
        for (number, class) in self.call_stacks.take_windows() {
            self.source.steer(Order::StackWindow { number, class });
        }
        for (space, layout) in self.call_stacks.take_pythons() {
            self.source.steer(Order::Python { space, layout });
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
            let (pid, generation) = process_of(&stack.record);
            stack.space = self.mappings.space_known(pid, generation, window);
        }
        self.resolve_stacks(stacks, window);
    }

    fn resolve_stacks(&mut self, walked: Vec<WalkedStack>, window: Window) {
        let (mut resolver, pending) = self.resolver(window);
        let excluded = resolver.resolve_stacks(walked, pending);
        self.call_stacks.totals.excluded += excluded;
    }

    /// Counts waits that have ended, and what of others has gone by.
    fn count_waits(&mut self, window: Window) {
        let mut waits = std::mem::take(&mut self.waits);
        let (mut resolver, pending) = self.resolver(window);
        let thread = kernel::thread_record;
        waits.count(window.to_ns, thread, |wait| resolver.resolve_wait(&wait, pending));
        self.waits = waits;
    }

    fn resolver(&mut self, window: Window) -> (Resolver<'_>, &mut Pending) {
        let (mappings, kernel, vdso) = (&mut self.mappings, &mut self.kernel, self.vdso.as_ref());
        let (narrow_vdso, jit, unknown) = (&mut self.narrow_vdso, &mut self.jit, &mut self.unknown);
        let (allowances, python) = (&mut self.allowances, &mut self.python);
        let resolver = Resolver {
            mappings,
            kernel,
            vdso,
            narrow_vdso,
            jit,
            python,
            unknown,
            allowances,
            window,
        };
        (resolver, &mut self.pending)
    }

    fn read_records(&mut self) {
        let known = self.held.len();
        self.source.records(&mut self.held);
        let new = self.held.get(known..).unwrap_or_default();
        self.jit.notice(new, self.source.now_ns());
        let throttled: BTreeSet<u32> = new.iter().filter_map(throttled_cpu).collect();
        self.saw_throttle = !throttled.is_empty();
        for cpu in throttled {
            self.source.steer(Order::Revive { cpu });
        }
        let were_lost = new.iter().any(|record| matches!(record.kind, RecordKind::Lost { .. }));
        self.mappings.files.look_anew();
        let mut news = false;
        for record in self.held.get_mut(known..).unwrap_or_default() {
            news |= self.mappings.foresee(record);
        }
        if news {
            self.news_ns = Some(self.source.now_ns());
        }
        self.notices.read(were_lost, self.source.now_ns());
    }

    /// Moves everything sampled before the call to `pending`.
    pub fn drain(&mut self) {
        if !self.watches.any(Instant::now()) {
            return self.drain_to_pending();
        }
        let before = self.pending.take();
        self.drain_to_pending();
        self.watches.note(&self.pending);
        self.pending.absorb(before);
    }

    fn drain_to_pending(&mut self) {
        self.entries.clear();
        self.ended = 0;
        let begun_ns = self.source.now_ns();
        let drained = self.source.drain(&mut self.entries);
        self.edges.hold(|into| self.source.snapshots(into));
        self.call_stacks.hold(|into| self.source.stacks(into));
        // Samples of the present are in a CPU's other half as soon as that CPU has been drained,
        // before the others are.
        let window = Window { from_ns: self.drained_from_ns, to_ns: self.source.now_ns() };
        self.drained_from_ns = begun_ns;
        self.apply_records(window);
        let records = std::mem::take(&mut self.applied);
        self.notices.judge(&mut self.mappings, window.to_ns);
        for record in std::mem::take(&mut self.mappings.learnt) {
            self.tape.note(|| Step::Learnt(record));
        }
        for pid in self.mappings.take_unmarked() {
            self.source.steer(Order::KeepApart { pid });
        }
        self.book_cpus(&drained, window.to_ns);
        coalesce(&mut self.entries);
        self.book(&drained);
        let entries = std::mem::take(&mut self.entries);
        let (mut resolver, pending) = self.resolver(window);
        resolver.resolve(&entries, pending);
        self.entries = entries;
        self.call_stacks.walk(&mut self.mappings, window, true);
        self.edges.interpret(&mut self.mappings, window, &mut self.pending);
        self.waits.look(|into| {
            self.source.wait_times(into);
            self.source.now_ns()
        });
        self.count_stacks(window, true);
        self.mappings.forget_ended(window);
        for number in self.mappings.take_disputed() {
            self.source.steer(Order::DisputeNumber { number });
        }
        for number in self.mappings.take_released() {
            self.source.steer(Order::ReleaseNumber { number });
        }
        self.jit.forget(&self.mappings, window.from_ns);
        self.mappings.repair(window.to_ns);
        if records > RECORDS_MANY {
            kernel::give_back();
        }
        self.kernel.forget_gone(window.from_ns);
        if self.kernel.wants_refresh(window.to_ns, kernel::kernel_modules) {
            self.kernel.refresh(kernel::kernel_symbols().ok(), window.to_ns);
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
        let labelled = self.mappings.label(pid, start_time, label, with_children)?;
        for pid in labelled {
            self.source.steer(Order::KeepApart { pid });
        }
        Ok(())
    }

    /// Registers a region as code; see [`Jit::register`]. The process's own text is counted by
    /// process from now on, because the region may be in it.
    ///
    /// # Errors
    /// One line with the next step.
    pub fn register(&mut self, told: &Registration) -> Result<usize, String> {
        self.tape.note(|| Step::Register(told.clone()));
        let regions = self.jit.register(told, self.source.now_ns())?;
        self.source.steer(Order::KeepApart { pid: told.pid });
        Ok(regions)
    }

    /// Forgets a registered region; see [`Jit::unregister`].
    ///
    /// # Errors
    /// One line with the next step.
    pub fn unregister(&mut self, pid: u32, start: u64) -> Result<usize, String> {
        self.tape.note(|| Step::Unregister { pid, start });
        self.jit.unregister(pid, start)
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
            self.pending.set_period(event, change);
        }
    }

    /// Run time in ns and number of runs of the sampler, where the kernel measures them.
    #[must_use]
    pub fn handler_cost(&self) -> Option<(u64, u64)> {
        self.source.handler_cost()
    }

    /// Applies the records of this window.
    fn apply_records(&mut self, window: Window) {
        self.read_records();
        let mut records = std::mem::take(&mut self.held);
        records.sort_by_key(|record| record.time_ns);
        let later = records.partition_point(|record| record.time_ns <= window.to_ns);
        self.held = records.split_off(later);
        self.applied += records.len();
        for record in records {
            self.jit.apply(&record);
            match &record.kind {
                RecordKind::KernelText(symbol) => self.kernel.apply(symbol, record.time_ns),
                RecordKind::Lost { .. } => self.kernel.doubt(),
                RecordKind::Exit { pid } => self.call_stacks.end_program(*pid, None),
                RecordKind::Execed { pid, generation, .. } => {
                    self.call_stacks.end_program(*pid, Some(*generation));
                }
                RecordKind::Throttled { cpu } => self.cpus.entry(*cpu).or_default().throttles += 1,
                _ => {}
            }
            self.mappings.apply(record);
        }
    }

    /// Compares the samples that each CPU took with those that its events imply.
    fn book_cpus(&mut self, drained: &Drained, now_ns: u64) {
        // A CPU that came back before its absence was noticed is in both lists.
        drained
            .gone
            .iter()
            .for_each(|(cpu, since_ns)| self.cpus.entry(*cpu).or_default().went_offline(*since_ns));
        drained.back.iter().for_each(|cpu| self.cpus.entry(*cpu).or_default().came_back(now_ns));
        for cpu in &drained.cpus {
            let ledger = self.cpus.entry(cpu.cpu).or_default();
            ledger.taken += cpu.taken;
            ledger.implied += cpu.implied;
            if ledger.throttles > std::mem::replace(&mut ledger.throttles_booked, ledger.throttles)
            {
                ledger.throttled += cpu.implied.saturating_sub(cpu.taken);
            }
        }
    }

    /// Adds the samples taken to the ledger, and compares the samplers' own count with the sum of
    /// the entries.
    fn book(&mut self, drained: &Drained) {
        self.misses += drained.misses;
        self.places += self.entries.len() as u64;
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
#[must_use]
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
        assert_eq!((collector.pending.samples(0), collector.misses), (3, 2));
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
        let gone = collector.cpus[&1];
        assert_eq!((gone.offline, gone.offline_ns(now)), (1, 5_000));
        assert_eq!(gone.offline_ns(now + 1_000), 6_000, "it goes on");
        collector.drain();
        let back = collector.cpus[&1];
        assert!(back.offline_ns(now) >= 5_000 && back.offline_ns(now) == back.offline_ns(u64::MAX));
        collector.drain();
        collector.drain();
        assert_eq!(
            (collector.cpus[&1].offline, collector.cpus[&0].offline),
            (2, 0),
            "gone and back between two looks; new"
        );
        assert_eq!(collector.cpus[&0].offline_ns(u64::MAX), 0);
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
        assert_eq!((collector.cpus[&1].throttled, collector.cpus[&1].late()), (0, 7));
        collector.held.push(TimedRecord { time_ns: 1, kind: RecordKind::Throttled { cpu: 1 } });
        collector.apply_records(Window { from_ns: 0, to_ns: clock::monotonic_ns() });
        collector.drain();
        assert_eq!((collector.cpus[&1].throttled, collector.cpus[&1].throttles), (7, 1));
        collector.drain();
        assert_eq!(collector.cpus[&1].throttled, 7, "once");
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
        assert_eq!(collector.held.len(), 1);
    }
}
