//! Sections whose counts are kept apart by slices of their segment's time: reading a part of the
//! slices, and adding up sections of several segments.

use std::collections::HashMap;
use std::ops::Range;

use model::{Counts, Node, Shape, Stacks, Table, Thread, Value};

use crate::codec::DecodeError;
use crate::error::{Damage, DbError};
use crate::section_sum::{self, Joined, json, json_damage};
use crate::segment::{Section, SectionKey, SectionKind, Segment};
use crate::shapes::{Entries, SLICES_MAX, Timing};
use crate::slices::{Plan, Slice};
use crate::stacks::fitting;

/// The slices of a segment. A segment without such a section is one slice, as of its description.
///
/// # Errors
/// Damage, and a segment without description.
pub(crate) fn slices(segment: &Segment) -> Result<Vec<Slice>, DbError> {
    let key = SectionKey::only(SectionKind::SLICES);
    let decode = |bytes: &[u8], section: &Section| {
        let slices: Vec<Slice> = serde_json::from_slice(&json(bytes)?)
            .map_err(|error| json_damage(Damage::Json(error)))?;
        let count = slices.len();
        if section.entries != count as u64 || !(1..=SLICES_MAX).contains(&count) {
            return Err(json_damage(Damage::Count { count: section.entries }));
        }
        let ascend = slices.is_sorted_by_key(|slice| slice.until_unix_s);
        if ascend { Ok(slices) } else { Err(json_damage(Damage::Order)) }
    };
    if let Some(slices) = segment.find(&key, decode)? {
        return Ok(slices);
    }
    let missing =
        || DbError::Corrupt { path: segment.path.clone(), offset: 0, damage: Damage::Misplaced };
    let meta = section_sum::meta(segment)?.ok_or_else(missing)?;
    let counts = segment.sections.iter().any(|section| section.key.kind.is_timed());
    Ok(vec![Slice { until_unix_s: meta.updated_unix_s, ledgers: meta.ledgers, counts }])
}

/// The section with the slices of a segment.
pub(crate) fn slices_section(slices: &[Slice]) -> Result<Joined, Damage> {
    let json = serde_json::to_vec(slices).map_err(Damage::Json)?;
    Ok(Joined { entries: slices.len() as u64, total: 0, bytes: section_sum::block(&json) })
}

/// Number of slices of a segment, which has none of its sections decoded for that.
fn count(segment: &Segment) -> usize {
    let slices = segment.section(&SectionKey::only(SectionKind::SLICES));
    slices.and_then(|section| usize::try_from(section.entries).ok()).unwrap_or(1).min(SLICES_MAX)
}

/// Decodes the timing of a section of these entries.
fn timing(segment: &Segment, section: &Section, entries: Entries<'_>) -> Result<Timing, DbError> {
    let slices = count(segment);
    if slices == 1 {
        return Ok(Timing::within_one(entries, 0, 1));
    }
    let decode = |bytes: &[u8], _: &Section| Timing::decode(bytes, slices, entries);
    segment.find(&section.key.timing(), decode)?.ok_or_else(|| untimed(segment, section))
}

/// The error for counts without timing in a segment of several slices.
fn untimed(segment: &Segment, section: &Section) -> DbError {
    segment.corrupt(section, DecodeError { offset: 0, damage: Damage::Misplaced })
}

/// The sum of a section's counts, or its number of stacks, in some slices of its segment.
pub(crate) fn total_within(
    segment: &Segment,
    section: &Section,
    within: &Range<usize>,
) -> Result<u64, DbError> {
    let slices = count(segment);
    let decode = |bytes: &[u8], _: &Section| Timing::decode_sums(bytes, slices);
    let sums =
        segment.find(&section.key.timing(), decode)?.ok_or_else(|| untimed(segment, section))?;
    let within = sums.get(within.start.min(slices)..within.end.min(slices)).unwrap_or_default();
    Ok(within.iter().fold(0, |sum: u64, one| sum.saturating_add(*one)))
}

/// Counts or stacks of a section, with their timing.
pub(crate) type WithTiming<Counted> = (Counted, Timing);

/// The counts of a section.
pub(crate) fn timed_counts(
    shape: Shape,
    segment: &Segment,
    section: &Section,
) -> Result<WithTiming<Counts>, DbError> {
    let counts = section_sum::counts(shape, &[(segment, section)])?;
    let timing = timing(segment, section, Entries::Counts(&numbers(&counts)))?;
    Ok((counts, timing))
}

/// The call stacks of a section.
pub(crate) fn timed_stacks(
    segment: &Segment,
    section: &Section,
) -> Result<WithTiming<Stacks>, DbError> {
    // Values in the order of the section: a tree that was read numbers threads as they come.
    let stacks = section_sum::stacks(&[(segment, section)])?.canonical();
    let timing = timing(segment, section, Entries::Stacks(&values(&stacks)))?;
    Ok((stacks, timing))
}

/// The counts in some of the slices.
pub(crate) fn counts_within(
    (whole, timing): &WithTiming<Counts>,
    within: &Range<usize>,
) -> WithTiming<Counts> {
    let numbers = numbers(whole);
    let (values, timing) = timing.part(within, Entries::Counts(&numbers));
    (with_numbers(whole, values.into_iter().map(|value| value.stacks)), timing)
}

/// The call stacks in some of the slices.
pub(crate) fn stacks_within(
    (whole, timing): &WithTiming<Stacks>,
    within: &Range<usize>,
) -> WithTiming<Stacks> {
    let (part, timing) = timing.part(within, Entries::Stacks(&values(whole)));
    let mut stacks = Stacks::new();
    let mut nodes: Vec<Option<Node>> = Vec::with_capacity(whole.len());
    for (parent, frame) in whole.nodes() {
        let parent = parent.and_then(|parent| nodes.get(parent as usize).copied().flatten());
        nodes.push(stacks.node(parent, frame));
    }
    for ((node, thread, _), value) in whole.values().zip(part) {
        if let Some(node) = nodes.get(node as usize).copied().flatten() {
            stacks.add(node, thread, value);
        }
    }
    (stacks, timing)
}

/// Checks a section that has the timing of another.
///
/// # Errors
/// Damage of either.
pub(crate) fn check_timing(segment: &Segment, section: &Section) -> Result<(), DbError> {
    let of = section.key.kind.of_timing();
    let key = of.map(|kind| SectionKey { kind, ..section.key.clone() });
    let Some(timed) = key.and_then(|key| segment.section(&key)) else {
        return Err(untimed(segment, section));
    };
    match timed.key.kind.shape() {
        Some(shape) => timed_counts(shape, segment, timed).map(drop),
        None => timed_stacks(segment, timed).map(drop),
    }
}

/// Sections of one key in the sources of a plan, each with the number of its source.
pub(crate) type Sources<'a> = [(usize, &'a Segment, &'a Section)];

/// A section, and its timing where the plan keeps slices apart.
#[derive(Debug)]
pub(crate) struct Timed {
    pub(crate) section: Joined,
    pub(crate) timing: Option<Joined>,
}

/// The sum of sections of counts or call stacks. None where their times cannot be told: stacks are
/// so many that some had to become others, or sums are too large. The caller makes all one slice
/// then.
///
/// # Errors
/// [`DbError::Corrupt`].
pub(crate) fn join(
    kind: SectionKind,
    sources: &Sources<'_>,
    plan: &Plan,
) -> Result<Option<Timed>, DbError> {
    match kind.shape() {
        Some(shape) => {
            let mut parts = Vec::with_capacity(sources.len());
            for (number, segment, section) in sources {
                let (counts, timing) = match plan.is_apart() {
                    true => {
                        let (counts, timing) = timed_counts(shape, segment, section)?;
                        (counts, Some(timing))
                    }
                    false => (section_sum::counts(shape, &[(segment, section)])?, None),
                };
                parts.push(Part { source: *number, counts, timing });
            }
            Ok(sum_of_counts(shape, parts, plan))
        }
        None => {
            let mut parts = Vec::with_capacity(sources.len());
            for (number, segment, section) in sources {
                let (counts, timing) = match plan.is_apart() {
                    true => {
                        let (counts, timing) = timed_stacks(segment, section)?;
                        (counts, Some(timing))
                    }
                    false => (section_sum::stacks(&[(segment, section)])?, None),
                };
                parts.push(Part { source: *number, counts, timing });
            }
            Ok(sum_of_stacks(parts, plan))
        }
    }
}

/// What one source of a plan has of a sum.
#[derive(Debug)]
pub(crate) struct Part<Counted> {
    pub(crate) source: usize,
    pub(crate) counts: Counted,
    /// None where the plan keeps no slices apart.
    pub(crate) timing: Option<Timing>,
}

/// The sum of counts of several sources of a plan, which are all of that shape; see [`join`].
pub(crate) fn sum_of_counts(shape: Shape, parts: Vec<Part<Counts>>, plan: &Plan) -> Option<Timed> {
    let mut sum = Counts::none(shape);
    for part in &parts {
        // All are of one shape.
        _ = sum.merge(&part.counts);
    }
    let entries = numbers(&sum);
    let timing = sum_of_timings(parts, plan, entries.len(), |counts| positions(&sum, counts));
    let timing = match timing {
        Some(timing) => Some(timing_section(&timing, Entries::Counts(&entries))?),
        None => None,
    };
    Some(Timed { section: section_sum::counts_section(&sum), timing })
}

/// The sum of call stacks of several sources of a plan; see [`join`].
pub(crate) fn sum_of_stacks(parts: Vec<Part<Stacks>>, plan: &Plan) -> Option<Timed> {
    if !plan.is_apart() {
        // Trees are large: no more of them live at a time than must.
        let mut parts = parts.into_iter().map(|part| part.counts);
        let mut sum = parts.next().unwrap_or_default();
        parts.for_each(|part| sum.merge(&part));
        let whole = sum.canonical();
        drop(sum);
        return Some(Timed { section: section_sum::stacks_section(whole), timing: None });
    }
    let mut sum = Stacks::new();
    parts.iter().for_each(|part| sum.merge(&part.counts));
    let whole = sum.canonical();
    drop(sum);
    let fits = fitting(whole.clone());
    let is_whole = fits.len() == whole.len() && fits.values().count() == whole.values().count();
    if !is_whole {
        return None;
    }
    let entries = values(&whole);
    let positions = |part: &Stacks| stack_positions(&whole, part);
    let timing = sum_of_timings(parts, plan, entries.len(), positions);
    let timing = match timing {
        Some(timing) => Some(timing_section(&timing, Entries::Stacks(&entries))?),
        None => None,
    };
    Some(Timed { section: section_sum::stacks_section(fits), timing })
}

fn sum_of_timings<Counted>(
    parts: Vec<Part<Counted>>,
    plan: &Plan,
    entries: usize,
    positions: impl Fn(&Counted) -> Vec<usize>,
) -> Option<Timing> {
    if !plan.is_apart() {
        return None;
    }
    let timed = |part: Part<Counted>| {
        let of = plan.of.get(part.source).map(Vec::as_slice).unwrap_or_default();
        Some((part.timing?, of, positions(&part.counts)))
    };
    let sources: Vec<_> = parts.into_iter().filter_map(timed).collect();
    Some(Timing::sum(&sources, (entries, plan.slices.len())))
}

fn timing_section(timing: &Timing, entries: Entries<'_>) -> Option<Joined> {
    Some(Joined { entries: timing.len() as u64, total: 0, bytes: timing.encode(entries)? })
}

/// The counts in the order of their entries.
pub(crate) fn numbers(counts: &Counts) -> Vec<u64> {
    match counts {
        Counts::Places(table) => table.iter().map(|(_, count)| count).collect(),
        Counts::Pairs(table) => table.iter().map(|(_, count)| count).collect(),
        Counts::Values(table) => table.iter().map(|(_, count)| count).collect(),
    }
}

/// The values of stacks in the order of their entries.
pub(crate) fn values(stacks: &Stacks) -> Vec<Value> {
    stacks.values().map(|(_, _, value)| value).collect()
}

/// Other counts of the same observations; what has none is left out.
fn with_numbers(counts: &Counts, numbers: impl Iterator<Item = u64>) -> Counts {
    fn of<K: Ord + Copy>(table: &Table<K>, numbers: impl Iterator<Item = u64>) -> Table<K> {
        Table::from_counts(table.iter().zip(numbers).map(|((key, _), count)| (key, count)))
    }
    match counts {
        Counts::Places(table) => Counts::Places(of(table, numbers)),
        Counts::Pairs(table) => Counts::Pairs(of(table, numbers)),
        Counts::Values(table) => Counts::Values(of(table, numbers)),
    }
}

/// The place of each entry of a part among those of the whole, which has all of them.
fn positions(whole: &Counts, part: &Counts) -> Vec<usize> {
    fn of<K: Ord + Copy>(whole: &Table<K>, part: &Table<K>) -> Vec<usize> {
        let mut all = whole.iter().map(|(key, _)| key).enumerate().peekable();
        let place = |(key, _): (K, u64)| {
            while all.next_if(|(_, known)| *known < key).is_some() {}
            all.peek().map_or(0, |(at, _)| *at)
        };
        part.iter().map(place).collect()
    }
    match (whole, part) {
        (Counts::Places(whole), Counts::Places(part)) => of(whole, part),
        (Counts::Pairs(whole), Counts::Pairs(part)) => of(whole, part),
        (Counts::Values(whole), Counts::Values(part)) => of(whole, part),
        _ => Vec::new(),
    }
}

/// The same of call stacks.
fn stack_positions(whole: &Stacks, part: &Stacks) -> Vec<usize> {
    let at: HashMap<(Node, &Thread), usize> =
        whole.values().enumerate().map(|(at, (node, thread, _))| ((node, thread), at)).collect();
    // In a copy of the tree that has all nodes, each frame has the number that it has there.
    let mut tree = whole.clone();
    let mut nodes: Vec<Option<Node>> = Vec::with_capacity(part.len());
    for (parent, frame) in part.nodes() {
        let parent = parent.and_then(|parent| nodes.get(parent as usize).copied().flatten());
        nodes.push(tree.node(parent, frame));
    }
    let place = |(node, thread, _): (Node, &Thread, Value)| {
        let node = nodes.get(node as usize).copied().flatten()?;
        at.get(&(node, thread)).copied()
    };
    // Each is there, since the whole is the sum of the parts; the fallback has no reader.
    part.values().map(|value| place(value).unwrap_or(0)).collect()
}
