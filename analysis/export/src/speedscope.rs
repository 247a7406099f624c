//! The format of speedscope (github.com/jlfwong/speedscope, src/lib/file-format-spec.ts; its JSON
//! schema is at speedscope.app/file-format-schema.json).
//!
//! A profile of type `sampled` for each event, whose stacks begin at the command. Stacks have no
//! times: their order means nothing, so the view "Left Heavy" is the one to look at. Weights are
//! occurrences: ns of an event of time.

use std::collections::HashMap;
use std::io::{self, Write};

use serde_json::{Value, json};

use super::folded;
use super::{Carried, Resolved, UNKNOWN_CODE};

/// Largest whole number that JavaScript keeps exactly (2^53 - 1).
const NUMBER_MAX: u64 = (1 << 53) - 1;

/// Frames by number.
#[derive(Default)]
struct Frames {
    all: Vec<Value>,
    numbers: HashMap<(String, String), usize>,
}

impl Frames {
    fn number(&mut self, name: &str, file: &str) -> usize {
        let next = self.all.len();
        let number = *self.numbers.entry((name.to_owned(), file.to_owned())).or_insert(next);
        if number == next {
            self.all.push(match file {
                "" => json!({"name": name}),
                file => json!({"name": name, "file": file}),
            });
        }
        number
    }
}

/// Writes the samples of all events.
pub fn write(resolved: &Resolved, out: &mut dyn Write) -> io::Result<Carried> {
    let mut frames = Frames::default();
    let profiles: Vec<Value> =
        (0..resolved.events.len()).map(|event| profile(resolved, event, &mut frames)).collect();
    let file = json!({
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "exporter": format!("dcpi {}", env!("CARGO_PKG_VERSION")),
        "name": format!("{} {}", resolved.hosts.join(" "), resolved.epochs.join(" ")),
        "activeProfileIndex": 0,
        "shared": {"frames": frames.all},
        "profiles": profiles,
    });
    serde_json::to_writer(&mut *out, &file)?;
    writeln!(out)?;
    let samples = resolved.events.iter().map(|event| event.samples.saturating_add(event.unknown()));
    let notes = vec!["stacks have no times: look at them in the view \"Left Heavy\"".to_owned()];
    Ok(Carried { samples: samples.collect(), notes, ..Carried::default() })
}

fn profile(resolved: &Resolved, event: usize, frames: &mut Frames) -> Value {
    let mut stacks: Vec<(Vec<usize>, u64)> = Vec::new();
    for sample in resolved.stacks.samples.iter().filter(|sample| sample.event == event) {
        let mut stack = Vec::new();
        let thread = resolved.stacks.thread(sample);
        let command = thread.map(|thread| thread.command.as_str()).unwrap_or_default();
        if !command.is_empty() {
            stack.push(frames.number(command, ""));
        }
        let path: Vec<_> = resolved.stacks.frames(sample.node).collect();
        for frame in path.into_iter().rev() {
            let file = resolved.frame_place(frame).map_or("", |(image, _)| image.file());
            let names = resolved.frame_names(frame);
            stack.extend(names.into_iter().map(|name| frames.number(name, file)));
        }
        stacks.push((stack, sample.occurrences));
    }
    let of_event = resolved.events.get(event).cloned().unwrap_or_default();
    let no_stack = (!resolved.stacks.is_empty()).then_some(folded::NO_STACK);
    for image in &resolved.images {
        for place in image.places.iter().filter(|place| place.samples(event) > 0) {
            let mut stack: Vec<usize> =
                no_stack.iter().map(|name| frames.number(name, "")).collect();
            stack.push(frames.number(&image.name, ""));
            let names = image.functions(place);
            stack.extend(names.into_iter().map(|name| frames.number(name, image.file())));
            stacks.push((stack, of_event.occurrences(place.samples(event))));
        }
    }
    for (reason, samples) in &of_event.unresolved {
        let stack = [UNKNOWN_CODE, &format!("[{reason}]")].map(|name| frames.number(name, ""));
        stacks.push((stack.to_vec(), of_event.occurrences(*samples)));
    }
    stacks.iter_mut().for_each(|(_, weight)| *weight = (*weight).min(NUMBER_MAX));
    let end = stacks.iter().fold(0_u64, |sum, (_, weight)| sum.saturating_add(*weight));
    let (samples, weights): (Vec<Vec<usize>>, Vec<u64>) = stacks.into_iter().unzip();
    json!({
        "type": "sampled",
        "name": of_event.name,
        "unit": if of_event.unit == "ns" { "nanoseconds" } else { "none" },
        "startValue": 0,
        "endValue": end.min(NUMBER_MAX),
        "samples": samples,
        "weights": weights,
    })
}

#[cfg(test)]
mod tests {
    use super::super::test_profile::{resolved, with_stacks, written};
    use super::*;

    /// The stacks of a profile by name, with their weights.
    fn stacks(file: &Value, profile: usize) -> Vec<(String, u64)> {
        let profile = &file["profiles"][profile];
        let samples = profile["samples"].as_array().unwrap();
        let weights = profile["weights"].as_array().unwrap();
        assert_eq!(samples.len(), weights.len());
        let name = |frame: &Value| {
            let at = usize::try_from(frame.as_u64().unwrap()).unwrap();
            file["shared"]["frames"][at]["name"].as_str().unwrap().to_owned()
        };
        let stack = |sample: &Value| {
            sample.as_array().unwrap().iter().map(name).collect::<Vec<_>>().join(" > ")
        };
        samples.iter().map(stack).zip(weights.iter().map(|of| of.as_u64().unwrap())).collect()
    }

    #[test]
    fn a_profile_for_each_event_whose_weights_are_its_time() {
        let (text, carried) = written(|out| write(&with_stacks(), out));
        let file: Value = serde_json::from_str(&text).unwrap();
        let cycles = stacks(&file, 0);
        let has = |name: &str, weight| cycles.contains(&(name.to_owned(), weight));
        assert!(has("app;x > evil\nname > ns::f(int)", 9000), "{cycles:?}");
        assert!(has("[no stack] > app;1 > ns::f(int)", 30_000), "{cycles:?}");
        let sum: u64 = cycles.iter().map(|(_, weight)| weight).sum();
        assert_eq!(file["profiles"][0]["endValue"], sum);
        assert_eq!(sum, carried.samples[0] * 1000);
        let off = [("app;x > evil\nname > ns::f(int) > [futex]".to_owned(), 5_000_000)];
        assert_eq!(stacks(&file, 2), off);
        assert_eq!(file["profiles"][2]["unit"], "nanoseconds");
        let (text, _) = written(|out| write(&resolved(), out));
        let file: Value = serde_json::from_str(&text).unwrap();
        assert!(stacks(&file, 0).contains(&("app;1 > ns::f(int)".to_owned(), 40_000)));
    }
}
