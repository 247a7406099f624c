//! Shortens names of procedures to fit: the least informative parts are left out first.

use std::collections::BTreeMap;

use image::without_suffix;

/// Stands for parts of a name that were left out.
const LEFT_OUT: char = '…';
/// A namespace without a name, as demanglers write it: no parameters, though in parentheses.
const ANONYMOUS: &str = "(anonymous namespace)";
/// The prefix of the names of C++'s operators.
const WORD: &str = "operator";
/// The names of C++'s operators after that word, each before its own prefixes.
const OPERATORS: [&str; 43] = [
    "()",
    "[]",
    "<=>",
    "<<=",
    ">>=",
    "->*",
    "<<",
    ">>",
    "<=",
    ">=",
    "==",
    "!=",
    "&&",
    "||",
    "++",
    "--",
    "+=",
    "-=",
    "*=",
    "/=",
    "%=",
    "^=",
    "&=",
    "|=",
    "->",
    "<",
    ">",
    "=",
    "!",
    "+",
    "-",
    "*",
    "/",
    "%",
    "&",
    "|",
    "^",
    "~",
    ",",
    " new[]",
    " delete[]",
    " new",
    " delete",
];

/// A piece of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Piece<'a> {
    /// The part that is always shown.
    Text(&'a str),
    /// Template or generic arguments, with their brackets.
    Arguments(&'a str),
    /// Parameters, with their parentheses.
    Parameters(&'a str),
    /// A type and its trait in Rust (`<Vec<T> as Extend<T>>`, `<impl Clone for T>`), with brackets.
    Qualified(&'a str),
    /// A lambda or closure, with its braces.
    Lambda(&'a str),
}

/// The parts of a name that are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Detail {
    /// Like [`Self::Brief`], with only the last part of the paths of Rust's types and traits.
    Least,
    /// `std::vector::push_back`.
    Brief,
    /// `std::vector<…>::push_back(…)`.
    Marked,
    /// `std::vector<int>::push_back(…)`.
    Arguments,
    /// `std::vector<int>::push_back(int&&)`: all parts but the return type.
    Parameters,
}

/// A text of at most this many characters, its middle replaced by one `…` if need be. More is kept
/// of the end, which tells procedures of one type or crate apart.
pub fn shorten(text: &str, most: usize) -> String {
    let length = text.chars().count();
    if length <= most || most < 3 {
        return text.to_owned();
    }
    let head = (most - 1) / 3;
    let tail = most - 1 - head;
    let first = text.chars().take(head);
    let last = text.chars().skip(length - tail);
    first.chain(['…']).chain(last).collect()
}

/// The name in at most `most` characters. Its parts are left out in this order: the return type,
/// parameters, template arguments, namespaces. The procedure's own name is cut only if it alone is
/// too long.
pub fn fit(name: &str, most: usize) -> String {
    if name.chars().count() <= most {
        return name.to_owned();
    }
    let Some(pieces) = parse(name) else {
        return shorten(name, most);
    };
    for detail in
        [Detail::Parameters, Detail::Arguments, Detail::Marked, Detail::Brief, Detail::Least]
    {
        let shown = render(&pieces, detail);
        if shown.chars().count() <= most {
            return shown;
        }
    }
    let least = render(&pieces, Detail::Least);
    let mut last = least.as_str();
    for scope in scopes(&least) {
        last = least.get(scope..).unwrap_or(last);
        if last.chars().count() < most {
            return format!("{LEFT_OUT}{last}");
        }
    }
    shorten(last, most)
}

/// The name without return type, parameters and template arguments.
pub fn brief(name: &str) -> String {
    parse(name).map_or_else(|| name.to_owned(), |pieces| render(&pieces, Detail::Brief))
}

/// Whether reports may show `name` as `asked`: brief, or with `…` for parts that were left out.
pub fn is_shown_as(name: &str, asked: &str) -> bool {
    let name = without_suffix(name);
    let pieces = parse(name);
    let shown = |detail| pieces.as_ref().is_some_and(|pieces| render(pieces, detail) == asked);
    if asked == name || shown(Detail::Brief) || shown(Detail::Least) {
        return true;
    }
    let Some((first, rest)) = asked.split_once(LEFT_OUT) else {
        return false;
    };
    let whole =
        pieces.map_or_else(|| name.to_owned(), |pieces| render(&pieces, Detail::Parameters));
    let Some(mut left) = whole.strip_prefix(first) else {
        return false;
    };
    let mut parts = rest.split(LEFT_OUT).peekable();
    while let Some(part) = parts.next() {
        let at = if parts.peek().is_none() {
            left.ends_with(part).then(|| left.len() - part.len())
        } else {
            left.find(part)
        };
        match at.and_then(|at| left.get(at + part.len()..)) {
            Some(behind) => left = behind,
            None => return false,
        }
    }
    true
}

/// The procedures' names that need the suffix that a compiler appended, because others are the same
/// without it.
pub struct Suffixes<'a>(BTreeMap<(&'a str, &'a str), Option<&'a str>>);

impl<'a> Suffixes<'a> {
    /// The suffixes of pairs of an image and a procedure's name.
    pub fn of(names: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let mut whole = BTreeMap::new();
        for (image, name) in names {
            let same = whole.entry((image, without_suffix(name))).or_insert(Some(name));
            *same = same.filter(|same| *same == name);
        }
        Self(whole)
    }

    /// Whether the name is to be shown with its suffix.
    pub fn needed(&self, image: &str, name: &str) -> bool {
        self.0.get(&(image, without_suffix(name))).is_some_and(Option::is_none)
    }

    /// The name as reports show it.
    pub fn shown<'b>(&self, image: &str, name: &'b str, full: bool) -> &'b str {
        if full || self.needed(image, name) { name } else { without_suffix(name) }
    }
}

fn render(pieces: &[Piece<'_>], detail: Detail) -> String {
    let mut out = String::new();
    for piece in pieces {
        match piece {
            Piece::Text(text) => out.push_str(text),
            Piece::Arguments(inside) if detail >= Detail::Arguments => out.push_str(inside),
            Piece::Arguments(_) if detail == Detail::Marked => out.extend(['<', LEFT_OUT, '>']),
            // Rust writes f::<T>.
            Piece::Arguments(_) => out.truncate(out.trim_end_matches("::").trim_end().len()),
            Piece::Parameters(inside) if detail >= Detail::Parameters => out.push_str(inside),
            Piece::Parameters("()") if detail >= Detail::Marked => out.push_str("()"),
            Piece::Parameters(_) if detail >= Detail::Marked => out.extend(['(', LEFT_OUT, ')']),
            Piece::Parameters(_) => {}
            Piece::Qualified(inside) if detail >= Detail::Arguments => out.push_str(inside),
            Piece::Qualified(inside) => out.push_str(&qualified(inside, detail)),
            Piece::Lambda(inside) if detail >= Detail::Parameters => out.push_str(inside),
            Piece::Lambda(inside) => out.push_str(&lambda(inside)),
        }
    }
    if detail <= Detail::Brief {
        // Behind parameters stand const and the like.
        let qualifiers = [" const", " volatile", " &&", " &"];
        while let Some(left) = qualifiers.iter().find_map(|qualifier| out.strip_suffix(qualifier)) {
            out.truncate(left.len());
        }
    }
    out
}

/// `<Vec as Extend>` of `<alloc::vec::Vec<T> as core::iter::Extend<T>>`.
fn qualified(inside: &str, detail: Detail) -> String {
    let inner = inside.get(1..inside.len().saturating_sub(1)).unwrap_or_default();
    let path = |text: &str| {
        let brief = brief(text);
        let last =
            scopes(&brief).last().and_then(|at| brief.get(at..)).unwrap_or(&brief).to_owned();
        if detail == Detail::Least { last } else { brief }
    };
    for (begin, between) in [("", " as "), ("impl ", " for ")] {
        let parts = inner.strip_prefix(begin).and_then(|inner| inner.split_once(between));
        if let Some((of, to)) = parts {
            return format!("<{begin}{}{between}{}>", path(of), path(to));
        }
    }
    format!("<{}>", path(inner))
}

/// `{lambda#1}` of `{lambda(int)#1}`.
fn lambda(inside: &str) -> String {
    match (inside.find('('), inside.rfind(')')) {
        (Some(from), Some(to)) if from < to => {
            format!(
                "{}{}",
                inside.get(..from).unwrap_or_default(),
                inside.get(to + 1..).unwrap_or_default()
            )
        }
        _ => inside.to_owned(),
    }
}

/// Where the parts of a name begin that others are before: behind each `::` in no bracket.
fn scopes(name: &str) -> impl Iterator<Item = usize> {
    let mut at = 0;
    std::iter::from_fn(move || {
        while let Some(rest) = name.get(at..).filter(|rest| !rest.is_empty()) {
            if rest.starts_with("::") {
                at += 2;
                return Some(at);
            }
            at +=
                skipped(name, at).unwrap_or_else(|| rest.chars().next().map_or(1, char::len_utf8));
        }
        None
    })
}

/// Length of the token at `at` that contains brackets but does not open one, or of a complete
/// bracket.
fn skipped(name: &str, at: usize) -> Option<usize> {
    operator(name, at).or_else(|| {
        let rest = name.get(at..)?;
        rest.starts_with(['(', '<', '{', '[']).then(|| bracket(name, at))?.map(|end| end - at)
    })
}

/// The pieces of a name, without what the procedure returns; none if its brackets do not match.
fn parse(name: &str) -> Option<Vec<Piece<'_>>> {
    let mut pieces = Vec::new();
    let (mut from, mut at) = (0, 0);
    // Where the first word begins that is in no bracket, and the piece that it is in.
    let mut word = (0, 0);
    let mut has_parameters = false;
    let mut behind_operator = None;
    while let Some(rest) = name.get(at..).filter(|rest| !rest.is_empty()) {
        if let Some(length) = operator(name, at) {
            at += length;
            behind_operator = Some(at);
            continue;
        }
        if rest.starts_with(ANONYMOUS) {
            at += ANONYMOUS.len();
            continue;
        }
        let first = rest.chars().next()?;
        if !matches!(first, '(' | '<' | '{' | '[' | ')' | '>' | '}' | ']') {
            at += first.len_utf8();
            if first == ' ' && !has_parameters {
                word = (at, pieces.len());
            }
            continue;
        }
        let end = bracket(name, at).filter(|_| matches!(first, '(' | '<' | '{' | '['))?;
        let inside = name.get(at..end)?;
        let before = name.get(from..at)?;
        let piece = match first {
            '[' => Piece::Text(inside),
            '{' => Piece::Lambda(inside),
            // What is left would be the type that a pointer to a function returns.
            '(' if inside.starts_with("(*") || inside.starts_with("(&") => return None,
            '(' if before.ends_with("decltype") => Piece::Text(inside),
            // `hot loop(3)`: demanglers write no type before the name of a
            // procedure that is no template's, so this is a name that its author chose.
            '(' if !has_parameters && is_free_text(name, at, word, &pieces) => return None,
            '(' => {
                // Only what a template's procedure returns is part of its name.
                if !has_parameters
                    && before.is_empty()
                    && matches!(pieces.last(), Some(Piece::Arguments(_)))
                {
                    pieces = without_type(pieces, word);
                }
                has_parameters = true;
                Piece::Parameters(inside)
            }
            _ if at == 0 && name.get(end..).is_some_and(|behind| behind.starts_with("::"))
                || inside.starts_with("<impl ") && before.ends_with("::") =>
            {
                Piece::Qualified(inside)
            }
            // `<module>` and `f.<locals>.<lambda>` of Python, `<init>` of Java: names, not
            // arguments, which follow a word, `::`, an operator or other arguments.
            _ if behind_operator != Some(at) && !may_have_arguments(name.get(..at)?) => {
                Piece::Text(inside)
            }
            _ => Piece::Arguments(inside),
        };
        if !before.is_empty() {
            pieces.push(Piece::Text(before));
        }
        pieces.push(piece);
        (from, at) = (end, end);
    }
    pieces.extend(name.get(from..).filter(|rest| !rest.is_empty()).map(Piece::Text));
    Some(pieces)
}

/// Whether arguments may follow this begin of a name.
fn may_have_arguments(before: &str) -> bool {
    before.ends_with(|c: char| c.is_alphanumeric() || "_:>])}$ ".contains(c))
}

/// Whether the parenthesis at `at` stands behind words of which the last begins at `word`, and the
/// words before it are neither what a template returns nor `non-virtual thunk to` and the like.
fn is_free_text(name: &str, at: usize, (word, _): (usize, usize), pieces: &[Piece<'_>]) -> bool {
    let before = name.get(..word).unwrap_or_default();
    let is_template = pieces.iter().any(|piece| matches!(piece, Piece::Arguments(_)));
    let is_special = ["operator", " to", " for"].iter().any(|end| before.trim_end().ends_with(end));
    word > 0 && word < at && !is_template && !is_special && !before.contains(ANONYMOUS)
}

/// The pieces from the last word on, which begins at byte `at` in the piece with the number
/// `first`.
fn without_type(pieces: Vec<Piece<'_>>, (at, first): (usize, usize)) -> Vec<Piece<'_>> {
    if at == 0 {
        return pieces;
    }
    let before: usize = pieces.iter().take(first).map(|piece| piece.text().len()).sum();
    let kept = pieces.into_iter().skip(first).enumerate().map(|(number, piece)| match piece {
        Piece::Text(text) if number == 0 => Piece::Text(text.get(at - before..).unwrap_or(text)),
        other => other,
    });
    kept.filter(|piece| !piece.text().is_empty()).collect()
}

impl<'a> Piece<'a> {
    fn text(self) -> &'a str {
        match self {
            Self::Text(text)
            | Self::Arguments(text)
            | Self::Parameters(text)
            | Self::Qualified(text)
            | Self::Lambda(text) => text,
        }
    }
}

/// Bytes of an operator's name that begins at `at`: `operator<<`, `operator bool`.
fn operator(name: &str, at: usize) -> Option<usize> {
    if let Some(length) = symbol(name, at) {
        // operator< <int>
        let gap = name.get(at + length..).is_some_and(|rest| rest.starts_with(" <"));
        return Some(length + usize::from(gap));
    }
    is_operator(name, at).then_some(())?;
    // A conversion: up to its parameters.
    let mut end = at + WORD.len();
    while let Some(rest) = name.get(end..).filter(|rest| !rest.is_empty() && !rest.starts_with('('))
    {
        let next = if rest.starts_with('<') {
            bracket(name, end)?
        } else {
            end + rest.chars().next()?.len_utf8()
        };
        end = next;
    }
    Some(end - at)
}

/// Bytes of the name of an operator of [`OPERATORS`].
fn symbol(name: &str, at: usize) -> Option<usize> {
    let behind = name.get(at + WORD.len()..).filter(|_| is_operator(name, at))?;
    OPERATORS
        .iter()
        .find(|symbol| behind.starts_with(**symbol))
        .map(|symbol| WORD.len() + symbol.len())
}

/// Whether the word at `at` is `operator`.
fn is_operator(name: &str, at: usize) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let behind = name.get(at..).and_then(|rest| rest.strip_prefix(WORD));
    behind.is_some_and(|behind| !behind.starts_with(is_word))
        && name.get(..at).is_some_and(|before| !before.ends_with(is_word))
}

/// The end of the bracket that opens at `at`: the place after its closing bracket.
fn bracket(name: &str, at: usize) -> Option<usize> {
    let mut open: Vec<u8> = Vec::new();
    let bytes = name.as_bytes();
    let mut here = at;
    while let Some(byte) = bytes.get(here) {
        match byte {
            b'o' => here += symbol(name, here).map_or(0, |length| length - 1),
            b'(' => open.push(b')'),
            b'[' => open.push(b']'),
            b'{' => open.push(b'}'),
            b'<' => open.push(b'>'),
            // Of ->, or greater than.
            b'>' if here > 0 && bytes.get(here - 1) == Some(&b'-')
                || open.last() != Some(&b'>') => {}
            b'>' => drop(open.pop()),
            b')' | b']' | b'}' => {
                // Less than opens nothing.
                while open.last() == Some(&b'>') && open.contains(byte) {
                    open.pop();
                }
                if open.pop() != Some(*byte) {
                    return None;
                }
            }
            _ => {}
        }
        here += 1;
        if open.is_empty() {
            return Some(here);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SORT: &str = "void std::__introsort_loop<__gnu_cxx::__normal_iterator<int*, std::vector<int, std::allocator<int> > >, long>(__gnu_cxx::__normal_iterator<int*, std::vector<int, std::allocator<int> > >, long)";

    /// The middle of names was cut, so that the function was eaten and its parameters were kept.
    #[test]
    fn parameters_go_before_arguments_and_those_before_scopes() {
        for (name, most, expected) in [
            ("main", 2, "main"),
            ("add(int, int)", 20, "add(int, int)"),
            ("add(int, int)", 10, "add(…)"),
            ("add(int, int)", 3, "add"),
            (
                SORT,
                140,
                "std::__introsort_loop<__gnu_cxx::__normal_iterator<int*, std::vector<int, std::allocator<int> > >, long>(…)",
            ),
            (SORT, 60, "std::__introsort_loop<…>(…)"),
            (SORT, 22, "std::__introsort_loop"),
            (SORT, 20, "…__introsort_loop"),
            (SORT, 10, "__i…t_loop"),
            ("std::vector<int>::push_back(int&&)", 30, "std::vector<int>::push_back(…)"),
            ("std::vector<int>::push_back(int&&)", 26, "std::vector::push_back"),
            (
                "bool std::operator< <int>(A const&, B const&)",
                40,
                "std::operator< <int>(A const&, B const&)",
            ),
            ("bool std::operator< <int>(A const&, B const&)", 25, "std::operator< <int>(…)"),
            ("bool std::operator==<char>(A const&)", 21, "std::operator==<…>(…)"),
            (
                "f(int)::{lambda(int, long)#1}::operator()(int, long) const",
                40,
                "f(…)::{lambda#1}::operator()(…) const",
            ),
            ("(anonymous namespace)::f(a::b, c)", 28, "(anonymous namespace)::f(…)"),
            ("Foo::operator unsigned long() const", 30, "Foo::operator unsigned long"),
            (
                "<alloc::vec::Vec<T> as core::iter::Extend<T>>::extend_desugared",
                60,
                "<alloc::vec::Vec as core::iter::Extend>::extend_desugared",
            ),
            (
                "<alloc::vec::Vec<T> as core::iter::Extend<T>>::extend_desugared",
                40,
                "<Vec as Extend>::extend_desugared",
            ),
            (
                "<alloc::vec::Vec<T> as core::iter::Extend<T>>::extend_desugared",
                20,
                "…extend_desugared",
            ),
            (
                "core::ptr::drop_in_place::<alloc::vec::Vec<u8>>",
                30,
                "core::ptr::drop_in_place::<…>",
            ),
            ("core::ptr::drop_in_place::<alloc::vec::Vec<u8>>", 25, "core::ptr::drop_in_place"),
            ("LazyCompile:*run /home/me/benchmarks/a.js:10:2", 20, "LazyCo…rks/a.js:10:2"),
        ] {
            assert_eq!(fit(name, most), expected, "{name} in {most}");
        }
    }

    #[test]
    fn brief_names_have_no_parameters_and_arguments() {
        for (name, expected) in [
            (SORT, "std::__introsort_loop"),
            ("std::vector<int>::push_back(int&&) const &", "std::vector::push_back"),
            ("f() const", "f"),
            ("foo()::bar::baz()", "foo::bar::baz"),
            ("Functor::operator()(int) const", "Functor::operator()"),
            ("operator new[](unsigned long)", "operator new[]"),
            ("std::ostream& std::operator<< <char>(std::ostream&, char const*)", "std::operator<<"),
            ("__x64_sys_read", "__x64_sys_read"),
            ("[unknown]", "[unknown]"),
            ("a > b", "a > b"),
            ("main.<locals>.<listcomp>", "main.<locals>.<listcomp>"),
            ("<module>", "<module>"),
            ("Order.<init>(int)", "Order.<init>"),
            ("Program.<Main>$", "Program.<Main>$"),
            ("<T as core::fmt::Debug>::fmt", "<T as core::fmt::Debug>::fmt"),
            ("jit_hot my(func)", "jit_hot my(func)"),
            ("non-virtual thunk to A<int>::f(int)", "non-virtual thunk to A::f"),
            ("non-virtual thunk to A::f(int)", "non-virtual thunk to A::f"),
            ("", ""),
        ] {
            assert_eq!(brief(name), expected, "{name}");
        }
    }

    #[test]
    fn what_is_shown_can_be_asked_for() {
        for asked in [
            "std::__introsort_loop",
            "std::__introsort_loop<…>(…)",
            "…__introsort_loop<…>(…)",
            "std::__intr…loop<…)",
        ] {
            assert!(is_shown_as(SORT, asked), "{asked}");
        }
        for asked in ["introsort_loop", "std::…(int)", "…", "std::__introsort_loop<…>"] {
            assert_eq!(is_shown_as(SORT, asked), asked == "…", "{asked}");
        }
        assert!(is_shown_as("f(int).isra.0", "f(int)") && is_shown_as("f(int).isra.0", "f"));
    }

    /// A name and its clone in one image keep what tells them apart; elsewhere it is noise.
    #[test]
    fn suffixes_stay_where_two_names_would_be_one() {
        let names =
            [("a", "f"), ("a", "f.cold"), ("b", "f.cold"), ("b", "g.isra.0"), ("b", "g.isra.0")];
        let suffixes = Suffixes::of(names);
        assert_eq!(
            names.map(|(image, name)| suffixes.shown(image, name, false)),
            ["f", "f.cold", "f", "g", "g"]
        );
    }

    proptest! {
        #[test]
        fn any_name_fits(name in "[a-c<>(){}\\[\\]:*& \
        ,ö-]{0,40}", any: String, most in 3_usize..50) {
            for name in [name, any] {
                prop_assert!(fit(&name, most).chars().count() <= most, "{}", fit(&name, most));
                let _ = is_shown_as(&name, &fit(&name, most));
            }
        }
    }

    #[test]
    fn long_names_lose_their_middle() {
        assert_eq!(shorten("abcdefghij", 10), "abcdefghij");
        assert_eq!(shorten("abcdefghij", 7), "ab…ghij");
        assert_eq!(shorten("größenwahn", 4), "g…hn");
        assert_eq!(shorten("abc", 2), "abc");
    }
}
