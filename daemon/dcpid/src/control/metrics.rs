//! Metrics for Prometheus: the status as text, by HTTP, on a Unix socket or a loopback address.
//! Readers are served one at a time.

use crate::control::socket::{ControlError, listen};
use pipeline::main_loop::Asked;
use settings::access::{Access, Endpoint};
use std::fmt::Write as _;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot};
use wire::{Request, Status};

/// Longest time that a reader may take; a slower reader is let go, because others wait for it.
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
        // A reader that goes away does no harm; a slow one delays the others by the timeout at
        // most.
        match self {
            Self::Unix(listener) => {
                let listener = tokio::net::UnixListener::from_std(listener)?;
                loop {
                    match listener.accept().await {
                        Ok((reader, _)) => answer(reader, &asked).await,
                        Err(_) => tokio::time::sleep(READER_TIMEOUT).await, // out of descriptors
                    }
                }
            }
            Self::Loopback(listener) => {
                let listener = tokio::net::TcpListener::from_std(listener)?;
                loop {
                    match listener.accept().await {
                        Ok((reader, _)) => answer(reader, &asked).await,
                        Err(_) => tokio::time::sleep(READER_TIMEOUT).await, // out of descriptors
                    }
                }
            }
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
    for (name, kind, help, values) in samples(status).into_iter().chain(daemon(status)) {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "# HELP dcpi_{name} {help}\n# TYPE dcpi_{name} {kind}");
        for (labels, value) in values {
            let _ = writeln!(text, "dcpi_{name}{labels} {value}");
        }
    }
    text
}

fn one(value: f64) -> Vec<(String, f64)> {
    vec![(String::new(), value)]
}

fn samples(status: &Status) -> Vec<Metric> {
    let samples = &status.samples;
    let reasons = |reasons: &std::collections::BTreeMap<String, u64>| -> Vec<(String, f64)> {
        reasons.iter().map(|(reason, n)| (label("reason", reason), *n as f64)).collect()
    };
    let of_events = |value: fn(&wire::EventStatus) -> u64| -> Vec<(String, f64)> {
        let value = |event: &wire::EventStatus| (label("event", &event.name), value(event) as f64);
        status.events.iter().map(value).collect()
    };
    let (merged, pending) = (one(samples.merged as f64), one(samples.pending as f64));
    let unresolved = reasons(&samples.unresolved);
    vec![
        ("samples_total", "counter", "Samples taken.", of_events(|event| event.samples)),
        ("period", "gauge", "Mean units between two samples.", of_events(|event| event.period)),
        ("samples_merged_total", "counter", "Samples in profiles on disk.", merged),
        ("samples_pending", "gauge", "Samples on their way to the disk.", pending),
        ("samples_unresolved_total", "counter", "Samples without an image.", unresolved),
        ("samples_lost_total", "counter", "Samples in no profile.", reasons(&samples.lost)),
    ]
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
    vec![
        ("cpu_seconds_total", "counter", "CPU time of dcpid.", one(status.daemon.cpu_s)),
        ("resident_bytes", "gauge", "Resident memory of dcpid.", one(rss_bytes)),
        ("overhead_ratio", "gauge", "Part of all CPU time in the last minute.", share),
        ("overhead_budget_ratio", "gauge", "What it may be.", budget),
        ("restraint", "gauge", doing, one(restraint)),
        ("processes", "gauge", "Processes known.", one(status.processes as f64)),
        ("lost_records_total", "counter", dropped, lost_records),
        ("merge_failed", "gauge", "1 while merges to the disk fail.", failed),
        ("last_merge_timestamp_seconds", "gauge", "When the disk took samples last.", merged),
        ("database_bytes", "gauge", "Size of the database.", one(status.db.bytes as f64)),
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
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            assert!(line.rsplit_once(' ').unwrap().1.parse::<f64>().is_ok(), "{line}");
        }
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
