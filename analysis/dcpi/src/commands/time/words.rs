//! The commands of a command line: quoted, as hyperfine's users give them, or as words on both
//! sides of `--`.

use std::ffi::OsString;
use std::fs::Metadata;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::PermissionsExt as _;

use crate::commands::record::runnable;
use query::error::AnalysisError;

/// A program with its arguments.
pub(super) type Words = Vec<OsString>;

/// The commands that these words are: one or two.
///
/// - `A words -- B words` are two;
/// - `'A words' 'B words'`, both with a space, are two;
/// - other words are one, except for two words of which the second is a program by its path as
///   well: they may be meant as one command or as two.
///
/// A side that is one word is split as a shell splits it: quotes and backslashes, nothing else.
///
/// # Errors
/// [`AnalysisError::Usage`] for what is none of these.
pub(super) fn commands(typed: &[OsString]) -> Result<Vec<Words>, AnalysisError> {
    let sides: Vec<&[OsString]> = typed.split(|word| word == "--").collect();
    let has_space = |word: &OsString| word.as_bytes().iter().any(u8::is_ascii_whitespace);
    let commands: Vec<Words> = match sides.as_slice() {
        [[a, b]] if has_space(a) && has_space(b) => vec![split(a)?, split(b)?],
        [one] => vec![side(one)?],
        [a, b] => vec![side(a)?, side(b)?],
        _ => return Err(usage("more than one -- stands between commands")),
    };
    if let [[first, _, _, ..]] = sides.as_slice()
        && has_space(first)
    {
        return Err(usage("more than two quoted commands; options go before them"));
    }
    if let [[a, b]] = sides.as_slice()
        && commands.len() == 1
        && is_program(b)
    {
        let (a, b) = (a.to_string_lossy(), b.to_string_lossy());
        let message = format!("two programs: type {a} -- {b} for two commands, '{a} {b}' for one");
        return Err(usage(&message));
    }
    // A shell takes the quotes off a command of one word: 'a' 'b x' is what it gives for a 'b x'.
    if let [[a, b]] = sides.as_slice()
        && !has_space(a)
        && has_space(b)
        && split(b)?.first().is_some_and(is_found)
    {
        let (a, b) = (a.to_string_lossy(), b.to_string_lossy());
        let message = format!("two programs: type {a} -- '{b}' for two commands");
        return Err(usage(&message));
    }
    if commands.iter().any(Vec::is_empty) {
        return Err(usage("a command is empty; give A, or A -- B"));
    }
    Ok(commands)
}

/// Whether a word is a program, by its path or in $PATH.
fn is_found(word: &OsString) -> bool {
    runnable(word, std::env::var_os("PATH").as_deref()).is_ok()
}

/// Whether a word is the path of an executable file.
fn is_program(word: &OsString) -> bool {
    let is_executable = |file: Metadata| file.is_file() && file.permissions().mode() & 0o111 != 0;
    word.as_bytes().contains(&b'/') && std::fs::metadata(word).is_ok_and(is_executable)
}

fn side(words: &[OsString]) -> Result<Words, AnalysisError> {
    match words {
        [one] => split(one),
        words => Ok(words.to_vec()),
    }
}

/// A text as words of a shell.
///
/// # Errors
/// [`AnalysisError::Usage`] where a quote is not closed.
pub(super) fn split(text: &OsString) -> Result<Words, AnalysisError> {
    let words = shlex::bytes::split(text.as_bytes());
    let words = words.ok_or_else(|| usage("a quote is not closed in a command"))?;
    Ok(words.into_iter().map(OsString::from_vec).collect())
}

fn usage(message: &str) -> AnalysisError {
    AnalysisError::Usage { message: message.to_owned(), help: "dcpi time --help".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(typed: &[&str]) -> Result<Vec<Vec<String>>, String> {
        let typed: Vec<OsString> = typed.iter().map(OsString::from).collect();
        let commands = commands(&typed).map_err(|error| error.to_string())?;
        let shown = |words: Words| words.into_iter().map(|word| word.into_string().unwrap());
        Ok(commands.into_iter().map(|words| shown(words).collect()).collect())
    }

    #[test]
    fn commands_are_quoted_or_parted_by_dashes() {
        for (typed, expected) in [
            (vec!["a"], vec![vec!["a"]]),
            (vec!["a x 'y z'"], vec![vec!["a", "x", "y z"]]),
            (vec!["a", "x"], vec![vec!["a", "x"]]),
            (vec!["a", "x y"], vec![vec!["a", "x y"]]),
            (vec!["a x", "b y"], vec![vec!["a", "x"], vec!["b", "y"]]),
            (vec!["a", "--", "b"], vec![vec!["a"], vec!["b"]]),
            (vec!["a", "x y", "--", "b -c"], vec![vec!["a", "x y"], vec!["b", "-c"]]),
        ] {
            assert_eq!(of(&typed).unwrap(), expected, "{typed:?}");
        }
    }

    #[test]
    fn what_is_no_command_is_refused_in_one_line() {
        for (typed, said) in [
            (vec!["a", "--", "b", "--", "c"], "more than one --"),
            (vec!["a x", "b y", "-o"], "more than two quoted commands"),
            (vec!["a", "--"], "a command is empty"),
            (vec!["  "], "a command is empty"),
            (vec!["a 'x"], "a quote is not closed"),
            (vec!["a", "sh -c x"], "type a -- 'sh -c x' for two commands"),
            (vec!["a", "/bin/sh"], "type a -- /bin/sh for two commands, 'a /bin/sh' for one"),
        ] {
            let error = of(&typed).unwrap_err();
            assert!(error.contains(said) && !error.contains('\n'), "{typed:?}: {error}");
        }
    }
}
