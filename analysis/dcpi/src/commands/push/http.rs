//! Requests to receivers, by plain HTTP.

use std::time::Duration;

use ureq::http::Response;
use ureq::{Agent, Body};

use super::Failure;

/// Most bytes of an answer's status line with its headers, and of its body when that is a message.
pub(super) const ANSWER_BYTES_MAX: u64 = 64 << 10;

/// An answer, whose body is still to be read.
pub(super) type Answer = Response<Body>;

/// A client for one request, of which neither connecting, sending nor the answer takes longer than
/// `timeout` together.
pub(super) fn agent(timeout: Duration) -> Agent {
    Agent::config_builder()
        .timeout_global(Some(timeout))
        .http_status_as_error(false)
        .max_redirects(0)
        // A request goes where its URL says, and nowhere else.
        .proxy(None)
        .max_response_header_size(ANSWER_BYTES_MAX as usize)
        .user_agent(concat!("dcpi/", env!("CARGO_PKG_VERSION")))
        .build()
        .new_agent()
}

/// A request without an answer.
pub(super) fn failed(error: ureq::Error) -> Failure {
    Failure { why: error.to_string(), is_final: false, retry_after: None }
}

/// The time after which a receiver wants to be asked again.
pub(super) fn retry_after(answer: &Answer) -> Option<Duration> {
    let seconds = answer.headers().get("retry-after")?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}
