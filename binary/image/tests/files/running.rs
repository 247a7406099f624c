//! Code running in this process: this test itself, and the vdso.

use std::fs::File;
use std::os::unix::fs::FileExt;

use image::{ImageOffset, Layout, identify, identify_file, procedures, procedures_of};

/// The lines of /proc/self/maps: start, end, file offset, name.
fn maps() -> Vec<(u64, u64, u64, String)> {
    let text = std::fs::read_to_string("/proc/self/maps").unwrap();
    text.lines()
        .map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let (start, end) = fields[0].split_once('-').unwrap();
            let hex = |text: &str| u64::from_str_radix(text, 16).unwrap();
            let name = fields.get(5..).unwrap_or_default().join(" ");
            (hex(start), hex(end), hex(fields[2]), name)
        })
        .collect()
}

#[inline(never)]
fn a_procedure_of_this_test(x: u64) -> u64 {
    std::hint::black_box(x) + 1
}

#[test]
fn an_address_of_this_process_leads_to_the_procedure() {
    let address = a_procedure_of_this_test as fn(u64) -> u64 as usize as u64;
    assert_eq!(a_procedure_of_this_test(1), 2);
    let path = std::env::current_exe().unwrap();
    let maps = maps();
    let (start, _, offset, name) =
        maps.iter().find(|(start, end, ..)| (*start..*end).contains(&address)).unwrap();
    assert_eq!(name, path.to_str().unwrap());
    let offset = ImageOffset(address - start + offset);

    let file = File::open(&path).unwrap();
    let id = identify_file(&file).unwrap();
    assert_eq!(identify(&std::fs::read(&path).unwrap()).unwrap(), id);
    let (found, _) = procedures(&path, Some(&id), &[]).unwrap();
    let found = found.find(offset).unwrap();
    assert!(found.name().ends_with("::running::a_procedure_of_this_test"), "{found:?}");
    assert_eq!(found.start, offset);
    let vaddr = Layout::of_file(&file).unwrap().file_offset_to_vaddr(offset);
    assert_eq!(address % 4096, vaddr.unwrap().0 % 4096);
}

#[test]
fn the_vdso_has_procedures() {
    let maps = maps();
    let vdso = maps.iter().find(|(.., name)| name == "[vdso]");
    let (start, end, ..) = vdso.expect("Linux maps a vdso into every process");
    let mut bytes = vec![0; (end - start) as usize];
    let memory = File::open("/proc/self/mem").unwrap();
    memory.read_exact_at(&mut bytes, *start).unwrap();
    let id = identify(&bytes).unwrap();
    assert!(id.build_id().is_some(), "{id}");
    let (found, _) = procedures_of(&bytes, Some(&id), &[]).unwrap();
    let names: Vec<&str> = found.iter().map(image::Procedure::name).collect();
    assert!(names.iter().any(|name| name.contains("clock_gettime")), "{names:?}");
}
