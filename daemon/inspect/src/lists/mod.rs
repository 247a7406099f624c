//! Functions of Ruby, PHP, Lua and Perl in call stacks: of interpreters whose frames lie in the
//! heap, as CPython's do ([`python`](super::python)).
//!
//! The sampler copies the list of frames at the sample (`ebpf/src/python.h`): of each its code, its
//! instruction and its flags. Here is the rest, for each interpreter a module of its own:
//!
//! - `ruby`: which file of a process is a CRuby, of which version, and where its threads have their
//!   frames; `iseqs`: names and lines of its functions.
//! - `php`: likewise of the Zend Engine.
//! - `lua`: likewise of Lua, whose lists only frames on the stack lead to
//!   (`ebpf/src/list_frames.h`); `lua_functions`: names and lines of its functions.
//! - `perl`: likewise of Perl, whose calls lie among other contexts (`ebpf/src/contexts.h`);
//!   `perl_functions`: names and lines of its functions.
//!
//! The interpreter's loop is one native frame for all that it runs until it returns. It is replaced
//! by these frames ([`merge`](super::python::merge)).
//!
//! **No name is guessed.** Of each object the type, the length and the text are checked. Where
//! native frames and those of the interpreter do not fit, all native frames stay as they are.
//! Memory is that of strangers: nothing in it makes this panic or sizes an allocation beyond a
//! limit.
//!
//! # What it assumes
//!
//! A function that was freed between the sample and its look-up, at most a second later, and
//! another one made at its address, passes for the first.
//!
//! # Not read
//!
//! Functions of processes that have ended before the look-up. Code that YJIT or PHP's JIT has made:
//! it does not run in the loop, so its frames do not fit. Ruby before 3.0,
//! PHP with threads (ZTS), Lua 5.0, 5.2 and 5.5, Lua within programs of other names, Perl
//! before 5.28 and of odd versions.

pub mod iseqs;
pub mod lua;
pub mod lua_functions;
pub mod lua_names;
#[cfg(test)]
mod lua_tests;
pub mod perl;
pub mod perl_functions;
#[cfg(test)]
mod perl_tests;
pub mod php;
pub mod ruby;
#[cfg(test)]
mod tests;

use crate::programs::Programs;
use crate::python::layouts::Group;
use crate::python::merge::{Native, merge};
use crate::python::{LiveMemory, Memory};
use crate::questions::{
    FileAt, RuntimeFound, RuntimeFunction, RuntimeRun, SampledStack, Unwind, Unwound, UnwoundStack,
};
use abi::PythonFrame;
use std::collections::HashMap;
use std::fs::File;
use unwind::End;

/// Functions of one answer, each read with about five system calls. Frames beyond have no name.
const FUNCTIONS_MAX: usize = 8192;
/// Places in functions of one answer whose lines are read, likewise.
const PLACES_MAX: usize = 32_768;
/// Longest path and name that are read, in bytes. A function with a longer one has no name.
pub const PATH_MAX: u64 = 4096;
/// As [`PATH_MAX`], of names.
pub const NAME_MAX: u64 = 512;

/// Whether a file of this path may have an interpreter that is known.
pub fn may_be_listed(path: &[u8]) -> bool {
    let path = path.strip_suffix(b" (deleted)").unwrap_or(path);
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    ruby::may_be_ruby(name)
        || php::may_be_php(name)
        || lua::may_be_lua(name)
        || perl::may_be_perl(name)
}

/// An interpreter in a file.
enum Program {
    Ruby(ruby::Program),
    Php(php::Program),
    Lua(lua::Program),
    Perl(perl::Program),
}

impl Program {
    /// The interpreter of a file; None: it has none. The error says why it is of no use.
    fn of_file(file: &File, path: &[u8]) -> Option<Result<Self, String>> {
        let path = path.strip_suffix(b" (deleted)").unwrap_or(path);
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        if ruby::may_be_ruby(name) {
            return Some(ruby::Program::of_file(file)?.map(Self::Ruby));
        }
        if lua::may_be_lua(name) {
            return Some(lua::Program::of_file(file)?.map(Self::Lua));
        }
        if perl::may_be_perl(name) {
            return Some(perl::Program::of_file(file)?.map(Self::Perl));
        }
        Some(php::Program::of_file(file)?.map(Self::Php))
    }

    fn bias(&self, address: u64, file_offset: u64) -> Option<u64> {
        match self {
            Self::Ruby(program) => program.bias(address, file_offset),
            Self::Php(program) => program.bias(address, file_offset),
            Self::Lua(program) => program.bias(address, file_offset),
            Self::Perl(program) => program.bias(address, file_offset),
        }
    }

    fn look(&self, pid: u32, memory: &impl Memory, bias: u64) -> RuntimeFound {
        match self {
            Self::Ruby(program) => program.look(memory, bias),
            Self::Php(program) => program.look(bias),
            Self::Lua(program) => program.look(bias),
            Self::Perl(program) => {
                program.look(memory, bias, || kernel::procfs::maps(pid).unwrap_or_default())
            }
        }
    }
}

/// Known files.
#[derive(Default)]
pub struct Lists {
    /// None: the file is no interpreter.
    files: Programs<Option<Result<Program, String>>>,
    names: lua_names::Names,
}

/// A function and a line, as numbers of an answer.
type Place = Option<(u32, u32)>;

/// Functions of one answer, each once.
#[derive(Default)]
struct Functions {
    numbers: HashMap<u64, Option<u32>>,
    places: HashMap<(u64, u64), Place>,
    all: Vec<RuntimeFunction>,
    /// Of functions that have no name of their own.
    names: HashMap<u64, String>,
}

impl Functions {
    fn place(&mut self, frame: &PythonFrame, program: &Program, memory: &impl Memory) -> Place {
        let key = (frame.code, frame.instruction);
        if let Some(place) = self.places.get(&key) {
            return *place;
        }
        if self.places.len() >= PLACES_MAX {
            return None;
        }
        let place = self.read(frame, program, memory);
        self.places.insert(key, place);
        place
    }

    fn read(&mut self, frame: &PythonFrame, program: &Program, memory: &impl Memory) -> Place {
        let number = match self.numbers.get(&frame.code) {
            Some(number) => *number,
            None => {
                if self.numbers.len() >= FUNCTIONS_MAX {
                    return None;
                }
                let function = match program {
                    Program::Ruby(program) => program.function(memory, frame.code),
                    Program::Php(program) => program.function(memory, frame.code),
                    Program::Lua(program) => {
                        let name = self.names.get(&frame.code).map(String::as_str);
                        program.functions().function(memory, frame.code, name)
                    }
                    Program::Perl(program) => program.functions().function(memory, frame),
                };
                let number = function.and_then(|function| {
                    let number = u32::try_from(self.all.len()).ok()?;
                    self.all.push(function);
                    Some(number)
                });
                self.numbers.insert(frame.code, number);
                number
            }
        }?;
        let line = match program {
            Program::Ruby(program) => program.line(memory, frame),
            Program::Php(program) => program.line(memory, frame),
            Program::Lua(program) => {
                program.functions().line(memory, frame.code, frame.instruction)
            }
            Program::Perl(program) => program.functions().line(memory, frame),
        };
        let first = self.all.get(number as usize)?.first_line;
        Some((number, line.unwrap_or(first)))
    }
}

impl Lists {
    /// Replaces native frames of an interpreter's loop in the stacks of a process, and says where
    /// its frames are, if that was asked. `open` opens a file of the process.
    pub fn name(
        &mut self,
        asked: &Unwind,
        unwound: &mut Unwound,
        open: impl Fn(&FileAt) -> Option<File>,
    ) {
        let (id, bias) = match self.program(asked, open) {
            Some(found) => found,
            None => return,
        };
        let program = match self.files.get(&id) {
            Some(Some(Ok(program))) => program,
            Some(Some(Err(why))) => {
                unwound.runtime = RuntimeFound::Refused(why.clone());
                return;
            }
            _ => return,
        };
        let memory = LiveMemory::of(asked.pid);
        if asked.looks_for_runtime {
            unwound.runtime = program.look(asked.pid, &memory, bias);
        }
        let mut names = self.names.of_process(asked.space);
        let mut all = Vec::new();
        for (at, stack) in asked.stacks.iter().enumerate() {
            let Some(walked) = unwound.stacks.get_mut(at) else { break };
            if stack.python.is_empty() && stack.noted.is_empty() {
                continue;
            }
            let runs = match program {
                Program::Lua(lua) => lua.calls((&memory, bias), stack, walked).map(|calls| {
                    names.note(&lua.functions(), &memory, &calls.states);
                    calls.runs
                }),
                _ => runs_of_list(program, (&memory, bias), stack, walked),
            };
            walked.python_differs |= runs.is_none();
            all.push((at, runs.unwrap_or_default()));
        }
        // A function has the same name in all stacks, so they are read after the last one.
        let mut functions = Functions { names: names.into_known(), ..Functions::default() };
        for (at, runs) in all {
            let Some(walked) = unwound.stacks.get_mut(at) else { break };
            for (depth, frames, is_part) in runs {
                let frames =
                    frames.iter().map(|frame| functions.place(frame, program, &memory)).collect();
                walked.runs.push(RuntimeRun { depth, frames, is_part });
            }
        }
        unwound.functions = functions.all;
    }

    /// The file of a process's interpreter, and the difference between its addresses and the
    /// file's.
    fn program(
        &mut self,
        asked: &Unwind,
        open: impl Fn(&FileAt) -> Option<File>,
    ) -> Option<(kernel::MappedFileId, u64)> {
        self.files.find(
            asked,
            may_be_listed,
            |file| open(file).map(|opened| Program::of_file(&opened, &file.path.0)),
            |program, address, offset| match program.as_ref()? {
                Ok(program) => program.bias(address, offset),
                Err(_) => Some(0),
            },
        )
    }
}

/// Place of the native frame, the frames that it ran, and whether it ran further ones.
type Run = (u32, Vec<PythonFrame>, bool);

/// The runs of a stack, by the places of the loop's native frames.
fn runs_of(groups: Vec<Group<'_>>, loops: Vec<u32>, walked: &UnwoundStack) -> Option<Vec<Run>> {
    let is_whole = End::ALL.get(usize::from(walked.end)) == Some(&End::Whole);
    let mut groups = groups;
    // The frame is in the list before the loop is entered.
    let is_before = is_whole && groups.len() == loops.len() + 1 && loops.first() != Some(&0);
    if is_before && groups.first().is_some_and(|group| group.is_whole) {
        groups.remove(0);
    }
    let native = Native { loops: loops.into_iter(), in_prologue: false, is_whole };
    let owned = |frames: Vec<&PythonFrame>| frames.into_iter().copied().collect();
    let runs = merge(native, groups)?.into_iter();
    Some(runs.map(|run| (run.depth, owned(run.frames), run.is_part)).collect())
}

fn loops_of(walked: &UnwoundStack, is_loop: impl Fn(u64) -> bool) -> Vec<u32> {
    (0..).zip(&walked.addresses).filter(|(_, at)| is_loop(**at)).map(|(depth, _)| depth).collect()
}

fn runs_of_list(
    program: &Program,
    (memory, bias): (&impl Memory, u64),
    stack: &SampledStack,
    walked: &UnwoundStack,
) -> Option<Vec<Run>> {
    let frame = |&[code, instruction, flags]: &[u64; 3]| PythonFrame { code, instruction, flags };
    let frames: Vec<PythonFrame> = stack.python.iter().map(frame).collect();
    match program {
        Program::Ruby(ruby) => runs_of_ruby(ruby, (memory, bias), &frames, walked),
        Program::Php(php) => {
            // `ZEND_VM_IP_GLOBAL_REG` is r15, the last of 16 (Zend/zend_execute.c).
            let opline = stack.registers.get(15).filter(|_| stack.registers.len() > 16);
            runs_of_php(php, (memory, bias), &frames, walked, opline.copied())
        }
        Program::Perl(perl) => perl.runs(bias, &frames, walked),
        Program::Lua(_) => Some(Vec::new()),
    }
}

fn runs_of_ruby(
    program: &ruby::Program,
    (memory, bias): (&impl Memory, u64),
    frames: &[PythonFrame],
    walked: &UnwoundStack,
) -> Option<Vec<Run>> {
    let groups = ruby::groups(frames);
    if groups.is_empty() {
        return Some(Vec::new());
    }
    let code = frames.iter().find_map(|frame| program.loop_of(memory, bias, frame))?;
    let loops = loops_of(walked, |at| code.contains(&at.wrapping_sub(bias)));
    runs_of(groups, loops, walked)
}

fn runs_of_php(
    program: &php::Program,
    (memory, bias): (&impl Memory, u64),
    frames: &[PythonFrame],
    walked: &UnwoundStack,
    opline: Option<u64>,
) -> Option<Vec<Run>> {
    let loops = loops_of(walked, |at| program.is_in_loop(at.wrapping_sub(bias)));
    let mut frames = frames.to_vec();
    // The loop keeps its place in a register, and writes it to the frame before it calls.
    if let (Some(frame), Some(opline), Some(0)) = (frames.first_mut(), opline, loops.first())
        && program.line_at(memory, frame.code, opline).is_some()
    {
        frame.instruction = opline;
    }
    runs_of(php::groups(memory, &frames), loops, walked)
}

/// Text of a process's memory. None: it cannot be read, is too long, or has other characters than
/// printable ones.
pub fn text(memory: &impl Memory, at: u64, bytes: u64, bytes_max: u64) -> Option<String> {
    if bytes == 0 || bytes > bytes_max {
        return None;
    }
    let mut text = vec![0; usize::try_from(bytes).ok()?];
    if memory.read(at, &mut text) != text.len() {
        return None;
    }
    String::from_utf8(text).ok().filter(|text| !text.chars().any(char::is_control))
}
