//! The parts of a file in the order in which they are kept while its samples pay for little: names,
//! then code of procedures with samples, then constants. Where all names are not paid for, those of
//! procedures with samples are kept, which is what the samples so far need.
//!
//! Names are what finds a procedure: headers, symbols, unwind tables, notes, stubs. Code and
//! constant data are most of a large file (three quarters of node and of rustc), and reports need
//! the code of procedures with samples alone. Constants have tables of jumps, without which a graph
//! has less edges.

use std::collections::BTreeSet;
use std::fs::File;
use std::ops::Range;

use object::elf;

use crate::elf::{Elf, Section};
use crate::kept::{KeptRanges, keeps_section, keeps_segment};
use crate::source::Source;
use crate::symbols::Table;
use crate::{Binary, ImageError, ImageOffset, Layout};

/// Samples are told apart by lines of this many bytes: few procedures are shorter.
pub const LINE_BYTES: u64 = 64;
/// Most procedures of one file whose code is kept.
const PROCEDURES_MAX: usize = 32_768;
/// Procedures are aligned to this many bytes; the padding between two is kept with the first, so
/// that neighbours are one piece.
const ALIGNED: u64 = 16;
/// Bytes around a line that is in no procedure.
const AROUND: u64 = 4096;

/// The ranges of a file that its samples pay for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Chosen {
    /// Names cost so many bytes, which is more than is paid for, and those of procedures with
    /// samples are not known one by one.
    NotYet(u64),
    /// What was kept before, and all that is paid for.
    Ranges(KeptRanges),
}

type Places = Vec<(u64, u64)>;

/// Chooses what to keep of an open file. `kept` is kept already; `lines` are the lines with samples
/// (file offset divided by [`LINE_BYTES`]), those with the most first; `budget` is what may be
/// added, in bytes.
///
/// # Errors
/// As [`KeptRanges::of_file`].
pub fn choose(
    file: &File,
    kept: Option<&KeptRanges>,
    lines: &[u32],
    budget: u64,
) -> Result<Chosen, ImageError> {
    let elf = Elf::parse(Source::file(file)?)?;
    let file_len = elf.source.len();
    let (names, constants) = parts(&elf);
    let mut places: Places = Vec::new();
    places.extend(kept.into_iter().flat_map(KeptRanges::ranges).map(place));
    let mut chosen = KeptRanges::of_places(file_len, places.clone())?;
    let before = chosen.len();
    let left = |chosen: &KeptRanges| budget.saturating_sub(chosen.len() - before);
    let kept_before = places.clone();
    places.extend(names);
    let with_names = KeptRanges::of_places(file_len, places.clone())?;
    let procedures = procedures(file, lines)?;
    if with_names.len() - before > budget {
        let mut some = kept_before;
        some.extend(names_of(&elf, &procedures)?);
        let with_some = KeptRanges::of_places(file_len, some)?;
        let is_paid = with_some.len() > before && with_some.len() - before <= budget;
        return Ok(match is_paid {
            true => Chosen::Ranges(with_some),
            false => Chosen::NotYet(with_names.len() - before),
        });
    }
    chosen = with_names;
    let mut paid = left(&chosen);
    for procedure in procedures {
        let len = procedure.end - procedure.start;
        if !chosen.has(&procedure) {
            if len > paid {
                break;
            }
            paid -= len;
        }
        places.push(place(&procedure));
    }
    chosen = KeptRanges::of_places(file_len, places.clone())?;
    places.extend(constants);
    let with_constants = KeptRanges::of_places(file_len, places)?;
    let is_paid = with_constants.len() - before <= budget;
    Ok(Chosen::Ranges(if is_paid { with_constants } else { chosen }))
}

fn place(range: &Range<u64>) -> (u64, u64) {
    (range.start, range.end - range.start)
}

/// The places of the names of these procedures (file offsets): their symbols, and what is needed to
/// find those. None where no symbol is one of theirs.
fn names_of(elf: &Elf<'_>, procedures: &[Range<u64>]) -> Result<Places, ImageError> {
    let sections = elf.sections().unwrap_or_default();
    let starts: BTreeSet<u64> = procedures.iter().map(|procedure| procedure.start).collect();
    let mut symbols = Places::new();
    let layout = Layout::of_elf(elf);
    for kind in [elf::SHT_SYMTAB, elf::SHT_DYNSYM] {
        let section = sections.iter().find(|section| section.kind == kind);
        let names = section.and_then(|table| sections.get(usize::try_from(table.link).ok()?));
        if let (Some(section), Some(names)) = (section, names)
            && let Some(table) = Table::read(elf, &sections, kind, 0)?
        {
            symbols.extend(table.places(&layout, (section, names.offset), &starts));
        }
    }
    if symbols.is_empty() {
        return Ok(symbols);
    }
    symbols.extend(elf.header_places(sections.len()));
    let notes = elf.segments.iter().filter(|segment| segment.kind == elf::PT_NOTE);
    symbols.extend(notes.map(|segment| (segment.offset, segment.file_size)));
    let is_small = |section: &&Section| {
        section.kind == elf::SHT_NOTE || matches!(&*section.name, ".shstrtab" | ".gnu_debuglink")
    };
    symbols.extend(sections.iter().filter(is_small).map(|section| (section.offset, section.size)));
    Ok(symbols)
}

/// The places of names and of constants. Without section headers nothing tells one from the other.
fn parts(elf: &Elf<'_>) -> (Places, Places) {
    let sections = elf.sections().unwrap_or_default();
    let mut names: Places = elf.header_places(sections.len()).to_vec();
    let mut constants = Places::new();
    let is_alone = elf.segments.is_empty();
    for segment in elf.segments.iter().filter(|segment| keeps_segment(segment)) {
        let part = match segment.kind {
            elf::PT_LOAD if sections.is_empty() => &mut names,
            elf::PT_LOAD => continue,
            elf::PT_GNU_RELRO => &mut constants,
            _ => &mut names,
        };
        part.push((segment.offset, segment.file_size));
    }
    for section in sections.iter().filter(|section| section.has_bytes()) {
        let place = (section.offset, section.size);
        match part_of(section, is_alone) {
            Some(Part::Names) => names.push(place),
            Some(Part::Constants) => constants.push(place),
            None => {}
        }
    }
    (names, constants)
}

enum Part {
    Names,
    Constants,
}

/// The part that a section belongs to; None for code, and for what is not kept at all.
fn part_of(section: &Section, is_alone: bool) -> Option<Part> {
    let name = &*section.name;
    if section.is_code() {
        // The names of stubs come from their instructions.
        return name.starts_with(".plt").then_some(Part::Names);
    }
    let is_of_data = name.starts_with(".data.rel.ro") && !name.ends_with(".gopclntab")
        || matches!(name, ".rela.dyn" | ".rel.dyn" | ".relr.dyn");
    if is_of_data {
        return Some(Part::Constants);
    }
    if keeps_section(section, is_alone) || name.ends_with(".gopclntab") {
        return Some(Part::Names);
    }
    let is_mapped = section.flags & u64::from(elf::SHF_ALLOC) != 0;
    let is_written = section.flags & u64::from(elf::SHF_WRITE) != 0;
    (is_mapped && !is_written).then_some(Part::Constants)
}

/// The procedures at these lines, in their order, each once.
fn procedures(file: &File, lines: &[u32]) -> Result<Vec<Range<u64>>, ImageError> {
    if lines.is_empty() {
        return Ok(Vec::new());
    }
    let again = file.try_clone();
    let again = again.map_err(|source| ImageError::Io { op: "open", path: None, source })?;
    let binary = Binary::of_file(again)?;
    let first = |line: u32| u64::from(line) * LINE_BYTES;
    let ends = |line: u32| [first(line), first(line) + LINE_BYTES - 1].map(ImageOffset);
    let mut offsets: Vec<ImageOffset> = lines.iter().copied().flat_map(ends).collect();
    offsets.sort_unstable();
    let (procedures, _) = binary.procedures_at(&[], &offsets)?;
    let (mut found, mut known) = (Vec::new(), BTreeSet::new());
    for &line in lines {
        let mut any = false;
        for at in ends(line) {
            let Some(procedure) = procedures.find(at) else { continue };
            any = true;
            if known.insert(procedure.start) {
                found.push(procedure.start.0..procedure.end.0.next_multiple_of(ALIGNED));
            }
        }
        let start = first(line) / AROUND * AROUND;
        if !any && known.insert(ImageOffset(start)) {
            found.push(start..start + AROUND);
        }
        if found.len() >= PROCEDURES_MAX {
            break;
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KeptFile;

    fn own() -> File {
        File::open(std::env::current_exe().unwrap()).unwrap()
    }

    fn kept(ranges: &KeptRanges) -> KeptFile {
        let mut bytes = Vec::new();
        let copied = ranges.copy(&own(), |piece| {
            bytes.extend_from_slice(piece);
            Ok(())
        });
        copied.unwrap();
        KeptFile::new(ranges.clone(), bytes).unwrap().into_excerpt()
    }

    fn chosen(kept: Option<&KeptRanges>, lines: &[u32], budget: u64) -> KeptRanges {
        match choose(&own(), kept, lines, budget).unwrap() {
            Chosen::Ranges(ranges) => ranges,
            Chosen::NotYet(cost) => panic!("{cost} of {budget}"),
        }
    }

    /// This test's own program: it has symbols, and more code and constants than these.
    #[test]
    fn names_come_first_then_procedures_with_samples_then_constants() {
        let whole = KeptRanges::of_file(&own()).unwrap();
        let Chosen::NotYet(cost) = choose(&own(), None, &[], 0).unwrap() else { panic!() };
        let names = chosen(None, &[], cost);
        assert_eq!(names.len(), cost);
        assert!(cost < whole.len() / 2, "{cost} of {}", whole.len());
        // All procedures have their names.
        let id = crate::identify_file(&own()).unwrap();
        let binary = Binary::of_kept(kept(&names), None, Some(&id)).unwrap();
        let (found, _) = binary.procedures(&[]).unwrap();
        let (expected, _) = Binary::of_file(own()).unwrap().procedures(&[]).unwrap();
        let names_of = |all: &crate::Procedures| -> Vec<(ImageOffset, String)> {
            all.iter().map(|procedure| (procedure.start, procedure.name().to_owned())).collect()
        };
        assert_eq!(names_of(&found), names_of(&expected));

        // A budget that does not pay for all names pays for those of two procedures.
        let two: Vec<&crate::Procedure> =
            expected.iter().filter(|procedure| procedure.size_bytes() > 500).take(2).collect();
        let lines: Vec<u32> =
            two.iter().map(|of| ((of.start.0 + 200) / LINE_BYTES) as u32).collect();
        let some = chosen(None, &lines, cost / 2);
        assert!(some.len() < cost / 8, "{} of {cost}", some.len());
        let binary = Binary::of_kept(kept(&some), None, Some(&id)).unwrap();
        let (found, _) = binary.procedures(&[]).unwrap();
        for &of in &two {
            let named = found.find(of.start).unwrap();
            assert_eq!((named.name(), named.end), (of.name(), of.end));
        }
        let all = chosen(Some(&some), &[], cost);
        assert_eq!(all.len(), names.len(), "all names, once they are paid for");

        // Two procedures, of which the budget pays for the first.
        let mut long = expected.iter().filter(|procedure| procedure.size_bytes() > 500);
        let (first, second) = (long.next().unwrap(), long.nth(20).unwrap());
        let line = |of: &crate::Procedure| ((of.start.0 + 200) / LINE_BYTES) as u32;
        let lines = [line(second), line(first)];
        let paid = cost + second.size_bytes() + 16;
        let one = kept(&chosen(None, &lines, paid));
        let has = |kept: &KeptFile, of: &crate::Procedure| {
            kept.get(of.start.0, of.size_bytes() as usize).is_some()
        };
        assert!(has(&one, second) && !has(&one, first) && one.may_be(&id).unwrap());
        // What is kept costs nothing, and stays.
        let both = chosen(Some(one.ranges()), &lines[1..], first.size_bytes() + 16);
        assert!(has(&kept(&both), first) && has(&kept(&both), second));
        assert_eq!(chosen(Some(&both), &lines, 0), both);
        // With enough there are constants, too, and still no code without samples.
        let all = chosen(None, &lines, whole.len());
        assert!(all.len() > both.len() && all.len() < whole.len());
        let within = |range: &Range<u64>| whole.has(range);
        assert!(all.ranges().iter().all(within), "nothing that the whole does not have");
    }
}
