//! Merges: counts that wait for the disk, requests that wait for them, and the disk's answers.

use super::Asked;
use super::Pipeline;
use crate::drain::total;
use crate::governor::Bill;
use crate::status_parts::{bill, facts};
use crate::ticks::Tick;
use inspect::pool::cpu_ns_of_all;
use kernel::clock;
use model::{Endings, OpensOn};
use pending::Pending;
use pending::ledger::Account;
use pending::processes::Processes;
use persistence::database_thread::{Job, Merged, epoch_start};
use profiledb::{Delta, EpochId};
use sampling::recording::steps::Step;
use sampling::sample_source::SampleSource;
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};
use wire::{Reply, Request};

/// Merges tried at the end before the last samples are given up. More delay the end where the disk
/// is broken for good.
const LAST_MERGES_MAX: u32 = 3;
/// Pause between these merges.
const LAST_MERGES_PAUSE: Duration = Duration::from_secs(1);

/// The next step for a request, once the merge that it waits for is on disk.
pub(super) enum After {
    Flush,
    Epoch(Option<String>),
    Quit,
}

/// Error at the end of the daemon: its disk did not accept the last samples.
#[derive(Debug, thiserror::Error)]
#[error("{why}; {samples} samples are lost")]
pub struct LastSamplesLost {
    samples: u64,
    why: String,
}

/// A merge that the disk has not answered yet.
pub(super) struct InFlight {
    /// The part that is on its way: whole in itself, so that what the disk has taken of several
    /// parts stays right when the next one fails or a crash comes.
    pending: Pending,
    /// The parts to be merged after it.
    rest: VecDeque<Pending>,
    pub waiters: Vec<Waiter>,
}

pub(super) type Waiter = (After, oneshot::Sender<Reply>);

/// Merges that are under way, due and done.
pub(super) struct Merges {
    /// Samples acknowledged by the disk, by event number.
    pub written: Vec<Account>,
    /// Merge on its way to the disk, with the requests that wait for it.
    pub in_flight: Option<InFlight>,
    /// Requests that wait for the next merge.
    pub waiters: Vec<Waiter>,
    /// Requests that wait for their new epoch.
    pub epoch_waiters: VecDeque<oneshot::Sender<Reply>>,
    /// True when a merge is to begin as soon as none is in flight.
    pub due: bool,
    /// Why the last merge failed.
    pub error: Option<String>,
    /// Merges that failed since the daemon was told to end.
    pub failed_last_merges: u32,
    /// Time of the last merge that succeeded, in seconds since 1970 UTC.
    pub last_unix_s: Option<u64>,
    /// Size of the database after that merge, in bytes.
    pub database_bytes: u64,
    /// Samples whose scope the database had no room for.
    pub samples_widened: u64,
    /// Processes that keep their numbers in call stacks.
    processes: Processes,
    pub last_merges_pause: Duration,
}

impl Merges {
    /// No merges yet, for this number of events.
    pub fn new(events: usize) -> Self {
        Self {
            written: vec![Account::default(); events],
            in_flight: None,
            waiters: Vec::new(),
            epoch_waiters: VecDeque::new(),
            due: false,
            error: None,
            failed_last_merges: 0,
            last_unix_s: None,
            database_bytes: 0,
            samples_widened: 0,
            processes: Processes::default(),
            last_merges_pause: LAST_MERGES_PAUSE,
        }
    }

    /// Whether a request for a new epoch waits.
    fn epoch_is_asked_for(&self) -> bool {
        let in_flight = self.in_flight.iter().flat_map(|merge| &merge.waiters);
        let mut waiters = self.waiters.iter().chain(in_flight);
        waiters.any(|(after, _)| matches!(after, After::Epoch(_))) || !self.epoch_waiters.is_empty()
    }

    /// The number of requests that wait for the disk.
    pub fn waiting(&self) -> usize {
        let in_flight = self.in_flight.as_ref().map_or(0, |merge| merge.waiters.len());
        self.waiters.len() + in_flight + self.epoch_waiters.len()
    }
}

impl<Source: SampleSource> Pipeline<Source> {
    /// Answers all requests that still wait, because everything is on disk.
    pub(super) fn answer_the_rest(&mut self, asked: &mut mpsc::Receiver<Asked>) {
        let ending = || Reply::error("dcpid is ending; everything sampled is on disk");
        let mut rest = std::mem::take(&mut self.merges.waiters);
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
        self.merges.epoch_waiters.drain(..).for_each(|reply| drop(reply.send(ending())));
    }

    pub(super) fn is_epoch_over(&self) -> bool {
        let length = self.parts.config.epoch_length;
        !self.merges.epoch_is_asked_for()
            && length.is_some_and(|length| self.parts.epoch_clock.age() >= length)
    }

    /// Sends everything pending to the disk, if a request or the timer wants that and no merge is
    /// in flight.
    pub(super) fn start_merge(&mut self) {
        let wanted = self.merges.due || !self.merges.waiters.is_empty();
        if !wanted || self.merges.in_flight.is_some() {
            return;
        }
        self.merges.due = false;
        if !self.merges.waiters.is_empty() || self.stopping {
            self.parts.collector.end_wait_for_names();
        }
        let mut rest = self.parts.collector.pending.take().parts();
        let Some(pending) = rest.pop_front() else { return };
        let waiters = std::mem::take(&mut self.merges.waiters);
        let in_flight = InFlight { pending, rest, waiters };
        let now_unix_s = self.parts.epoch_clock.merge_unix_s();
        let mut delta = in_flight.pending.delta(&self.names, now_unix_s);
        self.merges.processes.join(&mut delta.stacks, now_unix_s);
        delta.facts = facts(self.parts.skid, self.parts.machine.cpuid.as_ref(), &self.names);
        self.measured.iter().for_each(|measured| delta.facts.state(measured));
        if let Some(label) = &self.parts.opens_on {
            delta.facts.state(&OpensOn(label.clone()));
        }
        if let Some(restraints) = self.rates.restraint().fact() {
            delta.facts.state(&restraints);
        }
        if let Some(steps) = self.parts.epoch_clock.fact() {
            delta.facts.state(steps);
        }
        delta.facts.state(&self.endings(&in_flight.rest));
        let cost = self.rates.cost().ns_per_sample;
        let share = self.rates.last_bill().map(|bill| Bill::share(&bill));
        delta.cost = Some(bill(cost, share, cpu_ns_of_all(), self.taken()));
        self.parts.collector.tape.note(|| Step::Merge {
            unix_s: delta.now_unix_s,
            facts: delta.facts.clone(),
            cost: delta.cost.clone(),
        });
        self.merges.in_flight = Some(in_flight);
        self.send(delta);
    }

    /// How daemons ended that wrote the epoch, as of a merge after which these parts are left.
    fn endings(&self, rest: &VecDeque<Pending>) -> Endings {
        Endings { ended: self.stopping && rest.is_empty(), killed: self.parts.killed.clone() }
    }

    fn send(&mut self, delta: Delta) {
        if !self.parts.flusher.send(Job::Merge(Box::new(delta))) {
            self.merged(Err(
                "the thread that writes the database has ended; restart dcpid and report its log"
                    .to_owned(),
            ));
        }
    }

    pub(super) fn merged(&mut self, result: Result<Merged, String>) {
        let Some(InFlight { pending, mut rest, waiters }) = self.merges.in_flight.take() else {
            return;
        };
        match result {
            Ok(merged) => {
                for (event, account) in pending.accounts() {
                    if let Some(written) = self.merges.written.get_mut(event) {
                        written.add(account);
                    }
                }
                tracing::debug!(
                    files = merged.report.files_written,
                    bytes = merged.report.bytes_written,
                    "merged"
                );
                if self.merges.error.take().is_some() {
                    tracing::info!("the database takes samples again; nothing was lost meanwhile");
                    self.ticks.merge = Instant::now() + self.period(Tick::Merge);
                }
                self.epoch_is(&merged.epoch);
                self.merges.last_unix_s = Some(clock::unix_s());
                self.merges.database_bytes = merged.database_bytes;
                self.merges.samples_widened += merged.report.samples_widened;
                if let Some(pending) = rest.pop_front() {
                    let now_unix_s = self.parts.epoch_clock.merge_unix_s();
                    let mut delta = pending.delta(&self.names, now_unix_s);
                    self.merges.processes.join(&mut delta.stacks, now_unix_s);
                    delta.facts.state(&self.endings(&rest));
                    self.merges.in_flight = Some(InFlight { pending, rest, waiters });
                    return self.send(delta);
                }
                waiters.into_iter().for_each(|waiter| self.finish(waiter));
            }
            Err(error) => {
                if self.merges.error.as_ref() != Some(&error) {
                    tracing::error!(
                        "{error}; samples are kept in memory and the merge is tried again"
                    );
                }
                let pending = std::iter::once(pending).chain(rest);
                for part in pending.rev() {
                    self.parts.collector.pending.absorb(part);
                }
                self.merges.failed_last_merges += u32::from(self.stopping);
                self.merges.due = self.stopping; // else the timer has it tried again
                for (_, reply) in waiters {
                    let next = if self.stopping {
                        "dcpid tries again before it ends; see its log"
                    } else {
                        "dcpid keeps the samples in memory and tries again"
                    };
                    let _ = reply.send(Reply::error(format!("{error}; {next}")));
                }
                self.merges.error = Some(error);
                let retry = Instant::now() + self.period(Tick::Merge);
                self.ticks.merge = self.ticks.merge.min(retry);
            }
        }
    }

    fn finish(&mut self, (after, reply): Waiter) {
        match after {
            After::Flush | After::Quit => {
                let written = total(self.merges.written.iter());
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
        self.parts.collector.tape.note(|| Step::Epoch((&start).into()));
        if self.parts.flusher.send(Job::NextEpoch(Box::new(start))) {
            self.merges.epoch_waiters.push_back(waiter);
        } else {
            let _ = waiter
                .send(Reply::error("the thread that writes the database has ended; restart dcpid"));
        }
    }

    /// Handles the disk's answer to a request for a new epoch.
    pub(super) fn epoch_began(&mut self, result: Result<EpochId, String>) {
        let reply = match result {
            Ok(epoch) => {
                tracing::info!(%epoch, "new epoch");
                self.epoch_is(&epoch);
                Reply { epoch: Some(epoch.to_string()), ..Reply::default() }
            }
            Err(error) => Reply::error(error),
        };
        if let Some(waiter) = self.merges.epoch_waiters.pop_front() {
            let _ = waiter.send(reply); // the client may have gone
        }
    }

    /// Samples go to this epoch.
    fn epoch_is(&mut self, epoch: &EpochId) {
        if self.parts.epoch != epoch.as_str() {
            self.parts.epoch = epoch.to_string();
            self.parts.epoch_clock.begin_epoch();
            self.parts.killed.clear();
            self.parts.collector.spaces.allowances.begin_epoch();
        }
    }

    /// The error when the disk has refused the last samples too often.
    pub(super) fn last_samples_lost(&mut self) -> Option<LastSamplesLost> {
        (self.merges.failed_last_merges >= LAST_MERGES_MAX).then(|| LastSamplesLost {
            samples: self.waiting().map(taken).sum(),
            why: self.merges.error.take().unwrap_or_default(),
        })
    }

    /// Samples of all events since the start.
    pub(super) fn taken(&self) -> u64 {
        self.merges.written.iter().map(|account| account.taken).sum::<u64>()
            + self.waiting().map(taken).sum::<u64>()
    }

    /// Counts that are not on disk yet.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &Pending> {
        let in_flight = self.merges.in_flight.iter();
        let parts = in_flight.flat_map(|merge| std::iter::once(&merge.pending).chain(&merge.rest));
        parts.chain([&self.parts.collector.pending])
    }

    /// The accounts since the start, by event number.
    pub(super) fn by_event(&self) -> Vec<Account> {
        let mut by_event = self.merges.written.clone();
        for (event, account) in self.waiting().flat_map(Pending::accounts) {
            if let Some(sum) = by_event.get_mut(event) {
                sum.add(account);
            }
        }
        by_event
    }
}

fn taken(pending: &Pending) -> u64 {
    pending.accounts().map(|(_, account)| account.taken).sum()
}
