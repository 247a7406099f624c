//! Procedures of compiled programs, against nm(1).

use image::{
    Binary, Finding, ImageError, ImageId, ImageOffset, Layout, ProcedureSource, Procedures, Vaddr,
};
use image::{procedures, procedures_of};

use crate::compile::{Workshop, read};

/// Ways to build the program that change where its bytes are.
const WAYS: [(&str, &[&str]); 6] = [
    ("pie", &["-pie"]),
    ("no-pie", &["-no-pie"]),
    ("static", &["-static"]),
    ("one-segment", &["-Wl,-z,noseparate-code"]),
    ("large-pages", &["-Wl,-z,max-page-size=0x10000"]),
    ("shared", &["-shared", "-fPIC"]),
];

pub fn is_sorted_and_disjoint(procedures: &Procedures) -> bool {
    let list: Vec<_> = procedures.iter().collect();
    list.iter().all(|p| p.start < p.end) && list.is_sorted_by(|a, b| a.end <= b.start)
}

/// The name that the procedures have for a symbol's address, and how many bytes it has.
fn at(shop: &Workshop, file: &str, procedures: &Procedures, symbol: &str) -> (String, u64) {
    let layout = Layout::of(&read(&shop.path(file))).unwrap();
    let vaddr = Vaddr(shop.address(file, symbol));
    let offset = layout.vaddr_to_file_offset(vaddr).unwrap();
    let found = procedures.find(offset).unwrap();
    (found.name().to_owned(), found.size_bytes())
}

#[test]
fn every_sized_symbol_is_found_where_it_is() {
    let shop = Workshop::new();
    for (out, flags) in WAYS {
        let path = shop.cc(out, flags);
        let (procedures, findings) = procedures(&path, None, &[]).unwrap();
        assert!(findings.is_empty(), "{out}: {findings:?}");
        assert!(is_sorted_and_disjoint(&procedures));
        let layout = Layout::of(&read(&path)).unwrap();
        let symbols = shop.nm(out);
        assert!(symbols.len() >= 8, "{out}: {symbols:?}");
        for (address, size, name) in &symbols {
            let start = layout.vaddr_to_file_offset(Vaddr(*address)).unwrap();
            let found = procedures.find(start).unwrap();
            assert_eq!(found.start, start, "{out}: {name}");
            // Its own name, or an alias's.
            let is_here = |(other, _, raw): &&(u64, u64, String)| {
                other == address && raw.split('@').next() == Some(found.raw_name())
            };
            let alias = symbols.iter().find(is_here);
            assert!(alias.is_some(), "{out}: {name} is {found:?}");
            if out != "static" {
                assert_eq!(found.size_bytes(), *size, "{out}: {name}");
            }
        }
    }
}

#[test]
fn names_are_those_of_the_best_alias_and_demangled() {
    let shop = Workshop::new();
    for (out, flags) in WAYS {
        let path = shop.cc(out, flags);
        let (procedures, _) = procedures(&path, None, &[]).unwrap();
        for (symbol, expected) in [
            ("local_one", "local_one"),
            ("exported_one", "exported_one"),
            ("exported_one_again", "exported_one"),
            ("local_alias", "exported_one"),
            ("_ZN3foo3barEi", "foo::bar(int)"),
            ("_ZN7mycrate3run17h0123456789abcdefE", "mycrate::run"),
            // The code at an indirect function's address is its resolver.
            ("chosen", "resolve_chosen"),
            ("no_size", "no_size"),
            ("no_type", "no_type"),
            ("inner_label", "with_label"),
            ("last_no_size", "last_no_size"),
        ] {
            let (name, _) = at(&shop, out, &procedures, symbol);
            assert_eq!(name, expected, "{out}: {symbol}");
        }
        for (symbol, size) in [("no_size", 3), ("no_type", 2), ("with_label", 3)] {
            let (_, found) = at(&shop, out, &procedures, symbol);
            assert_eq!(found, size, "{out}: {symbol}");
        }
    }
}

/// Other names of one procedure.
#[test]
fn aliases_are_told_by_place_and_by_name() {
    let shop = Workshop::new();
    for (out, flags) in WAYS {
        let path = shop.cc(out, flags);
        let binary = Binary::open(&path, None).unwrap();
        let vaddr = Vaddr(shop.address(out, "exported_one"));
        let start = binary.layout().vaddr_to_file_offset(vaddr).unwrap();
        let names = |found: Vec<(ImageOffset, String)>| {
            found.into_iter().map(|(_, name)| name).collect::<Vec<_>>()
        };
        let here = names(binary.symbols(&[], |at, _| at == start).unwrap());
        assert_eq!(here, ["exported_one", "exported_one_again", "local_alias"], "{out}");
        let named = binary.symbols(&[], |_, name| name == "local_alias").unwrap();
        assert_eq!(named, [(start, "local_alias".to_owned())], "{out}");
        assert!(binary.symbols(&[], |_, _| true).unwrap().len() <= 100, "{out}");
    }
}

#[test]
fn a_stripped_file_still_has_its_ranges() {
    let shop = Workshop::new();
    for (out, flags) in WAYS {
        let path = shop.cc(out, flags);
        let (named, _) = procedures(&path, None, &[]).unwrap();
        let symbols = shop.nm(out);
        let from = Layout::of(&read(&path)).unwrap();
        shop.tool("strip", &[out]);
        let (stripped, findings) = procedures(&path, None, &[]).unwrap();
        assert!(is_sorted_and_disjoint(&stripped));
        let findings = &findings[..];
        assert!(matches!(findings, [Finding::Stripped]), "{findings:?}");
        let mut by_address = 0;
        for name in ["local_one", "exported_one", "_ZN3foo3barEi", "main", "resolve_chosen"] {
            let symbol = symbols.iter().find(|(_, _, symbol)| symbol == name);
            let (address, size, _) = symbol.unwrap();
            let start = from.vaddr_to_file_offset(Vaddr(*address)).unwrap();
            let found = stripped.find(start).unwrap();
            assert_eq!((found.start, found.size_bytes()), (start, *size), "{out}: {name}");
            // A shared library still names its exports.
            if out == "shared" && name != "local_one" {
                let exported = ["exported_one", "foo::bar(int)", "main", "chosen"];
                assert!(exported.contains(&found.name()), "{found:?}");
            } else {
                assert_eq!(found.name(), format!("{address:#x}"), "{out}: {name}");
                by_address += 1;
            }
        }
        assert!(by_address >= 1);
        // And nowhere do ranges of the unwind table cross into another procedure.
        for procedure in named.iter().filter(|p| !p.name().starts_with('[')) {
            if let Some(found) = stripped.find(procedure.start) {
                let crosses = found.start < procedure.start && procedure.end < found.end;
                assert!(!crosses || out == "static", "{out}: {procedure:?} {found:?}");
            }
        }
    }
}

#[test]
fn sources_say_where_the_names_are_from() {
    let shop = Workshop::new();
    let path = shop.cc("a", &["-pie", "-rdynamic"]);
    let sources = |path| {
        let (procedures, _) = procedures(path, None, &[]).unwrap();
        let total: usize = procedures.sources().iter().map(|(_, count)| count).sum();
        assert_eq!(total, procedures.len());
        let kinds = procedures.sources().iter().map(|(source, _)| source.clone());
        kinds.collect::<Vec<_>>()
    };
    assert_eq!(sources(&path)[0], ProcedureSource::SymbolTable);
    assert!(sources(&path).contains(&ProcedureSource::Section));
    shop.tool("strip", &["a"]);
    assert_eq!(
        sources(&path),
        [
            ProcedureSource::DynamicSymbols,
            ProcedureSource::LinkageTable,
            ProcedureSource::Section,
            ProcedureSource::EhFrame
        ]
    );
}

/// All stubs had been one row, `[.plt]`, whose 90 % of a program said nothing.
#[test]
fn stubs_are_named_after_their_targets() {
    let shop = Workshop::new();
    for flags in [
        &["-pie", "-Wl,-z,lazy"][..],
        &["-pie", "-Wl,-z,now"],
        &["-no-pie", "-Wl,-z,lazy,-z,ibtplt", "-fcf-protection"],
    ] {
        let path = shop.cc("a", flags);
        shop.tool("strip", &["a"]);
        let (procedures, _) = procedures(&path, None, &[]).unwrap();
        let layout = Layout::of(&read(&path)).unwrap();
        let binary = Binary::open(&path, None).unwrap();
        let text = shop.tool("objdump", &["-d", "a"]);
        let mut stubs = 0;
        for line in text.lines().filter(|line| line.ends_with("@plt>:")) {
            let (address, name) = line.trim_end_matches(">:").split_once(" <").unwrap();
            let address = Vaddr(u64::from_str_radix(address, 16).unwrap());
            let offset = layout.vaddr_to_file_offset(address).unwrap();
            let (alone, _) = binary.procedures_at(&[], &[offset]).unwrap();
            for procedures in [&procedures, &alone] {
                let found = procedures.find(offset).unwrap();
                assert_eq!((found.start, found.name()), (offset, name));
                assert!([8, 16].contains(&found.size_bytes()), "{found:?}");
            }
            stubs += 1;
        }
        assert!(stubs > 0, "{text}");
    }
}

#[test]
fn without_section_headers_the_unwind_table_is_found_as_the_unwinder_does() {
    let shop = Workshop::new();
    let path = shop.cc("a", &["-pie"]);
    shop.tool("strip", &["a"]);
    let (with, _) = procedures(&path, None, &[]).unwrap();
    let mut bytes = read(&path);
    // e_shoff, e_shnum and e_shstrndx of a 64-bit file.
    bytes[0x28..0x30].fill(0);
    bytes[0x3c..0x40].fill(0);
    let (without, _) = procedures_of(&bytes, None, &[]).unwrap();
    let by_address = |procedures: &Procedures| {
        let list = procedures.iter().filter(|p| p.name().starts_with("0x"));
        list.cloned().collect::<Vec<_>>()
    };
    let with = by_address(&with);
    assert!(with.len() >= 6, "{with:?}");
    // Besides these, the linkage tables, whose sections' names are gone.
    let without = by_address(&without);
    assert!(with.iter().all(|p| without.contains(p)), "{with:?} {without:?}");
}

#[test]
fn another_build_is_refused() {
    let shop = Workshop::new();
    let path = shop.cc("a", &["-Wl,--build-id=0xaa01"]);
    let other: ImageId = "aa02".parse().unwrap();
    let error = procedures(&path, Some(&other), &[]).unwrap_err();
    assert!(matches!(error, ImageError::WrongBuild { .. }));
    let expected = "wrong build: the samples are of aa02, the file is aa01-p";
    assert!(error.to_string().starts_with(expected), "{error}");
    let same: ImageId = "aa01".parse().unwrap();
    assert!(procedures(&path, Some(&same), &[]).is_ok());
}

#[test]
fn what_maps_no_code_has_no_procedures() {
    let shop = Workshop::new();
    let path = shop.cc("a.o", &["-c"]);
    let (procedures, findings) = procedures(&path, None, &[]).unwrap();
    assert!(procedures.is_empty());
    assert!(matches!(findings[..], [Finding::NoCode]));
}

#[test]
fn errors_name_the_file() {
    for path in ["/dev/zero", "/nonexistent/file", "/etc"] {
        let error = procedures(path.as_ref(), None, &[]).unwrap_err();
        assert!(error.to_string().contains(path), "{error}");
    }
}
