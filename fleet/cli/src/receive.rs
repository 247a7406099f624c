//! `dcpi-fleet receive`: puts what hosts push into a store.
//!
//! Requests (RFC 9110): `PUT` with `If-None-Match: *` is answered 201 for a new object, 200 for one
//! that is there already, and 409 for an epoch whose name another machine has; `HEAD` tells whether
//! there is an object. The receiver answers no `GET`, so hosts do not see each other's profiles.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use clap::Args;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body as _, Incoming};
use hyper::header::{CONTENT_LENGTH, IF_NONE_MATCH, RETRY_AFTER};
use hyper::{Method, Request, Response, StatusCode};
use store::{Key, OBJECT_BYTES_MAX, Put, Store, StoreError};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

use crate::http::{Answer, Connections, answer_all};

/// Most connections at a time; more wait until one ends.
const CONNECTIONS_MAX: usize = 512;
/// Most memory of objects that are being received, in MiB: two of the largest. It is taken as their
/// bytes arrive, so that nobody has it by saying how much will come.
const MEMORY_MIB: usize = 512;
/// Longest time for which an object waits for more memory. It keeps what it has meanwhile, so of
/// several that wait for each other some must give up.
const MEMORY_WAIT: Duration = Duration::from_secs(10);
/// Longest time of a connection, with all its answers.
const CONNECTION_MAX: Duration = Duration::from_secs(600);
/// The least pace at which an object must come, in bytes a second, after a time of grace.
const PACE: u64 = 64 << 10;
const GRACE: Duration = Duration::from_secs(20);
/// Objects whose bytes are checked at the same time: a small one may inflate to 256 MiB.
const CHECKS_MAX: usize = 1;

/// `dcpi-fleet receive`.
#[derive(Args, Debug)]
#[command(after_help = "\
The receiver has no login and no TLS: it listens on the loopback, and the site's proxy lets hosts \
pass, each to paths of its own host name (raw/hosts/NAME/) and to raw/code/. What is there is \
never replaced, and an object that is not what its name says, or is damaged, is refused.")]
pub struct Receive {
    /// Directory of the store, which exists
    #[arg(long, value_name = "DIR")]
    store: PathBuf,
    /// Where to listen
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8317")]
    listen: SocketAddr,
}

/// Receives until SIGTERM or Ctrl-C.
///
/// # Errors
/// One line, with the next step.
pub async fn run(receive: &Receive) -> Result<(), String> {
    let store = Store::open(&receive.store).map_err(|error| {
        format!("no store in {}: {error}; make the directory", receive.store.display())
    })?;
    let listener = TcpListener::bind(receive.listen)
        .await
        .map_err(|error| format!("cannot listen on {}: {error}; see --listen", receive.listen))?;
    let address = listener.local_addr().map_err(|error| error.to_string())?;
    tracing::info!(%address, store = %receive.store.display(), "listening");
    let (memory, checks) = (Semaphore::new(MEMORY_MIB), Semaphore::new(CHECKS_MAX));
    let shared = Arc::new(Shared { store, memory, checks });
    // An object that is being written at shutdown is finished, or its host pushes it again.
    let grace = Duration::from_secs(10);
    let connections = Connections { most: CONNECTIONS_MAX, longest: Some(CONNECTION_MAX), grace };
    answer_all(listener, connections, move |request| answer(Arc::clone(&shared), request)).await
}

struct Shared {
    store: Store,
    memory: Semaphore,
    checks: Semaphore,
}

async fn answer(shared: Arc<Shared>, request: Request<Incoming>) -> Result<Answer, Infallible> {
    let path = request.uri().path().trim_start_matches('/');
    let Some(key) = decoded(path).as_deref().and_then(Key::parse) else {
        return Ok(told(StatusCode::NOT_FOUND, "no object has such a name"));
    };
    let answer = match *request.method() {
        Method::HEAD => shared.store.has(&key).await.map(|has| match has {
            true => told(StatusCode::OK, ""),
            false => told(StatusCode::NOT_FOUND, ""),
        }),
        Method::PUT => put(&shared, &key, request).await,
        _ => Ok(told(StatusCode::METHOD_NOT_ALLOWED, "PUT and HEAD are answered")),
    };
    Ok(answer.unwrap_or_else(|error| {
        if let StoreError::Unfit(_) = error {
            return told(StatusCode::UNPROCESSABLE_ENTITY, &error.to_string());
        }
        tracing::error!(%key, %error);
        busy("the store failed; try again later")
    }))
}

async fn put(shared: &Shared, key: &Key, request: Request<Incoming>) -> Result<Answer, StoreError> {
    let header = |name| request.headers().get(name).and_then(|value| value.to_str().ok());
    if header(IF_NONE_MATCH) != Some("*") {
        let why = "needs If-None-Match: *, since nothing is replaced";
        return Ok(told(StatusCode::PRECONDITION_REQUIRED, why));
    }
    let length = header(CONTENT_LENGTH).and_then(|length| length.parse::<u64>().ok());
    let Some(length) = length.or_else(|| request.body().size_hint().exact()) else {
        return Ok(told(StatusCode::LENGTH_REQUIRED, "needs Content-Length"));
    };
    if length > OBJECT_BYTES_MAX {
        return Ok(told(StatusCode::PAYLOAD_TOO_LARGE, "an object has 256 MiB at most"));
    }
    let (object, _memory) = match received(shared, request.into_body(), length).await {
        Ok(received) => received,
        Err(refused) => return Ok(refused),
    };
    let (of, checked) = (key.clone(), object.clone());
    let turn = shared.checks.acquire().await;
    let check = tokio::task::spawn_blocking(move || of.check(&checked)).await;
    drop(turn);
    check.unwrap_or_else(|_| Err(StoreError::Unfit("it cannot be read".to_owned())))?;
    Ok(match shared.store.put(key, object).await? {
        Put::Stored => told(StatusCode::CREATED, ""),
        Put::WasThere => told(StatusCode::OK, ""),
        Put::Another => told(StatusCode::CONFLICT, "another machine has an epoch of that name"),
    })
}

/// The body of a request, and the memory that it has.
async fn received(
    shared: &Shared,
    mut body: Incoming,
    length: u64,
) -> Result<(Bytes, Vec<SemaphorePermit<'_>>), Answer> {
    let began = Instant::now();
    let ended_early = || told(StatusCode::BAD_REQUEST, "ended early");
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    // Memory that is not written to is not there yet.
    let (mut object, mut memory) = (Vec::with_capacity(length), Vec::new());
    loop {
        let due = GRACE + Duration::from_secs(object.len() as u64 / PACE);
        let frame = timeout(due.saturating_sub(began.elapsed()), body.frame()).await;
        let frame = match frame {
            Err(_) => return Err(told(StatusCode::REQUEST_TIMEOUT, "came too slowly")),
            Ok(None) if object.len() == length => return Ok((object.into(), memory)),
            Ok(None | Some(Err(_))) => return Err(ended_early()),
            Ok(Some(Ok(frame))) => frame,
        };
        let Ok(bytes) = frame.into_data() else { continue };
        if object.len() + bytes.len() > length {
            return Err(ended_early());
        }
        while memory.len() << 20 < object.len() + bytes.len() {
            match timeout(MEMORY_WAIT, shared.memory.acquire()).await {
                Ok(Ok(more)) => memory.push(more),
                _ => return Err(busy("many objects are being received")),
            }
        }
        object.extend_from_slice(&bytes);
    }
}

/// An answer after which a host tries again.
fn busy(why: &str) -> Answer {
    let mut busy = told(StatusCode::SERVICE_UNAVAILABLE, why);
    busy.headers_mut().insert(RETRY_AFTER, 60.into());
    busy
}

fn told(status: StatusCode, why: &str) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::copy_from_slice(why.as_bytes())));
    *answer.status_mut() = status;
    answer
}

/// A path without percent-encoding (RFC 3986, 2.1); None where it is no text.
fn decoded(path: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digit = |byte: u8| char::from(byte).to_digit(16);
        let value = digit(rest.next()?)? * 16 + digit(rest.next()?)?;
        bytes.push(u8::try_from(value).ok()?);
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_decoded_once() {
        assert_eq!(decoded("a/%C3%BC%20%25"), Some("a/ü %".to_owned()));
        for path in ["%", "%1", "%zz", "%ff"] {
            assert_eq!(decoded(path), None, "{path}");
        }
    }
}
