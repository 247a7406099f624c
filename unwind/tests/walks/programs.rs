//! Unmodified programs, executed instruction by instruction, with a walk at each: in prologues,
//! epilogues and PLTs, in the loader and in the C library's assembly.

use std::env;
use std::fmt::Write as _;

use unwind::End;

use crate::shadow::Stepped;

/// Instructions executed without a walk between two stretches with one at each.
const PAUSE: u64 = 5_000;
/// Walks of a stretch.
const STRETCH: u64 = 500;

/// Executes a program's first `steps` instructions (times `UNWIND_STEPS_FACTOR`), and walks in
/// stretches of them. Returns the share of whole walks. No wrong frame is allowed.
fn stepped(words: &[&str], environment: &[(&str, &str)], steps: u64) -> f64 {
    let factor = env::var("UNWIND_STEPS_FACTOR").map_or(1, |text| text.parse().unwrap());
    let mut program = Stepped::start(words, environment);
    let mut wrong = Vec::new();
    for step in 0..steps * factor {
        if step % PAUSE < STRETCH
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
        "{}: {walks} walks, {} frames, {:?}",
        words[0], program.frames_compared, program.ends
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
    let whole = stepped(&["/usr/bin/python3", "-S", "-c", program], &[], 300_000);
    assert!(whole > 0.99, "{whole}");
}

#[test]
fn perl() {
    let program = "print join ',', sort { $a <=> $b } map { s/1/x/r } 1 .. 999";
    let whole = stepped(&["/usr/bin/perl", "-e", program], &[], 150_000);
    assert!(whole > 0.99, "{whole}");
}

#[test]
fn bash_with_signals() {
    let program = "trap 'x=1' USR1; for i in 1 2 3 4 5 6 7 8 9; do kill -USR1 $$; /bin/true; done";
    let whole = stepped(&["/bin/bash", "-c", program], &[], 300_000);
    assert!(whole > 0.99, "{whole}");
}

#[test]
fn sqlite() {
    let program = "create table t(x); insert into t values (1), (2); select sum(x) from t;";
    let whole = stepped(&["/usr/bin/sqlite3", ":memory:", program], &[], 250_000);
    assert!(whole > 0.99, "{whole}");
}

#[test]
fn git() {
    let whole = stepped(&["/usr/bin/git", "--version"], &[], 120_000);
    assert!(whole > 0.99, "{whole}");
}

#[test]
fn compiler() {
    let whole = stepped(&["/usr/bin/gcc", "-E", "/dev/null"], &[], 120_000);
    assert!(whole > 0.99, "{whole}");
}
