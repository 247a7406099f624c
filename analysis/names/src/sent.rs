//! Names that a push adds to an epoch: those of the sampled procedures, from files and debug files
//! that only the host has.

use std::collections::{BTreeMap, BTreeSet};

use image::{Binary, ImageId, ImageKind, ImageOffset};
use model::Frame;
use profiledb::{DbError, Epoch, Symbol};

use crate::named;
use crate::procedures::{Needed, Places};

/// By image, the symbols of the procedures that an epoch's samples and frames are in, in order of
/// offset. Only images are here whose file is still at its path and is the same build. The names of
/// others are in the code that dcpid kept of them, which is pushed as well.
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
        let symbols = binary.and_then(|binary| symbols_at(&binary, &offsets, places));
        found.extend(symbols.filter(|symbols| !symbols.is_empty()).map(|symbols| (id, symbols)));
    }
    Ok(found)
}

/// The symbols at these offsets. Procedures that are named by their address are left out.
fn symbols_at(binary: &Binary, offsets: &[ImageOffset], places: &Places) -> Option<Vec<Symbol>> {
    let (procedures, _) = Needed::At(offsets).of(binary, places).ok()?;
    let mut symbols = BTreeMap::new();
    for procedure in offsets.iter().filter_map(|offset| procedures.find(*offset)) {
        let (start, end, name) =
            (procedure.start.0, procedure.end.0, procedure.raw_name().to_owned());
        if named::address(&name).is_none() {
            symbols.insert(start, Symbol { start, end, name });
        }
    }
    Some(symbols.into_values().collect())
}
