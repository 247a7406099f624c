//! The annotated listing of a procedure that runs now.

use code::isa::Syntax;
use image::Procedure;

use annotate::listing;
use names::procedures::{self, Known, Places};
use query::load::ImageSamples;

/// Most instructions of a listing.
const LINES_MAX: usize = 20_000;

/// A line of a listing: a source line, or an instruction with its samples.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Line {
    /// Samples of the instruction, since dcpi top began; none of a source line.
    pub(super) samples: Option<u64>,
    pub(super) text: String,
}

/// Source lines and instructions of a procedure, with `samples` of each offset range.
pub(super) fn of(
    (image, known): (&ImageSamples, &Known),
    procedure: &Procedure,
    places: &Places,
    samples: impl Fn(u64, u64) -> u64,
) -> Vec<Line> {
    let mut problems = Vec::new();
    let info = known.debug_info(image, places, &mut problems);
    let lines = info.as_ref().and_then(|info| procedures::lines(info, image, &mut problems));
    let listing = listing::of(image, known, procedure, Some(Syntax::Att), lines.as_ref());
    let mut shown = Vec::new();
    let mut before = None;
    for instruction in listing.instructions.iter().take(LINES_MAX) {
        let place = instruction.frames.first().and_then(|frame| {
            let file = frame.file.as_deref()?.rsplit('/').next()?;
            Some(format!("{file}:{}", frame.line?))
        });
        if place.is_some() && place != before {
            let text = place.clone().unwrap_or_default();
            shown.push(Line { samples: None, text });
            before = place;
        }
        let end = instruction.offset.0.saturating_add(instruction.len.max(1));
        let target = instruction.target_name.as_deref();
        let target = target.map(|name| format!(" <{name}>")).unwrap_or_default();
        shown.push(Line {
            samples: Some(samples(instruction.offset.0, end)),
            text: format!("{:x}  {}{target}", instruction.address, instruction.text),
        });
    }
    shown
}
