//! Files of a code store on their way elsewhere, of which a part is in memory at a time.

use std::io::{self, BufReader, Read, Seek as _, SeekFrom, Write};
use std::path::Path;

use image::ImageId;

use crate::code::{decode_head, inflate};
use crate::codec::Input;
use crate::envelope::{self, HEADER_BYTES, Kind};
use crate::error::{Damage, DbError, Operation};
use crate::storage::{Disk, OpenFile};

/// Most bytes of a payload before the compressed bytes: the id of an image and 65,536 ranges of 20
/// bytes.
const HEAD_BYTES_MAX: u64 = 2 << 20;

/// A file of a code store on its way elsewhere. All of it was read and checked before; it is read
/// again a piece at a time, so that memory does not grow with it.
#[derive(Debug)]
pub struct CheckedFile {
    file: Box<dyn OpenFile>,
    bytes: u64,
    left: u64,
}

impl CheckedFile {
    /// Opens a file of a code store and checks its checksum, its image, and that its kept part can
    /// be decoded; None where there is no such file. Whether the code is that image's, whoever uses
    /// it finds out.
    ///
    /// # Errors
    /// [`DbError::Corrupt`], [`DbError::NewerFormat`] or [`DbError::Io`].
    pub(crate) fn open(
        disk: &Disk,
        path: &Path,
        image: &ImageId,
        kind: Kind,
    ) -> Result<Option<Self>, DbError> {
        let Some((file, bytes)) = disk.open_if_there(path)? else { return Ok(None) };
        let mut checked = Self { file, bytes, left: bytes };
        checked.check(path, image, kind)?;
        checked.rewind(path, 0)?;
        Ok(Some(checked))
    }

    fn check(&mut self, path: &Path, image: &ImageId, kind: Kind) -> Result<(), DbError> {
        let of = |error: envelope::OpenError| error.of(path);
        let damaged = |offset: usize, damage| {
            let offset = (HEADER_BYTES + offset) as u64;
            DbError::Corrupt { path: path.to_owned(), offset, damage }
        };
        let header = self.head().map_err(failed(path))?;
        let (found, checksum) = envelope::parse_header(&header, self.bytes).map_err(of)?;
        envelope::expect(kind, found).map_err(of)?;
        let mut summed = Summed(0);
        io::copy(self, &mut summed).map_err(failed(path))?;
        if summed.0 != checksum {
            return Err(damaged(0, Damage::Checksum));
        }
        self.rewind(path, HEADER_BYTES as u64)?;
        let mut head = Vec::new();
        self.by_ref().take(HEAD_BYTES_MAX).read_to_end(&mut head).map_err(failed(path))?;
        let mut input = Input::new(&head);
        let ranges = decode_head(image, &mut input);
        let ranges = ranges.map_err(|error| damaged(error.offset, error.damage))?;
        let at = input.offset();
        let compressed = BufReader::new(input.rest().chain(self));
        inflate(compressed, ranges.len(), &mut io::sink()).map_err(|damage| damaged(at, damage))
    }

    /// The header, as far as it is there.
    fn head(&mut self) -> io::Result<Vec<u8>> {
        let mut header = Vec::with_capacity(HEADER_BYTES);
        self.by_ref().take(HEADER_BYTES as u64).read_to_end(&mut header)?;
        Ok(header)
    }

    fn rewind(&mut self, path: &Path, to: u64) -> Result<(), DbError> {
        self.left = self.bytes.saturating_sub(to);
        self.file.seek(SeekFrom::Start(to)).map(drop).map_err(failed(path))
    }

    /// The size of the file in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.bytes
    }

    /// Writes the file to `path`, and forces it to the disk.
    pub(crate) fn write(mut self, disk: &Disk, path: &Path) -> Result<(), DbError> {
        disk.write_streamed(path, HEADER_BYTES, &mut |out| {
            let header = self.head()?;
            io::copy(&mut self, out)?;
            Ok(header)
        })
    }
}

impl Read for CheckedFile {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(into.len());
        let into = into.get_mut(..most).unwrap_or_default();
        let read = self.file.read(into)?;
        if read == 0 && !into.is_empty() {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file became shorter"));
        }
        self.left -= read as u64;
        Ok(read)
    }
}

/// The CRC-32C of what is written.
struct Summed(u32);

impl Write for Summed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = crc32c::crc32c_append(self.0, bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn failed(path: &Path) -> impl Fn(io::Error) -> DbError {
    let path = path.to_owned();
    move |source| DbError::Io { op: Operation::Read, path: path.clone(), source }
}
