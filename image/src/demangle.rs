//! Names as the programmer wrote them.

use std::borrow::Cow;
use std::fmt;

/// Longest mangled name looked at, in bytes. Longer ones are shown as they are, cut.
const MAX_INPUT: usize = 16 << 10;
/// Longest demangled name made, in bytes; back references let a few hundred bytes of mangled name
/// stand for gigabytes.
const MAX_OUTPUT: usize = 16 << 10;
/// How deep a C++ name may nest: bounds the stack.
const MAX_DEPTH: u32 = 96;

/// Whether `name` begins as a mangled name of Rust (`_R`, `_ZN`) or C++ (`_Z`) does.
pub(crate) fn may_be_mangled(name: &str) -> bool {
    name.len() > MAX_INPUT || name.starts_with("_Z") || name.starts_with("_R")
}

/// The name as the programmer wrote it: Rust (v0 and legacy, without the hash) and C++ (Itanium
/// ABI); anything else as it is.
///
/// A name of more than 16 KiB is cut, and one that would become longer than 16 KiB stays mangled.
pub fn demangle(name: &str) -> Cow<'_, str> {
    if name.len() > MAX_INPUT {
        let end = name.floor_char_boundary(MAX_INPUT);
        return Cow::Borrowed(name.get(..end).unwrap_or_default());
    }
    if !may_be_mangled(name) {
        return Cow::Borrowed(name);
    }
    rust(name).or_else(|| cpp(name)).map_or(Cow::Borrowed(name), Cow::Owned)
}

fn rust(name: &str) -> Option<String> {
    let demangled = rustc_demangle::try_demangle(name).ok()?;
    written(|out| fmt::write(out, format_args!("{demangled:#}")))
}

fn cpp(name: &str) -> Option<String> {
    let parse = cpp_demangle::ParseOptions::default().recursion_limit(MAX_DEPTH);
    let show = cpp_demangle::DemangleOptions::new().recursion_limit(MAX_DEPTH);
    // GCC and LLVM append what they did to the procedure: foo.cold, foo.isra.0, foo.llvm.123.
    let (symbol, suffix) = match name.find('.') {
        Some(at) => name.split_at_checked(at)?,
        None => (name, ""),
    };
    let symbol = cpp_demangle::Symbol::new_with_options(symbol, &parse).ok()?;
    written(|out| {
        symbol.structured_demangle(out, &show).map_err(|_| fmt::Error)?;
        fmt::Write::write_str(out, suffix)
    })
}

/// What `write` writes, unless it fails or writes too much.
fn written(write: impl FnOnce(&mut Bounded) -> fmt::Result) -> Option<String> {
    let mut out = Bounded(String::new());
    write(&mut out).ok()?;
    (!out.0.is_empty()).then_some(out.0)
}

/// A string that refuses to grow over [`MAX_OUTPUT`].
struct Bounded(String);

impl fmt::Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > MAX_OUTPUT {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_of_three_languages() {
        for (mangled, expected) in [
            ("main", "main"),
            ("", ""),
            ("_Z", "_Z"),
            ("_Z3addii", "add(int, int)"),
            ("_ZN3foo3barEv", "foo::bar()"),
            ("_ZN3foo3barEv.cold", "foo::bar().cold"),
            ("_ZNSt6vectorIiSaIiEE9push_backEOi", "std::vector<int, std::allocator<int> >::push_back(int&&)"),
            ("_ZN4core3fmt5Write9write_str17h0123456789abcdefE", "core::fmt::Write::write_str"),
            ("_RNvCs1234_7mycrate3foo", "mycrate::foo"),
            ("_Zrubbish", "_Zrubbish"),
        ] {
            assert_eq!(demangle(mangled), expected, "{mangled}");
        }
    }

    /// `f(a<int,int>, a<S0_,S0_>, ...)`: each parameter is twice as long as the one before it.
    fn doubling(times: u32) -> String {
        let mut name = String::from("_Z1f1aIiiE");
        for number in 0..times {
            let back = char::from_digit(number, 36).unwrap().to_ascii_uppercase();
            name.push_str(&format!("S_IS{back}_S{back}_E"));
        }
        name
    }

    #[test]
    fn a_name_that_explodes_stays_mangled() {
        assert_eq!(demangle(&doubling(1)), "f(a<int, int>, a<a<int, int>, a<int, int> >)");
        let bomb = doubling(35);
        assert_eq!(demangle(&bomb), bomb);
    }

    #[test]
    fn a_deep_name_does_not_exhaust_the_stack() {
        for deep in ["P".repeat(15_000), "F".repeat(15_000), "N".repeat(15_000), "I".repeat(15_000)] {
            let mangled = format!("_Z1f{deep}i");
            assert!(!demangle(&mangled).is_empty());
        }
        let long = "_Z".repeat(MAX_INPUT);
        assert_eq!(demangle(&long).len(), MAX_INPUT);
    }

    proptest! {
        #[test]
        fn no_text_panics(tail in "[A-Za-z0-9_.$@]{0,60}", any: String) {
            for name in [format!("_Z{tail}"), format!("_R{tail}"), format!("_ZN{tail}E"), any] {
                prop_assert!(demangle(&name).len() <= MAX_OUTPUT);
            }
        }
    }
}
