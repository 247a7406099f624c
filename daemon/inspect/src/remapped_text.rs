//! Programs that copy their text to huge pages replace a part of their mapped file by anonymous
//! memory at the same addresses, so the kernel no longer names a file there.
//!
//! Anonymous executable memory counts as the file's text if two mappings of one file are next to
//! it, the hole between them in the file is exactly as large as the memory, and the compared pages
//! have the file's bytes.

use kernel::MappedFileId;
use kernel::procfs::{self, MapsLine};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;

/// Bytes of a page that are compared.
const PAGE: usize = 4096;
/// Pages of a copy that are compared, the first and others at equal distances.
const PAGES: u64 = 8;
/// Copies of one process that are compared; further ones stay anonymous.
const COPIES_MAX: usize = 16;

/// The executable mappings of a process whose /proc/PID/maps has this text. `open` opens the file
/// of a mapping.
pub fn executable_lines(
    pid: u32,
    maps: &[u8],
    open: impl Fn(&MapsLine) -> Option<File>,
) -> Vec<MapsLine> {
    let mut lines: Vec<(MapsLine, bool)> = procfs::lines(maps).collect();
    for hole in holes(&lines).into_iter().take(COPIES_MAX) {
        let Some((before, _)) = hole.start.checked_sub(1).and_then(|at| lines.get(at)) else {
            continue;
        };
        let original = before.clone();
        let Some(copy) = lines.get_mut(hole) else { continue };
        if is_copy(pid, (&original, open(&original)), copy) {
            for (line, _) in copy {
                line.file_offset = offset_at(&original, line.start);
                (line.file, line.path) = (original.file.clone(), original.path.clone());
            }
        }
    }
    lines.retain(|(_, executable)| *executable);
    lines.into_iter().map(|(line, _)| line).collect()
}

/// Addresses of the mapping before a copy, which has the file that the copy is of.
pub fn original(
    pid: u32,
    copy: Range<u64>,
    open: impl Fn(&MapsLine) -> Option<File>,
) -> Option<Range<u64>> {
    let lines: Vec<(MapsLine, bool)> = procfs::lines(&procfs::maps(pid)?).collect();
    let is_here = |(line, _): &(MapsLine, bool)| (line.start..line.end) == copy;
    let hole = holes(&lines)
        .into_iter()
        .find(|hole| lines.get(hole.clone()).is_some_and(|hole| hole.iter().any(is_here)))?;
    let (before, _) = lines.get(hole.start.checked_sub(1)?)?;
    is_copy(pid, (before, open(before)), lines.get(hole)?).then_some(before.start..before.end)
}

/// Lines of anonymous executable memory that fill a hole between two mappings of one file.
fn holes(lines: &[(MapsLine, bool)]) -> Vec<Range<usize>> {
    let is_anonymous = |(line, executable): &(MapsLine, bool)| {
        let is_file = !matches!(line.file, MappedFileId::Inode { inode: 0, .. });
        *executable && !is_file && (line.path.is_empty() || line.path.starts_with(b"[anon:"))
    };
    let mut holes = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        let begin = at;
        while lines.get(at).is_some_and(is_anonymous) {
            at += 1;
        }
        if begin == at {
            at += 1;
            continue;
        }
        let around = begin.checked_sub(1).and_then(|before| lines.get(before)).zip(lines.get(at));
        let Some(((before, _), (after, _))) = around else { continue };
        let between = lines.get(begin - 1..=at).unwrap_or_default();
        let touch = between
            .windows(2)
            .all(|pair| matches!(pair, [(one, _), (next, _)] if one.end == next.start));
        let is_file = !matches!(before.file, MappedFileId::Inode { inode: 0, .. });
        let is_one_file = is_file && (&before.file, &before.path) == (&after.file, &after.path);
        if touch && is_one_file && offset_at(before, after.start) == after.file_offset {
            holes.push(begin..at);
        }
    }
    holes
}

/// The file offset that would be at an address if the mapping reached there.
fn offset_at(mapping: &MapsLine, address: u64) -> u64 {
    mapping.file_offset.wrapping_add(address.wrapping_sub(mapping.start))
}

/// Whether some pages of the copy have the bytes that the file has there.
fn is_copy(
    pid: u32,
    (original, file): (&MapsLine, Option<File>),
    copy: &[(MapsLine, bool)],
) -> bool {
    let memory = File::open(format!("/proc/{pid}/mem")).ok();
    let (Some(file), Some(memory)) = (file, memory) else { return false };
    let begin = copy.first().map_or(0, |(line, _)| line.start);
    let end = copy.last().map_or(0, |(line, _)| line.end);
    let pages = end.saturating_sub(begin) / PAGE as u64;
    let mut same = (0..PAGES.min(pages)).map(|number| {
        let address = begin + number * pages / PAGES.min(pages) * PAGE as u64;
        let (mut one, mut other) = ([0; PAGE], [1; PAGE]);
        memory.read_exact_at(&mut one, address).ok()?;
        file.read_exact_at(&mut other, offset_at(original, address)).ok()?;
        (one == other).then_some(())
    });
    pages > 0 && same.all(|page| page.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::open_mapped::open_line;
    use std::io::{BufRead as _, BufReader};
    use std::process::{Command, Stdio};

    /// Copies part of its text in place; with an argument, changes the copy.
    const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
__asm__(".text\n.balign 4096\n.globl first, last\nfirst: .skip 0x20000, 0xcc\nlast: ret\n");
extern char first[], last[];
int main(int count, char **arguments) {
    unsigned long bytes = last - first;
    char *copy = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(copy, first, bytes);
    if (count > 1) copy[7] = 0x90;
    mprotect(copy, bytes, PROT_READ | PROT_EXEC);
    mremap(copy, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, first);
    printf("%lx %lx\n", (unsigned long)first, (unsigned long)last);
    fflush(stdout);
    return getchar();
}
"#;

    /// 98.8 % of the samples of such a program were `anonymous memory`.
    #[test]
    fn a_copy_of_text_in_its_own_place_is_the_files_text() {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("remapped");
        std::fs::write(directory.path().join("a.c"), PROGRAM).unwrap();
        let mut cc = Command::new("cc");
        let built = cc.arg("-o").arg(&program).arg(directory.path().join("a.c")).status().unwrap();
        assert!(built.success());
        for is_changed in [false, true] {
            let mut child = Command::new(&program)
                .args(is_changed.then_some("change"))
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut line = String::new();
            BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
            let (first, last) = line.trim().split_once(' ').unwrap();
            let address = |text| u64::from_str_radix(text, 16).unwrap();
            let (first, last) = (address(first), address(last));
            let maps = procfs::maps(child.id()).unwrap();
            let is_here = |line: &&MapsLine| (line.start, line.end) == (first, last);
            let plain = procfs::executable_lines(&maps);
            assert!(plain.iter().find(is_here).unwrap().path.is_empty());
            let open = |line: &MapsLine| open_line(child.id(), line);
            let found = executable_lines(child.id(), &maps, open);
            assert_eq!(found.len(), plain.len());
            let copy = found.iter().find(is_here).unwrap();
            let path = program.to_str().unwrap().as_bytes();
            let text = found.iter().find(|line| line.path == path).unwrap();
            if is_changed {
                assert!(copy.path.is_empty(), "it is not what the file has: {copy:?}");
            } else {
                assert_eq!((&copy.path[..], &copy.file), (path, &text.file));
                assert_eq!(copy.file_offset, offset_at(text, first));
                let original = original(child.id(), first..last, open);
                assert!(original.is_some_and(|original| original.end == first));
            }
            drop(child.stdin.take());
            child.wait().unwrap();
        }
    }

    #[test]
    fn only_what_fills_the_hole_is_taken_for_text() {
        let line = |text: &str| procfs::lines(text.as_bytes()).next().unwrap();
        let before = line("1000-2000 r-xp 00001000 fe:01 7 /a");
        let hole = line("2000-4000 r-xp 00000000 00:00 0");
        let after = line("4000-5000 r-xp 00004000 fe:01 7 /a");
        assert_eq!(holes(&[before.clone(), hole.clone(), after.clone()]).first(), Some(&(1..2)));
        let parts = [line("2000-3000 r-xp 0 00:00 0"), line("3000-4000 rwxp 0 00:00 0")];
        let [one, two] = parts;
        assert_eq!(
            holes(&[before.clone(), one.clone(), two, after.clone()]).first(),
            Some(&(1..3))
        );
        for wrong in [
            [before.clone(), one, after.clone()],
            [before.clone(), line("2000-4000 r--p 0 00:00 0"), after.clone()],
            [before.clone(), hole.clone(), line("4000-5000 r-xp 00005000 fe:01 7 /a")],
            [before.clone(), hole.clone(), line("4000-5000 r-xp 00004000 fe:01 8 /a")],
            [line("0-2000 r-xp 0 00:00 0 [vdso]"), hole.clone(), after],
        ] {
            assert!(holes(&wrong).is_empty(), "{wrong:?}");
        }
        assert!(holes(&[hole.clone(), before, hole]).is_empty(), "nothing around it");
    }
}
