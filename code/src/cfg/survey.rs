//! What a look at an image tells about its procedures: which do not return, and which are parts of others.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Range;

use foldhash::fast::RandomState;
use image::Vaddr;

use super::Part;
use crate::isa::Isa;
use crate::isa::flow::Flow;

/// Procedures that do not return, by the name of their symbol (mangled): ISO C 7.22.4 and 7.13.2, POSIX, the Linux Standard Base, the
/// Itanium C++ ABI, libgcc, BSD's `err`, and what glibc's `<assert.h>` and fortified functions call.
pub const NO_RETURN_NAMES: [&str; 41] = [
    "_Exit",
    "_Unwind_Resume",
    "_ZSt9terminatev",
    "__assert",
    "__assert_fail",
    "__assert_perror_fail",
    "__chk_fail",
    "__cxa_bad_cast",
    "__cxa_bad_typeid",
    "__cxa_call_terminate",
    "__cxa_call_unexpected",
    "__cxa_deleted_virtual",
    "__cxa_pure_virtual",
    "__cxa_rethrow",
    "__cxa_throw",
    "__cxa_throw_bad_array_new_length",
    "__fortify_fail",
    "__libc_fatal",
    "__longjmp_chk",
    "__pthread_unwind_next",
    "__stack_chk_fail",
    "_exit",
    "_longjmp",
    "abort",
    "err",
    "errc",
    "errx",
    "exit",
    "g_abort",
    "g_assertion_message",
    "g_assertion_message_cmpnum",
    "g_assertion_message_expr",
    "longjmp",
    "pthread_exit",
    "quick_exit",
    "rust_begin_unwind",
    "siglongjmp",
    "thrd_exit",
    "verr",
    "verrc",
    "verrx",
];

pub(super) type Set<T> = HashSet<T, RandomState>;
pub(super) type Map<K, V> = HashMap<K, V, RandomState>;

/// Most instructions looked at of one procedure before it is taken to return.
const INSTRUCTIONS_MAX: usize = 1 << 16;

/// Whether a procedure of this name does not return: one of [`NO_RETURN_NAMES`], or libstdc++'s `std::__throw_...`.
#[must_use]
pub fn is_no_return_name(name: &str) -> bool {
    NO_RETURN_NAMES.binary_search(&name).is_ok() || name.starts_with("_ZSt") && name.contains("__throw_")
}

/// What an image tells of all its procedures, or of one. Takes time linear in the code that is looked at, but for procedures that call such
/// as do not return, which are looked at again for each of those.
#[derive(Debug, Default)]
pub struct Survey {
    no_return: BTreeSet<Vaddr>,
    /// Of each procedure, the one that it is a part of, or itself.
    whole: Vec<usize>,
    /// The other parts of those that have some.
    parts: BTreeMap<usize, Vec<usize>>,
}

/// An image's code and procedures.
pub(super) struct Image<'a> {
    pub(super) isa: Isa,
    pub(super) text: &'a [Part<'a>],
    pub(super) procedures: &'a [Range<u64>],
    never: BTreeSet<Vaddr>,
}

/// What instructions lead from one procedure to another.
#[derive(Default)]
pub(super) struct Crossings {
    /// What is called, and a procedure that does.
    pub(super) called: Map<u64, usize>,
    /// How often one procedure jumps into the middle of another, and how often conditionally.
    pub(super) joined: BTreeMap<(usize, usize), (usize, usize)>,
    /// Procedures to whose begin one jumps: that one, from where, whether conditionally.
    pub(super) begun: Vec<(usize, usize, bool)>,
}

/// What an instruction leads to in its procedure, for the question whether that returns.
enum Outcome {
    Returns,
    On(Option<u64>),
    Either(u64, u64),
}

impl Survey {
    /// Of the image with this code (its parts by address) and these `procedures` (by address, not overlapping). `known`: addresses of
    /// procedures, and of words that hold the address of one, that do not return; usually by [`is_no_return_name`].
    #[must_use]
    pub fn of(isa: Isa, text: &[Part<'_>], procedures: &[Range<u64>], known: impl IntoIterator<Item = Vaddr>) -> Self {
        let mut image = Image::new(isa, text, procedures, known);
        let crossings = image.crossings();
        let asked = procedures.iter().map(|procedure| procedure.start).chain(crossings.called.keys().copied());
        image.find_no_return(asked.collect());
        let mut this = Self { no_return: image.never, ..Self::default() };
        this.join(procedures, &crossings);
        this
    }

    /// What [`Survey::of`] says of one procedure, the one with this number, and of its parts, and which of the procedures that those call do
    /// not return. Of the image's other code only what that takes is looked at, by where branches could be; where procedures are joined
    /// by too many others, all.
    #[must_use]
    pub fn around(
        isa: Isa,
        text: &[Part<'_>],
        procedures: &[Range<u64>],
        known: impl IntoIterator<Item = Vaddr>,
        number: usize,
    ) -> Self {
        let mut image = Image::new(isa, text, procedures, known);
        let Some(crossings) = super::around::crossings(&image, number) else {
            return Self::of(isa, text, procedures, image.never);
        };
        let mut this = Self::default();
        this.join(procedures, &crossings);
        let whole = this.whole(number);
        let parts = this.parts(whole).iter().copied().chain([whole]);
        let asked = parts.filter_map(|part| procedures.get(part)).flat_map(|part| image.may_call(part));
        image.find_no_return(asked.collect());
        this.no_return = image.never;
        this
    }

    /// Addresses that a call does not return from, for [`Knowledge::no_return`](super::Knowledge::no_return): of procedures and stubs, and
    /// the words that were known.
    #[must_use]
    pub fn no_return(&self) -> &BTreeSet<Vaddr> {
        &self.no_return
    }

    /// The procedure that the one with this number is a part of, as the cold part of a procedure is; or itself.
    #[must_use]
    pub fn whole(&self, procedure: usize) -> usize {
        self.whole.get(procedure).copied().unwrap_or(procedure)
    }

    /// The other parts of a procedure, by their numbers.
    #[must_use]
    pub fn parts(&self, procedure: usize) -> &[usize] {
        self.parts.get(&procedure).map_or(&[], Vec::as_slice)
    }

    /// Joins the parts of procedures. Compilers jump into the middle of a procedure only from another part of it, and nobody calls a part
    /// but the first.
    fn join(&mut self, procedures: &[Range<u64>], crossings: &Crossings) {
        let is_called = |number: usize| {
            procedures.get(number).is_some_and(|procedure| crossings.called.contains_key(&procedure.start))
        };
        self.whole = (0..procedures.len()).collect();
        // A part begins with what the first part jumps to; what is seldom executed is jumped to conditionally, and jumps back always.
        let begins: HashSet<(usize, usize)> = crossings.begun.iter().map(|&(number, from, _)| (number, from)).collect();
        let size = |number: usize| procedures.get(number).map_or(0, |procedure| procedure.end - procedure.start);
        let conditional = |a: usize, b: usize| crossings.joined.get(&(a, b)).map_or(0, |&(_, conditional)| conditional);
        for &(one, two) in crossings.joined.keys() {
            let (a, b) = (one, two);
            let (a, b) = (root(&mut self.whole, a), root(&mut self.whole, b));
            // Two that are called are two procedures that share code, as those written by hand do.
            if a == b || is_called(a) && is_called(b) {
                continue;
            }
            let rank = |root: usize, this: usize, other: usize| {
                (is_called(root), !begins.contains(&(this, other)), conditional(this, other), size(root))
            };
            let first = if rank(a, one, two) >= rank(b, two, one) { a } else { b };
            self.whole.get_mut(a + b - first).into_iter().for_each(|whole| *whole = first);
        }
        // Nor does a compiler jump conditionally to another procedure: what only one comes to like that is its part, too.
        let mut begun = crossings.begun.clone();
        begun.sort_unstable();
        for jumps in begun.chunk_by(|a, b| a.0 == b.0) {
            let Some(&(number, from, _)) = jumps.first() else { continue };
            let from = root(&mut self.whole, from);
            let alone = jumps.iter().all(|&(_, other, _)| root(&mut self.whole, other) == from);
            let conditional = jumps.iter().any(|&(.., conditional)| conditional);
            if alone && conditional && !is_called(number) && root(&mut self.whole, number) == number && from != number {
                self.whole.get_mut(number).into_iter().for_each(|whole| *whole = from);
            }
        }
        for number in 0..procedures.len() {
            let whole = root(&mut self.whole, number);
            if whole != number {
                self.parts.entry(whole).or_default().push(number);
            }
        }
    }
}

/// The first part of what a procedure is a part of. Halves the way at each step.
fn root(whole: &mut [usize], mut number: usize) -> usize {
    while let Some(&next) = whole.get(number)
        && next != number
    {
        let after = whole.get(next).copied().unwrap_or(next);
        whole.get_mut(number).into_iter().for_each(|whole| *whole = after);
        number = after;
    }
    number
}

impl<'a> Image<'a> {
    pub(super) fn new(
        isa: Isa,
        text: &'a [Part<'a>],
        procedures: &'a [Range<u64>],
        known: impl IntoIterator<Item = Vaddr>,
    ) -> Self {
        Self { isa, text, procedures, never: known.into_iter().collect() }
    }

    /// Finds out whether these addresses, and those that this depends on, are of what does not return. Gives all these addresses.
    ///
    /// The order in which addresses are looked at does not matter: what does not return only grows, and who relied on one of these is
    /// looked at again.
    pub(super) fn find_no_return(&mut self, asked: Set<u64>) -> Set<u64> {
        // Who took it that a call of that address returns.
        let mut waiting: Map<u64, Vec<u64>> = Map::default();
        let mut pending: Vec<u64> = asked.iter().copied().collect();
        pending.sort_unstable();
        // Those that are pending, so that each is so once.
        let mut queued = asked.clone();
        let mut known = asked;
        while let Some(entry) = pending.pop() {
            queued.remove(&entry);
            if self.never.contains(&Vaddr(entry)) {
                continue;
            }
            match self.walk(entry) {
                Some(called) => {
                    for target in called {
                        waiting.entry(target).or_default().push(entry);
                        if known.insert(target) && queued.insert(target) {
                            pending.push(target);
                        }
                    }
                }
                None => {
                    self.never.insert(Vaddr(entry));
                    let again = waiting.remove(&entry).unwrap_or_default();
                    pending.extend(again.into_iter().filter(|entry| queued.insert(*entry)));
                }
            }
        }
        known
    }

    pub(super) fn crossings(&self) -> Crossings {
        let mut found = Crossings::default();
        (0..self.procedures.len()).for_each(|number| self.cross_from(number, &mut found));
        found
    }

    /// What leads from the procedure with this number to others.
    pub(super) fn cross_from(&self, number: usize, found: &mut Crossings) {
        let Some(procedure) = self.procedures.get(number) else { return };
        let mut at = procedure.start;
        let mut bytes = self.bytes(at);
        while at < procedure.end && !bytes.is_empty() {
            let ordered = self.isa.order(bytes, at);
            match ordered.map(|ordered| ordered.flow) {
                Some(Flow::Call { target: Some(target), .. }) => {
                    found.called.insert(target, number);
                }
                Some(flow @ (Flow::Jump { target } | Flow::Conditional { target })) if !procedure.contains(&target) => {
                    let conditional = matches!(flow, Flow::Conditional { .. });
                    self.cross(number, target, conditional, found);
                }
                _ => {}
            }
            let len = ordered.map_or(self.isa.step(), |ordered| usize::from(ordered.len));
            let Some(next) = at.checked_add(len as u64) else { break };
            at = next;
            bytes = bytes.get(len..).unwrap_or_default();
        }
    }

    /// What a procedure may call, whatever of its bytes are instructions.
    pub(super) fn may_call(&self, procedure: &Range<u64>) -> Vec<u64> {
        let len = usize::try_from(procedure.end - procedure.start).unwrap_or(usize::MAX);
        let bytes = self.bytes(procedure.start);
        let mut called = Vec::new();
        self.isa.leads(bytes.get(..len).unwrap_or(bytes), procedure.start, &(0..u64::MAX), &mut |lead| {
            called.extend(Some(lead.target).filter(|target| lead.calls && self.number_of(*target).is_some()));
        });
        called
    }

    /// The procedure with this number jumps to `target`, in another.
    fn cross(&self, number: usize, target: u64, conditional: bool, found: &mut Crossings) {
        let Some(other) = self.number_of(target).filter(|_| !self.is_stub(target)) else { return };
        if self.procedures.get(other).is_some_and(|other| other.start == target) {
            found.begun.push((other, number, conditional));
        } else {
            let count = found.joined.entry((number, other)).or_default();
            *count = (count.0 + 1, count.1 + usize::from(conditional));
        }
    }

    /// Whether there is but a jump through a word: all stubs of a file are one procedure, as far as symbols go.
    pub(super) fn is_stub(&self, address: u64) -> bool {
        let Some(first) = self.isa.order(self.bytes(address), address) else { return false };
        let next = address.wrapping_add(u64::from(first.len));
        let second = self.isa.order(self.bytes(next), next).filter(|_| first.flow == Flow::Next);
        let stub = |at: u64| self.isa.stub(self.bytes(at), at).is_some();
        [Some(first), second].into_iter().flatten().any(|it| matches!(it.flow, Flow::Indirect { through: Some(_) }))
            || stub(address)
            || second.is_some() && stub(next)
    }

    pub(super) fn number_of(&self, address: u64) -> Option<usize> {
        let number = self.procedures.partition_point(|procedure| procedure.start <= address).checked_sub(1)?;
        self.procedures.get(number)?.contains(&address).then_some(number)
    }

    fn bytes(&self, address: u64) -> &'a [u8] {
        let after = self.text.partition_point(|part| part.begin.0 <= address);
        let Some(part) = after.checked_sub(1).and_then(|index| self.text.get(index)) else { return &[] };
        let into = usize::try_from(address - part.begin.0).unwrap_or(usize::MAX);
        part.bytes.get(into..).unwrap_or_default()
    }

    /// If a return is reached from `entry`: what was taken to return, of what is called, or jumped to outside, on the way. Ways through others
    /// are gone only where no other is left: who needs not ask of them has less to find out.
    fn walk(&self, entry: u64) -> Option<BTreeSet<u64>> {
        let mut called = BTreeSet::new();
        let Some(procedure) = self.number_of(entry).and_then(|number| self.procedures.get(number)) else {
            return Some(called);
        };
        let mut seen: Set<u64> = Set::default();
        let mut pending = vec![entry];
        let mut through = Vec::new();
        loop {
            while let Some(mut at) = pending.pop() {
                while procedure.contains(&at) && seen.insert(at) {
                    if seen.len() > INSTRUCTIONS_MAX {
                        return Some(called);
                    }
                    match self.outcome(at, procedure, &mut through) {
                        Outcome::Returns => return Some(called),
                        Outcome::On(Some(next)) => at = next,
                        Outcome::Either(next, other) => {
                            pending.push(other);
                            at = next;
                        }
                        Outcome::On(None) => break,
                    }
                }
            }
            // None left: it does not return.
            let (target, next) = through.pop()?;
            called.insert(target);
            match next {
                Some(next) => pending.push(next),
                None => return Some(called),
            }
        }
    }

    /// What the instruction at `at` leads to. Those that it calls, or jumps to outside, go to `through`, with where to go on when they
    /// return: none where that is a return, too.
    fn outcome(&self, at: u64, procedure: &Range<u64>, through: &mut Vec<(u64, Option<u64>)>) -> Outcome {
        let never = |address: u64| self.never.contains(&Vaddr(address));
        let Some(ordered) = self.isa.order(self.bytes(at), at) else { return Outcome::On(None) };
        let next = at.wrapping_add(u64::from(ordered.len));
        let mut leave =
            |target: u64, next: Option<u64>| through.extend(Some((target, next)).filter(|_| !never(target)));
        let stub = if ordered.flow == Flow::Next { self.isa.stub(self.bytes(at), at) } else { None };
        match ordered.flow {
            _ if stub.is_some_and(|stub| never(stub.through)) => return Outcome::On(None),
            // After a procedure's last instruction: its call did not return, or another procedure goes on with it.
            Flow::Call { .. } if !procedure.contains(&next) => return Outcome::On(None),
            Flow::Next if !procedure.contains(&next) => leave(next, None),
            Flow::Next => return Outcome::On(Some(next)),
            Flow::Conditional { target } if !procedure.contains(&target) => {
                leave(target, None);
                return Outcome::On(Some(next));
            }
            Flow::Conditional { target } => return Outcome::Either(next, target),
            Flow::Jump { target } if procedure.contains(&target) => return Outcome::On(Some(target)),
            Flow::Jump { target } => leave(target, None),
            Flow::Indirect { through } if through.is_some_and(never) => return Outcome::On(None),
            Flow::Indirect { .. } | Flow::Return => return Outcome::Returns,
            Flow::Call { through: Some(word), .. } if never(word) => return Outcome::On(None),
            Flow::Call { target: Some(target), .. } if !procedure.contains(&target) => leave(target, Some(next)),
            Flow::Call { target, .. } => return Outcome::On(Some(next).filter(|_| !target.is_some_and(never))),
            Flow::Trap | Flow::NoReturn { .. } => {}
        }
        Outcome::On(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_sorted() {
        assert!(NO_RETURN_NAMES.is_sorted());
        assert!(is_no_return_name("abort") && is_no_return_name("_ZSt20__throw_length_errorPKc"));
        assert!(!is_no_return_name("") && !is_no_return_name("exi") && !is_no_return_name("exit2"));
    }
}
