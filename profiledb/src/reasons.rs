//! What the names mean under which a ledger counts samples without an image.

/// The reasons there are: name, what it means, and what to do about it where something can be done.
const MEANINGS: [(&str, &str); 19] = [
    ("unknown_process", "a process that came and went between two looks, or whose records the kernel dropped"),
    ("exited_unseen", "a process that ended before anybody was told what it had there"),
    (
        "no_mapping",
        "nothing is known to be mapped there; it came and went between two looks, or its record was dropped",
    ),
    ("ambiguous_mapping", "two files were there in turn between two drains; shorten --drain-interval"),
    (
        "anonymous_memory",
        "code made at run time; have its maker write /tmp/perf-PID.map, or tell with dcpictl register",
    ),
    (
        "jit_without_map",
        "run node with --perf-basic-prof, .NET with DOTNET_PerfMapEnabled=1; for java jcmd PID Compiler.perfmap",
    ),
    ("jit_not_in_map", "made at run time; its maker's map does not have it, or not yet; tell with dcpictl register"),
    (
        "jit_map_refused",
        "the map of code made at run time is no plain file of the process's user, or too large; see dcpid's log",
    ),
    ("executable_stack", "code that a program put on its stack; tell with dcpictl register"),
    ("uprobes_page", "instructions under a probe (uprobes); nothing to do"),
    ("kernel_page", "a page that the kernel maps into 32-bit programs; nothing to do"),
    ("vdso_of_32_bit", "the kernel's code in 32-bit programs that were gone before it could be read"),
    ("file_gone", "a file without build id that was gone before it could be read; link with --build-id"),
    ("not_elf", "code in a file that is no ELF file; tell with dcpictl register --file"),
    ("unidentified_file", "a file that is damaged or cannot be read"),
    ("vsyscall", "the legacy page of system calls; an old libc"),
    ("kernel_text_unknown", "code of the kernel that /proc/kallsyms does not list"),
    ("kernel_addresses_hidden", "sysctl kernel.kptr_restrict=1, or 0, shows the kernel's symbols to dcpid"),
    ("other_pid_namespace", "processes outside dcpid's pid namespace; run it in the first one"),
];

/// What a reason's name means, in a phrase; None for one that a later program wrote.
#[must_use]
pub fn meaning(reason: &str) -> Option<&'static str> {
    MEANINGS.iter().find(|(name, _)| *name == reason).map(|(_, meaning)| *meaning)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_meaning_is_one_phrase() {
        assert!(meaning("jit_without_map").is_some_and(|text| text.contains("--perf-basic-prof")));
        assert_eq!(meaning("of_a_later_program"), None);
        for (name, text) in MEANINGS {
            assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_'), "{name}");
            assert!(text.len() <= 130 && !text.contains('\n') && !text.ends_with('.'), "{text}");
        }
    }
}
