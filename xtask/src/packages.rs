//! Installs from the distribution what a task needs, saying so first.

use crate::process::{exists, is_root, must};
use anyhow::bail;
use std::path::Path;
use std::process::Command;

/// A program (or a file, by its absolute path), the Debian package it comes in, and what it is for.
type Need = (&'static str, &'static str, &'static str);

/// To link Rust programs and to build workloads.
pub const COMPILER: [Need; 2] = [
    ("cc", "gcc", "links programs, builds workloads"),
    ("/usr/include/stdlib.h", "libc6-dev", "headers of the C library"),
];

/// To make stripped and split binaries in tests, to run programs with fewer rights and on small
/// disks, and programs to load the hook into.
pub const TEST_TOOLS: [Need; 27] = [
    ("objcopy", "binutils", "makes stripped and split binaries"),
    ("setpriv", "util-linux", "runs programs without rights"),
    ("mount", "mount", "makes a small disk to fill"),
    ("node", "nodejs", "makes code at run time"),
    ("javac", "default-jdk-headless", "makes code at run time"),
    ("python3", "python3", "a program to load the hook into"),
    ("ruby3.1", "ruby3.1", "an interpreter whose frames are read"),
    ("php8.2", "php8.2-cli", "an interpreter whose frames are read"),
    ("lua5.1", "lua5.1", "an interpreter whose frames are read"),
    ("lua5.2", "lua5.2", "an interpreter whose frames are read"),
    ("lua5.3", "lua5.3", "an interpreter whose frames are read"),
    ("lua5.4", "lua5.4", "an interpreter whose frames are read"),
    ("luajit", "luajit", "an interpreter and compiler whose frames are read"),
    ("perl", "perl", "a program to load the hook into"),
    ("erlc", "erlang-base", "makes code at run time"),
    ("mcs", "mono-mcs", "builds programs in C#"),
    ("npm", "npm", "fetches .NET's runtime"),
    ("git", "git", "a program to load the hook into"),
    ("c++", "g++", "builds a workload in C++"),
    ("go", "golang-go", "builds programs in Go"),
    ("perf", "linux-perf", "reports to compare ours with"),
    ("bzip2", "bzip2", "a program whose blocks are counted"),
    ("xz", "xz-utils", "a program whose blocks are counted"),
    ("sqlite3", "sqlite3", "a program whose blocks are counted"),
    ("valgrind", "valgrind", "counts the same blocks"),
    ("tmux", "tmux", "a terminal for dcpi top"),
    ("promtool", "prometheus", "checks metrics, and rules on them"),
];

/// To kill the fleet's programs at each system call, to run them on one CPU and without rights, and
/// on small disks.
pub const FLEET_TOOLS: [Need; 4] = [
    ("strace", "strace", "kills programs at each system call"),
    ("taskset", "util-linux", "runs programs on one CPU"),
    ("setpriv", "util-linux", "runs programs without rights"),
    ("mount", "mount", "makes a small disk to fill"),
];

/// To build fuzzers.
pub const FUZZ_COMPILER: [Need; 1] = [("g++", "g++", "builds libFuzzer")];

/// To make tables of processors.
pub const MACHINE_MODELS: [Need; 1] =
    [("llvm-mca-22", "llvm-22", "knows what instructions cost on which processor")];

/// To boot the service in a container.
pub const CONTAINER: [Need; 3] = [
    ("systemd-nspawn", "systemd-container", "boots the service in a container"),
    ("debootstrap", "debootstrap", "makes the container"),
    ("nsenter", "util-linux", "runs commands in it"),
];

/// To run the chain from hosts in containers to a compiler that takes their profile.
pub const CHAIN: [Need; 4] = [
    ("systemd-nspawn", "systemd-container", "runs hosts in containers"),
    ("unshare", "util-linux", "mounts what they see"),
    ("cc", "gcc", "builds what they run"),
    ("clang-19", "clang-19", "is fed with their profile"),
];

/// To make a package.
pub const PACKAGERS: [Need; 2] = [
    ("dpkg-deb", "dpkg", "makes packages"),
    ("strip", "binutils", "separates what debuggers need"),
];

/// To check man pages.
pub const MAN_TOOLS: [Need; 1] = [("groff", "groff", "formats man pages")];

/// To build the eBPF objects.
pub const BPF_COMPILER: [Need; 2] = [
    ("clang-19", "clang-19", "compiles the eBPF program"),
    ("llvm-strip-19", "llvm-19", "strips its objects"),
];

/// To build programs whose control flow is known.
pub const CLANG: [Need; 1] = [("clang-19", "clang-19", "builds programs whose jumps are known")];

/// The same for 64-bit Arm, and what executes them.
pub const ARM: [Need; 3] = [
    (
        "aarch64-linux-gnu-gcc",
        "gcc-aarch64-linux-gnu",
        "builds programs for Arm whose jumps are known",
    ),
    (
        "/usr/aarch64-linux-gnu/include/stdlib.h",
        "libc6-dev-arm64-cross",
        "headers and libraries for Arm",
    ),
    ("qemu-aarch64", "qemu-user", "tells what programs for Arm execute"),
];

/// To read the exported files.
pub const CONSUMERS: [Need; 8] = [
    ("go", "golang-go", "reads pprof's format"),
    ("clang-19", "clang-19", "is fed with a profile"),
    ("llvm-profdata-19", "llvm-19", "reads LLVM's sample profiles"),
    ("llvm-profdata-22", "llvm-22", "reads LLVM's sample profiles"),
    ("llvm-bolt-22", "bolt-22", "reads BOLT's profiles"),
    ("create_llvm_prof", "autofdo", "makes sample profiles of counts"),
    ("chromium", "chromium", "shows flame graphs and the page for browsers"),
    ("npm", "npm", "installs the Firefox profiler's importer"),
];

/// To build the page of `dcpi html`, and to look at it.
pub const PAGE_BUILDER: [Need; 3] = [
    ("node", "nodejs", "runs the page's build"),
    ("npm", "npm", "installs what the build needs"),
    ("chromium", "chromium", "shows the page that was built"),
];

/// To make programs faster with profiles.
pub const OPTIMIZERS: [Need; 4] = [
    ("clang-22", "clang-22", "builds programs with profiles"),
    (
        "/usr/lib/llvm-22/lib/clang/22/lib/linux",
        "libclang-rt-22-dev",
        "counts what programs execute",
    ),
    ("llvm-profdata-22", "llvm-22", "reads LLVM's profiles"),
    ("llvm-bolt-22", "bolt-22", "reorders programs"),
];

/// To measure what profiling costs.
pub const BENCH_TOOLS: [Need; 3] = [
    ("perf", "linux-perf", "the peer that dcpid is measured against"),
    ("sqlite3", "sqlite3", "the database that is measured"),
    ("setpriv", "util-linux", "ends what was started with the benchmark"),
];

/// Programs whose call stacks are taken.
pub const STACKED: [Need; 13] = [
    ("g++", "g++", "a program whose call stacks are taken"),
    ("python3", "python3", "a program whose call stacks are taken"),
    ("/usr/lib/postgresql", "postgresql", "a program whose call stacks are taken"),
    ("node", "nodejs", "a program whose call stacks are taken"),
    ("git", "git", "a program whose call stacks are taken"),
    ("go", "golang-go", "a program whose call stacks are taken"),
    ("javac", "default-jdk-headless", "a program whose call stacks are taken"),
    ("ruby3.1", "ruby3.1", "a program whose call stacks are taken"),
    ("php8.2", "php8.2-cli", "a program whose call stacks are taken"),
    ("lua5.4", "lua5.4", "a program whose call stacks are taken"),
    ("luajit", "luajit", "a program whose call stacks are taken"),
    ("erlc", "erlang-base", "a program whose call stacks are taken"),
    ("setpriv", "util-linux", "runs programs without rights"),
];

/// Other readers of programs, and tools that build large ones.
pub const READERS: [Need; 3] = [
    ("c++", "g++", "builds programs to read"),
    ("objdump", "binutils", "lists procedures"),
    ("addr2line", "binutils", "finds source lines"),
];

/// Programs with which walks are compared.
pub const WALKED: [Need; 6] = [
    ("g++", "g++", "builds workloads"),
    ("gzip", "gzip", "a program to walk through"),
    ("bzip2", "bzip2", "a program to walk through"),
    ("xz", "xz-utils", "a program to walk through"),
    ("sqlite3", "sqlite3", "a program to walk through"),
    ("/usr/bin/python3", "python3", "a program to walk through"),
];

/// Further kinds of programs whose estimates are compared with exact counts.
pub const COUNTED: [Need; 9] = [
    ("valgrind", "valgrind", "counts what is executed"),
    ("go", "golang-go", "builds a program in Go"),
    ("perl", "perl", "a program to count"),
    ("lua5.4", "lua5.4", "a program to count"),
    ("mawk", "mawk", "a program to count"),
    ("zstd", "zstd", "a program to count"),
    ("as", "binutils", "a program to count"),
    ("sort", "coreutils", "a program to count"),
    ("grep", "grep", "a program to count"),
];

/// To hold `dcpi time` against others.
pub const TIMERS: [Need; 2] = [
    ("hyperfine", "hyperfine", "times commands, to compare ours with"),
    ("awk", "mawk", "draws link orders"),
];

/// LTTng's tracing of functions, to be preloaded.
pub const CYG_PROFILE: &str = "/usr/lib/x86_64-linux-gnu/liblttng-ust-cyg-profile.so";

/// Other tracers, to be compared with.
pub const TRACERS: [Need; 6] = [
    ("/usr/include/zlib.h", "zlib1g-dev", "a program to trace"),
    ("uftrace", "uftrace", "traces functions"),
    ("perf", "linux-perf", "traces probes"),
    ("lttng", "lttng-tools", "traces functions"),
    (CYG_PROFILE, "liblttng-ust-dev", "traces functions"),
    ("babeltrace2", "babeltrace2", "reads what LTTng traced"),
];

/// To count branches.
pub const CALLGRIND: [Need; 4] = [
    ("valgrind", "valgrind", "counts how often branches are taken"),
    ("objdump", "binutils", "tells which instructions branch"),
    ("setpriv", "util-linux", "ends what was started with the benchmark"),
    ("perl", "perl", "a program to count branches of"),
];

/// Installs the missing packages of `needs`.
pub fn ensure<'a>(needs: impl IntoIterator<Item = &'a Need>) -> anyhow::Result<()> {
    let present = |program: &str| {
        if program.starts_with('/') { Path::new(program).exists() } else { exists(program) }
    };
    let missing: Vec<&Need> = needs.into_iter().filter(|(program, ..)| !present(program)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let packages: Vec<&str> = missing.iter().map(|(_, package, _)| *package).collect();
    let install = format!("apt-get install -y --no-install-recommends {}", packages.join(" "));
    println!("missing on this machine:");
    for (program, package, purpose) in &missing {
        println!("  {package:<12} {purpose} ({program})");
    }
    if !exists("apt-get") {
        bail!(
            "no apt-get here; install these packages with your distribution's own tool and run this again"
        );
    }
    if !is_root() {
        bail!("installing needs root; run: sudo {install}");
    }
    println!("installing: {install}");
    let apt = |arguments: &[&str]| {
        must(Command::new("apt-get").args(arguments).env("DEBIAN_FRONTEND", "noninteractive"))
    };
    apt(&["update", "-qq"])?;
    apt(&[&["install", "-y", "-qq", "--no-install-recommends"], packages.as_slice()].concat())
}
