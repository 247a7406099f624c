//! Call stacks of stopped threads.

use super::Chain;
use crate::Site;
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
    spaces: HashMap<Pid, Mapped>,
    files: Files,
}

/// Numbers of files, and the images of the unwinder.
#[derive(Default)]
struct Files {
    paths: Vec<PathBuf>,
    images: HashMap<(String, String), Image>,
    numbers: HashMap<Image, usize>,
}

/// The executable mappings of a process.
struct Mapped {
    memory: Option<File>,
    text: String,
    mappings: Vec<Mapping>,
}

struct Mapping {
    begin: u64,
    end: u64,
    offset: u64,
    /// None: code made at run time.
    image: Option<Image>,
}

impl Stacks {
    /// Forgets a process, or its mappings.
    pub(super) fn forget(&mut self, process: Pid) {
        self.spaces.remove(&process);
    }

    /// The files by number.
    pub(super) fn into_files(self) -> Vec<PathBuf> {
        self.files.paths
    }

    /// The stack of a thread of a process; None where its innermost frame is in no file.
    pub(super) fn walk(&mut self, thread: Pid, process: Pid) -> Option<Chain> {
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
        let begin = registers.rsp.wrapping_sub(RED_ZONE);
        let registers = Registers::x86_64(registers.rip, &values);
        let Self { unwinder, spaces, files } = self;
        let space = spaces.entry(process).or_insert_with(|| Mapped::of(process));
        let (mut frames, mut wide, mut is_new) = (Vec::new(), false, false);
        let end = loop {
            let bytes = space.read(begin, if wide { WINDOW_MAX } else { WINDOW });
            let windows = [Window { address: begin, bytes: &bytes }];
            let end = unwinder.walk(&registers, &windows, space, &mut frames);
            match end {
                End::Window if !wide => wide = true,
                // Something may have been mapped since.
                end if end != End::Whole && !is_new => {
                    is_new = true;
                    if !space.refresh(process, unwinder, files) {
                        break end;
                    }
                }
                end => break end,
            }
        };
        chain(&frames, end, files)
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

impl Mapped {
    fn of(process: Pid) -> Self {
        let memory = File::open(format!("/proc/{process}/mem")).ok();
        Self { memory, text: String::new(), mappings: Vec::new() }
    }

    /// Up to `length` bytes at an address, as many as are mapped.
    fn read(&self, address: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        let read = self.memory.as_ref().and_then(|file| file.read_at(&mut bytes, address).ok());
        bytes.truncate(read.unwrap_or(0));
        bytes
    }

    /// Reads the mappings again. Returns whether they have changed.
    fn refresh(&mut self, process: Pid, unwinder: &mut Unwinder, files: &mut Files) -> bool {
        let text = fs::read_to_string(format!("/proc/{process}/maps")).unwrap_or_default();
        if text == self.text {
            return false;
        }
        self.mappings = text
            .lines()
            .filter_map(|line| {
                let mut words = line.split_ascii_whitespace();
                let (range, rights, offset) = (words.next()?, words.next()?, words.next()?);
                let inode = words.nth(1)?;
                let path = words.collect::<Vec<_>>().join(" ");
                let (begin, end) = range.split_once('-')?;
                let number = |text| u64::from_str_radix(text, 16).ok();
                let (begin, end, offset) = (number(begin)?, number(end)?, number(offset)?);
                let is_code = rights.contains('x');
                let image = is_code.then(|| files.image(process, &path, inode, range, unwinder))?;
                Some(Mapping { begin, end, offset, image })
            })
            .collect();
        self.text = text;
        true
    }
}

impl Files {
    fn image(
        &mut self,
        process: Pid,
        path: &str,
        inode: &str,
        range: &str,
        unwinder: &mut Unwinder,
    ) -> Option<Image> {
        if !path.starts_with('/') || inode == "0" {
            return None;
        }
        let key = (path.to_owned(), inode.to_owned());
        if let Some(image) = self.images.get(&key) {
            return Some(*image);
        }
        let file = File::open(format!("/proc/{process}/map_files/{range}"));
        let image = unwinder.add(Box::new(file.or_else(|_| File::open(path)).ok()?));
        self.images.insert(key, image);
        self.numbers.insert(image, self.paths.len());
        self.paths.push(PathBuf::from(path));
        Some(image)
    }
}

impl Space for Mapped {
    fn code_at(&self, address: u64) -> Code {
        let after = self.mappings.partition_point(|mapping| mapping.begin <= address);
        let mapping = after.checked_sub(1).and_then(|place| self.mappings.get(place));
        match mapping.filter(|mapping| address < mapping.end) {
            None => Code::None,
            Some(mapping) => match mapping.image {
                Some(image) => {
                    let offset = address - mapping.begin + mapping.offset;
                    Code::File { image, offset, frame_pointers: false }
                }
                None => Code::Generated { frame_pointers: false },
            },
        }
    }
}
