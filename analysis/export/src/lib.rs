//! Profiles for other tools. One file per format; each takes [`Resolved`] data and writes to any
//! [`std::io::Write`].
//!
//! Samples of this profiler have no times of their own, and no process unless dcpid kept processes
//! apart, so no format can carry more; where the database has call stacks, [`stacks`] divides the
//! samples among them. Most formats carry less: [`Carried`] counts the samples that a format has no
//! place for.
#![forbid(unsafe_code)]

use std::fmt;

use image::{Frame, ImageId, ImageKind, Segment, Site};
use names::inlined;
use profiledb::Scope;

pub mod addresses;
pub mod autofdo;
pub mod bolt;
pub mod executed;
pub mod firefox;
pub mod folded;
pub mod otlp;
pub mod pprof;
pub mod resolve;
pub mod script;
pub mod speedscope;
pub mod stacks;

mod pieces;

/// The image of samples of unknown code, in formats that have a place for them.
pub const UNKNOWN_CODE: &str = "[unknown code]";

/// The samples of a selection, with names, lines and executions of their instructions.
#[derive(Debug, Default)]
pub struct Resolved {
    /// The events; each place has a count for each of them.
    pub events: Vec<Event>,
    /// The images with samples, those with the most samples of the first event first.
    pub images: Vec<Image>,
    /// The scopes of the samples; samples that were not kept apart have an empty scope.
    pub scopes: Vec<Scope>,
    /// The hosts, each once.
    pub hosts: Vec<String>,
    /// The epochs, each once, by time.
    pub epochs: Vec<String>,
    /// Begin of the first epoch, seconds since 1970 UTC.
    pub started_unix_s: u64,
    /// End of the last epoch, or its last merge, seconds since 1970 UTC.
    pub ended_unix_s: u64,
    /// Skid of the samples, in words.
    pub landed: String,
    /// Call stacks, with the samples that they have; all other samples are at places.
    pub stacks: stacks::Stacks,
}

/// An event.
#[derive(Clone, Debug, Default)]
pub struct Event {
    /// Its name, as in perf.
    pub name: String,
    /// Unit of its period: `ns`, `cycles` or `count`.
    pub unit: String,
    /// Mean distance of samples in `unit`.
    pub period: u64,
    /// Occurrences that a sample stands for, in `unit`: the period, and more where the event had a
    /// counter only part of the time.
    pub weight: f64,
    /// Samples of the images here.
    pub samples: u64,
    /// Samples of the idle loop that are not here.
    pub idle: u64,
    /// Samples of unknown code, by reason; only where all images and all processes were asked for.
    pub unresolved: Vec<(String, u64)>,
    /// Samples that were lost.
    pub lost: u64,
    /// Notes on the event.
    pub notes: Vec<String>,
}

/// An image with samples.
#[derive(Clone, Debug)]
pub struct Image {
    /// The id of its build.
    pub id: ImageId,
    /// The kind of the image.
    pub kind: ImageKind,
    /// Its file's name, or a name in brackets.
    pub name: String,
    /// Its path, escaped; empty where there is none.
    pub path: String,
    /// Its pieces that may be executed; none where the file could not be read, and for what is not
    /// a file: addresses are offsets then.
    pub segments: Vec<Segment>,
    /// Procedures with samples, by address.
    pub procedures: Vec<Procedure>,
    /// The name of places outside of all procedures.
    pub nameless: String,
    /// Places with samples, by address.
    pub places: Vec<Place>,
    /// Executions of its code; none if they were not asked for, or are not known.
    pub executed: Option<executed::Executed>,
}

/// A procedure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Procedure {
    /// Its name for people.
    pub name: String,
    /// Its name for linkers.
    pub raw: String,
    /// Its first byte's address, as [`Place::address`].
    pub address: u64,
    /// Its size in bytes.
    pub size: u64,
}

/// An instruction with samples, or one from which samples skidded.
#[derive(Clone, Debug)]
pub struct Place {
    /// Offset in the image.
    pub offset: u64,
    /// In a file the virtual address that `objdump` shows; else the offset.
    pub address: u64,
    /// Index of [`Image::procedures`].
    pub procedure: Option<usize>,
    /// Its place in the source, the innermost inlined call first; none if it was not asked for, or
    /// is not known.
    pub frames: Vec<Frame>,
    /// Its place in the form of compilers' profiles, the procedure first; none if it was not asked
    /// for, or is not known.
    pub sites: Vec<Site>,
    /// Samples by event, for each scope that has some: index of [`Resolved::scopes`].
    pub counts: Vec<(usize, Vec<u64>)>,
}

/// A procedure, or a call that is inlined in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call<'a> {
    /// Its name for people.
    pub name: &'a str,
    /// Its name for linkers.
    pub raw: &'a str,
    /// Its source file; empty where that is not known.
    pub file: &'a str,
    /// The line.
    pub line: Option<u32>,
}

/// The samples that were written, and those that the format has no place for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// Samples by event.
    pub samples: Vec<u64>,
    /// Samples left out of events that were written, by reason.
    pub left_out: Vec<(String, u64)>,
    /// Notes for the user.
    pub notes: Vec<String>,
}

impl Place {
    /// Samples of an event, of all scopes.
    pub fn samples(&self, event: usize) -> u64 {
        let of_event = self.counts.iter().filter_map(|(_, counts)| counts.get(event));
        of_event.fold(0, |sum: u64, count| sum.saturating_add(*count))
    }
}

impl Image {
    /// The procedure of a place, or how a place without one is called.
    pub fn procedure_name(&self, place: &Place) -> &str {
        self.procedure(place).map_or(&self.nameless, |procedure| &procedure.name)
    }

    /// The procedure of a place and the calls inlined there, the innermost last; one that has no
    /// name is called as places without procedure are.
    pub fn functions<'a>(&'a self, place: &'a Place) -> Vec<&'a str> {
        // The symbol table's name, not the debug information's: it is what other reports show.
        let inlined = inlined::calls(&place.frames).iter().rev().map(inlined::name);
        std::iter::once(self.procedure_name(place)).chain(inlined).collect()
    }

    /// The same with lines, the innermost first; none where no procedure is known.
    pub fn calls<'a>(&'a self, place: &'a Place) -> Vec<Call<'a>> {
        let Some(procedure) = self.procedure(place) else { return Vec::new() };
        let file = |frame: Option<&'a Frame>| {
            frame.and_then(|frame| frame.file.as_deref()).unwrap_or_default()
        };
        let inlined = inlined::calls(&place.frames).iter().map(|frame| {
            let name = inlined::name(frame);
            Call { name, raw: name, file: file(Some(frame)), line: frame.line }
        });
        let own = place.frames.last();
        let (name, raw) = (&procedure.name, &procedure.raw);
        inlined
            .chain([Call { name, raw, file: file(own), line: own.and_then(|frame| frame.line) }])
            .collect()
    }

    /// The procedure of a place.
    pub fn procedure(&self, place: &Place) -> Option<&Procedure> {
        self.procedures.get(place.procedure?)
    }

    /// Samples of an event.
    pub fn samples(&self, event: usize) -> u64 {
        self.places.iter().fold(0, |sum: u64, place| sum.saturating_add(place.samples(event)))
    }

    /// Whether the kernel runs it.
    pub const fn is_kernel(&self) -> bool {
        matches!(
            self.kind,
            ImageKind::Kernel | ImageKind::Module | ImageKind::Bpf | ImageKind::Idle
        )
    }

    /// The path, or the name where there is none.
    pub fn file(&self) -> &str {
        if self.path.is_empty() { &self.name } else { &self.path }
    }
}

impl Event {
    /// Samples of unknown code.
    pub fn unknown(&self) -> u64 {
        self.unresolved.iter().fold(0, |sum: u64, (_, samples)| sum.saturating_add(*samples))
    }

    /// Occurrences that this many samples stand for, rounded.
    pub fn occurrences(&self, samples: u64) -> u64 {
        // The cast saturates.
        (samples as f64 * self.weight).round() as u64
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, unit, period, samples, idle, lost, .. } = self;
        let unknown = self.unknown();
        if *period == 0 {
            return write!(f, "{name}: {samples} stacks, which stand for their own time");
        }
        write!(
            f,
            "{name}: {samples} samples, one every {period} {unit} of a CPU; besides {unknown} of unknown code, {idle} idle, {lost} lost"
        )?;
        self.notes.iter().try_for_each(|note| write!(f, "; {note}"))
    }
}

impl Resolved {
    /// Comments for a file of any format, a line each.
    pub fn comments(&self) -> Vec<String> {
        let mut comments = vec![
            format!(
                "dcpi {}, hosts {}, epochs {}",
                env!("CARGO_PKG_VERSION"),
                self.hosts.join(" "),
                self.epochs.join(" ")
            ),
            match self.stacks.is_empty() {
                true => "flat: samples have no call stacks".to_owned(),
                false => "the samples of a procedure are divided among its call stacks; \
                          procedures without stacks are flat"
                    .to_owned(),
            },
            self.landed.clone(),
        ];
        comments.extend(self.events.iter().map(Event::to_string));
        comments
    }

    /// The name of an event's samples: with one event, the name that other profilers use.
    pub fn samples_name(&self, event: &Event) -> String {
        // Stacks of time off the CPU are not samples.
        let sampled = self.events.iter().filter(|event| event.period > 0).count();
        if sampled <= 1 && (event.period > 0 || self.events.len() == 1) {
            "samples".to_owned()
        } else {
            format!("{}_samples", event.name)
        }
    }

    /// Samples of unknown code, by reason and event.
    pub fn unknown_code(&self) -> Vec<(&str, Vec<u64>)> {
        let mut reasons: Vec<(&str, Vec<u64>)> = Vec::new();
        for (at, event) in self.events.iter().enumerate() {
            for (reason, samples) in &event.unresolved {
                let known = reasons.iter().position(|(known, _)| known == reason);
                let number = known.unwrap_or_else(|| {
                    reasons.push((reason, vec![0; self.events.len()]));
                    reasons.len() - 1
                });
                if let Some(count) =
                    reasons.get_mut(number).and_then(|(_, counts)| counts.get_mut(at))
                {
                    *count = *samples;
                }
            }
        }
        reasons
    }

    /// Samples by event that are at places.
    pub fn at_places(&self) -> Vec<u64> {
        self.events.iter().map(|event| event.samples).collect()
    }
}

#[cfg(test)]
pub(crate) mod test_profile;
