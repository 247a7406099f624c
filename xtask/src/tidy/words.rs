//! Rules for text: how wide lines are, and that the files which documents name exist.

use std::collections::BTreeSet;

/// Columns of a line of Rust or Markdown. Wider lines do not fit beside another file on a screen.
const COLUMNS_MAX: usize = 100;
/// Documents whose paths are checked; of `docs/` every page.
const DOCUMENTS: [&str; 4] =
    ["ARCHITECTURE.md", "CONTRIBUTING.md", "docs/src/limits.md", "README.md"];
/// Extensions by which a name in backticks is taken for a file of this repository.
const EXTENSIONS: [&str; 5] = [".rs", ".md", ".toml", ".c", ".h"];

/// Lines of Rust source that are too wide, comments as well as code. Two kinds are exempt: files
/// that say `// tidy: table, REASON`, and lines that leave the limit inside a string literal which
/// begins on that line, because rustfmt does not break literals. A line that begins inside a
/// literal (a longer text, a program in another language) can be broken by its author.
pub fn wide_rust(text: &str) -> Vec<String> {
    if text.lines().any(|line| line.starts_with("// tidy: table, ")) {
        return Vec::new();
    }
    let mut lexer = Lexer::Code;
    let mut problems = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let begins_in_literal = lexer.in_literal();
        let mut leaves_in_literal = false;
        let characters: Vec<char> = line.chars().collect();
        let mut at = 0;
        while at < characters.len() {
            let was_in_literal = lexer.in_literal();
            let taken = lexer.step(characters.get(at..).unwrap_or_default());
            if (at..at + taken).contains(&COLUMNS_MAX) {
                leaves_in_literal = was_in_literal;
            }
            at += taken;
        }
        lexer.end_line();
        if characters.len() > COLUMNS_MAX && (begins_in_literal || !leaves_in_literal) {
            problems.push(too_wide(number, characters.len()));
        }
    }
    problems
}

/// Lines of Markdown that are too wide. Exempt are tables, fenced blocks, and lines without a space
/// to break them at, such as a long URL.
pub fn wide_markdown(text: &str) -> Vec<String> {
    let mut in_fence = false;
    let mut problems = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let trimmed = line.trim_start();
        if trimmed.starts_with("```") {
            in_fence = !in_fence;
        }
        let columns = line.chars().count();
        let can_break = trimmed.trim_start_matches(['-', '*', '>', ' ']).contains(' ');
        if columns > COLUMNS_MAX && !in_fence && !trimmed.starts_with('|') && can_break {
            problems.push(too_wide(number, columns));
        }
    }
    problems
}

/// Lines of a script that are too wide.
pub fn wide_script(text: &str) -> Vec<String> {
    let columns = text.lines().map(|line| line.chars().count()).enumerate();
    let wide = columns.filter(|(_, columns)| *columns > COLUMNS_MAX);
    wide.map(|(number, columns)| too_wide(number, columns)).collect()
}

fn too_wide(number: usize, columns: usize) -> String {
    format!("line {}: {columns} columns, at most {COLUMNS_MAX}", number + 1)
}

/// Where in a Rust file the text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lexer {
    Code,
    LineComment,
    BlockComment,
    /// Inside `"..."`.
    Text,
    /// Inside `r##"..."##`, with the number of `#`.
    Raw(usize),
}

impl Lexer {
    fn in_literal(self) -> bool {
        matches!(self, Self::Text | Self::Raw(_))
    }

    /// Takes the next characters of a line; returns how many, at least one.
    fn step(&mut self, rest: &[char]) -> usize {
        match (*self, rest) {
            (Self::Code, ['/', '/', ..]) => *self = Self::LineComment,
            (Self::Code, ['/', '*', ..]) => *self = Self::BlockComment,
            (Self::BlockComment, ['*', '/', ..]) => {
                *self = Self::Code;
                return 2;
            }
            (Self::Code, ['r', '"' | '#', ..]) => {
                let hashes = rest.iter().skip(1).take_while(|c| **c == '#').count();
                if rest.get(hashes + 1) == Some(&'"') {
                    *self = Self::Raw(hashes);
                    return hashes + 2;
                }
            }
            (Self::Raw(hashes), ['"', after @ ..])
                if after.iter().take_while(|c| **c == '#').count() >= hashes =>
            {
                *self = Self::Code;
                return hashes + 1;
            }
            (Self::Code, ['"', ..]) => *self = Self::Text,
            (Self::Text, ['\\', _, ..]) => return 2,
            (Self::Text, ['"', ..]) => *self = Self::Code,
            // A character, not a lifetime: a quotation mark in it begins no text.
            (Self::Code, ['\'', '\\', _, ..]) => return 3,
            (Self::Code, ['\'', _, '\'', ..]) => return 3,
            _ => {}
        }
        1
    }

    fn end_line(&mut self) {
        if *self == Self::LineComment {
            *self = Self::Code;
        }
    }
}

/// Whether the paths in a file are checked.
pub fn is_document(path: &str) -> bool {
    DOCUMENTS.contains(&path) || path.starts_with("docs/") && path.ends_with(".md")
}

/// Paths that a document names in backticks or links to, and that no file of the repository has.
/// `files` are all files, from the root.
pub fn missing_files(document: &str, text: &str, files: &BTreeSet<&str>) -> Vec<String> {
    let folder = document.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut missing = Vec::new();
    let mut in_fence = false;
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_fence = !in_fence;
        }
        if in_fence {
            continue;
        }
        let spans = line.split('`').skip(1).step_by(2);
        let named = spans.filter(|name| looks_like_ours(name, files) && !is_there(name, files));
        let links = line.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
        let broken = links.filter(|link| {
            !link.is_empty() && !link.contains(':') && !exists(&joined(folder, link), files)
        });
        missing.extend(
            named
                .chain(broken)
                .map(|name| format!("line {}: there is no file '{name}'", number + 1)),
        );
    }
    missing
}

/// Whether a name in backticks is meant for a file of this repository: it begins with one of its
/// folders, or has a path or extension that only our files have. Absolute paths are the machine's,
/// and `target` holds what is built.
fn looks_like_ours(name: &str, files: &BTreeSet<&str>) -> bool {
    let is_path = name.chars().all(|c| c.is_ascii_alphanumeric() || "_-./".contains(c));
    let has_slash = name.trim_end_matches('/').contains('/');
    let has_extension = EXTENSIONS.iter().any(|extension| name.ends_with(extension));
    let first = name.split('/').next().unwrap_or(name);
    let in_folder = has_slash && files.iter().any(|file| file.starts_with(&format!("{first}/")));
    let source = name.ends_with(".rs") || name.ends_with(".md");
    is_path
        && first != "target"
        && !name.starts_with(['/', '.', '-'])
        && (in_folder || has_extension && (has_slash || source))
}

/// A file or folder by its path, or by the end of it: `jit/places.rs`.
fn is_there(name: &str, files: &BTreeSet<&str>) -> bool {
    let end = format!("/{name}");
    exists(name, files) || files.iter().any(|file| file.ends_with(&end))
}

fn exists(path: &str, files: &BTreeSet<&str>) -> bool {
    let path = path.trim_end_matches('/');
    let below = format!("{path}/");
    files.contains(path) || files.iter().any(|file| file.starts_with(&below))
}

/// A link's path from the root, `..` resolved.
fn joined(folder: &str, link: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in link.split('/') {
        match part {
            "." | "" => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_code_are_held_to_the_width() {
        let wide = "x".repeat(101);
        for text in [
            format!("// {wide}"),
            format!("/* {wide} */"),
            format!("let {wide} = 1;"),
            format!("let c = '\"'; // {wide}"),
            format!("let text = \"short\"; // {wide}"),
            format!("let text = \"begun\n{wide}\";"),
            format!("let text = r#\"begun\n{wide}\"#;"),
            format!("let text = \"\\\"\"; {wide}"),
        ] {
            assert_eq!(wide_rust(&text).len(), 1, "{text}");
        }
        for text in [
            format!("let text = \"{wide}\";"),
            format!("let text = r#\"a \" {wide}\"#;"),
            format!("fn f<'a>(x: &'a str) {{ g(\"{wide}\") }}"),
            format!("// tidy: table, made by a program\nlet {wide} = 1;"),
            "x".repeat(100),
            "ü".repeat(100),
        ] {
            assert_eq!(wide_rust(&text), Vec::<String>::new(), "{text}");
        }
    }

    #[test]
    fn prose_is_held_to_the_width() {
        let wide = "word ".repeat(21);
        assert_eq!(wide_markdown(&wide), ["line 1: 105 columns, at most 100"]);
        assert_eq!(wide_markdown(&format!("```text\n{wide}\n```\n- {wide}")).len(), 1);
        for text in [
            format!("| {wide} |"),
            format!("```console\n{wide}\n```"),
            format!("- https://{}", "x".repeat(120)),
        ] {
            assert_eq!(wide_markdown(&text), Vec::<String>::new(), "{text}");
        }
    }

    #[test]
    fn files_that_are_named_exist() {
        let files = BTreeSet::from(["a/src/b.rs", "docs/src/SUMMARY.md", "docs/src/x.md", "R.md"]);
        let missing = |document: &str, text: &str| missing_files(document, text, &files).join("; ");
        for text in [
            "`a/src/b.rs`, `a/src/`, `src/b.rs`, `b.rs`, `R.md`",
            "`/etc/a.toml`, `target/x/y`, `dcpi_*.deb`, `hosts/HOST/code/`, `cpu/mem-loads/`",
            "`dcpid.toml` is the machine's; [b](a/src/b.rs), [that](https://a.b/c.md), [c](#here)",
            "```\n`a/src/none.rs`\n```",
        ] {
            assert_eq!(missing("R.md", text), "");
        }
        assert_eq!(missing("docs/src/SUMMARY.md", "[x](x.md) [r](../../R.md#part)"), "");
        for (text, name) in [
            ("`a/src/c.rs`", "a/src/c.rs"),
            ("`a/none/`", "a/none/"),
            ("`c.rs`", "c.rs"),
            ("`far/c.toml`", "far/c.toml"),
            ("[x](y.md)", "y.md"),
        ] {
            assert_eq!(missing("R.md", text), format!("line 1: there is no file '{name}'"));
        }
        assert!(is_document("docs/src/x.md") && is_document("docs/src/limits.md"));
        assert!(!is_document("docs/src/x.c") && !is_document("profiledb/FORMAT.md"));
    }
}
