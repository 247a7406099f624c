//! The commands of README and guide, as tests find them.
//!
//! A fenced block of the language `console` holds commands, each on a line after `$ `, and their
//! output. The mark after the word says which test runs them:
//!
//! - none: `analysis/dcpi/tests/cli/guide.rs`, without privilege, on the database of the example;
//!   the shown output is compared with the actual output;
//! - `root`: `tests/tests/system/guide.rs`, beside a dcpid;
//! - `in=FILE`: what FILE of this repository already runs, such as the tests of the package. The
//!   program and its options must occur there.
//!
//! Any other mark is a mistake, as is a block of another language that looks like commands: no
//! command of the guide goes without a test.

use std::path::{Path, PathBuf};

/// Languages of blocks that hold no commands.
const LANGUAGES: [&str; 8] = ["text", "toml", "c", "rust", "ini", "console", "json", "python"];

/// The test that runs a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mark {
    /// The unprivileged test.
    Plain,
    /// The privileged test.
    Root,
    /// The block runs in this file of the repository.
    In(String),
}

/// Commands of a page that belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// The page, from the root of the repository.
    pub page: PathBuf,
    /// Line of the opening fence, from 1.
    pub line: usize,
    /// The test that runs it.
    pub mark: Mark,
    /// The commands with the shown part of their output.
    pub commands: Vec<Shown>,
}

/// A command, and the lines below it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    /// As a shell takes it.
    pub command: String,
    /// Its output; none: the output is not shown.
    pub output: Vec<String>,
}

/// The root of the repository, from a crate `depth` folders below it.
#[must_use]
pub fn root(manifest: &str, depth: usize) -> PathBuf {
    Path::new(manifest).ancestors().nth(depth).unwrap_or(Path::new("/")).to_owned()
}

/// README and all pages of the guide, from the root of the repository.
///
/// # Panics
/// When a folder cannot be read.
#[must_use]
pub fn pages(root: &Path) -> Vec<PathBuf> {
    let mut pages = vec![PathBuf::from("README.md")];
    for entry in std::fs::read_dir(root.join("docs/src")).expect("the guide") {
        let path = entry.expect("a page").path();
        if path.extension().is_some_and(|extension| extension == "md") {
            pages.push(path.strip_prefix(root).expect("below the root").to_owned());
        }
    }
    pages.sort();
    pages
}

/// The blocks of commands of a page.
///
/// # Panics
/// When a fence has an unknown language or mark, a block of `console` no command, or a command no
/// end.
#[must_use]
pub fn blocks(page: &Path, text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        let Some(language) = line.trim_start().strip_prefix("```") else { continue };
        let place = format!("{}:{}", page.display(), number + 1);
        let inside: Vec<&str> = lines
            .by_ref()
            .map(|(_, line)| line)
            .take_while(|line| !line.trim_start().starts_with("```"))
            .collect();
        let (language, mark) = language.split_once(',').unwrap_or((language, ""));
        assert!(LANGUAGES.contains(&language), "{place}: a fence of '{language}'");
        let has_commands = inside.iter().any(|line| line.starts_with("$ "));
        assert_eq!(has_commands, language == "console", "{place}: commands are in `console`");
        if language != "console" {
            continue;
        }
        let mark = match mark {
            "" => Mark::Plain,
            "root" => Mark::Root,
            other => match other.strip_prefix("in=") {
                Some(file) => Mark::In(file.to_owned()),
                None => panic!("{place}: no test runs blocks of the mark '{other}'"),
            },
        };
        blocks.push(Block {
            page: page.to_owned(),
            line: number + 1,
            mark,
            commands: commands(&inside, &place),
        });
    }
    blocks
}

fn commands(inside: &[&str], place: &str) -> Vec<Shown> {
    let mut commands: Vec<Shown> = Vec::new();
    for line in inside {
        if let Some(command) = line.strip_prefix("$ ") {
            commands.push(Shown { command: command.to_owned(), output: Vec::new() });
            continue;
        }
        let last = commands.last_mut();
        let last = last.unwrap_or_else(|| panic!("{place}: it begins with no command"));
        if last.output.is_empty() && last.command.ends_with('\\') {
            last.command.push('\n');
            last.command.push_str(line);
        } else {
            last.output.push((*line).to_owned());
        }
    }
    for shown in &mut commands {
        // The line before the next command is for the eye.
        while shown.output.last().is_some_and(String::is_empty) {
            shown.output.pop();
        }
    }
    commands
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_their_output_are_found() {
        let text = "x\n```console\n$ dcpi a \\\n    b\nout\n\n$ dcpi c\n```\n```text\nx\n```\n\
                    ```console,root\n$ sudo x\n```\n```console,in=a/b.rs\n$ y\n```\n";
        let blocks = blocks(Path::new("p.md"), text);
        let marks: Vec<&Mark> = blocks.iter().map(|block| &block.mark).collect();
        assert_eq!(marks, [&Mark::Plain, &Mark::Root, &Mark::In("a/b.rs".to_owned())]);
        let first = &blocks[0];
        assert_eq!(first.line, 2);
        let commands: Vec<&str> =
            first.commands.iter().map(|shown| shown.command.as_str()).collect();
        assert_eq!(commands, ["dcpi a \\\n    b", "dcpi c"]);
        assert_eq!(first.commands[0].output, ["out"]);
    }

    #[test]
    fn what_nobody_would_run_is_refused() {
        for text in [
            "```console,sometimes\n$ x\n```\n",
            "```sh\nx\n```\n",
            "```\nx\n```\n",
            "```text\n$ x\n```\n",
            "```console\nx\n```\n",
        ] {
            let refused = std::panic::catch_unwind(|| blocks(Path::new("p.md"), text));
            assert!(refused.is_err(), "{text}");
        }
    }
}
