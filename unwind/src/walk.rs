//! The walk.

use std::collections::HashMap;

use crate::call::{CALL_BYTES_MAX, Call, call_before};
use crate::frame::{End, FRAMES_MAX, Frame, Proof};
use crate::pages::{Pages, Work};
use crate::registers::{Machine, Registers};
use crate::rule::{self, Entry, Interpreter, NoRule, Saved};
use crate::rules::{Known, Rules, Site};
use crate::signal::{self, CONTEXT_START_BYTES, TRAMPOLINE_BYTES_MAX};
use crate::signal::{is_context_start, is_trampoline};
use crate::source::ReadAt;
use crate::space::{Code, Image, Space};
use crate::stack::{Stack, Window};
use crate::step;
use crate::table::{File, Table};

/// User addresses of arm64 Linux have 48 bits unless a program asks for 52; return addresses are
/// signed in the bits above.
const AARCH64_ADDRESS_MASK: u64 = (1 << 48) - 1;
/// Bytes of code at an ELF file's entry point that count as the program's first frame where no
/// table covers them: the dynamic loader's `_start` of Debian 12 has 61 (constructors run below
/// it), musl's 22.
const ENTRY_BYTES: u64 = 64;

struct Mapped {
    source: Box<dyn ReadAt + Send>,
    /// None until the first look.
    table: Option<Option<Table>>,
}

/// What the walker holds and did.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Bytes read from files so far.
    pub bytes_read: u64,
    /// Bytes of memory that pages of files take.
    pub page_bytes: usize,
    /// Bytes of memory that rules take, about.
    pub rule_bytes: usize,
    /// Bytes of memory that scanned indexes take.
    pub table_bytes: usize,
    /// Return addresses with their rules.
    pub sites: usize,
    /// Rows of unwind tables.
    pub rows: usize,
    /// Distinct rules.
    pub rules: usize,
    /// How often a full cache was emptied.
    pub emptied: u64,
}

/// Walks call stacks. Keeps files, pages of them, and rules between walks.
pub struct Unwinder {
    files: HashMap<u32, Mapped, foldhash::fast::FixedState>,
    next: u32,
    pages: Pages,
    rules: Rules,
    interpreter: Box<Interpreter>,
    entry: Entry,
    checks_calls: bool,
    aarch64_mask: u64,
}

/// How to go on from a frame.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum How {
    /// By the rule with this number.
    Rule(u32),
    /// By the registers that the kernel saved for a signal.
    Trampoline,
    /// By the frame pointer, or to this end.
    FramePointer(End),
    /// Not at all.
    End(End),
}

/// A frame and how to leave it.
struct Here {
    registers: Registers,
    frame: Frame,
    how: How,
    /// What loading added to the file's addresses.
    bias: u64,
    /// First address of the procedure, in the process's terms.
    procedure: Option<u64>,
    /// Whether the frame's address is that of an instruction to be executed next, not one that a
    /// call returns to.
    is_exact: bool,
}

/// A place in a file, as a walk meets it.
#[derive(Copy, Clone)]
struct Place {
    image: u32,
    offset: u64,
    /// The file's own address.
    address: u64,
    machine: Machine,
    entry: u64,
}

impl Default for Unwinder {
    fn default() -> Self {
        Self::new()
    }
}

impl Unwinder {
    /// Knows no file. Return addresses must follow calls.
    pub fn new() -> Self {
        Self {
            files: HashMap::default(),
            next: 0,
            pages: Pages::default(),
            rules: Rules::default(),
            interpreter: Box::new(Interpreter::new_in()),
            entry: Entry::default(),
            checks_calls: true,
            aarch64_mask: AARCH64_ADDRESS_MASK,
        }
    }

    /// Return addresses need not follow calls: for measurements of what the check costs and finds.
    pub fn without_call_checks(mut self) -> Self {
        self.checks_calls = false;
        self
    }

    /// Bits of arm64's return addresses that are the address; the others are its signature.
    pub fn with_aarch64_mask(mut self, mask: u64) -> Self {
        self.aarch64_mask = mask;
        self
    }

    /// Takes a file. Nothing is read before the first walk through it.
    pub fn add(&mut self, source: Box<dyn ReadAt + Send>) -> Image {
        let number = self.next;
        self.next += 1;
        self.files.insert(number, Mapped { source, table: None });
        Image(number)
    }

    /// Forgets a file, with all that is kept of it.
    pub fn remove(&mut self, image: Image) {
        self.files.remove(&image.0);
        self.pages.forget(image.0);
        self.rules.forget(image.0);
    }

    /// Forgets all that was read of files, but not the files.
    pub fn empty(&mut self) {
        self.files.keys().for_each(|&file| self.pages.forget(file));
        self.rules = Rules::default();
        self.files.values_mut().for_each(|file| file.table = None);
    }

    /// What the walker holds and did.
    pub fn figures(&self) -> Figures {
        let (sites, rows, rules) = self.rules.sizes();
        let tables = self.files.values().filter_map(|file| file.table.as_ref()?.as_ref());
        Figures {
            bytes_read: self.pages.bytes_read,
            page_bytes: self.pages.bytes(),
            rule_bytes: self.rules.bytes(),
            table_bytes: tables.map(Table::bytes).sum(),
            sites,
            rows,
            rules,
            emptied: self.rules.emptied,
        }
    }

    /// Replaces `frames` with the frames of the thread whose registers and copied stack these are,
    /// innermost first, and says why no more follow. `windows` begin where the stack pointer
    /// points, or at x86-64's red zone, 128 bytes below; a second window may hold words far above.
    pub fn walk(
        &mut self,
        registers: &Registers,
        windows: &[Window<'_>],
        space: &dyn Space,
        frames: &mut Vec<Frame>,
    ) -> End {
        frames.clear();
        let mut stack = Stack::new(windows);
        let mut work = Work::new();
        let mut here = self.innermost(registers, space, &mut work);
        loop {
            frames.push(here.frame);
            let caller = match self.leave(&here, &stack) {
                Ok(caller) => caller,
                // What was not read because of the work says nothing about the table.
                Err(End::NoUnwindInfo | End::Unreadable) if work.is_spent() => return End::Costly,
                Err(end) => return end,
            };
            if frames.len() >= FRAMES_MAX {
                return End::TooDeep;
            }
            match self.arrive(&here, caller, space, &mut work) {
                Ok(next) => {
                    if here.frame.proof == Proof::Signal && next.frame.proof == Proof::Signal {
                        stack.interrupted(&next.registers);
                    }
                    here = next;
                }
                Err(_) if work.is_spent() => return End::Costly,
                Err(end) => return end,
            }
        }
    }

    fn innermost(&mut self, registers: &Registers, space: &dyn Space, work: &mut Work) -> Here {
        let pc = registers.pc;
        let code = space.code_at(pc);
        let stack_pointer = registers.stack_pointer();
        let frame = Frame { address: pc, lookup: pc, code, stack_pointer, proof: Proof::Registers };
        self.exact(*registers, frame, work)
    }

    /// A frame whose address is that of an instruction to be executed next.
    fn exact(&mut self, registers: Registers, frame: Frame, work: &mut Work) -> Here {
        let end = End::Refused;
        let mut here =
            Here { registers, frame, how: How::End(end), bias: 0, procedure: None, is_exact: true };
        match frame.code {
            Code::None => {}
            Code::Generated { frame_pointers } => here.how = generated(frame_pointers),
            Code::File { frame_pointers, .. } => {
                let Some(place) = self.place(frame.code, registers.machine(), work) else {
                    here.how = uncovered(frame_pointers);
                    return here;
                };
                here.bias = frame.lookup.wrapping_sub(place.address);
                match self.known(place, work) {
                    Known::Rule { rule, entry } => {
                        here.how = How::Rule(rule);
                        here.procedure = Some(entry.wrapping_add(here.bias));
                    }
                    Known::None if self.is_trampoline_at(place, place.offset, work) => {
                        here.how = How::Trampoline;
                    }
                    Known::None => {
                        here.how = match self.after_system_call(place, work) {
                            Some(rule) => How::Rule(rule),
                            None => self.uncovered_at(frame_pointers, place, work),
                        }
                    }
                }
            }
        }
        here
    }

    /// The rule before a system call after which no table covers the code. glibc's `clone3` has no
    /// rule there, because a new thread comes out of the call as well, on another stack; the
    /// calling thread is there as long as the kernel works for it. For a new thread the rule finds
    /// no return address that follows a call, so only checked walks go on.
    fn after_system_call(&mut self, place: Place, work: &mut Work) -> Option<u32> {
        const SYSCALL: [u8; 2] = [0x0f, 0x05];
        if place.machine != Machine::X86_64 || !self.checks_calls {
            return None;
        }
        let mut code = [0; SYSCALL.len()];
        self.read_file(place.image, place.offset.checked_sub(2)?, &mut code, work)?;
        let (address, offset) = (place.address.checked_sub(3)?, place.offset.checked_sub(3)?);
        match self.known(Place { address, offset, ..place }, work) {
            Known::Rule { rule, .. } if code == SYSCALL => Some(rule),
            _ => None,
        }
    }

    /// The registers in the caller.
    fn leave(&self, here: &Here, stack: &Stack<'_>) -> Result<Registers, End> {
        let mut registers = here.registers;
        if registers.machine() == Machine::X86_64 {
            // PLTs' expressions name it.
            registers.set(Machine::X86_64.return_column(), Some(registers.pc));
        }
        let mut caller = match here.how {
            How::Rule(number) => {
                let rule = self.rules.rule(number).ok_or(End::Unreadable)?;
                step::by_rule(rule, &registers, stack, here.bias, here.is_exact)?
            }
            How::Trampoline => signal::interrupted(&registers, stack)?,
            How::FramePointer(without) => step::by_frame_pointer(&registers, stack, without)?,
            How::End(end) => return Err(end),
        };
        if caller.machine() == Machine::Aarch64 {
            caller.pc &= self.aarch64_mask;
        }
        Ok(caller)
    }

    /// The frame that `here` returns to with the registers `caller`, if it can be one.
    fn arrive(
        &mut self,
        here: &Here,
        caller: Registers,
        space: &dyn Space,
        work: &mut Work,
    ) -> Result<Here, End> {
        let was_signal = match here.how {
            How::Rule(number) => self.rules.rule(number).is_some_and(|rule| rule.is_signal),
            how => how == How::Trampoline,
        };
        let (address, stack_pointer) = (caller.pc, caller.stack_pointer());
        if was_signal {
            let code = space.code_at(address);
            let proof = Proof::Signal;
            let frame = Frame { address, lookup: address, code, stack_pointer, proof };
            return Ok(self.exact(caller, frame, work));
        }
        if address == 0 && caller.frame_pointer() == Some(0) {
            return Err(End::Whole);
        }
        let lookup = address.wrapping_sub(1);
        let code = space.code_at(lookup);
        let frame = Frame { address, lookup, code, stack_pointer, proof: Proof::Unchecked };
        let mut next = Here {
            registers: caller,
            frame,
            how: How::End(End::Refused),
            bias: 0,
            procedure: None,
            is_exact: false,
        };
        // Go's goroutines begin as if `goexit` had called them.
        let is_first =
            matches!(here.how, How::FramePointer(_)) && caller.frame_pointer() == Some(0);
        match code {
            Code::None => return Err(End::Refused),
            Code::Generated { frame_pointers } => {
                next.how = generated(frame_pointers);
                let call = self.generated_call(&next.frame, caller.machine(), space);
                next.frame.proof = proof(call, here.procedure, 0, is_first)?;
            }
            Code::File { frame_pointers, .. } => {
                let Some(place) = self.place(code, caller.machine(), work) else {
                    next.how = uncovered(frame_pointers);
                    return Ok(next);
                };
                next.bias = lookup.wrapping_sub(place.address);
                let site = self.site(place, work);
                self.classify(&mut next, site, place, frame_pointers, work);
                if next.frame.proof != Proof::Signal {
                    let is_first = is_first || self.ends_at(next.how);
                    next.frame.proof = proof(site.call, here.procedure, next.bias, is_first)?;
                }
            }
        }
        Ok(next)
    }

    /// How to go on from a return address, and whether it is a signal's.
    fn classify(
        &mut self,
        next: &mut Here,
        site: Site,
        place: Place,
        frame_pointers: bool,
        work: &mut Work,
    ) {
        let mut is_signal = false;
        match site.known {
            Known::Rule { rule, entry } => {
                next.how = How::Rule(rule);
                next.procedure = Some(entry.wrapping_add(next.bias));
                is_signal = self.rules.rule(rule).is_some_and(|rule| rule.is_signal);
            }
            Known::None => next.how = self.uncovered_at(frame_pointers, place, work),
        }
        let is_odd = site.known == Known::None || site.call == Some(Call::None);
        if !is_signal && is_odd && self.is_trampoline_at(place, place.offset + 1, work) {
            is_signal = true;
            next.how = How::Trampoline;
        }
        if is_signal {
            next.frame.proof = Proof::Signal;
            next.is_exact = true;
        } else if site.call == Some(Call::None) && !self.ends_at(next.how) {
            self.start_of_context(next, place, work);
        }
    }

    /// A context of its own (glibc's `makecontext`) begins as if the first instruction of
    /// `__start_context` had called it. The table of that procedure (glibc 2.36) does not say that
    /// it has no caller, so its first instruction has to.
    fn start_of_context(&mut self, next: &mut Here, place: Place, work: &mut Work) {
        let (address, offset) = (place.address.wrapping_add(1), place.offset.wrapping_add(1));
        let known = self.known(Place { address, offset, ..place }, work);
        if !matches!(known, Known::Rule { entry, .. } if entry == address) {
            return;
        }
        let mut code = [0; CONTEXT_START_BYTES];
        let is_read = self.read_file(place.image, offset, &mut code, work).is_some();
        if is_read && is_context_start(place.machine, &code) {
            next.how = How::End(End::Whole);
            next.is_exact = true;
        }
    }

    /// Whether the table says that the frame has no caller: nothing has called it then.
    fn ends_at(&self, how: How) -> bool {
        match how {
            How::Rule(number) => {
                let rule = self.rules.rule(number);
                rule.is_some_and(|rule| rule.return_address == Some(Saved::Undefined))
            }
            how => how == How::End(End::Whole),
        }
    }

    /// As [`uncovered`] says, but for the first frame of a program whose entry point no table covers either.
    fn uncovered_at(&mut self, frame_pointers: bool, place: Place, work: &mut Work) -> How {
        let into = place.address.checked_sub(place.entry);
        let is_near = into.is_some_and(|into| into < ENTRY_BYTES);
        let entry = Place { address: place.entry, ..place };
        if is_near && self.known(entry, work) == Known::None && !work.is_spent() {
            return How::End(End::Whole);
        }
        uncovered(frame_pointers)
    }

    fn place(&mut self, code: Code, machine: Machine, work: &mut Work) -> Option<Place> {
        let Code::File { image, offset, .. } = code else { return None };
        let file = self.files.get_mut(&image.0)?;
        if file.table.is_none() && !work.is_spent() {
            let source = &*file.source;
            let mut reader = File { number: image.0, source, pages: &mut self.pages, work };
            file.table = Some(Table::read(&mut reader));
        }
        let headers = &file.table.as_ref()?.as_ref()?.headers;
        let address = headers.address(offset).filter(|_| headers.machine == machine)?;
        Some(Place { image: image.0, offset, address, machine, entry: headers.entry })
    }

    /// The rule at an address.
    fn known(&mut self, place: Place, work: &mut Work) -> Known {
        if let Some(known) = self.rules.row((place.image, place.address)) {
            return known;
        }
        let row = self.read_row(place, work);
        match row {
            Ok(row) => self.rules.add_row(place.image, row),
            Err(_) => Known::None,
        }
    }

    fn read_row(&mut self, place: Place, work: &mut Work) -> Result<rule::Row, NoRule> {
        let file = self.files.get(&place.image).ok_or(NoRule::NotCovered)?;
        let table = file.table.as_ref().and_then(Option::as_ref).ok_or(NoRule::NotCovered)?;
        let source = &*file.source;
        let mut reader = File { number: place.image, source, pages: &mut self.pages, work };
        table.find(&mut reader, place.address, &mut self.entry).ok_or(NoRule::NotCovered)?;
        rule::row(&self.entry, place.machine, place.address, &mut self.interpreter)
    }

    /// What is known of the return address after `place`.
    fn site(&mut self, place: Place, work: &mut Work) -> Site {
        let key = (place.image, place.address);
        if let Some(site) = self.rules.site(key) {
            return site;
        }
        let known = self.known(place, work);
        let call = if self.checks_calls { self.call_in_file(place, work) } else { None };
        let site = Site { known, call };
        if !work.is_spent() {
            self.rules.add_site(key, site);
        }
        site
    }

    fn call_in_file(&mut self, place: Place, work: &mut Work) -> Option<Call> {
        let end = place.offset.checked_add(1)?;
        let begin = end.saturating_sub(CALL_BYTES_MAX as u64);
        let mut bytes = [0; CALL_BYTES_MAX];
        let bytes = bytes.get_mut(..usize::try_from(end - begin).ok()?)?;
        self.read_file(place.image, begin, bytes, work)?;
        Some(call_before(place.machine, bytes, place.address.wrapping_add(1)))
    }

    fn generated_call(&self, frame: &Frame, machine: Machine, space: &dyn Space) -> Option<Call> {
        let mut bytes = [0; CALL_BYTES_MAX];
        let begin = frame.address.checked_sub(CALL_BYTES_MAX as u64)?;
        let read = if self.checks_calls { space.read_code(begin, &mut bytes) } else { 0 };
        (read == bytes.len()).then(|| call_before(machine, &bytes, frame.address))
    }

    fn is_trampoline_at(&mut self, place: Place, offset: u64, work: &mut Work) -> bool {
        let mut bytes = [0; TRAMPOLINE_BYTES_MAX];
        // The code may be the last of its file.
        (7..=TRAMPOLINE_BYTES_MAX).rev().any(|len| {
            let Some(bytes) = bytes.get_mut(..len) else { return false };
            self.read_file(place.image, offset, bytes, work).is_some()
                && is_trampoline(place.machine, bytes)
        })
    }

    fn read_file(
        &mut self,
        image: u32,
        offset: u64,
        into: &mut [u8],
        work: &mut Work,
    ) -> Option<()> {
        let source = &*self.files.get(&image)?.source;
        self.pages.read_once(source, offset, into, work)
    }
}

/// How to go on from code made at run time.
fn generated(frame_pointers: bool) -> How {
    if frame_pointers { How::FramePointer(End::Generated) } else { How::End(End::Generated) }
}

/// How to go on from code of a file that no table covers.
fn uncovered(frame_pointers: bool) -> How {
    let end = End::NoUnwindInfo;
    if frame_pointers { How::FramePointer(end) } else { How::End(end) }
}

/// The proof of a return address, or its refusal. `below` is the first address of the procedure
/// that returns there.
fn proof(call: Option<Call>, below: Option<u64>, bias: u64, is_first: bool) -> Result<Proof, End> {
    match call {
        Some(Call::Direct(target)) if Some(target.wrapping_add(bias)) == below => Ok(Proof::Called),
        Some(Call::Direct(_) | Call::Indirect) => Ok(Proof::Call),
        Some(Call::None) if is_first => Ok(Proof::Unchecked),
        Some(Call::None) => Err(End::Refused),
        None => Ok(Proof::Unchecked),
    }
}
