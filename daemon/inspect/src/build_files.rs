//! Opening files that processes have mapped, as the builds that they are.

use super::questions::{FileAt, Known};
use crate::file_catalogue::Catalogue;
use crate::file_facts::FileFacts;
use crate::open_mapped::{open_by_path, open_mapped, open_through_mapping};
use image::{ImageError, ImageId};
use kernel::MappedFileId;
use std::fs::File;

/// Opens the very file that was mapped, or the build that the kernel's record names.
pub fn opened_for_tables(file: &FileAt, catalogue: &Catalogue) -> Option<File> {
    match file.id.build() {
        Some(image) => open_build(file, image, catalogue).map(|(file, _)| file),
        None => opened(file),
    }
}

/// Opens the very file that was mapped, or the one at its path that has its inode, which may have
/// grown since: compilers write their dumps after they have mapped them.
pub fn opened_grown(FileAt { id, path, at }: &FileAt) -> Option<File> {
    let is_it =
        |file: &File| file.metadata().is_ok_and(|now| FileFacts::of(&now).is_inode_of_layers(id));
    open_mapped(id, &path.0, *at, is_it)
}

/// Opens the very file that was mapped. `None` where a recording has its build id only.
pub fn opened(FileAt { id, path, at }: &FileAt) -> Option<File> {
    match id {
        MappedFileId::BuildId(_) => None,
        MappedFileId::Inode { .. } => open_mapped(id, &path.0, *at, |_| true),
        // Opens it by its path only if it has not been changed since.
        MappedFileId::Version { content, .. } => {
            let facts = |file: &File| file.metadata().map(|now| FileFacts::of(&now));
            // Something else may be mapped there by now.
            let mapped = open_through_mapping(*at)
                .filter(|file| facts(file).is_ok_and(|now| now.is_inode_of_layers(id)));
            let same = |file: &File| facts(file).is_ok_and(|now| Some(now.content()) == *content);
            mapped.or_else(|| open_by_path(id, &path.0, *at).find(same))
        }
    }
}

/// Opens the file if it is still there and is that build; its facts from before it was read.
pub fn open_build(
    FileAt { id, path, at }: &FileAt,
    image: ImageId,
    catalogue: &Catalogue,
) -> Option<(File, FileFacts)> {
    let before = std::cell::Cell::new(None);
    let is_it = |file: &File| {
        let found = identify_known(file, catalogue);
        found.is_ok_and(|(known, facts, _)| {
            before.set(Some(facts));
            matches!(known, Known::Image(found) if image.is_build(&found))
        })
    };
    let file = open_mapped(id, &path.0, *at, is_it)?;
    Some((file, before.take()?))
}

/// Identifies a file by the catalogue or by its content. Returns also its metadata before and after
/// reading.
pub fn identify_known(
    file: &File,
    catalogue: &Catalogue,
) -> Result<(Known, FileFacts, FileFacts), ImageError> {
    let facts = || {
        let found = file.metadata();
        let found = found.map_err(|source| ImageError::Io { op: "stat", path: None, source });
        found.map(|found| FileFacts::of(&found))
    };
    let before = facts()?;
    if let Some(known) = catalogue.find(&before) {
        return Ok((known, before, before));
    }
    let known = match image::identify_file(file) {
        Ok(id) => Known::Image(id),
        Err(ImageError::NotElf) => Known::NotElf,
        Err(error) => return Err(error),
    };
    let after = facts()?;
    catalogue.learn(&before, &after, known);
    Ok((known, before, after))
}
