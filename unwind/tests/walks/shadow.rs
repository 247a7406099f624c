//! A program executed instruction by instruction, with a stack of its calls kept beside it: the
//! truth that walks are held against.

use std::collections::{BTreeMap, HashMap};
use std::process::{Child, Command, Stdio};

use iced_x86::{Decoder, DecoderOptions, FlowControl};
use nix::libc::user_regs_struct;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use unwind::{End, Frame, Unwinder, Window};

use crate::process::{Mapped, known, registers};

/// Bytes of stack that a walk sees.
const WINDOW: usize = 256 << 10;
/// Bytes below the stack pointer that belong to the procedure, too.
const RED_ZONE: u64 = 128;

/// A call that has not returned.
#[derive(Copy, Clone, Debug)]
struct Called {
    /// Where the return address is on the stack.
    slot: u64,
    return_address: u64,
}

pub struct Stepped {
    pid: Pid,
    child: Child,
    pub space: Mapped,
    pub unwinder: Unwinder,
    calls: Vec<Called>,
    /// By address: whether the instruction calls, and the address after it.
    instructions: HashMap<u64, (bool, u64)>,
    now: user_regs_struct,
    signal: Option<Signal>,
    frames: Vec<Frame>,
    /// Walks by their ends.
    pub ends: BTreeMap<End, u64>,
    /// Where walks that are not whole ended.
    pub stops: BTreeMap<(End, String), u64>,
    pub frames_compared: u64,
}

impl Stepped {
    /// The program before its first instruction: the dynamic loader's.
    pub fn start(words: &[&str], environment: &[(&str, &str)]) -> Self {
        let mut command = Command::new("/bin/sh");
        // The shell becomes the program once it is traced.
        command.args(["-c", "kill -STOP $$; exec \"$@\"", "sh"]).args(words);
        command.envs(environment.iter().copied());
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
            calls: Vec::new(),
            instructions: HashMap::new(),
            now,
            signal: None,
            frames: Vec::new(),
            ends: BTreeMap::new(),
            stops: BTreeMap::new(),
            frames_compared: 0,
        }
    }

    /// Executes one instruction. False: the program has ended.
    pub fn step(&mut self) -> bool {
        let before = self.now;
        let (is_call, next) = self.instruction(before.rip);
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
        if delivered.is_some() && now.rsp < before.rsp - RED_ZONE {
            // A handler begins; the interrupted place is found through the code it returns to.
            let slot = now.rsp + 8;
            self.calls.push(Called { slot, return_address: before.rip });
            let bytes = self.space.memory(now.rsp, 8);
            let return_address = u64::from_le_bytes(bytes.try_into().unwrap());
            self.calls.push(Called { slot: now.rsp, return_address });
        } else if is_call && now.rsp == before.rsp - 8 {
            self.calls.push(Called { slot: now.rsp, return_address: next });
        } else {
            while self.calls.last().is_some_and(|call| call.slot < now.rsp) {
                self.calls.pop();
            }
        }
        true
    }

    fn instruction(&mut self, address: u64) -> (bool, u64) {
        if let Some(&known) = self.instructions.get(&address) {
            return known;
        }
        let bytes = self.space.memory(address, 15);
        let mut decoder = Decoder::with_ip(64, &bytes, address, DecoderOptions::NONE);
        let instruction = decoder.decode();
        let is_call =
            matches!(instruction.flow_control(), FlowControl::Call | FlowControl::IndirectCall);
        let known = (is_call, instruction.next_ip());
        self.instructions.insert(address, known);
        known
    }

    /// Walks, and holds the walk against the calls. Says what is wrong with it.
    pub fn compare(&mut self) -> Result<(), String> {
        let mut end = self.walk();
        if matches!(end, End::Refused) {
            // Something may have been mapped since.
            self.space.refresh(&mut self.unwinder);
            self.instructions.clear();
            end = self.walk();
        }
        *self.ends.entry(end).or_default() += 1;
        if end != End::Whole {
            let last = self.frames.last().map_or(0, |frame| frame.lookup);
            *self.stops.entry((end, self.space.describe(last))).or_default() += 1;
        }
        let found = self.frames.iter().map(|frame| frame.address);
        let calls = self.calls.iter().rev().map(|call| call.return_address);
        let mut expected = std::iter::once(self.now.rip).chain(calls);
        for (number, found) in found.enumerate() {
            let expected = expected.next();
            if expected != Some(found) {
                return Err(self.wrong(end, &format!("frame {number} is {found:#x}")));
            }
            self.frames_compared += 1;
        }
        if end == End::Whole && expected.next().is_some() {
            return Err(self.wrong(end, "whole too early"));
        }
        Ok(())
    }

    fn walk(&mut self) -> End {
        let begin = self.now.rsp - RED_ZONE;
        let bytes = self.space.memory(begin, WINDOW);
        let windows = [Window { address: begin, bytes: &bytes }];
        self.unwinder.walk(&known(&self.now), &windows, &self.space, &mut self.frames)
    }

    fn wrong(&self, end: End, what: &str) -> String {
        let describe = |address| self.space.describe(address);
        let found: Vec<String> = self.frames.iter().map(|frame| describe(frame.address)).collect();
        let truth: Vec<String> =
            self.calls.iter().rev().map(|call| describe(call.return_address)).collect();
        format!(
            "{what} at {}, {end:?}\nfound\n  {}\ntruth\n  {}",
            describe(self.now.rip),
            found.join("\n  "),
            truth.join("\n  ")
        )
    }
}

impl Drop for Stepped {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = waitpid(self.pid, None);
    }
}
