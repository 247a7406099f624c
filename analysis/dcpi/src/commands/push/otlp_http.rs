//! OTLP over HTTP (github.com/open-telemetry/opentelemetry-specification, protocol/otlp.md): a
//! request's body is a message ExportProfilesServiceRequest, whose fields are those of
//! ProfilesData, in gzip; the answer 200 is a message ExportProfilesServiceResponse
//! (opentelemetry-proto 1.10.0, collector/profiles/v1development/profiles_service.proto).

use std::fmt;
use std::io::{Read as _, Write as _};
use std::str::FromStr;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;

use super::http::{ANSWER_BYTES_MAX, agent, failed, retry_after};
use super::{Failure, file_name, shown};

/// Prefix of URLs: profiles of OpenTelemetry, by plain HTTP. Other receivers have other prefixes.
const SCHEME: &str = "otlp+http://";
/// Default port and path of OTLP over HTTP.
const PORT: &str = "4318";
const PATH: &str = "/v1development/profiles";
/// Longest time that a request may take.
const TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collector {
    /// HOST:PORT/PATH.
    place: String,
}

impl fmt::Display for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}", self.place)
    }
}

impl FromStr for Collector {
    type Err = String;

    fn from_str(url: &str) -> Result<Self, String> {
        let Some(place) = url.strip_prefix(SCHEME) else {
            return Err(match url.split_once("://") {
                Some(("https" | "otlp+https", _)) => format!(
                    "needs TLS, which dcpi does not have; let a collector on this host pass it \
                     on: {SCHEME}127.0.0.1:{PORT}"
                ),
                Some(("http", place)) => format!("is of no known kind: {SCHEME}{place}?"),
                _ => format!("must be {SCHEME}HOST[:PORT][/PATH]"),
            });
        };
        let (host, path) = match place.find('/') {
            Some(at) => place.split_at(at),
            None => (place, ""),
        };
        let is_plain =
            |character: char| character.is_ascii_graphic() && !"@?#\\\"".contains(character);
        if host.is_empty() || host.starts_with(':') || !place.chars().all(is_plain) {
            return Err(format!("must be {SCHEME}HOST[:PORT][/PATH]"));
        }
        // An IPv6 address has colons itself.
        let has_port = host.rsplit_once(':').is_some_and(|(_, port)| {
            !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit())
        });
        let port = if has_port { String::new() } else { format!(":{PORT}") };
        let path = if path.is_empty() || path == "/" { PATH } else { path };
        Ok(Self { place: format!("{host}{port}{path}") })
    }
}

impl Collector {
    /// Name of the directory for the record of data sent there.
    pub(super) fn file_name(&self) -> String {
        file_name(&format!("otlp_{}", self.place))
    }

    /// Sends a message; gives what the collector says of samples that it rejected, if it did.
    pub(super) fn send(&self, message: &[u8]) -> Result<Option<String>, Failure> {
        let cut = |why: String| Failure { why, is_final: false, retry_after: None };
        let mut packed = GzEncoder::new(Vec::new(), Compression::default());
        let packed = packed
            .write_all(message)
            .and_then(|()| packed.finish())
            .map_err(|error| cut(error.to_string()))?;
        let answer = agent(TIMEOUT)
            .post(format!("http://{}", self.place))
            .header("Content-Type", "application/x-protobuf")
            .header("Content-Encoding", "gzip")
            .send(&packed)
            .map_err(failed)?;
        let code = answer.status().as_u16();
        let header = |name: &str| answer.headers().get(name).and_then(|value| value.to_str().ok());
        let retry_after = retry_after(&answer);
        let is_message = header("content-type")
            .is_some_and(|of| of.trim().starts_with("application/x-protobuf"));
        let mut body = Vec::new();
        let said = answer.into_body().into_reader();
        let read = said.take(ANSWER_BYTES_MAX).read_to_end(&mut body);
        if code == 200 {
            // The number of rejected samples may be in the part that did not arrive.
            let is_whole = body.len() as u64 >= ANSWER_BYTES_MAX || fields(&body).1;
            return match read {
                Err(_) => Err(cut("answers 200, and breaks off".to_owned())),
                Ok(_) if is_message && !is_whole => {
                    Err(cut("answers 200, and breaks off".to_owned()))
                }
                Ok(_) => Ok(rejected(&body)),
            };
        }
        // As the specification has it, these may go away.
        let is_final = ![429, 502, 503, 504].contains(&code);
        let why = format!("answers {code} {}", shown(&body)).trim_end().to_owned();
        Err(Failure { why, is_final, retry_after })
    }
}

/// Message `ExportProfilesServiceResponse`: partial_success (message
/// `ExportProfilesPartialSuccess`: rejected_profiles, error_message). Rejected samples are not to
/// be sent again.
fn rejected(body: &[u8]) -> Option<String> {
    let partial = fields(body).0.into_iter().find_map(|(number, value)| match value {
        Field::Bytes(bytes) if number == 1 => Some(bytes),
        _ => None,
    })?;
    let (mut profiles, mut said) = (0, String::new());
    for (number, value) in fields(partial).0 {
        match (number, value) {
            (1, Field::Number(number)) => profiles = number,
            (2, Field::Bytes(bytes)) => said = shown(bytes),
            _ => {}
        }
    }
    match (profiles, said.is_empty()) {
        (0, true) => None,
        (0, false) => Some(format!("warns: {said}")),
        (profiles, _) => Some(format!("rejects {profiles} profiles: {said}")),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// The fields of a message as far as they can be read, with their numbers, and whether the message
/// has nothing else.
fn fields(mut bytes: &[u8]) -> (Vec<(u64, Field<'_>)>, bool) {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let Some(key) = varint(&mut bytes) else { return (fields, false) };
        let value = match key & 7 {
            0 => varint(&mut bytes).map(Field::Number),
            2 => varint(&mut bytes)
                .and_then(|length| bytes.split_at_checked(usize::try_from(length).ok()?))
                .map(|(value, rest)| {
                    bytes = rest;
                    Field::Bytes(value)
                }),
            _ => None,
        };
        match value {
            Some(value) => fields.push((key >> 3, value)),
            None => return (fields, false),
        }
    }
    (fields, true)
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_say_what_kind_of_receiver_it_is() {
        for (url, place) in [
            ("otlp+http://127.0.0.1", "127.0.0.1:4318/v1development/profiles"),
            ("otlp+http://[::1]", "[::1]:4318/v1development/profiles"),
            ("otlp+http://[::1]:99/", "[::1]:99/v1development/profiles"),
            ("otlp+http://pyroscope:4040/otlp/x", "pyroscope:4040/otlp/x"),
        ] {
            let collector: Collector = url.parse().unwrap();
            assert_eq!(collector.place, place);
            assert_eq!(collector.to_string(), format!("otlp+http://{place}"));
            assert!(!collector.file_name().contains(['/', ':']), "{}", collector.file_name());
        }
        for (url, said) in [
            ("http://c:4318", "otlp+http://c:4318?"),
            ("otlp+https://c", "TLS"),
            ("c:4318", "must be otlp+http://"),
            ("otlp+http://", "must be"),
            ("otlp+http://:1", "must be"),
            ("otlp+http://user@c", "must be"),
            ("otlp+http://c d", "must be"),
        ] {
            let why = url.parse::<Collector>().unwrap_err();
            assert!(why.contains(said), "{url}: {why}");
        }
    }

    #[test]
    fn answers_tell_what_was_rejected() {
        assert_eq!(rejected(b""), None);
        assert_eq!(rejected(b"\x0a\x00"), None);
        assert_eq!(rejected(b"\x0a\x06\x08\x02\x12\x02no"), Some("rejects 2 profiles: no".into()));
        assert_eq!(rejected(b"\x0a\x06\x12\x04odd\x1b"), Some(r"warns: odd\x1b".into()));
        // Right-to-left override: the rest of the line would read backwards.
        assert_eq!(shown("\u{202e}drowssap\n".as_bytes()), r"\u{202e}drowssap");
        for (bytes, whole) in [
            (&b""[..], true),
            (b"\x0a\x06\x08\x02\x12\x02no", true),
            (b"\x0a\x06\x08\x02\x12", false),
            (b"\x0a", false),
            (b"\x80", false),
        ] {
            assert_eq!(fields(bytes).1, whole, "{bytes:?}");
        }
        // Whatever a stranger answers.
        for body in [&b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"[..], b"<html>", b"\xff"] {
            assert_eq!(rejected(body), None);
        }
    }
}
