//! What runs in a guest, built here: our own programs and the workload, all linked statically,
//! because a guest has no libraries.

use super::Architecture;
use super::archive::{Archive, Mirrors};
use crate::packages;
use crate::process::{command, must};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Of ours.
pub const OURS: [&str; 4] = ["dcpid", "dcpictl", "dcpilabel", "dcpi"];
/// In C: name and source.
pub const WORKLOADS: [(&str, &str); 3] = [
    ("two_functions", "tests/workloads/two_functions.c"),
    ("counted", "tests/vm/counted.c"),
    ("branched", "tests/vm/branched.c"),
];

/// Debian's own Rust, since it comes with a standard library for arm64 that it was built with, and
/// a linker for arm64.
const CROSS: &str = "rustc-web gcc-aarch64-linux-gnu libc6-dev-arm64-cross";

/// Builds all of it. Returns the folder that they are in.
pub fn build(vm: &Path, mirrors: &Mirrors, architecture: Architecture) -> anyhow::Result<PathBuf> {
    let mut cargo = command("cargo build --quiet --release --package dcpid --package dcpi");
    cargo.arg("--target").arg(architecture.target()).arg("--target-dir").arg(vm.join("build"));
    cargo.env_remove("RUSTFLAGS"); // it would win over the next line
    cargo.env(architecture.cargo_variable("RUSTFLAGS"), "-C target-feature=+crt-static");
    // A guest has little memory, and only symbols are needed.
    cargo.env("CARGO_PROFILE_RELEASE_STRIP", "debuginfo");
    let mut compiler = Command::new("cc");
    packages::ensure(&packages::COMPILER)?;
    if architecture == Architecture::Arm64 {
        let tools = cross_tools(vm, mirrors)?;
        // Packages installed on this machine were not fetched.
        let fetched = tools.join("bin/aarch64-linux-gnu-gcc");
        let gcc = if fetched.exists() { fetched } else { PathBuf::from("aarch64-linux-gnu-gcc") };
        cargo
            .env("RUSTC", tools.join("bin/rustc"))
            .env(architecture.cargo_variable("LINKER"), &gcc);
        compiler = Command::new(gcc);
        for command in [&mut cargo, &mut compiler] {
            command.env("LD_LIBRARY_PATH", tools.join("lib/x86_64-linux-gnu"));
        }
    }
    println!("building dcpid, dcpictl and dcpi for {} (release, static)", architecture.name());
    must(&mut cargo)?;
    let built = vm.join("build").join(architecture.target()).join("release");
    for (name, source) in WORKLOADS {
        let mut compile = Command::new(compiler.get_program());
        compile.envs(compiler.get_envs().filter_map(|(key, value)| Some((key, value?))));
        must(
            compile
                .args(["-O2", "-static", "-Wl,--build-id", "-o"])
                .arg(built.join(name))
                .arg(source),
        )?;
    }
    Ok(built)
}

/// A compiler for arm64 that runs here, not installed. Returns its prefix.
fn cross_tools(vm: &Path, mirrors: &Mirrors) -> anyhow::Result<PathBuf> {
    let (folder, library) = (vm.join("cross"), vm.join("cross-arm64"));
    let code = &mirrors.codename;
    if !library.exists() {
        println!("fetching a compiler for arm64: {CROSS}");
        let archive = Archive::open(
            vm,
            mirrors,
            &[code, &format!("{code}-security"), &format!("{code}-backports")],
        )?;
        archive.unpack_with_dependencies(CROSS, &folder)?;
        archive.unpack("libstd-rust-web-dev:arm64", &library)?;
    }
    // rustc finds the standard libraries of all targets beside itself.
    let target = Path::new("usr/lib/rustlib").join(Architecture::Arm64.target());
    let link = folder.join(&target);
    if !link.exists() {
        std::os::unix::fs::symlink(library.join(&target), link)?;
    }
    Ok(folder.join("usr"))
}
