//! The walk.

use crate::call::{CALL_BYTES_MAX, Call, call_before};
use crate::frame::{End, FRAMES_MAX, Frame, Proof};
use crate::goroutine::Goroutine;
use crate::lookup::{Lookup, Place};
use crate::pages::Work;
use crate::prologue::{BEFORE_BYTES, CODE_BYTES, Record, frame_at};
use crate::registers::{Machine, Registers};
use crate::rule::Saved;
use crate::rules::{Known, Site};
use crate::signal;
use crate::simple::{
    self, BLOCK_BYTES, CHECKED_BEFORE, CHECKED_BYTES, Extent, FrameRule, Learnt, code_check,
};
use crate::source::ReadAt;
use crate::space::{Code, GeneratedFrame, Image, Space};
use crate::stack::{Stack, Window};
use crate::step;

/// User addresses of arm64 Linux have 48 bits unless a program asks for 52; return addresses are
/// signed in the bits above.
const AARCH64_ADDRESS_MASK: u64 = (1 << 48) - 1;

/// The walker's size and counters.
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
    lookup: Lookup,
    aarch64_mask: u64,
    learnt: Vec<Learnt>,
    /// The place where the simple walker found no rule.
    missed: Option<u64>,
}

/// How to go on from a frame.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum How {
    /// By the rule with this number.
    Rule(u32),
    /// By the registers that the kernel saved for a signal.
    Trampoline,
    FramePointer(Record, End),
    /// By the rule that the maker of generated code has for it.
    Told(FrameRule),
    /// On the stack of a goroutine, which is not copied.
    Goroutine(Goroutine),
    /// Not at all.
    End(End),
}

/// A frame and how to leave it.
struct Here {
    registers: Registers,
    frame: Frame,
    how: How,
    /// The load bias of the file.
    bias: u64,
    /// First address of the procedure, in the process's terms.
    procedure: Option<u64>,
    /// Whether the frame's address is that of an instruction to be executed next, not one that a
    /// call returns to.
    is_exact: bool,
    /// Whether `how` follows from the file alone.
    is_of_file: bool,
    /// [`code_check`] of the code here, if it could be read.
    check: Option<u16>,
    place: Option<Place>,
    /// Whether a signal handler returns here.
    is_trampoline: bool,
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
            lookup: Lookup::new(),
            aarch64_mask: AARCH64_ADDRESS_MASK,
            learnt: Vec::new(),
            missed: None,
        }
    }

    /// Return addresses need not follow calls: for measurements of what the check costs and finds.
    pub fn without_call_checks(mut self) -> Self {
        self.lookup.checks_calls = false;
        self
    }

    /// Bits of arm64's return addresses that are the address; the others are its signature.
    pub fn with_aarch64_mask(mut self, mask: u64) -> Self {
        self.aarch64_mask = mask;
        self
    }

    /// Takes a file. Nothing is read before the first walk through it.
    pub fn add(&mut self, source: Box<dyn ReadAt + Send>) -> Image {
        Image(self.lookup.add(source))
    }

    /// Forgets a file, with all that is kept of it.
    pub fn remove(&mut self, image: Image) {
        self.lookup.remove(image.0);
    }

    /// Forgets all that was read of files, but not the files.
    pub fn empty(&mut self) {
        self.lookup.empty();
    }

    /// The walker's size and counters.
    pub fn figures(&self) -> Figures {
        let (sites, rows, rules) = self.lookup.rules.sizes();
        Figures {
            bytes_read: self.lookup.pages.bytes_read,
            page_bytes: self.lookup.pages.bytes(),
            rule_bytes: self.lookup.rules.bytes(),
            table_bytes: self.lookup.table_bytes(),
            sites,
            rows,
            rules,
            emptied: self.lookup.rules.emptied,
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
        self.walk_from(registers, true, windows, space, frames)
    }

    /// Goes on with a walk in a frame that has called the one below, of whose registers the program
    /// counter, the stack pointer and the frame pointer are known. As [`Self::walk`] otherwise.
    pub fn resume(
        &mut self,
        registers: &Registers,
        windows: &[Window<'_>],
        space: &dyn Space,
        frames: &mut Vec<Frame>,
    ) -> End {
        self.walk_from(registers, false, windows, space, frames)
    }

    fn walk_from(
        &mut self,
        registers: &Registers,
        is_innermost: bool,
        windows: &[Window<'_>],
        space: &dyn Space,
        frames: &mut Vec<Frame>,
    ) -> End {
        frames.clear();
        self.learnt.clear();
        self.lookup.rules.make_room();
        let mut stack = Stack::new(registers.machine(), windows);
        let mut work = Work::new();
        match self.first(registers, is_innermost, space, &mut work) {
            Ok(here) => self.walk_stack(here, &mut stack, space, frames, work),
            Err(end) => end,
        }
    }

    /// Tells the place where the simple walker found no rule: as [`Learnt::address`], of a call or
    /// of the next instruction. What is around it is learnt in the next walk, also where it was
    /// learnt before.
    pub fn missed(&mut self, place: Option<u64>) {
        self.missed = place;
    }

    /// The rules of the frames of the last walk, the innermost frame's first. None of frames that
    /// were not proved.
    pub fn learnt(&self) -> &[Learnt] {
        &self.learnt
    }

    fn walk_stack(
        &mut self,
        mut here: Here,
        stack: &mut Stack<'_>,
        space: &dyn Space,
        frames: &mut Vec<Frame>,
        mut work: Work,
    ) -> End {
        loop {
            frames.push(Frame { record: here.record(), ..here.frame });
            self.learn(&here, space, &mut work);
            let caller = match self.leave(&here, stack) {
                Ok(caller) => caller,
                // A failure due to the work limit says nothing about the table.
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

    /// The frame that a walk begins in.
    fn first(
        &mut self,
        registers: &Registers,
        is_innermost: bool,
        space: &dyn Space,
        work: &mut Work,
    ) -> Result<Here, End> {
        let pc = registers.pc;
        let code = space.code_at(pc);
        let stack_pointer = registers.stack_pointer();
        let (record, proof) = (None, Proof::Registers);
        let frame = Frame { address: pc, lookup: pc, code, stack_pointer, record, proof };
        if is_innermost {
            return Ok(self.exact(*registers, frame, space, work));
        }
        self.arrive(&Here::new(*registers, frame, false), *registers, space, work)
    }

    /// Notes the rule of a frame for [`Self::learnt`].
    fn learn(&mut self, here: &Here, space: &dyn Space, work: &mut Work) {
        let Some(check) = here.check else { return };
        let (frame, machine) = (here.frame, here.registers.machine());
        if machine == Machine::X86 {
            return; // the sampler does not walk its stacks
        }
        // What is accepted unchecked as the first frame of a thread may be no frame elsewhere.
        if frame.proof == Proof::Unchecked && here.how != How::End(End::Whole) {
            return;
        }
        let is_returned_to = frame.lookup != frame.address || here.is_trampoline;
        let address = frame.address.wrapping_sub(is_returned_to.into());
        let rule = match here.how {
            How::Rule(number) => match self.lookup.rule(number) {
                Some(rule) => simple::of_row(rule, machine, address, here.is_exact),
                None => return,
            },
            How::Trampoline => FrameRule::Signal,
            How::FramePointer(record, _) => simple::of_record(record, machine),
            How::Told(rule) => rule,
            How::Goroutine(goroutine) => FrameRule::Goroutine(goroutine),
            How::End(end) => FrameRule::End(end),
        };
        let is_of_file = here.is_of_file;
        let is_missed = self.missed.is_some_and(|missed| missed == address);
        let (mut is_covered, mut is_lost) = (false, false);
        if let (Some(place), How::Rule(_)) = (here.place, here.how) {
            let around = self.lookup.around(place, is_missed, work);
            is_lost = is_missed && around.told.is_some();
            is_covered = around.told == Some(true);
            for mut learnt in around.learnt {
                learnt.address = learnt.address.wrapping_add(here.bias);
                is_covered |= learnt.says(address, rule);
                self.learnt.push(learnt);
            }
        }
        if let Code::Generated { .. } = frame.code
            && let Some(block) = learnt_block(space, address)
        {
            is_covered = block.says(address, rule);
            self.learnt.push(block);
        }
        // A call that the sampler has missed again may be in code that it cannot read, where it
        // does not believe rules of blocks.
        if !is_covered || (is_lost && is_returned_to) {
            let extent = if is_returned_to { Extent::Call } else { Extent::Next };
            let then = Vec::new();
            self.learnt.push(Learnt { address, extent, rule, then, check, is_of_file });
        }
    }

    /// A frame whose address is that of an instruction to be executed next.
    fn exact(
        &mut self,
        registers: Registers,
        frame: Frame,
        space: &dyn Space,
        work: &mut Work,
    ) -> Here {
        let mut here = Here::new(registers, frame, true);
        match frame.code {
            Code::None => {}
            Code::Generated { frame_pointers } => {
                let told = space.generated_frame(frame.address, true);
                here.how = told.map_or(generated(frame_pointers), |told| How::told(told.rule));
                let begin = frame.address.saturating_sub(BEFORE_BYTES as u64);
                here.look_at_code(|code| space.read_code(begin, code));
                here.check = check_of(space, frame.address);
            }
            Code::File { image, offset, frame_pointers } => {
                match self.lookup.place(image.0, offset, registers.machine(), work) {
                    Some(place) => {
                        let known = self.lookup.exact(place, work);
                        here.know(known, place, frame_pointers);
                        let back = -(BEFORE_BYTES as i64);
                        here.look_at_code(|code| self.lookup.read_from(place, back, code, work));
                        here.check = self.lookup.check(place, work);
                    }
                    None => here.how = uncovered(frame_pointers),
                }
            }
        }
        here
    }

    /// The registers in the caller.
    fn leave(&self, here: &Here, stack: &Stack<'_>) -> Result<Registers, End> {
        let mut registers = here.registers;
        if registers.machine().pushes_return_address() {
            // PLTs' expressions name it.
            registers.set(registers.machine().return_column(), Some(registers.pc));
        }
        let mut caller = match here.how {
            How::Rule(number) => {
                let rule = self.lookup.rule(number).ok_or(End::Unreadable)?;
                step::by_rule(rule, &registers, stack, here.bias, here.is_exact)?
            }
            How::Trampoline => signal::interrupted(&registers, stack)?,
            How::FramePointer(record, without) => {
                step::by_frame_pointer(&registers, stack, record, without)?
            }
            How::Told(rule) => step::by_frame_rule(rule, &registers, stack, here.is_exact)?,
            How::Goroutine(_) => return Err(End::Window),
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
        let was_signal = self.is_signal(here.how);
        let (address, stack_pointer) = (caller.pc, caller.stack_pointer());
        if was_signal {
            let code = space.code_at(address);
            let (record, proof) = (None, Proof::Signal);
            let frame = Frame { address, lookup: address, code, stack_pointer, record, proof };
            return Ok(self.exact(caller, frame, space, work));
        }
        let lookup = address.wrapping_sub(1);
        let code = space.code_at(lookup);
        let (record, unchecked) = (None, Proof::Unchecked);
        let frame = Frame { address, lookup, code, stack_pointer, record, proof: unchecked };
        let mut next = Here::new(caller, frame, false);
        // Go's goroutines begin as if `goexit` had called them.
        let is_first =
            matches!(here.how, How::FramePointer(..)) && caller.frame_pointer() == Some(0);
        match code {
            Code::None => return Err(End::Refused),
            Code::Generated { frame_pointers } => {
                let told = space.generated_frame(lookup, false);
                next.how = told.map_or(generated(frame_pointers), |told| How::told(told.rule));
                let call = match told {
                    Some(GeneratedFrame { follows_call: false, .. }) => Some(Call::Indirect),
                    _ => self.generated_call(&next.frame, caller.machine(), space),
                };
                next.frame.proof = proof(call, here.procedure, 0, is_first)?;
                next.check = check_of(space, lookup);
            }
            Code::File { image, offset, frame_pointers } => {
                let Some(place) = self.lookup.place(image.0, offset, caller.machine(), work) else {
                    next.how = uncovered(frame_pointers);
                    return Ok(next);
                };
                let Site { known, call, check } = self.lookup.site(place, work);
                next.know(known, place, frame_pointers);
                next.check = check;
                if self.is_signal(next.how) {
                    next.frame.proof = Proof::Signal;
                    // Nothing has called the trampoline: the code before it is another procedure's.
                    next.frame.lookup = address;
                    (next.is_exact, next.is_trampoline) = (true, true);
                } else {
                    let is_first = is_first || self.ends_at(next.how);
                    next.frame.proof = proof(call, here.procedure, next.bias, is_first)?;
                }
            }
        }
        Ok(next)
    }

    /// Whether the code is what signal handlers return to.
    fn is_signal(&self, how: How) -> bool {
        match how {
            How::Rule(number) => self.lookup.rule(number).is_some_and(|rule| rule.is_signal),
            how => how == How::Trampoline,
        }
    }

    /// Whether the frame has no caller: nothing has called it then.
    fn ends_at(&self, how: How) -> bool {
        match how {
            How::Rule(number) => {
                let rule = self.lookup.rule(number);
                rule.is_some_and(|rule| rule.return_address == Some(Saved::Undefined))
            }
            how => how == How::End(End::Whole),
        }
    }

    fn generated_call(&self, frame: &Frame, machine: Machine, space: &dyn Space) -> Option<Call> {
        let mut bytes = [0; CALL_BYTES_MAX];
        let begin = frame.address.checked_sub(CALL_BYTES_MAX as u64)?;
        let read = if self.lookup.checks_calls { space.read_code(begin, &mut bytes) } else { 0 };
        (read == bytes.len()).then(|| call_before(machine, &bytes, frame.address))
    }
}

impl How {
    fn told(rule: FrameRule) -> Self {
        match rule {
            FrameRule::FramePointer => Self::FramePointer(Record::FramePointer, End::Generated),
            FrameRule::End(end) => Self::End(end),
            rule => Self::Told(rule),
        }
    }
}

impl Here {
    fn new(registers: Registers, frame: Frame, is_exact: bool) -> Self {
        Self {
            registers,
            frame,
            how: How::End(End::Refused),
            bias: 0,
            procedure: None,
            is_exact,
            is_of_file: false,
            check: None,
            place: None,
            is_trampoline: false,
        }
    }

    /// [`Frame::record`].
    fn record(&self) -> Option<u64> {
        let is_kept = matches!(
            self.how,
            How::FramePointer(Record::FramePointer, _) | How::Told(FrameRule::KeptStackPointer(_))
        );
        self.registers.frame_pointer().filter(|_| is_kept)
    }

    /// Finds the innermost frame's record, if frame pointers are to be followed. `read` copies the
    /// code from [`BEFORE_BYTES`] before the next instruction on.
    fn look_at_code(&mut self, read: impl FnOnce(&mut [u8]) -> usize) {
        let How::FramePointer(record, _) = &mut self.how else { return };
        let mut code = [0; CODE_BYTES];
        if read(&mut code) == CODE_BYTES {
            *record = frame_at(self.registers.machine(), &code);
        }
    }

    /// Uses the cached rule for the frame's code.
    fn know(&mut self, known: Known, place: Place, frame_pointers: bool) {
        self.bias = self.frame.lookup.wrapping_sub(place.address);
        self.place = Some(place);
        // Whether code without table keeps frame pointers is known of a process.
        self.is_of_file = known != Known::None;
        self.how = match known {
            Known::Rule { rule, entry } => {
                self.procedure = Some(entry.wrapping_add(self.bias));
                How::Rule(rule)
            }
            Known::Trampoline => How::Trampoline,
            Known::First => How::End(End::Whole),
            Known::Goroutine(goroutine) => How::Goroutine(goroutine),
            Known::NoRule => How::End(End::NoUnwindInfo),
            Known::None => uncovered(frame_pointers && !place.is_go),
        };
    }
}

/// [`code_check`] of generated code around an address.
fn check_of(space: &dyn Space, address: u64) -> Option<u16> {
    let mut code = [0; CHECKED_BYTES];
    let read = space.read_code(address.checked_sub(CHECKED_BEFORE)?, &mut code);
    (read == code.len()).then(|| code_check(&code))
}

/// The rules of the block of generated code around an address.
fn learnt_block(space: &dyn Space, address: u64) -> Option<Learnt> {
    let begin = address & !(BLOCK_BYTES - 1);
    let mut rows = simple::fewer(space.generated_block(begin)?).into_iter();
    let (_, rule) = rows.next()?;
    let mut code = [0; CHECKED_BYTES];
    let read = space.read_code(begin, &mut code);
    let then = rows.filter_map(|(from, rule)| Some((u8::try_from(from).ok()?, rule))).collect();
    let (extent, check) = (Extent::Block, code_check(&code));
    let learnt = Learnt { address: begin, extent, rule, then, check, is_of_file: false };
    (read == code.len()).then_some(learnt)
}

/// How to go on from code made at run time.
fn generated(frame_pointers: bool) -> How {
    if frame_pointers {
        How::FramePointer(Record::FramePointer, End::Generated)
    } else {
        How::End(End::Generated)
    }
}

/// How to go on from code of a file that no table covers.
fn uncovered(frame_pointers: bool) -> How {
    let end = End::NoUnwindInfo;
    if frame_pointers { How::FramePointer(Record::FramePointer, end) } else { How::End(end) }
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
