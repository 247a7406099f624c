//! Stripped programs of Go: procedures and lines by the table of Go's runtime, against what the
//! same programs have when they are not stripped.

use std::path::PathBuf;
use std::process::Command;

use image::{
    Binary, DebugInfo, Finding, Frame, KeptFile, ProcedureSource, STRETCHES_MAX, Vaddr, procedures,
};
use tempfile::TempDir;

use crate::compile::read;
use crate::fuzz::Random;
use crate::names::is_sorted_and_disjoint;

/// Main is not flat: the compiler inlines `twice` and `time.Since`.
const PROGRAM: &str = r#"package main

import ("fmt"; "time")

func twice(n int) int { return 2*n + 1 }

//go:noinline
func goHot(n int) int {
	s := 1
	for i := 0; i < n; i++ {
		s = s*31 + twice(i)
		s ^= s >> 3
	}
	return s
}

func main() {
	start := time.Now()
	fmt.Println(goHot(1000), time.Since(start))
}
"#;
const C: &str =
    "package main\n// static int of_c(int n) { return n; }\nimport \"C\"\nvar c = C.of_c(1)\n";

/// Builds the program and returns its path.
fn built(
    shop: &TempDir,
    (options, arch): (&[&str], &str),
    with_c: bool,
    is_stripped: bool,
) -> PathBuf {
    let path = |name: &str| shop.path().join(name);
    std::fs::write(path("hot.go"), PROGRAM).unwrap();
    std::fs::write(path("c.go"), C).unwrap();
    let out = path(if is_stripped { "stripped" } else { "whole" });
    let mut command = Command::new("go");
    command.arg("build").args(options).args(is_stripped.then_some("-ldflags=-s -w")).arg("-o");
    command.arg(&out).arg(path("hot.go")).args(with_c.then(|| path("c.go")));
    // Tests may run without a home.
    command.env("GOCACHE", path("cache")).env("GO111MODULE", "off");
    if !arch.is_empty() {
        command.env("GOARCH", arch);
    }
    let status = command.env("CGO_ENABLED", if with_c { "1" } else { "0" }).status().unwrap();
    assert!(status.success(), "go build: is golang-go installed?");
    out
}

fn info(binary: &Binary) -> DebugInfo {
    DebugInfo::of(binary, &[], &mut Vec::new()).unwrap()
}

/// File and line of the innermost call.
fn position(frames: &[Frame]) -> Option<(String, u32)> {
    let frame = frames.first()?;
    frame.file.clone().zip(frame.line)
}

/// Samples of such programs were `[unknown]`.
#[test]
fn a_stripped_program_of_go_has_procedures_and_lines() {
    let shop = TempDir::new().unwrap();
    let pie = &["-buildmode=pie"];
    for (options, arch, with_c) in [
        (&[][..], "", false),
        (pie, "", false),
        (&[], "", true),
        (pie, "", true),
        (&[], "arm64", false),
    ] {
        let whole = built(&shop, (options, arch), with_c, false);
        let stripped = built(&shop, (options, arch), with_c, true);
        let (truth, _) = procedures(&whole, None, &[]).unwrap();
        let (found, findings) = procedures(&stripped, None, &[]).unwrap();
        let is_complaint = |finding: &Finding| {
            matches!(finding, Finding::Stripped | Finding::SymbolsLeftOut { .. })
        };
        assert!(!findings.iter().any(is_complaint), "{findings:?}");
        assert_eq!(found.sources()[0].0, ProcedureSource::GoTable, "{options:?} {with_c}");
        assert!(found.sources()[0].1 > 1000, "{:?}", found.sources());
        let hot = found.iter().find(|procedure| procedure.name() == "main.goHot").unwrap();
        let same = truth.iter().find(|procedure| procedure.name() == "main.goHot").unwrap();
        assert_eq!(hot.start, same.start);
        // The table tells where the next procedure begins, which is aligned.
        assert!((same.end.0..same.end.0 + 32).contains(&hot.end.0), "{hot:?} {same:?}");
        let names = truth.iter().filter(|procedure| {
            found.find(procedure.start).map(image::Procedure::name) == Some(procedure.name())
        });
        let share = names.count() as f64 / truth.len() as f64;
        assert!(share > 0.9, "{options:?} {with_c}: {share}");

        let (binary, whole) =
            (Binary::open(&stripped, None).unwrap(), Binary::open(&whole, None).unwrap());
        let kept = Binary::of_kept(KeptFile::of(&read(&stripped)).unwrap(), None, None).unwrap();
        assert_eq!(kept.procedures(&[]).unwrap().0, found, "what is kept suffices");
        let (of_table, of_kept, of_dwarf) = (info(&binary), info(&kept), info(&whole));
        let (table, dwarf) = (of_table.lines().unwrap(), of_dwarf.lines().unwrap());
        let (mut all, mut equal, mut inlined, mut same_calls) = (0, 0, 0, 0);
        let calls = |frames: &[Frame]| -> Vec<(Option<String>, Option<u32>)> {
            frames.iter().map(|frame| (frame.function.clone(), frame.line)).collect()
        };
        for procedure in &found {
            let begin = binary.layout().file_offset_to_vaddr(procedure.start).unwrap().0;
            for address in (begin..begin + procedure.size_bytes()).step_by(8).map(Vaddr) {
                let (frames, truth) = (table.frames(address), dwarf.frames(address));
                all += usize::from(!frames.is_empty());
                equal += usize::from(!frames.is_empty() && position(&frames) == position(&truth));
                if frames.len() > 1 {
                    inlined += 1;
                    same_calls += usize::from(calls(&frames) == calls(&truth));
                }
            }
        }
        let same = same_calls as f64 / inlined as f64;
        assert!(inlined > 5000 && same > 0.9, "{options:?} {with_c}: {same} of {inlined}");
        let share = equal as f64 / all as f64;
        assert!(all > 50_000 && share > 0.95, "{options:?} {with_c}: {share} of {all}");
        let is_hot = |path: &str| path.ends_with("/hot.go");
        let loops = table.addresses(is_hot, 11);
        assert!(!loops.is_empty() && table.cut().is_none());
        for address in &loops {
            let frames = table.frames(*address);
            assert_eq!(frames[0].line, Some(11));
            assert_eq!(frames[0].function.as_deref(), Some("main.goHot"));
            assert_eq!(of_kept.lines().unwrap().frames(*address), frames);
            assert_eq!(position(&frames), position(&dwarf.frames(*address)));
        }
    }
}

/// Whatever a table says, nothing panics, and each question is answered in bounded time.
#[test]
fn tables_that_no_linker_wrote() {
    const CASES: u64 = 60;
    let shop = TempDir::new().unwrap();
    let good = read(&built(&shop, (&[], ""), false, true));
    let table = good.windows(8).position(|bytes| bytes == [0xf0, 0xff, 0xff, 0xff, 0, 0, 1, 8]);
    let table = table.unwrap();
    let rows = u64::from_le_bytes(good[table + 64..table + 72].try_into().unwrap()) as usize;
    // What the runtime knows of the table (Go 1.19): its address and that of its names, and behind
    // these that of inlined calls. Addresses are offsets in the file from 0x40_0000 on.
    let word = |at: usize| u64::from_le_bytes(good[at..at + 8].try_into().unwrap());
    let head = [0x40_0000 + table as u64, 0x40_0000 + table as u64 + word(table + 32)];
    let head = head.map(u64::to_le_bytes).concat();
    let module = good.windows(16).position(|bytes| bytes == head).unwrap();
    let trees = (word(module + 304) - 0x40_0000) as usize;
    let path = shop.path().join("hostile");
    for case in 0..CASES {
        let mut random = Random::of(case);
        let mut bytes = good.clone();
        for _ in 0..=random.below(4) {
            let (begin, len) = match random.below(5) {
                0 => (table + 8, 64),
                1 => (table + rows, 64 << 10),
                2 => (module + 300, 24),
                3 => (trees, 64 << 10),
                _ => (table + random.below(rows), 4096),
            };
            let end = bytes.len().min(begin + len);
            random.change(&mut bytes[begin..end]);
        }
        if case % 8 == 7 {
            bytes.truncate(table + random.below(bytes.len() - table));
        }
        std::fs::write(&path, &bytes).unwrap();
        let Ok(binary) = Binary::open(&path, None) else { continue };
        let Ok((procedures, _)) = binary.procedures(&[]) else { continue };
        assert!(is_sorted_and_disjoint(&procedures));
        let Some(info) = DebugInfo::of(&binary, &[], &mut Vec::new()) else { continue };
        let lines = info.lines().unwrap();
        for _ in 0..500 {
            assert!(lines.frames(Vaddr(0x40_0000 + random.below(1 << 20) as u64)).len() <= 64);
        }
        assert!(lines.addresses(|_| true, 11).len() <= STRETCHES_MAX);
    }
}
