//! Names for an epoch that leaves its host: those of procedures with samples or frames, from the
//! files and debug files that the host has, which a reader elsewhere has not.

use std::collections::{BTreeMap, BTreeSet};

use image::{Binary, ImageId, ImageKind, ImageOffset};
use model::Frame;
use profiledb::{DbError, Epoch, Symbol};

use crate::procedures::{Needed, Places};

/// The symbols of an epoch's files that its samples and stacks need, in order of offset. A file
/// that is gone, is another build, or cannot be read has none: what dcpid kept of it leaves, too.
///
/// # Errors
/// Those of reading the epoch.
pub fn symbols(epoch: &Epoch, places: &Places) -> Result<BTreeMap<ImageId, Vec<Symbol>>, DbError> {
    let mut offsets: BTreeMap<ImageId, BTreeSet<ImageOffset>> = BTreeMap::new();
    for key in epoch.profiles()? {
        let profile = epoch.profile(&key)?;
        offsets.entry(key.image).or_default().extend(profile.iter().map(|(offset, _)| offset));
    }
    for key in epoch.stacks_keys() {
        for frame in epoch.stacks(&key)?.distinct_frames() {
            if let Frame::Code(image, offset) = frame {
                offsets.entry(*image).or_default().insert(*offset);
            }
        }
    }
    let mut found = BTreeMap::new();
    for (id, record) in epoch.images()? {
        let Some(offsets) = offsets.remove(&id).filter(|_| record.kind == ImageKind::File) else {
            continue;
        };
        let binary = Binary::open(&record.real_path(), Some(&id)).ok();
        let offsets: Vec<ImageOffset> = offsets.into_iter().collect();
        let named = binary.and_then(|binary| named(&binary, &offsets, places));
        found.extend(named.filter(|symbols| !symbols.is_empty()).map(|symbols| (id, symbols)));
    }
    Ok(found)
}

/// The symbols at these offsets. What has its address for a name has none.
fn named(binary: &Binary, offsets: &[ImageOffset], places: &Places) -> Option<Vec<Symbol>> {
    let (procedures, _) = Needed::At(offsets).of(binary, places).ok()?;
    let mut symbols = BTreeMap::new();
    for procedure in offsets.iter().filter_map(|offset| procedures.find(*offset)) {
        let (start, end, name) =
            (procedure.start.0, procedure.end.0, procedure.raw_name().to_owned());
        if !name.starts_with("0x") {
            symbols.insert(start, Symbol { start, end, name });
        }
    }
    Some(symbols.into_values().collect())
}
