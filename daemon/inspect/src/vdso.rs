//! The vdso in the memory of processes.

use image::Procedures;
use std::fs::File;

/// A procedure: first byte, byte after its last, name.
pub type StoredProcedure = (u64, u64, String);

/// A vdso: its id as text, its size in bytes, its procedures.
pub type StoredVdso = (String, Option<u64>, Vec<StoredProcedure>);

/// The vdso in the memory of a process (its number, or `self`), between these addresses. None when
/// it cannot be read.
pub fn vdso_of(process: &str, start: u64, end: u64) -> Option<StoredVdso> {
    let bytes = memory_of(process, start, end)?;
    let id = image::identify(&bytes).ok()?;
    let procedures = image::procedures_of(&bytes, Some(&id), &[]).ok().map(|(found, _)| found);
    Some((id.to_string(), Some(end - start), stored_procedures(procedures.as_ref())))
}

/// Procedures as they are stored.
pub fn stored_procedures(procedures: Option<&Procedures>) -> Vec<StoredProcedure> {
    let procedures = procedures.into_iter().flat_map(Procedures::iter);
    procedures.map(|one| (one.start.0, one.end.0, one.raw_name().to_owned())).collect()
}

/// The bytes of the vdso as this process has it. None where the kernel gives none.
pub fn vdso_bytes() -> Option<Vec<u8>> {
    let (start, end) = own_vdso_range()?;
    memory_of("self", start, end)
}

/// Address range of this process's vdso. None where the kernel provides none.
pub fn own_vdso_range() -> Option<(u64, u64)> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let range = maps.lines().find(|line| line.ends_with("[vdso]"))?.split_whitespace().next()?;
    let (start, end) = range.split_once('-')?;
    Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?))
}

/// Memory of a process (its number, or `self`), at most 1 MiB. None when it cannot be read.
pub fn memory_of(process: &str, start: u64, end: u64) -> Option<Vec<u8>> {
    use std::os::unix::fs::FileExt;
    let mut bytes =
        vec![0; usize::try_from(end.checked_sub(start)?).ok().filter(|len| *len <= 1 << 20)?];
    File::open(format!("/proc/{process}/mem")).ok()?.read_exact_at(&mut bytes, start).ok()?;
    Some(bytes)
}
