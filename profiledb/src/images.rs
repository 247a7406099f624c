//! The images that an epoch has samples of: the file of each id.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use image::{ImageId, ImageKind};
use serde::{Deserialize, Serialize};

use crate::error::Damage;

/// An image, as the writer saw it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageRecord {
    /// Identity of the build.
    #[serde(with = "as_text")]
    pub id: ImageId,
    /// Kind of the image.
    #[serde(with = "as_text")]
    pub kind: ImageKind,
    /// Last component of the path, or a name in brackets such as `[kernel]`.
    pub name: String,
    /// The path as it was mapped, escaped by [`ImageRecord::escape_path`]; empty where there is
    /// none.
    pub path: String,
    /// Size of the file in bytes, where there is a file.
    #[serde(default)]
    pub size_bytes: Option<u64>,
    /// When it was first seen in this epoch, in seconds since 1970 UTC.
    pub first_seen_unix_s: u64,
    /// When it was last seen in this epoch, in seconds since 1970 UTC.
    pub last_seen_unix_s: u64,
}

impl ImageRecord {
    /// The path, or the name of what has none.
    pub fn path_or_name(&self) -> &str {
        if self.path.is_empty() { &self.name } else { &self.path }
    }

    /// A path as text, without loss: bytes that are not UTF-8 and control characters become `\xNN`,
    /// a backslash becomes two.
    pub fn escape_path(path: &Path) -> String {
        let mut text = String::with_capacity(path.as_os_str().len());
        for chunk in path.as_os_str().as_bytes().utf8_chunks() {
            for c in chunk.valid().chars() {
                match c {
                    '\\' => text.push_str("\\\\"),
                    c if c.is_control() => {
                        let mut buffer = [0; 4];
                        escape_bytes(&mut text, c.encode_utf8(&mut buffer).as_bytes());
                    }
                    c => text.push(c),
                }
            }
            escape_bytes(&mut text, chunk.invalid());
        }
        text
    }

    /// The path on the file system that [`ImageRecord::path`] stands for.
    pub fn real_path(&self) -> PathBuf {
        let mut bytes = Vec::with_capacity(self.path.len());
        let mut rest = self.path.as_str();
        while let Some(at) = rest.find('\\') {
            let (plain, escape) = rest.split_at(at);
            bytes.extend_from_slice(plain.as_bytes());
            let (byte, length) = unescape(escape);
            bytes.push(byte);
            rest = escape.get(length..).unwrap_or("");
        }
        bytes.extend_from_slice(rest.as_bytes());
        PathBuf::from(OsString::from_vec(bytes))
    }

    /// Takes over the newer fields of a later record of the image.
    pub(crate) fn absorb(&mut self, met: &Self) {
        let first = self.first_seen_unix_s.min(met.first_seen_unix_s);
        let last = self.last_seen_unix_s.max(met.last_seen_unix_s);
        // The latest path is the one that most likely still leads to the file.
        if met.last_seen_unix_s >= self.last_seen_unix_s {
            *self = met.clone();
        }
        self.first_seen_unix_s = first;
        self.last_seen_unix_s = last;
    }
}

fn escape_bytes(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        // Writing to a String cannot fail.
        let _ = write!(text, "\\x{byte:02x}");
    }
}

/// The byte that an escape at the start of `text` means, and the escape's length. A backslash that
/// begins no escape means itself.
fn unescape(text: &str) -> (u8, usize) {
    if text.starts_with("\\\\") {
        return (b'\\', 2);
    }
    let hex = text.strip_prefix("\\x").and_then(|rest| rest.get(..2));
    match hex.map(|hex| u8::from_str_radix(hex, 16)) {
        Some(Ok(byte)) => (byte, 4),
        _ => (b'\\', 1),
    }
}

/// Adds records of images that were seen later.
pub(crate) fn absorb(
    known: &mut BTreeMap<ImageId, ImageRecord>,
    met: &BTreeMap<ImageId, ImageRecord>,
) {
    for (id, met) in met {
        known.entry(*id).and_modify(|known| known.absorb(met)).or_insert_with(|| met.clone());
    }
}

/// Encodes the file `images`: the records in order of id.
pub(crate) fn encode(records: &BTreeMap<ImageId, ImageRecord>) -> Result<Vec<u8>, Damage> {
    let records: Vec<&ImageRecord> = records.values().collect();
    serde_json::to_vec(&records).map_err(Damage::Json)
}

/// Decodes the records of a file `images`.
pub(crate) fn decode(payload: &[u8]) -> Result<BTreeMap<ImageId, ImageRecord>, Damage> {
    let records: Vec<ImageRecord> = serde_json::from_slice(payload).map_err(Damage::Json)?;
    let mut by_id = BTreeMap::new();
    for record in records {
        if by_id.insert(record.id, record).is_some() {
            return Err(Damage::Duplicate);
        }
    }
    Ok(by_id)
}

/// Types stored as the text they print.
mod as_text {
    use std::borrow::Cow;
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::de::{Deserialize, Deserializer, Error};
    use serde::ser::Serializer;

    pub(super) fn serialize<T: Display, S: Serializer>(
        value: &T,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_str(value)
    }

    pub(super) fn deserialize<'de, T, D>(from: D) -> Result<T, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        let text = Cow::<str>::deserialize(from)?;
        text.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(path: String) -> ImageRecord {
        ImageRecord {
            id: ImageId::from_name("x", "y"),
            kind: ImageKind::File,
            name: "x".to_owned(),
            path,
            size_bytes: Some(7),
            first_seen_unix_s: 10,
            last_seen_unix_s: 20,
        }
    }

    #[test]
    fn paths_survive_whatever_their_bytes() {
        for (bytes, text) in [
            (&b"/usr/lib/libc.so.6"[..], "/usr/lib/libc.so.6"),
            (b"/a\\b", "/a\\\\b"),
            (b"/a\xff\xfeb", "/a\\xff\\xfeb"),
            (b"/line\nbreak", "/line\\x0abreak"),
            ("/gr\u{fc}n".as_bytes(), "/gr\u{fc}n"),
            (b"/\\x41", "/\\\\x41"),
            (b"/\xc3", "/\\xc3"),
            (b"", ""),
        ] {
            let path = PathBuf::from(OsString::from_vec(bytes.to_vec()));
            assert_eq!(ImageRecord::escape_path(&path), text);
            assert_eq!(record(text.to_owned()).real_path(), path);
        }
    }

    #[test]
    fn an_odd_escape_stands_for_itself() {
        for text in ["/a\\", "/a\\q", "/a\\x4", "/a\\xzz", "/a\\x\u{20ac}"] {
            assert_eq!(record(text.to_owned()).real_path(), PathBuf::from(text));
        }
    }

    #[test]
    fn the_latest_path_stays() {
        let mut known = record("/old".to_owned());
        let mut met = record("/new".to_owned());
        met.first_seen_unix_s = 15;
        met.last_seen_unix_s = 30;
        known.absorb(&met);
        assert_eq!((known.first_seen_unix_s, known.last_seen_unix_s), (10, 30));
        assert_eq!(known.path, "/new");
        let mut earlier = record("/earlier".to_owned());
        earlier.first_seen_unix_s = 5;
        earlier.last_seen_unix_s = 6;
        known.absorb(&earlier);
        assert_eq!((known.first_seen_unix_s, known.last_seen_unix_s), (5, 30));
        assert_eq!(known.path, "/new");
    }

    #[test]
    fn unknown_keys_are_ignored_and_twins_refused() {
        let record = record("/p".to_owned());
        let json = serde_json::to_string(&record).unwrap();
        let extended = json.replace('{', "{\"colour\":[\"red\"],");
        let read = decode(format!("[{extended}]").as_bytes()).unwrap();
        assert_eq!(read[&record.id], record);
        let twice = decode(format!("[{json},{json}]").as_bytes()).unwrap_err();
        assert!(matches!(twice, Damage::Duplicate));
    }
}
