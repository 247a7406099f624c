//! Excerpts: a recording keeps only the code that its samples need.
//!
//! Three quarters of a code store's bytes are code, and a recording has samples in a few hundred of
//! a large program's tens of thousands of procedures. dcpid keeps files whole, since it cannot know
//! which procedures will have samples tomorrow. At the end of a recording this is known: procedures
//! that no report on its samples needs are removed; headers, symbols, unwind tables, relocations
//! and read-only data stay.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use image::{Binary, ImageId, ImageOffset};
use model::{EDGES, Edges};
use profiledb::{Database, DbError, Writer, keep_excerpt};

use crate::graphs;
use query::error::AnalysisError;

/// Kept files of fewer bytes stay whole: an excerpt would save less than reading them takes.
const WHOLE_MAX_BYTES: u64 = 64 << 10;
/// A database of more epochs is no recording's own; to read them all would take longer than the
/// recording.
const EPOCHS_MAX: usize = 64;

/// Bytes of the code store before and after.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Saved {
    /// Before.
    pub before: u64,
    /// After.
    pub after: u64,
}

/// Removes the kept code of a host that the samples of its epochs do not need. Small files and
/// files that cannot be understood stay whole, and all files if there are more than 64 epochs.
///
/// # Errors
/// [`AnalysisError::Database`], also while a daemon writes this host's part of the database.
pub fn take(root: &Path, host: &str, debug_roots: &[PathBuf]) -> Result<Saved, AnalysisError> {
    let writer = Writer::open(root, host)?;
    let db = Database::open(root)?;
    let epochs = db.epochs(host)?;
    let mut saved = Saved::default();
    if epochs.len() > EPOCHS_MAX {
        return Ok(saved);
    }
    let sampled = sampled(&db, host, &epochs)?;
    for (image, bytes) in db.code_bytes(host)? {
        let offsets = sampled.get(&image).map_or(&[][..], Vec::as_slice);
        let excerpt = match db.code(host, &image)? {
            Some(kept) if bytes > WHOLE_MAX_BYTES && !kept.is_excerpt() => {
                Binary::of_kept(kept, None, None).ok().and_then(|binary| {
                    let unneeded = graphs::unneeded(&binary, offsets, debug_roots)?;
                    binary.kept()?.without(&unneeded).ok()
                })
            }
            _ => None,
        };
        let after = match excerpt {
            Some(excerpt) => keep_excerpt(&writer, &image, &excerpt)?.1,
            None => bytes,
        };
        saved.before = saved.before.saturating_add(bytes);
        saved.after = saved.after.saturating_add(after);
    }
    Ok(saved)
}

/// The offsets of each image with samples or observed branches, in order.
fn sampled(
    db: &Database,
    host: &str,
    epochs: &[profiledb::EpochId],
) -> Result<BTreeMap<ImageId, Vec<ImageOffset>>, DbError> {
    let mut sampled: BTreeMap<ImageId, Vec<ImageOffset>> = BTreeMap::new();
    for epoch in epochs {
        let epoch = db.epoch(host, epoch)?;
        for key in epoch.profiles()? {
            let profile = epoch.profile(&key)?;
            sampled.entry(key.image).or_default().extend(profile.iter().map(|(offset, _)| offset));
        }
        for image in epoch.images()?.into_keys() {
            let edges: Edges = epoch.observed(&EDGES, &image)?;
            sampled
                .entry(image)
                .or_default()
                .extend(edges.iter().flat_map(|((from, to), _)| [from, to]));
        }
    }
    for offsets in sampled.values_mut() {
        offsets.sort_unstable();
        offsets.dedup();
    }
    Ok(sampled)
}
