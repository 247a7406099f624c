//! Execs: the engine executes itself, and loads the new program. Programs that it cannot follow are
//! executed directly, with a note that they are not counted.

use crate::context::{
    Context, EXEC_KEPT, EXEC_REGISTERS, LAST_CALL, RAX, RCX, RDI, RDX, RESUME, RSI, SLOT, TARGET,
};
use crate::engine::Engine;
use crate::memory::{read_program, read_string};
use crate::programs::{self, Program};
use crate::syscalls::{Call, Then, is_own_exe};
use crate::system::{self, number};
use alloc::vec::Vec;

/// Longest argument, bytes (`MAX_ARG_STRLEN`).
const ARGUMENT_MAX: usize = 1 << 17;
/// Longest path, bytes (`PATH_MAX`).
const PATH_MAX: usize = 4096;

/// Arguments of an exec, by the thread that makes it.
pub struct Arguments {
    slot: u64,
    /// Strings that the pointers point at.
    _strings: Vec<Vec<u8>>,
    _pointers: Vec<u64>,
}

impl Engine {
    /// execve(2) and execveat(2).
    pub fn exec(&mut self, context: Context, call: &Call) -> Then {
        let prepared = self.prepare(call);
        let (strings, arguments, environment) = match prepared {
            Ok(Prepared::Engine { strings, arguments, environment }) => {
                (strings, arguments, environment)
            }
            Ok(Prepared::AsItIs) => (Vec::new(), 0, 0),
            Err(error) => return self.answer(context, call, error),
        };
        for (field, register) in (EXEC_REGISTERS..).step_by(8).zip(EXEC_KEPT) {
            context.set(field, context.register(register));
        }
        context.set(TARGET, call.index as u64);
        context.set(LAST_CALL, u64::from(call.block));
        if !strings.is_empty() {
            let mut pointers: Vec<u64> =
                strings.iter().map(|string| string.as_ptr() as u64).collect();
            let mut at = arguments;
            // The program's own arguments stay where they are.
            while let Some(pointer) = read_program::<u64>(at).filter(|pointer| *pointer != 0) {
                pointers.push(pointer);
                at += 8;
            }
            pointers.push(0);
            context.set_register(RAX, number::EXECVE);
            context.set_register(RDI, pointers.first().copied().unwrap_or(0));
            context.set_register(RSI, pointers.as_ptr() as u64);
            context.set_register(RDX, environment);
            let slot = context.get(SLOT);
            self.execs.retain(|arguments| arguments.slot != slot);
            self.execs.push(Arguments { slot, _strings: strings, _pointers: pointers });
        }
        // Made by translated code, without the lock: a signal that comes first is handled first.
        context.set(RESUME, self.cache.fixed.exec);
        Then::GoOn
    }

    fn prepare(&mut self, call: &Call) -> Result<Prepared, i64> {
        const AT_FDCWD: u64 = -100_i64 as u64;
        const AT_EMPTY_PATH: u64 = 0x1000;
        let [a, b, c, d, e, _] = call.arguments;
        let (directory, path, arguments, environment, flags) = match call.number {
            number::EXECVE => (AT_FDCWD, a, b, c, 0),
            _ => (a, b, c, d, e),
        };
        let mut name = read_string(path, PATH_MAX).ok_or(system::EFAULT)?;
        if is_own_exe(path) {
            name.clone_from(&self.program);
            name.push(0);
        }
        if directory as i32 != AT_FDCWD as i32 && name.first() != Some(&b'/') {
            name = self.beneath(directory, &name, flags & AT_EMPTY_PATH != 0)?;
        }
        let why = match programs::resolve(&name)?.program {
            Program::Foreign(why) => Some(why),
            _ => self.cannot_follow(),
        };
        if let Some(why) = why {
            self.area.note(&[b"not counted: ", why.as_bytes(), b": ", &name]);
            return Ok(Prepared::AsItIs);
        }
        let first = read_program::<u64>(arguments).filter(|first| *first != 0);
        let first = match first {
            Some(first) => read_string(first, ARGUMENT_MAX).ok_or(system::EFAULT)?,
            None => Vec::from(&b"\0"[..]),
        };
        let rest = if arguments == 0 { 0 } else { arguments + 8 };
        let mut strings = Vec::from([self.engine_path.clone(), b"--area\0".to_vec()]);
        let mut folder = self.area.folder().to_vec();
        folder.push(0);
        strings.push(folder);
        if self.area.counts_edges() {
            strings.push(b"--edges\0".to_vec());
        }
        if self.area.counts_jumps() {
            strings.push(b"--jumps\0".to_vec());
        }
        if self.area.records_bursts() {
            strings.push(b"--bursts\0".to_vec());
        }
        if !self.sends_files {
            strings.push(b"--no-files\0".to_vec());
        }
        strings.extend([b"--argv0\0".to_vec(), first, b"--\0".to_vec(), name]);
        Ok(Prepared::Engine { strings, arguments: rest, environment })
    }

    /// Why the engine cannot execute itself again: the program may have another root or user now.
    fn cannot_follow(&self) -> Option<&'static str> {
        let may = |path: &[u8], how: u64| system::access(path, how) == 0;
        let mut folder = self.area.folder().to_vec();
        folder.push(0);
        if !may(&self.engine_path, 1) {
            Some("the engine is out of reach")
        } else if !may(&folder, 3) {
            Some("the folder of counts is out of reach")
        } else if !crate::area::writer::is_allowed() {
            Some("the limit of file sizes leaves no room for counts")
        } else {
            None
        }
    }

    /// A path for execveat(2): beneath a directory, or that of an open file.
    fn beneath(&mut self, directory: u64, name: &[u8], empty: bool) -> Result<Vec<u8>, i64> {
        const F_DUPFD: u64 = 0;
        let mut path = Vec::from(&b"/proc/self/fd/"[..]);
        if name == b"\0" {
            if !empty {
                return Err(system::ENOENT);
            }
            // The descriptor may be closed by the exec; the engine needs it once more.
            // SAFETY: the call copies a descriptor and touches no memory.
            let copy = unsafe { system::call3(number::FCNTL, directory, F_DUPFD, 0) };
            if system::is_error(copy) {
                return Err(copy);
            }
            crate::area::writer::decimal(copy as u64, &mut path);
            path.push(0);
            return Ok(path);
        }
        crate::area::writer::decimal(directory, &mut path);
        path.push(0);
        let mut target = alloc::vec![0_u8; PATH_MAX];
        let len = system::read_link(&path, &mut target);
        if system::is_error(len) {
            return Err(system::ENOTDIR);
        }
        target.truncate(len as usize);
        target.push(b'/');
        target.extend_from_slice(name);
        Ok(target)
    }

    /// The kernel refused an exec.
    pub fn exec_failed(&mut self, context: Context) -> Then {
        let answer = context.register(RAX);
        for (field, register) in (EXEC_REGISTERS..).step_by(8).zip(EXEC_KEPT) {
            context.set_register(register, context.get(field));
        }
        context.set_register(RAX, answer);
        let index = context.get(TARGET) as usize;
        let Some(call) = self.cache.system_calls.get(index).copied() else { return Then::GoOn };
        context.set_register(RCX, call.next);
        let code = self.cache.resume(call.next, context, &mut self.area);
        context.set(RESUME, code);
        Then::GoOn
    }
}

/// An exec that is to be made.
enum Prepared {
    /// The engine, with these arguments before the program's.
    Engine { strings: Vec<Vec<u8>>, arguments: u64, environment: u64 },
    /// As the program asked.
    AsItIs,
}
