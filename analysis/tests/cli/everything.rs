//! Every procedure of everything that is installed, with samples: `dcpi whatcg` explains what it can, and says of how much.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use code::isa::Isa;
use image::{ImageId, ImageKind, ImageOffset};

use crate::database::{Db, Epoch, START, clock, named};
use crate::runs::dcpi;

fn files(path: &Path, into: &mut Vec<PathBuf>) {
    let Ok(kind) = std::fs::symlink_metadata(path).map(|metadata| metadata.file_type()) else { return };
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
    while let Some(work) = code.get(at..).and_then(|rest| Isa::X86_64.work(rest)).filter(|work| work.len > 0) {
        if at == 0 || random.f64() < part {
            into.push((start + at as u64, random.u64(1..=most)));
        }
        at += usize::from(work.len);
    }
}

/// Bytes of procedures that are explained at once.
const BATCH: usize = 64 << 20;

/// Images with samples in every procedure, in a database.
struct Batch {
    db: Db,
    epoch: Epoch,
    images: usize,
    bytes: usize,
    procedures: usize,
    /// Some procedures, each with its file.
    some: Vec<(PathBuf, String)>,
}

impl Batch {
    fn new() -> Self {
        let epoch = Epoch::new(START, vec![clock()]);
        Self { db: Db::new(), epoch, images: 0, bytes: 0, procedures: 0, some: Vec::new() }
    }

    /// Adds an executable of x86-64, if it is not known by another name; others are left alone.
    fn add(mut self, path: PathBuf, known_ids: &mut HashSet<ImageId>, random: &mut fastrand::Rng) -> Self {
        let Ok(id) = std::fs::File::open(&path).map(|file| image::identify_file(&file)) else { return self };
        let Ok(id) = id else { return self };
        let Ok((known, _)) = image::procedures(&path, None, &image::default_debug_roots()) else { return self };
        let Ok(text) = std::fs::read(&path) else { return self };
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
        }
        counts.sort_unstable();
        counts.dedup_by_key(|(at, _)| *at);
        let name = path.file_name().unwrap().to_string_lossy();
        let image = named(id, ImageKind::File, &name, &path.to_string_lossy());
        self.epoch = self.epoch.samples("cpu-clock", &image, &counts);
        self.images += 1;
        self
    }

    /// Explains it all, and some procedures alone: how long each of those took, and what each is.
    fn explain(self) -> Vec<(Duration, String)> {
        let Self { db, epoch, images, bytes, procedures, some } = self;
        db.epoch("node-7", epoch);
        let told_of = |arguments: &[&str]| {
            let begun = Instant::now();
            let output =
                dcpi().args(arguments).args(["--machine", "znver3", "--db", &db.root_text()]).output().unwrap();
            let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
            (output.status.code(), text(output.stdout), text(output.stderr), begun.elapsed())
        };
        let (code, told, errors, took) = told_of(&["whatcg", "--min-samples", "1"]);
        let line =
            |begin: &str| told.lines().find(|line| line.trim_start().starts_with(begin)).unwrap_or_default().trim();
        println!("{images} images, {} MB, {procedures} procedures: {took:.1?}; {}", bytes >> 20, line("explained"));
        println!("  {}; {} lines of problems", line("unexplained stall"), errors.lines().count());
        // Problems are told and counted; each is of an image.
        assert!(matches!(code, Some(0 | 1)), "{errors}");
        assert!(errors.len() < 1 << 20 && !errors.contains("panicked"), "{errors}");
        assert!(told.contains("total                                                  100.00 %"), "{told}");
        let mut alone = Vec::new();
        for (path, procedure) in some {
            let (code, _, errors, took) = told_of(&["calc", path.to_str().unwrap(), &procedure]);
            // Several may have the same name.
            assert!(matches!(code, Some(0..=2)) && !errors.contains("panicked"), "{procedure} of {path:?}: {errors}");
            alone.push((took, format!("{procedure} of {}", path.display())));
        }
        alone
    }
}

#[test]
#[ignore = "takes minutes: cargo xtask bench why"]
fn everything_that_is_installed_is_explained() {
    let roots = std::env::var("WHY_OF").unwrap_or_else(|_| "/usr/bin:/usr/lib".to_owned());
    let mut all = Vec::new();
    roots.split(':').for_each(|root| files(&std::fs::canonicalize(root).unwrap(), &mut all));
    let (mut random, mut known) = (fastrand::Rng::with_seed(1), HashSet::new());
    let (mut batch, mut took, mut procedures) = (Batch::new(), Vec::new(), 0);
    for path in all {
        batch = batch.add(path, &mut known, &mut random);
        if batch.bytes >= BATCH {
            procedures += batch.procedures;
            took.append(&mut std::mem::replace(&mut batch, Batch::new()).explain());
        }
    }
    procedures += batch.procedures;
    if batch.procedures > 0 {
        took.append(&mut batch.explain());
    }
    assert!(procedures > 1000, "{procedures} procedures in {roots}");
    took.sort();
    let (middle, slowest) = (&took[took.len() / 2], &took[took.len() - 1]);
    println!("{procedures} procedures in {roots}");
    println!("dcpi calc of {} of them: median {:.0?}, slowest {:.0?} ({})", took.len(), middle.0, slowest.0, slowest.1);
}
