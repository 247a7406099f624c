//! Takes segments apart for the fuzzer, and joins the parts with correct checksums.
//!
//! A segment is a directory, which is compressed and has the length and checksum of each section,
//! and the sections. The fuzzer sees the directory uncompressed, with a mark for each length and
//! checksum, and the sections, each behind its length.

use flate2::bufread::DeflateDecoder;
use profiledb::codec::put_varint;
use profiledb::envelope::{Kind, open, seal};
use std::io::Read as _;

/// Mark in place of a section's length and checksum; the section's number follows.
const MARK: [u8; 3] = [0xfe, 0xed, 0xc0];
/// Sections of a segment that is taken apart.
const SECTIONS_MAX: usize = 200;
/// Bytes before the directory: its length and checksum.
const PREFIX_BYTES: usize = 8;

/// Takes a segment apart. None for other files.
pub fn apart(file: &[u8]) -> Option<Vec<u8>> {
    let (Kind::Segment, payload) = open(file).ok()? else { return None };
    let length = u32::from_le_bytes(payload.get(..4)?.try_into().ok()?) as usize;
    let (directory, mut body) = payload.get(PREFIX_BYTES..)?.split_at_checked(length)?;
    let mut plain = unpacked(directory)?;
    let mut sections = Vec::new();
    while !body.is_empty() && sections.len() < SECTIONS_MAX {
        let len = (0..=body.len()).find(|len| place_of(&plain, &body[..*len]).is_some())?;
        let (section, rest) = body.split_at(len);
        let (at, width) = place_of(&plain, section)?;
        let mark = MARK.into_iter().chain([sections.len() as u8]);
        plain.splice(at..at + width, mark);
        sections.push(section.to_vec());
        body = rest;
    }
    let mut parts = (plain.len() as u16).to_le_bytes().to_vec();
    parts.extend(plain);
    for section in sections {
        parts.extend((section.len() as u16).to_le_bytes());
        parts.extend(section);
    }
    Some(parts)
}

/// Offset and size of the section's length and checksum in the directory.
fn place_of(plain: &[u8], section: &[u8]) -> Option<(usize, usize)> {
    let wanted = described(section);
    let at = plain.windows(wanted.len()).position(|bytes| bytes == wanted)?;
    Some((at, wanted.len()))
}

fn described(section: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_varint(&mut bytes, section.len() as u64);
    bytes.extend(crc32c::crc32c(section).to_le_bytes());
    bytes
}

/// Joins the parts of a segment.
pub fn together(mut parts: &[u8]) -> Vec<u8> {
    let mut part = || {
        let (len, rest) = parts.split_first_chunk()?;
        let len = usize::from(u16::from_le_bytes(*len)).min(rest.len());
        let (part, rest) = rest.split_at(len);
        parts = rest;
        Some(part)
    };
    let marked = part().unwrap_or_default();
    let sections: Vec<&[u8]> = std::iter::from_fn(part).collect();
    let (mut plain, mut rest) = (Vec::new(), marked);
    while let Some((first, others)) = rest.split_first() {
        match rest.strip_prefix(&MARK).and_then(|after| after.split_first()) {
            Some((number, after)) => {
                let section = sections.get(usize::from(*number)).copied().unwrap_or_default();
                plain.extend(described(section));
                rest = after;
            }
            None => {
                plain.push(*first);
                rest = others;
            }
        }
    }
    let mut directory = Vec::new();
    put_varint(&mut directory, plain.len() as u64);
    put_varint(&mut directory, plain.len() as u64);
    directory.extend(plain);
    let length = (directory.len() as u32).to_le_bytes();
    let sum = crc32c::crc32c_append(crc32c::crc32c(&length), &directory).to_le_bytes();
    seal(Kind::Segment, &[&length[..], &sum, &directory, &sections.concat()].concat())
}

/// The bytes of a block: its length, its stored length, and its bytes, compressed if shorter.
fn unpacked(block: &[u8]) -> Option<Vec<u8>> {
    let (length, block) = varint(block)?;
    let (stored, block) = varint(block)?;
    if stored == length {
        return Some(block.to_vec());
    }
    let mut bytes = Vec::new();
    DeflateDecoder::new(block).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let end = bytes.iter().position(|byte| byte & 0x80 == 0)? + 1;
    let (number, rest) = bytes.split_at(end);
    let value = number.iter().rev().fold(0, |value, byte| value << 7 | u64::from(byte & 0x7f));
    Some((value, rest))
}
