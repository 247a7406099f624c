//! What the sampler does with a program that reads ahead.

use std::collections::HashMap;

use code::interpret::{
    AheadOperation, AheadSlot, CodeView as _, LINE_BYTES, LINES_MAX, Line, Walker,
};
use code::isa::x86_64::X86_64;
use image::{ImageOffset, Vaddr};
use nix::libc::user_regs_struct;

use crate::process::{Traced, general};
use crate::view::View;

/// The programs of the places that were met, and how often each was met.
#[derive(Default)]
pub struct Programs(HashMap<(u32, ImageOffset), (u32, Vec<AheadOperation>)>);

impl Programs {
    /// The lines that a sample has.
    pub fn lines(
        &mut self,
        traced: &Traced,
        registers: &user_regs_struct,
        walker: &mut Walker<X86_64>,
        view: &mut View,
    ) -> Vec<Line> {
        let at = Vaddr(registers.rip);
        let Some(place) = view.place(at) else { return Vec::new() };
        let key = (place.image, ImageOffset(place.offset.0 + at.0 - place.begin.0));
        let (times, program) = self.0.entry(key).or_default();
        *times += 1;
        if times.is_power_of_two() {
            *program = walker.read_ahead(at, view);
        }
        copied(program, registers, |address, len| {
            Some(traced.memory(address, len)).filter(|bytes| bytes.len() == len)
        })
    }
}

/// Runs a program, as `ebpf/src/ahead.h` does.
pub fn copied(
    program: &[AheadOperation],
    registers: &user_regs_struct,
    mut memory: impl FnMut(u64, usize) -> Option<Vec<u8>>,
) -> Vec<Line> {
    let mut values: Vec<u64> = general(registers).into();
    values.resize(usize::from(AheadSlot::COUNTER.0), 0);
    values.extend([registers.rip, 0]);
    let mut lines: Vec<Line> = Vec::new();
    for operation in program {
        let value = |slot: AheadSlot| values[usize::from(slot.0)];
        let result = match *operation {
            AheadOperation::Line(at, offset) => {
                let address = value(at).wrapping_add_signed(offset.into());
                let address = address - address % LINE_BYTES as u64;
                if lines.len() < LINES_MAX && lines.iter().all(|line| line.address.0 != address) {
                    lines.extend(memory(address, LINE_BYTES).map(|bytes| Line {
                        address: Vaddr(address),
                        bytes: bytes.try_into().unwrap(),
                    }));
                }
                0
            }
            AheadOperation::Load { at, offset, bytes } => {
                let address = value(at).wrapping_add_signed(offset.into());
                let bytes = memory(address, bytes.into()).unwrap_or_default();
                bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
            }
            AheadOperation::Sum { a, b, shift, offset } => {
                value(a).wrapping_add(value(b) << shift).wrapping_add_signed(offset.into())
            }
            AheadOperation::Binary(operation, a, b) => operation.of(value(a), value(b)),
            AheadOperation::Extended { a, bytes, signed } => {
                let unused = 64 - 8 * u32::from(bytes);
                let high = value(a) << unused;
                if signed { (high.cast_signed() >> unused).cast_unsigned() } else { high >> unused }
            }
        };
        values.push(result);
    }
    lines
}
