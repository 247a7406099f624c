//! The command lines of dcpid, dcpictl and dcpilabel.

use clap::{Args, Parser, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;

/// Parses the command line, or ends the program: help and version go to standard output with exit
/// code 0, a mistake is one line with exit code 2.
pub fn parse<Arguments: Parser>(program: &str) -> Arguments {
    Arguments::try_parse().unwrap_or_else(|error| {
        if !error.use_stderr() {
            error.exit()
        }
        // The first paragraph of clap's text names the mistake; the usage and tips below it are in
        // --help.
        let text = error.render().to_string();
        let said: Vec<_> =
            text.lines().take_while(|line| !line.trim().is_empty()).map(str::trim).collect();
        let said = said.join(" ");
        let said = said.strip_prefix("error: ").unwrap_or(&said);
        let said = if said.starts_with("Steers dcpid") { "no command is given" } else { said };
        refuse(program, &format!("{said}; see {program} --help"))
    })
}

/// Ends the program with an error line and exit code 2.
pub fn refuse(program: &str, reason: &str) -> ! {
    use std::io::Write as _;
    let _ = writeln!(std::io::stderr(), "{program}: {reason}"); // nowhere left to say it
    std::process::exit(2)
}

/// Always-on profiler: samples every CPU of this machine into an epoch database.
#[derive(Parser, Debug)]
#[command(
    name = "dcpid",
    version,
    after_help = "Steer it with dcpictl; read its database with dcpi."
)]
pub struct DcpidArgs {
    /// Settings in TOML; each flag is also a key there, and flags win [default:
    /// /etc/dcpi/dcpid.toml when present]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Settings that may also stand in the configuration file.
    #[command(flatten)]
    pub settings: Settings,
    /// Begin a new epoch even if the open one could be continued
    #[arg(long)]
    pub new_epoch: bool,
    /// End, as with SIGTERM, when the standard input ends
    #[arg(long)]
    pub until_eof: bool,
    /// Reports on its epochs begin with the samples of this label: dcpi record's command
    #[arg(long, value_name = "LABEL", hide = true)]
    pub opens_on: Option<String>,
    /// Write what the kernel, the system and clients tell to this new file, to be merged again with
    /// --replay; it tells paths and addresses, and no registers
    #[arg(long, value_name = "FILE", conflicts_with = "replay")]
    pub record_input: Option<PathBuf>,
    /// Merge a recording into --db like live samples, and end; needs no privilege
    #[arg(long, value_name = "FILE", requires = "db")]
    pub replay: Option<PathBuf>,
    /// Be an inspector: answer the questions of a dcpid on standard input
    #[arg(long, hide = true, conflicts_with_all = ["replay", "record_input"])]
    pub inspect: bool,
    /// Say what this host allows, in a line of JSON for each fact, and end: for dcpi doctor
    #[arg(long, hide = true, conflicts_with_all = ["replay", "record_input", "inspect"])]
    pub check_host: bool,
    /// Start an inspector for each connection to this socket (-: standard input)
    #[arg(long, value_name = "PATH", hide = true, conflicts_with_all = ["replay", "record_input"])]
    pub inspections: Option<PathBuf>,
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
    /// Mode of the control socket, as chmod has it: who may connect [default: 0660]
    #[arg(long, value_name = "MODE")]
    pub control_mode: Option<String>,
    /// Group of the control socket, by name or number [default: dcpid's own]
    #[arg(long, value_name = "GROUP")]
    pub control_group: Option<String>,
    /// Requests of clients that are neither root nor dcpid's own user. read: status, flush, counts
    /// (dcpi top), and labels of their own processes (dcpilabel); control: everything [default:
    /// control]
    #[arg(long, value_name = "read|control")]
    pub clients_may: Option<String>,
    /// Socket that the loader hook writes to, or off [default: loader.sock beside the control
    /// socket]
    #[arg(long, value_name = "PATH|off")]
    pub loader_socket: Option<PathBuf>,
    /// Events to sample, see [`events::EventSpec`].
    #[arg(
        long = "event",
        value_name = "SPEC",
        help = "Event to sample, NAME[:PERIOD][@RATE] or PMU/TERM=VALUE,.../[:PERIOD]; may be repeated [default: cycles, or cpu-clock without hardware counters, @5200]"
    )]
    #[serde(default, rename = "event")]
    pub events: Vec<String>,
    /// Events that take turns, one of them counting at a time on each CPU; may be repeated, for
    /// other groups
    #[arg(long, value_name = "SPEC,SPEC,...")]
    #[serde(default)]
    pub mux: Vec<String>,
    /// Longest time between two drains of the kernel's tables [default: 10s]
    #[arg(long, value_name = "T")]
    pub drain_interval: Option<String>,
    /// Time between two merges to disk, which begin when so much of the clock is over: the shortest
    /// slices of time that reports can tell apart [default: 10s]
    #[arg(long, value_name = "T")]
    pub merge_interval: Option<String>,
    /// An epoch ends after this long, and another begins. off: only dcpictl epoch ends one
    /// [default: 1d]
    #[arg(long, value_name = "T|off")]
    pub epoch_length: Option<String>,
    /// How long epochs are kept, any of: an age (hours, days, weeks); "newest N", epochs that stay
    /// whatever their age and size; a size of all epochs together (KiB, MiB, GiB, TiB); "all": for
    /// ever [default: "7 days, newest 3"]
    #[arg(long, value_name = "RULES")]
    pub retain: Option<String>,
    /// Host name in the database [default: this machine's]
    #[arg(long, value_name = "NAME")]
    pub host: Option<String>,
    /// Part of all CPU time that sampling may cost, such as 1%. Beyond it, dcpid lowers the rate
    /// of events whose rate and period are not given. off: no limit [default: 1%]
    #[arg(long, value_name = "P%", allow_hyphen_values = true)]
    pub overhead_budget: Option<String>,
    /// Snapshots of registers a second on each CPU, at most, taken with samples of user code and
    /// within their part of the budget. dcpid computes edges from the snapshots in its
    /// memory and keeps nothing else of them. off: none [default: 50]
    #[arg(long, value_name = "RATE|off")]
    pub edges: Option<String>,
    /// Call stacks a second on each CPU, at most, within their part of the budget. They are walked
    /// in the kernel; through code that was not met yet, in dcpid's memory from a copy of up to 16
    /// KiB. Frames alone are kept. off: none [default: 500]
    #[arg(long, value_name = "RATE|off")]
    pub stacks: Option<String>,
    /// Times of threads on a CPU, blocked, and awake without CPU, and call stacks of their waits.
    /// auto: where threads change too often to follow each switch within the budget, waits are met
    /// at random moments instead, without times. off: none [default: auto]
    #[arg(long, value_name = "auto|off")]
    pub waits: Option<String>,
    /// What programs set for their own threads, kept with call stacks: labels of goroutines
    /// (runtime/pprof), attributes of requests (OpenTelemetry). traces: also the identities of
    /// requests, 128 in each merge. off: none [default: on]
    #[arg(long, value_name = "on|traces|off")]
    pub attributes: Option<String>,
    /// Resident memory of dcpid, such as 192MiB, beyond which dcpid samples less: at the lowest
    /// rate, then without snapshots, then not at all, until the memory has shrunk [default: off]
    #[arg(long, value_name = "SIZE|off")]
    pub memory_limit: Option<String>,
    /// File whose existence stops sampling, or off [default: pause beside the control socket]
    #[arg(long, value_name = "PATH|off")]
    pub pause_file: Option<PathBuf>,
    /// File of dcpi machine -o about this processor, which epochs keep, so that reports know its
    /// latencies; or off [default: /var/lib/dcpi/machine where it exists]
    #[arg(long, value_name = "FILE|off")]
    pub machine: Option<PathBuf>,
    /// Address at which Prometheus reads metrics by HTTP: a Unix socket (/...), or a loopback
    /// address (127.0.0.1:9187) [default: off]
    #[arg(long, value_name = "PATH|ADDRESS:PORT|off")]
    pub metrics: Option<String>,
    /// Disk space for the code of images with samples, such as 512MiB, at least 1MiB. With their
    /// code, images can be named and listed when their files are gone. off: none [default: 512MiB]
    #[arg(long, value_name = "SIZE")]
    pub code_store: Option<String>,
    /// Keep the code of files that not everybody may read, too: readers of the database can see it
    #[arg(long)]
    #[serde(default)]
    pub private_code: bool,
    /// Keep the code of files with samples whole and at once. By default the names of a file and
    /// its procedures with samples are kept, when its samples have paid for them (128 bytes each)
    #[arg(long)]
    #[serde(default)]
    pub whole_code: bool,
    /// Socket of the inspectors, which look into other processes and files for dcpid:
    /// dcpid-inspector.service has it [default: dcpid starts inspectors of its own]
    #[arg(long, value_name = "PATH")]
    pub inspector: Option<PathBuf>,
    /// Entries (16 bytes) in each half of a CPU's table, 124 to 16384, rounded up to a multiple of
    /// 4. 124 entries and the sampler's own words fit into one page. In a larger table more samples
    /// find their entry, but each sample costs more, and 16384 entries need 512 KiB more memory for
    /// each possible CPU [default: 124]
    #[arg(long, value_name = "N")]
    pub table_entries: Option<u32>,
    /// Entries (16 bytes) in each of a CPU's two spill buffers, which take the samples that the
    /// table has no room for, 1 to 1048576 [default: 16384]
    #[arg(long, value_name = "N")]
    pub spill_entries: Option<u32>,
    /// Keep the samples of this image, by name or path, apart by process; may be repeated
    #[arg(long, value_name = "IMAGE")]
    #[serde(default)]
    pub per_process: Vec<String>,
    /// Keep samples apart by systemd unit or container
    #[arg(long)]
    #[serde(default)]
    pub by_unit: bool,
    /// Count kernel code by the process that it runs for, not by its label and unit alone; takes
    /// more places in the tables
    #[arg(long)]
    #[serde(default)]
    pub kernel_by_process: bool,
    /// Leave out the samples of this image, by its name or path; may be repeated
    #[arg(long, value_name = "IMAGE")]
    #[serde(default)]
    pub exclude_image: Vec<String>,
    /// Leave out the processes of a control group, named by its path (with all below it), by a
    /// unit, a container or a part of the path; may be repeated
    #[arg(long, value_name = "GROUP")]
    #[serde(default)]
    pub exclude_cgroup: Vec<String>,
    /// Leave out this process with its children; may be repeated
    #[arg(long, value_name = "PID")]
    #[serde(default)]
    pub exclude_pid: Vec<u32>,
}

/// Steers dcpid; returns after dcpid has done what was asked.
#[derive(Parser, Debug)]
#[command(name = "dcpictl", version)]
pub struct DcpictlArgs {
    /// Control socket of the daemon
    #[arg(long, value_name = "PATH", default_value = "/run/dcpi/control.sock", global = true)]
    pub control: PathBuf,
    /// Answer in JSON
    #[arg(long, global = true)]
    pub json: bool,
    /// The request.
    #[command(subcommand)]
    pub command: Command,
}

/// Requests of dcpictl.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Show what dcpid samples, where the samples went, and what sampling costs
    Status,
    /// Put everything sampled before now on disk
    Flush,
    /// Flush, seal the open epoch and open a new one
    Epoch {
        /// A name for the new epoch
        #[arg(long, value_name = "TEXT")]
        label: Option<String>,
    },
    /// Label a running process, its children, and its children to come: dcpid keeps their samples
    /// apart from now on
    Label {
        /// The process
        #[arg(value_name = "PID")]
        pid: u32,
        /// The label: 1 to 128 bytes without slash
        #[arg(value_name = "LABEL")]
        label: String,
    },
    /// Name a region of a process's memory: dcpid counts its samples as a procedure of that name,
    /// until the process ends
    Register {
        /// Process, as dcpid sees it
        pid: u32,
        /// Address of the first byte, 0x... or decimal
        #[arg(value_parser = number)]
        start: u64,
        /// Bytes, 0x... or decimal
        #[arg(value_parser = number)]
        len: u64,
        /// Name of the procedure
        name: String,
        /// Image to count it under [default: the process's own]
        #[arg(long, value_name = "NAME", conflicts_with = "file")]
        image: Option<String>,
        /// The region is a copy of this ELF file's code: count it there
        #[arg(long, value_name = "PATH")]
        file: Option<PathBuf>,
        /// Offset in that file of the region's first byte
        #[arg(
            long,
            value_name = "N",
            value_parser = number,
            requires = "file",
            default_value = "0"
        )]
        offset: u64,
    },
    /// Forget a registered region
    Unregister {
        /// Process
        pid: u32,
        /// Address that the region was registered with
        #[arg(value_parser = number)]
        start: u64,
    },
    /// Flush and end the daemon
    Quit,
}

/// Runs a command and keeps its samples, and those of its children, apart under a label: see them
/// with dcpi prof --label.
#[derive(Parser, Debug)]
#[command(
    name = "dcpilabel",
    version,
    after_help = "Exit codes: the command's; 2 when dcpid does not label it, 126 when it cannot be run, 127 when there is none. Options come before LABEL."
)]
pub struct DcpilabelArgs {
    /// Control socket of the daemon
    #[arg(long, value_name = "PATH", default_value = "/run/dcpi/control.sock")]
    pub control: PathBuf,
    /// The label: 1 to 128 bytes without slash
    #[arg(value_name = "LABEL")]
    pub label: String,
    /// The command and its arguments
    #[arg(
        value_name = "COMMAND",
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub command: Vec<OsString>,
}

/// `0x...`, or decimal.
fn number(text: &str) -> Result<u64, String> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    number.map_err(|_| "must be a number, decimal or 0x...".to_owned())
}
