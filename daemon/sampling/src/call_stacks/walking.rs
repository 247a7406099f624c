//! A batch of stacks, walked by an inspector: those of one address space are one question.

use super::Batch;
use super::answers::{asks, cut_of, differs, walked, without_answer};
use super::attributes::AttributeLooks;
use super::placed::{PlacedStack, mapped_code};
use super::process_of;
use super::registers::dwarf_registers;
use super::rules::LearntRules;
use super::runtimes::{Looks, NamedCode};
use address_spaces::users::Payer;
use inspect::pool::Inspectors;
use inspect::questions::{SampledStack, Unwind, Unwound, UnwoundStack};
use kernel::clock;
use model::KeptAttributes;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::time::Instant;

/// Bytes of the file shared with the inspector that stay in memory between two looks.
const COPIES_BYTES_KEPT: u64 = 1 << 20;

/// Processes that were looked at for runtimes and for attributes, and the attributes that are kept.
pub(super) type Looking = (Looks, AttributeLooks, KeptAttributes);

/// A file in memory that this process shares with its inspector.
pub(super) struct Copies(File);

impl Copies {
    pub(super) fn new() -> std::io::Result<Self> {
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        Ok(Self(File::from(rustix::fs::memfd_create("stacks", flags)?)))
    }

    /// As an inspector finds it.
    fn named(&self) -> (u32, i32) {
        (std::process::id(), self.0.as_raw_fd())
    }

    fn write(&self, at: u64, stack: &[u8]) -> bool {
        self.0.write_all_at(stack, at).is_ok()
    }

    /// Overwrites its first `len` bytes.
    fn wipe(&self, len: u64) {
        static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
        let mut at = 0;
        while at < len {
            let piece = ZEROS.get(..(len - at).min(ZEROS.len() as u64) as usize);
            let piece = piece.unwrap_or_default();
            if self.0.write_all_at(piece, at).is_err() {
                return;
            }
            at += piece.len() as u64;
        }
        if len > COPIES_BYTES_KEPT {
            let _ = self.0.set_len(0); // what is left behind is zeros
        }
    }
}

/// Has the stacks walked, those of one address space together.
pub(super) fn walk(
    jobs: Vec<PlacedStack>,
    inspectors: &Inspectors,
    copies: &Copies,
    looks: &mut Looking,
) -> Batch {
    let cpu_ns = || clock::thread_cpu_ns() + inspectors.own_cpu_ns();
    let begun_ns = cpu_ns();
    let mut batch = Batch::default();
    let mut by_space: BTreeMap<(u32, usize), Vec<PlacedStack>> = BTreeMap::new();
    for mut job in jobs {
        let (_, of_attributes, kept) = &mut *looks;
        job.attributes = of_attributes.read(&job.raw.record, &job.raw.attributes, *kept);
        let map = job.space.as_ref().map_or(0, |(map, _)| Arc::as_ptr(map) as usize);
        by_space.entry((job.raw.record.space, map)).or_default().push(job);
    }
    let mut before_ns = begun_ns;
    for ((space, _), jobs) in by_space {
        let (payer, stacks) = (jobs.first().map(|job| job.payer), jobs.len() as u64);
        walk_space(space, jobs, (inspectors, copies), looks, &mut batch);
        let now_ns = cpu_ns();
        let ns = now_ns.saturating_sub(std::mem::replace(&mut before_ns, now_ns));
        batch.charges.extend(payer.map(|payer| (payer, stacks, ns)));
    }
    batch.cpu_ns = cpu_ns().saturating_sub(begun_ns);
    batch
}

fn walk_space(
    space: u32,
    jobs: Vec<PlacedStack>,
    (inspectors, copies): (&Inspectors, &Copies),
    (looks, of_attributes, kept): &mut Looking,
    batch: &mut Batch,
) {
    let pid = jobs.first().map_or(0, |job| process_of(&job.raw.record).0);
    let payer = jobs.first().map_or(Payer::Unknown, |job| job.payer);
    let first = jobs.iter().find_map(|job| Some((job.space.as_ref()?, job.program.as_ref())));
    let now = Instant::now();
    let looks_for_runtime = first.is_some_and(|((map, _), _)| looks.wants(space, map, now))
        || jobs.iter().any(PlacedStack::lacks_words);
    let looks_for_attributes =
        *kept != KeptAttributes::Off && first.is_some() && of_attributes.wants(space, now);
    let mut end = 0;
    let stacks: Vec<SampledStack> = jobs
        .iter()
        .filter_map(|job| Some((job, asks(job)?)))
        .map(|(job, to_walk)| {
            let (at, stack) = (end, job.raw.stack.as_slice());
            let len = if copies.write(at, stack) { stack.len() } else { 0 };
            end += len as u64;
            let registers = dwarf_registers(&job.raw.record);
            let python = &job.raw.python;
            let python = python.iter().map(|it| [it.code, it.instruction, it.flags]).collect();
            let noted = job.raw.runtime.iter().map(|frame| (frame.number, frame.words)).collect();
            let (begin, walked, len) = (job.raw.record.begin, job.raw.user.clone(), len as u32);
            SampledStack { registers, begin, at, len, walked, to_walk, python, noted }
        })
        .collect();
    let unwound = match first {
        Some(((map, _), program))
            if !stacks.is_empty() || looks_for_runtime || looks_for_attributes =>
        {
            let (map, copies) = (mapped_code(pid, map, program), copies.named());
            let looks = (looks_for_runtime, looks_for_attributes);
            let (looks_for_runtime, looks_for_attributes) = looks;
            inspectors.ask(Unwind {
                pid,
                space,
                map,
                looks_for_runtime,
                looks_for_attributes,
                copies,
                stacks,
            })
        }
        _ => None,
    };
    copies.wipe(end);
    // A question without an answer is no look: on a busy host the next ones would come ever later.
    let is_looked = looks_for_runtime && unwound.is_some();
    let is_looked_for_attributes = looks_for_attributes && unwound.is_some();
    let unwound = unwound.unwrap_or_default();
    let Unwound { stacks, functions, codes, runtime, attributes, rules } = unwound;
    batch.codes.extend(NamedCode::of(space, &codes, &functions));
    if is_looked {
        tracing::debug!(pid, ?runtime, "looked for a runtime");
        let layout = looks.note(space, runtime, now);
        batch.runtimes.extend(layout.map(|layout| (space, layout, payer)));
    }
    if is_looked_for_attributes {
        tracing::debug!(pid, ?attributes, "looked for attributes");
        let found = of_attributes.note(space, attributes, now);
        let layout = found.map(|layout| looks.note_attributes(space, layout));
        batch.runtimes.extend(layout.map(|layout| (space, layout, payer)));
    }
    batch.rules.extend(LearntRules::of(&jobs, rules));
    let functions = Arc::new(functions);
    let mut stacks = stacks.into_iter();
    for job in jobs {
        let answer = asks(&job).and_then(|_| stacks.next());
        let Some(answer) = answer else {
            batch.stacks.push(without_answer(job, functions.clone()));
            continue;
        };
        let UnwoundStack { mut addresses, end, runs, python_differs } = answer;
        batch.python_differs += u64::from(python_differs);
        batch.by_inspector += u64::from(job.raw.record.user != abi::USER_WALKED);
        batch.differing += u64::from(differs(&job, &addresses, end));
        // A stack that found no room for its copy has the frames that the sampler has walked.
        if addresses.len() < job.raw.user.len() && runs.is_empty() {
            addresses.clone_from(&job.raw.user);
        }
        batch.stacks.push(walked(job, addresses, cut_of(end), (runs, functions.clone())));
    }
}
