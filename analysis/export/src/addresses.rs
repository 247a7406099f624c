//! Counts by address as `create_llvm_prof --profiler=text --use_lbr=false` and `create_gcov` of the
//! AutoFDO tools read them (google/autofdo, sample_reader.cc, TextSampleReaderWriter): three lists,
//! of ranges, addresses and branches, each with its length before it. Only the addresses are known
//! here. They are offsets in the file, as in a perf.data that those tools read. What stands behind
//! the lists is not read: there is the place for a comment.

use std::io::{self, Write};

use super::{Carried, Image, Resolved};
use report::escape;

/// Writes the samples of an event in an image.
pub fn write(
    resolved: &Resolved,
    image: &Image,
    event: usize,
    out: &mut dyn Write,
) -> io::Result<Carried> {
    let counts: Vec<(u64, u64)> = image
        .places
        .iter()
        .map(|place| (place.offset, place.samples(event)))
        .filter(|(_, samples)| *samples > 0)
        .collect();
    writeln!(out, "0\n{}", counts.len())?;
    for (offset, samples) in &counts {
        writeln!(out, "{offset:x}:{samples}")?;
    }
    writeln!(out, "0")?;
    for comment in resolved.comments() {
        writeln!(out, "# {}", escape(&comment))?;
    }
    writeln!(out, "# {} of build {}", escape(image.file()), image.id)?;
    let samples = (0..resolved.events.len())
        .map(|at| if at == event { image.samples(event) } else { 0 })
        .collect();
    let notes = vec![
        "the file has addresses without branches: run create_llvm_prof with --use_lbr=false"
            .to_owned(),
    ];
    Ok(Carried { samples, left_out: Vec::new(), notes })
}

#[cfg(test)]
mod tests {
    use super::super::test_profile::{resolved, written};
    use super::*;

    #[test]
    fn three_lists_with_their_lengths() {
        let resolved = resolved();
        let (text, carried) = written(|out| write(&resolved, &resolved.images[0], 0, out));
        assert!(text.starts_with("0\n4\n1010:40\n1014:2\n1100:1\n1700:4\n0\n# dcpi "), "{text}");
        assert_eq!(carried.samples, [47, 0]);
    }
}
