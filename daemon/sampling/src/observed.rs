//! Observations of edges, rounds and outcomes, on their way to the counts.

use address_spaces::mapped_files::Image;
use model::{Measure, Observation};
use std::sync::Arc;

/// Equal observations in an image.
pub(crate) struct Observed {
    pub(crate) image: Arc<Image>,
    pub(crate) measure: &'static Measure,
    pub(crate) observation: Observation,
    pub(crate) times: u64,
}
