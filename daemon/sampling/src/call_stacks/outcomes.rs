//! Numbers of call stacks, by what became of them.

use model::Cut;

/// Numbers of stacks by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Totals {
    /// Stacks taken.
    pub taken: u64,
    /// Stacks dropped because the sampler's ring or this buffer was full.
    pub dropped: u64,
    /// Stacks of processes that are left out.
    pub excluded: u64,
    /// Stacks that others of their user stand for, since walks of that user's cost too much.
    pub thinned: u64,
    /// Stacks that were walked.
    pub outcomes: Outcomes,
    /// Stacks that the sampler has walked to their end.
    pub by_sampler: u64,
    /// Stacks that an inspector has walked, wholly or from where the sampler had no rule on.
    pub by_inspector: u64,
    /// Frames of user code that it has walked.
    pub sampler_frames: u64,
    /// Stacks that it has walked otherwise than an inspector, where both did.
    pub differing: u64,
    /// Frames of all stacks.
    pub frames: u64,
    /// Bytes of stacks copied.
    pub bytes: u64,
    /// CPU time of walking stacks, in ns.
    pub cpu_ns: u64,
    /// Stacks with functions of runtimes: CPython, Ruby, PHP, V8, HotSpot and so on.
    pub named: u64,
    /// Stacks whose frames of an interpreter did not fit the native ones, and were left out.
    pub named_differs: u64,
}

/// Numbers of walked stacks by the way they ended.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcomes {
    /// At the thread's first frame.
    pub whole: u64,
    /// Before, by the place of the reason in [`Cut::ALL`].
    cut: [u64; Cut::ALL.len()],
}

impl Outcomes {
    pub(super) fn count(&mut self, cut: Option<Cut>) {
        let place = cut.and_then(|cut| Cut::ALL.iter().position(|known| *known == cut));
        match place.and_then(|place| self.cut.get_mut(place)) {
            Some(count) => *count += 1,
            None => self.whole += 1,
        }
    }

    /// Reasons with their numbers of stacks, those without stacks left out.
    pub fn cut(&self) -> impl Iterator<Item = (Cut, u64)> + '_ {
        let all = Cut::ALL.iter().copied().zip(self.cut);
        all.filter(|(_, stacks)| *stacks > 0)
    }

    /// All stacks that were walked.
    pub fn all(&self) -> u64 {
        self.whole + self.cut.iter().sum::<u64>()
    }
}
