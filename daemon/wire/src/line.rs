//! One message as one line.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Why a line is not a message.
#[derive(Debug)]
pub(crate) enum LineError {
    /// The line has no newline at its end: it was cut off, by its reader's limit or its writer's
    /// end.
    Cut,
    /// The line is whole and of no message known here.
    Unknown(serde_json::Error),
}

/// The message and a newline. serde_json escapes control characters, so the line has no other.
pub(crate) fn encode(message: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    Ok(line)
}

/// The message of a line. A message that is complete without its newline is taken: its client has
/// closed the connection right after it.
pub(crate) fn decode<Message: DeserializeOwned>(line: &[u8]) -> Result<Message, LineError> {
    serde_json::from_slice(line).map_err(|error| match line.ends_with(b"\n") {
        true => LineError::Unknown(error),
        false => LineError::Cut,
    })
}
