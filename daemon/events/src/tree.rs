//! Trees of sysfs, as machines that are not here have them, for tests.

use std::path::Path;

/// Writes files: paths below `root` and contents.
pub fn write(root: &Path, files: &[(&str, &str)]) {
    for (path, text) in files {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, format!("{text}\n")).unwrap();
    }
}

/// One kind of core, and counters of its own beside it (Intel before 2021).
pub const INTEL: [(&str, &str); 12] = [
    ("software/type", "1"),
    ("cpu/type", "4"),
    ("cpu/format/event", "config:0-7"),
    ("cpu/format/umask", "config:8-15"),
    ("cpu/format/inv", "config:23"),
    ("cpu/format/cmask", "config:24-31"),
    ("cpu/format/ldlat", "config1:0-15"),
    ("cpu/events/cache-misses", "event=0x2e,umask=0x41"),
    ("cpu/events/mem-loads", "event=0xcd,umask=0x1,ldlat=3"),
    ("cpu/events/slots.scale", "1.5"),
    ("uncore_imc/type", "13"),
    ("uncore_imc/cpumask", "0,18"),
];

/// Intel with two kinds of cores: 0 to 3 and 4 to 7.
pub const HYBRID: [(&str, &str); 9] = [
    ("cpu_core/type", "4"),
    ("cpu_core/cpus", "0-3"),
    ("cpu_core/format/event", "config:0-7"),
    ("cpu_atom/type", "10"),
    ("cpu_atom/cpus", "4-7"),
    ("cpu_atom/format/event", "config:0-7"),
    ("cpu_atom/format/offcore_rsp", "config1:0-63"),
    ("software/type", "1"),
    ("uncore_imc/type", "13"),
];

pub const ARM: [(&str, &str); 6] = [
    ("armv8_pmuv3_0/type", "8"),
    ("armv8_pmuv3_0/cpus", "0-1"),
    ("armv8_pmuv3_0/format/event", "config:0-15"),
    ("armv8_pmuv3_0/format/long", "config1:0"),
    ("armv8_pmuv3_0/events/cpu_cycles", "event=0x0011"),
    ("armv8_pmuv3_0/events/inst_retired", "event=0x0008"),
];
