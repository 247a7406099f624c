//! Graphs against what the compiler was reported: programs whose jumps are known.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use code::cfg::{Cfg, EdgeKind, Ending, FindingKind, To};

use super::program::Program;

pub const SOURCE: &str = r#"
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
volatile long v;
/* 10 cases with a body each. */
__attribute__((noinline)) long plain(long n) {
    switch (n) {
    case 0: v += 3; break; case 1: v *= 5; break; case 2: v -= 7; break; case 3: v ^= 9; break;
        case 4: v |= 11; break;
    case 5: v &= 13; break; case 6: v <<= 2; break; case 7: v >>= 1; break; case 8: v = -v; break;
        case 9: v = ~v; break;
    }
    return v;
}
/* The same, of a byte, from 'a', without a default. */
__attribute__((noinline)) long bytes(const char *s) {
    for (; *s; s++) {
        switch (*s) {
        case 'a': v += 3; break; case 'b': v *= 5; break; case 'c': v -= 7; break;
            case 'd': v ^= 9; break;
        case 'e': v |= 11; break; case 'f': v &= 13; break; case 'g': v <<= 2; break;
            case 'h': v >>= 1; break;
        }
    }
    return v;
}
/* All values of an index are cases. */
__attribute__((noinline)) long masked(unsigned n) {
    switch (n & 7) {
    case 0: v += 3; break; case 1: v *= 5; break; case 2: v -= 7; break; case 3: v ^= 9; break;
    case 4: v |= 11; break; case 5: v &= 13; break; case 6: v <<= 2; break; case 7: v >>= 1; break;
    }
    return v;
}
/* One switch in another. */
__attribute__((noinline)) long nested(long n, long m) {
    switch (n) {
    case 0: v += 3; break; case 1: v *= 5; break; case 2: v -= 7; break; case 3: v ^= 9; break;
        case 4: v |= 11; break;
    case 5:
        switch (m) {
        case 0: v += 30; break; case 1: v *= 50; break; case 2: v -= 70; break; case 3: v ^= 90;
            break; case 4: v |= 110; break;
        case 5: v &= 130; break; case 6: v <<= 20; break;
        }
    }
    return v;
}
/* Six labels, threaded. */
__attribute__((noinline)) long labels(const unsigned char *p) {
    static const void *const table[] = { &&add, &&mul, &&sub, &&xor, &&inc, &&end };
    long a = v, b = 3;
#define NEXT goto *table[*p++]
    NEXT;
add: a += b; v = a; NEXT;
mul: a *= b; v = b; NEXT;
sub: b -= a; v = a + 1; NEXT;
xor: a ^= b; v = b + 2; NEXT;
inc: b++; v = a + 3; NEXT;
end: return a + b;
}
__attribute__((noinline)) void die(const char *text) { fputs(text, stderr); exit(3); }
__attribute__((noinline)) long dies(long n) { if (n > 100) die("large"); return v * n; }
__attribute__((noinline)) long other(long n) { return v + n; }
__attribute__((noinline)) long tail(long n) { v = n; return other(n * 3); }
__attribute__((noinline)) long through(long (*f)(long), long n) { v = n; return f(n + 1); }
__attribute__((noinline)) long forever(void) { for (;;) v++; }
int main(int argc, char **argv) {
    return plain(argc) + bytes(argv[0]) + masked(argc) + nested(argc, argc) +
        labels((unsigned char *)argv[0]) + dies(argc) + tail(argc)
        + through(other, argc) + (argc > 99 ? forever() : 0);
}
"#;

fn built(folder: &Path, compiler: &str, arguments: &[&str]) -> Program {
    let (source, program) = (folder.join("source.c"), folder.join("program"));
    std::fs::write(&source, SOURCE).unwrap();
    let mut command = Command::new(compiler);
    let status = command.args(arguments).arg("-o").arg(&program).arg(&source).status();
    let status = status.unwrap_or_else(|error| panic!("{compiler}: {error}"));
    assert!(status.success(), "{command:?}");
    Program::open(&program).unwrap()
}

fn graph(program: &Program, name: &str) -> Cfg {
    let number = program.procedures.iter().position(|procedure| procedure.name() == name);
    let graph = program.graph(&program.parts(number.unwrap_or_else(|| panic!("no {name}"))), &[]);
    assert!(!graph.missing_edges(), "{name}: {:?}", graph.edges());
    let odd = graph.findings().iter().filter(|finding| finding.kind != FindingKind::UnboundedTable);
    assert_eq!(odd.count(), 0, "{name}: {:?}", graph.findings());
    graph
}

/// How many different blocks each indirect jump goes to, in order; and whether all entries are in
/// the procedure.
fn cases(graph: &Cfg) -> Vec<usize> {
    let indirect = (0..graph.blocks().len())
        .filter(|&number| graph.blocks()[number].ending == Ending::Indirect);
    indirect
        .map(|number| {
            let edges = &graph.edges()[graph.out_of(number)];
            assert!(
                edges
                    .iter()
                    .all(|edge| edge.kind == EdgeKind::Case && matches!(edge.to, To::Block(_))),
                "{graph:#?}"
            );
            edges.iter().map(|edge| edge.to).collect::<BTreeSet<_>>().len()
        })
        .collect()
}

fn as_it_was_meant(program: &Program, what: &str) {
    let expect = |name: &str, cases_of: &[usize], or: usize| {
        let graph = graph(program, name);
        let mut found = cases(&graph);
        found.sort_unstable();
        found.dedup();
        // A compiler may put the default into the table, or test one case before.
        let fits = found.len() == cases_of.len()
            && found.iter().zip(cases_of).all(|(a, b)| a.abs_diff(*b) <= or);
        assert!(fits, "{what}: {name} has {found:?} cases");
    };
    expect("plain", &[10], 1);
    expect("bytes", &[8], 1);
    expect("masked", &[8], 1);
    expect("nested", &[6, 7], 1);
    expect("labels", &[6], 0);
    let dies = graph(program, "dies");
    assert!(
        dies.blocks().iter().any(|block| block.ending == Ending::NoReturn),
        "{what}: {dies:#?}"
    );
    assert!(dies.edges().iter().any(|edge| edge.to == To::Caller), "{what}");
    let forever = graph(program, "forever");
    assert!(
        forever.edges().iter().all(|edge| matches!(edge.to, To::Block(_))),
        "{what}: {forever:#?}"
    );
    if !what.contains("-O0") {
        let tail = graph(program, "tail");
        assert!(
            tail.edges().iter().any(|edge| matches!(edge.to, To::Outside(_))),
            "{what}: {tail:#?}"
        );
        let through = graph(program, "through");
        assert!(
            through.edges().iter().any(|edge| edge.to == To::Elsewhere),
            "{what}: {through:#?}"
        );
    }
}

const OPTIONS: [&[&str]; 7] = [
    &["-O2"],
    &["-O0"],
    &["-O3"],
    &["-Os"],
    &["-O2", "-fno-pie", "-no-pie"],
    &["-O0", "-fno-pie", "-no-pie"],
    &["-O2", "-fno-plt", "-fno-omit-frame-pointer"],
];
/// Where jumps may go, and on Arm return addresses, are guarded.
const GUARDED: [&str; 3] = ["-O2", "-fPIC", "-fcf-protection"];
const GUARDED_ON_ARM: [&str; 3] = ["-O2", "-fPIC", "-mbranch-protection=standard"];

fn built_in_all_ways(compiler: &[&str], guarded: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    for options in OPTIONS.into_iter().chain([guarded]) {
        let arguments = [&compiler[1..], options].concat();
        let program = built(folder.path(), compiler[0], &arguments);
        as_it_was_meant(&program, &format!("{compiler:?} {options:?}"));
    }
}

#[test]
fn what_cc_builds_is_understood() {
    built_in_all_ways(&["cc"], &GUARDED);
}

#[test]
#[ignore = "needs a compiler for Arm: cargo xtask bench cfg"]
fn what_gcc_builds_for_arm_is_understood() {
    // For Arm compilers compare longer before they make a table.
    built_in_all_ways(
        &["aarch64-linux-gnu-gcc", "--param=case-values-threshold=4"],
        &GUARDED_ON_ARM,
    );
}

#[test]
#[ignore = "needs clang and libraries for Arm: cargo xtask bench cfg"]
fn what_clang_builds_for_arm_is_understood() {
    let clang =
        ["clang-19", "--target=aarch64-linux-gnu", "-mllvm", "-aarch64-min-jump-table-entries=4"];
    built_in_all_ways(&clang, &GUARDED_ON_ARM);
}

#[test]
#[ignore = "needs clang: cargo xtask bench cfg"]
fn what_clang_builds_is_understood() {
    built_in_all_ways(&["clang-19"], &GUARDED);
}
