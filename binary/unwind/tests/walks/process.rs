//! A process that is stopped and looked at: its registers, its stack, and what is mapped where.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::IoSliceMut;
use std::os::unix::fs::FileExt as _;

use nix::libc::user_regs_struct;
use nix::sys::ptrace;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;
use unwind::{Code, Image, Registers, Space, Unwinder};

/// An executable mapping.
struct Mapping {
    begin: u64,
    end: u64,
    offset: u64,
    /// None: code made at run time.
    image: Option<Image>,
    frame_pointers: bool,
}

/// The executable mappings of a process.
pub struct Mapped {
    pid: Pid,
    mappings: Vec<Mapping>,
    /// Files by name and inode.
    images: HashMap<String, Image>,
    names: HashMap<Image, String>,
    /// Part of the names of files whose code keeps frame pointers where no table covers it: Go's
    /// programs, node. Code made at run time keeps them, too, then.
    pub frame_pointers: Option<String>,
    memory: RefCell<Option<File>>,
}

impl Mapped {
    pub fn new(pid: Pid) -> Self {
        Self {
            pid,
            mappings: Vec::new(),
            images: HashMap::new(),
            names: HashMap::new(),
            frame_pointers: None,
            memory: RefCell::new(None),
        }
    }

    /// Files that another space has are the same ones.
    #[allow(dead_code, reason = "only the bench has several processes")]
    pub fn know_files_of(&mut self, other: &Self) {
        self.images.clone_from(&other.images);
        self.names.clone_from(&other.names);
    }

    /// Reads the mappings again.
    pub fn refresh(&mut self, unwinder: &mut Unwinder) {
        self.mappings.clear();
        let text = fs::read_to_string(format!("/proc/{}/maps", self.pid)).unwrap_or_default();
        for line in text.lines() {
            let mut words = line.split_ascii_whitespace();
            let (range, rights, offset) =
                (words.next().unwrap(), words.next().unwrap(), words.next().unwrap());
            let (_device, inode) = (words.next().unwrap(), words.next().unwrap());
            let name = words.collect::<Vec<_>>().join(" ");
            if !rights.contains('x') {
                continue;
            }
            let (begin, end) = range.split_once('-').unwrap();
            let number = |text| u64::from_str_radix(text, 16).unwrap();
            let (begin, end) = (number(begin), number(end));
            let image = self.image(&name, inode, range, unwinder);
            let part = self.frame_pointers.as_ref();
            let frame_pointers = part.is_some_and(|part| image.is_none() || name.contains(part));
            let offset = number(offset);
            self.mappings.push(Mapping { begin, end, offset, image, frame_pointers });
        }
    }

    fn image(
        &mut self,
        name: &str,
        inode: &str,
        range: &str,
        unwinder: &mut Unwinder,
    ) -> Option<Image> {
        if name == "[vdso]" {
            let key = format!("vdso {}", self.pid);
            if let Some(&image) = self.images.get(&key) {
                return Some(image);
            }
            let (begin, end) = range.split_once('-').unwrap();
            let number = |text| u64::from_str_radix(text, 16).unwrap();
            let (begin, end) = (number(begin), number(end));
            let bytes = self.memory(begin, (end - begin) as usize);
            let image = unwinder.add(Box::new(bytes));
            self.names.insert(image, name.to_owned());
            self.images.insert(key, image);
            return Some(image);
        }
        if !name.starts_with('/') || inode == "0" {
            return None;
        }
        let key = format!("{name} {inode}");
        if let Some(&image) = self.images.get(&key) {
            return Some(image);
        }
        let file = File::open(format!("/proc/{}/map_files/{}", self.pid, plain(range)))
            .or_else(|_| File::open(name))
            .ok()?;
        let image = unwinder.add(Box::new(file));
        self.names.insert(image, name.to_owned());
        self.images.insert(key, image);
        Some(image)
    }

    /// For messages: file and offset of an address.
    pub fn describe(&self, address: u64) -> String {
        match self.code_at(address) {
            Code::File { image, offset, .. } => format!("{}+{offset:#x}", self.names[&image]),
            Code::Generated { .. } => format!("generated {address:#x}"),
            Code::None => format!("{address:#x}"),
        }
    }

    /// As many of `len` bytes at `address` as there are.
    pub fn memory(&self, address: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let remote = [RemoteIoVec { base: address as usize, len }];
        let read = process_vm_readv(self.pid, &mut [IoSliceMut::new(&mut bytes)], &remote);
        if let Ok(read) = read {
            bytes.truncate(read);
            return bytes;
        }
        // Not all of it is there, or not readable for others.
        let mut memory = self.memory.borrow_mut();
        if memory.is_none() {
            *memory = File::open(format!("/proc/{}/mem", self.pid)).ok();
        }
        let read = memory.as_ref().and_then(|file| file.read_at(&mut bytes, address).ok());
        bytes.truncate(read.unwrap_or(0));
        bytes
    }
}

/// Without leading zeros, as the names in `map_files` are.
fn plain(range: &str) -> String {
    let (begin, end) = range.split_once('-').unwrap();
    format!("{}-{}", begin.trim_start_matches('0'), end.trim_start_matches('0'))
}

impl Space for Mapped {
    fn code_at(&self, address: u64) -> Code {
        let after = self.mappings.partition_point(|mapping| mapping.begin <= address);
        let mapping = after.checked_sub(1).and_then(|place| self.mappings.get(place));
        match mapping.filter(|mapping| address < mapping.end) {
            None => Code::None,
            Some(&Mapping { begin, offset, image, frame_pointers, .. }) => match image {
                Some(image) => {
                    Code::File { image, offset: address - begin + offset, frame_pointers }
                }
                None => Code::Generated { frame_pointers },
            },
        }
    }

    fn read_code(&self, address: u64, buffer: &mut [u8]) -> usize {
        let bytes = self.memory(address, buffer.len());
        buffer[..bytes.len()].copy_from_slice(&bytes);
        bytes.len()
    }
}

/// The registers of a stopped thread.
pub fn registers(thread: Pid) -> Option<user_regs_struct> {
    ptrace::getregs(thread).ok()
}

/// The same for the walker.
pub fn known(r: &user_regs_struct) -> Registers {
    let values = [
        r.rax, r.rdx, r.rcx, r.rbx, r.rsi, r.rdi, r.rbp, r.rsp, r.r8, r.r9, r.r10, r.r11, r.r12,
        r.r13, r.r14, r.r15,
    ];
    Registers::x86_64(r.rip, &values)
}
