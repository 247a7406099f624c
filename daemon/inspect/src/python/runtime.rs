//! Finds the lists of frames of a process's threads.

use super::layouts::Layout;
use super::{Found, Memory};
use abi::PythonLayout;
use std::collections::BTreeSet;

/// Threads that are looked at.
const THREADS_MAX: usize = 64;
/// Bytes of the C library's thread that are searched: glibc's `struct pthread` has about 2300, the
/// first 32 words of `pthread_setspecific` among the first 1400.
const THREAD_BYTES: usize = 2048;
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
    let state_at = word_of_threads(&layout, memory, runtime)?;
    Some(PythonLayout { state_at, ..layout.sampler })
}

/// The offset in each thread of the word with the address of its state.
pub fn word_of_threads(layout: &Layout, memory: &impl Memory, runtime: u64) -> Option<i32> {
    let interpreter = memory.word(runtime.checked_add(layout.interpreters)?)?;
    let mut state = memory.word(interpreter.checked_add(layout.threads)?)?;
    let mut common: Option<BTreeSet<usize>> = None;
    for _ in 0..THREADS_MAX {
        if state == 0 {
            break;
        }
        if memory.word(state.checked_add(layout.interpreter)?)? != interpreter {
            return None;
        }
        let thread = memory.word(state.checked_add(u64::from(layout.sampler.id_at))?)?;
        // A thread that just begins has no word yet.
        let words = words_with(memory, thread, state);
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
        (Some(only), None) => i32::try_from(only).ok(),
        _ => None,
    }
}

/// Offsets in a thread of words with this value and, before each, a number of uses, which is odd
/// (struct pthread_key_data of glibc, nptl/descr.h).
pub fn words_with(memory: &impl Memory, thread: u64, value: u64) -> BTreeSet<usize> {
    let mut bytes = [0; THREAD_BYTES];
    let read = if thread == 0 { 0 } else { memory.read(thread, &mut bytes) };
    let words = bytes.get(..read).unwrap_or_default().as_chunks::<8>().0;
    let word = |at: &[u8; 8]| u64::from_le_bytes(*at);
    let is_it = |pair: &[[u8; 8]]| match pair {
        [uses, held] => word(held) == value && word(uses) % 2 == 1 && word(uses) < USES_MAX,
        _ => false,
    };
    let pairs = words.windows(2).enumerate().filter(|(_, pair)| is_it(pair));
    pairs.map(|(place, _)| 8 * (place + 1)).collect()
}
