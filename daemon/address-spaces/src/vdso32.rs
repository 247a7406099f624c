//! The vdso of 32-bit programs: the kernel has another one for them (vdso(7)), which this process
//! cannot see in itself.

use crate::mapped_files::Image;
use crate::mappings::Mapping;
use crate::system::System;
use image::{ImageKind, ImageOffset, Procedure, Procedures};
use inspect::open_mapped::MappedAt;
use inspect::vdso::{StoredVdso, stored_procedures};
use model::Unresolved;
use std::collections::HashMap;
use std::sync::Arc;

/// Most kinds of this vdso, by size: a kernel has one, or two (i386 and x32).
const KINDS_MAX: usize = 8;

/// The result of reading it.
#[derive(Debug, Default)]
pub struct NarrowVdso {
    by_len: HashMap<u64, Arc<Image>>,
}

impl NarrowVdso {
    /// Whether the mapping is one: 32-bit address spaces end at 4 GiB, and in all others the vdso
    /// lies above the stack.
    pub fn is_at(mapping: &Mapping) -> bool {
        cfg!(target_pointer_width = "64")
            && mapping.file.path == b"[vdso]"
            && mapping.end <= 1 << 32
    }

    /// The image, read from the memory of the first process that has it.
    ///
    /// # Errors
    /// [`Unresolved::NarrowVdso`] when no process that had it could be read yet.
    pub fn image(&mut self, at: MappedAt, system: &System) -> Result<Arc<Image>, Unresolved> {
        let len = at.end - at.start;
        if let Some(known) = self.by_len.get(&len) {
            return Ok(known.clone());
        }
        let stored = system.vdso32(at);
        let image = stored.and_then(|stored| restored("[vdso32]", &stored));
        let image = Arc::new(image.ok_or(Unresolved::NarrowVdso)?);
        if self.by_len.len() < KINDS_MAX {
            self.by_len.insert(len, image.clone());
        }
        Ok(image)
    }
}

/// A vdso as a recording has it.
pub fn stored(image: &Image) -> StoredVdso {
    (image.id.to_string(), image.size_bytes, stored_procedures(image.procedures.as_ref()))
}

/// The vdso of that name that a recording has. `None` when its id is none.
pub fn restored(name: &str, (id, size_bytes, procedures): &StoredVdso) -> Option<Image> {
    let procedures = procedures.iter().map(|(start, end, name)| {
        Procedure::new(ImageOffset(*start), ImageOffset(*end), name.as_str())
    });
    Some(Image {
        id: id.parse().ok()?,
        kind: ImageKind::Vdso,
        name: name.to_owned(),
        path: name.to_owned(),
        size_bytes: *size_bytes,
        procedures: Some(Procedures::from_list(procedures)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapped_files::{Files, own_vdso};
    use kernel::MappedFileId;
    use kernel::procfs::executable_mappings;

    #[test]
    fn only_what_lies_below_4_gib_is_one() {
        let file = |path: &str| {
            Files::default()
                .intern(MappedFileId::Inode { major: 0, minor: 0, inode: 0 }, path.as_bytes())
        };
        for (start, path, expected) in [
            (0xf7f0_0000, "[vdso]", true),
            (0x7fff_0000_0000, "[vdso]", false),
            (0x4000_0000, "//anon", false),
            (0xffff_f000, "[vdso]", false),
        ] {
            let mapping = Mapping { start, end: start + 0x2000, file_offset: 0, file: file(path) };
            assert_eq!(NarrowVdso::is_at(&mapping), expected, "{start:x} {path}");
        }
    }

    /// No 32-bit program may be here; the way there is the same for this process's own.
    #[test]
    fn it_is_read_once_from_a_process_that_lives() {
        let own = executable_mappings(std::process::id()).unwrap();
        let line = own.iter().find(|line| line.path == b"[vdso]").unwrap();
        let mut narrow = NarrowVdso::default();
        let gone = MappedAt { pid: u32::MAX, start: line.start, end: line.end };
        assert_eq!(narrow.image(gone, &System::default()).unwrap_err(), Unresolved::NarrowVdso);
        let image =
            narrow.image(MappedAt { pid: std::process::id(), ..gone }, &System::default()).unwrap();
        assert_eq!((image.id, image.name.as_str()), (own_vdso().unwrap().id, "[vdso32]"));
        assert_eq!(
            narrow.image(gone, &System::default()).unwrap().id,
            image.id,
            "every process has the same"
        );
    }
}
