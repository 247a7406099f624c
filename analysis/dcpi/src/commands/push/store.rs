//! The store of a fleet: a directory, or a receiver by plain HTTP. An object is put whole, and only
//! where none of its name is.

use std::fmt;
use std::io::{self, Read};
use std::path::PathBuf;
use std::time::Duration;

use ureq::SendBody;

use super::http::{ANSWER_BYTES_MAX, Answer, agent, failed, retry_after};
use super::{Failure, folder, shown};

/// Prefix of URLs of receivers.
const SCHEME: &str = "dcpi+http://";
/// Longest time that a request may take: objects have up to 256 MiB.
const TIMEOUT: Duration = Duration::from_secs(300);
/// Most bytes of an object (`profiledb/FORMAT.md`).
pub(super) const OBJECT_BYTES_MAX: u64 = 256 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Store {
    /// A directory on this host, or mounted here.
    Directory(PathBuf),
    /// HOST:PORT/PATH of a receiver that answers PUT with `If-None-Match`, HEAD and GET (RFC 9110).
    Http(String),
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Put {
    /// It is in the store now.
    Stored,
    /// An object with its name already existed.
    WasThere,
    /// The same was there.
    Same,
    /// An epoch of its name, of another machine, was there.
    Another,
}

impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(path) => write!(f, "{}", path.display()),
            Self::Http(place) => write!(f, "{SCHEME}{place}"),
        }
    }
}

impl Store {
    /// The store of a URL or path; None for a URL of another kind.
    pub(super) fn of(url: &str) -> Option<Result<Self, String>> {
        if url.starts_with('/') || url.starts_with("./") {
            return Some(Ok(Self::Directory(PathBuf::from(url))));
        }
        let place = url.strip_prefix(SCHEME)?;
        let (host, _) = place.split_once('/').unwrap_or((place, ""));
        let is_plain =
            |character: char| character.is_ascii_graphic() && !"@?#\\\"".contains(character);
        let has_port = host.rsplit_once(':').is_some_and(|(name, port)| {
            !name.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0)
        });
        if !has_port || !place.chars().all(is_plain) {
            return Some(Err(format!("must be {SCHEME}HOST:PORT[/PATH]")));
        }
        Some(Ok(Self::Http(place.trim_end_matches('/').to_owned())))
    }

    /// Puts an object of `size_bytes` under a key, `/` between its parts, where there is none of
    /// that key. The object is read as it is sent.
    pub(super) fn put(
        &self,
        key: &str,
        object: &mut dyn Read,
        size_bytes: u64,
    ) -> Result<Put, Failure> {
        match self {
            Self::Directory(root) if !root.is_dir() => {
                let why = "no such directory; make it, or mount it".to_owned();
                Err(Failure { why, is_final: true, retry_after: None })
            }
            Self::Directory(root) => folder::put(root, key, object).map_err(here),
            Self::Http(place) => {
                let answer = agent(TIMEOUT)
                    .put(url(place, key))
                    .header("If-None-Match", "*")
                    .header("Content-Type", "application/octet-stream")
                    .header("Content-Length", size_bytes)
                    .send(SendBody::from_reader(object))
                    .map_err(failed)?;
                match answer.status().as_u16() {
                    201 | 204 => Ok(Put::Stored),
                    200 => Ok(Put::Same),
                    // A receiver that compares objects gives a more specific answer than a plain
                    // object store.
                    409 => Ok(Put::Another),
                    412 => Ok(Put::WasThere),
                    _ => Err(refused(answer)),
                }
            }
        }
    }

    /// Whether there is an object of a key.
    pub(super) fn has(&self, key: &str) -> Result<bool, Failure> {
        match self {
            Self::Directory(root) => folder::has(root, key).map_err(here),
            Self::Http(place) => {
                let answer = agent(TIMEOUT).head(url(place, key)).call().map_err(failed)?;
                match answer.status().as_u16() {
                    200 | 204 => Ok(true),
                    404 => Ok(false),
                    _ => Err(refused(answer)),
                }
            }
        }
    }

    /// The object of a key; None if it no longer exists.
    pub(super) fn get(&self, key: &str) -> Result<Option<Vec<u8>>, Failure> {
        let mut bytes = Vec::new();
        match self {
            Self::Directory(root) => return folder::get(root, key).map_err(here),
            Self::Http(place) => {
                let answer = agent(TIMEOUT).get(url(place, key)).call().map_err(failed)?;
                match answer.status().as_u16() {
                    404 => return Ok(None),
                    200 => {}
                    _ => return Err(refused(answer)),
                }
                let object = answer.into_body().into_reader();
                object.take(OBJECT_BYTES_MAX).read_to_end(&mut bytes).map_err(here)?;
            }
        }
        Ok(Some(bytes))
    }

    /// Name of the directory for the record of data sent there.
    pub(super) fn file_name(&self) -> String {
        super::file_name(&format!("store_{self}"))
    }
}

fn url(place: &str, key: &str) -> String {
    let mut url = format!("http://{place}/");
    for byte in key.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'-' | b'_' | b'~' => {
                url.push(byte as char);
            }
            _ => url.push_str(&format!("%{byte:02X}")),
        }
    }
    url
}

fn here(error: io::Error) -> Failure {
    Failure { why: error.to_string(), is_final: false, retry_after: None }
}

/// An answer that is not a success, and whose code alone does not explain it.
fn refused(answer: Answer) -> Failure {
    let code = answer.status().as_u16();
    let retry_after = retry_after(&answer);
    let mut body = Vec::new();
    let said = answer.into_body().into_reader();
    // Unreadable data is not shown.
    let _ = said.take(ANSWER_BYTES_MAX).read_to_end(&mut body);
    let is_final = (400..500).contains(&code) && ![408, 425, 429].contains(&code);
    Failure {
        why: format!("answers {code} {}", shown(&body)).trim_end().to_owned(),
        is_final,
        retry_after,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_are_directories_and_receivers() {
        let of = |url: &str| Store::of(url);
        assert_eq!(of("/mnt/fleet"), Some(Ok(Store::Directory("/mnt/fleet".into()))));
        assert_eq!(of("dcpi+http://s:80/a/"), Some(Ok(Store::Http("s:80/a".to_owned()))));
        assert_eq!(of("otlp+http://s"), None);
        for url in ["dcpi+http://s", "dcpi+http://:80", "dcpi+http://s:0", "dcpi+http://s:1/a b"] {
            assert!(of(url).is_some_and(|of| of.is_err()), "{url}");
        }
        assert_eq!(url("s:80", "hosts/ü x/1"), "http://s:80/hosts/%C3%BC%20x/1");
    }

    #[test]
    fn a_directory_must_be_there() {
        let root = tempfile::tempdir().unwrap();
        let gone = Store::Directory(root.path().join("gone"));
        assert!(
            gone.put("a", &mut io::empty(), 0).unwrap_err().why.contains("make it, or mount it")
        );
    }
}
