//! dcpid from start to end.

use crate::control::metrics::MetricsSocket;
use crate::control::socket::ControlSocket;
use crate::player::{self, Replayed};
use address_spaces::kernel_text::KernelText;
use address_spaces::library::Library;
use address_spaces::loader_notices::Notices;
use address_spaces::mapped_files;
use address_spaces::system::System;
use address_spaces::vdso32::stored;
use anyhow::Context as _;
use events::PlannedEvent;
use inspect::file_catalogue::Catalogue;
use inspect::pool::{Inspectors, LOOP_PATIENCE, THREAD_PATIENCE};
use inspect::starter;
use kernel::budget::{RATES, at_once, highest};
use kernel::clock;
use kernel::privileges;
use kernel::{KernelSource, Machine, SourceSettings};
use model::{Endings, Killed};
use persistence::database_thread::{Flusher, epoch_start};
use persistence::librarian::{Librarian, StoreLimits};
use pipeline::drain::{Collector, Replay};
use pipeline::epoch_clock::EpochClock;
use pipeline::main_loop::{Asked, Parts, Pipeline, Signals};
use profiledb::{CodeStore, Database, DbError, EpochStart, Writer, moment};
use sampling::recording::recorder::Recorder;
use sampling::recording::steps::Start;
use sampling::recording::tape::{Recording, Tape};
use settings::args::DcpidArgs;
use settings::config::Config;
use std::io;
use std::os::unix::net::SocketAddr;
use std::path::Path;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// Most times of killed daemons that an epoch tells; the oldest are dropped.
const KILLED_MAX: usize = 16;

/// Runs the daemon until it is told to end.
///
/// # Errors
/// One line with the next step, when it cannot start or cannot write its last samples.
pub fn run(args: DcpidArgs) -> anyhow::Result<()> {
    if let Some(done) = without_sampling(&args) {
        return done;
    }
    kernel::share_heap();
    let config = Config::new(args.settings.clone(), args.config.as_deref())?;
    kernel::require_privileges()?;
    let machine = Machine::probe()?;
    let events = kernel::resolve_event(&config.events, &machine.cpus)?;
    let control = ControlSocket::bind(&config.control, config.access)?;
    let metrics =
        config.metrics.as_ref().map(|at| MetricsSocket::bind(at, config.access)).transpose()?;
    let notices =
        config.loader_socket.as_deref().map(Notices::bind).transpose()?.unwrap_or_default();
    let mut writer =
        Writer::open(&config.db, &config.host_or(&machine.host)).map_err(cannot_write)?;
    let (table, budget, sharing) = (config.table, config.budget, config.sharing());
    let settings = SourceSettings { events, table, budget, sharing };
    let source = KernelSource::open(&settings, &machine)?;
    let inspectors = inspectors(&config)?;
    privileges::give_up_unneeded();
    let (events, cost) = (source.events().to_vec(), source.cost());
    log_budget(&config, &events, cost);
    let skid = source.skid();
    log_skid(skid);
    let start = epoch_start(&machine, &events, None);
    let epoch = writer.begin(start.clone(), args.new_epoch)?;
    let open = writer.meta();
    let epoch_clock = EpochClock::new(
        open.map_or(start.now_unix_s, |meta| meta.started_unix_s),
        open.map_or(0, |meta| meta.updated_unix_s),
        open.and_then(|meta| meta.facts.get()).unwrap_or_default(),
    );
    log_findings(&writer, &config, &machine);
    let killed = killed(&writer, start.now_unix_s);
    let (librarian, library) = start_librarian(&config, &writer, &machine, &inspectors)?;

    log_events(&events, &machine);
    let (collector, tape) =
        collector(source, library.clone(), (&start, inspectors), (&args, &config, &machine))?;
    let collector = collector.hearing(notices);

    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("starting the runtime")?;
    runtime.block_on(async {
        let (done_sender, done) = mpsc::unbounded_channel();
        let place = (config.db.clone(), config.retention, library);
        let flusher = Flusher::start(writer, start, place, done_sender)
            .context("starting the flush thread")?;
        let (asked_sender, asked) = mpsc::channel(64);
        let again = move || Config::new(args.settings.clone(), args.config.as_deref());
        let (stop, reload) = signals(args.until_eof, again).context("listening to signals")?;
        let alarm = kernel::Alarm::new()
            .context("the loop's timer (when descriptors ran out: raise LimitNOFILE)")?;
        let serve = serve(&control, metrics, asked_sender);
        let db = config.db.display().to_string();
        tracing::info!(%epoch, db, control = %config.control.display(), "dcpid ready");
        // The error means that there is no service manager to notify.
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
        let pipeline = Pipeline::new(
            Parts {
                config,
                machine,
                events,
                skid,
                collector,
                flusher,
                epoch: epoch.to_string(),
                epoch_clock,
                killed,
                opens_on: args.opens_on,
            },
            cost,
        );
        let result = tokio::select! {
            result = pipeline.run(asked, done, (stop, reload), alarm) => result,
            () = serve => Ok(()),
        };
        librarian.finish();
        control.finish().await;
        result.and(tape.finish().map_err(Into::into))
    })
}

/// Replays a recording, or answers a dcpid's questions, where that is what this process is for.
fn without_sampling(args: &DcpidArgs) -> Option<anyhow::Result<()>> {
    if let (Some(file), Some(db)) = (&args.replay, &args.settings.db) {
        return Some(replay(file, db));
    }
    if args.check_host {
        return Some(crate::host_checks::write(&mut std::io::stdout().lock()));
    }
    if args.inspect {
        return Some(starter::inspect().context("answering questions"));
    }
    let path = args.inspections.as_ref()?;
    let started = starter::run(path);
    Some(started.with_context(|| format!("starting inspectors at {}", path.display())))
}

/// Answers clients of all sockets for ever.
async fn serve(
    control: &ControlSocket,
    metrics: Option<MetricsSocket>,
    asked: mpsc::Sender<Asked>,
) {
    let ended = |socket: &str, result: std::io::Result<()>| {
        if let Err(error) = result {
            tracing::error!(%error, "the {socket} socket is gone; signals still work");
        }
    };
    let metrics = async {
        if let Some(metrics) = metrics {
            ended("metrics", metrics.serve(asked.clone()).await);
        }
    };
    tokio::join!(async { ended("control", control.serve(asked.clone()).await) }, metrics);
    std::future::pending::<()>().await;
}

/// Times of the epoch that is open now without samples because a daemon was killed. The last of
/// them is of the daemon before this one, if it was, and logged.
fn killed(writer: &Writer, now_unix_s: u64) -> Vec<Killed> {
    let Some(left) = writer.left_open() else { return Vec::new() };
    let endings: Option<Endings> = left.facts.get();
    // Without a merge no daemon ended; merges without the fact are of a release that did not tell.
    let ended = endings.as_ref().map_or(left.merges > 0, |endings| endings.ended);
    let goes_on = writer.epoch() == Some(&left.epoch);
    let mut killed = endings.filter(|_| goes_on).map_or(Vec::new(), |endings| endings.killed);
    if !ended {
        let (since, until) = (left.updated_unix_s, now_unix_s);
        tracing::warn!(
            epoch = %left.epoch,
            "the dcpid before was killed, or the machine went down: there are no samples from {} \
             to {} UTC, from its last merge to this start",
            moment(since),
            moment(until)
        );
        killed.push(Killed { since_unix_s: since, until_unix_s: until });
        killed.drain(..killed.len().saturating_sub(KILLED_MAX));
    }
    killed
}

/// What the database has that is not as it should be, and other hosts: one that was renamed begins
/// a part of its own, which is easily overlooked.
fn log_findings(writer: &Writer, config: &Config, machine: &Machine) {
    writer.findings().iter().for_each(|finding| tracing::warn!("in the database: {finding}"));
    let host = config.host_or(&machine.host);
    let Ok(hosts) = Database::open(&config.db).and_then(|db| db.hosts()) else { return };
    let others: Vec<&str> = hosts.iter().map(String::as_str).filter(|of| **of != host).collect();
    if !others.is_empty() {
        tracing::info!(
            "the database also has epochs of {}: if this host was called so, --host goes on under \
             that name",
            others.join(", ")
        );
    }
}

fn log_events(events: &[PlannedEvent], machine: &Machine) {
    for plan in events {
        let note = plan.note.as_deref().unwrap_or_default();
        tracing::info!(
            event = plan.event.name,
            period = plan.period,
            unit = %plan.event.unit,
            cpus = machine.cpus.len(),
            note,
            "sampling"
        );
    }
}

fn log_budget(config: &Config, events: &[PlannedEvent], cost: kernel::Cost) {
    if let Some(budget) = config.budget.filter(|_| events.iter().any(|event| event.adjustable)) {
        let step = highest(Some(budget), cost.ns_per_sample, at_once(events));
        let (rate, percent) = (RATES.get(step).copied().unwrap_or(1), budget.0 * 100.0);
        tracing::info!(
            ns_per_sample = cost.ns_per_sample,
            "the budget of {percent} % of all CPU time and kernel.perf_event_max_sample_rate \
             allow {rate} samples/s/CPU here"
        );
    }
}

fn log_skid(skid: Option<kernel::EventSkid>) {
    match skid {
        Some(skid) => {
            let instructions = skid.distance.instructions();
            tracing::info!(
                instructions,
                "a sample lands this many instructions after the one that took the time"
            );
        }
        None => tracing::info!("the skid of samples could not be measured here"),
    }
}

/// Why the database cannot be written, with the next step.
fn cannot_write(error: DbError) -> anyhow::Error {
    let said = match &error {
        name @ DbError::InvalidName { .. } => format!("{name}; name another --host"),
        DbError::Locked { path } => format!(
            "another daemon writes this database ({} is locked); stop it or name another \
             directory with --db",
            path.display()
        ),
        error => format!("{error}; name a directory that dcpid may write with --db"),
    };
    let passes = match &error {
        DbError::Locked { .. } => true,
        DbError::Io { source, .. } => passes(source),
        _ => false,
    };
    if passes { MayPass(said).into() } else { anyhow::anyhow!(said) }
}

/// The daemon could not start for a reason that may pass.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct MayPass(String);

/// Whether what kept the daemon from starting may pass by itself, so that it is worth to start it
/// again later.
pub fn may_pass(error: &anyhow::Error) -> bool {
    let io = |cause: &(dyn std::error::Error + 'static)| {
        cause.downcast_ref::<io::Error>().is_some_and(passes)
    };
    error.is::<MayPass>() || error.chain().any(io)
}

/// Whether an operation may succeed later: the disk was full or failed, the machine had no memory
/// or no open files left, or another process had the address.
fn passes(error: &io::Error) -> bool {
    use io::ErrorKind::{AddrInUse, OutOfMemory, QuotaExceeded, StorageFull};
    // asm-generic/errno-base.h, the same on x86-64 and arm64.
    let (eio, enfile) = (5, 23);
    matches!(error.kind(), StorageFull | QuotaExceeded | AddrInUse | OutOfMemory)
        || error.raw_os_error().is_some_and(|code| code == eio || code == enfile)
}

/// Lets samples flow, records them where a recording is asked for, and reads which processes run.
fn collector(
    mut source: KernelSource,
    library: Library,
    (start, inspectors): (&EpochStart, Inspectors),
    (args, config, machine): (&DcpidArgs, &Config, &Machine),
) -> anyhow::Result<(Collector<Recorder<KernelSource>>, Tape)> {
    let (system, run, vdso) =
        (system(args, inspectors), fastrand::u64(..), mapped_files::own_vdso());
    let kernel_text = kernel_text(machine, system.clone());
    kernel::give_back();
    kernel::give_back_code();
    source.start()?;
    let periods: Vec<u64> = source.events().iter().map(|event| event.period).collect();
    let recorded = Start {
        host: config.host_or(&machine.host),
        kernel_release: machine.kernel_release.clone(),
        kernel_id: machine.kernel_id.to_string(),
        vdso: vdso.as_deref().map(stored),
        epoch: start.into(),
        rules: config.rules.clone(),
        run,
        now_ns: clock::monotonic_ns(),
    };
    let tape =
        args.record_input.as_deref().map(|file| Tape::create(file, &recorded, system.clone()));
    let tape = tape.transpose()?.unwrap_or_default();
    let source = Recorder::new(source, tape.clone(), system.clone());
    let replay = Replay { system, tape: tape.clone(), run };
    let mut collector = Collector::new(source, kernel_text, vdso, &periods, library, replay);
    collector.spaces.mappings.keep_apart(config.rules.clone());
    collector.instruments.call_stacks.attributes = config.attributes;
    Ok((collector, tape))
}

/// Merges a recording into the database.
fn replay(file: &Path, db: &Path) -> anyhow::Result<()> {
    let begun = std::time::Instant::now();
    let done = player::replay(Recording::open(file)?, db)?;
    let ms = begun.elapsed().as_millis() as u64;
    let Replayed { epoch, taken, merges, unanswered } = done;
    if unanswered > 0 {
        tracing::warn!(unanswered, "the recording has no answers to some questions");
    }
    tracing::info!(%epoch, taken, merges, ms, "replayed {}", file.display());
    Ok(())
}

/// Answers questions about processes and files.
fn system(args: &DcpidArgs, inspectors: Inspectors) -> System {
    let system = System::through(inspectors);
    if args.record_input.is_some() { system.recording() } else { system }
}

/// The inspectors that the daemon's loop asks about other users' processes: those of the service,
/// or its own.
fn inspectors(config: &Config) -> anyhow::Result<Inspectors> {
    // Before they start: they inherit it.
    privileges::go_first();
    let address = match &config.inspector {
        Some(path) => SocketAddr::from_pathname(path)
            .with_context(|| format!("{} is no path of a socket", path.display()))?,
        None => starter::spawn().context("starting the inspectors")?,
    };
    Ok(Inspectors::at(address, LOOP_PATIENCE))
}

fn kernel_text(machine: &Machine, system: System) -> KernelText {
    let mut kernel_text = KernelText::new(&machine.kernel_release, machine.kernel_id, system);
    match kernel::kernel_symbols() {
        Ok(symbols) => kernel_text.refresh(Some(symbols), clock::monotonic_ns()),
        Err(error) => tracing::warn!("kernel samples stay unresolved: {error}"),
    }
    kernel_text
}

/// Starts the thread that keeps code and the catalogue of files, both beside the host's epochs.
/// Without a code store sampling goes on.
fn start_librarian(
    config: &Config,
    writer: &Writer,
    machine: &Machine,
    inspectors: &Inspectors,
) -> anyhow::Result<(Librarian, Library)> {
    let host = config.db.join("hosts").join(config.host_or(&machine.host));
    let catalogue = match profiledb::storage::open_own_directory(&config.db, &host) {
        Ok(directory) => Catalogue::open_in(directory, &host, "catalogue"),
        Err(error) => {
            tracing::warn!("what is learnt of files is not kept: {error}");
            Catalogue::default()
        }
    };
    let store = config.code_store.and_then(|limit| {
        let opened = CodeStore::open(writer, limit);
        opened.inspect_err(|error| tracing::error!("code is not kept: {error}")).ok()
    });
    // Code is kept slowly: a new large program must leave room for samples.
    let cpu_share = config.budget.map(|budget| budget.0 * 0.1 * machine.cpus.len() as f64);
    let (private, whole) = (config.private_code, config.whole_code);
    let bytes = config.code_store.unwrap_or(0);
    let limits = StoreLimits { bytes, cpu_share, private, whole };
    Librarian::start(catalogue, store, limits, inspectors.another(THREAD_PATIENCE))
        .context("starting the librarian")
}

/// The error and its causes on one line, each text once: an error often quotes its cause.
pub fn one_line(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(|cause| cause.to_string()) {
        match text.as_str() {
            "" => text = cause,
            known if known.contains(&cause) => {}
            known => text = format!("{known}: {cause}"),
        }
    }
    let io = error.chain().find_map(|cause| cause.downcast_ref::<io::Error>());
    if !text.contains("LimitNOFILE") {
        text.push_str(io.map_or("", profiledb::advice));
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Sends a message for each SIGTERM or SIGINT and, if asked for, at the end of the standard input;
/// and with each SIGHUP the configuration, read by `again`.
fn signals(
    until_eof: bool,
    again: impl Fn() -> anyhow::Result<Config> + Send + 'static,
) -> std::io::Result<Signals> {
    let (sender, receiver) = mpsc::channel(1);
    let (reloads, reload) = mpsc::channel(1);
    if until_eof {
        let sender = sender.clone();
        std::thread::Builder::new().name("stdin".into()).spawn(move || {
            // A standard input that cannot be read counts as ended.
            let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
            tracing::info!("the standard input has ended: draining and merging what was sampled");
            let _ = sender.blocking_send(()); // ending already
        })?;
    }
    let (mut term, mut int, mut hup) = (
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
        signal(SignalKind::hangup())?,
    );
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = term.recv() => {}
                _ = int.recv() => {}
                _ = hup.recv() => {
                    match again() {
                        Ok(config) => drop(reloads.send(config).await), // ending already
                        Err(error) => tracing::error!("the configuration stays as it was: \
                        {}", one_line(&error)),
                    }
                    continue;
                }
            }
            tracing::info!("ending: draining and merging what was sampled");
            let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
            if sender.send(()).await.is_err() {
                return;
            }
        }
    });
    Ok((receiver, reload))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_pass_is_told_from_what_stays_wrong() {
        let disk = |code| DbError::Io {
            op: profiledb::Operation::Write,
            path: "/var/lib/dcpi/hosts/h".into(),
            source: io::Error::from_raw_os_error(code),
        };
        let (enospc, eio, eacces, emfile) = (28, 5, 13, 24);
        let locked = DbError::Locked { path: "/var/lib/dcpi/hosts/h/lock".into() };
        for (error, passes) in
            [(disk(enospc), true), (disk(eio), true), (locked, true), (disk(eacces), false)]
        {
            let shown = error.to_string();
            assert_eq!(may_pass(&cannot_write(error)), passes, "{shown}");
        }
        let started = |code| anyhow::Error::new(io::Error::from_raw_os_error(code));
        assert!(may_pass(&started(enospc).context("starting the runtime")));
        assert!(!may_pass(&anyhow::anyhow!("no such event")));
        let many = started(emfile).context("starting the inspectors");
        assert!(!may_pass(&many));
        assert!(one_line(&many).ends_with("raise it with ulimit -n, or LimitNOFILE= of a unit"));
    }
}
