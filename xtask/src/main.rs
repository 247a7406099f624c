//! Project automation: `cargo xtask TASK`. Without a task it lists them.
//!
//! Exit codes: 0 done; 1 done, and problems were found; 2 could not.
#![forbid(unsafe_code)]

mod bench;
mod ci;
mod consumers;
mod container;
mod demo;
mod ebpf;
mod hook;
mod machines;
mod man;
mod package;
mod packages;
mod process;
mod test;
mod tidy;
mod vm;

use std::process::ExitCode;

const USAGE: &str = "\
cargo xtask TASK

  demo                   profile this whole machine for a few seconds and show where the cycles went
  test [--unprivileged] [FILTER]
                         every test; those that need root run when root, else it says which did not run and fails
  consumers              what dcpi export writes, taken by the programs it is for; installs half a gigabyte of them; root
  ebpf [--check]         rebuild the committed eBPF objects, or check that they come from their source
  hook                   build the loader hook, target/hook/libdcpi_loader_hook.so, and check it
  bench overhead [--quick] [--rounds N] [--seconds N]
                         what sampling costs programs, against an empty BPF program and perf record: the paper's tables 3 to 5
  bench table [--recording FILE] [--seconds N]
                         simulates sizes, ways, policies and drain intervals of the sampler's table over recorded samples
  bench loader [--quick] [--rounds N]
                         what the loader hook adds to the start of programs, against an audit library that does nothing
  man                    man pages and shell completions of all programs: target/man, target/completions
  bench walks [--quick] [--callgrind]
                         what sampled registers say programs do next, against what they do: a million states; and against callgrind's counts
  machines               make the tables of processors (stalls/machines) anew, from LLVM's models
  bench soak [--minutes N]
                         a storm of compilers, reads, flushes, epochs and kills of dcpid for an hour: memory, ledger, database, descriptors
  package                a Debian package of everything: target/package
  tidy                   check the house rules: dependency arrows, sizes, names
  vm [KERNEL...]         boot kernels of Debian under emulation and run the daemon in them; downloads up to 1 GB to target/vm
  ci                     what .ci/run runs: fmt, tidy, ebpf --check, clippy, doc, test

demo, test, consumers, ebpf, bench and ci install what they need from the distribution and say so first.";

/// How a task ended, when it could be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Clean,
    Problems,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = process::go_to_root().and_then(|()| match arguments.as_slice() {
        [] | ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            Ok(Outcome::Clean)
        }
        ["demo"] => demo::run(),
        ["machines"] => machines::run(),
        ["test", rest @ ..] => test::run(rest),
        ["consumers"] => consumers::run(),
        ["ebpf"] => ebpf::build(),
        ["ebpf", "--check"] => ebpf::check(),
        ["hook"] => hook::run(),
        ["bench", rest @ ..] => bench::run(rest),
        ["man"] => man::run(),
        ["package", rest @ ..] => package::run(rest),
        ["tidy"] => tidy::run(),
        ["vm", rest @ ..] => vm::run(rest),
        ["ci"] => ci::run(),
        other => {
            Err(anyhow::anyhow!("no task '{}'; `cargo xtask` lists the tasks", other.join(" ")))
        }
    });
    match result {
        Ok(Outcome::Clean) => ExitCode::SUCCESS,
        Ok(Outcome::Problems) => ExitCode::from(1),
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::from(2)
        }
    }
}
