//! `dcpi-fleet receive`: puts what hosts push into a store.
//!
//! Requests (RFC 9110): `PUT` with `If-None-Match: *` is answered 201 for a new object, 200 for one
//! that is there already, and 409 for an epoch whose name another machine has; `HEAD` tells whether
//! there is an object. The receiver answers no `GET`, so hosts do not see each other's profiles.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Body as _, Incoming};
use hyper::header::{CONTENT_LENGTH, IF_NONE_MATCH, RETRY_AFTER};
use hyper::{Method, Request, Response, StatusCode};
use store::{Key, OBJECT_BYTES_MAX, Put, Store, StoreError};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::http::{Answer, Connections, answer_all};

/// Most connections at a time; more wait until one ends.
const CONNECTIONS_MAX: usize = 512;
/// Most memory of objects that are being received, in MiB; more wait. Two of the largest.
const MEMORY_MIB: u32 = 512;
/// Longest time for the body of a request.
const BODY_MAX: Duration = Duration::from_secs(300);

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
    let shared = Arc::new(Shared { store, memory: Semaphore::new(MEMORY_MIB as usize) });
    // An object that is being written at shutdown is finished, or its host pushes it again.
    let grace = Duration::from_secs(10);
    let connections = Connections { most: CONNECTIONS_MAX, longest: None, grace };
    answer_all(listener, connections, move |request| answer(Arc::clone(&shared), request)).await
}

struct Shared {
    store: Store,
    memory: Semaphore,
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
        let mut busy = told(StatusCode::SERVICE_UNAVAILABLE, "the store failed; try again later");
        busy.headers_mut().insert(RETRY_AFTER, 60.into());
        busy
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
    // Objects wait for memory in the order in which they came.
    let mib = u32::try_from(length >> 20).unwrap_or(u32::MAX).saturating_add(1).min(MEMORY_MIB);
    let Ok(_memory) = shared.memory.acquire_many(mib).await else {
        return Ok(told(StatusCode::SERVICE_UNAVAILABLE, "ends"));
    };
    let limit = usize::try_from(length).unwrap_or(usize::MAX);
    let body = Limited::new(request.into_body(), limit).collect();
    let object = match timeout(BODY_MAX, body).await {
        Err(_) => return Ok(told(StatusCode::REQUEST_TIMEOUT, "came too slowly")),
        Ok(Err(_)) => return Ok(told(StatusCode::BAD_REQUEST, "ended early")),
        Ok(Ok(body)) => body.to_bytes(),
    };
    let (of, checked) = (key.clone(), object.clone());
    let check = tokio::task::spawn_blocking(move || of.check(&checked)).await;
    check.unwrap_or_else(|_| Err(StoreError::Unfit("it cannot be read".to_owned())))?;
    Ok(match shared.store.put(key, object).await? {
        Put::Stored => told(StatusCode::CREATED, ""),
        Put::WasThere => told(StatusCode::OK, ""),
        Put::Another => told(StatusCode::CONFLICT, "another machine has an epoch of that name"),
    })
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
