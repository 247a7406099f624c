//! Source files that have samples of the interpreters that ran their functions.

use std::collections::BTreeMap;

use image::{ImageId, ImageOffset};
use model::Language;

use super::Samples;

/// A source file whose functions an interpreter ran.
#[derive(Clone, Debug, Default)]
pub struct Interpreted {
    /// The language of the interpreter.
    pub language: Language,
    /// For each place with samples the call stacks by which these were divided, of all events.
    pub stacks: BTreeMap<ImageOffset, u64>,
}

impl Samples {
    /// The language of an image that is a source file.
    pub fn language(&self, image: &ImageId) -> Option<Language> {
        self.interpreted.get(image).map(|file| file.language)
    }
}
