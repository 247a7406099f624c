//! Call stacks of stopped threads.

use super::Chain;
use crate::Site;
use crate::file::{CodeFile, Identity, Unfound, shown};
use image::ImageOffset;
use nix::sys::ptrace;
use nix::unistd::Pid;
use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use unwind::{Code, End, Frame, Image, Registers, Space, Unwinder, Window};

/// Bytes of the stack that a walk reads first, and at most.
const WINDOW: usize = 16 << 10;
const WINDOW_MAX: usize = 1 << 20;
/// Bytes below the stack pointer that code uses (System V ABI, AMD64 supplement, section 3.2.2).
const RED_ZONE: u64 = 128;

/// Walks stacks of many processes.
#[derive(Default)]
pub(super) struct Stacks {
    unwinder: Unwinder,
    spaces: HashMap<Pid, Process>,
    files: Files,
}

/// Files that are open, and the images of the unwinder.
#[derive(Default)]
struct Files {
    /// What was opened while it was mapped, and how /proc/PID/maps told of it.
    opened: Vec<(Identity, Vec<u8>, File)>,
    images: HashMap<(Identity, Vec<u8>), Image>,
    numbers: HashMap<Image, usize>,
}

/// The executable mappings of a process.
struct Process {
    memory: Option<File>,
    text: Vec<u8>,
    mappings: Vec<Mapping>,
}

struct Mapping {
    begin: u64,
    end: u64,
    offset: u64,
    mapped: Mapped,
}

/// What is mapped at an address.
enum Mapped {
    Generated,
    File(Image),
    /// A file that could not be opened, and why.
    Unfound(PathBuf, &'static str),
}

/// The stack of an exception.
#[derive(Clone, Debug)]
pub(super) enum Walked {
    Chain(Chain),
    /// The innermost frame is in no file.
    Elsewhere,
    /// It is in a file that could not be opened.
    Unfound(PathBuf, &'static str),
}

impl Stacks {
    /// Forgets a process, or its mappings.
    pub(super) fn forget(&mut self, process: Pid) {
        self.spaces.remove(&process);
    }

    /// The files by number, as they are found now.
    pub(super) fn into_files(self) -> Vec<CodeFile> {
        let find = |(identity, mapped, file): (Identity, Vec<u8>, File)| {
            let found = identity.find(&mapped, Some(&file));
            found.unwrap_or_else(|why| CodeFile::unfound(&mapped, why))
        };
        self.files.opened.into_iter().map(find).collect()
    }

    /// The stack of a thread of a process.
    pub(super) fn walk(&mut self, thread: Pid, process: Pid) -> Walked {
        self.walked(thread, process).unwrap_or(Walked::Elsewhere)
    }

    fn walked(&mut self, thread: Pid, process: Pid) -> Option<Walked> {
        let registers = ptrace::getregs(thread).ok()?;
        let values = [
            registers.rax,
            registers.rdx,
            registers.rcx,
            registers.rbx,
            registers.rsi,
            registers.rdi,
            registers.rbp,
            registers.rsp,
            registers.r8,
            registers.r9,
            registers.r10,
            registers.r11,
            registers.r12,
            registers.r13,
            registers.r14,
            registers.r15,
        ];
        let (begin, pc) = (registers.rsp.wrapping_sub(RED_ZONE), registers.rip);
        let registers = Registers::x86_64(registers.rip, &values);
        let Self { unwinder, spaces, files } = self;
        let space = spaces.entry(process).or_insert_with(|| Process::of(process));
        // Another file may be mapped at an address of before.
        space.refresh(process, unwinder, files);
        let (mut frames, mut wide) = (Vec::new(), false);
        let end = loop {
            let bytes = space.read(begin, if wide { WINDOW_MAX } else { WINDOW });
            let windows = [Window { address: begin, bytes: &bytes }];
            let end = unwinder.walk(&registers, &windows, space, &mut frames);
            match end {
                End::Window if !wide => wide = true,
                end => break end,
            }
        };
        if let Some(Mapped::Unfound(path, why)) = space.mapped_at(pc).map(|at| &at.mapped) {
            return Some(Walked::Unfound(path.clone(), why));
        }
        chain(&frames, end, files).map(Walked::Chain)
    }
}

/// The places of a walk's frames. Those in no file are left out; code made at run time ends a walk.
fn chain(frames: &[Frame], end: End, files: &Files) -> Option<Chain> {
    let site = |frame: &Frame| match frame.code {
        Code::File { image, offset, .. } => {
            Some(Site { file: *files.numbers.get(&image)?, offset: ImageOffset(offset) })
        }
        Code::Generated { .. } | Code::None => None,
    };
    frames.first().and_then(site)?;
    let sites = frames.iter().rev().filter_map(site).collect();
    Some(Chain { sites, end })
}

impl Process {
    fn of(process: Pid) -> Self {
        let memory = File::open(format!("/proc/{process}/mem")).ok();
        Self { memory, text: Vec::new(), mappings: Vec::new() }
    }

    /// Up to `length` bytes at an address, as many as are mapped.
    fn read(&self, address: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        let read = self.memory.as_ref().and_then(|file| file.read_at(&mut bytes, address).ok());
        bytes.truncate(read.unwrap_or(0));
        bytes
    }

    /// Reads the mappings again, if they have changed.
    fn refresh(&mut self, process: Pid, unwinder: &mut Unwinder, files: &mut Files) {
        let text = fs::read(format!("/proc/{process}/maps")).unwrap_or_default();
        if text == self.text {
            return;
        }
        let lines = text.split(|byte| *byte == b'\n');
        let mapping = |line| Mapping::of(line, process, unwinder, files);
        self.mappings = lines.filter_map(mapping).collect();
        self.text = text;
    }

    fn mapped_at(&self, address: u64) -> Option<&Mapping> {
        let after = self.mappings.partition_point(|mapping| mapping.begin <= address);
        let mapping = after.checked_sub(1).and_then(|place| self.mappings.get(place));
        mapping.filter(|mapping| address < mapping.end)
    }
}

impl Mapping {
    /// That of a line of /proc/PID/maps about code.
    fn of(line: &[u8], process: Pid, unwinder: &mut Unwinder, files: &mut Files) -> Option<Self> {
        // 7f1c0-7f1c9 r-xp 00001000 fe:01 1234    /usr/lib/libc.so.6
        let mut words = line.splitn(6, |byte| *byte == b' ');
        let mut word = || str::from_utf8(words.next()?).ok();
        let (range, rights, offset) = (word()?, word()?, word()?);
        let (device, inode) = (word()?, word()?.parse().ok()?);
        let path = words.next().unwrap_or_default().trim_ascii_start();
        let number = |text| u64::from_str_radix(text, 16).ok();
        let (begin, end) = range.split_once('-')?;
        let (begin, end, offset) = (number(begin)?, number(end)?, number(offset)?);
        let (major, minor) = device.split_once(':')?;
        let device = number(major)? << 32 | number(minor)?;
        let identity = Identity { device, inode, content: None };
        let mapped = rights
            .contains('x')
            .then(|| files.mapped((process, range), (identity, path), unwinder))?;
        Some(Self { begin, end, offset, mapped })
    }
}

impl Files {
    fn mapped(
        &mut self,
        (process, range): (Pid, &str),
        (identity, path): (Identity, &[u8]),
        unwinder: &mut Unwinder,
    ) -> Mapped {
        if identity.inode == 0 {
            return Mapped::Generated;
        }
        // A file that is open keeps its inode.
        let key = (identity, path.to_vec());
        if let Some(image) = self.images.get(&key) {
            return Mapped::File(*image);
        }
        let gone = || Mapped::Unfound(shown(path), Unfound::Gone.words());
        let Some((found, file)) = identity.open(process.as_raw(), range, path) else {
            return gone();
        };
        let Ok(own) = file.try_clone() else { return gone() };
        let image = unwinder.add(Box::new(file));
        self.numbers.insert(image, self.opened.len());
        self.opened.push((found, path.to_vec(), own));
        self.images.insert(key, image);
        Mapped::File(image)
    }
}

impl Space for Process {
    fn code_at(&self, address: u64) -> Code {
        match self.mapped_at(address) {
            None => Code::None,
            Some(Mapping { begin, offset, mapped: Mapped::File(image), .. }) => {
                let offset = address - begin + offset;
                Code::File { image: *image, offset, frame_pointers: false }
            }
            Some(_) => Code::Generated { frame_pointers: false },
        }
    }
}
