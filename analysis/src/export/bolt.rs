//! BOLT's pre-aggregated profile (llvm-project, bolt/docs/profiles.md, "Pre-aggregated format"), of one event of one program. Addresses are
//! those of the file, which is what BOLT expects of programs that are linked to begin at 0 or at a fixed address.
//!
//! Where edges of the program are known, branch records: `B FROM TO COUNT 0` of those taken and `F BEGIN END COUNT` of what was executed one
//! instruction after the other, for `llvm-bolt --pa`; the event's name says that they are of `edges`. Else basic samples: `S ADDRESS COUNT`
//! for `llvm-bolt --pa --ba` of LLVM 22. It reads one kind or the other.

use std::collections::BTreeMap;
use std::io::{self, Write};

use super::{Carried, Image, Resolved, branches};

/// Writes the edges of an image, or where none are known the samples of an event.
///
/// # Errors
/// Those of `out`.
pub fn write(resolved: &Resolved, image: &Image, event: usize, out: &mut dyn Write) -> io::Result<Carried> {
    let name = resolved.events.get(event).map(|event| event.name.as_str()).unwrap_or_default();
    // A word: BOLT reads to the end of the line, and a name of two would be one of another event.
    let word: String = name.chars().map(|c| if c.is_whitespace() || c.is_control() { '_' } else { c }).collect();
    if !image.branches.is_empty() {
        writeln!(out, "E edges:{word}")?;
        return write_branches(resolved, image, event, out);
    }
    writeln!(out, "E {word}")?;
    let (mut written, mut unmapped) = (0_u64, 0_u64);
    for place in &image.places {
        let samples = place.samples(event);
        if samples == 0 {
            continue;
        }
        if image.segments.iter().all(|segment| segment.vaddr_of(image::ImageOffset(place.offset)).is_none()) {
            unmapped = unmapped.saturating_add(samples);
            continue;
        }
        writeln!(out, "S {:x} {samples}", place.address)?;
        written = written.saturating_add(samples);
    }
    let samples = (0..resolved.events.len()).map(|at| if at == event { written } else { 0 }).collect();
    let left_out = if unmapped > 0 { vec![("outside of the file's code".to_owned(), unmapped)] } else { Vec::new() };
    let notes = vec!["basic samples without branches: give llvm-bolt --pa and --ba".to_owned()];
    Ok(Carried { samples, left_out, notes })
}

fn write_branches(resolved: &Resolved, image: &Image, event: usize, out: &mut dyn Write) -> io::Result<Carried> {
    let mut runs: BTreeMap<(u64, u64), u64> = BTreeMap::new();
    for branch in &image.branches {
        let begin = if branch.falls_through {
            branch.from
        } else {
            writeln!(out, "B {:x} {:x} {} 0", branch.from, branch.to, branch.times)?;
            branch.to
        };
        let times = runs.entry((begin, branch.run_end)).or_default();
        *times = times.saturating_add(branch.times);
    }
    for ((begin, end), times) in runs {
        writeln!(out, "F {begin:x} {end:x} {times}")?;
    }
    let mut notes = vec![
        "branch records: give llvm-bolt --pa without --ba; samples without them: dcpi export --no-edges".to_owned(),
        branches::FIDELITY.to_owned(),
    ];
    if image.edges_left_out > 0 {
        notes.push(format!("left out: {} edges of code that could not be read", image.edges_left_out));
    }
    let samples = (0..resolved.events.len()).map(|at| if at == event { image.samples(event) } else { 0 }).collect();
    Ok(Carried { samples, left_out: Vec::new(), notes })
}

#[cfg(test)]
mod tests {
    use super::super::branches::Branch;
    use super::super::sample::{resolved, written};
    use super::*;

    #[test]
    fn branches_and_what_runs_between_them() {
        let mut resolved = resolved();
        let branch = |from, to, falls_through, times| Branch {
            from,
            to,
            falls_through,
            run_end: 0x40_1030,
            callee: None,
            sites: Vec::new(),
            times,
        };
        resolved.images[0].branches = vec![
            branch(0x40_1010, 0x40_1012, true, 3),
            branch(0x40_1010, 0x40_1020, false, 9),
            branch(0x40_1030, 0x40_1020, false, 4),
        ];
        let (text, carried) = written(|out| write(&resolved, &resolved.images[0], 0, out));
        let expected =
            "E edges:cycles\nB 401010 401020 9 0\nB 401030 401020 4 0\nF 401010 401030 3\nF 401020 401030 13\n";
        assert_eq!(text, expected);
        assert_eq!((carried.samples, carried.notes.len()), (vec![47, 0], 2));
    }

    #[test]
    fn addresses_of_one_event() {
        let resolved = resolved();
        let (text, carried) = written(|out| write(&resolved, &resolved.images[0], 0, out));
        assert_eq!(text, "E cycles\nS 401010 40\nS 401014 2\nS 401100 1\nS 401700 4\n");
        assert_eq!((carried.samples, carried.left_out), (vec![47, 0], vec![]));
        let (text, carried) = written(|out| write(&resolved, &resolved.images[2], 0, out));
        assert_eq!(text, "E cycles\n");
        assert_eq!(carried.left_out, [("outside of the file's code".to_owned(), 3)]);
    }
}
