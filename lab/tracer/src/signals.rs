//! Signal handlers with events.
//!
//! A handler interrupts code between two events, whose position is in a register: the thread's
//! variable is older. So a handler gets a chunk of its own, and the variable is put back when it
//! returns. Code with events calls the procedures below instead of sigaction(2) and signal(3).

use crate::area::DEPTH_MAX;
use crate::{chunks, entry};
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Signals are numbered 1 to 64.
const SIGNALS: usize = 65;
/// `SIG_DFL` and `SIG_IGN` are 0 and 1.
const HANDLER_MIN: usize = 2;
const SA_SIGINFO: c_int = 4;
const SA_RESTART: c_int = 0x1000_0000;
const SIG_ERR: usize = usize::MAX;

/// `struct sigaction` of the C libraries for x86-64 Linux: glibc's and musl's are the same.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Action {
    handler: usize,
    mask: [u64; 16],
    flags: c_int,
    restorer: usize,
}

unsafe extern "C" {
    fn sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int;
}

/// The program's handlers, and the flags that it gave with them.
static HANDLERS: [AtomicUsize; SIGNALS] = [const { AtomicUsize::new(0) }; SIGNALS];
static FLAGS: [AtomicU32; SIGNALS] = [const { AtomicU32::new(0) }; SIGNALS];

/// sigaction(2), with [`handle`] before the program's handler.
///
/// # Safety
/// As sigaction(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dcpi_trace_sigaction(
    signal: c_int,
    new: *const Action,
    old: *mut Action,
) -> c_int {
    let number = usize::try_from(signal).unwrap_or(SIGNALS);
    let (Some(handler), Some(flags)) = (HANDLERS.get(number), FLAGS.get(number)) else {
        // SAFETY: as the caller's.
        return unsafe { sigaction(signal, new, old) };
    };
    let (before, before_flags) = (handler.load(Ordering::Acquire), flags.load(Ordering::Acquire));
    // SAFETY: the caller's pointers are null or lead to what sigaction(2) says.
    unsafe {
        let mut ours = None;
        if let Some(action) = new.as_ref().filter(|it| it.handler >= HANDLER_MIN) {
            handler.store(action.handler, Ordering::Release);
            flags.store(action.flags as u32, Ordering::Release);
            let first: extern "C" fn(c_int, *mut c_void, *mut c_void) = handle;
            ours = Some(Action {
                handler: first as usize,
                flags: action.flags | SA_SIGINFO,
                ..*action
            });
        }
        let asked = ours.as_ref().map_or(new, |it| it);
        let answer = sigaction(signal, asked, old);
        if answer != 0 {
            handler.store(before, Ordering::Release);
            flags.store(before_flags, Ordering::Release);
        } else if let Some(old) = old.as_mut() {
            let first: extern "C" fn(c_int, *mut c_void, *mut c_void) = handle;
            if old.handler == first as usize {
                old.handler = before;
                old.flags = before_flags as c_int;
            }
        }
        answer
    }
}

/// signal(3), as glibc has it: system calls are begun again.
///
/// # Safety
/// As signal(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dcpi_trace_signal(signal: c_int, handler: usize) -> usize {
    let new = Action { handler, mask: [0; 16], flags: SA_RESTART, restorer: 0 };
    let mut old = Action { handler: 0, mask: [0; 16], flags: 0, restorer: 0 };
    // SAFETY: both are whole actions.
    if unsafe { dcpi_trace_sigaction(signal, &new, &mut old) } == 0 { old.handler } else { SIG_ERR }
}

/// Stands before each handler.
extern "C" fn handle(signal: c_int, information: *mut c_void, context: *mut c_void) {
    let number = usize::try_from(signal).unwrap_or(SIGNALS);
    let handler = HANDLERS.get(number).map_or(0, |it| it.load(Ordering::Acquire));
    if handler < HANDLER_MIN {
        return;
    }
    // SAFETY: the program gave this address as one of a handler; handlers of one parameter do not
    // look at the others.
    let handler: extern "C" fn(c_int, *mut c_void, *mut c_void) =
        unsafe { core::mem::transmute(handler) };
    let (slot, interrupted) = (entry::slot(), entry::position());
    if slot == 0 {
        // The thread has no chunk that could be disturbed; its position may be anywhere in the
        // chunk that nobody reads.
        entry::set_position(chunks::nowhere());
        handler(signal, information, context);
        entry::set_position(interrupted);
        return;
    }
    let depth = chunks::depth(slot);
    let before = depth.load(Ordering::Relaxed);
    depth.store(before + 1, Ordering::Relaxed);
    let own = (before < DEPTH_MAX).then(|| chunks::begin_handler(slot, before + 1)).flatten();
    entry::set_position(own.map_or_else(chunks::nowhere, |(position, _)| position));
    handler(signal, information, context);
    match own {
        Some((_, chunk)) => chunks::end_handler(slot, before + 1, entry::position(), chunk),
        None => chunks::lose_handler(slot, entry::position()),
    }
    depth.store(before, Ordering::Relaxed);
    entry::set_position(interrupted);
}
