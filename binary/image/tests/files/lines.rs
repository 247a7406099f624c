//! Source lines and inlined calls, of debug information wherever it may be and however it is
//! packed; and of what no compiler wrote.

use std::path::{Path, PathBuf};

use image::{Binary, DebugInfo, Finding, Frame, LinesCut, Procedures, Vaddr};

use crate::compile::{Workshop, read};

/// Line 1 is the first. `work` has a loop on line 9 in which `step` is inlined, whose work is on
/// line 3.
const SOURCE: &str = "\
static inline __attribute__((always_inline)) unsigned step(unsigned x)
{
    return (x ^ (x << 13)) * 2654435761u;
}
__attribute__((noinline)) unsigned work(unsigned n)
{
    unsigned x = 1;
    for (unsigned i = 0; i < n; i++)
        x = step(x) + i;
    return x;
}
int main(int argc, char **argv) { (void)argv; return (int)work((unsigned)argc * 1000u); }
";

pub fn build(workshop: &Workshop, flags: &[&str]) -> PathBuf {
    std::fs::write(workshop.path("program.c"), SOURCE).unwrap();
    let flags: Vec<&str> = ["-g", "-Wl,--build-id"].iter().chain(flags).copied().collect();
    workshop.cc("program", &flags)
}

/// The frames of all addresses of `work`, and the findings.
fn frames(
    program: &Path,
    start: u64,
    size: u64,
    roots: &[PathBuf],
) -> (Vec<Vec<Frame>>, Vec<Finding>) {
    let binary = Binary::open(program, None).unwrap();
    let mut findings = Vec::new();
    let info = DebugInfo::of(&binary, roots, &mut findings);
    let Some(info) = info else {
        return (Vec::new(), findings);
    };
    let lines = info.lines().unwrap();
    let frames = (start..start + size).map(|address| lines.frames(Vaddr(address))).collect();
    assert_eq!(lines.cut(), None);
    (frames, findings)
}

pub fn work(workshop: &Workshop, program: &str) -> (u64, u64) {
    let symbols = workshop.nm(program);
    symbols
        .iter()
        .find(|(.., name)| name == "work")
        .map(|(address, size, _)| (*address, *size))
        .unwrap()
}

#[track_caller]
fn assert_known(frames: &[Vec<Frame>]) {
    let is = |frame: &Frame, function: &str, line: u32| {
        frame.function.as_deref() == Some(function)
            && frame.line == Some(line)
            && frame
                .file
                .as_deref()
                .is_some_and(|file| file.starts_with('/') && file.ends_with("/program.c"))
    };
    let inlined =
        |frames: &Vec<Frame>| matches!(&frames[..], [a, b] if is(a, "step", 3) && is(b, "work", 9));
    assert!(frames.iter().any(inlined), "{frames:#?}");
    assert!(
        frames.iter().any(|frames| matches!(&frames[..], [only] if is(only, "work", 8))),
        "{frames:#?}"
    );
    assert!(
        frames.iter().all(|frames| frames
            .last()
            .is_some_and(|last| last.function.as_deref() == Some("work")))
    );
}

#[test]
fn lines_and_inlined_calls_however_the_debug_information_is_packed() {
    for flags in [
        &["-gdwarf-5"][..],
        &["-gdwarf-4"],
        &["-gdwarf-4", "-gz=zlib-gnu"],
        &["-gz=zlib"],
        &["-static"],
        &["-gdwarf-5", "-O2", "-ffunction-sections"],
    ] {
        let workshop = Workshop::new();
        let program = build(&workshop, flags);
        let (start, size) = work(&workshop, "program");
        let (frames, findings) = frames(&program, start, size, &[]);
        assert!(findings.is_empty(), "{flags:?}: {findings:?}");
        assert_known(&frames);
    }
}

#[test]
fn units_in_files_of_their_own_and_in_a_package() {
    for flags in [&["-gsplit-dwarf", "-gdwarf-5"][..], &["-gsplit-dwarf", "-gdwarf-4"]] {
        let workshop = Workshop::new();
        let program = build(&workshop, flags);
        let (start, size) = work(&workshop, "program");
        let known = |name: &str| frames(&workshop.path(name), start, size, &[]).0;
        assert_known(&known("program"));

        // A file of another build has another number, and one that is cut has less to tell.
        let unit = std::fs::read_dir(program.parent().unwrap()).unwrap();
        let paths = unit.map(|entry| entry.unwrap().path());
        let unit = paths.into_iter().find(|path| path.extension() == Some("dwo".as_ref())).unwrap();
        let bytes = read(&unit);
        let names = |frames: &[Vec<Frame>]| {
            frames.iter().flatten().filter(|frame| frame.function.is_some()).count()
        };
        let other = Workshop::new();
        build(&other, &[flags, &["-DOTHER=1", "-O2"]].concat());
        let others = std::fs::read_dir(other.path("")).unwrap().map(|entry| entry.unwrap().path());
        let others = others.into_iter().find(|path| path.extension() == Some("dwo".as_ref()));
        std::fs::copy(others.unwrap(), &unit).unwrap();
        assert_eq!(names(&known("program")), 0);
        for len in (0..bytes.len()).step_by(bytes.len() / 16 + 1) {
            std::fs::write(&unit, &bytes[..len]).unwrap();
            known("program");
        }

        // GNU's dwp knows no DWARF 5.
        std::fs::write(&unit, &bytes).unwrap();
        if flags.contains(&"-gdwarf-4") {
            workshop.tool("dwp", &["-e", "program", "-o", "program.dwp"]);
            std::fs::remove_file(&unit).unwrap();
            assert_known(&known("program"));
        }
        // Beside the program, where it was moved with its units.
        std::fs::write(&unit, &bytes).unwrap();
        let moved = workshop.path("moved");
        std::fs::create_dir(&moved).unwrap();
        for from in [&program, &unit] {
            std::fs::rename(from, moved.join(from.file_name().unwrap())).unwrap();
        }
        assert_known(&known("moved/program"));
    }
}

#[test]
fn zstandard_too_and_never_more_than_it_says() {
    let workshop = Workshop::new();
    let program = build(&workshop, &[]);
    let (start, size) = work(&workshop, "program");
    workshop.tool("objcopy", &["--compress-debug-sections=zstd", "program", "packed"]);
    let (known, _) = frames(&workshop.path("packed"), start, size, &[]);
    assert_known(&known);
    drop(program);
}

#[test]
fn a_debug_file_is_found_and_that_of_another_build_is_not_taken() {
    let workshop = Workshop::new();
    build(&workshop, &[]);
    let (start, size) = work(&workshop, "program");
    workshop.tool("objcopy", &["--only-keep-debug", "program", "program.debug"]);
    workshop.tool(
        "objcopy",
        &["--strip-all", "--add-gnu-debuglink=program.debug", "program", "stripped"],
    );
    let (known, _) = frames(&workshop.path("stripped"), start, size, &[]);
    assert_known(&known);
    let id = workshop.build_id("program");
    let root = workshop.path("root");
    std::fs::create_dir_all(root.join(".build-id").join(&id[..2])).unwrap();
    let place = root.join(".build-id").join(&id[..2]).join(format!("{}.debug", &id[2..]));
    std::fs::rename(workshop.path("program.debug"), &place).unwrap();
    assert_eq!(frames(&workshop.path("stripped"), start, size, &[]).0.len(), 0);
    let (known, _) = frames(&workshop.path("stripped"), start, size, std::slice::from_ref(&root));
    assert_known(&known);
    let other = Workshop::new();
    build(&other, &["-DOTHER", "-O0"]);
    other.tool("objcopy", &["--only-keep-debug", "program", place.to_str().unwrap()]);
    let (known, findings) = frames(&workshop.path("stripped"), start, size, &[root]);
    assert!(known.is_empty());
    assert!(matches!(&findings[..], [Finding::DebugFileOfOtherBuild { .. }]), "{findings:?}");
}

#[test]
fn a_stripped_program_has_the_names_that_it_carries_compressed() {
    let workshop = Workshop::new();
    build(&workshop, &[]);
    workshop.tool("objcopy", &["--strip-debug", "--only-keep-debug", "program", "mini"]);
    workshop.tool("objcopy", &["-S", "--remove-section", ".comment", "program", "stripped"]);
    let packed = std::process::Command::new("xz")
        .args(["-k", "mini"])
        .current_dir(workshop.path(""))
        .status();
    assert!(packed.unwrap().success());
    workshop.tool("objcopy", &["--add-section", ".gnu_debugdata=mini.xz", "stripped", "carries"]);
    let has_work =
        |procedures: &Procedures| procedures.iter().any(|procedure| procedure.name() == "work");
    let (procedures, _) = image::procedures(&workshop.path("stripped"), None, &[]).unwrap();
    assert!(!has_work(&procedures));
    let (procedures, findings) = image::procedures(&workshop.path("carries"), None, &[]).unwrap();
    assert!(has_work(&procedures) && findings.is_empty(), "{findings:?}");
}

/// Changes bytes of the debug information, or truncates it: nothing panics or hangs, and the output
/// stays bounded.
#[test]
fn debug_information_that_no_compiler_wrote() {
    let workshop = Workshop::new();
    let program = build(&workshop, &["-gdwarf-5"]);
    let (start, size) = work(&workshop, "program");
    let bytes = read(&program);
    // Debug sections lie between the last mapped byte and the symbols: the middle of the file.
    let begin = bytes
        .windows(7)
        .position(|window| window == b"GNU C17")
        .map_or(bytes.len() / 2, |at| at / 2);
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = |limit: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % limit as u64) as usize
    };
    let hostile = workshop.path("hostile");
    let (mut told, mut refused) = (0, 0);
    for round in 0..400 {
        let mut changed = bytes.clone();
        for _ in 0..=round % 8 {
            let at = begin + next(changed.len() - begin);
            changed[at] = [0, 0xff, changed[at] ^ 1 << next(8), next(256) as u8][next(4)];
        }
        if round % 16 == 0 {
            changed.truncate(begin + next(bytes.len() - begin));
        }
        std::fs::write(&hostile, &changed).unwrap();
        let Ok(binary) = Binary::open(&hostile, None) else {
            continue;
        };
        let Some(info) = DebugInfo::of(&binary, &[], &mut Vec::new()) else {
            refused += 1;
            continue;
        };
        let Ok(lines) = info.lines() else {
            refused += 1;
            continue;
        };
        let all: Vec<_> =
            (start..start + size).map(|address| lines.frames(Vaddr(address))).collect();
        told += usize::from(all.iter().any(|frames| !frames.is_empty()));
    }
    assert!(told > 50, "{told} told, {refused} refused");
}

/// Calls inlined into each other, thousands deep: the library that reads them calls itself as
/// deeply.
#[test]
fn nesting_without_end_is_told_and_not_followed() {
    // Abbreviations: 1 unit, 2 subprogram, 3 inlined_subroutine; all with children, and low_pc and
    // high_pc where they are looked for.
    let mut abbreviations =
        vec![1, 0x11, 1, 0x11, 1, 0x12, 6, 0, 0, 2, 0x2e, 1, 0x11, 1, 0x12, 6, 0, 0];
    abbreviations.extend([3, 0x1d, 1, 0, 0, 0]);
    let mut unit = vec![4, 0, 0, 0, 0, 0, 8];
    for tag in [1_u8, 2] {
        unit.push(tag);
        unit.extend(0x1000_u64.to_le_bytes());
        unit.extend(0x1000_u32.to_le_bytes());
    }
    unit.extend(std::iter::repeat_n(3, 200_000));
    let mut info = (unit.len() as u32).to_le_bytes().to_vec();
    info.extend(unit);
    let workshop = Workshop::new();
    std::fs::write(workshop.path("info"), &info).unwrap();
    std::fs::write(workshop.path("abbrev"), &abbreviations).unwrap();
    std::fs::write(workshop.path("program.c"), SOURCE).unwrap();
    workshop.cc("plain", &["-g0"]);
    let sections = [
        "--add-section",
        ".debug_info=info",
        "--add-section",
        ".debug_abbrev=abbrev",
        "plain",
        "deep",
    ];
    workshop.tool("objcopy", &sections);
    let binary = Binary::open(&workshop.path("deep"), None).unwrap();
    let info = DebugInfo::of(&binary, &[], &mut Vec::new()).unwrap();
    let lines = info.lines().unwrap();
    assert_eq!(lines.frames(Vaddr(0x1800)), []);
    assert_eq!(lines.cut(), Some(LinesCut::TooDeep));
}
