//! The table of a Go program: for each instruction, how far the stack pointer is from where it was
//! when the procedure was called.
//!
//! Go's linker writes no `.eh_frame`. Its runtime has a table of its own, `.gopclntab`, which even
//! stripped programs keep because the collector of garbage walks stacks with it:
//!
//! - a header, whose magic number identifies the version;
//! - `functab`: sorted (first address, place of the procedure's `_func`), 4 bytes each;
//! - `_func`: name, place of the procedure's `pcsp`, flags;
//! - `pcsp`: pairs of variable-length numbers, a change of the distance and the number of code
//!   bytes that the new distance is true for.
//!
//! A look-up reads about 12 rows of `functab`, one `_func`, its name and its `pcsp`.
//!
//! Read are the tables of Go 1.18 and later; programs of earlier ones are walked by frame pointers.
//!
//! # Sources
//!
//! "Go 1.2 Runtime Symbol Table" (golang.org/s/go12symtab). Of Go's source (1.19 unless said):
//! src/cmd/link/internal/ld/pcln.go (header, `functab`), src/runtime/symtab.go (`pcHeader`,
//! `pcvalue`, flags), src/runtime/runtime2.go (`_func`; with `startLine` since 1.20),
//! src/debug/gosym/pclntab.go (magic numbers), src/runtime/traceback.go (what a distance means),
//! src/runtime/asm_{amd64,arm64}.s (changes of the stack).

use crate::headers::{Headers, Read, Sections, Segment};
use crate::registers::Machine;
use crate::rule::{Cfa, NoRule, Row, Rule, Saved, StackPointer};
use crate::table::File;
use image::go_table::{ALIGNMENT, Header, has_start_line};

/// Bytes of a row of `functab`.
const ROW_BYTES: u64 = 8;
/// Bytes of `_func` in the largest version.
const FUNC_BYTES: usize = 44;
/// Bytes of a name that are read: the names that matter are shorter.
const NAME_BYTES: usize = 32;
/// Largest number of bytes of one procedure's `pcsp`. Most have less than 20; a pair is written
/// for each return.
const PCSP_BYTES_MAX: usize = 16 << 10;
/// Bytes of `pcsp` that are read at a time.
const PIECE_BYTES: usize = 64;
/// Largest distance that is believed, in bytes: Go's stacks are at most 1 GiB (`maxstacksize`).
const DISTANCE_MAX: i32 = 1 << 30;
/// Offsets in `moduledata` of Go 1.26: the address of the table, and of the first code byte.
const MODULE_TABLE: u64 = 0;
const MODULE_TEXT: u64 = 176;
/// Largest number of bytes of `.data.rel.ro` that are searched for the table: GNU ld puts it there
/// in position-independent programs with cgo, without a section of its own.
pub const SEARCH_BYTES_MAX: u64 = 16 << 20;

/// `FuncFlag_TOPFRAME`: the first frame of a stack.
const TOP_FRAME: u8 = 1;
/// `FuncFlag_SPWRITE`: the procedure sets the stack pointer to what `pcsp` does not tell.
const SETS_STACK_POINTER: u8 = 2;

/// Where the parts of the table are. Addresses are the file's own.
#[derive(Copy, Clone, Debug)]
pub struct GoTable {
    machine: Machine,
    header: Header,
    /// Address that first addresses are relative to.
    text: u64,
    /// Where the program begins.
    entry: u64,
    /// Number of procedures.
    count: u64,
    /// Offsets in the file.
    names: u64,
    pcsp: u64,
    rows: u64,
    /// Offset of the end of the segment.
    end: u64,
}

struct Procedure {
    begin: u64,
    end: u64,
    /// Offset of its `pcsp` in the file.
    pcsp: u64,
    flags: u8,
    name: [u8; NAME_BYTES],
}

impl GoTable {
    /// None if the file has no table of a known version.
    pub fn read(file: &mut File<'_>, headers: &Headers, sections: &Sections) -> Option<Self> {
        if let Some(section) = sections.go_table {
            return Self::read_at(file, headers, sections, section.address);
        }
        let section = sections.relocated_data.filter(|_| sections.is_go)?;
        let address = search(file, headers, &section)?;
        Self::read_at(file, headers, sections, address)
    }

    fn read_at(
        file: &mut File<'_>,
        headers: &Headers,
        sections: &Sections,
        address: u64,
    ) -> Option<Self> {
        let (begin, left) = headers.offset(address)?;
        let mut bytes = [0; Header::BYTES];
        file.read(begin, &mut bytes)?;
        let header = Header::read(&bytes, quantum(headers.machine))?;
        let inside = |distance: u64| (distance < left).then_some(begin.checked_add(distance)?);
        let rows = inside(header.rows)?;
        let end = begin.checked_add(left)?;
        // The last row is followed by the end of the last procedure.
        let count = header.count.min(end.saturating_sub(rows).saturating_sub(4) / ROW_BYTES);
        let mut table = Self {
            machine: headers.machine,
            header,
            text: header.text,
            entry: headers.entry,
            count,
            names: inside(header.names)?,
            pcsp: inside(header.numbers)?,
            rows,
            end,
        };
        if table.text == 0 {
            table.text = table.text_begin(file, headers, sections, address)?;
        }
        (count > 0).then_some(table)
    }

    /// The address that first addresses are relative to, where the header leaves it out (Go 1.26):
    /// what `moduledata` says, if that is this table's; else where the code begins, if the program
    /// begins with a procedure of the table then.
    fn text_begin(
        &self,
        file: &mut File<'_>,
        headers: &Headers,
        sections: &Sections,
        address: u64,
    ) -> Option<u64> {
        let mut word = |at: u64| {
            let mut bytes = [0; 8];
            let at = sections.go_module?.offset.checked_add(at)?;
            file.read(at, &mut bytes)?;
            Some(u64::from_le_bytes(bytes))
        };
        if word(MODULE_TABLE) == Some(address) {
            return word(MODULE_TEXT);
        }
        let text = sections.text?.address;
        let entry = headers.entry.checked_sub(text)?;
        let (_, begin) = self.search(file, u32::try_from(entry).ok()?)?;
        (u64::from(begin) == entry).then_some(text)
    }

    pub fn row(&self, file: &mut File<'_>, address: u64) -> Result<Row, NoRule> {
        let procedure = self.procedure(file, address).ok_or(NoRule::NotCovered)?;
        if procedure.name().starts_with(b"runtime.sigreturn") {
            // The return trampoline of signal handlers is recognised by its code.
            return Err(NoRule::NotCovered);
        }
        let (begin, end, distance) =
            self.distance(file, &procedure, address).ok_or(NoRule::Broken)?;
        let (begin, end) = (begin.max(procedure.begin), end.min(procedure.end));
        let rule = self.rule(&procedure, distance).ok_or(NoRule::Broken)?;
        Ok(Row { entry: procedure.begin, begin, end, rule })
    }

    /// The number and the first address of the last procedure that does not begin after `address`;
    /// both relative.
    fn search(&self, file: &mut File<'_>, address: u32) -> Option<(u64, u32)> {
        let (mut low, mut high) = (0, self.count);
        let mut found = None;
        while low < high {
            let middle = low + (high - low) / 2;
            let begin = self.number(file, middle.checked_mul(ROW_BYTES)?)?;
            if begin <= address {
                found = Some((middle, begin));
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        found
    }

    /// The number of 4 bytes at a place of `functab`, to which `_func`s belong.
    fn number(&self, file: &mut File<'_>, place: u64) -> Option<u32> {
        let mut bytes = [0; 4];
        self.read_bytes(file, self.rows.checked_add(place)?, &mut bytes)?;
        Some(u32::from_le_bytes(bytes))
    }

    fn read_bytes(&self, file: &mut File<'_>, offset: u64, into: &mut [u8]) -> Option<()> {
        let end = offset.checked_add(into.len() as u64)?;
        if end > self.end { None } else { file.read(offset, into) }
    }

    /// The procedure at `address`, if the table knows its `pcsp`: of procedures in C that Go's
    /// linker has linked it does not.
    fn procedure(&self, file: &mut File<'_>, address: u64) -> Option<Procedure> {
        let relative = u32::try_from(address.checked_sub(self.text)?).ok()?;
        let (number, begin) = self.search(file, relative)?;
        let row = number.checked_mul(ROW_BYTES)?;
        let place = self.number(file, row.checked_add(4)?)?;
        let end = self.number(file, row.checked_add(ROW_BYTES)?)?;
        let mut bytes = [0; FUNC_BYTES];
        let func = bytes.get_mut(..self.header.func_bytes())?;
        self.read_bytes(file, self.rows.checked_add(u64::from(place))?, func)?;
        let func = &*func;
        let word = |number: usize| {
            let bytes = func.get(number * 4..)?.first_chunk()?;
            Some(u32::from_le_bytes(*bytes))
        };
        let pcsp = word(4)?;
        if word(0)? != begin || relative >= end || pcsp == 0 {
            return None;
        }
        let mut name = [0; NAME_BYTES];
        let place = self.names.checked_add(u64::from(word(1)?))?;
        let len = usize::try_from(self.end.saturating_sub(place)).unwrap_or(NAME_BYTES);
        self.read_bytes(file, place, name.get_mut(..len.min(NAME_BYTES))?)?;
        Some(Procedure {
            begin: self.text.checked_add(u64::from(begin))?,
            end: self.text.checked_add(u64::from(end))?,
            pcsp: self.pcsp.checked_add(u64::from(pcsp))?,
            // funcID, flag, padding, nfuncdata.
            flags: *func.get(len_of_numbers(func.len()) + 1)?,
            name,
        })
    }

    /// The distance at `address`, and the addresses that it is true for.
    fn distance(
        &self,
        file: &mut File<'_>,
        procedure: &Procedure,
        address: u64,
    ) -> Option<(u64, u64, i32)> {
        let mut numbers = Numbers {
            table: self,
            at: procedure.pcsp,
            piece: [0; PIECE_BYTES],
            len: 0,
            next: 0,
            left: PCSP_BYTES_MAX,
        };
        let (mut distance, mut end) = (-1i32, procedure.begin);
        loop {
            let change = numbers.next(file)?;
            if change == 0 && end != procedure.begin {
                return None;
            }
            let change = (change >> 1).cast_signed() ^ -((change & 1).cast_signed());
            distance = distance.wrapping_add(change);
            let begin = end;
            let bytes =
                u64::from(numbers.next(file)?).checked_mul(u64::from(self.header.quantum))?;
            end = end.checked_add(bytes)?;
            if address < end {
                return Some((begin, end, distance));
            }
        }
    }

    /// The rule at a place of the procedure with this distance. None where the distance makes no
    /// sense.
    fn rule(&self, procedure: &Procedure, distance: i32) -> Option<Rule> {
        if !(0..=DISTANCE_MAX).contains(&distance) {
            return None;
        }
        let name = procedure.name();
        let (machine, distance) = (self.machine, i64::from(distance));
        let is_first = procedure.flags & TOP_FRAME != 0 || procedure.begin == self.entry;
        let (cfa, return_address) = match machine {
            // The call has put the return address on the stack.
            Machine::X86 | Machine::X86_64 => (distance + 8, Some(Saved::At(-8))),
            // Without a part of the stack the procedure has left it in its register.
            Machine::Aarch64 if distance == 0 => (0, None),
            Machine::Aarch64 => (distance, Some(Saved::At(-distance))),
        };
        // Go's procedures preserve no register for the code that calls them.
        let lost = (0..32).filter(|number| machine.callee_saved() >> number & 1 == 1);
        let mut saved: Vec<_> = lost.map(|number| (number, Saved::Undefined)).collect();
        let is_injected = matches!(name, b"runtime.asyncPreempt" | b"runtime.sigpanic");
        if is_injected && machine == Machine::Aarch64 {
            // The handler has put the interrupted code's return address on the stack, in 16 bytes.
            saved.push((machine.return_column(), Saved::At(0)));
            saved.push((machine.stack_pointer(), Saved::CfaPlus(16)));
        }
        let stack_pointer = match procedure.flags & SETS_STACK_POINTER {
            0 => StackPointer::Followed,
            _ if is_first => StackPointer::Followed,
            _ => stack_pointer(name, distance),
        };
        let register = match stack_pointer {
            StackPointer::Kept => kept_in(machine),
            _ => machine.stack_pointer(),
        };
        Some(Rule {
            cfa: Cfa::Register(register, cfa),
            return_address: if is_first { Some(Saved::Undefined) } else { return_address },
            saved: saved.into(),
            // What C has called returns to where the goroutine was left, which is not a call.
            is_signal: is_injected || stack_pointer == StackPointer::ReturnedForIndirectCalls,
            stack_pointer,
        })
    }
}

/// How a procedure that sets the stack pointer changes it (src/runtime/asm_{amd64,arm64}.s,
/// sys_linux_{amd64,arm64}.s, time_linux_amd64.s).
fn stack_pointer(name: &[u8], distance: i64) -> StackPointer {
    match name {
        b"runtime.systemstack" | b"runtime.mcall" | b"runtime.asmcgocall" => {
            StackPointer::SwitchedForSomeCalls
        }
        b"runtime.morestack" | b"gogo" => StackPointer::SwitchedForCalls,
        b"runtime.cgocallback" => StackPointer::ReturnedForIndirectCalls,
        // They call the vDSO. Before they make their frame and after they have given it up, the
        // stack pointer is what it was.
        b"runtime.nanotime1" | b"runtime.walltime" | b"time.now" if distance == 0 => {
            StackPointer::Followed
        }
        b"runtime.nanotime1" | b"runtime.walltime" | b"time.now" => StackPointer::Kept,
        _ => StackPointer::Unknown,
    }
}

/// The register in which the procedures that call the vDSO keep their stack pointer: r12, x20.
const fn kept_in(machine: Machine) -> u8 {
    match machine {
        Machine::X86 | Machine::X86_64 => 12,
        Machine::Aarch64 => 20,
    }
}

/// Whether the code puts the stack pointer there: `mov %rsp, %r12`, `mov x20, sp`.
pub fn keeps_stack_pointer(machine: Machine, code: &[u8]) -> bool {
    match machine {
        Machine::X86 | Machine::X86_64 => code.windows(3).any(|bytes| bytes == [0x49, 0x89, 0xe4]),
        Machine::Aarch64 => words(code).any(|word| word == 0x9100_03f4),
    }
}

/// Whether the code may load the stack pointer: `mov` to %rsp from memory or a register, `mov sp`.
pub fn sets_stack_pointer(machine: Machine, code: &[u8]) -> bool {
    match machine {
        // Bytes are looked at wherever instructions begin: a match in the middle of one is possible
        // and makes a walk end.
        Machine::X86 | Machine::X86_64 => code.windows(3).any(|bytes| match *bytes {
            [0x48 | 0x49, 0x8b, operand] => operand >> 3 & 7 == 4,
            [0x48 | 0x4c, 0x89, operand] => operand >> 6 == 3 && operand & 7 == 4,
            _ => false,
        }),
        Machine::Aarch64 => words(code).any(|word| word & 0xffff_fc1f == 0x9100_001f),
    }
}

fn words(code: &[u8]) -> impl Iterator<Item = u32> {
    code.chunks_exact(4).filter_map(|word| Some(u32::from_le_bytes(*word.first_chunk()?)))
}

/// Bytes of `_func` before its four last fields, of one byte each.
const fn len_of_numbers(len: usize) -> usize {
    len - 4
}

impl Procedure {
    fn name(&self) -> &[u8] {
        self.name.split(|&byte| byte == 0).next().unwrap_or_default()
    }
}

/// Variable-length numbers (LEB128) of `pcsp`, read piece by piece.
struct Numbers<'a> {
    table: &'a GoTable,
    /// Offset of the next piece in the file.
    at: u64,
    piece: [u8; PIECE_BYTES],
    len: usize,
    next: usize,
    /// Bytes that may still be read.
    left: usize,
}

impl Numbers<'_> {
    fn next(&mut self, file: &mut File<'_>) -> Option<u32> {
        let mut value = 0;
        for shift in (0..32).step_by(7) {
            let byte = self.byte(file)?;
            value |= u32::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn byte(&mut self, file: &mut File<'_>) -> Option<u8> {
        if self.next == self.len {
            let rest = usize::try_from(self.table.end.checked_sub(self.at)?).ok()?;
            let len = rest.min(self.left).min(PIECE_BYTES);
            // Decoding costs more than copying.
            file.work.spend(4 * len)?;
            file.read(self.at, self.piece.get_mut(..len)?)?;
            self.at += len as u64;
            self.left -= len;
            (self.len, self.next) = (len, 0);
        }
        let byte = self.piece.get(..self.len)?.get(self.next).copied();
        self.next += 1;
        byte
    }
}

/// Bytes that instructions are aligned to.
const fn quantum(machine: Machine) -> u8 {
    match machine {
        Machine::X86 | Machine::X86_64 => 1,
        Machine::Aarch64 => 4,
    }
}

/// The address of the table within `section`.
fn search(file: &mut File<'_>, headers: &Headers, section: &Segment) -> Option<u64> {
    let mut piece = vec![0; 64 << 10];
    let quantum = quantum(headers.machine);
    let end = section.len.min(SEARCH_BYTES_MAX);
    let mut done = 0;
    while done < end {
        // Reading in a row costs less than what the walk's work is measured by.
        file.work.spend(piece.len() / 4)?;
        let at = section.offset.checked_add(done)?;
        let read = file.source.read_at(at, &mut piece).ok()?.min(piece.len());
        file.pages.bytes_read += read as u64;
        let bytes = piece.get(..read)?;
        let found = bytes.chunks(ALIGNMENT).position(|bytes| {
            bytes.first_chunk().is_some_and(|head| has_start_line(head, quantum).is_some())
        });
        if let Some(number) = found {
            let into = done.checked_add((number * ALIGNMENT) as u64)?;
            return section.address.checked_add(into);
        }
        if read < piece.len() {
            return None;
        }
        done += read as u64;
    }
    None
}
