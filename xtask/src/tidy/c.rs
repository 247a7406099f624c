//! House rules for our C: how long files, functions and lines may be. Part of `cargo xtask tidy`.
//!
//! The eBPF sampler is one compilation unit of several files, and the programs that tests and
//! benchmarks run are a file each. Both are read as often as Rust, and rustfmt wraps neither.

/// Lines of a C file. Longer ones hold more than one mechanism.
const FILE_LINES_MAX: usize = 450;
/// Lines of a function, as for Rust: from its name to its closing brace.
const FUNCTION_LINES_MAX: usize = 80;
/// Columns of a line, code and comments, as for Rust.
const LINE_COLUMNS_MAX: usize = 100;
/// Columns between tab stops, as in the kernel's coding style.
const TAB_COLUMNS: usize = 8;

/// The problems of a file, none unless it is C. Tests' workloads obey the same rules: none has a
/// function that would need an exemption.
pub fn problems(path: &str, text: &str) -> Vec<String> {
    if !path.ends_with(".c") && !path.ends_with(".h") {
        return Vec::new();
    }
    let mut problems = Vec::new();
    let lines = text.lines().count();
    if lines > FILE_LINES_MAX {
        problems.push(format!("{lines} lines, at most {FILE_LINES_MAX}: split it by what it does"));
    }
    problems.extend(long_functions(text));
    problems.extend(wide_lines(text));
    problems
}

/// Functions longer than the limit. A function begins at a line in column 0 that has an opening
/// parenthesis, or at the attribute just before it, and ends at the next `}` in column 0. A line in
/// column 0 that has a semicolon is a whole declaration.
fn long_functions(text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    let mut begin = None;
    let mut follows_blank = true;
    for (number, line) in (1..).zip(text.lines()) {
        let is_in_column_0 = line.starts_with(|first: char| first.is_alphabetic() || first == '_');
        if line.starts_with('}') {
            let length = begin.take().map_or(0, |begin| number - begin + 1);
            if length > FUNCTION_LINES_MAX {
                problems.push(format!(
                    "line {}: a function of {length} lines, at most {FUNCTION_LINES_MAX}",
                    number + 1 - length
                ));
            }
        } else if is_in_column_0 && line.contains(';') {
            begin = None;
        } else if is_in_column_0 && line.contains('(') && (begin.is_none() || follows_blank) {
            begin = Some(number);
        }
        follows_blank = line.is_empty();
    }
    problems
}

/// Lines wider than the limit, tabs counted to their stop.
fn wide_lines(text: &str) -> Vec<String> {
    let wide = |(number, line): (usize, &str)| {
        let columns = columns(line);
        (columns > LINE_COLUMNS_MAX)
            .then(|| format!("line {number}: {columns} columns, at most {LINE_COLUMNS_MAX}"))
    };
    (1..).zip(text.lines()).filter_map(wide).collect()
}

fn columns(line: &str) -> usize {
    line.chars().fold(0, |columns, character| match character {
        '\t' => (columns / TAB_COLUMNS + 1) * TAB_COLUMNS,
        _ => columns + 1,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> String {
        problems(path, text).join("; ")
    }

    fn function(head: &str, lines: usize) -> String {
        format!("{head}\n{{\n{}}}\n", "\tx++;\n".repeat(lines))
    }

    #[test]
    fn what_is_within_the_limits_passes() {
        for text in [
            function("static int f(int x)", 77),
            // Two functions of less than the limit, with prototypes and tables around them.
            function("int f(int x)", 50) + "int g(int x);\n" + &function("int g(int x)", 50),
            "SAMPLER(0)\nSAMPLER(1)\n\n".to_owned() + &function("int f(int x)", 77),
            "static const int TABLE[] = {\n".to_owned() + &"\t1,\n".repeat(100) + "};\n",
            "/* x */\n".repeat(450),
            format!("/* {} */\n", "x".repeat(94)),
            format!("\t{}\n", "x".repeat(92)),
        ] {
            assert_eq!(found("ebpf/src/x.c", &text), "", "{text}");
        }
        assert_eq!(found("ebpf/src/lib.rs", &"x".repeat(200)), "", "not C");
    }

    #[test]
    fn what_is_too_long_is_named() {
        let too_long = function("int f(int x)", 78);
        let after_others = "int y;\n".to_owned() + &function("int g(void)", 1) + &too_long;
        let macros = "SECTION(\"perf_event\")\n".to_owned() + &function("int f(int x)", 78);
        for (path, text, words) in [
            ("ebpf/src/x.c", too_long.as_str(), "line 1: a function of 81 lines, at most 80"),
            ("ebpf/src/x.h", after_others.as_str(), "line 6: a function of 81 lines"),
            ("ebpf/src/x.c", macros.as_str(), "line 1: a function of 82 lines"),
            ("tests/workloads/x.c", &"/* x */\n".repeat(451), "451 lines, at most 450"),
            ("tests/x.c", &format!("/* {} */\n", "x".repeat(95)), "line 1: 101 columns"),
            ("tests/x.c", &format!("x\n\t{}\n", "x".repeat(93)), "line 2: 101 columns"),
            ("tests/x.c", &format!("  \t{}\n", "\u{e9}".repeat(93)), "line 1: 101 columns"),
        ] {
            assert!(found(path, text).contains(words), "{path}: {}", found(path, text));
        }
    }
}
