//! The store of a fleet: a directory, or a receiver by plain HTTP. An object is put whole, and only
//! where none of its name is.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Failure, shown};

/// Prefix of URLs of receivers.
const SCHEME: &str = "dcpi+http://";
/// Longest time that a request may take, in s: objects have up to 256 MiB.
const TIMEOUT_S: u64 = 300;
/// Most bytes of an answer's status line, of its headers, and of its body when it is an error.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// Most bytes of an object (`profiledb/FORMAT.md`).
const OBJECT_BYTES_MAX: u64 = 256 << 20;
/// Prefix of files that are being written.
const PARTIAL: &str = ".partial-";
/// Age at which an incomplete file is abandoned.
const PARTIAL_AGE: Duration = Duration::from_secs(24 * 3600);

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

    /// Puts an object under a key, `/` between its parts, where there is none of that key.
    pub(super) fn put(&self, key: &str, bytes: &[u8]) -> Result<Put, Failure> {
        match self {
            Self::Directory(root) if !root.is_dir() => {
                let why = "no such directory; make it, or mount it".to_owned();
                Err(Failure { why, is_final: true, retry_after: None })
            }
            Self::Directory(root) => put_file(root, key, bytes).map_err(here),
            Self::Http(place) => {
                let answer = request(minreq::put(url(place, key)))
                    .with_header("If-None-Match", "*")
                    .with_header("Content-Type", "application/octet-stream")
                    .with_body(bytes)
                    .send_lazy()
                    .map_err(failed)?;
                match answer.status_code {
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
            Self::Directory(root) => {
                root.join(key).try_exists().map_err(|error| here(of(&root.join(key), error)))
            }
            Self::Http(place) => {
                let answer = request(minreq::head(url(place, key))).send_lazy().map_err(failed)?;
                match answer.status_code {
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
            Self::Directory(root) => {
                let path = root.join(key);
                let file = match File::open(&path) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                    file => file.map_err(|error| here(of(&path, error)))?,
                };
                let mut file = file.take(OBJECT_BYTES_MAX);
                file.read_to_end(&mut bytes).map_err(|error| here(of(&path, error)))?;
            }
            Self::Http(place) => {
                let answer = request(minreq::get(url(place, key))).send_lazy().map_err(failed)?;
                match answer.status_code {
                    404 => return Ok(None),
                    200 => {}
                    _ => return Err(refused(answer)),
                }
                answer.take(OBJECT_BYTES_MAX).read_to_end(&mut bytes).map_err(here)?;
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

fn request(request: minreq::Request) -> minreq::Request {
    request
        .with_timeout(TIMEOUT_S)
        .with_max_redirects(0)
        .with_max_headers_size(ANSWER_BYTES_MAX)
        .with_max_status_line_length(ANSWER_BYTES_MAX)
        .with_header("User-Agent", concat!("dcpi/", env!("CARGO_PKG_VERSION")))
}

fn failed(error: minreq::Error) -> Failure {
    Failure { why: error.to_string(), is_final: false, retry_after: None }
}

fn here(error: io::Error) -> Failure {
    Failure { why: error.to_string(), is_final: false, retry_after: None }
}

/// An answer that is not a success, and whose code alone does not explain it.
fn refused(answer: minreq::ResponseLazy) -> Failure {
    let code = answer.status_code;
    let retry_after = answer
        .headers
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case("retry-after"))
        .and_then(|(_, text)| text.trim().parse().ok())
        .map(Duration::from_secs);
    let mut body = Vec::new();
    // Unreadable data is not shown.
    let _ = answer.take(ANSWER_BYTES_MAX as u64).read_to_end(&mut body);
    let is_final = (400..500).contains(&code) && ![408, 425, 429].contains(&code);
    Failure {
        why: format!("answers {code} {}", shown(&body)).trim_end().to_owned(),
        is_final,
        retry_after,
    }
}

/// An error of a file, with its name.
fn of(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Writes a file that is there whole or not at all, and replaces none. The link decides: it fails
/// where the name exists, also over NFS, which renames do not.
fn put_file(root: &Path, key: &str, bytes: &[u8]) -> io::Result<Put> {
    let path = root.join(key);
    let directory = path.parent().unwrap_or(root);
    fs::create_dir_all(directory).map_err(|error| of(directory, error))?;
    if path.try_exists()? {
        return Ok(Put::WasThere);
    }
    remove_partial(directory);
    let mut name = [0; 8];
    File::open("/dev/urandom")?.read_exact(&mut name)?;
    let partial = directory.join(format!("{PARTIAL}{:016x}", u64::from_ne_bytes(name)));
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o640)
        .open(&partial)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()));
    let linked = written.and_then(|()| fs::hard_link(&partial, &path));
    let removed = fs::remove_file(&partial);
    match linked {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(Put::WasThere),
        Err(error) => return Err(of(&path, error)),
    }
    removed.map_err(|error| of(&partial, error))?;
    // The name must be on disk, and so must those of new directories above.
    for directory in directory.ancestors().take_while(|above| above.starts_with(root)) {
        File::open(directory)?.sync_all()?;
    }
    Ok(Put::Stored)
}

/// Removes what writers left that were killed.
fn remove_partial(directory: &Path) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        let is_partial = entry.file_name().to_str().is_some_and(|name| name.starts_with(PARTIAL));
        let age =
            entry.metadata().and_then(|of| of.modified()).ok().and_then(|at| at.elapsed().ok());
        if is_partial && age.is_some_and(|age| age > PARTIAL_AGE) {
            let _ = fs::remove_file(entry.path()); // another host may remove it as well
        }
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
    fn an_object_is_put_once_and_whole() {
        let root = tempfile::tempdir().unwrap();
        let store = Store::Directory(root.path().to_owned());
        assert_eq!(store.get("a/b").unwrap(), None);
        assert_eq!(store.put("a/b", b"one").unwrap(), Put::Stored);
        assert_eq!(store.put("a/b", b"two").unwrap(), Put::WasThere);
        assert_eq!(store.get("a/b").unwrap(), Some(b"one".to_vec()));
        assert!(store.has("a/b").unwrap() && !store.has("a/c").unwrap());
        // Nothing else stays there.
        let names: Vec<_> = fs::read_dir(root.path().join("a")).unwrap().collect();
        assert_eq!(names.len(), 1);
        let gone = Store::Directory(root.path().join("gone"));
        assert!(gone.put("a", b"").unwrap_err().why.contains("make it, or mount it"));
    }
}
