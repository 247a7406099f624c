//! Why a procedure takes its time, by what dcpid has written to disk of the last minutes: unlike
//! samples, what the causes rest on is not among the counts that dcpid tells.

use std::path::Path;

use wire::Client;

use super::names::Label;
use crate::commands::why::{self, Why};
use crate::options;

/// The time that is asked about.
const SINCE: &str = "-15min";
/// Causes that are shown.
const ROWS: &str = "2";

/// A line for each cause, with what to try; or one that says why there is none.
pub(super) fn of(control: &Path, label: &Label) -> Vec<String> {
    let Ok(status) = Client::new(control).status() else { return Vec::new() };
    let words = ["--db", &status.db.path, "--since", SINCE, "-n", ROWS];
    let words = words.into_iter().chain([label.image.as_str(), label.procedure.as_str()]);
    let Ok(asked) = options::typed::<Why>(words) else { return Vec::new() };
    let told = match why::of(&asked) {
        Ok(told) => told,
        Err(_) => {
            let none = "not known yet: dcpictl flush has dcpid write its samples to disk";
            return vec![none.to_owned()];
        }
    };
    told.findings.iter().map(report::WhyFinding::line).collect()
}
