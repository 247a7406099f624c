//! System calls that the engine handles; translated code makes all others directly.

use crate::area::event;
use crate::cache::SystemCall;
use crate::context::{BORROWS, Context, LAST_CALL, R8, R10, RAX, RCX, RDI, RDX, RESUME, RSI};
use crate::engine::Engine;
use crate::identity::{self, Identity};
use crate::memory::{read_string, write_program};
use crate::signals;
use crate::system::{self, number};

/// A system call of the program.
#[derive(Clone, Copy)]
pub struct Call {
    pub number: u64,
    pub arguments: [u64; 6],
    /// Index among the cache's system calls.
    pub index: usize,
    pub block: u32,
    pub next: u64,
}

/// The work that remains to be done without the lock.
pub enum Then {
    GoOn,
    /// A thread, or a process that shares memory.
    Clone {
        call: [u64; 6],
        child: Context,
        next: Call,
        vfork: bool,
    },
    /// The process ends with this code.
    End(u64),
}

/// Number of the ninth register, the sixth argument.
const R9: u8 = 9;

impl Engine {
    pub fn system_call(&mut self, context: Context, index: usize) -> Then {
        let Some(SystemCall { block, next, .. }) = self.cache.system_calls.get(index).copied()
        else {
            return Then::GoOn;
        };
        let arguments = [RDI, RSI, RDX, R10, R8, R9].map(|register| context.register(register));
        let call = Call { number: context.register(RAX), arguments, index, block, next };
        let [a, b, c, d, ..] = arguments;
        let answer = match call.number {
            number::MMAP => self.mmap(&call),
            number::MUNMAP => self.change(&call, (a, b), false),
            number::MPROTECT | number::PKEY_MPROTECT => self.mprotect(&call),
            number::MREMAP => self.mremap(&call),
            number::RT_SIGACTION => signals::sigaction(context, a, b, c, d),
            number::RT_SIGPROCMASK => signals::sigprocmask(context, a, b, c, d),
            number::SIGALTSTACK => signals::sigaltstack(context, a, b),
            number::RT_SIGRETURN => {
                if self.sigreturn(context, block) {
                    return Then::GoOn;
                }
                return self.again(context, block);
            }
            number::CLONE | number::CLONE3 | number::FORK | number::VFORK => {
                return self.clone(context, &call);
            }
            number::EXECVE | number::EXECVEAT => return self.exec(context, &call),
            number::EXIT => return self.leave(context, block, a),
            number::EXIT_GROUP => {
                context.set(LAST_CALL, u64::from(block));
                if context.get(BORROWS) == 0 {
                    self.area.event(event::ENDED, block, 0);
                }
                return Then::End(a);
            }
            number::ARCH_PRCTL => self.arch_prctl(&call),
            number::PRCTL | number::SECCOMP => self.filter(&call),
            number::READLINK => self.readlink(&call, (a, b, c)),
            number::READLINKAT => self.readlink(&call, (b, c, d)),
            number::OPEN | number::CREAT | number::OPENAT | number::OPENAT2 => {
                self.look_at_open(&call);
                return self.pass(context, &call);
            }
            number::PROCESS_VM_WRITEV => self.write_to_process(&call),
            // The kernel restarts sequences by the address in the program, which is not where the
            // program executes: the C library does without.
            number::RSEQ => system::ENOSYS,
            _ => match self.write_to_code(&call) {
                Some(answer) => answer,
                None => return self.pass(context, &call),
            },
        };
        self.answer(context, &call, answer)
    }

    /// Has translated code make the call, which may block.
    fn pass(&mut self, context: Context, call: &Call) -> Then {
        let direct = self.cache.system_calls.get(call.index).map_or(0, |call| call.direct);
        context.set(RESUME, direct);
        Then::GoOn
    }

    /// Continues after a system call.
    pub fn answer(&mut self, context: Context, call: &Call, answer: i64) -> Then {
        context.set_register(RAX, answer as u64);
        // As the instruction does.
        context.set_register(RCX, call.next);
        let code = self.cache.resume(call.next, context, &mut self.area);
        context.set(RESUME, code);
        Then::GoOn
    }

    /// Restarts a system call, so that the pending signal is handled first.
    pub fn again(&mut self, context: Context, block: u32) -> Then {
        let Some(call) = self.cache.system_calls.iter().find(|call| call.block == block) else {
            return Then::GoOn;
        };
        let at = call.at;
        self.area.event(event::LEFT, block, at);
        self.enter(at, context);
        Then::GoOn
    }

    fn mmap(&mut self, call: &Call) -> i64 {
        let [at, len, prot, flags, ..] = call.arguments;
        if flags & system::MAP_FIXED != 0 {
            return self.change(call, (at, len), prot & system::PROT_EXEC != 0);
        }
        // SAFETY: the program's own call, as the program makes it; its memory is its affair.
        let answer = unsafe { system::call(call.number, call.arguments) };
        if !system::is_error(answer) && prot & system::PROT_EXEC != 0 {
            self.mapped(call, answer as u64);
            self.cache.regions.changed(answer as u64, answer as u64 + pages(len), true);
        }
        answer
    }

    /// A system call that changes the mappings in a range.
    fn change(&mut self, call: &Call, (at, len): (u64, u64), executable: bool) -> i64 {
        let end = at.saturating_add(pages(len));
        let own = |range: core::ops::Range<u64>| range.start < end && at < range.end;
        if own(self.cache.range()) || own(self.area.range()) {
            return system::EINVAL;
        }
        let had_code = self.cache.regions.overlaps(at, end);
        if had_code {
            self.cache.drop_range(at, end);
        }
        // SAFETY: the program's own call, as the program makes it; its memory is its affair.
        let answer = unsafe { system::call(call.number, call.arguments) };
        if !matches!(call.number, number::MPROTECT | number::PKEY_MPROTECT)
            && !system::is_error(answer)
        {
            self.cache.regions.mapped(at..end, None);
        }
        if call.number == number::MMAP && executable && !system::is_error(answer) {
            self.mapped(call, at);
        }
        if had_code || executable {
            self.cache.unprotected(at, end);
            self.cache.regions.changed(at, end, executable);
        }
        answer
    }

    /// The program has mapped code at an address.
    fn mapped(&mut self, call: &Call, at: u64) {
        let [_, len, _, flags, file, _] = call.arguments;
        if flags & system::MAP_ANONYMOUS != 0 || !self.sends_files {
            return;
        }
        let identity = Identity::of(file);
        self.cache.regions.mapped(at..at + pages(len), identity);
        if identity.is_some() {
            self.look_for_writers();
            identity::send(self.area.folder(), file);
        }
    }

    /// prctl(2) and seccomp(2): the program may filter its system calls from now on.
    fn filter(&mut self, call: &Call) -> i64 {
        const PR_SET_SECCOMP: u64 = 22;
        let [what, ..] = call.arguments;
        self.sends_files &= call.number == number::PRCTL && what != PR_SET_SECCOMP;
        // SAFETY: the program's own call, as the program makes it; its memory is its affair.
        unsafe { system::call(call.number, call.arguments) }
    }

    fn mprotect(&mut self, call: &Call) -> i64 {
        let [at, len, prot, ..] = call.arguments;
        self.change(call, (at, len), prot & system::PROT_EXEC != 0)
    }

    fn mremap(&mut self, call: &Call) -> i64 {
        let [at, len, new_len, ..] = call.arguments;
        let answer = self.change(call, (at, len), false);
        if !system::is_error(answer) && self.cache.regions.overlaps(at, at + pages(len)) {
            self.cache.regions.changed(answer as u64, answer as u64 + pages(new_len), true);
        }
        answer
    }

    fn arch_prctl(&mut self, call: &Call) -> i64 {
        const SET_GS: u64 = 0x1001;
        const GET_GS: u64 = 0x1004;
        const SHADOW_STACKS: core::ops::RangeInclusive<u64> = 0x5001..=0x5005;
        let [what, at, ..] = call.arguments;
        match what {
            SET_GS => {
                self.area.note(&[b"refused: its own %gs (arch_prctl)"]);
                system::refuse(&[b"refused: its own %gs (arch_prctl)"])
            }
            GET_GS if write_program(at, 0_u64) => 0,
            GET_GS => system::EFAULT,
            // Translated returns do not go where the processor expects them.
            what if SHADOW_STACKS.contains(&what) => system::EINVAL,
            // SAFETY: the program's own call, as the program makes it; its memory is its affair.
            _ => unsafe { system::call(call.number, call.arguments) },
        }
    }

    /// /proc/self/exe is the program, not the engine.
    fn readlink(&mut self, call: &Call, (path, buffer, size): (u64, u64, u64)) -> i64 {
        if !is_own_exe(path) {
            // SAFETY: the program's own call, as the program makes it; its memory is its affair.
            return unsafe { system::call(call.number, call.arguments) };
        }
        let len = self.program.len().min(size as usize);
        for (at, byte) in (buffer..).zip(self.program.iter().take(len)) {
            if !write_program(at, *byte) {
                return system::EFAULT;
            }
        }
        len as i64
    }
}

/// Whether a path of the program's is that of its own executable file.
pub fn is_own_exe(path: u64) -> bool {
    let Some(path) = read_string(path, 40) else { return false };
    if path == b"/proc/self/exe\0" {
        return true;
    }
    let mut own = alloc::vec::Vec::from(&b"/proc/"[..]);
    crate::area::writer::decimal(system::pid(), &mut own);
    own.extend_from_slice(b"/exe\0");
    path == own
}

/// A length in whole pages.
fn pages(len: u64) -> u64 {
    len.saturating_add(0xfff) & !0xfff
}
