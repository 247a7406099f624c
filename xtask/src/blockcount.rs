//! Builds the program that counts blocks, `target/blockcount/dcpi-blockcount`, and checks that it
//! is what may share an address space with any program.
//!
//! Cargo builds the crate as a static library with `panic = "abort"` (a profile of its own), and
//! the C compiler links it without a C library: one static program, whose relocations the program
//! itself makes.

use crate::Outcome;
use crate::process::{command, must, output};
use anyhow::bail;

/// The product.
pub const PROGRAM: &str = "target/blockcount/dcpi-blockcount";

/// The library that Cargo makes of the crate.
const LIBRARY: &str = "target/blockcount/libblockcount.a";

/// One static, position-independent program with all its dependencies.
const LINK: &str = "-Wl,--gc-sections,--strip-all,--build-id,-z,defs,-z,text,-z,noexecstack,--no-eh-frame-hdr,--hash-style=gnu";

/// Builds and checks it, and says where it is.
pub fn run() -> anyhow::Result<Outcome> {
    build()?;
    println!("{PROGRAM}: run `{PROGRAM} --area FOLDER [--edges] -- PROGRAM [ARGUMENT...]`");
    Ok(Outcome::Clean)
}

/// Builds and checks it. There is none for other processors than x86-64.
pub fn build() -> anyhow::Result<()> {
    if !cfg!(target_arch = "x86_64") {
        return Ok(());
    }
    println!("building the program that counts blocks: {PROGRAM}");
    let cargo =
        "cargo rustc --quiet -p blockcount --lib --profile blockcount --crate-type staticlib";
    let features = "--no-default-features --features freestanding";
    must(&mut command(&format!("{cargo} {features} -- -C force-unwind-tables=no")))?;
    let linker = "gcc -static-pie -nostdlib -nostartfiles";
    must(&mut command(&format!("{linker} {LINK} -o {PROGRAM} {LIBRARY}")))?;
    let shown = output(&mut command(&format!(
        "readelf --wide --file-header --segments --dynamic --relocs {PROGRAM}"
    )))?;
    let problems = problems(&shown);
    if !problems.is_empty() {
        bail!("{PROGRAM} must not run with other programs: {}", problems.join("; "));
    }
    Ok(())
}

/// Forbidden entries in the output of readelf.
fn problems(shown: &str) -> Vec<String> {
    let mut problems = forbidden(
        shown,
        &[
            ("(NEEDED)", "it needs a library"),
            ("INTERP", "it needs a loader"),
            ("  TLS ", "it has thread-local storage, which is the program's"),
        ],
    );
    if !shown.contains("DYN (Position-Independent Executable file)") {
        problems.push("it cannot be loaded anywhere".to_owned());
    }
    let relocations = shown.lines().filter_map(|line| line.split_whitespace().nth(2));
    let mut relocations = relocations.filter(|kind| kind.starts_with("R_X86_64"));
    if let Some(kind) = relocations.find(|kind| *kind != "R_X86_64_RELATIVE") {
        problems.push(format!("it has a relocation that needs a linker: {kind}"));
    }
    problems
}

/// Entries of `more` in the output of readelf, and those that nothing in other programs may have.
pub fn forbidden(shown: &str, more: &[(&str, &str)]) -> Vec<String> {
    let everywhere = [
        ("(TEXTREL)", "its text has relocations"),
        ("(INIT", "it has initialisers"),
        (" RWE ", "it has memory that can be written and run"),
    ];
    let all = more.iter().chain(&everywhere).filter(|(word, _)| shown.contains(word));
    let mut problems: Vec<String> = all.map(|(_, problem)| (*problem).to_owned()).collect();
    if !shown.contains("GNU_STACK") {
        problems.push("it asks for a stack that can be run".to_owned());
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::problems;

    const GOOD: &str = "
  Type:                              DYN (Position-Independent Executable file)
  LOAD           0x000000 0x0000000000000000 0x0000000000000000 0x000fc4 0x000fc4 R E 0x1000
  LOAD           0x001000 0x0000000000001000 0x0000000000001000 0x0000d0 0x000da0 RW  0x1000
  GNU_STACK      0x000000 0x0000000000000000 0x0000000000000000 0x000000 0x000000 RW  0x10
 0x000000006ffffef5 (GNU_HASH)           0x180
0000000000160230  0000000000000008 R_X86_64_RELATIVE                         139c05
";

    #[test]
    fn what_must_not_share_an_address_space_is_named() {
        assert!(problems(GOOD).is_empty(), "{:?}", problems(GOOD));
        for (good, bad, words) in [
            ("(GNU_HASH)", "(NEEDED) libc.so.6", "needs a library"),
            ("  GNU_STACK", "  INTERP", "needs a loader"),
            ("(GNU_HASH)", "(TEXTREL)", "relocations"),
            (" RW  0x1000", " RWE 0x1000", "written and run"),
            ("GNU_STACK", "TLS ", "thread-local"),
            ("GNU_STACK", "NOTE", "a stack that can be run"),
            ("DYN (Position-Independent", "EXEC (", "loaded anywhere"),
            ("R_X86_64_RELATIVE", "R_X86_64_GLOB_DAT", "needs a linker"),
        ] {
            let found = problems(&GOOD.replace(good, bad)).join("; ");
            assert!(found.contains(words), "{bad}: {found}");
        }
    }
}
