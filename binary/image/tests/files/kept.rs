//! The kept part of a file gives the same answers as the file itself.

use std::fs::File;
use std::path::Path;

use image::{ImageError, KeptFile, KeptRanges, Layout, identify, procedures_of};

use crate::compile::{Workshop, read};
use crate::handmade::Handmade;

/// Fails the test unless the kept file gives the original's answers. Returns the part of it that is
/// kept.
fn assert_same(story: &str, original: &[u8]) -> f64 {
    let kept = KeptFile::of(original).unwrap_or_else(|error| panic!("{story}: {error}"));
    let text =
        |result: Result<image::ImageId, ImageError>| result.map_err(|error| error.to_string());
    assert_eq!(text(kept.identify()), text(identify(original)), "{story}");
    assert_eq!(kept.layout().unwrap(), Layout::of(original).unwrap(), "{story}");
    let (expected, findings) = procedures_of(original, None, &[]).unwrap();
    let (procedures, kept_findings) = kept.procedures(None, None, &[]).unwrap();
    assert_eq!(procedures, expected, "{story}");
    assert_eq!(format!("{kept_findings:?}"), format!("{findings:?}"), "{story}");
    for segment in kept.layout().unwrap().segments().iter().filter(|segment| segment.executable) {
        let (offset, len) = (segment.offset.0, segment.file_size_bytes as usize);
        let code = &original[offset as usize..offset as usize + len];
        assert_eq!(kept.get(offset, len), Some(code), "{story}: the code at {offset:#x}");
    }
    // Written again with holes, it is an ordinary file.
    let bytes = kept.to_bytes(original.len() as u64).unwrap();
    assert_eq!(bytes.len(), original.len(), "{story}");
    assert_eq!(procedures_of(&bytes, None, &[]).unwrap().0, expected, "{story}");
    kept.ranges().len() as f64 / original.len() as f64
}

/// The bytes of a section, as readelf(1) shows its place.
fn section(shop: &Workshop, file: &str, name: &str) -> std::ops::Range<u64> {
    let text = shop.tool("readelf", &["-SW", file]);
    let line = text
        .lines()
        .find(|line| line.contains(&format!(" {name} ")))
        .unwrap_or_else(|| panic!("no {name}"));
    let fields: Vec<&str> = line.split(']').nth(1).unwrap().split_whitespace().collect();
    let hex = |at: usize| u64::from_str_radix(fields[at], 16).unwrap();
    hex(3)..hex(3) + hex(4)
}

#[test]
fn programs_of_this_machine() {
    // A directory of libraries differs between distributions; the loader's own list of what this
    // test uses does not.
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mut paths: Vec<&str> =
        maps.lines().filter_map(|line| line.split_whitespace().nth(5)).collect();
    paths.extend(["/bin/bash", "/bin/sh"]);
    paths.retain(|path| path.starts_with('/') && Path::new(path).is_file());
    paths.sort_unstable();
    paths.dedup();
    assert!(paths.iter().any(|path| path.contains("libc.so")), "{paths:?}");
    for path in paths {
        let kept = assert_same(path, &read(Path::new(path)));
        eprintln!("{path}: {:.1} % kept", 100.0 * kept);
    }
}

#[test]
fn programs_of_every_kind() {
    let shop = Workshop::new();
    for (name, flags, tool) in [
        ("pie", &["-pie"][..], None),
        ("fixed", &["-no-pie"], None),
        ("static", &["-static"], None),
        ("one_segment", &["-pie", "-Wl,-z,noseparate-code"], None),
        ("writable_code", &["-nostdlib", "-static", "-DNO_IFUNC", "-Wl,-N,-e,main"], None),
        ("no_build_id", &["-Wl,--build-id=none"], None),
        ("debug", &["-g", "-pie"], None),
        ("compressed_debug", &["-g", "-gz", "-pie"], None),
        ("object", &["-c", "-DNO_IFUNC"], None),
        ("debug_object", &["-c", "-g", "-ffunction-sections"], None),
        ("stripped", &["-pie"], Some(["--strip-all"])),
        ("no_data", &["-pie", "-Wl,-z,relro,-z,now"], Some(["--strip-debug"])),
    ] {
        let path = shop.cc(name, flags);
        if let Some(flags) = tool {
            shop.tool("strip", &[&flags[..], &[name]].concat());
        }
        assert_same(name, &read(&path));
    }
}

/// Without section headers the code, the unwind table and the notes are found by the program
/// headers alone.
#[test]
fn a_program_without_section_headers() {
    let shop = Workshop::new();
    let mut bytes = read(&shop.cc("a", &["-pie"]));
    bytes[0x28..0x30].fill(0); // e_shoff
    bytes[0x3c..0x40].fill(0); // e_shnum, e_shstrndx
    assert_same("no section headers", &bytes);
    let kept = KeptFile::of(&bytes).unwrap();
    assert!(!kept.procedures(None, None, &[]).unwrap().0.is_empty());
}

#[test]
fn both_word_sizes_and_byte_orders() {
    for (is_64, is_little) in [(true, true), (true, false), (false, true), (false, false)] {
        let mut file = Handmade::new(is_64, is_little);
        file.symbol("one", (1, 2), 0x10, 0x20);
        file.symbol("two", (0, 2), 0x100, 0);
        assert_same("without build id", &file.build());
        file.build_id = vec![7; 20];
        assert_same("with build id", &file.build());
    }
}

#[test]
fn neither_debug_information_nor_data_is_kept() {
    let shop = Workshop::new();
    let source = "int table[4096] = {1}; const int constant[4096] = {2};\n\
        int (*const jumps[64])(void); int main(void) { return table[1] + constant[2] + (jumps[3] \
        != 0); }\n";
    std::fs::write(shop.path("program.c"), source).unwrap();
    let path = shop.cc("a", &["-g", "-pie", "-fPIC", "-Wl,-z,relro,-z,now"]);
    let bytes = read(&path);
    assert_same("with data", &bytes);
    let kept = KeptFile::of(&bytes).unwrap();
    let holds = |name: &str| {
        let range = section(&shop, "a", name);
        kept.ranges().ranges().iter().any(|kept| kept.start < range.end && range.start < kept.end)
    };
    for name in [".debug_info", ".debug_line", ".debug_str", ".data"] {
        assert!(!holds(name), "{name}");
    }
    for name in [
        ".text",
        ".rodata",
        ".eh_frame",
        ".symtab",
        ".strtab",
        ".shstrtab",
        ".rela.dyn",
        ".dynamic",
    ] {
        assert!(holds(name), "{name}");
    }
    let mut copied = Vec::new();
    let ranges = KeptRanges::of_file(&File::open(&path).unwrap()).unwrap();
    let copy = |piece: &[u8]| {
        copied.extend_from_slice(piece);
        Ok(())
    };
    ranges.copy(&File::open(&path).unwrap(), copy).unwrap();
    assert_eq!(KeptFile::new(ranges, copied).unwrap(), kept, "a file and its bytes are kept alike");
}

#[test]
fn tables_of_jumps_are_kept() {
    let shop = Workshop::new();
    let source = "int f(void){return 1;} int g(void){return 2;}\n\
        int (*const jumps[])(void) = {f, g}; int main(int n, char **v) { return jumps[n & 1](); \
        }\n";
    std::fs::write(shop.path("program.c"), source).unwrap();
    let bytes = read(&shop.cc("a", &["-pie", "-fPIC"]));
    let place = section(&shop, "a", ".data.rel.ro");
    let kept = KeptFile::of(&bytes).unwrap();
    let table =
        kept.get(place.start, (place.end - place.start) as usize).expect("the table of jumps");
    assert_eq!(table, &bytes[place.start as usize..place.end as usize]);
}

#[test]
fn what_is_no_elf_file_is_refused() {
    for bytes in [&b""[..], b"#!/bin/sh\n", b"\x7fELF", b"\x7fELF\x02\x01\x01"] {
        assert!(KeptFile::of(bytes).is_err(), "{bytes:?}");
    }
    let dir = File::open("/").unwrap();
    assert!(matches!(KeptRanges::of_file(&dir), Err(ImageError::NotRegular { .. })));
}

/// Whatever the bytes are: no panic, never more than the file has, and the same identity, which is
/// what a kept file is found by.
#[test]
fn changed_and_cut_files_keep_their_identity() {
    let shop = Workshop::new();
    let small = read(&shop.cc("a", &["-pie", "-Wl,-z,noseparate-code", "-Wl,--build-id=none"]));
    let sections = u64::from_le_bytes(small[0x28..0x30].try_into().unwrap()) as usize;
    let mut kept_files = 0;
    let mut check = |bytes: &[u8]| {
        let Ok(kept) = KeptFile::of(bytes) else { return };
        kept_files += 1;
        assert!(kept.ranges().len() <= bytes.len() as u64);
        match identify(bytes) {
            Ok(id) => assert_eq!(kept.identify().unwrap(), id),
            Err(error) => assert_eq!(kept.identify().unwrap_err().to_string(), error.to_string()),
        }
        let _ = kept.procedures(None, None, &[]);
    };
    for at in (0..0x40 + 13 * 56).chain(sections..small.len()) {
        for value in [0, 1, 0x7f, 0xff] {
            let mut changed = small.clone();
            changed[at] = value;
            check(&changed);
        }
    }
    for len in (0..small.len()).step_by(29) {
        check(&small[..len]);
    }
    assert!(kept_files > 5000, "{kept_files}");
}
