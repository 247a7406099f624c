//! Separate debug files: found where they should be, used only when of the same build.

use std::path::{Path, PathBuf};

use image::{Finding, ProcedureSource, Procedures, procedures, procedures_of};

use crate::compile::{Workshop, read};

/// A stripped program `a`, and its debug file, `a.debug`, for which it has a link.
fn split(build_id: &str) -> (Workshop, Procedures) {
    let shop = Workshop::new();
    let path = shop.cc("a", &["-g", &format!("-Wl,--build-id={build_id}")]);
    let (full, _) = procedures(&path, None, &[]).unwrap();
    shop.tool("objcopy", &["--only-keep-debug", "a", "a.debug"]);
    shop.tool("strip", &["a"]);
    shop.tool("objcopy", &["--add-gnu-debuglink=a.debug", "a"]);
    (shop, full)
}

fn put(shop: &Workshop, to: &Path) -> PathBuf {
    std::fs::create_dir_all(to.parent().unwrap()).unwrap();
    std::fs::rename(shop.path("a.debug"), to).unwrap();
    to.to_path_buf()
}

/// The program's procedures must be the full ones, from this debug file.
fn check(shop: &Workshop, full: &Procedures, roots: &[PathBuf], from: &Path) {
    let (found, findings) = procedures(&shop.path("a"), None, roots).unwrap();
    assert!(findings.is_empty(), "{findings:?}");
    assert!(found.iter().eq(full.iter()));
    let source = &found.sources()[0].0;
    assert_eq!(*source, ProcedureSource::DebugFile(from.to_path_buf()));
}

#[test]
fn by_build_id_below_a_root() {
    let (shop, full) = split("0xabcdef12");
    let root = shop.path("root");
    let to = put(&shop, &root.join(".build-id/ab/cdef12.debug"));
    let roots = [shop.path("no-root"), root];
    check(&shop, &full, &roots, &to);
    // From bytes too: a build id needs no path.
    let (found, _) = procedures_of(&read(&shop.path("a")), None, &roots).unwrap();
    assert!(found.iter().eq(full.iter()));
}

#[test]
fn by_link_beside_the_file_in_debug_and_below_a_root() {
    // With a build id, and without: then the checksum decides.
    for build_id in ["sha1", "none"] {
        let (shop, full) = split(build_id);
        let root = shop.path("root");
        let roots = [root.clone()];
        // The directory as it really is: a temporary directory may be reached through a link.
        let dir = shop.path("").canonicalize().unwrap();
        check(&shop, &full, &roots, &dir.join("a.debug"));
        let to = put(&shop, &dir.join(".debug/a.debug"));
        check(&shop, &full, &roots, &to);
        std::fs::rename(&to, dir.join("a.debug")).unwrap();
        let below = root.join(dir.strip_prefix("/").unwrap());
        let to = put(&shop, &below.join("a.debug"));
        check(&shop, &full, &roots, &to);
    }
}

#[test]
fn a_program_reached_through_a_link_has_its_debug_file_beside_itself() {
    let (shop, full) = split("none");
    let elsewhere = tempfile::tempdir().unwrap();
    let link = elsewhere.path().join("a");
    std::os::unix::fs::symlink(shop.path("a"), &link).unwrap();
    let (found, findings) = procedures(&link, None, &[]).unwrap();
    assert!(findings.is_empty(), "{findings:?}");
    assert!(found.iter().eq(full.iter()));
}

#[test]
fn one_of_another_build_is_not_used() {
    let (shop, full) = split("0xabcdef12");
    let other = Workshop::new();
    other.cc("a", &["-g", "-Wl,--build-id=0xabcdef13"]);
    let root = shop.path("root");
    let wrong = root.join(".build-id/ab/cdef12.debug");
    std::fs::create_dir_all(wrong.parent().unwrap()).unwrap();
    std::fs::copy(other.path("a"), &wrong).unwrap();
    // The right one is still found, by its link.
    let (found, findings) = procedures(&shop.path("a"), None, &[root]).unwrap();
    let [Finding::DebugFileOfOtherBuild { path, found: Some(id) }] = &findings[..] else {
        panic!("{findings:?}");
    };
    assert_eq!((path, id.to_string().as_str()), (&wrong, "abcdef13"));
    assert!(found.iter().eq(full.iter()));
}

#[test]
fn one_with_another_checksum_is_not_used() {
    let (shop, full) = split("none");
    let mut bytes = read(&shop.path("a.debug"));
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(shop.path("a.debug"), bytes).unwrap();
    let (found, findings) = procedures(&shop.path("a"), None, &[]).unwrap();
    assert!(
        matches!(
            findings[..],
            [Finding::DebugFileOfOtherBuild { found: None, .. }, Finding::Stripped]
        ),
        "{findings:?}"
    );
    assert!(!found.iter().eq(full.iter()));
}

#[test]
fn one_that_cannot_be_read_is_told_and_passed_over() {
    let (shop, _) = split("none");
    let debug = shop.path("a.debug");
    std::fs::remove_file(&debug).unwrap();
    shop.tool("mkfifo", &["a.debug"]);
    // It has no writer, so opening it would block for ever.
    let told = || {
        let (_, findings) = procedures(&shop.path("a"), None, &[]).unwrap();
        match &findings[..] {
            [Finding::DebugFileUnreadable { error, .. }, Finding::Stripped] => error.to_string(),
            _ => panic!("{findings:?}"),
        }
    };
    assert!(told().ends_with("is not a regular file"), "{}", told());
    std::fs::remove_file(&debug).unwrap();
    std::fs::write(&debug, "no ELF").unwrap();
    assert_eq!(told(), "not an ELF file");
}

#[test]
fn a_link_never_leads_to_the_file_itself_or_out_of_its_directory() {
    let (shop, _) = split("none");
    let only_stripped = |path: &Path| {
        let (_, findings) = procedures(path, None, &[]).unwrap();
        let told: Vec<_> = findings.iter().map(ToString::to_string).collect();
        assert!(matches!(findings.last(), Some(Finding::Stripped)), "{told:?}");
        findings.len() - 1
    };
    // The program under the name that its own link has.
    std::fs::rename(shop.path("a"), shop.path("a.debug")).unwrap();
    assert_eq!(only_stripped(&shop.path("a.debug")), 0);
    let mut bytes = read(&shop.path("a.debug"));
    let at = bytes.windows(8).position(|w| w == b"a.debug\0").unwrap();
    bytes[at..at + 8].copy_from_slice(b"../etc/\0");
    std::fs::write(shop.path("b"), bytes).unwrap();
    assert_eq!(only_stripped(&shop.path("b")), 1);
}
