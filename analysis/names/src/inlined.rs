//! The functions that a compiler inlined at an instruction, by the debug information of its image.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use image::{DebugInfo, Frame, ImageOffset, Vaddr};

use crate::procedures::Known;
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

/// The functions that are inlined at each of these offsets, the outermost first. Where there is no
/// debug information on this machine, none are known. That is no problem of a report, since its
/// procedures are.
pub(crate) fn functions(
    (image, known): (&ImageSamples, &Known),
    offsets: &[ImageOffset],
    debug_roots: &[PathBuf],
    problems: &mut Vec<Problem>,
) -> Vec<Box<[Arc<str>]>> {
    let info = |binary| DebugInfo::of(binary, debug_roots, &mut Vec::new());
    let Some(info) = known.binary.as_ref().and_then(info) else { return Vec::new() };
    let Ok(lines) = info.lines() else { return Vec::new() };
    let mut names: HashMap<String, Arc<str>> = HashMap::new();
    let mut shared = |frame: &Frame| {
        let name = name(frame);
        if let Some(known) = names.get(name) {
            return known.clone();
        }
        let new: Arc<str> = name.into();
        names.insert(name.to_owned(), new.clone());
        new
    };
    let at = |offset: &ImageOffset| {
        let frames = lines.frames(Vaddr(known.address(*offset)));
        calls(&frames).iter().rev().map(&mut shared).collect()
    };
    let functions = offsets.iter().map(at).collect();
    if let Some(why) = lines.cut() {
        let (image, id) = (image.record.name.clone(), image.record.id);
        problems.push(Problem::LinesCut { image, id, why });
    }
    functions
}
