//! Mechanisms between which the addresses of a load do not decide.

use crate::candidates::Candidate;
use crate::region::Instruction;
use crate::{Hardware, Mechanism};

/// The mechanism that would explain the same load as well as the one that its addresses tell: what
/// a few addresses more would tip must not be said as likely.
pub(crate) fn rival(
    best: &Candidate,
    load: &Instruction,
    hardware: &Hardware,
) -> Option<Candidate> {
    let span = load.sketch.span()?;
    let mechanism = beside_walks(best, load, span, hardware)
        .or_else(|| beyond_border(best.mechanism, span, hardware))?;
    let (strength, evidence) = (0.8 * best.strength, best.evidence.clone());
    Some(Candidate { mechanism, strength, evidence, ..*best })
}

/// Of page walks and loads from the third-level cache, which has the data of the same loads, the
/// other one. Samples do not tell which of the two takes longer: huge pages took 10 to 23 % off the
/// user time of a sort and a database, whose loads have 42 to 54 % of the samples.
fn beside_walks(
    best: &Candidate,
    load: &Instruction,
    span: f64,
    hardware: &Hardware,
) -> Option<Mechanism> {
    let third = hardware.level_of(span).filter(|level| level.number == 3)?;
    let walk = load.sketch.walked_share(span, hardware.tlb_bytes) * hardware.walk_cycles.0;
    match best.mechanism {
        Mechanism::PageWalk if !load.sketch.is_line_of_pages() && walk < 2.0 * third.cycles => {
            Some(Mechanism::LoadFromL3)
        }
        Mechanism::LoadFromL3 if 2.0 * walk > third.cycles => Some(Mechanism::PageWalk),
        _ => None,
    }
}

/// The level on the other side of a cache's size, where the memory that a load comes to is about
/// that large: part of its data is in the cache then, and the size is known from few addresses.
fn beyond_border(mechanism: Mechanism, span: f64, hardware: &Hardware) -> Option<Mechanism> {
    let near = |level: &&crate::Level| (span / level.bytes).ln().abs() < BORDER.ln();
    let level = hardware.levels.iter().find(near)?;
    let is_within = span <= level.bytes;
    match (level.number, mechanism) {
        (2, Mechanism::LoadFromL2) if is_within => Some(Mechanism::LoadFromL3),
        (2, Mechanism::LoadFromL3) if !is_within => Some(Mechanism::LoadFromL2),
        (3, Mechanism::LoadFromL3) if is_within => Some(Mechanism::LoadFromMemory),
        (3, Mechanism::LoadFromMemory) if !is_within => Some(Mechanism::LoadFromL3),
        _ => None,
    }
}

/// Factor by which the size of the memory that a load comes to is known: the error of a median of
/// some tens of distances.
const BORDER: f64 = 1.3;
