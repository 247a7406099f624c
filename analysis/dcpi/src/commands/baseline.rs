//! Measurements of builds: compared with one of before (`--baseline`), as a file for Bencher
//! (`--bencher`), as an annotation of GitHub's.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write};
use std::path::{Path, PathBuf};

use measure::Interval;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::ideal::database::cpu_model;
use crate::destination::Destination;
use crate::plain_file;
use query::error::AnalysisError;

/// Most bytes of a baseline: 100,000 runs have 20 MB.
const BYTES_MAX: u64 = 64 << 20;

/// The head of a report in JSON.
#[derive(Deserialize)]
struct Head {
    schema: Schema,
    cpu: String,
}

#[derive(Deserialize)]
struct Schema {
    name: String,
}

/// Reads what `dcpi NAME --format json` wrote on this kind of processor.
///
/// # Errors
/// [`AnalysisError::Refused`] for a file that cannot be read, of something else, or of another
/// processor, whose times and counts are no measure for this one's.
pub(super) fn read<T: DeserializeOwned>(path: &Path, name: &str) -> Result<T, AnalysisError> {
    let refused = |why: &str| {
        let (file, make) = (path.display(), format!("dcpi {name} --format json writes one"));
        AnalysisError::Refused(format!("baseline {file}: {why}; {make}"))
    };
    let mut text = String::new();
    let file = plain_file::open(path).map_err(|error| refused(&error.to_string()))?;
    let read = file.take(BYTES_MAX + 1).read_to_string(&mut text);
    if read.map_err(|error| refused(&error.to_string()))? as u64 > BYTES_MAX {
        return Err(refused("it has more than 64 MiB: no report of so few runs is that long"));
    }
    let head: Head = serde_json::from_str(&text)
        .map_err(|error| refused(&format!("it is no report of dcpi's ({error})")))?;
    let of = head.schema.name.strip_prefix("dcpi.").unwrap_or_default();
    if of != name {
        return Err(refused(&format!("it is a report of dcpi {of}")));
    }
    let here = cpu_model().unwrap_or_default();
    if head.cpu != here {
        return Err(refused(&format!(
            "it was measured on another processor ({}; here {here})",
            head.cpu
        )));
    }
    serde_json::from_str(&text).map_err(|error| refused(&error.to_string()))
}

/// Refuses outputs that would replace the baseline.
pub(super) fn check_outputs(
    baseline: Option<&Path>,
    outputs: [Option<&PathBuf>; 2],
) -> Result<(), AnalysisError> {
    let place = |path: &Path| std::fs::canonicalize(path).ok();
    let Some(own) = baseline.and_then(place) else { return Ok(()) };
    let replaced = outputs.into_iter().flatten().find(|to| place(to).as_ref() == Some(&own));
    replaced.map_or(Ok(()), |to| {
        let why = format!("{} is the baseline: name another file to write to", to.display());
        Err(AnalysisError::Refused(why))
    })
}

/// A measure in Bencher's metric format (bencher.dev, "Bencher Metric Format").
#[derive(Serialize)]
struct Metric {
    value: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    lower_value: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    upper_value: Option<f64>,
}

/// Writes measures of a benchmark, by name, to a file for Bencher.
///
/// # Errors
/// Returns those of [`Destination::write`].
pub(super) fn write_bencher(
    path: Option<&PathBuf>,
    benchmark: &str,
    measures: &[(String, Interval)],
) -> Result<(), AnalysisError> {
    let Some(path) = path else { return Ok(()) };
    let metric = |Interval { value, low, high }: &Interval| {
        // Of one run there is no interval.
        let end = |end: &f64| Some(*end).filter(|end| end.is_finite() && low < high);
        Metric { value: *value, lower_value: end(low), upper_value: end(high) }
    };
    let all: BTreeMap<&str, Metric> =
        measures.iter().map(|(name, interval)| (name.as_str(), metric(interval))).collect();
    let benchmarks = BTreeMap::from([(benchmark, all)]);
    Destination::from_argument(path).write(&mut io::stdout(), |out| {
        serde_json::to_writer_pretty(&mut *out, &benchmarks)
            .map_err(|error| AnalysisError::Output(error.into()))?;
        Ok(writeln!(out)?)
    })
}

/// Says in a build of GitHub's why a step of it fails, so that the page of the build shows it
/// (docs.github.com, "Workflow commands": `::error title={title}::{message}`).
pub(super) fn annotate(command: &str, says: &str) -> io::Result<()> {
    if std::env::var_os("GITHUB_ACTIONS").is_none_or(|of| of != "true") {
        return Ok(());
    }
    let says = says.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A");
    writeln!(io::stderr(), "::error title=dcpi {command}::{says}")
}
