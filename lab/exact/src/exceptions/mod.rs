//! Floating-point exceptions of a command: each one, with its call stack, by ptrace(2); on x86-64.
//!
//! The exceptions of SSE and AVX instructions are unmasked in each thread. An instruction that
//! raises one then faults before it has any effect, and the kernel stops the thread for its SIGFPE.
//! The stack is walked, the instruction is executed alone with exceptions masked, the flags that it
//! raised are counted and set beside those that were set before, and the thread goes on with
//! exceptions unmasked: results, flags and signals are those of the command alone.
//!
//! The x87 control word is left as the program has it. glibc's functions write both control
//! registers and read the x87 one, so it shows which exceptions the program itself has enabled
//! (feenableexcept(3)); for these the program gets its SIGFPE.

mod space;

use nix::errno::Errno;
use nix::sys::ptrace::{self, Options, regset::NT_PRFPREG};
use nix::sys::signal::{self, Signal};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use space::{Stacks, Walked};
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitStatus};

use crate::{CodeFile, EngineError, Site, Unattributed};
pub use unwind::End;

/// A floating-point exception (IEEE 754, section 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Exception {
    /// An operation without meaning, such as 0/0.
    Invalid,
    /// A finite number divided by zero.
    Divide,
    /// A result too large.
    Overflow,
    /// A result too small and inexact.
    Underflow,
    /// A result that was rounded.
    Inexact,
}

impl Exception {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Invalid, Self::Divide, Self::Overflow, Self::Underflow, Self::Inexact];

    /// Its flag in MXCSR (Intel SDM, volume 1, section 10.2.3).
    const fn flag(self) -> u32 {
        match self {
            Self::Invalid => 1,
            Self::Divide => 1 << 2,
            Self::Overflow => 1 << 3,
            Self::Underflow => 1 << 4,
            Self::Inexact => 1 << 5,
        }
    }
}

/// All exception flags of MXCSR, and the number of bits from each flag up to its mask.
const FLAGS: u32 = 0x3f;
const MASK_SHIFT: u32 = 7;
/// Numbers in `si_code` of a SIGFPE by a floating-point exception (`FPE_FLTDIV` to `FPE_FLTINV`,
/// sigaction(2)).
const FLOATING: std::ops::RangeInclusive<i32> = 3..=7;
/// `PTRACE_EVENT_STOP` of ptrace(2), for which nix has no name.
const EVENT_STOP: i32 = 128;

/// The call stack of an exception: places from the thread's first frame on, and how the walk ended.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Chain {
    /// Places, the instruction itself last.
    pub sites: Vec<Site>,
    /// How the walk ended: at the thread's first frame, or why before it.
    pub end: End,
}

/// The exceptions that a command raised.
#[derive(Debug, Default)]
pub struct Raised {
    /// Files by number.
    pub files: Vec<CodeFile>,
    /// Instructions that raised an exception, by exception and call stack.
    pub stacks: BTreeMap<(Exception, Chain), u64>,
    /// Exceptions of instructions in no file.
    pub elsewhere: u64,
    /// Exceptions of instructions in files that could not be opened.
    pub unattributed: Unattributed,
    /// Processes.
    pub processes: usize,
    /// Threads that masked exceptions themselves, and had not unmasked them at their end.
    pub masked: u64,
}

/// The state of a thread.
#[derive(Clone, Debug, Default)]
enum Phase {
    /// It runs.
    #[default]
    Runs,
    /// It executes an instruction again with cleared flags, to find which flags it raises. Holds
    /// the flags from before.
    Again(u32),
    /// It executes an instruction that faulted, alone, with exceptions masked.
    Steps { before: u32, faulted: u32, control: u32, chain: Walked },
    /// It enters a signal handler, for which the kernel resets MXCSR.
    Enters,
}

/// A thread.
#[derive(Clone, Debug)]
struct Thread {
    /// Its process.
    process: Pid,
    phase: Phase,
    /// Flags that the program certainly has set.
    flags: u32,
    /// Signals that came while an instruction was executed alone.
    held: Vec<Signal>,
    is_unmasked: bool,
}

struct Tracer {
    /// Flags of the exceptions that are counted.
    wanted: u32,
    threads: HashMap<Pid, Thread>,
    stacks: Stacks,
    raised: Raised,
}

/// Runs a command to the end of all of its processes, and returns the exceptions that it raised;
/// inexact results only with `inexact`.
///
/// # Errors
/// [`EngineError::NotStarted`] where the command cannot be traced.
pub fn run(command: &[OsString], inexact: bool) -> Result<(ExitStatus, Raised), EngineError> {
    let failed = |what: &str, why: &dyn std::fmt::Display| EngineError::NotStarted {
        program: "the command",
        why: format!("{what}: {why}"),
    };
    // The shell stops itself until it is traced, and then executes the command.
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", "kill -STOP $$; exec \"$@\"", "sh"]).args(command);
    let child = shell.spawn().map_err(|error| failed("starting /bin/sh", &error))?;
    let first = Pid::from_raw(child.id().cast_signed());
    let options = Options::PTRACE_O_TRACECLONE
        | Options::PTRACE_O_TRACEFORK
        | Options::PTRACE_O_TRACEVFORK
        | Options::PTRACE_O_TRACEEXEC
        | Options::PTRACE_O_TRACEEXIT
        | Options::PTRACE_O_EXITKILL;
    let traced = waitpid(first, Some(WaitPidFlag::WUNTRACED))
        .and_then(|_| ptrace::seize(first, options))
        .and_then(|()| signal::kill(first, Signal::SIGCONT));
    if let Err(error) = traced {
        let _ = signal::kill(first, Signal::SIGKILL);
        let _ = waitpid(first, None);
        return Err(failed("tracing it (ptrace)", &error));
    }
    let kinds = Exception::ALL.iter().filter(|kind| inexact || **kind != Exception::Inexact);
    let mut tracer = Tracer {
        wanted: kinds.map(|kind| kind.flag()).sum(),
        threads: HashMap::new(),
        stacks: Stacks::default(),
        raised: Raised::default(),
    };
    let mut status = ExitStatus::from_raw(0);
    loop {
        match waitpid(Pid::from_raw(-1), Some(WaitPidFlag::__WALL)) {
            Ok(WaitStatus::Exited(pid, code)) => {
                tracer.forget(pid);
                if pid == first {
                    status = ExitStatus::from_raw(code << 8);
                }
            }
            Ok(WaitStatus::Signaled(pid, signal, _)) => {
                tracer.forget(pid);
                if pid == first {
                    status = ExitStatus::from_raw(signal as i32);
                }
            }
            Ok(WaitStatus::PtraceEvent(pid, _, event)) => tracer.event(pid, event),
            Ok(WaitStatus::Stopped(pid, signal)) => tracer.stopped(pid, signal),
            Ok(_) | Err(Errno::EINTR) => {}
            Err(_) => break, // nobody is left
        }
    }
    tracer.raised.files = tracer.stacks.into_files();
    Ok((status, tracer.raised))
}

impl Tracer {
    fn forget(&mut self, pid: Pid) {
        self.threads.remove(&pid);
        self.stacks.forget(pid);
    }

    fn thread(&mut self, pid: Pid) -> &mut Thread {
        let raised = &mut self.raised;
        self.threads.entry(pid).or_insert_with(|| {
            let process = process_of(pid);
            raised.processes += usize::from(process == pid);
            let phase = Phase::Runs;
            Thread { process, phase, flags: 0, held: Vec::new(), is_unmasked: false }
        })
    }

    /// An event of ptrace(2): a thread begins, ends or has executed a program.
    fn event(&mut self, pid: Pid, event: i32) {
        if event == ptrace::Event::PTRACE_EVENT_EXIT as i32 {
            let mask = self.wanted << MASK_SHIFT;
            let is_masked = floating(pid).is_some_and(|it| it.mxcsr & mask != 0);
            let was_unmasked = self.threads.get(&pid).is_some_and(|thread| thread.is_unmasked);
            self.raised.masked += u64::from(is_masked && was_unmasked);
        } else if event == ptrace::Event::PTRACE_EVENT_EXEC as i32 {
            self.stacks.forget(pid);
            let thread = self.thread(pid);
            (thread.phase, thread.flags) = (Phase::Runs, 0);
            self.unmask(pid);
        } else if event == EVENT_STOP {
            self.unmask(pid);
        }
        let _ = ptrace::cont(pid, None); // it may have been killed
    }

    /// A signal is about to be delivered.
    fn stopped(&mut self, pid: Pid, signal: Signal) {
        let phase = std::mem::take(&mut self.thread(pid).phase);
        match (phase, signal) {
            (Phase::Steps { before, faulted, control, chain }, Signal::SIGTRAP) => {
                self.stepped(pid, (before, faulted, control), chain);
            }
            (Phase::Enters, Signal::SIGTRAP) => {
                self.unmask(pid);
                let _ = ptrace::cont(pid, None);
            }
            (phase @ (Phase::Runs | Phase::Enters | Phase::Again(_)), Signal::SIGFPE) => {
                self.faulted(pid, &phase);
            }
            (phase @ Phase::Steps { .. }, signal) => {
                self.hold(pid, phase, signal);
                let _ = ptrace::step(pid, None);
            }
            (phase @ Phase::Again(_), signal) => {
                self.hold(pid, phase, signal);
                let _ = ptrace::cont(pid, None);
            }
            (Phase::Runs | Phase::Enters, signal) => self.deliver(pid, signal),
        }
    }

    fn hold(&mut self, pid: Pid, phase: Phase, signal: Signal) {
        let thread = self.thread(pid);
        thread.phase = phase;
        thread.held.push(signal);
    }

    /// Delivers a signal; its handler begins with exceptions unmasked.
    fn deliver(&mut self, pid: Pid, signal: Signal) {
        let delivered = if is_caught(pid, signal) {
            self.thread(pid).phase = Phase::Enters;
            ptrace::step(pid, signal)
        } else {
            ptrace::cont(pid, signal)
        };
        let _ = delivered; // it may have been killed
    }

    fn unmask(&mut self, pid: Pid) {
        let mask = self.wanted << MASK_SHIFT;
        let Some(mut registers) = floating(pid) else { return };
        let flags = registers.mxcsr & FLAGS;
        registers.mxcsr &= !mask;
        let is_unmasked = ptrace::setregset::<NT_PRFPREG>(pid, registers).is_ok();
        let thread = self.thread(pid);
        (thread.flags, thread.is_unmasked) = (flags, is_unmasked);
    }

    /// Handles a SIGFPE, of a counted exception or of any other cause.
    fn faulted(&mut self, pid: Pid, phase: &Phase) {
        let is_floating =
            ptrace::getsiginfo(pid).is_ok_and(|info| FLOATING.contains(&info.si_code));
        let registers = floating(pid).filter(|_| is_floating);
        let raised = |mxcsr: u32| mxcsr & FLAGS & !(mxcsr >> MASK_SHIFT);
        let Some(mut registers) = registers.filter(|registers| raised(registers.mxcsr) != 0) else {
            return self.deliver(pid, Signal::SIGFPE); // an integer's, the x87's, or sent
        };
        let new = raised(registers.mxcsr);
        let before = match phase {
            Phase::Again(before) => *before,
            _ => registers.mxcsr & FLAGS,
        };
        if new.count_ones() > 1 && !matches!(phase, Phase::Again(_)) {
            registers.mxcsr &= !FLAGS;
            self.thread(pid).phase = Phase::Again(before);
            let _ = ptrace::setregset::<NT_PRFPREG>(pid, registers);
            let _ = ptrace::cont(pid, None);
            return;
        }
        let process = self.thread(pid).process;
        let chain = self.stacks.walk(pid, process);
        let own = u32::from(!registers.cwd) & FLAGS;
        let control = registers.mxcsr & !FLAGS;
        if new & own != 0 {
            self.count(new, &chain);
            registers.mxcsr |= before | new;
            let _ = ptrace::setregset::<NT_PRFPREG>(pid, registers);
            return self.deliver(pid, Signal::SIGFPE);
        }
        registers.mxcsr = control | FLAGS << MASK_SHIFT;
        self.thread(pid).phase = Phase::Steps { before, faulted: new, control, chain };
        let _ = ptrace::setregset::<NT_PRFPREG>(pid, registers);
        let _ = ptrace::step(pid, None);
    }

    /// The instruction was executed with exceptions masked.
    fn stepped(&mut self, pid: Pid, (before, faulted, control): (u32, u32, u32), chain: Walked) {
        let Some(mut registers) = floating(pid) else { return };
        let raised = registers.mxcsr & FLAGS;
        self.count(raised & self.wanted, &chain);
        // An exact result that is very small faults, but raises no flag where that is masked.
        let thread = self.thread(pid);
        let flags = before & !(faulted & !raised & !thread.flags) | raised;
        thread.flags = flags;
        let held = (!thread.held.is_empty()).then(|| thread.held.remove(0));
        registers.mxcsr = control | flags;
        let _ = ptrace::setregset::<NT_PRFPREG>(pid, registers);
        match held {
            Some(signal) => self.deliver(pid, signal),
            None => {
                let _ = ptrace::cont(pid, None);
            }
        }
    }

    fn count(&mut self, raised: u32, chain: &Walked) {
        for kind in Exception::ALL.into_iter().filter(|kind| raised & kind.flag() != 0) {
            match chain {
                Walked::Chain(chain) => {
                    *self.raised.stacks.entry((kind, chain.clone())).or_default() += 1;
                }
                Walked::Unfound(path, why) => self.raised.unattributed.add(path, why, 1),
                Walked::Elsewhere => self.raised.elsewhere += 1,
            }
        }
    }
}

/// The floating-point registers of a thread; None where it was killed.
fn floating(pid: Pid) -> Option<nix::libc::user_fpregs_struct> {
    ptrace::getregset::<NT_PRFPREG>(pid).ok()
}

/// A number in a line of /proc/TID/status.
fn status(pid: Pid, line: &str, radix: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let value = status.lines().find_map(|found| found.strip_prefix(line))?;
    u64::from_str_radix(value.trim(), radix).ok()
}

fn process_of(pid: Pid) -> Pid {
    let process = status(pid, "Tgid:", 10).and_then(|number| i32::try_from(number).ok());
    process.map_or(pid, Pid::from_raw)
}

fn is_caught(pid: Pid, signal: Signal) -> bool {
    let caught = status(pid, "SigCgt:", 16).unwrap_or(0);
    caught >> (signal as u32 - 1) & 1 == 1
}
