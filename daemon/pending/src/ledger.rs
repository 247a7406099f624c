//! The ledger: every sample is accounted for, as taken = merged + pending + unresolved + lost, for
//! each event.

use kernel::Counted;
use model::Ledger;
use model::{Loss, Unresolved};
use std::collections::BTreeMap;

/// Account of the samples of one event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Samples that the sampler took.
    pub taken: u64,
    /// Samples that the event's count and period imply, and the time for which it counted. Samples
    /// implied and not taken were throttled, or their interrupt came late.
    pub counted: Counted,
    /// Samples whose image is known, in profiles or waiting for a merge.
    pub resolved: u64,
    /// Samples without an image, by reason.
    pub unresolved: BTreeMap<Unresolved, u64>,
    /// Samples in no profile at all, by reason.
    pub lost: BTreeMap<Loss, u64>,
}

impl Account {
    /// Adds samples whose image is unknown.
    pub fn unresolve(&mut self, reason: Unresolved, samples: u64) {
        *self.unresolved.entry(reason).or_default() += samples;
    }

    /// Adds samples that are lost.
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

    /// The account as an epoch stores it, once its resolved samples are merged.
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
