//! Frames of call stacks, from registers and copies of stacks that were sampled: the crate `unwind`
//! walks them by the unwind tables of the files that the process has mapped.

use super::attributes::Attributes;
use super::build_files::opened_for_tables;
use super::questions::{
    CodeSource, FileAt, MappedCode, SampledStack, ToWalk, Unwind, Unwound, UnwoundStack,
};
use crate::file_catalogue::Catalogue;
use crate::learnt::said;
use crate::open_mapped::keeps_busy;
use crate::runtimes::{GeneratedCode, Runtimes, has_code_tables};
use crate::vdso::{memory_of, vdso_bytes};
use kernel::MappedFileId;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use unwind::{
    Code, End, Frame, FrameRule, GeneratedFrame, Image, ReadAt, Registers, Space, Unwinder, Window,
};

/// Most files that are known, each an open file once a walk came through it. With fewer, files of a
/// busy host are opened and their tables read again.
const FILES_MAX: usize = 384;
/// Time without use after which a file is forgotten, and closed, as an open file keeps its disk
/// space taken.
const UNUSED_MAX: Duration = Duration::from_secs(120);
/// Bytes at a file's begin that are searched for Go's note: Go's linker writes it into the first
/// page (cmd/link/internal/ld/elf.go).
const NOTE_BYTES: usize = 8192;
/// The note's name (4 bytes with its zeros), after its type, 4: a Go build id.
const GO_NOTE: &[u8] = b"\x04\0\0\0Go\0\0";

/// End of the address space of 32-bit programs.
const NARROW_END: u64 = 1 << 32;

/// Bytes of a page of memory on all machines that dcpid runs on, or a part of one.
const PAGE_BYTES: u64 = 4096;

/// The walker and the files that it knows.
#[derive(Default)]
pub struct StackWalks {
    unwinder: Unwinder,
    files: HashMap<MappedFileId, Known>,
    vdso: Option<Option<Image>>,
    /// The vdso of 32-bit programs, as the first one had it.
    narrow_vdso: Option<Image>,
    runtimes: Runtimes,
    attributes: Attributes,
    /// The file with copies of stacks, as it was asked for.
    copies: Option<((u32, i32), File)>,
    /// Questions so far.
    now: u64,
    swept: Option<Instant>,
}

struct Known {
    image: Image,
    file: Arc<Opening>,
    /// Question that needed it last, and when.
    used: u64,
    used_at: Instant,
}

/// A file that is opened when the walker reads it.
struct Opening {
    file: Mutex<Held>,
    at: FileAt,
    catalogue: Catalogue,
    is_go: OnceLock<bool>,
}

#[derive(Clone, Default)]
enum Held {
    #[default]
    Closed,
    Open {
        file: Arc<File>,
        /// Somebody may want to unmount its file system.
        is_lent: bool,
    },
    Failed,
}

impl Opening {
    fn get(&self) -> Option<Arc<File>> {
        let mut held = self.held();
        if let Held::Closed = *held {
            let file = opened_for_tables(&self.at, &self.catalogue);
            *held = file.map_or(Held::Failed, |file| {
                let is_lent = keeps_busy(&file);
                Held::Open { file: Arc::new(file), is_lent }
            });
        }
        match &*held {
            Held::Open { file, .. } => Some(file.clone()),
            Held::Closed | Held::Failed => None,
        }
    }

    fn has_failed(&self) -> bool {
        matches!(*self.held(), Held::Failed)
    }

    /// Closes it, if somebody may want to unmount its file system.
    fn let_go(&self) {
        let mut held = self.held();
        if matches!(*held, Held::Open { is_lent: true, .. }) {
            *held = Held::Closed;
        }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether Go's compiler made it, whose code keeps frame pointers (since Go 1.7 on x86-64 and
    /// 1.12 on arm64). The walker follows them where it cannot read Go's own table.
    fn is_go(&self) -> bool {
        *self.is_go.get_or_init(|| {
            let mut head = [0; NOTE_BYTES];
            let read = self.get().and_then(|file| FileExt::read_at(&*file, &mut head, 0).ok());
            let read = read.unwrap_or(0);
            let head = head.get(..read).unwrap_or_default();
            head.windows(GO_NOTE.len()).any(|bytes| bytes == GO_NOTE)
        })
    }
}

/// The walker's handle of a file.
struct Source(Arc<Opening>);

impl ReadAt for Source {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let file = self.0.get().ok_or(io::ErrorKind::NotFound)?;
        ReadAt::read_at(&*file, offset, buffer)
    }
}

/// The vdso's bytes.
struct Vdso(Vec<u8>);

impl ReadAt for Vdso {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.as_slice().read_at(offset, buffer)
    }
}

/// The mappings of a process.
struct Mapped {
    code: Vec<(u64, u64, Code)>,
    pid: u32,
    memory: RefCell<Option<Option<File>>>,
    /// None: the runtime does not run yet, or `has_tables` is false.
    generated: Option<GeneratedCode>,
    /// Whether generated code is a runtime's that has tables of it.
    has_tables: bool,
}

impl Space for Mapped {
    fn code_at(&self, address: u64) -> Code {
        let after = self.code.partition_point(|(begin, ..)| *begin <= address);
        let found = after.checked_sub(1).and_then(|place| self.code.get(place));
        match found {
            Some((begin, end, code)) if address < *end => match *code {
                Code::File { image, offset, frame_pointers } => {
                    let offset = offset.wrapping_add(address - begin);
                    Code::File { image, offset, frame_pointers }
                }
                other => other,
            },
            _ => Code::None,
        }
    }

    fn read_code(&self, address: u64, buffer: &mut [u8]) -> usize {
        let mut memory = self.memory.borrow_mut();
        let of = |id: u32| File::open(format!("/proc/{id}/mem")).ok();
        let open = || of(self.pid).or_else(|| of(kernel::procfs::living_thread(self.pid)?));
        let memory = memory.get_or_insert_with(open).as_ref();
        memory.and_then(|memory| FileExt::read_at(memory, buffer, address).ok()).unwrap_or(0)
    }

    fn generated_frame(&self, address: u64, is_exact: bool) -> Option<GeneratedFrame> {
        let known = self.generated.as_ref().and_then(|it| it.frame_at(address, is_exact));
        // Nothing is learnt of code that is not finished yet, or no more there.
        let unknown = GeneratedFrame { rule: FrameRule::Other, follows_call: true };
        known.or_else(|| self.has_tables.then_some(unknown))
    }

    fn generated_block(&self, begin: u64) -> Option<Vec<(u16, FrameRule)>> {
        self.generated.as_ref()?.block(begin)
    }
}

impl StackWalks {
    pub fn walk(&mut self, asked: &Unwind, catalogue: &Catalogue) -> Unwound {
        self.now += 1;
        self.forget_unused();
        let code =
            asked.map.iter().map(|mapped| self.code_of(asked.pid, mapped, catalogue)).collect();
        let open = |file: &FileAt| opened_for_tables(file, catalogue);
        let mut notes = self.runtimes.begin(asked, open);
        let generated = notes.generated();
        let files = asked.map.iter().filter_map(|mapped| mapped.code.file());
        let has_tables = files.into_iter().any(|file| has_code_tables(&file.path.0));
        let memory = RefCell::default();
        let space = Mapped { code, pid: asked.pid, memory, generated, has_tables };
        let mut frames = Vec::new();
        let mut copy = Vec::new();
        let mut walked = Vec::with_capacity(asked.stacks.len());
        let mut rules = BTreeMap::new();
        for stack in &asked.stacks {
            if let ToWalk::Nothing(end) = stack.to_walk {
                let addresses = stack.walked.clone();
                let whole = UnwoundStack { addresses, end, ..UnwoundStack::default() };
                notes.note(stack, &[], (0, &[]), &whole);
                walked.push(whole);
                continue;
            }
            self.read_copy(asked.copies, stack, &mut copy);
            self.unwinder.missed(stack.walked.last().copied());
            let (first, unwound) = self.walk_one(stack, &copy, &space, &mut frames);
            notes.note(stack, &copy, (first, &frames), &unwound);
            walked.push(unwound);
            let learnt = self.unwinder.learnt().iter();
            rules.extend(
                learnt.filter_map(|learnt| Some(((learnt.address, learnt.extent), said(learnt)?))),
            );
        }
        // `black_box` keeps the compiler from leaving out writes that nothing reads.
        std::hint::black_box(&mut copy).fill(0);
        self.files.values().for_each(|known| known.file.let_go());
        let rules = rules.into_values().collect();
        let mut unwound = Unwound { stacks: walked, rules, ..Unwound::default() };
        self.runtimes.name(asked, notes, &mut unwound, open);
        if asked.looks_for_attributes {
            unwound.attributes = self.attributes.look(asked, open);
        }
        unwound
    }

    /// Reads the copy of a stack; an empty one where it cannot be read.
    fn read_copy(&mut self, copies: (u32, i32), stack: &SampledStack, into: &mut Vec<u8>) {
        if self.copies.as_ref().is_none_or(|(known, _)| *known != copies) {
            let (pid, descriptor) = copies;
            let file = File::open(format!("/proc/{pid}/fd/{descriptor}"));
            self.copies = file.ok().map(|file| (copies, file));
        }
        let len = (stack.len as usize).min(abi::STACK_COPY_BYTES);
        into.resize(len, 0);
        let read = self.copies.as_ref().map(|(_, file)| file.read_exact_at(into, stack.at));
        if !matches!(read, Some(Ok(()))) {
            into.clear();
        }
    }

    /// The frames, and the number of those that were walked before.
    fn walk_one(
        &mut self,
        sampled: &SampledStack,
        copy: &[u8],
        space: &Mapped,
        frames: &mut Vec<Frame>,
    ) -> (usize, UnwoundStack) {
        let SampledStack { registers, begin, to_walk, .. } = sampled;
        let windows = windows(*begin, copy);
        frames.clear();
        let (end, before) = match (known_registers(registers), to_walk) {
            (None, _) => (End::Unreadable, &[][..]),
            (Some(registers), ToWalk::Rest) => {
                let registers = known_in_callers(&registers);
                let end = self.unwinder.resume(&registers, &windows, space, frames);
                // The last one is walked again.
                let before = sampled.walked.split_last().map_or(&[][..], |(_, before)| before);
                (end, if frames.is_empty() { &sampled.walked } else { before })
            }
            (Some(registers), ToWalk::All | ToWalk::Nothing(_)) => {
                (self.unwinder.walk(&registers, &windows, space, frames), &[][..])
            }
        };
        let place = End::ALL.iter().position(|known| *known == end).unwrap_or_default();
        let addresses = before.iter().copied().chain(frames.iter().map(|frame| frame.lookup));
        let unwound = UnwoundStack {
            addresses: addresses.take(unwind::FRAMES_MAX).collect(),
            end: u8::try_from(place).unwrap_or_default(),
            ..UnwoundStack::default()
        };
        (before.len(), unwound)
    }

    fn code_of(
        &mut self,
        pid: u32,
        mapped: &MappedCode,
        catalogue: &Catalogue,
    ) -> (u64, u64, Code) {
        let MappedCode { range: (begin, end), file_offset, code, frame_pointers } = mapped;
        let (offset, frame_pointers) = (*file_offset, *frame_pointers);
        let code = match code {
            CodeSource::Generated => Code::Generated { frame_pointers },
            CodeSource::Vdso => match self.vdso(pid, *begin..*end) {
                // The procedures in C of the 32-bit one have no tables and keep frame pointers
                // (arch/x86/entry/vdso/Makefile, Linux 6.18).
                Some(image) => Code::File { image, offset: 0, frame_pointers: *end <= NARROW_END },
                None => Code::Generated { frame_pointers: false },
            },
            CodeSource::File(file) => {
                let image = self.known(file, catalogue).image;
                Code::File { image, offset, frame_pointers }
            }
            CodeSource::Program(file) => {
                let known = self.known(file, catalogue);
                let frame_pointers = frame_pointers || known.file.is_go();
                Code::File { image: known.image, offset, frame_pointers }
            }
        };
        (*begin, *end, code)
    }

    /// The vdso of a process that has it at these addresses: the kernel has one for all 64-bit
    /// processes and another for all 32-bit ones (vdso(7)).
    fn vdso(&mut self, pid: u32, range: Range<u64>) -> Option<Image> {
        let unwinder = &mut self.unwinder;
        let add = |bytes: Vec<u8>| unwinder.add(Box::new(Vdso(bytes)));
        if range.end > NARROW_END {
            return *self.vdso.get_or_insert_with(|| vdso_bytes().map(add));
        }
        if self.narrow_vdso.is_none() {
            self.narrow_vdso = memory_of(&pid.to_string(), range.start, range.end).map(add);
        }
        self.narrow_vdso
    }

    /// The file, which is known from now on.
    fn known(&mut self, file: &FileAt, catalogue: &Catalogue) -> &Known {
        // Opening it failed through a process that is gone; this one may lead to it.
        let has_failed = self.files.get(&file.id).is_some_and(|known| known.file.has_failed());
        if has_failed && let Some(known) = self.files.remove(&file.id) {
            self.unwinder.remove(known.image);
        }
        if self.files.len() >= FILES_MAX && !self.files.contains_key(&file.id) {
            let oldest = self.files.iter().min_by_key(|(_, known)| known.used);
            let oldest = oldest.map(|(id, _)| id.clone());
            if let Some(known) = oldest.and_then(|id| self.files.remove(&id)) {
                self.unwinder.remove(known.image);
            }
        }
        let (now, unwinder) = (self.now, &mut self.unwinder);
        let known = self.files.entry(file.id.clone()).or_insert_with(|| {
            let opening = Arc::new(Opening {
                file: Mutex::default(),
                at: file.clone(),
                catalogue: catalogue.clone(),
                is_go: OnceLock::new(),
            });
            let image = unwinder.add(Box::new(Source(opening.clone())));
            Known { image, file: opening, used: 0, used_at: Instant::now() }
        });
        (known.used, known.used_at) = (now, Instant::now());
        known
    }

    /// Closes files that were long unused.
    fn forget_unused(&mut self) {
        let now = Instant::now();
        if self.swept.is_some_and(|swept| now.duration_since(swept) < UNUSED_MAX / 8) {
            return;
        }
        self.swept = Some(now);
        let (question, unwinder) = (self.now, &mut self.unwinder);
        self.files.retain(|_, known| {
            if known.used + 1 < question && known.used_at.elapsed() > UNUSED_MAX {
                unwinder.remove(known.image);
                return false;
            }
            true
        });
    }
}

/// The parts of a copy without pages of zeros: the sampler writes zeros for a page that is not in
/// memory, and a page that has nothing else reports no frame.
fn windows(begin: u64, copy: &[u8]) -> Vec<Window<'_>> {
    let first = (PAGE_BYTES - begin % PAGE_BYTES) as usize;
    let (head, pages) = copy.split_at(first.min(copy.len()));
    let mut windows = vec![Window { address: begin, bytes: head }];
    let mut is_open = true;
    let mut at = head.len();
    for page in pages.chunks(PAGE_BYTES as usize) {
        let is_there = page.iter().any(|byte| *byte != 0);
        match windows.last_mut() {
            Some(last) if is_there && is_open => {
                let from = (last.address - begin) as usize;
                last.bytes = copy.get(from..at + page.len()).unwrap_or(last.bytes);
            }
            _ if is_there => windows.push(Window { address: begin + at as u64, bytes: page }),
            _ => {}
        }
        is_open = is_there;
        at += page.len();
    }
    windows
}

/// The registers that are known in a frame which the sampler has walked to.
fn known_in_callers(registers: &Registers) -> Registers {
    let machine = registers.machine();
    let mut known = Registers::new(machine, registers.pc);
    known.set(machine.stack_pointer(), registers.stack_pointer());
    known.set(machine.frame_pointer(), registers.frame_pointer());
    known
}

fn known_registers(registers: &[u64]) -> Option<Registers> {
    let (pc, values) = registers.split_last()?;
    if !cfg!(target_arch = "x86_64") {
        Some(Registers::aarch64(*pc, values.try_into().ok()?))
    } else if let Ok(values) = values.try_into() {
        Some(Registers::x86(*pc, values))
    } else {
        Some(Registers::x86_64(*pc, values.try_into().ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_zeros_are_no_part_of_a_stack() {
        let page = PAGE_BYTES as usize;
        let mut copy = vec![1_u8; 100 + 4 * page];
        copy[100 + page..100 + 2 * page].fill(0);
        let begin = 0x7000_0000 - 100;
        let found: Vec<(u64, usize)> = windows(begin, &copy)
            .iter()
            .map(|window| (window.address, window.bytes.len()))
            .collect();
        assert_eq!(found, [(begin, 100 + page), (0x7000_0000 + 2 * PAGE_BYTES, 2 * page)]);
        assert_eq!(windows(begin, &copy[..50]).len(), 1);
        assert_eq!(windows(0x7000_0000, &[0; 8192]).len(), 1, "no bytes of the second page");
        assert!(windows(begin, &[]).iter().all(|window| window.bytes.is_empty()));
    }
}
