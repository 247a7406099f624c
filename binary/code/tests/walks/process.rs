//! A program that is stopped, looked at and executed instruction by instruction.

use std::io::IoSliceMut;
use std::process::Command;

use nix::libc::user_regs_struct;
use nix::sched::{CpuSet, sched_getcpu, sched_setaffinity};
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::Signal;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

pub struct Traced {
    pub pid: Pid,
    child: std::process::Child,
    /// To be delivered with the next continuation.
    signal: Option<Signal>,
}

/// How a stop came about.
#[derive(Debug, PartialEq, Eq)]
pub enum Stopped {
    /// Interrupted, or after one instruction.
    Here,
    /// A signal is about to be delivered.
    Signal,
    Ended,
}

impl Traced {
    /// On the processor that this thread is on from now on: two that take turns wait for each other
    /// less on one.
    pub fn start(mut command: Command) -> Self {
        let mut here = CpuSet::new();
        here.set(sched_getcpu().unwrap()).unwrap();
        sched_setaffinity(Pid::from_raw(0), &here).unwrap();
        let child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let pid = Pid::from_raw(child.id().cast_signed());
        ptrace::seize(pid, Options::PTRACE_O_EXITKILL).unwrap();
        Self { pid, child, signal: None }
    }

    /// Stops it wherever it is.
    pub fn interrupt(&mut self) -> Stopped {
        match ptrace::interrupt(self.pid) {
            Ok(()) => self.wait(),
            Err(_) => Stopped::Ended,
        }
    }

    pub fn go_on(&mut self) {
        // It may have been killed meanwhile; the next wait says so.
        let _ = ptrace::cont(self.pid, self.signal.take());
    }

    pub fn step(&mut self) -> Stopped {
        match ptrace::step(self.pid, self.signal.take()) {
            Ok(()) => self.wait(),
            Err(_) => Stopped::Ended,
        }
    }

    /// What was about to be delivered is not.
    pub fn drop_signal(&mut self) {
        self.signal = None;
    }

    fn wait(&mut self) -> Stopped {
        match waitpid(self.pid, None) {
            Ok(WaitStatus::PtraceEvent(..) | WaitStatus::Stopped(_, Signal::SIGTRAP)) => {
                Stopped::Here
            }
            Ok(WaitStatus::Stopped(_, signal)) => {
                self.signal = Some(signal);
                Stopped::Signal
            }
            _ => Stopped::Ended,
        }
    }

    pub fn registers(&self) -> Option<user_regs_struct> {
        ptrace::getregs(self.pid).ok()
    }

    /// As many of `len` bytes at `address` as there are.
    pub fn memory(&self, address: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let to_page_end = (4096 - (address % 4096) as usize).min(len);
        for len in [len, to_page_end] {
            let remote = [RemoteIoVec { base: address as usize, len }];
            if let Ok(read) =
                process_vm_readv(self.pid, &mut [IoSliceMut::new(&mut bytes[..len])], &remote)
            {
                bytes.truncate(read);
                return bytes;
            }
        }
        Vec::new()
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = waitpid(self.pid, None);
    }
}

/// rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8 to r15.
pub fn general(registers: &user_regs_struct) -> [u64; 16] {
    let r = registers;
    [
        r.rax, r.rcx, r.rdx, r.rbx, r.rsp, r.rbp, r.rsi, r.rdi, r.r8, r.r9, r.r10, r.r11, r.r12,
        r.r13, r.r14, r.r15,
    ]
}

/// The opposite of [`general`].
pub fn with_general(registers: user_regs_struct, general: [u64; 16]) -> user_regs_struct {
    let [rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15] = general;
    user_regs_struct {
        rax,
        rcx,
        rdx,
        rbx,
        rsp,
        rbp,
        rsi,
        rdi,
        r8,
        r9,
        r10,
        r11,
        r12,
        r13,
        r14,
        r15,
        ..registers
    }
}
