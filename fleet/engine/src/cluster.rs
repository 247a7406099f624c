//! A cluster of Apache Ballista: a scheduler, executors, and this program as their client.
//!
//! The three exchange plans and rows by gRPC, without login and without TLS: they belong on one
//! machine or a network whose machines trust each other. All of one cluster are one release. Each
//! reads the store itself, with the credentials of its own environment: no message has them.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use arrow::record_batch::RecordBatch;
use ballista_core::error::BallistaError;
use ballista_core::extension::SessionStateExt as _;
use ballista_core::utils::{default_config_producer, default_session_builder};
use ballista_executor::executor_process::{ExecutorProcessConfig, start_executor_process};
use ballista_scheduler::cluster::BallistaCluster;
use ballista_scheduler::config::SchedulerConfig;
use ballista_scheduler::scheduler_process::start_server;
use datafusion::error::DataFusionError;
use datafusion::execution::SessionStateBuilder;
use datafusion::execution::context::SessionState;
use datafusion::execution::object_store::{DefaultObjectStoreRegistry, ObjectStoreRegistry};
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::object_store::ObjectStore;
use datafusion::prelude::{DataFrame, SessionConfig, SessionContext};
use store::Store;
use url::Url;

use crate::EngineError;

/// Seconds between signs of life of an executor.
const HEARTBEAT_S: u64 = 2;
/// Seconds without a heartbeat of an executor after which other executors get its tasks.
const LOST_S: u64 = 10;
/// Times that a question is asked.
const ATTEMPTS: u32 = 3;

/// How an executor runs.
#[derive(Clone, Debug)]
pub struct Executor {
    /// Where other executors and clients reach it; of port 0, any that is free.
    pub listen: SocketAddr,
    /// `HOST:PORT` of the scheduler.
    pub scheduler: String,
    /// Tasks at a time; 0: as many as CPUs.
    pub tasks: usize,
    /// Memory of all tasks for what they sort and group, in bytes, before they use the disk
    /// ($TMPDIR).
    pub memory_bytes: u64,
}

/// A client of the cluster with its scheduler at `HOST:PORT`.
pub(crate) fn context(scheduler: &str) -> Result<SessionContext, EngineError> {
    let (host, port) = host_and_port(scheduler)?;
    check(scheduler)?;
    let state = SessionState::new_ballista_state(format!("http://{host}:{port}"))?;
    Ok(SessionContext::new_with_state(state))
}

/// The answer to a question, which is asked again where an executor was lost with it.
pub(crate) async fn collect(
    question: DataFrame,
    scheduler: &str,
) -> Result<Vec<RecordBatch>, EngineError> {
    for _ in 1..ATTEMPTS {
        if let Ok(batches) = question.clone().collect().await {
            return Ok(batches);
        }
        check(scheduler)?;
    }
    Ok(question.collect().await?)
}

/// Whether there are a scheduler and executors: without, questions would wait without a word.
fn check(scheduler: &str) -> Result<(), EngineError> {
    let (host, port) = host_and_port(scheduler)?;
    let has_executors = has_executors(host, port).map_err(|error| {
        let next = "start dcpi-fleet scheduler there, or name another";
        EngineError::Cluster(format!("no scheduler at {scheduler}: {error}; {next}"))
    })?;
    if has_executors {
        return Ok(());
    }
    let next = format!("start dcpi-fleet executor --scheduler {scheduler}");
    Err(EngineError::Cluster(format!("{scheduler} has no executors; {next}")))
}

/// Schedules the queries of clients until the process ends; `starts` gets the address.
///
/// # Errors
/// [`EngineError::Cluster`].
pub async fn scheduler(
    listen: SocketAddr,
    starts: impl FnOnce(SocketAddr),
) -> Result<(), EngineError> {
    let failed = |error: BallistaError| EngineError::Cluster(error.to_string());
    let address = free(listen)?;
    let config = SchedulerConfig {
        bind_host: address.ip().to_string(),
        bind_port: address.port(),
        external_host: address.ip().to_string(),
        executor_timeout_seconds: LOST_S,
        expire_dead_executor_interval_seconds: HEARTBEAT_S,
        no_executors_grace_period_seconds: LOST_S,
        override_session_builder: Some(Arc::new(|config| {
            let state = default_session_builder(config)?;
            let runtime = runtime(RuntimeEnvBuilder::new())?;
            Ok(SessionStateBuilder::new_from_existing(state).with_runtime_env(runtime).build())
        })),
        ..SchedulerConfig::default()
    };
    let cluster = BallistaCluster::new_from_config(&config).await.map_err(failed)?;
    starts(address);
    start_server(cluster, address, Arc::new(config)).await.map_err(failed)
}

/// Executes parts of queries until SIGTERM or Ctrl-C; `starts` gets the address.
///
/// # Errors
/// [`EngineError::Cluster`].
pub async fn executor(of: &Executor, starts: impl FnOnce(SocketAddr)) -> Result<(), EngineError> {
    let (host, port) = host_and_port(&of.scheduler)?;
    let work = tempfile::Builder::new().prefix("dcpi-fleet-executor-").tempdir();
    let work = work.map_err(|error| EngineError::Cluster(format!("no directory: {error}")))?;
    let directory = work.path().to_path_buf();
    let [listen, control] = [free(of.listen)?, free(SocketAddr::new(of.listen.ip(), 0))?];
    let tasks = match of.tasks {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        tasks => tasks,
    };
    let config = ExecutorProcessConfig {
        bind_host: listen.ip().to_string(),
        port: listen.port(),
        grpc_port: control.port(),
        scheduler_host: host.to_owned(),
        scheduler_port: port,
        vcores: tasks,
        work_dir: Some(directory.display().to_string()),
        executor_heartbeat_interval_seconds: HEARTBEAT_S,
        memory_pool_size: Some(of.memory_bytes),
        override_config_producer: Some(Arc::new(default_config_producer)),
        override_runtime_producer: Some(Arc::new(move |_: &SessionConfig| {
            runtime(RuntimeEnvBuilder::new().with_temp_file_path(&directory))
        })),
        ..ExecutorProcessConfig::default()
    };
    starts(listen);
    let done = start_executor_process(Arc::new(config)).await;
    done.map_err(|error| {
        EngineError::Cluster(format!("{error}; is dcpi-fleet scheduler at {}?", of.scheduler))
    })
}

/// A runtime that knows the objects of every store of this environment.
fn runtime(builder: RuntimeEnvBuilder) -> Result<Arc<RuntimeEnv>, DataFusionError> {
    let stores = Arc::new(Stores { known: DefaultObjectStoreRegistry::new() });
    builder.with_object_store_registry(stores).build_arc()
}

/// The objects of stores, which are opened when the first plan names them.
#[derive(Debug)]
struct Stores {
    known: DefaultObjectStoreRegistry,
}

impl ObjectStoreRegistry for Stores {
    fn register_store(
        &self,
        url: &Url,
        objects: Arc<dyn ObjectStore>,
    ) -> Option<Arc<dyn ObjectStore>> {
        self.known.register_store(url, objects)
    }

    fn get_store(&self, url: &Url) -> Result<Arc<dyn ObjectStore>, DataFusionError> {
        if let Ok(objects) = self.known.get_store(url) {
            return Ok(objects);
        }
        let address = format!("{}://{}", url.scheme(), url.authority());
        let opened = Store::at(&address).and_then(|store| store.url(""));
        let opened = opened.map_err(|error| DataFusionError::External(Box::new(error)));
        let (_, objects) = opened?;
        self.known.register_store(url, Arc::clone(&objects));
        Ok(objects)
    }
}

/// Whether executors are registered, according to the scheduler's answer to probes.
fn has_executors(host: &str, port: u16) -> std::io::Result<bool> {
    let mut stream = TcpStream::connect((host.trim_matches(['[', ']']), port))?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    write!(stream, "GET /readyz HTTP/1.0\r\nhost: {host}\r\n\r\n")?;
    let mut answer = String::new();
    stream.take(4096).read_to_string(&mut answer)?;
    let status = answer.split_whitespace().nth(1);
    match status {
        Some("200") => Ok(true),
        Some("503") => Ok(false),
        _ => Err(std::io::Error::other("that is another program")),
    }
}

/// The parts of `HOST:PORT`.
fn host_and_port(address: &str) -> Result<(&str, u16), EngineError> {
    let parts = address.rsplit_once(':').filter(|(host, _)| !host.is_empty());
    let parts = parts.and_then(|(host, port)| Some((host, port.parse().ok()?)));
    parts.ok_or_else(|| EngineError::Address(format!("no scheduler at {address}: HOST:PORT")))
}

/// The address, with a port that is free in the place of 0: servers tell theirs before they listen.
fn free(address: SocketAddr) -> Result<SocketAddr, EngineError> {
    let bound = std::net::TcpListener::bind(address);
    let bound = bound.and_then(|listener| listener.local_addr());
    bound.map_err(|error| refused(address, &error))
}

fn refused(address: SocketAddr, error: &std::io::Error) -> EngineError {
    EngineError::Cluster(format!("cannot listen on {address}: {error}; see --listen"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_scheduler_has_a_host_and_a_port() {
        assert_eq!(host_and_port("[::1]:50050").unwrap(), ("[::1]", 50050));
        for address in ["", "host", ":1", "host:", "host:70000", "host:1/x"] {
            assert!(matches!(host_and_port(address), Err(EngineError::Address(_))), "{address}");
        }
    }

    #[test]
    fn stores_are_opened_when_they_are_named() {
        let directory = tempfile::tempdir().unwrap();
        let stores = Stores { known: DefaultObjectStoreRegistry::new() };
        let url = Url::from_directory_path(directory.path()).unwrap();
        assert!(stores.get_store(&url).is_ok());
        assert!(stores.get_store(&Url::parse("s3://bucket/a").unwrap()).is_ok());
        assert!(stores.get_store(&Url::parse("ftp://host/a").unwrap()).is_err());
    }
}
