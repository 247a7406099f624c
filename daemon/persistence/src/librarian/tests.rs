//! The librarian against files of this machine.

use super::*;
use inspect::open_mapped::{MappedAt, open_mapped};
use inspect::questions::FileAt;
use kernel::MappedFileId;
use kernel::latin1::Bytes;
use profiledb::{Database, Writer};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

const LIMIT: u64 = 512 << 20;

fn here() -> MappedAt {
    MappedAt { pid: std::process::id(), start: 0, end: 0 }
}

/// A request for the image in this file, and how it may be offered.
fn wanted(path: &Path) -> (Wanted, Arc<Offer>) {
    let metadata = path.metadata().unwrap();
    let (major, minor) = (
        nix::sys::stat::major(metadata.dev()) as u32,
        nix::sys::stat::minor(metadata.dev()) as u32,
    );
    let id = image::identify_file(&File::open(path).unwrap()).unwrap();
    let file = MappedFileId::Inode { major, minor, inode: metadata.ino() };
    let path = Bytes(path.as_os_str().as_encoded_bytes().to_vec());
    let file = FileAt { id: file, path, at: here() };
    (Wanted { id, kind: ImageKind::File, file }, Arc::default())
}

fn started(root: &Path, cpu_share: Option<f64>) -> (Writer, Librarian, Library) {
    let writer = Writer::open(root, "here").unwrap();
    let store = CodeStore::open(&writer, LIMIT).unwrap();
    // Temporary directories are not world-accessible.
    let limits = StoreLimits { bytes: LIMIT, cpu_share, private: true, whole: true };
    let (librarian, library) =
        Librarian::start(Catalogue::default(), Some(store), limits, Inspectors::default()).unwrap();
    (writer, librarian, library)
}

/// At the slowest pace nothing but the end lets a copy be finished; the deleted file has no
/// name any more by then.
#[test]
fn the_code_of_a_file_that_is_deleted_is_kept() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("db");
    let (_writer, librarian, library) = started(&root, Some(1e-6));
    let program = directory.path().join("program");
    std::fs::copy("/bin/sh", &program).unwrap();
    let (wanted, offer) = wanted(&program);
    let original = std::fs::read(&program).unwrap();
    let id = wanted.id;
    assert!(library.wants(&offer));
    library.offer(wanted, &offer);
    assert!(!library.wants(&offer), "once a day");
    while library.status().unwrap().waiting == 0 {
        std::thread::yield_now();
    }
    std::fs::remove_file(&program).unwrap();
    librarian.finish();
    let kept = Database::open(&root).unwrap().code("here", &id).unwrap().unwrap();
    assert_eq!(kept, KeptFile::of(&original).unwrap());
    let status = library.status().unwrap();
    assert_eq!((status.images, status.kept, status.refused, status.limit_bytes), (1, 1, 0, LIMIT));
    assert!(status.bytes > 0 && status.bytes < original.len() as u64);
}

/// A program was written again in place while it waited to be copied: the new build was kept
/// under the id of the old one, and every reader, also of a copy of the database, called that
/// damage ("damaged at byte 79: it belongs somewhere else").
#[test]
fn a_program_that_is_built_anew_while_it_waits_is_not_kept() {
    let original = std::fs::read("/bin/sh").unwrap();
    let other_length = std::fs::read("/bin/cat").unwrap();
    // Of the same length, and perhaps within the same tick of the file system's clock.
    let id = image::identify(&original).unwrap();
    let bytes = id.build_id().unwrap().to_vec();
    let at = original.windows(bytes.len()).position(|found| found == bytes).unwrap();
    let mut other_id = original.clone();
    other_id[at] ^= 1;
    assert_ne!(image::identify(&other_id).unwrap(), id);
    for (built_anew, is_kept) in [(other_length, false), (other_id, false), (original, true)] {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("db");
        let program = directory.path().join("program");
        std::fs::copy("/bin/sh", &program).unwrap();
        let (wanted, offer) = wanted(&program);
        let writer = Writer::open(&root, "here").unwrap();
        let mut intake = Intake {
            queue: mpsc::sync_channel(1).1,
            waiting: Vec::new(),
            catalogue: Catalogue::default(),
            inspectors: Inspectors::default(),
            counts: Arc::default(),
            limits: StoreLimits { private: true, whole: true, ..StoreLimits::default() },
            generated: Generated::default(),
            worths: Worths::default(),
            rested: (Instant::now(), 0),
            last_copies_until: None,
        };
        intake.open(wanted, offer.clone());
        let job = intake.next().unwrap();
        if !is_kept {
            std::fs::write(&program, built_anew).unwrap();
        }
        let store = Some(CodeStore::open(&writer, LIMIT).unwrap());
        Worker { store, intake, complaint: None }.keep(job);
        let kept = Database::open(&root).unwrap().code_images("here").unwrap();
        assert_eq!(kept, [id].into_iter().filter(|_| is_kept).collect::<Vec<_>>());
        assert!(profiledb::check(&root).unwrap().is_empty());
        assert_eq!(offer.failures(), u32::from(!is_kept), "it is offered again");
    }
}

#[test]
fn the_vdso_is_kept_and_other_kinds_are_not() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("db");
    let (_writer, librarian, library) = started(&root, None);
    let vdso = address_spaces::mapped_files::own_vdso().expect("this kernel gives a vdso");
    let none = MappedFileId::Inode { major: 0, minor: 0, inode: 0 };
    for (id, kind) in
        [(vdso.id, ImageKind::Vdso), (ImageId::from_name("[kernel]", ""), ImageKind::Kernel)]
    {
        let file = FileAt { id: none.clone(), path: Bytes(b"[vdso]".to_vec()), at: here() };
        let wanted = Wanted { id, kind, file };
        library.offer(wanted, &Arc::default());
    }
    librarian.finish();
    let database = Database::open(&root).unwrap();
    assert_eq!(database.code_images("here").unwrap(), [vdso.id]);
    let kept = database.code("here", &vdso.id).unwrap().unwrap();
    assert!(
        kept.procedures(None, None, &[])
            .unwrap()
            .0
            .iter()
            .any(|p| p.name().contains("clock_gettime"))
    );
}

/// A path may lead to another build than the process has mapped: its code must not be kept
/// under this one's id.
#[test]
fn another_build_is_not_kept_and_the_image_is_tried_again() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("db");
    let (_writer, librarian, library) = started(&root, None);
    let (mut other, offer) = wanted(Path::new("/bin/sh"));
    other.id = ImageId::from_build_id(&[7; 20]).unwrap();
    other.file.id = MappedFileId::BuildId(vec![7; 20]);
    library.offer(other, &offer);
    librarian.finish();
    assert!(library.wants(&offer), "another process may have it");
    assert_eq!(library.status().unwrap().gone, 1);
    assert!(Database::open(&root).unwrap().code_images("here").unwrap().is_empty());
}

/// Code of a program that only its owner may read was readable for the group of the database.
#[test]
fn code_that_not_everybody_may_read_is_kept_only_where_that_is_asked_for() {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("db");
    let writer = Writer::open(&root, "here").unwrap();
    let program = directory.path().join("program");
    std::fs::copy("/bin/sh", &program).unwrap();
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(directory.path(), open).unwrap();
    for (mode, private, is_kept) in [(0o711, false, 0), (0o755, false, 1), (0o700, true, 1)] {
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(mode)).unwrap();
        let limits = StoreLimits { bytes: LIMIT, private, whole: true, ..StoreLimits::default() };
        let store = Some(CodeStore::open(&writer, LIMIT).unwrap());
        let (librarian, library) =
            Librarian::start(Catalogue::default(), store, limits, Inspectors::default()).unwrap();
        let (wanted, offer) = wanted(&program);
        library.offer(wanted, &offer);
        librarian.finish();
        let status = library.status().unwrap();
        assert_eq!((status.images, status.private), (is_kept, 1 - is_kept), "{mode:o}");
    }
}

#[test]
fn neither_a_fifo_nor_a_device_is_opened() {
    let directory = tempfile::tempdir().unwrap();
    let fifo = directory.path().join("fifo");
    let made = std::process::Command::new("mkfifo").arg(&fifo).status().unwrap();
    assert!(made.success());
    for path in [fifo.as_path(), Path::new("/dev/zero"), directory.path()] {
        let id = MappedFileId::BuildId(vec![1; 20]);
        assert!(
            open_mapped(&id, path.as_os_str().as_encoded_bytes(), here(), |_| true).is_none(),
            "{path:?}"
        );
    }
}

/// Tells the library of samples at an offset, and waits until that has had its effect.
fn sampled(library: &Library, id: ImageId, samples: u64, at: u64, is_done: impl Fn() -> bool) {
    let counts = [(image::ImageOffset(at), samples)];
    let key = profiledb::ProfileKey::samples(id, "cpu-clock", 1, Default::default());
    let counts = model::Counts::Places(model::Profile::from_counts(counts));
    let profiles = [(key, counts)].into();
    library.sampled(&profiledb::Delta { profiles, ..profiledb::Delta::default() });
    let begin = Instant::now();
    while !is_done() {
        assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", library.status());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Every file with one sample was kept whole: fifty times the profiles' space on a build host.
#[test]
fn of_a_large_file_is_kept_what_its_samples_pay_for() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("db");
    let writer = Writer::open(&root, "here").unwrap();
    let store = CodeStore::open(&writer, LIMIT).unwrap();
    let limits = StoreLimits { bytes: LIMIT, private: true, ..StoreLimits::default() };
    let started =
        Librarian::start(Catalogue::default(), Some(store), limits, Inspectors::default());
    let (librarian, library) = started.unwrap();
    let program = std::env::current_exe().unwrap();
    let whole = KeptRanges::of_file(&File::open(&program).unwrap()).unwrap().len();
    let binary = image::Binary::open(&program, None).unwrap();
    let (procedures, _) = binary.procedures(&[]).unwrap();
    let mut long = procedures.iter().filter(|procedure| procedure.size_bytes() > 1000);
    let (first, second) = (long.next().unwrap(), long.nth(50).unwrap());
    let kept = || Database::open(&root).unwrap().code("here", &wanted(&program).0.id).unwrap();
    let has = |of: &image::Procedure| {
        kept().is_some_and(|kept| kept.get(of.start.0, of.size_bytes() as usize).is_some())
    };
    let (request, offer) = wanted(&program);
    let id = request.id;
    library.offer(request, &offer);
    let waiting = || library.status().unwrap().waiting;
    let waits = || waiting() == 1;
    while !waits() {
        std::thread::yield_now();
    }
    // Ten samples do not pay for the names of this program: their procedure has its own.
    sampled(&library, id, 10, first.start.0 + 500, || waiting() == 0);
    let (named, _) = kept().unwrap().procedures(Some(&id), None, &[]).unwrap();
    assert_eq!(named.find(first.start).map(image::Procedure::name), Some(first.name()));
    assert!(named.find(second.start).is_none_or(|found| found.name() != second.name()));
    assert!(kept().unwrap().ranges().len() < whole / 16 && !offer.is_open());
    // Enough do; it is offered again, and kept with the procedure, not whole.
    let enough = whole / 64;
    sampled(&library, id, enough / 2, first.start.0 + 500, || offer.is_open());
    library.offer(wanted(&program).0, &offer);
    sampled(&library, id, 1, first.start.0 + 500, || has(first));
    assert!(!has(second) && kept().unwrap().ranges().len() < whole * 2 / 3);
    // Another procedure, when the samples have doubled.
    sampled(&library, id, enough, second.start.0 + 500, || offer.is_open());
    library.offer(wanted(&program).0, &offer);
    sampled(&library, id, 1, second.start.0 + 500, || has(second));
    assert!(has(first) && kept().unwrap().is_excerpt());
    librarian.finish();
}
