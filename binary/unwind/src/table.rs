//! The unwind table of one file: from an address to the bytes of the entry that covers it.
//!
//! `.eh_frame` is a list of entries of variable length, the FDEs, each for one procedure, and of
//! what FDEs share, the CIEs (Linux Standard Base, "Exception Frames"; DWARF 5, section 6.4.1).
//! `.eh_frame_hdr`, the index, has a sorted table of (address, FDE). The program header
//! `PT_GNU_EH_FRAME` says where the index is; the index says where the FDEs are, so no section's
//! name matters: BOLT leaves two sections of FDEs, and only the index names the right one of each
//! procedure. A look-up reads about 20 rows of the index, one FDE and one CIE.

use gimli::constants as dw;

use crate::go_table::GoTable;
use crate::headers::{self, Headers, Sections, Segment};
use crate::pages::{Pages, Work};
use crate::plt;
use crate::registers::Machine;
use crate::rule::{self, Entry, Row};
use crate::source::ReadAt;

/// Largest number of bytes of an FDE or CIE with its length. The largest of clang 16 have 50 KiB.
const ENTRY_BYTES_MAX: u32 = 256 << 10;
/// Largest number of bytes of `.eh_frame` that are scanned in a file without an index; static
/// programs have 0.2 MiB.
pub const SCAN_BYTES_MAX: u64 = 8 << 20;
/// Bytes of the index before its rows, at most: four bytes and two numbers of up to 8.
const INDEX_HEAD_BYTES: usize = 20;

/// A file as the walker reads it.
pub struct File<'a> {
    pub number: u32,
    pub source: &'a dyn ReadAt,
    pub pages: &'a mut Pages,
    pub work: &'a mut Work,
}

impl headers::Read for File<'_> {
    fn read(&mut self, offset: u64, into: &mut [u8]) -> Option<()> {
        self.pages.read(self.number, self.source, offset, into, self.work)
    }
}

/// How to find an FDE. Addresses are the file's own.
#[derive(Debug)]
enum Index {
    /// `.eh_frame_hdr`.
    Header(Header),
    /// Sorted (first address, address of the FDE), of a file without an index.
    Scanned(Vec<(u64, u64)>),
    None,
}

#[derive(Copy, Clone, Debug)]
struct Header {
    /// Address of the index, which its rows are relative to.
    base: u64,
    /// Offset of the first row in the file.
    rows: u64,
    count: u64,
    /// Bytes of a number of a row, 4 or 8; a row has two.
    number_bytes: u8,
}

#[derive(Debug)]
pub struct Table {
    pub headers: Headers,
    /// The table of a Go program.
    pub go: Option<GoTable>,
    /// Sections of stubs.
    stubs: Vec<Segment>,
    index: Index,
}

impl Table {
    /// None if the file is no ELF file of a known machine.
    pub fn read(file: &mut File<'_>) -> Option<Self> {
        let headers = Headers::read(file)?;
        let sections = Sections::read(file);
        let index = match headers.index.and_then(|place| header(file, &headers, place)) {
            Some(header) => Index::Header(header),
            None => match sections.eh_frame.and_then(|section| scan(file, &headers, section)) {
                Some(rows) => Index::Scanned(rows),
                None => Index::None,
            },
        };
        // Go's tables of 32-bit programs are laid out otherwise, and not read.
        let has_go = headers.machine != Machine::X86;
        let go = has_go.then(|| GoTable::read(file, &headers, &sections)).flatten();
        Some(Self { headers, go, stubs: sections.stubs, index })
    }

    /// Bytes of memory that the table holds beyond its own size.
    pub fn bytes(&self) -> usize {
        let scanned = match &self.index {
            Index::Scanned(rows) => rows.capacity() * size_of::<(u64, u64)>(),
            _ => 0,
        };
        let parts = self.headers.segments.capacity() + self.stubs.capacity();
        scanned + parts * size_of::<Segment>()
    }

    /// Reads the FDE that may cover `address` into `entry`: the last one that does not begin after
    /// it. None if there is none, or its bytes cannot be read.
    pub fn find(&self, file: &mut File<'_>, address: u64, entry: &mut Entry) -> Option<()> {
        let fde = match &self.index {
            Index::Header(header) => header.search(file, address)?,
            Index::Scanned(rows) => {
                let after = rows.partition_point(|&(begin, _)| begin <= address);
                rows.get(after.checked_sub(1)?)?.1
            }
            Index::None => return None,
        };
        self.read_entry(file, fde, entry)
    }

    /// The rule in a stub, by its code, which no entry covers.
    pub fn stub(&self, file: &mut File<'_>, address: u64) -> Option<Row> {
        self.stubs.iter().find(|section| section.contains(address))?;
        let (offset, left) = self.headers.offset(address)?;
        let mut code = [0; plt::CODE_BYTES];
        let len = usize::try_from(left).unwrap_or(usize::MAX).saturating_add(plt::BEFORE_BYTES);
        let code_there = code.get_mut(..len.min(plt::CODE_BYTES))?;
        headers::Read::read(file, offset.checked_sub(plt::BEFORE_BYTES as u64)?, code_there)?;
        plt::row(self.headers.machine, address, &code)
    }

    fn read_entry(&self, file: &mut File<'_>, fde: u64, entry: &mut Entry) -> Option<()> {
        let (fde_offset, _) = self.headers.offset(fde)?;
        let mut head = [0; 8];
        headers::Read::read(file, fde_offset, &mut head)?;
        let (fde_bytes, distance) = halves(head);
        // A distance of 0 is a CIE's. It is counted from its own place.
        let cie_offset = fde_offset
            .checked_add(4)?
            .checked_sub(u64::from(distance))
            .filter(|_| distance != 0)?;
        headers::Read::read(file, cie_offset, &mut head)?;
        let (cie_bytes, id) = halves(head);
        if id != 0 {
            return None;
        }
        let cie_len = entry_len(cie_bytes)?;
        let fde_len = entry_len(fde_bytes)?;
        file.work.spend(cie_len + fde_len)?;
        entry.bytes.clear();
        entry.bytes.resize(cie_len + fde_len, 0);
        entry.fde = cie_len;
        entry.address = fde.wrapping_sub(cie_len as u64);
        let (cie_into, fde_into) = entry.bytes.split_at_mut_checked(cie_len)?;
        headers::Read::read(file, cie_offset, cie_into)?;
        headers::Read::read(file, fde_offset, fde_into)?;
        let distance = u32::try_from(cie_len + 4).ok()?;
        fde_into.get_mut(4..8)?.copy_from_slice(&distance.to_le_bytes());
        Some(())
    }
}

impl Header {
    /// The address of the FDE of the last row that does not begin after `address`.
    fn search(&self, file: &mut File<'_>, address: u64) -> Option<u64> {
        let (mut low, mut high) = (0, self.count);
        let mut found = None;
        while low < high {
            let middle = low + (high - low) / 2;
            let (begin, fde) = self.row(file, middle)?;
            if begin <= address {
                found = Some(fde);
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        found
    }

    fn row(&self, file: &mut File<'_>, number: u64) -> Option<(u64, u64)> {
        let width = usize::from(self.number_bytes);
        let mut bytes = [0; 16];
        let bytes = bytes.get_mut(..2 * width)?;
        let at = number.checked_mul(2 * width as u64)?.checked_add(self.rows)?;
        headers::Read::read(file, at, bytes)?;
        let (begin, fde) = bytes.split_at_checked(width)?;
        let absolute = |bytes| Some(self.base.wrapping_add_signed(signed(bytes)?));
        Some((absolute(begin)?, absolute(fde)?))
    }
}

/// The head of the index, if it has a table that can be searched: rows of signed numbers relative
/// to the index, which all linkers write.
fn header(file: &mut File<'_>, headers: &Headers, place: Segment) -> Option<Header> {
    let mut bytes = [0; INDEX_HEAD_BYTES];
    let len = usize::try_from(place.len).unwrap_or(usize::MAX).min(INDEX_HEAD_BYTES);
    headers::Read::read(file, place.offset, bytes.get_mut(..len)?)?;
    let [version, table_encoding, count_encoding, row_encoding, ..] = bytes;
    let fits = version == 1;
    let number_bytes = match dw::DwEhPe(row_encoding) {
        encoding if encoding == dw::DW_EH_PE_datarel | dw::DW_EH_PE_sdata4 => 4,
        encoding if encoding == dw::DW_EH_PE_datarel | dw::DW_EH_PE_sdata8 => 8,
        _ => return None,
    };
    let count_at = 4 + width(headers.machine, table_encoding)?;
    let count_bytes = width(headers.machine, count_encoding)?;
    let count = signed(bytes.get(count_at..count_at + count_bytes)?)?;
    let count = match count_bytes {
        4 => u64::from(count as u32),
        _ => u64::try_from(count).ok()?,
    };
    let begin = (count_at + count_bytes) as u64;
    let rows = place.offset.checked_add(begin)?;
    // The program header may be of the wrong length; the segment's is what is mapped.
    let (_, left) = headers.offset(place.address)?;
    let fitting = left.saturating_sub(begin) / (2 * u64::from(number_bytes));
    (fits && count > 0).then_some(Header {
        base: place.address,
        rows,
        count: count.min(fitting),
        number_bytes,
    })
}

/// Bytes of a number with this encoding (Linux Standard Base, "DWARF Exception Header Encoding").
fn width(machine: Machine, encoding: u8) -> Option<usize> {
    let absolute = dw::DW_EH_PE_absptr.0;
    match dw::DwEhPe(encoding & 0x0f) {
        dw::DW_EH_PE_udata4 | dw::DW_EH_PE_sdata4 => Some(4),
        dw::DW_EH_PE_udata8 | dw::DW_EH_PE_sdata8 => Some(8),
        format if format.0 == absolute => Some(usize::from(machine.word_bytes())),
        _ => None,
    }
}

fn signed(bytes: &[u8]) -> Option<i64> {
    match bytes.len() {
        4 => Some(i64::from(i32::from_le_bytes(bytes.try_into().ok()?))),
        _ => Some(i64::from_le_bytes(bytes.try_into().ok()?)),
    }
}

fn halves(head: [u8; 8]) -> (u32, u32) {
    let number = u64::from_le_bytes(head);
    (number as u32, (number >> 32) as u32)
}

/// Bytes of an entry, its length field of 4 bytes included. None at the end of the list (length
/// 0), for the 64-bit form (length 0xffffffff), and above [`ENTRY_BYTES_MAX`].
fn entry_len(length: u32) -> Option<usize> {
    let is_entry = (4..=ENTRY_BYTES_MAX).contains(&length);
    is_entry.then_some(length as usize + 4)
}

/// The FDEs of a file without an index, sorted by their first address: gcc links static programs
/// so. The section is read once, bounded.
fn scan(file: &mut File<'_>, headers: &Headers, section: Segment) -> Option<Vec<(u64, u64)>> {
    // Without a mapping the addresses of the section mean nothing.
    headers.offset(section.address)?;
    let len = usize::try_from(section.len.min(SCAN_BYTES_MAX)).ok()?;
    let mut bytes = vec![0; 0];
    // Piece by piece: a file that is shorter than it says must not cost its claimed size.
    while bytes.len() < len {
        let piece = (len - bytes.len()).min(64 << 10);
        let begin = bytes.len();
        bytes.resize(begin + piece, 0);
        let at = section.offset.checked_add(begin as u64)?;
        let read = file.source.read_at(at, bytes.get_mut(begin..)?).ok()?.min(piece);
        file.pages.bytes_read += read as u64;
        if read < piece {
            bytes.truncate(begin + read);
            break;
        }
    }
    let rows = rule::first_addresses(&bytes, section.address, headers.machine);
    (!rows.is_empty()).then_some(rows)
}
