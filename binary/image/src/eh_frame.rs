//! Ranges of procedures from the stack unwinding table, which a stripped file still has (Linux
//! Standard Base, "Exception Frames"; read by `gimli`).

use std::borrow::Cow;

use gimli::{BaseAddresses, CieOrFde, EhFrame, EhFrameHdr, EndianSlice, RunTimeEndian};
use gimli::{Pointer, UnwindSection as _};
use object::elf;
use object::endian::Endianness;

use crate::elf::{Elf, Section, malformed};
use crate::{Finding, ImageError};

/// Largest table read, in bytes; the largest programs have a fifth of that.
const TABLE_LIMIT: u64 = 128 << 20;
/// Bytes read of `.eh_frame_hdr`: only the pointer to the table at its start is used.
const HEADER_LIMIT: u64 = 64;

/// The unwind table's bytes and the address of its first byte.
struct Table<'a> {
    bytes: Cow<'a, [u8]>,
    vaddr: u64,
}

/// The address ranges `(start, end)` of the table's entries, in the table's order; they may
/// overlap.
pub(crate) fn ranges(elf: &Elf<'_>, sections: &[Section]) -> (Vec<(u64, u64)>, Option<Finding>) {
    match table(elf, sections) {
        Ok(Some(table)) => read(elf, sections, &table),
        Ok(None) => (Vec::new(), None),
        Err(error) => {
            let part = "unwind table";
            (Vec::new(), Some(Finding::Unreadable { part, error }))
        }
    }
}

fn table<'a>(elf: &Elf<'a>, sections: &[Section]) -> Result<Option<Table<'a>>, ImageError> {
    let section =
        sections.iter().find(|section| &*section.name == ".eh_frame" && section.has_bytes());
    if let Some(section) = section {
        let bytes = elf.section_bytes("unwind table", section, TABLE_LIMIT)?;
        let vaddr = section.vaddr;
        return Ok(Some(Table { bytes, vaddr }));
    }
    table_without_sections(elf)
}

/// The unwind table as the unwinder itself finds it, in a file whose section headers were stripped.
fn table_without_sections<'a>(elf: &Elf<'a>) -> Result<Option<Table<'a>>, ImageError> {
    let what = "unwind table";
    let Some(header) = elf
        .segments
        .iter()
        .find(|segment| segment.kind == elf::PT_GNU_EH_FRAME && segment.file_size > 0)
    else {
        return Ok(None);
    };
    let size = header.file_size.min(HEADER_LIMIT);
    let bytes = elf.source.read(what, header.offset, size, HEADER_LIMIT)?;
    let bases = BaseAddresses::default().set_eh_frame_hdr(header.vaddr);
    let parsed = EhFrameHdr::new(&bytes, endian(elf))
        .parse(&bases, address_size(elf))
        .map_err(|_| malformed(what, header.offset))?;
    let Pointer::Direct(vaddr) = parsed.eh_frame_ptr() else {
        return Err(malformed(what, header.offset));
    };
    let segment = elf.segments.iter().find(|segment| {
        segment.kind == elf::PT_LOAD
            && vaddr.checked_sub(segment.vaddr).is_some_and(|into| into < segment.file_size)
    });
    let Some(segment) = segment else {
        return Err(malformed(what, header.offset));
    };
    // The table's end is not known: it ends with an empty entry, or with the segment.
    let into = vaddr - segment.vaddr;
    let offset = segment.offset.saturating_add(into);
    let size = (segment.file_size - into).min(TABLE_LIMIT);
    let bytes = elf.source.read(what, offset, size, TABLE_LIMIT)?;
    Ok(Some(Table { bytes, vaddr }))
}

fn read(
    elf: &Elf<'_>,
    sections: &[Section],
    table: &Table<'_>,
) -> (Vec<(u64, u64)>, Option<Finding>) {
    let vaddr_of = |name: &str| {
        sections.iter().find(|section| &*section.name == name).map(|section| section.vaddr)
    };
    let mut bases = BaseAddresses::default().set_eh_frame(table.vaddr);
    if let Some(vaddr) = vaddr_of(".text") {
        bases = bases.set_text(vaddr);
    }
    if let Some(vaddr) = vaddr_of(".got") {
        bases = bases.set_got(vaddr);
    }
    let mut eh_frame = EhFrame::new(&table.bytes, endian(elf));
    eh_frame.set_address_size(address_size(elf));
    if elf.machine == elf::EM_AARCH64 {
        // Compilers for arm64 mark return addresses that are signed.
        eh_frame.set_vendor(gimli::Vendor::AArch64);
    }
    let mut out = Vec::new();
    let mut cut_at = 0;
    let mut entries = eh_frame.entries(&bases);
    let mut last_cie: Option<(usize, gimli::CommonInformationEntry<Slice<'_>>)> = None;
    loop {
        match entries.next() {
            Ok(None) => return (out, None),
            Ok(Some(CieOrFde::Cie(cie))) => {
                cut_at = cie.offset();
                last_cie = Some((cut_at, cie));
            }
            Ok(Some(CieOrFde::Fde(partial))) => {
                cut_at = partial.offset();
                let parsed = partial.parse(|section, bases, offset| match &last_cie {
                    Some((at, cie)) if *at == offset.0 => Ok(cie.clone()),
                    _ => section.cie_from_offset(bases, offset),
                });
                let Ok(fde) = parsed else { continue };
                // Code that the linker dropped leaves an entry at address 0.
                if fde.initial_address() != 0 && fde.len() > 0 {
                    let start = fde.initial_address();
                    out.push((start, start.saturating_add(fde.len())));
                }
            }
            Err(_) => {
                let offset = cut_at as u64;
                return (out, Some(Finding::UnwindTableCut { offset }));
            }
        }
    }
}

type Slice<'a> = EndianSlice<'a, RunTimeEndian>;

fn endian(elf: &Elf<'_>) -> RunTimeEndian {
    match elf.endian {
        Endianness::Little => RunTimeEndian::Little,
        Endianness::Big => RunTimeEndian::Big,
    }
}

fn address_size(elf: &Elf<'_>) -> u8 {
    if elf.is_64 { 8 } else { 4 }
}
