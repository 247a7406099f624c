//! Notes on samples of an event that could not be taken.

use model::Ledger;

use super::EventColumn;
use super::quantity::{percent, thousands};
use super::text::ratio;

/// Part of the time at which an event counts as having had a counter all the time.
const WHOLE_TIME: f64 = 0.999;

/// A note on samples that the event's period implies and that were not taken, from 1 % on.
pub(super) fn missed(ledger: &Ledger) -> Option<String> {
    let missed = ledger.implied.saturating_sub(ledger.taken);
    (missed > 0 && missed >= ledger.implied / 100).then(|| {
        let of_implied = percent(ratio(missed, ledger.implied));
        format!(
            "{of_implied} % of samples missing (idle throttling, or late interrupts); the idle share \
             is understated"
        )
    })
}

/// A note on the part of the time in which the event had a counter, unless it had one all the time.
pub(super) fn part_of_time(column: &EventColumn) -> Option<String> {
    let event = &column.event;
    let (Some(scale), Some(count)) = (event.scale(), column.occurrences) else {
        return Some(
            "the event never had a counter: other events had the counters all the time; sample fewer events at once, or let them take turns (dcpid --mux)".to_owned(),
        );
    };
    (1.0 / scale < WHOLE_TIME).then(|| {
        let [value, low, high] = [count.value, count.low, count.high]
            .map(|count| thousands(count.round() as u64));
        let unit = if event.unit == "count" { "occurrences" } else { &event.unit };
        format!(
            "the event had a counter {:.1} % of the time (multiplexed): counts are scaled by {scale:.2}, to {value} {unit} ({low}–{high})",
            100.0 / scale
        )
    })
}
