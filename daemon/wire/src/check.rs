//! What `dcpid --check-host` says of the host, for `dcpi doctor`.

use serde::{Deserialize, Serialize};

/// One property of the host without which dcpid samples less, or not at all: a kernel feature, a
/// right, a limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostCheck {
    /// What was looked at, in a word.
    pub name: String,
    /// Whether it allows all that dcpid does with it.
    pub ok: bool,
    /// What was found.
    pub found: String,
    /// What to do about it, in a line. None where it is well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl HostCheck {
    /// A check, with the remedy that is told where it is not well.
    pub fn new(name: &str, ok: bool, found: impl Into<String>, remedy: &str) -> Self {
        let remedy = (!ok).then(|| remedy.to_owned());
        Self { name: name.to_owned(), ok, found: found.into(), remedy }
    }
}
