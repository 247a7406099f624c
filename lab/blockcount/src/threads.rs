//! Threads and processes that the program makes. A thread has a slot in the area: its context and
//! its counters. Memory that is not shared means another process, which has an area of its own.

use crate::area::{SLOTS, event};
use crate::context::{
    self, AFTER_MASK, BLOCKED, BORROWS, Context, DISPOSITIONS, FLAGS, LAST_CALL, RAX, RCX, RESUME,
    RSP, SIGNAL_STACK, SLOT,
};
use crate::engine::Engine;
use crate::memory::{clear, read_program, store};
use crate::signals;
use crate::syscalls::{Call, Then};
use crate::system::{self, number};
use alloc::vec::Vec;

const CLONE_VM: u64 = 0x100;
const CLONE_SIGHAND: u64 = 0x800;
const CLONE_VFORK: u64 = 0x4000;
const CLONE_THREAD: u64 = 0x1_0000;

/// Bytes of a slot that are private.
const PRIVATE: u64 = context::COUNTERS as u64;

/// Slots of threads.
pub struct Threads {
    used: u64,
    /// Slots whose threads have ended, and whether their private memory is still mapped.
    free: Vec<(u64, bool)>,
}

impl Threads {
    pub fn new() -> Self {
        Self { used: 0, free: Vec::new() }
    }

    /// Slots whose memory is mapped: those of threads that run or have ended.
    pub fn used(&self) -> u64 {
        self.used
    }
}

impl Engine {
    /// A context for a new thread, with its slot.
    pub fn new_context(&mut self) -> Context {
        let (slot, mapped) = self.threads.free.pop().unwrap_or((self.threads.used, false));
        if slot >= SLOTS.capacity {
            system::refuse(&[b"more threads at once than it has counters for (1024)"]);
        }
        self.threads.used = self.threads.used.max(slot + 1);
        self.area.used_slots(self.threads.used);
        let at = self.area.slot(slot);
        let prot = system::PROT_READ | system::PROT_WRITE;
        let flags =
            system::MAP_PRIVATE | system::MAP_ANONYMOUS | system::MAP_NORESERVE | system::MAP_FIXED;
        if mapped {
            // The table of targets stays good.
            clear(at, 0x1000);
        } else {
            // SAFETY: the slot belongs to no thread that runs.
            let own = unsafe { system::map(at, PRIVATE, prot, flags, None) };
            if own.is_none() {
                system::refuse(&[b"no memory for a thread"]);
            }
        }
        let context = Context(at);
        context.prepare(slot);
        self.code_writes.begin(context);
        signals::no_signal_stack(context);
        context
    }

    fn give_back(&mut self, context: Context) {
        self.threads.free.push((context.get(SLOT), true));
    }

    /// The thread ends: exit(2).
    pub fn leave(&mut self, context: Context, block: u32, code: u64) -> Then {
        // Without other threads nobody takes the slot, and no call is made that a filter of system
        // calls could refuse.
        if self.threads.used > 1 && signals::block_all(context).is_none() {
            return self.again(context, block);
        }
        if context.get(BORROWS) == 0 {
            self.area.event(event::ENDED, block, 0);
            self.give_back(context);
        } else {
            // The parent does both.
            context.set(LAST_CALL, u64::from(block));
        }
        crate::switch::leave(code, crate::engine::lock_word())
    }

    /// clone(2), clone3(2), fork(2) and vfork(2).
    pub fn clone(&mut self, context: Context, call: &Call) -> Then {
        let Some(asked) = Asked::read(call) else {
            return self.answer(context, call, system::EFAULT);
        };
        let Some(mask) = signals::block_all(context) else {
            return self.again(context, call.block);
        };
        if asked.flags & CLONE_VM == 0 {
            return self.fork(context, call, &asked, mask);
        }
        let child = self.new_context();
        for register in 0..16 {
            child.set_register(register, context.register(register));
        }
        crate::memory::put(
            child.address_of(context::XMM),
            crate::memory::bytes(context.address_of(context::XMM), 256),
        );
        child.set_register(RAX, 0);
        child.set_register(RCX, call.next);
        if asked.stack != 0 {
            child.set_register(RSP, asked.stack);
        }
        child.set(FLAGS, context.get(FLAGS));
        child.set(BLOCKED, context.get(BLOCKED));
        let vfork = asked.flags & CLONE_VFORK != 0 && asked.flags & CLONE_THREAD == 0;
        child.set(BORROWS, u64::from(vfork));
        let shares = asked.flags & CLONE_SIGHAND != 0;
        let dispositions = if shares { context.get(DISPOSITIONS) } else { signals::copy(context) };
        child.set(DISPOSITIONS, dispositions);
        if asked.flags & CLONE_VFORK != 0 {
            // The kernel keeps the stack for handlers of the one that waits.
            for field in (SIGNAL_STACK..).step_by(8).take(3) {
                child.set(field, context.get(field));
            }
        }
        self.enter(call.next, child);
        child.keep_after(child.get(RESUME), mask);
        child.set(RESUME, self.cache.fixed.unblock);
        // The mask of the parent until it goes on.
        context.set(AFTER_MASK, mask);
        Then::Clone { call: asked.with_stack(context, Some(child)), child, next: *call, vfork }
    }

    /// Continues the parent after a clone, which may have failed.
    pub fn cloned(
        &mut self,
        context: Context,
        child: Context,
        answer: i64,
        call: Call,
        vfork: bool,
    ) -> Then {
        if vfork && !system::is_error(answer) {
            self.area.event(event::ENDED, child.get(LAST_CALL) as u32, 0);
        }
        // The memory of a process that shared it until its exec is free again.
        if system::is_error(answer) || vfork {
            self.give_back(child);
        }
        let then = self.answer(context, &call, answer);
        system::set_mask(context.get(AFTER_MASK));
        then
    }

    fn fork(&mut self, context: Context, call: &Call, asked: &Asked, mask: u64) -> Then {
        let [number, arguments @ ..] = asked.with_stack(context, None);
        let [a, b, c, d, e] = arguments;
        // SAFETY: the child has copies of all memory and goes on here as well.
        let answer = unsafe { system::call(number, [a, b, c, d, e, 0]) };
        if answer != 0 {
            let then = self.answer(context, call, answer);
            system::set_mask(mask);
            return then;
        }
        if asked.stack != 0 {
            context.set_register(RSP, asked.stack);
        }
        self.forked(context);
        context.set_register(RAX, 0);
        context.set_register(RCX, call.next);
        self.enter(call.next, context);
        system::set_mask(mask);
        Then::GoOn
    }

    /// Sets up the child of a fork, which has one thread and no counts yet.
    fn forked(&mut self, context: Context) {
        let slot = context.get(SLOT);
        self.threads.free.clear();
        self.threads.free.extend(
            (0..self.threads.used).filter(|other| *other != slot).map(|other| (other, false)),
        );
        if let Err(error) = self.area.fork(slot) {
            let mut digits = Vec::new();
            crate::area::writer::decimal(system::pid(), &mut digits);
            digits.extend_from_slice(b": no file of counts: error ");
            crate::area::writer::decimal(error.unsigned_abs(), &mut digits);
            // The area is the parent's still.
            self.area.note(&[b"not counted: child process ", &digits]);
            self.area.fork_uncounted(slot);
        }
        self.area.used_slots(self.threads.used);
        self.begin_bursts();
    }
}

/// The arguments of a clone.
struct Asked {
    flags: u64,
    /// The child's stack pointer; zero for the parent's.
    stack: u64,
    number: u64,
    arguments: [u64; 5],
    /// `struct clone_args` of clone3(2).
    extended: CloneArguments,
}

/// Largest `struct clone_args` so far, in 8 bytes (Linux 5.7).
const CLONE_WORDS: usize = 11;
type CloneArguments = [u64; CLONE_WORDS];
/// Indices of the fields `stack` and `stack_size` in it.
const STACK: usize = 5;
const STACK_SIZE: usize = 6;

impl Asked {
    fn read(call: &Call) -> Option<Self> {
        let [a, b, c, d, e, _] = call.arguments;
        let mut extended = CloneArguments::default();
        let (number, flags, stack, arguments) = match call.number {
            number::CLONE => (number::CLONE, a, b, [a, 0, c, d, e]),
            number::CLONE3 => {
                for (word, at) in extended.iter_mut().zip((a..a.checked_add(b)?).step_by(8)) {
                    *word = read_program(at)?;
                }
                let flags = extended.first().copied()?;
                let start = extended.get(STACK).copied()?;
                let size = extended.get(STACK_SIZE).copied()?;
                let stack = if start == 0 { 0 } else { start.wrapping_add(size) };
                (number::CLONE3, flags, stack, [a, b.min(8 * CLONE_WORDS as u64), 0, 0, 0])
            }
            number::VFORK => {
                let flags = CLONE_VM | CLONE_VFORK | SIGCHLD;
                (number::CLONE, flags, 0, [flags, 0, 0, 0, 0])
            }
            _ => (number::FORK, 0, 0, [0; 5]),
        };
        Some(Self { flags, stack, number, arguments, extended })
    }

    /// The system call with a stack on which the child's context starts; without for a process of
    /// its own, which goes on here.
    fn with_stack(&self, parent: Context, child: Option<Context>) -> [u64; 6] {
        let stack = child.map_or(0, |child| child.get(context::ENGINE_STACK));
        let [mut a, mut b, c, d, e] = self.arguments;
        if self.number == number::CLONE {
            b = stack;
        } else if self.number == number::CLONE3 {
            let mut extended = self.extended;
            let [_, _, _, _, _, start, size, ..] = &mut extended;
            // The kernel adds the two.
            *start = stack.saturating_sub(STACK_BYTES);
            *size = if stack == 0 { 0 } else { STACK_BYTES };
            a = parent.address_of(context::CLONE_ARGUMENTS);
            store(a, extended);
        }
        [self.number, a, b, c, d, e]
    }
}

const SIGCHLD: u64 = 17;
/// Size of a child's initial stack in bytes, an argument of clone3(2).
const STACK_BYTES: u64 = 0x1000;
