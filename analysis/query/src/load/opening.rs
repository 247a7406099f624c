//! Opening of the chosen epochs, and the scope that they are read in.

use std::collections::BTreeSet;

use model::{ClockStep, ClockSteps, Endings, Killed, OpensOn};
use profiledb::{Database, DbError, Epoch, EpochId};

use super::Asked;
use crate::error::AnalysisError;
use crate::problem::Problem;
use crate::scope::ScopeChoice;
use crate::times;

/// Age of the directory of an epoch without files, in seconds, from which it is not that of an
/// epoch that is about to begin.
const EMPTY_AGE_S: u64 = 60;

/// The scope to read: the one asked for, else that of the recorded command.
pub(crate) fn opening_scope(
    epochs: &[Epoch],
    asked: &Asked<'_>,
    problems: &mut Vec<Problem>,
) -> ScopeChoice {
    let opens_on =
        if asked.whose.is_all() && !asked.all { opens_on(epochs, problems) } else { None };
    opens_on.unwrap_or_else(|| asked.whose.clone())
}

/// The default scope: that of the one command that all these epochs recorded, by their
/// descriptions. If they recorded several commands the scope is the whole machine, and a problem
/// says so.
fn opens_on(epochs: &[Epoch], problems: &mut Vec<Problem>) -> Option<ScopeChoice> {
    let of_epochs: BTreeSet<Option<String>> =
        epochs.iter().map(|epoch| epoch.meta().facts.get().map(|OpensOn(label)| label)).collect();
    if of_epochs.len() > 1 {
        let labels = of_epochs.into_iter().flatten().collect();
        problems.push(Problem::SeveralCommands { labels });
        return None;
    }
    let label = of_epochs.into_iter().next()??;
    Some(ScopeChoice { label: Some(label), ..ScopeChoice::default() })
}

/// Opens the epochs, without those that cannot be opened. It is an error if none can.
pub fn open(
    db: &Database,
    chosen: &[(String, EpochId)],
    problems: &mut Vec<Problem>,
) -> Result<Vec<Epoch>, AnalysisError> {
    let mut epochs = Vec::with_capacity(chosen.len());
    let mut failed = Vec::new();
    for (host, epoch) in chosen {
        match db.epoch(host, epoch) {
            Ok(epoch) => epochs.push(epoch),
            Err(error) => failed.push(error),
        }
    }
    if epochs.is_empty()
        && let Some(error) = failed.pop()
    {
        return Err(error.into());
    }
    for epoch in &epochs {
        add_doubts(db, epoch, problems);
    }
    add_empty(db, chosen, problems);
    problems.extend(failed.into_iter().map(|error| match error {
        DbError::NoSuchEpoch { host, epoch, .. } => {
            Problem::Vanished { host, epoch: epoch.to_string() }
        }
        error => Problem::Unreadable { error },
    }));
    Ok(epochs)
}

/// What is doubtful in an epoch: its times, and whether its end is there.
fn add_doubts(db: &Database, epoch: &Epoch, problems: &mut Vec<Problem>) {
    let meta = epoch.meta();
    let named = || (meta.host.clone(), meta.epoch.to_string());
    if let Some(ClockSteps(steps)) = meta.facts.get() {
        let mut tell = |is_forward: bool, by: fn(&ClockStep) -> u64| {
            let Some(first) = steps.iter().find(|step| by(step) > 0) else { return };
            let by_s = steps.iter().map(by).fold(0, u64::saturating_add);
            let ((host, epoch), at_unix_s) = (named(), first.at_unix_s);
            problems.push(Problem::ClockSet { host, epoch, at_unix_s, is_forward, by_s });
        };
        tell(false, |step| step.back_s);
        tell(true, |step| step.forward_s);
    }
    let Endings { killed, .. } = meta.facts.get().unwrap_or_default();
    problems.extend(killed.iter().map(|killed| {
        let Killed { since_unix_s, until_unix_s } = *killed;
        Problem::Killed { host: meta.host.clone(), since_unix_s, until_unix_s }
    }));
    // A writer ends each epoch before it begins the next, but for one that is damaged.
    if meta.ended_unix_s.is_none() && epoch.damage().is_empty() {
        let later = db.epochs(&meta.host).unwrap_or_default();
        if later.last().is_some_and(|last| *last > meta.epoch) {
            let ((host, epoch), until_unix_s) = (named(), meta.updated_unix_s);
            problems.push(Problem::EndMissing { host, epoch, until_unix_s });
        }
    }
}

/// Epochs without files, from the first of the chosen ones of each host to the last.
fn add_empty(db: &Database, chosen: &[(String, EpochId)], problems: &mut Vec<Problem>) {
    for of_host in chosen.chunk_by(|(a, _), (b, _)| a == b) {
        let (Some((host, first)), Some((_, last))) = (of_host.first(), of_host.last()) else {
            continue;
        };
        let newest = db.epochs(host).ok().and_then(|epochs| epochs.last().cloned());
        for (epoch, changed_unix_s) in db.empty_epochs(host).unwrap_or_default() {
            let is_later = newest.as_ref().is_some_and(|newest| epoch > *newest);
            let is_old = times::now_unix_s().saturating_sub(changed_unix_s) >= EMPTY_AGE_S;
            let is_chosen =
                epoch > *first && (epoch < *last || is_later && newest.as_ref() == Some(last));
            if is_chosen && (is_old || !is_later) {
                let (host, epoch) = (host.clone(), epoch.to_string());
                problems.push(Problem::NoFiles { host, epoch });
            }
        }
    }
}
