//! Signals: dispositions and masks as the program sets them, arrivals, and the stack for handlers.
//!
//! The kernel delivers to one entry (`blockcount_signal`) with all signals blocked. The frame that
//! it lays on the program's stack stays; its registers become the program's own, and the handler
//! is translated like other code. SIGSEGV and SIGBUS are never blocked and always caught: the
//! engine write-protects pages whose code it has translated.

use crate::area::event;
use crate::cache::places::{Frame, Spot};
use crate::context::{
    BLOCKED, Context, DISPOSITIONS, ON_SIGNAL_STACK, PENDING, PENDING_INFO, PENDING_MASK, RAX, RDI,
    RDX, RESUME, RSI, RSP, SIGNAL_STACK,
};
use crate::engine::Engine;
use crate::memory::{self, load, read_program, store, write_program};
use crate::switch;
use crate::system::{self, number};

const SIGILL: u64 = 4;
const SIGTRAP: u64 = 5;
const SIGBUS: u64 = 7;
const SIGFPE: u64 = 8;
const SIGSEGV: u64 = 11;

const SA_SIGINFO: u64 = 4;
const SA_RESTORER: u64 = 0x0400_0000;
const SA_RESTART: u64 = 0x1000_0000;
const SA_NODEFER: u64 = 0x4000_0000;
const SA_RESETHAND: u64 = 0x8000_0000;
/// Flags of the program that concern the kernel: children, restarts and the stack of handlers.
const SA_KERNEL: u64 = 1 | 2 | 0x0800_0000 | 0x1000_0000;

const SS_ONSTACK: u64 = 1;
const SS_DISABLE: u64 = 2;
/// The kernel forgets the stack while a handler is on it, so that a signal that comes while the
/// engine runs for that handler does not overwrite it (sigaltstack(2), Linux 4.7).
const SS_AUTODISARM: u64 = 1 << 31;

/// Signals that are never blocked.
pub const KEPT: u64 = bit(SIGSEGV) | bit(SIGBUS);

const fn bit(signal: u64) -> u64 {
    1 << (signal - 1)
}

/// Number of signals.
const SIGNALS: u64 = 64;

/// The kernel's `struct sigaction`.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Action {
    handler: u64,
    flags: u64,
    restorer: u64,
    mask: u64,
}

impl Action {
    /// Whether the action is a handler.
    fn is_handler(self) -> bool {
        self.handler > 1
    }
}

/// The program's action for each signal, shared by its threads.
#[derive(Clone)]
pub struct Dispositions([Action; SIGNALS as usize + 1]);

impl Dispositions {
    /// Takes over the initial actions of this process; SIGSEGV and SIGBUS are caught from now on.
    pub fn new() -> Self {
        let mut all = Self([Action::default(); SIGNALS as usize + 1]);
        for signal in [SIGSEGV, SIGBUS] {
            let mut before = Action::default();
            let action = caught(Action::default());
            set(signal, Some(&action), Some(&mut before));
            all.put(signal, before);
        }
        all
    }

    fn get(&self, signal: u64) -> Action {
        self.0.get(signal as usize).copied().unwrap_or_default()
    }

    fn put(&mut self, signal: u64, action: Action) {
        if let Some(place) = self.0.get_mut(signal as usize) {
            *place = action;
        }
    }
}

fn of(context: Context) -> &'static mut Dispositions {
    // SAFETY: each context points at dispositions that are never freed, and the lock is held.
    unsafe { &mut *(context.get(DISPOSITIONS) as *mut Dispositions) }
}

/// A copy of a thread's dispositions, for a process that shares memory but not these.
pub fn copy(context: Context) -> u64 {
    alloc::boxed::Box::into_raw(alloc::boxed::Box::new(of(context).clone())) as u64
}

/// The action that is installed in the kernel if the program has a handler.
fn caught(action: Action) -> Action {
    let own = action.flags & SA_RESTORER == 0;
    Action {
        handler: switch::signal_address(),
        flags: action.flags & SA_KERNEL | SA_SIGINFO | SA_RESTORER,
        restorer: if own { switch::restorer_address() } else { action.restorer },
        mask: !KEPT,
    }
}

fn set(signal: u64, action: Option<&Action>, before: Option<&mut Action>) -> i64 {
    let action = action.map_or(0, |action| core::ptr::from_ref(action) as u64);
    let before = before.map_or(0, |before| core::ptr::from_mut(before) as u64);
    // SAFETY: handlers are the engine's, or none; the kernel reads one action and writes the other.
    unsafe { system::call(number::RT_SIGACTION, [signal, action, before, 8, 0, 0]) }
}

/// Catches a signal of the engine's own.
pub fn catch(signal: u64) {
    set(signal, Some(&caught(Action { flags: SA_RESTART, ..Action::default() })), None);
}

/// rt_sigaction(2).
pub fn sigaction(context: Context, signal: u64, action: u64, before: u64, size: u64) -> i64 {
    if signal == 0 || signal > SIGNALS || size != 8 {
        return system::EINVAL;
    }
    let all = of(context);
    let known = all.get(signal);
    let kept = signal <= SIGNALS && bit(signal) & KEPT != 0;
    let mut kernels = Action::default();
    let answer = if action == 0 {
        set(signal, None, Some(&mut kernels))
    } else {
        let Some(new) = read_program::<Action>(action) else { return system::EFAULT };
        let told = if new.is_handler() || kept {
            caught(new)
        } else {
            Action { mask: new.mask & !KEPT, ..new }
        };
        let answer = set(signal, Some(&told), Some(&mut kernels));
        if answer == 0 {
            all.put(signal, new);
        }
        answer
    };
    if answer == 0 && before != 0 {
        let caught = kept || kernels.handler == switch::signal_address();
        if !write_program(before, if caught { known } else { kernels }) {
            return system::EFAULT;
        }
    }
    answer
}

/// rt_sigprocmask(2).
pub fn sigprocmask(context: Context, how: u64, set: u64, before: u64, size: u64) -> i64 {
    const UNBLOCKABLE: u64 = bit(9) | bit(19);
    // An int for the kernel, which reads the mask before it looks at the request: programs ask so
    // whether an address can be read.
    let how = how as u32;
    if size != 8 {
        return system::EINVAL;
    }
    if how > 2 && set != 0 {
        return read_program::<u64>(set).map_or(system::EFAULT, |_| system::EINVAL);
    }
    rearm(context);
    // During this time no signal can change the recorded mask.
    let waits = block_all(context);
    let kernels = waits.unwrap_or_else(|| context.get(PENDING_MASK));
    let shown = kernels & !KEPT | context.get(BLOCKED);
    let (mut answer, mut mask) = (0, shown);
    if set != 0 {
        match read_program::<u64>(set) {
            Some(new) if how == 0 => mask |= new,
            Some(new) if how == 1 => mask &= !new,
            Some(new) => mask = new,
            None => answer = system::EFAULT,
        }
    }
    mask &= !UNBLOCKABLE;
    context.set(BLOCKED, mask & KEPT);
    context.set(PENDING_MASK, mask & !KEPT);
    if waits.is_some() {
        system::set_mask(mask & !KEPT);
    }
    if before != 0 && !write_program(before, shown) {
        answer = system::EFAULT;
    }
    answer
}

/// The kernel's `stack_t`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct SignalStack {
    start: u64,
    flags: u64,
    size: u64,
}

impl SignalStack {
    fn contains(self, at: u64) -> bool {
        self.flags & SS_DISABLE == 0 && at > self.start && at - self.start <= self.size
    }
}

fn signal_stack(context: Context) -> SignalStack {
    load(context.address_of(SIGNAL_STACK))
}

/// Sets the state of a thread without a stack for handlers.
pub fn no_signal_stack(context: Context) {
    store(
        context.address_of(SIGNAL_STACK),
        SignalStack { flags: SS_DISABLE, ..SignalStack::default() },
    );
}

/// sigaltstack(2).
pub fn sigaltstack(context: Context, new: u64, before: u64) -> i64 {
    const EPERM: i64 = -1;
    let known = signal_stack(context);
    let on = known.contains(context.register(RSP));
    if new != 0 {
        let Some(asked) = read_program::<SignalStack>(new) else { return system::EFAULT };
        if on {
            return EPERM;
        }
        // The upper half of `flags` is padding.
        let flags = asked.flags & 0xffff_ffff;
        let told = SignalStack { flags: flags | SS_AUTODISARM, ..asked };
        let told = if flags & SS_DISABLE == 0 { told } else { SignalStack { flags, ..asked } };
        // SAFETY: the kernel reads `told`, which names the program's own stack.
        let answer = unsafe { system::call3(number::SIGALTSTACK, &raw const told as u64, 0, 0) };
        if answer != 0 {
            return answer;
        }
        store(context.address_of(SIGNAL_STACK), SignalStack { flags, ..asked });
        context.set(ON_SIGNAL_STACK, 0);
    }
    let shown = SignalStack { flags: if on { SS_ONSTACK } else { known.flags }, ..known };
    if before != 0 && !write_program(before, shown) {
        return system::EFAULT;
    }
    0
}

/// Gives the kernel the stack for handlers again, when the program has left one by longjmp.
fn rearm(context: Context) {
    let known = signal_stack(context);
    if context.get(ON_SIGNAL_STACK) != 0 && !known.contains(context.register(RSP)) {
        let told = SignalStack { flags: known.flags | SS_AUTODISARM, ..known };
        // SAFETY: the kernel reads `told`, which names the program's own stack.
        unsafe { system::call3(number::SIGALTSTACK, &raw const told as u64, 0, 0) };
        context.set(ON_SIGNAL_STACK, 0);
    }
}

/// A signal came while the engine's own code ran: it waits, and all others are blocked.
#[unsafe(no_mangle)]
extern "C" fn blockcount_deferred(signal: u64, info: u64, frame: u64, context: u64) {
    let (frame, context) = (Frame(frame), Context(context));
    if bit(signal) & KEPT != 0 && load::<i32>(info + 8) > 0 {
        if let Some(at) = memory::copy_continues(frame.pc()) {
            return frame.set_pc(at);
        }
        let (at, data) = (system::hexadecimal(frame.pc()), load::<u64>(info + 16));
        full_if_area(data);
        system::refuse(&[
            b"a fault in the engine at 0x",
            &at,
            b", data 0x",
            &system::hexadecimal(data),
            b", engine 0x",
            &system::hexadecimal(switch::exit_address()),
        ]);
    }
    if context.get(PENDING) == 0 {
        context.set(PENDING, signal);
        memory::put(context.address_of(PENDING_INFO), memory::bytes(info, 128));
    } else {
        // Another waits already, and the mask was changed since: all are blocked on return, so
        // the kernel keeps this one.
        system::set_mask(!KEPT);
        send_again(signal, info);
    }
    context.set(PENDING_MASK, frame.mask());
    frame.set_mask(!KEPT);
    if let Some(at) = switch::started_again(frame.pc()) {
        frame.set_pc(at);
    }
}

/// Ends the process when a fault comes from the area: the file could not grow.
fn full_if_area(address: u64) {
    if crate::engine::is_area(address) {
        system::refuse(&[b"the file system of its counts is full"]);
    }
}

/// Sends a signal to this thread again, with its original information.
fn send_again(signal: u64, info: u64) {
    let arguments = [system::pid(), system::thread(), signal, info, 0, 0];
    // SAFETY: the kernel reads the signal's information, and refuses an address without any.
    unsafe { system::call(number::RT_TGSIGQUEUEINFO, arguments) };
}

/// On the way back to translated code, a signal that waits is sent again, to arrive at a place
/// whose state is known.
#[unsafe(no_mangle)]
extern "C" fn blockcount_pending(context: u64) {
    let context = Context(context);
    let signal = context.get(PENDING);
    context.keep_after(context.get(RESUME), context.get(PENDING_MASK));
    send_again(signal, context.address_of(PENDING_INFO));
    context.set(PENDING, 0);
    context.set(RESUME, crate::engine::unblock_address());
}

/// Blocks all signals; the mask before. `None` when one waits already: the program must see it
/// first.
pub fn block_all(context: Context) -> Option<u64> {
    let before = system::set_mask(!KEPT);
    (context.get(PENDING) == 0).then_some(before)
}

impl Engine {
    /// A signal has arrived in translated code.
    pub fn arrived(&mut self, context: Context) {
        let signal = context.register(RDI);
        let (info, frame) = (context.register(RSI), Frame(context.register(RDX)));
        let (code, address) = (load::<i32>(info + 8), load::<u64>(info + 16));
        if crate::bursts::is_timer(signal, code) && self.area.records_bursts() {
            let spot = self.cache.recover(frame, context);
            self.left(spot);
            self.begin_burst(spot.pc(), context);
            frame.set_pc(context.get(RESUME));
            return self.back(context);
        }
        if bit(signal) & KEPT != 0 && code > 0 {
            full_if_area(address);
            if signal == SIGSEGV && frame.writes() && self.cache.written(address) {
                if self.cache.writes_itself(frame.pc(), address) {
                    let spot = self.cache.recover(frame, context);
                    self.left(spot);
                    self.enter(spot.pc(), context);
                    frame.set_pc(context.get(RESUME));
                }
                return self.back(context);
            }
        }
        let action = of(context).get(signal);
        if !action.is_handler() {
            return self.default_action(context, signal, action, (info, code));
        }
        let host = frame.pc();
        let spot = self.cache.recover(frame, context);
        self.left(spot);
        frame.set_pc(spot.pc());
        if matches!(signal, SIGILL | SIGTRAP | SIGFPE) && code > 0 && address == host {
            store(info + 16, spot.pc());
        }
        if action.flags & SA_RESETHAND != 0 {
            let reset = Action { handler: 0, ..action };
            of(context).put(signal, reset);
            if bit(signal) & KEPT == 0 {
                set(signal, Some(&reset), None);
            }
        }
        if signal_stack(context).contains(context.register(RSP)) {
            context.set(ON_SIGNAL_STACK, 1);
        }
        context.set_register(RAX, 0);
        self.enter(action.handler, context);
        let own = if action.flags & SA_NODEFER == 0 { bit(signal) } else { 0 };
        system::set_mask((frame.mask() | action.mask | own) & !KEPT);
    }

    /// Records the event by which the interrupted block is left.
    pub fn left(&mut self, spot: Spot) {
        if let Spot::Towards(pc) = spot {
            self.cache.block(pc, &mut self.area);
        }
        if let Some((kind, block, at)) = spot.event(&self.cache) {
            self.area.event(kind, block, at);
        }
    }

    /// Continues at an address to which no edge leads.
    pub fn enter(&mut self, at: u64, context: Context) {
        self.end_burst(context);
        let code = match self.cache.block(at, &mut self.area) {
            Some(block) => {
                self.area.event(event::ENTERED, block, at);
                self.cache.entry(block)
            }
            None => self.cache.fault(at, context),
        };
        context.set(RESUME, code);
    }

    /// Returns to the interrupted translated code.
    fn back(&self, context: Context) {
        // The kernel's frame follows the return address.
        context.set_register(RSP, context.register(RSP) + 8);
        context.set(RESUME, self.cache.fixed.sigreturn);
    }

    /// Takes the default action of a SIGSEGV or SIGBUS without a handler.
    fn default_action(
        &mut self,
        context: Context,
        signal: u64,
        action: Action,
        (info, code): (u64, i32),
    ) {
        const SIG_IGN: u64 = 1;
        let sent = code <= 0;
        if !(sent && action.handler == SIG_IGN) {
            set(signal, Some(&Action { restorer: 0, flags: 0, ..Action::default() }), None);
            if sent {
                send_again(signal, info);
            }
        }
        self.back(context);
    }

    /// rt_sigreturn(2): the program's address in the frame becomes translated code.
    pub fn sigreturn(&mut self, context: Context, block: u32) -> bool {
        if block_all(context).is_none() {
            return false;
        }
        let frame = Frame(context.register(RSP));
        let pc = frame.pc();
        self.area.event(event::ENDED, block, 0);
        self.enter(pc, context);
        frame.set_pc(context.get(RESUME));
        frame.set_mask(frame.mask() & !KEPT);
        context.set(RESUME, self.cache.fixed.sigreturn);
        true
    }
}
