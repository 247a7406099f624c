//! `dcpi-fleet scheduler` and `executor`: a cluster of Apache Ballista.

use std::net::SocketAddr;

use clap::Args;
use engine::cluster;

/// Access control for the parts of a cluster.
const TRUST: &str = "\
A cluster has no login and no TLS: whoever reaches it reads what its environment can read. Let it \
listen on the loopback, or on a network whose machines trust each other. Scheduler, executors and \
clients are one release, and each reads the store itself, with the credentials of its own \
environment (AWS_ACCESS_KEY_ID, AWS_ENDPOINT, ...); a directory is at the same path on all.";

/// `dcpi-fleet scheduler`.
#[derive(Args, Debug)]
#[command(after_help = TRUST)]
pub struct Scheduler {
    /// Where to listen; of port 0, any that is free
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:50050")]
    listen: SocketAddr,
}

/// `dcpi-fleet executor`.
#[derive(Args, Debug)]
#[command(after_help = TRUST)]
pub struct Executor {
    /// The scheduler
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:50050")]
    scheduler: String,
    /// Where other executors and clients reach this one; of port 0, any that is free
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Tasks at a time; 0: as many as CPUs
    #[arg(long, value_name = "N", default_value_t = 0)]
    tasks: usize,
    /// Memory of all tasks for what they sort and group, before they use $TMPDIR, MiB
    #[arg(long, value_name = "MIB", default_value_t = 2048,
          value_parser = clap::value_parser!(u64).range(64..=1 << 20))]
    memory: u64,
}

/// # Errors
/// One line, with the next step.
pub async fn run_scheduler(args: &Scheduler) -> Result<bool, String> {
    let done = cluster::scheduler(args.listen, told).await;
    done.map(|()| true).map_err(|error| error.to_string())
}

/// # Errors
/// One line, with the next step.
pub async fn run_executor(args: &Executor) -> Result<bool, String> {
    let executor = cluster::Executor {
        listen: args.listen,
        scheduler: args.scheduler.clone(),
        tasks: args.tasks,
        memory_bytes: args.memory << 20,
    };
    let done = cluster::executor(&executor, told).await;
    done.map(|()| true).map_err(|error| error.to_string())
}

fn told(address: SocketAddr) {
    crate::out::say!("listening on {address}");
}
