//! Steers the daemon. Exit codes: 0 done; 2 could not.
#![allow(clippy::print_stderr, reason = "a main program prints")]

use kernel::clock;
use pipeline::status_text;
use settings::args::{Command, DcpictlArgs, parse};
use std::io::Write as _;
use std::process::ExitCode;
use wire::{Client, Registration, Reply, Request};

fn main() -> ExitCode {
    match run(&parse("dcpictl")) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("dcpictl: {}", dcpid::daemon::one_line(&error));
            ExitCode::from(2)
        }
    }
}

fn run(args: &DcpictlArgs) -> anyhow::Result<()> {
    let asked = match &args.command {
        Command::Status => Request::Status,
        Command::Flush => Request::Flush,
        Command::Epoch { label } => Request::Epoch { label: label.clone() },
        Command::Label { pid, label } => {
            let start_time = kernel::procfs::start_time(*pid);
            anyhow::ensure!(start_time.is_some(), "there is no process {pid}; see ps");
            Request::Label { pid: Some(*pid), start_time, label: label.clone() }
        }
        Command::Quit => Request::Quit,
        Command::Register { pid, start, len, name, image, file, offset } => {
            // dcpid has another working directory.
            let file = file.as_ref().map(std::path::absolute).transpose()?;
            let (name, image) = (name.clone(), image.clone());
            let (pid, start, len, offset) = (*pid, *start, *len, *offset);
            Request::Register(Registration { pid, start, len, name, image, file, offset })
        }
        Command::Unregister { pid, start } => Request::Unregister { pid: *pid, start: *start },
    };
    let reply = Client::new(&args.control).ask(&asked)?;
    let text = if args.json { json(&reply)? } else { text(&args.command, &reply) };
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

fn json(reply: &Reply) -> anyhow::Result<String> {
    let text = match &reply.status {
        Some(status) => serde_json::to_string_pretty(status)?,
        None => serde_json::to_string_pretty(reply)?,
    };
    Ok(text + "\n")
}

fn text(command: &Command, reply: &Reply) -> String {
    let epoch = reply.epoch.as_deref().unwrap_or("?");
    let (taken, merged) = (reply.taken.unwrap_or(0), reply.merged.unwrap_or(0));
    let so_far = format!("{taken} samples since dcpid started, {merged} of them in profiles");
    let regions =
        |pid: &u32| format!("process {pid} has {} registered now", reply.regions.unwrap_or(0));
    match command {
        Command::Register { pid, start, len, name, .. } => {
            format!("registered {len:#x} bytes at {start:#x} as {name}; {}\n", regions(pid))
        }
        Command::Unregister { pid, start } => {
            format!("forgot the region at {start:#x}; {}\n", regions(pid))
        }
        Command::Status => reply
            .status
            .as_ref()
            .map(|status| status_text::text(status, clock::unix_s()))
            .unwrap_or_default(),
        Command::Flush => format!("flushed to epoch {epoch}: {so_far}\n"),
        Command::Label { pid, label } => {
            format!("process {pid} is labelled {label} from now on, with its children\n")
        }
        Command::Epoch { .. } => format!("epoch {epoch} begins\n"),
        Command::Quit => format!("dcpid ended, its last epoch is {epoch}: {so_far}\n"),
    }
}
