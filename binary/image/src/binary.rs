//! An image's file, or its kept part, held open for several questions, so that all answers are
//! about one build, whatever happens to the path.

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::collect::{collect, collect_at, symbols};
use crate::elf::{Elf, malformed};
use crate::identify::identify_elf;
use crate::source::{self, Source};
use crate::{
    Constants, Finding, ImageError, ImageId, ImageOffset, Imports, KeptFile, Layout, Procedures,
};

/// Most bytes of code read at once: hand-written procedures are smaller. The limit bounds the
/// memory that a damaged file can cost.
pub const CODE_BYTES_MAX: u64 = 4 << 20;

/// An ELF file, or the kept part of one.
#[derive(Debug)]
pub struct Binary {
    content: Content,
    /// Path where the file is or was: debug files may be near.
    path: Option<PathBuf>,
    machine: u16,
    layout: Layout,
}

#[derive(Debug)]
enum Content {
    File(File),
    Kept(KeptFile),
}

impl Binary {
    /// Opens the ELF file at `path`, if it is the build `expect` (`None`: any build).
    ///
    /// # Errors
    /// [`ImageError::WrongBuild`]; [`ImageError::NotElf`]; [`ImageError::Malformed`] or
    /// [`ImageError::TooLarge`] when the file or program headers are; [`ImageError::NotRegular`];
    /// [`ImageError::Io`]. When a build is expected, also [`ImageError::NoText`].
    pub fn open(path: &Path, expect: Option<&ImageId>) -> Result<Self, ImageError> {
        let file = source::open(path)?;
        Self::new(Content::File(file), Some(path), expect).map_err(|error| error.of(path))
    }

    /// An open ELF file, of any build.
    ///
    /// # Errors
    /// As [`Binary::open`].
    pub fn of_file(file: File) -> Result<Self, ImageError> {
        Self::new(Content::File(file), None, None)
    }

    /// Opens the kept part of a file that was at `path`, if it is of the build `expect`.
    pub fn of_kept(
        kept: KeptFile,
        path: Option<&Path>,
        expect: Option<&ImageId>,
    ) -> Result<Self, ImageError> {
        if let Some(expected) = expect
            && !kept.may_be(expected)?
        {
            return Err(ImageError::WrongBuild { expected: *expected, found: kept.identify()? });
        }
        Self::new(Content::Kept(kept), path, None)
    }

    fn new(
        content: Content,
        path: Option<&Path>,
        expect: Option<&ImageId>,
    ) -> Result<Self, ImageError> {
        let (machine, layout) = {
            let elf = Elf::parse(content.source()?)?;
            if let Some(expected) = expect {
                let found = identify_elf(&elf)?;
                if !expected.is_build(&found) {
                    return Err(ImageError::WrongBuild { expected: *expected, found });
                }
            }
            (elf.machine, Layout::of_elf(&elf))
        };
        Ok(Self { content, path: path.map(Path::to_path_buf), machine, layout })
    }

    /// `e_machine`: the instruction set (System V ABI).
    pub fn machine(&self) -> u16 {
        self.machine
    }

    /// The GNU build id, by which debuginfod servers and distributions know the file.
    pub fn build_id(&self) -> Option<ImageId> {
        self.elf().ok()?.build_id()
    }

    /// The layout of the file.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Path where the file is or was.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// False for the kept part of a file.
    pub fn is_whole(&self) -> bool {
        matches!(self.content, Content::File(_))
    }

    /// The kept part, where that is all there is.
    pub fn kept(&self) -> Option<&KeptFile> {
        match &self.content {
            Content::File(_) => None,
            Content::Kept(kept) => Some(kept),
        }
    }

    /// The procedures, as [`crate::procedures`] finds them.
    ///
    /// # Errors
    /// As [`crate::procedures`], but without errors about the build, which is known.
    pub fn procedures(
        &self,
        debug_roots: &[PathBuf],
    ) -> Result<(Procedures, Vec<Finding>), ImageError> {
        collect(self.content.source()?, None, self.path(), debug_roots)
    }

    /// The procedures that hold one of `offsets`, each as it is among all of
    /// [`Binary::procedures`]; other procedures may be among them. If no offset is given, all
    /// procedures.
    pub fn procedures_at(
        &self,
        debug_roots: &[PathBuf],
        offsets: &[ImageOffset],
    ) -> Result<(Procedures, Vec<Finding>), ImageError> {
        match collect_at(self.content.source()?, None, self.path(), debug_roots, Some(offsets))? {
            (procedures, _) if procedures.is_empty() => self.procedures(debug_roots),
            found => Ok(found),
        }
    }

    /// Whether the file has a section of that name; false for the kept part of a file, which has
    /// no sections.
    ///
    /// # Errors
    /// [`ImageError`] where the section headers are malformed.
    pub fn has_section(&self, name: &str) -> Result<bool, ImageError> {
        if !self.is_whole() {
            return Ok(false);
        }
        Ok(self.elf()?.sections()?.iter().any(|section| &*section.name == name))
    }

    /// Symbols of code that `is_wanted` selects, by their start and their name as the image has it;
    /// at most 100. [`Binary::procedures`] has only one of several symbols at the same address.
    pub fn symbols(
        &self,
        debug_roots: &[PathBuf],
        is_wanted: impl Fn(ImageOffset, &str) -> bool,
    ) -> Result<Vec<(ImageOffset, String)>, ImageError> {
        symbols(self.content.source()?, self.path(), debug_roots, is_wanted)
    }

    /// The bytes of the section of that name; None where the file has none, or more than `limit`
    /// bytes.
    ///
    /// # Errors
    /// [`ImageError::Malformed`], [`ImageError::TooLarge`], [`ImageError::Io`].
    pub fn section(&self, name: &str, limit: u64) -> Result<Option<Vec<u8>>, ImageError> {
        let elf = self.elf()?;
        let sections = elf.sections()?;
        let Some(section) = sections.iter().find(|section| &*section.name == name) else {
            return Ok(None);
        };
        if !self.is_whole() || !section.has_bytes() {
            return Ok(None);
        }
        Ok(Some(elf.section_bytes("section", section, limit)?.into_owned()))
    }

    /// The constant memory, as [`Constants::of_file`] finds it.
    pub fn constants(&self) -> Result<Constants, ImageError> {
        Constants::of_elf(&self.elf()?)
    }

    /// The words through which the file calls other files, as [`Imports::of_file`] finds them.
    pub fn imports(&self) -> Result<Imports, ImageError> {
        Imports::of_elf(&self.elf()?)
    }

    /// `len` bytes from `offset`.
    ///
    /// # Errors
    /// [`ImageError::Malformed`] when they are not in the file, or were not kept;
    /// [`ImageError::TooLarge`] beyond [`CODE_BYTES_MAX`]; [`ImageError::Io`].
    pub fn code(&self, offset: ImageOffset, len: u64) -> Result<Vec<u8>, ImageError> {
        if let Content::Kept(kept) = &self.content
            && usize::try_from(len).ok().is_none_or(|len| kept.get(offset.0, len).is_none())
        {
            return Err(malformed("code", offset.0));
        }
        self.code_or_zeros(offset, len)
    }

    /// As [`Binary::code`], with zeros where no bytes were kept.
    ///
    /// # Errors
    /// Returns the errors of [`Binary::code`], but without the error for bytes that were not kept.
    pub fn code_or_zeros(&self, offset: ImageOffset, len: u64) -> Result<Vec<u8>, ImageError> {
        Ok(self.content.source()?.read("code", offset.0, len, CODE_BYTES_MAX)?.into_owned())
    }

    /// The file's headers, with the source of its bytes.
    pub(crate) fn elf(&self) -> Result<Elf<'_>, ImageError> {
        Elf::parse(self.content.source()?)
    }
}

impl Content {
    fn source(&self) -> Result<Source<'_>, ImageError> {
        match self {
            Self::File(file) => Source::file(file),
            Self::Kept(kept) => Ok(Source::Kept(kept)),
        }
    }
}
