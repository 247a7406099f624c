//! Sampled addresses of generated code that had no name when their samples were drained.
//!
//! V8 writes its dump in pieces of some 2 MiB and the last one at its exit; HotSpot can write a map
//! at its end. Code at an address may be replaced before its name comes, so a name is taken only if
//! the code was there when the samples were taken: a dump has the times of code, a map does not.

use super::Found;
use image::jit::CodeMap;
use inspect::jit::code_events::CodeEvent;
use std::collections::BTreeMap;
use std::ops::Range;

/// Addresses that are awaited of one process; the samples of further addresses have no name.
const ADDRESSES_MAX: usize = 16_384;

/// Addresses, each with what is known of it.
#[derive(Debug, Default)]
pub struct Awaited(BTreeMap<u64, Address>);

#[derive(Debug)]
struct Address {
    /// Begin and end of the windows of its samples, CLOCK_MONOTONIC ns.
    first_ns: u64,
    last_ns: u64,
    code: Known,
}

#[derive(Debug)]
enum Known {
    /// Whatever the map has.
    AsMapped,
    /// The code that was there before other code took its place.
    Was(Found),
    /// No code is known to have been there for the whole time.
    Lost,
}

impl Awaited {
    /// Awaits the code at an address that was sampled in this time. False: there are too many, or
    /// other code has been there since.
    pub fn add(&mut self, address: u64, sampled_ns: Range<u64>) -> bool {
        if let Some(known) = self.0.get_mut(&address) {
            known.last_ns = sampled_ns.end;
            return matches!(known.code, Known::AsMapped);
        }
        if self.0.len() >= ADDRESSES_MAX {
            return false;
        }
        let (first_ns, last_ns) = (sampled_ns.start, sampled_ns.end);
        self.0.insert(address, Address { first_ns, last_ns, code: Known::AsMapped });
        true
    }

    /// An event is about to change `code`: the addresses that it covers had, until its time, the
    /// code of the map.
    pub fn settle(&mut self, event: &CodeEvent, code: &CodeMap) {
        let Some((made_ns, range)) = event.made() else { return };
        for (at, address) in self.0.range_mut(range) {
            if !matches!(address.code, Known::AsMapped) || made_ns <= address.first_ns {
                continue;
            }
            address.code = match (code.find(*at), made_ns > address.last_ns) {
                (Some(piece), true) => Known::Was(piece.into()),
                // Samples before it, of code that the process has not told, or of both.
                (None, true) | (Some(_), false) => Known::Lost,
                (None, false) => Known::AsMapped,
            };
        }
    }

    /// Whether an address is awaited for that time.
    pub fn has(&self, address: u64, at_ns: u64) -> bool {
        self.0.get(&address).is_some_and(|known| at_ns <= known.last_ns)
    }

    /// The code at an awaited address.
    pub fn find(&self, address: u64, code: &CodeMap) -> Option<Found> {
        match &self.0.get(&address)?.code {
            Known::AsMapped => code.find(address).map(Found::from),
            Known::Was(found) => Some(found.clone()),
            Known::Lost => None,
        }
    }

    /// Whether no later event can name the address.
    pub fn is_lost(&self, address: u64) -> bool {
        self.0.get(&address).is_none_or(|known| matches!(known.code, Known::Lost))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use inspect::jit::code_events::apply;

    #[test]
    fn a_name_is_taken_only_from_code_that_was_there() {
        let (mut awaited, mut code) = (Awaited::default(), CodeMap::default());
        let load =
            |at: u64, start: u64, name: &str| CodeEvent::LoadAt(at, start, 0x100, name.to_owned());
        for address in [0x1010, 0x2010, 0x3010, 0x4010, 0x6010] {
            assert!(awaited.add(address, 100..200));
        }
        for event in [
            load(50, 0x1000, "early"),
            load(300, 0x1000, "later"),
            load(150, 0x2000, "the first while it was sampled"),
            load(120, 0x6000, "one"),
            load(150, 0x6000, "or the other"),
            CodeEvent::Dumped(99, 250, 0x3000, 0x100, "only after".to_owned()),
            CodeEvent::Dumped(99, 0, 0x4000, 0x100, "without a time".to_owned()),
            CodeEvent::Load(0x4000, 0x100, "of a map".to_owned()),
        ] {
            awaited.settle(&event, &code);
            apply(&event, &mut code);
        }
        let name = |address| awaited.find(address, &code).map(|found| found.name);
        assert_eq!(name(0x1010).as_deref(), Some("early"));
        assert_eq!(name(0x2010).as_deref(), Some("the first while it was sampled"));
        assert_eq!((name(0x3010), awaited.is_lost(0x3010)), (None, true));
        assert_eq!((name(0x6010), awaited.is_lost(0x6010)), (None, true));
        assert_eq!(name(0x4010).as_deref(), Some("of a map"));
        assert!(awaited.is_lost(0x5010), "nobody waits for it");
        assert!(!awaited.add(0x6010, 300..400), "what was there is not known any more");
    }
}
