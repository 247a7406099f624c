//! Where `dcpi record` keeps a recording that is not kept, and `dcpi clean` finds it.

use std::path::{Path, PathBuf};

/// What names of recordings in the directory for temporary files begin with; the process number and
/// microseconds follow.
pub(super) const SCRATCH_PREFIX: &str = "dcpi-record-";

pub(super) fn control_path(directory: &Path) -> PathBuf {
    directory.join("control.sock")
}
