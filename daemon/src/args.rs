//! What was typed.

use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;

/// What was typed, or the end of the program: help and version on standard output with exit code 0, a mistake as one line with exit code 2.
#[must_use]
pub fn parse<Arguments: Parser>(program: &str) -> Arguments {
    Arguments::try_parse().unwrap_or_else(|error| {
        if !error.use_stderr() {
            error.exit()
        }
        // clap's first paragraph says what is wrong; usage and tips below it are what --help is for.
        let text = error.render().to_string();
        let said: Vec<_> = text.lines().take_while(|line| !line.trim().is_empty()).map(str::trim).collect();
        let said = said.join(" ");
        let said = said.strip_prefix("error: ").unwrap_or(&said);
        let said = if said.starts_with("Steers dcpid") { "no command is given" } else { said };
        refuse(program, &format!("{said}; see {program} --help"))
    })
}

/// Ends the program: it could not do it.
pub fn refuse(program: &str, reason: &str) -> ! {
    use std::io::Write as _;
    let _ = writeln!(std::io::stderr(), "{program}: {reason}"); // nowhere left to say it
    std::process::exit(2)
}

/// Always-on profiler: samples every CPU of this machine into an epoch database.
#[derive(Parser, Debug)]
#[command(name = "dcpid", version, after_help = "Steer it with dcpictl; read its database with dcpi.")]
pub struct DcpidArgs {
    /// Settings in TOML; every flag has a key of its name there, and flags win [default: /etc/dcpi/dcpid.toml when present]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Settings that may also stand in the configuration file.
    #[command(flatten)]
    pub settings: Settings,
    /// Begin a new epoch even if the open one could be continued
    #[arg(long)]
    pub new_epoch: bool,
    /// How much to log to standard error: error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub log: tracing::Level,
}

/// Flags that are keys of the configuration file too.
#[derive(Args, Debug, Default, Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Settings {
    /// Database directory [default: /var/lib/dcpi]
    #[arg(long, value_name = "DIR")]
    pub db: Option<PathBuf>,
    /// Control socket [default: /run/dcpi/control.sock]
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// Socket that the loader hook writes to, or off [default: loader.sock beside the control socket]
    #[arg(long, value_name = "PATH|off")]
    pub loader_socket: Option<PathBuf>,
    /// Events to sample, see [`crate::event::EventSpec`].
    #[arg(
        long = "event",
        value_name = "SPEC",
        help = "Event to sample, NAME[:PERIOD][@RATE]; may be repeated [default: cycles, or cpu-clock without hardware counters, @5200]"
    )]
    #[serde(default, rename = "event")]
    pub events: Vec<String>,
    /// Time between two drains of the kernel's tables [default: 1s]
    #[arg(long, value_name = "T")]
    pub drain_interval: Option<String>,
    /// Time between two merges to disk [default: 10m]
    #[arg(long, value_name = "T")]
    pub merge_interval: Option<String>,
    /// Host name in the database [default: this machine's]
    #[arg(long, value_name = "NAME")]
    pub host: Option<String>,
    /// Part of all CPU time that sampling may cost, such as 1%; lowers the rate of events whose frequency is not given. off: no limit [default: 1%]
    #[arg(long, value_name = "P%")]
    pub overhead_budget: Option<String>,
    /// Buckets (64 bytes, 4 places) in a half of a CPU's table, a power of two from 16 to 1048576 [default: 1024]
    #[arg(long, value_name = "N")]
    pub table_buckets: Option<u32>,
    /// Entries (16 bytes) in the spill buffer of a half, 1 to 1048576 [default: 16384]
    #[arg(long, value_name = "N")]
    pub spill_entries: Option<u32>,
}

/// Steers dcpid; returns after the daemon has done it.
#[derive(Parser, Debug)]
#[command(name = "dcpictl", version)]
pub struct DcpictlArgs {
    /// Control socket of the daemon
    #[arg(long, value_name = "PATH", default_value = "/run/dcpi/control.sock", global = true)]
    pub control: PathBuf,
    /// Answer in JSON
    #[arg(long, global = true)]
    pub json: bool,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What dcpictl can ask for.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Show what the daemon samples, where the samples went and what it costs
    Status,
    /// Put everything sampled before now on disk
    Flush,
    /// Flush, seal the open epoch and open a new one
    Epoch {
        /// A name for the new epoch
        #[arg(long, value_name = "TEXT")]
        label: Option<String>,
    },
    /// Flush and end the daemon
    Quit,
}
