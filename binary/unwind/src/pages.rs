//! A small cache of pages of files.

use std::collections::HashMap;

use crate::source::ReadAt;

/// Bytes of a page. A walk's reads are small (a row of the index, an entry of about 60 bytes), and
/// the procedures of a stack are far apart in the table: larger pages hold more unused bytes (for
/// cc1plus, 4 KiB read 3.5 times as many bytes, in the same time), smaller ones cost more system
/// calls.
pub const PAGE_BYTES: usize = 1024;
/// Largest number of pages kept in all: 4 MiB. Rules are kept, too, so an entry is read again only
/// for another address of its procedure. The pages that the binary searches of 500 files
/// visit, with the entries that their hot procedures have, are fewer.
pub const PAGES_MAX: usize = 4096;
/// Largest number of pages kept of one file: 1 MiB, so that one large program, or a hostile one,
/// does not drive out all others.
pub const FILE_PAGES_MAX: usize = 1024;

/// Work that one walk may still do, in bytes read from files or decoded. A hostile file could make
/// each frame cost a megabyte.
#[derive(Debug)]
pub struct Work {
    left: u64,
}

/// Largest work of a walk, in bytes: about 4 ms. A cold walk of 40 frames of the largest programs
/// takes 2 MiB.
const WORK_MAX: u64 = 32 << 20;

/// Work that a read without keeping counts as: a system call costs as much as copying so much.
const READ_WORK: usize = 1024;

impl Work {
    pub fn new() -> Self {
        Self { left: WORK_MAX }
    }

    /// Takes `bytes` from the remaining work, or fails if less is left: all is spent then.
    pub fn spend(&mut self, bytes: usize) -> Option<()> {
        let left = self.left.checked_sub(bytes as u64);
        self.left = left.unwrap_or(0);
        left.map(|_| ())
    }

    pub fn is_spent(&self) -> bool {
        self.left < PAGE_BYTES as u64
    }
}

struct Page {
    key: (u32, u64),
    /// Number of bytes that the file has of this page.
    len: usize,
    /// Whether the page was read since the clock's hand last passed.
    used: bool,
    bytes: Box<[u8; PAGE_BYTES]>,
}

/// Pages of files, by the number of the file and of the page. The replacement is a clock: a page
/// that was used since the hand's last round stays for another.
#[derive(Default)]
pub struct Pages {
    slots: Vec<Page>,
    index: HashMap<(u32, u64), usize, foldhash::fast::FixedState>,
    /// Number of pages kept of each file.
    of_file: HashMap<u32, usize, foldhash::fast::FixedState>,
    hand: usize,
    /// Bytes read from files so far.
    pub bytes_read: u64,
}

impl Pages {
    /// Fills `into` with the bytes of file `file` from `offset` on. None if the file ends before,
    /// cannot be read, or the work is spent.
    pub fn read(
        &mut self,
        file: u32,
        source: &dyn ReadAt,
        offset: u64,
        into: &mut [u8],
        work: &mut Work,
    ) -> Option<()> {
        let mut done = 0;
        while done < into.len() {
            let at = offset.checked_add(done as u64)?;
            let begin = usize::try_from(at % PAGE_BYTES as u64).ok()?;
            let page = self.page(file, source, at / PAGE_BYTES as u64, work)?;
            let rest = page.bytes.get(begin..page.len).filter(|rest| !rest.is_empty())?;
            let len = rest.len().min(into.len() - done);
            into.get_mut(done..done + len)?.copy_from_slice(rest.get(..len)?);
            done += len;
        }
        Some(())
    }

    /// Reads without keeping anything, for bytes that are asked for once. Returns the number of
    /// bytes that the file has of them.
    pub fn read_once(
        &mut self,
        source: &dyn ReadAt,
        offset: u64,
        into: &mut [u8],
        work: &mut Work,
    ) -> usize {
        if work.spend(READ_WORK).is_none() {
            return 0;
        }
        let read = source.read_at(offset, into).unwrap_or(0).min(into.len());
        self.bytes_read += read as u64;
        read
    }

    /// Number of bytes that the cache holds.
    pub fn bytes(&self) -> usize {
        self.slots.len() * (PAGE_BYTES + size_of::<Page>())
            + self.index.capacity() * size_of::<((u32, u64), usize)>()
    }

    /// Forgets the pages of `file`.
    pub fn forget(&mut self, file: u32) {
        let mut place = 0;
        while let Some(page) = self.slots.get(place) {
            let key = page.key;
            if key.0 != file {
                place += 1;
                continue;
            }
            self.index.remove(&key);
            self.slots.swap_remove(place);
            if let Some(moved) = self.slots.get(place) {
                self.index.insert(moved.key, place);
            }
        }
        self.of_file.remove(&file);
    }

    fn page(
        &mut self,
        file: u32,
        source: &dyn ReadAt,
        number: u64,
        work: &mut Work,
    ) -> Option<&Page> {
        let key = (file, number);
        let place = match self.index.get(&key) {
            Some(&place) => place,
            None => {
                work.spend(PAGE_BYTES)?;
                let place = self.free_slot(file)?;
                let page = self.slots.get_mut(place)?;
                page.key = key;
                let offset = number.checked_mul(PAGE_BYTES as u64);
                // A page that cannot be read is an empty page: it is not asked for again.
                page.len = offset
                    .and_then(|offset| source.read_at(offset, page.bytes.as_mut_slice()).ok())
                    .unwrap_or(0)
                    .min(PAGE_BYTES);
                self.bytes_read += page.len as u64;
                self.index.insert(key, place);
                *self.of_file.entry(file).or_default() += 1;
                place
            }
        };
        let page = self.slots.get_mut(place)?;
        page.used = true;
        Some(page)
    }

    /// The place of a page to be overwritten, which no index names any more.
    fn free_slot(&mut self, file: u32) -> Option<usize> {
        let of_file = self.of_file.get(&file).copied().unwrap_or(0);
        if of_file < FILE_PAGES_MAX && self.slots.len() < PAGES_MAX {
            let bytes = Box::new([0; PAGE_BYTES]);
            self.slots.push(Page { key: (file, u64::MAX), len: 0, used: false, bytes });
            return Some(self.slots.len() - 1);
        }
        // Two rounds: the first may only take marks away.
        for _ in 0..2 * self.slots.len() + 1 {
            self.hand = (self.hand + 1) % self.slots.len().max(1);
            let page = self.slots.get_mut(self.hand)?;
            if of_file >= FILE_PAGES_MAX && page.key.0 != file {
                continue;
            }
            if std::mem::take(&mut page.used) {
                continue;
            }
            let key = page.key;
            self.index.remove(&key);
            if let Some(count) = self.of_file.get_mut(&key.0) {
                *count = count.saturating_sub(1);
            }
            return Some(self.hand);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::{FILE_PAGES_MAX, PAGE_BYTES, PAGES_MAX, Pages, Work};

    #[test]
    fn bytes_are_the_files_across_pages_and_evictions() {
        let files: Vec<Vec<u8>> = (0..6u64)
            .map(|file| (0..3_000_000u64).map(|at| (at * 7 / 3 + file) as u8).collect())
            .collect();
        let mut pages = Pages::default();
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..20_000 {
            let file = random.usize(..files.len());
            let bytes = &files[file];
            let begin = random.usize(..bytes.len() - 9000);
            let mut into = vec![0; random.usize(..9000)];
            let source: &dyn super::ReadAt = bytes;
            pages
                .read(file as u32, source, begin as u64, &mut into, &mut Work::new())
                .expect("in the file");
            assert_eq!(into, bytes[begin..begin + into.len()]);
        }
        assert!(pages.slots.len() <= PAGES_MAX);
        assert!(pages.of_file.values().all(|&count| count <= FILE_PAGES_MAX));
        assert_eq!(pages.of_file.values().sum::<usize>(), pages.slots.len());
        pages.forget(3);
        assert!(pages.slots.iter().all(|page| page.key.0 != 3));
        for (place, page) in pages.slots.iter().enumerate() {
            assert_eq!(pages.index[&page.key], place);
        }
    }

    #[test]
    fn the_end_of_a_file_ends_a_read() {
        let bytes = vec![1; PAGE_BYTES + 10];
        let mut pages = Pages::default();
        let mut into = [0; 20];
        let mut work = Work::new();
        assert!(pages.read(0, &bytes, PAGE_BYTES as u64 - 10, &mut into, &mut work).is_some());
        assert!(pages.read(0, &bytes, PAGE_BYTES as u64 - 9, &mut into, &mut work).is_none());
        assert!(pages.read(0, &bytes, u64::MAX - 3, &mut into, &mut work).is_none());
    }
}
