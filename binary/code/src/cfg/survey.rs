//! A survey of an image's procedures: which do not return, and which are parts of others.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Range;

use image::Vaddr;

use super::Part;
use super::around;
use super::crossings::{Crossings, Image};
use crate::isa::Isa;

/// Procedures that do not return, by the name of their symbol (mangled): ISO C 7.22.4 and 7.13.2,
/// POSIX, the Linux Standard Base, the Itanium C++ ABI, libgcc, BSD's `err`, and what glibc's
/// `<assert.h>` and fortified functions call.
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

/// Whether a procedure of this name does not return: one of [`NO_RETURN_NAMES`], or libstdc++'s
/// `std::__throw_...`.
pub fn is_no_return_name(name: &str) -> bool {
    NO_RETURN_NAMES.binary_search(&name).is_ok()
        || name.starts_with("_ZSt") && name.contains("__throw_")
}

/// The survey of all procedures of an image, or of one. Takes time linear in the code, except for
/// procedures that call others which do not return: these are decoded again for each such callee.
#[derive(Debug, Default)]
pub struct Survey {
    no_return: BTreeSet<Vaddr>,
    /// The procedure that each procedure is a part of, or itself.
    whole: Vec<usize>,
    /// The other parts of procedures that have several.
    parts: BTreeMap<usize, Vec<usize>>,
}

impl Survey {
    /// Surveys the image with this code (its parts by address) and these `procedures` (by address,
    /// not overlapping). `known` has the addresses of procedures that do not return, and of words
    /// that hold the address of one; usually by [`is_no_return_name`].
    pub fn of(
        isa: Isa,
        text: &[Part<'_>],
        procedures: &[Range<u64>],
        known: impl IntoIterator<Item = Vaddr>,
    ) -> Self {
        let mut image = Image::new(isa, text, procedures, known);
        let crossings = image.crossings();
        let asked = procedures
            .iter()
            .map(|procedure| procedure.start)
            .chain(crossings.called.keys().copied());
        image.find_no_return(asked.collect());
        let mut this = Self { no_return: image.never, ..Self::default() };
        this.join(procedures, &crossings);
        this
    }

    /// The part of [`Survey::of`] that concerns the procedure with this number: the procedure, its
    /// parts, and which of the procedures that it calls do not return. The survey decodes only the
    /// code of the image whose branches can reach these procedures. If that joins too many
    /// procedures, it decodes the whole image.
    pub fn around(
        isa: Isa,
        text: &[Part<'_>],
        procedures: &[Range<u64>],
        known: impl IntoIterator<Item = Vaddr>,
        number: usize,
    ) -> Self {
        let mut image = Image::new(isa, text, procedures, known);
        let Some(crossings) = around::crossings(&image, number) else {
            return Self::of(isa, text, procedures, image.never);
        };
        let mut this = Self::default();
        this.join(procedures, &crossings);
        let whole = this.whole(number);
        let parts = this.parts(whole).iter().copied().chain([whole]);
        let asked =
            parts.filter_map(|part| procedures.get(part)).flat_map(|part| image.may_call(part));
        image.find_no_return(asked.collect());
        this.no_return = image.never;
        this
    }

    /// Addresses that a call does not return from, for
    /// [`Knowledge::no_return`](super::Knowledge::no_return): of procedures and stubs, and the
    /// words that were known.
    pub fn no_return(&self) -> &BTreeSet<Vaddr> {
        &self.no_return
    }

    /// The procedure that the one with this number is a part of, such as that of a cold part; or
    /// itself.
    pub fn whole(&self, procedure: usize) -> usize {
        self.whole.get(procedure).copied().unwrap_or(procedure)
    }

    /// The other parts of a procedure, by number.
    pub fn parts(&self, procedure: usize) -> &[usize] {
        self.parts.get(&procedure).map_or(&[], Vec::as_slice)
    }

    /// Joins the parts of procedures. Compilers jump into the middle of a procedure only from
    /// another part of it, and call only the first part.
    fn join(&mut self, procedures: &[Range<u64>], crossings: &Crossings) {
        let is_called = |number: usize| {
            procedures
                .get(number)
                .is_some_and(|procedure| crossings.called.contains_key(&procedure.start))
        };
        self.whole = (0..procedures.len()).collect();
        // A part begins where the first part jumps to; a seldom executed part is jumped to
        // conditionally and jumps back always.
        let begins: HashSet<(usize, usize)> =
            crossings.begun.iter().map(|&(number, from, _)| (number, from)).collect();
        let size = |number: usize| {
            procedures.get(number).map_or(0, |procedure| procedure.end - procedure.start)
        };
        let conditional = |a: usize, b: usize| {
            crossings.joined.get(&(a, b)).map_or(0, |&(_, conditional)| conditional)
        };
        for &(one, two) in crossings.joined.keys() {
            let (a, b) = (one, two);
            let (a, b) = (root(&mut self.whole, a), root(&mut self.whole, b));
            // Two procedures that are called stay two: hand-written ones may share code.
            if a == b || is_called(a) && is_called(b) {
                continue;
            }
            let rank = |root: usize, this: usize, other: usize| {
                (
                    is_called(root),
                    !begins.contains(&(this, other)),
                    conditional(this, other),
                    size(root),
                )
            };
            let first = if rank(a, one, two) >= rank(b, two, one) { a } else { b };
            self.whole.get_mut(a + b - first).into_iter().for_each(|whole| *whole = first);
        }
        // Compilers do not jump conditionally to another procedure either, so code that only one
        // procedure reaches in that way is a part of that procedure.
        let mut begun = crossings.begun.clone();
        begun.sort_unstable();
        for jumps in begun.chunk_by(|a, b| a.0 == b.0) {
            let Some(&(number, from, _)) = jumps.first() else { continue };
            let from = root(&mut self.whole, from);
            let alone = jumps.iter().all(|&(_, other, _)| root(&mut self.whole, other) == from);
            let conditional = jumps.iter().any(|&(.., conditional)| conditional);
            if alone
                && conditional
                && !is_called(number)
                && root(&mut self.whole, number) == number
                && from != number
            {
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

/// The first part of the whole that a procedure belongs to. Halves the path at each step.
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
