//! Which procedures do not return.

use std::collections::{BTreeMap, BTreeSet};
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

/// Finds the procedures of an image that do not return: those from whose entry no return is reached, given which others do not.
#[derive(Debug)]
pub struct NoReturn<'a> {
    isa: Isa,
    /// The image's code, by address.
    text: &'a [Part<'a>],
    /// First and one after last address of each procedure, in order.
    procedures: &'a [Range<u64>],
    never: BTreeSet<Vaddr>,
}

/// What an instruction leads to, for this purpose.
enum Outcome {
    Returns,
    /// To these; and it calls or jumps to those.
    On(Vec<u64>),
}

impl<'a> NoReturn<'a> {
    /// Of the image with this code (its parts by address) and these `procedures` (by address, not overlapping). `known`: addresses of
    /// procedures, and of words that hold the address of one, that do not return; usually by [`is_no_return_name`]. Takes time linear in the code, but for procedures
    /// that call such as do not return, which are looked at again for each of those.
    #[must_use]
    pub fn find(
        isa: Isa,
        text: &'a [Part<'a>],
        procedures: &'a [Range<u64>],
        known: impl IntoIterator<Item = Vaddr>,
    ) -> BTreeSet<Vaddr> {
        let mut this = Self { isa, text, procedures, never: known.into_iter().collect() };
        // Who looked at a call of that address on its way to a return.
        let mut waiting: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        let mut pending: Vec<u64> = procedures.iter().map(|procedure| procedure.start).rev().collect();
        let mut stubs: BTreeSet<u64> = BTreeSet::new();
        while let Some(entry) = pending.pop() {
            if this.never.contains(&Vaddr(entry)) {
                continue;
            }
            let (returns, called) = this.walk(entry);
            for target in called {
                waiting.entry(target).or_default().push(entry);
                // What is no procedure's begin: a stub in a table of them, a second entry.
                let is_begin = procedures.binary_search_by_key(&target, |procedure| procedure.start).is_ok();
                if !is_begin && this.procedure_of(target).is_some() && stubs.insert(target) {
                    pending.push(target);
                }
            }
            if !returns {
                this.never.insert(Vaddr(entry));
                pending.append(&mut waiting.remove(&entry).unwrap_or_default());
            }
        }
        this.never
    }

    fn procedure_of(&self, address: u64) -> Option<&Range<u64>> {
        let after = self.procedures.partition_point(|procedure| procedure.start <= address);
        self.procedures.get(after.checked_sub(1)?).filter(|procedure| procedure.contains(&address))
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
        let Some(procedure) = self.procedure_of(entry).cloned() else { return (true, called) };
        let mut seen = BTreeSet::new();
        let mut pending = vec![entry];
        while let Some(mut at) = pending.pop() {
            while procedure.contains(&at) && seen.insert(at) {
                if seen.len() > INSTRUCTIONS_MAX {
                    return (true, called);
                }
                match self.outcome(at, &procedure, &mut called) {
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
        match ordered.flow {
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
