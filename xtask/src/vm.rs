//! Boots real kernels of Debian under emulation and runs our own daemon in them:
//! tests/vm/README.md.

mod archive;
mod guest;
mod initramfs;
mod programs;

use crate::Outcome;
use anyhow::{Context as _, bail, ensure};
use archive::{Archive, Mirrors};
use guest::{Qemu, Said};
use initramfs::Initramfs;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Everything that is fetched, built or logged.
const FOLDER: &str = "target/vm";
const QEMU: &str = "qemu-system-x86 qemu-system-arm qemu-system-common qemu-system-data seabios";

/// The guest's processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Architecture {
    Amd64,
    Arm64,
}

impl Architecture {
    /// Debian's name.
    fn name(self) -> &'static str {
        match self {
            Architecture::Amd64 => "amd64",
            Architecture::Arm64 => "arm64",
        }
    }

    /// Rust's name.
    fn target(self) -> &'static str {
        match self {
            Architecture::Amd64 => "x86_64-unknown-linux-gnu",
            Architecture::Arm64 => "aarch64-unknown-linux-gnu",
        }
    }

    fn console(self) -> &'static str {
        match self {
            Architecture::Amd64 => "ttyS0",
            Architecture::Arm64 => "ttyAMA0",
        }
    }

    /// The environment variable of cargo's setting `target.TARGET.KEY`.
    fn cargo_variable(self, key: &str) -> String {
        format!("CARGO_TARGET_{}_{key}", self.target().to_uppercase().replace('-', "_"))
    }
}

/// A series of kernels, for one processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kernel {
    architecture: Architecture,
    series: &'static str,
    suites: &'static [&'static str],
    /// Tried when none is named.
    usual: bool,
}

const fn kernel(
    architecture: Architecture,
    series: &'static str,
    suites: &'static [&'static str],
) -> Kernel {
    Kernel { architecture, series, suites, usual: false }
}

const fn usual(kernel: Kernel) -> Kernel {
    Kernel { usual: true, ..kernel }
}

const BULLSEYE: [&str; 2] = ["bullseye", "bullseye-security"];
const BOOKWORM: [&str; 3] = ["bookworm", "bookworm-security", "bookworm-backports"];
const TRIXIE: [&str; 2] = ["trixie", "trixie-security"];
const TRIXIE_BACKPORTS: [&str; 1] = ["trixie-backports"];

/// The oldest kernel that we support, the newest there is, and those of the stable releases
/// between.
const KERNELS: [Kernel; 8] = [
    usual(kernel(Architecture::Amd64, "5.10", &BULLSEYE)),
    kernel(Architecture::Amd64, "6.1", &BOOKWORM),
    kernel(Architecture::Amd64, "6.12", &TRIXIE),
    usual(kernel(Architecture::Amd64, "7.2", &TRIXIE_BACKPORTS)),
    kernel(Architecture::Arm64, "5.10", &BULLSEYE),
    usual(kernel(Architecture::Arm64, "6.1", &BOOKWORM)),
    kernel(Architecture::Arm64, "6.12", &TRIXIE),
    kernel(Architecture::Arm64, "7.2", &TRIXIE_BACKPORTS),
];

impl Kernel {
    fn name(&self) -> String {
        format!("{}-{}", self.architecture.name(), self.series)
    }
}

/// How one guest went.
struct Row {
    kernel: Kernel,
    /// The output of the guest, or the reason why there was none.
    said: anyhow::Result<Said>,
    took: Duration,
}

/// Boots the kernels named: `amd64-5.10`, `6.1` for both processors, `arm64` for all of its
/// kernels, `all`, or nothing for the usual.
pub fn run(arguments: &[&str]) -> anyhow::Result<Outcome> {
    let kernels = chosen(arguments)?;
    ensure!(
        std::env::consts::ARCH == "x86_64",
        "the emulators that this fetches run on x86-64 only"
    );
    let vm = std::env::current_dir()?.join(FOLDER);
    fs::create_dir_all(&vm)?;
    announce(&vm, &kernels);
    let mirrors = Mirrors::of_this_machine()?;
    let qemu = fetch_qemu(&vm, &mirrors)?;
    let mut rows = Vec::new();
    for architecture in [Architecture::Amd64, Architecture::Arm64] {
        let kernels: Vec<_> =
            kernels.iter().filter(|kernel| kernel.architecture == architecture).collect();
        if kernels.is_empty() {
            continue;
        }
        let initramfs = initramfs(&vm, &mirrors, architecture);
        for kernel in kernels {
            let started = Instant::now();
            let said = match &initramfs {
                Ok(initramfs) => boot(&vm, &mirrors, &qemu, kernel, initramfs),
                Err(error) => Err(anyhow::anyhow!("{error:#}")),
            };
            rows.push(Row { kernel: *kernel, said, took: started.elapsed() });
            rows.last().into_iter().for_each(|row| println!("{}", line(row)));
        }
    }
    println!("\n{:<11} {:<26} {:<12} {:>7}  what differed", "guest", "kernel", "result", "seconds");
    rows.iter().for_each(|row| print!("{}", paragraph(row)));
    let could_not = rows.iter().filter(|row| row.said.is_err()).count();
    ensure!(
        could_not == 0,
        "{could_not} of {} guests could not be tried; the table says why",
        rows.len()
    );
    let clean = rows.iter().all(|row| row.said.as_ref().is_ok_and(|said| said.failures.is_empty()));
    Ok(if clean { Outcome::Clean } else { Outcome::Problems })
}

fn chosen(arguments: &[&str]) -> anyhow::Result<Vec<Kernel>> {
    let named = |kernel: &Kernel, name: &str| {
        name == "all"
            || name == kernel.name()
            || name == kernel.series
            || name == kernel.architecture.name()
    };
    if let Some(unknown) =
        arguments.iter().find(|name| !KERNELS.iter().any(|kernel| named(kernel, name)))
    {
        let all: Vec<_> = KERNELS.iter().map(Kernel::name).collect();
        bail!(
            "no kernel '{unknown}'; there are all, {}; 6.1 means both of it, arm64 all of it",
            all.join(", ")
        );
    }
    let is_chosen = |kernel: &&Kernel| match arguments {
        [] => kernel.usual,
        names => names.iter().any(|name| named(kernel, name)),
    };
    Ok(KERNELS.iter().filter(is_chosen).copied().collect())
}

/// Says what will be fetched, before anything is.
fn announce(vm: &Path, kernels: &[Kernel]) {
    let names: Vec<_> = kernels.iter().map(Kernel::name).collect();
    println!("guests: {}", names.join(", "));
    println!(
        "what they need comes from this machine's Debian mirror into {FOLDER} and stays there; nothing is installed:"
    );
    let state = |folder: &str| if vm.join(folder).exists() { "there" } else { "to fetch" };
    println!("  {:<10} {QEMU} and their libraries (160 MB unpacked)", state("qemu"));
    println!(
        "  {:<10} busybox-static, and the newest kernel of each series (10 to 100 MB each)",
        "if newer"
    );
    if kernels.iter().any(|kernel| kernel.architecture == Architecture::Arm64) {
        println!(
            "  {:<10} a compiler for arm64: rustc-web, gcc-aarch64-linux-gnu (700 MB unpacked)",
            state("cross-arm64")
        );
    }
}

fn fetch_qemu(vm: &Path, mirrors: &Mirrors) -> anyhow::Result<Qemu> {
    let folder = vm.join("qemu");
    if !folder.exists() {
        let code = &mirrors.codename;
        let archive = Archive::open(
            vm,
            mirrors,
            &[code, &format!("{code}-security"), &format!("{code}-backports")],
        )?;
        // Debian 12 itself has QEMU 7.2, whose counters miss some of their overflows.
        let from = if code == "bookworm" { "/bookworm-backports" } else { "" };
        let packages: Vec<_> = QEMU.split(' ').map(|package| format!("{package}{from}")).collect();
        println!("fetching QEMU");
        archive.unpack_with_dependencies(&packages.join(" "), &folder).context("fetching QEMU")?;
    }
    Ok(Qemu { folder })
}

/// The file system of all guests of an architecture.
fn initramfs(vm: &Path, mirrors: &Mirrors, architecture: Architecture) -> anyhow::Result<PathBuf> {
    let busybox = vm.join(format!("busybox-{}", architecture.name()));
    if !busybox.exists() {
        let archive = Archive::open(vm, mirrors, &BOOKWORM)?;
        archive
            .unpack(&format!("busybox-static:{}", architecture.name()), &busybox)
            .context("fetching busybox")?;
    }
    let built = programs::build(vm, mirrors, architecture)
        .with_context(|| format!("building our programs for {}", architecture.name()))?;
    let mut archive = Initramfs::default();
    ["bin", "dev"].iter().for_each(|name| archive.directory(name));
    let busybox = ["bin/busybox", "usr/bin/busybox"]
        .map(|path| busybox.join(path))
        .into_iter()
        .find(|path| path.exists());
    archive.program("bin/busybox", &busybox.context("busybox-static has no busybox")?)?;
    for name in programs::OURS.into_iter().chain(programs::WORKLOADS.map(|(name, _)| name)) {
        archive.program(&format!("bin/{name}"), &built.join(name))?;
    }
    for name in ["init", "test.sh", "json.awk"] {
        archive.program(name, &Path::new("tests/vm").join(name))?;
    }
    let file = vm.join(format!("initramfs-{}", architecture.name()));
    archive.write(&file)?;
    Ok(file)
}

fn boot(
    vm: &Path,
    mirrors: &Mirrors,
    qemu: &Qemu,
    kernel: &Kernel,
    initramfs: &Path,
) -> anyhow::Result<Said> {
    let archive = Archive::open(vm, mirrors, kernel.suites)?;
    let (package, file) = archive.kernel(vm, kernel.series, kernel.architecture.name())?;
    println!("booting {package}");
    qemu.boot(kernel.architecture, &file, initramfs, &vm.join(format!("{}.log", kernel.name())))
}

fn result(row: &Row) -> &'static str {
    match &row.said {
        Ok(said) if said.failures.is_empty() => "passed",
        Ok(_) => "FAILED",
        Err(_) => "could not",
    }
}

fn line(row: &Row) -> String {
    let held = row.said.as_ref().map_or(0, |said| said.held);
    format!("{}: {}, {held} checks held, {} s", row.kernel.name(), result(row), row.took.as_secs())
}

/// A row of the table, and below it what went wrong.
fn paragraph(row: &Row) -> String {
    let name = row.kernel.name();
    let (release, differences, problems) = match &row.said {
        Ok(said) => {
            let release = said.release.split(' ').next().unwrap_or_default();
            (release, said.differences.join("; "), said.failures.clone())
        }
        Err(error) => ("", String::new(), vec![format!("{error:#}")]),
    };
    let mut text = format!(
        "{name:<11} {release:<26} {:<12} {:>7}  {differences}\n",
        result(row),
        row.took.as_secs()
    );
    problems.iter().for_each(|problem| text.push_str(&format!("{:<11} {problem}\n", "")));
    if result(row) == "FAILED" {
        text.push_str(&format!("{:<11} its console: {FOLDER}/{name}.log\n", ""));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::chosen;

    #[test]
    fn kernels_by_name_series_or_processor() {
        let names = |arguments: &[&str]| {
            chosen(arguments).unwrap().iter().map(super::Kernel::name).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(names(&[]), "amd64-5.10 amd64-7.2 arm64-6.1");
        assert_eq!(names(&["6.12"]), "amd64-6.12 arm64-6.12");
        assert_eq!(names(&["arm64-7.2", "amd64-6.1"]), "amd64-6.1 arm64-7.2");
        assert_eq!(names(&["arm64", "5.10"]).split(' ').count(), 5);
        assert_eq!(names(&["all"]).split(' ').count(), 8);
        assert!(chosen(&["4.19"]).unwrap_err().to_string().contains("amd64-5.10"));
    }
}
