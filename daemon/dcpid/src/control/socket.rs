//! The control socket: a Unix stream socket, one request and one reply per line.
//!
//! No user who may connect can keep others from connecting: clients, requests and times are bounded
//! ([`crate::control::connection_limits`]), and connections are accepted and answered at a rate
//! that costs little.

use crate::control::connection_limits::{CLIENTS_MAX, Clients, Seat};
use pipeline::main_loop::Asked;
use settings::access::{Access, Rights};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc, oneshot};
use wire::{REQUEST_BYTES_MAX, Reply, Request};

/// Longest time that a client may take to write a request, and as long to read its answer.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(10);
/// Number of accepted clients after which there is a pause, and that pause. Without it, a client
/// that connects in a loop would take a whole CPU.
const ACCEPTS: (u32, Duration) = (16, Duration::from_millis(5));

/// The bound socket; its file is removed on drop.
pub struct ControlSocket {
    listener: std::os::unix::net::UnixListener,
    path: PathBuf,
    rights: Rights,
    /// Each request holds a permit until its reply is written.
    answering: Arc<Semaphore>,
}

/// The reason why the socket could not be bound.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// Another daemon answers on the socket.
    #[error(
        "another dcpid answers on {path}; stop it with `dcpictl --control {path} quit`, or choose another --control"
    )]
    InUse {
        /// The socket.
        path: String,
    },
    /// The address for metrics cannot be bound.
    #[error("cannot listen on {address} ({source}); choose another --metrics, or off")]
    Metrics {
        /// The address.
        address: String,
        /// The system's words.
        source: io::Error,
    },
    /// The system refused to listen.
    #[error("cannot listen on {path} ({source}); choose another --control")]
    Listen {
        /// The socket.
        path: String,
        /// Its words.
        source: io::Error,
    },
}

impl ControlSocket {
    /// Binds the socket for the users of `access`. A socket that a dead daemon left is replaced;
    /// any other file is not.
    pub fn bind(path: &Path, access: Access) -> Result<Self, ControlError> {
        let listener = listen(path, access)?;
        let answering = Arc::new(Semaphore::new(CLIENTS_MAX));
        Ok(Self { listener, path: path.to_owned(), rights: access.rights, answering })
    }

    /// Serves clients for ever: each request goes to `asked`, and its reply back to the client.
    pub async fn serve(&self, asked: mpsc::Sender<Asked>) -> io::Result<()> {
        let listener = UnixListener::from_std(self.listener.try_clone()?)?;
        let clients = Arc::new(Clients::default());
        let mut failed = false;
        for number in 1_u32.. {
            match listener.accept().await {
                Ok((client, _)) => {
                    failed = false;
                    let seat = Arc::new(clients.seat(Peer::of(&client).user).await);
                    let (asked, answering, kept) =
                        (asked.clone(), self.answering.clone(), seat.clone());
                    let rights = self.rights;
                    // A client that goes away does no harm.
                    let served = async move {
                        drop(serve_client(client, asked, answering, rights, &kept).await)
                    };
                    let task = tokio::spawn(served);
                    seat.served_by(task.abort_handle());
                }
                Err(error) => {
                    if !std::mem::replace(&mut failed, true) {
                        tracing::warn!(%error, "accepting a control client failed");
                    }
                    // Descriptors ran out: wait for other clients to end.
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
            if number % ACCEPTS.0 == 0 {
                tokio::time::sleep(ACCEPTS.1).await;
            }
        }
        Ok(())
    }

    /// Waits until every reply is written, or its client is too slow.
    pub async fn finish(&self) {
        let all = self.answering.acquire_many(CLIENTS_MAX as u32);
        // A client that does not read must not delay the end.
        let _ = tokio::time::timeout(Duration::from_secs(5), all).await;
    }
}

/// A Unix socket for the users of `access`. A socket that a dead daemon left is replaced; any other
/// file is not.
pub fn listen(
    path: &Path,
    access: Access,
) -> Result<std::os::unix::net::UnixListener, ControlError> {
    use std::os::unix::fs::FileTypeExt;
    let shown = path.display().to_string();
    let fail = |source| ControlError::Listen { path: shown.clone(), source };
    if std::os::unix::net::UnixStream::connect(path).is_ok() {
        return Err(ControlError::InUse { path: shown });
    }
    if path.symlink_metadata().is_ok_and(|metadata| metadata.file_type().is_socket()) {
        std::fs::remove_file(path).map_err(fail)?;
    }
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        std::fs::create_dir_all(parent).map_err(fail)?;
    }
    let listener = std::os::unix::net::UnixListener::bind(path).map_err(fail)?;
    // The group is set before the mode: until then only dcpid's own group may connect.
    std::os::unix::fs::chown(path, None, access.group).map_err(fail)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(access.mode)).map_err(fail)?;
    listener.set_nonblocking(true).map_err(fail)?;
    Ok(listener)
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        // A socket left behind is replaced by the next daemon.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The client, as the kernel identifies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Peer {
    /// User, as numbered in our user namespace; the overflow user where the kernel does not say.
    user: u32,
    /// Process, as numbered in our pid namespace.
    pid: Option<u32>,
}

impl Peer {
    fn of(client: &UnixStream) -> Self {
        let credentials = client.peer_cred().ok();
        let pid =
            credentials.as_ref().and_then(|credentials| u32::try_from(credentials.pid()?).ok());
        Self { user: credentials.map_or(u32::MAX, |credentials| credentials.uid()), pid }
    }
}

async fn serve_client(
    mut client: UnixStream,
    asked: mpsc::Sender<Asked>,
    answering: Arc<Semaphore>,
    rights: Rights,
    seat: &Seat,
) -> io::Result<()> {
    seat.waits_for_us(false);
    let peer = Peer::of(&client);
    let (read, mut write) = client.split();
    let mut lines = BufReader::with_capacity(1024, read);
    loop {
        let mut line = Vec::new();
        let mut bounded = (&mut lines).take(REQUEST_BYTES_MAX as u64);
        let read =
            tokio::time::timeout(CLIENT_TIMEOUT, bounded.read_until(b'\n', &mut line)).await??;
        if read == 0 {
            return Ok(());
        }
        let _answering = answering.acquire().await.map_err(io::Error::other)?;
        let request = match Request::decode(&line) {
            Ok(request) if !rights.allow(&request, peer.user) => {
                Err("only root may ask for that here (clients-may in dcpid's configuration); ask as root".to_owned())
            }
            Ok(request) => Ok(from_peer(request, peer)),
            Err(error) => Err(error.to_string()),
        };
        let understood = request.is_ok();
        seat.waits_for_us(true);
        let reply = match request {
            Ok(request) => ask(request, &asked).await,
            Err(error) => Reply::error(error),
        };
        seat.waits_for_us(false);
        let line = reply.encode()?;
        tokio::time::timeout(CLIENT_TIMEOUT, write.write_all(&line)).await??;
        if !understood {
            return Ok(()); // whoever talks nonsense has to connect again for more
        }
        // Another request needs another connection, so a busy client queues behind those that wait
        // for a place.
        tokio::task::yield_now().await;
    }
}

/// The request, completed with the client's user or process where the request is about the client.
fn from_peer(request: Request, peer: Peer) -> Request {
    match request {
        Request::Label { pid: None, label, .. } => {
            Request::Label { pid: peer.pid, start_time: None, label }
        }
        Request::Counts { watch, .. } => Request::Counts { watch, user: Some(peer.user) },
        request => request,
    }
}

async fn ask(request: Request, asked: &mpsc::Sender<Asked>) -> Reply {
    let (reply, answer) = oneshot::channel();
    let ending = || Reply::error("dcpid is ending; what it sampled is being written");
    if asked.send((request, reply)).await.is_err() {
        return ending();
    }
    answer.await.unwrap_or_else(|_| ending())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client in another pid namespace says a number that is another process's here.
    #[test]
    fn who_labels_itself_is_told_by_the_kernel() {
        let label = |pid, start_time| Request::Label { pid, start_time, label: "x".into() };
        let peer = |pid| Peer { user: 1000, pid };
        assert_eq!(from_peer(label(None, None), peer(Some(7))), label(Some(7), None));
        assert_eq!(from_peer(label(None, Some(3)), peer(Some(7))), label(Some(7), None));
        assert_eq!(from_peer(label(None, None), peer(None)), label(None, None));
        assert_eq!(from_peer(label(Some(9), Some(3)), peer(Some(7))), label(Some(9), Some(3)));
        assert_eq!(from_peer(Request::Flush, peer(Some(7))), Request::Flush);
        let counts = |user| Request::Counts { watch: 1, user };
        assert_eq!(
            from_peer(counts(Some(0)), peer(Some(7))),
            counts(Some(1000)),
            "nobody speaks for another user"
        );
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (client, server) = UnixStream::pair().unwrap();
            let (asked, mut requests) = mpsc::channel(1);
            let seat = Arc::new(Clients::default()).seat(0).await;
            let served = tokio::spawn(async move {
                serve_client(server, asked, Arc::new(Semaphore::new(1)), Rights::Read, &seat).await
            });
            let mut client = BufReader::new(client);
            client.write_all(b"{\"command\":\"label\",\"label\":\"run\"}\n").await.unwrap();
            let (request, reply) = requests.recv().await.unwrap();
            let me = Some(std::process::id());
            assert_eq!(request, Request::Label { pid: me, start_time: None, label: "run".into() });
            reply.send(Reply::default()).unwrap();
            let mut line = String::new();
            client.read_line(&mut line).await.unwrap();
            assert_eq!(line, "{}\n");
            drop(client);
            served.await.unwrap().unwrap();
        });
    }
}
