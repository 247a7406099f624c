//! The functions that a compiler inlined at an instruction, by the debug information of its image.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use image::{DebugInfo, Frame, ImageOffset, Vaddr};

use crate::procedures::{Known, SourceLine};
use query::load::ImageSamples;
use query::problem::Problem;

/// The name of code that has none.
pub const UNKNOWN: &str = "[unknown]";

/// The calls that are inlined at an instruction, the innermost first: its frames without that of
/// the procedure. The symbol table names the procedure, as in reports without debug information.
pub fn calls(frames: &[Frame]) -> &[Frame] {
    frames.split_last().map(|(_, inlined)| inlined).unwrap_or_default()
}

/// The name of an inlined function.
pub fn name(frame: &Frame) -> &str {
    frame.function.as_deref().unwrap_or(UNKNOWN)
}

/// What debug information says of code: the functions that are inlined there, and lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Inside {
    /// The functions, the outermost first.
    pub(crate) inlined: Box<[Arc<str>]>,
    /// The line of the procedure that is there, and of each of the functions; empty where lines
    /// were not asked for.
    pub(crate) lines: Box<[Option<SourceLine>]>,
}

/// For each of the offsets, the functions that a compiler inlined there, outermost first, with
/// their source lines if `with_lines`. Without debug information on this machine it finds none, and
/// adds no problem: reports name the procedures all the same.
pub(crate) fn inside(
    (image, known): (&ImageSamples, &Known),
    (offsets, with_lines): (&[ImageOffset], bool),
    debug_roots: &[PathBuf],
    problems: &mut Vec<Problem>,
) -> Vec<Inside> {
    let info = |binary| DebugInfo::of(binary, debug_roots, &mut Vec::new());
    let Some(info) = known.binary.as_ref().and_then(info) else { return Vec::new() };
    let Ok(lines) = info.lines() else { return Vec::new() };
    let mut names: HashMap<String, Arc<str>> = HashMap::new();
    let mut shared = |name: &str| {
        if let Some(known) = names.get(name) {
            return known.clone();
        }
        let new: Arc<str> = name.into();
        names.insert(name.to_owned(), new.clone());
        new
    };
    let at = |offset: &ImageOffset| {
        let frames = lines.frames(Vaddr(known.address(*offset)));
        let inlined = calls(&frames).iter().rev().map(|frame| shared(name(frame))).collect();
        let line = |frame: &Frame| {
            Some(SourceLine { file: shared(frame.file.as_deref()?), line: frame.line? })
        };
        let lines = match with_lines {
            true => frames.iter().rev().map(line).collect(),
            false => [].into(),
        };
        Inside { inlined, lines }
    };
    let found = offsets.iter().map(at).collect();
    if let Some(why) = lines.cut() {
        let (image, id) = (image.record.name.clone(), image.record.id);
        problems.push(Problem::LinesCut { image, id, why });
    }
    found
}
