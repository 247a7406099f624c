//! Retention: which epochs are removed, by age, number and size.

use crate::epoch::EpochId;
use crate::error::DbError;
use crate::naming;
use crate::recovery;
use crate::writer::{Writer, epoch_directories};

/// Rules for removing the epochs of a host.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Age in seconds, since an epoch ended, at which it is removed; None: no limit of age.
    pub max_age_s: Option<u64>,
    /// Number of the newest epochs that stay, whatever their age and size.
    pub keep_newest: usize,
    /// Bytes of all epochs together above which the oldest is removed; None: size is not a reason.
    pub max_bytes: Option<u64>,
}

impl Default for Retention {
    /// As in DCPI: seven days, and always the newest three.
    fn default() -> Self {
        Self { max_age_s: Some(7 * 86_400), keep_newest: 3, max_bytes: None }
    }
}

/// The properties of an epoch on which its removal depends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpochSize {
    /// Id of the epoch.
    pub epoch: EpochId,
    /// Time when the epoch ended, in seconds since 1970 UTC; None while it is open.
    pub ended_unix_s: Option<u64>,
    /// Bytes of the epoch's files.
    pub bytes: u64,
}

impl Retention {
    /// The epochs to be removed, oldest first; never an open one. An end in the future has no age.
    pub fn expired(&self, epochs: &[EpochSize], now_unix_s: u64) -> Vec<EpochId> {
        let mut epochs: Vec<&EpochSize> = epochs.iter().collect();
        epochs.sort_by(|a, b| a.epoch.cmp(&b.epoch));
        let mut bytes = epochs.iter().fold(0, |sum: u64, epoch| sum.saturating_add(epoch.bytes));
        epochs.truncate(epochs.len().saturating_sub(self.keep_newest));
        let mut expired = Vec::new();
        for epoch in epochs {
            let Some(ended) = epoch.ended_unix_s else { continue };
            let too_old =
                self.max_age_s.is_some_and(|most| now_unix_s.saturating_sub(ended) > most);
            let too_large = self.max_bytes.is_some_and(|most| bytes > most);
            if too_old || too_large {
                bytes = bytes.saturating_sub(epoch.bytes);
                expired.push(epoch.epoch.clone());
            }
        }
        expired
    }
}

impl Writer {
    /// Removes the epochs of this host that `retention` does not keep; `now_unix_s` is in seconds
    /// since 1970 UTC. Returns the removed epochs, oldest first. No file of an epoch is read: an
    /// epoch has ended when the next one began, and the newest counts as open.
    ///
    /// # Errors
    /// [`DbError::Io`]: an epoch is there, or gone; the next writer removes the rest of it, and no
    /// reader sees it.
    pub fn collect_garbage(
        &mut self,
        retention: &Retention,
        now_unix_s: u64,
    ) -> Result<Vec<EpochSize>, DbError> {
        self.check_in_place()?;
        let (disk, host) = self.place();
        let (disk, ids) = (disk.clone(), epoch_directories(disk, &host)?);
        let mut epochs = Vec::with_capacity(ids.len());
        for (at, epoch) in ids.iter().enumerate() {
            let entries = disk.list_if_there(&host.join(epoch.as_str()))?;
            let bytes =
                entries.iter().filter(|entry| !entry.is_directory).map(|entry| entry.size_bytes);
            let bytes = bytes.fold(0, u64::saturating_add);
            let ended =
                ids.get(at + 1).map(EpochId::unix_s).filter(|_| self.epoch() != Some(epoch));
            epochs.push(EpochSize { epoch: epoch.clone(), ended_unix_s: ended, bytes });
        }
        let expired = retention.expired(&epochs, now_unix_s);
        epochs.retain(|epoch| expired.contains(&epoch.epoch));
        for epoch in &epochs {
            self.forget(&host.join(epoch.epoch.as_str()));
            let gone = host.join(naming::gone_name(&epoch.epoch));
            // The rename decides: before it the epoch is there whole, after it no epoch has that
            // name.
            disk.rename(&host.join(epoch.epoch.as_str()), &gone)?;
            disk.sync_directory(&host)?;
            recovery::remove_directory(&disk, &gone)?;
        }
        Ok(epochs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY_S: u64 = 86_400;
    const NOW: u64 = 100 * DAY_S;

    /// Epochs of a day each, of these sizes, the last one open now.
    fn epochs(bytes: &[u64]) -> Vec<EpochSize> {
        let count = bytes.len() as u64;
        let begin = |at: u64| NOW - (count - at) * DAY_S;
        let one = |(at, bytes): (u64, &u64)| EpochSize {
            epoch: EpochId::from_unix_s(begin(at)),
            ended_unix_s: (at + 1 < count).then(|| begin(at + 1)),
            bytes: *bytes,
        };
        (0..).zip(bytes).map(one).collect()
    }

    /// Which of them go, by number.
    fn expired(retention: Retention, epochs: &[EpochSize]) -> Vec<usize> {
        let gone = retention.expired(epochs, NOW);
        gone.iter()
            .map(|gone| epochs.iter().position(|epoch| epoch.epoch == *gone).unwrap())
            .collect()
    }

    #[test]
    fn age_number_and_size_decide_and_the_open_one_stays() {
        let ten = epochs(&[10; 10]);
        let of = |days: Option<u64>, keep_newest, max_bytes| Retention {
            max_age_s: days.map(|days| days * DAY_S),
            keep_newest,
            max_bytes,
        };
        assert_eq!(expired(of(None, 0, None), &ten), [0_usize; 0]);
        // They ended 9, 8, ... 1 days ago.
        assert_eq!(expired(of(Some(7), 3, None), &ten), [0, 1]);
        assert_eq!(expired(of(Some(7), 9, None), &ten), [0]);
        assert_eq!(expired(of(Some(7), 20, None), &ten), [0_usize; 0]);
        assert_eq!(
            expired(of(Some(0), 0, None), &ten),
            (0..9).collect::<Vec<_>>(),
            "never the open one"
        );
        assert_eq!(expired(of(None, 0, Some(55)), &ten), [0, 1, 2, 3, 4]);
        assert_eq!(expired(of(None, 8, Some(55)), &ten), [0, 1]);
        assert_eq!(expired(of(None, 1, Some(0)), &ten), (0..9).collect::<Vec<_>>());
        // What goes for its age makes room.
        assert_eq!(expired(of(Some(7), 0, Some(80)), &ten), [0, 1]);
        assert_eq!(expired(of(None, 0, Some(100)), &epochs(&[200, 50, 50])), [0]);
        assert_eq!(expired(Retention::default(), &[]), [0_usize; 0]);
    }

    #[test]
    fn an_epoch_of_the_future_has_no_age() {
        let mut three = epochs(&[1; 3]);
        three[0].ended_unix_s = Some(NOW + 1000 * DAY_S);
        let retention = Retention { max_age_s: Some(0), keep_newest: 1, max_bytes: None };
        assert_eq!(expired(retention, &three), [1]);
    }

    #[test]
    fn the_order_they_come_in_does_not_matter() {
        let mut five = epochs(&[7; 5]);
        five.reverse();
        let retention = Retention { max_age_s: None, keep_newest: 2, max_bytes: Some(22) };
        assert_eq!(expired(retention, &five), [4, 3]);
    }
}
