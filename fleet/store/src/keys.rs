//! Keys: which objects there are in a store.

use std::fmt;

use object_store::path::Path as Place;
use profiledb::{FORMAT, check_code_object, check_epoch_object};

use crate::objects::StoreError;

/// Directory of the epochs, which is a database.
const RAW: &str = "raw";
/// Directory of the code of images below, which all hosts have in common.
const CODE: &str = "code/";
/// Largest object, in bytes (`profiledb/FORMAT.md`: largest file).
pub const OBJECT_BYTES_MAX: u64 = 256 << 20;
/// Longest key, in bytes: the directory, a host (253), an epoch and the name of a segment.
const KEY_BYTES_MAX: usize = 320;

/// The key of an object that hosts put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Key {
    /// The file that makes the epochs a database.
    Format,
    /// An epoch of a host: its place in the database.
    Epoch(String),
    /// The kept part of an image's file: its name.
    Code(String),
}

impl Key {
    /// The key of a path without leading slash; None for a path that is none. Whether a host, an
    /// epoch or an image has such a name, [`Key::check`] tells.
    #[must_use]
    pub fn parse(path: &str) -> Option<Self> {
        let is_part = |part: &str| {
            // Object stores take a percent sign for the start of a code.
            let is_plain = |character: char| !character.is_control() && character != '%';
            !part.is_empty() && !part.starts_with('.') && part.chars().all(is_plain)
        };
        if path.len() > KEY_BYTES_MAX
            || !path.split('/').all(is_part)
            || Place::parse(path).is_err()
        {
            return None;
        }
        match path.split_once('/')? {
            (RAW, "format") => Some(Self::Format),
            (RAW, place) if place.starts_with("hosts/") => Some(Self::Epoch(place.to_owned())),
            (RAW, place) => {
                let name = place.strip_prefix(CODE).filter(|name| !name.contains('/'))?;
                Some(Self::Code(name.to_owned()))
            }
            _ => None,
        }
    }

    /// Refuses an object that is not what its key says, or is damaged.
    ///
    /// # Errors
    /// [`StoreError::Unfit`].
    pub fn check(&self, object: &[u8]) -> Result<(), StoreError> {
        let checked = match self {
            Self::Format if object == FORMAT => return Ok(()),
            Self::Format => return Err(StoreError::Unfit("another format".to_owned())),
            Self::Epoch(place) => check_epoch_object(place, object),
            Self::Code(name) => check_code_object(name, object),
        };
        checked.map_err(|error| StoreError::Unfit(error.to_string()))
    }

    /// The same text: other programs find objects by it.
    pub(crate) fn place(&self) -> Result<Place, StoreError> {
        Place::parse(self.to_string()).map_err(|error| StoreError::Failed(error.into()))
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Format => write!(f, "{RAW}/format"),
            Self::Epoch(place) => write!(f, "{RAW}/{place}"),
            Self::Code(name) => write!(f, "{RAW}/{CODE}{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn keys_are_those_of_objects_and_lead_nowhere_else() {
        let epoch = "raw/hosts/node-1/20261105-101500/0-1.segment";
        for path in ["raw/format", epoch, "raw/code/4ef6.code", "raw/hosts/ü x/1/2"] {
            assert_eq!(Key::parse(path).unwrap().to_string(), path);
        }
        let long = format!("raw/code/{}", "x".repeat(KEY_BYTES_MAX));
        for path in [
            "",
            "raw",
            "raw/",
            "raw/hosts/../../etc/passwd",
            "raw/code/..",
            "raw/code/a/b",
            "/raw/format",
            "raw/x",
            "raw/code/.partial-1",
            "raw/hosts//1",
            "raw/code/a\nb",
            "raw/code/a%b",
            "other/x",
            long.as_str(),
        ] {
            assert_eq!(Key::parse(path), None, "{path:?}");
        }
    }

    #[test]
    fn objects_that_are_not_what_their_key_says_are_refused() {
        let epoch = "raw/hosts/node-1/20261105-101500/0-1.segment";
        for path in ["raw/format", epoch, "raw/code/4ef6.code", "raw/hosts/node-1", "raw/code/x"] {
            let refused = Key::parse(path).unwrap().check(b"anything");
            assert!(matches!(refused, Err(StoreError::Unfit(_))), "{path}");
        }
        Key::Format.check(FORMAT).unwrap();
    }
}
