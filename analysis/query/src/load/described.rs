//! Images that stacks name, with or without samples of their own.

use std::collections::{BTreeMap, BTreeSet};

use image::ImageId;

use super::{ImageSamples, Samples, nameless};
use crate::problem::{self, Problem};

impl Samples {
    /// The images with these ids as the selected epochs describe them, without samples.
    /// `problems` gets the descriptions that cannot be read.
    pub fn described(
        &self,
        ids: &BTreeSet<ImageId>,
        problems: &mut Vec<Problem>,
    ) -> Vec<ImageSamples> {
        let mut images: BTreeMap<ImageId, ImageSamples> = BTreeMap::new();
        for (at, epoch) in self.epochs.iter().enumerate() {
            let records = epoch.images().unwrap_or_else(|error| {
                problem::add_unreadable(problems, error);
                BTreeMap::new()
            });
            for id in ids {
                let record = records.get(id);
                if record.is_none() && at > 0 {
                    continue;
                }
                let record = record.cloned().unwrap_or_else(|| nameless(*id, epoch.meta()));
                let none = || ImageSamples::none(&record, self.events.len());
                let image = images.entry(*id).or_insert_with(none);
                image.meet(&record, at);
            }
        }
        images.into_values().collect()
    }
}
