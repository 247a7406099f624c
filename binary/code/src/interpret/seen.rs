//! Where branches led that walks met: a guess where they will lead.

use std::collections::HashMap;

use image::{ImageOffset, Vaddr};

/// Most branches that are remembered; beyond, all are forgotten.
const BRANCHES_MAX: usize = 1 << 14;
/// Most ways of one branch.
const WAYS_MAX: usize = 8;

/// Branches by image and offset, each with the distances that it led to, and how often.
#[derive(Debug, Default)]
pub(super) struct Seen(HashMap<(u32, ImageOffset), Vec<(i64, u32)>, foldhash::fast::FixedState>);

impl Seen {
    /// Notes where the branch at `from` led.
    pub(super) fn add(&mut self, (image, offset): (u32, ImageOffset), from: Vaddr, to: Vaddr) {
        if self.0.len() >= BRANCHES_MAX {
            self.0.clear();
        }
        let distance = to.0.wrapping_sub(from.0).cast_signed();
        let ways = self.0.entry((image, offset)).or_default();
        let known = ways.iter_mut().find(|(known, _)| *known == distance);
        if let Some((_, times)) = known {
            *times = times.saturating_add(1);
        } else if ways.len() < WAYS_MAX {
            ways.push((distance, 1));
        }
    }

    /// The place that it led to most often.
    pub(super) fn usual(&self, branch: (u32, ImageOffset), from: Vaddr) -> Option<Vaddr> {
        let ways = self.0.get(&branch)?;
        let (distance, _) = ways.iter().max_by_key(|(_, times)| *times)?;
        Some(Vaddr(from.0.wrapping_add_signed(*distance)))
    }

    /// One of the places that it led to, those that are usual more often.
    pub(super) fn choose(
        &self,
        branch: (u32, ImageOffset),
        from: Vaddr,
        random: &mut fastrand::Rng,
    ) -> Option<Vaddr> {
        let ways = self.0.get(&branch)?;
        let all: u64 = ways.iter().map(|(_, times)| u64::from(*times)).sum();
        let mut left = random.u64(..all.max(1));
        let mut chosen = ways.iter().filter(|(_, times)| match left.checked_sub((*times).into()) {
            Some(rest) => {
                left = rest;
                false
            }
            None => true,
        });
        chosen.next().map(|(distance, _)| Vaddr(from.0.wrapping_add_signed(*distance)))
    }
}
