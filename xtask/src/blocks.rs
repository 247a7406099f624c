//! Builds what compilers need to put events into programs, `target/blocks`: the assembler wrapper
//! under the name `as`, the library that programs are linked with, and a file of specs by which gcc
//! keeps off the register that holds the position and links the library. In `plain` is the same
//! without events: the same code with a list of its blocks.

use crate::Outcome;
use crate::process::{command, must};
use anyhow::Context;
use std::fs;
use std::path::Path;

/// The folder for `gcc -B`.
pub const FOLDER: &str = "target/blocks";
/// The library that programs with events are linked with.
const LIBRARY: &str = "libdcpi_tracer.a";

/// What `gcc -specs=` reads: options of the compiler proper, and libraries after the C library (the
/// tracer needs that, so it is named again). Shared libraries get no tracer: positions lie in the
/// storage of the program's threads. A file `specs` would be read without the option, but then gcc
/// leaves out what else its linking needs (libgcc_s, --eh-frame-hdr).
const SPECS: &str = "*cc1_options:
+ -ffixed-r11

*lib:
+ %{!shared:%{!r:-ldcpi_tracer -lc}}
";
const PLAIN_SPECS: &str = "*cc1_options:
+ -ffixed-r11

";

/// Builds the folder and says where it is.
pub fn run() -> anyhow::Result<Outcome> {
    build()?;
    println!("{FOLDER}: compile and link with `gcc $(dcpi trace --cflags)`: docs/src/blocks.md");
    Ok(Outcome::Clean)
}

/// Builds `target/blocks`. On processors other than x86-64 it builds nothing: the assembler wrapper
/// knows the instructions of x86-64 alone.
pub fn build() -> anyhow::Result<()> {
    if !cfg!(target_arch = "x86_64") {
        return Ok(());
    }
    println!("building the wrapper and the library for events in programs: {FOLDER}");
    must(&mut command("cargo build --quiet -p asm-events --profile blockcount"))?;
    let tracer = "cargo rustc --quiet -p tracer --lib --profile blockcount --crate-type staticlib";
    must(&mut command(&format!("{tracer} --features inside -- -C force-unwind-tables=no")))?;
    let folder = Path::new(FOLDER);
    fs::create_dir_all(folder.join("plain")).with_context(|| FOLDER.to_owned())?;
    let install = |from: &str, to: &str| {
        // A new file: the old one may be running.
        let place = folder.join(to);
        _ = fs::remove_file(&place);
        fs::copy(from, &place).map(drop).with_context(|| format!("{from} to {}", place.display()))
    };
    install("target/blockcount/dcpi-as", "as")?;
    install("target/blockcount/dcpi-as", "plain/as")?;
    install("target/blockcount/libtracer.a", LIBRARY)?;
    fs::write(folder.join("dcpi.specs"), SPECS)?;
    fs::write(folder.join("plain/dcpi.specs"), PLAIN_SPECS)?;
    Ok(())
}
