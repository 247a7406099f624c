//! The guide's page of all commands: `docs/src/commands.md`, from the definitions of the arguments.

use clap::{Arg, Command};

/// Columns of a line of the page, as `cargo xtask tidy` allows.
const COLUMNS: usize = 100;

const HEAD: &str = "\
# Commands

This page is made from the definitions of the arguments, as `--help` and the man pages are. A test
holds the page against the definitions; `BLESS=1 cargo test -p manual` writes the page anew.
";

/// The page: every program, every subcommand, every option.
pub fn page(programs: impl IntoIterator<Item = Command>) -> String {
    let mut page = HEAD.to_owned();
    for mut program in programs {
        program = program.disable_help_subcommand(true);
        program.build();
        let name = program.get_name().to_owned();
        section(&mut page, &name, "##", &program);
        for subcommand in program.get_subcommands().filter(|of| !of.is_hide_set()) {
            let name = format!("{name} {}", subcommand.get_name());
            section(&mut page, &name, "###", subcommand);
        }
    }
    page
}

fn section(page: &mut String, name: &str, level: &str, command: &Command) {
    page.push_str(&format!("\n{level} {name}\n"));
    let about = command.get_long_about().or_else(|| command.get_about());
    if let Some(about) = about {
        paragraphs(page, &about.to_string());
    }
    let usage = command.clone().bin_name(name).render_usage().to_string();
    page.push_str(&format!("\n`{}`\n\n", usage.trim_start_matches("Usage: ").trim()));
    for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
        let text = format!("{}: {}", title(argument), help(argument));
        page.push_str(&wrapped(&text, "- ", "  "));
    }
    if let Some(notes) = command.get_after_help() {
        paragraphs(page, &notes.to_string());
    }
}

/// How an argument is typed.
fn title(argument: &Arg) -> String {
    let value = || {
        let names = argument.get_value_names().unwrap_or_default();
        names.iter().map(|name| format!(" <{name}>")).collect::<String>()
    };
    let value = if argument.get_action().takes_values() { value() } else { String::new() };
    let short = argument.get_short().map(|short| format!("-{short}"));
    let long = argument.get_long().map(|long| format!("--{long}"));
    let names: Vec<String> = short.into_iter().chain(long).collect();
    if names.is_empty() {
        return format!("`{}`", value.trim());
    }
    format!("`{}{value}`", names.join("`, `"))
}

fn help(argument: &Arg) -> String {
    let mut help = argument.get_help().map(ToString::to_string).unwrap_or_default();
    let values = argument.get_possible_values();
    let values: Vec<&str> =
        values.iter().filter(|value| !value.is_hide_set()).map(|value| value.get_name()).collect();
    if argument.get_action().takes_values() && !values.is_empty() {
        help.push_str(&format!(" [possible values: {}]", values.join(", ")));
    }
    let defaults: Vec<String> = argument
        .get_default_values()
        .iter()
        .map(|value| value.to_string_lossy().into_owned())
        .filter(|value| argument.get_action().takes_values() && !value.is_empty())
        .collect();
    if !defaults.is_empty() {
        help.push_str(&format!(" [default: {}]", defaults.join(", ")));
    }
    help
}

/// Paragraphs of help, wrapped; lines that begin with two spaces are a table, and stay.
fn paragraphs(page: &mut String, text: &str) {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let is_table = |line: &str| line.starts_with("  ");
    for lines in lines.chunk_by(|a, b| is_table(a) && is_table(b)) {
        match lines {
            [line] if !is_table(line) => {
                page.push('\n');
                page.push_str(&wrapped(line, "", ""));
            }
            lines => page.push_str(&format!("\n```text\n{}\n```\n", lines.join("\n"))),
        }
    }
}

/// The words in lines of the page's width.
fn wrapped(text: &str, first: &str, others: &str) -> String {
    let mut out = String::new();
    let mut line = first.to_owned();
    let mut is_empty = true;
    for word in escaped(text).split_whitespace() {
        if !is_empty && line.chars().count() + 1 + word.chars().count() > COLUMNS {
            out.push_str(&line);
            out.push('\n');
            line = others.to_owned();
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        line.push_str(word);
        is_empty = false;
    }
    out + &line + "\n"
}

/// Markdown's own characters as themselves, except for those in backticks.
fn escaped(text: &str) -> String {
    let mut in_code = false;
    let mut out = String::new();
    for character in text.chars() {
        in_code ^= character == '`';
        if !in_code && matches!(character, '*' | '<' | '>' | '_' | '[' | ']') {
            out.push('\\');
        }
        out.push(character);
    }
    out
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests panic to fail")]
mod tests {
    use super::*;
    use std::path::{Path, PathBuf};

    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
    }

    fn commands() -> Vec<Command> {
        crate::programs().into_iter().map(|(program, _)| program).collect()
    }

    /// README and the pages of the guide but this one, with their texts.
    fn pages() -> Vec<(String, String)> {
        let folder = std::fs::read_dir(root().join("docs/src")).unwrap();
        let paths = folder.map(|entry| entry.unwrap().path());
        let pages =
            paths.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
        let pages = pages.filter(|path| !path.ends_with("commands.md"));
        pages
            .chain([root().join("README.md")])
            .map(|path| (path.display().to_string(), std::fs::read_to_string(&path).unwrap()))
            .collect()
    }

    /// Holds a page of the guide against its definitions.
    fn hold(name: &str, page: &str) {
        let path = root().join("docs/src").join(name);
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(&path, page).unwrap();
        }
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(committed == page, "{} is of other definitions; BLESS=1", path.display());
    }

    #[test]
    fn the_page_of_all_fields_is_that_of_their_statements() {
        let page = dcpi::page_of_fields();
        hold("output.md", &page);
        assert!(page.contains("## dcpi prof\n") && page.contains("| `EVENT_share` | share |"));
    }

    #[test]
    fn the_page_of_all_commands_is_that_of_the_definitions() {
        let page = page(commands());
        hold("commands.md", &page);
        assert!(page.contains("### dcpi prof\n") && page.contains("### dcpictl flush\n"));
        let wide: Vec<&str> = page.lines().filter(|line| line.chars().count() > COLUMNS).collect();
        assert!(wide.iter().all(|line| line.starts_with(['`', ' '])), "{wide:?}");
    }

    /// What the guide names in prose exists: subcommands, and options of the program's or of any
    /// subcommand.
    #[test]
    fn options_that_the_guide_names_are_there() {
        let programs: Vec<Command> = commands()
            .into_iter()
            .map(|program| {
                let mut program = program.disable_help_subcommand(true);
                program.build();
                program
            })
            .collect();
        let mut wrong = Vec::new();
        let mut named = 0;
        for (path, text) in pages() {
            let spans = text.split('`').skip(1).step_by(2).filter(|span| !span.contains('\n'));
            let commands = text.lines().filter_map(|line| line.strip_prefix("$ "));
            for typed in spans.chain(commands) {
                let typed = typed.strip_prefix("sudo ").unwrap_or(typed);
                let mut words = typed.split(" -- ").next().unwrap_or(typed).split_whitespace();
                let Some(program) = programs
                    .iter()
                    .find(|program| words.clone().next() == Some(program.get_name()))
                else {
                    continue;
                };
                words.next();
                let sub = words.clone().find(|word| !word.starts_with('-'));
                let command = sub.and_then(|name| program.find_subcommand(name)).unwrap_or(program);
                let has_subcommands = program.has_subcommands();
                named += 1;
                let is_other = |sub: &str| sub == "help" || sub.chars().any(char::is_uppercase);
                if has_subcommands
                    && sub
                        .is_some_and(|sub| !is_other(sub) && program.find_subcommand(sub).is_none())
                {
                    wrong.push(format!("{path}: {typed}: no such subcommand"));
                }
                let command_line = words.take_while(|word| !["&&", "|", ";", "&"].contains(word));
                for option in command_line.filter(|word| word.starts_with("--") && word.len() > 2) {
                    let option = option.trim_start_matches('-').split('=').next().unwrap();
                    let has = |command: &Command| {
                        command.get_arguments().any(|argument| {
                            argument.get_long() == Some(option)
                                || argument.get_all_aliases().unwrap_or_default().contains(&option)
                        })
                    };
                    // What a command runs has options of its own.
                    let runs = ["record", "truth"].contains(&command.get_name())
                        || command.get_name() == "dcpilabel";
                    if !has(command) && !has(program) && !runs && option != "help" {
                        wrong.push(format!("{path}: {typed}: no option --{option}"));
                    }
                }
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        assert!(named > 50, "{named} commands are named: where are the pages?");
    }

    /// Each block of TOML is a configuration that dcpid takes.
    #[test]
    fn configurations_in_the_guide_are_valid() {
        let mut tried = 0;
        for (path, text) in pages() {
            for block in text.split("```toml\n").skip(1) {
                let toml = block.split("```").next().unwrap();
                let file = std::env::temp_dir()
                    .join(format!("dcpi-guide-{}-{tried}.toml", std::process::id()));
                std::fs::write(&file, toml).unwrap();
                let config =
                    settings::config::Config::new(settings::args::Settings::default(), Some(&file));
                std::fs::remove_file(&file).unwrap();
                assert!(config.is_ok(), "{path}: {toml}\n{:?}", config.err());
                tried += 1;
            }
        }
        assert!(tried > 0, "no configuration: where are the pages?");
    }
}
