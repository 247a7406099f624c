//! Through which words programs call others.

use image::{ImageError, Imports, Layout};

#[test]
fn this_program_calls_the_c_library_through_its_own_words() {
    let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    let imports = Imports::of(&bytes).unwrap();
    let names: Vec<&str> = imports.iter().map(|(_, name)| name).collect();
    for name in ["abort", "malloc", "write"] {
        assert!(names.contains(&name), "{name} is not among {names:?}");
    }
    let layout = Layout::of(&bytes).unwrap();
    let first = layout.segments().iter().map(|segment| segment.vaddr).min().unwrap();
    assert!(imports.iter().all(|(at, _)| at > first && at.0 % 8 == 0));
}

#[test]
fn broken_files_have_few_imports_or_none() {
    assert!(matches!(Imports::of(b"no program"), Err(ImageError::NotElf)));
    let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    let imports = Imports::of(&bytes).unwrap().iter().count();
    // Cut, and with each of the header's bytes changed.
    for len in [63, 64, 100, 1000, 5000, bytes.len() / 2, bytes.len() - 1] {
        assert!(Imports::of(&bytes[..len]).map_or(0, |found| found.iter().count()) <= imports);
    }
    let mut broken = bytes;
    for at in 0..64 {
        broken[at] ^= 0x55;
        assert!(Imports::of(&broken).map_or(0, |found| found.iter().count()) <= imports);
        broken[at] ^= 0x55;
    }
}
