//! Rules: how to get from the registers in a frame to those in its caller, at one address.
//!
//! gimli interprets the call frame instructions (DWARF 5, section 6.4.2).

use gimli::{BaseAddresses, CieOrFde, EhFrame, EndianSlice, LittleEndian, UnwindSection as _};
use gimli::{CfaRule, FrameDescriptionEntry, Register, RegisterRule, UnwindContext};
use gimli::{UnwindContextStorage, UnwindExpression, UnwindTableRow, Vendor, constants as dw};

use crate::registers::{Machine, REGISTERS};

type Reader<'a> = EndianSlice<'a, LittleEndian>;
type Section<'a> = EhFrame<Reader<'a>>;

/// Largest number of registers with rules: arm64's signal frames may name 32 general and 32 vector
/// registers.
const RULES_MAX: usize = 96;
/// Largest nesting of `DW_CFA_remember_state`; compilers write one.
const STATES_MAX: usize = 8;
/// Largest number of bytes of an expression; those of signal frames have 3, of PLTs 11.
const EXPRESSION_BYTES_MAX: usize = 256;

/// Room of gimli's interpreter.
pub struct Storage;

impl<T: gimli::ReaderOffset> UnwindContextStorage<T> for Storage {
    type Rules = [(Register, RegisterRule<T>); RULES_MAX];
    type Stack = Box<[UnwindTableRow<T, Self>; STATES_MAX]>;
}

/// Largest number of FDEs kept of a file without an index, 16 bytes each.
pub const SCAN_ENTRIES_MAX: usize = 65536;

/// One FDE and its CIE, laid out as a section of their own.
#[derive(Debug, Default)]
pub struct Entry {
    /// The CIE's bytes, then the FDE's, whose distance to the CIE is corrected.
    pub bytes: Vec<u8>,
    /// Where the FDE begins in `bytes`.
    pub fde: usize,
    /// Address that gimli is told `bytes` begin at, so that pointers relative to the FDE's own
    /// address are right. The personality routine's pointer, relative to the CIE, is wrong then;
    /// the walker does not use it.
    pub address: u64,
}

/// gimli's interpreter of call frame instructions, made once.
pub type Interpreter = UnwindContext<usize, Storage>;

/// How to compute the CFA, the canonical frame address: the value of the stack pointer in the
/// caller, where it called.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Cfa {
    /// A register's value and a distance.
    Register(u8, i64),
    /// A DWARF expression.
    Expression(Box<[u8]>),
}

/// Where the caller's value of a register is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Saved {
    /// Lost; for the return address: there is no caller.
    Undefined,
    /// In the register, unchanged.
    Same,
    /// On the stack, at this distance from the CFA.
    At(i64),
    /// The value is the CFA and this distance.
    CfaPlus(i64),
    /// In another register.
    Register(u8),
    /// On the stack, where the expression says.
    AtExpression(Box<[u8]>),
    /// The expression's value.
    Expression(Box<[u8]>),
}

/// How a procedure changes the stack pointer. The unwind tables of C procedures describe every
/// change.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum StackPointer {
    /// The CFA follows from the rule, in the whole procedure.
    Followed,
    /// The procedure sets the stack pointer somewhere; after that instruction the rule does not
    /// hold.
    Unknown,
    /// The procedure loads the stack pointer with a `mov`; until then the rule holds. Its calls are
    /// the first on another stack.
    SwitchedForCalls,
    /// The same; the procedure calls others before, and changes back afterwards.
    SwitchedForSomeCalls,
    /// The procedure returns to another stack for its calls through pointers; there the rule holds.
    ReturnedForIndirectCalls,
    /// The procedure may set the stack pointer for a call, the first on another stack then. The
    /// register of the rule's CFA has kept the stack pointer, from an early instruction on.
    Kept,
}

/// One row of an unwind table.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Rule {
    pub cfa: Cfa,
    /// None where the table says nothing, so that the machine's custom holds.
    pub return_address: Option<Saved>,
    /// Other registers with a rule, by DWARF number.
    pub saved: Box<[(u8, Saved)]>,
    /// Whether this is code that a signal handler returns to (augmentation `S`), or that a signal
    /// handler lets the interrupted code go on with as if that had called it (Go).
    pub is_signal: bool,
    pub stack_pointer: StackPointer,
}

/// A rule and the addresses that it holds for. Addresses are the file's own.
#[derive(Debug)]
pub struct Row {
    /// First address of the procedure's FDE.
    pub entry: u64,
    pub begin: u64,
    pub end: u64,
    pub rule: Rule,
}

/// Why there is no rule.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum NoRule {
    /// No entry covers the address.
    NotCovered,
    /// The entry makes no sense to gimli, or needs what is not supported.
    Broken,
}

/// The row of `entry` for `address`.
pub fn row(
    entry: &Entry,
    machine: Machine,
    address: u64,
    interpreter: &mut Interpreter,
) -> Result<Row, NoRule> {
    let section = section(&entry.bytes, machine);
    let bases = bases(entry.address);
    let fde = section
        .fde_from_offset(&bases, entry.fde.into(), EhFrame::cie_from_offset)
        .map_err(|_| NoRule::Broken)?;
    if !is_plain(&fde) {
        return Err(NoRule::Broken);
    }
    if !fde.contains(address) {
        return Err(NoRule::NotCovered);
    }
    let row = fde
        .unwind_info_for_address(&section, &bases, interpreter, address)
        .map_err(|_| NoRule::Broken)?;
    let rule = rule(row, &section, &fde).ok_or(NoRule::Broken)?;
    let (begin, end) = (row.start_address(), row.end_address().min(fde.end_address()));
    Ok(Row { entry: fde.initial_address(), begin, end, rule })
}

/// The FDEs of a whole `.eh_frame` that begins at `address`: sorted (first address of the
/// procedure, address of the FDE), as many as [`SCAN_ENTRIES_MAX`].
pub fn first_addresses(bytes: &[u8], address: u64, machine: Machine) -> Vec<(u64, u64)> {
    let section = section(bytes, machine);
    let bases = bases(address);
    let mut entries = section.entries(&bases);
    let mut rows = Vec::new();
    let mut last_cie: Option<(gimli::EhFrameOffset, gimli::CommonInformationEntry<Reader<'_>>)> =
        None;
    while let Ok(Some(entry)) = entries.next() {
        let CieOrFde::Fde(partial) = entry else { continue };
        let fde = partial.parse(|section, bases, offset| match &last_cie {
            Some((known, cie)) if *known == offset => Ok(cie.clone()),
            _ => {
                let cie = section.cie_from_offset(bases, offset)?;
                last_cie = Some((offset, cie.clone()));
                Ok(cie)
            }
        });
        let Ok(fde) = fde else { continue };
        // Linkers keep the FDEs of procedures that they dropped, with address 0.
        if is_plain(&fde) && fde.initial_address() != 0 && rows.len() < SCAN_ENTRIES_MAX {
            rows.push((fde.initial_address(), address.wrapping_add(fde.offset() as u64)));
        }
    }
    rows.sort_unstable();
    rows
}

fn section(bytes: &[u8], machine: Machine) -> Section<'_> {
    let mut section = EhFrame::new(bytes, LittleEndian);
    section.set_address_size(machine.word_bytes());
    if machine == Machine::Aarch64 {
        section.set_vendor(Vendor::AArch64);
    }
    section
}

/// Base addresses for gimli, which parses no entry without them. Only pointers relative to their
/// own address get the right value; [`is_plain`] refuses entries with other code addresses.
fn bases(address: u64) -> BaseAddresses {
    BaseAddresses::default().set_eh_frame(address).set_text(0).set_got(0)
}

fn is_plain(fde: &FrameDescriptionEntry<Reader<'_>>) -> bool {
    let encoding = fde.cie().fde_address_encoding().unwrap_or(dw::DW_EH_PE_absptr);
    let is_relative_to = encoding.application();
    !encoding.is_indirect()
        && (is_relative_to == dw::DW_EH_PE_absptr || is_relative_to == dw::DW_EH_PE_pcrel)
}

fn rule(
    row: &UnwindTableRow<usize, Storage>,
    section: &Section<'_>,
    fde: &FrameDescriptionEntry<Reader<'_>>,
) -> Option<Rule> {
    let cfa = match row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => {
            Cfa::Register(general(*register)?, *offset)
        }
        CfaRule::Expression(expression) => Cfa::Expression(bytes_of(expression, section)?),
    };
    let return_column = fde.cie().return_address_register();
    let mut return_address = None;
    let mut saved = Vec::new();
    for (register, rule) in row.registers() {
        let found = match rule {
            RegisterRule::Undefined => Some(Saved::Undefined),
            RegisterRule::SameValue => Some(Saved::Same),
            RegisterRule::Offset(distance) => Some(Saved::At(*distance)),
            RegisterRule::ValOffset(distance) => Some(Saved::CfaPlus(*distance)),
            RegisterRule::Register(other) => general(*other).map(Saved::Register),
            RegisterRule::Expression(expression) => {
                bytes_of(expression, section).map(Saved::AtExpression)
            }
            RegisterRule::ValExpression(expression) => {
                bytes_of(expression, section).map(Saved::Expression)
            }
            // gimli's enum may grow; arm64's note that return addresses are signed is a constant.
            _ => None,
        };
        if *register == return_column {
            return_address = Some(found.clone()?);
        }
        if let Some(number) = general(*register) {
            saved.push((number, found?));
        }
    }
    saved.sort_unstable_by_key(|&(number, _)| number);
    let is_signal = fde.is_signal_trampoline();
    let (saved, stack_pointer) = (saved.into(), StackPointer::Followed);
    Some(Rule { cfa, return_address, saved, is_signal, stack_pointer })
}

fn general(register: Register) -> Option<u8> {
    u8::try_from(register.0).ok().filter(|&number| number < REGISTERS)
}

fn bytes_of(expression: &UnwindExpression<usize>, section: &Section<'_>) -> Option<Box<[u8]>> {
    let expression: gimli::Expression<Reader<'_>> = expression.get(section).ok()?;
    let bytes = expression.0.slice();
    (bytes.len() <= EXPRESSION_BYTES_MAX).then(|| bytes.into())
}
