//! CRuby (3.0 to 3.4): which file is one, and where its threads have their frames.
//!
//! A thread's execution context has the innermost control frame; its callers lie behind it in a
//! row, up to the end of the VM's stack (vm_core.h: rb_execution_context_t, rb_control_frame_t).
//! Ruby keeps the context's address in a variable of each thread (`ruby_current_ec`). The variable
//! is found by what is in it, so no offset of a C library or of a thread's structure is assumed.
//! Before 3.0 one variable of the process has the context of the thread that holds Ruby's lock. It
//! does not tell whose context it is, so that a thread could be given another one's frames: these
//! versions are refused.

use super::iseqs;
use crate::python::Memory;
use crate::python::layouts::Group;
use crate::questions::{Language, RuntimeFound, RuntimeFunction};
use abi::{PYTHON_DIRECT, PYTHON_FLAGS_THERE, PythonFrame, PythonLayout, RuntimeLayout};
use image::{
    Export, ImageOffset, Layout as FileLayout, Vaddr, exports_of_file, large_procedures_of_file,
};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;

/// The symbols that are needed: the version, and what leads to the threads. Debian's build of 3.3
/// does not export the variable with the VM's address; a procedure that begins with reading it
/// leads there (`ruby_vm_at_exit`, vm.c).
const SYMBOLS: [&str; 3] = ["ruby_version", "ruby_current_vm_ptr", "ruby_vm_at_exit"];
/// Bytes of that procedure that are searched.
const READS_VM_BYTES: usize = 128;
/// Least length of the loop that interprets instructions, in bytes: it has about 25,000.
const LOOP_BYTES_MIN: u64 = 8 << 10;
/// Bytes of the VM's structure and of a thread's that are searched: the words of interest are among
/// the first 600.
const STRUCTURE_BYTES: usize = 1024;
/// Bytes before a thread's pointer that are searched for the variable: static thread-local storage
/// of a Ruby with its libraries has some hundred.
const STORAGE_BYTES: usize = 4096;
/// Words of a VM stack at most: Ruby's own limit is 1 MiB by default.
const STACK_WORDS_MAX: u64 = 1 << 24;

/// `VM_FRAME_FLAG_FINISH`: the loop returns after this frame; `VM_FRAME_FLAG_CFRAME`: a frame of a
/// function in C (vm_core.h).
const FINISH: u64 = 0x20;
const C_FRAME: u64 = 0x80;
/// `VM_FRAME_MAGIC_DUMMY` in `VM_FRAME_MAGIC_MASK`: a thread's first frame, which runs nothing.
const KIND: u64 = 0x7fff_0001;
const DUMMY: u64 = 0x7999_0001;

/// A file with a Ruby. Addresses are the file's.
#[derive(Debug)]
pub struct Program {
    version: (u8, u8),
    /// Address of the address of the VM.
    vm: u64,
    /// Procedures of which one is the loop.
    procedures: Vec<Range<u64>>,
    layout: FileLayout,
}

/// Whether a file of this name may be a Ruby: `ruby3.1`, `libruby-3.1.so.3.1`.
pub fn may_be_ruby(name: &[u8]) -> bool {
    name.starts_with(b"ruby") || name.starts_with(b"libruby")
}

impl Program {
    /// The Ruby of a file; None: it has none. The error names a version that is not known.
    pub fn of_file(file: &File) -> Option<Result<Self, String>> {
        let exports = exports_of_file(file, &SYMBOLS).ok()?;
        let [version, vm, reads_vm] = exports.try_into().ok()?;
        let layout = FileLayout::of_file(file).ok()?;
        let mut text = [0; 8];
        let ImageOffset(at) = layout.vaddr_to_file_offset(version?.vaddr)?;
        file.read_exact_at(&mut text, at).ok()?;
        let text = text.split(|byte| *byte == 0).next().and_then(|it| std::str::from_utf8(it).ok());
        let mut numbers = text?.split('.').map(str::parse);
        let version @ (major, minor) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
        if !matches!(version, (3, 0..=4)) {
            return Some(Err(format!("Ruby {major}.{minor} is not known")));
        }
        let code_of = |Export { vaddr, size_bytes }| {
            let ImageOffset(at) = layout.vaddr_to_file_offset(vaddr)?;
            let mut code = [0; READS_VM_BYTES];
            let read = file.read_at(&mut code, at).ok()?;
            let len = usize::try_from(size_bytes).ok()?.min(read);
            first_variable(code.get(..len)?, vaddr.0)
        };
        let vm = vm.map(|Export { vaddr: Vaddr(at), .. }| at).or_else(|| code_of(reads_vm?));
        let procedures = large_procedures_of_file(file, LOOP_BYTES_MIN).ok()?;
        Some(Ok(Self { version, vm: vm?, procedures, layout }))
    }

    /// Difference between a process's addresses and the file's, where it has the byte at this
    /// offset mapped at `address`.
    pub fn bias(&self, address: u64, file_offset: u64) -> Option<u64> {
        self.layout.bias(address, ImageOffset(file_offset))
    }

    /// Where the threads of a process have their frames.
    pub fn look(&self, memory: &impl Memory, bias: u64) -> RuntimeFound {
        // Elsewhere a thread's pointer is not what `pthread_self` names.
        let found = cfg!(target_arch = "x86_64")
            .then(|| variable_of_threads(memory, self.vm.wrapping_add(bias)));
        let Some(Some(state_at)) = found else { return RuntimeFound::NotYet };
        let python = PythonLayout {
            state_at,
            id_at: PYTHON_DIRECT,
            frame_at: 16,
            current_at: PYTHON_DIRECT,
            block_bytes: 40,
            code_at: 16,
            flags_at: 32 | PYTHON_FLAGS_THERE,
            step: self.frame_bytes(),
            ..PythonLayout::default()
        };
        RuntimeFound::Layout(RuntimeLayout { python, ..RuntimeLayout::default() })
    }

    /// `sizeof(rb_control_frame_t)`: 3.1 has `jit_return`, 3.3 lacks `__bp__`.
    fn frame_bytes(&self) -> u16 {
        match self.version {
            (3, 1 | 2) => 64,
            _ => 56,
        }
    }

    fn layout(&self) -> iseqs::Layout {
        iseqs::Layout::of(self.version)
    }

    /// The code of the loop that runs a frame: the first word of the frame's function is the
    /// address in the loop of its first instruction.
    pub fn loop_of(
        &self,
        memory: &impl Memory,
        bias: u64,
        frame: &PythonFrame,
    ) -> Option<Range<u64>> {
        let handler = iseqs::first_handler(memory, frame.code)?.wrapping_sub(bias);
        self.procedures.iter().find(|of| of.contains(&handler)).cloned()
    }

    /// The function of an instruction sequence.
    pub fn function(&self, memory: &impl Memory, iseq: u64) -> Option<RuntimeFunction> {
        let (name, file, first_line) = iseqs::function(memory, iseq, &self.layout())?;
        Some(RuntimeFunction { language: Language::Ruby, file, name, first_line })
    }

    /// The line of a frame.
    pub fn line(&self, memory: &impl Memory, frame: &PythonFrame) -> Option<u32> {
        iseqs::line(memory, (frame.code, frame.instruction), &self.layout())
    }
}

/// Address of the first variable that code at `begin` reads into a register of 64 bits: `mov
/// rel32(%rip), %reg`, which has a REX prefix with W, opcode 8B and mode 00 101 (Intel SDM, volume
/// 2, 2.2.1). What is there is verified when it is read.
fn first_variable(code: &[u8], begin: u64) -> Option<u64> {
    const LOAD_BYTES: u64 = 7;
    code.windows(LOAD_BYTES as usize).zip(0_u64..).find_map(|(bytes, at)| {
        let (head, distance) = bytes.split_at_checked(3)?;
        let is_load = matches!(head, [0x48 | 0x4c, 0x8b, mode] if mode & 0xc7 == 5);
        let distance = i32::from_le_bytes(*distance.first_chunk()?);
        let next = begin.checked_add(at + LOAD_BYTES)?;
        is_load.then(|| next.checked_add_signed(distance.into()))?
    })
}

/// Whether a frame runs instructions: native frames are those of functions in C.
fn is_run(frame: &PythonFrame) -> bool {
    frame.flags & C_FRAME == 0 && frame.flags & KIND != DUMMY
}

/// Frames by calls of the loop, the innermost call first.
pub fn groups(frames: &[PythonFrame]) -> Vec<Group<'_>> {
    let mut groups = Vec::new();
    let mut group = Vec::new();
    for frame in frames.iter().filter(|frame| is_run(frame)) {
        group.push(frame);
        if frame.flags & FINISH != 0 {
            groups.push(Group { frames: std::mem::take(&mut group), is_whole: true });
        }
    }
    if !group.is_empty() {
        groups.push(Group { frames: group, is_whole: false });
    }
    groups
}

/// The words of a structure, as far as it can be read.
fn words(memory: &impl Memory, at: u64) -> Vec<u64> {
    let mut bytes = [0; STRUCTURE_BYTES];
    let read = if is_pointer(at) { memory.read(at, &mut bytes) } else { 0 };
    let words = bytes.get(..read).unwrap_or_default().as_chunks::<8>().0;
    words.iter().map(|word| u64::from_le_bytes(*word)).collect()
}

fn is_pointer(word: u64) -> bool {
    word.is_multiple_of(8) && (1 << 12..1 << 47).contains(&word)
}

/// Whether a thread's context is there: its frame lies in its stack.
fn is_context(memory: &impl Memory, at: u64) -> bool {
    let mut bytes = [0; 24];
    if !is_pointer(at) || memory.read(at, &mut bytes) != bytes.len() {
        return false;
    }
    let [stack, len, frame] = [0, 8, 16].map(|at| {
        let word = bytes.get(at..).and_then(<[u8]>::first_chunk);
        word.map_or(0, |word| u64::from_le_bytes(*word))
    });
    let is_len = (1..STACK_WORDS_MAX).contains(&len);
    is_pointer(stack) && is_len && is_pointer(frame) && frame > stack && frame - stack < 8 * len
}

/// Whether a thread of the C library is there: the words at 0 and 16 are its own address
/// (`tcbhead_t`, sysdeps/x86_64/nptl/tls.h of glibc; musl has the first alone).
fn is_thread(memory: &impl Memory, at: u64) -> bool {
    is_pointer(at)
        && memory.word(at) == Some(at)
        && at.checked_add(16).and_then(|self_at| memory.word(self_at)) == Some(at)
}

/// Offset in each thread of the variable with the address of its context, which is negative. Among
/// the words of the VM is the main thread's structure; among its words, or in what these point to,
/// are its context and the C library's thread.
pub fn variable_of_threads(memory: &impl Memory, vm: u64) -> Option<i32> {
    let vm = memory.word(vm)?;
    for thread in words(memory, vm) {
        let of_thread = words(memory, thread);
        let Some(context) = of_thread.iter().find(|at| is_context(memory, **at)) else { continue };
        // From 3.3 on the C library's thread is in the structure of a native thread.
        let in_native = of_thread.iter().flat_map(|at| words(memory, *at).into_iter().take(6));
        let mut all = of_thread.iter().copied().chain(in_native);
        let Some(pointer) = all.find(|at| is_thread(memory, *at)) else { continue };
        let mut storage = [0; STORAGE_BYTES];
        let begin = pointer.checked_sub(STORAGE_BYTES as u64)?;
        // The storage of the main thread may begin less than that before it.
        let skip = (0..STORAGE_BYTES).step_by(512).find(|skip| {
            let into = storage.get_mut(*skip..).unwrap_or_default();
            let len = into.len();
            memory.read(begin + *skip as u64, into) == len
        })?;
        let held = storage.get(skip..).unwrap_or_default().as_chunks::<8>().0;
        let mut places = (skip..)
            .step_by(8)
            .zip(held)
            .filter(|(_, word)| u64::from_le_bytes(**word) == *context)
            .map(|(place, _)| place);
        let (Some(place), None) = (places.next(), places.next()) else { continue };
        return i32::try_from(place).ok().map(|place| place - STORAGE_BYTES as i32);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_variable_of_code_is_found() {
        // endbr64; push %rbp; mov $16, %edi; mov 0x1f8b8f(%rip), %rbx; call
        let code = [
            0xf3, 0x0f, 0x1e, 0xfa, 0x55, 0xbf, 0x10, 0, 0, 0, 0x48, 0x8b, 0x1d, 0x8f, 0x8b, 0x1f,
            0, 0xe8, 0, 0, 0, 0,
        ];
        assert_eq!(first_variable(&code, 0x1000), Some(0x1000 + 17 + 0x1f_8b8f));
        assert_eq!(first_variable(&code[..16], 0x1000), None, "cut");
        assert_eq!(first_variable(&code, u64::MAX - 12), None, "beyond the address space");
    }
}
