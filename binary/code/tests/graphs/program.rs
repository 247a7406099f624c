//! An ELF file as the graphs of its procedures need it.

use std::fs;
use std::ops::Range;
use std::path::Path;

use code::cfg::{Cfg, Knowledge, Part, ReadOnly, Survey, is_no_return_name};
use code::isa::Isa;
use image::{Constant, Constants, Imports, Layout, Procedures, Vaddr};

pub struct Program {
    pub isa: Isa,
    pub bytes: Vec<u8>,
    pub layout: Layout,
    pub constants: Constants,
    pub procedures: Procedures,
    pub survey: Survey,
}

pub struct Memory<'a>(&'a Program);

impl ReadOnly for Memory<'_> {
    fn constant(&mut self, address: Vaddr, len: u8) -> Option<u64> {
        match self.0.constants.at(address, len)? {
            Constant::Address(address) => Some(address.0),
            Constant::InFile(offset) => {
                let bytes = self.0.bytes.get(offset.0 as usize..)?.get(..usize::from(len))?;
                Some(bytes.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)))
            }
        }
    }
}

impl Program {
    /// None if it is not a program of 64 bits whose instructions are known.
    pub fn open(path: &Path) -> Option<Self> {
        let bytes = fs::read(path).ok()?;
        if bytes.get(..6)? != b"\x7fELF\x02\x01" || !matches!(bytes.get(16..18)?, [2 | 3, 0]) {
            return None;
        }
        let isa = Isa::of_elf_machine(u16::from_le_bytes(*bytes.get(18..)?.first_chunk()?))?;
        let layout = Layout::of(&bytes).ok()?;
        let constants = Constants::of(&bytes).unwrap_or_default();
        let (procedures, _) = image::procedures(path, None, &image::default_debug_roots()).ok()?;
        let mut this =
            Self { isa, bytes, layout, constants, procedures, survey: Survey::default() };
        this.survey = Survey::of(isa, &this.text(), &this.ranges(), this.known());
        Some(this)
    }

    /// Procedures that are known by their names not to return, and words that hold the address of
    /// one.
    pub fn known(&self) -> Vec<Vaddr> {
        let imports = Imports::of(&self.bytes).unwrap_or_default();
        let named =
            self.procedures.iter().filter(|procedure| is_no_return_name(procedure.raw_name()));
        let named = named.filter_map(|procedure| self.layout.file_offset_to_vaddr(procedure.start));
        imports
            .iter()
            .filter(|(_, name)| is_no_return_name(name))
            .map(|(at, _)| at)
            .chain(named)
            .collect()
    }

    pub fn text(&self) -> Vec<Part<'_>> {
        let segments = self.layout.segments().iter().filter(|segment| segment.executable);
        let mut text: Vec<Part<'_>> = segments
            .filter_map(|segment| {
                let begin = segment.offset.0 as usize;
                let bytes =
                    self.bytes.get(begin..begin.checked_add(segment.file_size_bytes as usize)?)?;
                Some(Part { begin: segment.vaddr, bytes })
            })
            .collect();
        text.sort_by_key(|part| part.begin);
        text
    }

    pub fn ranges(&self) -> Vec<Range<u64>> {
        let vaddr = |offset| self.layout.file_offset_to_vaddr(offset);
        let range = |procedure: &image::Procedure| {
            Some(vaddr(procedure.start)?.0..vaddr(procedure.start)?.0 + procedure.size_bytes())
        };
        let mut ranges: Vec<Range<u64>> = self.procedures.iter().filter_map(range).collect();
        ranges.sort_by_key(|range| range.start);
        ranges
    }

    /// The parts of the procedure with this number in the list, if it is no part of another.
    pub fn parts(&self, number: usize) -> Vec<Part<'_>> {
        if self.survey.whole(number) != number {
            return Vec::new();
        }
        let all = [number].into_iter().chain(self.survey.parts(number).iter().copied());
        all.filter_map(|number| self.part(self.procedures.iter().as_slice().get(number)?)).collect()
    }

    fn part(&self, procedure: &image::Procedure) -> Option<Part<'_>> {
        let begin = self.layout.file_offset_to_vaddr(procedure.start)?;
        let bytes = self.bytes.get(procedure.start.0 as usize..procedure.end.0 as usize)?;
        Some(Part { begin, bytes })
    }

    pub fn graph(&self, parts: &[Part<'_>], observed: &[(Vaddr, Vaddr)]) -> Cfg {
        let knowledge = Knowledge { no_return: Some(self.survey.no_return()), observed };
        Cfg::build(self.isa, parts, &mut Memory(self), &knowledge)
    }
}
