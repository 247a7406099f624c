//! Where threads of a process have the attributes that its program sets for them: labels of Go's
//! goroutines, OpenTelemetry's record of the current request.
//!
//! The sampler copies their texts at the sample (`ebpf/src/attributes.h`), since they are another's
//! a moment later. Here is the rest, once for each process:
//!
//! - **Go's labels** (`runtime/pprof`, 1.18 to 1.27): the fields that lead from a thread to the
//!   labels of its goroutine are those that two procedures of the program use, so no table of
//!   offsets is needed. The program's version says whether the labels are in a map (until 1.23) or
//!   in a list. A program that sets no labels lacks the procedure that does.
//! - **OpenTelemetry's record** (OTEP 4947): a file exports a variable of the thread with the
//!   record's address, and the process says of itself how the record is read (`process_context`).
//!
//! Memory is that of strangers: nothing in it makes this panic or sizes an allocation beyond a
//! limit.
//!
//! # Not read
//!
//! Go's labels of programs without a version (`devel`), of shared libraries of Go and before 1.18;
//! attributes of code that is not for x86-64; OpenTelemetry's records of Node.js, which are in its
//! heap.
//!
//! # Sources
//!
//! src/runtime/proflabel.go, src/runtime/pprof/label.go, src/internal/runtime/maps (Go 1.24),
//! src/runtime/map.go (until 1.23) of Go 1.19, 1.21, 1.23, 1.24, 1.26 and 1.27; oteps/profiles/
//! 4947-thread-ctx.md of OpenTelemetry's specification; sysdeps/x86_64/dl-tls.h,
//! nptl/descr.h (`tcbhead_t`) of glibc 2.36; src/internal/pthread_impl.h of musl 1.2.

pub mod process_context;

use crate::python::{LiveMemory, Memory};
use crate::questions::{AttributesFound, FileAt, Unwind};
use abi::{ATTRIBUTES_IN_LIST, ATTRIBUTES_IN_MAP, ATTRIBUTES_IN_RECORD, AttributeLayout};
use image::{
    ImageOffset, Layout as FileLayout, ThreadVariable, Vaddr, go_program_of_file,
    thread_variable_of_file,
};
use kernel::MappedFileId;
use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use unwind::Way;

/// Files that are known, each with some hundred bytes. Beyond, all are forgotten and read again.
const FILES_MAX: usize = 4096;
/// Longest code of a procedure that is read, in bytes; those that are asked about have some 100.
const CODE_BYTES_MAX: u64 = 1024;
/// The first minor version of Go that has labels in a list.
const FIRST_WITH_LIST: u32 = 24;
/// The last minor version of Go that is known.
const LAST_KNOWN: u32 = 27;
/// Names of the procedure that changes to the thread's stack, and of the one that sets labels.
const PROCEDURES: [&str; 3] =
    ["runtime.systemstack", "runtime.systemstack.abi0", "runtime/pprof.runtime_setProfLabel"];
/// The variable of the thread that has the address of OpenTelemetry's record.
const VARIABLE: &str = "otel_thread_ctx_v1";
/// Largest number of a module that is believed: the loader counts files that it has mapped.
const MODULES_MAX: u64 = 1 << 16;
/// Largest distance in a module's memory of a thread, in bytes.
const DISTANCE_MAX: u64 = 1 << 30;
/// Bytes of an entry in a thread's table of modules: of glibc, and of musl.
const MODULE_BYTES: u16 = 16;
const MUSL_MODULE_BYTES: u16 = 8;

/// What is known of files.
#[derive(Default)]
pub struct Attributes {
    files: HashMap<MappedFileId, Known>,
}

/// What a file has of attributes.
#[derive(Default)]
struct Known {
    go: Option<AttributeLayout>,
    variable: Option<(ThreadVariable, FileLayout)>,
}

impl Attributes {
    /// Where the threads of a process have attributes; None: nowhere that is known, or not yet.
    /// `open` opens a file of the process.
    pub fn look(
        &mut self,
        asked: &Unwind,
        open: impl Fn(&FileAt) -> Option<File>,
    ) -> Option<AttributesFound> {
        if self.files.len() > FILES_MAX {
            self.files.clear();
        }
        let mut go = None;
        let mut variable = None;
        for mapped in &asked.map {
            let Some(file) = mapped.code.file() else { continue };
            if !self.files.contains_key(&file.id) {
                // Through another process it may be opened later.
                let Some(opened) = open(file) else { continue };
                self.files.insert(file.id.clone(), Known::of_file(&opened));
            }
            let Some(known) = self.files.get(&file.id) else { continue };
            go = go.or(known.go);
            if let Some((of, layout)) = &known.variable
                && let Some(bias) = layout.bias(mapped.range.0, ImageOffset(mapped.file_offset))
            {
                variable = variable.or(Some((*of, bias)));
            }
        }
        let of_record = variable.and_then(|variable| record(asked, variable));
        of_record.or_else(|| Some(AttributesFound { layout: go?, keys: Vec::new() }))
    }
}

impl Known {
    fn of_file(file: &File) -> Self {
        let variable = thread_variable_of_file(file, VARIABLE).ok().flatten();
        let variable = variable.zip(FileLayout::of_file(file).ok());
        Self { go: labels_of_go(file), variable }
    }
}

/// Where goroutines of a program have their labels; None: it is none of Go's, or sets none.
fn labels_of_go(file: &File) -> Option<AttributeLayout> {
    let program = go_program_of_file(file, &PROCEDURES).ok()??;
    let [switch, other, sets] = program.procedures.as_slice() else { return None };
    let switch = switch.clone().or_else(|| other.clone())?;
    let layout = FileLayout::of_file(file).ok()?;
    let code = |of: Range<Vaddr>| {
        let len = of.end.0.checked_sub(of.start.0)?.min(CODE_BYTES_MAX);
        let ImageOffset(at) = layout.vaddr_to_file_offset(of.start)?;
        let mut code = vec![0; usize::try_from(len).ok()?];
        file.read_exact_at(&mut code, at).ok()?;
        Some(code)
    };
    let labels_at = unwind::labels_at(&code(sets.clone()?)?)?;
    let Way::Thread { g_at, m_at, current_at, .. } = unwind::way_in(&code(switch)?)? else {
        return None;
    };
    let is_known = program.minor <= LAST_KNOWN;
    let kind = if program.minor < FIRST_WITH_LIST { ATTRIBUTES_IN_MAP } else { ATTRIBUTES_IN_LIST };
    let of = AttributeLayout { kind, thread_at: g_at, m_at, current_at, labels_at, ..none() };
    is_known.then_some(of)
}

const fn none() -> AttributeLayout {
    AttributeLayout {
        kind: abi::ATTRIBUTES_NONE,
        thread_at: 0,
        module: 0,
        m_at: 0,
        current_at: 0,
        labels_at: 0,
        module_bytes: 0,
        reserved: 0,
    }
}

/// Where threads have the address of OpenTelemetry's record, by a variable of a file whose
/// addresses are so far from the process's.
fn record(asked: &Unwind, (variable, bias): (ThreadVariable, u64)) -> Option<AttributesFound> {
    let memory = LiveMemory::of(asked.pid);
    let mut layout = place(&memory, variable, bias)?;
    let is_musl = |file: &FileAt| file.path.0.windows(8).any(|part| part == b"/ld-musl");
    if layout.module > 0 && asked.map.iter().filter_map(|of| of.code.file()).any(is_musl) {
        layout.module_bytes = MUSL_MODULE_BYTES;
    }
    let maps = kernel::procfs::maps(asked.pid)?;
    let keys = process_context::keys(&memory, &maps)?;
    Some(AttributesFound { layout, keys })
}

fn place(memory: &impl Memory, variable: ThreadVariable, bias: u64) -> Option<AttributeLayout> {
    let word = |at: u64| memory.word(at.wrapping_add(bias));
    let of_thread = |distance: i64| {
        let thread_at = i32::try_from(distance).ok().filter(|at| *at != 0)?;
        Some(AttributeLayout { kind: ATTRIBUTES_IN_RECORD, thread_at, ..none() })
    };
    let of_module = |module: u64, distance: u64| {
        let is_plain = module > 0 && module < MODULES_MAX && distance < DISTANCE_MAX;
        is_plain.then_some(AttributeLayout {
            kind: ATTRIBUTES_IN_RECORD,
            thread_at: i32::try_from(distance).ok()?,
            module: u32::try_from(module).ok()?,
            module_bytes: MODULE_BYTES,
            ..none()
        })
    };
    match variable {
        ThreadVariable::At(distance) => of_thread(distance),
        ThreadVariable::Distance(Vaddr(at)) => of_thread(word(at)?.cast_signed()),
        ThreadVariable::Module(Vaddr(at)) => of_module(word(at)?, word(at.checked_add(8)?)?),
        ThreadVariable::Descriptor(Vaddr(at)) => {
            let argument = word(at.checked_add(8)?)?;
            if argument.cast_signed() < 0 {
                return of_thread(argument.cast_signed());
            }
            of_module(memory.word(argument)?, memory.word(argument.checked_add(8)?)?)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::python::tests::Bytes;

    #[test]
    fn a_variable_of_the_thread_is_found_by_what_the_loader_wrote() {
        let words = |words: &[(u64, u64)]| {
            let memory = Bytes::default();
            memory.put_words(0, words);
            memory
        };
        let at = |variable, memory: &Bytes| place(memory, variable, 0x1000);
        let none = words(&[]);
        let found = at(ThreadVariable::At(-24), &none).unwrap();
        assert_eq!((found.kind, found.thread_at, found.module), (ATTRIBUTES_IN_RECORD, -24, 0));
        let static_one = words(&[(0x1048, (-64_i64).cast_unsigned())]);
        let found = at(ThreadVariable::Descriptor(Vaddr(0x40)), &static_one).unwrap();
        assert_eq!((found.thread_at, found.module), (-64, 0));
        let distance = at(ThreadVariable::Distance(Vaddr(0x48)), &static_one).unwrap();
        assert_eq!((distance.thread_at, distance.module), (-64, 0));
        let dynamic = words(&[(0x1048, 0x5000), (0x5000, 3), (0x5008, 16)]);
        let found = at(ThreadVariable::Descriptor(Vaddr(0x40)), &dynamic).unwrap();
        assert_eq!((found.thread_at, found.module, found.module_bytes), (16, 3, 16));
        // Lazy: the loader has not written its words yet.
        let lazy = words(&[(0x1048, 0x5000), (0x5000, 0x3000), (0x5008, 36 | 7 << 32)]);
        assert_eq!(at(ThreadVariable::Descriptor(Vaddr(0x40)), &lazy), None);
        assert_eq!(at(ThreadVariable::Module(Vaddr(0x40)), &none), None);
        assert_eq!(at(ThreadVariable::At(0), &none), None);
    }
}
