//! What a look at a whole image tells about its procedures: which do not return, and which are parts of others.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Range;

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

/// Most instructions looked at of one procedure before it is taken to return.
const INSTRUCTIONS_MAX: usize = 1 << 16;

/// Whether a procedure of this name does not return: one of [`NO_RETURN_NAMES`], or libstdc++'s `std::__throw_...`.
#[must_use]
pub fn is_no_return_name(name: &str) -> bool {
    NO_RETURN_NAMES.binary_search(&name).is_ok() || name.starts_with("_ZSt") && name.contains("__throw_")
}

/// What a whole image tells. Takes time linear in its code, but for procedures that call such as do not return, which are looked at again
/// for each of those.
#[derive(Debug, Default)]
pub struct Survey {
    no_return: BTreeSet<Vaddr>,
    /// Of each procedure, the one that it is a part of, or itself.
    whole: Vec<usize>,
    /// The other parts of those that have some.
    parts: BTreeMap<usize, Vec<usize>>,
}

/// An image's code and procedures.
struct Image<'a> {
    isa: Isa,
    text: &'a [Part<'a>],
    procedures: &'a [Range<u64>],
    never: BTreeSet<Vaddr>,
}

/// What instructions lead from one procedure to another.
#[derive(Default)]
struct Crossings {
    called: HashSet<u64>,
    /// How often one procedure jumps into the middle of another, and how often conditionally.
    joined: BTreeMap<(usize, usize), (usize, usize)>,
    /// Procedures to whose begin one jumps: that one, from where, whether conditionally.
    begun: Vec<(usize, usize, bool)>,
}

/// What an instruction leads to, for the question whether a procedure returns.
enum Outcome {
    Returns,
    On(Vec<u64>),
}

impl Survey {
    /// Of the image with this code (its parts by address) and these `procedures` (by address, not overlapping). `known`: addresses of
    /// procedures, and of words that hold the address of one, that do not return; usually by [`is_no_return_name`].
    #[must_use]
    pub fn of(isa: Isa, text: &[Part<'_>], procedures: &[Range<u64>], known: impl IntoIterator<Item = Vaddr>) -> Self {
        let mut image = Image { isa, text, procedures, never: known.into_iter().collect() };
        let crossings = image.crossings();
        image.find_no_return(&crossings);
        let mut this = Self { no_return: image.never, ..Self::default() };
        this.join(procedures, &crossings);
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
        let is_called =
            |number: usize| procedures.get(number).is_some_and(|procedure| crossings.called.contains(&procedure.start));
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
    fn find_no_return(&mut self, crossings: &Crossings) {
        // Who looked at a call of that address on its way to a return.
        let mut waiting: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
        let mut pending: BTreeSet<u64> = self.procedures.iter().map(|procedure| procedure.start).collect();
        // What is called and is no procedure's begin: a stub in a table of them, a second entry.
        let begins: HashSet<u64> = pending.iter().copied().collect();
        pending.extend(crossings.called.iter().filter(|called| !begins.contains(called)));
        while let Some(entry) = pending.pop_last() {
            if self.never.contains(&Vaddr(entry)) {
                continue;
            }
            let (returns, called) = self.walk(entry);
            for target in called {
                waiting.entry(target).or_default().insert(entry);
            }
            if !returns {
                self.never.insert(Vaddr(entry));
                pending.append(&mut waiting.remove(&entry).unwrap_or_default());
            }
        }
    }

    fn crossings(&self) -> Crossings {
        let mut found = Crossings::default();
        for (number, procedure) in self.procedures.iter().enumerate() {
            let mut at = procedure.start;
            let mut bytes = self.bytes(at);
            while at < procedure.end && !bytes.is_empty() {
                let ordered = self.isa.order(bytes, at);
                match ordered.map(|ordered| ordered.flow) {
                    Some(Flow::Call { target: Some(target), .. }) => {
                        found.called.insert(target);
                    }
                    Some(flow @ (Flow::Jump { target } | Flow::Conditional { target }))
                        if !procedure.contains(&target) =>
                    {
                        let conditional = matches!(flow, Flow::Conditional { .. });
                        self.cross(number, target, conditional, &mut found);
                    }
                    _ => {}
                }
                let len = ordered.map_or(self.isa.step(), |ordered| usize::from(ordered.len));
                let Some(next) = at.checked_add(len as u64) else { break };
                at = next;
                bytes = bytes.get(len..).unwrap_or_default();
            }
        }
        found
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
    fn is_stub(&self, address: u64) -> bool {
        let Some(first) = self.isa.order(self.bytes(address), address) else { return false };
        let next = address.wrapping_add(u64::from(first.len));
        let second = self.isa.order(self.bytes(next), next).filter(|_| first.flow == Flow::Next);
        let stub = |at: u64| self.isa.stub(self.bytes(at), at).is_some();
        [Some(first), second].into_iter().flatten().any(|it| matches!(it.flow, Flow::Indirect { through: Some(_) }))
            || stub(address)
            || second.is_some() && stub(next)
    }

    fn number_of(&self, address: u64) -> Option<usize> {
        let number = self.procedures.partition_point(|procedure| procedure.start <= address).checked_sub(1)?;
        self.procedures.get(number)?.contains(&address).then_some(number)
    }

    fn bytes(&self, address: u64) -> &'a [u8] {
        let after = self.text.partition_point(|part| part.begin.0 <= address);
        let Some(part) = after.checked_sub(1).and_then(|index| self.text.get(index)) else { return &[] };
        let into = usize::try_from(address - part.begin.0).unwrap_or(usize::MAX);
        part.bytes.get(into..).unwrap_or_default()
    }

    /// Whether a return is reached from `entry`; and what is called, or jumped to outside, on what was looked at for that.
    fn walk(&self, entry: u64) -> (bool, BTreeSet<u64>) {
        let mut called = BTreeSet::new();
        let Some(procedure) = self.number_of(entry).and_then(|number| self.procedures.get(number)) else {
            return (true, called);
        };
        let mut seen = BTreeSet::new();
        let mut pending = vec![entry];
        while let Some(mut at) = pending.pop() {
            while procedure.contains(&at) && seen.insert(at) {
                if seen.len() > INSTRUCTIONS_MAX {
                    return (true, called);
                }
                match self.outcome(at, procedure, &mut called) {
                    Outcome::Returns => return (true, called),
                    Outcome::On(next) => {
                        let mut next = next.into_iter();
                        let Some(first) = next.next() else { break };
                        pending.extend(next);
                        at = first;
                    }
                }
            }
        }
        (false, called)
    }

    fn outcome(&self, at: u64, procedure: &Range<u64>, called: &mut BTreeSet<u64>) -> Outcome {
        let never = |address: u64| self.never.contains(&Vaddr(address));
        let Some(ordered) = self.isa.order(self.bytes(at), at) else { return Outcome::On(Vec::new()) };
        let next = at.wrapping_add(u64::from(ordered.len));
        let outside = |target: u64, called: &mut BTreeSet<u64>| {
            called.insert(target);
            if never(target) { Outcome::On(Vec::new()) } else { Outcome::Returns }
        };
        let through = if ordered.flow == Flow::Next { self.isa.stub(self.bytes(at), at) } else { None };
        match ordered.flow {
            _ if through.is_some_and(|stub| never(stub.through)) => Outcome::On(Vec::new()),
            // After a procedure's last instruction: its call did not return, or another procedure goes on with it.
            Flow::Call { .. } if !procedure.contains(&next) => Outcome::On(Vec::new()),
            Flow::Next if !procedure.contains(&next) => outside(next, called),
            Flow::Next => Outcome::On(vec![next]),
            Flow::Conditional { target } if !procedure.contains(&target) => match outside(target, called) {
                Outcome::Returns => Outcome::Returns,
                Outcome::On(_) => Outcome::On(vec![next]),
            },
            Flow::Conditional { target } => Outcome::On(vec![next, target]),
            Flow::Jump { target } if procedure.contains(&target) => Outcome::On(vec![target]),
            Flow::Jump { target } => outside(target, called),
            Flow::Indirect { through } if through.is_some_and(never) => Outcome::On(Vec::new()),
            Flow::Indirect { .. } | Flow::Return => Outcome::Returns,
            Flow::Call { target, through } => {
                called.extend(target.filter(|target| !procedure.contains(target)));
                let stops = target.is_some_and(never) || through.is_some_and(never);
                Outcome::On(if stops { Vec::new() } else { vec![next] })
            }
            Flow::Trap | Flow::NoReturn { .. } => Outcome::On(Vec::new()),
        }
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
