//! Samples of unknown code: their names, and those among them whose process is not known either.

use std::collections::BTreeSet;

use crate::load::{EventSamples, Samples};
use stats::tally::Tally;

/// The name of samples of unknown code, by the name of the reason.
pub fn name(reason: &str) -> String {
    format!("[unresolved: {}]", reason.replace('_', " "))
}

/// By reason and event: samples of unknown code of which the process is not known either, or whose
/// program the release that wrote them did not keep. None unless `everything` is asked for, and not
/// some images or processes only.
pub fn nobodys(everything: bool, samples: &Samples) -> Vec<(String, Vec<Tally>)> {
    let reasons: BTreeSet<&String> =
        samples.events.iter().flat_map(|event| event.unknown.keys()).collect();
    let rest = |reason: &String| {
        let of_event = |(at, event): (usize, &EventSamples)| {
            let of_programs = samples.total(at, |image| image.unresolved() == Some(reason));
            event.unknown.get(reason).copied().unwrap_or_default().without(of_programs)
        };
        samples.events.iter().enumerate().map(of_event).collect::<Vec<_>>()
    };
    let found =
        reasons.into_iter().filter(|_| everything).map(|reason| (reason.clone(), rest(reason)));
    found.filter(|(_, tallies)| tallies.iter().any(|tally| !tally.is_empty())).collect()
}
