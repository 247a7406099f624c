//! Bytes that no linker wrote: whatever they are, no panic, and what comes out keeps its promises.

use image::{
    Binary, Constants, Finding, ImageOffset, Imports, KeptFile, Layout, Procedures, Vaddr,
};
use image::{identify, procedures_of};

use crate::compile::{Workshop, read};
use crate::names::is_sorted_and_disjoint;

/// Everything that is done with an image.
pub fn use_all(bytes: &[u8]) -> Option<(Procedures, Vec<Finding>)> {
    let _ = identify(bytes).map(|id| id.to_string());
    if let Ok(layout) = Layout::of(bytes) {
        for segment in layout.segments() {
            let _ = layout.file_offset_to_vaddr(segment.offset);
            let _ = layout.vaddr_to_file_offset(segment.vaddr);
        }
    }
    words(bytes);
    let (procedures, findings) = procedures_of(bytes, None, &[]).ok()?;
    assert!(is_sorted_and_disjoint(&procedures));
    for procedure in &procedures {
        assert_eq!(procedures.find(procedure.start), Some(procedure));
        assert!(!procedure.name().is_empty());
    }
    assert!(findings.iter().all(|finding| !finding.to_string().is_empty()));
    if let Ok(binary) = KeptFile::of(bytes).and_then(|kept| Binary::of_kept(kept, None, None)) {
        some_are_as_among_all(&binary);
    }
    Some((procedures, findings))
}

/// Constant words, and words that are other files' procedures.
fn words(bytes: &[u8]) {
    if let Ok(constants) = Constants::of(bytes) {
        let segments = Layout::of(bytes).unwrap().segments().to_vec();
        let ends = segments
            .iter()
            .flat_map(|segment| [segment.vaddr.0, segment.vaddr.0.wrapping_add(0x1000)]);
        for vaddr in ends.chain([0, u64::MAX]).take(100) {
            for (len, vaddr) in (0..=9).zip(vaddr.wrapping_sub(20)..) {
                let _ = constants.at(Vaddr(vaddr), len);
            }
        }
        assert!(constants.size_bytes() < (1 << 20) + 64 * bytes.len());
    }
    if let Ok(imports) = Imports::of(bytes) {
        let found: Vec<_> = imports.iter().collect();
        assert!(found.len() <= 16 * bytes.len() / 24 && found.is_sorted_by(|a, b| a.0 < b.0));
    }
}

/// Looking up procedures by place gives the same result as searching all of them.
pub fn some_are_as_among_all(binary: &Binary) {
    let Ok((all, _)) = binary.procedures(&[]) else { return };
    let around = all.iter().flat_map(|procedure| {
        [procedure.start.0, procedure.end.0 - 1, procedure.end.0, procedure.start.0.wrapping_sub(1)]
    });
    let segments =
        binary.layout().segments().iter().map(|segment| segment.offset.0.wrapping_add(77));
    let places: Vec<ImageOffset> = around.step_by(3).chain(segments).map(ImageOffset).collect();
    for few in places.chunks(places.len().div_ceil(2).max(1)).chain(places.chunks(2).take(2)) {
        let (some, _) = binary.procedures_at(&[], few).unwrap();
        assert!(is_sorted_and_disjoint(&some));
        for &place in few {
            assert_eq!(some.find(place), all.find(place), "{place}");
        }
    }
}

/// A small program with everything in it.
fn small() -> Vec<u8> {
    let shop = Workshop::new();
    let path = shop.cc("a", &["-pie", "-Wl,-z,noseparate-code", "-rdynamic"]);
    let bytes = read(&path);
    assert!(bytes.len() < 32 << 10, "{}", bytes.len());
    assert!(use_all(&bytes).unwrap().0.len() > 10);
    bytes
}

/// A generator of numbers that is the same on every run (xorshift64*, Vigna 2016).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}

#[test]
fn cut_anywhere() {
    let bytes = small();
    let dense = (0..1024).chain(bytes.len() - 1024..bytes.len());
    let sparse = (1024..bytes.len() - 1024).step_by(37);
    let mut read = 0;
    for len in dense.chain(sparse) {
        read += usize::from(use_all(&bytes[..len]).is_some());
    }
    // With its program headers a file is read as far as it goes.
    assert!(read > 500, "{read}");
}

#[test]
fn a_byte_changed_anywhere_in_the_headers() {
    let bytes = small();
    let sections = u64::from_le_bytes(bytes[0x28..0x30].try_into().unwrap()) as usize;
    for at in (0..0x40 + 13 * 56).chain(sections..bytes.len()) {
        for value in [0, 1, 0x7f, 0x80, 0xff] {
            let mut changed = bytes.clone();
            changed[at] = value;
            use_all(&changed);
        }
    }
}

#[test]
fn bytes_changed_at_random() {
    let bytes = small();
    let mut numbers = Numbers(0x5eed);
    for _ in 0..3000 {
        let mut changed = bytes.clone();
        for _ in 0..=numbers.below(8) {
            let at = numbers.below(changed.len());
            changed[at] = numbers.next() as u8;
        }
        use_all(&changed);
    }
}

#[test]
fn words_changed_to_extremes() {
    let bytes = small();
    let mut numbers = Numbers(0xdcb1);
    let extremes = [0, 1, u64::MAX, u64::MAX - 7, 1 << 63, 1 << 32, 1 << 20];
    for _ in 0..3000 {
        let mut changed = bytes.clone();
        for _ in 0..=numbers.below(3) {
            let at = numbers.below(changed.len() / 8) * 8;
            let value: u64 = extremes[numbers.below(extremes.len())];
            changed[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        use_all(&changed);
    }
}

#[test]
fn a_malformed_unwind_table_is_used_as_far_as_it_goes() {
    let shop = Workshop::new();
    let path = shop.cc("a", &["-pie"]);
    shop.tool("strip", &["a"]);
    let bytes = read(&path);
    let full = use_all(&bytes).unwrap().0.len();
    let text = shop.tool("readelf", &["-SW", "a"]);
    let line = text.lines().find(|line| line.contains(" .eh_frame ")).unwrap();
    let fields: Vec<&str> = line.split(']').nth(1).unwrap().split_whitespace().collect();
    let hex = |at: usize| usize::from_str_radix(fields[at], 16).unwrap();
    let mut changed = bytes.clone();
    let middle = hex(3) + hex(4) / 2;
    changed[middle..middle + 64].fill(0xee);
    let (procedures, findings) = use_all(&changed).unwrap();
    let cut = |f: &Finding| matches!(f, Finding::UnwindTableCut { offset } if *offset > 0);
    assert!(findings.iter().any(cut), "{findings:?}");
    assert!(procedures.len() < full && procedures.len() > 3);
}
