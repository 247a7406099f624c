//! Raw epochs of a few hosts in two weeks, as they push them, and what they add up to.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::sync::LazyLock;

use image::{ImageId, ImageKind, ImageOffset, KeptRanges};
use model::{Ledger, Profile};
use profiledb::{
    CodeStore, Database, Delta, EpochStart, EventMeta, ImageRecord, Machine, Outgoing, ProfileKey,
    Scope, Symbol, Writer,
};
use store::Week;

/// A program whose code the store has.
pub const PROGRAM: &str = "/bin/true";
/// A Monday: 2025-11-10.
pub const MONDAY: u64 = 1_762_732_800;
pub const DAY_S: u64 = 86_400;
/// Days of epochs: two in each of two weeks, and one that comes late.
pub const DAYS: [u64; 5] = [0, 2, 7, 10, 12];
pub const HOSTS: [&str; 3] = ["web-1", "web-2", "db-1"];

/// Objects by key.
pub type Objects = BTreeMap<String, Vec<u8>>;

/// The epochs of all hosts but the late ones, the code of [`PROGRAM`] and the file `format`.
pub static RAW: LazyLock<Objects> = LazyLock::new(|| {
    let mut raw = objects(&HOSTS, &DAYS[..4], false);
    // Another of the first host is damaged, and one of another is of a later release.
    let damaged = raw.get_mut(&key("web-1", DAYS[0])).unwrap();
    let at = damaged.len() / 2;
    damaged[at] ^= 1;
    let newer = raw.get_mut(&key("web-2", DAYS[2])).unwrap();
    newer[8] = 9;
    let checksum = crc32c(&newer[..28]).to_le_bytes();
    newer[28..32].copy_from_slice(&checksum);
    raw
});
/// Epochs that come late.
pub static LATE: LazyLock<Objects> = LazyLock::new(|| objects(&HOSTS, &DAYS[4..], false));
/// Epochs of two hosts, of one service and event: what takes less time to close.
pub static SMALL: LazyLock<Objects> = LazyLock::new(|| objects(&HOSTS[..2], &[0, 7, 10], true));
/// Epochs of these hosts that come late.
pub static SMALL_LATE: LazyLock<Objects> = LazyLock::new(|| objects(&HOSTS[..2], &[12], true));

/// The weeks of [`DAYS`].
pub fn weeks() -> [Week; 2] {
    [0, 7].map(|day| Week::of((MONDAY + day * DAY_S) as i64))
}

/// The key of a host's epoch of a day.
pub fn key(host: &str, day: u64) -> String {
    let id = profiledb::EpochId::from_unix_s(MONDAY + day * DAY_S + 3600);
    format!("raw/{}", profiledb::outgoing_place(host, &id).unwrap())
}

/// Epochs of hosts on days, whose account is known; small ones are of one service and event.
pub fn objects(hosts: &[&str], days: &[u64], is_small: bool) -> Objects {
    let root = tempfile::tempdir().unwrap();
    let mut raw = Objects::from([("raw/format".to_owned(), profiledb::FORMAT.to_vec())]);
    for (at, host) in hosts.iter().enumerate() {
        for day in days {
            let root = root.path().join(format!("{host}{day}"));
            let object = epoch(&root, host, (at as u64, *day), is_small);
            raw.insert(key(host, *day), object);
        }
    }
    raw.extend(code(root.path(), &[PROGRAM]));
    raw
}

/// The code of programs, as hosts push it.
pub fn code(root: &Path, programs: &[&str]) -> Objects {
    let writer = Writer::open(&root.join("code-db"), "host").unwrap();
    let mut kept = CodeStore::open(&writer, 256 << 20).unwrap();
    let mut images = BTreeSet::new();
    for program in programs {
        let file = File::open(program).unwrap();
        let id = image::identify_file(&file).unwrap();
        let ranges = KeptRanges::of_file(&file).unwrap();
        let copy =
            &mut |out: &mut dyn std::io::Write| ranges.copy(&file, |piece| out.write_all(piece));
        kept.keep(&id, &ranges, MONDAY, copy).unwrap();
        images.insert(id);
    }
    let db = Database::open(&root.join("code-db")).unwrap();
    let files = profiledb::code_files(&db, "host", &images).unwrap();
    let object = |file: &profiledb::CodeFile| {
        let mut bytes = Vec::new();
        file.open(&db, "host").unwrap().unwrap().read_to_end(&mut bytes).unwrap();
        bytes
    };
    files.iter().map(|file| (format!("raw/code/{}", file.name()), object(file))).collect()
}

/// An image record.
pub fn record(id: ImageId, kind: ImageKind, name: &str) -> ImageRecord {
    ImageRecord {
        id,
        kind,
        name: name.to_owned(),
        path: format!("/srv/{name}"),
        size_bytes: None,
        first_seen_unix_s: MONDAY,
        last_seen_unix_s: MONDAY,
    }
}

fn event(name: &str, period: u64) -> EventMeta {
    EventMeta { name: name.to_owned(), unit: name.to_owned(), period, ..EventMeta::default() }
}

/// Which samples there are of an image, at which period.
struct Sampled<'a> {
    image: ImageRecord,
    scope: Scope,
    symbols: &'a [&'a str],
    /// Of the event of time, of two periods; of instructions.
    counts: [u64; 3],
}

/// What ran on a host on a day.
fn ran(at: u64, day: u64) -> Vec<Sampled<'static>> {
    let scope = |label: Option<&str>, unit: Option<&str>| Scope {
        label: label.map(str::to_owned),
        unit: unit.map(str::to_owned),
        pid: None,
    };
    // The first two hosts have the new build from Wednesday of the second week.
    let build = if day >= 9 && at < 2 { 2 } else { 1 };
    let server = ImageId::from_build_id(&[0x5e, build]).unwrap();
    let program = image::identify_file(&File::open(PROGRAM).unwrap()).unwrap();
    let text = |name: &str| ImageId::from_text([name]);
    let docker = format!("docker-{}.scope", "0123456789ab".repeat(5));
    let web = scope(None, Some("web@3.service"));
    let salt = at * 13 + day * 7;
    let sampled = |image, scope, symbols, counts: [u64; 3]| Sampled {
        image,
        scope,
        symbols,
        counts: counts.map(|of| if of == 0 { 0 } else { of + salt }),
    };
    let file = ImageKind::File;
    vec![
        sampled(record(server, file, "server"), web.clone(), &["serve", "parse"], [900, 300, 70]),
        sampled(record(program, file, "true"), scope(Some("batch"), None), &[], [210, 0, 30]),
        sampled(
            record(text("kernel"), ImageKind::Kernel, "[kernel]"),
            Scope::default(),
            &["schedule", "copy"],
            [120, 40, 0],
        ),
        sampled(record(text("kernel"), ImageKind::Kernel, "[kernel]"), web, &[], [55, 0, 0]),
        sampled(
            record(text("jit"), ImageKind::Jit, "[jit] node 77"),
            scope(None, Some(&docker)),
            &["render"],
            [80, 20, 10],
        ),
        sampled(
            record(text("idle"), ImageKind::Idle, "[idle]"),
            Scope::default(),
            &[],
            [700, 100, 0],
        ),
        sampled(
            record(
                ImageId::unresolved("server", "no mapping"),
                ImageKind::Unresolved,
                "server: no mapping",
            ),
            Scope::default(),
            &[],
            [9, 0, 0],
        ),
    ]
}

/// An epoch of a host as it leaves.
fn epoch(root: &Path, host: &str, (at, day): (u64, u64), is_small: bool) -> Vec<u8> {
    // The last host has no cycles, and its clock's name no frequency.
    let (time, model) = match at {
        2 => ("cpu-clock", "AMD EPYC 7B13"),
        _ => ("cycles", "Intel(R) Xeon(R) @ 2.50GHz"),
    };
    let now_unix_s = MONDAY + day * DAY_S + 3600;
    let machine = Machine {
        arch: "x86_64".to_owned(),
        cpu_model: model.to_owned(),
        cpus: 4,
        boot_id: host.to_owned(),
        ..Machine::default()
    };
    let mut periods = vec![(time, 100_003), (time, 50_021)];
    let mut events = vec![event(time, 100_003)];
    let mut ran = ran(at, day);
    if is_small {
        ran.truncate(1);
    } else {
        periods.push(("instructions", 1_000_000));
        events.push(event("instructions", 1_000_000));
    }
    let start = EpochStart { events, now_unix_s, machine, ..EpochStart::default() };
    let mut writer = Writer::open(root, host).unwrap();
    let id = writer.begin(start, true).unwrap();
    let mut delta = Delta { now_unix_s: now_unix_s + 600, ..Delta::default() };
    for Sampled { image, scope, symbols, counts } in ran {
        for ((event, period), samples) in periods.iter().copied().zip(counts) {
            if samples == 0 {
                continue;
            }
            let places = [(0x1000, samples / 2), (0x1010, samples / 3), (0x2000, samples)];
            let places = places.map(|(offset, count)| (ImageOffset(offset), count.max(1)));
            let profile = Profile::from_counts(places);
            let ledger = delta.ledgers.entry(event, period);
            if image.id.is_unresolved() {
                *ledger.unresolved.entry("no_mapping".to_owned()).or_default() += profile.total();
            } else {
                ledger.merged += profile.total();
            }
            let key = ProfileKey::samples(image.id, event, period, scope.clone());
            delta.profiles.insert(key, profile.into());
        }
        let symbol = |(at, name): (u64, &&str)| Symbol {
            start: 0x1000 + 0x10 * at,
            end: 0x1010 + 0x10 * at,
            name: (*name).to_owned(),
        };
        if !symbols.is_empty() {
            delta.symbols.insert(image.id, (0..).zip(symbols).map(symbol).collect());
        }
        delta.images.insert(image.id, image);
    }
    for (event, period) in periods {
        let ledger = delta.ledgers.entry(event, period);
        ledger.lost.insert("table_full".to_owned(), at + 3);
        ledger.unresolved.insert("killed".to_owned(), 2);
        ledger.taken = ledger.accounted();
        if event == "instructions" {
            // Events took turns, each host at its own rate.
            (ledger.enabled_ns, ledger.running_ns) = (9_000_000 + 77 * at, 4_000_001 + day);
        }
    }
    writer.merge(&delta).unwrap();
    writer.seal(now_unix_s + 1200).unwrap();
    leaving(root, host, &id)
}

/// An epoch that was written, as it leaves.
pub fn leaving(root: &Path, host: &str, id: &profiledb::EpochId) -> Vec<u8> {
    let epoch = Database::open(root).unwrap().epoch(host, id).unwrap();
    let parts = Outgoing { generated: true, ..Outgoing::default() };
    profiledb::outgoing(&epoch, &parts, &BTreeMap::new()).unwrap()
}

/// Sums over the epochs of `objects` that can be read, of one event: taken, and by fate facts,
/// idle, unresolved, lost. Made of ledgers and kinds of images, by no code of the fleet's.
pub fn account(objects: &Objects, week: Week) -> BTreeMap<String, [u64; 5]> {
    let root = tempfile::tempdir().unwrap();
    for (key, object) in objects {
        let path = root.path().join(key);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        File::create(path).unwrap().write_all(object).unwrap();
    }
    let db = Database::open(&root.path().join("raw")).unwrap();
    let mut sums: BTreeMap<String, [u64; 5]> = BTreeMap::new();
    for host in db.hosts().unwrap() {
        for id in db.epochs(&host).unwrap() {
            let Ok(epoch) = db.epoch(&host, &id) else { continue };
            if Week::of(id.unix_s() as i64) != week || !epoch.damage().is_empty() {
                continue;
            }
            let images = epoch.images().unwrap();
            for event in &epoch.meta().events {
                let ledger: Ledger = epoch.meta().ledgers.sum(&event.name);
                let name = if event.name == "instructions" { "instructions" } else { "time" };
                let sum = sums.entry(name.to_owned()).or_default();
                let profiles = epoch.profiles().unwrap();
                let idle: u64 = profiles
                    .iter()
                    .filter(|key| key.name() == event.name)
                    .filter(|key| images[&key.image].kind == ImageKind::Idle)
                    .map(|key| epoch.total(key).unwrap())
                    .sum();
                let reasons = |of: &BTreeMap<String, u64>| of.values().sum::<u64>();
                let (unresolved, lost) = (reasons(&ledger.unresolved), reasons(&ledger.lost));
                let of = [ledger.taken, ledger.merged - idle, idle, unresolved, lost];
                sum.iter_mut().zip(of).for_each(|(sum, of)| *sum += of);
            }
        }
    }
    sums
}

/// CRC-32C (RFC 3720, appendix B.4).
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0_u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (0x82f6_3b78 & 0_u32.wrapping_sub(crc & 1))
        })
    })
}
