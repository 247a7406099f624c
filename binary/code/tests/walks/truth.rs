//! The comparison of walks with the execution of one program.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::time::Duration;

use code::interpret::{Edge, Line, STEPS_MAX, Step, Stop, Walker, Window};
use code::isa::x86_64::{State, X86_64};
use fastrand::Rng;
use image::Vaddr;
use nix::libc::user_regs_struct;
use nix::time::{ClockId, clock_gettime};

use crate::ahead::Programs;
use crate::process::{Stopped, Traced, general};
use crate::programs::Program;
use crate::view::{Files, View};

/// Bytes below the stack pointer that programs use without moving it (System V ABI for x86-64,
/// 3.2.2).
const RED_ZONE: u64 = 128;
/// Bytes above it that a sample has.
const STACK: usize = 512;
/// Windows that are tried for their yield only: bytes below and above the stack pointer.
const WINDOWS: [(usize, usize); 6] = [(0, 0), (0, 128), (0, 256), (0, 512), (128, 256), (128, 512)];
/// Iterations of a repeated instruction that are stepped through; with more, the rest of that walk
/// is not compared.
const REPEATS_MAX: u32 = 200;
/// Instructions executed at a stop, and which of them are taken as a sample: the first of every
/// `STRIDE`, up to `BEGINS` of them, so that each has a walk's after it.
const TRAIL: usize = BEGINS * STRIDE + STEPS_MAX;
const BEGINS: usize = 24;
const STRIDE: usize = 2;
/// Between two interruptions.
const APART_US: Range<u64> = 0..60;
/// How many differences are told in full.
const TOLD_MAX: usize = 20;

/// Why no more was executed.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum End {
    Enough,
    Signal,
    LongRepetition,
    Ended,
}

/// What was found. Yields and times are those of the states at which the program was interrupted,
/// as a profiler does it.
#[derive(Default)]
pub struct Tally {
    /// All states walked from.
    pub states: u64,
    /// Those at which the program was interrupted.
    pub samples: u64,
    /// Samples that yield a branch that was not certain without registers.
    pub yielding: u64,
    steps: u64,
    edges: u64,
    /// Edges of conditional and indirect branches and returns.
    informative: u64,
    /// Those of branches that the same walk met before.
    again: u64,
    right: u64,
    wrong: u64,
    wrong_states: u64,
    /// Walks that went on where the program was not followed, by reason.
    exceptions: BTreeMap<String, u64>,
    stops: BTreeMap<Stop, u64>,
    /// States that yield, and edges that inform, with each of [`WINDOWS`].
    windows: [(u64, u64); WINDOWS.len()],
    walking: Duration,
    told: Vec<String>,
}

/// An instruction of a walk, and what was known before it.
struct Expected {
    at: Vaddr,
    state: State,
}

/// Runs `program` once and interrupts it at chance moments. Each time it is in its own code, `look`
/// is called, until that says to end.
fn interrupt(
    program: &Program,
    files: &mut Files,
    random: &mut Rng,
    mut look: impl FnMut(&mut Traced, user_regs_struct, &mut View) -> bool,
) {
    let mut traced = Traced::start(program.command());
    let mut view = View::default();
    let mut since_looked = 0;
    loop {
        std::thread::sleep(Duration::from_micros(random.u64(APART_US)));
        match traced.interrupt() {
            Stopped::Here => {}
            // The interrupt is still to come.
            Stopped::Signal => {
                traced.go_on();
                continue;
            }
            Stopped::Ended => return,
        }
        let Some(registers) = traced.registers() else { return };
        // In a system call the registers are those before it or after it, and not of a moment.
        if registers.orig_rax.cast_signed() < 0 {
            if since_looked == 0 || !view_has(&mut view, registers.rip) {
                view = files.view(traced.pid.as_raw());
                since_looked = 500;
            }
            since_looked -= 1;
            if !look(&mut traced, registers, &mut view) {
                return;
            }
        }
        traced.go_on();
    }
}

/// What a sample at that moment has of the stack.
fn stack(traced: &Traced, registers: &user_regs_struct) -> Vec<u8> {
    traced.memory(registers.rsp.wrapping_sub(RED_ZONE), RED_ZONE as usize + STACK)
}

/// What a walk from there knows of memory.
fn window(moment: &Moment) -> Window<'_> {
    let begin = Vaddr(moment.registers.rsp.wrapping_sub(RED_ZONE));
    Window { begin, bytes: &moment.stack, lines: &moment.lines }
}

/// Follows one run of `program` until `tally` has `states` states or it ends.
pub fn follow(program: &Program, states: u64, random: &mut Rng, tally: &mut Tally) {
    let mut files = Files::default();
    let mut walker = Walker::<X86_64>::new(1 << 14);
    let (mut samples, mut programs) = (Vec::new(), Programs::default());
    interrupt(program, &mut files, random, |traced, registers, view| {
        let mut lines = |traced: &Traced, registers: &user_regs_struct| {
            programs.lines(traced, registers, &mut walker, view)
        };
        let trailed = trail(traced, registers, &mut lines);
        let stopped = one(traced, trailed, &mut walker, view, &mut samples, tally);
        if tally.states < states && stopped != Stopped::Ended {
            return true;
        }
        false
    });
    tally.walking += time(&mut samples);
}

fn view_has(view: &mut View, rip: u64) -> bool {
    code::interpret::CodeView::place(view, Vaddr(rip)).is_some()
}

/// What was about to be executed at some moment, and all that a sample would have had of it.
struct Moment {
    registers: user_regs_struct,
    stack: Vec<u8>,
    lines: Vec<Line>,
}

/// Executes some instructions one by one.
fn trail(
    traced: &mut Traced,
    registers: user_regs_struct,
    lines: &mut impl FnMut(&Traced, &user_regs_struct) -> Vec<Line>,
) -> (Vec<Moment>, End) {
    let mut moments = Vec::with_capacity(TRAIL);
    let mut now = registers;
    loop {
        let is_begin = moments.len() < BEGINS * STRIDE && moments.len() % STRIDE == 0;
        moments.push(if is_begin {
            let (stack, lines) = (stack(traced, &now), lines(traced, &now));
            Moment { registers: now, stack, lines }
        } else {
            Moment { registers: now, stack: Vec::new(), lines: Vec::new() }
        });
        if moments.len() >= TRAIL {
            return (moments, End::Enough);
        }
        let from = now.rip;
        for repeats in 0.. {
            match traced.step() {
                Stopped::Here => {}
                Stopped::Signal => return (moments, End::Signal),
                Stopped::Ended => return (moments, End::Ended),
            }
            let Some(after) = traced.registers() else { return (moments, End::Ended) };
            now = after;
            // A repeated instruction stops after each of its rounds; a jump to itself does not have
            // these prefixes.
            if now.rip != from || !is_repeated(traced, from) {
                break;
            }
            if repeats > REPEATS_MAX {
                return (moments, End::LongRepetition);
            }
        }
    }
}

fn is_repeated(traced: &Traced, at: u64) -> bool {
    traced.memory(at, 4).iter().any(|byte| matches!(byte, 0xf2 | 0xf3))
}

fn one(
    traced: &mut Traced,
    (moments, end): (Vec<Moment>, End),
    walker: &mut Walker<X86_64>,
    view: &mut View,
    samples: &mut Vec<(Moment, View)>,
    tally: &mut Tally,
) -> Stopped {
    for begin in (0..moments.len().min(BEGINS * STRIDE)).step_by(STRIDE) {
        let Moment { registers, .. } = &moments[begin];
        let at = Vaddr(registers.rip);
        let state = || State::sampled(general(registers), registers.eflags);
        let window = window(&moments[begin]);
        let (edges, stop) = walker.walk(at, state(), window, view);
        let edges = edges.to_vec();
        if begin == 0 {
            tally.sample(&edges, stop);
            tally.try_windows(&moments[0], walker, view);
        }
        tally.states += 1;
        let mut expected = Vec::new();
        let mut walk = walker.begin(at, state(), window, view);
        loop {
            expected.push(Expected { at: walk.at(), state: walk.state().clone() });
            if matches!(walk.step(), Step::Stop(_)) {
                break;
            }
        }
        tally.steps += if begin == 0 { expected.len() as u64 - 1 } else { 0 };
        tally.hold(traced, &expected, &edges, &moments[begin..], end);
    }
    samples.extend(moments.into_iter().next().map(|moment| (moment, view.clone())));
    if end == End::Ended { Stopped::Ended } else { Stopped::Here }
}

/// The time on the processor that it takes to walk from all of `samples`, one after the other as a
/// drain has them, at first with nothing decoded.
fn time(samples: &mut [(Moment, View)]) -> Duration {
    let mut walker = Walker::<X86_64>::new(1 << 14);
    let now = || Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap());
    let begin = now();
    for (moment, view) in samples {
        let (registers, window) = (&moment.registers, window(moment));
        let state = State::sampled(general(registers), registers.eflags);
        std::hint::black_box(walker.walk(Vaddr(registers.rip), state, window, view));
    }
    now() - begin
}

impl Tally {
    fn sample(&mut self, edges: &[Edge], stop: Stop) {
        let informing = edges.iter().filter(|edge| edge.kind.depends()).count() as u64;
        self.samples += 1;
        let again = (1..edges.len()).filter(|number| {
            let (before, edge) = (&edges[..*number], &edges[*number]);
            edge.kind.depends() && before.iter().any(|before| before.from == edge.from)
        });
        self.again += again.count() as u64;
        self.yielding += u64::from(informing > 0);
        self.edges += edges.len() as u64;
        self.informative += informing;
        *self.stops.entry(stop).or_default() += 1;
    }

    fn try_windows(&mut self, moment: &Moment, walker: &mut Walker<X86_64>, view: &mut View) {
        let Moment { registers, stack, .. } = moment;
        for (of_window, (below, above)) in self.windows.iter_mut().zip(WINDOWS) {
            let bytes = stack.get(RED_ZONE as usize - below..).unwrap_or_default();
            let bytes = &bytes[..bytes.len().min(below + above)];
            let begin = Vaddr(registers.rsp.wrapping_sub(below as u64));
            let window = Window { begin, bytes, lines: &[] };
            let state = State::sampled(general(registers), registers.eflags);
            let edges = walker.walk(Vaddr(registers.rip), state, window, view).0;
            let informing = edges.iter().filter(|edge| edge.kind.depends()).count() as u64;
            of_window.0 += u64::from(informing > 0);
            of_window.1 += informing;
        }
    }

    /// Holds a walk against what was executed.
    fn hold(
        &mut self,
        traced: &Traced,
        expected: &[Expected],
        edges: &[Edge],
        moments: &[Moment],
        end: End,
    ) {
        let mut edges = edges.iter().peekable();
        let mut last = None;
        for (step, expected) in expected.iter().enumerate() {
            let Some(Moment { registers: now, .. }) = moments.get(step) else {
                *self.exceptions.entry(format!("{end:?}")).or_default() += 1;
                return;
            };
            let edge = last.and_then(|from| edges.next_if(|edge| edge.from.0 == from));
            if now.rip != expected.at.0 {
                self.wrong += 1;
                self.tell(traced, step, expected, now, last);
                return;
            }
            self.right += u64::from(edge.is_some());
            if !expected.state.may_be(general(now), now.eflags) {
                self.wrong_states += 1;
                self.tell(traced, step, expected, now, last);
                return;
            }
            last = Some(now.rip);
        }
    }

    pub const HEADER: &str = "program      states  samples  yielding  edges/sample  informing  again  steps/walk  ns/walk  right edges  wrong edges  wrong states  not followed";

    pub fn must_be_right(&self, name: &str) {
        assert!(
            self.wrong == 0 && self.wrong_states == 0,
            "{name}: {self}\n{}",
            self.told.join("\n")
        );
        assert!(self.right > 0, "{name}: no edge was looked at");
    }

    pub fn row(&self) -> String {
        let samples = self.samples as f64;
        format!(
            "{:>8}  {:>7}  {:>7.1}%  {:>12.2}  {:>9.2}  {:>5.1}  {:>10.1}  {:>7.0}  {:>11}  {:>11}  {:>12}  {:?} {:?}",
            self.states,
            self.samples,
            100.0 * self.yielding as f64 / samples,
            self.edges as f64 / samples,
            self.informative as f64 / samples,
            self.again as f64 / samples,
            self.steps as f64 / samples,
            self.walking.as_nanos() as f64 / samples,
            self.right,
            self.wrong,
            self.wrong_states,
            self.exceptions,
            self.stops,
        )
    }

    /// What other windows of the stack would have yielded.
    pub fn windows(&self) -> String {
        let samples = self.samples as f64;
        let line = |((below, above), (yielding, informing)): ((usize, usize), (u64, u64))| {
            format!(
                "window of {below} bytes below and {above} above: {:.1}% of samples yield, {:.2} informing edges each",
                100.0 * yielding as f64 / samples,
                informing as f64 / samples
            )
        };
        WINDOWS.into_iter().zip(self.windows).map(line).collect::<Vec<_>>().join("\n")
    }

    pub fn add(&mut self, other: &Self) {
        self.states += other.states;
        self.samples += other.samples;
        self.yielding += other.yielding;
        self.steps += other.steps;
        self.edges += other.edges;
        self.informative += other.informative;
        self.again += other.again;
        self.right += other.right;
        self.wrong += other.wrong;
        self.wrong_states += other.wrong_states;
        self.walking += other.walking;
        for (reason, count) in &other.exceptions {
            *self.exceptions.entry(reason.clone()).or_default() += count;
        }
        for (stop, count) in &other.stops {
            *self.stops.entry(*stop).or_default() += count;
        }
        for (mine, theirs) in self.windows.iter_mut().zip(other.windows) {
            *mine = (mine.0 + theirs.0, mine.1 + theirs.1);
        }
        self.told.extend(other.told.iter().cloned());
    }

    fn tell(
        &mut self,
        traced: &Traced,
        step: usize,
        expected: &Expected,
        now: &user_regs_struct,
        last: Option<u64>,
    ) {
        if self.told.len() >= TOLD_MAX {
            return;
        }
        let bytes = traced.memory(last.unwrap_or(now.rip), 15);
        let lines = code::isa::Isa::X86_64.disassemble(
            &bytes,
            Vaddr(last.unwrap_or(0)),
            code::isa::Syntax::Intel,
        );
        let text = lines.into_iter().next().map(|line| line.text).unwrap_or_default();
        let names = [
            "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11",
            "r12", "r13", "r14", "r15",
        ];
        let mut differing = String::new();
        for ((name, known), value) in names.iter().zip(&expected.state.registers).zip(general(now))
        {
            if !known.may_be(value) {
                differing += &format!(" {name} {value:#x} not {known:x?}");
            }
        }
        let maps =
            std::fs::read_to_string(format!("/proc/{}/maps", traced.pid)).unwrap_or_default();
        let holds = |line: &&str| {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            let hex = |text| u64::from_str_radix(text, 16).unwrap_or(0);
            range.is_some_and(|(begin, end)| {
                (hex(begin)..hex(end)).contains(&last.unwrap_or(now.rip))
            })
        };
        let place = maps.lines().find(holds).unwrap_or_default();
        let flags = if expected.state.flags.may_be(now.eflags) { "" } else { " flags" };
        self.told.push(format!(
            "step {step}: after {:#x} `{text}` expected {:#x}, is at {:#x};{differing}{flags} {:#x} {:?} in {place}",
            last.unwrap_or(0),
            expected.at.0,
            now.rip,
            now.eflags,
            expected.state.flags
        ));
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n{}", Self::HEADER, self.row())
    }
}
