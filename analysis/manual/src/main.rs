//! Writes man pages, shell completions, the guide's pages of commands and of fields, and the JSON
//! Schemas of reports: `manual DIRECTORY` makes `DIRECTORY/man`, `DIRECTORY/completions`,
//! `DIRECTORY/commands.md`, `DIRECTORY/output.md` and `DIRECTORY/schemas`.
//!
//! They come from the definitions of the arguments, as `--help` does, and from the statements of
//! the fields, so there is nothing to keep in step. The crate is separate because it names both the
//! daemon and the analysis, and because no program that is installed should carry a writer of man
//! pages.
#![allow(clippy::print_stderr, reason = "a main program prints")]
#![forbid(unsafe_code)]

mod guide;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Command, CommandFactory as _};
use clap_complete::Shell;
use clap_complete::env::{Bash, EnvCompleter, Fish, Zsh};
use clap_mangen::Man;

/// Shells with completions.
const SHELLS: [Shell; 3] = [Shell::Bash, Shell::Zsh, Shell::Fish];
/// The manual that all pages belong to.
const MANUAL: &str = "DCPI";

fn main() -> ExitCode {
    let Some(directory) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("manual: no directory is given; run cargo xtask man");
        return ExitCode::from(2);
    };
    match write(&directory) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("manual: {}: {error}; name another directory", directory.display());
            ExitCode::from(2)
        }
    }
}

/// The programs, with the section of the manual that each belongs to: 8 is for administrators.
fn programs() -> [(Command, &'static str); 4] {
    [
        (dcpi::command_line::Arguments::command(), "1"),
        (settings::args::DcpilabelArgs::command(), "1"),
        (settings::args::DcpidArgs::command(), "8"),
        (settings::args::DcpictlArgs::command(), "8"),
    ]
}

fn write(directory: &Path) -> io::Result<()> {
    let [man, completions, schemas] =
        ["man", "completions", "schemas"].map(|name| directory.join(name));
    for made in [&man, &completions, &schemas] {
        fs::create_dir_all(made)?;
    }
    let commands = guide::page(programs().into_iter().map(|(program, _)| program));
    fs::write(directory.join("commands.md"), commands)?;
    fs::write(directory.join("output.md"), dcpi::page_of_fields())?;
    for schema in dcpi::schemas() {
        let name = format!("{}-{}.json", schema.name, schema.version);
        fs::write(schemas.join(name), schema.json())?;
    }
    for (program, section) in programs() {
        for (name, page) in pages(program.clone(), section)? {
            fs::write(man.join(name), page)?;
        }
        // dcpi itself answers for the names of its database.
        for shell in SHELLS.into_iter().filter(|_| program.get_name() != "dcpi") {
            let mut program = program.clone();
            let name = program.get_name().to_owned();
            clap_complete::generate_to(shell, &mut program, name, &completions)?;
        }
    }
    let scripts: [(&str, &dyn EnvCompleter); 3] =
        [("dcpi.bash", &Bash), ("_dcpi", &Zsh), ("dcpi.fish", &Fish)];
    for (file, shell) in scripts {
        let mut script = Vec::new();
        dcpi::completions::script(shell, &mut script)?;
        fs::write(completions.join(file), script)?;
    }
    Ok(())
}

/// File names and pages of a program and its subcommands: `dcpi.1`, `dcpi-prof.1`.
fn pages(mut program: Command, section: &str) -> io::Result<Vec<(String, Vec<u8>)>> {
    program = program.disable_help_subcommand(true);
    program.build();
    let shown = program.get_subcommands().filter(|of| !of.is_hide_set());
    let subcommands = shown.map(|subcommand| {
        let name = format!("{}-{}", program.get_name(), subcommand.get_name());
        // A page is found by what one types with dashes between.
        let usage = format!("{} {}", program.get_name(), subcommand.get_name());
        (name.clone(), subcommand.clone().display_name(name).bin_name(usage))
    });
    let all: Vec<(String, Command)> =
        std::iter::once((program.get_name().to_owned(), program.clone()))
            .chain(subcommands)
            .collect();
    let page = |(name, command): (String, Command)| {
        let source = format!("dcpi {}", env!("CARGO_PKG_VERSION"));
        let mut page = Vec::new();
        Man::new(command)
            .title(name.to_uppercase())
            .section(section)
            .source(source)
            .manual(MANUAL)
            .render(&mut page)?;
        let page = String::from_utf8(page).map_err(io::Error::other)?;
        Ok((format!("{name}.{section}"), with_tables(&page).into_bytes()))
    };
    all.into_iter().map(page).collect()
}

/// Columns of a page that is read in 80, without its margin.
const TEXT_COLUMNS: usize = 73;

/// The page with the notes behind the options as `--help` has them. clap_mangen gives their lines
/// as they are, and groff makes one paragraph of them: lines of tables, which begin with two
/// spaces, stay lines, or where they are too long become terms with their meanings; others are
/// paragraphs.
fn with_tables(page: &str) -> String {
    let Some((options, notes)) = page.split_once(NOTES) else {
        return page.to_owned();
    };
    let (notes, rest) = notes.split_at(notes.find("\n.SH").map_or(notes.len(), |at| at + 1));
    let mut out = format!("{options}\n.SH NOTES\n");
    let lines: Vec<&str> = notes.lines().filter(|line| !line.is_empty()).collect();
    let is_table = |line: &str| line.starts_with("  ");
    for lines in lines.chunk_by(|a, b| is_table(a) && is_table(b)) {
        let table = lines.first().is_some_and(|line| is_table(line));
        // A hyphen is written \-, and \(aq is an apostrophe.
        let columns = |line: &&str| line.replace('\\', "").replace("*(Aq", "'").chars().count();
        match lines {
            [line] if !table => out.push_str(&format!(".PP\n{line}\n")),
            lines if lines.iter().map(columns).max() <= Some(TEXT_COLUMNS) => {
                out.push_str(&format!(".PP\n.nf\n{}\n.fi\n", lines.join("\n")));
            }
            lines => {
                for line in lines.iter().map(|line| line.trim_start()) {
                    let (term, meaning) = line.split_once("  ").unwrap_or((line, ""));
                    out.push_str(&format!(".TP\n{term}\n{}\n", meaning.trim_start()));
                }
            }
        }
    }
    out + rest
}

/// The heading that clap_mangen writes before the notes.
const NOTES: &str = "\n.SH EXTRA\n";

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests panic to fail")]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_command_has_a_page_with_every_option() {
        let mut names = BTreeSet::new();
        for (program, section) in programs() {
            let options = |command: &Command| -> Vec<String> {
                let shown = command.get_arguments().filter(|argument| !argument.is_hide_set());
                shown.filter_map(|argument| argument.get_long().map(str::to_owned)).collect()
            };
            for (name, page) in pages(program.clone(), section).unwrap() {
                let page = String::from_utf8(page).unwrap().replace("\\-", "-");
                assert!(
                    page.contains(".TH") && page.contains(&format!(" {section} ")),
                    "{name}: {page}"
                );
                let subcommand = name
                    .trim_end_matches(&format!(".{section}"))
                    .split_once('-')
                    .map(|(_, sub)| sub.to_owned());
                let command =
                    subcommand.map_or(Some(&program), |sub| program.find_subcommand(sub)).unwrap();
                for option in options(command) {
                    assert!(
                        page.contains(&format!("--{option}")),
                        "{name} says nothing of --{option}"
                    );
                }
                names.insert(name);
            }
        }
        for name in [
            "dcpi.1",
            "dcpi-prof.1",
            "dcpi-record.1",
            "dcpi-top.1",
            "dcpid.8",
            "dcpictl.8",
            "dcpictl-flush.8",
            "dcpilabel.1",
        ] {
            assert!(names.contains(name), "{name}: {names:?}");
        }
    }

    /// The letters of causes were one paragraph, reflowed: no letter stood before its cause.
    #[test]
    fn tables_of_notes_stay_tables() {
        let pages: Vec<(String, String)> = programs()
            .into_iter()
            .flat_map(|(program, section)| pages(program, section).unwrap())
            .map(|(name, page)| (name, String::from_utf8(page).unwrap()))
            .collect();
        let page = |name: &str| &pages.iter().find(|(known, _)| known == name).unwrap().1;
        let calc = page("dcpi-calc.1");
        let (_, table) = calc.split_once("\n.nf\n").unwrap();
        let (table, _) = table.split_once("\n.fi\n").unwrap();
        assert!(table.lines().count() == 5 && table.contains("  d data cache  "), "{table}");
        for (name, page) in &pages {
            let mut kept = false;
            for line in page.lines() {
                kept = line == ".nf" || kept && line != ".fi";
                assert!(kept || !line.starts_with(' '), "{name}: {line}");
            }
        }
    }

    #[test]
    fn completions_know_the_subcommands() {
        for (program, _) in programs() {
            for shell in SHELLS {
                let (mut command, mut script) = (program.clone(), Vec::new());
                let name = command.get_name().to_owned();
                clap_complete::generate(shell, &mut command, name, &mut script);
                let script = String::from_utf8(script).unwrap();
                for subcommand in program.get_subcommands().filter(|of| !of.is_hide_set()) {
                    assert!(
                        script.contains(subcommand.get_name()),
                        "{shell}: {}",
                        subcommand.get_name()
                    );
                }
            }
        }
    }
}
