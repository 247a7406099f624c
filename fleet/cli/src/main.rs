//! `dcpi-fleet`: collects the profiles of many hosts in one store.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod receive;

/// The profiles of many hosts in one store.
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
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    tracing_subscriber::fmt()
        .with_ansi(false)
        .with_target(false)
        .with_writer(std::io::stderr)
        .init();
    let done = match arguments.command {
        Command::Receive(receive) => receive::run(&receive).await,
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("dcpi-fleet: {error}");
            ExitCode::from(2)
        }
    }
}
