//! Opening of the chosen epochs, and the scope that they are read in.

use std::collections::BTreeSet;

use model::OpensOn;
use profiledb::{Database, DbError, Epoch, EpochId};

use super::Asked;
use crate::error::AnalysisError;
use crate::problem::Problem;
use crate::scope::ScopeChoice;

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
pub(crate) fn open(
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
    problems.extend(failed.into_iter().map(|error| match error {
        DbError::NoSuchEpoch { host, epoch, .. } => {
            Problem::Vanished { host, epoch: epoch.to_string() }
        }
        error => Problem::Unreadable { error },
    }));
    Ok(epochs)
}
