//! Perl 5 (5.28 to 5.42, with and without threads): which file of a process has one, where its
//! calls are, and which of them a native frame of its loop has run.
//!
//! The interpreter keeps calls as *contexts* in rows, one for each of its stacks
//! (`ebpf/src/contexts.h`). `Perl_runops_standard` runs operations until one returns to C. So a
//! native frame of it has run the calls from the innermost on to one that has no operation to
//! return to, which C has called, unless a block ends with it. Three kinds of loops begin without a
//! call:
//!
//! - the first one, in `perl_run`: it runs the main program, which has no context;
//! - that of a `sort` with a block, of a `defer` block, of code in a regular expression;
//! - that of an `eval` in a call from C (`S_docatch`): Perl leaves such calls by `longjmp` to the
//!   last `JMPENV`, and the call has none, unless it was made with `G_EVAL`.
//!
//! Such a loop runs a part of the function that the block stands in, which gets a frame there, too.
//!
//! A procedure that the loop calls runs one operation: its time is the function's own.
//!
//! # Sources
//!
//! intrpvar.h, cop.h (struct block, block_sub, block_eval, context, stackinfo; CATCH_SET,
//! MULTICALL), perl.h (PL_version), perlvars.h (PL_curinterp), thread.h, run.c, perl.c (perl_run,
//! call_sv, eval_sv), pp_ctl.c (docatch, invoke_defer_block), pp_sort.c, pp_hot.c, gv.c
//! (amagic_call), inline.h (cx_pushsub, cx_pusheval) of perl 5.28.3, 5.30.3, 5.32.1, 5.34.1,
//! 5.36.0, 5.38.2, 5.40.0 and 5.42.3. `tests/layouts/perl.c` prints the offsets of the headers that
//! it is compiled with.

use super::perl_functions::{Kind, Layout};
use super::{Run, loops_of, runs_of};
use crate::python::Memory;
use crate::python::layouts::Group;
use crate::python::runtime::{ThreadWord, words_with};
use crate::questions::{RuntimeFound, UnwoundStack};
use abi::{
    CONTEXT_BEGINS, CONTEXT_FIRST, CONTEXT_NAMED, CONTEXT_START_SHIFT, ContextLayout,
    PYTHON_DIRECT, PYTHON_FRAMES_MAX, PythonFrame, PythonLayout, RuntimeLayout,
};
use image::{Export, ImageOffset, Layout as FileLayout, Vaddr, exports_of_file};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use unwind::End;

/// The symbols: the first four are needed. Perl with threads has the address of its first
/// interpreter; without, it has the variables that are otherwise in an interpreter.
const SYMBOLS: [&str; 9] = [
    "PL_revision",
    "PL_version",
    "Perl_runops_standard",
    "perl_run",
    "PL_thr_key",
    "PL_curinterp",
    "PL_curstackinfo",
    "PL_curcop",
    "Perl_runops_debug",
];
/// Bytes of memory without a file that are searched for a thread of the C library: the main
/// thread's lies in a mapping of some KiB.
const AREA_BYTES_MAX: u64 = 256 << 10;
/// Most such mappings.
const AREAS_MAX: usize = 64;
/// A thread lies at a multiple of this (`TCB_ALIGNMENT`, sysdeps/x86/nptl/tls.h of glibc).
const THREAD_ALIGNMENT: usize = 64;
/// Bits of a context's kind, and the kinds (cop.h).
const KINDS: u64 = 15;
const CX_NULL: u64 = 0;
const CX_EVAL: u64 = 11;
const CX_DEFER: u64 = 13;
/// `CXp_EVALBLOCK`: not of a text or a file.
const IS_BLOCK: u64 = 0x40;
/// `CXp_REAL`: of a text.
const IS_TEXT: u64 = 0x20;
/// `CXp_MULTICALL`, and `CXp_SUB_RE` with `CXp_SUB_RE_FAKE`: a block in a regular expression.
const IS_MULTICALL: u64 = 0x10;
const IN_EXPRESSION: u64 = 0xc0;
/// Most contexts that a row has room for.
const ROOM_MAX: u64 = 1 << 24;

/// A file with a Perl. Addresses are the file's.
#[derive(Debug)]
pub struct Program {
    functions: Layout,
    places: Places,
    loops: Vec<Range<u64>>,
    perl_run: Range<u64>,
    layout: FileLayout,
}

/// Where the interpreter is.
#[derive(Debug)]
enum Places {
    /// The address of the address of the first of all threads.
    OfThreads(u64),
    /// The addresses of two of its variables.
    Variables { info: u64, place: u64 },
}

/// Whether a file of this name may be a Perl: `perl`, `perl5.36.0`, `libperl.so.5.36`.
pub fn may_be_perl(name: &[u8]) -> bool {
    name.starts_with(b"perl") || name.starts_with(b"libperl.so")
}

impl Program {
    /// The Perl of a file; None: it has none. The error names a version that is not known.
    pub fn of_file(file: &File) -> Option<Result<Self, String>> {
        let exports = exports_of_file(file, &SYMBOLS).ok()?;
        let [revision, version, run, perl_run, key, current, info, place, debug] =
            exports.try_into().ok()?;
        let layout = FileLayout::of_file(file).ok()?;
        let number = |export: Option<Export>| {
            let ImageOffset(at) = layout.vaddr_to_file_offset(export?.vaddr)?;
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).ok()?;
            Some(byte[0])
        };
        let (revision, version) = (number(revision)?, number(version)?);
        let code = |Export { vaddr: Vaddr(begin), size_bytes }| {
            Some(begin..begin.checked_add(size_bytes)?)
        };
        let (run, perl_run) = (code(run?)?, code(perl_run?)?);
        let address = |export: Option<Export>| export.map(|Export { vaddr: Vaddr(at), .. }| at);
        let places = match (key, address(current), address(info), address(place)) {
            (Some(_), Some(current), ..) => Places::OfThreads(current),
            (None, _, Some(info), Some(place)) => Places::Variables { info, place },
            _ => return Some(Err(format!("Perl {revision}.{version} of this build is not known"))),
        };
        let has_threads = matches!(places, Places::OfThreads(_));
        let functions = (revision == 5).then(|| Layout::of(version, has_threads)).flatten();
        let Some(functions) = functions else {
            return Some(Err(format!("Perl {revision}.{version} is not known")));
        };
        let loops = [Some(run), debug.and_then(code)].into_iter().flatten().collect();
        Some(Ok(Self { functions, places, loops, perl_run, layout }))
    }

    /// One of this version with threads, whose loop and `perl_run` are at these addresses.
    #[cfg(test)]
    pub fn with(version: u8, loops: Range<u64>, perl_run: Range<u64>) -> Self {
        let functions = Layout::of(version, true).expect("a known version");
        let (places, layout) = (Places::OfThreads(0x10), FileLayout::default());
        Self { functions, places, loops: vec![loops], perl_run, layout }
    }

    /// Difference between a process's addresses and the file's, where it has the byte at this
    /// offset mapped at `address`.
    pub fn bias(&self, address: u64, file_offset: u64) -> Option<u64> {
        self.layout.bias(address, ImageOffset(file_offset))
    }

    /// Where functions have what is read of them.
    pub fn functions(&self) -> &Layout {
        &self.functions
    }

    /// Where the threads of a process have their calls. `maps`: the text of /proc/PID/maps.
    pub fn look(
        &self,
        memory: &impl Memory,
        bias: u64,
        maps: impl FnOnce() -> Vec<u8>,
    ) -> RuntimeFound {
        let mut contexts = self.functions.contexts();
        let mut python = PythonLayout::default();
        match self.places {
            Places::Variables { info, place } => {
                let [info, place] = [info, place].map(|at| at.wrapping_add(bias));
                contexts.base = info.min(place);
                let offsets = [info, place].map(|at| u32::try_from(at - contexts.base));
                let [Ok(info_at), Ok(place_at)] = offsets else { return RuntimeFound::Nowhere };
                (contexts.info_at, contexts.place_at) = (info_at, place_at);
                if !is_interpreter(memory, contexts.base, &contexts) {
                    return RuntimeFound::NotYet;
                }
            }
            // Elsewhere a thread's pointer is not what `pthread_self` names.
            Places::OfThreads(_) if !cfg!(target_arch = "x86_64") => return RuntimeFound::Nowhere,
            Places::OfThreads(current) => {
                let first = memory.word(current.wrapping_add(bias));
                let Some(first) = first.filter(|at| is_interpreter(memory, *at, &contexts)) else {
                    return RuntimeFound::NotYet;
                };
                let Some(word) = word_of_threads(memory, first, &maps()) else {
                    return RuntimeFound::NotYet;
                };
                let ThreadWord { state_at, table_at } = word;
                python = PythonLayout { state_at, table_at, id_at: PYTHON_DIRECT, ..python };
            }
        }
        RuntimeFound::Layout(RuntimeLayout { python, contexts, ..RuntimeLayout::default() })
    }

    /// The frames of a stack, by native frames. None: they do not fit.
    pub fn runs(
        &self,
        bias: u64,
        copied: &[PythonFrame],
        walked: &UnwoundStack,
    ) -> Option<Vec<Run>> {
        let is_in = |parts: &[Range<u64>], at: u64| {
            parts.iter().any(|part| part.contains(&at.wrapping_sub(bias)))
        };
        let loops = loops_of(walked, |at| is_in(&self.loops, at));
        // Without its end, a stack does not tell whether the innermost call's loop has begun.
        if End::ALL.get(usize::from(walked.end)) != Some(&End::Whole) {
            return Some(Vec::new());
        }
        let runs_main =
            walked.addresses.iter().any(|at| is_in(std::slice::from_ref(&self.perl_run), *at));
        let innermost = loops.first().copied();
        let mut calls = groups(copied, runs_main, true);
        if calls.len() < loops.len() {
            // A call from C within a block runs in a native loop of its own.
            let others = groups(copied, runs_main, false);
            calls = if others.len() == loops.len() { others } else { calls };
        }
        let borrowed = calls.iter().map(|(frames, is_whole)| Group {
            frames: frames.iter().collect(),
            is_whole: *is_whole,
        });
        let mut runs = runs_of(borrowed.collect(), loops, walked)?;
        if innermost == Some(1) && runs.first().is_some_and(|(depth, ..)| *depth == 1) {
            runs.insert(0, (0, Vec::new(), false));
        }
        Some(runs)
    }
}

/// Frames by calls of the loop, the innermost first, and whether all of the call's are there.
/// `copied`: what the sampler copied, as [`ContextLayout`] says. `runs_main`: the outermost loop
/// runs the main program. `calls_last`: what a block ends with calls in the block's loop.
///
/// Of each frame, the code tells the function (its first operation, or the evaluated code, with the
/// [`Kind`] below), the flags its name.
pub fn groups(
    copied: &[PythonFrame],
    runs_main: bool,
    calls_last: bool,
) -> Vec<(Vec<PythonFrame>, bool)> {
    let Some((head, contexts)) = copied.split_first() else { return Vec::new() };
    let is_whole = head.flags == 1 && copied.len() < PYTHON_FRAMES_MAX;
    let begins = begins_of(contexts, calls_last);
    let mut groups = Vec::new();
    let mut group = Vec::new();
    let mut place = head.instruction;
    for (at, (context, begins)) in contexts.iter().zip(begins).enumerate() {
        let function = function_of(context);
        if function.is_none() && !begins {
            if context.flags & (KINDS | IS_BLOCK) == CX_EVAL {
                // Its text is just compiled.
                place = context.instruction;
            }
            continue;
        }
        // A block is a part of the function that it stands in.
        let function = function.or_else(|| {
            let outer = contexts.iter().skip(at + 1).find_map(function_of);
            outer.or((is_whole && runs_main).then_some((Kind::Main as u64, 0)))
        });
        let (code, flags) = function.unwrap_or((0, 0));
        if at == 0 && is_just_called(contexts, place) {
            place = code >> CONTEXT_START_SHIFT;
        }
        group.push(PythonFrame { code, instruction: place, flags });
        place = context.instruction;
        if begins {
            groups.push((std::mem::take(&mut group), true));
        }
    }
    if is_whole && runs_main {
        group.push(PythonFrame { code: Kind::Main as u64, instruction: place, flags: 0 });
        groups.push((group, true));
    } else if !group.is_empty() {
        groups.push((group, false));
    }
    groups
}

/// Whether the innermost context is a call whose first statement is still to come: the place is the
/// caller's. A function that calls itself may be at the same place.
fn is_just_called(contexts: &[PythonFrame], place: u64) -> bool {
    let mut contexts = contexts.iter();
    let Some(call) = contexts.next().filter(|call| call.instruction == place) else { return false };
    let function = function_of(call).filter(|_| call.flags & KINDS != CX_EVAL);
    function.is_some() && contexts.find_map(function_of) != function
}

/// Of each context, whether a native frame of the loop begins with it.
fn begins_of(contexts: &[PythonFrame], calls_last: bool) -> Vec<bool> {
    // Whether `longjmp` leads to the innermost loop; the last context is that of `G_EVAL`; it is a
    // block, whose last operation has no next one.
    let (mut is_protected, mut is_guarded, mut is_block) = (true, false, false);
    let outermost_first = contexts.iter().rev().map(|context| {
        let flags = context.flags;
        let has_no_next = flags & CONTEXT_BEGINS != 0;
        let was_guarded = std::mem::replace(&mut is_guarded, false);
        let was_block = std::mem::replace(&mut is_block, false);
        match flags & KINDS {
            CX_NULL => {
                (is_protected, is_block) = (false, true);
                true
            }
            CX_DEFER => {
                is_block = true;
                true
            }
            CX_EVAL if has_no_next && flags & IS_BLOCK != 0 => {
                is_guarded = true;
                false
            }
            CX_EVAL => {
                let begins = has_no_next || !is_protected;
                is_protected = true;
                begins
            }
            _ => {
                is_block = flags & IN_EXPRESSION != 0;
                let is_last = was_block && flags & (CONTEXT_FIRST | IS_MULTICALL) == 0;
                let begins = has_no_next && !(is_last && calls_last);
                if begins {
                    is_protected = was_guarded;
                }
                begins
            }
        }
    });
    let mut begins: Vec<bool> = outermost_first.collect();
    begins.reverse();
    begins
}

/// The code and the flags of the frame that a context stands for; None: it is a block of another
/// one's.
fn function_of(context: &PythonFrame) -> Option<(u64, u64)> {
    let PythonFrame { code, flags, .. } = *context;
    let start = flags >> CONTEXT_START_SHIFT << CONTEXT_START_SHIFT;
    match flags & KINDS {
        CX_NULL | CX_DEFER => None,
        CX_EVAL if flags & IS_BLOCK != 0 || code == 0 => None,
        CX_EVAL if flags & IS_TEXT != 0 => Some((Kind::Text as u64, 0)),
        CX_EVAL => Some((code << CONTEXT_START_SHIFT | Kind::File as u64, 0)),
        _ if flags & CONTEXT_NAMED != 0 => Some((start | Kind::NamedSub as u64, code)),
        _ => Some((start | Kind::Sub as u64, code)),
    }
}

/// Whether an interpreter is there, whose row has a plausible number of contexts.
fn is_interpreter(memory: &impl Memory, state: u64, layout: &ContextLayout) -> bool {
    let at = |base: u64, offset: u32| memory.word(base.checked_add(u64::from(offset))?);
    let is_stack = |info: u64| {
        let row = at(info, u32::from(layout.row_at))?;
        // Two numbers of 32 bits: that of the last context, and the row's length.
        let numbers = at(info, u32::from(layout.last_at))?;
        let (contexts, room) = (u64::from((numbers as u32).wrapping_add(1)), numbers >> 32);
        Some(row != 0 && row.is_multiple_of(8) && contexts <= room + 1 && room < ROOM_MAX)
    };
    state != 0
        && at(state, layout.info_at).and_then(is_stack) == Some(true)
        && at(state, layout.place_at).is_some_and(|place| place != 0)
}

/// Where each thread has the word of `pthread_getspecific` with its interpreter, found in the
/// thread that has the first interpreter. A thread of the C library has its own address in its
/// words 0 and 2 (`tcbhead_t`, sysdeps/x86_64/nptl/tls.h of glibc).
pub fn word_of_threads(memory: &impl Memory, interpreter: u64, maps: &[u8]) -> Option<ThreadWord> {
    for Range { start, end } in areas(maps) {
        let mut bytes = vec![0; usize::try_from(end - start).ok()?];
        let read = memory.read(start, &mut bytes);
        let chunks = bytes.get(..read).unwrap_or_default().chunks_exact(THREAD_ALIGNMENT);
        for (number, chunk) in chunks.enumerate() {
            let thread = start + (THREAD_ALIGNMENT * number) as u64;
            let own = thread.to_le_bytes();
            if chunk.get(..8) != Some(&own[..]) || chunk.get(16..24) != Some(&own[..]) {
                continue;
            }
            let mut words = words_with(memory, thread, interpreter).into_iter();
            if let (Some(only), None) = (words.next(), words.next()) {
                return Some(only);
            }
        }
    }
    None
}

/// Mappings without a file in which a thread may lie.
fn areas(maps: &[u8]) -> Vec<Range<u64>> {
    let area = |line: &[u8]| {
        let mut words = std::str::from_utf8(line).ok()?.split_ascii_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let is_data = words.next()?.starts_with("rw");
        let inode = words.nth(2)?;
        let [start, end] = [start, end].map(|text| u64::from_str_radix(text, 16));
        let area = start.ok()?..end.ok()?;
        let bytes = area.end.checked_sub(area.start)?;
        (is_data && inode == "0" && bytes <= AREA_BYTES_MAX).then_some(area)
    };
    maps.split(|byte| *byte == b'\n').filter_map(area).take(AREAS_MAX).collect()
}
