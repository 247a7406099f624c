//! A blocking client of the control socket.

use crate::counts::Counts;
use crate::line::{self, LineError};
use crate::reply::{REPLY_BYTES_MAX, Reply};
use crate::request::Request;
use crate::status::Status;
use std::io::{self, BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

/// A client of the dcpid that listens on a socket. Every request has a connection of its own, so a
/// client may outlive a daemon and ask the next one.
#[derive(Clone, Debug)]
pub struct Client {
    socket: PathBuf,
    silence_max: Option<Duration>,
}

/// Why a request was not answered, in one line with the next step.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// No process listens on the socket.
    #[error(
        "no dcpid listens on {}; start it, or name its socket with --control",
        socket.display()
    )]
    NoDaemon {
        /// The socket.
        socket: PathBuf,
    },
    /// The user may not connect to the socket.
    #[error("no permission for {}; run as root or as a member of its group", socket.display())]
    NoPermission {
        /// The socket.
        socket: PathBuf,
    },
    /// Connecting failed otherwise.
    #[error("connecting to {}: {source}; is it the socket of a dcpid?", socket.display())]
    NotConnected {
        /// The socket.
        socket: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The request cannot be written as JSON.
    #[error("the request is not JSON: {0}; name files in UTF-8")]
    NotJson(serde_json::Error),
    /// The daemon was silent for longer than [`Client::with_silence_max`] allows.
    #[error("dcpid on {} did not answer for {silence_max:?}; see its log", socket.display())]
    Silent {
        /// The socket.
        socket: PathBuf,
        /// The limit.
        silence_max: Duration,
    },
    /// The connection failed after it was made.
    #[error("dcpid on {} did not answer: {source}; see its log", socket.display())]
    Broken {
        /// The socket.
        socket: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The connection was closed before the reply was whole.
    #[error("dcpid on {} ended before it answered; see its log", socket.display())]
    Ended {
        /// The socket.
        socket: PathBuf,
    },
    /// The reply is longer than [`REPLY_BYTES_MAX`].
    #[error(
        "the answer on {} is longer than {REPLY_BYTES_MAX} bytes; is it the socket of a dcpid?",
        socket.display()
    )]
    TooLong {
        /// The socket.
        socket: PathBuf,
    },
    /// The reply is from another version, or lacks the requested data.
    #[error(
        "the answer of dcpid on {} is not of this version; install dcpid and this program anew, \
         and restart dcpid",
        socket.display()
    )]
    OtherVersion {
        /// The socket.
        socket: PathBuf,
    },
    /// The daemon refused the request, for this reason.
    #[error("{0}")]
    Refused(String),
}

impl Client {
    /// The client for a socket. It waits without limit: a flush, a new epoch and a quit take as
    /// long as the daemon's disk.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self { socket: socket.into(), silence_max: None }
    }

    /// Sets a limit: a request fails when the daemon neither reads nor writes a byte for this long.
    /// With a zero limit the next request fails.
    #[must_use]
    pub fn with_silence_max(self, silence_max: Duration) -> Self {
        Self { silence_max: Some(silence_max), ..self }
    }

    /// Whether a daemon listens on the socket.
    pub fn is_heard(&self) -> bool {
        UnixStream::connect(&self.socket).is_ok()
    }

    /// Asks, and waits for the reply, which has no [`Reply::error`].
    pub fn ask(&self, request: &Request) -> Result<Reply, ClientError> {
        let question = request.encode().map_err(ClientError::NotJson)?;
        let stream =
            UnixStream::connect(&self.socket).map_err(|error| self.not_connected(error))?;
        let answer = self.exchange(stream, &question).map_err(|error| self.broken(error))?;
        let socket = self.socket.clone();
        let reply: Reply = line::decode(&answer).map_err(|error| match error {
            LineError::Cut if answer.len() as u64 >= REPLY_BYTES_MAX => {
                ClientError::TooLong { socket }
            }
            LineError::Cut => ClientError::Ended { socket },
            LineError::Unknown(_) => ClientError::OtherVersion { socket },
        })?;
        match reply.error {
            Some(error) => Err(ClientError::Refused(error)),
            None => Ok(reply),
        }
    }

    /// The daemon's state.
    pub fn status(&self) -> Result<Status, ClientError> {
        let reply = self.ask(&Request::Status)?;
        reply.status.map(|status| *status).ok_or_else(|| self.other_version())
    }

    /// The samples since the last request of this watch.
    pub fn counts(&self, watch: u64) -> Result<Counts, ClientError> {
        let reply = self.ask(&Request::Counts { watch, user: None })?;
        reply.counts.map(|counts| *counts).ok_or_else(|| self.other_version())
    }

    /// The reply's line, as much of it as came before the connection's end or the limit.
    fn exchange(&self, mut stream: UnixStream, question: &[u8]) -> io::Result<Vec<u8>> {
        stream.set_read_timeout(self.silence_max)?;
        stream.set_write_timeout(self.silence_max)?;
        stream.write_all(question)?;
        let mut answer = Vec::new();
        BufReader::new(stream).take(REPLY_BYTES_MAX).read_until(b'\n', &mut answer)?;
        Ok(answer)
    }

    fn not_connected(&self, source: io::Error) -> ClientError {
        let socket = self.socket.clone();
        match source.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => ClientError::NoDaemon { socket },
            ErrorKind::PermissionDenied => ClientError::NoPermission { socket },
            _ => ClientError::NotConnected { socket, source },
        }
    }

    fn broken(&self, source: io::Error) -> ClientError {
        let socket = self.socket.clone();
        match (source.kind(), self.silence_max) {
            (ErrorKind::WouldBlock | ErrorKind::TimedOut, Some(silence_max)) => {
                ClientError::Silent { socket, silence_max }
            }
            _ => ClientError::Broken { socket, source },
        }
    }

    fn other_version(&self) -> ClientError {
        ClientError::OtherVersion { socket: self.socket.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    /// The client's result with a daemon that reads one line and writes these bytes.
    fn answered(answer: &str, ask: impl FnOnce(&Client) -> Result<String, ClientError>) -> String {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        let said = std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut client, _) = listener.accept().unwrap();
                let mut asked = String::new();
                BufReader::new(client.try_clone().unwrap()).read_line(&mut asked).unwrap();
                assert!(asked.starts_with("{\"command\":\"") && asked.ends_with("}\n"), "{asked}");
                client.write_all(answer.as_bytes()).unwrap();
            });
            ask(&Client::new(&path)).unwrap_or_else(|error| error.to_string())
        });
        said.replace(path.to_str().unwrap(), "SOCKET")
    }

    #[test]
    fn replies_are_understood_or_refused_in_a_line_with_the_next_step() {
        let counts = "{\"counts\":{\"since_ms\":2000,\"events\":[],\"images\":[],\"beyond\":4}}\n";
        let other = "the answer of dcpid on SOCKET is not of this version; install dcpid and \
                     this program anew, and restart dcpid";
        let ended = "dcpid on SOCKET ended before it answered; see its log";
        for (answer, expected) in [
            (counts, "2000 ms, 4 beyond"),
            (counts.trim_end(), "2000 ms, 4 beyond"),
            ("{\"error\":\"4 clients watch\"}\n", "4 clients watch"),
            ("{}\n", other),
            ("nonsense\n", other),
            ("", ended),
            ("{\"counts\":", ended),
        ] {
            let told = |counts: Counts| format!("{} ms, {} beyond", counts.since_ms, counts.beyond);
            assert_eq!(answered(answer, |client| client.counts(7).map(told)), expected, "{answer}");
        }
        for (answer, expected) in [("{\"epoch\":\"e\"}\n", "e"), ("{}\n", "none"), ("\n", other)] {
            let epoch = |reply: Reply| reply.epoch.unwrap_or("none".into());
            assert_eq!(
                answered(answer, |client| client.ask(&Request::Flush).map(epoch)),
                expected,
                "{answer}"
            );
        }
        assert_eq!(answered("{}\n", |client| client.status().map(|status| status.host)), other);
    }

    #[test]
    fn a_socket_without_a_daemon_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let asked = || Client::new(&path).ask(&Request::Status).unwrap_err().to_string();
        let nobody = format!(
            "no dcpid listens on {}; start it, or name its socket with --control",
            path.display()
        );
        assert_eq!(asked(), nobody);
        drop(UnixListener::bind(&path).unwrap());
        assert_eq!(asked(), nobody, "a socket that a dead daemon left");
        assert!(!Client::new(&path).is_heard());
    }

    #[test]
    fn a_silent_daemon_is_given_up() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        let client = Client::new(&path);
        assert!(client.is_heard());
        let patient = client.with_silence_max(Duration::from_millis(20));
        let error = patient.ask(&Request::Status).unwrap_err().to_string();
        assert_eq!(
            error,
            format!("dcpid on {} did not answer for 20ms; see its log", path.display())
        );
        drop(listener);
    }
}
