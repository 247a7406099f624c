//! Every procedure of everything that is installed, with samples: `dcpi whatcg` explains what it can, and says of how much.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use code::isa::Isa;
use image::{ImageKind, ImageOffset};

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

#[test]
#[ignore = "takes minutes: cargo xtask bench why"]
fn everything_that_is_installed_is_explained() {
    let roots = std::env::var("WHY_OF").unwrap_or_else(|_| "/usr/bin:/usr/lib".to_owned());
    let mut all = Vec::new();
    roots.split(':').for_each(|root| files(&std::fs::canonicalize(root).unwrap(), &mut all));
    let mut random = fastrand::Rng::with_seed(1);
    let db = Db::new();
    let mut epoch = Epoch::new(START, vec![clock()]);
    let (mut images, mut bytes, mut procedures, mut some) = (0, 0, 0, Vec::new());
    for path in all {
        let Ok(file) = std::fs::File::open(&path) else { continue };
        let Ok(id) = image::identify_file(&file) else { continue };
        let Ok((known, _)) = image::procedures(&path, None, &image::default_debug_roots()) else { continue };
        let Ok(text) = std::fs::read(&path) else { continue };
        // Of x86-64.
        if text.get(18..20) != Some(&[62, 0]) {
            continue;
        }
        let mut counts = Vec::new();
        for procedure in known.iter() {
            let (ImageOffset(start), ImageOffset(end)) = (procedure.start, procedure.end);
            let Some(code) = text.get(start as usize..end as usize) else { continue };
            (bytes, procedures) = (bytes + code.len(), procedures + 1);
            samples(&mut random, start, code, &mut counts);
            if random.usize(..procedures) < 20 {
                some.push((path.clone(), procedure.name().to_owned()));
            }
        }
        counts.sort_unstable();
        counts.dedup_by_key(|(at, _)| *at);
        let name = path.file_name().unwrap().to_string_lossy();
        epoch = epoch.samples("cpu-clock", &named(id, ImageKind::File, &name, &path.to_string_lossy()), &counts);
        images += 1;
    }
    db.epoch("node-7", epoch);
    assert!(procedures > 1000, "{procedures} procedures in {roots}");
    let begun = Instant::now();
    let output =
        dcpi().args(["whatcg", "--machine", "znver3", "--min-samples", "1", "--db", &db.root_text()]).output().unwrap();
    let took = begun.elapsed();
    let (told, errors) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    println!("{images} images, {} MB of procedures, {procedures} of them with samples: {took:?}", bytes >> 20);
    println!("{told}");
    // Problems are told and counted; each is of an image.
    assert!(matches!(output.status.code(), Some(0 | 1)), "{errors}");
    assert!(errors.len() < 1 << 20 && !errors.contains("panicked"), "{errors}");
    println!(
        "{} lines of problems; the first:\n{}",
        errors.lines().count(),
        errors.lines().take(5).collect::<Vec<_>>().join("\n")
    );
    let mut took: Vec<(Duration, String)> = Vec::new();
    for (path, procedure) in some {
        let begun = Instant::now();
        let image = path.to_str().unwrap();
        let calc = dcpi().args(["calc", image, &procedure, "--machine", "znver3", "--db", &db.root_text()]).output();
        // Several may have the same name.
        match calc.unwrap().status.code() {
            Some(0 | 1) => took.push((begun.elapsed(), format!("{procedure} of {image}"))),
            code => assert_eq!(code, Some(2), "{procedure} of {image}"),
        }
    }
    took.sort();
    let (middle, slowest) = (&took[took.len() / 2], &took[took.len() - 1]);
    println!("dcpi calc of {} procedures: median {:?}, slowest {:?} ({})", took.len(), middle.0, slowest.0, slowest.1);
    assert!(told.contains("total                                                  100.00 %"), "{told}");
}
