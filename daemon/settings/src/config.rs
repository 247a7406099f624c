//! Settings from flags, then from the file, then the defaults; checked.

use crate::access::{Access, Endpoint, Rights};
use crate::args::Settings;
use address_spaces::cgroups::Pattern;
use address_spaces::scopes::{Images, Rules};
use anyhow::{Context as _, ensure};
use events::EventSpec;
use kernel::budget::Budget;
use kernel::procfs;
use kernel::{Sharing, TableSettings};
use model::{KeptAttributes, MeasuredMachine};
use nix::fcntl::OFlag;
use profiledb::Retention;
use std::io::{self, Read as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Path of the configuration file that is read when it exists and --config names no other.
pub const DEFAULT_CONFIG: &str = "/etc/dcpi/dcpid.toml";

/// Most bytes of a configuration file. A file with every key and its comments has about 4 KiB; each
/// exclusion adds a line.
const CONFIG_BYTES_MAX: u64 = 1 << 20;

/// Checked settings.
#[derive(Clone, Debug)]
pub struct Config {
    /// Resident memory in bytes beyond which the daemon samples less; None: no limit.
    pub memory_limit: Option<u64>,
    /// File whose existence pauses sampling; None: no file does.
    pub pause_file: Option<PathBuf>,
    /// File with the processor as it was measured; None: none is read.
    pub machine: Option<PathBuf>,
    /// Endpoint of metrics; None: metrics are not served.
    pub metrics: Option<Endpoint>,
    /// Database directory.
    pub db: PathBuf,
    /// Control socket.
    pub control: PathBuf,
    /// The users that may connect to the control socket, and their rights.
    pub access: Access,
    /// Socket of the loader hook; None: notices are not read.
    pub loader_socket: Option<PathBuf>,
    /// Events that the user asked for; empty: the default.
    pub events: Vec<EventSpec>,
    /// Longest time between two drains, 10 ms to 1 h.
    pub drain_interval: Duration,
    /// Time between two merges, 1 s to 1 day.
    pub merge_interval: Duration,
    /// Length of an epoch, 1 min to 1 year; None: an epoch ends only on request.
    pub epoch_length: Option<Duration>,
    /// Rules for the removal of epochs.
    pub retention: Retention,
    /// Host name to use in the database.
    pub host: Option<String>,
    /// Limit on the cost of sampling; None: no limit.
    pub budget: Option<Budget>,
    /// Most snapshots of registers per second and CPU, from which edges are computed; None: no
    /// snapshots.
    pub edges: Option<f64>,
    /// Most call stacks per second and CPU; None: no call stacks.
    pub stacks: Option<f64>,
    /// Whether times of threads and stacks of waits are taken.
    pub waits: bool,
    /// The attributes of threads that are kept.
    pub attributes: KeptAttributes,
    /// Bytes that the code store may take; None: no code is kept.
    pub code_store: Option<u64>,
    /// Whether code of files that are not world-readable is kept too.
    pub private_code: bool,
    /// Whether files with samples are kept whole and at once.
    pub whole_code: bool,
    /// Socket of the service's inspectors; None: dcpid starts its own.
    pub inspector: Option<PathBuf>,
    /// Sizes of the tables.
    pub table: TableSettings,
    /// Rules on what is kept apart and left out.
    pub rules: Rules,
    /// Whether the sampler counts kernel addresses by process.
    pub kernel_by_process: bool,
}

impl Config {
    /// The code that the sampler counts once for all processes: as much as possible, except code
    /// that is to be kept apart.
    pub fn sharing(&self) -> Sharing {
        let rules = &self.rules;
        let by_process =
            rules.want_cgroups() || !rules.per_process.is_empty() || !rules.exclude_pids.is_empty();
        Sharing {
            kernel_by_process: self.kernel_by_process,
            kernel_by_scope: rules.want_cgroups() || !rules.exclude_pids.is_empty(),
            programs_by_process: by_process,
            snapshots: self.edges.is_some(),
            stacks: self.stacks.is_some(),
            waits: self.waits,
        }
    }

    /// Settings from the flags and, where a flag is absent, from the configuration file.
    ///
    /// # Errors
    /// One line that names the flag or key and what it must be.
    pub fn new(flags: Settings, file: Option<&Path>) -> anyhow::Result<Self> {
        let path = file.unwrap_or(Path::new(DEFAULT_CONFIG));
        let text = match read(path) {
            Ok(text) => text,
            Err(error) if file.is_none() && error.kind() == io::ErrorKind::NotFound => {
                String::new()
            }
            Err(error) => {
                let path = path.display();
                anyhow::bail!(
                    "reading --config {path}: {error}; name a TOML file that dcpid may read, or /dev/null"
                )
            }
        };
        let file: Settings = toml::from_str(&text).map_err(|error| {
            let line = error.span().map_or(1, |span| {
                text.get(..span.start).unwrap_or_default().matches('\n').count() + 1
            });
            anyhow::anyhow!(
                "{}:{line}: {}; see dcpid --help for the keys",
                path.display(),
                error.message()
            )
        })?;
        let given = flags.clone();
        let merged = Settings {
            db: flags.db.or(file.db),
            control: flags.control.or(file.control),
            control_mode: flags.control_mode.or(file.control_mode),
            control_group: flags.control_group.or(file.control_group),
            clients_may: flags.clients_may.or(file.clients_may),
            loader_socket: flags.loader_socket.or(file.loader_socket),
            events: either(flags.events, file.events),
            mux: either(flags.mux, file.mux),
            drain_interval: flags.drain_interval.or(file.drain_interval),
            merge_interval: flags.merge_interval.or(file.merge_interval),
            epoch_length: flags.epoch_length.or(file.epoch_length),
            retain: flags.retain.or(file.retain),
            host: flags.host.or(file.host),
            overhead_budget: flags.overhead_budget.or(file.overhead_budget),
            edges: flags.edges.or(file.edges),
            stacks: flags.stacks.or(file.stacks),
            waits: flags.waits.or(file.waits),
            attributes: flags.attributes.or(file.attributes),
            memory_limit: flags.memory_limit.or(file.memory_limit),
            pause_file: flags.pause_file.or(file.pause_file),
            machine: flags.machine.or(file.machine),
            metrics: flags.metrics.or(file.metrics),
            code_store: flags.code_store.or(file.code_store),
            private_code: flags.private_code || file.private_code,
            whole_code: flags.whole_code || file.whole_code,
            inspector: flags.inspector.or(file.inspector),
            table_entries: flags.table_entries.or(file.table_entries),
            spill_entries: flags.spill_entries.or(file.spill_entries),
            per_process: either(flags.per_process, file.per_process),
            by_unit: flags.by_unit || file.by_unit,
            kernel_by_process: flags.kernel_by_process || file.kernel_by_process,
            exclude_image: either(flags.exclude_image, file.exclude_image),
            exclude_cgroup: either(flags.exclude_cgroup, file.exclude_cgroup),
            exclude_pid: either(flags.exclude_pid, file.exclude_pid),
        };
        Self::check(merged).map_err(|error| match Self::check(given) {
            // A mistake on the command line is reported as it was typed.
            Err(same) if format!("{same:#}") == format!("{error:#}") => error,
            _ => in_file(path, &text, &error),
        })
    }

    fn check(settings: Settings) -> anyhow::Result<Self> {
        let events = events(&settings)?;
        let spill_entries = settings.spill_entries.unwrap_or(16384);
        ensure!(
            (1..=1 << 20).contains(&spill_entries),
            "--spill-entries {spill_entries}: must be from 1 to 1048576"
        );
        let buckets = settings.table_entries.map_or(Ok(0), buckets)?;
        let interval = |flag, text: Option<&str>, default, min, max| {
            duration(flag, text.unwrap_or(default), min, max)
        };
        let (second, hour) = (Duration::from_secs(1), Duration::from_secs(3600));
        let (rules, access) = (rules(&settings)?, access(&settings)?);
        let control = settings.control.unwrap_or_else(|| "/run/dcpi/control.sock".into());
        let loader_socket =
            settings.loader_socket.unwrap_or_else(|| control.with_file_name("loader.sock"));
        let pause_file = settings.pause_file.unwrap_or_else(|| control.with_file_name("pause"));
        Ok(Self {
            memory_limit: sized(
                "--memory-limit",
                settings.memory_limit.as_deref().unwrap_or("off"),
            )?,
            pause_file: Some(pause_file).filter(|path| path != Path::new("off")),
            machine: Some(settings.machine.unwrap_or_else(|| MeasuredMachine::FILE.into()))
                .filter(|path| path != Path::new("off")),
            metrics: endpoint(settings.metrics.as_deref().unwrap_or("off"))?,
            access,
            db: settings.db.unwrap_or_else(|| "/var/lib/dcpi".into()),
            control,
            loader_socket: Some(loader_socket).filter(|path| path != Path::new("off")),
            events,
            drain_interval: interval(
                "--drain-interval",
                settings.drain_interval.as_deref(),
                "10s",
                second / 100,
                hour,
            )?,
            merge_interval: interval(
                "--merge-interval",
                settings.merge_interval.as_deref(),
                "10s",
                second,
                24 * hour,
            )?,
            epoch_length: match settings.epoch_length.as_deref() {
                Some("off") => None,
                text => Some(interval("--epoch-length", text, "1d", second * 60, 24 * 365 * hour)?),
            },
            retention: retention(settings.retain.as_deref().unwrap_or("7 days, newest 3"))?,
            host: settings.host,
            budget: budget(settings.overhead_budget.as_deref().unwrap_or("1%"))?,
            edges: edges(settings.edges.as_deref())?,
            stacks: stacks(settings.stacks.as_deref())?,
            waits: waits(settings.waits.as_deref(), settings.stacks.as_deref())?,
            attributes: attributes(settings.attributes.as_deref())?,
            code_store: sized("--code-store", settings.code_store.as_deref().unwrap_or("512MiB"))?,
            private_code: settings.private_code,
            whole_code: settings.whole_code,
            inspector: settings.inspector,
            table: TableSettings { spill_entries, buckets },
            rules,
            kernel_by_process: settings.kernel_by_process,
        })
    }

    /// The host name in the database.
    pub fn host_or(&self, machine: &str) -> String {
        self.host.clone().unwrap_or_else(|| machine.to_owned())
    }
}

/// The list of the flags, or that of the file where no flag gives one.
fn either<T>(flags: Vec<T>, file: Vec<T>) -> Vec<T> {
    if flags.is_empty() { file } else { flags }
}

/// The error of a key's value in the configuration file, with the file, the line where it can be
/// determined, and the key. Flags and keys have the same names.
fn in_file(path: &Path, text: &str, error: &anyhow::Error) -> anyhow::Error {
    let (path, message) = (path.display(), format!("{error:#}"));
    let Some(message) = message.strip_prefix("--") else {
        return anyhow::anyhow!("{path}: {message}");
    };
    let key = message.split([' ', ':', ',']).next().unwrap_or_default();
    let is_key = |line: &str| {
        line.trim_start().strip_prefix(key).is_some_and(|rest| rest.trim_start().starts_with('='))
    };
    let line =
        text.lines().position(is_key).map(|before| format!(":{}", before + 1)).unwrap_or_default();
    anyhow::anyhow!("{path}{line}: {}", message.replacen("event, --mux:", "event, mux:", 1))
}

/// The text of a configuration file; of /dev/null an empty text. Other kinds of files are refused,
/// because reading a pipe or a device may never end.
fn read(path: &Path) -> io::Result<String> {
    let refused = |why: String| io::Error::new(io::ErrorKind::InvalidInput, why);
    let mut options = std::fs::File::options();
    let file =
        options.read(true).custom_flags((OFlag::O_NONBLOCK | OFlag::O_NOCTTY).bits()).open(path)?;
    let found = file.metadata()?;
    let is_null = std::fs::metadata("/dev/null")
        .is_ok_and(|null| null.rdev() == found.rdev() && found.rdev() != 0);
    if found.file_type().is_char_device() && is_null {
        return Ok(String::new());
    }
    if !found.is_file() {
        return Err(refused("it is no file".to_owned()));
    }
    let mut bytes = Vec::new();
    file.take(CONFIG_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > CONFIG_BYTES_MAX {
        return Err(refused(format!("it is larger than {} KiB", CONFIG_BYTES_MAX >> 10)));
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let lines = error.as_bytes().iter().take(valid).filter(|byte| **byte == b'\n').count();
        refused(format!("its line {} is not UTF-8", lines + 1))
    })
}

/// The events of --event, then those of each --mux.
fn events(settings: &Settings) -> anyhow::Result<Vec<EventSpec>> {
    let mut events =
        settings.events.iter().map(|spec| EventSpec::parse(spec)).collect::<Result<Vec<_>, _>>()?;
    for (number, group) in settings.mux.iter().enumerate() {
        events.extend(EventSpec::parse_group(group, number)?);
    }
    let (count, limit) = (events.len(), abi::EVENTS_MAX);
    ensure!(count <= limit, "--event, --mux: {count} events are too many; name at most {limit}");
    let mut names: Vec<_> = events.iter().map(|spec| &spec.event.name).collect();
    names.sort();
    if let Some(twice) =
        names.windows(2).find(|pair| pair.first() == pair.last()).and_then(|pair| pair.first())
    {
        anyhow::bail!("--event, --mux: {twice} is given twice; give each event once");
    }
    Ok(events)
}

fn rules(settings: &Settings) -> anyhow::Result<Rules> {
    let named = |flag: &str, names: &[String]| {
        ensure!(
            !names.iter().any(String::is_empty),
            "{flag}: is empty; give an image's name or path, as in dcpi prof -i"
        );
        Ok(Images::new(names))
    };
    let group = |text: &String| {
        Pattern::new(text).with_context(|| {
            format!(
                "--exclude-cgroup {text}: would leave out everybody; name a group below the root"
            )
        })
    };
    // An exclusion without effect must not look as if it had one.
    if let Some(gone) = settings.exclude_pid.iter().find(|pid| procfs::start_time(**pid).is_none())
    {
        anyhow::bail!(
            "--exclude-pid {gone}: there is no such process; name one that runs, or leave out its image or control group"
        );
    }
    Ok(Rules {
        by_unit: settings.by_unit,
        per_process: named("--per-process", &settings.per_process)?,
        exclude_images: named("--exclude-image", &settings.exclude_image)?,
        exclude_cgroups: settings
            .exclude_cgroup
            .iter()
            .map(group)
            .collect::<anyhow::Result<_>>()?,
        exclude_pids: settings.exclude_pid.clone(),
    })
}

fn access(settings: &Settings) -> anyhow::Result<Access> {
    let text = settings.control_mode.as_deref().unwrap_or("0660");
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    let mode = mode.with_context(|| {
        format!("--control-mode {text}: must be a mode in octal digits, such as 0660")
    })?;
    let group = |name: &String| match name.parse() {
        Ok(number) => Ok(number),
        Err(_) => {
            let group = nix::unistd::Group::from_name(name).ok().flatten();
            group.map(|group| group.gid.as_raw()).with_context(|| {
                format!(
                    "--control-group {name}: there is no such group; name one of `getent group`, or give its number"
                )
            })
        }
    };
    let rights = match settings.clients_may.as_deref().unwrap_or("control") {
        "read" => Rights::Read,
        "control" => Rights::Control,
        other => anyhow::bail!("--clients-may {other}: must be read or control"),
    };
    Ok(Access { mode, group: settings.control_group.as_ref().map(group).transpose()?, rights })
}

/// Parses --edges.
fn edges(text: Option<&str>) -> anyhow::Result<Option<f64>> {
    let text = text.unwrap_or("50");
    if text == "off" {
        return Ok(None);
    }
    let rate = text
        .strip_suffix("/s")
        .unwrap_or(text)
        .parse::<f64>()
        .ok()
        .filter(|rate| (1.0..=10_000.0).contains(rate));
    rate.map(Some).with_context(|| {
        format!("--edges {text}: must be from 1 to 10000 snapshots a second, such as 50, or off")
    })
}

/// Parses --stacks.
fn stacks(text: Option<&str>) -> anyhow::Result<Option<f64>> {
    let text = text.unwrap_or("500");
    if text == "off" {
        return Ok(None);
    }
    let rate = text.strip_suffix("/s").unwrap_or(text).parse::<f64>().ok();
    rate.filter(|rate| (1.0..=1000.0).contains(rate)).map(Some).with_context(|| {
        format!("--stacks {text}: must be from 1 to 1000 call stacks a second, such as 500, or off")
    })
}

/// Parses --waits, which need --stacks.
fn waits(text: Option<&str>, stacks: Option<&str>) -> anyhow::Result<bool> {
    match text {
        None | Some("auto") => Ok(stacks != Some("off")),
        Some("off") => Ok(false),
        Some(other) => anyhow::bail!("--waits {other}: must be auto or off"),
    }
}

/// Parses --attributes.
fn attributes(text: Option<&str>) -> anyhow::Result<KeptAttributes> {
    match text {
        None | Some("on") => Ok(KeptAttributes::On),
        Some("traces") => Ok(KeptAttributes::Traces),
        Some("off") => Ok(KeptAttributes::Off),
        Some(other) => anyhow::bail!("--attributes {other}: must be on, traces or off"),
    }
}

/// Parses `1%`, `0.5%` or `off`.
fn budget(text: &str) -> anyhow::Result<Option<Budget>> {
    if text == "off" {
        return Ok(None);
    }
    let percent = text.strip_suffix('%').and_then(|number| number.trim().parse::<f64>().ok());
    let percent = percent.filter(|percent| (0.01..=50.0).contains(percent));
    let percent = percent
        .with_context(|| format!("--overhead-budget {text}: must be from 0.01% to 50%, or off"))?;
    Ok(Some(Budget(percent / 100.0)))
}

/// Parses `7 days, newest 3, 2GiB`, in any order, each at most once; or `all`.
fn retention(text: &str) -> anyhow::Result<Retention> {
    let mut retention = Retention { max_age_s: None, keep_newest: 0, max_bytes: None };
    if text.trim() == "all" {
        return Ok(retention);
    }
    let hint =
        || format!("--retain {text}: must be rules such as \"7 days, newest 3, 2GiB\", or all");
    let mut newest = None;
    for rule in text.split(',').map(str::trim) {
        if let Some(number) = rule.strip_prefix("newest ") {
            let number =
                number.trim().parse().ok().filter(|number| (0..=1_000_000).contains(number));
            ensure!(newest.is_none() && number.is_some(), hint());
            newest = number;
        } else if let Some(bytes) = size(rule) {
            ensure!(retention.max_bytes.replace(bytes).is_none(), hint());
        } else {
            let (number, unit) =
                rule.split_at(rule.find(|c: char| !c.is_ascii_digit()).unwrap_or(rule.len()));
            let unit_s = match unit.trim() {
                "h" | "hour" | "hours" => 3600,
                "d" | "day" | "days" => 86_400,
                "w" | "week" | "weeks" => 7 * 86_400,
                _ => 0,
            };
            let age_s = number
                .parse::<u64>()
                .ok()
                .and_then(|number| number.checked_mul(unit_s))
                .filter(|age| *age > 0);
            ensure!(age_s.is_some() && retention.max_age_s.is_none(), hint());
            retention.max_age_s = age_s;
        }
    }
    // As in DCPI, the newest three always stay, unless the user gives another number.
    retention.keep_newest = newest.unwrap_or(3);
    Ok(retention)
}

/// Parses `512MiB`, `2GiB`.
fn size(text: &str) -> Option<u64> {
    let units = [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1_u64 << 40)];
    units.iter().find_map(|(unit, bytes)| {
        text.strip_suffix(unit)?.trim().parse::<u64>().ok()?.checked_mul(*bytes)
    })
}

/// Parses a socket's path or a loopback address, or `off`.
fn endpoint(text: &str) -> anyhow::Result<Option<Endpoint>> {
    if text == "off" {
        return Ok(None);
    }
    let address =
        || text.parse::<std::net::SocketAddr>().ok().filter(|address| address.ip().is_loopback());
    let endpoint = if text.starts_with('/') {
        Some(Endpoint::Unix(text.into()))
    } else {
        address().map(Endpoint::Loopback)
    };
    endpoint.map(Some).with_context(|| {
        format!("--metrics {text}: must be the path of a socket, a loopback address such as 127.0.0.1:9187, or off")
    })
}

/// Parses a size, or `off`.
fn sized(flag: &str, text: &str) -> anyhow::Result<Option<u64>> {
    if text == "off" {
        return Ok(None);
    }
    let bytes = size(text).filter(|bytes| (1 << 20..=1 << 50).contains(bytes));
    bytes.map(Some).with_context(|| {
        format!("{flag} {text}: must be a size of 1MiB or more, such as 512MiB, or off")
    })
}

/// Buckets outside of a CPU's page for this number of entries.
fn buckets(entries: u32) -> anyhow::Result<u32> {
    let in_page = (abi::BUCKETS * abi::WAYS) as u32;
    ensure!(
        (in_page..=1 << 14).contains(&entries),
        "--table-entries {entries}: must be from {in_page} to 16384"
    );
    Ok(if entries == in_page { 0 } else { entries.div_ceil(abi::WAYS as u32) })
}

/// Parses `500ms`, `10s`, `10m` or `10min`, `1h`, `1d`, within `min..=max`.
fn duration(flag: &str, text: &str, min: Duration, max: Duration) -> anyhow::Result<Duration> {
    let units = [
        ("ms", 1),
        ("s", 1000),
        ("m", 60_000),
        ("min", 60_000),
        ("h", 3_600_000),
        ("d", 86_400_000),
    ];
    let parsed = units.iter().find_map(|(unit, ms)| {
        text.strip_suffix(unit)?.trim().parse::<u64>().ok()?.checked_mul(*ms)
    });
    let duration =
        parsed.map(Duration::from_millis).filter(|duration| (min..=max).contains(duration));
    duration.with_context(|| {
        format!("{flag} {text}: must be a time from {min:?} to {max:?} with a unit, such as 500ms, 10s, 10m or 1h")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(file: &str, flags: Settings) -> anyhow::Result<Config> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("dcpid.toml");
        std::fs::write(&path, file).unwrap();
        Config::new(flags, Some(&path))
    }

    #[test]
    fn flags_win_over_the_file_and_the_file_over_defaults() {
        let file = "db = \"/a\"\nmerge-interval = \"1min\"\nevent = [\"cpu-clock@100\"]\nspill-entries = 64\ntable-entries = 130\n";
        let config =
            config(file, Settings { db: Some("/b".into()), ..Settings::default() }).unwrap();
        assert_eq!(config.db, Path::new("/b"));
        assert_eq!(
            (config.merge_interval, config.drain_interval),
            (Duration::from_secs(60), Duration::from_secs(10))
        );
        assert_eq!(
            (config.events.len(), config.table.spill_entries, config.table.buckets),
            (1, 64, 33)
        );
        assert_eq!(config.code_store, Some(512 << 20));
        assert_eq!(config.access, Access { mode: 0o660, group: None, rights: Rights::Control });
        assert_eq!(sized("--x", "2GiB").unwrap(), Some(2 << 30));
        assert_eq!(sized("--x", "off").unwrap(), None);
        assert_eq!(config.pause_file.as_deref(), Some(Path::new("/run/dcpi/pause")));
        assert_eq!((config.metrics, config.memory_limit), (None, None));
        assert_eq!(
            endpoint("[::1]:9").unwrap(),
            Some(Endpoint::Loopback("[::1]:9".parse().unwrap()))
        );
        assert_eq!(endpoint("/a b").unwrap(), Some(Endpoint::Unix("/a b".into())));
        assert_eq!(
            (config.epoch_length, config.retention),
            (Some(Duration::from_secs(86_400)), Retention::default())
        );
    }

    #[test]
    fn rules_of_retention_come_in_any_order() {
        let rules =
            |max_age_s, keep_newest, max_bytes| Retention { max_age_s, keep_newest, max_bytes };
        for (text, expected) in [
            ("7 days, newest 3, 2GiB", rules(Some(7 * 86_400), 3, Some(2 << 30))),
            ("2GiB", rules(None, 3, Some(2 << 30))),
            ("newest 0,12h", rules(Some(12 * 3600), 0, None)),
            ("1 week", rules(Some(7 * 86_400), 3, None)),
            ("all", rules(None, 0, None)),
        ] {
            assert_eq!(retention(text).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn groups_of_events_come_behind_the_events_and_flags_win_over_the_file() {
        let file =
            "event = [\"cycles\"]\nmux = [\"imiss,dmiss\", \"r1,cpu/event=1,umask=2/,r3\"]\n";
        let groups = |flags| {
            let events = config(file, flags).unwrap().events;
            events.iter().map(|spec| (spec.event.name.clone(), spec.mux)).collect::<Vec<_>>()
        };
        let of_file = groups(Settings::default());
        assert_eq!(
            of_file.iter().map(|(_, group)| *group).collect::<Vec<_>>(),
            [None, Some(0), Some(0), Some(1), Some(1), Some(1)]
        );
        assert_eq!(of_file[4].0, "cpu/event=1,umask=2/");
        let flags = Settings { mux: vec!["branches,branch-misses".into()], ..Settings::default() };
        assert_eq!(
            groups(flags),
            [
                ("cycles".into(), None),
                ("branches".into(), Some(0)),
                ("branch-misses".into(), Some(0))
            ]
        );
    }

    #[test]
    fn what_is_kept_apart_and_left_out_has_keys_too() {
        let me = std::process::id();
        let file = format!(
            "per-process = [\"bash\"]\nby-unit = true\nkernel-by-process = true\nexclude-image = [\"gpg\"]\n\
             exclude-cgroup = [\"user.slice\"]\nexclude-pid = [{me}]\n"
        );
        let of_file = config(&file, Settings::default()).unwrap();
        assert!(of_file.kernel_by_process && of_file.rules.by_unit && of_file.rules.want_cgroups());
        assert_eq!(of_file.rules.exclude_pids, [me]);
        let flags = Settings { exclude_image: vec!["pass".into()], ..Settings::default() };
        let both = config(&file, flags).unwrap().rules;
        assert_eq!(
            (both.exclude_images, both.per_process),
            (Images::new(&["pass".into()]), of_file.rules.per_process)
        );
        assert_eq!(
            config("", Settings::default()).unwrap().rules,
            Rules::default(),
            "nothing unless asked for"
        );
    }

    #[test]
    fn the_loader_hooks_socket_is_beside_the_control_socket_or_where_one_says() {
        for (file, expected) in [
            ("", Some("/run/dcpi/loader.sock")),
            ("control = \"/a/c.sock\"", Some("/a/loader.sock")),
            ("control = \"/a/c.sock\"\nloader-socket = \"/b/l.sock\"", Some("/b/l.sock")),
            ("loader-socket = \"off\"", None),
        ] {
            let found = config(file, Settings::default()).unwrap().loader_socket;
            assert_eq!(found.as_deref(), expected.map(Path::new), "{file}");
        }
    }

    /// A FIFO as --config waited for a writer for ever, /dev/zero was read until memory ran out,
    /// and a directory was "Is a directory".
    #[test]
    fn what_is_no_configuration_is_refused_at_once_in_one_line() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        nix::unistd::mkfifo(&at("fifo"), nix::sys::stat::Mode::S_IRUSR).unwrap();
        std::fs::File::create(at("huge")).unwrap().set_len(1 << 30).unwrap();
        std::fs::write(at("bytes"), b"db = \"/a\"\n\xff\n").unwrap();
        std::fs::write(at("empty"), "").unwrap();
        std::os::unix::fs::symlink("loop", at("loop")).unwrap();
        for (path, words) in [
            (at("fifo"), "it is no file; name a TOML file"),
            ("/dev/zero".into(), "it is no file"),
            ("/dev/tty".into(), "name a TOML file"),
            (directory.path().to_owned(), "it is no file"),
            (at("huge"), "it is larger than 1024 KiB"),
            (at("bytes"), "its line 2 is not UTF-8"),
            (at("missing"), "No such file or directory"),
            (at("loop"), "Too many levels"),
        ] {
            let message =
                format!("{:#}", Config::new(Settings::default(), Some(&path)).unwrap_err());
            assert!(
                message.starts_with(&format!("reading --config {}: ", path.display())),
                "{message}"
            );
            assert!(message.contains(words) && !message.contains('\n'), "{message}");
        }
        for path in [at("empty"), "/dev/null".into()] {
            assert!(Config::new(Settings::default(), Some(&path)).is_ok(), "{}", path.display());
        }
    }

    #[test]
    fn mistakes_are_one_line_that_names_the_key() {
        for (file, words) in [
            ("db = 5", "dcpid.toml:1:"),
            ("\n\nnonsense = 1", "dcpid.toml:3: unknown field `nonsense`"),
            ("drain-interval = \"5\"", "dcpid.toml:1: drain-interval 5"),
            ("control-mode = \"999\"", "dcpid.toml:1: control-mode 999: must be a mode"),
            ("control-mode = \"7777\"", "dcpid.toml:1: control-mode 7777"),
            (
                "control-group = \"no such\"",
                "dcpid.toml:1: control-group no such: there is no such group",
            ),
            ("clients-may = \"all\"", "dcpid.toml:1: clients-may all: must be read or control"),
            ("drain-interval = \"0s\"", "dcpid.toml:1: drain-interval 0s"),
            ("merge-interval = \"99999999999999999999d\"", "dcpid.toml:1: merge-interval"),
            ("spill-entries = 0", "dcpid.toml:1: spill-entries 0"),
            ("table-entries = 123", "dcpid.toml:1: table-entries 123: must be from 124 to 16384"),
            ("table-entries = 16385", "dcpid.toml:1: table-entries 16385"),
            ("event = [\"cpu-clock\", \"cpu-clock@9\"]", "given twice"),
            (
                "event = [\"cycles\"]\nmux = [\"imiss,cpu-cycles\"]",
                "dcpid.toml:1: event, mux: cycles is given twice",
            ),
            (
                "mux = [\"imiss,dmiss\", \"branches,imiss:5000\"]",
                "L1-icache-load-misses is given twice",
            ),
            ("mux = [\"cycles\"]", "dcpid.toml:1: mux cycles: takes turns with nobody"),
            (
                "mux = [\"r1,r2,r3,r4,r5,r6,r7,r8\", \"r11,r12,r13,r14,r15,r16,r17,r18,r19\"]",
                "17 events are too many; name at most 16",
            ),
            ("overhead-budget = \"1\"", "dcpid.toml:1: overhead-budget 1: must be"),
            ("overhead-budget = \"nan%\"", "dcpid.toml:1: overhead-budget nan%"),
            ("metrics = \"0.0.0.0:9187\"", "dcpid.toml:1: metrics 0.0.0.0:9187: must be the path"),
            ("metrics = \"\"", "dcpid.toml:1: metrics : must be"),
            ("memory-limit = \"1\"", "dcpid.toml:1: memory-limit 1: must be"),
            ("code-store = \"512\"", "dcpid.toml:1: code-store 512: must be"),
            ("code-store = \"1KiB\"", "dcpid.toml:1: code-store 1KiB"),
            ("code-store = \"99999999999999TiB\"", "dcpid.toml:1: code-store"),
            ("retain = \"7\"", "dcpid.toml:1: retain 7: must be rules such as"),
            ("retain = \"7 days, 8 days\"", "dcpid.toml:1: retain 7 days, 8 days"),
            ("retain = \"newest three\"", "dcpid.toml:1: retain newest three"),
            ("retain = \"\"", "dcpid.toml:1: retain : must be"),
            ("epoch-length = \"1s\"", "dcpid.toml:1: epoch-length 1s: must be a time from"),
            ("event = [\"bogus\"]", "unknown event 'bogus'"),
            (
                "host = \"h\"\n\nretain = \"7 dogs\"",
                "dcpid.toml:3: retain 7 dogs: must be rules such as",
            ),
            ("by-unit = 1", "dcpid.toml:1:"),
            (
                "exclude-cgroup = [\"/\"]",
                "dcpid.toml:1: exclude-cgroup /: would leave out everybody",
            ),
            ("exclude-image = [\"\"]", "dcpid.toml:1: exclude-image: is empty"),
            (
                "exclude-pid = [4294967295]",
                "dcpid.toml:1: exclude-pid 4294967295: there is no such process",
            ),
        ] {
            let message = format!("{:#}", config(file, Settings::default()).unwrap_err());
            assert!(message.contains(words), "{file}: {message}");
            assert!(!message.contains('\n'), "{file}: {message}");
        }
        let typed = Settings { retain: Some("7 dogs".into()), ..Settings::default() };
        let message = format!("{:#}", config("retain = \"7 cats\"", typed).unwrap_err());
        assert!(message.starts_with("--retain 7 dogs: "), "{message}");
        let missing =
            Config::new(Settings::default(), Some(Path::new("/does/not/exist"))).unwrap_err();
        assert!(format!("{missing:#}").contains("--config /does/not/exist"));
    }
}
