//! Executable memory of this process, as /proc/self/maps tells, and what each range was mapped
//! from. Read again when the program has changed executable memory.

use crate::area::{Mapping, writer::Area};
use crate::identity::Identity;
use crate::system;
use alloc::vec::Vec;

/// A range of executable memory.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    pub start: u64,
    pub end: u64,
    pub writable: bool,
    /// Index of the mapping in the area.
    pub mapping: u32,
}

/// Executable memory.
pub struct Regions {
    regions: Vec<Region>,
    /// Mappings of the area by index.
    mappings: Vec<Mapping>,
    /// Files by the addresses at which they were seen mapped.
    files: Vec<(core::ops::Range<u64>, Identity)>,
    stale: bool,
    /// A note says that the program has code in shared memory.
    noted: bool,
    /// The engine's own memory, which is no part of the program.
    hidden: Vec<core::ops::Range<u64>>,
}

/// The page that the kernel emulates system calls at; it is not readable.
pub const VSYSCALL: u64 = 0xffff_ffff_ff60_0000;

impl Regions {
    pub fn new(hidden: &[core::ops::Range<u64>]) -> Self {
        Self {
            regions: Vec::new(),
            mappings: Vec::new(),
            files: Vec::new(),
            stale: true,
            noted: false,
            hidden: hidden.to_vec(),
        }
    }

    /// Says that the program has changed the protection or content of a range.
    pub fn changed(&mut self, start: u64, end: u64, executable: bool) {
        self.stale |= executable || self.overlaps(start, end);
    }

    /// Says which file a range is mapped from; None: something else than before.
    pub fn mapped(&mut self, range: core::ops::Range<u64>, file: Option<Identity>) {
        let overlaps =
            |known: &core::ops::Range<u64>| known.start < range.end && range.start < known.end;
        if file.is_none() && !self.files.iter().any(|(known, _)| overlaps(known)) {
            return;
        }
        let mut files = Vec::new();
        for (known, file) in self.files.drain(..) {
            let before = known.start..known.end.min(range.start);
            let after = known.start.max(range.end)..known.end;
            let rest = [before, after].into_iter().filter(|rest| !rest.is_empty());
            files.extend(rest.map(|rest| (rest, file)));
        }
        files.extend(file.map(|file| (range, file)));
        self.files = files;
    }

    /// Whether code is mapped from a file.
    pub fn has_file(&self, file: Identity) -> bool {
        self.files.iter().any(|(_, known)| known.is_file_of(&file))
    }

    /// Whether a range has executable memory.
    pub fn overlaps(&self, start: u64, end: u64) -> bool {
        self.regions.iter().any(|region| region.start < end && start < region.end)
    }

    /// The region of an address.
    pub fn find(&mut self, at: u64, area: &mut Area) -> Option<Region> {
        if self.stale {
            self.stale = false;
            self.read(area);
        }
        let index = self.regions.partition_point(|region| region.end <= at);
        self.regions.get(index).filter(|region| region.start <= at).copied()
    }

    /// End of the executable memory that contains an address.
    pub fn limit(&mut self, at: u64, area: &mut Area) -> Option<u64> {
        let mut end = self.find(at, area)?.end;
        let index = self.regions.partition_point(|region| region.end <= end);
        for region in self.regions.get(index..).unwrap_or_default() {
            if region.start != end || end - at > 0x4000 {
                break;
            }
            end = region.end;
        }
        Some(end)
    }

    fn read(&mut self, area: &mut Area) {
        let Ok(file) = system::open(b"/proc/self/maps\0", 0, 0) else {
            system::refuse(&[b"/proc/self/maps cannot be read"]);
        };
        let mut text = Vec::new();
        let mut buffer = alloc::vec![0_u8; 1 << 16];
        loop {
            let read = system::read_at(file, &mut buffer, text.len() as u64);
            text.extend_from_slice(buffer.get(..read).unwrap_or_default());
            if read < buffer.len() {
                break;
            }
        }
        system::close(file);
        self.regions.clear();
        // Lines that differ in protection only belong to one mapping: the engine itself protects
        // pages.
        let mut whole: Option<(Mapping, &[u8])> = None;
        let mut parts: Vec<(u64, u64, bool)> = Vec::new();
        for line in text.split(|byte| *byte == b'\n') {
            let Some((mapping, [writable, shared], path)) = parse(line).filter(|(mapping, ..)| {
                mapping.start != VSYSCALL
                    && !self.hidden.iter().any(|hidden| hidden.contains(&mapping.start))
            }) else {
                continue;
            };
            match &mut whole {
                Some((before, same)) if *same == path && continues(before, &mapping) => {
                    before.end = mapping.end;
                }
                _ => {
                    self.add(whole.take(), &mut parts, area);
                    whole = Some((mapping, path));
                }
            }
            parts.push((mapping.start, mapping.end, writable));
            if shared && !self.noted {
                self.noted = true;
                area.note(&[b"code in shared memory: not seen when written elsewhere: ", path]);
            }
        }
        self.add(whole, &mut parts, area);
    }

    fn add(
        &mut self,
        whole: Option<(Mapping, &[u8])>,
        parts: &mut Vec<(u64, u64, bool)>,
        area: &mut Area,
    ) {
        if let Some((mapping, path)) = whole {
            let mapping = self.mapping(mapping, path, area);
            self.regions.extend(parts.drain(..).map(|(start, end, writable)| Region {
                start,
                end,
                writable,
                mapping,
            }));
        }
    }

    /// The index of a mapping in the area: that of a known one, or of a new one.
    fn mapping(&mut self, mut mapping: Mapping, path: &[u8], area: &mut Area) -> u32 {
        let at = mapping.start;
        let file = self.files.iter().find(|(range, _)| range.contains(&at));
        if let Some((_, file)) = file.filter(|_| mapping.inode != 0) {
            mapping = file.mapped(mapping);
        }
        let same = |known: &Mapping| Mapping { path: 0, path_len: 0, ..*known } == mapping;
        if let Some(index) = self.mappings.iter().rposition(same) {
            return index as u32;
        }
        self.mappings.push(mapping);
        area.mapping(mapping, path)
    }
}

/// Whether a mapping continues another one, in the same file or in none.
fn continues(before: &Mapping, after: &Mapping) -> bool {
    let offset = if before.inode == 0 { 0 } else { before.offset + before.end - before.start };
    before.end == after.start
        && (before.device, before.inode, offset) == (after.device, after.inode, after.offset)
}

/// One line of /proc/PID/maps about executable memory: the mapping, whether it is writable and
/// shared, and its path.
fn parse(line: &[u8]) -> Option<(Mapping, [bool; 2], &[u8])> {
    // 7f1c0-7f1c9 r-xp 00001000 fe:01 1234    /usr/lib/libc.so.6
    let mut rest = line;
    let mut word = |separator: u8| {
        let end = rest.iter().position(|byte| *byte == separator).unwrap_or(rest.len());
        let (word, after) = rest.split_at_checked(end)?;
        rest = after.get(1..).unwrap_or_default();
        Some(word)
    };
    let start = number(word(b'-')?, 16)?;
    let end = number(word(b' ')?, 16)?;
    let modes = word(b' ')?;
    let offset = number(word(b' ')?, 16)?;
    let major = number(word(b':')?, 16)?;
    let minor = number(word(b' ')?, 16)?;
    let inode = number(word(b' ')?, 10)?;
    let device = major << 32 | minor;
    let mapping = Mapping { start, end, offset, device, inode, ..Mapping::default() };
    let path = rest.trim_ascii_start();
    let has = |place: usize, mode: u8| modes.get(place) == Some(&mode);
    has(2, b'x').then_some((mapping, [has(1, b'w'), has(3, b's')], path))
}

fn number(digits: &[u8], base: u64) -> Option<u64> {
    digits.iter().try_fold(0_u64, |value, digit| {
        let digit = u64::from((*digit as char).to_digit(base as u32)?);
        value.checked_mul(base)?.checked_add(digit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel_are_read() {
        let line = b"7f1c0000-7f1c9000 r-xp 00001000 fe:01 1234       /usr/lib/a b.so";
        let (mapping, modes, path) = parse(line).unwrap();
        assert_eq!((mapping.start, mapping.end, mapping.offset), (0x7f1c_0000, 0x7f1c_9000, 4096));
        assert_eq!((mapping.device, mapping.inode), (0xfe_0000_0001, 1234));
        assert_eq!((modes, path), ([false; 2], &b"/usr/lib/a b.so"[..]));
        let (own, modes, path) = parse(b"1000-2000 rwxs 00000000 00:00 0").unwrap();
        assert_eq!((modes, path), ([true; 2], &b""[..]));
        let (next, ..) = parse(b"2000-3000 r-xp 00000000 00:00 0").unwrap();
        assert!(continues(&own, &next) && !continues(&own, &mapping));
        assert!(parse(b"3000-4000 rw-p 00000000 00:00 0").is_none());
        assert!(parse(b"nonsense").is_none());
    }
}
