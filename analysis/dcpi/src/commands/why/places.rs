//! Where findings are: builds, and places in the source.

use std::collections::BTreeSet;

use image::Vaddr;

use super::Judged;
use names::procedures::{self, Needed, Places};
use query::load::{ImageSamples, Samples};
use query::problem::Problem;
use report::{WhyFinding, WhySource};

/// Marks findings of images of whose name another build has samples.
pub(super) fn mark_builds(findings: &mut [WhyFinding], samples: &Samples) {
    for found in findings {
        let is_other = |image: &ImageSamples| {
            image.wanted
                && image.unresolved().is_none()
                && found.image.as_ref() == Some(&image.record.name)
                && found.image_id.is_some_and(|id| id != image.record.id)
        };
        found.is_one_of_builds = samples.images.iter().any(is_other);
    }
}

/// Adds the places in the source to findings that are shown. The debug information of an image is
/// read once, for all of its findings.
pub(super) fn add_sources(
    findings: &mut [WhyFinding],
    judged: &[Judged],
    (samples, places): (&Samples, &Places),
    problems: &mut Vec<Problem>,
) {
    for image in &samples.images {
        let own = judged.iter().filter(|one| one.image == image.record.id);
        let own: BTreeSet<(&str, u64)> =
            own.map(|one| (one.procedure.as_str(), one.address())).collect();
        let is_own = |found: &&mut WhyFinding| {
            let of = found.procedure.as_deref().zip(found.address);
            found.image_id == Some(image.record.id) && of.is_some_and(|of| own.contains(&of))
        };
        let mut own: Vec<&mut WhyFinding> = findings.iter_mut().filter(is_own).collect();
        if own.is_empty() {
            continue;
        }
        // What is missing was told when the image was explained.
        let mut told = Vec::new();
        let known = procedures::known(samples, image, places, Needed::All, &mut told).ok();
        let info = known.and_then(|known| known.debug_info(image, places, problems));
        let lines = info.as_ref().and_then(|info| procedures::lines(info, image, problems));
        let Some(lines) = lines else { continue };
        for found in &mut own {
            let frames = lines.frames(Vaddr(found.address.unwrap_or_default()));
            let frame = frames.into_iter().find(|frame| frame.line.is_some());
            let place = frame.and_then(|frame| frame.file.zip(frame.line));
            found.source = place.map(|(file, line)| WhySource { file, line });
        }
    }
}
