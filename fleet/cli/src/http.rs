//! The common part of this program's servers: connections, their limit, and shutdown.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::SockRef;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Longest time for the head of a request.
const HEAD_MAX: Duration = Duration::from_secs(10);
/// Longest time for which a client may leave what it is sent unread: the kernel then ends the
/// connection (TCP_USER_TIMEOUT, tcp(7)).
const UNREAD_MAX: Duration = Duration::from_secs(10);

/// An answer to a request.
pub type Answer = Response<Full<Bytes>>;

/// How a server treats its connections.
#[derive(Copy, Clone, Debug)]
pub struct Connections {
    /// Most at a time; more wait until one ends.
    pub most: usize,
    /// Longest time of one, with all its answers; None: no limit.
    pub longest: Option<Duration>,
    /// Longest time that open ones have when the server ends.
    pub grace: Duration,
}

/// Answers requests until SIGTERM or Ctrl-C.
///
/// # Errors
/// One line, if signals cannot be received.
pub async fn answer_all<A>(
    listener: TcpListener,
    connections: Connections,
    answer: impl Fn(Request<Incoming>) -> A + Clone + Send + 'static,
) -> Result<(), String>
where
    A: Future<Output = Result<Answer, Infallible>> + Send + 'static,
{
    let mut ended = signal(SignalKind::terminate()).map_err(|error| error.to_string())?;
    let free = Arc::new(Semaphore::new(connections.most));
    loop {
        let permit = tokio::select! {
            permit = Arc::clone(&free).acquire_owned() => {
                permit.map_err(|error| error.to_string())?
            }
            _ = ended.recv() => break,
            _ = tokio::signal::ctrl_c() => break,
        };
        let stream = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    let _ = SockRef::from(&stream).set_tcp_user_timeout(Some(UNREAD_MAX));
                    stream
                }
                // accept(2) fails when too many files are open, or when the client has gone: the
                // next connection may succeed.
                Err(error) => {
                    tracing::warn!(%error, "a connection was not taken");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            },
            _ = ended.recv() => break,
            _ = tokio::signal::ctrl_c() => break,
        };
        let answer = answer.clone();
        tokio::spawn(async move {
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_MAX)
                .max_buf_size(64 << 10)
                .serve_connection(TokioIo::new(stream), service_fn(answer));
            // A client that goes away comes again; one that does not read its answer gives its
            // place up after a while.
            match connections.longest {
                Some(longest) => drop(timeout(longest, connection).await),
                None => drop(connection.await),
            }
            drop(permit);
        });
    }
    let all = u32::try_from(connections.most).unwrap_or(u32::MAX);
    let _ = timeout(connections.grace, free.acquire_many(all)).await;
    Ok(())
}
