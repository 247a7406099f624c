//! Requests to dcpid.

use crate::line::{self, LineError};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Longest request, in bytes, newline included. dcpid reads no further and refuses the request, so
/// that no client makes it hold more. The longest request is a [`Registration`], whose file name
/// may have 4096 bytes.
pub const REQUEST_BYTES_MAX: usize = 16 << 10;

/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "lowercase")]
pub enum Request {
    /// The daemon's state: [`Reply::status`](crate::Reply::status).
    Status,
    /// Put everything sampled before this request on disk.
    Flush,
    /// Do what [`Request::Flush`] does, then open a new epoch.
    Epoch {
        /// Name of the new epoch.
        #[serde(default)]
        label: Option<String>,
    },
    /// Keep the samples of a process and its children apart from now on.
    Label {
        /// Number of the process in the daemon's pid namespace; the children that the process has
        /// are labelled too. None: the client itself, which has no children yet.
        #[serde(default)]
        pid: Option<u32>,
        /// Start time of the process, as in field 22 of /proc/PID/stat: another process that has
        /// the number by now is not labelled.
        #[serde(default)]
        start_time: Option<u64>,
        /// The label.
        label: String,
    },
    /// The samples since the last request of this watch:
    /// [`Reply::counts`](crate::Reply::counts). A watch begins with its first request.
    Counts {
        /// Number of the watch, which the client chooses at random.
        watch: u64,
        /// User of the client. The control socket fills it in, whatever the client says.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        user: Option<u32>,
    },
    /// Do what [`Request::Flush`] does, then end the daemon.
    Quit,
    /// Register a region of a process's memory as code.
    Register(Registration),
    /// Forget a registered region.
    Unregister {
        /// Number of the process.
        pid: u32,
        /// Address of the region's first byte.
        start: u64,
    },
}

/// A region of a process's memory that is code.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registration {
    /// Number of the process in the daemon's pid namespace.
    pub pid: u32,
    /// Address of the region's first byte.
    pub start: u64,
    /// Length of the region in bytes.
    pub len: u64,
    /// Name of the procedure.
    pub name: String,
    /// Name of the image that the region belongs to. None: the process's own image of generated
    /// code.
    #[serde(default)]
    pub image: Option<String>,
    /// Absolute path of the file whose code the region is a copy of.
    #[serde(default)]
    pub file: Option<PathBuf>,
    /// Offset in that file of the region's first byte.
    #[serde(default)]
    pub offset: u64,
}

/// Why a line is no request; its text is the error that dcpid replies.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The line is cut off, most likely by the limit.
    #[error("a request is one line of at most {REQUEST_BYTES_MAX} bytes")]
    Cut,
    /// The line is no request that is known here.
    #[error("not a request of this version of dcpictl: {0}")]
    Unknown(serde_json::Error),
}

impl Request {
    /// The request as a line.
    ///
    /// # Errors
    /// The file name of a [`Registration`] is not UTF-8, which JSON cannot say.
    pub fn encode(&self) -> serde_json::Result<Vec<u8>> {
        line::encode(self)
    }

    /// The request of a line, of which at most [`REQUEST_BYTES_MAX`] bytes were read.
    pub fn decode(line: &[u8]) -> Result<Self, RequestError> {
        line::decode(line).map_err(|error| match error {
            LineError::Cut => RequestError::Cut,
            LineError::Unknown(error) => RequestError::Unknown(error),
        })
    }
}
