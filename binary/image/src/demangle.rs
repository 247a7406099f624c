//! Names as the programmer wrote them.

use std::borrow::Cow;
use std::fmt;

/// Longest mangled name that is demangled, in bytes. A longer one is shown as it is, cut.
const MAX_INPUT: usize = 16 << 10;
/// Longest demangled name made, in bytes; back references let a few hundred bytes of mangled name
/// stand for gigabytes.
const MAX_OUTPUT: usize = 16 << 10;
/// Levels that a C++ name may nest, as cpp_demangle counts them: bounds the stack, of which a name
/// of that depth takes less than 256 KiB. Some of LLVM's own names nest more than 96 levels deep.
const MAX_DEPTH: u32 = 192;

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

/// Suffixes, each with a number, of procedures that compilers made of others: those of GCC, and
/// LLVM's `llvm`, `__uniq`, `specialized` and `memprof`.
const NUMBERED_SUFFIXES: [&str; 9] =
    ["constprop", "isra", "part", "lto_priv", "clone", "llvm", "__uniq", "specialized", "memprof"];
/// Suffixes with a number or without.
const SUFFIXES: [&str; 2] = ["cold", "localalias"];

/// A name, mangled or not, without the suffixes of compilers: `foo` for `foo.isra.0.cold`.
pub fn without_suffix(name: &str) -> &str {
    let mut kept = name;
    loop {
        let unnumbered = kept.trim_end_matches(|c: char| c.is_ascii_digit());
        let numbered = unnumbered.strip_suffix('.').filter(|_| unnumbered.len() < kept.len());
        match numbered.unwrap_or(kept).rsplit_once('.') {
            Some((head, word))
                if !head.is_empty()
                    && (SUFFIXES.contains(&word)
                        || numbered.is_some() && NUMBERED_SUFFIXES.contains(&word)) =>
            {
                kept = head;
            }
            _ => return kept,
        }
    }
}

fn rust(name: &str) -> Option<String> {
    let demangled = rustc_demangle::try_demangle(name).ok()?;
    written(|out| fmt::write(out, format_args!("{demangled:#}")))
}

fn cpp(name: &str) -> Option<String> {
    // GCC and LLVM append the names of their transformations: foo.cold, foo.isra.0, foo.llvm.123.
    let (symbol, suffix) = name.split_at_checked(name.find('.').unwrap_or(name.len()))?;
    if let Some((what, target)) = thunk(symbol) {
        return itanium(&format!("_Z{target}")).map(|to| format!("{what} thunk to {to}{suffix}"));
    }
    itanium(symbol).map(|name| name + suffix)
}

/// A thunk: a procedure that adjusts `this` and goes on to another. Its kind, and the mangled name
/// of the other procedure without its `_Z`. cpp_demangle words thunks in its own way.
fn thunk(symbol: &str) -> Option<(&'static str, &str)> {
    match symbol.strip_prefix("_ZT")?.split_at_checked(1)? {
        ("h", offset) => Some(("non-virtual", after_offset(offset)?)),
        ("v", offsets) => Some(("virtual", after_offset(after_offset(offsets)?)?)),
        _ => None,
    }
}

/// The text after a number, perhaps negative (`n16`), and the `_` that ends it.
fn after_offset(text: &str) -> Option<&str> {
    let digits = text.strip_prefix('n').unwrap_or(text);
    digits.trim_start_matches(|c: char| c.is_ascii_digit()).strip_prefix('_')
}

fn itanium(symbol: &str) -> Option<String> {
    if let Some(name) = parsed(symbol) {
        return Some(name);
    }
    let rewritten = readable(symbol)?;
    let name = parsed(&rewritten)?;
    Some(members(&name))
}

fn parsed(symbol: &str) -> Option<String> {
    let parse = cpp_demangle::ParseOptions::default().recursion_limit(MAX_DEPTH);
    let show = cpp_demangle::DemangleOptions::new().recursion_limit(MAX_DEPTH);
    let symbol = cpp_demangle::Symbol::new_with_options(symbol, &parse).ok()?;
    let name = written(|out| symbol.structured_demangle(out, &show).map_err(|_| fmt::Error))?;
    // How cpp_demangle writes a parameter pack without elements.
    Some(name.replace(", >", ">").replace(", &&)", ")").replace(", &)", ")"))
}

/// The same name in a form that cpp_demangle knows; None if there is nothing to rewrite.
///
/// GCC writes `T::value` in the condition of an `enable_if`, as that of `std::swap` and of strings'
/// `operator==`, as `sr`, the type T, the member. cpp_demangle wants a template parameter or a
/// substitution for T. A cast (`cv`, the type, an expression) has any type, adds the same
/// substitutions and is as long. `C5` and `D5` name all variants of a constructor or destructor at
/// once; of those cpp_demangle knows the single ones.
fn readable(symbol: &str) -> Option<String> {
    let mut rewritten = symbol.to_owned();
    let mut at = 0;
    while let Some(rest) = symbol.get(at..).filter(|rest| !rest.is_empty()) {
        let (skipped, instead) = match rest.as_bytes() {
            [b'0'..=b'9', ..] => (number_and_identifier(symbol.get(..at)?, rest), None),
            [b's', b'r', b'S', b't', ..] | [b's', b'r', b'N', ..] => (2, Some("cv")),
            [b'C', b'5', ..] => (2, Some("C1")),
            [b'D', b'5', ..] => (2, Some("D1")),
            _ => (rest.chars().next().map_or(1, char::len_utf8), None),
        };
        if let Some(instead) = instead {
            rewritten.replace_range(at..at + 2, instead);
        }
        at += skipped;
    }
    (rewritten != symbol).then_some(rewritten)
}

/// Bytes of a number at the start of `rest`, and of the identifier whose length the number is. The
/// number in a literal (`Lj32E`), a template parameter (`T0_`) or a substitution (`S1_`) is no
/// length.
fn number_and_identifier(before: &str, rest: &str) -> usize {
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let is_value = matches!(
        before.as_bytes(),
        [.., b'L', b'a'..=b'z'] | [.., b'L', b'a'..=b'z', b'n'] | [.., b'T' | b'S']
    );
    let length = rest.get(..digits).and_then(|digits| digits.parse::<usize>().ok());
    let whole = length.filter(|_| !is_value).and_then(|length| digits.checked_add(length));
    whole.filter(|whole| rest.is_char_boundary(*whole)).unwrap_or(digits)
}

/// Turns casts of a name to a type, as [`readable`] makes them, back into members of the type:
/// `(T)(value)` becomes `T::value`.
fn members(name: &str) -> String {
    let mut out: Vec<u8> = Vec::with_capacity(name.len());
    let mut open = Vec::new();
    let mut bytes = name.bytes().enumerate();
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'(' => open.push(out.len()),
            b')' => {
                let start = open.pop();
                let member = name.get(at + 1..).and_then(|rest| rest.strip_prefix('('));
                let member = member.and_then(|rest| rest.split_once(')')).map(|(member, _)| member);
                let is_name =
                    |member: &&str| member.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_');
                if let (Some(start), Some(member)) =
                    (start, member.filter(is_name).filter(|name| !name.is_empty()))
                    && out.get(start) == Some(&b'(')
                    && start
                        .checked_sub(1)
                        .and_then(|at| out.get(at))
                        .is_some_and(|c| b"<(! ".contains(c))
                {
                    out.remove(start);
                    out.extend(b"::");
                    out.extend(member.bytes());
                    bytes.nth(member.len() + 1);
                    continue;
                }
            }
            _ => {}
        }
        out.push(byte);
    }
    String::from_utf8(out).unwrap_or_else(|_| name.to_owned())
}

/// The output of `write`, unless it fails or is too long.
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
            (
                "_ZNSt6vectorIiSaIiEE9push_backEOi",
                "std::vector<int, std::allocator<int> >::push_back(int&&)",
            ),
            ("_ZN4core3fmt5Write9write_str17h0123456789abcdefE", "core::fmt::Write::write_str"),
            ("_RNvCs1234_7mycrate3foo", "mycrate::foo"),
            ("_Zrubbish", "_Zrubbish"),
        ] {
            assert_eq!(demangle(mangled), expected, "{mangled}");
        }
    }

    /// `std::swap` and strings' `operator==` of every C++ program stayed mangled, as did what LLVM
    /// nests more than 96 levels deep. c++filt of binutils is the oracle.
    #[test]
    fn what_cpp_demangle_does_not_parse_alone() {
        for (mangled, expected) in [
            (
                "_ZSt4swapIiENSt9enable_ifIXsrSt6__and_IJSt6__not_ISt15__is_tuple_likeIT_EESt21is_move_constructibleIS4_ESt18is_move_assignableIS4_EEE5valueEvE4typeERS4_SE_",
                "std::enable_if<std::__and_<std::__not_<std::__is_tuple_like<int> >, std::is_move_constructible<int>, std::is_move_assignable<int> >::value, void>::type std::swap<int>(int&, int&)",
            ),
            (
                "_ZSteqIcEN9__gnu_cxx11__enable_ifIXsrSt9__is_charIT_E7__valueEbE6__typeERKNSt7__cxx1112basic_stringIS3_St11char_traitsIS3_ESaIS3_EEESE_",
                "__gnu_cxx::__enable_if<std::__is_char<char>::__value, bool>::__type std::operator==<char>(std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> > const&, std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> > const&)",
            ),
            // The number is the length of `use_srSt`, so this `srSt` is part of a name.
            ("_Z8use_srStILb1EEvv", "void use_srSt<true>()"),
            ("_ZN3foo3barC5Ei", "foo::bar::bar(int)"),
            ("_ZThn16_N3foo3barEv.cold", "non-virtual thunk to foo::bar().cold"),
            ("_ZTv0_n24_N3fooD0Ev", "virtual thunk to foo::~foo()"),
            ("_Z1fIJEEvDpT_", "void f<>()"),
        ] {
            assert_eq!(demangle(mangled), expected, "{mangled}");
        }
        let deep = format!("_Z1f{}i", "P".repeat(150));
        assert_eq!(demangle(&deep), format!("f(int{})", "*".repeat(150)));
    }

    #[test]
    fn suffixes_of_compilers() {
        for (name, expected) in [
            ("foo", "foo"),
            ("foo.cold", "foo"),
            ("foo.cold.1", "foo"),
            ("foo(int) const.constprop.0.isra.12.cold", "foo(int) const"),
            ("x.__uniq.82281234.llvm.99", "x"),
            ("x.lto_priv.0.lto_priv.1", "x"),
            // The name does not look like a compiler's.
            ("main.part", "main.part"),
            ("runtime.gc.1", "runtime.gc.1"),
            (".cold", ".cold"),
            ("12", "12"),
            ("", ""),
        ] {
            assert_eq!(without_suffix(name), expected, "{name}");
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
        for deep in ["P".repeat(15_000), "F".repeat(15_000), "N".repeat(15_000), "I".repeat(15_000)]
        {
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
                prop_assert!(name.starts_with(without_suffix(&name)));
            }
        }
    }
}
