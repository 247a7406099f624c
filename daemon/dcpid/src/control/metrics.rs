//! Metrics for Prometheus: the status as text, by HTTP, on a Unix socket or a loopback address.

use crate::control::socket::{ControlError, listen};
use pipeline::main_loop::Asked;
use profiledb::EpochId;
use settings::access::{Access, Endpoint};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{Semaphore, mpsc, oneshot};
use wire::{Request, Status};

/// Readers that are served at the same time; others wait.
const READERS_MAX: usize = 16;
/// Longest time that a reader may take; a slower reader is let go, because others may wait.
const READER_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of a request that are read. A longer request is cut, which no reader of metrics sends.
const REQUEST_BYTES_MAX: usize = 4096;

/// A bound socket.
pub enum MetricsSocket {
    /// A Unix socket, whose file stays and is replaced by the next daemon.
    Unix(std::os::unix::net::UnixListener),
    /// A loopback address.
    Loopback(std::net::TcpListener),
}

impl MetricsSocket {
    /// Binds the socket.
    pub fn bind(endpoint: &Endpoint, access: Access) -> Result<Self, ControlError> {
        match endpoint {
            Endpoint::Unix(path) => listen(path, access).map(Self::Unix),
            Endpoint::Loopback(address) => {
                let bound = std::net::TcpListener::bind(address);
                let bound =
                    bound.and_then(|listener| listener.set_nonblocking(true).map(|()| listener));
                bound.map(Self::Loopback).map_err(|source| ControlError::Metrics {
                    address: address.to_string(),
                    source,
                })
            }
        }
    }

    /// Serves readers for ever, each with the current status.
    pub async fn serve(self, asked: mpsc::Sender<Asked>) -> io::Result<()> {
        match self {
            Self::Unix(listener) => {
                let listener = tokio::net::UnixListener::from_std(listener)?;
                serve_all(async || listener.accept().await.map(|(reader, _)| reader), asked).await
            }
            Self::Loopback(listener) => {
                let listener = tokio::net::TcpListener::from_std(listener)?;
                serve_all(async || listener.accept().await.map(|(reader, _)| reader), asked).await
            }
        }
    }
}

async fn serve_all<Reader>(
    accept: impl AsyncFn() -> io::Result<Reader>,
    asked: mpsc::Sender<Asked>,
) -> io::Result<()>
where
    Reader: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let seats = Arc::new(Semaphore::new(READERS_MAX));
    loop {
        let Ok(seat) = seats.clone().acquire_owned().await else { return Ok(()) };
        match accept().await {
            Ok(reader) => {
                let asked = asked.clone();
                tokio::spawn(async move {
                    answer(reader, &asked).await;
                    drop(seat);
                });
            }
            Err(_) => tokio::time::sleep(READER_TIMEOUT).await, // out of descriptors
        }
    }
}

async fn answer(mut reader: impl AsyncRead + AsyncWrite + Unpin, asked: &mpsc::Sender<Asked>) {
    let served = async {
        let (mut request, mut read) = ([0; REQUEST_BYTES_MAX], 0);
        while let Some(rest) = request.get_mut(read..).filter(|rest| !rest.is_empty()) {
            let more = reader.read(rest).await?;
            read += more;
            let said = request.get(..read).unwrap_or_default();
            if more == 0 || said.windows(4).any(|window| window == b"\r\n\r\n") {
                break;
            }
        }
        let (reply, status) = oneshot::channel();
        let sent = asked.send((Request::Status, reply)).await.is_ok();
        let status = if sent { status.await.ok().and_then(|reply| reply.status) } else { None };
        let (code, body) = match status {
            Some(status) if request.starts_with(b"GET ") => ("200 OK", text(&status)),
            Some(_) => ("405 Method Not Allowed", String::new()),
            None => ("503 Service Unavailable", String::new()),
        };
        let head = "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\nConnection: close";
        let answer =
            format!("HTTP/1.1 {code}\r\n{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        reader.write_all(answer.as_bytes()).await?;
        reader.shutdown().await
    };
    // An error here means that the reader has gone, or is too slow.
    let _: Result<io::Result<()>, _> = tokio::time::timeout(READER_TIMEOUT, served).await;
}

/// One metric: its name without the prefix `dcpi_`, its kind, its help, and its values by labels.
type Metric = (&'static str, &'static str, &'static str, Vec<(String, f64)>);

/// The status in Prometheus's text format, 0.0.4.
pub fn text(status: &Status) -> String {
    let mut text = String::new();
    let metrics = samples(status).into_iter().chain(stacks(status)).chain(daemon(status));
    for (name, kind, help, values) in metrics {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "# HELP dcpi_{name} {help}\n# TYPE dcpi_{name} {kind}");
        for (labels, value) in values {
            let _ = writeln!(text, "dcpi_{name}{labels} {value}");
        }
    }
    text
}

/// The names of all reasons of a kind.
macro_rules! names {
    ($kind:ident) => {
        model::$kind::ALL.iter().map(|reason| reason.name())
    };
}

fn one(value: f64) -> Vec<(String, f64)> {
    vec![(String::new(), value)]
}

fn samples(status: &Status) -> Vec<Metric> {
    let samples = &status.samples;
    let of_events = |value: fn(&wire::EventStatus) -> u64| -> Vec<(String, f64)> {
        let value = |event: &wire::EventStatus| (label("event", &event.name), value(event) as f64);
        status.events.iter().map(value).collect()
    };
    let (merged, pending) = (one(samples.merged as f64), one(samples.pending as f64));
    let unresolved = of_reasons(names!(Unresolved), &samples.unresolved);
    let lost = of_reasons(names!(Loss), &samples.lost);
    let mut missed: Reasons = [("throttled", 0), ("late", 0)].map(named).into();
    for (reason, count) in status.cpus.iter().flat_map(|cpu| &cpu.missed) {
        *missed.entry(reason.clone()).or_default() += count;
    }
    vec![
        ("samples_total", "counter", "Samples taken.", of_events(|event| event.samples)),
        ("period", "gauge", "Mean units between two samples.", of_events(|event| event.period)),
        ("samples_merged_total", "counter", "Samples in profiles on disk.", merged),
        ("samples_pending", "gauge", "Samples on their way to the disk.", pending),
        ("samples_unresolved_total", "counter", "Samples without an image.", unresolved),
        ("samples_lost_total", "counter", "Samples in no profile.", lost),
        ("samples_missed_total", "counter", "Samples not taken.", of_reasons([], &missed)),
    ]
}

type Reasons = BTreeMap<String, u64>;

fn named((name, count): (&str, u64)) -> (String, u64) {
    (name.to_owned(), count)
}

/// A count for each reason: also those that there was none of, because an alert sees the first one
/// only if there was a 0 before it.
fn of_reasons<'a>(all: impl IntoIterator<Item = &'a str>, counts: &Reasons) -> Vec<(String, f64)> {
    let mut every: Reasons = all.into_iter().map(|name| named((name, 0))).collect();
    every.extend(counts.iter().map(|(reason, count)| (reason.clone(), *count)));
    every.iter().map(|(reason, count)| (label("reason", reason), *count as f64)).collect()
}

/// Metrics of call stacks and waits, where they are taken.
fn stacks(status: &Status) -> Vec<Metric> {
    let mut metrics = Vec::new();
    if let Some(stacks) = &status.stacks {
        let cut = of_reasons(names!(Cut), &stacks.cut);
        metrics.extend([
            ("stacks_total", "counter", "Call stacks taken.", one(stacks.taken as f64)),
            ("stacks_whole_total", "counter", "Whole call stacks.", one(stacks.whole as f64)),
            ("stacks_cut_total", "counter", "Call stacks without their first frames.", cut),
            ("stacks_dropped_total", "counter", "Call stacks dropped.", one(stacks.dropped as f64)),
        ]);
    }
    if let Some(waits) = &status.waits {
        let scale = waits.scale_s.map(one).unwrap_or_default();
        let off = one(f64::from(waits.scale_s.is_none() && waits.pass_s.is_none()));
        let pass = waits.pass_s.map(one).unwrap_or_default();
        let switches = one(waits.switches_per_s);
        metrics.extend([
            ("waits_total", "counter", "Waits with call stacks.", one(waits.taken as f64)),
            ("waits_lost_total", "counter", "Of these, not counted.", one(waits.lost as f64)),
            ("waits_scale_seconds", "gauge", "Shorter waits are taken by chance.", scale),
            ("waits_pass_seconds", "gauge", "Time between passes over all threads.", pass),
            ("waits_seen_total", "counter", "Waits that passes met.", one(waits.seen as f64)),
            ("waits_off", "gauge", "1 while no waits are taken.", off),
            ("switches_per_second", "gauge", "Switches between threads, by CPU.", switches),
        ]);
    }
    metrics
}

/// Metrics of the daemon's cost and of its disk.
fn daemon(status: &Status) -> Vec<Metric> {
    let (overhead, rss_bytes) = (&status.overhead, status.daemon.rss_bytes as f64);
    let restraint = match status.restraint.doing.as_str() {
        "nothing" => 2.0,
        "counts only" => 1.0,
        _ => 0.0,
    };
    let share = overhead.share.map(one).unwrap_or_default();
    let budget = overhead.budget.map(one).unwrap_or_default();
    let merged = status.last_merge.map(|at| one(at as f64)).unwrap_or_default();
    let lost_records = one(status.lost_records as f64);
    let failed = one(f64::from(status.merge_error.is_some()));
    let doing = "0: all is sampled, 1: counts only, 2: nothing.";
    let dropped = "Records of mappings that the kernel dropped.";
    let build = vec![(label("version", &status.version), 1.0)];
    let started = kernel::clock::unix_s().saturating_sub(status.uptime_s);
    let epoch = status.epoch.parse::<EpochId>().ok().map(|epoch| one(epoch.unix_s() as f64));
    let code_bytes = status.code_store.map(|store| store.bytes);
    let code = code_bytes.map(|bytes| one(bytes as f64)).unwrap_or_default();
    let database = one(status.db.bytes.saturating_add(code_bytes.unwrap_or(0)) as f64);
    let peak = one(status.inspectors.peak_bytes as f64);
    let unanswered = one(status.inspectors.unanswered as f64);
    vec![
        ("build_info", "gauge", "Version of dcpid.", build),
        ("start_time_seconds", "gauge", "When dcpid began.", one(started as f64)),
        ("epoch_start_time_seconds", "gauge", "When the epoch began.", epoch.unwrap_or_default()),
        ("code_store_bytes", "gauge", "Size of the code store.", code),
        ("inspectors_unanswered_total", "counter", "Questions without an answer.", unanswered),
        ("inspectors_peak_bytes", "gauge", "Most memory of an inspector.", peak),
        ("cpu_seconds_total", "counter", "CPU time of dcpid.", one(status.daemon.cpu_s)),
        ("resident_bytes", "gauge", "Resident memory of dcpid.", one(rss_bytes)),
        ("overhead_ratio", "gauge", "Part of all CPU time in the last minute.", share),
        ("overhead_budget_ratio", "gauge", "What it may be.", budget),
        ("restraint", "gauge", doing, one(restraint)),
        ("processes", "gauge", "Processes known.", one(status.processes as f64)),
        ("lost_records_total", "counter", dropped, lost_records),
        ("merge_failed", "gauge", "1 while merges to the disk fail.", failed),
        ("last_merge_timestamp_seconds", "gauge", "When the disk took samples last.", merged),
        ("database_bytes", "gauge", "Size of the database, with kept code.", database),
    ]
}

/// A label as `{name="value"}`, escaped as the format requires.
fn label(name: &str, value: &str) -> String {
    let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("{{{name}=\"{value}\"}}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::{EventStatus, Reply};

    #[test]
    fn the_status_as_text() {
        let mut status = Status::default();
        status.events.push(EventStatus {
            name: "a\"b\\c\nd".into(),
            samples: 7,
            period: 3,
            ..EventStatus::default()
        });
        status.samples.lost.insert("spill_full".into(), 2);
        let text = text(&status);
        assert!(text.contains("dcpi_samples_total{event=\"a\\\"b\\\\c\\nd\"} 7\n"), "{text}");
        assert!(
            text.contains("dcpi_samples_lost_total{reason=\"spill_full\"} 2\n")
                && text.contains("dcpi_restraint 0\n")
        );
        // Before the first of them.
        for zero in
            ["lost_total{reason=\"pending_full\"}", "unresolved_total{reason=\"no_mapping\"}"]
        {
            assert!(text.contains(&format!("dcpi_samples_{zero} 0\n")), "{zero}: {text}");
        }
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            assert!(line.rsplit_once(' ').unwrap().1.parse::<f64>().is_ok(), "{line}");
        }
    }

    /// A status with something of everything.
    fn full() -> Status {
        let mut status = Status { epoch: "20261105-101500".to_owned(), ..Status::default() };
        status.events.push(EventStatus { name: "cpu-clock".into(), ..EventStatus::default() });
        status.stacks = Some(Default::default());
        status.waits = Some(wire::WaitsStatus { scale_s: Some(0.1), ..Default::default() });
        status.code_store = Some(Default::default());
        status.last_merge = Some(1);
        (status.overhead.budget, status.overhead.share) = (Some(0.01), Some(0.005));
        status
    }

    fn promtool(arguments: &[&str], input: &str) {
        use std::io::Write as _;
        let mut command = std::process::Command::new("promtool");
        let piped = std::process::Stdio::piped;
        command.args(arguments).stdin(piped()).stdout(piped()).stderr(piped());
        let mut promtool = command.spawn().unwrap();
        promtool.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = promtool.wait_with_output().unwrap();
        assert!(output.status.success(), "promtool {arguments:?}: {output:?}");
    }

    /// It left out the kept code, which was most of the disk space.
    #[test]
    fn the_size_of_the_database_has_the_kept_code() {
        let mut status = full();
        status.db.bytes = 5;
        status.code_store = Some(wire::CodeStoreStatus { bytes: 7, ..Default::default() });
        let text = text(&status);
        assert!(text.contains("\ndcpi_database_bytes 12\n"), "{text}");
        assert!(text.contains("\ndcpi_code_store_bytes 7\n"), "{text}");
    }

    #[test]
    fn prometheus_takes_the_metrics() {
        promtool(&["check", "metrics"], &text(&full()));
    }

    /// A loss fires its alert: `dcpi.rules.test.yml` says what is to happen.
    #[test]
    fn the_rules_fire_and_name_metrics_that_there_are() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../systemd/prometheus/");
        promtool(&["check", "rules", &format!("{folder}dcpi.rules.yml")], "");
        promtool(&["test", "rules", &format!("{folder}dcpi.rules.test.yml")], "");
        // The others are those of `dcpi push --metrics`.
        let of_push = "/../../analysis/dcpi/src/commands/push/metrics.rs";
        let of_push = format!("{}{of_push}", env!("CARGO_MANIFEST_DIR"));
        let of_push = std::fs::read_to_string(of_push).unwrap();
        let is_of_push = |name: &str| {
            let name = name.strip_prefix("dcpi_push_");
            name.is_some_and(|name| of_push.contains(&format!("\"{name}\"")))
        };
        let metrics = text(&full());
        for file in ["dcpi.rules.yml", "dashboard.json"] {
            let said = std::fs::read_to_string(format!("{folder}{file}")).unwrap();
            let mut names = said.split(|next: char| !next.is_alphanumeric() && next != '_');
            assert!(names.clone().filter(|name| name.starts_with("dcpi_")).count() > 8, "{file}");
            let unknown = names.find(|name| {
                let is_told = || metrics.contains(&format!("# TYPE {name} "));
                name.starts_with("dcpi_") && !is_told() && !is_of_push(name)
            });
            assert_eq!(unknown, None, "{file}");
        }
        let dashboard = std::fs::read_to_string(format!("{folder}dashboard.json")).unwrap();
        let dashboard: serde_json::Value = serde_json::from_str(&dashboard).unwrap();
        assert_eq!(dashboard["panels"].as_array().unwrap().len(), 8);
    }

    #[test]
    fn readers_are_answered_whatever_they_say() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            for (request, expected) in [
                (b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(), "HTTP/1.1 200 OK\r\n"),
                (b"POST / HTTP/1.1\r\n\r\n".to_vec(), "HTTP/1.1 405"),
                (vec![b'x'; 2 * REQUEST_BYTES_MAX], "HTTP/1.1 405"),
            ] {
                let (mut client, server) = tokio::io::duplex(1 << 16);
                let (asked, mut requests) = mpsc::channel::<Asked>(1);
                let served = tokio::spawn(async move { answer(server, &asked).await });
                client.write_all(&request).await.unwrap();
                let (_, reply) = requests.recv().await.unwrap();
                reply.send(Reply { status: Some(Box::default()), ..Reply::default() }).unwrap();
                let mut said = String::new();
                client.read_to_string(&mut said).await.unwrap();
                assert!(said.starts_with(expected), "{said}");
                served.await.unwrap();
            }
        });
    }
}
