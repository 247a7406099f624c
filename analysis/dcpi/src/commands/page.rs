//! What the pages of `dcpi html` and `dcpi serve` have in common: reports as other commands print
//! them with `--format json`, and the options that these have in common.

use std::ffi::OsString;
use std::hash::{BuildHasher as _, RandomState};
use std::path::Path;

use query::error::AnalysisError;
use query::select::EpochChoice;
use query::times::rfc3339;

use super::Outcome;
use crate::options::{Chosen, OfThreads};

/// Runs a command line, the program's name included, and gives what it prints. The parser of
/// command lines knows the commands, so it is handed to those that run others.
pub(crate) type Runner = fn(Vec<OsString>) -> Result<(Vec<u8>, Outcome), AnalysisError>;

/// The options that select samples.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selection {
    /// Those of every command of samples.
    pub(crate) words: Vec<String>,
    /// Those of commands of call stacks alone.
    pub(crate) of_threads: Vec<String>,
}

impl Selection {
    /// The options as words. Times are those of this moment, so that all reports of a page are of
    /// the same time.
    ///
    /// # Errors
    /// [`AnalysisError::Refused`] for times that cannot be.
    pub(crate) fn of(chosen: &Chosen, threads: &OfThreads) -> Result<Self, AnalysisError> {
        let mut words = Vec::new();
        let mut option = |name: &str, value: Option<String>| {
            words.extend(value.map(|value| format!("--{name}={value}")));
        };
        let epoch = Some(&chosen.epoch).filter(|epoch| **epoch != EpochChoice::back(0));
        option("epoch", epoch.map(ToString::to_string));
        let stretch = chosen.time.stretch()?;
        option("since", stretch.map(|stretch| rfc3339(stretch.since_unix_s)));
        option("until", stretch.map(|stretch| rfc3339(stretch.until_unix_s)));
        option("host", chosen.source.host.clone());
        option("epoch-label", chosen.source.epoch_label.clone());
        option("label", chosen.source.scope.label.clone());
        option("unit", chosen.source.scope.unit.clone());
        option("container", chosen.source.scope.container.clone());
        option("pod", chosen.source.scope.pod.clone());
        option("namespace", chosen.source.scope.namespace.clone());
        option("pid", chosen.source.scope.pid.map(|pid| pid.to_string()));
        if chosen.all {
            words.push("--all".to_owned());
        }
        let mut of_threads = Vec::new();
        of_threads.extend(threads.command.iter().map(|name| format!("--command={name}")));
        of_threads.extend(threads.thread.iter().map(|name| format!("--thread={name}")));
        of_threads.extend(threads.tids.iter().map(|tid| format!("--tid={tid}")));
        of_threads.extend(threads.attributes.iter().map(|of| format!("--attribute={of}")));
        Ok(Self { words, of_threads })
    }
}

/// A set of `dcpi diff` as options of other commands, and the image that it is of; none for a set
/// of another database. As `ofSet` of `face/app/source.ts`, which asks for the same.
pub(crate) fn of_set(set: &str) -> Option<(Vec<String>, Option<String>)> {
    let (mut options, mut image) = (Vec::new(), None);
    for part in set.trim_start_matches('@').split(',') {
        let is_key = |key: &str| key.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-');
        match part.split_once(':').filter(|(key, _)| is_key(key)) {
            Some(("db", _)) => return None,
            Some(("image", id)) => image = Some(id.to_owned()),
            Some((key, value)) => options.push(format!("--{key}={value}")),
            None if part.contains(['/', '@']) => return None,
            None if part == "latest" => {}
            None => options.push(format!("--epoch={part}")),
        }
    }
    Some((options, image))
}

/// Options without those that others, of the same command, have again.
pub(crate) fn without(options: &[String], others: &[&str]) -> Vec<String> {
    let name = |word: &str| word.split('=').next().map(str::to_owned);
    let is_again = |option: &String| {
        others.iter().any(|other| other.starts_with("--") && name(other) == name(option))
    };
    options.iter().filter(|option| !is_again(option)).cloned().collect()
}

/// A command's report as JSON, of the database `db`; `last` are arguments that end the line.
///
/// # Errors
/// Those of the command.
pub(crate) fn json(
    run: Runner,
    words: Vec<String>,
    last: Vec<String>,
    db: &Path,
) -> Result<(Vec<u8>, Outcome), AnalysisError> {
    printed(run, [words, vec!["--format=json".to_owned()]].concat(), last, db)
}

/// What a command prints of the database `db`; `last` are arguments that end the line.
///
/// # Errors
/// Those of the command.
pub(crate) fn printed(
    run: Runner,
    words: Vec<String>,
    last: Vec<String>,
    db: &Path,
) -> Result<(Vec<u8>, Outcome), AnalysisError> {
    let mut line: Vec<OsString> = vec!["dcpi".into()];
    line.extend(words.into_iter().map(OsString::from));
    let mut at = OsString::from("--db=");
    at.push(db);
    line.push(at);
    line.extend(last.into_iter().map(OsString::from));
    run(line)
}

/// A number that no name in a page can have guessed.
pub(crate) fn nonce() -> String {
    format!("{:016x}{:016x}", RandomState::new().hash_one(0), RandomState::new().hash_one(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_options_of_other_commands() {
        let of = |set: &str| of_set(set).map(|(options, image)| (options.join(" "), image));
        let none = |options: &str| Some((options.to_owned(), None));
        assert_eq!(of("latest"), none(""));
        assert_eq!(of("@-1"), none("--epoch=-1"));
        assert_eq!(of("label:a,since:14:00"), none("--label=a --since=14:00"));
        assert_eq!(of("image:3e4e"), Some((String::new(), Some("3e4e".to_owned()))));
        assert_eq!((of("/srv/other"), of("db:/srv/other"), of("x@latest")), (None, None, None));
    }

    #[test]
    fn an_option_is_given_once() {
        let page = ["--epoch=1", "--host=a", "--all"].map(str::to_owned);
        assert_eq!(without(&page, &["list", "a", "--epoch=2"]), ["--host=a", "--all"]);
    }
}
