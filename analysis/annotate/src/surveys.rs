//! Surveys that a server keeps. A survey follows from the code of an image alone, so it does not
//! change with new samples, and takes most of the time of `dcpi why` (two thirds of it on a host
//! that compiles). A command that runs once keeps none: it would hold memory for nothing.

use std::collections::VecDeque;
use std::hash::{BuildHasher as _, Hasher, RandomState};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use code::cfg::{Part, Survey};
use code::isa::Isa;
use image::Vaddr;

/// Most surveys that are kept: a survey takes some 10 bytes for each procedure of its image, one of
/// a compiler 1 MB. With fewer, the images of a busy host displace each other at each report.
const KEPT_MAX: usize = 64;

/// The input of a survey.
#[derive(Debug)]
pub(crate) struct Surveyable<'a> {
    pub(crate) isa: Isa,
    pub(crate) text: &'a [Part<'a>],
    pub(crate) procedures: &'a [Range<u64>],
    /// See [`Survey::of`].
    pub(crate) never: &'a [Vaddr],
}

/// Surveys by the hash of their input, the one used last at the end.
#[derive(Debug, Default)]
struct Kept {
    /// With keys that nobody can guess: nobody can make code with the hash of other code.
    hashes: RandomState,
    surveys: VecDeque<(u64, Arc<Survey>)>,
}

static KEPT: OnceLock<Mutex<Kept>> = OnceLock::new();

/// Keeps surveys from now on, for this process's later reports.
pub fn keep() {
    KEPT.get_or_init(Mutex::default);
}

/// The survey of an image.
pub(crate) fn survey(of: &Surveyable<'_>) -> Arc<Survey> {
    match KEPT.get() {
        Some(kept) => kept_survey(kept, of),
        None => Arc::new(of.survey()),
    }
}

fn kept_survey(kept: &Mutex<Kept>, of: &Surveyable<'_>) -> Arc<Survey> {
    let hashes = locked(kept).hashes.clone();
    let hash = of.hash(hashes.build_hasher());
    if let Some(survey) = locked(kept).used(hash) {
        return survey;
    }
    // Other images are surveyed meanwhile.
    let survey = Arc::new(of.survey());
    locked(kept).add(hash, &survey);
    survey
}

fn locked(kept: &Mutex<Kept>) -> MutexGuard<'_, Kept> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Kept {
    fn used(&mut self, hash: u64) -> Option<Arc<Survey>> {
        let at = self.surveys.iter().position(|(other, _)| *other == hash)?;
        let (_, survey) = self.surveys.remove(at)?;
        self.add(hash, &survey);
        Some(survey)
    }

    fn add(&mut self, hash: u64, survey: &Arc<Survey>) {
        self.surveys.push_back((hash, Arc::clone(survey)));
        if self.surveys.len() > KEPT_MAX {
            self.surveys.pop_front();
        }
    }
}

impl Surveyable<'_> {
    fn survey(&self) -> Survey {
        Survey::of(self.isa, self.text, self.procedures, self.never.iter().copied())
    }

    /// All that [`Survey::of`] reads, each list after its length.
    fn hash(&self, mut hasher: impl Hasher) -> u64 {
        hasher.write_u8(match self.isa {
            Isa::X86_64 => 0,
            Isa::Aarch64 => 1,
            _ => 2,
        });
        hasher.write_usize(self.text.len());
        for part in self.text {
            hasher.write_u64(part.begin.0);
            hasher.write_usize(part.bytes.len());
            hasher.write(part.bytes);
        }
        hasher.write_usize(self.procedures.len());
        for range in self.procedures {
            hasher.write_u64(range.start);
            hasher.write_u64(range.end);
        }
        for at in self.never {
            hasher.write_u64(at.0);
        }
        hasher.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `call 0x10; ret`, and at 0x10 either `ret` or `jmp 0x10`, which does not return.
    fn code(is_returning: bool) -> Vec<u8> {
        let mut bytes = vec![0x90; 0x20];
        bytes[..6].copy_from_slice(&[0xe8, 0x0b, 0, 0, 0, 0xc3]);
        let end: &[u8] = if is_returning { &[0xc3] } else { &[0xeb, 0xfe] };
        bytes[0x10..0x10 + end.len()].copy_from_slice(end);
        bytes
    }

    #[test]
    fn a_survey_is_kept_for_the_same_code_only() {
        let kept = Mutex::new(Kept::default());
        let procedures = [0..0x10, 0x10..0x20];
        let survey = |bytes: &[u8], never: &[Vaddr]| {
            let text = [Part { begin: Vaddr(0), bytes }];
            let isa = Isa::X86_64;
            kept_survey(&kept, &Surveyable { isa, text: &text, procedures: &procedures, never })
        };
        let (first, again) = (survey(&code(true), &[]), survey(&code(true), &[]));
        assert!(Arc::ptr_eq(&first, &again));
        let other = survey(&code(false), &[]);
        assert!(!first.no_return().contains(&Vaddr(0x10)));
        assert!(other.no_return().contains(&Vaddr(0x10)));
        assert!(survey(&code(true), &[Vaddr(0x10)]).no_return().contains(&Vaddr(0x10)));
        for size in 0..2 * KEPT_MAX {
            survey(&vec![0xc3; size + 1], &[]);
        }
        assert_eq!(locked(&kept).surveys.len(), KEPT_MAX);
        assert!(!Arc::ptr_eq(&first, &survey(&code(true), &[])), "others displaced it");
    }
}
