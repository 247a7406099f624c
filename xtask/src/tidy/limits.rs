//! The numbers in docs/src/limits.md: each names the constant that it comes from, and the source
//! has it.
//!
//! The second column of the table writes a limit as ``64 MiB (`kept::KEPT_BYTES_MAX`)``: a number,
//! its unit, and the constant, by the file or folder that it is in. The other columns are prose.

/// Units that a limit may be written in: a number of them is this many of what constants count.
const UNITS: [(&str, f64); 8] = [
    ("KiB", 1024.0),
    ("MiB", 1024.0 * 1024.0),
    ("GiB", 1024.0 * 1024.0 * 1024.0),
    ("ms", 1e-3),
    ("s", 1.0),
    ("min", 60.0),
    ("%", 0.01),
    ("", 1.0),
];
/// Suffixes of names whose constants count a part of a second.
const PARTS_OF_SECONDS: [(&str, f64); 2] = [("_NS", 1e9), ("_MS", 1e3)];
/// How far a number may be from the constant's: binary fractions of decimal ones.
const EQUAL_WITHIN: f64 = 1e-9;

/// Numbers in the column of limits that name no constant, or whose constant is another. `sources`
/// are the paths and texts of all source files.
pub fn problems(text: &str, sources: &[(&str, &str)]) -> Vec<String> {
    let rows = text.lines().enumerate().filter(|(_, line)| line.starts_with("| "));
    let mut problems = Vec::new();
    for (number, line) in rows {
        let Some(limit) = line.split(" | ").nth(1) else { continue };
        let told = |problem: String| format!("line {}: {problem}", number + 1);
        let mut rest = limit;
        while let Some((before, after)) = rest.split_once("(`") {
            let (name, after) = after.split_once("`)").unwrap_or((after, ""));
            match numbers(before).as_slice() {
                [(amount, unit)] => {
                    problems.extend(compared(*amount, unit, name, sources).map(told));
                }
                other => problems.push(told(format!(
                    "{} numbers before (`{name}`): each has a constant of its own",
                    other.len()
                ))),
            }
            rest = after;
        }
        let without = numbers(rest);
        problems.extend(
            without.iter().map(|(amount, _)| told(format!("{amount} is of no constant; name it"))),
        );
    }
    problems
}

/// The numbers in a text with the words after them; names in backticks are skipped.
fn numbers(text: &str) -> Vec<(f64, &str)> {
    let prose = text.split('`').step_by(2).flat_map(str::split_whitespace);
    let words: Vec<&str> = prose.map(|word| word.trim_matches([',', ';', '.', '(', ')'])).collect();
    let units = words.iter().copied().skip(1).chain([""]);
    let pairs = words.iter().zip(units);
    pairs.filter_map(|(word, unit)| Some((word.replace(',', "").parse().ok()?, unit))).collect()
}

/// The contradiction between a number and its constant.
fn compared(amount: f64, unit: &str, name: &str, sources: &[(&str, &str)]) -> Option<String> {
    let Some((stem, constant)) = name.split_once("::") else {
        return Some(format!("'{name}' is no constant: FILE::NAME"));
    };
    let in_file = |path: &str| {
        let path = path.trim_end_matches("/mod.rs").trim_end_matches("/src/lib.rs");
        path.trim_end_matches(".rs").rsplit('/').next() == Some(stem)
    };
    let values: Vec<f64> = sources
        .iter()
        .filter(|(path, _)| in_file(path))
        .flat_map(|(_, text)| values(text, constant))
        .collect();
    if values.is_empty() {
        return Some(format!("there is no constant '{constant}' in a file '{stem}'"));
    }
    let scale = UNITS.iter().find(|(known, _)| *known == unit).map_or(1.0, |(_, scale)| *scale);
    let of_second = PARTS_OF_SECONDS.iter().find(|(suffix, _)| constant.ends_with(suffix));
    let meant = amount * scale * of_second.map_or(1.0, |(_, parts)| *parts);
    let kib = if constant.ends_with("_KIB") { 1024.0 } else { 1.0 };
    let equal = |value: &f64| (value * kib - meant).abs() <= EQUAL_WITHIN * meant.abs();
    (!values.iter().any(equal)).then(|| format!("{amount} {unit}: {name} is {values:?}"))
}

/// All values of the constant of that name in a file: several of one that is a tuple or a struct.
fn values(text: &str, constant: &str) -> Vec<f64> {
    let begin = format!("const {constant}: ");
    let initial = |rest: &str| {
        let (_, initial) = rest.split_once('=')?;
        let initial = initial.split(';').next()?;
        // In seconds, as `from_secs` has them.
        let in_ms = initial.contains("from_millis(");
        let terms = initial.split(['(', ')', ',', '{', '}', ':', '=', '.']);
        let whole = initial.trim().parse::<f64>().ok();
        let values: Vec<f64> = whole.into_iter().chain(terms.filter_map(product)).collect();
        let scaled = values.into_iter().map(|value| if in_ms { value / 1e3 } else { value });
        Some(scaled.collect::<Vec<f64>>())
    };
    text.split(&begin).skip(1).filter_map(initial).flatten().collect()
}

/// `4 << 20`, `16 * 1024`, `0.7`, `65_536`.
fn product(term: &str) -> Option<f64> {
    let number = |word: &str| word.trim().replace('_', "").parse::<f64>().ok();
    if let Some((value, bits)) = term.split_once("<<") {
        return Some(number(value)? * 2_f64.powf(number(bits)?));
    }
    term.split('*').map(number).product()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCES: [(&str, &str); 4] = [
        ("a/src/files.rs", "const FILES_MAX: usize = 16_384;\nconst BYTES_MAX: u64 = 4 << 20;\n"),
        (
            "b/src/jit/mod.rs",
            "pub const PAIR: Pair =\n    Pair { a: 64 << 20, b: 256 << 10 };\nconst X: u8 = 1;\n",
        ),
        ("b/src/files.rs", "const WAIT: Duration = Duration::from_millis(500);\n"),
        ("c/src/lib.rs", "const TERM_NS: u64 = 3_000_000_000;\nconst USED_MAX: f64 = 0.7;\n"),
    ];

    #[test]
    fn numbers_that_are_their_constants_pass() {
        let text = "\
| what | limit | at the limit |
|---|---|---|
| a | 16384 (`files::FILES_MAX`); 4 MiB (`files::BYTES_MAX`) of each | 17 of them |
| b | 64 MiB (`jit::PAIR`), then 256 KiB (`jit::PAIR`) a second | x |
| c | `--flag-2`; 500 ms (`files::WAIT`), 3 s (`c::TERM_NS`), 70 % (`c::USED_MAX`) | x |
| d | 16,384 files (`files::FILES_MAX`) | x |
";
        assert_eq!(problems(text, &SOURCES), Vec::<String>::new());
    }

    #[test]
    fn numbers_that_are_not_are_named() {
        for (limit, said) in [
            ("16385 (`files::FILES_MAX`)", "16385 : files::FILES_MAX is [16384.0]"),
            ("4 KiB (`files::BYTES_MAX`)", "4 KiB: files::BYTES_MAX is"),
            ("17 of them", "17 is of no constant"),
            ("1 (`files::NONE_MAX`)", "there is no constant 'NONE_MAX' in a file 'files'"),
            ("2 of 16384 (`files::FILES_MAX`)", "2 numbers before"),
            ("a few (`files::FILES_MAX`)", "0 numbers before"),
        ] {
            let found = problems(&format!("| a | {limit} | b |\n"), &SOURCES).join("; ");
            assert!(found.contains(said), "{limit}: {found}");
        }
    }
}
