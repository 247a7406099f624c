//! Why a sample has no image, or was lost: the names in ledgers, in `dcpictl status` and in every
//! report, each with its meaning.

macro_rules! reasons {
    ($(#[$doc:meta])* $of:ident {
        $($(#[$why:meta])* $reason:ident $name:literal $meaning:literal,)*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $of {
            $($(#[$why])* $reason,)*
        }

        impl $of {
            /// Every reason.
            pub const ALL: &[Self] = &[$(Self::$reason,)*];

            /// The name in files and reports. It never changes.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$reason => $name,)*
                }
            }

            /// What the reason means, in a phrase, and what to do about it where something can be
            /// done.
            pub const fn meaning(self) -> &'static str {
                match self {
                    $(Self::$reason => $meaning,)*
                }
            }
        }
    };
}

reasons! {
    /// Why the image of a sample is not known. The sample is counted under the reason.
    Unresolved {
        /// No record of the process was seen, and the process was gone when the daemon looked for
        /// it.
        UnknownProcess "unknown_process"
            "a process that came and went between two looks, or whose records the kernel dropped",
        /// Nothing is mapped at the address, and the process has ended.
        ExitedUnseen "exited_unseen"
            "a process that ended before anybody was told what it had there",
        /// The process is known, but nothing is mapped at the address.
        NoMapping "no_mapping"
            "nothing is known to be mapped there; it came and went between two looks, or its record was dropped",
        /// Two files were mapped at the address in turn since the last drain.
        AmbiguousMapping "ambiguous_mapping"
            "two files were there in turn between two drains; shorten --drain-interval",
        /// The memory belongs to no file: code made at run time that its compiler does not publish.
        Anonymous "anonymous_memory"
            "code made at run time; have its maker write /tmp/perf-PID.map, or tell with dcpictl register",
        /// The memory belongs to no file, in a process of a known just-in-time compiler that
        /// publishes nothing.
        JitWithoutMap "jit_without_map"
            "run node with --perf-basic-prof, .NET with DOTNET_PerfMapEnabled=1; for java jcmd PID Compiler.perfmap",
        /// The memory belongs to no file, in a process that publishes its code, but not this code.
        JitNotInMap "jit_not_in_map"
            "made at run time; its maker's map does not have it, or not yet (java: jcmd PID Compiler.perfmap again); tell with dcpictl register",
        /// The memory belongs to no file, in a process whose map was refused or is too large.
        JitMapRefused "jit_map_refused"
            "the map of code made at run time is no plain file of the process's user, or too large; see dcpid's log",
        /// The stack, which is executable in this process.
        ExecutableStack "executable_stack"
            "code that a program put on its stack; tell with dcpictl register",
        /// The page where the kernel has a process execute the instructions that a probe replaced.
        UprobesPage "uprobes_page"
            "instructions under a probe (uprobes); nothing to do",
        /// Another page that the kernel maps into every process.
        KernelPage "kernel_page"
            "a page that the kernel maps into 32-bit programs; nothing to do",
        /// The vdso of a 32-bit program that was gone before it could be read.
        NarrowVdso "vdso_of_32_bit"
            "the kernel's code in 32-bit programs that were gone before it could be read",
        /// The file could not be opened any more when its first sample was resolved, and the record
        /// had no build id.
        FileGone "file_gone"
            "a file without build id that was gone before it could be read; link with --build-id",
        /// The mapped file is no ELF file.
        NotElf "not_elf"
            "code in a file that is no ELF file; tell with dcpictl register --file",
        /// The file is an ELF file, but its build cannot be determined: damaged, or unreadable.
        Unidentified "unidentified_file"
            "a file that is damaged or cannot be read",
        /// No inspector could look at the process or the file in time, or its user had used up the
        /// time for that.
        NotAnswered "not_answered"
            "a process or a file system that does not answer; dcpictl status names its user",
        /// The legacy vsyscall page.
        Vsyscall "vsyscall"
            "the legacy page of system calls; an old libc",
        /// A kernel address outside every known symbol.
        KernelTextUnknown "kernel_text_unknown"
            "code of the kernel that /proc/kallsyms does not list",
        /// The kernel hides its addresses (kernel.kptr_restrict).
        KernelAddressesHidden "kernel_addresses_hidden"
            "sysctl kernel.kptr_restrict=1, or 0, shows the kernel's symbols to dcpid",
        /// A process outside the daemon's pid namespace.
        OtherPidNamespace "other_pid_namespace"
            "processes outside dcpid's pid namespace; run it in the first one",
        /// The user of the process has brought as many images into the epoch as one user may.
        TooManyImages "too_many_images"
            "a user ran more different files with code than are told apart for one user; see docs/src/limits.md",
        /// A setting leaves out the image, the process or its control group. Only the number of
        /// samples is kept.
        Excluded "excluded"
            "dcpid was told to leave them out: --exclude-image, --exclude-cgroup, --exclude-pid",
    }
}

reasons! {
    /// Why a sample that was taken is neither in a profile nor among the unresolved samples.
    Loss {
        /// The sampler found bucket and spill buffer full: the daemon did not drain in time.
        SpillFull "spill_full"
            "the sampler's buffers were full; dcpid got too little CPU time to drain them",
        /// Too many distinct places wait for a disk that does not accept them.
        PendingFull "pending_full"
            "too much waits for a disk that does not take it; see dcpid's log",
        /// The sampler's own count of samples is higher than the sum of its entries, which is a
        /// bug.
        Uncounted "uncounted"
            "the sampler counted more samples than it wrote down; report it",
    }
}

reasons! {
    /// Why frames of a call stack are not known.
    Cut {
        /// The copied part of the stack ends before the thread's first frame.
        Truncated "truncated"
            "the stack is deeper than the part of it that the sampler copies",
        /// No unwind table covers the code.
        NoUnwindInfo "no_unwind_info"
            "code without unwind tables; compile with -fasynchronous-unwind-tables",
        /// Code made at run time, not known to keep frame pointers.
        Generated "generated"
            "code made at run time that is not known to keep frame pointers",
        /// The unwind table led to an impossible next frame.
        Refused "refused"
            "the address that the table gives as the caller's follows no call",
        /// A table, a register or a word of the stack that is needed cannot be read.
        Unreadable "unreadable"
            "the file's unwind table, or a value that it needs, cannot be read",
        /// More frames than a walk follows.
        TooDeep "too_deep"
            "more than 1024 frames",
        /// The stack did not grow from one frame to the next.
        Loop "loop"
            "the stack does not grow from one frame to the next",
        /// The file's unwind table asks for more work than a walk may do.
        Costly "costly"
            "the file's unwind table takes too much work to read",
        /// The process or its files could not be looked at.
        NotAnswered "stack_not_answered"
            "a process that was gone, or whose files nobody could look at in time",
        /// The kernel does not tell the registers of the user code that called it.
        NoRegisters "no_registers"
            "kernel code of a thread whose user registers Linux before 5.15 does not tell",
        /// Deeper frames of rare stacks are folded into their caller.
        Deeper "deeper"
            "frames of rare stacks, left out to bound the size of an epoch",
        /// The user has as many different stacks as one user may before they are written.
        TooManyStacks "too_many_stacks"
            "a user has more call stacks than are told apart until a merge; see docs/src/limits.md",
        /// A long wait of a thread whose waits were short: whether a stack is taken is decided when
        /// a wait begins.
        Unexpected "unexpected_wait"
            "a long wait of a thread whose waits before were short; of those few stacks are taken",
        /// The wait was seen by a pass over all threads, which reads no user stack.
        SeenWaiting "seen_waiting"
            "a wait that was met at a random moment, as threads change too often to take their stacks",
    }
}

reasons! {
    /// The reason why a thread did not run.
    Wait {
        /// Another thread took its CPU.
        Preempted "preempted"
            "another thread took the CPU, and this one could have gone on",
        /// Awake, and without CPU.
        Runnable "runnable"
            "awake, and no CPU was free",
        /// A lock or condition in user memory.
        Futex "futex"
            "a lock, a condition or a thread that was joined",
        /// A clock.
        Timer "timer"
            "a time that was asked for",
        /// A pipe.
        Pipe "pipe"
            "a pipe that was empty or full",
        /// A socket.
        Socket "socket"
            "a connection: data, room or a client",
        /// Several descriptors at once.
        Poll "poll"
            "one of several descriptors",
        /// A disk, or another block device.
        Disk "disk"
            "a file or a block device",
        /// A page that was not in memory.
        PageFault "page_fault"
            "a page that had to be read or made",
        /// A child process.
        Child "child"
            "a child process that had to end or stop",
        /// A signal.
        Signal "signal"
            "a signal, or a debugger",
        /// A lock of the kernel.
        KernelLock "kernel_lock"
            "a lock within the kernel",
        /// A terminal.
        Terminal "terminal"
            "input at a terminal, or room for output",
        /// Anything else.
        Other "other_wait"
            "something that has no name of its own here; its kernel frames tell",
    }
}

/// The meaning of an unresolved reason, by its name; None for a name that a later program wrote.
pub fn meaning(name: &str) -> Option<&'static str> {
    Unresolved::ALL.iter().find(|reason| reason.name() == name).map(|reason| reason.meaning())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_reason_has_a_name_of_its_own_and_a_meaning_of_one_phrase() {
        let unresolved = Unresolved::ALL.iter().map(|reason| (reason.name(), reason.meaning()));
        let lost = Loss::ALL.iter().map(|reason| (reason.name(), reason.meaning()));
        let cuts = Cut::ALL.iter().map(|reason| (reason.name(), reason.meaning()));
        let waits = Wait::ALL.iter().map(|reason| (reason.name(), reason.meaning()));
        let all: Vec<_> = unresolved.chain(lost).chain(cuts).chain(waits).collect();
        let names: BTreeSet<_> = all.iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), all.len());
        for (name, text) in all {
            let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
            assert!(name.bytes().all(plain), "{name}");
            assert!(text.len() <= 130 && !text.contains('\n') && !text.ends_with('.'), "{text}");
        }
        assert!(meaning("jit_without_map").is_some_and(|text| text.contains("--perf-basic-prof")));
        assert!(meaning("excluded").is_some());
        assert_eq!(meaning("of_a_later_program"), None);
    }
}
