use super::*;

/// In the form of Linux 6.18 on x86-64, shortened.
const KALLSYMS: &str = "\
0000000000000000 A fixed_percpu_data
ffffffff80ffff00 T before_text
ffffffff81000000 T srso_alias_untrain_ret
ffffffff81000000 T _stext
ffffffff81000000 T _text
ffffffff81000040 T __entry_text_start
ffffffff81000080 T entry_SYSCALL_64
ffffffff81000100 t __pfx_do_one
ffffffff81000110 t do_one
ffffffff81000200 T __x64_sys_read
ffffffff81000200 t __se_sys_read
ffffffff81000300 W weak_one
ffffffff81000400 T __cpuidle_text_start
ffffffff81000400 t default_idle
ffffffff81000440 T __cpuidle_text_end
ffffffff81000440 t after_idle
ffffffff81000500 T _etext
ffffffff81400000 D __start_rodata
ffffffff81783000 T _sinittext
ffffffff81783000 t early_one
ffffffff817830f0 T _einittext
ffffffff81800000 D some_data
ffffffffc0a01000 t ext4_read\t[ext4]
ffffffffc0a01200 T ext4_write\t[ext4]
ffffffffc0a05000 t fuse_one\t[fuse]
ffffffffc0a06000 d fuse_data\t[fuse]
ffffffffc0b00000 t bpf_prog_6deef7357e7b4530_sd_fw_ingress\t[bpf]
ffffffffc0b00080 t bpf_prog_1234567812345678\t[bpf]
ffffffffc0b02000 t ftrace_trampoline\t[__builtin__ftrace]
ffffffffc0b04000 t kprobe_insn_page\t[__builtin__kprobes]
";

const MODULES: &str = "\
ext4 1048576 2 fuse,nfs, Live 0xffffffffc0a00000
fuse 8192 0 - Live 0xffffffffc0a05000 (OE)
hidden 4096 0 - Live 0x0000000000000000
rubbish
";

fn parsed() -> KernelSymbols {
    KernelSymbols::parse_with_modules(KALLSYMS.as_bytes(), MODULES.as_bytes()).unwrap()
}

fn shown(symbols: &KernelSymbols, address: u64) -> Option<(Owner<'_>, &str, u64, u64, u64)> {
    symbols.place(address).map(|place| {
        let (start, end) = (place.symbol_start.0, place.symbol_end.0);
        (place.owner, place.symbol, place.offset.0, start, end)
    })
}

#[test]
fn the_kernel_counts_from_stext() {
    let symbols = parsed();
    assert_eq!(symbols.stext(), 0xffffffff81000000);
    let kernel = |symbol, offset, start, end| Some((Owner::Kernel, symbol, offset, start, end));
    for (address, expected) in [
        (0, None),
        (0xffffffff80ffff80, None),
        (0xffffffff81000000, kernel("srso_alias_untrain_ret", 0, 0, 0x40)),
        (0xffffffff81000041, kernel("__entry_text_start", 0x41, 0x40, 0x80)),
        (0xffffffff8100010f, kernel("__pfx_do_one", 0x10f, 0x100, 0x110)),
        (0xffffffff81000110, kernel("do_one", 0x110, 0x110, 0x200)),
        (0xffffffff810001ff, kernel("do_one", 0x1ff, 0x110, 0x200)),
        (0xffffffff81000200, kernel("__x64_sys_read", 0x200, 0x200, 0x300)),
        (0xffffffff81000300, kernel("weak_one", 0x300, 0x300, 0x400)),
        (0xffffffff81000400, kernel("default_idle", 0x400, 0x400, 0x440)),
        (0xffffffff810004ff, kernel("after_idle", 0x4ff, 0x440, 0x500)),
        // There is no code after _etext or after _einittext.
        (0xffffffff81000500, None),
        (0xffffffff81400000, None),
        (0xffffffff81783000, kernel("early_one", 0x783000, 0x783000, 0x7830f0)),
        (0xffffffff817830f0, None),
        (u64::MAX, None),
    ] {
        assert_eq!(shown(&symbols, address), expected, "{address:#x}");
    }
}

#[test]
fn idle_text_is_what_the_kernel_takes_it_for() {
    let idle = parsed().idle_text().unwrap();
    assert_eq!(idle, 0xffffffff81000400..0xffffffff81000440);
    let without = KALLSYMS.replace("__cpuidle_text_end", "other");
    let symbols = KernelSymbols::parse(without.as_bytes()).unwrap();
    assert_eq!(symbols.idle_text(), None);
}

#[test]
fn modules_count_from_their_load_address() {
    let symbols = parsed();
    let ext4 = Owner::Module("ext4");
    for (address, expected) in [
        (0xffffffffc0a00fff, None),
        (0xffffffffc0a01000, Some((ext4, "ext4_read", 0x1000, 0x1000, 0x1200))),
        // The last one reaches to the next module.
        (0xffffffffc0a04fff, Some((ext4, "ext4_write", 0x4fff, 0x1200, 0x5000))),
        (0xffffffffc0a05010, Some((Owner::Module("fuse"), "fuse_one", 0x10, 0, 0x2000))),
        (0xffffffffc0a07000, None),
    ] {
        assert_eq!(shown(&symbols, address), expected, "{address:#x}");
    }
}

#[test]
fn without_the_list_of_modules_one_begins_at_its_first_symbol() {
    let symbols = KernelSymbols::parse(KALLSYMS.as_bytes()).unwrap();
    let place = symbols.place(0xffffffffc0a01010).unwrap();
    assert_eq!((place.owner, place.offset.0), (Owner::Module("ext4"), 0x10));
    // And ends with its last symbol's page.
    assert!(symbols.place(0xffffffffc0a01fff).is_some());
    assert_eq!(symbols.place(0xffffffffc0a02000), None);
}

#[test]
fn what_the_kernel_wrote_itself_counts_from_its_own_start() {
    let symbols = parsed();
    let ingress = "bpf_prog_6deef7357e7b4530_sd_fw_ingress";
    let second = "bpf_prog_1234567812345678";
    for (address, expected) in [
        (0xffffffffc0b00010, (Owner::Bpf(ingress), ingress, 0x10, 0, 0x80)),
        (0xffffffffc0b00081, (Owner::Bpf(second), second, 1, 0, 0x1f80)),
        (
            0xffffffffc0b02004,
            (Owner::Other("ftrace_trampoline"), "ftrace_trampoline", 4, 0, 0x1000),
        ),
        (0xffffffffc0b04004, (Owner::Other("kprobe_insn_page"), "kprobe_insn_page", 4, 0, 0x1000)),
    ] {
        assert_eq!(shown(&symbols, address), Some(expected), "{address:#x}");
    }
    assert_eq!(symbols.place(0xffffffffc0b05000), None);
}

#[test]
fn a_list_in_any_order_gives_the_same() {
    let mut lines: Vec<&str> = KALLSYMS.lines().collect();
    lines.reverse();
    let reversed =
        KernelSymbols::parse_with_modules(lines.join("\n").as_bytes(), MODULES.as_bytes());
    let (reversed, symbols) = (reversed.unwrap(), parsed());
    assert_eq!(reversed.len(), symbols.len());
    for address in (0xffffffff81000000..0xffffffff81000600).chain([0xffffffffc0a01010]) {
        assert_eq!(reversed.place(address), symbols.place(address));
    }
}

#[test]
fn lists_are_loaded_from_files_of_which_that_of_modules_may_be_absent() {
    let dir = tempfile::tempdir().unwrap();
    let (kallsyms, modules) = (dir.path().join("kallsyms"), dir.path().join("modules"));
    let error = KernelSymbols::load(&kallsyms, &modules).unwrap_err();
    assert!(error.to_string().contains("kallsyms"), "{error}");
    std::fs::write(&kallsyms, KALLSYMS).unwrap();
    let offset = || {
        let symbols = KernelSymbols::load(&kallsyms, &modules).unwrap();
        symbols.place(0xffffffffc0a01000).unwrap().offset.0
    };
    assert_eq!(offset(), 0);
    std::fs::write(&modules, MODULES).unwrap();
    assert_eq!(offset(), 0x1000);
}

#[test]
fn hidden_addresses_are_told_from_an_empty_list() {
    let hidden: String =
        KALLSYMS.lines().map(|line| format!("0000000000000000{}\n", &line[16..])).collect();
    let error = KernelSymbols::parse(hidden.as_bytes()).unwrap_err();
    assert!(matches!(error, ImageError::AddressesHidden), "{error}");
    for list in ["", "rubbish\n", "ffffffffffffffff B The real System.map is elsewhere\n"] {
        let error = KernelSymbols::parse(list.as_bytes()).unwrap_err();
        assert!(matches!(error, ImageError::NoKernelSymbol { name: "_stext" }));
    }
}

#[test]
fn lines_of_another_form_are_passed_over() {
    let odd = format!(
        "zzz T x\n\nffffffff81000010\nffffffff81000010 T\nffffffff81000011 TT two\n\
         {} T long\nffffffff81000020 T {}\n\u{0}\u{ff}\nffffffff81000012 T bad \
         [unclosed\n{KALLSYMS}",
        "f".repeat(100_000),
        "x".repeat(100_000)
    );
    let symbols = KernelSymbols::parse(odd.as_bytes()).unwrap();
    assert_eq!(symbols.place(0xffffffff81000010).unwrap().symbol, "srso_alias_untrain_ret");
    assert_eq!(symbols.place(0xffffffff81000110).unwrap().symbol, "do_one");
    // No newline, and bytes that are no text.
    let mut bytes = KALLSYMS.trim_end().as_bytes().to_vec();
    bytes.extend_from_slice(b"\nffffffff81000444 T \xff\xfe");
    let symbols = KernelSymbols::parse(&*bytes).unwrap();
    assert_eq!(symbols.place(0xffffffff81000444).unwrap().symbol, "after_idle");
}

#[test]
fn system_map_counts_from_stext() {
    let map = KALLSYMS.replace("ffffffff8", "ffffffffa");
    let procedures = system_map(map.as_bytes()).unwrap();
    let found = procedures.find(ImageOffset(0x111)).unwrap();
    assert_eq!((found.name(), found.start.0, found.end.0), ("do_one", 0x110, 0x200));
    assert_eq!(procedures.find(ImageOffset(0x500)), None);
    assert!(procedures.iter().all(|p| !p.name().contains("ext4")));
}

#[test]
fn the_build_id_is_found_among_other_notes() {
    let note = |name: &[u8], kind: u32, desc: &[u8]| {
        let mut out = Vec::new();
        for word in [name.len() as u32, desc.len() as u32, kind] {
            out.extend_from_slice(&word.to_ne_bytes());
        }
        for part in [name, desc] {
            out.extend_from_slice(part);
            out.resize(out.len().next_multiple_of(4), 0);
        }
        out
    };
    let id: Vec<u8> = (1..=20).collect();
    let mut notes = note(b"Linux\0", 0x100, b"6.18\0");
    notes.extend(note(b"Xen\0", 3, b"not this one"));
    notes.extend(note(b"GNU\0", 1, b"nor this"));
    assert_eq!(build_id_from_notes(&notes), None);
    notes.extend(note(b"GNU\0", 3, &id));
    assert_eq!(build_id_from_notes(&notes), ImageId::from_build_id(&id));
    for len in 0..notes.len() {
        assert_eq!(build_id_from_notes(&notes[..len]), None, "cut to {len}");
    }
}

/// Fifty thousand procedures with padding symbols before each, as in a distribution's kernel.
#[test]
fn a_hundred_and_twenty_thousand_lines_cost_less_than_3_mib() {
    use std::fmt::Write as _;
    let mut list = String::from("ffffffff81000000 T _stext\n");
    for number in 0..60_000_u64 {
        let address = 0xffffffff81000010 + number * 0x40;
        let name = format!("some_kernel_function_{number:06}");
        writeln!(list, "{address:016x} t __pfx_{name}").unwrap();
        writeln!(list, "{:016x} t {name}", address + 0x10).unwrap();
    }
    let symbols = KernelSymbols::parse(list.as_bytes()).unwrap();
    assert_eq!(symbols.len(), 120_001);
    assert!(symbols.memory_bytes() < 3 << 20, "{}", symbols.memory_bytes());
    let place = symbols.place(0xffffffff81000020 + 59_999 * 0x40).unwrap();
    assert_eq!(place.symbol, "some_kernel_function_059999");
    // What patches itself into the padding is the following procedure's, and no byte of it the
    // one's before.
    for (address, expected) in [
        (0xffffffff81000010 + 0x40, "__pfx_some_kernel_function_000001"),
        (0xffffffff81000010 + 0x4f, "__pfx_some_kernel_function_000001"),
        (0xffffffff81000010 + 0x50, "some_kernel_function_000001"),
        (0xffffffff81000010 + 0x3f, "some_kernel_function_000000"),
    ] {
        let place = symbols.place(address).unwrap();
        let length = if expected.starts_with("__pfx") { 0x10 } else { 0x30 };
        assert_eq!((place.symbol, place.symbol_end.0 - place.symbol_start.0), (expected, length));
    }
}

/// Where this machine shows addresses, each symbol of code must be found at its own address.
#[test]
fn this_machines_list_is_read_or_refused_for_a_reason() {
    let text = match std::fs::read_to_string("/proc/kallsyms") {
        Ok(text) if !text.is_empty() => text,
        other => panic!("this machine has no /proc/kallsyms: {other:?}"),
    };
    let symbols = match KernelSymbols::parse(text.as_bytes()) {
        Ok(symbols) => symbols,
        Err(error) => {
            assert!(matches!(error, ImageError::AddressesHidden), "{error}");
            assert!(text.lines().all(|line| line.starts_with("0000000000000000 ")));
            return;
        }
    };
    let mut checked = 0;
    for line in text.lines() {
        let mut fields = line.split_whitespace();
        let address = u64::from_str_radix(fields.next().unwrap(), 16).unwrap();
        let is_code = matches!(fields.next(), Some("t" | "T" | "w" | "W"));
        let name = fields.next().unwrap();
        if !is_code || address < symbols.stext() || ["_etext", "_einittext"].contains(&name) {
            continue;
        }
        let place = symbols.place(address);
        let place = place.unwrap_or_else(|| panic!("{line} has no place"));
        assert_eq!(place.offset, place.symbol_start, "{line}");
        checked += 1;
    }
    assert!(checked > 1000, "{checked} symbols of code");
}
