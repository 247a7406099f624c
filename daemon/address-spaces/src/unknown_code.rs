//! Whose the samples are that have no image.

use crate::mapped_files::Image;
use image::{ImageId, ImageKind};
use model::Unresolved;
use profiledb::Scope;
use std::collections::HashMap;
use std::sync::Arc;

/// Programs, each once for a reason, whose samples without image are told apart from others'.
const OWNERS_MAX: usize = 4096;

/// Whose samples are of unknown code.
#[derive(Clone, Debug)]
pub struct Owner {
    /// What stands for the image that is not known: one for each program and reason.
    pub image: Arc<Image>,
    /// Label, unit and process, where those are kept apart.
    pub scope: Option<Arc<Scope>>,
}

/// What stands for images that are not known.
#[derive(Debug, Default)]
pub struct UnknownCode {
    images: HashMap<(String, Unresolved), Arc<Image>>,
}

impl UnknownCode {
    /// What samples of the program of that name count under, whose image is not known for this
    /// reason. None when there are too many programs: then they are only in the ledger.
    pub fn of(&mut self, program: &str, reason: Unresolved) -> Option<Arc<Image>> {
        let key = (program.to_owned(), reason);
        if self.images.len() >= OWNERS_MAX && !self.images.contains_key(&key) {
            return None;
        }
        let image = self.images.entry(key).or_insert_with(|| {
            Arc::new(Image {
                id: ImageId::unresolved(program, reason.name()),
                kind: ImageKind::Unresolved,
                name: program.to_owned(),
                path: reason.name().to_owned(),
                size_bytes: None,
                procedures: None,
            })
        });
        Some(image.clone())
    }
}
