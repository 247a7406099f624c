//! `dcpi copy`, `dcpi merge`, `dcpi tar`, `dcpi check`.

use crate::database::{Db, Epoch, START, clock, kernel, typical};
use crate::runs::{dcpi, json, on, refused, shown};

/// Three epochs, of which the first is damaged.
fn damaged() -> Db {
    let db = Db::new();
    for at in 0..3 {
        db.epoch(
            "a",
            Epoch::new(START + 5000 * at, vec![clock()]).samples(
                "cpu-clock",
                &kernel(),
                &[(1, 2 + at)],
            ),
        );
    }
    let first = db.files(".segment").remove(0);
    std::fs::write(first, "no segment at all").unwrap();
    db
}

#[test]
fn a_damaged_epoch_does_not_keep_the_others_from_being_copied() {
    let (db, directory) = (damaged(), tempfile::tempdir().unwrap());
    let to = directory.path().join("copy");
    let copy = format!("copy --to {}", to.display());
    for expected in ["2 epochs copied, 0 brought up to date, 0 already there", "0 epochs copied"] {
        let output = on(&db, &copy);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(String::from_utf8(output.stdout).unwrap().contains(expected));
        assert!(said.contains(" of a was not copied: ") && said.lines().count() == 1, "{said}");
    }
    let epochs = dcpi().args(["check", "--db"]).arg(&to).output().unwrap();
    assert!(epochs.status.success(), "{}", String::from_utf8_lossy(&epochs.stdout));
    assert!(refused(&db, &format!("{copy} --epoch -2")).contains("damaged"));
    for segment in db.files(".segment") {
        std::fs::write(segment, "nor these").unwrap();
    }
    let archive = directory.path().join("x.tar.gz");
    let _ = refused(&db, &format!("tar --epoch all -o {}", archive.display()));
    assert!(!archive.exists(), "an archive of nothing");
}

#[test]
fn a_target_that_cannot_be_written_to_ends_the_copy() {
    assert!(!refused(&damaged(), "copy --to /dev/null/x").contains("was not copied"));
}

#[test]
fn an_archive_is_written_whole_and_only_over_a_file() {
    let (db, directory) = (Db::new(), tempfile::tempdir().unwrap());
    db.epoch("a", typical());
    let (file, link) = (directory.path().join("x.tar.gz"), directory.path().join("link"));
    std::fs::write(&file, "old").unwrap();
    std::os::unix::fs::symlink("x.tar.gz", &link).unwrap();
    let made = on(&db, &format!("tar -o {}", link.display()));
    let said = String::from_utf8(made.stdout).unwrap();
    // The epoch goes on.
    let missing = String::from_utf8(made.stderr).unwrap();
    assert!(missing.contains("later samples than of 2026-11-05 10:40:03 UTC are missing"));
    assert!(missing.ends_with("dcpictl flush, and then this again\n"), "{missing}");
    let archive = std::fs::read(&file).unwrap();
    assert!(archive.starts_with(&[0x1f, 0x8b]), "gzip");
    assert!(
        said.contains(&format!("1 epochs, code of 0 images, {} bytes", archive.len())),
        "{said}"
    );
    assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
    assert!(refused(&db, "tar -o /dev/null").contains("it is no plain file"));
    let _ = refused(&db, &format!("tar --epoch -7 -o {}", file.display()));
    assert_eq!(std::fs::read(&file).unwrap(), archive);
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 2, "nothing is left behind");
}

#[test]
fn what_a_writer_left_is_a_remark_and_strange_files_are_told() {
    let db = Db::new();
    db.epoch("a", typical());
    assert!(shown(&db, "check").ends_with(" is whole\n"));
    let epoch = db.files(".segment").remove(0);
    let left = epoch.with_file_name("x.tmp");
    std::fs::write(&left, "half").unwrap();
    // A file that dcpid was just writing was called left over.
    assert!(shown(&db, "check").ends_with(" is whole\n") && !shown(&db, "check").contains("x.tmp"));
    let long_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
    std::fs::File::options().write(true).open(&left).unwrap().set_modified(long_ago).unwrap();
    let said = shown(&db, "check");
    assert!(said.starts_with("remark: ") && said.ends_with(" is whole\n"), "{said}");
    assert_eq!(json(&db, "check")["problems"][0]["damage"], false);
    std::fs::write(db.root().join("holiday.jpg"), "").unwrap();
    let output = on(&db, "check");
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.ends_with("but for 1 file that does not belong there\n"), "{said}");
    assert_eq!(on(&damaged(), "check").status.code(), Some(1));
}

/// Merging the same twice made two epochs of it, and reports of both counted everything twice.
#[test]
fn what_was_merged_already_is_not_merged_again_unseen() {
    let (db, directory) = (Db::new(), tempfile::tempdir().unwrap());
    for at in 0..3 {
        db.epoch(
            "a",
            Epoch::new(START + 5000 * at, vec![clock()]).samples(
                "cpu-clock",
                &kernel(),
                &[(1, 2 + at)],
            ),
        );
    }
    let merge = |epochs: &str| {
        format!("merge --to {} --epoch {epochs}", directory.path().join("sum").display())
    };
    assert!(shown(&db, &merge("-2..-1")).contains("made of 2 epochs"));
    let again = refused(&db, &merge("-2..-1"));
    assert!(
        again.contains("was made of the same epochs; remove it, or merge into another directory"),
        "{again}"
    );
    let output = on(&db, &merge("-1..latest"));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && said.contains("has 1 of these epochs too"), "{said}");
    assert!(!on(&db, &merge("latest")).stderr.is_empty(), "the second has it");
}

/// A stretch of time has the same numbers in a copy, in an archive, and where an epoch is merged
/// alone. Sums of several are a test of `profiledb`.
#[test]
fn what_is_copied_archived_or_merged_keeps_its_slices_of_time() {
    const WHEN: &str = "--since 2026-11-05T11:05:00Z --until 2026-11-05T11:15:00Z";
    let (db, directory) = (crate::time::recorded(), tempfile::tempdir().unwrap());
    let at = |name: &str| directory.path().join(name).display().to_string();
    let _ = shown(&db, &format!("copy --to {}", at("copy")));
    assert!(on(&db, &format!("tar --epoch all -o {}", at("x.tar.gz"))).status.success());
    let file = std::fs::File::open(at("x.tar.gz")).unwrap();
    tar::Archive::new(flate2::read::GzDecoder::new(file)).unpack(directory.path()).unwrap();
    let _ = shown(&db, &format!("merge --as-host sum --to {}", at("sum")));
    let rows = |of: &str, when: &str| {
        let mut report = dcpi();
        report.args(format!("prof --inclusive --format json {when} --db {of}").split_whitespace());
        let output = report.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()["rows"].clone()
    };
    let part = rows(&db.root_text(), WHEN);
    assert!(part.as_array().is_some_and(|rows| !rows.is_empty()));
    assert_ne!(part, rows(&db.root_text(), ""));
    for of in ["copy", "dcpi", "sum"] {
        assert_eq!(rows(&at(of), WHEN), part, "{of}");
    }
}
