//! Finds the lists of frames of a process's threads.

use super::layouts::{Layout, WordOf};
use super::{Found, Memory};
use abi::PythonLayout;
use std::collections::BTreeSet;

/// Threads that are looked at.
const THREADS_MAX: usize = 64;
/// Bytes of the C library's thread that are searched: glibc's `struct pthread` has about 2300, the
/// first 32 words of `pthread_setspecific` among the first 1400.
const THREAD_BYTES: usize = 2048;
/// Bytes below a thread's own that are searched for a variable. Programs with CPython have some
/// 100, in front of those of libraries.
const VARIABLES_BYTES: usize = 1024;
/// Words of musl's thread, among them the address of its table.
const THREAD_WORDS: usize = 64;
/// Words of that table (PTHREAD_KEYS_MAX, include/limits.h of musl 1.2).
const KEYS_MAX: usize = 128;
/// Largest number of how often a key of `pthread_setspecific` was used, which lies before its word.
const USES_MAX: u64 = 1 << 20;

/// The layout that the sampler follows in this process. None: the interpreter does not run yet, or
/// its threads do not have the word.
pub fn places(found: &Found<'_>, memory: &impl Memory) -> Option<PythonLayout> {
    if !cfg!(target_arch = "x86_64") {
        return None;
    }
    let runtime = found.program.runtime(found.bias);
    let layout = found.program.layout(memory, found.bias)?;
    let ThreadWord { state_at, table_at } = word_of_threads(&layout, memory, runtime)?;
    Some(PythonLayout { state_at, table_at, ..layout.sampler })
}

/// Where each thread has the address of its state: [`PythonLayout::state_at`] and
/// [`PythonLayout::table_at`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ThreadWord {
    /// Offset of the word, in bytes.
    pub state_at: i32,
    /// Offset in the thread of the address of the table that the word is in; 0: the word is in the
    /// thread.
    pub table_at: u16,
}

/// Where the threads of an interpreter have the address of their state.
pub fn word_of_threads(layout: &Layout, memory: &impl Memory, runtime: u64) -> Option<ThreadWord> {
    let interpreter = memory.word(runtime.checked_add(layout.interpreters)?)?;
    let mut state = memory.word(interpreter.checked_add(layout.threads)?)?;
    let mut common: Option<BTreeSet<ThreadWord>> = None;
    for _ in 0..THREADS_MAX {
        if state == 0 {
            break;
        }
        if memory.word(state.checked_add(layout.interpreter)?)? != interpreter {
            return None;
        }
        let thread = memory.word(state.checked_add(u64::from(layout.sampler.id_at))?)?;
        // A thread that just begins has no word yet.
        let words = match layout.word {
            WordOf::Key => words_with(memory, thread, state),
            WordOf::Variable => variables_with(memory, thread, state, interpreter),
        };
        if !words.is_empty() {
            common = Some(match common {
                Some(before) => &before & &words,
                None => words,
            });
        }
        state = memory.word(state.checked_add(layout.next)?)?;
    }
    let mut common = common?.into_iter();
    match (common.next(), common.next()) {
        // Two addresses may lead into one table; the nearer one is that of its begin.
        (Some(first), other) => (other.is_none() || first.table_at != 0).then_some(first),
        _ => None,
    }
}

/// Variables of a thread with this value: words below what `pthread_self` names, which is where
/// programs, and libraries that they begin with, have such variables (variant II of "ELF Handling
/// For Thread-Local Storage", U. Drepper, section 3.4.6). There are two, `_Py_tss_tstate`, which is
/// empty while the thread runs without the interpreter's lock, and `_Py_tss_gilstate`, which is
/// not. So long as both have the value, the one beside `_Py_tss_interp` is left out, which gcc
/// places beside the first.
fn variables_with(
    memory: &impl Memory,
    thread: u64,
    value: u64,
    interpreter: u64,
) -> BTreeSet<ThreadWord> {
    let mut bytes = [0; VARIABLES_BYTES];
    let read = match thread.checked_sub(VARIABLES_BYTES as u64) {
        Some(begin) => memory.read(begin, &mut bytes),
        None => 0,
    };
    if read < bytes.len() {
        return BTreeSet::new();
    }
    let words: Vec<u64> =
        bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
    let has = |at: Option<usize>, value| at.and_then(|at| words.get(at)) == Some(&value);
    let all: Vec<usize> = (0..words.len()).filter(|at| has(Some(*at), value)).collect();
    let is_beside =
        |at: usize| has(at.checked_sub(1), interpreter) || has(at.checked_add(1), interpreter);
    let is_left_out = |at: usize| all.len() > 1 && is_beside(at);
    let word = |at: &usize| {
        let below = i32::try_from(8 * (words.len() - at)).ok()?;
        Some(ThreadWord { state_at: -below, table_at: 0 })
    };
    all.iter().filter(|at| !is_left_out(**at)).filter_map(word).collect()
}

/// Words of a thread with this value and, before each, a number of uses, which is odd (struct
/// pthread_key_data of glibc, nptl/descr.h). Without any, words in tables that the thread has the
/// address of (`tsd` of struct pthread of musl 1.1 and 1.2, src/internal/pthread_impl.h).
pub fn words_with(memory: &impl Memory, thread: u64, value: u64) -> BTreeSet<ThreadWord> {
    let mut bytes = [0; THREAD_BYTES];
    let read = if thread == 0 { 0 } else { memory.read(thread, &mut bytes) };
    let words = bytes.get(..read).unwrap_or_default().as_chunks::<8>().0;
    let word = |at: &[u8; 8]| u64::from_le_bytes(*at);
    let is_it = |pair: &[[u8; 8]]| match pair {
        [uses, held] => word(held) == value && word(uses) % 2 == 1 && word(uses) < USES_MAX,
        _ => false,
    };
    let pairs = words.windows(2).enumerate().filter(|(_, pair)| is_it(pair));
    let in_thread = |(place, _)| {
        let state_at = i32::try_from(8 * (place + 1)).ok()?;
        Some(ThreadWord { state_at, table_at: 0 })
    };
    let found: BTreeSet<ThreadWord> = pairs.filter_map(in_thread).collect();
    if !found.is_empty() {
        return found;
    }
    let tables = words.iter().map(word).enumerate().take(THREAD_WORDS).skip(1);
    let tables = tables.filter(|(_, table)| ![0, thread].contains(table) && table % 8 == 0);
    let in_table = |(place, table): (usize, u64)| {
        let mut bytes = [0; 8 * KEYS_MAX];
        let read = memory.read(table, &mut bytes);
        let keys = bytes.get(..read).unwrap_or_default().as_chunks::<8>().0;
        let key = keys.iter().position(|key| word(key) == value)?;
        let (state_at, table_at) = (i32::try_from(8 * key).ok()?, u16::try_from(8 * place).ok()?);
        Some(ThreadWord { state_at, table_at })
    };
    tables.filter_map(in_table).collect()
}
