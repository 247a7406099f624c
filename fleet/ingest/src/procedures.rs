//! Names of procedures: those that its host sent with the epoch, which it looked up in its files
//! and debug files; else from the code that the store has of an image.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use image::{ImageId, ImageOffset, Procedure, Procedures};
use profiledb::{Database, Epoch};

/// Images whose procedures are kept in memory.
const KEPT_MAX: usize = 512;

/// Procedures by image, read once.
#[derive(Default)]
pub(crate) struct Named {
    of_files: Mutex<HashMap<ImageId, Arc<OfFile>>>,
}

/// The procedures in the kept part of a file.
#[derive(Default)]
struct OfFile {
    procedures: Procedures,
    /// As of `tables::Build`.
    quality: i64,
}

/// The procedures of an image in an epoch.
pub(crate) struct Names {
    of_file: Arc<OfFile>,
    of_epoch: Procedures,
    /// Whence names are, as of `tables::Build`.
    pub(crate) quality: i64,
}

impl Named {
    /// The procedures of an image in an epoch. What cannot be read names nothing.
    pub(crate) fn of(&self, database: &Database, epoch: &Epoch, image: &ImageId) -> Names {
        let of_file = self.of_file(database, &epoch.meta().host, image);
        let symbols = epoch.symbols(image).unwrap_or_default().into_iter();
        let of_epoch = Procedures::from_list(symbols.map(|symbol| {
            Procedure::new(ImageOffset(symbol.start), ImageOffset(symbol.end), symbol.name)
        }));
        let quality = match (of_file.quality, of_epoch.is_empty()) {
            (0, true) => 0,
            (0, false) => 1,
            (quality, _) => quality,
        };
        Names { of_file, of_epoch, quality }
    }

    fn of_file(&self, database: &Database, host: &str, image: &ImageId) -> Arc<OfFile> {
        let lock = || self.of_files.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = lock().get(image) {
            return Arc::clone(known);
        }
        // Two threads may read the same file; none waits for the other.
        let of_file = Arc::new(read(database, host, image));
        let mut kept = lock();
        if kept.len() >= KEPT_MAX {
            kept.clear();
        }
        kept.insert(*image, Arc::clone(&of_file));
        of_file
    }
}

/// The procedures of an image's kept part. What is damaged names nothing, and is not looked at
/// again for better names.
fn read(database: &Database, host: &str, image: &ImageId) -> OfFile {
    let kept = match database.code(host, image) {
        Ok(Some(kept)) => kept,
        Ok(None) => return OfFile::default(),
        Err(_) => return OfFile { quality: 3, ..OfFile::default() },
    };
    let quality = if kept.is_excerpt() { 2 } else { 3 };
    let procedures = kept.procedures(Some(image), None, &[]);
    OfFile { procedures: procedures.map(|(found, _)| found).unwrap_or_default(), quality }
}

impl Names {
    /// The procedure at an offset; None where no symbol names it.
    pub(crate) fn find(&self, offset: ImageOffset) -> Option<&Procedure> {
        self.of_epoch.find(offset).or_else(|| self.of_file.procedures.find(offset))
    }
}
