//! Text in the format of `perf script` (perf-script(1), with its default fields), for tools that
//! read no other format.
//!
//! A record for each call stack and thread, and for each place, event and scope without stack,
//! instead of each sample; its period is that of all of them together, so readers that weigh
//! records by period (FlameGraph's stackcollapse-perf.pl) have the right sums, and those that count
//! records have not. The command is the samples' label, else the thread's name, else `unknown`; the
//! process is its number where it is known, else 0. The time is the epoch's begin.

use std::io::{self, Write};

use image::ImageKind;
use model::Thread;
use profiledb::Scope;

use super::{Carried, Event, Image, Place, Resolved};
use report::escape;

/// Writes the samples of all events.
pub fn write(resolved: &Resolved, out: &mut dyn Write) -> io::Result<Carried> {
    for comment in resolved.comments() {
        writeln!(out, "# {}", escape(&comment))?;
    }
    let nobody = Scope::default();
    for (image, place) in resolved
        .images
        .iter()
        .flat_map(|image| image.places.iter().map(move |place| (image, place)))
    {
        for (scope, counts) in &place.counts {
            let scope = resolved.scopes.get(*scope).unwrap_or(&nobody);
            for (event, &samples) in
                resolved.events.iter().zip(counts).filter(|(_, samples)| **samples > 0)
            {
                record(resolved, (scope, None, event, event.occurrences(samples)), out)?;
                frame(image, place, out)?;
                writeln!(out)?;
            }
        }
    }
    stacks(resolved, out)?;
    for event in &resolved.events {
        for (reason, samples) in &event.unresolved {
            record(resolved, (&nobody, None, event, event.occurrences(*samples)), out)?;
            writeln!(out, "\t{:16x} [unknown] ([{}])\n", 0, escape(reason))?;
        }
    }
    let samples = resolved.events.iter().map(|event| event.samples.saturating_add(event.unknown()));
    let note = "a record stands for all samples of its place: use a reader that weighs records by their period";
    Ok(Carried { samples: samples.collect(), notes: vec![note.to_owned()], ..Carried::default() })
}

/// A record for each call stack: its frames, the innermost first.
fn stacks(resolved: &Resolved, out: &mut dyn Write) -> io::Result<()> {
    let nobody = Scope::default();
    for sample in &resolved.stacks.samples {
        let Some(event) = resolved.events.get(sample.event) else { continue };
        let scope = resolved.scopes.get(sample.scope).unwrap_or(&nobody);
        let thread = resolved.stacks.thread(sample);
        record(resolved, (scope, thread, event, sample.occurrences), out)?;
        for of in resolved.stacks.frames(sample.node) {
            match resolved.frame_place(of) {
                Some((image, place)) => frame(image, place, out)?,
                None => {
                    let words = resolved.frame_names(of).concat();
                    writeln!(out, "\t{:16x} {} ([unknown])", 0, escape(&words))?;
                }
            }
        }
        writeln!(out)?;
    }
    Ok(())
}

/// The line of a frame: address, symbol, file.
fn frame(image: &Image, place: &Place, out: &mut dyn Write) -> io::Result<()> {
    let (symbol, file) = (symbol(image, place), escape(image_name(image)));
    writeln!(out, "\t{:16x} {symbol} ({file})", place.address)
}

/// The line before the frames: command, process and thread, time, period, event.
fn record(
    resolved: &Resolved,
    (scope, thread, event, period): (&Scope, Option<&Thread>, &Event, u64),
    out: &mut dyn Write,
) -> io::Result<()> {
    let label = scope.label.as_deref().or(thread.map(|thread| thread.name.as_str()));
    let label = label.filter(|label| !label.is_empty()).unwrap_or("unknown");
    // Readers of this format take the command's name up to the first blank before a number.
    let command: String =
        escape(label).chars().map(|c| if c.is_whitespace() { '_' } else { c }).collect();
    let pid = scope.pid.or(thread.map(|thread| thread.pid)).unwrap_or(0);
    let tid = thread.map(|thread| format!("/{}", thread.tid)).unwrap_or_default();
    let (time, name) = (resolved.started_unix_s, escape(&event.name));
    writeln!(out, "{command} {pid}{tid} {time}.000000: {period:>10} {name}:")
}

fn symbol(image: &Image, place: &Place) -> String {
    match image.procedure(place) {
        Some(procedure) => {
            format!(
                "{}+{:#x}",
                escape(&procedure.name),
                place.address.saturating_sub(procedure.address)
            )
        }
        None => "[unknown]".to_owned(),
    }
}

/// The image's name, as perf writes it.
fn image_name(image: &Image) -> &str {
    match image.kind {
        ImageKind::Kernel | ImageKind::Idle => "[kernel.kallsyms]",
        _ => image.file(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_profile::{resolved, with_stacks, written};
    use super::*;

    #[test]
    fn a_record_has_the_frames_of_its_stack() {
        let (text, _) = written(|out| write(&with_stacks(), out));
        for record in [
            "w_8 7/8 1793873700.000000:       9000 cycles:\n\t          401014 ns::f(int)+0x4 (/opt/my app/app;1)\n\t          401180 evil\\nname+0x80 (/opt/my app/app;1)\n\n",
            "w_8 7/8 1793873700.000000:       3000 cycles:\n\t          401010 ns::f(int)+0x0 (/opt/my app/app;1)\n\t          401180 evil\\nname+0x80 (/opt/my app/app;1)\n\t               0 [truncated] ([unknown])\n\n",
            "w_9 7/9 1793873700.000000:    5000000 off-cpu:\n\t               0 [futex] ([unknown])\n",
        ] {
            assert!(text.contains(record), "{record}\n{text}");
        }
    }

    #[test]
    fn a_record_for_each_place_event_and_scope() {
        let (text, carried) = written(|out| write(&resolved(), out));
        let (comments, records): (Vec<&str>, Vec<&str>) =
            text.lines().partition(|line| line.starts_with('#'));
        assert_eq!(comments.len(), 5, "{comments:?}");
        let records = records.join("\n");
        let records: Vec<&str> = records.split("\n\n").collect();
        assert_eq!(
            records.first(),
            Some(
                &"unknown 0 1793873700.000000:      10000 cycles:\n\t          401010 ns::f(int)+0x0 (/opt/my app/app;1)"
            )
        );
        assert_eq!(
            records.get(1),
            Some(
                &"a_run 77 1793873700.000000:      30000 cycles:\n\t          401010 ns::f(int)+0x0 (/opt/my app/app;1)"
            )
        );
        assert!(text.contains(" 1200000 cpu-clock:\n\t          401014 ns::f(int)+0x4"), "{text}");
        assert!(
            text.contains("\t              20 clear_page+0x10 ([kernel.kallsyms])\n"),
            "{text}"
        );
        assert!(text.contains("\t               0 [unknown] ([anonymous_memory])\n"), "{text}");
        // 3 + 1 + 2 + 1 + 1 of the program, 1 + 1 others, 2 of unknown code; the last is empty.
        assert_eq!(records.iter().filter(|record| !record.is_empty()).count(), 11, "{records:?}");
        assert_eq!(carried.samples, [75, 9]);
    }
}
