//! `dcpi epochs`: the epochs of the database.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

use profiledb::{Database, DbError, EpochId, Scope};

use super::Outcome;
use crate::options::Epochs;
use query::error::AnalysisError;
use query::problem::{self, Problem};
use query::scope::ScopeChoice;
use query::select;
use report::{CodeStoreRow, EpochRow, EpochsReport, Selection};

pub(crate) fn run(args: &Epochs, out: &mut dyn Write) -> Result<Outcome, AnalysisError> {
    let db = Database::open(args.source.db())?;
    let chosen = select::epochs(&db, &args.source.epochs(&args.epoch))?;
    super::write(&report(&db, &chosen, &args.source.scope.choice())?, &args.output, out)
}

fn report(
    db: &Database,
    chosen: &[(String, EpochId)],
    whose: &ScopeChoice,
) -> Result<EpochsReport, AnalysisError> {
    let mut problems = Vec::new();
    let mut rows = Vec::with_capacity(chosen.len());
    let mut scopes = Vec::new();
    let mut of_host: BTreeMap<&str, Vec<EpochId>> = BTreeMap::new();
    for (host, id) in chosen {
        if !of_host.contains_key(host.as_str()) {
            of_host.insert(host, db.epochs(host)?);
        }
        let later = |epochs: &Vec<EpochId>| epochs.iter().filter(|other| *other > id).count();
        let back = of_host.get(host.as_str()).map_or(0, later);
        match row(db, host, id, back, &mut problems) {
            Ok((row, of_epoch)) => {
                if whose.is_all() || of_epoch.iter().any(|scope| whose.admits(scope)) {
                    rows.push(row);
                }
                scopes.extend(of_epoch);
            }
            Err(DbError::NoSuchEpoch { .. }) => {
                problems.push(Problem::Vanished { host: host.clone(), epoch: id.to_string() });
            }
            Err(error) => problems.push(Problem::Unreadable { error }),
        }
    }
    whose.check(scopes.iter()).map_err(|error| whose.hinted(error, db, chosen))?;
    let epochs = rows.iter().map(|row| row.meta.clone()).collect();
    let selection = Selection { db: db.root().display().to_string(), epochs };
    let code_stores = code_stores(db, &selection, &mut problems);
    Ok(EpochsReport { selection, rows, code_stores, problems })
}

/// Sizes of the code stores of the epochs' hosts: often larger than the epochs.
fn code_stores(
    db: &Database,
    selection: &Selection,
    problems: &mut Vec<Problem>,
) -> Vec<CodeStoreRow> {
    let hosts: BTreeSet<&str> = selection.epochs.iter().map(|meta| meta.host.as_str()).collect();
    let mut rows = Vec::new();
    for host in hosts {
        match db.code_bytes(host) {
            Ok(images) if images.is_empty() => {}
            Ok(images) => {
                let size_bytes = images.values().copied().fold(0, u64::saturating_add);
                rows.push(CodeStoreRow { host: host.to_owned(), images: images.len(), size_bytes });
            }
            Err(error) => problems.push(Problem::CodeUnreadable { error }),
        }
    }
    rows
}

/// The row of an epoch, and the scopes whose samples the epoch keeps apart.
fn row(
    db: &Database,
    host: &str,
    id: &EpochId,
    back: usize,
    problems: &mut Vec<Problem>,
) -> Result<(EpochRow, Vec<Scope>), DbError> {
    let epoch = db.epoch(host, id)?;
    let images = epoch.images().map(|images| images.len());
    let size_bytes = epoch.size_bytes();
    for damage in epoch.damage() {
        let (host, epoch, why) = (host.to_owned(), id.clone(), damage.to_string());
        problems.push(Problem::Unreadable { error: DbError::Damaged { host, epoch, why } });
    }
    epoch.damaged_files().into_iter().for_each(|error| problem::add_unreadable(problems, error));
    let mut known = |error| problem::add_unreadable(problems, error);
    let scopes = epoch.scopes().map_err(&mut known).unwrap_or_default();
    let run_labels: BTreeSet<String> =
        scopes.iter().filter_map(|scope| scope.label.clone()).collect();
    let row = EpochRow {
        meta: epoch.meta().clone(),
        back,
        run_labels: run_labels.into_iter().collect(),
        images: images.map_err(&mut known).ok(),
        size_bytes: size_bytes.map_err(&mut known).ok(),
    };
    Ok((row, scopes))
}
