//! As much of HTTP/1.1 (RFC 9112) as one page needs: a request with GET and no body, an answer, and
//! the end of the connection.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Most bytes of a request's head.
const HEAD_MAX: usize = 16 << 10;
/// Most headers of a request: browsers send about twenty.
const HEADERS_MAX: usize = 64;
/// Longest time in which a request must arrive, and in which an answer must be taken.
const REQUEST_MAX: Duration = Duration::from_secs(10);
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// A connection whose ends can be given up on.
pub trait Stream: Read + Write + Send + 'static {
    /// Sets the longest times of one read and of one write.
    ///
    /// # Errors
    /// Those of setsockopt(2).
    fn limit(&self, read: Duration, write: Duration) -> io::Result<()>;

    /// A handle by which another thread can end the connection.
    ///
    /// # Errors
    /// Those of dup(2).
    fn handle(&self) -> io::Result<Self>
    where
        Self: Sized;

    /// Ends the connection: reads of it return at once.
    fn end(&self);
}

impl Stream for TcpStream {
    fn limit(&self, read: Duration, write: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(read))?;
        self.set_write_timeout(Some(write))
    }

    fn handle(&self) -> io::Result<Self> {
        self.try_clone()
    }

    fn end(&self) {
        let _ = self.shutdown(std::net::Shutdown::Both); // it has ended already
    }
}

impl Stream for UnixStream {
    fn limit(&self, read: Duration, write: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(read))?;
        self.set_write_timeout(Some(write))
    }

    fn handle(&self) -> io::Result<Self> {
        self.try_clone()
    }

    fn end(&self) {
        let _ = self.shutdown(std::net::Shutdown::Both); // it has ended already
    }
}

/// A request.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// The path, decoded.
    pub path: String,
    /// Values of the query's parameters `a`, in order.
    pub words: Vec<String>,
    /// The host that it is for, of exactly one such header.
    pub host: Option<String>,
    /// The bearer's key.
    pub key: Option<String>,
}

/// What answers requests.
pub trait Served {
    /// The answer to a request.
    fn answer(&self, request: &Request) -> Answer;
}

/// An answer.
#[derive(Debug)]
pub struct Answer {
    status: u16,
    kind: &'static str,
    policy: String,
    body: Vec<u8>,
}

impl Answer {
    /// A page with its policy.
    pub fn page(body: Vec<u8>, policy: String) -> Self {
        // What a page's own element cannot say.
        let policy = format!("{policy}; frame-ancestors 'none'");
        Self { status: 200, kind: "text/html; charset=utf-8", policy, body }
    }

    /// A page to be kept as a file, which a browser shows nowhere but in a tab of the file's own.
    pub fn file(body: Vec<u8>) -> Self {
        let policy = "default-src 'none'; sandbox".to_owned();
        Self { status: 200, kind: "text/html; charset=utf-8", policy, body }
    }

    /// JSON.
    pub fn json(status: u16, body: Vec<u8>) -> Self {
        Self { status, kind: "application/json", policy: "default-src 'none'".to_owned(), body }
    }

    /// An object whose `error` says what is wrong.
    pub fn error(status: u16, why: &str) -> Self {
        let body = serde_json::json!({ "error": report::escape(why) });
        Self::json(status, body.to_string().into_bytes())
    }

    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { status, kind, policy, body } = self;
        let word = match status {
            200 => "OK",
            400 => "Bad Request",
            403 => "Forbidden",
            404 => "Not Found",
            405 => "Method Not Allowed",
            421 => "Misdirected Request",
            431 => "Request Header Fields Too Large",
            503 => "Service Unavailable",
            _ => "Internal Server Error",
        };
        let allow = if *status == 405 { "Allow: GET\r\n" } else { "" };
        write!(
            out,
            "HTTP/1.1 {status} {word}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\
             Content-Security-Policy: {policy}\r\nX-Content-Type-Options: nosniff\r\n\
             Referrer-Policy: no-referrer\r\nCross-Origin-Resource-Policy: same-origin\r\n\
             Cache-Control: no-store\r\n{allow}Connection: close\r\n\r\n",
            body.len()
        )?;
        out.write_all(body)?;
        out.flush()
    }
}

/// Reads a request, and writes its answer. Whoever sends none in time gets none. `arrived` is
/// called when the request is there.
pub fn answer(mut stream: impl Stream, served: &dyn Served, arrived: impl FnOnce()) {
    if stream.limit(REQUEST_MAX, ANSWER_MAX).is_err() {
        return;
    }
    let head = head(&mut stream);
    arrived();
    let answer = match head.map(|head| parsed(&head)) {
        Ok(Ok(request)) => served.answer(&request),
        Ok(Err(answer)) => answer,
        Err(_) => return,
    };
    // Who goes away needs no answer.
    let _ = answer.write(&mut stream);
}

/// The bytes until the empty line, or more than a head may have.
fn head(stream: &mut impl Read) -> io::Result<Vec<u8>> {
    let begun = Instant::now();
    let mut head = Vec::new();
    let mut part = [0; 2048];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") && head.len() <= HEAD_MAX {
        let length = stream.read(&mut part)?;
        if length == 0 || begun.elapsed() > REQUEST_MAX {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        head.extend_from_slice(part.get(..length).unwrap_or_default());
    }
    Ok(head)
}

fn parsed(head: &[u8]) -> Result<Request, Answer> {
    if head.len() > HEAD_MAX {
        return Err(Answer::error(431, "the request is too long"));
    }
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut raw = httparse::Request::new(&mut headers);
    if !raw.parse(head).is_ok_and(|status| status.is_complete()) {
        return Err(Answer::error(400, "the request is no HTTP"));
    }
    if raw.method != Some("GET") {
        return Err(Answer::error(405, "this server answers GET only"));
    }
    let header = |name: &str| {
        let mut values = raw.headers.iter().filter(|one| one.name.eq_ignore_ascii_case(name));
        let value = std::str::from_utf8(values.next()?.value).ok()?;
        values.next().is_none().then(|| value.to_owned())
    };
    let (path, query) = raw
        .path
        .and_then(|path| path.split_once('?'))
        .unwrap_or_else(|| (raw.path.unwrap_or_default(), ""));
    let mut words = Vec::new();
    for (name, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
        let value = decoded(&value.replace('+', " "));
        let value = value.ok_or_else(|| Answer::error(400, "the query is no text"))?;
        if name == "a" {
            words.push(value);
        }
    }
    let key = header("authorization");
    Ok(Request {
        path: decoded(path).ok_or_else(|| Answer::error(400, "the path is no text"))?,
        words,
        host: header("host"),
        key: key.and_then(|key| Some(key.strip_prefix("Bearer ")?.to_owned())),
    })
}

/// A text without percent-encoding; none if it is no UTF-8, or has a byte 0, which no argument of
/// a command can have.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes().iter();
    while let Some(byte) = rest.next() {
        let byte = match byte {
            b'%' => {
                let digit = |byte: Option<&u8>| char::from(*byte?).to_digit(16);
                let (high, low) = (digit(rest.next())?, digit(rest.next())?);
                u8::try_from(16 * high + low).ok()?
            }
            byte => *byte,
        };
        if byte == 0 {
            return None;
        }
        bytes.push(byte);
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(text: &str) -> Result<Request, u16> {
        parsed(text.as_bytes()).map_err(|answer| answer.status)
    }

    #[test]
    fn requests_are_read() {
        let text = "GET /report/prof?a=--min%3D1%25&b=x&a=a+b HTTP/1.1\r\nHost: h:1\r\n\
                    authorization: Bearer k\r\n\r\n";
        let expected = Request {
            path: "/report/prof".to_owned(),
            words: vec!["--min=1%".to_owned(), "a b".to_owned()],
            host: Some("h:1".to_owned()),
            key: Some("k".to_owned()),
        };
        assert_eq!(request(text), Ok(expected));
    }

    #[test]
    fn what_is_no_such_request_is_refused() {
        assert_eq!(request("POST / HTTP/1.1\r\n\r\n"), Err(405));
        assert_eq!(request("GET / HTTP/1.1\r\nHost: a\r\n"), Err(400));
        assert_eq!(request("\u{0}\r\n\r\n"), Err(400));
        assert_eq!(request("GET /?a=%00 HTTP/1.1\r\n\r\n"), Err(400));
        assert_eq!(request("GET /%ff HTTP/1.1\r\n\r\n"), Err(400));
        let long = format!("GET / HTTP/1.1\r\nA: {}\r\n\r\n", "x".repeat(HEAD_MAX));
        assert_eq!(request(&long), Err(431));
        let twice = request("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n").unwrap();
        assert_eq!(twice.host, None, "of two hosts neither is believed");
    }
}
