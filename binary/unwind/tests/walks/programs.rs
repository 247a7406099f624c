//! Unmodified programs, executed instruction by instruction, with a walk at each: in prologues,
//! epilogues and PLTs, in the loader and in the C library's assembly.

use std::env;
use std::fmt::Write as _;
use std::process::Command;

use tempfile::TempDir;
use unwind::End;

use crate::shadow::Stepped;

/// In each group of this many instructions of a large program, stacks are walked at the first
/// [`STRETCH`].
const PERIOD: u64 = 2000;
const STRETCH: u64 = 500;

/// Compiles `NAME.c` with the options.
fn compiled(directory: &TempDir, name: &str, options: &[&str]) -> String {
    let source = format!("{}/tests/walks/programs/{name}.c", env!("CARGO_MANIFEST_DIR"));
    let path = directory.path().join(name).to_str().unwrap().to_owned();
    let status = Command::new("cc").args(options).args([&source, "-o", &path]).status().unwrap();
    assert!(status.success());
    path
}

/// Executes a program's first `steps` instructions (times `UNWIND_STEPS_FACTOR`), and walks at the
/// first [`STRETCH`] of each `period`. Returns the share of whole walks. No wrong frame is allowed.
pub fn stepped(words: &[&str], period: u64, steps: u64) -> f64 {
    let factor = env::var("UNWIND_STEPS_FACTOR").map_or(1, |text| text.parse().unwrap());
    let mut program = Stepped::start(words);
    program.is_go = words[0].ends_with(".go");
    let mut wrong = Vec::new();
    for step in 0..steps * factor {
        if step % period < STRETCH
            && let Err(message) = program.compare()
        {
            wrong.push(message);
        }
        if !program.step() || wrong.len() > 3 {
            break;
        }
    }
    let walks: u64 = program.ends.values().sum();
    let mut text = format!(
        "{}: {walks} walks, {} frames, {} at most, {:?}",
        words[0], program.frames_compared, program.deepest, program.ends
    );
    for ((end, at), count) in &program.stops {
        write!(text, "\n  {count} {end:?} {at}").unwrap();
    }
    println!("{text}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    assert!(walks > STRETCH, "{text}");
    program.ends.get(&End::Whole).copied().unwrap_or(0) as f64 / walks as f64
}

#[test]
fn python() {
    let program = "import re; print(sorted(re.findall('[a-z]+', 'ab cd') * 9, key=lambda x: x))";
    let whole = stepped(&["/usr/bin/python3", "-S", "-c", program], PERIOD, 300_000);
    assert!(whole > 0.99, "{whole}");
}

#[test]
fn perl() {
    let program = "print join ',', sort { $a <=> $b } map { s/1/x/r } 1 .. 999";
    let whole = stepped(&["/usr/bin/perl", "-e", program], PERIOD, 150_000);
    assert!(whole > 0.99, "{whole}");
}

#[test]
fn bash_with_signals() {
    let program = "trap 'x=1' USR1; for i in 1 2 3 4 5 6 7 8 9; do kill -USR1 $$; /bin/true; done";
    let whole = stepped(&["/bin/bash", "-c", program], PERIOD, 300_000);
    assert!(whole > 0.99, "{whole}");
}

#[test]
fn sqlite() {
    let program = "create table t(x); insert into t values (1), (2); select sum(x) from t;";
    let whole = stepped(&["/usr/bin/sqlite3", ":memory:", program], PERIOD, 250_000);
    assert!(whole > 0.99, "{whole}");
}

#[test]
fn git() {
    let whole = stepped(&["/usr/bin/git", "--version"], PERIOD, 120_000);
    assert!(whole > 0.99, "{whole}");
}

#[test]
fn compiler() {
    let whole = stepped(&["/usr/bin/gcc", "-E", "/dev/null"], PERIOD, 120_000);
    assert!(whole > 0.99, "{whole}");
}

/// All instructions, with every kind of frame that the comment in `calls.c` names.
#[test]
fn calls_of_many_kinds() {
    let directory = TempDir::new().unwrap();
    for options in [
        &["-O0", "-static"][..],
        &["-O2", "-fomit-frame-pointer", "-fcf-protection"],
        &["-Os", "-static-pie", "-fno-omit-frame-pointer"],
    ] {
        let program = compiled(&directory, "calls", options);
        let whole = stepped(&[&program], STRETCH, 200_000);
        assert!(whole > 0.99, "{options:?}: {whole}");
    }
}

/// 72 % of the samples of `openssl speed -evp aes-128-gcm` had broken stacks: its assembly keeps
/// the CFA in rax over calls. In handlers of static programs the caller was what is linked before
/// the trampoline. PLTs that ld links without a table (lld and mold always do) had no caller.
#[test]
fn assembly_and_plts_without_a_table() {
    const BARE: &str = "-Wl,--no-ld-generated-unwind-info";
    let directory = TempDir::new().unwrap();
    for options in [
        &["-O2", "-static", BARE][..],
        &["-O2", BARE, "-Wl,-z,lazy"],
        &["-O2", BARE, "-Wl,-z,lazy,-z,ibtplt", "-fcf-protection"],
        &["-O2", BARE, "-Wl,-z,now,-z,ibtplt", "-fcf-protection"],
    ] {
        let program = compiled(&directory, "assembly", options);
        let whole = stepped(&[&program], STRETCH, 150_000);
        assert!(whole > 0.99, "{options:?}: {whole}");
    }
}
