//! `bench stacks --names`: whether call stacks of interpreted and compiled languages are true.
//!
//! Each program is a tree of functions whose names say who called them: `f_0_1` is called by `f_0`
//! or by itself, and by nobody else. So each pair of functions that are neighbours in a stack is
//! right or wrong by its names alone, whatever the program was doing at that moment. A pair whose
//! caller is further up in the tree has lost functions between them.

use super::profilers::{client, start_dcpid};
use super::{FOLDER, count, option};
use crate::Outcome;
use crate::process::{command, must, output};
use anyhow::Context as _;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use wire::Request;

/// Stacks per second and CPU, which is the rate of samples, too.
const RATE: u64 = 1000;
const SECONDS: u64 = 30;
/// Functions that each function of the tree calls besides itself; leaves call only themselves.
const CHILDREN: usize = 3;
/// Levels of the tree: 121 functions.
const DEPTH: usize = 5;

/// A language: its name in the table, the template of the tree in tests/bench/stacks/named, what
/// compiles it, and the line that runs it.
struct Language(&'static str, &'static str, &'static str, &'static str);

const LANGUAGES: [Language; 10] = [
    Language("Python", "tree.py", "", "python3 tree.py"),
    Language("JavaScript", "tree.js", "", "node tree.js"),
    Language("Java", "Tree.java", "javac Tree.java", "java -cp . Tree"),
    Language("Ruby", "tree.rb", "", "ruby3.1 tree.rb"),
    Language("PHP", "tree.php", "", "php8.2 tree.php"),
    Language("Perl", "tree.pl", "", "perl tree.pl"),
    Language("Lua", "tree.lua", "", "lua5.4 tree.lua"),
    Language("LuaJIT", "tree.lua", "", "luajit tree.lua 20000"),
    Language("LuaJIT, interpreted", "tree.lua", "", "luajit -joff tree.lua"),
    Language("Go", "tree.go", "go build -o tree tree.go", "./tree"),
];

/// Pairs of neighbours in stacks, by samples.
#[derive(Debug, Default)]
struct Found {
    samples: u64,
    /// Samples with a function of the tree.
    named: u64,
    pairs: u64,
    /// Pairs with functions left out between them.
    skipped: u64,
    wrong: u64,
    /// Some of the stacks with a pair that is not right.
    examples: Vec<String>,
}

/// Measures all languages. Problems: a pair that is wrong.
pub fn run(arguments: &[&str]) -> anyhow::Result<Outcome> {
    let seconds = count(arguments, "--seconds", SECONDS)?;
    let processes = count(arguments, "--processes", 2)?;
    let only = option(arguments, "--only")?;
    let folder = format!("{FOLDER}/stacks-named");
    fs::create_dir_all(&folder).with_context(|| format!("creating {folder}"))?;
    let folder = fs::canonicalize(folder)?;
    must(&mut command("cargo build --workspace --bin dcpid --bin dcpi"))?;
    for program in ["dcpid", "dcpi"] {
        fs::copy(format!("target/debug/{program}"), folder.join(program))?;
    }
    println!("{processes} processes, {seconds} s each, {RATE} stacks/s/CPU");
    println!(
        "{:10} {:>8} {:>8} {:>9} {:>8} {:>7}",
        "", "samples", "named %", "pairs", "skipped", "wrong"
    );
    let mut outcome = Outcome::Clean;
    for language in LANGUAGES.iter().filter(|of| only.is_none_or(|only| of.0 == only)) {
        let found = measure(&folder, language, (processes, seconds))?;
        println!(
            "{:10} {:>8} {:>8.2} {:>9} {:>8} {:>7}",
            language.0,
            found.samples,
            100.0 * found.named as f64 / found.samples.max(1) as f64,
            found.pairs,
            found.skipped,
            found.wrong
        );
        found.examples.iter().for_each(|stack| println!("  {stack}"));
        if found.wrong > 0 || found.pairs == 0 {
            outcome = Outcome::Problems;
        }
    }
    Ok(outcome)
}

fn measure(
    folder: &Path,
    language: &Language,
    (processes, seconds): (u64, u64),
) -> anyhow::Result<Found> {
    let Language(_, file, compile, line) = language;
    let template = fs::read_to_string(format!("tests/bench/stacks/named/{file}"))
        .with_context(|| format!("reading {file}"))?;
    fs::write(folder.join(file), tree(&template)?)?;
    if !compile.is_empty() {
        must(command(compile).current_dir(folder).env("GO111MODULE", "off"))?;
    }
    let path = folder.to_str().context("the folder's name is no text")?;
    let arguments = format!(
        "--event cpu-clock@{RATE} --stacks {RATE} --edges off --waits off --overhead-budget off"
    );
    let mut dcpid = start_dcpid(path, &arguments)?;
    let start = || -> anyhow::Result<Child> {
        let mut program = command(&format!("{line} {seconds}"));
        program.current_dir(folder).stdin(Stdio::null()).stdout(Stdio::null());
        program.spawn().with_context(|| format!("starting {line}"))
    };
    let started: Vec<Child> = (0..processes).map(|_| start()).collect::<Result<_, _>>()?;
    for mut program in started {
        program.wait()?;
    }
    // Stacks of the last moments are walked and named.
    std::thread::sleep(Duration::from_secs(2));
    client(path).ask(&Request::Flush)?;
    dcpid.end()?;
    let mut export = Command::new(folder.join("dcpi"));
    export.args(["export", "--to", "folded", "-o", "-", "--db"]).arg(folder.join("db"));
    let program = line.split_whitespace().next().unwrap_or_default().trim_start_matches("./");
    Ok(checked(&output(&mut export)?, program))
}

/// The program of a template: its head, a function for each node of the tree, each before what
/// calls it, and the rest. Its parts are `%function`, which names the function `NAME`; `%call`,
/// once for each function `CALLEE` that it calls when the random number is `NUMBER`; `%end`, and
/// `%main`.
fn tree(template: &str) -> anyhow::Result<String> {
    let part = |from: &str, to: &str| {
        let (_, rest) = template.split_once(from)?;
        if to.is_empty() { Some(rest) } else { rest.split_once(to).map(|(part, _)| part) }
    };
    let parts = || {
        let head = template.split_once("%function\n")?.0;
        Some((
            head,
            part("%function\n", "%call\n")?,
            part("%call\n", "%end\n")?,
            part("%end\n", "%main\n")?,
            part("%main\n", "")?,
        ))
    };
    let (head, begin, call, end, main) = parts().context("a template without all its parts")?;
    let mut names = vec!["f".to_owned()];
    let mut last = names.clone();
    for _ in 1..DEPTH {
        let below = |name: &String| {
            (0..CHILDREN).map(|child| format!("{name}_{child}")).collect::<Vec<_>>()
        };
        last = last.iter().flat_map(below).collect();
        names.extend(last.iter().cloned());
    }
    let leaves = names.len() - last.len();
    let mut program = head.to_owned();
    for (at, name) in names.iter().enumerate().rev() {
        program.push_str(&begin.replace("NAME", name));
        let calls = if at < leaves { CHILDREN } else { 0 };
        let callees = (0..calls).map(|child| format!("{name}_{child}"));
        for (number, callee) in callees.chain([name.clone()]).enumerate() {
            // The function itself comes last, so that leaves call themselves as often as others.
            let number = if callee == *name { CHILDREN } else { number };
            let line = call.replace("CALLEE", &callee).replace("NUMBER", &number.to_string());
            program.push_str(&line);
        }
        program.push_str(end);
    }
    program.push_str(main);
    Ok(program)
}

/// Checks each stack of a command in a file of folded stacks.
fn checked(folded: &str, program: &str) -> Found {
    const EXAMPLES: usize = 3;
    let mut found = Found::default();
    for line in folded.lines() {
        let Some((stack, samples)) = line.rsplit_once(' ') else { continue };
        let Ok(samples) = samples.parse::<u64>() else { continue };
        let Some((_, frames)) = stack.split_once(';').filter(|of| of.0 == program) else {
            continue;
        };
        let functions: Vec<&str> = frames.split(';').filter_map(of_tree).collect();
        found.samples += samples;
        found.named += if functions.is_empty() { 0 } else { samples };
        let mut is_right = true;
        for pair in functions.windows(2) {
            let [caller, callee] = pair else { continue };
            found.pairs += samples;
            let own = callee.rsplit_once('_').map_or("", |(caller, _)| caller);
            if caller == callee || *caller == own {
                continue;
            }
            is_right = false;
            let between = callee.strip_prefix(caller).is_some_and(|rest| rest.starts_with('_'));
            *(if between { &mut found.skipped } else { &mut found.wrong }) += samples;
        }
        if !is_right && found.examples.len() < EXAMPLES {
            found.examples.push(line.to_owned());
        }
    }
    found
}

/// The name of the tree's function in a frame's name: `Tree.f_0_1`, `block in f_0_1`.
fn of_tree(frame: &str) -> Option<&str> {
    let is_word = |of: char| of.is_ascii_alphanumeric() || of == '_';
    frame.split(|of: char| !is_word(of)).find(|word| {
        let rest = word.strip_prefix('f');
        rest.is_some_and(|rest| rest.split('_').skip(1).all(|of| of.len() == 1 && of < ":"))
            && (*word == "f" || word.starts_with("f_"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_right_skipped_or_wrong() {
        let folded = "python3;main;f;f_0 (tree.py);f_0;f_0_2 3\npython3;main;f;f_1_0 2\n\
                      python3;main;f;f_1;f_0_1 1\npython3;main;free 5\nother;x 9\n";
        let found = checked(folded, "python3");
        assert_eq!((found.samples, found.named, found.pairs), (11, 6, 3 * 3 + 2 + 2));
        assert_eq!((found.skipped, found.wrong, found.examples.len()), (2, 1, 2));
        assert_eq!(of_tree("Tree.f_0_1(int)"), Some("f_0_1"));
        assert_eq!(of_tree("block in f_2"), Some("f_2"));
        assert_eq!(of_tree("f_open"), None);
    }

    #[test]
    fn a_tree_calls_each_function_by_one() {
        let program =
            tree("head\n%function\ndef NAME\n%call\n NUMBER CALLEE\n%end\nend\n%main\ngo\n");
        let program = program.unwrap();
        assert!(program.starts_with("head\ndef f_2_2_2_2\n 3 f_2_2_2_2\nend\n"), "{program}");
        assert!(program.ends_with("def f\n 0 f_0\n 1 f_1\n 2 f_2\n 3 f\nend\ngo\n"));
        assert_eq!(program.matches("def ").count(), 121);
    }
}
