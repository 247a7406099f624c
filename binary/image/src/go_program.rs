//! Go's version of a program, and code of procedures by name, also of stripped programs.
//!
//! # Sources
//!
//! src/debug/buildinfo/buildinfo.go of Go 1.18 to 1.27: `.go.buildinfo`.

use std::fs::File;
use std::ops::Range;

use crate::elf::Elf;
use crate::go_table::GoTable;
use crate::source::Source;
use crate::{ImageError, Vaddr};

/// The begin of `.go.buildinfo`.
const MAGIC: &[u8] = b"\xff Go buildinf:";
/// Where the section has its flags, and the bit of them that says that the version follows.
const FLAGS_AT: usize = 15;
const INLINE: u8 = 2;
/// Where the version is then, behind its length.
const VERSION_AT: usize = 32;
/// Largest section that is read, in bytes: a list of modules is in it, too.
const INFO_LIMIT: u64 = 1 << 20;

/// What [`go_program_of_file`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GoProgram {
    /// The minor version: 24 of Go 1.24.
    pub minor: u32,
    /// Of each name that was asked for, the code's first address and the one behind it; None:
    /// there is no procedure of the name.
    pub procedures: Vec<Option<Range<Vaddr>>>,
}

/// The version of Go that made a program, 1.18 or later, and the code of these procedures. None of
/// other programs, and of versions without a number (`devel`).
///
/// # Errors
/// [`ImageError::NotElf`]; [`ImageError::Malformed`], [`ImageError::TooLarge`] when a table that is
/// needed is; [`ImageError::NotRegular`]; [`ImageError::Io`].
pub fn go_program_of_file(file: &File, names: &[&str]) -> Result<Option<GoProgram>, ImageError> {
    let elf = Elf::parse(Source::file(file)?)?;
    let sections = elf.sections()?;
    let Some(info) = sections.iter().find(|section| &*section.name == ".go.buildinfo") else {
        return Ok(None);
    };
    let info = elf.section_bytes("Go's version", info, INFO_LIMIT)?;
    let Some(minor) = minor(&info) else { return Ok(None) };
    let Some(table) = GoTable::read(&elf, &sections)? else { return Ok(None) };
    let mut places = vec![None; names.len()];
    let mut at = 0;
    for name in table.names().split(|byte| *byte == 0) {
        if let Some(index) = names.iter().position(|it| it.as_bytes() == name)
            && let Some(place) = places.get_mut(index)
        {
            *place = u32::try_from(at).ok();
        }
        at += name.len() + 1;
    }
    let mut procedures = vec![None; names.len()];
    for procedure in table.procedures() {
        let name = procedure.name();
        let index = places.iter().position(|place| place.is_some() && *place == name);
        if let Some(to) = index.and_then(|index| procedures.get_mut(index)) {
            *to = Some(Vaddr(procedure.begin)..Vaddr(procedure.end));
        }
    }
    Ok(Some(GoProgram { minor, procedures }))
}

/// The minor version in a program's `.go.buildinfo`.
fn minor(info: &[u8]) -> Option<u32> {
    if !info.starts_with(MAGIC) || info.get(FLAGS_AT)? & INLINE == 0 {
        return None;
    }
    let (len, version) = info.get(VERSION_AT..)?.split_first()?;
    let version = std::str::from_utf8(version.get(..usize::from(*len))?).ok()?;
    let minor = version.strip_prefix("go1.")?;
    minor.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_a_number_behind_the_head() {
        let info = |flags: u8, version: &str| {
            let mut info = MAGIC.to_vec();
            info.extend([8, flags]);
            info.resize(VERSION_AT, 0);
            info.push(u8::try_from(version.len()).unwrap());
            info.extend(version.bytes());
            info
        };
        assert_eq!(minor(&info(2, "go1.24.11")), Some(24));
        assert_eq!(minor(&info(2, "go1.27rc1 X:noswissmap")), Some(27));
        assert_eq!(minor(&info(0, "go1.24")), None);
        assert_eq!(minor(&info(2, "devel go1.28-0123")), None);
        let whole = info(2, "go1.19");
        (0..whole.len()).for_each(|len| assert_eq!(minor(&whole[..len]), None));
    }
}
