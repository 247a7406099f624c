//! The engine of a process: one state, one lock, and the ways into it from translated code.

use crate::area::writer::Area;
use crate::cache::{Cache, exit};
use crate::context::{Context, EXIT, RESUME, TARGET};
use crate::switch;
use crate::syscalls::Then;
use crate::system;
use crate::threads::Threads;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Everything but the threads' contexts.
pub struct Engine {
    pub cache: Cache,
    pub area: Area,
    pub threads: Threads,
    /// Path of the engine's program, with a final zero byte.
    pub engine_path: alloc::vec::Vec<u8>,
    /// Path of the program that runs, without.
    pub program: alloc::vec::Vec<u8>,
    /// Whether the receiver of counts gets descriptors of mapped files: not once the program
    /// filters its system calls (seccomp), because a call that the program does not make could end
    /// it.
    pub sends_files: bool,
    /// How the program may change code without writing to its own memory.
    pub code_writes: crate::code_writes::CodeWrites,
    /// Arguments of execs by thread, which the kernel may still read.
    pub execs: alloc::vec::Vec<crate::execs::Arguments>,
    pub bursts: crate::bursts::Bursts,
}

struct Shared(UnsafeCell<Option<Engine>>);

// SAFETY: the content is reached through `with`, which holds the lock.
unsafe impl Sync for Shared {}

static ENGINE: Shared = Shared(UnsafeCell::new(None));
static LOCK: AtomicU32 = AtomicU32::new(0);
/// Address of the code that unblocks signals: needed without the lock.
static UNBLOCK: AtomicU64 = AtomicU64::new(0);

/// Begin of the area; zero before there is one.
static AREA: AtomicU64 = AtomicU64::new(0);

/// Whether an address lies in the area.
pub fn is_area(address: u64) -> bool {
    let start = AREA.load(Ordering::Relaxed);
    start != 0 && (start..start + crate::area::SIZE).contains(&address)
}

/// Address of code that sets a mask of signals and goes on.
pub fn unblock_address() -> u64 {
    UNBLOCK.load(Ordering::Relaxed)
}

/// The lock, for a thread that ends.
pub fn lock_word() -> &'static AtomicU32 {
    &LOCK
}

fn with<T>(work: impl FnOnce(&mut Engine) -> T) -> T {
    while LOCK.swap(1, Ordering::Acquire) != 0 {
        // Waits are as short as a translation.
        system::give_way();
    }
    // SAFETY: the lock is held, so nobody else has this reference.
    let engine = unsafe { &mut *ENGINE.0.get() };
    let result = match engine {
        Some(engine) => work(engine),
        None => system::refuse(&[b"an error in the engine: it has not begun"]),
    };
    LOCK.store(0, Ordering::Release);
    result
}

/// Sets the engine up; from now on translated code may run.
pub fn begin(engine: Engine) {
    UNBLOCK.store(engine.cache.fixed.unblock, Ordering::Relaxed);
    AREA.store(engine.area.range().start, Ordering::Relaxed);
    // SAFETY: there is one thread, and nothing has a reference yet.
    unsafe { *ENGINE.0.get() = Some(engine) };
}

/// Translated code needs the engine; `EXIT` of the context says why.
#[unsafe(no_mangle)]
extern "C" fn blockcount_dispatch(context: u64) {
    let context = Context(context);
    let mut then = with(|engine| engine.dispatch(context));
    // Work that may take long is done without the lock.
    loop {
        then = match then {
            Then::GoOn => return,
            Then::Clone { call, child, next, vfork } => {
                let answer = switch::clone(&call, child);
                with(|engine| engine.cloned(context, child, answer, next, vfork))
            }
            Then::End(code) => system::exit(code),
        };
    }
}

impl Engine {
    fn dispatch(&mut self, context: Context) -> Then {
        let reason = context.get(EXIT) as i32;
        let index = |first: i32| (reason - first) as usize;
        let code = match reason {
            exit::MISS => self.cache.missed(context.get(TARGET), context, &mut self.area),
            exit::STEP => return self.step(context),
            exit::EXEC_FAILED => return self.exec_failed(context),
            exit::BRANCH..exit::SYSTEM_CALL => {
                self.cache.take(index(exit::BRANCH), context, &mut self.area)
            }
            exit::SYSTEM_CALL..exit::CHAIN => {
                return self.system_call(context, index(exit::SYSTEM_CALL));
            }
            exit::CHAIN..exit::REFUSED => {
                self.cache.add_target(index(exit::CHAIN), context, &mut self.area)
            }
            exit::REFUSED.. => self.refused(index(exit::REFUSED)),
            _ => {
                self.arrived(context);
                return Then::GoOn;
            }
        };
        context.set(RESUME, code);
        Then::GoOn
    }

    /// The program has come to an instruction that the engine does not execute.
    fn refused(&mut self, block: usize) -> ! {
        let (name, at) = self.cache.refused(block);
        self.area.note(&[b"refused: ", name.as_bytes(), b" at 0x", &system::hexadecimal(at)]);
        let at = system::hexadecimal(at);
        system::refuse(&[b"refused: ", name.as_bytes(), b", at 0x", &at])
    }
}
