//! The one loop: drains on a timer, merges on another, answers requests, ends on a signal. It owns
//! all state and does no work itself.

mod answers;
mod reload;

use crate::accounts::Account;
use crate::budget::{Bill, Doing, Governor, RATES, TERM, affordable, at_once};
use crate::clock;
use crate::collector::{Collector, total};
use crate::config::Config;
use crate::control::Asked;
use crate::edges::{every, look_within};
use crate::event::PlannedEvent;
use crate::flush::{Done, Flusher, Job, epoch_start};
use crate::kernel::{Alarm, Cost, Landing, Machine};
use crate::pending::Pending;
use crate::restraint::Restraint;
use crate::source::SampleSource;
use crate::stand::{bill, facts, resident_bytes};
use crate::ticks::{Tick, Ticks};
use anyhow::Context as _;
use model::OpensOn;
use profiledb::{EpochId, PeriodChange};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};
use wire::{Reply, Request};

/// The rings of records are emptied this often, each holds some 4000 mappings: in a storm, and when
/// little happens.
const RECORDS_INTERVALS: (Duration, Duration) =
    (Duration::from_millis(100), Duration::from_millis(400));
/// More records at once are a storm.
const RECORDS_STORM: usize = 100;
/// A merge that failed is tried again after this long, or the merge interval if that is shorter.
const MERGE_RETRY: Duration = Duration::from_secs(30);
/// Requests are answered together, so many at once at most. Then comes a pause, so many times as
/// long as that took, within these limits: whoever asks as fast as he can takes a quarter of the
/// daemon's time.
const REQUESTS_MAX: usize = 64;
const REQUESTS_PAUSE: (u32, Duration, Duration) =
    (3, Duration::from_millis(5), Duration::from_millis(250));
/// The service manager is told no oftener that the loop turns.
const WATCHDOG_MIN: Duration = Duration::from_millis(100);
/// Merges tried at the end before samples are given up, and the pause between them.
const LAST_MERGES_MAX: u32 = 3;
const LAST_MERGES_PAUSE: Duration = Duration::from_secs(1);

/// Everything that can happen.
enum Event {
    Tick(Tick),
    Asked(Vec<Asked>),
    Reload(Box<Config>),
    Done(Done),
    Stop,
}

/// What to do once the merge that a request waits for is on disk.
enum After {
    Flush,
    Epoch(Option<String>),
    Quit,
}

/// The daemon ended as it was told to, but its disk did not take the last samples.
#[derive(Debug, thiserror::Error)]
#[error("{why}; {samples} samples are lost")]
pub struct LastSamplesLost {
    samples: u64,
    why: String,
}

/// A merge that the disk has not answered yet.
struct InFlight {
    pending: Pending,
    waiters: Vec<Waiter>,
}

/// Told to end, and told of another configuration.
pub type Signals = (mpsc::Receiver<()>, mpsc::Receiver<Config>);

type Waiter = (After, oneshot::Sender<Reply>);

/// What the pipeline is made of.
pub struct Parts<Source> {
    /// Settings.
    pub config: Config,
    /// This machine.
    pub machine: Machine,
    /// What is sampled.
    pub events: Vec<PlannedEvent>,
    /// What a sample costs.
    pub cost: Cost,
    /// Where samples land.
    pub landing: Option<Landing>,
    /// Source and mappings.
    pub collector: Collector<Source>,
    /// The database's thread.
    pub flusher: Flusher,
    /// The epoch that is open.
    pub epoch: String,
    /// The label of the command that is recorded: readers of the epoch begin with its samples.
    pub opens_on: Option<String>,
}

/// The state of the loop.
pub struct Pipeline<Source> {
    parts: Parts<Source>,
    names: Vec<String>,
    started: Instant,
    /// The daemon's CPU time when it began to sample.
    start_cpu_ns: u64,
    /// Samples acknowledged by the disk.
    written: Vec<Account>,
    /// On its way to the disk, with who waits for it.
    in_flight: Option<InFlight>,
    /// Waiting for the next merge.
    waiters: Vec<Waiter>,
    /// Waiting for their new epoch.
    epoch_waiters: std::collections::VecDeque<oneshot::Sender<Reply>>,
    governor: Governor,
    restraint: Restraint,
    /// When the term began, with samples taken and the daemon's CPU time then.
    term: (Instant, u64, u64),
    last_bill: Option<Bill>,
    merge_due: bool,
    merge_error: Option<String>,
    failed_last_merges: u32,
    last_merge: Option<u64>,
    database_bytes: u64,
    samples_widened: u64,
    stopping: bool,
    ticks: Ticks,
    records_interval: Duration,
    /// How often the service manager is told; it restarts a daemon whose loop does not turn.
    watchdog: Option<Duration>,
    /// No requests are answered before.
    requests_pause_end: Instant,
    /// Snapshots a second and CPU at most; None: none.
    snapshot_rate: Option<f64>,
    last_merges_pause: Duration,
}

impl<Source: SampleSource> Pipeline<Source> {
    /// Ready to run.
    #[must_use]
    pub fn new(parts: Parts<Source>) -> Self {
        let adjustable = parts.events.iter().any(|event| event.adjustable);
        let now = Instant::now();
        let watchdog = sd_notify::watchdog_enabled().map(|period| (period / 3).max(WATCHDOG_MIN));
        let names: Vec<_> = parts.events.iter().map(|plan| plan.event.name.clone()).collect();
        Self {
            written: vec![Account::default(); names.len()],
            names,
            started: Instant::now(),
            start_cpu_ns: clock::process_cpu_ns(),
            in_flight: None,
            waiters: Vec::new(),
            epoch_waiters: std::collections::VecDeque::new(),
            governor: Governor::new(parts.config.budget, adjustable, planned_step(&parts.events)),
            restraint: Restraint::default(),
            term: (Instant::now(), 0, clock::process_cpu_ns()),
            last_bill: None,
            merge_due: false,
            merge_error: None,
            failed_last_merges: 0,
            last_merge: None,
            database_bytes: 0,
            samples_widened: 0,
            stopping: false,
            records_interval: RECORDS_INTERVALS.0,
            watchdog,
            ticks: Ticks {
                records: now + RECORDS_INTERVALS.0,
                drain: now + parts.config.drain_interval,
                merge: now + parts.config.merge_interval,
                watchdog: watchdog.map(|period| now + period),
            },
            requests_pause_end: now,
            snapshot_rate: None,
            last_merges_pause: LAST_MERGES_PAUSE,
            parts,
        }
    }

    /// Runs until a stop is asked for and everything sampled is on disk.
    ///
    /// # Errors
    /// When the disk does not take the last samples.
    pub async fn run(
        mut self,
        mut asked: mpsc::Receiver<Asked>,
        mut done: mpsc::UnboundedReceiver<Done>,
        (mut stop, mut reload): Signals,
        mut alarm: Alarm,
    ) -> anyhow::Result<()> {
        self.look_at_restraint();
        self.pace_snapshots();
        let mut requests = Vec::new();
        loop {
            let now = Instant::now();
            let may_ask = self.requests_pause_end <= now;
            let (_, tick) = self.ticks.first();
            let next = if may_ask { tick } else { tick.min(self.requests_pause_end) };
            let event = tokio::select! {
                Some(()) = stop.recv() => Event::Stop,
                Some(result) = done.recv() => Event::Done(result),
                1.. = asked.recv_many(&mut requests, REQUESTS_MAX), if may_ask => Event::Asked(std::mem::take(&mut requests)),
                Some(config) = reload.recv() => Event::Reload(Box::new(config)),
                rang = alarm.wait_until(next) => {
                    rang.context("waiting for the next tick")?;
                    match self.ticks.first() {
                        (tick, at) if at <= Instant::now() => Event::Tick(tick),
                        _ => continue,
                    }
                }
            };
            self.handle(event);
            if self.stopping && self.in_flight.is_none() {
                if self.parts.collector.pending.is_empty() {
                    self.answer_the_rest(&mut asked);
                    tracing::info!("everything sampled is on disk");
                    return Ok(());
                }
                if self.failed_last_merges >= LAST_MERGES_MAX {
                    let samples = self.waiting().map(taken).sum();
                    return Err(LastSamplesLost {
                        samples,
                        why: self.merge_error.unwrap_or_default(),
                    }
                    .into());
                }
                if self.failed_last_merges > 0 {
                    tokio::time::sleep(self.last_merges_pause).await;
                }
            }
            self.start_merge();
        }
    }

    /// Everything is on disk: whoever still waits for that has it.
    fn answer_the_rest(&mut self, asked: &mut mpsc::Receiver<Asked>) {
        let ending = || Reply::error("dcpid is ending; everything sampled is on disk");
        let mut rest = std::mem::take(&mut self.waiters);
        while let Ok((request, reply)) = asked.try_recv() {
            match request {
                Request::Flush | Request::Quit => rest.push((After::Flush, reply)),
                Request::Status
                | Request::Counts { .. }
                | Request::Epoch { .. }
                | Request::Label { .. }
                | Request::Register(_)
                | Request::Unregister { .. } => drop(reply.send(ending())),
            }
        }
        for (after, reply) in rest {
            match after {
                After::Flush | After::Quit => self.finish((After::Flush, reply)),
                After::Epoch(_) => drop(reply.send(ending())),
            }
        }
        self.epoch_waiters.drain(..).for_each(|reply| drop(reply.send(ending())));
    }

    fn handle(&mut self, event: Event) {
        let begun = Instant::now();
        match event {
            Event::Tick(tick) => {
                self.tick(tick);
                self.ticks.set(tick, begun + self.period(tick));
            }
            Event::Asked(requests) => {
                self.answer(requests);
                let (times, min, max) = REQUESTS_PAUSE;
                self.requests_pause_end =
                    Instant::now() + (begun.elapsed() * times).clamp(min, max);
            }
            Event::Reload(config) => {
                self.reload(*config);
                // Never later than it was to be: who reads the configuration again and again puts
                // nothing off.
                self.ticks.drain = self.ticks.drain.min(begun + self.period(Tick::Drain));
                self.ticks.merge = self.ticks.merge.min(begun + self.period(Tick::Merge));
            }
            Event::Done(Done::Merged(result)) => self.merged(result),
            Event::Done(Done::Epoch(result)) => {
                let reply = match result {
                    Ok(epoch) => {
                        tracing::info!(%epoch, "new epoch");
                        self.parts.epoch = epoch.to_string();
                        Reply { epoch: Some(epoch.to_string()), ..Reply::default() }
                    }
                    Err(error) => Reply::error(error),
                };
                if let Some(waiter) = self.epoch_waiters.pop_front() {
                    let _ = waiter.send(reply); // the client may have gone
                }
            }
            Event::Stop => self.stop(),
        }
    }

    fn tick(&mut self, tick: Tick) {
        match tick {
            Tick::Records => {
                self.look_at_restraint();
                let collector = &mut self.parts.collector;
                let storm = collector.collect_records() >= RECORDS_STORM || collector.is_watchful();
                collector.rotate();
                // Turns are as long as ticks: the more of them, the more alike is what each event
                // counts.
                let takes_turns = self.parts.events.iter().any(|event| event.mux.is_some());
                let interval =
                    if storm || takes_turns { RECORDS_INTERVALS.0 } else { RECORDS_INTERVALS.1 };
                self.records_interval = self
                    .snapshot_rate
                    .filter(|rate| *rate > 0.0)
                    .map_or(interval, |rate| interval.min(look_within(rate)));
                if self.parts.collector.wants_drain() {
                    self.parts.collector.drain();
                } else {
                    self.parts.collector.follow_branches();
                }
            }
            Tick::Drain => {
                self.parts.collector.drain();
                self.pace_snapshots();
                self.parts.cost = self.parts.collector.look_at_cost().unwrap_or(self.parts.cost);
                // At the drain that is nearest to its end.
                if self.term.0.elapsed() + self.parts.config.drain_interval / 2 >= TERM {
                    crate::kernel::give_back();
                    crate::kernel::give_back_code();
                    self.end_term();
                }
            }
            Tick::Merge => {
                self.parts.collector.drain();
                self.merge_due = true;
                if self.is_epoch_over() {
                    let nobody = oneshot::channel().0;
                    self.waiters.push((After::Epoch(None), nobody));
                }
            }
            Tick::Watchdog => drop(sd_notify::notify(&[sd_notify::NotifyState::Watchdog])), // nobody listens: then nobody waits
        }
    }

    fn period(&self, tick: Tick) -> Duration {
        match tick {
            Tick::Records => self.records_interval,
            Tick::Drain => self.parts.config.drain_interval,
            Tick::Merge if self.merge_error.is_some() => {
                self.parts.config.merge_interval.min(MERGE_RETRY)
            }
            Tick::Merge => self.parts.config.merge_interval,
            Tick::Watchdog => self.watchdog.unwrap_or(MERGE_RETRY), // without one it never ticks
        }
    }

    fn is_epoch_over(&self) -> bool {
        let began = self.parts.epoch.parse::<EpochId>().map_or(u64::MAX, |epoch| epoch.unix_s());
        let length = self.parts.config.epoch_length.map(|length| length.as_secs());
        let one_comes =
            self.waiters.iter().chain(self.in_flight.iter().flat_map(|merge| &merge.waiters));
        let one_comes =
            one_comes.map(|(after, _)| after).any(|after| matches!(after, After::Epoch(_)));
        if one_comes || !self.epoch_waiters.is_empty() {
            return false;
        }
        length.is_some_and(|length| clock::unix_s().saturating_sub(began) >= length)
    }

    /// Looks whether somebody wants nothing sampled.
    fn look_at_restraint(&mut self) {
        if self.restraint.look(self.parts.config.pause_file.as_deref()) {
            self.restrain();
        }
    }

    /// Does as much as is allowed now.
    fn restrain(&mut self) {
        self.parts.collector.pause(self.restraint.doing() == Doing::Nothing);
        self.pace_snapshots();
        self.merge_due = true; // the epoch is told
    }

    /// Takes as many snapshots as their cost allows.
    fn pace_snapshots(&mut self) {
        let (Some(rate_max), Some(first)) = (self.parts.config.edges, self.parts.events.first())
        else {
            return;
        };
        if self.restraint.doing() != Doing::All {
            self.snapshot_rate = Some(0.0);
            self.parts.collector.snapshot_every(0);
            return;
        }
        let (budget, cpus) =
            (self.parts.config.budget.map(|budget| budget.0), self.parts.machine.cpus.len());
        let rate = self.parts.collector.edges.affordable(budget, rate_max, cpus);
        self.snapshot_rate = Some(rate);
        self.parts
            .collector
            .snapshot_every(every(first.samples_per_s(crate::kernel::clock_hz()), rate));
    }

    fn stop(&mut self) {
        if !self.stopping {
            self.stopping = true;
            self.parts.collector.stop();
            self.parts.collector.drain();
        }
        self.merge_due = true;
    }

    /// Hands everything pending to the disk, if somebody or the timer wants that and nothing is on
    /// its way yet.
    fn start_merge(&mut self) {
        let wanted = self.merge_due || !self.waiters.is_empty();
        if !wanted || self.in_flight.is_some() {
            return;
        }
        self.merge_due = false;
        let in_flight = InFlight {
            pending: self.parts.collector.pending.take(),
            waiters: std::mem::take(&mut self.waiters),
        };
        let mut delta = in_flight.pending.delta(&self.names, clock::unix_s());
        delta.facts = facts(self.parts.landing, self.parts.machine.cpuid.as_ref(), &self.names);
        if let Some(label) = &self.parts.opens_on {
            delta.facts.state(&OpensOn(label.clone()));
        }
        if let Some(restraints) = self.restraint.fact() {
            delta.facts.state(&restraints);
        }
        let cost = self.parts.cost.ns_per_sample;
        let share = self.last_bill.as_ref().map(Bill::share);
        delta.cost = Some(bill(cost, share, clock::process_cpu_ns(), self.taken()));
        self.in_flight = Some(in_flight);
        if !self.parts.flusher.send(Job::Merge(Box::new(delta))) {
            self.merged(Err(
                "the thread that writes the database has ended; restart dcpid and report its log"
                    .to_owned(),
            ));
        }
    }

    fn merged(&mut self, result: Result<crate::flush::Merged, String>) {
        let Some(InFlight { pending, waiters }) = self.in_flight.take() else { return };
        match result {
            Ok(merged) => {
                for (event, account) in pending.accounts() {
                    if let Some(written) = self.written.get_mut(event) {
                        written.add(account);
                    }
                }
                tracing::debug!(
                    files = merged.report.files_written,
                    bytes = merged.report.bytes_written,
                    "merged"
                );
                if self.merge_error.take().is_some() {
                    tracing::info!("the database takes samples again; nothing was lost meanwhile");
                    self.ticks.merge = Instant::now() + self.period(Tick::Merge);
                }
                self.parts.epoch = merged.epoch.to_string();
                self.last_merge = Some(clock::unix_s());
                self.database_bytes = merged.database_bytes;
                self.samples_widened += merged.report.samples_widened;
                waiters.into_iter().for_each(|waiter| self.finish(waiter));
            }
            Err(error) => {
                if self.merge_error.as_ref() != Some(&error) {
                    tracing::error!(
                        "{error}; samples are kept in memory and the merge is tried again"
                    );
                }
                self.parts.collector.pending.absorb(pending);
                self.failed_last_merges += u32::from(self.stopping);
                self.merge_due = self.stopping; // else the timer has it tried again
                for (_, reply) in waiters {
                    let next = if self.stopping {
                        "dcpid tries again before it ends; see its log"
                    } else {
                        "dcpid keeps the samples in memory and tries again"
                    };
                    let _ = reply.send(Reply::error(format!("{error}; {next}")));
                }
                self.merge_error = Some(error);
                self.ticks.merge = self.ticks.merge.min(Instant::now() + self.period(Tick::Merge));
            }
        }
    }

    fn finish(&mut self, (after, reply): Waiter) {
        match after {
            After::Flush | After::Quit => {
                let written = total(self.written.iter());
                let _ = reply.send(Reply {
                    epoch: Some(self.parts.epoch.clone()),
                    taken: Some(written.taken),
                    merged: Some(written.resolved),
                    ..Reply::default()
                });
            }
            After::Epoch(label) => {
                self.begin_epoch(label, reply);
            }
        }
    }

    fn begin_epoch(&mut self, label: Option<String>, waiter: oneshot::Sender<Reply>) {
        let start = epoch_start(&self.parts.machine, &self.parts.events, label);
        if self.parts.flusher.send(Job::NextEpoch(Box::new(start))) {
            self.epoch_waiters.push_back(waiter);
        } else {
            let _ = waiter
                .send(Reply::error("the thread that writes the database has ended; restart dcpid"));
        }
    }

    /// Holds what the last minute cost against the budget. The epoch goes on at a new rate, with
    /// samples of each period apart: it may be one that somebody labelled.
    fn end_term(&mut self) {
        let taken = self.taken();
        let (began, taken_before, cpu_before) = self.term;
        let cpu_ns = clock::process_cpu_ns();
        self.term = (Instant::now(), taken, cpu_ns);
        let bill = Bill {
            cpu_ns: began.elapsed().as_nanos() as f64 * self.parts.machine.cpus.len() as f64,
            sampling_ns: (taken - taken_before) as f64 * self.parts.cost.ns_per_sample,
            daemon_ns: (cpu_ns - cpu_before) as f64,
        };
        self.last_bill = Some(bill);
        if self.restraint.is_told_to_pause() {
            return;
        }
        let memory = self
            .parts
            .config
            .memory_limit
            .map_or(0.0, |limit| resident_bytes() as f64 / limit as f64);
        let verdict =
            self.governor.judge(bill, memory, affordable_step(&self.parts), clock::unix_s());
        if memory > 1.0 {
            self.merge_due = true; // what waits for the disk is memory too
        }
        if verdict.doing.is_some_and(|doing| self.restraint.allow(doing)) {
            self.restrain();
        }
        let Some(rate) = verdict.rate else { return };
        tracing::info!(rate, cost_percent = 100.0 * bill.share(), "the bill changes the rate");
        for (number, event) in
            self.parts.events.iter_mut().enumerate().filter(|(_, event)| event.adjustable)
        {
            *event = event.at_rate(rate, crate::kernel::clock_hz());
            let (period, rate_per_s) = (event.period, event.rate);
            let change = PeriodChange { at_unix_s: clock::unix_s(), period, rate_per_s };
            self.parts.collector.set_period(number, change);
        }
    }

    /// Samples taken since the start, all events together.
    fn taken(&self) -> u64 {
        self.written.iter().map(|account| account.taken).sum::<u64>()
            + self.waiting().map(taken).sum::<u64>()
    }

    /// What is not on disk yet.
    fn waiting(&self) -> impl Iterator<Item = &Pending> {
        let in_flight = self.in_flight.as_ref().map(|in_flight| &in_flight.pending);
        in_flight.into_iter().chain([&self.parts.collector.pending])
    }

    /// Everything since the start, by event number.
    fn by_event(&self) -> Vec<Account> {
        let mut by_event = self.written.clone();
        for (event, account) in self.waiting().flat_map(Pending::accounts) {
            if let Some(sum) = by_event.get_mut(event) {
                sum.add(account);
            }
        }
        by_event
    }
}

/// The step of the ladder of rates at which the adjustable events are planned.
fn planned_step(events: &[PlannedEvent]) -> usize {
    let rate = events.iter().find(|event| event.adjustable).and_then(|event| event.rate);
    RATES.iter().position(|step| Some(*step) == rate).unwrap_or(0)
}

/// The step of the ladder of rates that the budget allows by what a sample costs; the highest
/// without a budget.
fn affordable_step<Source>(parts: &Parts<Source>) -> usize {
    let events = at_once(&parts.events);
    parts.config.budget.map_or(0, |budget| affordable(budget, parts.cost.ns_per_sample, events))
}

fn taken(pending: &Pending) -> u64 {
    pending.accounts().map(|(_, account)| account.taken).sum()
}

#[cfg(test)]
mod tests;
