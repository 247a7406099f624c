//! Finds instructions by following code from places that are known to be executed.

use image::Vaddr;

use super::{BYTES_MAX, Finding, FindingKind, Knowledge, Part};
use crate::isa::Isa;
use crate::isa::flow::{Flow, Ordered, STUB_MAX};

/// Bits of [`Code::marks`].
const COVERED: u8 = 1;
const LEADER: u8 = 2;
const FILLER: u8 = 4;
const ASIDE: u8 = 8;
const CALLS: u8 = 16;
const ENDS: u8 = 32;
const IN_ROW: u8 = 64;

/// A procedure's bytes. A place in them is a number: the parts come one after the other, with one
/// number between two parts that is no byte.
#[derive(Debug)]
pub(super) struct Code<'a> {
    isa: Isa,
    parts: Vec<Placed<'a>>,
    /// Length of the instruction that begins at a place; 0 where none is known to begin.
    lens: Vec<u8>,
    marks: Vec<u8>,
    pub(super) findings: Vec<Finding>,
    knowledge: Knowledge<'a>,
    /// Places that are still to be followed.
    pending: Vec<usize>,
}

#[derive(Debug)]
struct Placed<'a> {
    part: Part<'a>,
    /// Place of its first byte.
    place: usize,
}

impl<'a> Code<'a> {
    pub(super) fn new(isa: Isa, parts: &[Part<'a>], knowledge: Knowledge<'a>) -> Self {
        let mut sorted: Vec<Part<'a>> =
            parts.iter().filter(|part| !part.bytes.is_empty()).copied().collect();
        sorted.sort_by_key(|part| (part.begin, std::cmp::Reverse(part.bytes.len())));
        let (mut findings, mut placed, mut place, mut reached) =
            (Vec::new(), Vec::new(), 0_usize, 0);
        for part in sorted {
            // The last byte of the address space is left out, so no sum of an address in a part and
            // a length overflows.
            let shared = reached.max(part.begin.0) - part.begin.0;
            let room = u64::MAX - 4096 - part.begin.0.min(u64::MAX - 4096);
            let from = usize::try_from(shared).unwrap_or(usize::MAX).min(part.bytes.len());
            let to = usize::try_from(room).unwrap_or(usize::MAX).min(part.bytes.len());
            let mut bytes = part.bytes.get(from..to).unwrap_or_default();
            let mut finding = |kind| findings.push(Finding { kind, address: part.begin });
            if bytes.len() != part.bytes.len() {
                finding(FindingKind::Overlap);
            }
            if bytes.len() > BYTES_MAX.saturating_sub(place) {
                finding(FindingKind::TooLarge);
                bytes = bytes.get(..BYTES_MAX.saturating_sub(place)).unwrap_or_default();
            }
            if !bytes.is_empty() {
                let begin = Vaddr(part.begin.0 + shared);
                reached = begin.0 + bytes.len() as u64;
                placed.push(Placed { part: Part { begin, bytes }, place });
                place += bytes.len() + 1;
            }
        }
        let mut this = Self {
            isa,
            parts: placed,
            lens: vec![0; place],
            marks: vec![0; place],
            findings,
            knowledge,
            pending: Vec::new(),
        };
        for &(from, to) in knowledge.observed {
            if let Some(place) = this.place(to) {
                this.pending.push(place);
                let aside = if this.place(from).is_none() { ASIDE } else { 0 };
                this.mark(place, LEADER | aside);
            }
        }
        this
    }

    pub(super) fn isa(&self) -> Isa {
        self.isa
    }

    /// Whether an instruction begins at a place, or it is not known yet.
    pub(super) fn may_begin(&self, place: usize) -> bool {
        self.len_at(place) != 0 || !self.has(place, COVERED)
    }

    /// Notes where instructions begin if each part is nothing but instructions, as compilers' code
    /// is.
    pub(super) fn walk_in_row(&mut self) {
        let begins: Vec<usize> = self.parts.iter().map(|placed| placed.place).collect();
        if begins.first().is_none_or(|&begin| self.is_in_row(begin)) {
            return;
        }
        for mut place in begins {
            loop {
                let (bytes, address) = self.bytes(place);
                if bytes.is_empty() {
                    break;
                }
                self.mark(place, IN_ROW);
                place += self
                    .isa
                    .order(bytes, address)
                    .map_or(self.isa.step(), |ordered| usize::from(ordered.len));
            }
        }
    }

    /// Whether an instruction begins at a place according to [`Self::walk_in_row`].
    pub(super) fn is_in_row(&self, place: usize) -> bool {
        self.has(place, IN_ROW)
    }

    /// The place of an address, if it is in a part.
    pub(super) fn place(&self, address: Vaddr) -> Option<usize> {
        let after = self.parts.partition_point(|placed| placed.part.begin <= address);
        let placed = self.parts.get(after.checked_sub(1)?)?;
        let into = usize::try_from(address.0 - placed.part.begin.0).ok()?;
        (into < placed.part.bytes.len()).then_some(placed.place + into)
    }

    fn part_of(&self, place: usize) -> Option<&Placed<'a>> {
        let after = self.parts.partition_point(|placed| placed.place <= place);
        self.parts.get(after.checked_sub(1)?)
    }

    /// The address of a place; of the one after a part, the address after it.
    pub(super) fn address(&self, place: usize) -> Vaddr {
        self.part_of(place)
            .map_or(Vaddr(0), |placed| Vaddr(placed.part.begin.0 + (place - placed.place) as u64))
    }

    /// The bytes from a place to the end of its part, and the address.
    pub(super) fn bytes(&self, place: usize) -> (&'a [u8], u64) {
        let Some(placed) = self.part_of(place) else { return (&[], 0) };
        let into = place - placed.place;
        (placed.part.bytes.get(into..).unwrap_or_default(), placed.part.begin.0 + into as u64)
    }

    /// The number of places.
    pub(super) fn places(&self) -> usize {
        self.lens.len()
    }

    /// Length of the instruction that begins at a place; 0 where none does.
    pub(super) fn len_at(&self, place: usize) -> usize {
        self.lens.get(place).map_or(0, |&len| usize::from(len))
    }

    /// Whether the instruction at a place is a call.
    pub(super) fn calls(&self, place: usize) -> bool {
        self.has(place, CALLS)
    }

    /// Whether the instruction at a place ends a block, whatever follows.
    pub(super) fn ends(&self, place: usize) -> bool {
        self.has(place, ENDS)
    }

    pub(super) fn is_leader(&self, place: usize) -> bool {
        self.has(place, LEADER)
    }

    pub(super) fn is_filler(&self, place: usize) -> bool {
        self.has(place, FILLER)
    }

    pub(super) fn is_entered_aside(&self, place: usize) -> bool {
        self.has(place, ASIDE)
    }

    fn has(&self, place: usize, bit: u8) -> bool {
        self.marks.get(place).is_some_and(|marks| marks & bit != 0)
    }

    fn mark(&mut self, place: usize, bits: u8) {
        if let Some(marks) = self.marks.get_mut(place) {
            *marks |= bits;
        }
    }

    fn find(&mut self, kind: FindingKind, place: usize) {
        let address = self.address(place);
        self.findings.push(Finding { kind, address });
    }

    /// The instruction at a place.
    pub(super) fn order(&self, place: usize) -> Option<Ordered> {
        let (bytes, address) = self.bytes(place);
        let mut ordered = self.isa.order(bytes, address)?;
        let never = |address: Option<u64>| {
            address.is_some_and(|address| {
                self.knowledge.no_return.is_some_and(|all| all.contains(&Vaddr(address)))
            })
        };
        if let Flow::Call { target, through } = ordered.flow
            && (never(target) || never(through) || usize::from(ordered.len) == bytes.len())
        {
            // After the last instruction of a part is another procedure: it does not return there.
            ordered.flow = Flow::NoReturn { target, through };
        }
        Some(ordered)
    }

    /// The word that the jump at a place goes through: the word of the instruction itself, or of
    /// the stub that it ends, if nothing jumps into that stub.
    pub(super) fn through(&self, place: usize) -> Option<u64> {
        let ordered = self.order(place)?;
        if let Flow::Indirect { through: Some(word) } = ordered.flow {
            return Some(word);
        }
        let end = place + usize::from(ordered.len);
        let mut begin = place;
        for _ in 1..STUB_MAX {
            if self.is_leader(begin) {
                return None;
            }
            begin = begin.checked_sub(self.isa.step())?;
            let (bytes, address) = self.bytes(begin);
            if let Some(stub) = self.isa.stub(bytes, address).filter(|stub| begin + stub.len == end)
            {
                return Some(stub.through);
            }
        }
        None
    }

    /// Notes that a block begins at a place, which is to be followed.
    pub(super) fn lead(&mut self, place: usize) {
        if !self.is_leader(place) || self.len_at(place) == 0 {
            self.mark(place, LEADER);
            self.pending.push(place);
        }
    }

    /// Follows all pending places.
    pub(super) fn follow(&mut self) {
        while let Some(place) = self.pending.pop() {
            self.follow_from(place);
        }
    }

    fn follow_from(&mut self, mut place: usize) {
        if self.len_at(place) == 0 && self.has(place, COVERED) {
            self.find(FindingKind::MiddleOfInstruction, place);
        }
        loop {
            if self.len_at(place) != 0 {
                // Two paths meet here, unless this is the first.
                return self.mark(place, LEADER);
            }
            let Some(ordered) = self.order(place) else {
                self.mark(place, LEADER);
                let kind = if self.bytes(place).0.is_empty() {
                    FindingKind::FallsOut
                } else {
                    FindingKind::NoInstruction
                };
                return self.find(kind, place);
            };
            self.cover(place, ordered.len, 0);
            match ordered.flow {
                Flow::Next => {}
                Flow::Call { .. } => self.mark(place, CALLS),
                Flow::NoReturn { .. } => self.mark(place, CALLS | ENDS),
                _ => self.mark(place, ENDS),
            }
            let next = place + usize::from(ordered.len);
            match ordered.flow {
                Flow::Next => {}
                Flow::Call { target, .. } => {
                    if let Some(target) = target.and_then(|target| self.place(Vaddr(target))) {
                        self.mark(target, ASIDE);
                        self.lead(target);
                    }
                }
                Flow::Conditional { target } | Flow::Jump { target } => {
                    if let Some(target) = self.place(Vaddr(target)) {
                        self.lead(target);
                    }
                    if matches!(ordered.flow, Flow::Jump { .. }) {
                        return;
                    }
                    self.mark(next, LEADER);
                }
                Flow::Indirect { .. } | Flow::Return | Flow::Trap | Flow::NoReturn { .. } => return,
            }
            place = next;
            if self.is_leader(place) && self.len_at(place) == 0 && self.has(place, COVERED) {
                self.find(FindingKind::MiddleOfInstruction, place);
            }
        }
    }

    fn cover(&mut self, place: usize, len: u8, marks: u8) {
        if let Some(at) = self.lens.get_mut(place) {
            *at = len;
        }
        for marked in self.marks.iter_mut().skip(place).take(usize::from(len)) {
            *marked |= COVERED | marks;
        }
    }

    /// Follows all bytes that no edge leads to: filler, and possible code. Returns the places where
    /// such code begins.
    pub(super) fn fill_gaps(&mut self) -> Vec<usize> {
        let mut roots = Vec::new();
        let mut place = 0;
        while place < self.places() {
            if self.has(place, COVERED) || self.bytes(place).0.is_empty() {
                place += 1;
                continue;
            }
            let begin = place;
            while let Some(ordered) = self.order(place).filter(|ordered| ordered.filler) {
                let next = place + usize::from(ordered.len);
                if (place + 1..next).any(|inside| self.has(inside, COVERED)) {
                    break;
                }
                self.cover(place, ordered.len, FILLER);
                place = next;
                if self.has(place, COVERED) || self.bytes(place).0.is_empty() {
                    break;
                }
            }
            if place > begin {
                self.mark(begin, LEADER);
            }
            if place < self.places() && !self.has(place, COVERED) && !self.bytes(place).0.is_empty()
            {
                if self.order(place).is_none() {
                    // One finding for each run of bytes that are no code.
                    self.find(FindingKind::NoInstruction, place);
                    place = self.skip_data(place);
                    continue;
                }
                roots.push(place);
                self.lead(place);
                self.follow();
            }
        }
        roots
    }

    /// The next place after bytes that are no instruction at which one begins. The bytes between
    /// are covered.
    fn skip_data(&mut self, mut place: usize) -> usize {
        while !self.has(place, COVERED)
            && !self.bytes(place).0.is_empty()
            && self.order(place).is_none()
        {
            self.mark(place, COVERED);
            place += 1;
        }
        place
    }
}
