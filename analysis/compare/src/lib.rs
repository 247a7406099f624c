//! Sets of samples to compare: their syntax on the command line, and their reading.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::str::FromStr;

use profiledb::Stretch;
use query::load::Question;
use query::scope::ScopeChoice;
use query::select::EpochChoice;
use query::times::{self as moments, Moment};
use query::zone::Zone;
use stats::Confidence;

mod renamed;
mod rows;
mod table;
mod times;

pub use renamed::Renamed;
pub use table::{
    EACH_MIN_SAMPLES, LeftOut, Part, Row, Set, Subject, Table, is_exact, read, samples,
};

/// The syntax of a SET, for `--help`.
pub const SYNTAX: &str = "\
A SET is one of
  WHICH           epochs of the database, as for --epoch: latest, all, ID, ID..ID, -N
  DIR             another database
  DIR@WHICH       epochs of another database
  KEY:VALUE,...   keys: db, epoch, epoch-label, host, label, unit, container, pod, namespace, pid,
                  since, until, as the options of that name; image: only this one, as an IMAGE of
                  other commands is named
'dcpi diff label:before label:after' compares two runs of dcpilabel, 'dcpi diff -1 latest' the \
last two epochs, 'dcpi diff image:ID image:ID' two builds of a program (dcpi images shows their \
ids), and 'dcpi diff epoch-label:old,host:a epoch-label:new,host:a' two epochs that \
dcpictl epoch --label began on the host a. 'dcpi diff since:-1h,until:-1min since:-1min' compares \
the last minute with the hour before it. The options --db, --epoch, --host, --label and so on \
give the parts that a SET does not name. db:DIR is for a directory whose name looks like another \
kind of SET; several, as in db:DIR,db:DIR, are one SET, of which each recording is a run.

Procedures of the same name in an image are one row, and so are images of the same name, rebuilt \
or not. Paths distinguish images only where a set has several files of that name.";

/// A set of samples, as typed. Parts that are none come from the options.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetChoice {
    /// As typed.
    pub typed: String,
    /// The directories of its databases; none: that of the options.
    pub dbs: Vec<PathBuf>,
    /// The epochs.
    pub epoch: Option<EpochChoice>,
    /// Their label.
    pub epoch_label: Option<String>,
    /// Their host.
    pub host: Option<String>,
    /// The label of runs.
    pub label: Option<String>,
    /// The systemd unit or container.
    pub unit: Option<String>,
    /// The container.
    pub container: Option<String>,
    /// The pod.
    pub pod: Option<String>,
    /// The namespace of the pod.
    pub namespace: Option<String>,
    /// Its images; of none: all, or those of the options.
    pub images: Vec<String>,
    /// The process.
    pub pid: Option<u32>,
    /// The time.
    pub time: Option<Stretch>,
}

const KEYS: [&str; 13] = [
    "db",
    "epoch",
    "epoch-label",
    "host",
    "label",
    "unit",
    "container",
    "pod",
    "namespace",
    "image",
    "pid",
    "since",
    "until",
];

/// Begin and end of a set's time, as typed.
type Moments = (Option<Moment>, Option<Moment>);

impl FromStr for SetChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // `@WHICH` is how the command line marks epochs that begin with a dash
        // (`args::with_marked_epochs`).
        let typed = text.strip_prefix('@').unwrap_or(text).to_owned();
        let mut set = Self { typed, ..Self::default() };
        if key_of(text).is_some() {
            let mut moments = Moments::default();
            for pair in pairs(text) {
                set.take(pair, &mut moments)?;
            }
            let (since, until) = (moments.0.as_ref(), moments.1.as_ref());
            set.time = moments::stretch(since, until, moments::now_unix_s(), &Zone::here())
                .map_err(|why| format!("has a time that cannot be: {}", why.replace("--", "")))?;
        } else if let Ok(epoch) = text.parse() {
            set.epoch = Some(epoch);
        } else if let Some((db, epoch)) = text.rsplit_once('@')
            && let Ok(epoch) = epoch.parse()
        {
            set.dbs.extend((!db.is_empty()).then(|| db.into()));
            set.epoch = Some(epoch);
        } else if text.is_empty() {
            return Err("is empty; a SET is epochs, a database, or KEY:VALUE".to_owned());
        } else {
            set.dbs = vec![text.into()];
        }
        Ok(set)
    }
}

impl SetChoice {
    fn take(&mut self, pair: &str, (since, until): &mut Moments) -> Result<(), String> {
        let (key, value) = pair.split_once(':').unwrap_or((pair, ""));
        if value.is_empty() {
            return Err(format!("has no value after {key}:"));
        }
        let twice = match key {
            "db" => {
                let is_known = self.dbs.iter().any(|db| db.as_os_str() == value);
                self.dbs.push(value.into());
                is_known
            }
            "epoch" => {
                let epoch =
                    value.parse().map_err(|why| format!("has epochs {value:?}, which {why}"))?;
                self.epoch.replace(epoch).is_some()
            }
            "epoch-label" => self.epoch_label.replace(value.to_owned()).is_some(),
            "host" => self.host.replace(value.to_owned()).is_some(),
            "label" => self.label.replace(value.to_owned()).is_some(),
            "unit" => self.unit.replace(value.to_owned()).is_some(),
            "container" => self.container.replace(value.to_owned()).is_some(),
            "pod" => self.pod.replace(value.to_owned()).is_some(),
            "namespace" => self.namespace.replace(value.to_owned()).is_some(),
            "image" => {
                self.images.push(value.to_owned());
                false
            }
            "since" | "until" => {
                let moment =
                    value.parse().map_err(|why| format!("has {key}:{value}, which {why}"))?;
                if key == "since" { since } else { until }.replace(moment).is_some()
            }
            _ => {
                let pid = value
                    .parse()
                    .map_err(|_| format!("has a pid {value:?}, which is no number"))?;
                self.pid.replace(pid).is_some()
            }
        };
        match (twice, key) {
            (true, "db") => Err(format!("has db:{value} twice")),
            (true, _) => Err(format!("has {key}: twice")),
            (false, _) => Ok(()),
        }
    }
}

fn key_of(text: &str) -> Option<&str> {
    let (key, _) = text.split_once(':')?;
    KEYS.contains(&key).then_some(key)
}

/// Parted at the commas that a key follows: a label may have others.
fn pairs(text: &str) -> Vec<&str> {
    let begins = |at: usize| text.get(at + 1..).is_some_and(|rest| key_of(rest).is_some());
    let mut pairs = Vec::new();
    let mut from = 0;
    for (at, _) in text.match_indices(',').filter(|(at, _)| begins(*at)) {
        pairs.extend(text.get(from..at));
        from = at + 1;
    }
    pairs.extend(text.get(from..));
    pairs
}

/// The question that all sets answer, and limits of the table.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// Defaults of the sets: database, epochs and scope; and the images whose samples shares are
    /// of. Its events are not used: see `event`.
    pub source: Question,
    /// Two builds that ran one after the other are each compared in its own time.
    pub own_times: bool,
    /// The event to compare; None: the first.
    pub event: Option<String>,
    /// A row per image instead of per procedure.
    pub by_image: bool,
    /// Include the samples of the idle loop.
    pub idle: bool,
    /// Directories of separate debug files, besides /usr/lib/debug.
    pub debug_roots: Vec<PathBuf>,
    /// The confidence of intervals and marks.
    pub confidence: Confidence,
    /// Fewest samples of a row in all sets together; None: 5 for each set.
    pub min_samples: Option<u64>,
    /// Images that are taken for others, so that builds with different file names meet.
    pub renamed: Vec<Renamed>,
    /// Most rows; 0 for all; None: the default of the report's format.
    pub rows: Option<usize>,
}

impl Comparison {
    /// Fewest samples of a row in all sets together.
    pub fn min_samples(&self, sets: usize) -> u64 {
        // Below, chi-squared is not (W. G. Cochran, "Some methods for strengthening the common
        // chi-squared tests", Biometrics 10, 1954).
        self.min_samples.unwrap_or(5_u64.saturating_mul(sets as u64))
    }
}

impl SetChoice {
    /// The questions for a set, one for each database: `source`, with the parts that the set names
    /// itself.
    pub fn questions(&self, source: &Question) -> Vec<Question> {
        let default = std::slice::from_ref(&source.db);
        let dbs = if self.dbs.is_empty() { default } else { &self.dbs };
        dbs.iter().map(|db| Question { db: db.clone(), ..self.question(source) }).collect()
    }

    /// The question, of no certain database.
    fn question(&self, source: &Question) -> Question {
        let either =
            |said: &Option<String>, else_: &Option<String>| said.clone().or_else(|| else_.clone());
        let mut own = source.clone();
        if let Some(which) = &self.epoch {
            own.epochs.which.clone_from(which);
        }
        own.epochs.stretch = self.time.or(source.epochs.stretch);
        own.epochs.host = either(&self.host, &source.epochs.host);
        own.epochs.label = either(&self.epoch_label, &source.epochs.label);
        own.whose = ScopeChoice {
            label: either(&self.label, &source.whose.label),
            unit: either(&self.unit, &source.whose.unit),
            container: either(&self.container, &source.whose.container),
            pod: either(&self.pod, &source.whose.pod),
            namespace: either(&self.namespace, &source.whose.namespace),
            pid: self.pid.or(source.whose.pid),
            ..source.whose.clone()
        };
        if !self.images.is_empty() {
            own.images.clone_from(&self.images);
        }
        own
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &str) -> SetChoice {
        text.parse().unwrap()
    }

    #[test]
    fn sets_are_epochs_databases_or_keys() {
        for epoch in ["latest", "all", "-1", "20261105", "20261105-080000..-2"] {
            let expected = SetChoice {
                typed: epoch.into(),
                epoch: Some(epoch.parse().unwrap()),
                ..SetChoice::default()
            };
            assert_eq!(set(epoch), expected);
            let there = set(&format!("/data/a@b@{epoch}"));
            assert_eq!(
                (there.dbs, there.epoch),
                (vec!["/data/a@b".into()], expected.epoch.clone())
            );
            assert_eq!(set(&format!("@{epoch}")), expected);
        }
        for directory in ["db", "./20261105", "/var/lib/dcpi", "a@b", "x:y", "c,d"] {
            assert_eq!(set(directory).dbs, [PathBuf::from(directory)], "{directory}");
        }
        let all =
            set("label:after, -O3,pid:7,unit:a.service,host:h,epoch-label:x,y,epoch:-1,db:/a,b");
        assert_eq!(
            (all.label.as_deref(), all.pid, all.unit.as_deref()),
            (Some("after, -O3"), Some(7), Some("a.service"))
        );
        assert_eq!((all.host.as_deref(), all.epoch_label.as_deref()), (Some("h"), Some("x,y")));
        assert_eq!((all.epoch, all.dbs), (Some(EpochChoice::back(1)), vec!["/a,b".into()]));
        let hour = set("since:2026-11-05T10:00:00Z,until:2026-11-05T11:00:00Z,host:a");
        let stretch = Stretch { since_unix_s: 1_793_872_800, until_unix_s: 1_793_876_400 };
        assert_eq!((hour.time, hour.host.as_deref()), (Some(stretch), Some("a")));
        let touch = [set("since:-1h,until:-1min").time, set("since:-1min").time];
        assert_eq!(touch[0].unwrap().until_unix_s, touch[1].unwrap().since_unix_s);
        let several = set("db:/a,epoch:all,db:/b");
        let questions = several.questions(&Question::default());
        let dbs: Vec<&PathBuf> = questions.iter().map(|question| &question.db).collect();
        assert_eq!(dbs, [&PathBuf::from("/a"), &PathBuf::from("/b")]);
    }

    #[test]
    fn what_cannot_be_a_set_is_told() {
        for (text, said) in [
            ("", "is empty"),
            ("label:", "has no value after label:"),
            ("epoch:tomorrow", "is none of latest"),
            ("pid:x", "which is no number"),
            ("label:a,label:b", "has label: twice"),
            ("db:a,db:b,db:a", "has db:a twice"),
            ("since:x", "has since:x, which is no moment"),
            ("since:-1min,until:-1h", "until is not after since"),
            ("until:-1h,until:-2h", "has until: twice"),
        ] {
            let error = text.parse::<SetChoice>().unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
