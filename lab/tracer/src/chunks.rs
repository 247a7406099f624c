//! Slots and chunks, as the threads of a program take and fill them.

use crate::area::{
    CHUNK_BYTES, CHUNK_FILL_BYTES, CHUNKS, DEPTH_MAX, EVENT_BYTES, FIRST_CHUNK, HEADER_BYTES, LOSS,
    MAGIC, PATH_BYTES, SLOT_BYTES, SLOTS, State, chunk_offset, header, slot, slot_offset,
};
use crate::{entry, system};
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Alignment that makes the bit 15 of positions mean what it does.
const ALIGN: usize = CHUNK_BYTES;
/// Longest time that a thread waits for the reader, in steps of 50 us: 10 s. A reader that was
/// killed must not hold the program for ever.
const WAIT_STEPS: usize = 200_000;

/// The mapped header of the area; 0: not tried yet, 1: there is none.
static AREA: AtomicUsize = AtomicUsize::new(0);
/// Addresses of slots that this process has mapped, by their number. A descriptor cannot be kept
/// for that, because programs close those that they do not know: the path is opened again.
static MAPPED: [AtomicUsize; SLOTS] = [const { AtomicUsize::new(0) }; SLOTS];
/// Address of the memory to which threads without a slot write.
static NOWHERE: AtomicUsize = AtomicUsize::new(0);

/// The word of an area's or slot's header.
///
/// # Safety
/// `begin` is a mapped header.
unsafe fn word(begin: usize, offset: usize) -> &'static AtomicU64 {
    // SAFETY: the header is mapped until the process ends, and offsets are multiples of 8.
    unsafe { &*((begin + offset) as *const AtomicU64) }
}

/// The half word of an area's or slot's header.
///
/// # Safety
/// `begin` is a mapped header.
unsafe fn half(begin: usize, offset: usize) -> &'static AtomicU32 {
    // SAFETY: the header is mapped until the process ends, and offsets are multiples of 4.
    unsafe { &*((begin + offset) as *const AtomicU32) }
}

/// There is no room at the position: the next one, in this chunk or another. The last event goes
/// along, because the next may overwrite it.
pub extern "C" fn full(position: usize) -> usize {
    let slot = entry::slot();
    if slot == 0 {
        lose_nowhere(position);
        return begin_thread();
    }
    // SAFETY: the slot is mapped, and this thread's.
    let (current, depth) = unsafe {
        let chunk = half(slot, slot::CURRENT).load(Ordering::Relaxed) as usize;
        (chunk.min(CHUNKS - 1), half(slot, slot::DEPTH).load(Ordering::Relaxed))
    };
    let begin = slot + chunk_offset(current);
    let Some(bytes) = filled(begin, position) else {
        // A signal handler that found no chunk.
        lose_nowhere(position);
        return nowhere();
    };
    let kept = bytes.saturating_sub(EVENT_BYTES);
    // SAFETY: as above; the chunk's bytes are this thread's until its state says otherwise.
    unsafe {
        let state = word(slot, slot::STATES + current * 8);
        half(slot, slot::DIRTY + current * 4).store(bytes as u32, Ordering::Relaxed);
        let last = ((begin + kept) as *const u32).read();
        let next = match take(slot, depth).or_else(|| wait_for_chunk(slot, depth)) {
            Some(next) => {
                let number = State::read(state.load(Ordering::Relaxed)).number;
                let done = State { number, depth: depth as u8, bytes: Some(kept as u32) };
                state.store(done.word(), Ordering::Release);
                next
            }
            None => {
                let was_marked = (begin as *const i32).read() == LOSS;
                let lost = (kept / EVENT_BYTES) as u64 - u64::from(was_marked && kept > 0);
                word(slot, slot::LOST).fetch_add(lost, Ordering::Relaxed);
                system::clear(begin as *mut u8, bytes.next_multiple_of(8));
                (begin as *mut i32).write(LOSS);
                begin + EVENT_BYTES
            }
        };
        (next as *mut u32).write(last);
        next + EVENT_BYTES
    }
}

/// Bytes of a chunk that lie before a position; None where the position is in another.
fn filled(begin: usize, position: usize) -> Option<usize> {
    // Moving on by 16 bits wraps to the start of the 64 KiB.
    if position == begin - FIRST_CHUNK {
        return Some(CHUNK_FILL_BYTES);
    }
    position.checked_sub(begin).filter(|bytes| *bytes <= CHUNK_BYTES)
}

/// Takes the lowest free chunk, which is the likeliest to be in caches; its first position.
pub fn take(slot: usize, depth: u32) -> Option<usize> {
    for chunk in 0..CHUNKS {
        // SAFETY: the slot is mapped, and this thread's. A signal handler of this thread may take
        // a chunk in between, so that taking is one operation.
        unsafe {
            let state = word(slot, slot::STATES + chunk * 8);
            if state.load(Ordering::Acquire) != State::FREE {
                continue;
            }
            let number = half(slot, slot::TAKEN).fetch_add(1, Ordering::Relaxed).wrapping_add(1);
            let open = State { number, depth: depth as u8, bytes: None }.word();
            let taken =
                state.compare_exchange(State::FREE, open, Ordering::AcqRel, Ordering::Relaxed);
            if taken.is_err() {
                continue;
            }
            let dirty = half(slot, slot::DIRTY + chunk * 4).load(Ordering::Relaxed) as usize;
            let begin = slot + chunk_offset(chunk);
            system::clear(begin as *mut u8, dirty.min(CHUNK_BYTES).next_multiple_of(8));
            half(slot, slot::CURRENT).store(chunk as u32, Ordering::Relaxed);
            return Some(begin);
        }
    }
    None
}

/// Waits for a chunk, if programs shall wait.
fn wait_for_chunk(slot: usize, depth: u32) -> Option<usize> {
    let area = AREA.load(Ordering::Acquire);
    if area <= 1 {
        return None;
    }
    // SAFETY: the area's header is mapped.
    let wait = unsafe { half(area, header::WAIT) };
    for _ in 0..WAIT_STEPS {
        if wait.load(Ordering::Relaxed) == 0 {
            return None;
        }
        system::pause();
        if let Some(next) = take(slot, depth) {
            return Some(next);
        }
    }
    // There is no longer a reader.
    wait.store(0, Ordering::Relaxed);
    None
}

/// Gives the thread a slot and a chunk, or the place where events are lost.
pub fn begin_thread() -> usize {
    match claim() {
        Some(slot) => {
            entry::set_slot(slot);
            // A new slot has all of its chunks.
            take(slot, 0).unwrap_or_else(nowhere)
        }
        None => nowhere(),
    }
}

/// A slot that no other thread has.
fn claim() -> Option<usize> {
    let area = area()?;
    for number in 0..SLOTS {
        let begin = mapped_slot(number)?;
        // SAFETY: both headers are mapped.
        unsafe {
            let owned = half(begin, slot::OWNED);
            if owned.load(Ordering::Relaxed) != 0
                || owned.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_err()
            {
                continue;
            }
            for chunk in 0..CHUNKS {
                word(begin, slot::STATES + chunk * 8).store(State::FREE, Ordering::Relaxed);
            }
            half(begin, slot::TAKEN).store(0, Ordering::Relaxed);
            half(begin, slot::DEPTH).store(0, Ordering::Relaxed);
            for depth in 0..=DEPTH_MAX as usize {
                word(begin, slot::HANDLERS + 8 * depth).store(0, Ordering::Relaxed);
            }
            word(begin, slot::LOST).store(0, Ordering::Relaxed);
            word(begin, slot::ORIGIN).store(entry::origin_offset(), Ordering::Relaxed);
            let path = (begin + slot::PATH) as *mut u8;
            system::clear(path, PATH_BYTES);
            system::program_path(path, PATH_BYTES - 1);
            half(begin, slot::TID).store(system::tid(), Ordering::Relaxed);
            half(area, header::USED).fetch_max(number as u32 + 1, Ordering::AcqRel);
            half(begin, slot::PID).store(system::pid(), Ordering::Release);
        }
        return Some(begin);
    }
    None
}

/// The address of a slot in this process.
fn mapped_slot(number: usize) -> Option<usize> {
    let known = MAPPED.get(number)?;
    let address = known.load(Ordering::Acquire);
    if address != 0 {
        return Some(address);
    }
    let file = system::open_area()?;
    let place = system::map_area(file, slot_offset(number), SLOT_BYTES, ALIGN);
    system::close(file);
    publish(known, place?, SLOT_BYTES)
}

/// The address of the area's header in this process.
fn area() -> Option<usize> {
    let known = AREA.load(Ordering::Acquire);
    if known != 0 {
        return (known > 1).then_some(known);
    }
    let header = system::open_area().and_then(|file| {
        let place = system::map_area(file, 0, HEADER_BYTES, ALIGN);
        system::close(file);
        place
    });
    // SAFETY: the header has just been mapped.
    let Some(place) = header
        .filter(|it| unsafe { word(*it as usize, header::MAGIC) }.load(Ordering::Relaxed) == MAGIC)
    else {
        _ = AREA.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire);
        return None;
    };
    publish(&AREA, place, HEADER_BYTES)
}

/// Publishes a mapping, or uses the one that another thread has published first.
fn publish(known: &AtomicUsize, place: *mut u8, bytes: usize) -> Option<usize> {
    match known.compare_exchange(0, place as usize, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Some(place as usize),
        Err(other) => {
            system::unmap(place, bytes);
            (other > 1).then_some(other)
        }
    }
}

/// Address of the memory for lost events, one chunk for the whole process.
pub fn nowhere() -> usize {
    let known = NOWHERE.load(Ordering::Acquire);
    let begin = if known != 0 {
        known
    } else {
        // Without memory for that, the program has none for itself: it ends at its next event.
        let Some(place) = system::map_memory(FIRST_CHUNK + CHUNK_BYTES, ALIGN) else { return 0 };
        publish(&NOWHERE, place, FIRST_CHUNK + CHUNK_BYTES).unwrap_or(0)
    };
    begin + FIRST_CHUNK
}

/// Counts events that were lost because the thread has no slot.
fn lose_nowhere(position: usize) {
    let begin = NOWHERE.load(Ordering::Acquire);
    let area = AREA.load(Ordering::Acquire);
    if begin == 0 || area <= 1 {
        return;
    }
    if let Some(bytes) = filled(begin + FIRST_CHUNK, position) {
        let lost = (bytes / EVENT_BYTES) as u64;
        // SAFETY: the area's header is mapped.
        unsafe { word(area, header::LOST) }.fetch_add(lost, Ordering::Relaxed);
    }
}

/// A child has its parent's memory, but must not write into its parent's chunks.
#[unsafe(no_mangle)]
pub extern "C" fn dcpi_trace_fork() -> i32 {
    unsafe extern "C" {
        safe fn fork() -> i32;
    }
    let child = fork();
    if child == 0 {
        entry::set_slot(0);
        entry::set_position(begin_thread());
    }
    child
}

/// Begins a signal handler, `depth` handlers deep: the position of its events, in the chunk of that
/// depth, and the chunk that it interrupts. None where there is no chunk.
pub fn begin_handler(slot: usize, depth: u32) -> Option<(usize, u32)> {
    // SAFETY: the slot is mapped, and this thread's.
    let (current, chunk, bytes) = unsafe {
        let known = slot + slot::HANDLERS + 8 * depth as usize;
        (half(slot, slot::CURRENT), half(known, 0), half(known, 4))
    };
    let interrupted = current.load(Ordering::Relaxed);
    let position = match chunk.load(Ordering::Relaxed).checked_sub(1) {
        Some(chunk) => {
            current.store(chunk, Ordering::Relaxed);
            slot + chunk_offset(chunk as usize) + bytes.load(Ordering::Relaxed) as usize
        }
        None => take(slot, depth).or_else(|| wait_for_chunk(slot, depth))?,
    };
    Some((position, interrupted))
}

/// Ends a signal handler: the next one of its depth goes on at the position, and the thread in the
/// chunk that the handler interrupted.
pub fn end_handler(slot: usize, depth: u32, position: usize, interrupted: u32) {
    // SAFETY: the slot is mapped, and this thread's.
    unsafe {
        let current = half(slot, slot::CURRENT);
        let chunk = current.load(Ordering::Relaxed);
        if let Some(bytes) = filled(slot + chunk_offset(chunk as usize), position) {
            let known = slot + slot::HANDLERS + 8 * depth as usize;
            half(known, 0).store(chunk + 1, Ordering::Relaxed);
            half(known, 4).store(bytes as u32, Ordering::Relaxed);
        }
        current.store(interrupted, Ordering::Relaxed);
    }
}

/// Ends a signal handler that found no chunk: its events are lost.
pub fn lose_handler(slot: usize, position: usize) {
    let bytes = filled(nowhere(), position).unwrap_or_default();
    // SAFETY: the slot is mapped, and this thread's.
    unsafe { word(slot, slot::LOST) }.fetch_add((bytes / EVENT_BYTES) as u64, Ordering::Relaxed);
}

/// The number of signal handlers that the thread is in.
pub fn depth(slot: usize) -> &'static AtomicU32 {
    // SAFETY: the slot is mapped.
    unsafe { half(slot, slot::DEPTH) }
}
