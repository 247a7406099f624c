//! Answers that are given again while the database is as it was: a page that is opened again, or in
//! a second window, need not wait for the same reports. Of an epoch that has ended they hold until
//! they are too old; of one that goes on, until the next merge.

use std::collections::VecDeque;
use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use profiledb::EpochId;

/// Most bytes of answers together: a report of all procedures of a busy host takes some MB.
const BYTES_MAX: usize = 64 << 20;
/// Most answers: a search that is typed asks many small questions.
const ANSWERS_MAX: usize = 1000;
/// Longest time for which an answer is given again. It may depend on files outside of the database,
/// as debug information, which nothing watches.
const AGE_MAX: Duration = Duration::from_secs(600);
/// Most files of a database that are looked at: in a larger one, looking takes as long as small
/// reports do.
const FILES_MAX: usize = 50_000;
/// Files that say nothing about samples, and change all the time.
const ASIDE: [&str; 2] = ["catalogue", "lock"];

/// A question with the state of what it is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    words: Vec<String>,
    state: u64,
}

impl Asked {
    /// The words of a command, and the state of the epochs that it may read. None where answers
    /// are not kept: for moments that pass, and for databases of too many files.
    pub fn of(db: &Path, name: &str, words: &[String]) -> Option<Self> {
        // `-1min`, `14:03`: other moments when asked again. RFC 3339 has a T.
        let is_relative = |word: &String| {
            let time = ["--since=", "--until="].iter().find_map(|name| word.strip_prefix(name));
            ["--since", "--until"].contains(&word.as_str())
                || time.is_some_and(|time| !time.contains('T'))
        };
        let passes =
            |word: &String| word.contains("since:") || word.contains("until:") || is_relative(word);
        if words.iter().any(passes) {
            return None;
        }
        let epoch = words.iter().find_map(|word| word.strip_prefix("--epoch=")?.parse().ok());
        let state = state(db, epoch.as_ref())?;
        let words = std::iter::once(name.to_owned()).chain(words.iter().cloned()).collect();
        Some(Self { words, state })
    }
}

/// Names, sizes and times of the files below a directory; of the epochs, only of `epoch` if there
/// is one.
fn state(db: &Path, epoch: Option<&EpochId>) -> Option<u64> {
    let mut hasher = DefaultHasher::new();
    let mut todo: Vec<PathBuf> = vec![db.to_owned()];
    let mut files = 0;
    while let Some(directory) = todo.pop() {
        let Ok(entries) = fs::read_dir(&directory) else { continue };
        let mut entries: Vec<fs::DirEntry> = entries.filter_map(Result::ok).collect();
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let name = entry.file_name();
            let text = name.to_str().unwrap_or_default();
            let is_other =
                |epoch: &EpochId| text.parse::<EpochId>().is_ok_and(|other| other != *epoch);
            if ASIDE.contains(&text) || epoch.is_some_and(is_other) {
                continue;
            }
            files += 1;
            if files > FILES_MAX {
                return None;
            }
            let Ok(found) = entry.metadata() else { continue };
            // What a link leads to is not looked at.
            if found.is_symlink() {
                return None;
            }
            if found.is_dir() {
                entry.path().hash(&mut hasher);
                todo.push(entry.path());
                continue;
            }
            (entry.path(), found.ino(), found.len()).hash(&mut hasher);
            (found.mtime(), found.mtime_nsec()).hash(&mut hasher);
        }
    }
    Some(hasher.finish())
}

/// Answers, the latest at the end.
#[derive(Debug, Default)]
pub struct Answers {
    kept: Mutex<VecDeque<Kept>>,
}

#[derive(Debug)]
struct Kept {
    asked: Asked,
    made: Instant,
    json: Arc<Vec<u8>>,
}

impl Answers {
    /// The answer that was given before, if it holds at `now`.
    pub fn given(&self, asked: &Asked, now: Instant) -> Option<Arc<Vec<u8>>> {
        let mut kept = self.locked();
        kept.retain(|one| now.saturating_duration_since(one.made) < AGE_MAX);
        kept.iter().find(|one| one.asked == *asked).map(|one| Arc::clone(&one.json))
    }

    /// Keeps an answer, and drops the oldest ones for it, and those of earlier states.
    pub fn keep(&self, asked: Asked, json: &Arc<Vec<u8>>, now: Instant) {
        let mut kept = self.locked();
        kept.retain(|one| one.asked.words != asked.words);
        kept.push_back(Kept { asked, made: now, json: Arc::clone(json) });
        let bytes = |kept: &VecDeque<Kept>| kept.iter().map(|one| one.json.len()).sum::<usize>();
        while bytes(&kept) > BYTES_MAX || kept.len() > ANSWERS_MAX {
            kept.pop_front();
        }
    }

    fn locked(&self) -> MutexGuard<'_, VecDeque<Kept>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "20261105-101500";
    const NEW: &str = "20261106-101500";

    fn write(db: &Path, epoch: &str, name: &str) {
        let directory = db.join("hosts/a").join(epoch);
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join(name), name).unwrap();
    }

    fn asked(db: &Path, word: &str) -> Asked {
        Asked::of(db, "prof", &[word.to_owned()]).unwrap()
    }

    #[test]
    fn an_answer_holds_until_its_epochs_change() {
        let db = tempfile::tempdir().unwrap();
        let db = db.path();
        write(db, OLD, "0-0.segment");
        write(db, NEW, "0-0.segment");
        let of_old = format!("--epoch={OLD}");
        let (one, all) = (asked(db, &of_old), asked(db, "--epoch=all"));
        assert_eq!(one, asked(db, &of_old));
        write(db, NEW, "1-1.segment");
        assert_eq!(one, asked(db, &of_old), "another epoch");
        assert_ne!(all, asked(db, "--epoch=all"));
        write(db, OLD, "1-1.segment");
        assert_ne!(one, asked(db, &of_old));
        assert_eq!(Asked::of(db, "diff", &["since:-1min".to_owned()]), None);
    }

    #[test]
    fn answers_grow_old_and_have_bounds() {
        let db = tempfile::tempdir().unwrap();
        let (answers, now) = (Answers::default(), Instant::now());
        let question = asked(db.path(), "-i");
        let json = Arc::new(b"{}".to_vec());
        answers.keep(question.clone(), &json, now);
        assert_eq!(answers.given(&question, now), Some(Arc::clone(&json)));
        assert_eq!(answers.given(&asked(db.path(), "--idle"), now), None);
        assert_eq!(answers.given(&question, now + AGE_MAX), None);
        answers.keep(question.clone(), &json, now);
        let large = Arc::new(vec![0; BYTES_MAX]);
        answers.keep(asked(db.path(), "--all"), &large, now);
        assert_eq!(answers.given(&question, now), None, "there is no room for both");
        answers.keep(question.clone(), &Arc::new(vec![0; BYTES_MAX + 1]), now);
        assert_eq!(answers.given(&question, now), None, "it is too large");
        answers.keep(question.clone(), &json, now);
        for number in 0..ANSWERS_MAX {
            answers.keep(asked(db.path(), &format!("-n{number}")), &json, now);
        }
        assert_eq!(answers.given(&question, now), None, "there are too many");
    }
}
