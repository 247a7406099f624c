//! Project automation: `cargo xtask TASK`. Without a task it lists them.
//!
//! Exit codes: 0 done; 1 done, and problems were found; 2 could not.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "tasks say what they do")]
#![forbid(unsafe_code)]

mod bench;
mod blockcount;
mod blocks;
mod book;
mod ci;
mod consumers;
mod container;
mod demo;
mod dotnet;
mod ebpf;
mod face;
mod fleet;
mod fuzz;
mod hook;
mod machines;
mod man;
mod package;
mod packages;
mod process;
mod record;
mod test;
mod tidy;
mod vm;

use std::process::ExitCode;

const USAGE: &str = "\
cargo xtask TASK

  demo             profile this machine for a few seconds and show where the cycles went; root
  test [--unprivileged] [FILTER]
                   every test; without root, list the privileged ones, which did not run, and fail
  record [NAME...] make the recordings of dcpid's tests/attribution.rs anew; root, on a machine that
                   does little else
  ci               what .ci/run runs: fmt, tidy, ebpf --check, face --check,
                   clippy, doc, book, fleet, test
  tidy             check the house rules: arrows, sizes, names, width of lines, documents
  fuzz [NAME|all [--minutes N]]
                   coverage-guided fuzzers of every decoder of strangers' bytes, an hour in all;
                   without NAME, list them
  fleet            check the programs of the fleet, a workspace of its own: fmt, clippy, tests; as
                   root also hosts in containers
  fleet engines    the shipped SQL on DataFusion, a Ballista cluster over S3, DuckDB and Spark:
                   same rows, also when an executor is killed; downloads 0.7 GB, needs Java
  consumers        give each format of dcpi export to the program it is for; installs half a
                   gigabyte of programs; root
  vm [KERNEL...]   boot kernels of Debian under emulation and run dcpid in them; downloads up to
                   1 GB to target/vm

  ebpf [--check]   rebuild the committed eBPF objects, or check that they come from their source
  face [--check]   rebuild the committed page of dcpi html and dcpi serve with npm, or check that it
                   comes from its source
  hook             build and check the loader hook, target/hook/libdcpi_loader_hook.so
  blockcount       build and check the program that counts blocks,
                   target/blockcount/dcpi-blockcount
  blocks           build what compilers need to put events into programs, target/blocks
  man              man pages, shell completions and the page of commands: target/man,
                   target/completions, target/commands.md
  book             the guide as a book, by mdBook: target/book
  machines         make the tables of processors (analysis/stalls/machines) anew, from LLVM's models
  package [--dev]  a Debian package of everything: target/package

  bench overhead   what sampling costs programs, beside an empty BPF program and perf record: the
                   paper's tables 3 to 5 [--quick] [--rounds N] [--seconds N]
  bench images     what new images and short processes cost dcpid and its inspectors, beside
                   another build [--rounds N] [--beside DIR]
  bench stacks     call stacks of fourteen programs: how many are whole, and what one costs,
                   beside perf record [--quick] [--seconds N] [--only PROGRAM]; or inclusive
                   times beside exact counts [--callgrind]; or names against programs whose
                   functions' names say who called them [--names] [--only LANGUAGE]
                   [--processes N]
  bench waits      waits for known things, a storm of waits, the ledger of 1,000 threads, and what
                   all of it costs [--only known|ledger|storm|cost]
  bench table      sizes, policies and drain intervals of the sampler's table, simulated over
                   recorded samples [--recording FILE] [--seconds N]
  bench loader     what the loader hook adds to the start of programs [--quick] [--rounds N]
  bench db         what the database costs: bytes an entry, a simulated week, speeds [--db DIR]
                   [--seconds N]
  bench reading    how long reports take, beside perf report, objdump and addr2line [--quick]
                   [--rounds N]
  bench walks      the interpreter of registers against the processor: a million states; or against
                   callgrind's counts [--quick] [--callgrind]
  bench truth      how good estimates are, over 21 programs [--seconds N] [--engine own|valgrind]
  bench ideal      what exact counts of blocks and edges cost, beside callgrind [--no-callgrind]
                   [--rounds N]
  bench cfg        control-flow graphs of every procedure that is installed [--quick] [--json]
                   [PATH...]
  bench why        explanations of every procedure that is installed [--quick] [PATH...];
                   whether dcpi why names known causes first [--causes [--seconds N]]
  bench faster     how much faster programs become with profiles [--rounds N] [--seconds N]
                   [--again]
  bench perturb loops
                   events in the 24 Livermore loops: time stamps, models of 1992, block ids, times
                   of blocks by samples, two threads [--only one|times|threads] [--rounds N]
                   [--runs N] [--load N]
  bench machine    how well measurements of dcpi machine agree [--runs N] [--load N]
  bench time       how right dcpi time and dcpi-bench are, beside the lecture, hyperfine, criterion
                   [--only lecture|functions|same|effect|peers] [--pairs N] [--effects N]
                   [--load N] [--quick]
  bench perturb observers  what dcpi perturb says of observers of Lua, and of Lua against itself
                   [--only OBSERVER] [--trials N] [--load N]
  bench perturb uprobes  traces of five programs, their times corrected, beside uftrace, LTTng and
                   perf [--no-peers] [--rounds N] [--only PROGRAM] [--load N]
  bench soak       memory, ledger, database and descriptors under load for an hour [--minutes N]

demo, test, fuzz, consumers, ebpf, face, bench and ci install what they need from the
distribution and say so first.";

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
        ["record", names @ ..] => record::run(names),
        ["fuzz", rest @ ..] => fuzz::run(rest),
        ["fleet"] => fleet::run(),
        ["fleet", "engines"] => fleet::engines(),
        ["consumers"] => consumers::run(),
        ["ebpf"] => ebpf::build(),
        ["ebpf", "--check"] => ebpf::check(),
        ["face"] => face::build(),
        ["face", "--check"] => face::check(),
        ["hook"] => hook::run(),
        ["blockcount"] => blockcount::run(),
        ["blocks"] => blocks::run(),
        ["bench", rest @ ..] => bench::run(rest),
        ["man"] => man::run(),
        ["book"] => book::run(),
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The usage text omitted six benchmarks.
    #[test]
    fn every_benchmark_is_in_the_usage() {
        for name in bench::names() {
            assert!(USAGE.contains(&format!("\n  bench {name} ")), "{name}");
        }
    }
}
