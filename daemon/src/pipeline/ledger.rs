//! Every sample accounted for: taken = merged + pending + unresolved + lost, for each event.

use crate::kernel::Counted;
use model::Ledger;
use model::{Loss, Unresolved};
use std::collections::BTreeMap;

/// Where the samples of one event went.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Samples that the sampler took.
    pub taken: u64,
    /// Samples that the event's count and period imply, of which those missed were throttled, or
    /// their interrupt came late; and for how long it counted.
    pub counted: Counted,
    /// Samples whose image is known, in profiles or on the way there.
    pub resolved: u64,
    /// Samples without an image, by reason.
    pub unresolved: BTreeMap<Unresolved, u64>,
    /// Samples in no profile at all, by reason.
    pub lost: BTreeMap<Loss, u64>,
}

impl Account {
    /// Counts samples whose image is unknown.
    pub fn unresolve(&mut self, reason: Unresolved, samples: u64) {
        *self.unresolved.entry(reason).or_default() += samples;
    }

    /// Counts samples that are gone.
    pub fn lose(&mut self, loss: Loss, samples: u64) {
        if samples > 0 {
            *self.lost.entry(loss).or_default() += samples;
        }
    }

    /// Adds another account's samples.
    pub fn add(&mut self, other: &Account) {
        self.taken += other.taken;
        self.counted.add(other.counted);
        self.resolved += other.resolved;
        other.unresolved.iter().for_each(|(reason, samples)| self.unresolve(*reason, *samples));
        other.lost.iter().for_each(|(loss, samples)| self.lose(*loss, *samples));
    }

    /// The account as an epoch keeps it, once its resolved samples are merged.
    #[must_use]
    pub fn ledger(&self) -> Ledger {
        Ledger {
            taken: self.taken,
            implied: self.counted.implied,
            enabled_ns: self.counted.enabled_ns,
            running_ns: self.counted.running_ns,
            merged: self.resolved,
            unresolved: self
                .unresolved
                .iter()
                .map(|(reason, samples)| (reason.name().to_owned(), *samples))
                .collect(),
            lost: self
                .lost
                .iter()
                .map(|(loss, samples)| (loss.name().to_owned(), *samples))
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_closes_and_adds_up() {
        let mut account = Account { taken: 10, resolved: 6, ..Account::default() };
        account.unresolve(Unresolved::Anonymous, 3);
        account.lose(Loss::SpillFull, 1);
        account.lose(Loss::Uncounted, 0);
        let mut sum = account.clone();
        sum.add(&account);
        let ledger = sum.ledger();
        assert!(ledger.closes(), "{ledger:?}");
        assert_eq!((ledger.taken, ledger.merged), (20, 12));
        assert_eq!(ledger.unresolved, BTreeMap::from([("anonymous_memory".to_owned(), 6)]));
        assert_eq!(
            ledger.lost,
            BTreeMap::from([("spill_full".to_owned(), 2)]),
            "no row for a reason without samples"
        );
    }
}
