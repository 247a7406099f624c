//! Asks a running dcpid what it sampled since the last question: one JSON object on one line, each way, over its control socket.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::AnalysisError;

/// The longest answer: a watch has 65536 places at most, some 25 bytes each, and their names.
const ANSWER_BYTES_MAX: u64 = 64 << 20;
/// The daemon answers at once, but that it may be draining.
const PATIENCE: Duration = Duration::from_secs(10);

/// A daemon, and the watch that it keeps for us.
#[derive(Debug)]
pub(super) struct Daemon {
    control: PathBuf,
    watch: u64,
}

#[derive(Serialize)]
struct Question {
    command: &'static str,
    watch: u64,
}

#[derive(Debug, Deserialize)]
struct Answer {
    #[serde(default)]
    error: Option<String>,
    #[serde(default)]
    counts: Option<Counts>,
}

/// What was sampled since the last question.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Counts {
    /// Milliseconds.
    pub(super) since_ms: u64,
    /// The events.
    pub(super) events: Vec<EventCounts>,
    /// Images with samples.
    pub(super) images: Vec<ImageCounts>,
    /// Samples of places for which there was no room.
    pub(super) beyond: u64,
}

/// An event.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct EventCounts {
    /// Its name.
    pub(super) name: String,
    /// Samples of unknown code, by reason.
    pub(super) unresolved: BTreeMap<String, u64>,
    /// Samples that are in no profile, by reason.
    pub(super) lost: BTreeMap<String, u64>,
}

/// The samples of an image.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct ImageCounts {
    /// Its id.
    pub(super) id: String,
    /// What it is.
    pub(super) kind: String,
    /// Its name.
    pub(super) name: String,
    /// Its path.
    pub(super) path: String,
    /// By event: offsets and their samples.
    pub(super) places: Vec<Vec<(u64, u64)>>,
    /// Start, end and name of procedures that no file names.
    pub(super) symbols: Vec<(u64, u64, String)>,
}

impl Daemon {
    /// The daemon that listens on a socket.
    pub(super) fn on(control: &Path) -> Self {
        // Any number that no other client has.
        Self { control: control.to_owned(), watch: RandomState::new().hash_one(std::process::id()) }
    }

    /// What came since the last question; nothing at the first.
    pub(super) fn ask(&self) -> Result<Counts, AnalysisError> {
        let shown = self.control.display();
        let refused = |why: String| AnalysisError::Refused(why);
        let mut stream = UnixStream::connect(&self.control).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                refused(format!("no dcpid listens on {shown}; start it, or name its socket with --control"))
            }
            io::ErrorKind::PermissionDenied => {
                refused(format!("no permission for {shown}; run as root or as a member of its group"))
            }
            _ => refused(format!("connecting to {shown}: {error}; is it the socket of a dcpid?")),
        })?;
        let broken = |error: io::Error| AnalysisError::Refused(format!("dcpid on {shown}: {error}; see its log"));
        stream.set_read_timeout(Some(PATIENCE)).map_err(broken)?;
        let mut line =
            serde_json::to_vec(&Question { command: "counts", watch: self.watch }).map_err(AnalysisError::Json)?;
        line.push(b'\n');
        stream.write_all(&line).map_err(broken)?;
        let mut answer = Vec::new();
        BufReader::new(stream).take(ANSWER_BYTES_MAX).read_until(b'\n', &mut answer).map_err(broken)?;
        let answer: Answer = serde_json::from_slice(&answer)
            .map_err(|_| refused(format!("the answer of dcpid on {shown} is not of this version; restart it")))?;
        match answer {
            Answer { error: Some(error), .. } => Err(refused(format!("dcpid: {error}; see dcpictl status"))),
            Answer { counts: Some(counts), .. } => Ok(counts),
            Answer { .. } => Err(refused(format!("dcpid on {shown} does not tell counts; restart it as this version"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    /// The answer to one question.
    fn answered(line: &'static str) -> Result<Counts, AnalysisError> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let (mut client, _) = listener.accept().unwrap();
                let mut asked = String::new();
                BufReader::new(client.try_clone().unwrap()).read_line(&mut asked).unwrap();
                assert!(asked.starts_with("{\"command\":\"counts\",\"watch\":"), "{asked}");
                client.write_all(line.as_bytes()).unwrap();
            });
            Daemon::on(&path).ask()
        })
    }

    #[test]
    fn answers_are_understood_or_refused_in_a_line() {
        let counts = answered(
            "{\"counts\":{\"since_ms\":2000,\"events\":[{\"name\":\"c\",\"unit\":\"ns\",\"unresolved\":{\"x\":1},\"lost\":{}}],\
             \"images\":[{\"id\":\"i\",\"kind\":\"kernel\",\"name\":\"[kernel]\",\"path\":\"\",\"places\":[[[16,3]]],\
             \"symbols\":[[0,32,\"f\"]]}],\"beyond\":0}}\n",
        )
        .unwrap();
        assert_eq!((counts.since_ms, counts.images[0].places[0][0]), (2000, (16, 3)));
        for (line, words) in [
            ("{\"error\":\"4 clients watch\"}\n", "dcpid: 4 clients watch; see"),
            ("{}\n", "restart it"),
            ("nonsense\n", "not of this version"),
            ("", "not of this version"),
        ] {
            let error = answered(line).unwrap_err().to_string();
            assert!(error.contains(words) && !error.contains('\n'), "{line}: {error}");
        }
        let nobody = Daemon::on(Path::new("/does/not/exist")).ask().unwrap_err().to_string();
        assert!(nobody.contains("/does/not/exist; start it"), "{nobody}");
    }
}
