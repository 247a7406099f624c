//! Commands that messages suggest.

use std::ffi::OsString;

use clap::CommandFactory as _;

use query::error::quoted;

use crate::command_line::Arguments;

/// The word after `--db`, or `--db=`, before any `--`.
pub fn typed_db(arguments: &[OsString]) -> Option<String> {
    let mut arguments = arguments
        .iter()
        .map(|argument| argument.to_string_lossy())
        .take_while(|typed| typed != "--");
    let found = arguments.find(|typed| typed == "--db" || typed.starts_with("--db="))?;
    let value = found.strip_prefix("--db=").map(str::to_owned);
    value
        .or_else(|| arguments.next().map(|value| value.into_owned()))
        .filter(|value| !value.is_empty())
}

/// A message with `--db` in the dcpi commands that it suggests and that take one: they are to read
/// the same database.
pub fn with_db(message: &str, db: &str) -> String {
    let program = Arguments::command();
    let takes_db = |name: &str| {
        // `record` writes a database; all other commands read one.
        let command = program.find_subcommand(name).filter(|_| name != "record");
        command.is_some_and(|command| {
            command.get_arguments().any(|argument| argument.get_long() == Some("db"))
        })
    };
    let mut said = String::new();
    let mut rest = message;
    while let Some((before, after)) = rest.split_once(SUGGESTED) {
        said.push_str(before);
        said.push_str(SUGGESTED);
        let name = after.split(|c: char| !c.is_ascii_lowercase()).next().unwrap_or_default();
        said.push_str(name);
        rest = after.get(name.len()..).unwrap_or_default();
        let begins = before.is_empty() || before.ends_with([' ', '(']);
        let command = rest.split([';', ',', ')']).next().unwrap_or_default();
        if begins && takes_db(name) && !command.contains("--db") && !command.contains("--help") {
            said.push_str(" --db ");
            said.push_str(&quoted(db));
        }
    }
    said.push_str(rest);
    said
}

/// How a command begins in a message.
const SUGGESTED: &str = "dcpi ";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_read_the_database_that_was_named() {
        for (message, expected) in [
            ("see: dcpi prof x -n 0 --full-names", "see: dcpi prof --db /d x -n 0 --full-names"),
            (
                "lost (see dcpi epochs), or dcpi list",
                "lost (see dcpi epochs --db /d), or dcpi list --db /d",
            ),
            ("dcpi prof --db /x; dcpi check", "dcpi prof --db /x; dcpi check --db /d"),
            ("see dcpi truth --help", "see dcpi truth --help"),
            ("see dcpi help; dcpi record -- COMMAND", "see dcpi help; dcpi record -- COMMAND"),
            ("mydcpi prof, dcpi", "mydcpi prof, dcpi"),
        ] {
            assert_eq!(with_db(message, "/d"), expected);
        }
        assert_eq!(with_db("dcpi prof", "/it's"), "dcpi prof --db '/it'\\''s'");
    }

    #[test]
    fn the_database_is_what_was_typed() {
        let typed = |line: &str| typed_db(&line.split(' ').map(OsString::from).collect::<Vec<_>>());
        assert_eq!(typed("dcpi prof --db /d x"), Some("/d".to_owned()));
        assert_eq!(typed("dcpi prof x --db=e"), Some("e".to_owned()));
        for none in ["dcpi prof", "dcpi prof --db", "dcpi prof --db=", "dcpi truth -- x --db /d"] {
            assert_eq!(typed(none), None, "{none}");
        }
    }
}
