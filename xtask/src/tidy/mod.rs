//! House rules that a compiler does not check, as a test: which crate may name which, how long
//! files and functions may be, how wide lines, what may be called what, whether documents name
//! files and numbers that the source has. ARCHITECTURE.md says why.

mod c;
mod circles;
mod limits;
mod words;

use crate::Outcome;
use crate::process::{command, output};
use std::collections::BTreeSet;
use std::fs;

/// Our crates by their folders, and which of the others each may name (dev-dependencies excepted).
const ARROWS: [(&str, &[&str]); 53] = [
    ("abi", &[]),
    ("blockcount", &[]),
    ("image", &[]),
    ("model", &["image"]),
    ("measure", &[]),
    ("draw", &[]),
    ("probe", &["measure"]),
    ("dcpi-bench", &["measure"]),
    ("protobuf", &[]),
    ("trace", &["draw", "measure", "protobuf"]),
    ("tracer", &[]),
    ("asm-events", &[]),
    ("wire", &[]),
    ("ebpf", &[]),
    ("loader-hook", &["abi"]),
    ("code", &["image"]),
    ("unwind", &["image"]),
    ("estimate", &["code", "image"]),
    ("stalls", &["code", "estimate", "image", "model"]),
    ("profiledb", &["image", "model"]),
    ("daemon/kernel", &["abi", "code", "ebpf", "events", "image", "model"]),
    ("daemon/inspect", &["abi", "code", "image", "kernel", "model", "profiledb", "unwind"]),
    ("daemon/address-spaces", &["abi", "image", "inspect", "kernel", "model", "profiledb", "wire"]),
    ("daemon/pending", &["address-spaces", "image", "kernel", "model", "profiledb"]),
    (
        "daemon/sampling",
        &[
            "abi",
            "address-spaces",
            "image",
            "inspect",
            "kernel",
            "model",
            "pending",
            "profiledb",
            "unwind",
            "wire",
        ],
    ),
    (
        "daemon/persistence",
        &["address-spaces", "events", "image", "inspect", "kernel", "model", "profiledb"],
    ),
    (
        "daemon/settings",
        &["abi", "address-spaces", "events", "kernel", "model", "profiledb", "wire"],
    ),
    (
        "daemon/pipeline",
        &[
            "abi",
            "address-spaces",
            "events",
            "image",
            "inspect",
            "kernel",
            "model",
            "pending",
            "persistence",
            "profiledb",
            "sampling",
            "settings",
            "wire",
        ],
    ),
    (
        "daemon/dcpid",
        &[
            "abi",
            "address-spaces",
            "events",
            "image",
            "inspect",
            "kernel",
            "persistence",
            "pipeline",
            "profiledb",
            "sampling",
            "settings",
            "wire",
        ],
    ),
    ("analysis/counted", &["blockcount", "image", "unwind"]),
    ("analysis/traced", &["image", "trace", "tracer"]),
    ("analysis/stats", &["image", "measure", "model"]),
    ("analysis/query", &["code", "image", "model", "profiledb", "stats"]),
    ("analysis/names", &["image", "model", "profiledb", "query", "stats"]),
    (
        "analysis/explain",
        &["code", "estimate", "image", "model", "names", "profiledb", "query", "stalls"],
    ),
    ("analysis/sets", &["image", "model", "names", "profiledb", "query", "stats"]),
    ("analysis/calls", &["image", "model", "names", "profiledb", "query", "stats"]),
    (
        "analysis/report",
        &[
            "calls",
            "code",
            "estimate",
            "explain",
            "image",
            "measure",
            "model",
            "names",
            "profiledb",
            "query",
            "sets",
            "stalls",
            "stats",
        ],
    ),
    (
        "analysis/export",
        &[
            "calls",
            "code",
            "estimate",
            "explain",
            "image",
            "model",
            "names",
            "profiledb",
            "protobuf",
            "query",
            "report",
            "stalls",
            "stats",
        ],
    ),
    (
        "analysis/dcpi",
        &[
            "calls",
            "code",
            "counted",
            "draw",
            "estimate",
            "explain",
            "export",
            "image",
            "measure",
            "model",
            "names",
            "probe",
            "profiledb",
            "query",
            "report",
            "sets",
            "stalls",
            "stats",
            "trace",
            "traced",
            "tracer",
            "wire",
        ],
    ),
    ("manual", &["dcpi", "settings"]),
    (
        "fuzz",
        &[
            "abi",
            "blockcount",
            "address-spaces",
            "code",
            "dcpi",
            "dcpid",
            "image",
            "inspect",
            "kernel",
            "model",
            "profiledb",
            "trace",
            "unwind",
            "wire",
        ],
    ),
    ("fleet/store", &["profiledb"]),
    ("fleet/tables", &[]),
    ("fleet/ingest", &["image", "model", "profiledb", "store", "tables"]),
    ("fleet/engine", &["store", "tables"]),
    ("fleet/judge", &["stats"]),
    ("fleet/review", &[]),
    ("fleet/weeks", &["engine", "ingest", "judge", "review", "stats", "store", "tables"]),
    ("fleet/sim", &["judge", "stats", "tables"]),
    (
        "fleet/cli",
        &["engine", "ingest", "judge", "profiledb", "review", "sim", "store", "tables", "weeks"],
    ),
    ("tests", &["wire"]),
    ("xtask", &["measure", "wire"]),
];

/// Crates with unsafe code.
const UNSAFE: [&str; 6] =
    ["analysis/traced", "blockcount", "daemon/kernel", "loader-hook", "probe", "tracer"];
const FILE_LINES_MAX: usize = 600;
const FUNCTION_LINES_MAX: usize = 80;
/// Lines of the map of the code, at 100 columns.
const ARCHITECTURE_LINES_MAX: usize = 320;
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
    problems.extend(circles(&listed));
    problems.extend(documents(&listed));
    problems.iter().for_each(|problem| println!("{problem}"));
    println!("tidy: {files} files, {} problems", problems.len());
    Ok(if problems.is_empty() { Outcome::Clean } else { Outcome::Problems })
}

/// The circles between the modules of each crate.
fn circles(listed: &str) -> Vec<String> {
    let of_crate = |(folder, _): &(&str, &[&str])| {
        let below = format!("{folder}/src/");
        let texts: Vec<(&str, String)> = listed
            .lines()
            .filter(|path| path.ends_with(".rs"))
            .filter_map(|path| Some((path.strip_prefix(&below)?, fs::read_to_string(path).ok()?)))
            .collect();
        let files: Vec<(&str, &str)> =
            texts.iter().map(|(path, text)| (*path, text.as_str())).collect();
        circles::problems(folder, &files)
    };
    ARROWS.iter().flat_map(of_crate).collect()
}

/// What documents name and the repository does not have: files, and numbers of constants.
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
    if name == "Cargo.toml" {
        problems.extend(arrows(path, text));
    }
    if name.ends_with(".rs") {
        problems.extend(rust(path, text));
    }
    problems.extend(c::problems(path, text));
    problems
}

fn arrows(path: &str, text: &str) -> Vec<String> {
    let Some((_, allowed)) = ARROWS.iter().find(|(name, _)| path == format!("{name}/Cargo.toml"))
    else {
        return Vec::new();
    };
    // [dependencies], [build-dependencies], [target.'...'.dependencies], but not
    // [dev-dependencies].
    let shipped = |section: &&str| {
        let header = section.lines().next().unwrap_or_default();
        header.ends_with("dependencies]") && !header.contains("dev-dependencies]")
    };
    let sections = text.split("\n[").filter(shipped);
    let named = sections.flat_map(str::lines).filter_map(|line| line.split(['.', ' ', '=']).next());
    let ours =
        named.filter(|name| ARROWS.iter().any(|(ours, _)| ours.rsplit('/').next() == Some(name)));
    ours.filter(|name| !allowed.contains(name))
        .map(|name| format!("must not depend on {name}"))
        .collect()
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
    problems.extend(long_functions(text));
    let stem =
        path.trim_end_matches("/mod.rs").trim_end_matches(".rs").rsplit('/').next().unwrap_or(path);
    if DRAWERS.contains(&stem) {
        problems.push(format!("'{stem}' says nothing: name the module after what is in it"));
    }
    let folder = path.split('/').next().unwrap_or(path);
    let is_ours = ARROWS
        .iter()
        .any(|(ours, _)| path.strip_prefix(ours).is_some_and(|rest| rest.starts_with("/src/")));
    if is_ours
        && !UNSAFE
            .iter()
            .any(|ours| path.strip_prefix(ours).is_some_and(|rest| rest.starts_with("/src/")))
        && ["/src/lib.rs", "/src/main.rs"].iter().any(|root| path.ends_with(root))
        && !text.contains("#![forbid(unsafe_code)]")
    {
        problems.push("must say #![forbid(unsafe_code)]".to_owned());
    }
    if folder == "daemon" && !path.starts_with("daemon/kernel/src/") {
        for word in ["aya::", "perf_event::", "unsafe {", "unsafe fn", "unsafe impl"] {
            if text.contains(word) {
                problems.push(format!("only daemon/kernel/src/ may say '{word}'"));
            }
        }
    }
    let may_print = [
        "xtask/",
        "tests/",
        "benches/",
        "/examples/",
        "analysis/report/src",
        "/src/bin/",
        "/src/main.rs",
    ]
    .iter()
    .any(|place| path.contains(place));
    let prints = |line: &str| {
        ["println!", "eprintln!", "print!(", "eprint!("]
            .iter()
            .any(|print| line.trim_start().starts_with(print))
    };
    if !may_print && own.lines().any(prints) {
        problems.push("prints: only reports and main programs do, others log or return".to_owned());
    }
    problems
}

/// Functions longer than the limit, told by rustfmt's indentation: from `fn` to the closing brace
/// in the same column.
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
        if !signature.iter().any(|words| trimmed.starts_with(words))
            || trimmed.ends_with(';')
            || trimmed.ends_with('}')
        {
            continue;
        }
        let closing = format!("{}}}", line.strip_suffix(trimmed).unwrap_or_default());
        let length = lines.iter().skip(start).position(|line| *line == closing).unwrap_or(0) + 1;
        if length > FUNCTION_LINES_MAX {
            problems.push(format!(
                "line {}: a function of {length} lines, at most {FUNCTION_LINES_MAX}",
                start + 1
            ));
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
            (
                "daemon/kernel/Cargo.toml",
                "[package]\n[dependencies]\nabi.workspace = true\nimage = { path = \"x\" }\n",
            ),
            (
                "binary/image/Cargo.toml",
                "[package]\n[dependencies]\nobject.workspace = true\n[dev-dependencies]\nprofiledb = \"1\"\n",
            ),
            ("daemon/kernel/src/sample_table.rs", "unsafe { aya::x() }\n"),
            ("analysis/report/src/text.rs", "fn f() {\n    println!(\"x\");\n}\n"),
            ("daemon/pipeline/src/x.rs", "fn short() {\n    1\n}\n"),
            ("binary/image/src/lib.rs", "#![forbid(unsafe_code)]\n"),
        ] {
            assert_eq!(problems(path, text), "", "{path}");
        }
    }

    #[test]
    fn what_is_not_is_named() {
        let long = format!("fn long() {{\n{}}}\n", "    1;\n".repeat(80));
        let big = "// x\n".repeat(601);
        let map = "x\n".repeat(super::ARCHITECTURE_LINES_MAX + 1);
        let readme = "x\n".repeat(121);
        let wide = format!("{} y\n", "x".repeat(100));
        for (path, text, words) in [
            (
                "analysis/query/Cargo.toml",
                "[dependencies]\npipeline.workspace = true\n",
                "must not depend on pipeline",
            ),
            (
                "binary/image/Cargo.toml",
                "[package]\n[dependencies]\nprofiledb = { path = \"x\" }\n",
                "must not depend on profiledb",
            ),
            (
                "binary/image/Cargo.toml",
                "[package]\n[build-dependencies]\nabi = \"1\"\n",
                "must not depend on abi",
            ),
            ("daemon/pipeline/src/drain.rs", "use aya::Ebpf;\n", "only daemon/kernel/src/"),
            (
                "daemon/pipeline/src/drain.rs",
                "fn f() { unsafe { x() } }\n",
                "only daemon/kernel/src/",
            ),
            ("profiledb/src/lib.rs", "//! x\n", "forbid(unsafe_code)"),
            ("binary/image/src/id.rs", "fn f() {\n    println!(\"x\");\n}\n", "prints"),
            ("binary/image/src/utils.rs", "", "says nothing"),
            ("binary/image/src/helpers/mod.rs", "", "says nothing"),
            ("binary/image/src/id.rs", long.as_str(), "a function of 82 lines"),
            ("binary/image/src/id.rs", big.as_str(), "601 lines"),
            ("README.md", concat!("see /wo", "rk/x\n"), "other machines"),
            ("ARCHITECTURE.md", map.as_str(), "keep the map small"),
            ("README.md", readme.as_str(), "121 lines"),
            ("x/y.md", wide.as_str(), "102 columns"),
            ("binary/image/src/id.rs", wide.as_str(), "102 columns"),
        ] {
            assert!(problems(path, text).contains(words), "{path}: {}", problems(path, text));
        }
    }
}
