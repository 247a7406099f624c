//! The code store of a host: the kept parts of images that had samples, so that the images can be
//! named, listed and analysed when the files have been upgraded or deleted, or their container is
//!
//! The store has one file for each image, under its id, written once and never changed. The file's
//! time of modification says when the image was last seen. When the store is full, the images that
//! were not seen for the longest time are removed.
//!
//! Beside the file of an image, or in its place, may be an excerpt: the kept part without the code
//! of procedures that no report needs. Generated code has no file: its excerpt has the pieces that
//! had samples, and grows with them.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Read as _, Write};
use std::path::{Path, PathBuf};

use flate2::{Compression, bufread::DeflateDecoder, write::DeflateEncoder};
use image::{ImageError, ImageId, KeptFile, KeptRanges, jit};

use crate::codec::{DecodeError, Input, put_text, put_varint};
use crate::envelope::{self, HEADER_BYTES, Kind};
use crate::error::{Damage, DbError, Operation};
use crate::host_lock::HostLock;
use crate::naming;
use crate::storage::{Disk, MAX_FILE_BYTES};
use crate::writer::Writer;

/// Precision in seconds of the time when an image was last seen. A day, so that a file is touched
/// once a day at most; a longer time would remove images in the wrong order.
const SEEN_EXACT_TO_S: u64 = 86_400;

/// Part of the store that generated code may take: each run of a program has code of its own, which
/// no later run has.
const GENERATED_SHARE: u64 = 8;

/// The code store of the writer's host, open for writing.
#[derive(Debug)]
pub struct CodeStore {
    disk: Disk,
    directory: PathBuf,
    lock: HostLock,
    /// Generation of the host's lock when the directory was listed.
    generation: u64,
    limit_bytes: u64,
    kept: BTreeMap<ImageId, Stored>,
}

#[derive(Copy, Clone, Debug)]
struct Stored {
    /// Bytes of the file and the excerpt.
    bytes: u64,
    seen_unix_s: u64,
    /// False where only an excerpt is there.
    is_whole: bool,
}

/// The result of keeping an image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// Bytes of the image's file.
    pub bytes: u64,
    /// Images that were removed for it.
    pub removed: Vec<ImageId>,
}

impl CodeStore {
    /// Opens the store of the writer's host, creates it when there is none, and removes files that
    /// a killed writer left there, and images beyond `limit_bytes`. The store shares the lock of
    /// the [`Writer`] and holds it as long as it lives.
    ///
    /// # Errors
    /// [`DbError::Io`].
    pub fn open(writer: &Writer, limit_bytes: u64) -> Result<Self, DbError> {
        let (disk, host) = writer.place();
        let (disk, directory, lock) =
            (disk.clone(), naming::code_path(&host), writer.lock().clone());
        let mut store =
            Self { disk, directory, generation: 0, lock, limit_bytes, kept: BTreeMap::new() };
        store.generation = store.lock.check()?;
        store.list()?;
        Ok(store)
    }

    /// Creates the directory, if there is none, and lists its files.
    fn list(&mut self) -> Result<(), DbError> {
        self.disk.create_directory(&self.directory)?;
        if let Some(host) = self.directory.parent() {
            self.disk.sync_directory(host)?;
        }
        self.kept.clear();
        for entry in
            self.disk.list(&self.directory)?.into_iter().filter(|entry| !entry.is_directory)
        {
            if entry.name.ends_with(naming::TEMPORARY_SUFFIX) {
                self.disk.remove_if_there(&self.directory.join(&entry.name))?;
                continue;
            }
            let whole = naming::parse_code_name(&entry.name);
            let Some(id) = whole.or_else(|| naming::parse_excerpt_name(&entry.name)) else {
                continue;
            };
            let stored =
                self.kept.entry(id).or_insert(Stored { bytes: 0, seen_unix_s: 0, is_whole: false });
            stored.bytes = stored.bytes.saturating_add(entry.size_bytes);
            stored.seen_unix_s = stored.seen_unix_s.max(entry.modified_unix_s);
            stored.is_whole |= whole.is_some();
        }
        self.make_room(0, self.limit_bytes, |_| true).map(|_| ())
    }

    /// Makes sure that the directory exists and that this process may write to it: it may have been
    /// removed, and created anew by the writer.
    ///
    /// # Errors
    /// [`DbError::Removed`] until the writer has created it anew; [`DbError::Io`].
    pub fn follow(&mut self) -> Result<(), DbError> {
        let generation = self.lock.check()?;
        if generation != self.generation || !self.disk.is_there(&self.directory)? {
            self.list()?;
            self.generation = generation;
        }
        Ok(())
    }

    /// Whether an image is kept with all its code.
    pub fn has(&self, image: &ImageId) -> bool {
        self.kept.get(image).is_some_and(|stored| stored.is_whole)
    }

    /// Number of images kept.
    pub fn len(&self) -> usize {
        self.kept.len()
    }

    /// Whether no image is kept.
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// Bytes of all files of the store.
    pub fn bytes(&self) -> u64 {
        self.kept.values().fold(0, |sum, stored| sum.saturating_add(stored.bytes))
    }

    /// The directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Notes that an image was seen, at most once a day; an image that is not kept is no error.
    ///
    /// # Errors
    /// [`DbError::Io`], [`DbError::Removed`].
    pub fn seen(&mut self, image: &ImageId, now_unix_s: u64) -> Result<(), DbError> {
        let Some(stored) = self.kept.get_mut(image) else { return Ok(()) };
        // A time in the future is from a clock that was set back since.
        if now_unix_s.abs_diff(stored.seen_unix_s) < SEEN_EXACT_TO_S {
            return Ok(());
        }
        self.lock.check()?;
        let name = match stored.is_whole {
            true => naming::code_name(image),
            false => naming::excerpt_name(image),
        };
        self.disk.set_modified(&self.directory.join(name), now_unix_s)?;
        stored.seen_unix_s = now_unix_s;
        Ok(())
    }

    /// Keeps an image, whole or not at all. `copy` writes the bytes of `ranges`, one range behind
    /// the other. Images that were not seen for longer may be removed.
    ///
    /// # Errors
    /// [`DbError::TooLarge`] when it is larger than the store, or than any file may be;
    /// [`DbError::Io`], also for an error of `copy` or when it writes more or less than the ranges
    /// are.
    pub fn keep(
        &mut self,
        image: &ImageId,
        ranges: &KeptRanges,
        now_unix_s: u64,
        copy: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>,
    ) -> Result<Kept, DbError> {
        let kept = self.put((image, Kind::Code), ranges, now_unix_s, copy)?;
        // The file has everything that the excerpt has, so an excerpt that stays is not read.
        let _ = self.disk.remove_if_there(&self.directory.join(naming::excerpt_name(image)));
        Ok(kept)
    }

    /// Keeps an excerpt of an image in the place of the one before.
    ///
    /// # Errors
    /// As [`CodeStore::keep`].
    pub fn keep_part(
        &mut self,
        image: &ImageId,
        ranges: &KeptRanges,
        now_unix_s: u64,
        copy: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>,
    ) -> Result<Kept, DbError> {
        self.put((image, Kind::Excerpt), ranges, now_unix_s, copy)
    }

    /// The ranges that an excerpt of an image has; None where there is none that can be read.
    pub fn part(&self, image: &ImageId) -> Option<KeptRanges> {
        self.kept.get(image).filter(|stored| !stored.is_whole)?;
        let file = self.disk.read_if_there(&self.directory.join(naming::excerpt_name(image)));
        let file = file.ok().flatten()?;
        let mut input = Input::new(envelope::open_as(Kind::Excerpt, &file).ok()?);
        decode_head(image, &mut input).ok()
    }

    /// Adds pieces of generated code to what is kept of their image, by offset; `machine` is the
    /// instruction set of an image that is not kept yet. What finds no room in the image
    /// ([`jit::EXCERPT_BYTES_MAX`]) is left out. Generated code may take an eighth of the store:
    /// beyond that, the images that got nothing for the longest time are removed.
    ///
    /// # Errors
    /// As [`CodeStore::keep`].
    pub fn add_pieces(
        &mut self,
        image: &ImageId,
        machine: u16,
        pieces: &BTreeMap<u64, Vec<u8>>,
        now_unix_s: u64,
    ) -> Result<Kept, DbError> {
        // A damaged excerpt is no reason to keep nothing from now on.
        let there = read(&self.disk, &self.directory, image).ok().flatten();
        let excerpt = jit::with_pieces(there.as_ref(), machine, pieces).map_err(|error| {
            let path = self.directory.join(naming::excerpt_name(image));
            let damage = Damage::Image(Box::new(error));
            DbError::Corrupt { path, offset: HEADER_BYTES as u64, damage }
        })?;
        self.keep_part(image, excerpt.ranges(), now_unix_s, &mut |out| {
            out.write_all(excerpt.bytes())
        })
    }

    /// Writes a file of the store in the place of the one before.
    fn put(
        &mut self,
        (image, kind): (&ImageId, Kind),
        ranges: &KeptRanges,
        now_unix_s: u64,
        copy: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>,
    ) -> Result<Kept, DbError> {
        self.lock.check()?;
        let is_whole = kind == Kind::Code;
        let name = if is_whole { naming::code_name(image) } else { naming::excerpt_name(image) };
        let temporary = self.directory.join(naming::temporary_name(&format!("{name}.0")));
        let limit = match image.is_name() {
            true => self.limit_bytes / GENERATED_SHARE,
            false => self.limit_bytes.min(MAX_FILE_BYTES),
        };
        let of = (image, ranges);
        let written = write(&self.disk, (kind, Compression::fast()), limit, &temporary, of, copy);
        let before = self.kept.remove(image);
        let kept = written.and_then(|bytes| {
            self.disk.set_modified(&temporary, now_unix_s)?;
            let mut removed = Vec::new();
            if image.is_name() {
                removed = self.make_room(bytes, limit, ImageId::is_name)?;
            }
            removed.extend(self.make_room(bytes, self.limit_bytes, |_| true)?);
            self.disk.rename(&temporary, &self.directory.join(&name))?;
            self.disk.sync_directory(&self.directory)?;
            Ok(Kept { bytes, removed })
        });
        let new = |kept: &Kept| Stored { bytes: kept.bytes, seen_unix_s: now_unix_s, is_whole };
        let stored = kept.as_ref().ok().map(new).or(before);
        self.kept.extend(stored.map(|stored| (*image, stored)));
        if kept.is_err() {
            // A file that cannot be removed now is removed when the store is opened next.
            let _ = self.disk.remove_if_there(&temporary);
        }
        kept
    }

    /// Removes those of some images that were not seen for the longest time until `bytes` more fit
    /// beside them.
    fn make_room(
        &mut self,
        bytes: u64,
        limit: u64,
        of: impl Fn(&ImageId) -> bool,
    ) -> Result<Vec<ImageId>, DbError> {
        let mut removed = Vec::new();
        loop {
            let these = || self.kept.iter().filter(|(id, _)| of(id));
            let sum = these().fold(bytes, |sum, (_, stored)| sum.saturating_add(stored.bytes));
            let oldest = these().min_by_key(|(id, stored)| (stored.seen_unix_s, **id));
            let Some(oldest) = oldest.map(|(id, _)| *id).filter(|_| sum > limit) else { break };
            for name in [naming::code_name(&oldest), naming::excerpt_name(&oldest)] {
                self.disk.remove_if_there(&self.directory.join(name))?;
            }
            self.kept.remove(&oldest);
            removed.push(oldest);
        }
        Ok(removed)
    }
}

/// Writes a file of the store, of at most `limit` bytes, and returns its size.
fn write(
    disk: &Disk,
    (kind, level): (Kind, Compression),
    limit: u64,
    path: &Path,
    (image, ranges): (&ImageId, &KeptRanges),
    copy: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>,
) -> Result<u64, DbError> {
    let mut bytes = 0;
    let written = disk.write_streamed(path, HEADER_BYTES, &mut |file| {
        let mut payload = Payload {
            file,
            checksum: 0,
            bytes: 0,
            limit: limit.saturating_sub(HEADER_BYTES as u64),
        };
        payload.write_all(&encode_head(image, ranges))?;
        let mut body = Body { compressed: DeflateEncoder::new(payload, level), left: ranges.len() };
        copy(&mut body)?;
        if body.left > 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file became shorter"));
        }
        let payload = body.compressed.finish()?;
        bytes = payload.bytes + HEADER_BYTES as u64;
        Ok(envelope::header(kind, payload.bytes, payload.checksum))
    });
    match written {
        Err(DbError::Io { op: Operation::Write, source, .. })
            if source.kind() == io::ErrorKind::FileTooLarge =>
        {
            // The final size is not known; compression makes it no larger than this.
            Err(DbError::TooLarge { path: path.to_owned(), bytes: ranges.len(), limit })
        }
        Err(error) => Err(error),
        Ok(()) => Ok(bytes),
    }
}

/// Writes the payload to the file.
struct Payload<'a> {
    file: &'a mut dyn Write,
    checksum: u32,
    bytes: u64,
    limit: u64,
}

impl Write for Payload<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.saturating_add(bytes.len() as u64) > self.limit {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let written = self.file.write(bytes)?;
        let (written_bytes, _) = bytes.split_at_checked(written).unwrap_or((bytes, &[]));
        self.checksum = crc32c::crc32c_append(self.checksum, written_bytes);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Writes the kept bytes to the payload: as many as the ranges have.
struct Body<'a> {
    compressed: DeflateEncoder<Payload<'a>>,
    left: u64,
}

impl Write for Body<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() as u64 > self.left {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "more bytes than are to be kept",
            ));
        }
        let written = self.compressed.write(bytes)?;
        self.left -= written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.compressed.flush()
    }
}

/// Replaces the kept part of an image of the writer's host by an excerpt, where that is smaller.
/// Returns the bytes of its file before and after.
///
/// # Errors
/// [`DbError::Io`], [`DbError::TooLarge`]: the kept part is unchanged.
pub fn keep_excerpt(
    writer: &Writer,
    image: &ImageId,
    excerpt: &KeptFile,
) -> Result<(u64, u64), DbError> {
    let (disk, host) = writer.place();
    let directory = naming::code_path(&host);
    let (whole, name) = (naming::code_name(image), naming::excerpt_name(image));
    let there = disk.list_if_there(&directory)?.into_iter().find(|entry| entry.name == whole);
    let Some(there) = there else { return Ok((0, 0)) };
    let temporary = directory.join(naming::temporary_name(&format!("{name}.0")));
    let ranges = excerpt.ranges();
    // It is written once, while nothing is sampled, so a level that takes three times the time is
    // worth a tenth of the bytes.
    let kind = (Kind::Excerpt, Compression::default());
    let written = write(disk, kind, MAX_FILE_BYTES, &temporary, (image, ranges), &mut |out| {
        out.write_all(excerpt.bytes())
    });
    let kept = written.and_then(|bytes| {
        if bytes >= there.size_bytes {
            disk.remove_if_there(&temporary)?;
            return Ok(there.size_bytes);
        }
        disk.set_modified(&temporary, there.modified_unix_s)?;
        disk.rename(&temporary, &directory.join(&name))?;
        disk.sync_directory(&directory)?;
        disk.remove_if_there(&directory.join(&whole))?;
        Ok(bytes)
    });
    if kept.is_err() {
        // A file that cannot be removed now is removed when the store is opened next.
        let _ = disk.remove_if_there(&temporary);
    }
    Ok((there.size_bytes, kept?))
}

/// The kept part of an image in the code store of this directory: all of it, or else an excerpt.
pub(crate) fn read(
    disk: &Disk,
    directory: &Path,
    image: &ImageId,
) -> Result<Option<KeptFile>, DbError> {
    for (name, kind) in
        [(naming::code_name(image), Kind::Code), (naming::excerpt_name(image), Kind::Excerpt)]
    {
        let path = directory.join(name);
        if let Some(file) = disk.read_if_there(&path)? {
            return decode_file(&path, &file, image, kind).map(Some);
        }
    }
    Ok(None)
}

/// The payload up to the compressed bytes.
fn encode_head(image: &ImageId, ranges: &KeptRanges) -> Vec<u8> {
    let mut out = Vec::new();
    put_text(&mut out, &image.to_string());
    put_varint(&mut out, ranges.file_len());
    put_varint(&mut out, ranges.ranges().len() as u64);
    let mut end = 0;
    for range in ranges.ranges() {
        put_varint(&mut out, range.start - end);
        put_varint(&mut out, range.end - range.start);
        end = range.end;
    }
    out
}

/// The image and the kind of a file of a code store, by its name; None for other files.
pub(crate) fn parse_name(name: &str) -> Option<(ImageId, Kind)> {
    let whole = naming::parse_code_name(name).map(|image| (image, Kind::Code));
    whole.or_else(|| naming::parse_excerpt_name(name).map(|image| (image, Kind::Excerpt)))
}

/// Refuses a file that is no file of a code store for this image.
///
/// # Errors
/// [`DbError::Corrupt`] or [`DbError::NewerFormat`].
pub(crate) fn check_file(
    path: &Path,
    file: &[u8],
    image: &ImageId,
    kind: Kind,
) -> Result<(), DbError> {
    // A checksum only says that the file is what somebody wrote.
    decode_file(path, file, image, kind).map(drop)
}

fn decode_file(path: &Path, file: &[u8], image: &ImageId, kind: Kind) -> Result<KeptFile, DbError> {
    let payload = envelope::open_as(kind, file).map_err(|error| error.of(path))?;
    decode(image, payload, kind == Kind::Excerpt).map_err(|error| {
        let offset = (HEADER_BYTES + error.offset) as u64;
        DbError::Corrupt { path: path.to_owned(), offset, damage: error.damage }
    })
}

/// Decodes the kept part in the payload of a code file, which must be that of `image`.
///
/// # Errors
/// [`DecodeError`] when the bytes are not what a [`CodeStore`] writes for `image`, or when what
/// they hold is another image.
fn decode(image: &ImageId, payload: &[u8], is_excerpt: bool) -> Result<KeptFile, DecodeError> {
    let mut input = Input::new(payload);
    let ranges = decode_head(image, &mut input)?;
    let at = input.offset();
    let mut bytes = Vec::new();
    inflate(input.rest(), ranges.len(), &mut bytes)
        .map_err(|damage| DecodeError { offset: at, damage })?;
    let kept = KeptFile::new(ranges, bytes).map_err(image_error(at))?;
    let kept = if is_excerpt { kept.into_excerpt() } else { kept };
    match kept.may_be(image) {
        Ok(true) => Ok(kept),
        Ok(false) => Err(DecodeError { offset: at, damage: Damage::Misplaced }),
        Err(error) => Err(image_error(at)(error)),
    }
}

fn image_error(offset: usize) -> impl FnOnce(ImageError) -> DecodeError {
    move |error| DecodeError { offset, damage: Damage::Image(Box::new(error)) }
}

/// Decodes a payload up to the compressed bytes.
pub(crate) fn decode_head(
    image: &ImageId,
    input: &mut Input<'_>,
) -> Result<KeptRanges, DecodeError> {
    input.expect_text(&image.to_string())?;
    let file_len = input.varint()?;
    let at = input.offset();
    // Each range has two varints of at least a byte.
    let count = input.count(2)?;
    let mut ranges = Vec::with_capacity(count);
    let mut end = 0_u64;
    for _ in 0..count {
        let at = input.offset();
        let start = end.checked_add(input.varint()?);
        let range_end =
            start.zip(Some(input.varint()?)).and_then(|(start, len)| start.checked_add(len));
        let (Some(start), Some(range_end)) = (start, range_end) else {
            return Err(DecodeError { offset: at, damage: Damage::Order });
        };
        ranges.push(start..range_end);
        end = range_end;
    }
    KeptRanges::new(file_len, ranges).map_err(image_error(at))
}

/// Writes exactly `len` bytes, compressed in all of `compressed`, to `out`.
pub(crate) fn inflate(
    compressed: impl BufRead,
    len: u64,
    out: &mut dyn Write,
) -> Result<(), Damage> {
    let mut decoder = DeflateDecoder::new(compressed);
    // One byte more than allowed shows a longer stream.
    let bytes = io::copy(&mut (&mut decoder).take(len.saturating_add(1)), out)
        .map_err(|_| Damage::Compression)?;
    let is_all = || decoder.into_inner().fill_buf().is_ok_and(<[u8]>::is_empty);
    match bytes.cmp(&len) {
        std::cmp::Ordering::Less => Err(Damage::Truncated),
        std::cmp::Ordering::Equal if is_all() => Ok(()),
        _ => Err(Damage::TrailingBytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_begins_with_the_documented_bytes() {
        let id = ImageId::from_build_id(&[0xab, 0xcd]).unwrap();
        let ranges = KeptRanges::new(100, vec![0..64, 80..100]).unwrap();
        assert_eq!(encode_head(&id, &ranges), b"\x04abcd\x64\x02\x00\x40\x10\x14");
        let excerpt = KeptRanges::new(100, vec![0..16, 48..64, 80..100]).unwrap();
        assert_eq!(encode_head(&id, &excerpt), b"\x04abcd\x64\x03\x00\x10\x20\x10\x10\x14");
        assert_eq!(Kind::Excerpt.code(), 10);
    }

    #[test]
    fn compressed_bytes_are_exactly_as_many_as_was_said() {
        let inflate = |compressed: &[u8], len| {
            let mut bytes = Vec::new();
            inflate(compressed, len, &mut bytes).map(|()| bytes)
        };
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(&[7; 1000]).unwrap();
        let stream = encoder.finish().unwrap();
        assert_eq!(inflate(&stream, 1000).unwrap(), [7; 1000]);
        assert!(
            matches!(inflate(&stream, 999), Err(Damage::TrailingBytes)),
            "a bomb is not unpacked"
        );
        assert!(matches!(inflate(&stream, 1001), Err(Damage::Truncated)));
        assert!(matches!(inflate(&[&stream[..], b"x"].concat(), 1000), Err(Damage::TrailingBytes)));
        assert!(inflate(&stream[..stream.len() - 1], 1000).is_err());
        assert!(matches!(inflate(&[0xff; 9], 1000), Err(Damage::Compression)));
    }
}
