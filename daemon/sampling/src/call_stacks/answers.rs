//! What an inspector is asked about a stack, and the frames of stacks with and without its answer.

use super::WalkedStack;
use super::placed::PlacedStack;
use super::registers::{dwarf_registers, is_walked};
use abi::StackRecord;
use inspect::questions::{RuntimeFunction, RuntimeRun, ToWalk};
use model::Cut;
use std::sync::Arc;
use unwind::End;

/// What an inspector is asked about a stack: None where there is nothing to ask.
pub(super) fn asks(job: &PlacedStack) -> Option<ToWalk> {
    let record = &job.raw.record;
    job.space.as_ref()?;
    match record.user {
        abi::USER_WALKED if !job.raw.stack.is_empty() => Some(ToWalk::All),
        abi::USER_WALKED => {
            let end = u8::try_from(record.user_end.checked_sub(1)?).ok()?;
            has_runtime(job).then_some(ToWalk::Nothing(end))
        }
        abi::USER_RESUMED => Some(ToWalk::Rest),
        abi::USER_REGISTERS if is_walked(record) => Some(ToWalk::All),
        _ => None,
    }
}

/// Whether the sampler has copied what tells functions of a runtime, or addresses do.
fn has_runtime(job: &PlacedStack) -> bool {
    !job.raw.python.is_empty() || !job.raw.runtime.is_empty() || job.has_named_code
}

/// A stack that no inspector was asked about, or did not answer for.
pub(super) fn without_answer(
    job: PlacedStack,
    functions: Arc<Vec<RuntimeFunction>>,
) -> WalkedStack {
    let record = &job.raw.record;
    let pc = || dwarf_registers(record).last().copied().into_iter().collect();
    let (user, cut) = match record.user {
        abi::USER_WALKED if !has_runtime(&job) => {
            let end = record.user_end.checked_sub(1).and_then(|end| u8::try_from(end).ok());
            (job.raw.user.clone(), end.map_or(Some(Cut::Unreadable), cut_of))
        }
        // Which frames are those of a runtime's functions is not known.
        abi::USER_WALKED | abi::USER_RESUMED | abi::USER_REGISTERS if !job.raw.user.is_empty() => {
            (job.raw.user.clone(), Some(Cut::NotAnswered))
        }
        abi::USER_REGISTERS if is_walked(record) => (pc(), Some(Cut::NotAnswered)),
        abi::USER_REGISTERS => (pc(), Some(Cut::NoUnwindInfo)),
        // Threads of the kernel and its workers have no user code.
        abi::USER_NONE => (Vec::new(), None),
        _ if job.space.is_none() && has_no_memory(record) => (Vec::new(), None),
        _ => (Vec::new(), Some(Cut::NoRegisters)),
    };
    walked(job, user, cut, (Vec::new(), functions))
}

pub(super) fn walked(
    mut job: PlacedStack,
    user: Vec<u64>,
    cut: Option<Cut>,
    (runs, functions): (Vec<RuntimeRun>, Arc<Vec<RuntimeFunction>>),
) -> WalkedStack {
    let kernel = std::mem::take(&mut job.raw.kernel);
    job.raw.wipe();
    let (record, space, attributes) = (job.raw.record, job.space.take(), job.attributes);
    WalkedStack { record, kernel, user, runs, functions, attributes, cut, space }
}

/// Whether the sampler has walked a stack otherwise than the inspector, if both have.
pub(super) fn differs(job: &PlacedStack, addresses: &[u64], end: u8) -> bool {
    let record = &job.raw.record;
    if record.user != abi::USER_WALKED || job.raw.stack.is_empty() {
        return false;
    }
    // An inspector has no copy of what is beyond, and none of Erlang's stacks.
    let is_cut = matches!(End::ALL.get(usize::from(end)), Some(End::Window | End::Generated));
    let same = match is_cut {
        true => job.raw.user.starts_with(addresses),
        false => job.raw.user == addresses && record.user_end == u32::from(end) + 1,
    };
    if !same {
        let (tid, user_end, by_sampler) = (record.tid, record.user_end, &job.raw.user);
        let name = String::from_utf8_lossy(&record.name);
        let registers = dwarf_registers(record);
        tracing::debug!(
            tid, %name, user_end, end, ?by_sampler, ?addresses, ?registers, "walks differ"
        );
    }
    !same
}

/// Whether the record is of a thread of the kernel, which has no address space.
fn has_no_memory(record: &StackRecord) -> bool {
    record.kernel_bytes > 0 && record.user == abi::USER_HIDDEN
}

/// Why the first frames are not known, by the place of a walk's end in [`End::ALL`].
pub(super) fn cut_of(end: u8) -> Option<Cut> {
    Some(match End::ALL.get(usize::from(end)) {
        Some(End::Whole) => return None,
        Some(End::Window) => Cut::Truncated,
        Some(End::NoUnwindInfo) => Cut::NoUnwindInfo,
        Some(End::Generated) => Cut::Generated,
        Some(End::Refused) => Cut::Refused,
        Some(End::Unreadable) | None => Cut::Unreadable,
        Some(End::TooDeep) => Cut::TooDeep,
        Some(End::Loop) => Cut::Loop,
        Some(End::Costly) => Cut::Costly,
    })
}
