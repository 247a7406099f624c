//! What a shell offers for the words of a command line: names that the database has.
//!
//! A shell's script, which the package has, asks `dcpi` itself with `_DCPI_COMPLETE=SHELL` in the
//! environment. Names are those of the reports that list them, of the database and the selection
//! that the line has so far, by default of its newest epoch.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};

use clap::{Arg, Command, CommandFactory as _};
use clap_complete::env::{CompleteEnv, EnvCompleter};
use clap_complete::{ArgValueCompleter, CompletionCandidate};
use serde_json::Value;

use crate::command_line::{self, Arguments};

/// The variable of the environment with the shell's name. No other program's, and none that people
/// set.
const VARIABLE: &str = "_DCPI_COMPLETE";
/// Most names that are offered: nobody reads more, and some shells become slow.
const NAMES_MAX: usize = 1000;
/// Options of the line that the report of names is of.
const SELECTION: [&str; 8] =
    ["--db", "--epoch", "--host", "--since", "--until", "--epoch-label", "--unit", "--label"];

/// Where names come from: a report's words, and the key of its rows.
type Names = (&'static [&'static str], &'static str);

const IMAGES: Names = (&["images"], "image");

/// Answers a shell that asks for completions, and ends the program then.
pub fn answer() {
    CompleteEnv::with_factory(command).var(VARIABLE).complete();
}

/// Writes the script by which a shell asks for completions.
///
/// # Errors
/// The error of writing.
pub fn script(shell: &dyn EnvCompleter, out: &mut dyn Write) -> io::Result<()> {
    let name = "dcpi";
    shell.write_registration(VARIABLE, name, name, name, out)
}

/// The commands, with the names that the values of their arguments may have.
pub fn command() -> Command {
    Arguments::command().mut_subcommands(|subcommand| subcommand.mut_args(with_names))
}

fn with_names(arg: Arg) -> Arg {
    let value = arg.get_value_names().and_then(|names| names.first()).map(ToString::to_string);
    let names: Names = match (arg.get_id().as_str(), value.as_deref()) {
        (_, Some("IMAGE")) => IMAGES,
        (_, Some("PROCEDURE" | "[IMAGE] PROCEDURE")) => (&["prof", "-n1000"], "procedure"),
        ("label", _) => (&["prof", "--by=label", "-n1000"], "label"),
        ("unit", _) => (&["prof", "--by=unit", "-n1000"], "unit"),
        ("container", _) => (&["prof", "--by=container", "-n1000"], "container"),
        ("pod", _) => (&["prof", "--by=pod", "-n1000"], "pod"),
        ("namespace", _) => (&["prof", "--by=namespace", "-n1000"], "namespace"),
        ("command", Some("NAME")) => (&["prof", "--by=command", "-n1000"], "command"),
        ("thread", Some("NAME")) => (&["prof", "--by=thread", "-n1000"], "thread"),
        ("pid", _) => (&["prof", "--by=pid", "-n1000"], "pid"),
        ("epoch", _) => (&["epochs"], "epoch"),
        ("epoch_label", _) => (&["epochs"], "label"),
        ("host", _) => (&["epochs"], "host"),
        _ => return arg,
    };
    arg.add(ArgValueCompleter::new(move |typed: &OsStr| candidates(names, typed)))
}

/// The names that begin with what is typed. What cannot be read offers none: a shell has no place
/// for an error.
fn candidates((words, key): Names, typed: &OsStr) -> Vec<CompletionCandidate> {
    let Some(typed) = typed.to_str() else { return Vec::new() };
    let line = typed_line();
    let mut found = BTreeSet::new();
    let image = image_of(&line).filter(|_| key == "procedure");
    found.extend(names(words, key, &line, image.as_deref()));
    if key == "procedure" && image.is_none() {
        found.extend(names(IMAGES.0, IMAGES.1, &line, None));
    }
    let fits = |name: &String| name.starts_with(typed) && !name.chars().any(char::is_control);
    found.into_iter().filter(fits).take(NAMES_MAX).map(CompletionCandidate::new).collect()
}

/// The words of the line behind the program's name: the shell gives them behind `--`.
fn typed_line() -> Vec<String> {
    let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
    words.skip_while(|word| word != "--").skip(2).collect()
}

/// The first word of a line that is no option, behind its subcommand: the image of `dcpi list`.
/// Not the last, which is being typed.
fn image_of(line: &[String]) -> Option<String> {
    let (_, before) = line.split_last()?;
    before.iter().skip(1).find(|word| !word.starts_with('-')).cloned()
}

/// The options of a line that select samples, each as one word.
fn selection(line: &[String]) -> Vec<String> {
    let mut chosen = Vec::new();
    for (at, word) in line.iter().enumerate() {
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            // The last word is being typed.
            None => (word.as_str(), line.get(at + 1).filter(|_| at + 2 < line.len()).cloned()),
        };
        let value = value.filter(|_| SELECTION.contains(&name));
        chosen.extend(value.map(|value| format!("{name}={value}")));
    }
    chosen
}

/// The values of a key in the rows of a report of the line's database.
fn names(words: &[&str], key: &str, line: &[String], image: Option<&str>) -> Vec<String> {
    let takes_scope = words.first() == Some(&"prof");
    let chosen = selection(line).into_iter().filter(|option| {
        takes_scope || !["--unit", "--label"].iter().any(|scope| option.starts_with(scope))
    });
    let mut report: Vec<OsString> = vec!["dcpi".into()];
    report.extend(words.iter().map(OsString::from));
    report.push("--format=json".into());
    report.extend(chosen.map(OsString::from));
    report.extend(image.map(|image| ["--".into(), image.into()]).into_iter().flatten());
    let json = command_line::captured(report).ok();
    let json: Option<Value> = json.and_then(|(text, _)| serde_json::from_slice(&text).ok());
    let rows = json.as_ref().and_then(|json| json.get("rows")?.as_array()).into_iter().flatten();
    let value = |row: &Value| match row.get(key)? {
        Value::String(name) => Some(name.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    rows.filter_map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn the_line_tells_database_and_image() {
        assert_eq!(image_of(&line("list orders fi")).as_deref(), Some("orders"));
        assert_eq!(image_of(&line("list or")), None, "it is being typed");
        let chosen = selection(&line("list --db /d --epoch=-1 orders --host "));
        assert_eq!(chosen, ["--db=/d", "--epoch=-1"]);
    }

    #[test]
    fn the_commands_stay_sound() {
        command().debug_assert();
    }
}
