//! Counts of a real library, instruction by instruction, beside those of valgrind's callgrind.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests panic to fail")]

mod harness;

use harness::Case;
use std::collections::BTreeMap;
use std::process::Command;

/// Settings that make the C library choose the same code under the engine as under valgrind, which
/// hides features of processors.
const TUNABLES: &str =
    "glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX512BW,-AVX512DQ,-AVX512CD,-ERMS,-FSRM,-RTM";
const QUERY: &str = "with recursive c(x) as (select 1 union all select x+1 from c where x<300) \
                     select count(*), sum(a.x*b.x) from c a join c b on a.x=b.x*7%300;";

/// Executions by address of an object, from callgrind's file without compression.
fn callgrinds(text: &str, object: &str) -> BTreeMap<u64, u64> {
    let mut sums = BTreeMap::new();
    let (mut own, mut is_call) = (false, false);
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("ob=") {
            own = name == object;
        } else if line.starts_with("calls=") {
            // The next line has the costs of the called procedure.
            is_call = true;
        } else if let Some(rest) = line.strip_prefix("0x") {
            let mut words = rest.split_whitespace();
            let address = u64::from_str_radix(words.next().unwrap(), 16).unwrap();
            if own && !is_call {
                *sums.entry(address).or_default() += words.last().unwrap().parse::<u64>().unwrap();
            }
            is_call = false;
        }
    }
    sums
}

#[test]
fn a_library_is_counted_as_callgrind_counts_it() {
    let case = Case::of("/usr/bin/sqlite3");
    let arguments = [":memory:", QUERY];
    let output = case.command(&arguments).env("GLIBC_TUNABLES", TUNABLES).output().unwrap();
    assert!(output.status.success());
    let [counted] = &case.counted()[..] else { unreachable!("one process") };
    let files = counted.files();
    let library = files.iter().find(|file| {
        std::str::from_utf8(&file.path).is_ok_and(|path| path.contains("/libsqlite3.so"))
    });
    let library = library.unwrap();
    let path = std::str::from_utf8(&library.path).unwrap();
    let out = case.folder.path().join("callgrind");
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=callgrind", "--dump-instr=yes", "--dump-line=no", "--skip-plt=no"]);
    valgrind.args(["--compress-strings=no", "--compress-pos=no"]);
    valgrind.arg(format!("--callgrind-out-file={}", out.display())).arg(&case.program);
    let other = valgrind.args(arguments).env("GLIBC_TUNABLES", TUNABLES).output().unwrap();
    assert_eq!(other.stdout, output.stdout, "{}", String::from_utf8_lossy(&other.stderr));
    let expected = callgrinds(&std::fs::read_to_string(&out).unwrap(), path);
    assert!(expected.len() > 10_000, "{} instructions", expected.len());
    let code = std::fs::read(path).unwrap();
    let mut repeated = 0;
    for (address, count) in &expected {
        // Addresses of Debian's libraries are offsets. Callgrind counts each round of `rep`.
        let is_repeated = matches!(code[*address as usize], 0xf2 | 0xf3)
            && matches!(code[*address as usize + 1], 0x48 | 0xa4..=0xaf);
        let found = library.instructions.get(address).map_or(0, |(_, count)| *count);
        if is_repeated && found != *count {
            repeated += 1;
        } else {
            assert_eq!(found, *count, "executions at {address:#x}");
        }
    }
    assert!(repeated < 20, "{repeated} instructions differ by their rounds");
}
