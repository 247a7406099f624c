//! Builds the programs of `bench reading`: some hundred small ones with debug information, and a
//! very large one. They are generated, so that they are the same on every machine, with C++
//! libraries, so that their symbols, inlined calls and debug information are like those of real
//! programs.

use super::workloads::together;
use crate::process::{command, must};
use anyhow::{Context as _, ensure};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// Number of different parts, each about 2 MB of code, symbols and debug information. A small
/// program has one part, the large one has all parts and copies of them.
const PARTS: u64 = 3;
/// CPU time of a small program, and of the large one, ms.
const SPIN_MS: u64 = 120;
const LARGE_SPIN_MS: u64 = 2000;
/// The procedure that takes the large program's time.
pub const HOT: &str = "hot";

/// Builds the programs that are missing in `folder`: `count` small ones, and one of at least
/// `large_bytes`.
pub fn build(folder: &str, count: u64, large_bytes: u64) -> anyhow::Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("creating {folder}"))?;
    let template =
        fs::read_to_string("tests/bench/part.cc.in").context("reading tests/bench/part.cc.in")?;
    let stamp = format!("{folder}/source");
    if fs::read_to_string(&stamp).is_ok_and(|old| old != template) {
        fs::remove_dir_all(folder)?;
        fs::create_dir_all(folder)?;
    }
    fs::write(stamp, &template)?;
    println!("building {count} programs and a large one in {folder}");
    together(PARTS, |part| {
        let source = template.replace("@N@", &part.to_string());
        unless_there(&format!("{folder}/part{part}.o"), |object| {
            fs::write(format!("{folder}/part{part}.cc"), &source)?;
            must(&mut command(&format!("c++ -O1 -g -fPIE -c {folder}/part{part}.cc -o {object}")))
        })
    })?;
    together(count, |number| {
        unless_there(&format!("{folder}/p{number}"), |program| small(folder, number, program))
    })?;
    unless_there(&format!("{folder}/large"), |program| large(folder, large_bytes, program))?;
    let bytes = fs::metadata(format!("{folder}/large"))?.len();
    ensure!(
        bytes >= large_bytes,
        "the large program has {bytes} bytes, not {large_bytes}; remove {folder}"
    );
    Ok(())
}

/// Runs all programs, as many at once as there are CPUs, so that each gets samples.
pub fn run(folder: &str, count: u64) -> anyhow::Result<()> {
    together(count + 1, |number| match number {
        0 => must(&mut command(&format!("{folder}/large"))),
        number => must(&mut command(&format!("{folder}/p{}", number - 1))),
    })
}

/// Makes a file unless it exists, under another name first, so that an existing file is complete.
fn unless_there(path: &str, make: impl FnOnce(&str) -> anyhow::Result<()>) -> anyhow::Result<()> {
    if Path::new(path).exists() {
        return Ok(());
    }
    let unfinished = format!("{path}.unfinished");
    make(&unfinished)?;
    fs::rename(&unfinished, path).with_context(|| format!("renaming {unfinished}"))
}

/// Builds a program of 20 to 80 procedures of its own and one part.
fn small(folder: &str, number: u64, program: &str) -> anyhow::Result<()> {
    let procedures = 20 + number * 37 % 61;
    let source = format!("{program}.c");
    fs::write(&source, code(number, procedures, SPIN_MS, number % PARTS))?;
    must(&mut command(&format!("cc -O1 -g -c {source} -o {program}.o")))?;
    let part = format!("{folder}/part{}.o", number % PARTS);
    must(&mut command(&format!("c++ -pie -Wl,--build-id {program}.o {part} -o {program}")))?;
    fs::remove_file(format!("{program}.o"))?;
    Ok(())
}

/// Builds a program of all parts and as many copies of them as its size needs. The linker merges
/// the code of the copies, as it does with code from a header that many files include, and keeps
/// the debug information of each.
fn large(folder: &str, bytes: u64, program: &str) -> anyhow::Result<()> {
    let source = format!("{program}.c");
    fs::write(&source, code(0, 200, LARGE_SPIN_MS, 0).replace("f0_7(", &format!("{HOT}(")))?;
    must(&mut command(&format!("cc -O1 -g -c {source} -o {program}.o")))?;
    let sizes = (0..PARTS).map(|part| Ok(fs::metadata(format!("{folder}/part{part}.o"))?.len()));
    let sizes = sizes.sum::<anyhow::Result<u64>>()?;
    let mut objects = Vec::new();
    // Four times the size in objects: linking drops relocations and merges strings.
    for copy in 0..(4 * bytes / sizes.max(1)).clamp(1, 2000) {
        let mut linked = 0;
        for part in 0..PARTS {
            let object = format!("{program}.{part}.{copy}.o");
            let name = format!("_Z{}part{part}_worki", format!("part{part}_work").len());
            let renamed = if copy == 0 { name.clone() } else { format!("{name}_{copy}") };
            must(&mut command(&format!(
                "objcopy --redefine-sym {name}={renamed} {folder}/part{part}.o {object}"
            )))?;
            objects.push(object);
        }
        if copy % 8 == 7 || copy == 0 {
            must(
                command("c++ -pie -Wl,--build-id")
                    .arg(format!("{program}.o"))
                    .args(&objects)
                    .args(["-o", program]),
            )?;
            linked = fs::metadata(program)?.len();
        }
        if linked >= bytes {
            break;
        }
    }
    for object in objects.into_iter().chain([format!("{program}.o")]) {
        fs::remove_file(object)?;
    }
    Ok(())
}

/// C source of this many procedures, each with an inlined call and a loop, which run in turn for
/// this much CPU time.
fn code(number: u64, procedures: u64, spin_ms: u64, part: u64) -> String {
    let mut text = String::from("#include <time.h>\n\n");
    for procedure in 0..procedures {
        let (a, b) = (3 + procedure % 11, 5 + (procedure + number) % 7);
        let _ = write!(
            text,
            "static inline unsigned long step{number}_{procedure}(unsigned long x)\n{{\n    x ^= x << {a};\n    x ^= x >> {b};\n    \
             return x + {procedure};\n}}\n\n__attribute__((noinline)) unsigned long \
             f{number}_{procedure}(unsigned long x)\n{{\n    \
             for (int i = 0; i < {}; i++) {{\n        x = step{number}_{procedure}(x);\n        if \
             (x & {})\n            x *= {};\n    }}\n    \
             return x;\n}}\n\n",
            200 + procedure * 10,
            1 + procedure % 8,
            2 * procedure + 3,
        );
    }
    let work = format!("_Z{}part{part}_worki", format!("part{part}_work").len());
    let _ = write!(
        text,
        "int {work}(int);\n\nint main(void)\n{{\n    struct timespec t;\n    unsigned long x = 1;\n    do {{\n        \
         for (int i = 0; i < 20; i++) {{\n"
    );
    for procedure in 0..procedures {
        let _ = writeln!(text, "            x += f{number}_{procedure}(x);");
    }
    let _ = write!(
        text,
        "        }}\n        x += {work}(x);\n        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);\n    }} while (t.tv_sec * 1000 + \
         t.tv_nsec / 1000000 < {spin_ms});\n    return x == 42;\n}}\n"
    );
    text
}
