//! What is said to be constant, against the memory of this very process and against nm(1).

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use image::{Constant, Constants, Layout, Vaddr};

use crate::compile::{Workshop, read};

/// Files that this process has mapped as code, and how far from their own addresses.
fn mapped() -> Vec<(String, u64)> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mut mapped = Vec::new();
    for line in maps.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [range, "r-xp", offset, _, _, path] = words[..] else { continue };
        if !path.starts_with('/') {
            continue;
        }
        let hex = |text: &str| u64::from_str_radix(text, 16).unwrap();
        let (begin, offset) = (hex(range.split_once('-').unwrap().0), hex(offset));
        let layout = Layout::of(&read(path.as_ref())).unwrap();
        let code = layout.segments().iter().find(|segment| segment.executable).unwrap();
        mapped.push((
            path.to_owned(),
            begin.wrapping_add(code.offset.0 - offset).wrapping_sub(code.vaddr.0),
        ));
    }
    mapped
}

#[test]
fn constants_are_what_memory_has() {
    let memory = File::open("/proc/self/mem").unwrap();
    let (mut in_file, mut addresses) = (0, 0);
    for (path, distance) in mapped() {
        let bytes = read(path.as_ref());
        let constants = Constants::of_file(&File::open(&path).unwrap()).unwrap();
        for segment in Layout::of(&bytes).unwrap().segments() {
            let mut content = vec![0; segment.file_size_bytes as usize];
            memory.read_exact_at(&mut content, segment.vaddr.0.wrapping_add(distance)).unwrap();
            for (word, vaddr) in content.chunks_exact(8).zip((segment.vaddr.0..).step_by(8)) {
                let expected = match constants.at(Vaddr(vaddr), 8) {
                    None => continue,
                    Some(Constant::InFile(offset)) => {
                        in_file += 1;
                        u64::from_le_bytes(bytes[offset.0 as usize..][..8].try_into().unwrap())
                    }
                    Some(Constant::Address(address)) => {
                        addresses += 1;
                        address.0.wrapping_add(distance)
                    }
                };
                assert_eq!(
                    u64::from_le_bytes(word.try_into().unwrap()),
                    expected,
                    "{path} {vaddr:#x}"
                );
            }
        }
    }
    assert!(in_file > 10_000 && addresses > 1000, "{in_file} {addresses}");
}

#[test]
fn tables_of_functions_are_constant_and_what_a_program_writes_is_not() {
    let workshop = Workshop::new();
    let source = "static int one(int a) { return a + 1; }\n\
        static int two(int a) { return a + 2; }\n\
        int (*const table[])(int) = { one, two, one };\n\
        int (*variable)(int) = two;\n\
        const int numbers[] = { 7, 8 };\n\
        int main(int n, char **v) { return table[n](1) + variable(2) + numbers[n]; }\n";
    std::fs::write(workshop.path("program.c"), source).unwrap();
    let relro = ["-fPIE", "-pie", "-Wl,-z,relro,-z,now"];
    let packed = [relro[0], relro[1], "-Wl,-z,relro,-z,now,-z,pack-relative-relocs"];
    for (name, flags) in [("plain", relro), ("packed", packed)] {
        let program = workshop.cc(name, &flags);
        let bytes = read(&program);
        let constants = Constants::of(&bytes).unwrap();
        let address = |symbol: &str| workshop.address(name, symbol);
        for (index, function) in ["one", "two", "one"].into_iter().enumerate() {
            let place = Vaddr(address("table") + index as u64 * 8);
            assert_eq!(
                constants.at(place, 8),
                Some(Constant::Address(Vaddr(address(function)))),
                "{name} {index}"
            );
            assert_eq!(
                constants.at(place, 4),
                None,
                "half an address is not known before the distance is"
            );
        }
        assert_eq!(constants.at(Vaddr(address("variable")), 8), None);
        let Some(Constant::InFile(offset)) = constants.at(Vaddr(address("numbers") + 4), 4) else {
            panic!("{name}")
        };
        assert_eq!(bytes[offset.0 as usize], 8);
        assert!(constants.size_bytes() < 2000);
        // Cut and damaged files give an error or less, and never a panic.
        for len in (0..bytes.len()).step_by(397) {
            let _ = Constants::of(&bytes[..len]);
        }
        for index in (0..bytes.len()).step_by(31) {
            let mut damaged = bytes.clone();
            damaged[index] ^= 0xff;
            if let Ok(constants) = Constants::of(&damaged) {
                let _ = constants.at(Vaddr(u64::MAX), 8);
            }
        }
    }
    let program = workshop.cc("absolute", &["-fno-pie", "-no-pie", "-Wl,-z,relro,-z,now"]);
    let constants = Constants::of(&read(&program)).unwrap();
    let table = Vaddr(workshop.address("absolute", "table"));
    assert!(
        matches!(constants.at(table, 8), Some(Constant::InFile(_))),
        "nothing is relocated, so it is read-only"
    );
}
