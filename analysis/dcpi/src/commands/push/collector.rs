//! To an OpenTelemetry collector: each merge once, as a request of samples by procedure.

use std::io::Write;

use profiledb::{Database, Epoch, Sent};

use super::otlp_http::Collector;
use super::{Pushed, Stopped, Way};
use export::otlp;
use export::resolve::{self, Detail, Wanted};
use names::procedures::Places;
use query::load::Samples;
use query::problem::Problem;
use report::counted;

/// Bytes of segments that one request is of, at least one segment. A request is some five times as
/// large before it is compressed, and collectors take 20 MiB by default. Memory is some ten times
/// as much.
const PART_BYTES_MAX: u64 = 2 << 20;

/// Sends the merges that a collector does not have yet, each once.
pub(super) struct ToCollector {
    pub(super) to: Collector,
    pub(super) sent: Sent,
}

impl Way for ToCollector {
    /// Sends all that is new, epoch by epoch and part by part.
    fn push(
        &mut self,
        db: &Database,
        pushed: &mut Pushed,
        out: &mut dyn Write,
    ) -> Result<(), Stopped> {
        for host in db.hosts()? {
            for epoch in db.epochs(&host)? {
                while let Some(part) = self.sent.unsent(db, &host, &epoch, PART_BYTES_MAX)? {
                    if Sent::has_counts(&part) {
                        self.send(db, part.clone(), pushed, out)?;
                    }
                    self.sent.mark(&part)?;
                }
            }
            self.sent.forget_gone(db, &host)?;
        }
        Ok(())
    }

    fn told(&self, pushed: &Pushed) -> String {
        let Pushed { objects, samples, .. } = *pushed;
        format!("{} in {}", counted(samples, "sample"), counted(objects, "request"))
    }
}

impl ToCollector {
    /// Sends one part, where there is anything to send.
    fn send(
        &self,
        db: &Database,
        part: Epoch,
        pushed: &mut Pushed,
        out: &mut dyn Write,
    ) -> Result<(), Stopped> {
        let mut problems: Vec<Problem> = Vec::new();
        let mut samples = Samples::of_epoch(db, part)?;
        problems.append(&mut samples.problems);
        let wanted = Wanted {
            detail: Detail::Procedures,
            executed: false,
            idle: false,
            everything: true,
            places: Places::with_debug_roots(Vec::new()),
            stacks: samples.stacks_by_scope(&[], &mut problems)?,
        };
        let resolved = resolve::resolve(&samples, &wanted, &mut problems);
        drop((samples, wanted));
        let mut message = Vec::new();
        let carried = otlp::write(&resolved, &mut message)?;
        let has_any = carried.samples.iter().any(|samples| *samples > 0)
            || !resolved.stacks.samples.is_empty();
        // Events that only stacks have count those.
        let sampled = resolved.events.iter().zip(&carried.samples);
        let sampled = sampled.filter(|(event, _)| event.period > 0).map(|(_, samples)| *samples);
        let samples = sampled.fold(0, u64::saturating_add);
        drop(resolved);
        for problem in problems.iter().filter(|problem| problem.is_serious()) {
            writeln!(out, "{problem}")?;
            pushed.is_sound = false;
        }
        if !has_any {
            return Ok(());
        }
        let answer = self.to.send(&message).map_err(Stopped::Receiver)?;
        if let Some(rejected) = answer {
            writeln!(out, "{}: {rejected}", self.to)?;
            pushed.is_sound = false;
        }
        pushed.objects += 1;
        pushed.samples = pushed.samples.saturating_add(samples);
        Ok(())
    }
}
