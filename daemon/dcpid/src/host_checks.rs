//! What this host allows: `dcpid --check-host`, a line of JSON for each fact, for `dcpi doctor`.
//! The checks are those that dcpid makes when it starts, or looks at what they depend on.

use kernel::Machine;
use std::io::Write;
use std::path::Path;
use wire::HostCheck;

/// Oldest kernel that dcpid's objects load on (README.md, Install).
const KERNEL_MIN: (u32, u32) = (5, 10);
/// First kernel whose maps are not charged to RLIMIT_MEMLOCK (Linux commit d5299b67dd59).
const KERNEL_WITHOUT_CHARGES: (u32, u32) = (5, 11);
/// Descriptors that dcpid opens for each CPU: events, their rings, tables of the sampler; on the
/// large side, since a second event takes as many again.
const DESCRIPTORS_PER_CPU: u64 = 16;
/// Descriptors of dcpid beside those: sockets, the database, inspectors.
const DESCRIPTORS: u64 = 256;

/// Writes the checks.
///
/// # Errors
/// Those of writing; /proc or /sys cannot be read.
pub fn write(out: &mut dyn Write) -> anyhow::Result<()> {
    let machine = Machine::probe()?;
    let (privileges, release) = (kernel::require_privileges(), version(&machine.kernel_release));
    let is_privileged = privileges.is_ok();
    let checks = [
        of_kernel(&machine, release),
        of_types(),
        of_events(&machine),
        HostCheck::new(
            "rights",
            is_privileged,
            privileges.map_or_else(|error| error.to_string(), |()| "CAP_PERFMON, CAP_BPF".into()),
            "run dcpi doctor and dcpid as root, or give dcpid CAP_PERFMON and CAP_BPF",
        ),
        of_paranoia(is_privileged),
        of_symbols(),
        of_lockdown(),
        of_memory(is_privileged, release),
        of_descriptors(machine.cpus.len() as u64),
        of_unwinding(),
    ];
    for check in checks {
        serde_json::to_writer(&mut *out, &check)?;
        writeln!(out)?;
    }
    Ok(())
}

/// Major and minor number of a release; (0, 0) where it is no number.
fn version(release: &str) -> (u32, u32) {
    let mut numbers = release.split(['.', '-', '+']).map(|part| part.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

fn of_kernel(machine: &Machine, release: (u32, u32)) -> HostCheck {
    let found = format!("Linux {} on {}", machine.kernel_release, machine.arch);
    HostCheck::new("kernel", release >= KERNEL_MIN, found, "boot Linux 5.10 or later")
}

/// The kernel's own types (BTF). dcpid's tracing programs need them: without them waits have no
/// stacks, and no event is counted for all threads of a program.
fn of_types() -> HostCheck {
    let path = Path::new("/sys/kernel/btf/vmlinux");
    let (ok, found) = match std::fs::metadata(path) {
        Ok(file) => (true, format!("{} KiB of types", file.len() / 1024)),
        Err(error) => (false, format!("{}: {error}", path.display())),
    };
    HostCheck::new("BTF", ok, found, "boot a kernel with CONFIG_DEBUG_INFO_BTF=y")
}

/// The event that dcpid samples unless it is told another.
fn of_events(machine: &Machine) -> HostCheck {
    let remedy = "samples stand for time only; on a virtual machine let the hypervisor give it a \
                  PMU (qemu: -cpu host,pmu=on)";
    let (ok, found) = match kernel::resolve_event(&[], &machine.cpus) {
        Ok(events) => {
            let name = |event: &events::PlannedEvent| event.event.name.clone();
            let names = events.iter().map(name).collect::<Vec<_>>().join(", ");
            match events.iter().any(|event| event.event.needs_hardware()) {
                true => (true, format!("{names}, by hardware counters")),
                false => (false, format!("{names}, a timer: no hardware counters")),
            }
        }
        Err(error) => (false, error.to_string()),
    };
    HostCheck::new("PMU events", ok, found, remedy)
}

/// kernel.perf_event_paranoid, which binds only who lacks CAP_PERFMON.
fn of_paranoia(is_privileged: bool) -> HostCheck {
    let value = setting("/proc/sys/kernel/perf_event_paranoid");
    let is_open = value.parse::<i32>().is_ok_and(|value| value <= 0);
    let means = if is_privileged { " (does not bind CAP_PERFMON)" } else { "" };
    HostCheck::new(
        "perf_event_paranoid",
        is_privileged || is_open,
        format!("{value}{means}"),
        "run dcpid with CAP_PERFMON, or: sysctl kernel.perf_event_paranoid=0",
    )
}

/// The kernel's symbols, which kernel.kptr_restrict may hide.
fn of_symbols() -> HostCheck {
    let value = setting("/proc/sys/kernel/kptr_restrict");
    let (ok, found) = match kernel::kernel_symbols() {
        Ok(_) => (true, format!("{value}; the kernel's symbols can be read")),
        Err(error) => (false, format!("{value}; {error}")),
    };
    let remedy = "run as root (CAP_SYSLOG), and: sysctl kernel.kptr_restrict=1";
    HostCheck::new("kptr_restrict", ok, found, remedy)
}

/// Lockdown of confidentiality forbids BPF to read memory (kernel_lockdown(7)).
fn of_lockdown() -> HostCheck {
    let text = setting("/sys/kernel/security/lockdown");
    let chosen = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    let found = chosen.map_or("none", |(chosen, _)| chosen);
    let remedy = "boot with lockdown=integrity or none";
    HostCheck::new("lockdown", found != "confidentiality", found, remedy)
}

/// Memory of rings and, before Linux 5.11, of tables.
fn of_memory(is_privileged: bool, release: (u32, u32)) -> HostCheck {
    let limit = limit("Max locked memory");
    let found = match limit {
        None => "unlimited".to_owned(),
        Some(bytes) => format!("{} KiB", bytes / 1024),
    };
    let of = if release >= KERNEL_WITHOUT_CHARGES { "rings" } else { "rings and tables" };
    let means = if is_privileged { " (does not bind CAP_IPC_LOCK)" } else { "" };
    HostCheck::new(
        "memlock",
        is_privileged || limit.is_none(),
        format!("{found} for {of}{means}"),
        "ulimit -Hl unlimited (systemd: LimitMEMLOCK=infinity)",
    )
}

fn of_descriptors(cpus: u64) -> HostCheck {
    let wanted = DESCRIPTORS + DESCRIPTORS_PER_CPU * cpus;
    let limit = limit("Max open files").unwrap_or(u64::MAX);
    let found = format!("{limit} open files at most; {cpus} CPUs want {wanted}");
    HostCheck::new("nofile", limit >= wanted, found, "ulimit -Hn 65536 (LimitNOFILE=65536)")
}

/// The hard limit of this process (proc(5), /proc/pid/limits); None: unlimited.
fn limit(name: &str) -> Option<u64> {
    let limits = setting("/proc/self/limits");
    let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// How the kernel walks its own stacks: by frame pointers, which all kernels for arm64 have, or by
/// the tables of ORC. The third way, by guessing (CONFIG_UNWINDER_GUESS), names callers that are
/// none.
fn of_unwinding() -> HostCheck {
    let symbols = std::fs::read("/proc/kallsyms").unwrap_or_default();
    // The compiler may split or inline either of two functions.
    let has_orc = symbols.split(|byte| *byte == b'\n').any(|line| line.ends_with(b"orc_find"));
    let (ok, found) = match () {
        () if cfg!(target_arch = "aarch64") => (true, "kernel: frame pointers"),
        () if has_orc => (true, "kernel: ORC"),
        () => (false, "kernel: no ORC"),
    };
    let found = format!("{found}; programs: .eh_frame, frame pointers");
    HostCheck::new("unwinding", ok, found, "boot a kernel with CONFIG_UNWINDER_ORC=y")
}

fn setting(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_check_is_a_line_with_a_remedy_where_it_is_not_well() {
        let mut out = Vec::new();
        write(&mut out).unwrap();
        let lines = String::from_utf8(out).unwrap();
        let checks: Vec<HostCheck> =
            lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(checks.len(), 10, "{lines}");
        for check in checks {
            assert_eq!(check.ok, check.remedy.is_none(), "{check:?}");
            assert!(!check.found.is_empty() && !check.found.contains('\n'), "{check:?}");
        }
    }

    #[test]
    fn releases_are_compared_by_number() {
        assert_eq!(version("6.1.0-13-amd64"), (6, 1));
        assert_eq!(version("5.10+"), (5, 10));
        assert_eq!(version("x"), (0, 0));
        assert!(version("5.9.3") < KERNEL_MIN && version("5.10.0") >= KERNEL_MIN);
    }
}
