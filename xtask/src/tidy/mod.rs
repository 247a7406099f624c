//! House rules that a compiler does not check, as a test: which crate may name which, how long
//! files and functions may be, how wide lines, what may be called what, whether documents name
//! files and numbers that the source has. ARCHITECTURE.md says why.

mod c;
mod circles;
mod crates;
mod limits;
mod words;

use crate::Outcome;
use crate::process::{command, output};
use std::collections::BTreeSet;
use std::fs;

const FILE_LINES_MAX: usize = 600;
/// Lines of the map of the code, at 100 columns.
const ARCHITECTURE_LINES_MAX: usize = 360;
/// Lines of README: what does not fit is a page of the guide.
const README_LINES_MAX: usize = 120;
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
    let crates = crates::all()?;
    let map = fs::read_to_string("ARCHITECTURE.md")?;
    problems.extend(crates::problems(&crates, &map));
    problems.extend(circles(&crates, &listed));
    problems.extend(documents(&listed));
    problems.iter().for_each(|problem| println!("{problem}"));
    println!("tidy: {files} files, {} problems", problems.len());
    Ok(if problems.is_empty() { Outcome::Clean } else { Outcome::Problems })
}

/// The circles between the modules of each crate.
fn circles(crates: &[crates::Crate], listed: &str) -> Vec<String> {
    let of_crate = |of: &crates::Crate| {
        let below = format!("{}/src/", of.folder);
        let texts: Vec<(&str, String)> = listed
            .lines()
            .filter(|path| path.ends_with(".rs"))
            .filter_map(|path| Some((path.strip_prefix(&below)?, fs::read_to_string(path).ok()?)))
            .collect();
        let files: Vec<(&str, &str)> =
            texts.iter().map(|(path, text)| (*path, text.as_str())).collect();
        circles::problems(&of.folder, &files)
    };
    crates.iter().flat_map(of_crate).collect()
}

/// Stale references in documents: missing files, and wrong numbers of constants.
fn documents(listed: &str) -> Vec<String> {
    let files: BTreeSet<&str> = listed.lines().collect();
    let mut problems = Vec::new();
    let mut sources = Vec::new();
    for path in &files {
        let is_source = path.ends_with(".rs") && path.contains("src/");
        if !is_source && !words::is_document(path) {
            continue;
        }
        let Ok(text) = fs::read_to_string(path) else { continue };
        if is_source {
            sources.push((*path, text));
            continue;
        }
        let missing = words::missing_files(path, &text, &files);
        problems.extend(missing.into_iter().map(|problem| format!("{path}: {problem}")));
    }
    let sources: Vec<(&str, &str)> =
        sources.iter().map(|(path, text)| (*path, text.as_str())).collect();
    let limits = fs::read_to_string("docs/src/limits.md").unwrap_or_default();
    let wrong = limits::problems(&limits, &sources);
    problems.extend(wrong.into_iter().map(|problem| format!("docs/src/limits.md: {problem}")));
    problems
}

fn check(path: &str, text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    let lines = text.lines().count();
    let name = path.rsplit('/').next().unwrap_or(path);
    if path == "ARCHITECTURE.md" && lines > ARCHITECTURE_LINES_MAX {
        problems
            .push(format!("{lines} lines, at most {ARCHITECTURE_LINES_MAX}: keep the map small"));
    }
    if path == "README.md" && lines > README_LINES_MAX {
        problems.push(format!(
            "{lines} lines, at most {README_LINES_MAX}: move them to a page of docs/src"
        ));
    }
    if name.ends_with(".md") {
        problems.extend(words::wide_markdown(text));
    }
    // Spelt in two parts, or this line would be one of them.
    for machine in
        [concat!("/wo", "rk/"), concat!("index.crates", ".io"), concat!("deb.debian", ".org")]
    {
        if text.contains(machine) && name != "Cargo.lock" {
            problems.push(format!("names '{machine}', which other machines do not have"));
        }
    }
    if name.ends_with(".rs") {
        problems.extend(rust(path, text));
    }
    if [".ts", ".tsx", ".mjs"].iter().any(|ending| name.ends_with(ending)) {
        problems.extend(words::wide_script(text));
    }
    problems.extend(c::problems(path, text));
    problems
}

fn rust(path: &str, text: &str) -> Vec<String> {
    let mut problems = words::wide_rust(text);
    let (own, _tests) = text.split_once("#[cfg(test)]\nmod tests {").unwrap_or((text, ""));
    let lines = own.lines().count();
    let is_table = text.lines().any(|line| line.starts_with("// tidy: table, "));
    if lines > FILE_LINES_MAX && !is_table && !path.contains("/tests") {
        problems.push(format!(
            "{lines} lines without tests, at most {FILE_LINES_MAX}: split it, or say `// tidy: table, REASON`"
        ));
    }
    let stem =
        path.trim_end_matches("/mod.rs").trim_end_matches(".rs").rsplit('/').next().unwrap_or(path);
    if DRAWERS.contains(&stem) {
        problems.push(format!("'{stem}' says nothing: name the module after what is in it"));
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
        assert_eq!(problems("binary/image/src/x.rs", "fn short() {\n    1\n}\n"), "");
    }

    #[test]
    fn what_is_not_is_named() {
        let big = "// x\n".repeat(601);
        let map = "x\n".repeat(super::ARCHITECTURE_LINES_MAX + 1);
        let readme = "x\n".repeat(121);
        let wide = format!("{} y\n", "x".repeat(100));
        for (path, text, words) in [
            ("binary/image/src/utils.rs", "", "says nothing"),
            ("binary/image/src/helpers/mod.rs", "", "says nothing"),
            ("binary/image/src/id.rs", big.as_str(), "601 lines"),
            ("README.md", concat!("see /wo", "rk/x\n"), "other machines"),
            ("ARCHITECTURE.md", map.as_str(), "keep the map small"),
            ("README.md", readme.as_str(), "121 lines"),
            ("x/y.md", wide.as_str(), "102 columns"),
            ("face/app/x.tsx", wide.as_str(), "102 columns"),
            ("binary/image/src/id.rs", wide.as_str(), "102 columns"),
        ] {
            assert!(problems(path, text).contains(words), "{path}: {}", problems(path, text));
        }
    }
}
