//! `dcpi-fleet`: collects the profiles of many hosts in one store, and reviews them week by week.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[cfg(feature = "ballista")]
mod cluster;
mod compare;
// As the reports of one host are written.
#[path = "../../../analysis/report/src/csv.rs"]
mod csv;
mod drill;
#[path = "../../../analysis/report/src/escape.rs"]
mod escape;
mod http;
mod ingest;
mod out;
mod push;
mod receive;
mod retain;
mod review;
mod serve;
mod simulate;
mod sql;
mod store_option;

use escape::escape;

/// The profiles of many hosts in one store, reviewed week by week
#[derive(Debug, Parser)]
#[command(name = "dcpi-fleet", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Takes what hosts push (dcpi push --to dcpi+http://HOST:PORT) into a store
    Receive(receive::Receive),
    /// Puts the epochs of a database into a store, also in S3, Google Cloud Storage and Azure
    Push(push::Push),
    /// Makes facts of the epochs that hosts have pushed since the last time
    Ingest(ingest::Ingest),
    /// Closes a week: sums, and what changed, for its review
    Close(ingest::Close),
    /// Makes the files of a week fewer, while it is not closed
    Compact(ingest::Close),
    /// Writes the review of a week that is closed
    Review(review::Review),
    /// Shows the instructions of a row of a review, and why they waited
    Drill(drill::Drill),
    /// Says whether a new build of a service costs cores: a gate for deploys
    Compare(compare::Compare),
    /// Serves reviews to browsers, down to instructions
    Serve(serve::Serve),
    /// Removes raw epochs, facts and files that are older than they are worth
    Retain(retain::Retain),
    /// Fills an empty store with a made-up fleet whose truth is known
    Simulate(simulate::Simulate),
    /// Answers a question in SQL about the tables of weeks
    Sql(sql::Sql),
    /// Schedules the questions of --engine df://HOST:PORT, of close and sql
    #[cfg(feature = "ballista")]
    Scheduler(cluster::Scheduler),
    /// Answers parts of questions that a scheduler has
    #[cfg(feature = "ballista")]
    Executor(cluster::Executor),
}

/// The program, on threads whose stacks hold plans of nested questions even where nothing was
/// optimised.
fn main() -> ExitCode {
    let arguments = Arguments::parse();
    tracing_subscriber::fmt()
        .with_ansi(false)
        .with_target(false)
        .with_writer(std::io::stderr)
        .init();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_stack_size(16 << 20)
        .build();
    let work = move || match runtime {
        Ok(runtime) => runtime.block_on(run(arguments.command)),
        Err(error) => Err(error.to_string()),
    };
    let thread = std::thread::Builder::new().stack_size(64 << 20).spawn(work);
    let done = thread.map_err(|error| error.to_string()).and_then(|thread| {
        thread.join().unwrap_or_else(|_| Err("it failed; please report this".to_owned()))
    });
    match done {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("dcpi-fleet: {error}");
            ExitCode::from(2)
        }
    }
}

/// The exit code: 0 where all went well; an error is one line, with the next step.
async fn run(command: Command) -> Result<u8, String> {
    let went_well = match command {
        Command::Receive(receive) => receive::run(&receive).await.map(|()| true),
        Command::Ingest(args) => ingest::run_ingest(&args).await,
        Command::Close(args) => ingest::run_close(&args).await,
        Command::Compact(args) => ingest::run_compact(&args).await,
        Command::Review(args) => review::run(&args).await,
        Command::Drill(args) => drill::run(&args).await,
        Command::Compare(args) => return compare::run(&args).await,
        Command::Serve(args) => serve::run(&args).await,
        Command::Push(args) => push::run(&args).await,
        Command::Retain(args) => retain::run(&args).await,
        Command::Simulate(args) => simulate::run(&args).await,
        Command::Sql(args) => sql::run(&args).await,
        #[cfg(feature = "ballista")]
        Command::Scheduler(args) => cluster::run_scheduler(&args).await,
        #[cfg(feature = "ballista")]
        Command::Executor(args) => cluster::run_executor(&args).await,
    };
    Ok(u8::from(!went_well?))
}
