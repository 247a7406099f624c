//! What it means: settings from flags, then from the file, then the defaults; checked.

use crate::args::Settings;
use crate::budget::Budget;
use crate::event::EventSpec;
use crate::kernel::TableSettings;
use anyhow::{Context as _, ensure};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Read when present and no other is named.
pub const DEFAULT_CONFIG: &str = "/etc/dcpi/dcpid.toml";

/// Checked settings.
#[derive(Clone, Debug)]
pub struct Config {
    /// Database directory.
    pub db: PathBuf,
    /// Control socket.
    pub control: PathBuf,
    /// Socket of the loader hook; None: it is not listened to.
    pub loader_socket: Option<PathBuf>,
    /// Events asked for; none: the default.
    pub events: Vec<EventSpec>,
    /// 10 ms to 1 h.
    pub drain_interval: Duration,
    /// 1 s to 1 day.
    pub merge_interval: Duration,
    /// Host name to use in the database.
    pub host: Option<String>,
    /// What sampling may cost; None: anything.
    pub budget: Option<Budget>,
    /// Sizes of the tables.
    pub table: TableSettings,
}

impl Config {
    /// From flags and, where those are silent, the configuration file.
    ///
    /// # Errors
    /// One line that names the flag or key and what it must be.
    pub fn new(flags: Settings, file: Option<&Path>) -> anyhow::Result<Self> {
        let path = file.unwrap_or(Path::new(DEFAULT_CONFIG));
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if file.is_none() && error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error).with_context(|| format!("reading --config {}", path.display())),
        };
        let file: Settings = toml::from_str(&text).map_err(|error| {
            let line =
                error.span().map_or(1, |span| text.get(..span.start).unwrap_or_default().matches('\n').count() + 1);
            anyhow::anyhow!("{}:{line}: {}; see dcpid --help for the keys", path.display(), error.message())
        })?;
        Self::check(Settings {
            db: flags.db.or(file.db),
            control: flags.control.or(file.control),
            loader_socket: flags.loader_socket.or(file.loader_socket),
            events: if flags.events.is_empty() { file.events } else { flags.events },
            drain_interval: flags.drain_interval.or(file.drain_interval),
            merge_interval: flags.merge_interval.or(file.merge_interval),
            host: flags.host.or(file.host),
            overhead_budget: flags.overhead_budget.or(file.overhead_budget),
            table_buckets: flags.table_buckets.or(file.table_buckets),
            spill_entries: flags.spill_entries.or(file.spill_entries),
        })
    }

    fn check(settings: Settings) -> anyhow::Result<Self> {
        let events = settings.events.iter().map(|spec| EventSpec::parse(spec)).collect::<Result<Vec<_>, _>>()?;
        ensure!(events.len() <= abi::EVENTS_MAX, "--event: at most {} events", abi::EVENTS_MAX);
        let mut names: Vec<_> = events.iter().map(|spec| &spec.event.name).collect();
        names.sort();
        if let Some(twice) = names.windows(2).find(|pair| pair.first() == pair.last()).and_then(|pair| pair.first()) {
            anyhow::bail!("--event: {twice} is given twice; give each event once");
        }
        let buckets = settings.table_buckets.unwrap_or(1024);
        ensure!(
            buckets.is_power_of_two() && (16..=1 << 20).contains(&buckets),
            "--table-buckets {buckets}: must be a power of two from 16 to 1048576"
        );
        let spill_entries = settings.spill_entries.unwrap_or(16_384);
        ensure!((1..=1 << 20).contains(&spill_entries), "--spill-entries {spill_entries}: must be from 1 to 1048576");
        let interval = |flag, text: Option<&str>, default, min, max| duration(flag, text.unwrap_or(default), min, max);
        let (second, hour) = (Duration::from_secs(1), Duration::from_secs(3600));
        let control = settings.control.unwrap_or_else(|| "/run/dcpi/control.sock".into());
        let loader_socket = settings.loader_socket.unwrap_or_else(|| control.with_file_name("loader.sock"));
        Ok(Self {
            db: settings.db.unwrap_or_else(|| "/var/lib/dcpi".into()),
            control,
            loader_socket: Some(loader_socket).filter(|path| path != Path::new("off")),
            events,
            drain_interval: interval("--drain-interval", settings.drain_interval.as_deref(), "1s", second / 100, hour)?,
            merge_interval: interval("--merge-interval", settings.merge_interval.as_deref(), "10m", second, 24 * hour)?,
            host: settings.host,
            budget: budget(settings.overhead_budget.as_deref().unwrap_or("1%"))?,
            table: TableSettings { bucket_bits: buckets.trailing_zeros(), spill_entries },
        })
    }

    /// The host name in the database.
    #[must_use]
    pub fn host_or(&self, machine: &str) -> String {
        self.host.clone().unwrap_or_else(|| machine.to_owned())
    }
}

/// `1%`, `0.5%` or `off`.
fn budget(text: &str) -> anyhow::Result<Option<Budget>> {
    if text == "off" {
        return Ok(None);
    }
    let percent = text.strip_suffix('%').and_then(|number| number.trim().parse::<f64>().ok());
    let percent = percent.filter(|percent| (0.01..=50.0).contains(percent));
    let percent = percent.with_context(|| format!("--overhead-budget {text}: must be from 0.01% to 50%, or off"))?;
    Ok(Some(Budget(percent / 100.0)))
}

/// `500ms`, `10s`, `10m`, `1h`, `1d`, within `min..=max`.
fn duration(flag: &str, text: &str, min: Duration, max: Duration) -> anyhow::Result<Duration> {
    let units = [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];
    let parsed =
        units.iter().find_map(|(unit, ms)| text.strip_suffix(unit)?.trim().parse::<u64>().ok()?.checked_mul(*ms));
    let duration = parsed.map(Duration::from_millis).filter(|duration| (min..=max).contains(duration));
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
        let file = "db = \"/a\"\nmerge-interval = \"1m\"\nevent = [\"cpu-clock@100\"]\ntable-buckets = 64\n";
        let config = config(file, Settings { db: Some("/b".into()), ..Settings::default() }).unwrap();
        assert_eq!(config.db, Path::new("/b"));
        assert_eq!((config.merge_interval, config.drain_interval), (Duration::from_secs(60), Duration::from_secs(1)));
        assert_eq!((config.events.len(), config.table.bucket_bits), (1, 6));
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

    #[test]
    fn mistakes_are_one_line_that_names_the_key() {
        for (file, words) in [
            ("db = 5", "dcpid.toml:1:"),
            ("\n\nnonsense = 1", "dcpid.toml:3: unknown field `nonsense`"),
            ("drain-interval = \"5\"", "--drain-interval 5"),
            ("drain-interval = \"0s\"", "--drain-interval 0s"),
            ("merge-interval = \"99999999999999999999d\"", "--merge-interval"),
            ("table-buckets = 100", "power of two"),
            ("spill-entries = 0", "--spill-entries 0"),
            ("event = [\"cpu-clock\", \"cpu-clock@9\"]", "given twice"),
            ("overhead-budget = \"1\"", "--overhead-budget 1: must be"),
            ("overhead-budget = \"nan%\"", "--overhead-budget nan%"),
            ("event = [\"bogus\"]", "unknown event 'bogus'"),
        ] {
            let message = format!("{:#}", config(file, Settings::default()).unwrap_err());
            assert!(message.contains(words), "{file}: {message}");
            assert!(!message.contains('\n'), "{file}: {message}");
        }
        let missing = Config::new(Settings::default(), Some(Path::new("/does/not/exist"))).unwrap_err();
        assert!(format!("{missing:#}").contains("--config /does/not/exist"));
    }
}
