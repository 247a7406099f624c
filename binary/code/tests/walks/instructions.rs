//! Single instructions of every kind, with chance values in registers, executed by the processor
//! and by the interpreter: programs that compilers write do not have them all.

use std::process::{Command, Stdio};

use code::interpret::{Bits, CodeView, Place, Slot, Step, Walker, Window};
use code::isa::x86_64::{State, X86_64};
use code::isa::{Isa, Syntax};
use fastrand::Rng;
use image::{ImageOffset, Vaddr};
use nix::libc::user_regs_struct;
use nix::sys::ptrace;

use crate::process::{Stopped, Traced, general, with_general};

/// Bytes of memory that instructions may find, in the middle of which the pointers point.
const MEMORY: usize = 1024;
/// Bytes of code that are written, a multiple of 8.
const CODE: usize = 24;
/// CF, PF, AF, ZF, SF, DF and OF.
const FLAGS: u64 = 0xcd5;

/// One instruction, which is an image of its own each time: nothing of the one before is
/// remembered.
struct One {
    number: u32,
    at: u64,
    bytes: [u8; CODE],
}

impl CodeView for One {
    fn place(&mut self, address: Vaddr) -> Option<Place> {
        let place = Place {
            image: self.number,
            begin: Vaddr(self.at),
            end: Vaddr(self.at + CODE as u64),
            offset: ImageOffset(0),
        };
        (place.begin <= address && address < place.end).then_some(place)
    }
    fn bytes(&mut self, _: u32, offset: ImageOffset, into: &mut [u8]) -> usize {
        let rest = &self.bytes[offset.0 as usize..];
        let len = rest.len().min(into.len());
        into[..len].copy_from_slice(&rest[..len]);
        len
    }
    fn constant(&mut self, _: Vaddr, _: u8) -> Option<u64> {
        None
    }
}

/// Bytes that are mostly an instruction.
fn chance(random: &mut Rng) -> [u8; CODE] {
    let mut bytes = Vec::new();
    for prefix in [0x66, 0xf3, 0xf2, 0xf0, 0x67, 0x64] {
        if random.u8(0..100) < if prefix == 0x66 { 20 } else { 4 } {
            bytes.push(prefix);
        }
    }
    let vex = random.u8(0..10) == 0;
    if vex {
        // Of three bytes: the maps 0F38 and 0F3A, where those on general registers are.
        bytes.extend([
            0xc4,
            random.u8(..) & 0xe0 | random.u8(2..4),
            random.u8(..) & !4,
            random.u8(0xf0..0xf8),
        ]);
    } else {
        if random.bool() {
            bytes.push(0x40 | random.u8(0..16));
        }
        match random.u8(0..10) {
            0..6 => bytes.push(random.u8(..)),
            6..9 => bytes.extend([0x0f, random.u8(..)]),
            _ => bytes.extend([0x0f, 0x38, random.u8(0xf0..0xf8)]),
        }
    }
    bytes.resize_with(CODE, || random.u8(..));
    bytes.try_into().unwrap()
}

fn value(random: &mut Rng, memory: u64) -> u64 {
    match random.u8(0..10) {
        0 => 0,
        1 => random.u64(0..70),
        2 => u64::MAX - random.u64(0..3),
        3 => 1 << random.u32(0..64),
        4 => (1 << random.u32(0..64)) - 1,
        5..9 => memory + MEMORY as u64 / 2 + random.u64(0..16),
        _ => random.u64(..),
    }
}

/// What the interpreter does not know although it was there: some bits of some registers.
fn partly(state: &mut State, random: &mut Rng) {
    if random.bool() {
        let register = &mut state.registers[random.usize(0..16)];
        *register =
            Bits::partly(register.least(), random.u64(..) & random.u64(..) & random.u64(..));
    }
}

struct Bench {
    traced: Traced,
    registers: user_regs_struct,
    code: u64,
    memory: u64,
}

impl Bench {
    fn new() -> Self {
        let mut command = Command::new("sleep");
        command.arg("1000").stdin(Stdio::null()).stdout(Stdio::null());
        let mut traced = Traced::start(command);
        assert_eq!(traced.interrupt(), Stopped::Here);
        let mut registers = traced.registers().unwrap();
        // It may be in a system call, which is not to be begun again.
        registers.orig_rax = u64::MAX;
        let (code, memory) = (registers.rip & !0xfff, (registers.rsp & !0xfff) - 0x4000 + 0x800);
        Self { traced, registers, code, memory }
    }

    /// True if the instruction was compared with the processor.
    fn try_one(
        &mut self,
        number: u32,
        random: &mut Rng,
        walker: &mut Walker<X86_64>,
    ) -> Result<bool, String> {
        let mut view = One { number, at: self.code, bytes: chance(random) };
        let mut general_registers = [(); 16].map(|()| value(random, self.memory));
        if random.u8(0..8) != 0 {
            general_registers[4] = self.memory + MEMORY as u64 / 2;
        }
        if view.bytes.contains(&0xf3) || view.bytes.contains(&0xf2) {
            // Not too long, if it is repeated: each round is a step.
            general_registers[1] = random.u64(0..4);
        }
        let mut registers = with_general(self.registers, general_registers);
        registers.rip = self.code;
        registers.eflags = registers.eflags & !FLAGS | random.u64(..) & FLAGS;
        let before: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(MEMORY).collect();
        let mut state = State::sampled(general_registers, registers.eflags);
        partly(&mut state, random);
        let window = Window { begin: Vaddr(self.memory), bytes: &before, lines: &[] };
        let code = view.bytes;
        let mut walk = walker.begin(Vaddr(self.code), state, window, &mut view);
        let step = walk.step();
        let text = Isa::X86_64.disassemble(&code, Vaddr(self.code), Syntax::Intel).remove(0).text;
        // The kernel does these in the processor's place (UMIP), and the one after them is executed
        // in the same step.
        let emulated =
            ["smsw", "sidt", "sgdt", "sldt", "str "].iter().any(|name| text.starts_with(name));
        if emulated || matches!(step, Step::Stop(_)) {
            return Ok(false);
        }
        self.write(self.memory, &before);
        self.write(self.code, &code);
        ptrace::setregs(self.traced.pid, registers).unwrap();
        let mut now = registers;
        for _ in 0..64 {
            match self.traced.step() {
                Stopped::Here => {}
                // It faulted: bad memory, a division by 0, no such instruction on this processor.
                // What faults changes nothing.
                Stopped::Signal => {
                    self.traced.drop_signal();
                    return Ok(false);
                }
                Stopped::Ended => return Err("ended".to_owned()),
            }
            now = self.traced.registers().unwrap();
            if now.rip != self.code || walk.at().0 == self.code {
                break;
            }
        }
        let after = self.traced.memory(self.memory, MEMORY);
        let mut problems = String::new();
        if now.rip != walk.at().0 {
            problems += &format!(" goes to {:#x} not {:#x};", now.rip, walk.at().0);
        }
        if !walk.state().may_be(general(&now), now.eflags) {
            problems +=
                &format!(" {:x?} {:#x} not {:x?};", general(&now), now.eflags, walk.state());
        }
        for (index, word) in after.chunks_exact(8).enumerate() {
            let address = self.memory + index as u64 * 8;
            let word = u64::from_le_bytes(word.try_into().unwrap());
            let known = walk.load(Vaddr(address), 8, Slot::Data);
            if !known.may_be(word) {
                problems += &format!(" {address:#x} has {word:#x} not {known:x?};");
            }
        }
        if problems.is_empty() {
            return Ok(true);
        }
        Err(format!(
            "`{text}` {:x?}:{problems} before {general_registers:x?} {:#x}",
            code, registers.eflags
        ))
    }

    /// Also where the program itself could not write.
    fn write(&self, address: u64, bytes: &[u8]) {
        for (index, word) in bytes.chunks_exact(8).enumerate() {
            let word = i64::from_le_bytes(word.try_into().unwrap());
            ptrace::write(
                self.traced.pid,
                (address as usize + index * 8) as ptrace::AddressType,
                word,
            )
            .unwrap();
        }
    }
}

#[test]
fn every_kind_of_instruction_does_what_the_processor_does() {
    let rounds: u32 = std::env::var("WALKS_INSTRUCTIONS")
        .map_or(20_000, |rounds| rounds.parse().expect("a number"));
    let mut bench = Bench::new();
    let mut walker = Walker::<X86_64>::new(64);
    let mut random = Rng::with_seed(
        std::env::var("WALKS_SEED").map_or(7, |seed| seed.parse().expect("a number")),
    );
    let (mut held, mut wrong) = (0, Vec::new());
    for number in 0..rounds {
        match bench.try_one(number, &mut random, &mut walker) {
            Ok(true) => held += 1,
            Ok(false) => {}
            Err(problem) => wrong.push(problem),
        }
        if wrong.len() >= 20 {
            break;
        }
    }
    println!("{held} of {rounds} instructions held against the processor");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(held > rounds / 4, "{held} of {rounds}");
}
