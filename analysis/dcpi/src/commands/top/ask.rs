//! A watch of a running dcpid: the samples since the last question.

use std::hash::{BuildHasher as _, RandomState};
use std::path::{Path, PathBuf};
use std::time::Duration;

use wire::{Client, ClientError, Counts};

use query::error::AnalysisError;

/// Longest silence of a daemon that is asked for counts. It answers at once, unless a drain is
/// under way, which takes less than a second. A shorter limit would give up on a busy machine; a
/// longer one leaves the screen without a word for longer.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// A daemon, and the number of the watch that the daemon keeps for us.
#[derive(Debug)]
pub(super) struct Daemon {
    control: PathBuf,
    client: Client,
    watch: u64,
}

impl Daemon {
    /// The daemon that listens on a socket.
    pub(super) fn on(control: &Path) -> Self {
        let client = Client::new(control).with_silence_max(SILENCE_MAX);
        // Random, so that no other client has the same number.
        Self {
            control: control.to_owned(),
            client,
            watch: RandomState::new().hash_one(std::process::id()),
        }
    }

    /// Its control socket.
    pub(super) fn control(&self) -> &Path {
        &self.control
    }

    /// The samples since the last question; none at the first.
    pub(super) fn ask(&self) -> Result<Counts, AnalysisError> {
        self.client.counts(self.watch).map_err(|error| match error {
            ClientError::Refused(why) => {
                AnalysisError::Refused(format!("dcpid: {why}; see dcpictl status"))
            }
            error => AnalysisError::Refused(error.to_string()),
        })
    }
}
