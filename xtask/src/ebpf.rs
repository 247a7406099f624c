//! Builds the committed eBPF objects from their source, or checks that they come from it.

use crate::Outcome;
use crate::packages;
use crate::process::must;
use anyhow::Context as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// As Rust's target_arch calls them.
const ARCHITECTURES: [&str; 2] = ["x86_64", "aarch64"];
/// Instructions of BPF v3 are known since Linux 5.1; we support 5.10.
const CPU: &str = "v3";

fn committed(architecture: &str) -> PathBuf {
    Path::new("ebpf/objects").join(format!("sampler.{architecture}.bpf.o"))
}

/// Writes the objects.
pub fn build() -> anyhow::Result<Outcome> {
    packages::ensure(&packages::BPF_COMPILER)?;
    for architecture in ARCHITECTURES {
        let object = committed(architecture);
        compile(architecture, &object)?;
        println!("{}: {} bytes", object.display(), fs::metadata(&object)?.len());
    }
    Ok(Outcome::Clean)
}

/// Compares the object built from the source with the committed one.
pub fn check() -> anyhow::Result<Outcome> {
    packages::ensure(&packages::BPF_COMPILER)?;
    let mut outcome = Outcome::Clean;
    for architecture in ARCHITECTURES {
        let fresh = PathBuf::from("target").join(format!("check.{architecture}.bpf.o"));
        compile(architecture, &fresh)?;
        let object = committed(architecture);
        let same = fs::read(&object).with_context(|| format!("reading {}", object.display()))?
            == fs::read(&fresh)?;
        if same {
            println!("{} comes from its source", object.display());
        } else {
            println!(
                "{} does not come from ebpf/src/; run `cargo xtask ebpf` and commit the result",
                object.display()
            );
            outcome = Outcome::Problems;
        }
    }
    Ok(outcome)
}

/// The bytes depend on source and compiler only: the compiler runs in the source's folder and is
/// told to record no other.
fn compile(architecture: &str, object: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(object.parent().context("an object has a folder")?)?;
    let absolute = std::env::current_dir()?.join(object);
    let flags = "-nostdinc -O2 -g -target bpfel -Wall -Wextra -Werror -fdebug-compilation-dir=. -c sampler.bpf.c -o";
    let mut clang = Command::new("clang-19");
    clang.current_dir("ebpf/src").arg(format!("-mcpu={CPU}")).arg(format!("-DARCH_{architecture}"));
    must(clang.args(flags.split(' ')).arg(&absolute))?;
    must(Command::new("llvm-strip-19").arg("-g").arg(&absolute))
}
