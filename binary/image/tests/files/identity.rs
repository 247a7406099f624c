//! Which build a file is.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};

use image::{ImageError, ImageId, identify, identify_file};

use crate::compile::{Workshop, read};

#[test]
fn the_id_is_the_build_id_that_readelf_shows() {
    let shop = Workshop::new();
    for (out, flags) in [
        ("pie", &["-pie"][..]),
        ("no-pie", &["-no-pie"]),
        ("static", &["-static"]),
        ("shared", &["-shared", "-fPIC"]),
        ("one-segment", &["-Wl,-z,noseparate-code"]),
        ("large-pages", &["-Wl,-z,max-page-size=0x10000"]),
        ("short", &["-Wl,--build-id=0x12345678"]),
        ("uuid", &["-Wl,--build-id=uuid"]),
        ("gold", &["-fuse-ld=gold", "-Wl,--build-id"]),
    ] {
        let path = shop.cc(out, flags);
        let expected = shop.build_id(out);
        let id = identify(&read(&path)).unwrap();
        assert_eq!(id.alone().to_string(), expected, "{out}");
        assert_eq!(identify_file(&File::open(&path).unwrap()).unwrap(), id);
        assert_eq!(id.to_string().parse::<ImageId>().unwrap(), id);
        assert!(expected.parse::<ImageId>().unwrap().is_build(&id));
        shop.tool("strip", &[out]);
        assert_eq!(identify(&read(&path)).unwrap(), id, "{out}, stripped");
    }
}

#[test]
fn an_object_file_has_its_build_id_in_a_section() {
    // As a kernel module has: no program headers at all.
    let shop = Workshop::new();
    shop.cc("a.o", &["-c"]);
    let plain = identify(&read(&shop.path("a.o"))).unwrap();
    assert!(plain.to_string().starts_with("text-"));
    shop.tool("ld", &["-r", "--build-id=0xabcdef", "a.o", "-o", "b.o"]);
    let id = identify(&read(&shop.path("b.o"))).unwrap();
    assert_eq!(id.to_string(), "abcdef");
}

/// Samples of one build were named by the symbols of another.
#[test]
fn two_programs_with_one_build_id_are_two_images() {
    let shop = Workshop::new();
    let one = identify(&read(&shop.cc("one", &["-Wl,--build-id=0xabcdef", "-O2"]))).unwrap();
    let other = identify(&read(&shop.cc("other", &["-Wl,--build-id=0xabcdef", "-O0"]))).unwrap();
    assert_eq!(one.build_id(), other.build_id());
    assert!(one != other && !one.is_build(&other));
}

#[test]
fn without_a_build_id_the_code_decides() {
    let shop = Workshop::new();
    let none = "-Wl,--build-id=none";
    let first = shop.cc("first", &[none]);
    let same = shop.cc("same", &[none]);
    let other = shop.cc("other", &[none, "-Dlocal_one=other_one", "-O2"]);
    let id = identify(&read(&first)).unwrap();
    assert!(id.to_string().starts_with("text-"), "{id}");
    assert_eq!(identify(&read(&same)).unwrap(), id);
    assert_ne!(identify(&read(&other)).unwrap(), id);
    // Neither symbols nor data are code.
    shop.tool("strip", &["same"]);
    assert_eq!(identify(&read(&same)).unwrap(), id);
    assert_eq!(identify_file(&File::open(&same).unwrap()).unwrap(), id);
    // One byte of code is changed.
    let mut bytes = read(&first);
    let layout = image::Layout::of(&bytes).unwrap();
    let main = layout.vaddr_to_file_offset(image::Vaddr(shop.address("first", "main")));
    bytes[main.unwrap().0 as usize] ^= 1;
    assert_ne!(identify(&bytes).unwrap(), id);
}

#[test]
fn a_build_id_of_zeroes_or_too_long_is_none() {
    let shop = Workshop::new();
    for id in ["0x0000000000", &format!("0x{}", "11".repeat(32))] {
        let path = shop.cc("a", &[&format!("-Wl,--build-id={id}")]);
        let id = identify(&read(&path)).unwrap();
        assert!(id.to_string().starts_with("text-"), "{id}");
    }
}

#[test]
fn a_debug_file_without_build_id_has_nothing_to_tell_it_by() {
    let shop = Workshop::new();
    shop.cc("a", &["-Wl,--build-id=none"]);
    shop.tool("objcopy", &["--only-keep-debug", "a", "a.debug"]);
    let error = identify(&read(&shop.path("a.debug"))).unwrap_err();
    assert!(matches!(error, ImageError::NoText), "{error}");
}

#[test]
fn other_files_are_not_elf() {
    for bytes in [&b""[..], b"#!/bin/sh\n", b"\x7fEL", b"MZ", &[0; 4096]] {
        let error = identify(bytes).unwrap_err();
        assert!(matches!(error, ImageError::NotElf), "{error}");
    }
    let error = identify(b"\x7fELF\x02\x01\x01").unwrap_err();
    assert!(matches!(error, ImageError::Malformed { .. }), "{error}");
}

#[test]
fn what_is_not_a_regular_file_is_refused() {
    for path in ["/dev/zero", "/"] {
        let error = identify_file(&File::open(path).unwrap()).unwrap_err();
        assert!(matches!(error, ImageError::NotRegular { .. }), "{error}");
    }
    let (reader, _writer) = std::io::pipe().unwrap();
    let pipe = File::from(std::os::fd::OwnedFd::from(reader));
    // Nothing is ever written: a read would wait for ever.
    let error = identify_file(&pipe).unwrap_err();
    assert!(matches!(error, ImageError::NotRegular { .. }), "{error}");
}

#[test]
fn a_huge_file_is_neither_read_whole_nor_its_position_moved() {
    let shop = Workshop::new();
    let path = shop.cc("a", &[]);
    let expected = identify(&read(&path)).unwrap();
    let mut file = File::options().read(true).write(true).open(path).unwrap();
    file.set_len(64 << 30).unwrap();
    file.seek(SeekFrom::Start(123)).unwrap();
    assert_eq!(identify_file(&file).unwrap(), expected);
    assert_eq!(file.stream_position().unwrap(), 123);
}

#[test]
fn code_that_claims_to_be_huge_is_hashed_in_part() {
    // A sparse file whose only segment says that it has 64 GiB of code.
    let mut bytes = crate::handmade::Handmade::new(true, true).build();
    let size_at = 64 + 32;
    bytes[size_at..size_at + 8].copy_from_slice(&(64_u64 << 30).to_le_bytes());
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&bytes).unwrap();
    file.set_len(64 << 30).unwrap();
    let id = identify_file(&file).unwrap();
    assert!(id.to_string().starts_with("text-"));
}
