//! Stacks with the mappings of their processes, and which of them are dcpid's own.

use super::{MAPPED_MAX, process_of};
use address_spaces::mappings::{AddressMap, Mapping, Mappings, Window};
use address_spaces::scopes::Tags;
use address_spaces::users::Payer;
use inspect::dotnet::{may_be_assembly, may_be_dotnet};
use inspect::open_mapped::MappedAt;
use inspect::questions::{CodeSource, MappedCode};
use inspect::runtimes::{names_its_code, needs_words};
use inspect::v8::may_be_v8;
use kernel::{MappedFileId, RawStack};
use model::Attributes;
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;

/// A stack, with the tags and the mappings of its process.
pub struct PlacedStack {
    pub(super) raw: RawStack,
    /// Who pays for the walk.
    pub(super) payer: Payer,
    pub(super) space: Option<(Arc<AddressMap>, Tags)>,
    pub(super) program: Option<Mapping>,
    /// Whether the process has generated code that a runtime's tables name (HotSpot, BEAM, .NET).
    pub has_named_code: bool,
    /// Whether the sampler notes words of such a runtime's frames.
    pub needs_words: bool,
    /// What the program had set for the thread.
    pub attributes: Attributes,
}

impl PlacedStack {
    /// Whether the process has mapped a runtime whose tables name generated code, and whether of
    /// its frames words are noted. Looks at all of its mappings.
    pub(super) fn maps_named_code(&self) -> (bool, bool) {
        let any = |is: fn(&[u8]) -> bool| {
            let map = self.space.as_ref().map(|(map, _)| map.iter());
            map.is_some_and(|mut map| map.any(|mapping| is(&mapping.file.path)))
        };
        (any(names_its_code), any(needs_words))
    }

    /// Whether the sampler does not know which words of this process's frames to note, although
    /// their addresses alone do not name them. Once rules of such frames are learnt, nobody else
    /// sees the words.
    pub(super) fn lacks_words(&self) -> bool {
        self.needs_words && self.raw.record.has_frame_layout == 0
    }

    /// Device and inode of the file that the program is in.
    pub(super) fn program_file(&self) -> Option<(u64, u64)> {
        match &self.program.as_ref()?.file.id {
            MappedFileId::Inode { major, minor, inode }
            | MappedFileId::Version { major, minor, inode, .. } => {
                Some((rustix::fs::makedev(*major, *minor), *inode))
            }
            MappedFileId::BuildId(_) => None,
        }
    }
}

/// Device and inode of the file of this process's program, which is that of its inspectors too.
/// Their stacks are not walked: that would be dcpid's work about its own work.
pub(super) fn own_program() -> Option<(u64, u64)> {
    let found = std::fs::metadata("/proc/self/exe").ok()?;
    Some((found.dev(), found.ino()))
}

/// The stack, with the mappings that its process has in `window`.
pub(super) fn placed(
    raw: RawStack,
    payer: Payer,
    mappings: &mut Mappings,
    window: Window,
) -> PlacedStack {
    let space = mappings.space_known(process_of(&raw.record), window, raw.record.time_ns);
    let space = space.filter(|(map, _)| !map.is_empty());
    let program = space.as_ref().and_then(|(map, _)| program_of(map).cloned());
    PlacedStack {
        raw,
        payer,
        space,
        program,
        has_named_code: false,
        needs_words: false,
        attributes: Attributes::default(),
    }
}

/// The program's own text: of the files that a process has mapped, the first by address that is not
/// a library of the system. Wrong where it is not; then code of Go without tables has no frames.
pub(super) fn program_of(map: &AddressMap) -> Option<&Mapping> {
    map.iter().find(|mapping| mapping.file.is_file())
}

/// The executable memory of a process.
pub(super) fn mapped_code(
    pid: u32,
    map: &AddressMap,
    program: Option<&Mapping>,
) -> Vec<MappedCode> {
    let program = program.map(|mapping| mapping.file.as_ref());
    // V8 keeps frame pointers in the code that it generates, and in its built-in procedures, which
    // have no tables.
    let keeps_frame_pointers = program.is_some_and(|file| may_be_v8(&file.path));
    // Code in the file of an assembly has no tables but those of the runtime.
    let has_assemblies = map.iter().any(|mapping| may_be_dotnet(&mapping.file.path));
    let code = |mapping: &Mapping| {
        let at = MappedAt { pid, start: mapping.start, end: mapping.end };
        let is_program = program.is_some_and(|file| std::ptr::eq(file, mapping.file.as_ref()));
        let code = match mapping.file.path.as_slice() {
            b"[vdso]" => CodeSource::Vdso,
            _ if !mapping.file.is_file() => CodeSource::Generated,
            path if has_assemblies && may_be_assembly(path) => CodeSource::Generated,
            _ if is_program => CodeSource::Program(mapping.file.at(at)),
            _ => CodeSource::File(mapping.file.at(at)),
        };
        let is_generated = matches!(code, CodeSource::Generated);
        MappedCode {
            range: (mapping.start, mapping.end),
            file_offset: mapping.file_offset,
            code,
            frame_pointers: keeps_frame_pointers
                && (is_program || is_generated || may_be_v8(&mapping.file.path)),
        }
    };
    map.iter().take(MAPPED_MAX).map(code).collect()
}
