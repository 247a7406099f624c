//! `dcpi-fleet ingest`, `close` and `compact`.

use clap::Args;
use ingest::ingest;
use store::{Store, Week};
use weeks::{CloseError, Closing, close, compact, settings};

use crate::out::{complain, counted, say};
use crate::store_option::{InStore, OfWeek, OnEngine};

/// `dcpi-fleet ingest`.
#[derive(Args, Debug)]
#[command(after_help = "\
Run it as often as you like, also twice at once: each epoch is taken once. Epochs that come after \
a week was closed open it again. Where the store has got better names of a week's builds since, \
the week is named anew.")]
pub struct Ingest {
    #[command(flatten)]
    store: InStore,
}

/// # Errors
/// One line, with the next step.
pub async fn run_ingest(args: &Ingest) -> Result<bool, String> {
    let done = ingest(&args.store.open()?).await.map_err(|error| error.to_string())?;
    for (week, epochs) in &done.epochs {
        say!("{week}: {} taken", counted(*epochs, "epoch"));
    }
    for (week, builds) in &done.renamed {
        let builds = counted(*builds, "build");
        say!("{week}: named anew, since the store has got more of {builds}");
    }
    if done.epochs.is_empty() && done.renamed.is_empty() {
        say!("nothing new");
    }
    for (name, why) in &done.refused {
        complain!("epoch {} of {} is damaged and left out: {why}", name.epoch, name.host);
    }
    for (name, why) in &done.left {
        complain!("epoch {} of {} is left for now: {why}", name.epoch, name.host);
    }
    Ok(done.refused.is_empty() && done.left.is_empty())
}

/// `dcpi-fleet close` and `compact`.
#[derive(Args, Debug)]
pub struct Close {
    #[command(flatten)]
    store: InStore,
    #[command(flatten)]
    week: OfWeek,
    #[command(flatten)]
    engine: OnEngine,
    /// Close a week again that is closed
    #[arg(long)]
    again: bool,
}

impl Close {
    async fn closing(&self, store: &Store) -> Result<Closing, CloseError> {
        Ok(Closing {
            engine: self.engine.engine.clone(),
            memory_bytes: self.engine.memory_bytes(),
            again: self.again,
            watched: settings(store).await?.watched(),
            ..Closing::default()
        })
    }
}

/// # Errors
/// One line, with the next step.
pub async fn run_close(args: &Close) -> Result<bool, String> {
    let week: Week = args.week.get();
    let store = args.store.open()?;
    let closed = async { close(&store, week, &args.closing(&store).await?).await };
    let closed = closed.await.map_err(|error| error.to_string())?;
    if closed.was_closed {
        say!("{week}: is closed already, with {}", counted(closed.epochs, "epoch"));
    } else {
        let [epochs, facts, changes] = [
            counted(closed.epochs, "epoch"),
            counted(closed.facts, "fact"),
            counted(closed.changes, "change"),
        ];
        say!("{week}: closed: {epochs}, {facts}, {changes}");
    }
    Ok(true)
}

/// # Errors
/// One line, with the next step.
pub async fn run_compact(args: &Close) -> Result<bool, String> {
    let week = args.week.get();
    let store = args.store.open()?;
    let done = async { compact(&store, week, &args.closing(&store).await?).await };
    let done = done.await.map_err(|error| error.to_string())?;
    let (epochs, facts) = (counted(done.epochs, "epoch"), counted(done.facts, "fact"));
    say!("{week}: {epochs}, {facts}");
    Ok(true)
}
