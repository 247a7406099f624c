//! Programs of the distribution give the same output under the engine as without it, and what
//! flows into each block flows out.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]
#![allow(clippy::unwrap_used, reason = "tests panic to fail")]

mod harness;

use harness::Case;
use std::process::{Command, Stdio};

/// Compares a program's output, with `threads` of which may run when it ends.
fn same(program: &str, arguments: &[&str], threads: usize) {
    let case = Case::of(program);
    let data: Vec<u8> = std::fs::read("/usr/bin/perl").unwrap().into_iter().take(600_000).collect();
    std::fs::write(case.folder.path().join("data"), data).unwrap();
    let mut plain = Command::new(program);
    plain.args(arguments).current_dir(case.folder.path()).stdin(Stdio::null());
    let expected = plain.output().unwrap();
    let found = case.command(arguments).stdin(Stdio::null()).output().unwrap();
    let errors = String::from_utf8_lossy(&found.stderr);
    assert_eq!(found.status, expected.status, "{errors}");
    assert_eq!(found.stdout, expected.stdout, "{errors}");
    assert_eq!(errors, String::from_utf8_lossy(&expected.stderr));
    case.check_flow(threads);
}

#[test]
fn gzip() {
    same("/usr/bin/gzip", &["-9", "-c", "data"], 1);
}

#[test]
fn bzip2() {
    same("/usr/bin/bzip2", &["-9", "-c", "data"], 1);
}

#[test]
fn xz_with_threads() {
    same("/usr/bin/xz", &["-T2", "--block-size=200KiB", "-c", "data"], 3);
}

#[test]
fn shell_with_pipes_and_traps() {
    let script = "trap 'echo trapped' USR1; kill -USR1 $$; ls / | sort -r | tr a-z A-Z | cat; \
                  echo $(seq 1 50 | wc -l); (exit 3); echo $?; printf '%s\\n' c b a | sort";
    same("/bin/sh", &["-c", script], 1);
    same("/bin/bash", &["-c", script], 1);
}

#[test]
fn sqlite3() {
    let query = "with recursive c(x) as (select 1 union all select x+1 from c where x<5000) \
                 select count(*), sum(a.x*b.x) from c a join c b on a.x=b.x*7%5000;";
    same("/usr/bin/sqlite3", &[":memory:", query], 1);
}

#[test]
fn python3() {
    let program = "import threading, json, subprocess, zlib, hashlib\n\
                   threads = [threading.Thread(target=lambda: sum(range(20000))) for _ in '1234']\n\
                   [t.start() for t in threads]; [t.join() for t in threads]\n\
                   data = open('data', 'rb').read()\n\
                   print(hashlib.sha256(zlib.compress(data)).hexdigest())\n\
                   print(subprocess.check_output(['echo', 'child']), json.dumps([1.5, None]))";
    same("/usr/bin/python3", &["-c", program], 1);
}

#[test]
fn perl() {
    let program = "my %h; $h{$_ % 97} .= chr(65 + $_ % 26) for 1..20000; \
                   print map { \"$_ $h{$_}\\n\" } sort keys %h; print `echo child`;";
    same("/usr/bin/perl", &["-e", program], 1);
}

#[test]
fn gcc() {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/signals.c");
    same("/usr/bin/gcc", &["-O2", "-S", "-o", "-", source], 1);
}
