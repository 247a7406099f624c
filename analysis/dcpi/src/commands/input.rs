//! The standard input of a command that runs several times.

use std::fs::File;
use std::io::{self, IsTerminal as _, Seek as _};
use std::path::Path;

use exact::Streams;
use query::error::AnalysisError;

/// The open file of standard input, as a path: opened, a regular file begins at its start.
const STDIN: &str = "/proc/self/fd/0";

/// Most bytes of a pipe that are kept for the next run: a pipe may have no end.
const INPUT_MAX: u64 = 1 << 30;

pub(in crate::commands) enum Input {
    /// This process's standard input: a terminal, or a device without an end.
    Inherited,
    /// The content of this process's standard input, from its start for each run.
    Kept(File),
}

impl Input {
    /// As [`Input::keep`], unless there is one run only.
    pub(in crate::commands) fn keep_for(runs: u32) -> Result<Self, AnalysisError> {
        if runs > 1 { Self::keep() } else { Ok(Self::Inherited) }
    }

    /// Reads standard input to its end, unless it can be read again.
    ///
    /// # Errors
    /// [`AnalysisError::Refused`] where it cannot be kept.
    pub(in crate::commands) fn keep() -> Result<Self, AnalysisError> {
        let failed = |error: io::Error| {
            AnalysisError::Refused(format!(
                "cannot keep standard input for the second run: {error}; name a file as standard \
                 input, or room for temporary files in $TMPDIR"
            ))
        };
        let mut input = io::stdin();
        let is_null = same_file(Path::new(STDIN), Path::new("/dev/null"));
        let Ok(opened) = File::open(STDIN) else { return Ok(Self::Inherited) };
        if input.is_terminal() || is_null {
            return Ok(Self::Inherited);
        }
        if opened.metadata().is_ok_and(|metadata| metadata.is_file()) {
            return Ok(Self::Kept(opened));
        }
        let mut kept = tempfile::tempfile().map_err(failed)?;
        let copied = io::copy(&mut io::Read::take(&mut input, INPUT_MAX + 1), &mut kept);
        if copied.map_err(failed)? > INPUT_MAX {
            return Err(AnalysisError::Refused(format!(
                "standard input has more than {INPUT_MAX} bytes, and each run needs all of it; name \
                 a file as standard input"
            )));
        }
        Ok(Self::Kept(kept))
    }

    /// The streams of a run; of the `first` run output is seen.
    ///
    /// # Errors
    /// [`AnalysisError::Refused`] where the input cannot be read again.
    pub(in crate::commands) fn streams(&mut self, first: bool) -> Result<Streams, AnalysisError> {
        let input = match self {
            Self::Inherited => None,
            Self::Kept(file) => {
                let again = file.rewind().and_then(|()| file.try_clone());
                Some(again.map_err(|error| {
                    AnalysisError::Refused(format!(
                        "cannot read standard input again: {error}; name a file as standard input"
                    ))
                })?)
            }
        };
        Ok(Streams { input, quiet: !first })
    }
}

fn same_file(a: &Path, b: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let of = |path: &Path| path.metadata().ok().map(|of| (of.dev(), of.ino(), of.rdev()));
    of(a).is_some() && of(a) == of(b)
}
