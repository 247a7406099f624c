//! BOLT's pre-aggregated profile (llvm-project, bolt/docs/profiles.md, "Pre-aggregated format"), of
//! one event of one program. Addresses are those of the file, which is what BOLT expects of
//! programs that are linked to begin at 0 or at a fixed address.
//!
//! Where executions are known, branch records: `B FROM TO COUNT 0` of branches taken and calls, and
//! `F FROM TO COUNT` of blocks executed just after another, for `llvm-bolt --pa`; the event's name
//! says that they are of `executions`. Else basic samples: `S ADDRESS COUNT` for `llvm-bolt --pa
//! --ba` of LLVM 22. It reads one kind or the other.

use std::io::{self, Write};

use super::executed::{self, Executed};
use super::{Carried, Image, Resolved};

/// Writes the executions of an image, or where none are known the samples of an event.
pub fn write(
    resolved: &Resolved,
    image: &Image,
    event: usize,
    out: &mut dyn Write,
) -> io::Result<Carried> {
    let name = resolved.events.get(event).map(|event| event.name.as_str()).unwrap_or_default();
    // A word: BOLT reads to the end of the line, and a name of two would be one of another event.
    let word: String =
        name.chars().map(|c| if c.is_whitespace() || c.is_control() { '_' } else { c }).collect();
    if let Some(executed) = &image.executed {
        writeln!(out, "E executions:{word}")?;
        write_branches(executed, out)?;
        let samples = |place: &super::Place| {
            if executed.step(place.address).is_some() { place.samples(event) } else { 0 }
        };
        let carried =
            image.places.iter().fold(0, |sum: u64, place| sum.saturating_add(samples(place)));
        let left_out =
            Some(image.samples(event).saturating_sub(carried)).filter(|samples| *samples > 0);
        return Ok(Carried {
            samples: (0..resolved.events.len())
                .map(|at| if at == event { carried } else { 0 })
                .collect(),
            left_out: left_out
                .map(|samples| (executed::LEFT_OUT.to_owned(), samples))
                .into_iter()
                .collect(),
            notes: vec![
                "the file has branch records: run llvm-bolt with --pa and without --ba; for a file of samples: dcpi export --no-edges"
                    .to_owned(),
                executed.fidelity().to_owned(),
            ],
        });
    }
    writeln!(out, "E {word}")?;
    let (mut written, mut unmapped) = (0_u64, 0_u64);
    for place in &image.places {
        let samples = place.samples(event);
        if samples == 0 {
            continue;
        }
        if image
            .segments
            .iter()
            .all(|segment| segment.vaddr_of(image::ImageOffset(place.offset)).is_none())
        {
            unmapped = unmapped.saturating_add(samples);
            continue;
        }
        writeln!(out, "S {:x} {samples}", place.address)?;
        written = written.saturating_add(samples);
    }
    let samples =
        (0..resolved.events.len()).map(|at| if at == event { written } else { 0 }).collect();
    let left_out = if unmapped > 0 {
        vec![("outside of the file's code".to_owned(), unmapped)]
    } else {
        Vec::new()
    };
    let notes =
        vec!["the file has samples without branches: run llvm-bolt with --pa and --ba".to_owned()];
    Ok(Carried { samples, left_out, notes })
}

fn write_branches(executed: &Executed, out: &mut dyn Write) -> io::Result<()> {
    for edge in &executed.edges {
        if edge.falls_through {
            // Through the ends of two blocks: BOLT adds to each block between.
            writeln!(out, "F {:x} {:x} {}", edge.from, edge.to, edge.times)?;
        } else {
            writeln!(out, "B {:x} {:x} {} 0", edge.from, edge.to, edge.times)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::executed::{ExecutedEdge, Step};
    use super::super::test_profile::{resolved, written};
    use super::*;

    #[test]
    fn branches_taken_and_blocks_that_follow() {
        let mut resolved = resolved();
        let edge = |from, to, falls_through, times| ExecutedEdge {
            from,
            to,
            falls_through,
            callee: None,
            times,
        };
        let step = |address| Step { address, ..Step::default() };
        resolved.images[0].executed = Some(Executed {
            exact: false,
            steps: vec![step(0x40_1010), step(0x40_1014)],
            edges: vec![edge(0x40_1010, 0x40_1012, true, 3), edge(0x40_1010, 0x40_1020, false, 9)],
        });
        let (text, carried) = written(|out| write(&resolved, &resolved.images[0], 0, out));
        assert_eq!(text, "E executions:cycles\nF 401010 401012 3\nB 401010 401020 9 0\n");
        assert_eq!((carried.samples, carried.notes.len()), (vec![42, 0], 2));
        assert_eq!(carried.left_out, [(executed::LEFT_OUT.to_owned(), 5)]);
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
