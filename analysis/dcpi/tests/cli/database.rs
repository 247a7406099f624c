//! Databases as a daemon would write them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use image::{ImageId, ImageKind, ImageOffset, KeptRanges};
use model::{Counts, Ledger, Measure, Profile, Shape};
use profiledb::{
    CodeStore, Delta, EpochStart, EventMeta, ImageRecord, Lost, Machine, ProfileKey, Scope, Symbol,
    Writer, check,
};

/// 2026-11-05 10:15:00 UTC.
pub const START: u64 = 1_793_873_700;

/// A database in a directory that goes with it.
pub struct Db {
    directory: tempfile::TempDir,
}

impl Db {
    pub fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    pub fn root(&self) -> PathBuf {
        self.directory.path().join("db")
    }

    pub fn root_text(&self) -> String {
        self.root().to_str().unwrap().to_owned()
    }

    /// Writes an epoch of a host, sealed if it has an end.
    pub fn epoch(&self, host: &str, epoch: Epoch) {
        let mut writer = Writer::open(&self.root(), host).unwrap();
        let start = EpochStart {
            label: epoch.label.map(str::to_owned),
            machine: Machine {
                arch: epoch.arch.into(),
                cpu_model: "Test CPU".into(),
                cpus: 4,
                kernel_release: "6.18.0-test".into(),
                kernel_build_id: None,
                boot_id: "b".into(),
            },
            events: epoch.events,
            now_unix_s: epoch.start,
            writer_version: "0.1.0".into(),
        };
        writer.begin(start, true).unwrap();
        writer.merge(&epoch.delta).unwrap();
        if let Some(end) = epoch.end {
            writer.seal(end).unwrap();
            // No copy is under way, so folded segments are removed at once.
            writer.fold(u64::MAX, u64::MAX).unwrap();
        }
    }

    /// Keeps the code of a program in a host's store.
    pub fn keep(&self, host: &str, program: &Path) {
        let writer = Writer::open(&self.root(), host).unwrap();
        let mut store = CodeStore::open(&writer, 256 << 20).unwrap();
        let file = std::fs::File::open(program).unwrap();
        let (id, ranges) =
            (image::identify_file(&file).unwrap(), KeptRanges::of_file(&file).unwrap());
        store
            .keep(&id, &ranges, START, &mut |out| ranges.copy(&file, |piece| out.write_all(piece)))
            .unwrap();
    }

    /// All files of the database whose names end so.
    /// Flips one bit somewhere, so that just what `wanted` says is lost.
    pub fn damage(&self, wanted: impl Fn(&Lost) -> bool) {
        for path in self.files(".segment") {
            let mut bytes = std::fs::read(&path).unwrap();
            for at in 0..bytes.len() {
                bytes[at] ^= 1;
                std::fs::write(&path, &bytes).unwrap();
                if check(&self.root()).unwrap().iter().any(|problem| wanted(&problem.lost)) {
                    return;
                }
                bytes[at] ^= 1;
            }
            std::fs::write(&path, &bytes).unwrap();
        }
        panic!("nothing like that can be lost");
    }

    /// All files whose path ends like this.
    pub fn files(&self, suffix: &str) -> Vec<PathBuf> {
        fn walk(directory: &Path, suffix: &str, found: &mut Vec<PathBuf>) {
            for entry in std::fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    walk(&path, suffix, found);
                } else if path.to_str().unwrap().ends_with(suffix) {
                    found.push(path);
                }
            }
        }
        let mut found = Vec::new();
        walk(&self.root(), suffix, &mut found);
        found.sort();
        found
    }
}

/// An epoch to write.
pub struct Epoch {
    pub label: Option<&'static str>,
    pub start: u64,
    pub end: Option<u64>,
    pub events: Vec<EventMeta>,
    pub arch: &'static str,
    pub delta: Delta,
    /// Periods of events that are not those described.
    pub now: BTreeMap<String, u64>,
}

impl Epoch {
    pub fn new(start: u64, events: Vec<EventMeta>) -> Self {
        let delta = Delta { now_unix_s: start + 1503, ..Delta::default() };
        Self { label: None, start, end: None, events, arch: "x86_64", delta, now: BTreeMap::new() }
    }

    /// Samples of an event at offsets of an image.
    pub fn samples(self, event: &str, image: &ImageRecord, counts: &[(u64, u64)]) -> Self {
        self.scoped((None, None, None), event, image, counts)
    }

    /// The same, of the processes of a label, unit or number.
    pub fn scoped(
        mut self,
        (label, unit, pid): (Option<&str>, Option<&str>, Option<u32>),
        event: &str,
        image: &ImageRecord,
        counts: &[(u64, u64)],
    ) -> Self {
        let scope = Scope { label: label.map(str::to_owned), unit: unit.map(str::to_owned), pid };
        let profile = Profile::from_counts(counts.iter().map(|(at, n)| (ImageOffset(*at), *n)));
        let period = self.period(event);
        let ledger = self.ledger(event);
        ledger.taken += profile.total();
        if image.id.is_unresolved() {
            add(&mut ledger.unresolved, &image.path, profile.total());
        } else {
            ledger.merged += profile.total();
        }
        self.delta.images.insert(image.id, image.clone());
        let key = ProfileKey::samples(image.id, event, period, scope);
        let none = Counts::none(Shape::Places);
        assert!(self.delta.profiles.entry(key).or_insert(none).merge(&profile.into()));
        self
    }

    /// Observations of a measure in an image.
    pub fn observe(&mut self, measure: &Measure, image: ImageId, counts: impl Into<Counts>) {
        self.delta.profiles.insert(ProfileKey::of(image, measure), counts.into());
    }

    /// What follows is sampled at another period.
    pub fn at_period(mut self, event: &str, period: u64) -> Self {
        self.now.insert(event.to_owned(), period);
        self
    }

    fn period(&self, event: &str) -> u64 {
        let described =
            || self.events.iter().find(|known| known.name == event).map_or(0, |known| known.period);
        self.now.get(event).copied().unwrap_or_else(described)
    }

    fn ledger(&mut self, event: &str) -> &mut Ledger {
        let period = self.period(event);
        self.delta.ledgers.entry(event, period)
    }

    pub fn symbols(mut self, image: &ImageRecord, symbols: &[(u64, u64, &str)]) -> Self {
        let symbol = |(start, end, name): &(u64, u64, &str)| Symbol {
            start: *start,
            end: *end,
            name: (*name).into(),
        };
        self.delta.images.insert(image.id, image.clone());
        self.delta.symbols.insert(image.id, symbols.iter().map(symbol).collect());
        self
    }

    pub fn unresolved(mut self, event: &str, reason: &str, samples: u64) -> Self {
        let ledger = self.ledger(event);
        ledger.taken += samples;
        add(&mut ledger.unresolved, reason, samples);
        self
    }

    /// The time for which an event counted, of the time in which it should have.
    pub fn counted(mut self, event: &str, running_ns: u64, enabled_ns: u64) -> Self {
        let ledger = self.ledger(event);
        (ledger.running_ns, ledger.enabled_ns) = (running_ns, enabled_ns);
        self
    }

    pub fn lost(mut self, event: &str, reason: &str, samples: u64) -> Self {
        let ledger = self.ledger(event);
        ledger.taken += samples;
        add(&mut ledger.lost, reason, samples);
        self
    }
}

fn add(reasons: &mut BTreeMap<String, u64>, reason: &str, samples: u64) {
    *reasons.entry(reason.to_owned()).or_default() += samples;
}

pub fn clock() -> EventMeta {
    EventMeta {
        name: "cpu-clock".into(),
        unit: "ns".into(),
        period: 192_308,
        rate_per_s: Some(5200),
        note: Some("no hardware counters: cpu-clock instead of cycles".into()),
    }
}

pub fn cycles() -> EventMeta {
    EventMeta {
        name: "cycles".into(),
        unit: "cycles".into(),
        period: 62_000,
        rate_per_s: None,
        note: None,
    }
}

pub fn imiss() -> EventMeta {
    EventMeta {
        name: "L1-icache-load-misses".into(),
        unit: "count".into(),
        period: 2000,
        rate_per_s: None,
        note: None,
    }
}

/// An image that is not a file, or whose file does not exist.
pub fn image(kind: ImageKind, name: &str, path: &str) -> ImageRecord {
    named(ImageId::from_name(name, path), kind, name, path)
}

pub fn named(id: ImageId, kind: ImageKind, name: &str, path: &str) -> ImageRecord {
    ImageRecord {
        id,
        kind,
        name: name.to_owned(),
        path: path.to_owned(),
        size_bytes: None,
        first_seen_unix_s: START,
        last_seen_unix_s: START,
    }
}

pub fn kernel() -> ImageRecord {
    image(ImageKind::Kernel, "[kernel]", "/boot/vmlinuz-6.18.0-test")
}

pub fn idle() -> ImageRecord {
    image(ImageKind::Idle, "[idle]", "[idle]")
}

/// One epoch of one event with all that there can be, except files.
pub fn typical() -> Epoch {
    let vdso = image(ImageKind::Vdso, "[vdso]", "[vdso]");
    let module = image(ImageKind::Module, "[ext4]", "[ext4]");
    let gone = image(ImageKind::File, "gone", "/opt/app/gone");
    Epoch::new(START, vec![clock()])
        .samples(
            "cpu-clock",
            &kernel(),
            &[(0x1000, 30_000), (0x1010, 6_128), (0x2000, 812), (0x3000, 5), (0x9000, 7)],
        )
        .symbols(
            &kernel(),
            &[
                (0x1000, 0x1100, "clear_page_erms"),
                (0x2000, 0x2100, "init"),
                (0x3000, 0x3100, "init"),
            ],
        )
        .samples("cpu-clock", &vdso, &[(0x800, 4_100)])
        .symbols(&vdso, &[(0x7f0, 0x900, "__vdso_clock_gettime")])
        .samples("cpu-clock", &module, &[(0x40, 900)])
        .symbols(&module, &[(0, 0x100, "ext4_find_entry")])
        .samples("cpu-clock", &gone, &[(0x1234, 2_000), (0x5678, 500)])
        .samples("cpu-clock", &idle(), &[(0x10, 200_000)])
        .symbols(&idle(), &[(0, 0x40, "default_idle")])
        .unresolved("cpu-clock", "anonymous_memory", 321)
        .unresolved("cpu-clock", "unknown_process", 12)
        .lost("cpu-clock", "spill_full", 44)
}

/// Two labelled runs of one program beside others, two units, and a process of its own.
pub fn runs() -> Epoch {
    let app = image(ImageKind::Vdso, "app", "[app]");
    let lib = image(ImageKind::Vdso, "lib", "[lib]");
    let web = Some("web.service");
    Epoch::new(START, vec![clock()])
        .samples("cpu-clock", &kernel(), &[(0x1000, 1_000)])
        .symbols(&kernel(), &[(0x1000, 0x1100, "clear_page_erms")])
        .samples("cpu-clock", &app, &[(0, 50)])
        .scoped((Some("before"), None, None), "cpu-clock", &app, &[(0, 300), (0x40, 100)])
        .scoped((Some("after, -O3"), None, None), "cpu-clock", &app, &[(0, 200), (0x40, 100)])
        .scoped((Some("after, -O3"), None, None), "cpu-clock", &lib, &[(0, 20)])
        .scoped((None, web, None), "cpu-clock", &lib, &[(0, 70)])
        .scoped((Some("before"), web, None), "cpu-clock", &lib, &[(0, 30)])
        .scoped((None, Some("docker-0123456789ab"), Some(4711)), "cpu-clock", &app, &[(0, 5)])
        .symbols(&app, &[(0, 0x40, "parse"), (0x40, 0x80, "print")])
        .symbols(&lib, &[(0, 0x40, "copy")])
        .samples("cpu-clock", &idle(), &[(0x10, 5_000)])
        .unresolved("cpu-clock", "anonymous_memory", 40)
        .unresolved("cpu-clock", "excluded", 60)
}

/// Two events, and names that are alike, long, or worse.
pub fn two_events() -> Epoch {
    let app = image(ImageKind::Vdso, "app", "[app]");
    let other = image(ImageKind::Vdso, "app", "[other app]");
    let long = "<core::iter::adapters::map::Map<alloc::vec::into_iter::IntoIter<analysis::load::ImageSamples>, \
                analysis::commands::prof::image_rows::{{closure}}> as \
                core::iter::traits::iterator::Iterator>::fold";
    let imiss = "L1-icache-load-misses";
    Epoch::new(START, vec![cycles(), self::imiss()])
        .samples("cycles", &app, &[(0, 700), (0x100, 200), (0x200, 50), (0x300, 9)])
        .samples(imiss, &app, &[(0x100, 400), (0x200, 3)])
        .symbols(
            &app,
            &[
                (0, 0x80, long),
                (0x100, 0x180, "parse"),
                (0x200, 0x280, "parse"),
                (0x300, 0x301, "\x1b[2Jevil\n"),
            ],
        )
        .samples("cycles", &other, &[(0, 41)])
        .symbols(&other, &[(0, 0x80, "main")])
        .unresolved(imiss, "anonymous_memory", 7)
}

/// Eight runs of one program, in figure 3's proportions: smooth varies, the others do but by
/// chance. The program is built again in between, in the same place.
pub fn variable() -> Db {
    let db = Db::new();
    let smooth = [3816, 8808, 4100, 3900, 7900, 4000, 5100, 6476];
    let parmvr = [53_026, 52_800, 53_300, 53_110, 52_900, 53_050, 53_200, 52_990];
    let fft = [905, 880, 931, 917, 862, 899, 940, 903];
    for (run, ((smooth, parmvr), fft)) in (0_u64..).zip(smooth.into_iter().zip(parmvr).zip(fft)) {
        let build = if run < 4 { 1 } else { 2 };
        let program = named(
            ImageId::from_build_id(&[7, build]).unwrap(),
            ImageKind::Vdso,
            "wave5",
            "/opt/wave5",
        );
        let start = START + 10_000 * run;
        // The new build has its procedures elsewhere.
        let at = 0x1000 * u64::from(build);
        let mut epoch = Epoch::new(start, vec![cycles()]);
        epoch.label =
            Some(["run0", "run1", "run2", "run3", "run4", "run5", "run6", "run7"][run as usize]);
        let epoch = epoch
            .samples(
                "cycles",
                &program,
                &[(at, smooth), (at + 0x100, parmvr), (at + 0x200, fft), (at + 0x300, run % 2)],
            )
            .symbols(
                &program,
                &[
                    (at, at + 0x80, "smooth_"),
                    (at + 0x100, at + 0x180, "parmvr_"),
                    (at + 0x200, at + 0x280, "fftb_"),
                    (at + 0x300, at + 0x380, "main"),
                ],
            )
            .samples("cycles", &idle(), &[(0x10, 90_000)])
            .unresolved("cycles", "anonymous_memory", 40);
        db.epoch("node-7", epoch);
    }
    db
}
