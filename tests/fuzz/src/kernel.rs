//! The kernel's lists of symbols and modules; its notes.

use crate::{halves, word};
use image::kernel::{KernelSymbols, build_id_from_notes, system_map};

/// The text of /proc/kallsyms and, after a zero byte, that of /proc/modules.
pub fn symbols(bytes: &[u8]) {
    let (kallsyms, modules) = halves(bytes, 0);
    let _ = build_id_from_notes(modules);
    if let Ok(procedures) = system_map(kallsyms) {
        procedures.iter().for_each(|procedure| {
            assert_eq!(procedures.find(procedure.start), Some(procedure));
        });
    }
    let Ok(symbols) = KernelSymbols::parse_with_modules(kallsyms, modules) else { return };
    assert!(!symbols.is_empty());
    let stext = symbols.stext();
    let mut rest = modules;
    let ends = [0, stext, stext.wrapping_sub(1), u64::MAX, 1 << 63];
    let mut words = || (!rest.is_empty()).then(|| word(&mut rest));
    let words: Vec<u64> = std::iter::from_fn(&mut words).take(64).collect();
    for address in
        ends.into_iter().chain((0..64).map(|at| stext.wrapping_add(at * 16))).chain(words)
    {
        if let Some(place) = symbols.place(address) {
            assert!(place.symbol_start <= place.symbol_end && !place.symbol.is_empty());
        }
    }
    let _ = symbols.idle_text();
}

/// Lists of a kernel with padding, a module and a BPF program.
#[must_use]
pub fn symbol_seeds() -> Vec<Vec<u8>> {
    let kernel = "ffffffff81000000 T _stext\nffffffff81000000 T _text\n\
        ffffffff81000010 t __pfx_f\nffffffff81000020 t f\nffffffff81000040 T __cpuidle_text_start\n\
        ffffffff81000080 T __cpuidle_text_end\nffffffff81000100 T _etext\n";
    let others = "ffffffffc0000000 t m_init\t[m]\nffffffffc0000040 t m_exit\t[m]\n\
        ffffffffc0100000 t bpf_prog_6deef7357e7b4530\t[bpf]\n\
        ffffffffc0200000 t __builtin__ftrace\t[__builtin__ftrace]\n";
    let modules = "m 16384 0 - Live 0xffffffffc0000000\n";
    let both = [kernel, others, "\0", modules].concat();
    vec![kernel.into(), both.into()]
}
