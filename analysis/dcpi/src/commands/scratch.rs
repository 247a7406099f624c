//! Directories for temporary files. Those of recordings without `-o` stay: `dcpi record` makes
//! them, and `dcpi clean` finds them.

use std::path::{Path, PathBuf};

use query::error::AnalysisError;

/// First part of a recording's name in the directory for temporary files; the process number and
/// microseconds follow.
pub(super) const SCRATCH_PREFIX: &str = "dcpi-record-";

pub(super) fn control_path(directory: &Path) -> PathBuf {
    directory.join("control.sock")
}

/// A new directory for temporary files, which is removed when the value is dropped.
pub(super) fn temporary(prefix: &str) -> Result<tempfile::TempDir, AnalysisError> {
    tempfile::Builder::new().prefix(prefix).tempdir().map_err(|error| {
        AnalysisError::Refused(format!(
            "cannot make a directory for temporary files: {error}; name another in $TMPDIR"
        ))
    })
}
