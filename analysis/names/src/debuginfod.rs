//! Debug files from a debuginfod server (debuginfod(8), elfutils): only where `$DEBUGINFOD_URLS`
//! names one, and kept where other clients keep theirs and find ours.
//!
//! Servers at `http://` are asked here. For `https://` the client of elfutils, `debuginfod-find`,
//! is run if it is installed: encryption would bring a C compiler or a young library into this
//! program.

use std::env;
use std::fs::{self, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use image::ImageId;

/// Longest time for one file, without `$DEBUGINFOD_MAXTIME`.
const MAXTIME_S: u64 = 60;
/// Most bytes of one file, without `$DEBUGINFOD_MAXSIZE`.
const MAXSIZE: u64 = 2 << 30;
/// Servers asked, of those named.
const SERVERS_MAX: usize = 8;
/// Redirections followed.
const REDIRECTS_MAX: u32 = 5;
/// Most bytes of an answer's headers.
const HEADERS_MAX: usize = 16 << 10;
/// Time between two checks whether the client of elfutils has ended.
const POLL: Duration = Duration::from_millis(20);

/// A client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Debuginfod {
    servers: Vec<String>,
    cache: PathBuf,
    max_s: u64,
    max_bytes: u64,
}

impl Debuginfod {
    /// The client that the environment asks for; none unless `$DEBUGINFOD_URLS` names a server, and
    /// somewhere is a place for files (`$DEBUGINFOD_CACHE_PATH`,
    /// `$XDG_CACHE_HOME/debuginfod_client`, `~/.cache/debuginfod_client`).
    pub fn from_environment() -> Option<Self> {
        let urls = env::var("DEBUGINFOD_URLS").ok()?;
        let directory =
            |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let cache = directory("DEBUGINFOD_CACHE_PATH")
            .or_else(|| Some(directory("XDG_CACHE_HOME")?.join("debuginfod_client")))
            .or_else(|| Some(directory("HOME")?.join(".cache/debuginfod_client")))?;
        let number = |name: &str| env::var(name).ok()?.parse().ok().filter(|number| *number > 0);
        let max_s = number("DEBUGINFOD_MAXTIME").unwrap_or(MAXTIME_S);
        Self::new(&urls, cache, max_s, number("DEBUGINFOD_MAXSIZE").unwrap_or(MAXSIZE))
    }

    /// A client of servers named in a text, separated by spaces; none if there is none. `max_s`
    /// seconds and `max_bytes` are for each file.
    pub fn new(urls: &str, cache: PathBuf, max_s: u64, max_bytes: u64) -> Option<Self> {
        let servers: Vec<String> =
            urls.split_whitespace().map(str::to_owned).take(SERVERS_MAX).collect();
        (!servers.is_empty()).then_some(Self { servers, cache, max_s, max_bytes })
    }

    /// The debug file of a build: from the cache, else from the first server that has it.
    pub fn fetch(&self, build: &ImageId) -> Result<PathBuf, String> {
        let place = self.cache.join(build.to_string()).join("debuginfo");
        // Other clients keep an empty file for what no server had; that may be long ago.
        if fs::metadata(&place).is_ok_and(|metadata| metadata.is_file() && metadata.len() > 0) {
            return Ok(place);
        }
        let end = Instant::now() + Duration::from_secs(self.max_s.min(u64::from(u32::MAX)));
        let mut said = String::new();
        for server in &self.servers {
            let fetched = if server.starts_with("http://") {
                self.ask(server, build, &place, end)
            } else {
                continue;
            };
            match fetched {
                Ok(()) => return Ok(place),
                Err(why) => said = format!("{server}: {why}"),
            }
        }
        if self.servers.iter().any(|server| !server.starts_with("http://")) {
            match find(build, end) {
                Ok(path) => return Ok(path),
                Err(why) => said = why,
            }
        }
        Err(said)
    }

    /// Asks a server (debuginfod(8), "WEBAPI").
    fn ask(&self, server: &str, build: &ImageId, place: &Path, end: Instant) -> Result<(), String> {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(format!("no answer within {} s", self.max_s));
        }
        let url = format!("{}/buildid/{build}/debuginfo", server.trim_end_matches('/'));
        let client = ureq::Agent::config_builder()
            .timeout_global(Some(left))
            .http_status_as_error(false)
            .max_redirects(REDIRECTS_MAX)
            .proxy(None)
            .max_response_header_size(HEADERS_MAX)
            .user_agent(concat!("dcpi/", env!("CARGO_PKG_VERSION")))
            .build()
            .new_agent();
        let answer = client.get(url).call().map_err(|error| error.to_string())?;
        if answer.status() != 200 {
            return Err(format!("answers {}", answer.status().as_u16()));
        }
        let length = answer.headers().get("content-length").and_then(|of| of.to_str().ok());
        let said = length.and_then(|length| length.parse::<u64>().ok());
        if said.is_some_and(|said| said > self.max_bytes) {
            return Err(format!("the file is larger than {} bytes", self.max_bytes));
        }
        self.keep(answer.into_body().into_reader(), said, place).map_err(|error| error.to_string())
    }

    /// Writes an answer where it belongs, whole or not at all: several processes may do so at once.
    fn keep(&self, answer: impl io::Read, said: Option<u64>, place: &Path) -> io::Result<()> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        if let Some(directory) = place.parent() {
            fs::create_dir_all(directory)?;
        }
        let unique = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let begun = place.with_file_name(format!("debuginfo.{}.{}", unique.0, unique.1));
        let mut file = OpenOptions::new().write(true).create_new(true).open(&begun)?;
        let copied = io::copy(&mut answer.take(self.max_bytes.saturating_add(1)), &mut file)
            .and_then(|bytes| {
                let whole =
                    bytes <= self.max_bytes && bytes > 0 && said.is_none_or(|said| said == bytes);
                if whole {
                    file.flush()
                } else {
                    Err(io::Error::other("the answer is cut, empty or too large"))
                }
            });
        let kept = copied.and_then(|()| fs::rename(&begun, place));
        if kept.is_err() {
            // Nobody reads the partial file.
            let _ = fs::remove_file(&begun);
        }
        kept
    }
}

/// Has the client of elfutils fetch the file. It prints where it is.
fn find(build: &ImageId, end: Instant) -> Result<PathBuf, String> {
    let mut command = Command::new("debuginfod-find");
    command
        .args(["debuginfo", &build.to_string()])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .stdout(Stdio::piped());
    let mut client = command
        .spawn()
        .map_err(|_| "install debuginfod (debuginfod-find) for servers at https://".to_owned())?;
    let done = loop {
        match client.try_wait() {
            Ok(Some(status)) => break status.success(),
            Ok(None) if Instant::now() < end => std::thread::sleep(POLL),
            _ => {
                let _ = client.kill();
                let _ = client.wait();
                break false;
            }
        }
    };
    let mut path = String::new();
    if let Some(out) = client.stdout.take() {
        // A path is no longer.
        out.take(4096).read_to_string(&mut path).map_err(|error| error.to_string())?;
    }
    let path = PathBuf::from(path.trim_end_matches('\n'));
    if done && path.is_absolute() { Ok(path) } else { Err("debuginfod-find finds none".to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    const ID: &str = "0123456789abcdef0123456789abcdef01234567";

    /// A server that gives these answers, one to each request, and returns what was asked.
    fn server(answers: Vec<Vec<u8>>) -> (String, std::thread::JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let asked = std::thread::spawn(move || {
            let mut asked = Vec::new();
            for answer in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    let mut byte = [0];
                    stream.read_exact(&mut byte).unwrap();
                    request.push(byte[0]);
                }
                asked.push(String::from_utf8(request).unwrap().lines().next().unwrap().to_owned());
                stream.write_all(&answer).unwrap();
            }
            asked
        });
        (url, asked)
    }

    fn answer(head: &str, body: &[u8]) -> Vec<u8> {
        [format!("HTTP/1.1 {head}\r\nConnection: close\r\n").as_bytes(), body].concat()
    }

    #[test]
    fn a_file_is_fetched_once_and_what_is_cut_or_missing_is_not_kept() {
        let dir = tempfile::tempdir().unwrap();
        let id: ImageId = ID.parse().unwrap();
        let (url, asked) = server(vec![
            answer("404 Not Found", b"Content-Length: 0\r\n\r\n"),
            answer("200 OK", b"Content-Length: 10\r\n\r\nsix by"),
            answer("200 OK", b"Content-Length: 99999\r\n\r\n"),
            answer("200 OK", b"Content-Length: 4\r\n\r\nELF!"),
        ]);
        let client = Debuginfod::new(&url, dir.path().join("cache"), 20, 1000).unwrap();
        for said in ["answers 404", "disconnected", "larger than 1000 bytes"] {
            let error = client.fetch(&id).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
        let place = dir.path().join("cache").join(ID).join("debuginfo");
        assert_eq!(client.fetch(&id), Ok(place.clone()));
        // The server has stopped, so this comes from the cache.
        assert_eq!(client.fetch(&id), Ok(place.clone()));
        assert_eq!(fs::read(&place).unwrap(), b"ELF!");
        let left: Vec<_> = fs::read_dir(place.parent().unwrap()).unwrap().collect();
        assert_eq!(left.len(), 1, "{left:?}");
        let request = format!("GET /buildid/{ID}/debuginfo HTTP/1.1");
        assert_eq!(asked.join().unwrap(), vec![request; 4]);
    }

    #[test]
    fn nobody_is_asked_who_is_not_named() {
        assert_eq!(Debuginfod::new(" \t", PathBuf::from("/c"), 1, 1), None);
    }

    #[test]
    fn a_server_that_says_nothing_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let client = Debuginfod::new(&url, dir.path().to_path_buf(), 1, 1000).unwrap();
        assert!(client.fetch(&ID.parse().unwrap()).is_err());
    }
}
