//! Requests and their answers.

use super::Asked;
use super::Pipeline;
use super::merging::After;
use crate::drain::total;
use crate::governor::Bill;
use crate::status_parts::{
    cpu_status, edges_status, event_status, generated_status, ns_per_sample, resident_bytes,
    stacks_status, waits_status,
};
use inspect::blame::Blamed;
use inspect::pool::{Standing, cpu_ns_of_all};
use sampling::sample_source::SampleSource;
use std::time::Instant;
use tokio::sync::oneshot;
use wire::{
    ApartStatus, ChangeStatus, CostStatus, DaemonStatus, DbStatus, HandlerStatus, InspectorsStatus,
    OverheadStatus, RateStatus, Reply, Request, Samples, Status, TableStatus, WaitStatus,
};

/// Most requests that wait for the disk. The number is below that of clients, so that others are
/// answered while the disk is slow.
const WAITERS_MAX: usize = 64;
/// Users that kept inspectors waiting, in a status.
const USERS_SHOWN: usize = 16;

impl<Source: SampleSource> Pipeline<Source> {
    /// Answers requests that came together, after one drain for all.
    pub(super) fn answer(&mut self, requests: Vec<Asked>) {
        self.parts.collector.drain();
        requests.into_iter().for_each(|(request, reply)| self.answer_one(request, reply));
    }

    fn answer_one(&mut self, request: Request, reply: oneshot::Sender<Reply>) {
        let after = match request {
            Request::Status => {
                let _ =
                    reply.send(Reply { status: Some(Box::new(self.status())), ..Reply::default() });
                return;
            }
            Request::Counts { watch, user } => {
                // The client may have gone.
                let _ = reply.send(self.counts((user.unwrap_or(u32::MAX), watch)));
                return;
            }
            Request::Label { pid, start_time, label } => {
                let _ = reply.send(self.label(pid, start_time, &label)); // the client may have gone
                return;
            }
            Request::Register(told) => {
                let _ = reply.send(regions_reply(self.parts.collector.register(&told)));
                return;
            }
            Request::Unregister { pid, start } => {
                let _ = reply.send(regions_reply(self.parts.collector.unregister(pid, start)));
                return;
            }
            Request::Flush => After::Flush,
            Request::Epoch { label } => After::Epoch(label),
            Request::Quit => {
                self.stop();
                After::Quit
            }
        };
        let waiting = self.merges.waiting();
        if waiting >= WAITERS_MAX && !self.stopping {
            let _ = reply.send(Reply::error(format!(
                "{waiting} requests wait for dcpid's disk already; try again"
            )));
            return;
        }
        self.merges.waiters.push((after, reply));
    }

    /// The samples since this client's last question: everything sampled before is drained.
    fn counts(&mut self, watch: (u32, u64)) -> Reply {
        match self.parts.collector.watches.ask(watch, &self.parts.events, Instant::now()) {
            Ok(counts) => Reply { counts: Some(Box::new(counts)), ..Reply::default() },
            Err(error) => Reply::error(error),
        }
    }

    /// Labels a process. Everything sampled before is drained, so only later samples are labelled.
    fn label(&mut self, pid: Option<u32>, start_time: Option<u64>, label: &str) -> Reply {
        // The control socket fills in the client's process number; a client in another pid
        // namespace has none here.
        let Some(pid) = pid.filter(|pid| *pid > 0) else {
            return Reply::error(
                "dcpid cannot see this process from its pid namespace; run both in one",
            );
        };
        // A process that labels itself has just begun and has no children.
        let with_children = start_time.is_some();
        match self.parts.collector.label(pid, start_time, label, with_children) {
            Ok(()) => Reply::default(),
            Err(error) => Reply::error(error.to_string()),
        }
    }

    fn status(&self) -> Status {
        let collector = &self.parts.collector;
        let by_event = self.by_event();
        let (all, events) = (total(by_event.iter()), self.parts.events.iter().zip(&by_event));
        let (ledger, cpu_ns) = (all.ledger(), cpu_ns_of_all());
        let samples = Samples {
            taken: all.taken,
            merged: self.merges.written.iter().map(|account| account.resolved).sum(),
            pending: self
                .waiting()
                .map(|pending| {
                    (0..self.names.len()).map(|event| pending.samples(event)).sum::<u64>()
                })
                .sum(),
            unresolved: ledger.unresolved,
            lost: ledger.lost,
        };
        let (handler_ns, calls) = collector.handler_cost().unwrap_or_default();
        let code_store = collector.spaces.mappings.files.library.status();
        let code_store_ns = code_store.map_or(0, |store| (store.cpu_s * 1e9) as u64);
        let sampling_ns = cpu_ns.saturating_sub(
            self.start_cpu_ns + code_store_ns + collector.instruments.edges.totals.cpu_ns,
        );
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            host: self.parts.config.host_or(&self.parts.machine.host),
            uptime_s: self.started.elapsed().as_secs(),
            epoch: self.parts.epoch.clone(),
            events: events.map(|(plan, account)| event_status(plan, account)).collect(),
            cpus: collector.cpus.iter().map(|(cpu, ledger)| cpu_status(*cpu, ledger)).collect(),
            table: TableStatus {
                hits: all.taken.saturating_sub(collector.table.misses),
                misses: collector.table.misses,
                places: collector.table.places,
                bytes_per_cpu: self.parts.config.table.bytes_per_cpu() as u64,
            },
            handler: HandlerStatus {
                ns_per_sample: (calls > 0).then(|| handler_ns as f64 / calls as f64),
                calls,
            },
            daemon: DaemonStatus {
                cpu_s: cpu_ns as f64 / 1e9,
                start_cpu_s: self.start_cpu_ns as f64 / 1e9,
                rss_bytes: resident_bytes(),
                ns_per_sample: ns_per_sample(sampling_ns, samples.taken),
            },
            overhead: self.overhead(),
            apart: ApartStatus {
                labels: collector.spaces.mappings.tagger.labels().into_iter().collect(),
                units_refused: collector.spaces.mappings.tagger.refused,
                samples_widened: self.merges.samples_widened,
            },
            samples,
            processes: collector.spaces.mappings.len() as u64,
            images: collector.spaces.mappings.files.len() as u64,
            code_store,
            lost_records: collector.spaces.mappings.lost_records,
            refused: collector.spaces.mappings.refused,
            generated: generated_status(collector.spaces.jit.totals()),
            edges: self
                .rates
                .snapshot_rate()
                .map(|rate| edges_status(rate, &collector.instruments.edges.totals)),
            stacks: self
                .rates
                .stack_rate()
                .map(|rate| stacks_status(rate, &collector.instruments.call_stacks)),
            waits: self.parts.config.waits.then(|| waits_status(&collector.instruments.waits)),
            loader: collector.notices.counts(),
            inspectors: inspectors_status(collector.spaces.mappings.system.inspectors().standing()),
            restraint: self.rates.restraint().status(),
            last_merge: self.merges.last_unix_s,
            merge_error: self.merges.error.clone(),
            db: DbStatus {
                path: self.parts.config.db.display().to_string(),
                bytes: self.merges.database_bytes,
            },
        }
    }
}

impl<Source> Pipeline<Source> {
    /// The cost of sampling, and the reason of the rate.
    fn overhead(&self) -> OverheadStatus {
        let (cost, bill) = (self.rates.cost(), self.rates.last_bill());
        let measured = cost.measured.map(|measured| CostStatus {
            unix_s: cost.unix_s,
            windows: measured.windows as u64,
            quiet: measured.quiet as u64,
            low_ns: measured.low_ns,
            high_ns: measured.high_ns,
        });
        let last_change = self.rates.governor().last_change().map(|change| ChangeStatus {
            unix_s: change.unix_s,
            from_per_s: change.from,
            to_per_s: change.to,
            why: change.why.clone(),
        });
        let allowed_per_s = self.rates.allowed_per_s(&self.parts.events);
        OverheadStatus {
            budget: self.rates.budget().map(|budget| budget.0),
            share: bill.as_ref().map(Bill::share),
            sampling_share: bill.map(|bill| Bill { daemon_ns: 0.0, ..bill }.share()),
            daemon_share: bill.map(|bill| bill.part_of_cpu(bill.daemon_ns)),
            items: bill.iter().flat_map(Bill::items).map(owned).collect(),
            ns_per_sample: Some(cost.ns_per_sample),
            measured,
            rate: self.rates.governor().rate().map(|per_s| RateStatus {
                per_s,
                allowed_per_s,
                last_change,
            }),
        }
    }
}

fn owned((name, part): (&str, f64)) -> (String, f64) {
    (name.to_owned(), part)
}

fn inspectors_status(standing: Standing) -> InspectorsStatus {
    let Standing { counts, users, is_broken } = standing;
    let user = |blamed: Blamed| WaitStatus {
        uid: blamed.user.number(),
        unanswered: blamed.unanswered,
        pid: blamed.pid,
        program: blamed.program,
    };
    InspectorsStatus {
        started: counts.inspectors,
        asked: counts.asked,
        unanswered: counts.unanswered,
        withheld: counts.withheld,
        peak_bytes: counts.peak_bytes,
        reachable: !is_broken,
        users: users.into_iter().take(USERS_SHOWN).map(user).collect(),
    }
}

fn regions_reply(regions: Result<usize, String>) -> Reply {
    match regions {
        Ok(regions) => Reply { regions: Some(regions as u64), ..Reply::default() },
        Err(error) => Reply::error(error),
    }
}
