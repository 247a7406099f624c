//! A program executed instruction by instruction, with a stack of its calls kept beside it: the
//! truth with which walks are compared.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::process::{Child, Command, Stdio};

use iced_x86::{Decoder, DecoderOptions, FlowControl, Mnemonic};
use nix::libc::user_regs_struct;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use unwind::{End, Frame, FrameRule, Goroutine, Proof, Unwinder, Window};

use crate::process::{Mapped, known, registers};

/// Bytes of stack that a walk sees.
const WINDOW: usize = 256 << 10;
/// Bytes below the lowest return address of another stack that a walk sees, too.
const OTHER_BELOW: u64 = 2048;
/// Bytes below the stack pointer that belong to the procedure, too.
const RED_ZONE: u64 = 128;

/// Farthest that one instruction moves the stack pointer on one stack.
const JUMP_MAX: u64 = 1 << 20;
/// Most bytes between a stack pointer that Go's runtime loads and the return address of the call
/// that it has loaded the stack pointer for.
const BEGIN_BYTES: u64 = 64;
/// Size of the small stacks that a program switches between.
const SMALL_STACK: u64 = 64 << 10;

/// The facts about an instruction that the shadow stack needs.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Kind {
    Call,
    /// `rt_sigreturn` is one.
    SystemCall,
    Return,
    Other,
}

pub struct Stepped {
    pid: Pid,
    child: Child,
    pub space: Mapped,
    pub unwinder: Unwinder,
    /// Calls that have not returned: where the return address is on the stack, and what it is. Of
    /// all stacks that the thread has.
    calls: BTreeMap<u64, u64>,
    /// By address: the instruction there, and the address after it.
    instructions: HashMap<u64, (Kind, u64)>,
    now: user_regs_struct,
    signal: Option<Signal>,
    frames: Vec<Frame>,
    /// Walks by their ends.
    pub ends: BTreeMap<End, u64>,
    /// Where walks that are not whole ended.
    pub stops: BTreeMap<(End, String), u64>,
    pub frames_compared: u64,
    /// Most frames of a walk.
    pub deepest: usize,
    /// From the load of another stack pointer until the return that goes there; calls and tables
    /// need not agree on who the caller is.
    is_between_stacks: bool,
    /// Whether the program is Go's, which leaves a stack by loading another stack pointer, without
    /// a return.
    pub is_go: bool,
    /// Stack pointers that Go's program has loaded and not gone above since.
    loaded: BTreeSet<u64>,
    /// The stack pointer with which Go's program left a stack last.
    left: u64,
    /// The stack pointer at the program's begin.
    begin: u64,
}

impl Stepped {
    /// The program before its first instruction: the dynamic loader's.
    pub fn start(words: &[&str]) -> Self {
        let mut command = Command::new("/bin/sh");
        // The shell becomes the program once it is traced.
        command.args(["-c", "kill -STOP $$; exec \"$@\"", "sh"]).args(words);
        // Of Go's programs one thread is executed, and no other may stop it or move its stack.
        command.envs([("GODEBUG", "asyncpreemptoff=1"), ("GOGC", "off"), ("GOMAXPROCS", "1")]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().unwrap();
        let pid = Pid::from_raw(child.id().cast_signed());
        while !std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap().contains(") T ") {
            std::thread::yield_now();
        }
        ptrace::seize(pid, Options::PTRACE_O_EXITKILL | Options::PTRACE_O_TRACEEXEC).unwrap();
        kill(pid, Signal::SIGCONT).unwrap();
        loop {
            match waitpid(pid, None).unwrap() {
                WaitStatus::PtraceEvent(_, _, event) if event == nix::libc::PTRACE_EVENT_EXEC => {
                    break;
                }
                WaitStatus::PtraceEvent(..) => ptrace::cont(pid, None).unwrap(),
                WaitStatus::Stopped(_, signal) => {
                    ptrace::cont(pid, Some(signal).filter(|&it| it != Signal::SIGTRAP)).unwrap();
                }
                status => panic!("{words:?}: {status:?}"),
            }
        }
        let now = registers(pid).unwrap();
        let mut unwinder = Unwinder::new();
        let mut space = Mapped::new(pid);
        space.refresh(&mut unwinder);
        Self {
            pid,
            child,
            space,
            unwinder,
            calls: BTreeMap::new(),
            instructions: HashMap::new(),
            now,
            signal: None,
            frames: Vec::new(),
            ends: BTreeMap::new(),
            stops: BTreeMap::new(),
            frames_compared: 0,
            deepest: 0,
            is_between_stacks: false,
            is_go: false,
            loaded: BTreeSet::new(),
            left: 0,
            begin: now.rsp,
        }
    }

    /// Executes one instruction. False: the program has ended.
    pub fn step(&mut self) -> bool {
        let before = self.now;
        let (kind, next) = self.instruction(before.rip);
        let delivered = self.signal.take();
        if ptrace::step(self.pid, delivered).is_err() {
            return false;
        }
        match waitpid(self.pid, None) {
            Ok(WaitStatus::Stopped(_, Signal::SIGTRAP) | WaitStatus::PtraceEvent(..)) => {}
            Ok(WaitStatus::Stopped(_, signal)) => self.signal = Some(signal),
            _ => return false,
        }
        let Some(now) = registers(self.pid) else { return false };
        self.now = now;
        self.follow(before, kind, next, delivered.is_some());
        true
    }

    /// Keeps the calls up to date after an instruction.
    fn follow(&mut self, before: user_regs_struct, kind: Kind, next: u64, is_delivered: bool) {
        let (from, to) = (before.rsp, self.now.rsp);
        if is_delivered && self.now.rip != next && from != to {
            // A signal handler begins. It returns to a trampoline, whose frame leads to the
            // interrupted instruction: both are callers that a walk must find.
            let trampoline = self.word(to);
            self.calls.insert(to + 8, before.rip);
            self.calls.insert(to, trampoline);
        } else if kind == Kind::Call && to == from - 8 {
            self.calls.insert(to, next);
        } else if kind == Kind::SystemCall {
            self.forget(from, to);
        } else if self.is_go && to.abs_diff(from) >= JUMP_MAX {
            self.switch(from, to);
        } else if to.abs_diff(from) >= JUMP_MAX {
            self.is_between_stacks = true;
        } else if !self.is_between_stacks {
            self.forget(from, to);
        } else if kind == Kind::Return {
            // The thread is on another stack, where it may have been before.
            self.is_between_stacks = false;
            self.forget(to - SMALL_STACK, to);
            if self.calls.range(to..to + SMALL_STACK).next().is_none() {
                let origin = self.word(to);
                self.calls.insert(to, origin);
            }
        }
    }

    /// Go's program goes on with another stack, from `to` on.
    fn switch(&mut self, from: u64, to: u64) {
        self.forget(to - SMALL_STACK, to);
        self.loaded.insert(to);
        if self.calls.range(to..to + SMALL_STACK).next().is_none() {
            // A stack that was too small has been copied to a larger one. Its thread goes on where
            // the call of what copied it returns to.
            let shift = to.wrapping_sub(self.left + 8);
            let old = self.calls.range(self.left + 8..self.left + SMALL_STACK);
            let copied: Vec<(u64, u64)> = old
                .map(|(&slot, &address)| (slot.wrapping_add(shift), address))
                .take_while(|&(slot, address)| self.word(slot) == address)
                .collect();
            if copied.is_empty() {
                // A new goroutine, as if its first procedure had been called.
                self.calls.insert(to, self.word(to));
            } else {
                self.forget(self.left, self.left + SMALL_STACK);
                self.calls.extend(copied);
            }
        }
        self.left = from;
    }

    fn word(&self, address: u64) -> u64 {
        u64::from_le_bytes(self.space.memory(address, 8).try_into().unwrap())
    }

    fn forget(&mut self, from: u64, to: u64) {
        if from < to {
            let dead: Vec<u64> = self.calls.range(from..to).map(|(&slot, _)| slot).collect();
            dead.iter().for_each(|slot| _ = self.calls.remove(slot));
            self.loaded.retain(|slot| !(from..to).contains(slot));
        }
    }

    fn instruction(&mut self, address: u64) -> (Kind, u64) {
        if let Some(&known) = self.instructions.get(&address) {
            return known;
        }
        let bytes = self.space.memory(address, 15);
        let mut decoder = Decoder::with_ip(64, &bytes, address, DecoderOptions::NONE);
        let instruction = decoder.decode();
        let kind = match instruction.flow_control() {
            FlowControl::Call if instruction.mnemonic() == Mnemonic::Syscall => Kind::SystemCall,
            FlowControl::Call | FlowControl::IndirectCall => Kind::Call,
            _ if instruction.mnemonic() == Mnemonic::Syscall => Kind::SystemCall,
            FlowControl::Return => Kind::Return,
            _ => Kind::Other,
        };
        let known = (kind, instruction.next_ip());
        self.instructions.insert(address, known);
        known
    }

    /// Walks, and compares the walk with the calls. Returns the differences.
    pub fn compare(&mut self) -> Result<(), String> {
        if self.is_between_stacks {
            return Ok(());
        }
        let mut end = self.walk();
        if matches!(end, End::Refused) {
            // Something may have been mapped since.
            self.space.refresh(&mut self.unwinder);
            self.instructions.clear();
            end = self.walk();
        }
        *self.ends.entry(end).or_default() += 1;
        self.deepest = self.deepest.max(self.frames.len());
        if end != End::Whole {
            let last = self.frames.last().map_or(0, |frame| frame.lookup);
            *self.stops.entry((end, self.space.describe(last))).or_default() += 1;
        }
        // The code before a signal's frame is another procedure's, or another line's.
        let is_exact = |frame: &Frame| matches!(frame.proof, Proof::Registers | Proof::Signal);
        let looked_up = |frame: &Frame| frame.lookup + u64::from(!is_exact(frame));
        if let Some(wrong) = self.frames.iter().find(|frame| looked_up(frame) != frame.address) {
            return Err(self.wrong(end, &format!("{:#x} is looked up", wrong.lookup)));
        }
        let found = self.frames.iter().map(|frame| frame.address);
        let calls = self.calls.range(self.now.rsp..);
        let mut expected = calls.clone().map(|(_, &return_address)| return_address);
        let mut last = self.now.rsp;
        for (number, found) in found.enumerate() {
            let expected = if number == 0 { Some(self.now.rip) } else { expected.next() };
            if expected != Some(found) {
                return Err(self.wrong(end, &format!("frame {number} is {found:#x}")));
            }
            let slot = number.checked_sub(1).and_then(|before| calls.clone().nth(before));
            last = slot.map_or(last, |(&slot, _)| slot);
            self.frames_compared += 1;
        }
        // A stack that Go has switched to begins where it was, for the call that follows.
        let begin = self.loaded.range(last..=last + BEGIN_BYTES).next();
        // Frames further up on another stack are unrelated to this one.
        let mut further = calls.clone().skip(self.frames.len() - 1);
        let next = further.next().filter(|_| begin.is_none());
        // Of Go's first thread `mstart` is the first frame as of all others, although it is called.
        let is_called_mstart = self.is_go
            && further.next().is_none()
            && next.is_some_and(|(&slot, _)| self.begin - slot < BEGIN_BYTES * 4);
        let next = next.filter(|_| !is_called_mstart);
        if end == End::Whole && next.is_some_and(|(&slot, _)| slot - last < JUMP_MAX) {
            return Err(self.wrong(end, "whole too early"));
        }
        Ok(())
    }

    fn walk(&mut self) -> End {
        let begin = self.now.rsp - RED_ZONE;
        let bytes = self.space.memory(begin, WINDOW);
        // A handler may run on a different stack from the interrupted code.
        let other = self.calls.range(self.now.rsp + JUMP_MAX..).next();
        let other_begin = other.map_or(begin, |(&slot, _)| slot - OTHER_BELOW);
        let other_bytes = self.space.memory(other_begin, WINDOW);
        let windows = [
            Window { address: begin, bytes: &bytes },
            Window { address: other_begin, bytes: &other_bytes },
        ];
        let windows = if other.is_some() { &windows[..] } else { &windows[..1] };
        let end = self.unwinder.walk(&known(&self.now), windows, &self.space, &mut self.frames);
        // All that is on this stack.
        let leads_to_goroutine = learnt_goroutine(&self.unwinder, &self.frames).is_some();
        if leads_to_goroutine { End::Whole } else { end }
    }

    fn wrong(&self, end: End, what: &str) -> String {
        let describe = |address| self.space.describe(address);
        let found: Vec<String> = self.frames.iter().map(|frame| describe(frame.address)).collect();
        let truth: Vec<String> =
            self.calls.range(self.now.rsp..).map(|(_, &address)| describe(address)).collect();
        format!(
            "{what} at {}, {end:?}\nfound\n  {}\ntruth\n  {}",
            describe(self.now.rip),
            found.join("\n  "),
            truth.join("\n  ")
        )
    }
}

/// Where the goroutine is whose stack the walk's outermost frame has changed from.
pub fn learnt_goroutine(unwinder: &Unwinder, frames: &[Frame]) -> Option<Goroutine> {
    let learnt = unwinder.learnt().last()?;
    match learnt.rule {
        FrameRule::Goroutine(goroutine) if learnt.address == frames.last()?.lookup => {
            Some(goroutine)
        }
        _ => None,
    }
}

impl Drop for Stepped {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = waitpid(self.pid, None);
    }
}
