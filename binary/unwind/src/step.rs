//! One step: from the registers in a frame to those in its caller.

use crate::expression::{self, NoValue};
use crate::frame::End;
use crate::prologue::Record;
use crate::registers::{Machine, Registers};
use crate::rule::{Cfa, Rule, Saved, StackPointer};
use crate::simple::{Base, FRAME_LOST, FrameRule};
use crate::stack::{Missing, Stack};

impl From<Missing> for End {
    fn from(missing: Missing) -> Self {
        match missing {
            Missing::NotCopied => Self::Window,
            Missing::NoStack => Self::Unreadable,
        }
    }
}

impl From<NoValue> for End {
    fn from(no_value: NoValue) -> Self {
        match no_value {
            NoValue::Missing(missing) => missing.into(),
            NoValue::Unknown => Self::Unreadable,
        }
    }
}

/// The state of a step by rule.
struct Step<'a> {
    registers: &'a Registers,
    stack: &'a Stack<'a>,
    cfa: u64,
    bias: u64,
    /// Whether the procedure has restored its registers although the table says that they are
    /// saved.
    is_restored: bool,
}

/// Bytes below the stack pointer in which a procedure's words still are what they were (System V
/// ABI, AMD64 supplement, section 3.2.2).
const RED_ZONE: u64 = 128;

/// The caller's registers by the rule of a table; `bias` is what loading added to the file's
/// addresses. `is_exact` says that the frame is the innermost, or was interrupted.
pub fn by_rule(
    rule: &Rule,
    registers: &Registers,
    stack: &Stack<'_>,
    bias: u64,
    is_exact: bool,
) -> Result<Registers, End> {
    let machine = registers.machine();
    if rule.return_address == Some(Saved::Undefined) {
        return Err(End::Whole);
    }
    let changes_stack = |&(number, _): &(u8, Saved)| number == machine.stack_pointer();
    if !rule.is_signal && rule.saved.iter().any(changes_stack) {
        // longjmp and setcontext: the table says where they jump to, not who called them.
        return Err(End::Refused);
    }
    let cfa = match &rule.cfa {
        Cfa::Register(number, distance) => {
            registers.get(*number).ok_or(End::Unreadable)?.wrapping_add_signed(*distance)
        }
        Cfa::Expression(code) => expression::evaluate(code, None, registers, stack, bias)?,
    };
    if rule.stack_pointer == StackPointer::Kept
        && !registers.stack_pointer().is_some_and(|top| is_kept_near(top, &rule.cfa, registers))
    {
        // The procedure has called on another stack.
        return Err(End::Whole);
    }
    // All machines keep stack pointers aligned to at least that.
    if cfa % u64::from(machine.word_bytes()) != 0 {
        return Err(End::Refused);
    }
    let mut step = Step { registers, stack, cfa, bias, is_restored: false };
    step.is_restored = !rule.is_signal && step.has_restored(rule);
    let return_address = match (&rule.return_address, machine) {
        (Some(saved), _) => step.value(machine.return_column(), saved)?,
        // A procedure of arm64 that calls none leaves the return address in its register.
        (None, Machine::Aarch64) => {
            registers.get(machine.return_column()).ok_or(End::Unreadable)?
        }
        (None, Machine::X86 | Machine::X86_64) => return Err(End::NoUnwindInfo),
    };
    if !rule.is_signal
        && let Some(before) = registers.stack_pointer()
    {
        // Before the innermost procedure has put anything on the stack (arm64), and where it has
        // taken the return address off it (x86-64's vfork).
        let has_grown = cfa > before || (cfa == before && is_exact);
        if !has_grown {
            return Err(End::Loop);
        }
    }
    let mut caller = *registers;
    caller.pc = return_address;
    caller.set(machine.stack_pointer(), Some(cfa));
    for (number, saved) in &rule.saved {
        // A register whose word is not there is unknown, which matters only if a frame needs it.
        caller.set(*number, step.value(*number, saved).ok());
    }
    if !rule.is_signal && machine == Machine::Aarch64 {
        // The call has overwritten it; only a procedure that saved it has a return address.
        caller.set(machine.return_column(), None);
    }
    Ok(caller)
}

/// Farthest that a kept stack pointer is above the one at a call on the same stack, in bytes: room
/// for results, and alignment.
const KEPT_ABOVE_MAX: u64 = 64;

/// Whether the register of the CFA, which has kept the stack pointer, is on the stack of `top`.
fn is_kept_near(top: u64, cfa: &Cfa, registers: &Registers) -> bool {
    let kept = match cfa {
        Cfa::Register(number, _) => registers.get(*number),
        Cfa::Expression(_) => None,
    };
    kept.and_then(|kept| kept.checked_sub(top)).is_some_and(|above| above <= KEPT_ABOVE_MAX)
}

impl Step<'_> {
    /// Whether the frame pointer is the caller's again, and with it all registers that the table
    /// says to be saved in relation to it. Procedures that align their stack address everything
    /// through the frame pointer, and gcc (12 at least) does not say in the last instructions,
    /// from `leave` to `ret`, that it is restored. By the table the caller's caller's frame
    /// pointer would then be taken for the caller's, and a frame would be missing. A frame's words
    /// lie between its stack pointer and its CFA; the caller's frame pointer points elsewhere.
    fn has_restored(&self, rule: &Rule) -> bool {
        let number = self.registers.machine().frame_pointer();
        let saved = rule.saved.iter().find(|(saved, _)| *saved == number);
        let Some((_, Saved::AtExpression(code))) = saved else { return false };
        let Some(top) = self.registers.stack_pointer() else { return false };
        match self.evaluate(code) {
            Ok(word) => !(top.saturating_sub(RED_ZONE)..self.cfa).contains(&word),
            Err(_) => false,
        }
    }

    fn evaluate(&self, code: &[u8]) -> Result<u64, NoValue> {
        expression::evaluate(code, Some(self.cfa), self.registers, self.stack, self.bias)
    }

    fn value(&self, number: u8, saved: &Saved) -> Result<u64, End> {
        match saved {
            Saved::Undefined => Err(End::Unreadable),
            Saved::Same => self.registers.get(number).ok_or(End::Unreadable),
            Saved::At(distance) => Ok(self.stack.word(self.cfa.wrapping_add_signed(*distance))?),
            Saved::CfaPlus(distance) => Ok(self.cfa.wrapping_add_signed(*distance)),
            Saved::Register(other) => self.registers.get(*other).ok_or(End::Unreadable),
            Saved::AtExpression(_) if self.is_restored => {
                self.registers.get(number).ok_or(End::Unreadable)
            }
            Saved::AtExpression(code) => Ok(self.stack.word(self.evaluate(code)?)?),
            Saved::Expression(code) => Ok(self.evaluate(code)?),
        }
    }
}

/// Bytes that a frame pointer goes down by from one stack to another, at least; on one stack it
/// never goes down.
const OTHER_STACK: u64 = 64 << 10;

/// The caller's registers by the frame record that the frame pointer points to: the caller's frame
/// pointer and the return address (System V ABI, AMD64 supplement, section 3.2.2; AAPCS64, section
/// 6.2.3). `record` says where that is, `without` is the end if there is none.
pub fn by_frame_pointer(
    registers: &Registers,
    stack: &Stack<'_>,
    record: Record,
    without: End,
) -> Result<Registers, End> {
    let machine = registers.machine();
    let frame = match record {
        Record::FramePointer => registers.frame_pointer().ok_or(without)?,
        Record::StackPointer => registers.stack_pointer().ok_or(without)?,
        Record::None => return by_call(registers, stack, without),
    };
    if frame == 0 {
        return Err(End::Whole);
    }
    let is_below = registers.stack_pointer().is_some_and(|stack| frame < stack);
    let word_bytes = u64::from(machine.word_bytes());
    if is_below || frame % word_bytes != 0 {
        return Err(without);
    }
    let callers = stack.word(frame)?;
    let return_address = stack.word(frame.wrapping_add(word_bytes))?;
    // Of 32-bit x86 the vdso alone keeps frame pointers, and its callers need not.
    if machine != Machine::X86 && callers != 0 && callers <= frame {
        // Go's scheduler runs on a stack of its own and links its frames to the goroutine's.
        let is_other_stack = frame - callers > OTHER_STACK;
        return Err(if is_other_stack { End::Window } else { End::Loop });
    }
    let mut caller = Registers::new(machine, return_address);
    caller.set(machine.frame_pointer(), Some(callers));
    if machine.pushes_return_address() {
        // arm64's frame record is at the lower end of its frame and does not contain the frame's
        // size.
        caller.set(machine.stack_pointer(), Some(frame.wrapping_add(2 * word_bytes)));
    }
    Ok(caller)
}

/// The caller's registers by a rule for code without a table.
pub fn by_frame_rule(
    rule: FrameRule,
    registers: &Registers,
    stack: &Stack<'_>,
    is_exact: bool,
) -> Result<Registers, End> {
    let machine = registers.machine();
    match rule {
        FrameRule::Row { base, distance, return_below, frame_below } => {
            let base = match base {
                Base::StackPointer => registers.stack_pointer(),
                Base::FramePointer => registers.frame_pointer(),
                Base::ThroughFramePointer => None,
            };
            let cfa = base.ok_or(End::Unreadable)?.wrapping_add_signed(distance);
            if !cfa.is_multiple_of(machine.word_bytes().into()) || return_below == 0 {
                return Err(End::Refused);
            }
            let grows = |top: u64| cfa > top || (cfa == top && is_exact);
            if !registers.stack_pointer().is_some_and(grows) {
                return Err(End::Loop);
            }
            let word = |below: u16| stack.word(cfa.wrapping_sub(below.into()));
            let mut caller = Registers::new(machine, word(return_below)?);
            let frame_pointer = match frame_below {
                0 => registers.frame_pointer(),
                FRAME_LOST => None,
                below => Some(word(below)?),
            };
            caller.set(machine.frame_pointer(), frame_pointer);
            caller.set(machine.stack_pointer(), Some(cfa));
            Ok(caller)
        }
        FrameRule::KeptStackPointer(at) => {
            let record = Record::FramePointer;
            let mut caller = by_frame_pointer(registers, stack, record, End::Generated)?;
            let frame = registers.frame_pointer().ok_or(End::Generated)?;
            let kept = stack.word(frame.wrapping_add_signed(at.into()))?;
            if caller.stack_pointer().is_none_or(|least| kept < least) || !kept.is_multiple_of(8) {
                return Err(End::Refused);
            }
            caller.set(machine.stack_pointer(), Some(kept));
            Ok(caller)
        }
        FrameRule::FramePointer => {
            by_frame_pointer(registers, stack, Record::FramePointer, End::Generated)
        }
        FrameRule::Goroutine(_) => Err(End::Window),
        FrameRule::End(end) => Err(end),
        FrameRule::Signal | FrameRule::Other => Err(End::Generated),
    }
}

/// The caller's registers where the procedure has put nothing on the stack.
fn by_call(registers: &Registers, stack: &Stack<'_>, without: End) -> Result<Registers, End> {
    let machine = registers.machine();
    let top = registers.stack_pointer().ok_or(without)?;
    let (return_address, callers_top) = if machine.pushes_return_address() {
        (stack.word(top)?, top.wrapping_add(u64::from(machine.word_bytes())))
    } else {
        (registers.get(machine.return_column()).ok_or(without)?, top)
    };
    let mut caller = Registers::new(machine, return_address);
    caller.set(machine.frame_pointer(), registers.frame_pointer());
    caller.set(machine.stack_pointer(), Some(callers_top));
    Ok(caller)
}
