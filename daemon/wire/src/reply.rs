//! Replies of dcpid.

use crate::counts::Counts;
use crate::line;
use crate::status::Status;
use serde::{Deserialize, Serialize};

/// Longest reply that a client reads, in bytes. The longest replies are those with [`Counts`]:
/// 65536 places of about 25 bytes, and the names of images and procedures. The limit keeps a
/// client's memory bounded when something else than dcpid answers on the socket.
pub const REPLY_BYTES_MAX: u64 = 64 << 20;

/// A reply: an error, or the requested data. A request that returns no data, such as labelling a
/// process, has an empty reply when it is done.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    /// Why the request was not done, on one line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Reply to [`Request::Status`](crate::Request::Status).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Box<Status>>,
    /// The epoch that is open after a flush, a new epoch or a quit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<String>,
    /// Samples taken and written since the daemon started, in all its epochs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken: Option<u64>,
    /// Samples of these in profiles. The rest is unresolved or lost, by reason in the status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub merged: Option<u64>,
    /// Reply to [`Request::Counts`](crate::Request::Counts).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counts: Option<Box<Counts>>,
    /// Regions of the process that are registered after a register or an unregister.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub regions: Option<u64>,
}

impl Reply {
    /// The reply to a request that was not done.
    pub fn error(error: impl Into<String>) -> Self {
        Self { error: Some(error.into()), ..Self::default() }
    }

    /// The reply as a line.
    ///
    /// # Errors
    /// None that are known: a reply is made of numbers and text.
    pub fn encode(&self) -> serde_json::Result<Vec<u8>> {
        line::encode(self)
    }
}
