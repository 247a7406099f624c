//! Directories of recordings without `-o`: `dcpi record` makes them, and `dcpi clean` finds them.

use std::path::{Path, PathBuf};

/// First part of a recording's name in the directory for temporary files; the process number and
/// microseconds follow.
pub(super) const SCRATCH_PREFIX: &str = "dcpi-record-";

pub(super) fn control_path(directory: &Path) -> PathBuf {
    directory.join("control.sock")
}
