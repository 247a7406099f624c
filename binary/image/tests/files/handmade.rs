//! ELF files written by hand: both word sizes and byte orders, and symbols as one likes.

use image::{ImageId, ImageOffset, Layout, Vaddr, identify, procedures_of};

/// Address of the file's first byte of code.
pub const VADDR: u64 = 0x40_0000;

/// An ELF file with one executable segment, `.text`, `.symtab` and maybe a build id.
pub struct Handmade {
    is_64: bool,
    is_little: bool,
    pub code: Vec<u8>,
    pub build_id: Vec<u8>,
    symbols: Vec<Symbol>,
}

struct Symbol {
    name: String,
    info: u8,
    start: u64,
    size: u64,
}

impl Handmade {
    pub fn new(is_64: bool, is_little: bool) -> Self {
        Self {
            is_64,
            is_little,
            code: (0..0x400_u32).map(|n| n as u8 | 1).collect(),
            build_id: Vec::new(),
            symbols: Vec::new(),
        }
    }

    /// A symbol of the code; `info` is its binding (0 local, 1 global) and type (0 none, 2
    /// procedure, 10 indirect), `start` is from the first byte of code.
    pub fn symbol(&mut self, name: &str, (bind, kind): (u8, u8), start: u64, size: u64) {
        self.symbols.push(Symbol {
            name: name.to_owned(),
            info: bind << 4 | kind,
            start: VADDR + start,
            size,
        });
    }

    fn number(&self, out: &mut Vec<u8>, value: u64, size: usize) {
        let little = value.to_le_bytes();
        let mut bytes = little[..size].to_vec();
        if !self.is_little {
            bytes.reverse();
        }
        out.extend(bytes);
    }

    /// Numbers of 1, 2, 4 bytes, or of a word (`0`).
    fn numbers(&self, out: &mut Vec<u8>, values: &[(u64, usize)]) {
        let word = if self.is_64 { 8 } else { 4 };
        for &(value, size) in values {
            self.number(out, value, if size == 0 { word } else { size });
        }
    }

    fn note(&self) -> Vec<u8> {
        let mut note = Vec::new();
        let words = [(4, 4), (self.build_id.len() as u64, 4), (3, 4)];
        self.numbers(&mut note, &words);
        note.extend(b"GNU\0");
        note.extend(&self.build_id);
        note
    }

    fn symtab(&self) -> (Vec<u8>, Vec<u8>) {
        let (mut table, mut names) = (Vec::new(), vec![0]);
        let size = if self.is_64 { 24 } else { 16 };
        table.resize(size, 0);
        for symbol in &self.symbols {
            let name = (names.len() as u64, 4);
            let info = [(u64::from(symbol.info), 1), (0, 1), (1, 2)];
            let place = [(symbol.start, 0), (symbol.size, 0)];
            if self.is_64 {
                self.numbers(&mut table, &[&[name], &info[..], &place].concat());
            } else {
                self.numbers(&mut table, &[&[name], &place[..], &info].concat());
            }
            names.extend(symbol.name.as_bytes());
            names.push(0);
        }
        (table, names)
    }

    fn program_header(&self, out: &mut Vec<u8>, kind: u64, offset: u64, size: u64) {
        let flags = (5, 4);
        let place = [(offset, 0), (VADDR, 0), (VADDR, 0), (size, 0), (size, 0)];
        if self.is_64 {
            let all = [&[(kind, 4), flags], &place[..], &[(4, 0)]].concat();
            self.numbers(out, &all);
        } else {
            let all = [&[(kind, 4)], &place[..], &[flags, (4, 0)]].concat();
            self.numbers(out, &all);
        }
    }

    pub fn build(&self) -> Vec<u8> {
        let (header, program, section) = if self.is_64 { (64, 56, 64) } else { (52, 32, 40) };
        let note = self.note();
        let (symtab, strtab) = self.symtab();
        let shstrtab = b"\0.text\0.symtab\0.strtab\0.shstrtab\0";
        let code_at = header + 2 * program;
        let note_at = code_at + self.code.len();
        let symtab_at = note_at + note.len();
        let strtab_at = symtab_at + symtab.len();
        let shstrtab_at = strtab_at + strtab.len();
        let sections_at = shstrtab_at + shstrtab.len();

        let class = if self.is_64 { 2 } else { 1 };
        let order = if self.is_little { 1 } else { 2 };
        let mut out = vec![0x7f, b'E', b'L', b'F', class, order, 1];
        out.resize(16, 0);
        let machine = if self.is_64 { 62 } else { 8 };
        self.numbers(&mut out, &[(2, 2), (machine, 2), (1, 4), (VADDR, 0)]);
        self.numbers(&mut out, &[(header as u64, 0), (sections_at as u64, 0)]);
        let sizes = [(0, 4), (header as u64, 2), (program as u64, 2), (2, 2)];
        self.numbers(&mut out, &sizes);
        self.numbers(&mut out, &[(section as u64, 2), (5, 2), (4, 2)]);
        self.program_header(&mut out, 1, code_at as u64, self.code.len() as u64);
        // Without a build id the note is there, as the linker reserves it, but is not one.
        let kind = if self.build_id.is_empty() { 0 } else { 4 };
        self.program_header(&mut out, kind, note_at as u64, note.len() as u64);
        for part in [&self.code, &note, &symtab, &strtab, &shstrtab.to_vec()] {
            out.extend(part);
        }
        let mut header =
            |name, kind, flags, (vaddr, at, size): (u64, usize, usize), link, entry| {
                self.numbers(&mut out, &[(name, 4), (kind, 4), (flags, 0), (vaddr, 0)]);
                self.numbers(&mut out, &[(at as u64, 0), (size as u64, 0), (link, 4), (0, 4)]);
                self.numbers(&mut out, &[(1, 0), (entry, 0)]);
            };
        let entry = if self.is_64 { 24 } else { 16 };
        header(0, 0, 0, (0, 0, 0), 0, 0);
        header(1, 1, 6, (VADDR, code_at, self.code.len()), 0, 0);
        header(7, 2, 0, (0, symtab_at, symtab.len()), 3, entry);
        header(15, 3, 0, (0, strtab_at, strtab.len()), 0, 0);
        header(23, 3, 0, (0, shstrtab_at, shstrtab.len()), 0, 0);
        out
    }
}

const LOCAL: u8 = 0;
const GLOBAL: u8 = 1;
const NOTYPE: u8 = 0;
const FUNC: u8 = 2;
const IFUNC: u8 = 10;

/// `start-end name` of each procedure, from the first byte of code.
fn shown(file: &Handmade) -> Vec<String> {
    let bytes = file.build();
    let layout = Layout::of(&bytes).unwrap();
    let base = layout.vaddr_to_file_offset(Vaddr(VADDR)).unwrap().0;
    let (procedures, findings) = procedures_of(&bytes, None, &[]).unwrap();
    assert!(findings.is_empty(), "{findings:?}");
    procedures
        .iter()
        .map(|p| format!("{:#x}-{:#x} {}", p.start.0 - base, p.end.0 - base, p.name()))
        .collect()
}

#[test]
fn both_word_sizes_and_byte_orders_read_alike() {
    for is_64 in [true, false] {
        for is_little in [true, false] {
            let mut file = Handmade::new(is_64, is_little);
            file.symbol("first", (GLOBAL, FUNC), 0, 0x10);
            file.symbol("second", (LOCAL, FUNC), 0x20, 0x10);
            let without = identify(&file.build()).unwrap();
            assert_eq!(without, ImageId::from_text([&file.code]));
            file.build_id = vec![0xde, 0xad, 0xbe, 0xef];
            assert_eq!(identify(&file.build()).unwrap().alone().to_string(), "deadbeef");
            assert_eq!(shown(&file), ["0x0-0x10 first", "0x20-0x30 second"]);
        }
    }
}

#[test]
fn bytes_need_not_be_aligned() {
    let mut file = Handmade::new(true, true);
    file.symbol("only", (GLOBAL, FUNC), 0, 0x10);
    let bytes = file.build();
    for shift in 0..8 {
        let mut shifted = vec![0; shift];
        shifted.extend(&bytes);
        let (procedures, _) = procedures_of(&shifted[shift..], None, &[]).unwrap();
        assert_eq!(procedures.len(), 1);
    }
}

#[test]
fn of_aliases_one_gives_the_name() {
    for (better, worse) in [
        (("a_long_name", GLOBAL, FUNC, 8), ("a", LOCAL, FUNC, 8)),
        (("a_long_name", LOCAL, FUNC, 8), ("__start_x", GLOBAL, NOTYPE, 0)),
        (("resolver", LOCAL, FUNC, 8), ("chosen", GLOBAL, IFUNC, 8)),
        (("chosen", GLOBAL, IFUNC, 8), ("marker", GLOBAL, NOTYPE, 0)),
        (("a_long_name", GLOBAL, FUNC, 8), ("a", GLOBAL, FUNC, 0)),
        (("read", GLOBAL, FUNC, 8), ("__read", GLOBAL, FUNC, 8)),
        (("aaa", GLOBAL, FUNC, 8), ("bbb", GLOBAL, FUNC, 8)),
    ] {
        for order in [[better, worse], [worse, better]] {
            let mut file = Handmade::new(true, true);
            for (name, bind, kind, size) in order {
                file.symbol(name, (bind, kind), 0x10, size);
            }
            assert_eq!(shown(&file), [format!("0x10-0x18 {}", better.0)]);
        }
    }
}

#[test]
fn symbols_without_size_reach_to_the_next_or_to_the_sections_end() {
    let mut file = Handmade::new(true, true);
    file.symbol("a", (GLOBAL, FUNC), 0, 0);
    file.symbol("b", (GLOBAL, FUNC), 0x10, 0x10);
    file.symbol("inside_b", (LOCAL, NOTYPE), 0x18, 0);
    file.symbol("c", (LOCAL, NOTYPE), 0x20, 0);
    file.symbol("d", (GLOBAL, FUNC), 0x100, 0);
    file.symbol("end_of_text", (GLOBAL, NOTYPE), 0x400, 0);
    let expected = ["0x0-0x10 a", "0x10-0x20 b", "0x20-0x100 c", "0x100-0x400 d"];
    assert_eq!(shown(&file), expected);
}

#[test]
fn nested_and_crossing_symbols_become_disjoint() {
    let mut file = Handmade::new(true, true);
    file.symbol("outer", (GLOBAL, FUNC), 0, 0x100);
    file.symbol("inner", (GLOBAL, FUNC), 0x40, 0x40);
    file.symbol("crossing", (GLOBAL, FUNC), 0xf0, 0x20);
    // Its size is a lie.
    file.symbol("endless", (GLOBAL, FUNC), 0x200, u64::MAX);
    assert_eq!(
        shown(&file),
        [
            "0x0-0x40 outer",
            "0x40-0x80 inner",
            "0x80-0xf0 outer",
            "0xf0-0x110 crossing",
            "0x200-0x400 endless",
        ]
    );
}

#[test]
fn symbols_outside_of_the_code_are_counted() {
    let mut file = Handmade::new(true, true);
    file.symbol("here", (GLOBAL, FUNC), 0, 0x10);
    file.symbol("far_away", (GLOBAL, FUNC), 0x1000_0000, 0x10);
    file.symbol("", (GLOBAL, FUNC), 0x20, 0x10);
    let (procedures, findings) = procedures_of(&file.build(), None, &[]).unwrap();
    assert_eq!(procedures.len(), 1);
    let findings: Vec<String> = findings.iter().map(ToString::to_string).collect();
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert!(findings[0].starts_with("2 symbols left out"), "{findings:?}");
}

#[test]
fn a_hundred_thousand_symbols_take_well_under_a_second() {
    let mut file = Handmade::new(true, true);
    let count = 100_000;
    file.code = vec![0x90; count * 16];
    for number in 0..count {
        let name = format!("_ZN5space7procnam{number:07}Ev");
        file.symbol(&name, (GLOBAL, FUNC), number as u64 * 16, 16);
    }
    let bytes = file.build();
    let start = std::time::Instant::now();
    let (procedures, _) = procedures_of(&bytes, None, &[]).unwrap();
    let took = start.elapsed();
    assert_eq!(procedures.len(), count);
    let code_at = Layout::of(&bytes).unwrap().segments()[0].offset;
    for number in 0..count {
        let offset = ImageOffset(code_at.0 + number as u64 * 16 + 5);
        assert_eq!(procedures.find(offset).unwrap().start.0, offset.0 - 5);
    }
    // Some 30 ms; a quadratic step would take minutes.
    println!("{count} symbols took {took:?}");
    assert!(took.as_secs() < 1, "{took:?}");
}
