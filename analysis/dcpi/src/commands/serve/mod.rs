//! `dcpi serve`: the page of `dcpi html`, live from the database, on the loopback or a Unix socket.
//! It reads and changes nothing.
//!
//! `/` is the page, which has no data. `/report/NAME?a=WORD&a=WORD` is what
//! `dcpi NAME WORD... --format json` prints, of this database, and `/file?a=WORD` the file of
//! `dcpi html WORD...`. Requests for reports and files need the key that is in the link: every user
//! of the host can reach a port of the loopback, and every page of a browser may ask there, also
//! where ssh leads that port to a Unix socket.

mod allowed;
mod answers;
mod http;

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read as _, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use clap::Args;
use face::Page;
use query::error::AnalysisError;
use rustix::fs::Mode;

use super::Outcome;
use super::page::{self, Runner, Selection};
use crate::options::{Chosen, OfThreads};
use answers::{Answers, Asked};
use http::{Answer, Request, Served};

/// Most connections at a time; more are closed.
const CONNECTIONS_MAX: usize = 32;
/// Most reports that are made at a time; more wait. Each reads the database, and may take some
/// hundred MB.
const REPORTS_MAX: usize = 2;

/// Most questions for reports and files at a time: those that are answered and those that wait.
/// More are refused, so that connections are left for the page and for its look at the epochs. A
/// browser asks six at a time.
const QUESTIONS_MAX: usize = 24;

/// Longest wait for the place of a connection that was ended to make room.
const ROOM_MAX: Duration = Duration::from_secs(1);
/// Pause after `accept` fails, for want of descriptors, say: without it the loop would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// `dcpi serve`.
#[derive(Debug, Args)]
#[command(after_help = NOTES)]
pub struct Serve {
    /// Where to listen: an address of the loopback with a port, of which 0 is any that is free, or
    /// the path of a Unix socket
    #[arg(long, value_name = "ADDRESS:PORT|PATH", default_value = "127.0.0.1:8317")]
    pub listen: Listen,
    #[command(flatten)]
    pub chosen: Chosen,
}

const NOTES: &str = "\
The page is that of dcpi html. It asks for each report when it is shown, and again when dcpid has \
merged new samples; a range of its timeline, an epoch, and one program, image, service, container \
or process hold for all of it. The link that \
is printed has a key, without which there is no report. A Unix socket belongs to its user alone \
(mode 0600); ssh -L 8317:PATH HOST brings it to another machine.

The server answers GET only, and only requests for the address that it listens on. It ends with \
Ctrl-C.

Exit codes: 2 could not.";

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// At a port of the loopback.
    Port(SocketAddr),
    /// At a Unix socket.
    Socket(PathBuf),
}

impl std::str::FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.contains('/') {
            return Ok(Self::Socket(text.into()));
        }
        match text.parse::<SocketAddr>() {
            Ok(address) if address.ip().is_loopback() => Ok(Self::Port(address)),
            Ok(_) => {
                Err("is not an address of this host alone; listen on 127.0.0.1, and reach it \
                          from elsewhere by ssh -L"
                    .to_owned())
            }
            Err(_) => {
                Err("must be an address with a port, such as 127.0.0.1:8317, or the path of \
                           a socket with a / in it"
                    .to_owned())
            }
        }
    }
}

pub(crate) fn run(
    args: &Serve,
    runner: Runner,
    out: &mut dyn Write,
) -> Result<Outcome, AnalysisError> {
    let selection = Selection::of(&args.chosen, &OfThreads::default())?;
    let db = args.chosen.source.db().to_owned();
    // A database that cannot be read is said now, and not in the browser.
    page::json(runner, vec!["epochs".to_owned()], Vec::new(), &db)?;
    let failed = |error: io::Error| AnalysisError::Refused(format!("cannot listen: {error}"));
    let key = random_key()?;
    let site = |hosts: Vec<String>| Site {
        runner,
        selection: selection.words.clone(),
        db: db.clone(),
        key: key.clone(),
        hosts,
        questions: Arc::new(Places::new(QUESTIONS_MAX)),
        at_work: Places::new(REPORTS_MAX),
        answers: Answers::default(),
    };
    annotate::surveys::keep();
    match &args.listen {
        Listen::Port(address) => {
            let listener = TcpListener::bind(address).map_err(failed)?;
            let at = listener.local_addr().map_err(failed)?;
            writeln!(out, "open http://{at}/#key={key}")?;
            out.flush()?;
            let hosts = vec![at.to_string(), format!("localhost:{}", at.port())];
            serve(&Arc::new(site(hosts)), || Ok(listener.accept()?.0))
        }
        Listen::Socket(path) => {
            let listener = bound(path).map_err(failed)?;
            let path = path.display().to_string();
            writeln!(out, "listening on {}: http://localhost/#key={key}", report::escape(&path))?;
            out.flush()?;
            serve(&Arc::new(site(Vec::new())), || Ok(listener.accept()?.0))
        }
    }
}

/// A socket at a path, for its user alone. One that nobody listens on any more is replaced; one of
/// another kind, such as that of a log, is not.
fn bound(path: &Path) -> io::Result<UnixListener> {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    let answer = is_socket.then(|| UnixStream::connect(path));
    let is_refused = |error: &io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    if answer.is_some_and(|answer| answer.as_ref().is_err_and(is_refused)) {
        fs::remove_file(path)?;
    }
    // No other thread makes files yet.
    let before = rustix::process::umask(Mode::from_raw_mode(0o177));
    let listener = UnixListener::bind(path);
    rustix::process::umask(before);
    listener
}

/// 128 bits that nobody can guess.
fn random_key() -> io::Result<String> {
    let mut bytes = [0; 16];
    fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Answers until it is ended.
fn serve<S: http::Stream>(
    site: &Arc<Site>,
    accept: impl Fn() -> io::Result<S>,
) -> Result<Outcome, AnalysisError> {
    let connections = Arc::new(Places::new(CONNECTIONS_MAX));
    let silent = Arc::new(Mutex::new(BTreeMap::new()));
    for number in 0_u64.. {
        let Ok((handle, mut stream)) = accept().and_then(|it| Ok((it.handle()?, it))) else {
            // The other end gave up, or there are no descriptors left until connections end.
            std::thread::sleep(ACCEPT_PAUSE);
            continue;
        };
        let taken = Places::try_take(&connections, Duration::ZERO).or_else(|| {
            // The one that has sent no request for the longest time makes room.
            end_oldest(&silent);
            Places::try_take(&connections, ROOM_MAX)
        });
        let Some(place) = taken else {
            // It is a courtesy: who does not read it is closed all the same.
            let _ =
                stream.write_all(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n");
            continue;
        };
        if of(&silent).len() >= CONNECTIONS_MAX / 2 {
            end_oldest(&silent);
        }
        of(&silent).insert(number, handle);
        let (site, heard) = (Arc::clone(site), Arc::clone(&silent));
        let answer = move || {
            let _place = place;
            http::answer(stream, &*site, || drop(of(&heard).remove(&number)));
        };
        if std::thread::Builder::new().name("connection".into()).spawn(answer).is_err() {
            // The connection closes, and the browser asks again.
            of(&silent).remove(&number);
        }
    }
    Ok(Outcome::default())
}

/// Connections that have sent no request so far, by the order in which they came.
type Silent<S> = Mutex<BTreeMap<u64, S>>;

fn of<S>(silent: &Silent<S>) -> MutexGuard<'_, BTreeMap<u64, S>> {
    silent.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends the silent connection that came first: whoever holds many keeps nobody out.
fn end_oldest<S: http::Stream>(silent: &Silent<S>) {
    if let Some((_, oldest)) = of(silent).pop_first() {
        oldest.end();
    }
}

/// What is served.
struct Site {
    runner: Runner,
    selection: Vec<String>,
    db: PathBuf,
    key: String,
    /// Hosts that requests may be for; none: any port of this machine, which ssh may have chosen.
    hosts: Vec<String>,
    questions: Arc<Places>,
    at_work: Places,
    answers: Answers,
}

impl Served for Site {
    fn answer(&self, request: &Request) -> Answer {
        if !request.host.as_deref().is_some_and(|host| self.is_own(host)) {
            // A name that leads here is another site's, whose pages would read ours.
            return Answer::error(421, "this server answers only for its own address");
        }
        let report = request.path.strip_prefix("/report/");
        if request.path == "/" {
            return self.page();
        }
        if report.is_none() && request.path != "/file" {
            return Answer::error(404, "there is /, /report/NAME and /file");
        }
        if !self.is_trusted(request) {
            return Answer::error(403, "the key is missing: open the link that was printed");
        }
        // The page looks every few seconds whether there are new samples: that waits for nothing.
        let is_look = report == Some("epochs");
        let place = Places::try_take(&self.questions, Duration::ZERO);
        if place.is_none() && !is_look {
            return Answer::error(503, "the server answers other questions; ask again later");
        }
        match report {
            Some(name) => self.report(name, &request.words),
            None => self.file(&request.words),
        }
    }
}

impl Site {
    fn is_own(&self, host: &str) -> bool {
        if !self.hosts.is_empty() {
            return self.hosts.iter().any(|known| known == host);
        }
        let port = |rest: &str| rest.is_empty() || rest.starts_with(':');
        ["localhost", "127.0.0.1", "[::1]"]
            .iter()
            .any(|name| host.strip_prefix(name).is_some_and(port))
    }

    fn is_trusted(&self, request: &Request) -> bool {
        let key = &self.key;
        let given = request.key.as_deref().unwrap_or_default();
        // All bytes are compared, so that the time does not tell how many are right.
        let differ = key.bytes().zip(given.bytes()).fold(0, |all, (a, b)| all | (a ^ b));
        given.len() == key.len() && differ == 0
    }

    fn page(&self) -> Answer {
        let page = Page {
            subject: face::Subject::Profile,
            title: "dcpi".to_owned(),
            is_live: true,
            note: None,
            db: self.db.display().to_string(),
            selection: self.selection.clone(),
            of_threads: Vec::new(),
            images: Vec::new(),
            sets: None,
            version: env!("CARGO_PKG_VERSION"),
            terms: super::explain::terms(),
            reports: Vec::new(),
        };
        let nonce = page::nonce();
        let mut body = Vec::new();
        match face::write(&page, &nonce, &mut body) {
            Ok(()) => Answer::page(body, face::policy(&nonce, true)),
            Err(error) => Answer::error(500, &error.to_string()),
        }
    }

    /// The page as a file, of what the words of `dcpi html` select.
    fn file(&self, words: &[String]) -> Answer {
        if let Err(why) = allowed::check_file(words) {
            return Answer::error(400, &why);
        }
        let _place = self.at_work.take();
        let (mut line, last) = line(allowed::FILE, words);
        line.push("--output=-".to_owned());
        match page::printed(self.runner, line, last, &self.db) {
            Ok((page, _)) => Answer::file(page),
            Err(error) => Answer::error(200, &error.to_string()),
        }
    }

    fn report(&self, name: &str, words: &[String]) -> Answer {
        if let Err(why) = allowed::check(name, words) {
            // People type sets, and browsers write codes of failures on their consoles.
            let status = if name == "diff" { 200 } else { 400 };
            return Answer::error(status, &why);
        }
        let asked = Asked::of(&self.db, name, words);
        let given = || self.answers.given(asked.as_ref()?, Instant::now());
        if let Some(json) = given() {
            return Answer::json(200, json.to_vec());
        }
        let _place = (name != "epochs").then(|| self.at_work.take());
        // Another request may have been for the same meanwhile.
        if let Some(json) = given() {
            return Answer::json(200, json.to_vec());
        }
        let (line, last) = line(name, words);
        match page::json(self.runner, line, last, &self.db) {
            Ok((json, _)) => {
                let json = Arc::new(face::compact(&json));
                if let Some(asked) = asked {
                    self.answers.keep(asked, &json, Instant::now());
                }
                Answer::json(200, json.to_vec())
            }
            // It is an answer: what a database has no samples of. Browsers write other codes on
            // their consoles as failures.
            Err(error) => Answer::error(200, &error.to_string()),
        }
    }
}

/// The words of a command: those with a dash, and those that come after the database and format.
fn line(name: &str, words: &[String]) -> (Vec<String>, Vec<String>) {
    let (options, last): (Vec<_>, Vec<_>) =
        words.iter().cloned().partition(|word| word.starts_with('-'));
    let mut line = vec![name.to_owned()];
    line.extend(options);
    // Behind `--` no name is taken for an option. dcpi why would run a command that is there; no
    // name that comes here begins with a dash.
    let last = match name {
        "why" => {
            line.extend(last);
            Vec::new()
        }
        _ if last.is_empty() => last,
        _ => [vec!["--".to_owned()], last].concat(),
    };
    (line, last)
}

/// A number of places, each taken by one at a time.
struct Places {
    free: Mutex<usize>,
    freed: Condvar,
}

impl Places {
    fn new(number: usize) -> Self {
        Self { free: Mutex::new(number), freed: Condvar::new() }
    }

    /// Waits until a place is free, and takes it.
    fn take(&self) -> Taken<'_> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        while *free == 0 {
            free = self.freed.wait(free).unwrap_or_else(PoisonError::into_inner);
        }
        *free -= 1;
        Taken(self)
    }

    /// Takes a place if one is free within this time.
    fn try_take(places: &Arc<Self>, within: Duration) -> Option<Kept> {
        let free = places.free.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = places.freed.wait_timeout_while(free, within, |free| *free == 0);
        let (mut free, _) = waited.unwrap_or_else(PoisonError::into_inner);
        *free = free.checked_sub(1)?;
        Some(Kept(Arc::clone(places)))
    }

    fn give_back(&self) {
        *self.free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.freed.notify_one();
    }
}

/// A place that is given back at the end of a scope.
struct Taken<'a>(&'a Places);

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.0.give_back();
    }
}

/// A place that is given back by another thread.
struct Kept(Arc<Places>);

impl Drop for Kept {
    fn drop(&mut self) {
        self.0.give_back();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_host_can_be_listened_on() {
        let port = |text: &str| matches!(text.parse(), Ok(Listen::Port(_)));
        assert!(port("127.0.0.1:0") && port("[::1]:8317") && port("127.0.0.2:1"));
        for text in ["0.0.0.0:8317", "192.168.1.2:80", "[::]:1", "127.0.0.1", "localhost:1", ""] {
            assert!(text.parse::<Listen>().is_err(), "{text}");
        }
        assert_eq!("./s".parse(), Ok(Listen::Socket("./s".into())));
    }

    #[test]
    fn questions_are_limited_and_a_look_at_the_epochs_is_none() {
        let site = |questions| Site {
            runner: |_| Ok((b"{}".to_vec(), Outcome::default())),
            selection: Vec::new(),
            db: PathBuf::from("/nonexistent"),
            key: "k".to_owned(),
            hosts: Vec::new(),
            questions: Arc::new(Places::new(questions)),
            at_work: Places::new(1),
            answers: Answers::default(),
        };
        let ask = |site: &Site, path: &str| {
            let [host, key] = ["localhost", "k"].map(|text| Some(text.to_owned()));
            let request = Request { path: path.to_owned(), host, key, ..Request::default() };
            format!("{:?}", site.answer(&request)).contains("status: 200")
        };
        let (busy, idle) = (site(0), site(1));
        assert!(!ask(&busy, "/report/prof") && !ask(&busy, "/file"));
        assert!(ask(&busy, "/report/epochs") && ask(&busy, "/"));
        for _ in 0..2 {
            assert!(ask(&idle, "/report/prof") && ask(&idle, "/file"), "places are given back");
        }
    }

    #[test]
    fn places_are_limited() {
        let places = Arc::new(Places::new(1));
        let kept = Places::try_take(&places, Duration::ZERO);
        assert!(kept.is_some() && Places::try_take(&places, Duration::ZERO).is_none());
        drop(kept);
        drop(places.take());
        assert!(Places::try_take(&places, Duration::ZERO).is_some());
    }
}
