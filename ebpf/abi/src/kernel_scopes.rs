//! Whose kernel code is.

/// What kernel code is counted under, unless it is counted for each process.
#[repr(u32)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KernelScopes {
    /// Once for all processes.
    #[default]
    None = 0,
    /// The scope of the process, where it has a [`KernelScope`]; once for all others.
    Labelled = 1,
    /// The scope of the process, and the process itself until it has a [`KernelScope`].
    All = 2,
}

/// The scope that a process's kernel code is counted under. Read and written as one word of 64
/// bits, in an array whose index is the low [`SLOT_BITS`](crate::SLOT_BITS) of the process's
/// number. The daemon writes it, children inherit it, and with [`KernelScopes::All`] an exec
/// forgets it.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelScope {
    /// The process, in the root namespace: another process may have the same index.
    pub pid: u32,
    /// The number that the daemon gave to the scope; 0: none yet.
    pub number: u32,
}
