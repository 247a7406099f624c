//! Answers each question: the only code that reads other processes' memory and files.

use super::build_files::{identify_known, open_build, opened, opened_grown};
use super::questions::{
    BuildIdOf, Choose, Chosen, Close, DUMPED_BYTES_MAX, Dumped, DumpedCode, Facts, FactsByPath,
    FactsOfMapping, FileAt, Generated, GeneratedCode, Identified, Identify, IdentifyPath,
    ImageOfContainer, Inspect, KeepError, Known, Mappings, NarrowVdsoOf, OPEN_MAX, Open, Opened,
    Owner, PIECE_BYTES, Raw, Read, Unwind, Unwound, Walk, Walked,
};
use super::stack_walks::StackWalks;
use super::walks::Walks;
use crate::containers;
use crate::file_catalogue::Catalogue;
use crate::file_facts::FileFacts;
use crate::jit::code_events::CodeLook;
use crate::jit::files::{self, DumpReader, NoFile};
use crate::jit::process::{self, Who};
use crate::open_mapped;
use crate::remapped_text;
use crate::vdso::{StoredVdso, vdso_of};
use image::jit::jitdump;
use image::{ImageError, ImageId, KeptRanges};
use kernel::latin1::Bytes;
use kernel::procfs::{self, MapsLine};
use nix::fcntl::OFlag;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

/// Jitdumps of one process.
const DUMPS_MAX: usize = 8;

/// The state of an inspector.
#[derive(Default)]
pub struct Desk {
    /// Its knowledge of files, which ends with the inspector.
    catalogue: Catalogue,
    walks: Option<Walks>,
    stack_walks: Option<StackWalks>,
    open: BTreeMap<u32, Reading>,
    next_handle: u32,
}

/// A file that is read piece by piece.
struct Reading {
    image: ImageId,
    file: File,
    before: FileFacts,
    ranges: KeptRanges,
    /// Index of the current range, and bytes of it that were read.
    at: (usize, u64),
}

/// A question that can be answered.
pub trait Find: Inspect {
    /// The answer. May never come.
    fn find(self, desk: &mut Desk) -> Self::Answer;
}

impl Find for Mappings {
    fn find(self, _: &mut Desk) -> Option<Vec<MapsLine>> {
        let open = |line: &MapsLine| open_mapped::open_line(self.pid, line);
        Some(remapped_text::executable_lines(self.pid, &procfs::maps(self.pid)?, open))
    }
}

impl Find for Owner {
    fn find(self, _: &mut Desk) -> Option<Who> {
        Who::of(self.pid)
    }
}

impl Find for ImageOfContainer {
    fn find(self, _: &mut Desk) -> Option<Bytes> {
        containers::image_of(Path::new("/"), &self.id).map(|name| Bytes(name.into_bytes()))
    }
}

impl Find for FactsByPath {
    fn find(self, _: &mut Desk) -> Option<FileFacts> {
        let FileAt { id, path, at } = self.0;
        open_mapped::facts_by_path(&id, &path.0, at)
    }
}

impl Find for FactsOfMapping {
    fn find(self, _: &mut Desk) -> Option<FileFacts> {
        let found = FileFacts::of(&open_mapped::mapped(self.0.at)?.metadata().ok()?);
        found.is_inode_of_layers(&self.0.id).then_some(found)
    }
}

impl Find for Facts {
    fn find(self, _: &mut Desk) -> Option<(FileFacts, Option<u32>)> {
        let file = opened(&self.0)?;
        let facts = FileFacts::of(&file.metadata().ok()?);
        Some((facts, open_mapped::owner(&file, &facts, self.0.at.pid)))
    }
}

impl Find for Identify {
    fn find(self, desk: &mut Desk) -> Identified {
        let Some(file) = opened(&self.0) else { return Identified::Gone };
        match identify(&file, desk) {
            Ok((known, before, after)) => Identified::Known(known, before, after),
            Err(_) => Identified::Unreadable,
        }
    }
}

impl Find for IdentifyPath {
    fn find(self, desk: &mut Desk) -> Result<(Known, FileFacts), String> {
        let path = Path::new(OsStr::from_bytes(&self.path.0));
        let fail = |error: &dyn std::fmt::Display| error.to_string();
        if !path.metadata().map_err(|error| fail(&error))?.is_file() {
            return Err("it is not a plain file".to_owned());
        }
        let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        let file = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path);
        let file = file.map_err(|error| fail(&error))?;
        let (known, before, _) = identify(&file, desk).map_err(|error| fail(&error))?;
        match known {
            Known::Image(_) => Ok((known, before)),
            Known::NotElf => Err(fail(&ImageError::NotElf)),
        }
    }
}

impl Find for BuildIdOf {
    fn find(self, _: &mut Desk) -> Option<Bytes> {
        let id = image::build_id_of_file(&opened(&self.0)?).ok()??;
        Some(Bytes(id.build_id()?.to_vec()))
    }
}

impl Find for NarrowVdsoOf {
    fn find(self, _: &mut Desk) -> Option<StoredVdso> {
        vdso_of(&self.at.pid.to_string(), self.at.start, self.at.end)
    }
}

impl Find for GeneratedCode {
    fn find(self, _: &mut Desk) -> Generated {
        let Self { pid, who, mut map, dumps, mut read, bytes_max } = self;
        let mut left = bytes_max;
        let mut look = CodeLook::default();
        match open_map(pid, &who) {
            Ok(file) => look.is_cut |= !map.read(&file, &mut left, &mut look.events),
            Err(NoFile::Absent) => {}
            Err(NoFile::Refused(why)) => look.refused = Some(why.to_owned()),
        }
        for dump in dumps {
            let Some(file) = opened_grown(&dump) else { continue };
            match files::trusted(&file, &who.owners) {
                Ok(facts) => {
                    let known = read.iter().position(|dump| dump.is_of(&facts));
                    let number = known.unwrap_or(read.len());
                    if known.is_none() && number < DUMPS_MAX {
                        read.push(DumpReader::new(&facts));
                    }
                    let Some(dump) = read.get_mut(number) else { continue };
                    // At most DUMPS_MAX.
                    let dumped = (&file, number as u8);
                    look.is_cut |= !dump.read(dumped, &mut left, &mut look.events);
                }
                Err(NoFile::Absent) => {}
                Err(NoFile::Refused(why)) => look.refused = Some(why.to_owned()),
            }
        }
        look.bytes = bytes_max - left;
        Generated { look, map, read }
    }
}

impl Find for DumpedCode {
    fn find(self, _: &mut Desk) -> Result<Dumped, KeepError> {
        let Self { dumps, dump, owners, private, pieces } = self;
        let is_it = |at: &FileAt| {
            let file = opened_grown(at)?;
            let facts = files::trusted(&file, &owners).ok()?;
            dump.is_of(&facts).then(|| (file, open_mapped::is_public(&at.path.0, at.at, &facts)))
        };
        let (file, is_public) = dumps.iter().find_map(is_it).ok_or(KeepError::Gone)?;
        if !private && !is_public {
            return Err(KeepError::Private);
        }
        let mut head = [0; jitdump::HEADER];
        let header = file.read_exact_at(&mut head, 0).ok().and_then(|()| jitdump::header(&head));
        let machine = header.ok_or(KeepError::Gone)?.machine;
        let mut left = DUMPED_BYTES_MAX;
        let bytes_of = |(offset, len): (u64, u32)| {
            let len = usize::try_from(len).ok()?;
            left = left.checked_sub(len)?;
            let mut bytes = vec![0; len];
            file.read_exact_at(&mut bytes, offset).ok().map(|()| Raw(bytes))
        };
        let pieces = pieces.into_iter().map(bytes_of).map(Option::unwrap_or_default).collect();
        Ok(Dumped { machine, pieces })
    }
}

impl Find for Walk {
    fn find(self, desk: &mut Desk) -> Walked {
        let Desk { walks, catalogue, .. } = desk;
        let walks = walks.get_or_insert_default();
        walks.walk(&self, || open_build(&self.file, self.image, catalogue).map(|(file, _)| file))
    }
}

impl Find for Unwind {
    fn find(self, desk: &mut Desk) -> Unwound {
        let Desk { stack_walks, catalogue, .. } = desk;
        stack_walks.get_or_insert_default().walk(&self, catalogue)
    }
}

impl Find for Open {
    fn find(self, desk: &mut Desk) -> Result<Opened, KeepError> {
        let (file, before) =
            open_build(&self.file, self.image, &desk.catalogue).ok_or(KeepError::Gone)?;
        if !self.private && !open_mapped::is_public(&self.file.path.0, self.file.at, &before) {
            return Err(KeepError::Private);
        }
        let ranges = KeptRanges::of_file(&file);
        let ranges = ranges.map_err(|error| KeepError::Refused(error.to_string()))?;
        if desk.open.len() >= OPEN_MAX {
            return Err(KeepError::Refused("too many files are open".to_owned()));
        }
        desk.next_handle = desk.next_handle.wrapping_add(1);
        let opened = Opened {
            handle: desk.next_handle,
            is_deleted: before.nlink == 0,
            is_lent: open_mapped::keeps_busy(&file),
            file_len: ranges.file_len(),
            ranges: ranges.ranges().iter().map(|range| (range.start, range.end)).collect(),
        };
        let reading = Reading { image: self.image, file, before, ranges, at: (0, 0) };
        desk.open.insert(opened.handle, reading);
        Ok(opened)
    }
}

impl Find for Choose {
    fn find(self, desk: &mut Desk) -> Result<Chosen, String> {
        let reading = desk.open.get_mut(&self.handle).ok_or("it is not open any more")?;
        let text = |error: ImageError| error.to_string();
        let kept = self.kept.into_iter().map(|(start, end)| start..end).collect();
        let kept = KeptRanges::new(reading.ranges.file_len(), kept).map_err(text)?;
        let chosen = image::choose(&reading.file, Some(&kept), &self.lines, self.budget);
        Ok(match chosen.map_err(text)? {
            image::Chosen::NotYet(bytes) => Chosen::NotYet(bytes),
            image::Chosen::Ranges(ranges) => {
                let pairs = ranges.ranges().iter().map(|range| (range.start, range.end)).collect();
                (reading.ranges, reading.at) = (ranges, (0, 0));
                Chosen::Ranges(pairs)
            }
        })
    }
}

impl Find for Read {
    fn find(self, desk: &mut Desk) -> Result<Raw, String> {
        let reading = desk.open.get_mut(&self.handle).ok_or("it is not open any more")?;
        if self.anew {
            reading.at = (0, 0);
        }
        let mut piece = reading.next_piece().map_err(|error| error.to_string())?;
        if piece.is_empty() && !reading.is_still().map_err(|error| error.to_string())? {
            return Err("it was changed meanwhile".to_owned());
        }
        piece.shrink_to_fit();
        Ok(Raw(piece))
    }
}

impl Find for Close {
    fn find(self, desk: &mut Desk) {
        desk.open.remove(&self.handle);
    }
}

impl Reading {
    fn next_piece(&mut self) -> io::Result<Vec<u8>> {
        let (number, read) = self.at;
        let Some(range) = self.ranges.ranges().get(number) else { return Ok(Vec::new()) };
        let from = range.start + read;
        let len = usize::try_from(range.end - from).unwrap_or(usize::MAX).min(PIECE_BYTES);
        let mut piece = vec![0; len];
        self.file.read_exact_at(&mut piece, from)?;
        let is_last = from + len as u64 == range.end;
        self.at = if is_last { (number + 1, 0) } else { (number, read + len as u64) };
        Ok(piece)
    }

    /// Whether the file is still what was identified. Between then and the last piece the file
    /// waits, and a program may be written again in place: its code must not be kept under the id
    /// of the build before.
    fn is_still(&self) -> io::Result<bool> {
        let now = FileFacts::of(&self.file.metadata()?);
        if (now.size, now.mtime) != (self.before.size, self.before.mtime) {
            return Ok(false);
        }
        // Two changes within one tick of the file system's clock leave the same times, so the times
        // of a file that was changed just before tell nothing. Its removal changes ctime.
        let is_untouched = now.ctime == self.before.ctime && self.before.is_settled();
        let is_same =
            || image::identify_file(&self.file).is_ok_and(|found| self.image.is_build(&found));
        Ok(is_untouched || is_same())
    }
}

fn identify(file: &File, desk: &Desk) -> Result<(Known, FileFacts, FileFacts), ImageError> {
    identify_known(file, &desk.catalogue)
}

fn open_map(pid: u32, who: &Who) -> Result<File, NoFile> {
    let root = format!("/proc/{pid}/root");
    // A zombie still has its number, but /proc/PID/root leads nowhere.
    let has_root = process::is_still(pid, who.start_ticks) && Path::new(&root).exists();
    let root = match has_root {
        true => Path::new(&root),
        false if who.sees_our_files => Path::new("/"),
        false => return Err(NoFile::Absent),
    };
    files::open(root, &format!("perf-{}.map", who.own_pid), &who.owners)
}
