//! Starts the program in this process: maps the program and its interpreter, and lays out the
//! initial stack as the kernel does.

use crate::area::{BURSTS, EDGES, JUMPS, writer::Area};
use crate::cache::Cache;
use crate::context::{DISPOSITIONS, RSP};
use crate::engine::{self, Engine};
use crate::identity::{self, Identity};
use crate::memory::{self, load, store};
use crate::programs::{self, Program, Resolved};
use crate::signals::Dispositions;
use crate::system;
use crate::threads::Threads;
use alloc::boxed::Box;
use alloc::vec::Vec;

/// Program headers that a file may have.
const HEADERS_MAX: u64 = 128;
/// Bytes of a program header.
const HEADER_BYTES: u64 = 56;
const PAGE: u64 = 0x1000;

/// A program header's fields (`Elf64_Phdr`).
#[derive(Clone, Copy)]
struct Segment {
    kind: u32,
    flags: u32,
    offset: u64,
    address: u64,
    file_size: u64,
    memory_size: u64,
    alignment: u64,
}

const PT_LOAD: u32 = 1;
const PT_INTERP: u32 = 3;
const PT_PHDR: u32 = 6;
const PT_GNU_STACK: u32 = 0x6474_e551;
/// Flag of a segment: executable.
const PF_X: u32 = 1;

/// A mapped file.
struct Image {
    /// The load bias.
    base: u64,
    entry: u64,
    headers: u64,
    headers_len: u64,
    interpreter: Option<Vec<u8>>,
    addresses: core::ops::Range<u64>,
    identity: Option<Identity>,
}

/// The options of the command line.
struct Options {
    folder: Vec<u8>,
    /// Quantities counted besides blocks: flags of the area's header.
    counted: u32,
    sends_files: bool,
    first: Option<u64>,
    /// Place of the program's path among the arguments.
    program: u64,
}

const USAGE: &[u8] = b"usage: dcpi-blockcount --area FOLDER [--edges] [--jumps] [--bursts] \
[--no-files] \
[--argv0 NAME] [--refusal FILE] -- PROGRAM [ARGUMENT...]; PROGRAM is a path";

fn string(at: u64) -> Vec<u8> {
    let mut string = Vec::new();
    for at in at.. {
        let byte = load::<u8>(at);
        string.push(byte);
        if byte == 0 {
            break;
        }
    }
    string
}

fn text(bytes: &[u8]) -> &[u8] {
    bytes.strip_suffix(b"\0").unwrap_or(bytes)
}

fn options(stack: u64) -> Options {
    let mut options =
        Options { folder: Vec::new(), counted: 0, sends_files: true, first: None, program: 0 };
    let mut index = 1;
    let count: u64 = load(stack);
    let argument = |index: u64| load::<u64>(stack + 8 + 8 * index);
    while index < count {
        let word = string(argument(index));
        index += 1;
        match text(&word) {
            b"--area" if index < count => {
                options.folder = text(&string(argument(index))).to_vec();
                index += 1;
            }
            b"--edges" => options.counted |= EDGES,
            b"--jumps" => options.counted |= EDGES | JUMPS,
            b"--bursts" => options.counted |= BURSTS,
            b"--no-files" => options.sends_files = false,
            // Until the program begins; later there is no file to write to but standard error.
            b"--refusal" if index < count => {
                system::refuse_to(argument(index));
                index += 1;
            }
            b"--argv0" if index < count => {
                options.first = Some(argument(index));
                index += 1;
            }
            b"--" if index < count && !options.folder.is_empty() => {
                options.program = index;
                return options;
            }
            _ => break,
        }
    }
    system::refuse(&[USAGE])
}

/// The start of the process; `stack` is the kernel's.
pub fn begin(stack: u64, engine: core::ops::Range<u64>) -> ! {
    if auxiliary(stack, AT_HWCAP2) & HWCAP2_FSGSBASE == 0 {
        system::refuse(&[b"the kernel lets no program set %gs (Linux before 5.9)"]);
    }
    let options = options(stack);
    let path = string(load(stack + 8 + 8 * options.program));
    let refused = |error: i64| -> ! {
        let mut digits = Vec::new();
        crate::area::writer::decimal(error.unsigned_abs(), &mut digits);
        system::refuse(&[text(&path), b": cannot be executed: error ", &digits])
    };
    let (file, before) = match programs::resolve(&path) {
        Ok(Resolved { path, before, program: Program::Native }) => (path, before),
        Ok(Resolved { program: Program::Foreign(why), .. }) => {
            system::refuse(&[b"refused: ", why.as_bytes(), b": ", text(&path)])
        }
        Ok(_) => refused(system::ENOEXEC),
        Err(error) => refused(error),
    };
    let program = link_target(&file);
    let area = match Area::create(&options.folder, &program, options.counted) {
        Ok(area) => area,
        Err(system::EFBIG) => {
            system::refuse(&[b"the limit of file sizes (RLIMIT_FSIZE) leaves no room for counts"])
        }
        Err(error) => {
            let mut digits = Vec::new();
            crate::area::writer::decimal(error.unsigned_abs(), &mut digits);
            system::refuse(&[b"no file of counts in ", &options.folder, b": error ", &digits])
        }
    };
    let receiver = options.sends_files.then_some(options.folder.as_slice());
    let image = map_file(&file, true, receiver);
    let interpreter = image.interpreter.as_ref().map(|path| map_file(path, false, receiver));
    if text(&file).starts_with(b"/proc/self/fd/") {
        close_by_path(text(&file));
    }
    set_name(&program);
    let entry = interpreter.as_ref().map_or(image.entry, |interpreter| interpreter.entry);
    let sp = lay_stack(stack, &options, &before, &path, &image, interpreter.as_ref());
    let mut engine_path = link_target(b"/proc/self/exe\0");
    engine_path.push(0);
    let mut engine = Engine {
        cache: Cache::new(&[engine, area.range()]),
        area,
        threads: Threads::new(),
        engine_path,
        program,
        sends_files: options.sends_files,
        code_writes: crate::code_writes::CodeWrites::default(),
        execs: Vec::new(),
        bursts: crate::bursts::Bursts::new(),
    };
    for mapped in [Some(image), interpreter].into_iter().flatten() {
        engine.cache.regions.mapped(mapped.addresses, mapped.identity);
    }
    let context = engine.new_context();
    engine.look_for_writers();
    context.set(DISPOSITIONS, Box::into_raw(Box::new(Dispositions::new())) as u64);
    context.set_register(RSP, sp);
    engine.enter(entry, context);
    engine.begin_bursts();
    engine::begin(engine);
    system::refuse_to(0);
    crate::switch::start(context)
}

/// The file that a path leads to, for what the program sees as its own.
fn link_target(path: &[u8]) -> Vec<u8> {
    const O_PATH: u64 = 0o10_000_000;
    let mut link = Vec::from(&b"/proc/self/exe"[..]);
    let mut descriptor = None;
    if path != b"/proc/self/exe\0" {
        let Ok(file) = system::open(path, O_PATH, 0) else { return text(path).to_vec() };
        link = b"/proc/self/fd/".to_vec();
        crate::area::writer::decimal(file, &mut link);
        descriptor = Some(file);
    }
    link.push(0);
    let mut target = alloc::vec![0_u8; 4096];
    let len = system::read_link(&link, &mut target);
    if let Some(descriptor) = descriptor {
        system::close(descriptor);
    }
    target.truncate(usize::try_from(len).unwrap_or(0));
    target
}

fn close_by_path(path: &[u8]) {
    let digits = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let number = digits.iter().fold(0_u64, |value, digit| {
        value.wrapping_mul(10).wrapping_add(u64::from(digit.wrapping_sub(b'0')))
    });
    system::close(number);
}

/// Names the thread after the program, as an exec does.
fn set_name(program: &[u8]) {
    let mut name = program.rsplit(|byte| *byte == b'/').next().unwrap_or_default().to_vec();
    name.push(0);
    system::name_thread(&name);
}

fn refuse_file(path: &[u8], why: &[u8]) -> ! {
    system::refuse(&[text(path), b": ", why])
}

fn segments(path: &[u8], file: u64, head: u64, count: u64) -> Vec<Segment> {
    let mut bytes = alloc::vec![0_u8; (count * HEADER_BYTES) as usize];
    if system::read_at(file, &mut bytes, head) < bytes.len() {
        refuse_file(path, b"its program headers are cut off");
    }
    let start = bytes.as_ptr() as u64;
    let segment = |index: u64| {
        let at = start + index * HEADER_BYTES;
        Segment {
            kind: load(at),
            flags: load(at + 4),
            offset: load(at + 8),
            address: load(at + 16),
            file_size: load(at + 32),
            memory_size: load(at + 40),
            alignment: load(at + 48),
        }
    };
    (0..count).map(segment).collect()
}

/// Maps a file; the folder is that of who gets its descriptor.
fn map_file(path: &[u8], is_program: bool, receiver: Option<&[u8]>) -> Image {
    const ET_EXEC: u16 = 2;
    let Ok(file) = system::open(path, 0, 0) else { refuse_file(path, b"cannot be opened") };
    let mut head = [0_u8; 64];
    if system::read_at(file, &mut head, 0) < head.len() {
        refuse_file(path, b"too short for a program");
    }
    let at = head.as_ptr() as u64;
    let (kind, entry): (u16, u64) = (load(at + 16), load(at + 24));
    let (offset, count): (u64, u16) = (load(at + 32), load(at + 56));
    if u64::from(count) > HEADERS_MAX {
        refuse_file(path, b"has more than 128 program headers");
    }
    let segments = segments(path, file, offset, u64::from(count));
    let loads: Vec<Segment> =
        segments.iter().filter(|segment| segment.kind == PT_LOAD).copied().collect();
    let base = reserve(path, &loads, kind == ET_EXEC);
    for segment in &loads {
        map_segment(path, file, base, segment);
    }
    let mut interpreter = None;
    let mut headers = 0;
    for segment in &segments {
        match segment.kind {
            // Pages with code are write-protected, and a stack must not be.
            PT_GNU_STACK if is_program && segment.flags & PF_X != 0 => {
                refuse_file(path, b"refused: a program with an executable stack")
            }
            PT_PHDR => headers = base.wrapping_add(segment.address),
            PT_INTERP if is_program => {
                let mut name = alloc::vec![0_u8; segment.file_size.min(4096) as usize];
                system::read_at(file, &mut name, segment.offset);
                interpreter = Some(name);
            }
            PT_LOAD
                if headers == 0
                    && (segment.offset..segment.offset + segment.file_size).contains(&offset) =>
            {
                headers = base.wrapping_add(segment.address + offset - segment.offset);
            }
            _ => {}
        }
    }
    let identity = Identity::of(file);
    if let Some(folder) = receiver {
        identity::send(folder, file);
    }
    system::close(file);
    let start = loads.iter().map(|load| base.wrapping_add(load.address)).min();
    let ends = loads.iter().map(|load| base.wrapping_add(load.address + load.file_size));
    let addresses = start.unwrap_or(0) & !(PAGE - 1)..ends.max().unwrap_or(0);
    let entry = base.wrapping_add(entry);
    Image { base, entry, headers, headers_len: u64::from(count), interpreter, addresses, identity }
}

/// Reserves address space for all segments. Returns the load bias.
fn reserve(path: &[u8], loads: &[Segment], fixed: bool) -> u64 {
    let start = loads.iter().map(|load| load.address & !(PAGE - 1)).min();
    let end = loads.iter().map(|load| load.address.saturating_add(load.memory_size)).max();
    let (Some(start), Some(end)) = (start, end) else { refuse_file(path, b"has no segments") };
    let size = (end - start + PAGE - 1) & !(PAGE - 1);
    let flags = system::MAP_PRIVATE | system::MAP_ANONYMOUS | system::MAP_NORESERVE;
    if fixed {
        let flags = flags | system::MAP_FIXED_NOREPLACE;
        // SAFETY: the kernel refuses a place that is not free (MAP_FIXED_NOREPLACE).
        if unsafe { system::map(start, size, 0, flags, None) } != Some(start) {
            refuse_file(path, b"its addresses are taken");
        }
        return 0;
    }
    let alignment = loads.iter().map(|load| load.alignment).max().unwrap_or(PAGE);
    let alignment = if alignment.is_power_of_two() { alignment.max(PAGE) } else { PAGE };
    // SAFETY: the kernel takes a place that is free.
    let Some(at) = (unsafe { system::map(0, size + alignment, 0, flags, None) }) else {
        refuse_file(path, b"too large for the address space");
    };
    let aligned = (at + alignment - 1) & !(alignment - 1);
    // SAFETY: the two ends of the mapping just made, which nobody uses.
    unsafe {
        system::unmap(at, aligned - at);
        system::unmap(aligned + size, at + alignment - aligned);
    }
    aligned.wrapping_sub(start)
}

fn map_segment(path: &[u8], file: u64, base: u64, segment: &Segment) {
    let flag = |bit: u32, prot: u64| if segment.flags & bit != 0 { prot } else { 0 };
    let prot =
        flag(4, system::PROT_READ) | flag(2, system::PROT_WRITE) | flag(1, system::PROT_EXEC);
    let start = base.wrapping_add(segment.address);
    let (file_end, end) = (start + segment.file_size, start + segment.memory_size);
    let page = |at: u64| at & !(PAGE - 1);
    let flags = system::MAP_PRIVATE | system::MAP_FIXED;
    let mut mapped = page(start);
    if segment.file_size > 0 {
        let from = Some((file, page(segment.offset)));
        let len = file_end - page(start);
        // SAFETY: the place was reserved for this file.
        if unsafe { system::map(page(start), len, prot, flags, from) }.is_none() {
            refuse_file(path, b"a segment cannot be mapped");
        }
        mapped = page(file_end + PAGE - 1);
        if end > file_end && segment.flags & 2 != 0 {
            memory::clear(file_end, (mapped - file_end) as usize);
        }
    }
    if end > mapped {
        let flags = flags | system::MAP_ANONYMOUS;
        let size = page(end + PAGE - 1) - mapped;
        // SAFETY: the place was reserved for this file.
        if unsafe { system::map(mapped, size, prot, flags, None) }.is_none() {
            refuse_file(path, b"a segment cannot be mapped");
        }
    }
}

const AT_PHDR: u64 = 3;
const AT_PHNUM: u64 = 5;
const AT_BASE: u64 = 7;
const AT_ENTRY: u64 = 9;
const AT_HWCAP2: u64 = 26;
/// Restartable sequences, which the program does without.
const AT_RSEQ_FEATURE_SIZE: u64 = 27;
const AT_RSEQ_ALIGN: u64 = 28;
const AT_EXECFN: u64 = 31;
/// The kernel lets programs set %gs.
const HWCAP2_FSGSBASE: u64 = 2;

/// Address of the environment.
fn environment(stack: u64) -> u64 {
    stack + 8 * (load::<u64>(stack) + 2)
}

/// Address of the auxiliary vector.
fn vector(stack: u64) -> u64 {
    let mut at = environment(stack);
    while load::<u64>(at) != 0 {
        at += 8;
    }
    at + 8
}

fn auxiliary(stack: u64, key: u64) -> u64 {
    let mut at = vector(stack);
    while load::<u64>(at) != 0 {
        if load::<u64>(at) == key {
            return load(at + 8);
        }
        at += 16;
    }
    0
}

/// Lays the program's stack beneath the kernel's; strings stay where they are.
fn lay_stack(
    stack: u64,
    options: &Options,
    before: &[Vec<u8>],
    path: &[u8],
    image: &Image,
    interpreter: Option<&Image>,
) -> u64 {
    let kept = |string: &[u8]| string.to_vec().leak().as_ptr() as u64;
    let argument = |index: u64| load::<u64>(stack + 8 + 8 * index);
    let count: u64 = load(stack);
    let mut words = Vec::from([0]);
    if before.is_empty() {
        words.push(options.first.unwrap_or_else(|| argument(options.program)));
    } else {
        words.extend(before.iter().map(|string| kept(string)));
    }
    words.extend((options.program + 1..count).map(argument));
    let arguments = words.len() as u64 - 1;
    if let Some(first) = words.first_mut() {
        *first = arguments;
    }
    words.push(0);
    let mut at = environment(stack);
    while load::<u64>(at) != 0 {
        words.push(load(at));
        at += 8;
    }
    words.push(0);
    at += 8;
    while load::<u64>(at) != 0 {
        let (key, value): (u64, u64) = (load(at), load(at + 8));
        at += 16;
        let value = match key {
            AT_PHDR => image.headers,
            AT_PHNUM => image.headers_len,
            AT_BASE => interpreter.map_or(0, |interpreter| interpreter.base),
            AT_ENTRY => image.entry,
            AT_EXECFN => kept(path),
            AT_RSEQ_FEATURE_SIZE | AT_RSEQ_ALIGN => continue,
            _ => value,
        };
        words.extend([key, value]);
    }
    words.extend([0, 0]);
    let sp = (stack - 8 * words.len() as u64) & !15;
    for (at, word) in (sp..).step_by(8).zip(words) {
        store(at, word);
    }
    sp
}
