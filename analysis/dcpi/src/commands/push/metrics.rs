//! How pushing goes, for Prometheus: a file in its text format, which the textfile collector of
//! node_exporter reads.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::destination::Destination;
use query::error::AnalysisError;

/// The numbers so far.
#[derive(Debug, Default)]
pub(super) struct Metrics {
    /// Where to write them; None: nowhere.
    file: Option<PathBuf>,
    attempts: u64,
    failures: u64,
    objects: u64,
    succeeded_unix_s: Option<u64>,
}

impl Metrics {
    /// Metrics in a file that is replaced after each attempt.
    pub(super) fn new(file: Option<&Path>) -> Self {
        Self { file: file.map(Path::to_path_buf), ..Self::default() }
    }

    /// Notes an attempt that sent so many objects, and whether it got to its end.
    ///
    /// # Errors
    /// [`AnalysisError::OutputFile`].
    pub(super) fn note(&mut self, objects: u64, is_done: bool) -> Result<(), AnalysisError> {
        self.attempts += 1;
        self.failures += u64::from(!is_done);
        self.objects += objects;
        if is_done {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            self.succeeded_unix_s = Some(now.as_secs());
        }
        let Some(file) = &self.file else { return Ok(()) };
        let text = self.text();
        let to = Destination::from_argument(file);
        to.write(&mut io::sink(), |out| Ok(out.write_all(text.as_bytes())?))
    }

    fn text(&self) -> String {
        let Self { attempts, failures, objects, succeeded_unix_s, .. } = self;
        let mut text = String::new();
        for (name, kind, help, value) in [
            ("attempts_total", "counter", "Pushes begun.", Some(*attempts)),
            ("failures_total", "counter", "Pushes that did not get to their end.", Some(*failures)),
            ("objects_total", "counter", "Epochs or requests sent.", Some(*objects)),
            (
                "last_success_timestamp_seconds",
                "gauge",
                "When all that was new had been sent.",
                *succeeded_unix_s,
            ),
        ] {
            if let Some(value) = value {
                text += &format!("# HELP dcpi_push_{name} {help}\n");
                text += &format!("# TYPE dcpi_push_{name} {kind}\ndcpi_push_{name} {value}\n");
            }
        }
        text
    }
}
