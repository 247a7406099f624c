//! Selection of epochs, events and images.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::str::FromStr;

use image::ImageId;
use profiledb::{Database, DbError, EpochId, ImageRecord, Stretch};

use crate::error::AnalysisError;

/// Fewest characters of an epoch's name that select it: the year.
const MIN_EPOCH_PREFIX: usize = 4;
/// Seconds by which a clock may have been set while an epoch lasted without its being missed when
/// a stretch of time is asked for. A larger distance has more epochs read in vain.
const CLOCK_SET_S: u64 = 86_400;
/// Fewest hex digits that select an image.
const MIN_ID_PREFIX: usize = 4;

/// Epochs of each host, as typed after `--epoch`.
///
/// `latest`; `all`; `-N`, the Nth before the latest; `ID`, an epoch's name or the start of one
/// (then all that begin so: `20261105` is a day); `A..B`, from one to another of these, both
/// included, where an end that is left out is the oldest or the latest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpochChoice {
    typed: String,
    from: Bound,
    to: Bound,
    /// False for a single `-N`: there is none when there are too few epochs. A range is cut
    /// instead.
    cut: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Bound {
    /// No bound on this side.
    Open,
    /// The epoch this many before the latest.
    Back(usize),
    /// An epoch's name, or the start of one.
    Name(String),
}

impl EpochChoice {
    /// The epoch this many before the latest; 0 is the latest.
    pub fn back(n: usize) -> Self {
        let typed = if n == 0 { "latest".to_owned() } else { format!("-{n}") };
        Self { typed, from: Bound::Back(n), to: Bound::Back(n), cut: false }
    }

    /// Chooses from the epochs of one host, oldest first.
    fn choose(&self, mut epochs: Vec<EpochId>) -> Vec<EpochId> {
        let count = epochs.len();
        let first = match &self.from {
            Bound::Open => 0,
            Bound::Back(n) => match (count.checked_sub(n + 1), self.cut) {
                (Some(first), _) => first,
                (None, true) => 0,
                (None, false) => count,
            },
            Bound::Name(name) => epochs.partition_point(|epoch| begin(epoch, name) < name.as_str()),
        };
        let end = match &self.to {
            Bound::Open => count,
            Bound::Back(n) => count.saturating_sub(*n),
            Bound::Name(name) => {
                epochs.partition_point(|epoch| begin(epoch, name) <= name.as_str())
            }
        };
        epochs.truncate(end);
        epochs.split_off(first.min(end))
    }
}

/// As much of an epoch's name as `like` has.
fn begin<'a>(epoch: &'a EpochId, like: &str) -> &'a str {
    epoch.as_str().get(..like.len()).unwrap_or(epoch.as_str())
}

impl fmt::Display for EpochChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.typed)
    }
}

impl FromStr for EpochChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let said = || "is none of latest, all, ID, ID..ID, -N; see dcpi epochs".to_owned();
        let typed = text.to_owned();
        if text == "all" {
            return Ok(Self { typed, from: Bound::Open, to: Bound::Open, cut: true });
        }
        if let Some((from, to)) = text.split_once("..") {
            let end = |text: &str| if text.is_empty() { Some(Bound::Open) } else { bound(text) };
            let (from, to) = (end(from).ok_or_else(said)?, end(to).ok_or_else(said)?);
            return Ok(Self { typed, from, to, cut: true });
        }
        let only = bound(text).ok_or_else(said)?;
        Ok(Self { typed, from: only.clone(), to: only, cut: false })
    }
}

fn bound(text: &str) -> Option<Bound> {
    if text == "latest" {
        return Some(Bound::Back(0));
    }
    if let Some(n) = text.strip_prefix('-') {
        let digits = n.bytes().all(|byte| byte.is_ascii_digit());
        return if digits {
            n.parse().ok().filter(|n| *n < usize::MAX).map(Bound::Back)
        } else {
            None
        };
    }
    let like_a_name = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
    (like_a_name && text.len() >= MIN_EPOCH_PREFIX).then(|| Bound::Name(text.to_owned()))
}

/// Which epochs, of which hosts.
#[derive(Clone, Debug)]
pub struct Epochs {
    /// Only this host's; None: of all hosts.
    pub host: Option<String>,
    /// Only those with this label; None: of all labels.
    pub label: Option<String>,
    /// Which of them, for each host by itself. With a stretch of time, `latest` are all epochs.
    pub which: EpochChoice,
    /// Only the slices that overlap this stretch of time, in the epochs that have such; None: the
    /// whole epochs.
    pub stretch: Option<Stretch>,
}

impl Default for Epochs {
    /// The latest epoch of each host.
    fn default() -> Self {
        Self { host: None, label: None, which: EpochChoice::back(0), stretch: None }
    }
}

/// The database in a directory, of which only the stretch of time that is asked for is read, and
/// the chosen epochs.
pub fn open(
    root: &Path,
    asked: &Epochs,
) -> Result<(Database, Vec<(String, EpochId)>), AnalysisError> {
    let whole = Database::open(root)?;
    let Some(stretch) = asked.stretch else {
        let chosen = epochs(&whole, asked)?;
        return Ok((whole, chosen));
    };
    let db = whole.clone().during(stretch);
    let chosen = epochs(&db, asked).map_err(|error| match (error, covered(&whole, asked)) {
        (AnalysisError::NoEpoch { .. }, Some(covered)) => AnalysisError::NoTime { covered },
        (error, _) => error,
    })?;
    Ok((db, chosen))
}

/// The time from the first to the last slice of the epochs that are chosen without a stretch of
/// time, of all hosts. None where no epoch is.
fn covered(db: &Database, asked: &Epochs) -> Option<Stretch> {
    let which = match asked.which == EpochChoice::back(0) {
        true => "all".parse().ok()?,
        false => asked.which.clone(),
    };
    let chosen = epochs(db, &Epochs { which, stretch: None, ..asked.clone() }).ok()?;
    let opened = chosen.iter().filter_map(|(host, epoch)| db.epoch(host, epoch).ok());
    let slices: Vec<Stretch> = opened.flat_map(|epoch| epoch.slices()).collect();
    let since_unix_s = slices.iter().map(|slice| slice.since_unix_s).min()?;
    let until_unix_s = slices.iter().map(|slice| slice.until_unix_s).max()?;
    Some(Stretch { since_unix_s, until_unix_s })
}

/// The epochs that may have a part of a stretch of time, by their names: each lasts until the next
/// one begins, except for clocks that were set.
fn near(epochs: Vec<EpochId>, stretch: Stretch) -> Vec<EpochId> {
    let ends: Vec<u64> =
        epochs.iter().skip(1).map(EpochId::unix_s).chain(std::iter::once(u64::MAX)).collect();
    let is_near = |(epoch, end): &(EpochId, u64)| {
        let begin = epoch.unix_s().saturating_sub(CLOCK_SET_S);
        begin < stretch.until_unix_s && end.saturating_add(CLOCK_SET_S) > stretch.since_unix_s
    };
    epochs.into_iter().zip(ends).filter(is_near).map(|(epoch, _)| epoch).collect()
}

/// The chosen epochs of the chosen hosts, in order of host and time. Never empty.
///
/// Epochs are chosen among those of the label, if one is asked for, and for each host by itself:
/// `latest` is the latest of each.
pub fn epochs(db: &Database, asked: &Epochs) -> Result<Vec<(String, EpochId)>, AnalysisError> {
    let known = db.hosts()?;
    let root = || db.root().to_owned();
    let hosts = match &asked.host {
        None => known,
        Some(asked) if known.contains(asked) => vec![asked.clone()],
        Some(asked) => {
            return Err(AnalysisError::NoHost { root: root(), asked: asked.clone(), known });
        }
    };
    let mut chosen = Vec::new();
    let mut any = false;
    for host in hosts {
        let mut epochs = db.epochs(&host)?;
        any |= !epochs.is_empty();
        if let Some(label) = &asked.label {
            // A damaged epoch's label is unknown: it is left to those who ask for it without label.
            epochs.retain(|epoch| {
                db.epoch(&host, epoch).is_ok_and(|e| e.meta().label.as_ref() == Some(label))
            });
        }
        let latest = asked.which == EpochChoice::back(0);
        let mut of_host = match asked.stretch {
            Some(stretch) if latest => near(epochs, stretch),
            _ => asked.which.choose(epochs),
        };
        if asked.stretch.is_some() {
            // A damaged epoch is reported when it is read.
            of_host.retain(|epoch| {
                !matches!(db.epoch(&host, epoch), Err(DbError::NoSuchEpoch { .. }))
            });
        }
        chosen.extend(of_host.into_iter().map(|epoch| (host.clone(), epoch)));
    }
    if !any {
        return Err(AnalysisError::Empty { root: root() });
    }
    if chosen.is_empty() {
        let label = asked.label.as_ref().map(|label| format!(" --epoch-label {label}"));
        let within = asked.stretch.map(|_| " between --since and --until").unwrap_or_default();
        let asked = format!("--epoch {}{}{within}", asked.which.typed, label.unwrap_or_default());
        return Err(AnalysisError::NoEpoch { root: root(), asked });
    }
    Ok(chosen)
}

/// Which of the known events is meant: by its own name, else by an alias.
pub fn event<'a>(asked: &str, known: &'a [String]) -> Option<&'a String> {
    let find = |name: &str| known.iter().find(|known| *known == name);
    find(asked).or_else(|| find(profiledb::event_name(asked)?))
}

/// Which of the images are meant by IMAGE arguments: for each argument those of that name (brackets
/// may be left out), path or begin of id; if there is none, those whose name begins with it as a
/// word.
///
/// # Errors
/// [`AnalysisError::NoImage`] for an argument that means none.
pub fn images<'a>(
    asked: &[String],
    records: impl Iterator<Item = &'a ImageRecord> + Clone,
) -> Result<BTreeSet<ImageId>, AnalysisError> {
    let mut chosen = BTreeSet::new();
    for asked in asked {
        let found: Vec<ImageId> =
            records.clone().filter(|record| is_meant(asked, record)).map(|r| r.id).collect();
        let found = if found.is_empty() {
            records
                .clone()
                .filter(|record| is_begin(asked, &record.name))
                .map(|record| record.id)
                .collect()
        } else {
            found
        };
        if found.is_empty() {
            return Err(AnalysisError::NoImage { asked: asked.clone() });
        }
        chosen.extend(found);
    }
    Ok(chosen)
}

/// `libc` is the start of libc.so.6 and libc-2.36.so, and not of libclang.so.
fn is_begin(asked: &str, name: &str) -> bool {
    let rest = name.strip_prefix(asked);
    rest.is_some_and(|rest| !rest.starts_with(|next: char| next.is_alphanumeric() || next == '_'))
}

fn is_meant(asked: &str, record: &ImageRecord) -> bool {
    let bare = record.name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    if record.name == asked || bare == Some(asked) || record.path == asked {
        return true;
    }
    if asked.len() >= MIN_ID_PREFIX && record.id.is_meant_by(asked) {
        return true;
    }
    // Arguments that are paths relative to the current directory, or symbolic links: ./a.out,
    // ../lib/x.so.
    asked.contains('/')
        && Path::new(asked).canonicalize().is_ok_and(|path| path == record.real_path())
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::ImageKind;

    fn choose(typed: &str, epochs: &[&str]) -> Vec<String> {
        let epochs = epochs.iter().map(|epoch| epoch.parse().unwrap()).collect();
        let choice: EpochChoice = typed.parse().unwrap();
        choice.choose(epochs).iter().map(ToString::to_string).collect()
    }

    const FOUR: [&str; 4] =
        ["20261104-120000", "20261105-080000", "20261105-090000", "20261106-000000"];

    #[test]
    fn epochs_are_chosen_by_place_name_and_range() {
        for (typed, expected) in [
            ("latest", &FOUR[3..]),
            ("all", &FOUR[..]),
            ("-0", &FOUR[3..]),
            ("-1", &FOUR[2..3]),
            ("-3", &FOUR[..1]),
            ("-4", &[]),
            ("20261105-080000", &FOUR[1..2]),
            ("20261105-080001", &[]),
            ("20261105", &FOUR[1..3]),
            ("2025", &[]),
            ("20261105-080000..20261105-090000", &FOUR[1..3]),
            ("20261105-080001..20261231", &FOUR[2..]),
            ("20261104..20261105", &FOUR[..3]),
            ("20261106..20261105", &[]),
            ("-2..latest", &FOUR[1..]),
            ("-9..-1", &FOUR[..3]),
            ("-1..-2", &[]),
            ("20261105..", &FOUR[1..]),
            ("..-3", &FOUR[..1]),
            ("..-9", &[]),
            ("..", &FOUR[..]),
        ] {
            assert_eq!(choose(typed, &FOUR), expected, "{typed}");
        }
        assert!(choose("latest", &[]).is_empty());
        assert!(choose("all", &[]).is_empty());
    }

    #[test]
    fn other_words_choose_nothing() {
        for text in [
            "",
            "last",
            "-",
            "-x",
            "--1",
            "+1",
            "1",
            "202",
            "2026..x",
            "../etc",
            "-99999999999999999999999",
        ] {
            assert!(text.parse::<EpochChoice>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn events_have_dcpis_names_too() {
        let known = ["cycles", "L1-icache-load-misses", "branch-misses"].map(str::to_owned);
        assert_eq!(event("imiss", &known), Some(&known[1]));
        assert_eq!(event("cpu-cycles", &known), Some(&known[0]));
        assert_eq!(event("branch-misses", &known), Some(&known[2]));
        assert_eq!(event("dmiss", &known), None);
        assert_eq!(event("nonsense", &known), None);
        // A name of the database's own comes before an alias.
        let own = ["imiss".to_owned(), "L1-icache-load-misses".to_owned()];
        assert_eq!(event("imiss", &own), Some(&own[0]));
    }

    fn record(id: ImageId, name: &str, path: &str) -> ImageRecord {
        ImageRecord {
            id,
            kind: ImageKind::File,
            name: name.to_owned(),
            path: path.to_owned(),
            size_bytes: None,
            first_seen_unix_s: 0,
            last_seen_unix_s: 0,
        }
    }

    #[test]
    fn images_have_names_paths_and_ids() {
        let ids = [[0xab, 0xcd, 1], [0xab, 0xcd, 2], [0x12, 0x34, 3]]
            .map(|id| ImageId::from_build_id(&id).unwrap());
        let kernel = ImageId::from_name("[kernel]", "6.18");
        let records = [
            record(ids[0], "libc.so.6", "/lib/libc.so.6"),
            record(ids[1], "libc.so.6", "/old/libc.so.6"),
            record(ids[2], "libc.so.6.debug", "/usr/lib/debug/libc.so.6.debug"),
            record(kernel, "[kernel]", "/boot/vmlinuz"),
        ];
        let chosen = |asked: &[&str]| {
            let asked: Vec<String> = asked.iter().map(|asked| (*asked).to_owned()).collect();
            images(&asked, records.iter()).map(Vec::from_iter)
        };
        let sorted = |mut ids: Vec<ImageId>| {
            ids.sort();
            ids
        };
        assert_eq!(chosen(&["libc.so.6"]).unwrap(), sorted(vec![ids[0], ids[1]]));
        assert_eq!(chosen(&["/old/libc.so.6"]).unwrap(), [ids[1]]);
        assert_eq!(chosen(&["abcd"]).unwrap(), sorted(vec![ids[0], ids[1]]));
        assert_eq!(chosen(&["abcd01"]).unwrap(), [ids[0]]);
        assert_eq!(chosen(&["libc"]).unwrap(), sorted(vec![ids[0], ids[1], ids[2]]));
        assert_eq!(chosen(&["kernel"]).unwrap(), [kernel]);
        assert_eq!(chosen(&["[kernel]"]).unwrap(), [kernel]);
        let digits = kernel.to_string();
        assert_eq!(chosen(&[&digits]).unwrap(), [kernel]);
        assert_eq!(chosen(&[&digits["name-".len()..][..6]]).unwrap(), [kernel]);
        assert_eq!(chosen(&["1234", "kernel"]).unwrap(), sorted(vec![ids[2], kernel]));
        for none in ["abc", "libx", "/lib/nothing", "name"] {
            assert!(matches!(chosen(&[none]), Err(AnalysisError::NoImage { .. })), "{none}");
        }
    }
}
