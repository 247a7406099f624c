//! Facts about this machine and this process: capabilities, CPUs, the kernel's identity.

use super::KernelError;
use abi::{COMM_BYTES, StackRecord};
use events::parse_cpu_list;
use image::ImageId;
use model::Cpuid;
use std::fs;
use std::io::Read as _;
use std::path::Path;
use std::sync::OnceLock;

/// Capability numbers of linux/capability.h.
const CAPABILITIES: [(&str, u32); 2] = [("CAP_PERFMON", 38), ("CAP_BPF", 39)];
const CAP_SYS_ADMIN: u32 = 21;

/// Bytes of /proc/modules that are read: a distribution's kernel has about 10 thousand. A smaller
/// limit misses that a module came or went.
const MODULES_BYTES_MAX: u64 = 1 << 20;

/// Fails unless this process may sample every CPU and load the sampler: CAP_PERFMON and CAP_BPF
/// (Linux 5.8), or CAP_SYS_ADMIN, which includes both.
///
/// # Errors
/// [`KernelError::Privilege`] naming what is missing; [`KernelError::Read`] without /proc.
pub fn require_privileges() -> Result<(), KernelError> {
    let status = read("/proc/self/status")?;
    match missing_capabilities(&status) {
        missing if missing.is_empty() => Ok(()),
        missing => Err(KernelError::Privilege { missing: missing.join(" and ") }),
    }
}

fn missing_capabilities(status: &str) -> Vec<&'static str> {
    let effective = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .unwrap_or(0);
    let has = |number: u32| effective >> number & 1 == 1;
    CAPABILITIES
        .iter()
        .filter(|(_, number)| !has(*number) && !has(CAP_SYS_ADMIN))
        .map(|(name, _)| *name)
        .collect()
}

/// The facts about the machine that an epoch records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// `uname -m`.
    pub arch: String,
    /// Processor model as /proc/cpuinfo names it, or "unknown".
    pub cpu_model: String,
    /// The processor by its maker's numbers; None where the CPUs differ.
    pub cpuid: Option<Cpuid>,
    /// CPUs online.
    pub cpus: Vec<usize>,
    /// `uname -r`.
    pub kernel_release: String,
    /// The kernel's build id, or an id made from its release and version where it has none.
    pub kernel_id: ImageId,
    /// /proc/sys/kernel/random/boot_id, which differs for each boot.
    pub boot_id: String,
    /// Host name.
    pub host: String,
}

impl Machine {
    /// Reads all facts.
    ///
    /// # Errors
    /// [`KernelError::Read`] when a file of /proc or /sys that every Linux has cannot be read.
    pub fn probe() -> Result<Self, KernelError> {
        let kernel_release = read("/proc/sys/kernel/osrelease")?.trim().to_owned();
        let version = read("/proc/sys/kernel/version")?.trim().to_owned();
        let notes = fs::read("/sys/kernel/notes").unwrap_or_default();
        let kernel_id = image::kernel::build_id_from_notes(&notes).unwrap_or_else(|| {
            ImageId::from_name("[kernel]", &format!("{kernel_release} {version}"))
        });
        let cpuinfo = read("/proc/cpuinfo").unwrap_or_default();
        Ok(Self {
            arch: std::env::consts::ARCH.to_owned(),
            cpu_model: cpu_model(&cpuinfo).unwrap_or("unknown").to_owned(),
            cpuid: Cpuid::of_cpuinfo(&cpuinfo),
            cpus: cpu_list("online")?,
            kernel_release,
            kernel_id,
            boot_id: read("/proc/sys/kernel/random/boot_id")?.trim().to_owned(),
            host: read("/proc/sys/kernel/hostname")?.trim().to_owned(),
        })
    }
}

fn cpu_model(cpuinfo: &str) -> Option<&str> {
    ["model name", "CPU part", "cpu model"]
        .iter()
        .find_map(|key| model::Cpuid::fact_of_cpuinfo(cpuinfo, key))
}

/// The highest clock of the processor, in Hz, for turning a rate into a period of cycles; 3 GHz
/// where the machine does not say.
pub fn clock_hz() -> u64 {
    // Each reading of /proc/cpuinfo costs about 100 us.
    static CLOCK_HZ: OnceLock<u64> = OnceLock::new();
    *CLOCK_HZ.get_or_init(read_clock_hz)
}

fn read_clock_hz() -> u64 {
    let khz = fs::read_to_string("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq")
        .ok()
        .and_then(|text| text.trim().parse::<u64>().ok());
    let mhz = || {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").ok()?;
        let line = cpuinfo.lines().find(|line| line.starts_with("cpu MHz"))?;
        line.split_once(':')?.1.trim().parse::<f64>().ok()
    };
    khz.map(|khz| khz * 1000)
        .or_else(|| mhz().map(|mhz| (mhz * 1e6) as u64))
        .filter(|hz| *hz > 0)
        .unwrap_or(3_000_000_000)
}

/// The kernel's symbols with their addresses, and its modules' places.
///
/// # Errors
/// [`image::ImageError::AddressesHidden`] under kernel.kptr_restrict, `Io` without /proc/kallsyms
/// (CONFIG_KALLSYMS).
pub fn kernel_symbols() -> Result<image::kernel::KernelSymbols, image::ImageError> {
    image::kernel::KernelSymbols::load(Path::new("/proc/kallsyms"), Path::new("/proc/modules"))
}

/// The list of the kernel's modules with their addresses, as text, which shows cheaply whether a
/// module came or went. Empty without modules.
pub fn kernel_modules() -> Vec<u8> {
    let mut list = Vec::new();
    let file = fs::File::open("/proc/modules");
    // A list that cannot be read to its end differs from the last one, which only costs reading the
    // symbols again.
    let _ = file.and_then(|file| file.take(MODULES_BYTES_MAX).read_to_end(&mut list));
    list
}

/// A CPU list of the kernel: `online`, `possible`.
pub fn cpu_list(which: &str) -> Result<Vec<usize>, KernelError> {
    Ok(parse_cpu_list(&read(&format!("/sys/devices/system/cpu/{which}"))?))
}

/// The pid namespace of this process as (device, inode), or None in the root namespace, whose inode
/// is PROC_PID_INIT_INO (0xEFFFFFFC, include/linux/proc_ns.h).
pub fn pid_namespace() -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    let status = fs::metadata("/proc/self/ns/pid").ok()?;
    // The kernel compares its own encoding of the device, major << 20 | minor
    // (include/linux/kdev_t.h).
    let device = nix::sys::stat::major(status.dev()) << 20 | nix::sys::stat::minor(status.dev());
    (status.ino() != 0xEFFF_FFFC).then_some((device, status.ino()))
}

/// The fields of a record about a thread and its process, from proc(5), by the thread's number in
/// the root namespace; None where it is gone or this process is in another namespace. Reading these
/// files does not access the thread's memory, so no process can block it.
pub fn thread_record(root_tid: u32) -> Option<StackRecord> {
    static IS_ROOT: OnceLock<bool> = OnceLock::new();
    if !IS_ROOT.get_or_init(|| pid_namespace().is_none()) {
        return None;
    }
    let name = |number: u32| {
        let text = fs::read(format!("/proc/{number}/comm")).ok()?;
        let mut name = [0; COMM_BYTES];
        for (to, from) in name.iter_mut().zip(text.strip_suffix(b"\n").unwrap_or(&text)) {
            *to = *from;
        }
        Some(name)
    };
    let status = fs::read(format!("/proc/{root_tid}/status")).ok()?;
    let mut lines = status.split(|byte| *byte == b'\n');
    let pid = lines.find_map(|line| line.strip_prefix(b"Tgid:"))?;
    let pid = std::str::from_utf8(pid).ok()?.trim().parse().ok()?;
    Some(StackRecord {
        space: pid,
        tid: root_tid,
        root_tid,
        weight: 1,
        command: name(pid)?,
        name: name(root_tid)?,
        ..StackRecord::EMPTY
    })
}

fn read(path: &str) -> Result<String, KernelError> {
    fs::read_to_string(path).map_err(|source| KernelError::Read { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists() {
        for (text, expected) in [
            ("0\n", vec![0]),
            ("0-3,8\n", vec![0, 1, 2, 3, 8]),
            ("", vec![]),
            ("x,2-", vec![]),
            ("5-2", vec![]),
        ] {
            assert_eq!(parse_cpu_list(text), expected, "{text:?}");
        }
        assert_eq!(parse_cpu_list("0-99999999999").len(), 8192);
    }

    #[test]
    fn capabilities_that_are_missing() {
        for (mask, expected) in [
            ("000001ffffffffff", vec![]),
            ("0000000000200000", vec![]), // CAP_SYS_ADMIN
            ("0000000000000000", vec!["CAP_PERFMON", "CAP_BPF"]),
            ("0000004000000000", vec!["CAP_BPF"]),
            ("000000c000000000", vec![]),
        ] {
            assert_eq!(
                missing_capabilities(&format!("Name:\tx\nCapEff:\t{mask}\n")),
                expected,
                "{mask}"
            );
        }
    }

    #[test]
    fn processor_model() {
        assert_eq!(cpu_model("processor\t: 0\nmodel name\t: AMD EPYC\n"), Some("AMD EPYC"));
        assert_eq!(cpu_model("processor\t: 0\nCPU part\t: 0xd0c\n"), Some("0xd0c"));
        assert_eq!(cpu_model(""), None);
    }
}
