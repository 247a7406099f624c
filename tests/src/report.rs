//! Runs dcpi and parses its reports in JSON.

use crate::{binary, succeed};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// `dcpi SUBCOMMAND --db DB ARGUMENTS...`, not started.
#[must_use]
pub fn dcpi(db: &Path, subcommand: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(binary("dcpi"));
    command.env("DCPI_VERBOSE", "1").arg(subcommand).arg("--db").arg(db).args(arguments);
    command
}

/// `dcpi prof --format json --db DB ARGUMENTS...`.
///
/// # Panics
/// When it fails, or says something else than spec/cli.md.
#[must_use]
pub fn prof(db: &Path, arguments: &[&str]) -> Prof {
    let text = succeed(dcpi(db, "prof", &["--format", "json"]).args(arguments));
    serde_json::from_str(&text)
        .unwrap_or_else(|error| panic!("dcpi prof --format json: {error}:\n{text}"))
}

/// Samples by label, unit or pid (`dcpi prof --by WHAT`). The first row, null, has the samples
/// without one.
///
/// # Panics
/// When it fails, or says something else than spec/cli.md.
#[must_use]
pub fn prof_by(db: &Path, what: &str, arguments: &[&str]) -> BTreeMap<Option<String>, u64> {
    let text = succeed(dcpi(db, "prof", &["--format", "json", "--by", what]).args(arguments));
    let report: serde_json::Value =
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}:\n{text}"));
    let row = |row: &serde_json::Value| {
        let counts = row.get("counts").and_then(serde_json::Value::as_object).expect("counts");
        let value = row.get(what).unwrap_or_else(|| panic!("a row without {what}: {row}"));
        let name = match value {
            serde_json::Value::Null => None,
            serde_json::Value::String(text) => Some(text.clone()),
            other => Some(other.to_string()),
        };
        (name, counts.values().filter_map(serde_json::Value::as_u64).sum())
    };
    report
        .get("rows")
        .and_then(serde_json::Value::as_array)
        .expect("rows")
        .iter()
        .map(row)
        .collect()
}

/// The fields of `dcpi prof --format json` that tests use.
#[derive(Debug, Deserialize)]
pub struct Prof {
    /// The sampled events.
    pub events: Vec<Event>,
    /// Procedures, or images, with their samples.
    pub rows: Vec<Row>,
    /// Samples without an image, by reason.
    pub unresolved: BTreeMap<String, u64>,
    /// Samples in no profile, by reason.
    pub lost: BTreeMap<String, u64>,
    /// Remarks for the reader.
    pub problems: Vec<Problem>,
}

/// A problem that a report states.
#[derive(Debug, Deserialize)]
pub struct Problem {
    /// A stable word.
    pub kind: String,
    /// Whether it makes the report incomplete or wrong.
    pub serious: bool,
}

/// One event.
#[derive(Debug, Deserialize)]
pub struct Event {
    /// perf's name.
    pub name: String,
    /// Mean period.
    pub period: u64,
    /// The unit of the period.
    pub unit: String,
    /// Samples taken and not lost.
    pub total: u64,
    /// Samples that shares are of.
    pub counted: u64,
    /// Samples of unknown code, by reason.
    pub unresolved: BTreeMap<String, u64>,
    /// Samples in no profile, by reason.
    pub lost: BTreeMap<String, u64>,
    /// Time for which it was enabled.
    pub enabled_ns: u64,
    /// Time for which it counted.
    pub running_ns: u64,
    /// `enabled_ns` over `running_ns`.
    pub scale: Option<f64>,
    /// Estimated occurrences.
    pub count: Option<Share>,
}

impl Event {
    /// Occurrences per ns of a CPU's time.
    ///
    /// # Panics
    /// When the event never counted.
    #[must_use]
    pub fn per_ns(&self) -> f64 {
        self.count.expect("it counted").value / self.enabled_ns as f64
    }
}

/// A procedure, or an image.
#[derive(Debug, Deserialize)]
pub struct Row {
    /// The procedure; none in a report of images.
    pub procedure: Option<String>,
    /// The image's name.
    pub image: String,
    /// The image's id.
    pub image_id: String,
    /// The kind of image.
    pub kind: String,
    /// Samples by event.
    pub counts: BTreeMap<String, u64>,
    /// Share by event.
    pub share: BTreeMap<String, Share>,
}

/// A share of samples, 0 to 1, or a number of occurrences, with its interval.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Share {
    /// The estimate.
    pub value: f64,
    /// No less than this, with the confidence asked for.
    pub low: f64,
    /// No more than this.
    pub high: f64,
}

impl Row {
    /// Samples; tests sample one event.
    ///
    /// # Panics
    /// When there are several.
    #[must_use]
    pub fn samples(&self) -> u64 {
        assert_eq!(self.counts.len(), 1, "{self:?}");
        self.counts.values().sum()
    }

    /// Its share.
    ///
    /// # Panics
    /// When there are several.
    #[must_use]
    pub fn share(&self) -> Share {
        assert_eq!(self.share.len(), 1, "{self:?}");
        *self.share.values().next().expect("one share")
    }
}

impl Prof {
    /// Sum of all samples in the report, those without an image included. Needs a report of
    /// everything: no IMAGE, `--idle`.
    ///
    /// # Panics
    /// When the report's own total is another.
    #[must_use]
    pub fn total(&self) -> u64 {
        let total = self.rows.iter().map(Row::samples).sum::<u64>();
        let mut by_kind: BTreeMap<(&str, &str), u64> = BTreeMap::new();
        for row in &self.rows {
            let reason = row.procedure.as_deref().filter(|_| row.kind == "unresolved");
            *by_kind.entry((&row.kind, reason.unwrap_or_default())).or_default() += row.samples();
        }
        let all = self.events.iter().map(|event| event.total).sum::<u64>();
        assert_eq!(total, all, "rows are of the total: {:?}, {by_kind:?}", self.events);
        total
    }

    /// The kinds of the problems.
    #[must_use]
    pub fn problem_kinds(&self) -> Vec<&str> {
        self.problems.iter().map(|problem| problem.kind.as_str()).collect()
    }

    /// The kinds of the serious problems. Missing symbols of a program are not serious.
    #[must_use]
    pub fn serious(&self) -> Vec<&str> {
        self.problems
            .iter()
            .filter(|problem| problem.serious)
            .map(|problem| problem.kind.as_str())
            .collect()
    }

    /// Rows of an image.
    pub fn of_image<'a>(&'a self, image: &str) -> impl Iterator<Item = &'a Row> {
        self.rows.iter().filter(move |row| row.image == image)
    }

    /// Samples of an image.
    #[must_use]
    pub fn samples_of_image(&self, image: &str) -> u64 {
        self.of_image(image).map(Row::samples).sum()
    }

    /// The row of a procedure.
    ///
    /// # Panics
    /// When there is none, or more than one.
    #[must_use]
    pub fn row(&self, image: &str, procedure: &str) -> &Row {
        let rows: Vec<_> = self
            .of_image(image)
            .filter(|row| row.procedure.as_deref() == Some(procedure))
            .collect();
        match rows.as_slice() {
            [row] => row,
            rows => panic!("{} rows of {procedure} in {image}, not one: {self:#?}", rows.len()),
        }
    }

    /// The CPU time that this many samples stand for, s. Only for events of time.
    ///
    /// # Panics
    /// When the event is of no time.
    #[must_use]
    pub fn seconds(&self, samples: u64) -> f64 {
        let event = self.events.first().expect("an event");
        assert_eq!(event.unit, "ns", "the test asks for an event of time");
        1e-9 * (samples * event.period) as f64
    }
}
