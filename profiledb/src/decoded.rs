//! Sections of one segment as they were decoded, for a reader of one slice after the other: a
//! segment has sixty slices, and decoding it takes longer than reading one of them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use model::{Counts, Stacks};

use crate::error::DbError;
use crate::segment::{SectionKey, Span};
use crate::sliced::WithTiming;

/// Decoded sections. Those of one segment are kept until another one is read; clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Decoded(Arc<Mutex<Sections>>);

#[derive(Debug, Default)]
struct Sections {
    span: Option<Span>,
    counts: HashMap<SectionKey, Arc<WithTiming<Counts>>>,
    stacks: HashMap<SectionKey, Arc<WithTiming<Stacks>>>,
}

impl Decoded {
    /// The counts of a section of a segment, which `read` decodes if they are not known.
    pub(crate) fn counts(
        &self,
        span: Span,
        key: &SectionKey,
        read: impl FnOnce() -> Result<WithTiming<Counts>, DbError>,
    ) -> Result<Arc<WithTiming<Counts>>, DbError> {
        self.get(span, key, |sections| &mut sections.counts, read)
    }

    /// The call stacks of a section, likewise.
    pub(crate) fn stacks(
        &self,
        span: Span,
        key: &SectionKey,
        read: impl FnOnce() -> Result<WithTiming<Stacks>, DbError>,
    ) -> Result<Arc<WithTiming<Stacks>>, DbError> {
        self.get(span, key, |sections| &mut sections.stacks, read)
    }

    fn get<Counted>(
        &self,
        span: Span,
        key: &SectionKey,
        of: impl FnOnce(&mut Sections) -> &mut HashMap<SectionKey, Arc<WithTiming<Counted>>>,
        read: impl FnOnce() -> Result<WithTiming<Counted>, DbError>,
    ) -> Result<Arc<WithTiming<Counted>>, DbError> {
        // Whatever panicked elsewhere, the sections are whole.
        let mut sections = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if sections.span != Some(span) {
            *sections = Sections { span: Some(span), ..Sections::default() };
        }
        let known = of(&mut sections);
        if let Some(known) = known.get(key) {
            return Ok(known.clone());
        }
        let read = Arc::new(read()?);
        known.insert(key.clone(), read.clone());
        Ok(read)
    }
}
