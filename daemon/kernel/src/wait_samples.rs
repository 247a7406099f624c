//! Samples of waiting threads: passes over all threads, each of which leaves those that it chose.

use super::KernelError;
use super::mapped::Mapped;
use super::stacks::RawStack;
use abi::{STACK_KERNEL_BYTES, StackRecord, WAIT_SAMPLES_MAX, WaitPass, WaitSample};
use std::os::fd::BorrowedFd;

const NO_SAMPLE: WaitSample = WaitSample { record: StackRecord::EMPTY, kernel: [0; FRAMES] };
const FRAMES: usize = STACK_KERNEL_BYTES / size_of::<u64>();

/// What passes leave.
pub struct WaitSamples {
    pass: Mapped<WaitPass>,
    samples: Mapped<WaitSample>,
}

impl WaitSamples {
    /// Maps a pass and its samples.
    ///
    /// # Errors
    /// [`KernelError::Map`].
    pub fn new(pass: BorrowedFd<'_>, samples: BorrowedFd<'_>) -> Result<Self, KernelError> {
        Ok(Self {
            pass: Mapped::new(pass, 1, "passes over threads")?,
            samples: Mapped::new(samples, WAIT_SAMPLES_MAX, "samples of waits")?,
        })
    }

    /// Prepares a pass over all threads, or over those whose switches are not followed: of new
    /// payers, one of `every` threads is chosen.
    pub fn begin(&self, is_rest: bool, every: u32) {
        self.pass.write(0, WaitPass { is_rest: is_rest.into(), every, ..WaitPass::default() });
    }

    /// Moves the samples of the pass to `into`, and returns what it found. Of a pass that chose
    /// more threads than there is room for, nothing is moved: those that came first would count for
    /// all.
    pub fn take(&self, into: &mut Vec<RawStack>) -> WaitPass {
        let pass = self.pass.read(0).unwrap_or_default();
        let chosen = pass.chosen as usize;
        if chosen > WAIT_SAMPLES_MAX {
            return pass;
        }
        let samples = (0..chosen).filter_map(|at| {
            let sample = self.samples.read(at)?;
            self.samples.write(at, NO_SAMPLE); // registers stay nowhere
            Some(sample)
        });
        into.extend(samples.map(|sample| {
            let frames = sample.record.kernel_bytes as usize / size_of::<u64>();
            let kernel = sample.kernel.get(..frames).unwrap_or_default().to_vec();
            RawStack { record: sample.record, python: Vec::new(), kernel, stack: Vec::new() }
        }));
        pass
    }
}

/// For payers with so many waiting threads each, how many threads there are for each that is
/// chosen, so that `samples` of all are: each payer has the same number, unless it has fewer
/// threads.
pub(super) fn shares(threads: &[u32], samples: u32) -> Vec<u32> {
    let mut sorted = threads.to_vec();
    sorted.sort_unstable();
    let (mut left, mut payers) = (samples, sorted.len() as u32);
    let mut part = samples;
    for threads in sorted {
        part = left / payers.max(1);
        if threads > part {
            break;
        }
        (left, payers) = (left - threads, payers - 1);
    }
    threads.iter().map(|threads| threads.div_ceil(part.max(1)).max(1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payers_have_the_same_number_of_samples_as_far_as_they_have_threads() {
        assert_eq!(shares(&[3, 5, 2], 64), [1, 1, 1]);
        assert_eq!(shares(&[18_000, 5, 3], 64), [322, 1, 1], "56 of 18,000");
        assert_eq!(shares(&[1000, 1000], 100), [20, 20]);
        assert_eq!(shares(&[0, 1], 4), [1, 1]);
        assert_eq!(shares(&[10, 10, 10], 0), [10, 10, 10]);
        assert!(shares(&[], 7).is_empty());
    }
}
