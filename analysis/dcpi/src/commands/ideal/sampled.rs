//! Samples of a command beside its exact counts, in one epoch.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use exact::Streams;
use image::ImageId;
use model::SampledRuns;
use profiledb::{Database, Epoch, EpochId, ImageRecord, Scope, Writer, copy_code, merge_epochs};
use stalls::clock::hertz;

use super::database::{Writing, Written};
use crate::commands::input::Input;
use crate::commands::record::{Repeated, repeated};
use crate::commands::scratch::temporary;
use query::error::AnalysisError;

/// A command that was sampled and is to be counted.
pub(super) struct Sampled {
    /// The database of samples and, later, counts. It is removed when this is dropped.
    directory: tempfile::TempDir,
    label: String,
    runs: u32,
    hertz: Option<f64>,
    recorded: Repeated,
    input: Input,
}

impl Sampled {
    /// Samples `runs` runs of a command. The output of the first is seen. `target` is the database
    /// that the samples will be written into.
    ///
    /// # Errors
    /// [`AnalysisError::Refused`] where the target cannot be written, or nothing be recorded.
    pub(super) fn record(
        label: &str,
        command: &[OsString],
        (runs, edges): (u32, &str),
        target: &Path,
    ) -> Result<Self, AnalysisError> {
        prepare(target)?;
        let directory = temporary("dcpi-ideal-")?;
        let mut input = Input::keep()?;
        let before = hertz();
        let db = directory.path().join("db");
        let refused = |error: AnalysisError| match error {
            AnalysisError::Refused(why) => AnalysisError::Refused(why.replace(
                "dcpi record needs root: sudo dcpi record ...",
                "--sampled needs root: sudo dcpi ideal --sampled ...",
            )),
            error => error,
        };
        let recorded =
            repeated((label, command), &db, (runs, edges), |run| input.streams(run == 0))
                .map_err(refused)?;
        // Clocks follow load and heat: that of the runs lies between.
        let hertz = before.zip(hertz()).map(|(before, after)| (before + after) / 2.0);
        Ok(Self { directory, label: label.to_owned(), runs, hertz, recorded, input })
    }

    fn db(&self) -> PathBuf {
        self.directory.path().join("db")
    }

    /// The end of the first run.
    pub(super) fn status(&self) -> ExitStatus {
        self.recorded.status
    }

    pub(super) fn seconds(&self) -> f64 {
        self.recorded.took.as_secs_f64()
    }

    /// The streams of the run that is counted.
    ///
    /// # Errors
    /// [`AnalysisError::Refused`] where the input cannot be read again.
    pub(super) fn streams(&mut self) -> Result<Streams, AnalysisError> {
        self.input.streams(false)
    }

    /// Begins the epoch of the counts.
    ///
    /// # Errors
    /// [`AnalysisError::Refused`] where it cannot be written.
    pub(super) fn writing(&self) -> Result<Writing, AnalysisError> {
        let scope = Scope { label: Some(self.label.clone()), ..Scope::default() };
        Writing::open(&self.db(), &self.label, scope, &super::EVENTS)
    }

    /// The images with samples.
    ///
    /// # Errors
    /// [`AnalysisError::Database`] where the samples cannot be read.
    pub(super) fn images(&self) -> Result<BTreeMap<ImageId, ImageRecord>, AnalysisError> {
        let mut images = BTreeMap::new();
        for epoch in self.epochs(&Database::open(&self.db())?)? {
            images.extend(epoch.images()?);
        }
        Ok(images)
    }

    fn epochs(&self, db: &Database) -> Result<Vec<Epoch>, AnalysisError> {
        let Repeated { host, epochs: (first, last), .. } = &self.recorded;
        let (first, last): (EpochId, EpochId) = (first.parse()?, last.parse()?);
        let ids = db.epochs(host)?.into_iter().filter(|id| (&first..=&last).contains(&id));
        Ok(ids.map(|id| db.epoch(host, &id)).collect::<Result<_, _>>()?)
    }

    /// Writes samples and counts as one epoch of the target.
    ///
    /// # Errors
    /// [`AnalysisError::Database`] where they cannot be read, or it cannot be written.
    pub(super) fn join(&self, counted: &Written, target: &Path) -> Result<Written, AnalysisError> {
        let db = Database::open(&self.db())?;
        let mut epochs = self.epochs(&db)?;
        let mut facts = epochs.last().map(|epoch| epoch.meta().facts.clone()).unwrap_or_default();
        let counted_epoch = db.epoch(&counted.host, &counted.epoch.parse()?)?;
        facts.extend(&counted_epoch.meta().facts);
        facts.state(&SampledRuns { runs: self.runs, hertz: self.hertz });
        epochs.push(counted_epoch);
        let to = Database::open(target)?;
        let epoch = merge_epochs(&epochs, &to, &counted.host, Some(&self.label), &facts)?;
        for epoch in &epochs {
            let images = epoch.images()?.into_keys().collect();
            copy_code(&db, &epoch.meta().host, &images, &to)?;
        }
        let notes = counted.notes.clone();
        Ok(Written { host: counted.host.clone(), epoch: epoch.to_string(), notes })
    }
}

/// Makes the database, or ends an epoch that a killed writer left open in it, so that an epoch can
/// be added. What keeps it from being written is known before the command runs.
fn prepare(target: &Path) -> Result<(), AnalysisError> {
    let host = super::database::host();
    drop(Writer::open(target, &host)?);
    let _ = profiledb::seal(&Database::open(target)?, &host)?;
    Ok(())
}
