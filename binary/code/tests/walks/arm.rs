//! Walks of 64-bit Arm's code against an emulated processor: qemu writes the registers down before
//! each instruction, of programs that compilers write and of instructions of every kind with chance
//! values.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::ops::Range;
use std::path::Path;
use std::process::{ChildStderr, Command, Stdio};

use code::interpret::{
    Bits, CodeView as _, InstructionSet, LINE_BYTES, Line, MemoryAccess, STEPS_MAX, Slot, Step,
    Stop, Walk, Walker, Window,
};
use code::isa::aarch64::{Aarch64, REGISTERS, State};
use code::isa::{Isa, Syntax};
use fastrand::Rng;
use image::Vaddr;

use crate::view::{Files, View};

/// Of so many instructions, one begins a walk.
const WALKS_ONE_IN: usize = 40;
/// Instructions of a walk whose lines of memory are known.
const LINES_OF: usize = 200;
/// Groups of chance instructions, and instructions of each.
const GROUPS: u32 = 5000;
const OF_GROUP: u32 = 5;

/// What was about to be executed.
#[derive(Clone, Default)]
struct Moment {
    pc: u64,
    registers: [u64; REGISTERS],
    nzcv: u64,
}

/// The moments that qemu tells of with `-d cpu` (qemu 7.2, `target/arm/cpu.c`).
struct Moments(BufReader<ChildStderr>, Vec<u8>);

impl Iterator for Moments {
    type Item = Moment;

    fn next(&mut self) -> Option<Moment> {
        let mut moment = Moment::default();
        loop {
            self.1.clear();
            if self.0.read_until(b'\n', &mut self.1).ok()? == 0 {
                return None;
            }
            let hex = |text: &str| u64::from_str_radix(text.get(..16)?, 16).ok();
            let line = String::from_utf8_lossy(&self.1);
            if let Some(pstate) = line.strip_prefix("PSTATE=") {
                moment.nzcv = u64::from_str_radix(pstate.get(..8)?, 16).ok()?;
                return Some(moment);
            }
            let mut rest = &*line;
            while let Some((name, value)) = rest.split_once('=') {
                let value_of = hex(value)?;
                rest = value.get(16..)?;
                match name.trim() {
                    "PC" => moment.pc = value_of,
                    "SP" => moment.registers[31] = value_of,
                    name => {
                        let number: usize = name.strip_prefix('X')?.parse().ok()?;
                        moment.registers[number] = value_of;
                    }
                }
            }
        }
    }
}

/// Lines of memory all of whose bytes were stored while the program was watched.
#[derive(Default)]
struct Shadow {
    /// Bytes, and a bit for each that is known.
    lines: HashMap<u64, ([u8; LINE_BYTES], u64)>,
    /// What the kernel does not write to.
    own: Range<u64>,
}

impl Shadow {
    fn known(&self, address: u64) -> Option<Line> {
        let address = address - address % LINE_BYTES as u64;
        let (bytes, known) = self.lines.get(&address)?;
        (*known == u64::MAX).then_some(Line { address: Vaddr(address), bytes: *bytes })
    }

    /// What an instruction has stored, by a walk over it.
    fn store(&mut self, access: MemoryAccess, walk: &mut Walk<'_, '_, Aarch64, View>) {
        for address in (access.address..).take(access.bytes.into()) {
            let byte = address % LINE_BYTES as u64;
            let line = self.lines.entry(address - byte).or_insert(([0; LINE_BYTES], 0));
            line.1 &= !(1 << byte);
            if let Some(value) = walk.load(Vaddr(address), 1, Slot::Data).get() {
                line.0[byte as usize] = value as u8;
                line.1 |= 1 << byte;
            }
        }
    }

    /// The kernel may have written anywhere else.
    fn forget(&mut self) {
        let own = self.own.clone();
        self.lines.retain(|address, _| own.contains(address));
    }
}

/// What was compared.
#[derive(Default)]
struct Held {
    instructions: u64,
    walks: u64,
    /// Instructions of walks, and branches among them.
    steps: u64,
    edges: u64,
    /// Loads of which all was known.
    loads: u64,
    stops: BTreeMap<Stop, u64>,
    wrong: Vec<String>,
}

impl Held {
    /// Walks from the first moment, for at most so many instructions, and compares.
    fn walk(
        &mut self,
        walker: &mut Walker<Aarch64>,
        view: &mut View,
        moments: &VecDeque<Moment>,
        (state, steps_max, lines): (State, usize, &[Line]),
        fault: u64,
    ) {
        let begin = Vaddr(moments[0].pc);
        let window = Window { lines, ..Window::default() };
        let mut walk = walker.begin(begin, state, window, view);
        for (before, after) in moments.iter().zip(moments.iter().skip(1)).take(steps_max) {
            let step = walk.step();
            if let Step::Stop(stop) = step {
                *self.stops.entry(stop).or_default() += 1;
                return;
            }
            if after.pc == fault {
                return;
            }
            self.steps += 1;
            self.edges += u64::from(matches!(step, Step::Branch { .. }));
            let is_right =
                walk.at() == Vaddr(after.pc) && walk.state().may_be(&after.registers, after.nzcv);
            if !is_right {
                let (at, state) = (walk.at(), walk.state().clone());
                drop(walk);
                self.wrong.push(told(view, before, after, at, &state));
                return;
            }
        }
    }
}

fn told(view: &mut View, before: &Moment, after: &Moment, at: Vaddr, state: &State) -> String {
    let word = access(view, before).map_or(0, |(word, _)| word).to_le_bytes();
    let line = Isa::Aarch64.disassemble(&word, Vaddr(before.pc), Syntax::Att).remove(0).text;
    let mut text = format!("{:#x} {:08x} `{line}`:", before.pc, u32::from_le_bytes(word));
    if at.0 != after.pc {
        let _ = write!(text, " goes to {:#x} not {at:?};", after.pc);
    }
    for (number, (known, is)) in state.registers.iter().zip(after.registers).enumerate() {
        if !known.may_be(is) {
            let was = before.registers[number];
            let _ = write!(text, " x{number} was {was:#x}, is {is:#x} not {known:x?};");
        }
    }
    if !state.flags.may_be_nzcv(after.nzcv) {
        let _ = write!(text, " {:x} then {:x} not {:?};", before.nzcv, after.nzcv, state.flags);
    }
    text
}

/// A state in which some bits of a register are not known.
fn partly(mut state: State, random: &mut Rng) -> State {
    let register = &mut state.registers[random.usize(0..REGISTERS)];
    *register = Bits::partly(register.least(), random.u64(..) & random.u64(..));
    state
}

/// The word of the instruction at a moment, and its access to memory.
fn access(view: &mut View, moment: &Moment) -> Option<(u32, Option<MemoryAccess>)> {
    let place = view.place(Vaddr(moment.pc))?;
    let mut word = [0; 4];
    let offset = place.offset.0 + moment.pc - place.begin.0;
    view.bytes(place.image, image::ImageOffset(offset), &mut word);
    let state = Aarch64::sampled(&moment.registers, moment.nzcv);
    let access = Aarch64::decode(&mut (), &word)
        .and_then(|instruction| Aarch64::access(&instruction, moment.pc, &state));
    Some((u32::from_le_bytes(word), access))
}

/// The lines that the instructions of some moments access, as far as they are known at the first.
fn lines<'a>(
    shadow: &Shadow,
    view: &mut View,
    moments: impl Iterator<Item = &'a Moment>,
) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for moment in moments {
        let Some((_, Some(MemoryAccess { address, bytes, .. }))) = access(view, moment) else {
            continue;
        };
        for address in [address, address.wrapping_add(u64::from(bytes) - 1)] {
            let line = shadow.known(address);
            let is_new = |new: &Line| lines.iter().all(|line: &Line| line.address != new.address);
            let line = line.filter(is_new);
            lines.extend(line);
        }
    }
    lines
}

/// What the program's memory has after the first moment; whether that was a load that is known.
fn execute(
    shadow: &mut Shadow,
    walker: &mut Walker<Aarch64>,
    view: &mut View,
    moment: &Moment,
    lines: &[Line],
) -> bool {
    let Some((word, access)) = access(view, moment) else {
        shadow.forget();
        return false;
    };
    let stores = Isa::Aarch64.work(&word.to_le_bytes()).is_some_and(|work| work.stores.is_some());
    let state = Aarch64::sampled(&moment.registers, moment.nzcv);
    let window = Window { lines, ..Window::default() };
    let mut walk = walker.begin(Vaddr(moment.pc), state, window, view);
    if matches!(walk.step(), Step::Stop(_)) {
        shadow.forget();
    }
    match access {
        Some(access) if access.writes => shadow.store(access, &mut walk),
        Some(_) => return walk.state().registers.iter().all(|value| value.get().is_some()),
        None if stores => shadow.lines.clear(),
        None => {}
    }
    false
}

/// Compares a program's execution with walks.
fn hold(program: &Path, instructions: usize) -> Held {
    let symbols = Command::new("aarch64-linux-gnu-nm").arg(program).output().unwrap();
    let symbols = String::from_utf8(symbols.stdout).unwrap();
    let symbol = |name: &str| {
        let line = symbols.lines().find_map(|line| line.strip_suffix(name));
        line.map_or(0, |address| u64::from_str_radix(address, 16).unwrap())
    };
    let (fault, memory) = (symbol(" T faulted"), symbol(" B memory"));
    let mut shadow = Shadow { own: memory..memory + (1 << 16), ..Shadow::default() };
    let mut qemu = Command::new("qemu-aarch64")
        .args(["-singlestep", "-d", "cpu,nochain"])
        .arg(program)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("qemu-aarch64");
    let mut all = Moments(BufReader::with_capacity(1 << 20, qemu.stderr.take().unwrap()), vec![]);
    let mut view = Files::default().of_program(program.to_str().unwrap()).unwrap();
    let (mut walker, mut random) = (Walker::<Aarch64>::new(1 << 14), Rng::with_seed(5));
    let (mut held, mut moments) = (Held::default(), VecDeque::new());
    let mut left = instructions;
    loop {
        moments.extend(all.by_ref().take((STEPS_MAX + 1).saturating_sub(moments.len())));
        let Some(Moment { registers, nzcv, .. }) = moments.front().filter(|_| left > 0) else {
            break;
        };
        let known = Aarch64::sampled(registers, *nzcv);
        let state = if random.u8(..4) == 0 { partly(known.clone(), &mut random) } else { known };
        let is_walk = random.usize(..WALKS_ONE_IN) == 0;
        let steps = if is_walk { STEPS_MAX } else { 1 };
        let ahead = moments.iter().take(if is_walk { LINES_OF } else { 1 });
        let lines = lines(&shadow, &mut view, ahead);
        held.walk(&mut walker, &mut view, &moments, (state, steps, &lines), fault);
        if moments.get(1).is_some_and(|after| after.pc == fault) {
            shadow.forget();
        } else {
            let is_load = execute(&mut shadow, &mut walker, &mut view, &moments[0], &lines);
            held.loads += u64::from(is_load);
        }
        held.walks += u64::from(is_walk);
        held.instructions += 1;
        left -= 1;
        moments.pop_front();
    }
    let _ = qemu.kill();
    let _ = qemu.wait();
    held
}

/// A word of an encoding group, most of which are instructions.
fn chance(random: &mut Rng) -> u32 {
    let any = random.u32(..);
    let group = |mask: u32, bits: u32| any & !mask | bits;
    // Registers that point to memory.
    let base = |word: u32| word & !(31 << 5) | random_base(any) << 5;
    match random.u8(..20) {
        0..=3 => group(0x1c00_0000, 0x1000_0000),
        4..=9 => group(0x0e00_0000, 0x0a00_0000),
        // Not those that load literals.
        10..=15 => base(group(0x0a00_0000, 0x0800_0000)),
        16 => group(0x0e00_0000, 0x0e00_0000),
        // Sizes and operations that compilers use: `ubfm`, `bfm`; `csel`; pointers.
        17 => {
            [0x5300_0000, 0xd340_0000, 0x9340_0000, 0xb340_0000][any as usize % 4] | any & 0x3f_ffff
        }
        18 => {
            let heads = [
                0x1a80_0000,
                0x9a80_0000,
                0xda80_0000,
                0xfa40_0000,
                0xdac1_0000,
                0x1ac0_0000,
                0x9bc0_0000,
            ];
            heads[any as usize % 7] | any & 0x1f_ffff
        }
        // Branches over one instruction.
        _ => {
            let heads = [0x5400_0040, 0x3400_0040, 0xb500_0040, 0x3600_0040, 0xb700_0040];
            let free = [0xf, 0x1f, 0x1f, 0xf8_001f, 0xf8_001f];
            let kind = any as usize % 5;
            heads[kind] | any >> 3 & free[kind]
        }
    }
}

fn random_base(any: u32) -> u32 {
    if any & 7 == 0 { 31 } else { 20 + (any >> 3 & 7) }
}

/// A program of chance instructions; those that fault are left out at run time.
fn chances() -> String {
    let mut random = Rng::with_seed(11);
    let mut assembly = String::new();
    for group in 0..GROUPS {
        let from = group * 7 % 61 * 8;
        let _ = writeln!(assembly, "adrp x28, table+{from}\nadd x28, x28, :lo12:table+{from}");
        for pair in (0..28).step_by(2) {
            let _ = writeln!(assembly, "ldp x{pair}, x{}, [x28, #{}]", pair + 1, pair * 8);
        }
        let _ = writeln!(assembly, "ldp x29, x30, [x28, #240]\nmov sp, x27\nmsr nzcv, x29");
        for _ in 0..OF_GROUP {
            let _ = writeln!(assembly, ".inst {:#x}", chance(&mut random));
        }
        // A branch may go here.
        assembly.push_str("nop\n");
    }
    assembly.push_str("mov x0, #0\nmov x8, #93\nsvc #0\n");
    let c = include_str!("programs/chance.c");
    format!("{c}\n__asm__(\".text\\nchance:\\n{}\");\n", assembly.replace('\n', "\\n"))
}

#[test]
#[ignore = "needs a compiler and an emulator for Arm: cargo xtask bench walks --arm"]
fn walks_go_where_programs_go_on_arm() {
    let instructions: usize = std::env::var("WALKS_STATES")
        .map_or(400_000, |instructions| instructions.parse().expect("a number"));
    let folder = tempfile::tempdir().unwrap();
    let set = include_str!("programs/set.c").replace("< 3000", "< 300").replace("100000", "2000");
    let chances = chances();
    let ways: [(&str, &str, &[&str]); 4] = [
        ("set -O2", &set, &["-O2"]),
        ("set -O0", &set, &["-O0"]),
        ("set signed", &set, &["-O3", "-mbranch-protection=standard", "-march=armv8.3-a"]),
        ("chance", &chances, &["-O1"]),
    ];
    for (name, source, options) in ways {
        let (file, program) = (folder.path().join("source.c"), folder.path().join("program"));
        std::fs::write(&file, source).unwrap();
        let mut compiler = Command::new("aarch64-linux-gnu-gcc");
        compiler.args(["-static", "-no-pie", "-o"]).arg(&program).arg(&file).args(options);
        assert!(compiler.status().expect("aarch64-linux-gnu-gcc").success(), "{compiler:?}");
        let Held { instructions, walks, steps, edges, loads, stops, wrong } =
            hold(&program, instructions);
        println!(
            "{name}: {instructions} instructions, {walks} walks; compared {steps} steps, {edges} branches and {loads} known loads; {} wrong; {stops:?}",
            wrong.len()
        );
        let first = wrong.get(..20).unwrap_or(&wrong);
        assert!(wrong.is_empty(), "{name}: {first:#?}");
        assert!(edges > 1000, "{name}: hardly any branch");
    }
}
