//! The daemon's one loop: drains on a timer, merges on another, answers requests, ends on a signal.
//! It owns all state and calls the other modules for all work.

mod answers;
mod merging;
mod reload;

use crate::drain::Collector;
use crate::epoch_clock::EpochClock;
use crate::governor::SamplingLevel;
use crate::rates::{Decision, Limits, Rates, Spent, Walks};
use crate::restraint::is_pause_file_there;
use crate::status_parts::resident_bytes;
use crate::ticks::{Tick, Ticks};
use anyhow::Context as _;
use events::PlannedEvent;
use inspect::pool::cpu_ns_of_all;
use kernel::clock;
use kernel::{Alarm, Cost, EventSkid, Machine};
use merging::{After, Merges};
use model::{Killed, MeasuredMachine};
use persistence::database_thread::{Done, Flusher};
use persistence::measured_machine;
use profiledb::PeriodChange;
use sampling::sample_source::{Order, SampleSource, Steered};
use sampling::waits;
use settings::config::Config;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};
use wire::{Reply, Request};

pub use merging::LastSamplesLost;

/// Records in one reading above which a storm is assumed, and the rings are read sooner.
const RECORDS_STORM: usize = 100;
/// A merge that failed is tried again after this long, or the merge interval if that is shorter.
const MERGE_RETRY: Duration = Duration::from_secs(30);
/// Most requests that are answered together. More delay the drain, fewer make a storm of requests
/// cost a drain each.
const REQUESTS_MAX: usize = 64;
/// Pause after requests were answered: this multiple of the time that answering took, within these
/// limits. So a client that asks as fast as it can takes a quarter of the daemon's time.
const REQUESTS_PAUSE: (u32, Duration, Duration) =
    (3, Duration::from_millis(5), Duration::from_millis(250));
/// Shortest time between two notifications of the service manager's watchdog.
const WATCHDOG_MIN: Duration = Duration::from_millis(100);
/// A request, and the channel for its answer.
pub type Asked = (Request, oneshot::Sender<Reply>);

/// Events of the loop: a closed list.
enum Event {
    Tick(Tick),
    Asked(Vec<Asked>),
    Reload(Box<Config>),
    Done(Done),
    Stop,
}

/// Signals to end, and configurations to take over.
pub type Signals = (mpsc::Receiver<()>, mpsc::Receiver<Config>);

/// The parts of the pipeline.
pub struct Parts<Source> {
    /// The configuration.
    pub config: Config,
    /// This machine.
    pub machine: Machine,
    /// The events that are sampled.
    pub events: Vec<PlannedEvent>,
    /// The measured skid.
    pub skid: Option<EventSkid>,
    /// The collector, with source and mappings.
    pub collector: Collector<Source>,
    /// The thread that writes the database.
    pub flusher: Flusher,
    /// Name of the open epoch.
    pub epoch: String,
    /// Its clock.
    pub epoch_clock: EpochClock,
    /// Times without samples before it, or in it, because a daemon was killed.
    pub killed: Vec<Killed>,
    /// Label of the recorded command: readers of the epoch select its samples unless told
    /// otherwise.
    pub opens_on: Option<String>,
}

/// The state of the loop.
pub struct Pipeline<Source> {
    parts: Parts<Source>,
    names: Vec<String>,
    /// This processor as it was measured.
    measured: Option<MeasuredMachine>,
    started: Instant,
    /// The daemon's CPU time when it began to sample.
    start_cpu_ns: u64,
    merges: Merges,
    rates: Rates,
    stopping: bool,
    ticks: Ticks,
    records_interval: Duration,
    /// Interval of the watchdog's notifications; the service manager restarts a daemon whose loop
    /// does not turn.
    watchdog: Option<Duration>,
    /// Requests are not answered before this time.
    requests_pause_end: Instant,
}

impl<Source: SampleSource> Pipeline<Source> {
    /// A pipeline that is ready to run; `cost` is that of a sample.
    pub fn new(mut parts: Parts<Source>, cost: Cost) -> Self {
        let now = Instant::now();
        let watchdog = sd_notify::watchdog_enabled().map(|period| (period / 3).max(WATCHDOG_MIN));
        let names: Vec<_> = parts.events.iter().map(|plan| plan.event.name.clone()).collect();
        let (limits, cpus) = (limits(&parts.config), parts.machine.cpus.len());
        parts.collector.instruments.edges.interrupt_ns = cost.ns_per_sample as u64;
        let rates = Rates::new(limits, cpus, &parts.events, cost, &spent(0));
        Self {
            merges: Merges::new(names.len()),
            measured: measured_machine::read(
                parts.config.machine.as_deref(),
                parts.machine.cpuid.as_ref(),
            ),
            names,
            started: now,
            start_cpu_ns: cpu_ns_of_all(),
            records_interval: rates.records_interval(true, &parts.events),
            ticks: Ticks {
                records: now + rates.records_interval(true, &parts.events),
                drain: now + parts.config.drain_interval,
                merge: now + parts.epoch_clock.until_next(parts.config.merge_interval),
                pass: None,
                watchdog: watchdog.map(|period| now + period),
            },
            rates,
            stopping: false,
            watchdog,
            requests_pause_end: now,
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
        self.look_at_pause_file();
        self.pace_snapshots();
        self.pace_waits();
        let mut requests = Vec::new();
        loop {
            let now = Instant::now();
            let may_ask = self.requests_pause_end <= now;
            let (_, tick) = self.ticks.first();
            let next = if may_ask { tick } else { tick.min(self.requests_pause_end) };
            let event = tokio::select! {
                Some(()) = stop.recv() => Event::Stop,
                Some(result) = done.recv() => Event::Done(result),
                1.. = asked.recv_many(&mut requests, REQUESTS_MAX), if may_ask => {
                    Event::Asked(std::mem::take(&mut requests))
                }
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
            if self.stopping && self.merges.in_flight.is_none() {
                if self.parts.collector.pending.is_empty() {
                    self.answer_the_rest(&mut asked);
                    tracing::info!("everything sampled is on disk");
                    return Ok(());
                }
                if let Some(lost) = self.last_samples_lost() {
                    return Err(lost.into());
                }
                if self.merges.failed_last_merges > 0 {
                    tokio::time::sleep(self.merges.last_merges_pause).await;
                }
                // Call stacks that were walked during this merge need another one. The merge timer
                // may be minutes away.
                self.merges.due = true;
            }
            self.start_merge();
        }
    }

    fn handle(&mut self, event: Event) {
        let begun = Instant::now();
        match event {
            Event::Tick(tick) => {
                self.tick(tick);
                let period = self.period(tick);
                if tick == Tick::Merge {
                    // The period of merges is that until the clock's next one. A merge drains.
                    self.ticks.merge = Instant::now() + period;
                    self.ticks.drain = begun + self.parts.config.drain_interval;
                } else {
                    self.ticks.set(tick, begun + period);
                }
                // Passes have random moments, or none.
                self.ticks.pass = self.next_pass();
            }
            Event::Asked(requests) => {
                self.answer(requests);
                let (times, min, max) = REQUESTS_PAUSE;
                self.requests_pause_end =
                    Instant::now() + (begun.elapsed() * times).clamp(min, max);
            }
            Event::Reload(config) => {
                self.reload(*config);
                // The next drain never becomes later: reloading the configuration again and again
                // delays nothing.
                self.ticks.drain = self.ticks.drain.min(begun + self.period(Tick::Drain));
                let merge = self.period(Tick::Merge);
                self.ticks.merge = self.ticks.merge.min(Instant::now() + merge);
            }
            Event::Done(Done::Merged(result)) => self.merged(result),
            Event::Done(Done::Epoch(result)) => self.epoch_began(result),
            Event::Stop => self.stop(),
        }
    }

    fn tick(&mut self, tick: Tick) {
        match tick {
            Tick::Records => {
                self.look_at_pause_file();
                let collector = &mut self.parts.collector;
                let storm = collector.collect_records() >= RECORDS_STORM || collector.is_watchful();
                collector.steer(Order::Rotate);
                self.records_interval = self
                    .rates
                    .records_interval(storm, &self.parts.events)
                    .min(self.parts.collector.instruments.call_stacks.look_within());
                if self.parts.collector.wants_drain() {
                    self.parts.collector.drain();
                } else {
                    self.parts.collector.follow_branches();
                }
            }
            Tick::Drain => {
                self.parts.collector.drain();
                self.pace_snapshots();
                self.share_walks();
                self.pace_waits();
                if let Steered::Costs(cost) = self.parts.collector.steer(Order::MeasureCost) {
                    self.rates.set_cost(cost);
                    let edges = &mut self.parts.collector.instruments.edges;
                    edges.interrupt_ns = cost.ns_per_sample as u64;
                }
                let decision = self.rates.follow_kernel(clock::unix_s());
                self.carry_out(decision);
                if self.rates.is_term_over(Instant::now(), self.parts.config.drain_interval) {
                    kernel::give_back();
                    kernel::give_back_code();
                    self.end_term();
                }
            }
            Tick::Merge => {
                self.tick(Tick::Drain);
                self.merges.due = true;
                if self.is_epoch_over() {
                    let nobody = oneshot::channel().0;
                    self.merges.waiters.push((After::Epoch(None), nobody));
                }
            }
            Tick::Pass => self.pass_over_threads(),
            // Without a service manager the error means nothing.
            Tick::Watchdog => drop(sd_notify::notify(&[sd_notify::NotifyState::Watchdog])),
        }
    }

    /// The time until an action is due again, now that it was done. Merges are due when intervals
    /// of the clock are over.
    fn period(&mut self, tick: Tick) -> Duration {
        match tick {
            Tick::Records => self.records_interval,
            Tick::Drain => self.parts.config.drain_interval,
            Tick::Merge if self.merges.error.is_some() => {
                self.parts.config.merge_interval.min(MERGE_RETRY)
            }
            Tick::Merge => self.parts.epoch_clock.until_next(self.parts.config.merge_interval),
            // Without one it never ticks.
            Tick::Watchdog | Tick::Pass => self.watchdog.unwrap_or(MERGE_RETRY),
        }
    }

    /// Reads whether the pause file exists.
    fn look_at_pause_file(&mut self) {
        let exists = is_pause_file_there(self.rates.pause_file());
        let decision = self.rates.told_to_pause(exists, self.samples_per_s());
        self.carry_out(decision);
    }

    /// Adjusts the rates of snapshots and call stacks to their cost.
    fn pace_snapshots(&mut self) {
        let decision = self.rates.pace_snapshots(self.samples_per_s());
        self.carry_out(decision);
    }

    /// Shares what walking stacks may cost among users.
    fn share_walks(&mut self) {
        let (ns_per_s, more) = self.rates.walks_afford();
        self.parts.collector.instruments.call_stacks.share(ns_per_s, more);
    }

    /// Begins or ends to take the times of threads, by what switches between them cost.
    fn pace_waits(&mut self) {
        let is_restrained = self.rates.restraint().level() != SamplingLevel::All;
        let (cpus, budget) = (self.parts.machine.cpus.len(), self.rates.budget());
        let affords = self.rates.waits_afford();
        let collector = &mut self.parts.collector;
        if is_restrained && collector.instruments.waits.scale().is_some() {
            collector.instruments.waits.stop();
            collector.steer(Order::Waits(0));
        }
        if is_restrained || self.stopping || !self.parts.config.waits {
            return;
        }
        let waits = &mut collector.instruments.waits;
        if let Some(scale_us) = waits.pace(waits::switches(), cpus, budget, &affords) {
            collector.steer(Order::Waits(scale_us));
        }
        self.ticks.pass = self.next_pass();
    }

    /// When the next pass over all threads is due; None: there are no passes.
    fn next_pass(&self) -> Option<Instant> {
        let passes = self.parts.collector.instruments.waits.passes();
        passes.map(|passes| passes.at())
    }

    /// Samples waiting threads in a pass over all threads.
    fn pass_over_threads(&mut self) {
        let (now, begun) = (Instant::now(), clock::thread_cpu_ns());
        let ns_per_s = self.rates.waits_afford().ns_per_s * self.parts.machine.cpus.len() as f64;
        let collector = &mut self.parts.collector;
        let passes = collector.instruments.waits.passes();
        let Some(covers) = passes.map(|passes| passes.covers(now)) else { return };
        if collector.see_waits(covers) {
            let cost = Duration::from_nanos(clock::thread_cpu_ns() - begun);
            collector.instruments.waits.passed(covers, cost, ns_per_s);
        } else {
            collector.instruments.waits.do_without_passes();
        }
    }

    fn end_term(&mut self) {
        let now = self.spent();
        let decision = self.rates.end_term(&now, &self.parts.events, self.samples_per_s());
        self.carry_out(decision);
    }

    /// Resources spent so far.
    fn spent(&self) -> Spent {
        let collector = &self.parts.collector;
        let instruments = &collector.instruments;
        let kept = collector.spaces.mappings.files.library.status();
        Spent {
            keeping_ns: kept.map_or(0, |store| (store.cpu_s * 1e9) as u64),
            passes_ns: instruments.waits.passes_ns(),
            switches: instruments.waits.switches_taken(),
            walks: Walks {
                edges: instruments.edges.walk_cost(),
                stacks: instruments.call_stacks.walk_cost(),
            },
            ..spent(self.taken())
        }
    }

    /// Samples of the first event per second on one CPU.
    fn samples_per_s(&self) -> f64 {
        let clock_hz = kernel::clock_hz();
        self.parts.events.first().map_or(0.0, |event| event.samples_per_s(clock_hz))
    }

    /// Carries out a decision. A new rate does not end the epoch, which may be labelled: samples of
    /// each period are kept apart.
    fn carry_out(&mut self, decision: Decision) {
        let Decision { pause, snapshot_every, stack_every, rate, merge } = decision;
        let collector = &mut self.parts.collector;
        let orders = [
            pause.map(Order::Pause),
            snapshot_every.map(Order::SnapshotEvery),
            stack_every.map(Order::StackEvery),
        ];
        for order in orders.into_iter().flatten() {
            collector.steer(order);
        }
        self.merges.due |= merge;
        let Some(rate) = rate else { return };
        let cost_percent = self.rates.last_bill().map_or(0.0, |bill| 100.0 * bill.share());
        tracing::info!(rate, cost_percent, "the cost of sampling changes the rate");
        for (number, event) in
            self.parts.events.iter_mut().enumerate().filter(|(_, event)| event.adjustable)
        {
            *event = event.at_rate(rate, kernel::clock_hz());
            let (period, rate_per_s) = (event.period, event.rate);
            let change = PeriodChange { at_unix_s: clock::unix_s(), period, rate_per_s };
            collector.set_period(number, change);
        }
    }

    fn stop(&mut self) {
        if !self.stopping {
            self.stopping = true;
            self.parts.collector.steer(Order::Waits(0));
            self.parts.collector.steer(Order::Stop);
            self.parts.collector.drain();
            self.parts.collector.instruments.waits.stop();
        }
        self.merges.due = true;
    }
}

/// The limits that the configuration sets.
fn limits(config: &Config) -> Limits {
    Limits {
        budget: config.budget,
        memory_bytes: config.memory_limit,
        snapshots_per_s: config.edges,
        stacks_per_s: config.stacks,
        pause_file: config.pause_file.clone(),
    }
}

/// Resources spent so far, when this many samples were taken, by no part of them.
fn spent(taken: u64) -> Spent {
    let (unix_s, cpu_ns) = (clock::unix_s(), cpu_ns_of_all());
    let resident_bytes = resident_bytes();
    Spent {
        at: Instant::now(),
        unix_s,
        taken,
        cpu_ns,
        passes_ns: 0,
        keeping_ns: 0,
        switches: 0,
        walks: Walks::default(),
        resident_bytes,
    }
}

#[cfg(test)]
mod tests;
