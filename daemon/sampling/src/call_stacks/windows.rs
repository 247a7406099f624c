//! Chooses how much of a thread's stack the sampler copies: as much as earlier stacks of threads of
//! that name needed.

use abi::STACK_CLASSES;
use kernel::CLASS_AT_FIRST;

/// Classes of windows: 1 KiB << class, up to 64 KiB.
pub const CLASSES: usize = 7;
/// Share of stacks that may be cut by their window, and are, in the smallest window that does.
const CUT_MAX: f64 = 0.01;
/// Stacks of a name until its window is looked at, and then each time as many more.
const LOOK_EVERY: u32 = 32;
/// Stacks of a name that are cut between two looks until its window is enlarged at once.
const CUT_AT_ONCE: u8 = 3;
/// Approximate number of stacks that are remembered; when it is exceeded, the counts are halved.
const MEMORY: u32 = 1024;

/// The stack sizes that threads of one name needed.
#[derive(Clone, Copy, Default)]
struct Needed {
    class: Option<u8>,
    /// Stacks that a window of that class held; the last: that none held.
    stacks: [u16; CLASSES + 1],
    since_look: u8,
    /// Stacks that were cut since the last look.
    cut: u8,
}

/// The sizes that stacks needed, by the number of the thread's name.
pub struct Windows {
    needed: Vec<Needed>,
}

impl Default for Windows {
    fn default() -> Self {
        Self { needed: vec![Needed::default(); STACK_CLASSES] }
    }
}

/// The smallest class of a window of that many bytes; [`CLASSES`] for more than the largest.
fn class_of(bytes: u64) -> usize {
    (0..CLASSES).find(|class| bytes <= 1024 << class).unwrap_or(CLASSES)
}

impl Windows {
    /// Notes a stack of a name that needed these bytes, or more than `bytes` where it was cut. The
    /// class of the name's window from now on, where that changes.
    pub fn note(&mut self, name: usize, bytes: u64, is_cut: bool) -> Option<u8> {
        let needed = self.needed.get_mut(name)?;
        let class = (class_of(bytes) + usize::from(is_cut)).min(CLASSES);
        if let Some(count) = needed.stacks.get_mut(class) {
            *count = count.saturating_add(1);
        }
        needed.since_look = needed.since_look.saturating_add(1);
        let now = needed.class.unwrap_or(CLASS_AT_FIRST);
        needed.cut = needed.cut.saturating_add(u8::from(is_cut));
        if needed.cut >= CUT_AT_ONCE && usize::from(now) + 1 < CLASSES {
            needed.cut = 0;
            needed.class = Some(now + 1);
            return needed.class;
        }
        if u32::from(needed.since_look) < LOOK_EVERY {
            return None;
        }
        (needed.since_look, needed.cut) = (0, 0);
        let total: u32 = needed.stacks.iter().map(|count| u32::from(*count)).sum();
        let mut left = total;
        let mut best = CLASSES - 1;
        for (class, count) in needed.stacks.iter().enumerate().take(CLASSES) {
            left -= u32::from(*count);
            if f64::from(left) <= CUT_MAX * f64::from(total) {
                best = class;
                break;
            }
        }
        if total > MEMORY {
            needed.stacks.iter_mut().for_each(|count| *count /= 2);
        }
        let best = best as u8;
        needed.class = Some(best);
        (best != now).then_some(best)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The class of a name's window after these stacks.
    fn after(windows: &mut Windows, stacks: impl IntoIterator<Item = (u64, bool)>) -> Option<u8> {
        stacks.into_iter().filter_map(|(bytes, is_cut)| windows.note(7, bytes, is_cut)).last()
    }

    #[test]
    fn a_window_is_as_large_as_nearly_all_stacks_need() {
        let mut windows = Windows::default();
        assert_eq!(after(&mut windows, (0..64).map(|_| (900, false))), Some(0));
        let one_in_fifty = (0..200).map(|n| if n % 50 == 0 { (3000, false) } else { (900, false) });
        assert_eq!(after(&mut windows, one_in_fifty), Some(2), "two in a hundred are too many");
        let mut other = Windows::default();
        assert_eq!(after(&mut other, (0..64).map(|_| (8192, true))), Some(4), "one larger");
        assert_eq!(after(&mut other, (0..64).map(|_| (16_384, true))), Some(5));
        assert_eq!(after(&mut other, (0..600).map(|_| (65_536, true))), Some(6), "the largest");
        assert_eq!(after(&mut other, (0..9000).map(|_| (100, false))), Some(0), "and back");
        assert_eq!(windows.note(STACK_CLASSES, 1, false), None, "no such number");
        let mut mixed = Windows::default();
        let some_deep = (0..9).map(|n| if n % 3 == 2 { (8192, true) } else { (100, false) });
        assert_eq!(after(&mut mixed, some_deep), Some(4), "the third, though others were not");
    }
}
