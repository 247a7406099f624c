//! What observes the runs: our own sampling, or a command that is put before the program's.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::Path;

use query::error::AnalysisError;
use tempfile::TempDir;

/// Placeholder in the observer's command for the items to collect.
const ITEM: &str = "{}";

#[derive(Clone, Debug)]
pub(super) enum Observer {
    /// `dcpi record`, with a dcpid of its own.
    Own,
    /// A tool: these words are put before the command.
    Before(Vec<OsString>),
    /// These words replace the command: a build with the observer in it.
    Instead(Vec<OsString>),
}

/// An observed command, and the resources that it needs until it ends.
pub(super) struct Observed {
    pub(super) words: Vec<OsString>,
    /// A database that is discarded.
    _database: Option<TempDir>,
}

impl Observer {
    /// The observer in words, for the report.
    pub(super) fn words(&self, items: &[String]) -> String {
        let text = |words: &[OsString]| {
            let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
            words.join(" ")
        };
        match self {
            Self::Own => format!("dcpi record{}", options(items)),
            Self::Before(words) => text(&filled(words, items)),
            Self::Instead(words) => text(words),
        }
    }

    /// The command under the observer, which collects these items.
    ///
    /// # Errors
    /// [`AnalysisError::Refused`] without room for a database.
    pub(super) fn observe(
        &self,
        command: &[OsString],
        items: &[String],
    ) -> Result<Observed, AnalysisError> {
        let refused = |what: &str, why: std::io::Error| {
            AnalysisError::Refused(format!("cannot {what}: {why}; set TMPDIR to another directory"))
        };
        match self {
            Self::Own => {
                let own = std::env::current_exe();
                let own = own.map_err(|why| refused("find this program", why))?;
                let database =
                    tempfile::tempdir().map_err(|why| refused("make a database", why))?;
                let path = database.path().join("db");
                let mut words: Vec<OsString> = vec![own.into(), "record".into(), "--db".into()];
                words.push(path.into());
                words.extend(items.iter().map(|item| format!("--event={item}").into()));
                words.push("--".into());
                words.extend(command.iter().cloned());
                Ok(Observed { words, _database: Some(database) })
            }
            Self::Before(before) => {
                let words = filled(before, items).into_iter().chain(command.iter().cloned());
                Ok(Observed { words: words.collect(), _database: None })
            }
            Self::Instead(words) => Ok(Observed { words: words.clone(), _database: None }),
        }
    }

    /// Name of the program whose time is measured.
    pub(super) fn program(&self, command: &[OsString]) -> OsString {
        let words = match self {
            // The observer's command is followed by `--` and the observed command.
            Self::Instead(words) => {
                words.split(|word| word == "--").next_back().unwrap_or_default()
            }
            _ => command,
        };
        let first = words.first().map(Path::new).and_then(Path::file_name);
        first.unwrap_or_default().to_owned()
    }
}

/// A text as words of a shell.
///
/// # Errors
/// [`AnalysisError::Usage`] where a quote is not closed, or there is no word.
pub(super) fn split(text: &OsString) -> Result<Vec<OsString>, AnalysisError> {
    let usage = |message: &str| AnalysisError::Usage {
        message: message.to_owned(),
        help: "dcpi perturb --help".to_owned(),
    };
    let words = shlex::bytes::split(text.as_bytes());
    let words = words.ok_or_else(|| usage("a quote is not closed in the observer's command"))?;
    if words.is_empty() {
        return Err(usage("the observer's command is empty"));
    }
    Ok(words.into_iter().map(OsString::from_vec).collect())
}

fn options(items: &[String]) -> String {
    items.iter().map(|item| format!(" --event={item}")).collect()
}

/// The words, with a word that has `{}` in it once for each item.
fn filled(words: &[OsString], items: &[String]) -> Vec<OsString> {
    let fill = |word: &OsString| match word.to_str().filter(|word| word.contains(ITEM)) {
        Some(text) => items.iter().map(|item| text.replace(ITEM, item).into()).collect(),
        None => vec![word.clone()],
    };
    words.iter().flat_map(fill).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_stand_where_the_observer_wants_them() {
        let words = split(&"dcpi trace '--at={}' -o 'a b' --".into()).unwrap();
        let items = ["lua:f".to_owned(), "lua:g".to_owned()];
        let observer = Observer::Before(words);
        let observed = observer.observe(&["lua".into(), "x.lua".into()], &items).unwrap();
        let expected =
            ["dcpi", "trace", "--at=lua:f", "--at=lua:g", "-o", "a b", "--", "lua", "x.lua"];
        assert_eq!(observed.words, expected);
        assert_eq!(observer.program(&["/usr/bin/lua".into()]), "lua");
        let instead = Observer::Instead(vec!["/tmp/lua-traced".into()]);
        assert_eq!(instead.program(&["lua".into()]), "lua-traced");
        assert_eq!(instead.words(&[]), "/tmp/lua-traced");
        let traced = split(&"dcpi trace --blocks -o x -- /tmp/lua-ids 1".into()).unwrap();
        assert_eq!(Observer::Instead(traced).program(&["lua".into()]), "lua-ids");
        assert!(split(&"a 'b".into()).is_err());
        assert!(split(&"".into()).is_err());
    }

    #[test]
    fn our_own_sampling_has_a_database_for_each_run() {
        let items = ["cpu-clock".to_owned()];
        let first = Observer::Own.observe(&["true".into()], &items).unwrap();
        let second = Observer::Own.observe(&["true".into()], &items).unwrap();
        assert_ne!(first.words[3], second.words[3]);
        assert_eq!(first.words[4..], ["--event=cpu-clock", "--", "true"]);
        assert_eq!(Observer::Own.words(&items), "dcpi record --event=cpu-clock");
    }
}
