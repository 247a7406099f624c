//! Compares the predicted remaining rounds of loops with their execution.

use std::collections::BTreeSet;
use std::process::Command;

use code::interpret::{CodeView, Rounds, Walker, Window};
use code::isa::x86_64::{State, X86_64};
use fastrand::Rng;
use image::Vaddr;

use crate::process::{Stopped, Traced, general};
use crate::view::Files;

/// Loops as compilers make them: up, down, by other steps than one, signed and not, with pointers,
/// narrow, two that move toward each other; and two that end when some bits of a number are 0.
const LOOPS: &str = r"
#include <stdint.h>
static volatile uint64_t sink;
static uint32_t words[512];
__attribute__((noinline)) void up(int n) { uint64_t s = 0;
    for (int i = -20; i < n; i++) s = s * 3 + i; sink = s; }
__attribute__((noinline)) void down(unsigned n) { uint64_t s = 0; while (n-- > 0) s = s * 5 + 1;
    sink = s; }
__attribute__((noinline)) void signed_down(long n) { uint64_t s = 1;
    for (; n >= 0; n -= 3) s = s * 7 + n; sink = s; }
__attribute__((noinline)) void pointers(uint32_t *p, uint32_t *e) { uint64_t s = 0;
    for (; p != e; p++) s = s * 3 + *p; sink = s; }
__attribute__((noinline)) void narrow(uint8_t n) { uint64_t s = 0;
    for (uint8_t i = 3; i < n; i++) s = s * 9 + i; sink = s; }
__attribute__((noinline)) void meet(uint32_t *a, uint32_t *b) { uint32_t s = 0;
    while (a < b) s = s * 3 + (*a++ ^ *b--); sink = s; }
__attribute__((noinline)) void at_most(uint64_t n) { uint64_t s = 0, i = 1; do { s = s * 3 + i;
    i += 5; } while (i <= n); sink = s; }
__attribute__((noinline)) void ring(unsigned i) { uint64_t s = 0; do { s = s * 3 + i;
    i = (i + 1) & 127; } while (i); sink = s; }
__attribute__((noinline)) void aligned(uintptr_t p) { uint64_t s = 0; do { s = s * 5 + p; p += 1;
    } while (p & 63); sink = s; }
int main(void) {
  for (int round = 0; round < 2000000; round++) {
    int n = 60 + round % 90;
    up(n); down(n); signed_down(2 * n); pointers(words, words + n); narrow(n);
        meet(words, words + 2 * n); at_most(4 * n); ring(n & 31 | 1); aligned(n);
  }
}
";

/// Instructions that one answer is followed for.
const STEPS_MAX: usize = 4000;

/// How often the branch goes where it goes next, until it goes elsewhere.
fn counted(traced: &mut Traced, Rounds { edge, .. }: Rounds) -> Option<u64> {
    let mut rounds = 0;
    for _ in 0..STEPS_MAX {
        let from = traced.registers()?.rip;
        if traced.step() != Stopped::Here {
            return None;
        }
        if from == edge.from.0 {
            if traced.registers()?.rip != edge.to.0 {
                return Some(rounds);
            }
            rounds += 1;
        }
    }
    None
}

#[test]
fn rounds_that_are_told_are_made() {
    let folder = tempfile::tempdir().unwrap();
    let (source, program) = (folder.path().join("loops.c"), folder.path().join("loops"));
    std::fs::write(&source, LOOPS).unwrap();
    let compiled =
        Command::new("cc").args(["-O1", "-o"]).arg(&program).arg(&source).status().unwrap();
    assert!(compiled.success());
    let mut random = Rng::with_seed(5);
    let (mut files, mut walker) = (Files::default(), Walker::<X86_64>::new(1 << 14));
    let (mut tests, mut told) = (BTreeSet::new(), 0);
    let mut traced = Traced::start(Command::new(&program));
    for _ in 0..4000 {
        if tests.len() >= 7 && told >= 60 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_micros(random.u64(0..300)));
        assert_eq!(traced.interrupt(), Stopped::Here);
        let registers = traced.registers().unwrap();
        let mut view = files.view(traced.pid.as_raw());
        if registers.orig_rax.cast_signed() < 0 && view.place(Vaddr(registers.rip)).is_some() {
            let stack = traced.memory(registers.rsp - 128, 640);
            let window = Window { begin: Vaddr(registers.rsp - 128), bytes: &stack, lines: &[] };
            walker.walk(
                Vaddr(registers.rip),
                State::sampled(general(&registers), registers.eflags),
                window,
                &mut view,
            );
            let answers: Vec<Rounds> = walker.rounds().collect();
            if let Some(answer) = answers.first() {
                let rounds = counted(&mut traced, *answer);
                // A signal, or more of them than are followed, says nothing.
                if let Some(rounds) = rounds {
                    assert_eq!(rounds, answer.rounds, "{answer:?} from {:#x}", registers.rip);
                    tests.insert(answer.edge.from);
                    told += 1;
                }
            }
        }
        traced.go_on();
    }
    assert!(tests.len() >= 7 && told >= 60, "{told} answers of {} loops", tests.len());
}
