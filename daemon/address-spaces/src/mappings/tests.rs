use super::process::RECORD_NS;
use super::*;
use kernel::MappedFileId;

// No such process can exist, so nothing is repaired from /proc.
const PID: u32 = (1 << abi::PID_BITS) - 9;

fn mmap(time_ns: u64, pid: u32, start: u64, path: &str) -> TimedRecord {
    let file = MappedFileId::BuildId(path.bytes().take(20).collect());
    let record = Record { pid, start, len: 0x100, file_offset: 0, path: path.into(), file };
    TimedRecord { time_ns, kind: RecordKind::Mmap(record) }
}

fn at(time_ns: u64, kind: RecordKind) -> TimedRecord {
    TimedRecord { time_ns, kind }
}

fn found(
    mappings: &mut Mappings,
    pid: u32,
    pc: u64,
    window: (u64, u64),
) -> Result<String, Unresolved> {
    let window = Window { from_ns: window.0, to_ns: window.1 };
    mappings
        .find(pid, 0, pc, window)
        .map(|found| String::from_utf8(found.mapping.file.path.clone()).unwrap())
}

#[test]
fn a_child_has_its_parents_memory_until_it_execs() {
    let mut mappings = Mappings::default();
    mappings.apply(mmap(1, PID, 0x1000, "shell"));
    mappings.apply(at(10, RecordKind::Fork { pid: PID + 1, parent: PID }));
    assert_eq!(found(&mut mappings, PID + 1, 0x1010, (0, 20)), Ok("shell".into()));
    mappings.apply(at(30, RecordKind::Exec { pid: PID + 1 }));
    mappings.apply(mmap(31, PID + 1, 0x2000, "tool"));
    assert_eq!(found(&mut mappings, PID + 1, 0x2010, (20, 40)), Ok("tool".into()));
    assert_eq!(
        found(&mut mappings, PID + 1, 0x1010, (20, 40)),
        Ok("shell".into()),
        "sampled before the exec, in this window"
    );
    assert_eq!(
        found(&mut mappings, PID + 1, 0x1010, (40, 60)),
        Err(Unresolved::NoMapping),
        "a window after the exec"
    );
    assert_eq!(
        found(&mut mappings, PID, 0x1010, (40, 60)),
        Ok("shell".into()),
        "the parent keeps its own"
    );
}

/// dlclose and dlopen at one address within one drain: half of the samples went to a library that
/// was never called.
#[test]
fn where_two_files_were_mapped_in_turn_nobody_guesses() {
    let mut mappings = Mappings::default();
    for (time, name) in [(1, "first"), (15, "second")] {
        mappings.apply(mmap(time, PID, 0x1000, name));
    }
    mappings.apply(mmap(16, PID, 0x5000, "apart"));
    mappings.apply(mmap(17, PID, 0x5000, "apart"));
    assert_eq!(found(&mut mappings, PID, 0x1010, (10, 20)), Err(Unresolved::AmbiguousMapping));
    assert_eq!(
        found(&mut mappings, PID, 0x5010, (10, 20)),
        Ok("apart".into()),
        "the same file again is no doubt"
    );
    mappings.forget_ended(Window { from_ns: 20, to_ns: 30 });
    assert_eq!(found(&mut mappings, PID, 0x1010, (20, 30)), Ok("second".into()));
}

/// Under a storm of mappings the records of ends were dropped, and the dead were believed alive for
/// ever.
#[test]
fn after_lost_records_the_dead_are_forgotten() {
    let mut mappings = Mappings::default();
    mappings.apply(mmap(1, PID, 0x1000, "dead"));
    mappings.apply(mmap(1, std::process::id(), 0x1000, "believed"));
    mappings.repair(DOUBT_INTERVAL_NS);
    assert_eq!(mappings.len(), 2, "no record lost, no doubt");
    mappings.apply(at(2, RecordKind::Lost { records: 5 }));
    mappings.repair(DOUBT_INTERVAL_NS);
    assert_eq!(mappings.len(), 1);
    let window = (DOUBT_INTERVAL_NS, DOUBT_INTERVAL_NS + 1);
    assert_eq!(
        found(&mut mappings, std::process::id(), 0x1000, window),
        Err(Unresolved::NoMapping),
        "read anew"
    );
}

/// The records of a program were lost, for example because its CPU had just come online. Its number
/// was forgotten before its first sample and meant nothing for the rest of its life.
#[test]
fn a_process_with_a_number_that_no_record_explains_is_kept_apart() {
    let program = Some(kernel::Program { number: 9, text: 0x1000, len: 0x1000 });
    let execed = |pid| RecordKind::Execed { pid, generation: 7, program, user: None };
    let window = |from_ns| Window { from_ns, to_ns: from_ns + 10 };
    let mut mappings = Mappings::default();
    mappings.apply(at(1, execed(PID)));
    mappings.forget_ended(window(0));
    assert!(mappings.take_unmarked().is_empty(), "its record may still come");
    mappings.forget_ended(window(10));
    assert_eq!(mappings.take_unmarked(), [PID], "the number is forgotten");
    mappings.apply(at(21, execed(PID)));
    mappings.apply(at(22, RecordKind::Lost { records: 0 }));
    mappings.repair(DOUBT_INTERVAL_NS);
    assert_eq!(mappings.take_unmarked(), [PID], "no record will come");
    let mut mappings = Mappings::default();
    mappings.apply(mmap(1, PID, 0x1000, "program"));
    mappings.apply(at(1, execed(PID)));
    mappings.apply(at(2, RecordKind::Lost { records: 0 }));
    mappings.repair(DOUBT_INTERVAL_NS);
    assert!(mappings.take_unmarked().is_empty(), "it is known");
}

/// Two programs at one address in one process, one after the other, in one drain: only the
/// generation tells their samples apart.
#[test]
fn an_exec_over_itself_at_the_same_address_is_told_apart() {
    let mut mappings = Mappings::default();
    mappings.apply(mmap(1, PID, 0x1000, "first"));
    let window = Window { from_ns: 0, to_ns: 100 };
    let image = |mappings: &mut Mappings, generation| {
        mappings
            .find(PID, generation, 0x1000, window)
            .map(|found| String::from_utf8(found.mapping.file.path.clone()).unwrap())
    };
    assert_eq!(
        image(&mut mappings, 7),
        Ok("first".into()),
        "the first sample tells which generation was there"
    );
    for (time, generation, name) in [(10, 8, "second"), (20, 9, "third")] {
        mappings.apply(at(time, RecordKind::Exec { pid: PID }));
        mappings.apply(mmap(time + 1, PID, 0x1000, name));
        mappings.apply(at(
            time + 2,
            RecordKind::Execed { pid: PID, generation, program: None, user: None },
        ));
    }
    for (generation, name) in [(8, "second"), (9, "third"), (7, "first")] {
        assert_eq!(image(&mut mappings, generation), Ok(name.into()));
    }
    assert_eq!(
        image(&mut mappings, 99),
        Err(Unresolved::NoMapping),
        "a generation that nobody told of is not guessed"
    );
    // A number reused: the next process of that number forks from another parent.
    mappings.apply(mmap(1, PID + 1, 0x1000, "parent"));
    mappings.apply(at(30, RecordKind::Exit { pid: PID }));
    mappings.apply(at(31, RecordKind::Fork { pid: PID, parent: PID + 1 }));
    assert_eq!(image(&mut mappings, 500), Ok("parent".into()));
    assert_eq!(image(&mut mappings, 9), Ok("third".into()));
}

/// A program that loads two plugins at one address in turn, within one drain: each has its own
/// samples.
#[test]
fn two_files_mapped_in_turn_are_told_apart_by_their_generations() {
    let mut mappings = Mappings::default();
    mappings.apply(mmap(1, PID, 0x1000, "first"));
    mappings.apply(mmap(2, PID, 0x9000, "program"));
    let window = Window { from_ns: 0, to_ns: 100 };
    for (time, generation, start, name) in [
        (10, 1023_u16, 0x5000, "apart"),
        (20, 0, 0x1000, "second"),
        (30, 1, 0x7000, "more"),
        (40, 2, 0x1000, "first"),
    ] {
        let before = generation.wrapping_sub(1) & Generations::MASK;
        mappings.apply(at(time, RecordKind::Remapped { pid: PID, before, generation }));
        mappings.apply(mmap(time + 1, PID, start, name));
    }
    let mut image = |generation, pc| {
        let found = mappings.find(PID, generation, pc, window);
        found.map(|found| String::from_utf8(found.mapping.file.path.clone()).unwrap())
    };
    for (generation, name) in
        [(1022, "first"), (1023, "first"), (0, "second"), (1, "second"), (2, "first")]
    {
        assert_eq!(image(generation, 0x1010), Ok(name.into()), "{generation}");
        assert_eq!(image(generation, 0x9010), Ok("program".into()), "{generation}");
    }
    assert_eq!(image(1023, 0x5010), Ok("apart".into()));
    assert_eq!(image(1, 0x7010), Ok("more".into()));
    assert_eq!(image(500, 0x1010), Err(Unresolved::NoMapping));
    let versions = mappings.processes.get(&PID).unwrap().versions.len();
    assert_eq!(versions, 3, "mappings that replace nothing need no version of their own");
    mappings.apply(at(50, RecordKind::Remapped { pid: PID, before: 700, generation: 300 }));
    for generation in [2, 300] {
        let found = mappings
            .find(PID, generation, 0x1010, window)
            .map(|found| found.mapping.file.path.clone());
        assert_eq!(
            found,
            Ok(b"first".to_vec()),
            "{generation}: seen anew after it was out of sight"
        );
    }
}

/// A generation without a record of its own, as when a part of a file is unmapped, is not that of
/// what is mapped long after.
#[test]
fn a_generation_that_no_record_follows_has_what_was_before() {
    let mut mappings = Mappings::default();
    mappings.apply(mmap(1, PID, 0x1000, "first"));
    mappings.apply(at(10, RecordKind::Remapped { pid: PID, before: 7, generation: 8 }));
    let long_after = 10 + RECORD_NS;
    mappings.apply(mmap(long_after, PID, 0x1000, "second"));
    let found = mappings.find(PID, 8, 0x1010, Window { from_ns: 0, to_ns: long_after + 100 });
    assert_eq!(
        found.map(|_| ()),
        Err(Unresolved::AmbiguousMapping),
        "which of both it was, nobody knows"
    );
    let found =
        mappings.find(PID, 8, 0x1010, Window { from_ns: long_after + 1, to_ns: long_after + 100 });
    assert_eq!(found.map(|found| found.mapping.file.path.clone()), Ok(b"second".to_vec()));
}

/// The sampler numbers a library just before the kernel writes the record of its mapping; what
/// comes instead of a lost record is not it.
#[test]
fn a_numbered_library_is_the_next_mapping() {
    let library = |number| {
        let library = Program { number, text: 0x5000, len: 0x100 };
        RecordKind::Library { pid: PID, library }
    };
    let find = |mappings: &mut Mappings, number| {
        let found = mappings.find_in_program(number, 0x10, Window { from_ns: 0, to_ns: 9 });
        found.map(|(mapping, _)| String::from_utf8(mapping.file.path.clone()).unwrap())
    };
    let mut mappings = Mappings::default();
    for (time, number, first, name) in [(1, 7, 0x5000, "libc"), (3, 8, 0x9000, "other")] {
        mappings.apply(at(time, library(number)));
        mappings.apply(mmap(time + 1, PID, first, name));
    }
    mappings.apply(mmap(5, PID, 0x5000, "late"));
    mappings.apply(at(6, library(6)));
    mappings.apply(at(7, RecordKind::Lost { records: 1 }));
    mappings.apply(mmap(8, PID, 0x5000, "after a loss"));
    assert_eq!(find(&mut mappings, 7), Ok("libc".into()));
    assert_eq!(find(&mut mappings, 8), Err(Unresolved::UnknownProcess));
    assert_eq!(find(&mut mappings, 6), Err(Unresolved::UnknownProcess));
    assert!(mappings.expected.is_empty());
}

#[test]
fn what_the_child_maps_is_not_the_parents() {
    let mut mappings = Mappings::default();
    mappings.apply(mmap(1, PID, 0x1000, "shell"));
    mappings.apply(at(2, RecordKind::Fork { pid: PID + 1, parent: PID }));
    mappings.apply(mmap(3, PID + 1, 0x5000, "plugin"));
    assert_eq!(found(&mut mappings, PID, 0x5000, (0, 9)), Err(Unresolved::NoMapping));
    assert_eq!(found(&mut mappings, PID + 1, 0x5000, (0, 9)), Ok("plugin".into()));
}

#[test]
fn a_process_is_forgotten_after_the_drain_that_follows_its_end() {
    let mut mappings = Mappings::default();
    mappings.apply(mmap(1, PID, 0x1000, "a"));
    mappings.apply(at(15, RecordKind::Exit { pid: PID }));
    mappings.forget_ended(Window { from_ns: 10, to_ns: 20 });
    assert_eq!(
        found(&mut mappings, PID, 0x1000, (10, 20)),
        Ok("a".into()),
        "its samples may be in the next drain"
    );
    mappings.forget_ended(Window { from_ns: 20, to_ns: 30 });
    assert_eq!(found(&mut mappings, PID, 0x1000, (20, 30)), Err(Unresolved::UnknownProcess));
    assert!(mappings.is_empty());
}

#[test]
fn a_reused_process_number_starts_afresh() {
    let mut mappings = Mappings::default();
    mappings.apply(mmap(1, PID, 0x1000, "first"));
    mappings.apply(mmap(1, PID + 1, 0x3000, "parent"));
    mappings.apply(at(15, RecordKind::Exit { pid: PID }));
    mappings.apply(at(16, RecordKind::Fork { pid: PID, parent: PID + 1 }));
    assert_eq!(found(&mut mappings, PID, 0x3000, (10, 20)), Ok("parent".into()));
    assert_eq!(
        found(&mut mappings, PID, 0x1000, (10, 20)),
        Ok("first".into()),
        "both lived in this window"
    );
    mappings.forget_ended(Window { from_ns: 20, to_ns: 30 });
    assert_eq!(found(&mut mappings, PID, 0x1000, (20, 30)), Err(Unresolved::NoMapping));
}

#[test]
fn a_live_process_that_no_record_told_of_is_read_from_proc() {
    let mut mappings = Mappings::default();
    let here = a_live_process_that_no_record_told_of_is_read_from_proc as fn() as usize as u64;
    let window = (0, 5 * REPAIR_INTERVAL_NS);
    let own = found(&mut mappings, std::process::id(), here, window).unwrap();
    assert_eq!(own.as_bytes(), std::env::current_exe().unwrap().as_os_str().as_encoded_bytes());
    // Records from before that reading are in it already and must not undo it.
    mappings.apply(at(window.1 - 1, RecordKind::Exec { pid: std::process::id() }));
    assert!(found(&mut mappings, std::process::id(), here, window).is_ok());
}

#[test]
fn the_number_of_processes_is_bounded() {
    let mut mappings = Mappings::default();
    for pid in 0..PROCESSES_MAX as u32 + 10 {
        mappings.apply(mmap(1, pid, 0x1000, "a"));
    }
    assert_eq!((mappings.len(), mappings.refused), (PROCESSES_MAX, 10));
}
