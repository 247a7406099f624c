//! The rows that epochs add up to.

use std::collections::{BTreeMap, HashMap};

use image::{ImageId, ImageKind};
use model::Ledger;
use profiledb::{Database, DbError, Epoch, EpochMeta, ImageRecord, ProfileKey, Scope, without_tag};
use tables::{Build, EpochRow, Fact, Load, Missed, Name, Service, id};

use crate::clock::nominal_hz;
use crate::procedures::Named;
use crate::raw::RawEpoch;

/// The event of time: cycles where a host has them, else cpu-clock. A sample's weight is in
/// nanoseconds of a core, of cycles by the machine's nominal clock.
pub const TIME: &str = "time";
/// The service of samples without label and unit, but the kernel's, which are [`KERNEL`].
pub const OTHER: &str = "[other]";
/// The service of the kernel's samples, which are of no process.
const KERNEL: &str = "[kernel]";
/// Smallest number of seconds by which a clock is reported as ahead: pushing an epoch takes a
/// while, and smaller differences do no harm.
const AHEAD_FROM_S: i64 = 60;
/// Most samples of an event in an epoch: 1,000 CPUs at 10 kHz take twenty days for them. Sums over
/// half a million epochs with as many are 64-bit integers still; an epoch with more is damaged.
const SAMPLES_MAX: u64 = 1 << 44;
/// Longest name of an image and longest path, in bytes; more of it is left out.
const NAME_BYTES_MAX: usize = 1024;

/// Samples and the events that they stand for.
///
/// Sums of doubles depend on the order of their terms, thus on how many threads gathered them.
/// Files are named by their content, so events are counted in whole 2^-40: the same epochs give the
/// same bytes on every machine.
#[derive(Copy, Clone, Debug, Default)]
struct Amount {
    samples: u64,
    parts: u128,
}

impl Amount {
    /// Parts of an event.
    const PARTS: f64 = (1_u64 << 40) as f64;

    fn add(&mut self, samples: u64, weight: f64) {
        // The conversion saturates.
        let parts = ((weight * Self::PARTS) as u128).saturating_mul(u128::from(samples));
        self.merge(Self { samples, parts });
    }

    fn merge(&mut self, other: Self) {
        self.samples = self.samples.saturating_add(other.samples);
        self.parts = self.parts.saturating_add(other.parts);
    }

    fn weight(self) -> f64 {
        match self.samples {
            0 => 0.0,
            samples => self.parts as f64 / Self::PARTS / samples as f64,
        }
    }
}

/// Service, image, build, and procedure or day, and host.
type Key = [i64; 5];

/// Rows of one event.
#[derive(Default)]
struct OfEvent {
    facts: HashMap<Key, Amount>,
    loads: HashMap<Key, Amount>,
    epochs: Vec<EpochRow>,
    missed: HashMap<(i64, &'static str, String), u64>,
}

/// Rows of epochs, added up.
#[derive(Default)]
pub(crate) struct Gathered {
    events: BTreeMap<String, OfEvent>,
    names: HashMap<i64, (i64, String)>,
    services: HashMap<i64, String>,
    builds: HashMap<i64, Build>,
}

/// The tables of epochs, each sorted by its columns.
pub(crate) struct Tables {
    /// The counts of each event.
    pub(crate) events: Vec<EventTables>,
    pub(crate) names: Vec<Name>,
    pub(crate) services: Vec<Service>,
    pub(crate) builds: Vec<Build>,
}

/// The tables of an event.
pub(crate) struct EventTables {
    pub(crate) event: String,
    pub(crate) facts: Vec<Fact>,
    pub(crate) loads: Vec<Load>,
    pub(crate) epochs: Vec<EpochRow>,
    pub(crate) missed: Vec<Missed>,
}

/// An image as tables know it.
struct Known {
    image: i64,
    build: i64,
    name: String,
}

impl Gathered {
    /// Adds an epoch, or nothing of it.
    ///
    /// # Errors
    /// [`DbError`] where it cannot be read whole.
    pub(crate) fn add(
        &mut self,
        database: &Database,
        named: &Named,
        raw: &RawEpoch,
    ) -> Result<(), DbError> {
        let epoch = database.epoch(&raw.name.host, &raw.id)?;
        epoch.check_ledgers()?;
        check_account(epoch.meta())?;
        if let Some(damage) = epoch.damaged_files().into_iter().next() {
            return Err(damage);
        }
        let images = epoch.images()?;
        let mut profiles = Vec::new();
        for key in epoch.profiles()? {
            let profile = epoch.profile(&key)?;
            profiles.push((key, profile));
        }
        // Nothing fails from here on.
        let meta = epoch.meta();
        let host = id(&[&meta.host]);
        let time = time_event(&epoch);
        let mut accounts: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
        let mut known: HashMap<ImageId, (Known, crate::procedures::Names)> = HashMap::new();
        for (key, profile) in &profiles {
            let event = key.name();
            let record = images.get(&key.image);
            let account = accounts.entry(event).or_default();
            // Samples of unknown code are in the ledger by reason, also those without a profile.
            if key.image.is_unresolved() {
                continue;
            }
            if record.is_some_and(|record| record.kind == ImageKind::Idle) {
                account.1 += profile.total();
                continue;
            }
            account.0 += profile.total();
            let (image, names) = known.entry(key.image).or_insert_with(|| {
                let names = named.of(database, &epoch, &key.image);
                (self.build(&key.image, record, names.quality, meta), names)
            });
            let service = self.service(&key.scope, record.map(|record| record.kind));
            let weight = weight(meta, key, time);
            let of_event = self.events.entry(shown_event(event, time).to_owned()).or_default();
            let day = i64::try_from(raw.id.unix_s()).unwrap_or_default() / 86_400;
            let load = [service, image.image, image.build, day, host];
            of_event.loads.entry(load).or_default().add(profile.total(), weight);
            for (offset, samples) in profile.iter() {
                let name = names.find(offset).map_or("", |of| cut(of.name()));
                let procedure = id(&[&image.name, name]);
                self.names.entry(procedure).or_insert_with(|| (image.image, name.to_owned()));
                let fact = [service, image.image, image.build, procedure, host];
                of_event.facts.entry(fact).or_default().add(samples, weight);
            }
        }
        for event in epoch.meta().events.iter().map(|event| event.name.as_str()) {
            let (facts, idle) = accounts.get(event).copied().unwrap_or_default();
            self.account(raw, meta, event, time, [facts, idle]);
        }
        Ok(())
    }

    /// Adds the account of an event's samples.
    fn account(
        &mut self,
        raw: &RawEpoch,
        meta: &EpochMeta,
        event: &str,
        time: &str,
        [facts, idle]: [u64; 2],
    ) {
        let ledger = meta.ledgers.sum(event);
        let of_event = self.events.entry(shown_event(event, time).to_owned()).or_default();
        let host = id(&[&meta.host]);
        let end_s = signed(meta.ended_unix_s.unwrap_or(meta.updated_unix_s));
        let ahead_s = end_s.saturating_sub(raw.put_s);
        let sum = |of: &BTreeMap<String, u64>| signed(of.values().sum());
        of_event.epochs.push(EpochRow {
            host,
            name: meta.host.clone(),
            begin_s: signed(meta.started_unix_s),
            end_s,
            ahead_s: if ahead_s >= AHEAD_FROM_S { ahead_s } else { 0 },
            machine: format!("{} {}", meta.machine.arch, meta.machine.cpu_model).trim().to_owned(),
            cpus: i64::from(meta.machine.cpus),
            taken: signed(ledger.taken),
            facts: signed(facts),
            idle: signed(idle),
            unresolved: sum(&ledger.unresolved),
            lost: sum(&ledger.lost),
            weight: mean_weight(meta, event, time),
        });
        for (fate, reasons) in [("unresolved", &ledger.unresolved), ("lost", &ledger.lost)] {
            for (reason, samples) in reasons {
                *of_event.missed.entry((host, fate, reason.clone())).or_default() += samples;
            }
        }
    }

    fn service(&mut self, scope: &Scope, kind: Option<ImageKind>) -> i64 {
        let name = service_name(scope, kind);
        let service = id(&[&name]);
        self.services.entry(service).or_insert(name);
        service
    }

    fn build(
        &mut self,
        id_of: &ImageId,
        record: Option<&ImageRecord>,
        quality: i64,
        meta: &EpochMeta,
    ) -> Known {
        let is_generated = record.is_some_and(|record| record.kind == ImageKind::Jit);
        // Each process has generated code of its own, which no other build is like.
        let text = if is_generated { "generated".to_owned() } else { id_of.to_string() };
        let name = record.map(image_name).filter(|name| !name.is_empty());
        let name = name.unwrap_or_else(|| text.clone());
        let path = record.map(|record| cut(&record.path).to_owned()).unwrap_or_default();
        let (image, build) = (id(&[&name]), id(&[&name, &text]));
        let (first_s, last_s) = (signed(meta.started_unix_s), signed(meta.updated_unix_s));
        let of = self.builds.entry(build).or_insert_with(|| Build {
            build,
            image,
            image_name: name.clone(),
            text,
            path: path.clone(),
            quality,
            first_s,
            last_s,
        });
        of.absorb(first_s, last_s, quality, path);
        Known { image, build, name }
    }

    /// Adds what another thread gathered.
    pub(crate) fn merge(&mut self, other: Self) {
        for (event, of) in other.events {
            let into = self.events.entry(event).or_default();
            for (to, from) in [(&mut into.facts, of.facts), (&mut into.loads, of.loads)] {
                for (key, amount) in from {
                    to.entry(key).or_default().merge(amount);
                }
            }
            into.epochs.extend(of.epochs);
            for (key, samples) in of.missed {
                *into.missed.entry(key).or_default() += samples;
            }
        }
        self.names.extend(other.names);
        self.services.extend(other.services);
        for (build, of) in other.builds {
            let into = self.builds.entry(build).or_insert_with(|| of.clone());
            into.absorb(of.first_s, of.last_s, of.quality, of.path);
        }
    }

    /// The tables.
    pub(crate) fn into_tables(self) -> Tables {
        let events = self.events.into_iter().map(|(event, of)| {
            let facts = sorted(of.facts).map(|([service, image, build, procedure, host], sum)| {
                let (samples, weight) = (signed(sum.samples), sum.weight());
                Fact { service, image, build, procedure, host, samples, weight }
            });
            let loads = sorted(of.loads).map(|([service, image, build, day, host], sum)| {
                let (samples, weight) = (signed(sum.samples), sum.weight());
                Load { service, image, build, host, day, samples, weight }
            });
            let mut epochs = of.epochs;
            epochs.sort_by(EpochRow::order);
            let missed = sorted(of.missed).map(|((host, fate, reason), samples)| {
                let samples = signed(samples);
                Missed { host, fate: fate.to_owned(), reason, samples }
            });
            let (facts, loads, missed) = (facts.collect(), loads.collect(), missed.collect());
            EventTables { event, facts, loads, epochs, missed }
        });
        let names =
            sorted(self.names).map(|(procedure, (image, name))| Name { procedure, image, name });
        let services = sorted(self.services).map(|(service, name)| Service { service, name });
        let builds = sorted(self.builds).map(|(_, build)| build);
        Tables {
            events: events.collect(),
            names: names.collect(),
            services: services.collect(),
            builds: builds.collect(),
        }
    }
}

/// The pairs of a map, in order of key.
fn sorted<K: Ord, V>(map: HashMap<K, V>) -> impl Iterator<Item = (K, V)> {
    map.into_iter().collect::<BTreeMap<K, V>>().into_iter()
}

/// Whether samples of such images are no facts: their numbers are in the account.
pub(crate) const fn is_apart(kind: ImageKind) -> bool {
    matches!(kind, ImageKind::Idle | ImageKind::Unresolved)
}

/// Refuses an epoch whose samples are not all accounted for, or more than can be.
fn check_account(meta: &EpochMeta) -> Result<(), DbError> {
    let refused = |why: String| {
        Err(DbError::Damaged { epoch: meta.epoch.clone(), host: meta.host.clone(), why })
    };
    for (event, period, ledger) in meta.ledgers.iter() {
        let (taken, accounted) = (ledger.taken, ledger.accounted());
        if !ledger.closes() {
            let of = format!("{event} at period {period}");
            return refused(format!("of {taken} samples of {of}, {accounted} are accounted for"));
        }
        if meta.ledgers.sum(event).taken > SAMPLES_MAX {
            return refused(format!("no host takes more than {SAMPLES_MAX} samples of {event}"));
        }
    }
    Ok(())
}

/// The event of an epoch that is [`TIME`].
fn time_event(epoch: &Epoch) -> &'static str {
    let is_there = |name: &str| {
        epoch.meta().events.iter().any(|event| event.name == name)
            && epoch.meta().ledgers.sum(name).taken > 0
    };
    ["cycles", "cpu-clock", "task-clock"]
        .into_iter()
        .find(|name| is_there(name))
        .unwrap_or_default()
}

fn shown_event<'a>(event: &'a str, time: &str) -> &'a str {
    if event == time { TIME } else { event }
}

/// Events that a sample stands for: the period, times the share of the time in which the event was
/// to count, by that in which it did; of time, in nanoseconds.
fn weight(meta: &EpochMeta, key: &ProfileKey, time: &str) -> f64 {
    let ledger = meta.ledgers.at(key.name(), key.period());
    of_period(meta, key.name(), key.period(), ledger, time)
}

fn of_period(
    meta: &EpochMeta,
    event: &str,
    period: u64,
    ledger: Option<&Ledger>,
    time: &str,
) -> f64 {
    let scale = match ledger.map(|ledger| (ledger.enabled_ns, ledger.running_ns)) {
        Some((enabled, running)) if enabled > 0 && running > 0 => {
            (enabled as f64 / running as f64).max(1.0)
        }
        _ => 1.0,
    };
    let ns = match event == time && event == "cycles" {
        true => 1e9 / nominal_hz(&meta.machine.cpu_model),
        false => 1.0,
    };
    period as f64 * scale * ns
}

fn mean_weight(meta: &EpochMeta, event: &str, time: &str) -> f64 {
    let mut amount = Amount::default();
    for (period, ledger) in meta.ledgers.of(event) {
        amount.add(ledger.taken, of_period(meta, event, period, Some(ledger), time));
    }
    amount.weight()
}

/// The service of samples: their label, else the image of their container without its tag, else
/// their unit, else the kernel, else [`OTHER`].
pub(crate) fn service_name(scope: &Scope, kind: Option<ImageKind>) -> String {
    use ImageKind::{Bpf, Kernel, Module};
    match (&scope.label, &scope.unit, kind) {
        (Some(label), ..) => label.clone(),
        (None, Some(unit), _) => {
            let image = scope.container().and_then(|container| {
                container.image.map(|image| without_tag(image).to_owned()).or(container.shown_pod())
            });
            image.unwrap_or_else(|| without_instance(unit))
        }
        (None, None, Some(Kernel | Module | Bpf)) => KERNEL.to_owned(),
        _ => OTHER.to_owned(),
    }
}

/// The name of a unit that all its instances have (systemd.unit(5): `name@instance.type`), and all
/// containers of one manager: numbers of 12 or more hexadecimal digits become a star.
fn without_instance(unit: &str) -> String {
    if let Some((name, rest)) = unit.split_once('@')
        && let Some((_, kind)) = rest.rsplit_once('.')
    {
        return format!("{name}@.{kind}");
    }
    let is_end = |character: char| !character.is_ascii_alphanumeric();
    let mut shown = String::with_capacity(unit.len());
    for part in unit.split_inclusive(is_end) {
        let word = part.trim_end_matches(is_end);
        let is_number = word.len() >= 12 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
        shown.push_str(if is_number { "*" } else { word });
        shown.push_str(part.get(word.len()..).unwrap_or_default());
    }
    shown
}

/// The name of an image; of generated code, without the number of its process.
fn image_name(record: &ImageRecord) -> String {
    let name = match record.name.rsplit_once(' ') {
        Some((front, number))
            if record.kind == ImageKind::Jit && number.bytes().all(|b| b.is_ascii_digit()) =>
        {
            front
        }
        _ => &record.name,
    };
    cut(name).to_owned()
}

/// As much of a name as tables have.
pub(crate) fn cut(name: &str) -> &str {
    let mut end = name.len().min(NAME_BYTES_MAX);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    name.get(..end).unwrap_or_default()
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_belong_to_their_label_unit_or_kernel() {
        let scope = |label: Option<&str>, unit: Option<&str>| Scope {
            label: label.map(str::to_owned),
            unit: unit.map(str::to_owned),
            pid: None,
        };
        let docker = format!("docker-{}.scope", "0123456789ab".repeat(5));
        for (label, unit, kind, name) in [
            (Some("web"), Some("a.service"), ImageKind::Kernel, "web"),
            (None, Some("a.service"), ImageKind::File, "a.service"),
            (None, Some("worker@17.service"), ImageKind::File, "worker@.service"),
            (None, Some(docker.as_str()), ImageKind::File, "docker-*.scope"),
            (None, Some("docker-0123456789ab"), ImageKind::File, "docker-*"),
            (
                None,
                Some("docker-0123456789ab hub:5000/shop/api:2"),
                ImageKind::File,
                "hub:5000/shop/api",
            ),
            (None, Some("crio-0123456789ab cart@sha256:00"), ImageKind::File, "cart"),
            (None, Some("cri-containerd-0123456789ab shop/cart-0"), ImageKind::File, "shop/cart-0"),
            (None, Some("/a group"), ImageKind::File, "/a group"),
            (None, None, ImageKind::Kernel, "[kernel]"),
            (None, None, ImageKind::Bpf, "[kernel]"),
            (None, None, ImageKind::File, "[other]"),
        ] {
            assert_eq!(service_name(&scope(label, unit), Some(kind)), name);
        }
    }
}
