//! Symbols by name, and parts of procedures that compilers put elsewhere.

use super::compile::{Workshop, read};
use image::{exports_of_file, parts_of_procedure, prefixed_exports_of_file};
use std::fs::File;
use std::io::Write as _;

/// A procedure that hardly ever comes to its last lines, and another one beside it.
const SOURCE: &str = r#"
int told = 7;
__attribute__((cold, noinline)) void fail(int n) { __asm__ volatile("" :: "r"(n)); }
int often(int *numbers, int n)
{
	int sum = 0;
	for (int i = 0; i < n; i++) {
		if (numbers[i] < 0) { fail(numbers[i]); sum += 3; }
		if (numbers[i] == 5) { fail(sum); sum *= 7; }
		if (numbers[i] == 6) { fail(sum + 1); sum ^= 9; }
		if (numbers[i] == 8) { fail(sum + 2); sum -= i; }
		sum += numbers[i];
	}
	return sum;
}
int other(int n) { if (n < 0) fail(n); return n * 3; }
"#;

fn library(shop: &Workshop) -> Vec<(u64, u64, String)> {
    std::fs::write(shop.path("parts.c"), SOURCE).unwrap();
    let flags = ["-O2", "-fPIC", "-shared", "-freorder-blocks-and-partition", "parts.c"];
    let _ = shop.tool("cc", &[&flags[..], &["-o", "parts.so"]].concat());
    let symbols = shop.nm("parts.so");
    let _ = shop.tool("strip", &["parts.so"]);
    symbols
}

#[test]
fn exports_are_those_that_nm_shows() {
    let shop = Workshop::new();
    let symbols = library(&shop);
    let file = File::open(shop.path("parts.so")).unwrap();
    let found = exports_of_file(&file, &["often", "told", "no such", "abort", ""]).unwrap();
    let (address, size, _) = symbols.iter().find(|(.., name)| name == "often").unwrap();
    let often = found[0].unwrap();
    assert_eq!((often.vaddr.0, often.size_bytes), (*address, *size));
    assert_eq!(found[1].unwrap().size_bytes, 4);
    assert_eq!(found[2..], [None; 3]);
    let prefixed = prefixed_exports_of_file(&file, "oft").unwrap();
    assert_eq!(prefixed.into_iter().collect::<Vec<_>>(), [("often".to_owned(), often)]);
    assert!(prefixed_exports_of_file(&file, "abort").unwrap().is_empty(), "another's");
}

#[test]
#[cfg(target_arch = "x86_64")]
fn parts_that_hardly_ever_run_belong_to_their_procedure() {
    let shop = Workshop::new();
    let symbols = library(&shop);
    let range = |name: &str| {
        let found = symbols.iter().find(|(.., known)| known == name);
        found.map(|(address, size, _)| *address..address + size)
    };
    let file = File::open(shop.path("parts.so")).unwrap();
    let often = range("often").unwrap();
    let cold = range("often.cold").expect("the compiler puts what hardly ever runs elsewhere");
    assert_eq!(parts_of_procedure(&file, often.clone()).unwrap(), [often, cold]);
    let other = range("other").unwrap();
    assert_eq!(parts_of_procedure(&file, other.clone()).unwrap(), [other], "jumps once");
    for nowhere in [0..u64::MAX, u64::MAX - 1..u64::MAX, 5..5] {
        let parts = parts_of_procedure(&file, nowhere.clone());
        assert!(parts.is_err() || parts.unwrap() == [nowhere]);
    }
}

#[test]
fn broken_files_have_no_other_symbols() {
    let shop = Workshop::new();
    let _ = library(&shop);
    let whole = read(&shop.path("parts.so"));
    let symbols = |bytes: &[u8]| {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        let _ = parts_of_procedure(&file, 0x1000..0x1400);
        exports_of_file(&file, &["often", "told"])
    };
    assert!(symbols(&whole).unwrap().iter().all(Option::is_some));
    for len in (0..whole.len()).step_by(97) {
        let _ = symbols(&whole[..len]);
    }
    let mut broken = whole.clone();
    for at in (0..whole.len()).step_by(13) {
        broken[at] ^= 0x5a;
        let _ = symbols(&broken);
        broken[at] ^= 0x5a;
    }
}
