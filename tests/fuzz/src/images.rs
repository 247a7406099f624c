//! Executable files, and their debug information.

use crate::{memory_file, unwinding, word};
use image::{
    Binary, Constants, DebugInfo, Finding, ImageOffset, Imports, KeptFile, KeptRanges, Layout,
    STRETCHES_MAX, Vaddr, identify, procedures_of,
};
use std::fs;
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;
use std::process::Command;

/// Places that are looked up in one file.
const PLACES: usize = 64;

/// Reads an executable file as an inspector and the analysis do.
pub fn elf(bytes: &[u8]) {
    let _ = identify(bytes).map(|id| id.to_string());
    if let Ok(layout) = Layout::of(bytes) {
        for segment in layout.segments() {
            let _ = layout.file_offset_to_vaddr(segment.offset);
            let _ = layout.vaddr_to_file_offset(segment.vaddr);
        }
    }
    words(bytes);
    if let Ok((procedures, findings)) = procedures_of(bytes, None, &[]) {
        for procedure in &procedures {
            assert_eq!(procedures.find(procedure.start), Some(procedure));
            assert!(!procedure.name().is_empty());
        }
        assert!(findings.iter().all(|finding| !finding.to_string().contains('\n')));
    }
    kept(bytes);
}

/// Reads the file's constant words and its imported procedures.
fn words(bytes: &[u8]) {
    if let Ok(constants) = Constants::of(bytes) {
        let mut rest = bytes;
        for number in 0..PLACES {
            let _ = constants.at(Vaddr(word(&mut rest)), number as u8 % 10);
        }
        assert!(constants.size_bytes() < (1 << 20) + 64 * bytes.len());
    }
    if let Ok(imports) = Imports::of(bytes) {
        assert!(imports.iter().is_sorted_by(|a, b| a.0 < b.0));
    }
}

/// Makes the excerpt of the file that the code store keeps, and reads it.
fn kept(bytes: &[u8]) {
    let Ok(kept) = KeptFile::of(bytes) else { return };
    assert!(kept.ranges().len() <= bytes.len() as u64);
    use_kept(kept);
}

/// The kept part of a file, as reports use it.
pub(crate) fn use_kept(kept: KeptFile) {
    let _ = (kept.identify(), kept.layout(), kept.get(0, 64), kept.to_bytes(1 << 20));
    if let Some(range) = kept.ranges().ranges().first().cloned() {
        let _ = kept.without(&[range]).map(KeptFile::into_excerpt);
    }
    let Ok(binary) = Binary::of_kept(kept, None, None) else { return };
    let Ok((all, _)) = binary.procedures(&[]) else { return };
    let places: Vec<ImageOffset> = all
        .iter()
        .flat_map(|procedure| [procedure.start, ImageOffset(procedure.end.0 - 1)])
        .take(PLACES)
        .collect();
    let (some, _) = binary.procedures_at(&[], &places).unwrap();
    for place in places {
        assert_eq!(some.find(place), all.find(place), "{place}");
        let _ = binary.code_or_zeros(place, 256);
    }
}

/// Reads the debug information of a file.
pub fn debug_info(bytes: &[u8]) {
    let file = memory_file(bytes);
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let Ok(binary) = Binary::open(&path, None) else { return };
    let mut findings = Vec::new();
    let info = DebugInfo::of(&binary, &[], &mut findings);
    assert!(findings.iter().all(|finding: &Finding| !finding.to_string().contains('\n')));
    let Some(info) = info else { return };
    let mut rest = bytes.get(bytes.len().saturating_sub(PLACES * 8)..).unwrap_or_default();
    let mut places: Vec<Vaddr> = binary
        .layout()
        .segments()
        .iter()
        .filter(|segment| segment.executable)
        .flat_map(|segment| {
            (0..PLACES as u64).map(|at| Vaddr(segment.vaddr.0.wrapping_add(at * 8)))
        })
        .take(2 * PLACES)
        .collect();
    places.extend([Vaddr(0), Vaddr(u64::MAX), Vaddr(word(&mut rest))]);
    if let Ok(lines) = info.lines() {
        places.iter().for_each(|place| assert!(lines.frames(*place).len() <= PLACES));
        assert!(lines.addresses(|_| true, 7).len() <= STRETCHES_MAX);
        let _ = lines.cut().map(|cut| cut.to_string());
    }
    if let Ok(sites) = info.sites() {
        places.iter().for_each(|place| assert!(sites.at(*place).len() <= PLACES + 1));
    }
    let offsets: Vec<ImageOffset> =
        places.iter().filter_map(|place| binary.layout().vaddr_to_file_offset(*place)).collect();
    let _ = binary.procedures_at(&[], &offsets);
}

/// A C program whose calls are inlined, so that its debug information nests.
const PROGRAM: &str = "
static inline __attribute__((always_inline)) int step(int n) { return n * 3 + 1; }
int work(int n) { for (int i = 0; i < n; i++) n -= step(i) & 3; return n; }
int (*const table[])(int) = { work };
void _start(void) { volatile int n = 3; n = work(n) + table[0](n); for (;;); }
";

/// The program, built with these flags and without the C library.
fn built(flags: &[&str]) -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("a.c"), PROGRAM).unwrap();
    let built = Command::new("cc")
        .current_dir(directory.path())
        .args(["-nostdlib", "-O1", "-Wl,-z,noseparate-code", "-o", "a", "a.c"])
        .args(flags)
        .status()
        .unwrap();
    assert!(built.success(), "cc {flags:?}");
    fs::read(directory.path().join("a")).unwrap()
}

/// Small programs and libraries of several shapes, and the excerpt of one.
#[must_use]
pub fn elf_seeds() -> Vec<Vec<u8>> {
    let mut seeds: Vec<Vec<u8>> = [
        &["-static"][..],
        &["-static-pie", "-Wl,-z,now,-z,pack-relative-relocs"],
        &["-shared", "-fPIC"],
        &["-shared", "-fPIC", "-s", "-Wl,--build-id=none"],
        &["-static", "-Wl,--compress-debug-sections=zlib", "-g"],
    ]
    .iter()
    .map(|flags| built(flags))
    .collect();
    let kept = KeptFile::of(&seeds[2]).unwrap();
    seeds.extend(kept.to_bytes(1 << 20));
    seeds.extend(inspect::vdso::vdso_bytes());
    seeds.extend(unwinding::go_programs());
    seeds
}

/// The program with debug information of each version, also compressed.
#[must_use]
pub fn debug_info_seeds() -> Vec<Vec<u8>> {
    ["-gdwarf-5", "-gdwarf-4", "-gdwarf-3", "-gdwarf-2", "-gsplit-dwarf"]
        .iter()
        .map(|version| built(&["-static", version]))
        .chain([built(&["-static", "-gdwarf-5", "-gz=zlib"])])
        .chain([built(&["-static", "-gdwarf-4", "-fdebug-types-section"])])
        .chain(unwinding::go_programs())
        .collect()
}

/// Untrusted ranges of a file.
pub(crate) fn ranges(file_len: u64, ranges: Vec<(u64, u64)>) {
    let ranges = ranges.into_iter().map(|(start, end)| start..end).collect();
    if let Ok(ranges) = KeptRanges::new(file_len, ranges) {
        assert!(ranges.len() <= file_len);
    }
}
