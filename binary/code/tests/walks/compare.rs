//! The comparisons: a short one, and long ones for `cargo xtask bench walks`.

use std::sync::Mutex;

use crate::programs::Program;
use crate::truth::Tally;
use crate::{programs, truth};

/// Runs in a row that end before they could be looked at: on a busy machine one may.
const FRUITLESS_MAX: u32 = 20;

/// Repeats `program` until `states` states were compared with it.
fn compare(program: &Program, states: u64) -> Tally {
    let mut tally = Tally::default();
    let mut random = fastrand::Rng::with_seed(0x5eed);
    let mut fruitless = 0;
    while tally.states < states {
        let before = tally.states;
        truth::follow(program, states, &mut random, &mut tally);
        fruitless = if tally.states > before { 0 } else { fruitless + 1 };
        assert!(fruitless < FRUITLESS_MAX, "{}: ends before it can be looked at", program.name);
    }
    tally
}

#[test]
fn walks_go_where_programs_go() {
    let folder = tempfile::tempdir().unwrap();
    for program in programs::that_are_everywhere(folder.path()) {
        let tally = compare(&program, 1500);
        println!("{}: {tally}", program.name);
        tally.must_be_right(&program.name);
        assert!(
            tally.yielding * 5 > tally.samples,
            "{}: hardly any state yields a branch: {tally}",
            program.name
        );
    }
}

#[test]
#[ignore = "takes minutes and wants many programs: cargo xtask bench walks"]
fn walks_go_where_many_programs_go() {
    let states: u64 = std::env::var("WALKS_STATES")
        .map_or(100_000, |states| states.parse().expect("WALKS_STATES: a number"));
    let only = std::env::var("WALKS_ONLY").unwrap_or_default();
    let folder = tempfile::tempdir().unwrap();
    let mut programs = programs::that_are_everywhere(folder.path());
    programs.extend(programs::of_a_development_machine(folder.path()));
    programs.retain(|program| program.name.contains(&only));
    println!("{}", Tally::HEADER);
    let each = states / programs.len() as u64 + 1;
    let (waiting, all) = (Mutex::new(programs), Mutex::new(Tally::default()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(program) = { waiting.lock().unwrap().pop() } {
                    let tally = compare(&program, each);
                    println!("{:<10} {}", program.name, tally.row());
                    all.lock().unwrap().add(&tally);
                }
            });
        }
    });
    let all = all.into_inner().unwrap();
    println!("{:<10} {}", "all", all.row());
    println!("{}", all.windows());
    all.must_be_right("all");
}
