//! The commands of README and guide that need no privilege, on the database of the example. What
//! the pages show is what the commands print: `BLESS=1` writes it again.

use std::path::Path;
use std::process::Command;

use crate::blocks::{Block, Mark, Shown, blocks, pages, root};

/// Columns of reports in the guide.
const COLUMNS: &str = "100";
/// Stands in a page for lines that are left out.
const LEFT_OUT: &str = "...";

/// The commands that name a database of the example, which a page begins with.
const NAMED: [(&str, &str); 2] = [
    ("export DCPIDB=docs/example/db", "docs/example/db"),
    ("export DCPIDB=docs/example/calls", "docs/example/calls"),
];

/// The database that a page names.
fn database(blocks: &[Block]) -> Option<&'static str> {
    let mut plain = blocks.iter().filter(|block| block.mark == Mark::Plain);
    let first = plain.next()?.commands.first()?;
    NAMED.iter().find(|(command, _)| *command == first.command).map(|(_, database)| *database)
}

/// What a command prints in the directory, where the example lies as in the repository.
fn printed(block: &Block, shown: &Shown, (directory, database): (&Path, &str)) -> String {
    let programs = Path::new(env!("CARGO_BIN_EXE_dcpi")).parent().unwrap();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(format!("exec 2>&1\n{}", shown.command)).current_dir(directory);
    shell.env("PATH", path).env("COLUMNS", COLUMNS).env("DCPIDB", database);
    let output = shell.env("TZ", "UTC").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let place = format!("{}:{}", block.page.display(), block.line);
    assert!(output.status.success(), "{place}: {}: {}\n{text}", shown.command, output.status);
    text
}

/// Whether the lines are those of the page; its `...` stand for any.
fn agrees(printed: &str, page: &[String]) -> bool {
    let mut lines = printed.trim_end().lines();
    let mut skips = false;
    for line in page {
        if line == LEFT_OUT {
            skips = true;
        } else if skips {
            skips = false;
            if !lines.by_ref().any(|printed| printed.trim_end() == line) {
                return false;
            }
        } else if lines.next().map(str::trim_end) != Some(line.as_str()) {
            return false;
        }
    }
    skips || lines.next().is_none()
}

/// The page with what the commands print now.
fn blessed(text: &str, block: &Block, shown: &Shown, printed: &str) -> String {
    let old = format!("$ {}\n{}\n", shown.command, shown.output.join("\n"));
    let lines: Vec<&str> = printed.trim_end().lines().map(str::trim_end).collect();
    assert!(
        text.contains(&old) && !shown.output.iter().any(|line| line == LEFT_OUT),
        "{}:{}: change this one by hand:\n{printed}",
        block.page.display(),
        block.line
    );
    text.replacen(&old, &format!("$ {}\n{}\n", shown.command, lines.join("\n")), 1)
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).unwrap();
        }
    }
}

#[test]
fn what_the_guide_shows_is_what_its_commands_print() {
    let root = root(env!("CARGO_MANIFEST_DIR"), 2);
    let mut wrong = Vec::new();
    let mut commands = 0;
    for page in pages(&root) {
        let mut text = std::fs::read_to_string(root.join(&page)).unwrap();
        let directory = tempfile::tempdir().unwrap();
        copy(&root.join("docs/example"), &directory.path().join("docs/example"));
        let found = blocks(&page, &text);
        for block in found.iter().filter(|block| block.mark == Mark::Plain) {
            for shown in &block.commands {
                let place = (directory.path(), database(&found).unwrap_or_default());
                let printed = printed(block, shown, place);
                commands += 1;
                if shown.output.is_empty() || agrees(&printed, &shown.output) {
                    continue;
                }
                if std::env::var_os("BLESS").is_some() {
                    text = blessed(&text, block, shown, &printed);
                    std::fs::write(root.join(&page), &text).unwrap();
                } else {
                    let (page, line) = (page.display(), block.line);
                    wrong.push(format!("{page}:{line}: {} prints:\n{printed}", shown.command));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}\nBLESS=1 takes it", wrong.join("\n"));
    assert!(commands > 20, "{commands} commands: where are the pages?");
}

/// The commands of README and of most pages failed with "is not a profile database", because only
/// one page named the example's database.
#[test]
fn a_page_names_the_database_before_its_first_command() {
    let root = root(env!("CARGO_MANIFEST_DIR"), 2);
    for page in pages(&root) {
        let text = std::fs::read_to_string(root.join(&page)).unwrap();
        let found = blocks(&page, &text);
        let any = found.iter().any(|block| block.mark == Mark::Plain);
        assert!(!any || database(&found).is_some(), "{}", page.display());
    }
}

/// Commands that other tests run are really there: the program, and each of its options.
#[test]
fn what_other_tests_run_is_in_them() {
    let root = root(env!("CARGO_MANIFEST_DIR"), 2);
    let mut wrong = Vec::new();
    for page in pages(&root) {
        let text = std::fs::read_to_string(root.join(&page)).unwrap();
        for block in blocks(&page, &text) {
            let Mark::In(file) = &block.mark else { continue };
            let place = format!("{}:{}", page.display(), block.line);
            let source = std::fs::read_to_string(root.join(file))
                .unwrap_or_else(|error| panic!("{place}: {file}: {error}"));
            for shown in &block.commands {
                for word in named_words(&shown.command) {
                    if !source.contains(word) {
                        wrong.push(format!("{place}: {file} has no '{word}'"));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The program of each command in a line, the task of `cargo xtask`, and all options without their
/// values. What stands behind `#` is for the reader.
fn named_words(line: &str) -> Vec<&str> {
    let line = line.split(" #").next().unwrap_or(line);
    let mut named = Vec::new();
    for command in line.split("&&").flat_map(|part| part.split('|')) {
        let mut words = command.split_whitespace().filter(|word| !word.contains("=/"));
        let program = words.by_ref().find(|word| *word != "sudo" && *word != "\\");
        match program {
            Some("cargo") => named.extend(words.by_ref().nth(1)),
            program => named.extend(program),
        }
        let options = words.filter(|word| word.starts_with("--") && word.len() > 2);
        named.extend(options.map(|option| option.split('=').next().unwrap_or(option)));
    }
    named
}

#[test]
fn words_of_commands_are_told_from_their_values() {
    for (line, words) in [
        ("sudo apt install ./x.deb", vec!["apt"]),
        ("cargo xtask bench truth --seconds 9  # long", vec!["bench", "--seconds"]),
        ("a --b=1 | c -d --e f && g", vec!["a", "--b", "c", "--e", "g"]),
    ] {
        assert_eq!(named_words(line), words);
    }
    let page = ["a".to_owned(), "...".to_owned(), "d".to_owned()];
    assert!(agrees("a\nb\nc\nd\n", &page) && !agrees("a\nb\n", &page) && !agrees("x\nd\n", &page));
}
