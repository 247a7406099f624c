//! What models of the processor tell of the code that is judged.

use annotate::explained::Explanation;
use image::{ImageId, ImageOffset};
use simulate::{Sizes, Tally};
use verdict::Region;

use crate::commands::costs::OnMachine;
use crate::commands::ideal::Modelled;
use query::error::AnalysisError;

/// Bytes of the first-level instruction cache of all of Intel's and AMD's cores since 2013.
const CODE_BYTES: f64 = 32768.0;
/// Bytes of a page.
const PAGE: f64 = 4096.0;
/// Part of the misses of the second level that go to lines that were not seen before, above which
/// they are taken for misses of the third level: the program does not come back to its lines
/// within what is recorded. Below, they say that recording has just begun.
const NEW_MIN: f64 = 0.5;

/// The sizes of this host's caches and TLB: as measured, else as the system says.
///
/// # Errors
/// [`AnalysisError::Refused`] where the latencies asked for cannot be read.
pub(super) fn sizes(on: &OnMachine) -> Result<Sizes, AnalysisError> {
    let hardware = on.own_hardware()?;
    Ok(Sizes { data: hardware.sizes(), code: CODE_BYTES, pages: hardware.tlb_bytes / PAGE })
}

/// Adds to the instructions of a region what they did in the models.
pub(super) fn add(region: &mut Region, found: &Explanation<'_>, modelled: &Modelled) {
    if modelled.is_empty() {
        return;
    }
    for one in &mut region.instructions {
        let part = found.graph.parts.iter().find(|part| part.addresses.contains(&one.address));
        let offset = part.and_then(|part| {
            part.offsets.start.0.checked_add(one.address.checked_sub(part.addresses.start)?)
        });
        let id: ImageId = found.image.record.id;
        let tally = offset.and_then(|offset| modelled.get(&(id, ImageOffset(offset))));
        one.modelled = tally.filter(|tally| tally.executions > 0).map(rates);
    }
}

/// What one execution does.
fn rates(tally: &Tally) -> verdict::Modelled {
    let executions = tally.executions.max(1) as f64;
    let rate = |count: u64| count as f64 / executions;
    let [_, second, third] = tally.misses;
    let is_fresh = tally.new_lines as f64 >= NEW_MIN * second as f64;
    let mut misses = tally.misses.map(rate);
    if !is_fresh {
        // Of the lines that were seen before, so many are missed.
        let (known, missed) =
            (second.saturating_sub(tally.new_lines), third.saturating_sub(tally.new_lines));
        let [_, second, third] = &mut misses;
        *third = *second * missed as f64 / known.max(1) as f64;
    }
    verdict::Modelled {
        executions: tally.executions,
        misses,
        streamed: tally.streamed.map(rate),
        walks: rate(tally.walks),
        mispredicted: rate(tally.mispredicted),
        code_misses: rate(tally.code_misses),
    }
}
