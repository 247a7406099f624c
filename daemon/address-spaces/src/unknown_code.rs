//! The owners of samples without an image.

use crate::mapped_files::Image;
use image::{ImageId, ImageKind};
use model::Unresolved;
use profiledb::Scope;
use std::collections::HashMap;
use std::sync::Arc;

/// Programs, each once for a reason, whose samples without image are told apart from others'.
const OWNERS_MAX: usize = 4096;

/// The owner of samples of unknown code.
#[derive(Clone, Debug)]
pub struct Owner {
    /// The image that stands for unknown code, one for each program and reason.
    pub image: Arc<Image>,
    /// Label, unit and process, where those are kept apart.
    pub scope: Option<Arc<Scope>>,
}

/// The images that stand for unknown code.
#[derive(Debug, Default)]
pub struct UnknownCode {
    images: HashMap<(String, Unresolved), Arc<Image>>,
}

impl UnknownCode {
    /// The image for samples of the program of that name whose own image is unknown for this
    /// reason. None when there are too many programs; such samples are in the ledger only.
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
