//! Folded stacks: `image;procedure count` a line, which flamegraph.pl, inferno, speedscope and
//! others draw (the format of the FlameGraph collection's `stackcollapse` programs). One event; the
//! stack is the image, its procedure, and where lines were looked up the calls that were inlined.

use std::collections::BTreeMap;
use std::io::{self, Write};

use super::{Carried, Resolved, UNKNOWN_CODE};
use report::escape;

/// Writes the samples of an event. Unknown code is `[unknown code];[REASON]`.
///
/// # Errors
/// Those of `out`.
pub fn write(resolved: &Resolved, event: usize, out: &mut dyn Write) -> io::Result<Carried> {
    let mut stacks: BTreeMap<String, u64> = BTreeMap::new();
    let mut add = |image: &str, functions: &[&str], samples: u64| {
        if samples > 0 {
            let frames = std::iter::once(image).chain(functions.iter().copied()).map(frame);
            let sum = stacks.entry(frames.collect::<Vec<_>>().join(";")).or_default();
            *sum = sum.saturating_add(samples);
        }
    };
    for image in &resolved.images {
        image
            .places
            .iter()
            .for_each(|place| add(&image.name, &image.functions(place), place.samples(event)));
    }
    let unresolved =
        resolved.events.get(event).map(|event| event.unresolved.as_slice()).unwrap_or_default();
    unresolved
        .iter()
        .for_each(|(reason, samples)| add(UNKNOWN_CODE, &[&format!("[{reason}]")], *samples));
    for (stack, samples) in &stacks {
        writeln!(out, "{stack} {samples}")?;
    }
    let samples = resolved.events.iter().enumerate().map(|(at, of)| match at == event {
        true => of.samples.saturating_add(of.unknown()),
        false => 0,
    });
    Ok(Carried { samples: samples.collect(), ..Carried::default() })
}

/// A name as a frame: a semicolon would end it, a line break the stack.
fn frame(name: &str) -> String {
    escape(name).replace(';', ":")
}

#[cfg(test)]
mod tests {
    use super::super::test_profile::{resolved, with_lines, written};
    use super::*;

    #[test]
    fn stacks_are_summed_and_names_cannot_break_them() {
        let (text, carried) = written(|out| write(&resolved(), 0, out));
        let expected = "[kernel];clear_page 20\n[unknown code];[anonymous_memory] 5\napp:1;[unknown] 4\napp:1;evil\\nname 1\n\
                        app:1;ns::f(int) 42\ngone;[no procedures: file gone] 3\n";
        assert_eq!(text, expected);
        assert_eq!(carried.samples, [75, 0]);
        let (text, carried) = written(|out| write(&resolved(), 1, out));
        assert_eq!(text, "[unknown code];[anonymous_memory] 5\napp:1;ns::f(int) 4\n");
        assert_eq!(carried.samples, [0, 9]);
        let (text, _) = written(|out| write(&with_lines(), 1, out));
        assert_eq!(
            text,
            "[unknown code];[anonymous_memory] 5\napp:1;ns::f(int) 1\napp:1;ns::f(int);inl() 3\n"
        );
        assert_eq!(written(|out| write(&Resolved::default(), 0, out)).0, "");
    }
}
