//! Installs from the distribution what a task needs, saying so first.

use crate::process::{exists, is_root, must};
use anyhow::bail;
use std::path::Path;
use std::process::Command;

/// A program (or a file, by its absolute path), the Debian package it comes in, and what it is for.
pub struct Need {
    program: &'static str,
    package: &'static str,
    purpose: &'static str,
}

const fn need(program: &'static str, package: &'static str, purpose: &'static str) -> Need {
    Need { program, package, purpose }
}

/// To link Rust programs and to build workloads.
pub const COMPILER: [Need; 2] = [
    need("cc", "gcc", "links programs, builds workloads"),
    need("/usr/include/stdlib.h", "libc6-dev", "headers of the C library"),
];

/// To make stripped and split binaries in tests, to run programs with fewer rights and on small
/// disks, and programs to load the hook into.
pub const TEST_TOOLS: [Need; 15] = [
    need("objcopy", "binutils", "makes stripped and split binaries"),
    need("setpriv", "util-linux", "runs programs without rights"),
    need("mount", "mount", "makes a small disk to fill"),
    need("node", "nodejs", "makes code at run time"),
    need("javac", "default-jdk-headless", "makes code at run time"),
    need("python3", "python3", "a program to load the hook into"),
    need("perl", "perl", "a program to load the hook into"),
    need("git", "git", "a program to load the hook into"),
    need("c++", "g++", "builds a workload in C++"),
    need("go", "golang-go", "builds programs in Go"),
    need("perf", "linux-perf", "reports to compare ours with"),
    need("bzip2", "bzip2", "a program whose blocks are counted"),
    need("xz", "xz-utils", "a program whose blocks are counted"),
    need("sqlite3", "sqlite3", "a program whose blocks are counted"),
    need("valgrind", "valgrind", "counts the same blocks"),
];

/// To kill the fleet's programs at each system call, to run them on one CPU and without rights, and
/// on small disks.
pub const FLEET_TOOLS: [Need; 4] = [
    need("strace", "strace", "kills programs at each system call"),
    need("taskset", "util-linux", "runs programs on one CPU"),
    need("setpriv", "util-linux", "runs programs without rights"),
    need("mount", "mount", "makes a small disk to fill"),
];

/// To build fuzzers.
pub const FUZZ_COMPILER: [Need; 1] = [need("g++", "g++", "builds libFuzzer")];

/// To make tables of processors.
pub const MACHINE_MODELS: [Need; 1] =
    [need("llvm-mca-22", "llvm-22", "knows what instructions cost on which processor")];

/// To boot the service in a container.
pub const CONTAINER: [Need; 3] = [
    need("systemd-nspawn", "systemd-container", "boots the service in a container"),
    need("debootstrap", "debootstrap", "makes the container"),
    need("nsenter", "util-linux", "runs commands in it"),
];

/// To run the chain from hosts in containers to a compiler that takes their profile.
pub const CHAIN: [Need; 4] = [
    need("systemd-nspawn", "systemd-container", "runs hosts in containers"),
    need("unshare", "util-linux", "mounts what they see"),
    need("cc", "gcc", "builds what they run"),
    need("clang-19", "clang-19", "is fed with their profile"),
];

/// To make a package.
pub const PACKAGERS: [Need; 2] = [
    need("dpkg-deb", "dpkg", "makes packages"),
    need("strip", "binutils", "leaves out what debuggers need"),
];

/// To check man pages.
pub const MAN_TOOLS: [Need; 1] = [need("groff", "groff", "formats man pages")];

/// To build the eBPF objects.
pub const BPF_COMPILER: [Need; 2] = [
    need("clang-19", "clang-19", "compiles the eBPF program"),
    need("llvm-strip-19", "llvm-19", "strips its objects"),
];

/// To build programs whose control flow is known.
pub const CLANG: [Need; 1] =
    [need("clang-19", "clang-19", "builds programs whose jumps are known")];

/// The same for 64-bit Arm, and what executes them.
pub const ARM: [Need; 3] = [
    need(
        "aarch64-linux-gnu-gcc",
        "gcc-aarch64-linux-gnu",
        "builds programs for Arm whose jumps are known",
    ),
    need(
        "/usr/aarch64-linux-gnu/include/stdlib.h",
        "libc6-dev-arm64-cross",
        "headers and libraries for Arm",
    ),
    need("qemu-aarch64", "qemu-user", "tells what programs for Arm execute"),
];

/// To read the exported files.
pub const CONSUMERS: [Need; 8] = [
    need("go", "golang-go", "reads pprof's format"),
    need("clang-19", "clang-19", "is fed with a profile"),
    need("llvm-profdata-19", "llvm-19", "reads LLVM's sample profiles"),
    need("llvm-profdata-22", "llvm-22", "reads LLVM's sample profiles"),
    need("llvm-bolt-22", "bolt-22", "reads BOLT's profiles"),
    need("create_llvm_prof", "autofdo", "makes sample profiles of counts"),
    need("chromium", "chromium", "shows flame graphs and the page for browsers"),
    need("npm", "npm", "installs the Firefox profiler's importer"),
];

/// To make programs faster with profiles.
pub const OPTIMIZERS: [Need; 4] = [
    need("clang-22", "clang-22", "builds programs with profiles"),
    need(
        "/usr/lib/llvm-22/lib/clang/22/lib/linux",
        "libclang-rt-22-dev",
        "counts what programs execute",
    ),
    need("llvm-profdata-22", "llvm-22", "reads LLVM's profiles"),
    need("llvm-bolt-22", "bolt-22", "reorders programs"),
];

/// To measure what profiling costs.
pub const BENCH_TOOLS: [Need; 3] = [
    need("perf", "linux-perf", "the peer that dcpid is measured against"),
    need("sqlite3", "sqlite3", "the database that is measured"),
    need("setpriv", "util-linux", "ends what was started with the benchmark"),
];

/// Programs whose call stacks are taken.
pub const STACKED: [Need; 8] = [
    need("g++", "g++", "a program whose call stacks are taken"),
    need("python3", "python3", "a program whose call stacks are taken"),
    need("/usr/lib/postgresql", "postgresql", "a program whose call stacks are taken"),
    need("node", "nodejs", "a program whose call stacks are taken"),
    need("git", "git", "a program whose call stacks are taken"),
    need("go", "golang-go", "a program whose call stacks are taken"),
    need("javac", "default-jdk-headless", "a program whose call stacks are taken"),
    need("setpriv", "util-linux", "runs programs without rights"),
];

/// Other readers of programs, and tools that build large ones.
pub const READERS: [Need; 3] = [
    need("c++", "g++", "builds programs to read"),
    need("objdump", "binutils", "lists procedures"),
    need("addr2line", "binutils", "finds source lines"),
];

/// Programs with which walks are compared.
pub const WALKED: [Need; 6] = [
    need("g++", "g++", "builds workloads"),
    need("gzip", "gzip", "a program to walk through"),
    need("bzip2", "bzip2", "a program to walk through"),
    need("xz", "xz-utils", "a program to walk through"),
    need("sqlite3", "sqlite3", "a program to walk through"),
    need("/usr/bin/python3", "python3", "a program to walk through"),
];

/// Further kinds of programs whose estimates are compared with exact counts.
pub const COUNTED: [Need; 9] = [
    need("valgrind", "valgrind", "counts what is executed"),
    need("go", "golang-go", "builds a program in Go"),
    need("perl", "perl", "a program to count"),
    need("lua5.4", "lua5.4", "a program to count"),
    need("mawk", "mawk", "a program to count"),
    need("zstd", "zstd", "a program to count"),
    need("as", "binutils", "a program to count"),
    need("sort", "coreutils", "a program to count"),
    need("grep", "grep", "a program to count"),
];

/// To hold `dcpi time` against others.
pub const TIMERS: [Need; 2] = [
    need("hyperfine", "hyperfine", "times commands, to compare ours with"),
    need("awk", "mawk", "draws link orders"),
];

/// LTTng's tracing of functions, to be preloaded.
pub const CYG_PROFILE: &str = "/usr/lib/x86_64-linux-gnu/liblttng-ust-cyg-profile.so";

/// Other tracers, to be compared with.
pub const TRACERS: [Need; 6] = [
    need("/usr/include/zlib.h", "zlib1g-dev", "a program to trace"),
    need("uftrace", "uftrace", "traces functions"),
    need("perf", "linux-perf", "traces probes"),
    need("lttng", "lttng-tools", "traces functions"),
    need(CYG_PROFILE, "liblttng-ust-dev", "traces functions"),
    need("babeltrace2", "babeltrace2", "reads what LTTng traced"),
];

/// To count branches.
pub const CALLGRIND: [Need; 4] = [
    need("valgrind", "valgrind", "counts how often branches are taken"),
    need("objdump", "binutils", "tells which instructions branch"),
    need("setpriv", "util-linux", "ends what was started with the benchmark"),
    need("perl", "perl", "a program to count branches of"),
];

/// Installs the missing packages of `needs`.
pub fn ensure<'a>(needs: impl IntoIterator<Item = &'a Need>) -> anyhow::Result<()> {
    let present = |program: &str| {
        if program.starts_with('/') { Path::new(program).exists() } else { exists(program) }
    };
    let missing: Vec<&Need> = needs.into_iter().filter(|need| !present(need.program)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let packages: Vec<&str> = missing.iter().map(|need| need.package).collect();
    let install = format!("apt-get install -y --no-install-recommends {}", packages.join(" "));
    println!("missing on this machine:");
    for need in &missing {
        println!("  {:<12} {} ({})", need.package, need.purpose, need.program);
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
