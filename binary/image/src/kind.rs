//! Kinds of images, and the two kinds of places in them.

use std::fmt;
use std::str::FromStr;

use crate::ImageError;

/// The origin of an image, which decides what its [`ImageOffset`]s count from.
///
/// The text form ([`fmt::Display`], [`FromStr`]) is the name in lower case.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ImageKind {
    /// A file that was mapped: a program, a shared library. Or a source file whose functions an
    /// interpreter ran.
    File,
    /// The kernel proper.
    Kernel,
    /// A loaded kernel module.
    Module,
    /// The code that the kernel maps into every process (vdso(7)).
    Vdso,
    /// A BPF program translated to machine code, or other code the kernel wrote itself.
    Bpf,
    /// The procedures of the kernel in which a CPU waits for work: its idle text,
    /// `__cpuidle_text_start` to `_end`, and a few more.
    Idle,
    /// Code that one process made at run time (a just-in-time compiler's).
    Jit,
    /// No image: the samples of one program whose image is not known, for one reason, which the
    /// image's path names.
    Unresolved,
}

impl ImageKind {
    /// Every kind, in the order of declaration.
    pub const ALL: [Self; 8] = [
        Self::File,
        Self::Kernel,
        Self::Module,
        Self::Vdso,
        Self::Bpf,
        Self::Idle,
        Self::Jit,
        Self::Unresolved,
    ];

    /// The text form.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Kernel => "kernel",
            Self::Module => "module",
            Self::Vdso => "vdso",
            Self::Bpf => "bpf",
            Self::Idle => "idle",
            Self::Jit => "jit",
            Self::Unresolved => "unresolved",
        }
    }
}

impl fmt::Display for ImageKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for ImageKind {
    type Err = ImageError;

    /// # Errors
    /// [`ImageError::BadKind`] for anything but the exact lower-case names.
    fn from_str(text: &str) -> Result<Self, ImageError> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.as_str() == text)
            .ok_or_else(|| ImageError::BadKind { text: text.chars().take(64).collect() })
    }
}

/// A place in an image, in bytes from the image's own zero:
///
/// | kind | counted from |
/// |---|---|
/// | [`ImageKind::File`], [`ImageKind::Vdso`] | the first byte of the file (a *file offset*) |
/// | [`ImageKind::Kernel`] | `_stext` |
/// | [`ImageKind::Module`] | the address where the module was loaded |
/// | [`ImageKind::Bpf`] | the first instruction of the program |
/// | [`ImageKind::Idle`] | `_stext` |
/// | [`ImageKind::Jit`] | address 0 of the process, or a multiple of 2^57 where other code was |
/// | [`ImageKind::Unresolved`] | nothing: all samples are at 0 |
///
/// In a source file an offset is made of lines, see `profiledb/FORMAT.md`.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ImageOffset(pub u64);

impl fmt::Display for ImageOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::LowerHex for ImageOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::LowerHex::fmt(&self.0, f)
    }
}

/// An address as the ELF file has it (`p_vaddr`, `st_value`): what `objdump` and `nm` show. It is
/// not an address in a process, which for a position-independent image also has the load bias.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Vaddr(pub u64);

impl fmt::Display for Vaddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::LowerHex for Vaddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::LowerHex::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_text_form_that_reads_back() {
        for kind in ImageKind::ALL {
            let text = kind.to_string();
            assert_eq!(text, text.to_lowercase());
            assert_eq!(text.parse::<ImageKind>().unwrap(), kind);
        }
        for bad in ["", "File", "file ", "jits"] {
            assert!(bad.parse::<ImageKind>().is_err(), "{bad:?}");
        }
    }
}
