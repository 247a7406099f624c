//! Mechanisms by the names of procedures: of the kernel, of allocators and of interpreters.

use crate::Mechanism;

/// How the kernel was entered.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// By a system call.
    SystemCall,
    /// By a page fault.
    Fault,
    /// By an interrupt, which is not the doing of the program that it interrupts.
    Interrupt,
}

impl Entry {
    /// The entry that a procedure of the kernel is part of (Linux 5.10 to 6.18, x86-64 and arm64).
    pub fn of(procedure: &str) -> Option<Self> {
        let begins = |all: &[&str]| all.iter().any(|begin| procedure.starts_with(begin));
        match procedure {
            _ if procedure.contains("page_fault")
                || begins(&["do_mem_abort", "el0_da", "el0_ia"]) =>
            {
                Some(Self::Fault)
            }
            _ if begins(&INTERRUPTS) => Some(Self::Interrupt),
            _ if begins(&SYSTEM_CALLS) => Some(Self::SystemCall),
            _ => None,
        }
    }
}

/// Beginnings of the names of procedures through which interrupts enter and leave the kernel.
const INTERRUPTS: [&str; 13] = [
    "asm_sysvec_",
    "sysvec_",
    "__sysvec_",
    "asm_common_interrupt",
    "common_interrupt",
    "irqentry_",
    "asm_exc_nmi",
    "exc_nmi",
    "el0t_64_irq",
    "el1h_64_irq",
    "el0_interrupt",
    "el1_interrupt",
    "hrtimer_interrupt",
];
/// The same of system calls.
const SYSTEM_CALLS: [&str; 12] = [
    "entry_SYSCALL",
    "do_syscall_",
    "x64_sys_call",
    "__x64_sys_",
    "__do_sys_",
    "__se_sys_",
    "entry_SYSENTER",
    "do_int80",
    "el0_svc",
    "do_el0_svc",
    "invoke_syscall",
    "__arm64_sys_",
];

/// What a procedure of the kernel (Linux 5.10 to 6.18) does for a program, where its name says it.
/// `None`: it serves interrupts, or no program.
pub fn of_kernel(procedure: &str) -> Option<Mechanism> {
    let is = |parts: &[&str]| parts.iter().any(|part| procedure.contains(part));
    if is(&["spin_lock_slowpath", "osq_lock", "spin_on_owner", "queued_read_lock_slow"]) {
        return Some(Mechanism::Spinning);
    }
    if is(&[
        "rep_movs",
        "copy_user",
        "copy_to_user",
        "copy_from_user",
        "_copy_to_iter",
        "copyin",
        "copyout",
        "_copy_from_iter",
        "copy_page_to_iter",
        "memcpy",
        "csum_partial_copy",
    ]) {
        return Some(Mechanism::KernelCopy);
    }
    if is(&[
        "page_fault",
        "handle_mm",
        "clear_page",
        "do_anonymous",
        "fault_",
        "_fault",
        "do_user_addr",
        "pte_",
        "_pte",
        "folio",
        "alloc_pages",
        "alloc_frozen_pages",
        "rmqueue",
        "get_page_from",
        "prep_new_page",
        "post_alloc",
        "mem_cgroup_charge",
        "charge_memcg",
        "try_charge",
        "memcg1_commit_charge",
        "lru_add",
        "lruvec",
        "unmap_",
        "zap_",
        "free_unref",
        "free_pages",
        "tlb_",
        "vma_",
        "sync_regs",
        "error_entry",
        "kernel_init_pages",
        "lock_vma",
        "native_irq_return",
        "mas_walk",
        "__count_memcg_events",
        "cgroup_rstat",
        "pmd_",
        "_pmd",
        "anon_vma",
        "swapin",
    ]) {
        return Some(Mechanism::PageFault);
    }
    let interrupts = is(&["irq", "sysvec", "hrtimer", "apic", "tick_", "_nmi", "_interrupt"]);
    (!interrupts).then_some(Mechanism::SystemCall)
}

/// Procedures of allocators: of the C library, jemalloc, mimalloc, CPython and C++.
const ALLOCATES: [&str; 35] = [
    "malloc",
    "free",
    "cfree",
    "calloc",
    "realloc",
    "_int_malloc",
    "_int_free",
    "_int_realloc",
    "_int_free_chunk",
    "_int_free_merge_chunk",
    "_int_free_create_chunk",
    "malloc_consolidate",
    "unlink_chunk",
    "unlink_chunk.isra.0",
    "sysmalloc",
    "tcache_get",
    "tcache_put",
    "_int_memalign",
    "__libc_malloc",
    "__libc_free",
    "__libc_calloc",
    "__libc_realloc",
    "je_malloc",
    "je_free",
    "mi_malloc",
    "mi_free",
    "_PyObject_Malloc",
    "_PyObject_Free",
    "PyObject_Malloc",
    "PyObject_Free",
    "operator new(unsigned long)",
    "operator delete(void*)",
    "operator delete(void*, unsigned long)",
    "operator new[](unsigned long)",
    "operator delete[](void*)",
];
/// Beginnings of the names of procedures of allocators.
const ALLOCATES_TOO: [&str; 5] = ["malloc.", "free.", "_int_malloc.", "_int_free.", "pymalloc_"];
/// Parts of the names of Go's allocator and of its collector, which the allocator feeds.
const OF_GO: [&str; 24] = [
    "malloc",
    "gc",
    "GC",
    "sweep",
    "scan",
    "span",
    "mheap",
    "mcache",
    "mcentral",
    "heapBits",
    "memclr",
    "grey",
    "mark",
    "findObject",
    "wbBuf",
    "bulkBarrier",
    "newobject",
    "growslice",
    "rawstring",
    "makeslice",
    "rawbyteslice",
    "typePointers",
    "lfstack",
    "nextFreeFast",
];
/// Procedures of interpreters, whatever the name of their image.
const INTERPRETS: [&str; 7] = [
    "luaV_execute",
    "rb_vm_exec",
    "vm_exec_core",
    "execute_ex",
    "zend_execute_scripts",
    "ruby_vm_exec",
    "_PyEval_EvalFrameDefault",
];
/// Beginnings of the names of images that are interpreters.
const INTERPRETERS: [&str; 9] =
    ["python", "libpython", "perl", "libperl", "lua", "liblua", "ruby", "libruby", "php"];

/// What a procedure of a runtime does, where its name and its image's say it.
pub fn of_runtime(image: &str, procedure: &str) -> Option<Mechanism> {
    let begins = |all: &[&str], name: &str| all.iter().any(|begin| name.starts_with(begin));
    let of_go = procedure.strip_prefix("runtime.");
    if ALLOCATES.contains(&procedure)
        || begins(&ALLOCATES_TOO, procedure)
        || of_go.is_some_and(|name| OF_GO.iter().any(|part| name.contains(part)))
    {
        return Some(Mechanism::Allocator);
    }
    let interprets = interprets(procedure) || begins(&INTERPRETERS, image) && !procedure.is_empty();
    interprets.then_some(Mechanism::Interpreter)
}

/// Whether a procedure executes instructions of a script, and is no helper of those that do, such
/// as the search in a table.
pub fn interprets(procedure: &str) -> bool {
    let begins = ["Perl_runops", "Perl_pp_"].iter().any(|begin| procedure.starts_with(begin));
    begins || INTERPRETS.contains(&procedure)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_mechanisms() {
        for (name, mechanism) in [
            ("clear_page_erms", Mechanism::PageFault),
            ("asm_exc_page_fault", Mechanism::PageFault),
            ("rep_movs_alternative", Mechanism::KernelCopy),
            ("native_queued_spin_lock_slowpath", Mechanism::Spinning),
            ("entry_SYSCALL_64", Mechanism::SystemCall),
        ] {
            assert_eq!(of_kernel(name), Some(mechanism), "{name}");
        }
        for name in
            ["irqentry_exit_to_user_mode", "handle_softirqs", "asm_sysvec_apic_timer_interrupt"]
        {
            assert_eq!(of_kernel(name), None, "{name}");
        }
        assert_eq!(Entry::of("irqentry_exit_to_user_mode"), Some(Entry::Interrupt));
        assert_eq!(Entry::of("asm_exc_page_fault"), Some(Entry::Fault));
        assert_eq!(Entry::of("__x64_sys_read"), Some(Entry::SystemCall));
        assert_eq!(Entry::of("vfs_read"), None);
        assert_eq!(of_runtime("libc.so.6", "_int_malloc"), Some(Mechanism::Allocator));
        let eval = of_runtime("python3.11", "_PyEval_EvalFrameDefault");
        assert_eq!(eval, Some(Mechanism::Interpreter));
        assert_eq!(of_runtime("words", "main"), None);
        assert!(interprets("Perl_pp_add") && !interprets("Perl_hv_common"));
    }
}
