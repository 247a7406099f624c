//! Random programs: the engine's counts at every instruction are those of single steps, and the
//! programs compute the same. `BLOCKCOUNT_PROGRAMS=1000 BLOCKCOUNT_SEED=1 cargo nextest run -p
//! blockcount random` for more; with `--run-ignored all` 10,000.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests panic to fail")]

mod harness;

use harness::{Case, engine};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

/// A generator of numbers (xorshift), seeded so that a failure repeats.
struct Random(u64);

const REGISTERS: [&str; 12] =
    ["rax", "rbx", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "r13", "rbp"];
const CONDITIONS: [&str; 16] =
    ["o", "no", "b", "ae", "e", "ne", "be", "a", "s", "ns", "p", "np", "l", "ge", "le", "g"];

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % limit
    }

    fn of<'a>(&mut self, choices: &[&'a str]) -> &'a str {
        choices[self.below(choices.len())]
    }

    fn register(&mut self) -> &'static str {
        self.of(&REGISTERS)
    }

    /// An instruction without effect on the stack or the order of execution. r12 holds the
    /// address of 4 KiB.
    fn instruction(&mut self) -> String {
        let (a, b) = (self.register(), self.register());
        let offset = 8 * self.below(200);
        let other = self.below(8);
        let small = self.below(256) as i64 - 128;
        let condition = self.of(&CONDITIONS);
        let choices = if is_x86_feature_detected!("avx2") { 28 } else { 26 };
        match self.below(choices) {
            0 => format!("{} {a}, {b}", self.of(&["add", "sub", "xor", "and", "or", "adc", "sbb"])),
            1 => format!("{} {a}, {small}", self.of(&["add", "sub", "cmp", "xor", "adc", "sbb"])),
            2 => format!("mov {a}, {b}"),
            3 => format!("lea {a}, [{b}+{a}*2+{small}]"),
            4 => format!("mov {a}, [r12+{offset}]"),
            5 => format!("mov [r12+{offset}], {a}"),
            6 => format!("{} {a}", self.of(&["inc", "dec", "neg", "not"])),
            7 => format!("{} {a}, cl", self.of(&["shl", "shr", "sar", "rol", "ror", "rcl", "rcr"])),
            8 => {
                let shift = self.of(&["shl", "shr", "sar", "rol", "rcr"]);
                format!("{shift} {a}, {}", self.below(64))
            }
            9 => format!("set{condition} byte ptr [r12+{offset}]"),
            10 => format!("cmov{condition} {a}, {b}"),
            11 => format!("{} {a}, {b}", self.of(&["test", "cmp", "imul", "xchg", "bt", "bsf"])),
            12 => format!("pushfq\npop {a}\nand {a}, 0x8d5"),
            13 => "lahf".to_owned(),
            14 => format!("and rcx, 31\nmov rsi, r12\nlea rdi, [r12+{offset}]\nrep movsb"),
            15 => "mov rdi, r12\nmov rsi, r12\nmov ecx, 9\nrepe cmpsb".to_owned(),
            16 => format!("add qword ptr data[rip+{offset}], {small}"),
            17 => format!("mov {a}, data[rip+{offset}]"),
            18 => format!("movq xmm{0}, {a}\npaddq xmm{0}, xmm{1}", small & 7, other),
            19 => format!("movq {a}, xmm{}", small & 7),
            20 => format!("push {a}\npop {b}"),
            21 => self.of(&["clc", "stc", "cmc", "cld", "sahf", "cqo", "cdq"]).to_owned(),
            22 => format!("lock xadd [r12+{offset}], {a}"),
            23 => format!("bswap {a}"),
            24 => format!("mov {}, {small}", self.of(&["al", "ch", "dx", "esi", "r8d", "r9b"])),
            25 => format!("movups xmm{}, [r12+{offset}]", small & 7),
            26 => format!("vpaddq ymm{0}, ymm{0}, ymm{1}", small & 7, other),
            // The upper half, which the engine's own code must leave alone.
            _ => format!("vextracti128 xmm{}, ymm{}, 1", small & 7, other),
        }
    }

    /// A function of blocks that lead forward, or back while a counter lasts; it calls functions
    /// with higher numbers.
    fn function(&mut self, number: usize, functions: usize, text: &mut String) {
        let blocks = 3 + self.below(8);
        writeln!(text, ".balign {}\nf{number}:", 1 << self.below(5)).unwrap();
        for block in 0..blocks {
            writeln!(text, "f{number}_{block}:").unwrap();
            for _ in 0..self.below(7) {
                writeln!(text, "{}", self.instruction()).unwrap();
            }
            let last = block + 1 == blocks;
            let later = |random: &mut Self| block + 1 + random.below(blocks - block - 1);
            match self.below(9) {
                _ if last => {}
                0 | 1 => {
                    let to = later(self);
                    writeln!(text, "j{} f{number}_{to}", self.of(&CONDITIONS)).unwrap();
                }
                2 => writeln!(text, "jmp f{number}_{}", later(self)).unwrap(),
                3 => {
                    let to = self.below(block + 1);
                    writeln!(text, "dec dword ptr fuel[rip+{}]", 4 * number).unwrap();
                    writeln!(text, "jg f{number}_{to}").unwrap();
                }
                4 if number + 1 < functions => {
                    let to = number + 1 + self.below(functions - number - 1);
                    writeln!(text, "call f{to}").unwrap();
                }
                5 if number + 1 < functions => {
                    let to = number + 1 + self.below(functions - number - 1);
                    let register = self.register();
                    writeln!(text, "lea {register}, f{to}[rip]\ncall {register}").unwrap();
                }
                6 => {
                    let (one, other) = (later(self), later(self));
                    let (a, b) = (self.register(), "r14");
                    writeln!(
                        text,
                        "lea {b}, f{number}_{one}[rip]\nlea {a}, f{number}_{other}[rip]"
                    )
                    .unwrap();
                    writeln!(text, "cmov{} {b}, {a}\njmp {b}", self.of(&CONDITIONS)).unwrap();
                }
                7 => {
                    let to = later(self);
                    let which = self.of(&["loop", "loope", "loopne", "jrcxz"]);
                    // Short displacements only: over a jump.
                    writeln!(text, "{which} 1f\njmp 2f\n1: jmp f{number}_{to}\n2:").unwrap();
                }
                _ => {}
            }
        }
        writeln!(text, "ret").unwrap();
    }

    /// A program that runs `rounds` times and writes its result.
    fn program(&mut self, rounds: usize, timer: bool) -> String {
        let functions = 2 + self.below(5);
        let mut text = String::from(".intel_syntax noprefix\n.globl _start\n.text\n_start:\n");
        text += "lea r12, memory[rip]\n";
        text += TIMER;
        writeln!(text, "round:").unwrap();
        for register in REGISTERS {
            writeln!(text, "mov {register}, {}", self.below(1 << 40)).unwrap();
        }
        writeln!(text, "call f0\ndec qword ptr rounds[rip]\njnz round").unwrap();
        for (place, register) in REGISTERS.iter().enumerate() {
            writeln!(text, "mov [r12+{}], {register}", 8 * place).unwrap();
        }
        text += "mov eax, 1\nmov edi, 1\nmov rsi, r12\nmov edx, 2048\nsyscall\n";
        text += "mov eax, 60\nxor edi, edi\nsyscall\n";
        for number in 0..functions {
            self.function(number, functions, &mut text);
        }
        text += "the_end: ud2\n";
        text += HANDLER;
        let period = if timer { 500 } else { 0 };
        writeln!(text, "interval: .quad 0, {period}, 0, {period}").unwrap();
        writeln!(text, ".data\n.balign 8\nrounds: .quad {rounds}").unwrap();
        text += "fuel: .rept 8\n.long 9\n.endr\n.balign 8\ndata: .rept 256\n.quad 0x123456789\n";
        text += ".endr\n.bss\n.balign 64\nmemory: .zero 4096\n";
        text
    }
}

/// Sets a timer and its handler up: rt_sigaction, setitimer.
const TIMER: &str = "mov eax, 13\nmov edi, 14\nlea rsi, action[rip]\nxor edx, edx\n\
    mov r10d, 8\nsyscall\nmov eax, 38\nxor edi, edi\nlea rsi, interval[rip]\nxor edx, edx\n\
    syscall\n";
/// The handler, which uses what it can.
const HANDLER: &str = "handler: inc qword ptr handled[rip]\nmov rax, -1\nmov rcx, 7\n\
    mov r8, rax\ncmp rax, rcx\nret\nrestorer: mov eax, 15\nsyscall\n.data\n.balign 8\n\
    action: .quad handler, 0x14000000, restorer, 0\nhandled: .quad 0\n";

struct Built {
    case: Case,
    first: u64,
    last: u64,
}

fn build(text: &str) -> Built {
    let mut case = Case::of("");
    let source = case.folder.path().join("program.s");
    std::fs::write(&source, text).unwrap();
    let (object, program) =
        (case.folder.path().join("program.o"), case.folder.path().join("program"));
    let run = |command: &mut Command| {
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    run(Command::new("as").arg("-o").arg(&object).arg(&source));
    run(Command::new("ld").arg("-o").arg(&program).arg(&object));
    case.program = program;
    let symbols = case.symbols();
    Built { first: symbols["_start"], last: symbols["the_end"], case }
}

/// Executions by address, as single steps count them, and the program's output.
fn stepped(built: &Built, step: &Path) -> (BTreeMap<u64, u64>, Vec<u8>) {
    let mut command = Command::new(step);
    command.arg(&built.case.program).args([built.first, built.last].map(|at| format!("{at:x}")));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", output.status);
    let text = String::from_utf8(output.stdout).unwrap();
    let line = |line: &str| {
        let (at, count) = line.split_once(' ').unwrap();
        (u64::from_str_radix(at, 16).unwrap(), count.parse().unwrap())
    };
    (text.lines().map(line).collect(), output.stderr)
}

/// Executions by address, as the engine counts them, and the program's output; `jumps`: with
/// indirect jumps by target.
fn counted(built: &Built, jumps: bool) -> (BTreeMap<u64, u64>, Vec<u8>) {
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let mut command = Command::new(engine());
    let edges = if jumps { "--jumps" } else { "--edges" };
    command.arg("--area").arg(folder.path()).arg(edges).arg("--").arg(&built.case.program);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{:?}", output);
    let area = std::fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
    let counted = blockcount::area::reader::Counted::open(&area).unwrap();
    harness::check_flow(&counted, 1);
    // A fixed address: offset 0x1000 of the file is 0x401000.
    let executions = harness::executions(std::slice::from_ref(&counted), &built.case.program);
    let executions = executions.into_iter().map(|(offset, count)| (offset + 0x40_0000, count));
    let own = executions.filter(|(at, count)| (built.first..built.last).contains(at) && *count > 0);
    (own.collect(), output.stdout)
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

fn compare(
    seed: u64,
    (expected, output): &(BTreeMap<u64, u64>, Vec<u8>),
    found: &(BTreeMap<u64, u64>, Vec<u8>),
) {
    for (at, count) in expected {
        let other = found.0.get(at).copied().unwrap_or(0);
        assert_eq!(other, *count, "seed {seed}: executions at {at:#x}");
    }
    assert_eq!(found.0.len(), expected.len(), "seed {seed}: addresses");
    assert!(*output == found.1, "seed {seed}: another output");
}

#[test]
fn random_programs_are_counted_as_single_steps_are() {
    let step = Case::compile("step.c", &[]);
    let first = setting("BLOCKCOUNT_SEED", 1);
    for seed in first..first + setting("BLOCKCOUNT_PROGRAMS", 150) {
        check(seed, &step.program);
    }
}

/// Takes a quarter of an hour on two CPUs.
#[test]
#[ignore = "takes long"]
fn ten_thousand_random_programs_are_counted_as_single_steps_are() {
    let step = Case::compile("step.c", &[]);
    let next = std::sync::atomic::AtomicU64::new(1000);
    let work = || {
        loop {
            let seed = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            if seed >= 11_000 {
                break;
            }
            check(seed, &step.program);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
}

fn check(seed: u64, step: &Path) {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let rounds = 1 + random.below(3);
    let built = build(&random.program(rounds, false));
    compare(seed, &stepped(&built, step), &counted(&built, seed.is_multiple_of(2)));
}

#[test]
fn signals_in_random_programs_change_no_count() {
    let first = setting("BLOCKCOUNT_SEED", 1);
    for seed in first..first + setting("BLOCKCOUNT_PROGRAMS", 20) / 5 + 4 {
        let text = |timer| {
            let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
            random.program(200_000, timer)
        };
        let (quiet, busy) = (build(&text(false)), build(&text(true)));
        let expected = counted(&quiet, false);
        compare(seed, &expected, &counted(&busy, seed.is_multiple_of(2)));
    }
}
