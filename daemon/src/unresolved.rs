//! Why a sample has no image, or was lost: the names in `dcpictl status`, in the database and in every report;
//! and whose samples without image are.

use crate::images::Image;
use image::{ImageId, ImageKind};
use profiledb::Scope;
use std::collections::HashMap;
use std::sync::Arc;

/// Programs, each once for a reason, whose samples without image are told apart from others'.
const OWNERS_MAX: usize = 4096;

/// Whose samples are of unknown code.
#[derive(Clone, Debug)]
pub struct Owner {
    /// What stands for the image that is not known: one for each program and reason.
    pub image: Arc<Image>,
    /// Label, unit and process, where those are kept apart.
    pub scope: Option<Arc<Scope>>,
}

/// What stands for images that are not known.
#[derive(Debug, Default)]
pub struct UnknownCode {
    images: HashMap<(String, Reason), Arc<Image>>,
}

impl UnknownCode {
    /// What samples of the program of that name count under, whose image is not known for this
    /// reason. None when there are too many programs: then they are only in the ledger.
    pub fn of(&mut self, program: &str, reason: Reason) -> Option<Arc<Image>> {
        let key = (program.to_owned(), reason);
        if self.images.len() >= OWNERS_MAX && !self.images.contains_key(&key) {
            return None;
        }
        let image = self.images.entry(key).or_insert_with(|| {
            Arc::new(Image {
                id: ImageId::unresolved(program, reason.name()),
                kind: ImageKind::Unresolved,
                name: program.to_owned(),
                path: reason.name().to_owned(),
                size_bytes: None,
                procedures: None,
            })
        });
        Some(image.clone())
    }
}

/// Why a sample's image is unknown. The sample is counted under the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// The process was never seen: no record of it, and it was gone when looked for.
    UnknownProcess,
    /// The process is known, but nothing is mapped at the address.
    NoMapping,
    /// The same, and the process has ended.
    ExitedUnseen,
    /// Two files were mapped at the address in turn since the last drain.
    AmbiguousMapping,
    /// The memory belongs to no file: code made at run time, of which its maker tells nothing.
    Anonymous,
    /// The same, and the process is known to compile at run time.
    JitWithoutMap,
    /// The same; the process tells of its code, but not of this.
    JitNotInMap,
    /// The same; there is a map, but it is not believed, or too large.
    JitMapRefused,
    /// The stack, which is executable in this process.
    ExecutableStack,
    /// The page where the kernel has a process execute instructions under a probe.
    UprobesPage,
    /// Another page that the kernel maps into every process.
    KernelPage,
    /// The vdso of a 32-bit program that was gone before it could be read.
    NarrowVdso,
    /// The file could not be opened any more when its first sample was resolved, and the record had no build id.
    FileGone,
    /// The mapped file is no ELF file.
    NotElf,
    /// The file is one, but which build cannot be told: damaged, or unreadable.
    Unidentified,
    /// The legacy vsyscall page.
    Vsyscall,
    /// A kernel address outside every known symbol.
    KernelTextUnknown,
    /// The kernel hides its addresses (kernel.kptr_restrict).
    KernelAddressesHidden,
    /// A process outside the daemon's pid namespace.
    OtherPidNamespace,
    /// The user asked to leave it out: the image, the process or its control group. Only the number is kept.
    Excluded,
}

impl Reason {
    /// Every reason.
    pub const ALL: [Self; 19] = [
        Self::UnknownProcess,
        Self::ExitedUnseen,
        Self::NoMapping,
        Self::AmbiguousMapping,
        Self::Anonymous,
        Self::JitWithoutMap,
        Self::JitNotInMap,
        Self::JitMapRefused,
        Self::ExecutableStack,
        Self::UprobesPage,
        Self::KernelPage,
        Self::NarrowVdso,
        Self::FileGone,
        Self::NotElf,
        Self::Unidentified,
        Self::Vsyscall,
        Self::KernelTextUnknown,
        Self::KernelAddressesHidden,
        Self::OtherPidNamespace,
    ];

    /// The stable name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Reason::UnknownProcess => "unknown_process",
            Reason::NoMapping => "no_mapping",
            Reason::AmbiguousMapping => "ambiguous_mapping",
            Reason::ExitedUnseen => "exited_unseen",
            Reason::Anonymous => "anonymous_memory",
            Reason::JitWithoutMap => "jit_without_map",
            Reason::JitNotInMap => "jit_not_in_map",
            Reason::JitMapRefused => "jit_map_refused",
            Reason::ExecutableStack => "executable_stack",
            Reason::UprobesPage => "uprobes_page",
            Reason::KernelPage => "kernel_page",
            Reason::NarrowVdso => "vdso_of_32_bit",
            Reason::FileGone => "file_gone",
            Reason::NotElf => "not_elf",
            Reason::Unidentified => "unidentified_file",
            Reason::Vsyscall => "vsyscall",
            Reason::KernelTextUnknown => "kernel_text_unknown",
            Reason::KernelAddressesHidden => "kernel_addresses_hidden",
            Reason::OtherPidNamespace => "other_pid_namespace",
            Reason::Excluded => "excluded",
        }
    }
}

/// Why a sample that was taken is in no profile at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Loss {
    /// The sampler found bucket and spill buffer full: the daemon did not drain in time.
    SpillFull,
    /// Too many distinct places are waiting for a disk that does not take them.
    PendingFull,
    /// The sampler's own count of samples is higher than the sum of its entries: must not happen, and is shown if it does.
    Uncounted,
}

impl Loss {
    /// The stable name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Loss::SpillFull => "spill_full",
            Loss::PendingFull => "pending_full",
            Loss::Uncounted => "uncounted",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_a_name_of_its_own_and_a_meaning() {
        let names: std::collections::BTreeSet<_> = Reason::ALL.iter().map(|reason| reason.name()).collect();
        assert_eq!(names.len(), Reason::ALL.len());
        for name in names {
            assert!(profiledb::meaning(name).is_some(), "{name}");
        }
    }
}
