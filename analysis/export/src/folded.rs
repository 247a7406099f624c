//! Folded stacks: frames separated by semicolons, a blank and a count in each line, which
//! flamegraph.pl, inferno, speedscope and others draw (the format of the FlameGraph collection's
//! `stackcollapse` programs). One event. A call stack begins with the command, and the thread's
//! first procedure follows; its count is in samples, of an event without samples in µs of its time.
//! Samples without stack are `[no stack];image;procedure` where others have one, else
//! `image;procedure`. Where lines were looked up, inlined calls are frames, too.

use std::collections::BTreeMap;
use std::io::{self, Write};

use super::stacks::{StackFrame, StackSample};
use super::{Carried, Resolved, UNKNOWN_CODE};
use report::escape;

/// The first frame of samples that have no stack, where others have.
pub(super) const NO_STACK: &str = "[no stack]";

/// Writes the samples of an event. Unknown code is `[unknown code];[REASON]`.
pub fn write(resolved: &Resolved, event: usize, out: &mut dyn Write) -> io::Result<Carried> {
    let mut stacks: BTreeMap<String, u64> = BTreeMap::new();
    let flat = if resolved.stacks.is_empty() { &[][..] } else { &[NO_STACK] };
    let mut line = |frames: &mut dyn Iterator<Item = &str>, samples: u64| {
        if samples > 0 {
            let sum = stacks.entry(frames.map(frame).collect::<Vec<_>>().join(";")).or_default();
            *sum = sum.saturating_add(samples);
        }
    };
    for sample in resolved.stacks.samples.iter().filter(|sample| sample.event == event) {
        let (frames, count) = (stack(resolved, sample), count(resolved, sample));
        line(&mut frames.into_iter(), count);
    }
    let mut add = |image: &str, functions: &[&str], samples: u64| {
        let mut frames = flat.iter().copied().chain([image]).chain(functions.iter().copied());
        line(&mut frames, samples);
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

/// The names of a call stack, the command first.
pub(super) fn stack<'a>(resolved: &'a Resolved, sample: &StackSample) -> Vec<&'a str> {
    let frames: Vec<&StackFrame> = resolved.stacks.frames(sample.node).collect();
    let command = resolved.stacks.thread(sample).map(|thread| thread.command.as_str());
    let names = frames.into_iter().rev().flat_map(|frame| resolved.frame_names(frame));
    command.filter(|command| !command.is_empty()).into_iter().chain(names).collect()
}

/// Samples; of an event that has none, µs of time: stacks stand for very different times.
fn count(resolved: &Resolved, sample: &StackSample) -> u64 {
    const NS_PER_US: u64 = 1000;
    match resolved.events.get(sample.event) {
        Some(event) if event.period == 0 => sample.occurrences / NS_PER_US,
        _ => sample.samples,
    }
}

/// A name as a frame: a semicolon would end it, a line break the stack.
fn frame(name: &str) -> String {
    escape(name).replace(';', ":")
}

#[cfg(test)]
mod tests {
    use super::super::test_profile::{resolved, with_lines, with_stacks, written};
    use super::*;

    /// Parses as readers of folded stacks do: the count follows the last blank, frames are
    /// separated by semicolons.
    fn read(text: &str) -> Vec<(Vec<&str>, u64)> {
        let line = |line: &str| line.rsplit_once(' ').map(|(_, count)| count.parse().unwrap());
        let stacks = text.lines().map(|text| {
            let (stack, _) = text.rsplit_once(' ').unwrap();
            (stack.split(';').collect(), line(text).unwrap())
        });
        stacks.collect()
    }

    #[test]
    fn call_stacks_begin_at_the_command() {
        let (text, carried) = written(|out| write(&with_stacks(), 0, out));
        let stacks = read(&text);
        let of =
            |stack: &[&str]| stacks.iter().find(|(of, _)| of == stack).map(|(_, count)| *count);
        assert_eq!(of(&["app:x", "evil\\nname", "ns::f(int)"]), Some(9));
        assert_eq!(of(&["app:x", "[truncated]", "evil\\nname", "ns::f(int)"]), Some(3));
        assert_eq!(of(&["app:x", "evil\\nname", "clear_page"]), Some(20));
        assert_eq!(of(&["[no stack]", "app:1", "ns::f(int)"]), Some(30));
        assert_eq!(stacks.iter().map(|(_, count)| count).sum::<u64>(), carried.samples[0]);
        let (text, _) = written(|out| write(&with_stacks(), 2, out));
        assert_eq!(text, "app:x;evil\\nname;ns::f(int);[futex] 5000\n", "in us");
    }

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
