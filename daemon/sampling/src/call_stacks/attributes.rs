//! Attributes that programs set for their own threads: which processes are looked at for them, and
//! what the sampler has copied of a thread's.
//!
//! The copies are bytes of strangers: they are bounded by the sampler, and what makes no sense says
//! nothing. Names of OpenTelemetry's keys come from the process (`daemon/inspect/src/attributes/`);
//! a record with a key that has no name yet makes the process be looked at again.

use abi::{
    ATTRIBUTE_KEY_BYTES, ATTRIBUTE_VALUE_BYTES, ATTRIBUTES_HEAD_BYTES, ATTRIBUTES_IN_LIST,
    ATTRIBUTES_IN_MAP, ATTRIBUTES_IN_RECORD, AttributeLayout, StackRecord,
};
use inspect::questions::AttributesFound;
use model::{Attributes, KeptAttributes};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Time from a process's first stack until an inspector looks for the process's attributes. Short
/// processes, of which a build starts thousands, have ended by then and cost no look. It is also
/// the time between looks at a process whose records have keys that have no name yet.
const FIRST_AFTER: Duration = Duration::from_secs(1);
/// Times that the time to the next look is doubled while nothing is found.
const DOUBLED_MAX: u32 = 6;
/// Processes that are remembered; beyond, all are looked at again.
const LOOKS_MAX: usize = 16_384;
/// What stands at the end of a text that was cut.
const CUT: char = '…';
/// In OpenTelemetry's record: the bytes of these two.
const TRACE_ID_BYTES: usize = 16;
const SPAN_ID_BYTES: usize = 8;
/// In OpenTelemetry's record: the length of its attributes.
const LENGTH_AT: usize = 26;

/// Processes that are looked at for attributes, by their address space.
#[derive(Default)]
pub struct AttributeLooks {
    looked: HashMap<u32, Look>,
}

struct Look {
    /// None: it was found.
    again_at: Option<Instant>,
    looks: u32,
    /// Names of keys, by number.
    keys: Vec<String>,
}

impl AttributeLooks {
    /// Whether a process is to be looked at.
    pub fn wants(&mut self, space: u32, now: Instant) -> bool {
        if self.looked.len() >= LOOKS_MAX {
            self.looked.clear();
        }
        let first = || Look { again_at: Some(now + FIRST_AFTER), looks: 0, keys: Vec::new() };
        let look = self.looked.entry(space).or_insert_with(first);
        look.again_at.is_some_and(|at| now >= at)
    }

    /// Notes the outcome of a look. Where threads have attributes, if that was found.
    pub fn note(
        &mut self,
        space: u32,
        found: Option<AttributesFound>,
        now: Instant,
    ) -> Option<AttributeLayout> {
        let look = self.looked.get_mut(&space)?;
        let Some(AttributesFound { layout, keys }) = found else {
            look.again_at = Some(now + FIRST_AFTER * (1 << look.looks));
            look.looks = (look.looks + 1).min(DOUBLED_MAX);
            return None;
        };
        look.again_at = None;
        look.keys = keys;
        Some(layout)
    }

    /// The attributes of a stack's thread. `bytes`: what the sampler has copied of them.
    pub fn read(&mut self, record: &StackRecord, bytes: &[u8], kept: KeptAttributes) -> Attributes {
        match record.attribute_kind {
            ATTRIBUTES_IN_MAP | ATTRIBUTES_IN_LIST => labels(record.attributes_left_out, bytes),
            ATTRIBUTES_IN_RECORD => {
                let look = self.looked.get_mut(&record.space);
                let keys = look.as_ref().map_or(&[][..], |look| &look.keys);
                let (attributes, is_unknown) = of_record(bytes, keys, kept);
                if let Some(look) = look.filter(|look| is_unknown && look.again_at.is_none()) {
                    look.again_at = Some(Instant::now() + FIRST_AFTER);
                }
                attributes
            }
            _ => Attributes::default(),
        }
    }
}

/// Labels of a goroutine.
fn labels(left_out: u32, bytes: &[u8]) -> Attributes {
    let slots = bytes.chunks_exact(size_of::<abi::Attribute>()).filter_map(|slot| {
        let (key_bytes, rest) = slot.split_first_chunk()?;
        let (value_bytes, rest) = rest.split_first_chunk()?;
        let (key, value) = rest.split_at_checked(ATTRIBUTE_KEY_BYTES)?;
        let value = value.get(..ATTRIBUTE_VALUE_BYTES)?;
        Some((
            text(key, u32::from_ne_bytes(*key_bytes)),
            text(value, u32::from_ne_bytes(*value_bytes)),
        ))
    });
    let left_out = (left_out > 0).then(|| (Attributes::LEFT_OUT.to_owned(), left_out.to_string()));
    Attributes::of(slots.chain(left_out))
}

/// A text of which the first bytes were copied.
fn text(copied: &[u8], len: u32) -> String {
    match copied.get(..len as usize) {
        Some(whole) => String::from_utf8_lossy(whole).into_owned(),
        None => {
            let valid = copied.utf8_chunks().map(|chunk| chunk.valid()).collect::<String>();
            valid + CUT.encode_utf8(&mut [0; 4])
        }
    }
}

/// The attributes of OpenTelemetry's record, and whether it has a key without a name.
fn of_record(bytes: &[u8], keys: &[String], kept: KeptAttributes) -> (Attributes, bool) {
    let Some((head, rest)) = bytes.split_at_checked(ATTRIBUTES_HEAD_BYTES) else {
        return (Attributes::default(), false);
    };
    let (trace, after) = head.split_at_checked(TRACE_ID_BYTES).unwrap_or_default();
    let span = after.get(..SPAN_ID_BYTES).unwrap_or_default();
    let mut pairs = Vec::new();
    let is_set = trace.iter().chain(span).any(|byte| *byte != 0);
    if kept == KeptAttributes::Traces && is_set {
        let hex =
            |bytes: &[u8]| -> String { bytes.iter().map(|byte| format!("{byte:02x}")).collect() };
        pairs.push((Attributes::TRACE_ID.to_owned(), hex(trace)));
        pairs.push((Attributes::SPAN_ID.to_owned(), hex(span)));
    }
    let len = head.get(LENGTH_AT..).and_then(|bytes| bytes.first_chunk().copied());
    let len = usize::from(len.map_or(0, u16::from_ne_bytes));
    let mut is_unknown = false;
    let mut rest = rest.get(..len).unwrap_or(rest);
    while let [key, len, after @ ..] = rest {
        let Some((value, after)) = after.split_at_checked(usize::from(*len)) else { break };
        match keys.get(usize::from(*key)) {
            Some(key) => pairs.push((key.clone(), String::from_utf8_lossy(value).into_owned())),
            None => is_unknown = true,
        }
        rest = after;
    }
    (Attributes::of(pairs), is_unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(key: &str, value: &str) -> Vec<u8> {
        let mut slot = Vec::new();
        for len in [key.len(), value.len()] {
            slot.extend(u32::try_from(len).unwrap().to_ne_bytes());
        }
        for (text, room) in [(key, ATTRIBUTE_KEY_BYTES), (value, ATTRIBUTE_VALUE_BYTES)] {
            let mut copied = text.as_bytes()[..text.len().min(room)].to_vec();
            copied.resize(room, 0xff);
            slot.extend(copied);
        }
        slot
    }

    fn pairs(attributes: &Attributes) -> Vec<(&str, &str)> {
        attributes.iter().collect()
    }

    #[test]
    fn labels_are_as_long_as_they_are_and_what_is_cut_is_told() {
        let long = "ä".repeat(40);
        let all = [slot("route", "checkout"), slot("tenant", ""), slot("who", &long)].concat();
        let cut = "ä".repeat(32) + "…";
        assert_eq!(
            pairs(&labels(3, &all)),
            [("route", "checkout"), ("tenant", ""), ("who", cut.as_str()), ("…", "3")]
        );
        // Each length field says more bytes than were copied, and the last slot is cut short.
        assert_eq!(pairs(&labels(0, &[0xff; 150])).len(), 1);
        assert!(labels(0, &[]).is_empty());
    }

    fn record(attributes: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0xab; 16];
        bytes.extend([0xcd; 8]);
        bytes.extend([1, 1]);
        bytes.extend(u16::try_from(attributes.len()).unwrap().to_ne_bytes());
        bytes.extend(attributes);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        bytes
    }

    #[test]
    fn a_record_is_read_by_the_names_of_its_keys() {
        let keys = ["route".to_owned(), "user".to_owned()];
        let bytes = record(b"\x00\x03/ab\x01\x01x\x00\x02/c");
        let (read, is_unknown) = of_record(&bytes, &keys, KeptAttributes::On);
        assert_eq!((pairs(&read), is_unknown), (vec![("route", "/c"), ("user", "x")], false));
        let (read, is_unknown) = of_record(&bytes, &keys[..1], KeptAttributes::Traces);
        let ids = [("span_id", "cd".repeat(8)), ("trace_id", "ab".repeat(16))];
        let [span, trace] = ids.each_ref().map(|(key, id)| (*key, id.as_str()));
        assert_eq!((pairs(&read), is_unknown), (vec![("route", "/c"), span, trace], true));
        // An attribute beyond the record's end, and a record that is cut anywhere.
        let beyond = of_record(&record(b"\x00\x01a\x01\xffb"), &keys, KeptAttributes::On).0;
        assert_eq!(pairs(&beyond), [("route", "a")]);
        for len in 0..bytes.len() {
            let _ = of_record(&bytes[..len], &keys, KeptAttributes::Traces);
        }
    }

    #[test]
    fn a_process_is_looked_at_after_a_second_and_then_ever_later() {
        let mut looks = AttributeLooks::default();
        let begin = Instant::now();
        let wants = |looks: &mut AttributeLooks, s| looks.wants(7, begin + Duration::from_secs(s));
        assert!(!wants(&mut looks, 0) && wants(&mut looks, 1));
        let at = |s| begin + Duration::from_secs(s);
        assert_eq!(looks.note(7, None, at(1)), None);
        assert!(wants(&mut looks, 2));
        assert_eq!(looks.note(7, None, at(2)), None);
        assert!(!wants(&mut looks, 3) && wants(&mut looks, 4), "twice as long");
        let layout = AttributeLayout { kind: ATTRIBUTES_IN_RECORD, ..AttributeLayout::default() };
        let keys = vec!["route".to_owned()];
        assert_eq!(looks.note(7, Some(AttributesFound { layout, keys }), at(4)), Some(layout));
        assert!(!wants(&mut looks, 1 << 30), "found");
        let record =
            StackRecord { attribute_kind: ATTRIBUTES_IN_RECORD, space: 7, ..StackRecord::EMPTY };
        assert_eq!(
            looks.read(&record, &self::record(b"\x00\x01a"), KeptAttributes::On).get("route"),
            Some("a")
        );
        assert!(!wants(&mut looks, 1 << 30));
        let _ = looks.read(&record, &self::record(b"\x01\x01a"), KeptAttributes::On);
        assert!(wants(&mut looks, 1 << 30), "a key without a name");
    }
}
