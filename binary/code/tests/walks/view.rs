//! What a profiler knows of a process's memory: which files it has mapped as code, and those files.

use std::collections::HashMap;
use std::fs;
use std::sync::Arc;

use code::interpret::{CodeView, Place};
use image::{Constant, Constants, ImageOffset, Layout, Vaddr};

struct File {
    bytes: Vec<u8>,
    layout: Layout,
    constants: Constants,
}

#[derive(Clone)]
struct Mapped {
    place: Place,
    /// The process's address minus the file's.
    distance: u64,
    /// Of all that the file has in memory.
    span: (u64, u64),
    file: Arc<File>,
}

/// The files met so far; a file's number is its place in the order.
#[derive(Default)]
pub struct Files {
    by_path: HashMap<String, (u32, Option<Arc<File>>)>,
    all: Vec<Option<Arc<File>>>,
}

#[derive(Clone, Default)]
pub struct View {
    mapped: Vec<Mapped>,
    all: Vec<Option<Arc<File>>>,
}

impl Files {
    fn file(&mut self, path: &str) -> (u32, Option<Arc<File>>) {
        if let Some(known) = self.by_path.get(path) {
            return known.clone();
        }
        let read = || {
            let bytes = fs::read(path).ok()?;
            let (layout, constants) = (Layout::of(&bytes).ok()?, Constants::of(&bytes).ok()?);
            Some(Arc::new(File { bytes, layout, constants }))
        };
        let entry = (self.all.len() as u32, read());
        self.all.push(entry.1.clone());
        self.by_path.insert(path.to_owned(), entry.clone());
        entry
    }

    /// What is mapped as code now.
    pub fn view(&mut self, pid: i32) -> View {
        let mut mapped = Vec::new();
        for line in fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default().lines() {
            mapped.extend(self.mapping(line));
        }
        mapped.sort_by_key(|mapped: &Mapped| mapped.place.begin);
        View { mapped, all: self.all.clone() }
    }

    /// A program that is where its file says.
    pub fn of_program(&mut self, path: &str) -> Option<View> {
        let file = self.file(path).1?;
        let code = file.layout.segments().iter().find(|segment| segment.executable)?;
        let offset = code.offset.0 & !4095;
        let begin = code.vaddr.0 - (code.offset.0 - offset);
        let end = code.vaddr.0 + code.file_size_bytes;
        let line = format!("{begin:x}-{end:x} r-xp {offset:x} 00:00 0 {path}");
        let mapped = self.mapping(&line)?;
        Some(View { mapped: vec![mapped], all: self.all.clone() })
    }

    fn mapping(&mut self, line: &str) -> Option<Mapped> {
        let mut words = line.split_whitespace();
        let (range, mode, offset) = (words.next()?, words.next()?, words.next()?);
        let path = words.nth(2)?;
        if !mode.contains('x') || mode.contains('w') || !path.starts_with('/') {
            return None;
        }
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let (begin, end) = range.split_once('-')?;
        let (begin, end, offset) = (hex(begin)?, hex(end)?, hex(offset)?);
        let (image, file) = self.file(path);
        let file = file?;
        let segments = file.layout.segments();
        let code = segments
            .iter()
            .find(|segment| segment.executable && segment.offset.0 & !4095 == offset)?;
        let distance = begin.wrapping_add(code.offset.0 - offset).wrapping_sub(code.vaddr.0);
        let first = segments.iter().map(|segment| segment.vaddr.0).min()?;
        let last =
            segments.iter().map(|segment| segment.vaddr.0 + segment.file_size_bytes).max()?;
        let span = (first.wrapping_add(distance), last.wrapping_add(distance));
        let place =
            Place { image, begin: Vaddr(begin), end: Vaddr(end), offset: ImageOffset(offset) };
        Some(Mapped { place, distance, span, file })
    }
}

impl CodeView for View {
    fn place(&mut self, address: Vaddr) -> Option<Place> {
        let index =
            self.mapped.partition_point(|mapped| mapped.place.begin <= address).checked_sub(1)?;
        let place = self.mapped.get(index)?.place;
        (address < place.end).then_some(place)
    }

    fn bytes(&mut self, image: u32, offset: ImageOffset, into: &mut [u8]) -> usize {
        let Some(Some(file)) = self.all.get(image as usize) else { return 0 };
        let rest = file.bytes.get(offset.0 as usize..).unwrap_or_default();
        let len = rest.len().min(into.len());
        into[..len].copy_from_slice(&rest[..len]);
        len
    }

    fn constant(&mut self, address: Vaddr, len: u8) -> Option<u64> {
        let holds = |mapped: &&Mapped| mapped.span.0 <= address.0 && address.0 < mapped.span.1;
        let mapped = self.mapped.iter().find(holds)?;
        match mapped.file.constants.at(Vaddr(address.0.wrapping_sub(mapped.distance)), len)? {
            Constant::Address(vaddr) => Some(vaddr.0.wrapping_add(mapped.distance)),
            Constant::InFile(offset) => {
                let bytes = mapped.file.bytes.get(offset.0 as usize..)?.get(..usize::from(len))?;
                Some(bytes.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)))
            }
        }
    }
}
