//! Identifies CoreCLR among a process's files, and its version.

use super::layouts::{Contract, Layout, code_offsets};
use crate::python::Memory;
use image::{Export, ImageOffset, Layout as FileLayout, Vaddr, exports_of_file};
use std::fs::File;
use std::os::unix::fs::FileExt as _;

/// The symbols: the table of globals for debuggers (src/coreclr/debug/ee/dactable.cpp, since .NET
/// 5); the description of types and globals (src/coreclr/debug/runtimeinfo, since .NET 9).
const SYMBOLS: [&str; 2] = ["g_dacTable", "DotNetRuntimeContractDescriptor"];
/// The text before the version in the library (`sccsid` in the build's `_version.c`).
const VERSION_MARK: &[u8] = b"@(#)Version ";
/// Longest version, in bytes: `9.0.525.21509`.
const VERSION_MAX: usize = 24;
/// Bytes at the end of a library that are searched for its version. In that of .NET 9.0.5 it is
/// 42 KB before the end.
const SEARCHED_MAX: u64 = 4 << 20;
/// Bytes that are searched at once.
const SEARCHED_AT_ONCE: usize = 1 << 18;
/// Most bytes of a contract: that of .NET 9.0.5 has 3 KiB.
const CONTRACT_MAX: u32 = 1 << 18;
/// The first word of the description, `DNCCDAC` (src/coreclr/debug/runtimeinfo/
/// contractpointerdata.cpp and datadescriptor.h).
const MAGIC: u64 = 0x0043_4144_4343_4e44;

/// Whether a file of this path may be CoreCLR.
pub fn may_be_dotnet(path: &[u8]) -> bool {
    let path = path.strip_suffix(b" (deleted)").unwrap_or(path);
    path.rsplit(|byte| *byte == b'/').next() == Some(b"libcoreclr.so")
}

/// Whether a file of this path may be an assembly, whose code, if it has any, was compiled ahead.
pub fn may_be_assembly(path: &[u8]) -> bool {
    let path = path.strip_suffix(b" (deleted)").unwrap_or(path);
    path.ends_with(b".dll")
}

/// A file with CoreCLR. Addresses are the file's.
#[derive(Debug)]
pub struct Program {
    /// As the library tells it; empty: it does not.
    version: String,
    globals: Option<u64>,
    contract: Option<u64>,
    file: FileLayout,
}

impl Program {
    /// The CoreCLR of a file. None: it is no library that can be read.
    pub fn of_file(file: &File) -> Option<Self> {
        let exports = exports_of_file(file, &SYMBOLS).ok()?;
        let address = |export: Option<Export>| export.map(|Export { vaddr: Vaddr(at), .. }| at);
        let [globals, contract] = exports.try_into().ok()?;
        Some(Self {
            version: version(file).unwrap_or_default(),
            globals: address(globals),
            contract: address(contract),
            file: FileLayout::of_file(file).ok()?,
        })
    }

    /// Difference between a process's addresses and the file's, where it has the byte at this
    /// offset mapped at `address`.
    pub fn bias(&self, address: u64, file_offset: u64) -> Option<u64> {
        self.file.bias(address, ImageOffset(file_offset))
    }

    /// Where the runtime of a process has its structures: `file` is this file. None: it is not
    /// linked yet. The process tells only where in the file the text is, as the layout is also that
    /// of other processes.
    ///
    /// # Errors
    /// Why it is of no use.
    pub fn layout(
        &self,
        file: &File,
        memory: &impl Memory,
        bias: u64,
    ) -> Option<Result<Layout, String>> {
        let version = match self.version.as_str() {
            "" => "of an unknown version".to_owned(),
            version => version.to_owned(),
        };
        let Some(code) = code_offsets(&self.version).filter(|_| cfg!(target_arch = "x86_64"))
        else {
            return Some(Err(format!(".NET (CoreCLR {version}) is not known")));
        };
        let (Some(globals), Some(contract)) = (self.globals, self.contract) else {
            return Some(Err(format!(".NET (CoreCLR {version}) does not describe its structures")));
        };
        let (begin, bytes) = text(memory, contract.wrapping_add(bias))?;
        let begin = Vaddr(begin.wrapping_sub(bias));
        let ImageOffset(at) = self.file.vaddr_to_file_offset(begin)?;
        let mut text = vec![0; bytes];
        file.read_exact_at(&mut text, at).ok()?;
        let layout = Layout::of(&Contract::parse(&text)?, code);
        let layout = layout.map(|layout| layout.with_globals(globals));
        Some(layout.map_err(|what| format!(".NET (CoreCLR {version}) does not tell {what}")))
    }
}

/// Address and size of the text of a contract, whose description is at an address: behind the
/// magic, flags and the number of bytes, which are words of 32 bits, is the text's address.
fn text(memory: &impl Memory, at: u64) -> Option<(u64, usize)> {
    memory.word(at).filter(|word| *word == MAGIC)?;
    let bytes = (memory.word(at.wrapping_add(8))? >> 32) as u32;
    // Relocated when the library is linked.
    let begin = memory.word(at.wrapping_add(16)).filter(|begin| *begin != 0)?;
    (bytes <= CONTRACT_MAX).then_some((begin, bytes as usize))
}

/// The version of a library. It is among the last of its data, so the search begins at the end.
fn version(file: &File) -> Option<String> {
    let mut end = file.metadata().ok()?.len();
    let least = end.saturating_sub(SEARCHED_MAX);
    let mut bytes = vec![0; SEARCHED_AT_ONCE];
    while end > least {
        let begin = end.saturating_sub(SEARCHED_AT_ONCE as u64);
        let read = file.read_at(&mut bytes, begin).ok()?;
        let mut rest = bytes.get(..read)?;
        while let Some(at) = rest.iter().position(|byte| Some(byte) == VERSION_MARK.first()) {
            rest = rest.get(at..)?;
            if let Some(behind) = rest.strip_prefix(VERSION_MARK) {
                let is_part = |byte: &&u8| byte.is_ascii_digit() || **byte == b'.';
                let version = behind.iter().take_while(is_part).take(VERSION_MAX);
                return String::from_utf8(version.copied().collect()).ok();
            }
            rest = rest.get(1..)?;
        }
        // What reaches over the begin is in the next part as a whole.
        end = if begin == 0 { 0 } else { begin + (VERSION_MARK.len() + VERSION_MAX) as u64 };
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn a_runtime_is_known_by_the_name_of_its_library() {
        assert!(may_be_dotnet(b"/usr/share/dotnet/shared/x/9.0.5/libcoreclr.so"));
        assert!(may_be_dotnet(b"/opt/app/libcoreclr.so (deleted)"));
        assert!(!may_be_dotnet(b"/opt/libcoreclr.so.1") && !may_be_dotnet(b"libcoreclr.so/x"));
        assert!(may_be_assembly(b"/opt/app/System.Linq.dll") && !may_be_assembly(b"/opt/x.so"));
    }

    #[test]
    fn the_version_is_found_wherever_it_is() {
        for behind in [0, 100, SEARCHED_AT_ONCE - 5, SEARCHED_AT_ONCE - 30, SEARCHED_AT_ONCE] {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(&[b'@'; 1000]).unwrap();
            file.write_all(b"@(#)Version 9.0.525.21509 @Commit: e3").unwrap();
            file.write_all(&vec![0; behind]).unwrap();
            assert_eq!(version(&file).as_deref(), Some("9.0.525.21509"), "{behind}");
        }
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[0; 100]).unwrap();
        assert_eq!(version(&file), None);
    }
}
