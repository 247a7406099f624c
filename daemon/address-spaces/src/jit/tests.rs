//! Generated code of this very process, which is one that /proc knows.

use super::*;
use crate::mapped_files::Files;
use kernel::Record;
use std::path::PathBuf;

const SECOND: u64 = 1_000_000_000;
const CODE: u64 = 0x7000_0000;
/// No such process can exist.
const NOBODY: u32 = (1 << abi::PID_BITS) - 9;

/// The map of this process, removed at the end. Each test is a process of its own under nextest,
/// not under cargo test: hence one test.
struct PerfMap(PathBuf);

impl PerfMap {
    fn write(text: &str) -> Self {
        let path = PathBuf::from(format!("/tmp/perf-{}.map", std::process::id()));
        std::fs::write(&path, text).unwrap();
        Self(path)
    }
}

impl Drop for PerfMap {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0); // a test may have removed it
    }
}

fn mapping(path: &str, inode: u64) -> Mapping {
    let file =
        Files::default().intern(MappedFileId::Inode { major: 0, minor: 1, inode }, path.as_bytes());
    Mapping { start: CODE, end: CODE + 0x10_000, file_offset: 0, file }
}

fn asked(pid: u32, address: u64, now_ns: u64) -> Asked {
    Asked { pid, generation: 7, address, now_ns }
}

fn name(jit: &mut Jit, pid: u32, address: u64, now_ns: u64) -> Result<String, Unresolved> {
    let mappings = Mappings::default();
    let place = jit.place(
        asked(pid, address, now_ns),
        Unresolved::Anonymous,
        &mapping("//anon", 0),
        &mappings,
    );
    place.map(|place| format!("{} {:x} {}", place.name, place.offset.0, place.image.name))
}

#[test]
fn a_map_is_read_when_a_sample_asks_and_no_more_than_once_a_second() {
    let pid = std::process::id();
    let map = PerfMap::write("70000000 100 first\n70000100 80 second one\n");
    let exe = std::env::current_exe().unwrap();
    let image = format!("[jit] {} {pid}", exe.file_name().unwrap().to_str().unwrap());
    let mut jit = Jit::default();
    assert_eq!(name(&mut jit, pid, CODE + 8, SECOND), Ok(format!("first 70000008 {image}")));
    assert_eq!(
        name(&mut jit, pid, CODE + 0x110, SECOND),
        Ok(format!("second one 70000110 {image}"))
    );
    assert_eq!(name(&mut jit, pid, CODE + 0x200, SECOND), Err(Unresolved::JitNotInMap));
    std::fs::write(
        &map.0,
        "70000000 100 first\n70000100 80 second one\n70000200 10 third\n70000000 100 other\n",
    )
    .unwrap();
    assert_eq!(
        name(&mut jit, pid, CODE + 0x200, SECOND + 1),
        Err(Unresolved::JitNotInMap),
        "not so soon again"
    );
    assert_eq!(
        name(&mut jit, pid, CODE + 0x200, 2 * SECOND),
        Ok(format!("third 70000200 {image}"))
    );
    let turn = "200000070000008";
    assert_eq!(
        name(&mut jit, pid, CODE + 8, 2 * SECOND),
        Ok(format!("other {turn} {image}")),
        "another offset"
    );
    assert_eq!((jit.totals().processes, jit.totals().pieces), (1, 3));

    // A link in its place, then nothing.
    std::fs::remove_file(&map.0).unwrap();
    std::os::unix::fs::symlink("/dev/zero", &map.0).unwrap();
    let mut jit = Jit::default();
    assert_eq!(name(&mut jit, pid, CODE, SECOND), Err(Unresolved::JitMapRefused));
    std::fs::remove_file(&map.0).unwrap();
    assert_eq!(name(&mut jit, pid, CODE, 2 * SECOND), Err(Unresolved::Anonymous));
}

#[test]
fn memory_that_is_a_compilers_says_so() {
    let mut jit = Jit::default();
    let mappings = Mappings::default();
    let mut why = |path: &str, inode, reason| {
        jit.place(asked(NOBODY, CODE, SECOND), reason, &mapping(path, inode), &mappings)
            .unwrap_err()
    };
    assert_eq!(why("//anon", 0, Unresolved::Anonymous), Unresolved::Anonymous);
    assert_eq!(why("[anon:v8]", 0, Unresolved::Anonymous), Unresolved::JitWithoutMap);
    assert_eq!(
        why("/memfd:doublemapper (deleted)", 5, Unresolved::NotElf),
        Unresolved::JitWithoutMap
    );
    assert_eq!(why("/memfd:jit (deleted)", 5, Unresolved::FileGone), Unresolved::JitWithoutMap);
    assert_eq!(why("/usr/share/x.dll", 5, Unresolved::NotElf), Unresolved::NotElf);
    assert_eq!(
        why("/usr/lib/libjvm.so", 5, Unresolved::FileGone),
        Unresolved::FileGone,
        "a file that is gone is no code of a compiler"
    );
}

#[test]
fn a_region_has_its_name_until_it_or_its_process_is_gone() {
    let pid = std::process::id();
    let text = kernel::procfs::executable_mappings(pid).unwrap().remove(0);
    let mut jit = Jit::default();
    let told = Registration {
        pid,
        start: text.start,
        len: 32,
        name: "mine".into(),
        ..Registration::default()
    };
    assert_eq!(jit.register(&told, SECOND), Ok(1));
    let of_image =
        Registration { start: text.start + 32, image: Some("my image".into()), ..told.clone() };
    assert_eq!(jit.register(&of_image, SECOND), Ok(2));
    let shown = |jit: &mut Jit, address| {
        jit.registered(asked(pid, address, SECOND))
            .map(|place| (place.name, place.image.name.clone(), place.offset.0))
    };
    let (first, second) =
        (shown(&mut jit, text.start + 3).unwrap(), shown(&mut jit, text.start + 40).unwrap());
    assert!(first.1.starts_with("[jit] ") && first.2 == text.start + 3, "{first:?}");
    assert_eq!((second.0.as_str(), second.1.as_str()), ("mine", "my image"));
    assert_eq!(shown(&mut jit, text.start + 64), None);
    assert_eq!(jit.unregister(pid, text.start), Ok(1));
    assert!(jit.unregister(pid, text.start).unwrap_err().contains("; "));
    assert_eq!(shown(&mut jit, text.start), None);

    // The process runs another program now: the samples of this drain may still be the old one's,
    // by their generation.
    jit.processes.get_mut(&pid).unwrap().generation = 7;
    jit.apply(&TimedRecord { time_ns: 2 * SECOND, kind: RecordKind::Exec { pid } });
    assert!(shown(&mut jit, text.start + 40).is_some());
    let later = Asked { generation: 8, ..asked(pid, text.start + 40, 2 * SECOND) };
    assert!(jit.registered(later).is_none());
    let mut mappings = Mappings::default();
    mappings.scan(SECOND);
    jit.forget(&mappings, 0);
    assert!(!jit.has_regions(pid));
}

#[test]
fn processes_are_forgotten_with_their_mappings_and_are_bounded() {
    let file = MappedFileId::Inode { major: 0, minor: 0, inode: 0 };
    let mmap = |pid: u32| {
        let record = Record {
            pid,
            start: CODE,
            len: 4096,
            file_offset: 0,
            path: b"//anon".to_vec(),
            file: file.clone(),
        };
        TimedRecord { time_ns: 1, kind: RecordKind::Mmap(record) }
    };
    let mut jit = Jit::default();
    jit.notice(&[mmap(std::process::id()), mmap(NOBODY)], SECOND);
    assert_eq!(jit.totals().processes, 1, "of those who are gone nothing can be learnt");
    jit.forget(&Mappings::default(), SECOND);
    assert_eq!(jit.totals().processes, 1, "its fork may be told in the next drain");
    jit.forget(&Mappings::default(), 2 * SECOND);
    assert_eq!(jit.totals().processes, 0);
    for pid in 0..PROCESSES_MAX as u32 + 5 {
        let _ = jit.process(pid, SECOND, None);
    }
    assert_eq!((jit.totals().processes, jit.totals().refused), (PROCESSES_MAX, 5));
}

#[test]
fn what_may_be_read_grows_with_time_and_has_an_end() {
    let mut allowance = Allowance { left: 100, max: 100, per_second: 10, told_ns: 0 };
    assert_eq!(allowance.at(5 * SECOND), 100);
    allowance.left = 0;
    assert_eq!(allowance.at(7 * SECOND), 20);
    assert_eq!(allowance.at(1000 * SECOND), 100);
}

#[test]
fn names_of_dumps() {
    for (path, expected) in [
        ("/tmp/jit-12.dump", true),
        ("/home/a b/.debug/jit/x/jit-12.dump (deleted)", true),
        ("/tmp/jit-.dump", false),
        ("/tmp/jit-1a.dump", false),
        ("/tmp/xjit-12.dump", false),
        ("jit-12.dump", true),
    ] {
        assert_eq!(look::is_dump(path.as_bytes()), expected, "{path}");
    }
}

/// Code that call stacks tell of a process without files of its own; other code in its place has
/// the newest name. What the process's files say is more.
#[test]
fn code_is_learnt_until_the_process_tells_its_own() {
    let pid = std::process::id();
    let mut jit = Jit::default();
    jit.learn((pid, 7), SECOND, (CODE, 0x100), "leaf a.js:8");
    jit.learn((pid, 7), SECOND, (CODE + 0x100, 0x40), "main a.js:20");
    let at = |jit: &mut Jit, address, now_ns| {
        let found = name(jit, pid, address, now_ns);
        found.map(|found| found.split(" a.js").next().unwrap_or_default().to_owned())
    };
    assert_eq!(at(&mut jit, CODE + 0xff, SECOND), Ok("leaf".to_owned()));
    assert_eq!(at(&mut jit, CODE + 0x100, SECOND), Ok("main".to_owned()));
    assert_eq!(at(&mut jit, CODE + 0x140, SECOND), Err(Unresolved::JitNotInMap));
    jit.learn((pid, 7), SECOND, (CODE + 0x80, 0x40), "other a.js:9");
    assert_eq!(at(&mut jit, CODE + 0x90, SECOND), Ok("other".to_owned()));
    let _map = PerfMap::write("70000000 100 of the map\n");
    let of_map = name(&mut jit, pid, CODE + 0x90, 3 * SECOND).unwrap();
    assert!(of_map.starts_with("of the map"), "{of_map}");
    assert_eq!(at(&mut jit, CODE + 0x100, 3 * SECOND), Err(Unresolved::JitNotInMap));
    jit.learn((pid, 7), 4 * SECOND, (CODE + 0x100, 0x40), "main a.js:20");
    assert_eq!(at(&mut jit, CODE + 0x100, 4 * SECOND), Err(Unresolved::JitNotInMap));
    jit.learn((NOBODY, 7), SECOND, (CODE, 0x100), "gone");
    jit.learn((0, 0), SECOND, (CODE, 0x100), "unseen");
}
