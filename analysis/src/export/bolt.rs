//! BOLT's pre-aggregated profile (llvm-project, bolt/docs/profiles.md, "Pre-aggregated format"): `E EVENT`, then `S ADDRESS COUNT` lines,
//! which `llvm-bolt --pa --ba` and `perf2bolt --pa --ba` of LLVM 22 read. Basic samples: there are no branch records to tell edges from.
//! One event of one program; addresses are those of the file, which is what BOLT expects of programs that are linked to begin at 0 or at
//! a fixed address.

use std::io::{self, Write};

use super::{Carried, Image, Resolved};

/// Writes the samples of an event in an image.
///
/// # Errors
/// Those of `out`.
pub fn write(resolved: &Resolved, image: &Image, event: usize, out: &mut dyn Write) -> io::Result<Carried> {
    let name = resolved.events.get(event).map(|event| event.name.as_str()).unwrap_or_default();
    // A word: BOLT reads to the end of the line, and a name of two would be one of another event.
    let word: String = name.chars().map(|c| if c.is_whitespace() || c.is_control() { '_' } else { c }).collect();
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

#[cfg(test)]
mod tests {
    use super::super::sample::{resolved, written};
    use super::*;

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
