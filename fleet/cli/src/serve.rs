//! `dcpi-fleet serve`: reviews in a browser, down to instructions. It reads, and changes nothing.
//!
//! `/` lists weeks; `/week/WEEK` is the review; `/drill/WEEK?service=S&image=I&procedure=P` merges
//! the epochs of the service's hosts, and shows what `dcpi calc` says of the procedure, or without
//! a procedure the page of `dcpi html`.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io::Read;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use clap::Args;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use ingest::{Merged, Wanted, merged};
use review::{json, page};
use store::{Manifest, Store, StoreError, Week};
use tokio::net::TcpListener;
use tokio::sync::{Mutex, Semaphore};
use weeks::assemble;

use crate::drill::{dcpi, enough};
use crate::http::{Answer, Connections, answer_all};
use crate::review::nonce;
use crate::store_option::{InStore, now_s};

/// Most connections at a time.
const CONNECTIONS_MAX: usize = 64;
/// Longest time of a connection, with all its answers.
const CONNECTION_MAX: Duration = Duration::from_secs(400);
/// Longest time for a command of dcpi.
const COMMAND_MAX: Duration = Duration::from_secs(300);
/// Pages that are made at a time; more wait. A review of 20,000 procedures takes about 60 MB.
const PAGES_MAX: usize = 4;
/// Merged databases that are kept for the next question.
const KEPT_MAX: usize = 8;
/// Weeks that are listed.
const WEEKS: i64 = 26;

/// `dcpi-fleet serve`.
#[derive(Args, Debug)]
#[command(after_help = "\
The server has no login and no TLS: it listens on the loopback, and the site's proxy lets people \
pass. It answers GET only, and only requests for the hosts --name names, so that pages of other \
sites cannot read it through a browser.")]
pub struct Serve {
    #[command(flatten)]
    store: InStore,
    /// Where to listen
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8318")]
    listen: SocketAddr,
    /// A host that requests may be for, besides localhost and the address (may be repeated)
    #[arg(long, value_name = "HOST")]
    name: Vec<String>,
}

/// Serves until SIGTERM or Ctrl-C.
///
/// # Errors
/// One line, with the next step.
pub async fn run(args: &Serve) -> Result<bool, String> {
    let store = args.store.open()?;
    let listener = TcpListener::bind(args.listen)
        .await
        .map_err(|error| format!("cannot listen on {}: {error}; see --listen", args.listen))?;
    let address = listener.local_addr().map_err(|error| error.to_string())?;
    tracing::info!(%address, store = store.shown(), "listening");
    let mut names = args.name.clone();
    names.extend(["localhost".to_owned(), address.ip().to_string()]);
    let directory = tempfile::tempdir().map_err(|error| format!("{error}; see $TMPDIR"))?;
    let shared = Arc::new(Shared {
        store,
        names,
        directory,
        kept: Mutex::new(VecDeque::new()),
        pages: Semaphore::new(PAGES_MAX),
    });
    let connections =
        Connections { most: CONNECTIONS_MAX, longest: Some(CONNECTION_MAX), grace: Duration::ZERO };
    let answer = move |request| answer(Arc::clone(&shared), request);
    answer_all(listener, connections, answer).await.map(|()| true)
}

struct Shared {
    store: Store,
    names: Vec<String>,
    directory: tempfile::TempDir,
    /// What was asked, and the database that answers it; who makes one holds the lock, so that one
    /// is made at a time.
    kept: Mutex<VecDeque<(Question, PathBuf, Merged)>>,
    pages: Semaphore,
}

/// The subject of a drill-down.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Question {
    week: Week,
    /// Number of the week's manifest: later ones have more.
    manifest: u64,
    service: String,
    image: String,
}

async fn answer(shared: Arc<Shared>, request: Request<Incoming>) -> Result<Answer, Infallible> {
    // A page of another site may make a browser ask under a name that leads here.
    let host = request.headers().get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let host = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let host = host.trim_matches(['[', ']']);
    if !shared.names.iter().any(|name| name == host) {
        return Ok(told(StatusCode::MISDIRECTED_REQUEST, "another host; see --name"));
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return Ok(told(StatusCode::METHOD_NOT_ALLOWED, "GET is answered"));
    }
    let Ok(_page) = shared.pages.acquire().await else {
        return Ok(told(StatusCode::SERVICE_UNAVAILABLE, "ends"));
    };
    let shared = Arc::clone(&shared);
    // Futures that read stores are not Send: they run on a thread of their own.
    let (path, query) =
        (request.uri().path().to_owned(), request.uri().query().unwrap_or_default().to_owned());
    let handle = tokio::runtime::Handle::current();
    let work = move || handle.block_on(page_of(&shared, &path, &query));
    let done = tokio::task::spawn_blocking(work).await;
    Ok(done.unwrap_or_else(|_| told(StatusCode::INTERNAL_SERVER_ERROR, "it failed")))
}

async fn page_of(shared: &Shared, path: &str, query: &str) -> Answer {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let done = match parts.as_slice() {
        [""] => index(shared).await,
        ["week", week] => review_of(shared, week).await,
        ["drill", week] => drill_of(shared, week, query).await,
        _ => Ok(told(StatusCode::NOT_FOUND, "no such page")),
    };
    done.unwrap_or_else(|error| told(StatusCode::NOT_FOUND, &error))
}

/// The weeks that are closed.
async fn index(shared: &Shared) -> Result<Answer, String> {
    let now = Week::of(now_s());
    let mut list = String::new();
    for before in 0..WEEKS {
        let week = now.before(before);
        let manifest = match Manifest::newest(&shared.store, week).await {
            // Other weeks can be read.
            Err(StoreError::Damaged { .. }) => continue,
            manifest => manifest.map_err(|error| error.to_string())?,
        };
        if manifest.closed_epochs > 0 {
            let epochs = manifest.epochs.len();
            list += &format!("<li><a href=\"/week/{week}\">{week}</a>, {epochs} epochs</li>\n");
        }
    }
    if list.is_empty() {
        list = "<li>no week is closed: dcpi-fleet close</li>".to_owned();
    }
    let body = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Fleet reviews</title>\
         <h1>Fleet reviews</h1><ul>\n{list}</ul></html>"
    );
    Ok(html(body.into_bytes(), "default-src 'none'; base-uri 'none'; form-action 'none'"))
}

async fn review_of(shared: &Shared, name: &str) -> Result<Answer, String> {
    let (name, is_json) = match name.strip_suffix(".json") {
        Some(name) => (name, true),
        None => (name, false),
    };
    let week: Week = name.parse()?;
    let drill =
        format!("/drill/{week}?service={{service}}&image={{image}}&procedure={{procedure}}");
    let report = assemble(&shared.store, week, &drill).await.map_err(|error| error.to_string())?;
    let mut body = Vec::new();
    if is_json {
        json::write(&report, &mut body).map_err(|error| error.to_string())?;
        return Ok(typed(StatusCode::OK, body, "application/json"));
    }
    page::write(&report, &nonce(), &mut body).map_err(|error| error.to_string())?;
    // The page has a policy of its own.
    Ok(typed(StatusCode::OK, body, "text/html; charset=utf-8"))
}

async fn drill_of(shared: &Shared, week: &str, query: &str) -> Result<Answer, String> {
    let query: Vec<(String, String)> =
        url::form_urlencoded::parse(query.as_bytes()).into_owned().collect();
    let get = |name: &str| {
        let found = query.iter().find(|(of, _)| of == name);
        found.map(|(_, value)| value.clone()).unwrap_or_default()
    };
    let (service, image, procedure) = (get("service"), get("image"), get("procedure"));
    if service.is_empty() || image.is_empty() {
        return Err("service and image are needed".to_owned());
    }
    let week: Week = week.parse()?;
    let newest = Manifest::newest(&shared.store, week).await.map_err(|error| error.to_string())?;
    let question = Question { week, manifest: newest.number, service, image };
    let mut kept = shared.kept.lock().await;
    let found = kept.iter().find(|(of, ..)| *of == question).cloned();
    let (_, directory, merged) = match found {
        Some(found) => found,
        None => {
            let made = make(shared, question).await?;
            kept.push_back(made.clone());
            if kept.len() > KEPT_MAX
                && let Some((_, oldest, _)) = kept.pop_front()
            {
                let _ = std::fs::remove_dir_all(oldest);
            }
            made
        }
    };
    let Some((build, _)) = merged.builds.first() else {
        return Err("the service ran no such image".to_owned());
    };
    // The lock is held, so that the database is not removed meanwhile.
    enough(&directory, build, &procedure)?;
    let mut command = Command::new(dcpi());
    let is_page = procedure.is_empty();
    match is_page {
        true => command.args(["html", "-o", "-", "--db"]).arg(&directory).args(["--", build]),
        false => command.args(["calc", "--db"]).arg(&directory).args(["--", build, &procedure]),
    };
    let shown = output(&mut command)?;
    Ok(match is_page {
        true => typed(StatusCode::OK, shown, "text/html; charset=utf-8"),
        false => typed(StatusCode::OK, shown, "text/plain; charset=utf-8"),
    })
}

/// The output of a command, unless it takes too long. Runs on a thread that may block.
fn output(command: &mut Command) -> Result<Vec<u8>, String> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("cannot run dcpi: {error}; install it"))?;
    let read = |pipe: Option<Box<dyn Read + Send>>| {
        std::thread::spawn(move || {
            let mut all = Vec::new();
            if let Some(mut pipe) = pipe {
                let _ = pipe.read_to_end(&mut all);
            }
            all
        })
    };
    let out = read(child.stdout.take().map(|pipe| Box::new(pipe) as Box<dyn Read + Send>));
    let err = read(child.stderr.take().map(|pipe| Box::new(pipe) as Box<dyn Read + Send>));
    let begun = Instant::now();
    let status = loop {
        match child.try_wait().map_err(|error| error.to_string())? {
            Some(status) => break status,
            None if begun.elapsed() > COMMAND_MAX => {
                let _ = child.kill();
                let _ = child.wait();
                return Err("dcpi took too long".to_owned());
            }
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    let [out, err] = [out, err].map(|thread| thread.join().unwrap_or_default());
    if status.success() { Ok(out) } else { Err(String::from_utf8_lossy(&err).trim().to_owned()) }
}

/// Merges what a question is of.
async fn make(shared: &Shared, question: Question) -> Result<(Question, PathBuf, Merged), String> {
    let name = Week::of(now_s()).to_string() + &nonce();
    let directory = shared.directory.path().join(name);
    let wanted = Wanted {
        week: question.week,
        service: question.service.clone(),
        image: Some(question.image.clone()),
        build: None,
        machine: None,
        hosts: 500,
    };
    let merged = merged(&shared.store, &wanted, &directory).await;
    match merged {
        Ok(merged) => Ok((question, directory, merged)),
        Err(error) => {
            let _ = std::fs::remove_dir_all(directory);
            Err(error.to_string())
        }
    }
}

fn html(body: Vec<u8>, policy: &'static str) -> Answer {
    let mut answer = typed(StatusCode::OK, body, "text/html; charset=utf-8");
    answer.headers_mut().insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
    answer
}

fn told(status: StatusCode, why: &str) -> Answer {
    typed(status, format!("{why}\n").into_bytes(), "text/plain; charset=utf-8")
}

fn typed(status: StatusCode, body: Vec<u8>, kind: &'static str) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::from(body)));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    headers.insert("referrer-policy", HeaderValue::from_static("no-referrer"));
    headers.insert("cache-control", HeaderValue::from_static("no-store"));
    answer
}
