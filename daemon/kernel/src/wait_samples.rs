//! Samples of waiting threads, which the sampler takes in passes over all threads.

use super::KernelError;
use super::budget::fair_part;
use super::mapped::Mapped;
use super::stacks::RawStack;
use abi::{STACK_KERNEL_BYTES, StackRecord, WAIT_SAMPLES_MAX, WaitPass, WaitSample};
use std::os::fd::BorrowedFd;

const NO_SAMPLE: WaitSample = WaitSample { record: StackRecord::EMPTY, kernel: [0; FRAMES] };
const FRAMES: usize = STACK_KERNEL_BYTES / size_of::<u64>();

/// The pass and its samples, in memory that the sampler writes.
pub struct WaitSamples {
    pass: Mapped<WaitPass>,
    samples: Mapped<WaitSample>,
}

impl WaitSamples {
    /// Maps that memory.
    ///
    /// # Errors
    /// [`KernelError::Map`].
    pub fn new(pass: BorrowedFd<'_>, samples: BorrowedFd<'_>) -> Result<Self, KernelError> {
        Ok(Self {
            pass: Mapped::new(pass, 1, "passes over threads")?,
            samples: Mapped::new(samples, WAIT_SAMPLES_MAX, "samples of waits")?,
        })
    }

    /// Prepares a pass that samples all threads, or with `is_rest` only those whose switches are
    /// not traced. Of payers without a part of their own, one of `every` threads is sampled.
    pub fn begin(&self, is_rest: bool, every: u32) {
        self.pass.write(0, WaitPass { is_rest: is_rest.into(), every, ..WaitPass::default() });
    }

    /// Moves the samples of the pass to `into`, and returns the number of threads that it chose.
    /// Where these are more than [`WAIT_SAMPLES_MAX`], nothing is moved: the samples would be those
    /// of the threads with the lowest numbers, which do not represent the others.
    pub fn take(&self, into: &mut Vec<RawStack>) -> u32 {
        let pass = self.pass.read(0).unwrap_or_default();
        let chosen = pass.chosen as usize;
        if chosen > WAIT_SAMPLES_MAX {
            return pass.chosen;
        }
        let samples = (0..chosen).filter_map(|at| {
            let sample = self.samples.read(at)?;
            self.samples.write(at, NO_SAMPLE); // registers stay nowhere
            Some(sample)
        });
        into.extend(samples.map(|sample| {
            let frames = sample.record.kernel_bytes as usize / size_of::<u64>();
            let kernel = sample.kernel.get(..frames).unwrap_or_default().to_vec();
            let (record, python, user) = (sample.record, Vec::new(), Vec::new());
            let (attributes, runtime, stack) = (Vec::new(), Vec::new(), Vec::new());
            RawStack { record, python, attributes, kernel, user, runtime, stack }
        }));
        pass.chosen
    }
}

/// For payers with so many waiting threads each, N where one of N threads is to be sampled. A pass
/// then takes about `samples`, as many of each payer, unless it has fewer threads.
pub(super) fn shares(threads: &[u32], samples: u32) -> Vec<u32> {
    let part = fair_part(threads.iter().copied().map(f64::from), samples.into());
    let part = part.floor().max(1.0);
    threads.iter().map(|threads| (f64::from(*threads) / part).ceil().max(1.0) as u32).collect()
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
