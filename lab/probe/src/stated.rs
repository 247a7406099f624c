//! The sizes of caches and TLBs that the kernel and the processor state, for comparison with the
//! measured ones.

use std::path::Path;

/// A cache as sysfs describes it (Documentation/ABI/testing/sysfs-devices-system-cpu).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatedCache {
    /// The level, from 1.
    pub level: u32,
    /// Size in bytes.
    pub bytes: u64,
    /// Bytes of a line.
    pub line_bytes: u64,
}

/// Caches of data of the first CPU, by level. Empty where the kernel says nothing.
#[must_use]
pub fn caches(sysfs: &Path) -> Vec<StatedCache> {
    let of = |index: u32| {
        let folder = sysfs.join(format!("devices/system/cpu/cpu0/cache/index{index}"));
        let text = |name: &str| {
            let text = std::fs::read_to_string(folder.join(name)).ok()?;
            Some(text.trim().to_owned())
        };
        let kib = text("size")?.strip_suffix('K')?.parse::<u64>().ok()?;
        let (level, line) =
            (text("level")?.parse().ok()?, text("coherency_line_size")?.parse().ok()?);
        let is_data = text("type")? != "Instruction";
        Some((is_data, StatedCache { level, bytes: kib << 10, line_bytes: line }))
    };
    // No processor has more than ten caches as one CPU sees them.
    let all = (0..10).map_while(of);
    let mut caches: Vec<StatedCache> =
        all.filter(|(is_data, _)| *is_data).map(|(_, cache)| cache).collect();
    caches.sort_by_key(|cache| cache.level);
    caches
}

/// Entries for pages of 4 KiB of each level of the data TLB, the first level first, as CPUID states
/// them. Empty where it does not.
#[must_use]
pub fn tlbs() -> Vec<u64> {
    #[cfg(target_arch = "x86_64")]
    {
        x86_64::tlbs()
    }
    #[cfg(not(target_arch = "x86_64"))]
    Vec::new()
}

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use std::arch::x86_64::{__cpuid, __cpuid_count, CpuidResult};

    /// AMD64 APM, volume 3, appendix E.4.4 and E.4.5.
    const AMD_L1: u32 = 0x8000_0005;
    const AMD_L2: u32 = 0x8000_0006;
    /// Intel 64 and IA-32 manual, volume 2, CPUID, leaf 18H.
    const INTEL_TLBS: u32 = 0x18;

    pub fn tlbs() -> Vec<u64> {
        let amd = __cpuid(0x8000_0000).eax >= AMD_L2 && __cpuid(AMD_L1).ebx != 0;
        if amd {
            return of_amd(&__cpuid(AMD_L1), &__cpuid(AMD_L2));
        }
        if __cpuid(0).eax < INTEL_TLBS {
            return Vec::new();
        }
        let count = __cpuid_count(INTEL_TLBS, 0).eax.min(32);
        of_intel((0..=count).map(|number| __cpuid_count(INTEL_TLBS, number)))
    }

    /// `ebx` of both leaves has the entries of data TLBs for pages of 4 KiB: 8 bits of the first
    /// level, 12 of the second.
    pub fn of_amd(first: &CpuidResult, second: &CpuidResult) -> Vec<u64> {
        let (first, second) = (first.ebx >> 16 & 0xff, second.ebx >> 16 & 0xfff);
        [first, second].into_iter().map(u64::from).filter(|entries| *entries > 0).collect()
    }

    /// Each subleaf is a TLB: `edx` has type (1 data, 3 unified, 4 loads) and level, `ebx` pages
    /// and ways, `ecx` sets.
    pub fn of_intel(leaves: impl Iterator<Item = CpuidResult>) -> Vec<u64> {
        let mut found: Vec<(u32, u64)> = leaves
            .filter(|leaf| matches!(leaf.edx & 0x1f, 1 | 3 | 4) && leaf.ebx & 1 == 1)
            .map(|leaf| (leaf.edx >> 5 & 7, u64::from(leaf.ebx >> 16) * u64::from(leaf.ecx)))
            .collect();
        found.sort_unstable();
        found.dedup_by_key(|(level, _)| *level);
        found.into_iter().map(|(_, entries)| entries).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caches_of_sysfs_are_read_but_those_of_instructions() {
        let sysfs = std::env::temp_dir().join(format!("dcpi-probe-sysfs-{}", std::process::id()));
        for (index, level, kind, size) in
            [(0, "1", "Data", "32K"), (1, "1", "Instruction", "32K"), (2, "2", "Unified", "1024K")]
        {
            let folder = sysfs.join(format!("devices/system/cpu/cpu0/cache/index{index}"));
            std::fs::create_dir_all(&folder).unwrap();
            for (name, text) in
                [("level", level), ("type", kind), ("size", size), ("coherency_line_size", "64")]
            {
                std::fs::write(folder.join(name), format!("{text}\n")).unwrap();
            }
        }
        let cache = |level, bytes| StatedCache { level, bytes, line_bytes: 64 };
        assert_eq!(caches(&sysfs), [cache(1, 32 << 10), cache(2, 1 << 20)]);
        std::fs::remove_dir_all(&sysfs).unwrap();
        assert_eq!(caches(&sysfs), []);
    }

    /// Leaves of a Zen 4 (family 19h, model 11h), and of a Sapphire Rapids.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn tlbs_of_leaves() {
        use std::arch::x86_64::CpuidResult;
        let leaf = |ebx, ecx, edx| CpuidResult { eax: 0, ebx, ecx, edx };
        let amd = [leaf(0xff48_ff40, 0, 0), leaf(0x6c00_4200, 0, 0)];
        assert_eq!(x86_64::of_amd(&amd[0], &amd[1]), [72, 3072]);
        let intel = [
            leaf(0, 0, 0),
            leaf(0x0008_0001, 32, 0x0000_4022),
            leaf(0x0006_0001, 16, 0x0000_4024),
            leaf(0x0008_0003, 256, 0x0000_4043),
        ];
        assert_eq!(x86_64::of_intel(intel.into_iter()), [96, 2048]);
    }
}
