//! `bench why`: time of explanations, of samples in every procedure that is installed
//! (`analysis/dcpi/tests/cli/everything.rs`), and of procedures of growing size
//! (`analysis/stalls/examples/growth.rs`). With PATHs, of the files there alone. With `--causes`,
//! how often `dcpi why` is right instead (`causes.rs`).

use super::{causes, parted, refuse_others};
use crate::process::{command, output, succeeds};
use crate::{Outcome, packages};

/// Files that `--quick` explains beside the compiler: the paper timed its analysis on 26 MB of
/// executables.
const FEW: [&str; 2] = ["/usr/lib/x86_64-linux-gnu/libc.so.6", "/usr/bin/python3"];

pub fn run(arguments: &[&str]) -> anyhow::Result<Outcome> {
    if let Some((_, options)) = arguments.split_first().filter(|(first, _)| **first == "--causes") {
        refuse_others("why --causes", options, &["--peers"], &["--seconds"])?;
        return Ok(if causes::run(options)? { Outcome::Clean } else { Outcome::Problems });
    }
    let (paths, flags) = parted(arguments);
    refuse_others("why", &flags, &["--quick"], &[])?;
    packages::ensure(packages::COMPILER.iter().chain(&packages::WALKED))?;
    let mut growth = command("cargo run --quiet --release --package stalls --example growth");
    let mut everything =
        command("cargo test --quiet --release --package dcpi --test cli -- --ignored --nocapture");
    everything.arg("everything_that_is_installed_is_explained");
    if !paths.is_empty() {
        everything.env("WHY_OF", paths.join(":"));
    } else if flags.contains(&"--quick") {
        let compiler = output(&mut command("gcc -print-prog-name=cc1"))?;
        everything.env("WHY_OF", format!("{}:{}", FEW.join(":"), compiler.trim()));
    }
    let clean = succeeds(&mut growth)? & succeeds(&mut everything)?;
    Ok(if clean { Outcome::Clean } else { Outcome::Problems })
}
