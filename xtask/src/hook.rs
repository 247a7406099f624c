//! Builds the loader hook, `target/hook/libdcpi_loader_hook.so`, and checks that it is what may be
//! loaded into every program.
//!
//! It needs flags of its own. A library without the standard library must be built with `panic =
//! "abort"`, which Cargo sets for whole profiles only, so there is a profile `hook`. And what the
//! loader does with a library before its first call costs more than the library: so there are two
//! pages at most to run and one to write, no relocation, no dependency.

use crate::Outcome;
use crate::blockcount::forbidden;
use crate::process::{command, must, output};
use anyhow::bail;

/// The product.
pub const HOOK: &str = "target/hook/libdcpi_loader_hook.so";

/// The linker is GNU ld on every architecture, because the check below does not hold for other
/// linkers.
const LINK: &str = "-Wl,-z,defs,-z,norelro,-z,lazy,-z,noseparate-code,--hash-style=gnu,--build-id,-Bsymbolic,--no-eh-frame-hdr";

/// The largest page of a kernel for this architecture: segments must not share one.
const PAGE_MAX: u64 = if cfg!(target_arch = "aarch64") { 65536 } else { 4096 };

/// The smallest page of the machines that we run on. Pages to run are mapped and read in one go; a
/// second page to write would be a mapping of its own.
const PAGE: u64 = 4096;
const RUN_PAGES: u64 = 2;

/// What the loader asks an audit library for. A function for each symbol's binding (`la_symbind64`)
/// or call (`la_x86_64_gnu_pltenter`) would make every call through a library's table dearer.
const EXPORTS: [&str; 5] = ["la_activity", "la_objclose", "la_objopen", "la_preinit", "la_version"];

/// Builds and checks it, and says where it is.
pub fn run() -> anyhow::Result<Outcome> {
    build()?;
    println!("{HOOK}: docs/src/loader.md says how to use it");
    Ok(Outcome::Clean)
}

/// Builds and checks it.
pub fn build() -> anyhow::Result<()> {
    println!("building the loader hook: {HOOK}");
    let cargo = "cargo rustc --quiet -p loader-hook --lib --profile hook --crate-type cdylib -- -C force-unwind-tables=no";
    let linker =
        "-C link-arg=-nostdlib -C link-arg=-nostartfiles -C link-arg=-fuse-ld=bfd -C link-arg=";
    must(&mut command(&format!("{cargo} {linker}{LINK},-z,max-page-size={PAGE_MAX}")))?;
    let problems = problems(&output(&mut command(&format!(
        "readelf --wide --segments --dynamic --dyn-syms {HOOK}"
    )))?);
    if !problems.is_empty() {
        bail!("{HOOK} must not be loaded into programs: {}", problems.join("; "));
    }
    Ok(())
}

/// Forbidden entries in the output of readelf.
fn problems(shown: &str) -> Vec<String> {
    let library =
        "it needs a library, which the loader would load a second time into every program";
    let mut problems = forbidden(shown, &[("(NEEDED)", library), ("(RELA)", "it has relocations")]);
    // LOAD 0x001000 0x0000000000001000 0x0000000000001000 0x0000d0 0x000da0 RW 0x1000
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let hex = |word: Option<&String>| {
        word.and_then(|word| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok())
    };
    let loads: Vec<_> = shown
        .lines()
        .map(words)
        .filter(|words| words.first().is_some_and(|word| word == "LOAD"))
        .collect();
    for load in &loads {
        let pages = if load.get(6).is_some_and(|flags| flags == "RW") { 1 } else { RUN_PAGES };
        if hex(load.get(2))
            .zip(hex(load.get(5)))
            .is_none_or(|(start, len)| start % PAGE + len > pages * PAGE)
        {
            problems.push(format!("a segment takes more than {pages} pages: {}", load.join(" ")));
        }
    }
    if loads.len() != 2 {
        problems.push(format!("it has {} segments, not one to run and one to write", loads.len()));
    }
    // 1: 0000000000000dd1 1 FUNC GLOBAL DEFAULT 5 la_preinit
    let symbols = shown
        .lines()
        .map(words)
        .filter(|words| words.len() == 8 && words.get(4).is_some_and(|word| word == "GLOBAL"));
    let mut exports: Vec<String> = symbols.filter_map(|words| words.last().cloned()).collect();
    exports.sort();
    if exports != EXPORTS {
        problems.push(format!("it exports {}, not {}", exports.join(", "), EXPORTS.join(", ")));
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::problems;

    const GOOD: &str = "
  LOAD           0x000000 0x0000000000000000 0x0000000000000000 0x000fc4 0x000fc4 R E 0x1000
  LOAD           0x001000 0x0000000000001000 0x0000000000001000 0x0000d0 0x000da0 RW  0x1000
  GNU_STACK      0x000000 0x0000000000000000 0x0000000000000000 0x000000 0x000000 RW  0x10
 0x000000006ffffef5 (GNU_HASH)           0x180
     0: 0000000000000000     0 NOTYPE  LOCAL  DEFAULT  UND
     1: 0000000000000dd1     1 FUNC    GLOBAL DEFAULT    5 la_preinit
     2: 00000000000008a2  1327 FUNC    GLOBAL DEFAULT    5 la_objopen
     3: 000000000000087c    35 FUNC    GLOBAL DEFAULT    5 la_activity
     4: 0000000000000dd2    12 FUNC    GLOBAL DEFAULT    5 la_version
     5: 000000000000089f     3 FUNC    GLOBAL DEFAULT    5 la_objclose
";

    #[test]
    fn what_must_not_be_loaded_into_programs_is_named() {
        assert!(problems(GOOD).is_empty(), "{:?}", problems(GOOD));
        for (good, bad, words) in [
            ("(GNU_HASH)", "(NEEDED) libc.so.6", "needs a library"),
            ("(GNU_HASH)", "(RELACOUNT) (RELA)", "relocations"),
            (" RW  0x1000", " RWE 0x1000", "written and run"),
            ("0x000da0", "0x001001", "more than 1 pages"),
            ("0x000fc4", "0x002001", "more than 2 pages"),
            ("0x000da0", "?", "more than 1 pages"),
            ("GNU_STACK", "NOTE", "a stack that can be run"),
            ("  LOAD           0x001000", "  NOTE 0x001000", "1 segments"),
            ("la_activity", "la_symbind64", "la_symbind64"),
            ("5 la_activity", "UND memcpy", "memcpy"),
        ] {
            let found = problems(&GOOD.replace(good, bad)).join("; ");
            assert!(found.contains(words), "{bad}: {found}");
        }
    }
}
