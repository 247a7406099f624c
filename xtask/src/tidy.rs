//! House rules that a compiler does not check, as a test: which crate may name which, how long files and functions may be, what may
//! be called what. ARCHITECTURE.md says why.

use crate::Outcome;
use crate::process::{command, output};
use std::fs;

/// Which of our crates each may name (dev-dependencies excepted).
const ARROWS: [(&str, &[&str]); 13] = [
    ("abi", &[]),
    ("code", &["image"]),
    ("ebpf", &[]),
    ("image", &[]),
    ("loader-hook", &["abi"]),
    ("profiledb", &["image"]),
    ("daemon", &["abi", "code", "ebpf", "image", "profiledb"]),
    ("estimate", &["code", "image"]),
    ("stalls", &["code", "estimate", "image"]),
    ("analysis", &["code", "estimate", "image", "profiledb", "stalls"]),
    ("manual", &["analysis", "daemon"]),
    ("tests", &[]),
    ("xtask", &[]),
];

const FORBID_UNSAFE: [&str; 8] = ["abi", "code", "ebpf", "estimate", "image", "profiledb", "stalls", "analysis"];
const FILE_LINES_MAX: usize = 600;
const FUNCTION_LINES_MAX: usize = 70;
const ARCHITECTURE_LINES_MAX: usize = 200;
/// Drawers that everything ends up in.
const DRAWERS: [&str; 4] = ["utils", "common", "helpers", "misc"];

/// Checks every file that git knows or would add.
pub fn run() -> anyhow::Result<Outcome> {
    let listed = output(&mut command("git ls-files --cached --others --exclude-standard"))?;
    let mut problems = Vec::new();
    let mut files = 0;
    for path in listed.lines() {
        let Ok(text) = fs::read_to_string(path) else { continue }; // binary, or deleted
        files += 1;
        problems.extend(check(path, &text).into_iter().map(|problem| format!("{path}: {problem}")));
    }
    problems.iter().for_each(|problem| println!("{problem}"));
    println!("tidy: {files} files, {} problems", problems.len());
    Ok(if problems.is_empty() { Outcome::Clean } else { Outcome::Problems })
}

fn check(path: &str, text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    let lines = text.lines().count();
    let name = path.rsplit('/').next().unwrap_or(path);
    if path == "ARCHITECTURE.md" && lines > ARCHITECTURE_LINES_MAX {
        problems.push(format!("{lines} lines, at most {ARCHITECTURE_LINES_MAX}: keep the map small"));
    }
    // Spelt in two parts, or this line would be one of them.
    for machine in [concat!("/wo", "rk/"), concat!("index.crates", ".io"), concat!("deb.debian", ".org")] {
        if text.contains(machine) && name != "Cargo.lock" {
            problems.push(format!("names '{machine}', which other machines do not have"));
        }
    }
    if name == "Cargo.toml" {
        problems.extend(arrows(path, text));
    }
    if name.ends_with(".rs") {
        problems.extend(rust(path, text));
    }
    problems
}

fn arrows(path: &str, text: &str) -> Vec<String> {
    let Some((_, allowed)) = ARROWS.iter().find(|(name, _)| path == format!("{name}/Cargo.toml")) else {
        return Vec::new();
    };
    // [dependencies], [build-dependencies], [target.'...'.dependencies], but not [dev-dependencies].
    let shipped = |section: &&str| {
        let header = section.lines().next().unwrap_or_default();
        header.ends_with("dependencies]") && !header.contains("dev-dependencies]")
    };
    let sections = text.split("\n[").filter(shipped);
    let named = sections.flat_map(str::lines).filter_map(|line| line.split(['.', ' ', '=']).next());
    let ours = named.filter(|name| ARROWS.iter().any(|(ours, _)| ours == name));
    ours.filter(|name| !allowed.contains(name) && path != "tests/Cargo.toml")
        .map(|name| format!("must not depend on {name}"))
        .collect()
}

fn rust(path: &str, text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    let (own, _tests) = text.split_once("#[cfg(test)]\nmod tests {").unwrap_or((text, ""));
    let lines = own.lines().count();
    let is_table = text.lines().any(|line| line.starts_with("// tidy: table, "));
    if lines > FILE_LINES_MAX && !is_table && !path.contains("/tests") {
        problems.push(format!(
            "{lines} lines without tests, at most {FILE_LINES_MAX}: split it, or say `// tidy: table, REASON`"
        ));
    }
    problems.extend(long_functions(text));
    let stem = path.trim_end_matches("/mod.rs").trim_end_matches(".rs").rsplit('/').next().unwrap_or(path);
    if DRAWERS.contains(&stem) {
        problems.push(format!("'{stem}' says nothing: name the module after what is in it"));
    }
    let folder = path.split('/').next().unwrap_or(path);
    if FORBID_UNSAFE.contains(&folder)
        && ["/src/lib.rs", "/src/main.rs"].iter().any(|root| path.ends_with(root))
        && !text.contains("#![forbid(unsafe_code)]")
    {
        problems.push("must say #![forbid(unsafe_code)]".to_owned());
    }
    if folder == "daemon" && !path.starts_with("daemon/src/kernel/") {
        for word in ["aya::", "perf_event::", "unsafe {", "unsafe fn", "unsafe impl"] {
            if text.contains(word) {
                problems.push(format!("only daemon/src/kernel/ may say '{word}'"));
            }
        }
    }
    let may_print = ["xtask/", "tests/", "benches/", "/examples/", "analysis/src/report", "/src/bin/", "/src/main.rs"]
        .iter()
        .any(|place| path.contains(place));
    let prints = |line: &str| {
        ["println!", "eprintln!", "print!(", "eprint!("].iter().any(|print| line.trim_start().starts_with(print))
    };
    if !may_print && own.lines().any(prints) {
        problems.push("prints: only reports and main programs do, others log or return".to_owned());
    }
    problems
}

/// Functions longer than the limit, told by rustfmt's indentation: from `fn` to the closing brace in the same column.
fn long_functions(text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().collect();
    let mut problems = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let trimmed = line.trim_start();
        let signature = [
            "fn ",
            "pub fn ",
            "pub(crate) fn ",
            "pub(super) fn ",
            "async fn ",
            "const fn ",
            "pub const fn ",
            "unsafe fn ",
            "pub async fn ",
        ];
        if !signature.iter().any(|words| trimmed.starts_with(words)) || trimmed.ends_with(';') || trimmed.ends_with('}')
        {
            continue;
        }
        let closing = format!("{}}}", line.strip_suffix(trimmed).unwrap_or_default());
        let length = lines.iter().skip(start).position(|line| *line == closing).unwrap_or(0) + 1;
        if length > FUNCTION_LINES_MAX {
            problems.push(format!("line {}: a function of {length} lines, at most {FUNCTION_LINES_MAX}", start + 1));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::check;

    fn problems(path: &str, text: &str) -> String {
        check(path, text).join("; ")
    }

    #[test]
    fn what_is_allowed_passes() {
        for (path, text) in [
            ("daemon/Cargo.toml", "[package]\n[dependencies]\nabi.workspace = true\nprofiledb = { path = \"x\" }\n"),
            (
                "image/Cargo.toml",
                "[package]\n[dependencies]\nobject.workspace = true\n[dev-dependencies]\nprofiledb = \"1\"\n",
            ),
            ("daemon/src/kernel/table.rs", "unsafe { aya::x() }\n"),
            ("analysis/src/report/text.rs", "fn f() {\n    println!(\"x\");\n}\n"),
            ("daemon/src/x.rs", "fn short() {\n    1\n}\n"),
            ("image/src/lib.rs", "#![forbid(unsafe_code)]\n"),
        ] {
            assert_eq!(problems(path, text), "", "{path}");
        }
    }

    #[test]
    fn what_is_not_is_named() {
        let long = format!("fn long() {{\n{}}}\n", "    1;\n".repeat(80));
        let big = "// x\n".repeat(601);
        let map = "x\n".repeat(201);
        for (path, text, words) in [
            ("analysis/Cargo.toml", "[dependencies]\ndaemon.workspace = true\n", "must not depend on daemon"),
            (
                "image/Cargo.toml",
                "[package]\n[dependencies]\nprofiledb = { path = \"x\" }\n",
                "must not depend on profiledb",
            ),
            ("image/Cargo.toml", "[package]\n[build-dependencies]\nabi = \"1\"\n", "must not depend on abi"),
            ("daemon/src/drain.rs", "use aya::Ebpf;\n", "only daemon/src/kernel/"),
            ("daemon/src/drain.rs", "fn f() { unsafe { x() } }\n", "only daemon/src/kernel/"),
            ("profiledb/src/lib.rs", "//! x\n", "forbid(unsafe_code)"),
            ("image/src/id.rs", "fn f() {\n    println!(\"x\");\n}\n", "prints"),
            ("image/src/utils.rs", "", "says nothing"),
            ("image/src/helpers/mod.rs", "", "says nothing"),
            ("image/src/id.rs", long.as_str(), "a function of 82 lines"),
            ("image/src/id.rs", big.as_str(), "601 lines"),
            ("README.md", concat!("see /wo", "rk/x\n"), "other machines"),
            ("ARCHITECTURE.md", map.as_str(), "keep the map small"),
        ] {
            assert!(problems(path, text).contains(words), "{path}: {}", problems(path, text));
        }
    }
}
