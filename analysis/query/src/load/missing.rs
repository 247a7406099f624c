//! Missing data: damage, and events and images that have call stacks but no samples.

use image::ImageKind;
use profiledb::{DbError, Epoch, ImageRecord};

use super::Contents;
use crate::error::AnalysisError;
use crate::problem::{self, Problem};
use crate::select;

/// The name of the event that is wall-clock time of threads, the sum of others; its unit is ns.
pub const USERTIME: &str = "usertime";

/// The error of an event without samples, which may have call stacks.
pub(crate) fn no_samples(asked: &str, epochs: &[Epoch], known: Vec<String>) -> AnalysisError {
    let keys: Vec<_> = epochs.iter().flat_map(Epoch::stacks_keys).collect();
    let has_stacks = keys.iter().any(|key| key.event == asked);
    match has_stacks || (asked == USERTIME && !keys.is_empty()) {
        true => AnalysisError::StacksOnly { event: asked.to_owned() },
        false => AnalysisError::NoEvent { asked: asked.to_owned(), known },
    }
}

/// The error of an image without samples, which may have frames in call stacks: a source file of an
/// interpreter has nothing else.
pub(super) fn frames_only(
    error: AnalysisError,
    epochs: &[Epoch],
    contents: &[Contents],
) -> AnalysisError {
    let AnalysisError::NoImage { asked } = &error else { return error };
    let records = contents.iter().flat_map(|contents| contents.records.values());
    let known = |record: &&ImageRecord| record.kind != ImageKind::Unresolved;
    let found = select::images(std::slice::from_ref(asked), records.filter(known));
    let has_stacks = epochs.iter().any(|epoch| !epoch.stacks_keys().is_empty());
    match found.is_ok() && has_stacks {
        true => AnalysisError::FramesOnly { image: asked.clone() },
        false => error,
    }
}

/// The damage of an epoch's description and of its files.
pub(super) fn damage(epoch: &Epoch) -> Vec<DbError> {
    let meta = epoch.meta();
    let damaged = epoch.damage().iter().map(|damage| DbError::Damaged {
        host: meta.host.clone(),
        epoch: meta.epoch.clone(),
        why: damage.to_string(),
    });
    damaged.chain(epoch.damaged_files()).collect()
}

/// Adds the damage of an epoch, as reading its samples does.
pub(crate) fn add_damage(epoch: &Epoch, problems: &mut Vec<Problem>) {
    damage(epoch).into_iter().for_each(|error| problem::add_unreadable(problems, error));
}
