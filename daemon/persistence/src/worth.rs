//! What the samples of files pay for: how many bytes of a file's code may be kept, and which.
//!
//! Each sample pays for a few bytes, so the store is bounded by the samples that its code explains.
//! A file's names come first, then its procedures by their samples (`image::choose`). What is kept
//! is extended when the samples have doubled since, while the file can still be opened.

use address_spaces::library::{Offer, SampledFile};
use image::ImageId;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Bytes of a file that are kept whatever its samples: the names of most programs, and small
/// programs whole.
const FREE_BYTES: u64 = 256 << 10;
/// Bytes that one sample pays for, before compression to a third. All names of the largest programs
/// (rustc, 38 MB) take 300,000 samples, five minutes of CPU time at 1000 samples a second. A larger
/// number makes the store grow faster than the profiles.
const SAMPLE_BYTES: u64 = 128;
/// Fewest samples after which a file is looked at again.
const AGAIN_MIN: u64 = 128;
/// Files whose samples are known. Files beyond it are kept as far as is free.
const FILES_MAX: usize = 16_384;
/// Lines with samples that are counted of one file. Further lines choose no code until the file was
/// looked at again.
const LINES_MAX: usize = 65_536;
/// Lines of all files together. Beyond it, the file with the most lines begins anew with none.
const ALL_LINES_MAX: usize = 262_144;

/// The samples of files, since the start or since their code was chosen.
#[derive(Default)]
pub struct Worths {
    files: HashMap<ImageId, Worth>,
    /// Lines of all files.
    lines: usize,
}

struct Worth {
    /// Bytes that are paid for and not spent.
    credit: u64,
    samples: u64,
    /// Samples at which the file is looked at again.
    again_at: u64,
    /// Samples by line, since the code was chosen.
    lines: BTreeMap<u32, u32>,
    offer: Arc<Offer>,
    /// Samples were told since the file was offered.
    is_told: bool,
}

impl Worths {
    /// A file is offered: its samples count from now on.
    pub fn offered(&mut self, image: ImageId, offer: &Arc<Offer>) {
        if let Some(worth) = self.files.get_mut(&image) {
            worth.offer = offer.clone();
        } else if self.files.len() < FILES_MAX {
            let worth = Worth {
                credit: FREE_BYTES,
                samples: 0,
                again_at: u64::MAX,
                lines: BTreeMap::new(),
                offer: offer.clone(),
                is_told: false,
            };
            self.files.insert(image, worth);
        }
    }

    /// Samples of a merge. A file that is to be looked at again is offered again with its next
    /// sample.
    pub fn sampled(&mut self, file: SampledFile) {
        let Some(worth) = self.files.get_mut(&file.image) else { return };
        worth.is_told = true;
        for (line, samples) in file.lines {
            let samples_64 = u64::from(samples);
            worth.samples = worth.samples.saturating_add(samples_64);
            worth.credit = worth.credit.saturating_add(SAMPLE_BYTES.saturating_mul(samples_64));
            if let Some(known) = worth.lines.get_mut(&line) {
                *known = known.saturating_add(samples);
            } else if worth.lines.len() < LINES_MAX {
                worth.lines.insert(line, samples);
                self.lines += 1;
            }
        }
        if worth.samples >= worth.again_at {
            worth.again_at = u64::MAX;
            worth.offer.renew();
        }
        while self.lines > ALL_LINES_MAX {
            let most = self.files.values_mut().max_by_key(|worth| worth.lines.len());
            let Some(most) = most else { return };
            self.lines -= std::mem::take(&mut most.lines).len();
        }
    }

    /// Whether samples of a file were told since it was first offered.
    pub fn is_told(&self, image: &ImageId) -> bool {
        self.files.get(image).is_none_or(|worth| worth.is_told)
    }

    /// The lines of a file with samples, those with the most first, and the bytes that may be
    /// added.
    pub fn plan(&self, image: &ImageId) -> (Vec<u32>, u64) {
        let Some(worth) = self.files.get(image) else { return (Vec::new(), FREE_BYTES) };
        let mut lines: Vec<(u32, u32)> = worth.lines.iter().map(|(at, n)| (*at, *n)).collect();
        lines.sort_by_key(|(at, samples)| (std::cmp::Reverse(*samples), *at));
        (lines.into_iter().map(|(at, _)| at).collect(), worth.credit)
    }

    /// So many bytes were added, and all lines were looked at.
    pub fn spent(&mut self, image: &ImageId, bytes: u64) {
        let Some(worth) = self.files.get_mut(image) else { return };
        worth.credit = worth.credit.saturating_sub(bytes);
        self.lines -= worth.lines.len();
        worth.lines = BTreeMap::new();
        worth.again_at = worth.samples.saturating_mul(2).max(AGAIN_MIN);
    }

    /// Nothing was added, because that costs so many bytes.
    pub fn not_yet(&mut self, image: &ImageId, bytes: u64) {
        let Some(worth) = self.files.get_mut(image) else { return };
        let missing = bytes.saturating_sub(worth.credit).div_ceil(SAMPLE_BYTES);
        worth.again_at = worth.samples.saturating_add(missing);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(worths: &mut Worths, image: ImageId, lines: &[(u32, u32)]) {
        worths.sampled(SampledFile { image, lines: lines.to_vec() });
    }

    #[test]
    fn samples_pay_for_bytes_and_the_most_sampled_lines_come_first() {
        let (image, offer) = (ImageId::from_build_id(&[1; 20]).unwrap(), Arc::default());
        let mut worths = Worths::default();
        told(&mut worths, image, &[(1, 1)]);
        assert_eq!(worths.plan(&image), (vec![], FREE_BYTES), "it was not offered");
        worths.offered(image, &offer);
        assert!(!worths.is_told(&image));
        told(&mut worths, image, &[(7, 10), (9, 90)]);
        told(&mut worths, image, &[(5, 90), (7, 1)]);
        assert!(worths.is_told(&image));
        assert_eq!(worths.plan(&image), (vec![5, 9, 7], FREE_BYTES + 191 * SAMPLE_BYTES));
        worths.spent(&image, FREE_BYTES);
        assert_eq!((worths.plan(&image), worths.lines), ((vec![], 191 * SAMPLE_BYTES), 0));
    }

    #[test]
    fn a_file_is_offered_again_when_its_samples_have_doubled_or_pay_for_it() {
        let (image, offer) = (ImageId::from_build_id(&[1; 20]).unwrap(), Arc::default());
        let mut worths = Worths::default();
        worths.offered(image, &offer);
        offer.take();
        told(&mut worths, image, &[(7, 100)]);
        worths.not_yet(&image, FREE_BYTES + 300 * SAMPLE_BYTES);
        told(&mut worths, image, &[(7, 199)]);
        assert!(!offer.is_open());
        told(&mut worths, image, &[(8, 1)]);
        assert!(offer.is_open());
        offer.take();
        worths.spent(&image, 1);
        told(&mut worths, image, &[(8, 299)]);
        assert!(!offer.is_open());
        told(&mut worths, image, &[(8, 1)]);
        assert!(offer.is_open());
    }

    #[test]
    fn lines_are_bounded() {
        let mut worths = Worths::default();
        for number in 1..=6_u8 {
            let image = ImageId::from_build_id(&[number; 20]).unwrap();
            worths.offered(image, &Arc::default());
            let last = 100_000 - u32::from(number) * 10_000;
            let lines: Vec<(u32, u32)> = (0..last).map(|line| (line, 1)).collect();
            told(&mut worths, image, &lines);
            assert_eq!(worths.plan(&image).0.len(), LINES_MAX.min(last as usize));
        }
        assert!(worths.lines <= ALL_LINES_MAX && worths.lines > ALL_LINES_MAX / 2);
    }
}
