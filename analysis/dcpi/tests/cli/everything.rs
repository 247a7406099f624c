//! Every procedure of everything that is installed, with samples: `dcpi whatcg` explains what it
//! can, and says of how much.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use code::isa::Isa;
use image::{ImageId, ImageKind, ImageOffset};

use crate::database::{Db, Epoch, START, clock, named};
use crate::runs::dcpi;

fn files(path: &Path, into: &mut Vec<PathBuf>) {
    let Ok(kind) = std::fs::symlink_metadata(path).map(|metadata| metadata.file_type()) else {
        return;
    };
    if kind.is_file() {
        into.push(path.to_owned());
    } else if kind.is_dir() {
        let mut entries: Vec<_> = std::fs::read_dir(path).into_iter().flatten().flatten().collect();
        entries.sort_by_key(std::fs::DirEntry::file_name);
        entries.iter().for_each(|entry| files(&entry.path(), into));
    }
}

/// Samples at instructions of a procedure: mostly a few, sometimes many.
fn samples(random: &mut fastrand::Rng, start: u64, code: &[u8], into: &mut Vec<(u64, u64)>) {
    let most = [1, 1, 1, 1, 1, 1, 1, 1, 1, 200][random.usize(..10)];
    let (mut at, part) = (0, random.f64());
    while let Some(work) =
        code.get(at..).and_then(|rest| Isa::X86_64.work(rest)).filter(|work| work.len > 0)
    {
        if at == 0 || random.f64() < part {
            into.push((start + at as u64, random.u64(1..=most)));
        }
        at += usize::from(work.len);
    }
}

/// Bytes of procedures that are explained at once.
const BATCH: usize = 64 << 20;
/// Number of procedures per batch, the largest ones, that are explained alone, because they show
/// work that takes more than linear time.
const LARGEST: usize = 3;
/// KiB of memory, except for what is mapped of files, that explaining may take.
const MEMORY_KIB: u64 = 2 << 20;

/// The problems of all batches.
#[derive(Default)]
struct Sum {
    images: usize,
    bytes: usize,
    procedures: usize,
    explained: u64,
    samples: u64,
    samples_explained: u64,
    took: Duration,
    problems: BTreeMap<String, usize>,
    alone: Vec<(Duration, String)>,
}

/// Images with samples in every procedure, in a database.
struct Batch {
    db: Db,
    epoch: Epoch,
    images: usize,
    bytes: usize,
    procedures: usize,
    /// Some procedures, each with its file.
    some: Vec<(PathBuf, String)>,
    /// The largest: size, file, address.
    largest: Vec<(usize, PathBuf, String)>,
}

impl Batch {
    fn new() -> Self {
        let epoch = Epoch::new(START, vec![clock()]);
        let (some, largest) = (Vec::new(), Vec::new());
        Self { db: Db::new(), epoch, images: 0, bytes: 0, procedures: 0, some, largest }
    }

    /// Adds an executable of x86-64, if it is not known by another name; others are left alone.
    fn add(
        mut self,
        path: PathBuf,
        known_ids: &mut HashSet<ImageId>,
        random: &mut fastrand::Rng,
    ) -> Self {
        let Ok(id) = std::fs::File::open(&path).map(|file| image::identify_file(&file)) else {
            return self;
        };
        let Ok(id) = id else { return self };
        let Ok((known, _)) = image::procedures(&path, None, &image::default_debug_roots()) else {
            return self;
        };
        let Ok(text) = std::fs::read(&path) else { return self };
        let Ok(layout) = image::Layout::of(&text) else { return self };
        if text.get(18..20) != Some(&[62, 0]) || !known_ids.insert(id) {
            return self;
        }
        let mut counts = Vec::new();
        for procedure in known.iter() {
            let (ImageOffset(start), ImageOffset(end)) = (procedure.start, procedure.end);
            let Some(code) = text.get(start as usize..end as usize) else { continue };
            (self.bytes, self.procedures) = (self.bytes + code.len(), self.procedures + 1);
            samples(random, start, code, &mut counts);
            if random.usize(..self.procedures) < 2 {
                self.some.push((path.clone(), procedure.name().to_owned()));
            }
            if let Some(address) = layout.file_offset_to_vaddr(procedure.start)
                && self.largest.get(LARGEST - 1).is_none_or(|(size, ..)| *size < code.len())
            {
                self.largest.push((code.len(), path.clone(), format!("{:#x}", address.0)));
                self.largest.sort_by(|a, b| b.cmp(a));
                self.largest.truncate(LARGEST);
            }
        }
        counts.sort_unstable();
        counts.dedup_by_key(|(at, _)| *at);
        let name = path.file_name().unwrap().to_string_lossy();
        let image = named(id, ImageKind::File, &name, &path.to_string_lossy());
        self.epoch = self.epoch.samples("cpu-clock", &image, &counts);
        self.images += 1;
        self
    }

    /// Explains it all, and some procedures alone.
    fn explain(self, sum: &mut Sum) {
        let Self { db, epoch, images, bytes, procedures, some, largest } = self;
        db.epoch("node-7", epoch);
        let told_of = |arguments: &[&str]| {
            let begun = Instant::now();
            let output = limited(&dcpi())
                .args(arguments)
                .args(["--machine", "znver3", "--db", &db.root_text()])
                .output();
            let output = output.unwrap();
            let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
            (output.status.code(), text(output.stdout), text(output.stderr), begun.elapsed())
        };
        let (code, told, errors, took) =
            told_of(&["whatcg", "--min-samples", "1", "--format", "json"]);
        // Problems are told and counted; each is of an image.
        assert!(matches!(code, Some(0 | 1)) && !errors.contains("panicked"), "{code:?} {errors}");
        let told: serde_json::Value = serde_json::from_str(&told).unwrap();
        let number = |name: &str| told[name].as_u64().unwrap();
        let causes = told["causes"].as_array().unwrap();
        let all: f64 = causes.iter().map(|cause| cause["share"].as_f64().unwrap()).sum();
        assert!((all - 1.0).abs() < 1e-3, "{all}");
        let explained = 100.0 * number("explained") as f64 / number("samples").max(1) as f64;
        println!(
            "{images} images, {} MB, {procedures} procedures: {took:.1?}; {explained:.2} % of {} samples in {} procedures",
            bytes >> 20,
            number("samples"),
            number("procedures")
        );
        for problem in told["problems"].as_array().unwrap() {
            *sum.problems.entry(problem["kind"].as_str().unwrap().to_owned()).or_default() += 1;
        }
        (sum.images, sum.bytes, sum.procedures) =
            (sum.images + images, sum.bytes + bytes, sum.procedures + procedures);
        (sum.explained, sum.took) = (sum.explained + number("procedures"), sum.took + took);
        (sum.samples, sum.samples_explained) =
            (sum.samples + number("samples"), sum.samples_explained + number("explained"));
        for (path, procedure) in
            some.into_iter().chain(largest.into_iter().map(|(_, path, address)| (path, address)))
        {
            let (code, _, errors, took) = told_of(&["calc", path.to_str().unwrap(), &procedure]);
            // Several may have the same name.
            assert!(
                matches!(code, Some(0..=2)) && !errors.contains("panicked"),
                "{procedure} of {path:?}: {errors}"
            );
            sum.alone.push((took, format!("{procedure} of {}", path.display())));
        }
    }
}

/// The same command, which ends if it takes more memory than [`MEMORY_KIB`].
fn limited(command: &Command) -> Command {
    let mut shell = Command::new("sh");
    shell
        .args(["-c", &format!("ulimit -d {MEMORY_KIB} && exec \"$0\" \"$@\"")])
        .arg(command.get_program());
    shell.args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell
}

#[test]
#[ignore = "takes minutes: cargo xtask bench why"]
fn everything_that_is_installed_is_explained() {
    let roots = std::env::var("WHY_OF").unwrap_or_else(|_| "/usr/bin:/usr/lib".to_owned());
    let mut all = Vec::new();
    roots.split(':').for_each(|root| files(&std::fs::canonicalize(root).unwrap(), &mut all));
    let (mut random, mut known) = (fastrand::Rng::with_seed(1), HashSet::new());
    let (mut batch, mut sum) = (Batch::new(), Sum::default());
    for path in all {
        batch = batch.add(path, &mut known, &mut random);
        if batch.bytes >= BATCH {
            std::mem::replace(&mut batch, Batch::new()).explain(&mut sum);
        }
    }
    if batch.procedures > 0 {
        batch.explain(&mut sum);
    }
    let Sum {
        images,
        bytes,
        procedures,
        explained,
        samples,
        samples_explained,
        took,
        problems,
        mut alone,
    } = sum;
    assert!(procedures > 1000, "{procedures} procedures in {roots}");
    let part = 100.0 * samples_explained as f64 / samples as f64;
    println!("{images} images, {} MB, {procedures} procedures in {roots}: {took:.0?}", bytes >> 20);
    println!(
        "explained: {explained} procedures with their parts, {part:.3} % of {samples} samples"
    );
    problems.iter().for_each(|(kind, count)| println!("{count:9} {kind}"));
    alone.sort();
    let slowest = alone.iter().rev().take(5).map(|(took, of)| format!("{took:.1?} {of}"));
    println!(
        "dcpi calc of {}, the largest among them: median {:.0?}",
        alone.len(),
        alone[alone.len() / 2].0
    );
    slowest.for_each(|slow| println!("  {slow}"));
}
