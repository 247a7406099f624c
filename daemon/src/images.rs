//! From mapped files to images: which build of which file a mapping shows.
//!
//! A build id in the kernel's record is taken as it is; otherwise the file is opened, through the process while it lives, and read. Either
//! happens once for a file, when its first sample is resolved.

use crate::kernel::MappedFileId;
use crate::unresolved::Reason;
use image::{ImageId, ImageKind, Procedures};
use profiledb::ImageRecord;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// Files remembered although no process maps them; beyond it those are forgotten and, if they come back, learnt again.
const FILES_MAX: usize = 16_384;

/// Something that has code in it and a name that outlives this boot.
#[derive(Debug)]
pub struct Image {
    /// Which build.
    pub id: ImageId,
    /// What it is.
    pub kind: ImageKind,
    /// Last component of the path, or a name in brackets.
    pub name: String,
    /// Path as the process named it, escaped as in the database ([`ImageRecord::escape_path`]).
    pub path: String,
    /// Size of the file in bytes, where it was opened.
    pub size_bytes: Option<u64>,
    /// Procedures of an image that is nowhere on disk (the vdso), to be kept beside its profile.
    pub procedures: Option<Procedures>,
}

/// A file as processes map it.
#[derive(Debug)]
pub struct MappedFile {
    /// What the kernel said it is.
    pub id: MappedFileId,
    /// Path or label.
    pub path: Vec<u8>,
    image: OnceLock<Result<Arc<Image>, Reason>>,
}

/// Where a file is mapped, to find it through the process.
#[derive(Clone, Copy, Debug)]
pub struct MappedAt {
    /// Process.
    pub pid: u32,
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
}

/// All files that processes map, each once.
#[derive(Debug, Default)]
pub struct Files {
    known: HashMap<(MappedFileId, Vec<u8>), Arc<MappedFile>>,
}

impl Files {
    /// The file of that identity and path.
    pub fn intern(&mut self, id: MappedFileId, path: &[u8]) -> Arc<MappedFile> {
        if let Some(file) = self.known.get(&(id.clone(), path.to_vec())) {
            // An inode that nobody maps any more may be another file by now: rebuilt in place, or its number reused.
            let may_be_another = matches!(id, MappedFileId::Inode { .. }) && Arc::strong_count(file) == 1;
            if !may_be_another {
                return file.clone();
            }
        }
        if self.known.len() >= FILES_MAX {
            self.known.retain(|_, file| Arc::strong_count(file) > 1);
        }
        let file = Arc::new(MappedFile { id: id.clone(), path: path.to_vec(), image: OnceLock::new() });
        self.known.insert((id, path.to_vec()), file.clone());
        file
    }

    /// Files known now.
    #[must_use]
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }
}

impl MappedFile {
    /// The image, found out on the first call; `at` is where it is mapped then, and `vdso` the kernel's.
    ///
    /// # Errors
    /// Why nobody can know.
    pub fn image(&self, at: MappedAt, vdso: Option<&Arc<Image>>) -> Result<Arc<Image>, Reason> {
        self.image.get_or_init(|| self.identify(at, vdso)).clone()
    }

    fn identify(&self, at: MappedAt, vdso: Option<&Arc<Image>>) -> Result<Arc<Image>, Reason> {
        match self.path.as_slice() {
            b"[vdso]" => return vdso.cloned().ok_or(Reason::Unidentified),
            b"[vsyscall]" => return Err(Reason::Vsyscall),
            _ => {}
        }
        match &self.id {
            MappedFileId::BuildId(bytes) => {
                let id = ImageId::from_build_id(bytes).ok_or(Reason::Unidentified)?;
                Ok(Arc::new(self.as_image(id, None)))
            }
            MappedFileId::Inode { inode: 0, .. } => Err(Reason::Anonymous),
            MappedFileId::Inode { .. } => {
                let file = self.open(at).ok_or(Reason::FileGone)?;
                let id = image::identify_file(&file).map_err(|error| match error {
                    image::ImageError::NotElf => Reason::NotElf,
                    _ => Reason::Unidentified,
                })?;
                let size_bytes = file.metadata().ok().map(|metadata| metadata.len());
                Ok(Arc::new(self.as_image(id, size_bytes)))
            }
        }
    }

    fn as_image(&self, id: ImageId, size_bytes: Option<u64>) -> Image {
        let path = self.path.strip_suffix(b" (deleted)").unwrap_or(&self.path);
        let path = ImageRecord::escape_path(Path::new(OsStr::from_bytes(path)));
        let name = path.rsplit('/').find(|part| !part.is_empty()).unwrap_or("?").to_owned();
        Image { id, kind: ImageKind::File, name, path, size_bytes, procedures: None }
    }

    /// Opens this very file: through the mapping itself (any mount namespace, deleted or not), or by its path as the process or we see
    /// it. Never blocks on what is no file, and believes a path only if it leads to the same inode.
    pub(crate) fn open(&self, at: MappedAt) -> Option<File> {
        let MappedFileId::Inode { major, minor, inode } = self.id else { return None };
        let path = OsStr::from_bytes(&self.path);
        let mut in_process = PathBuf::from(format!("/proc/{}/root", at.pid)).into_os_string();
        in_process.push(path);
        let through_mapping = PathBuf::from(format!("/proc/{}/map_files/{:x}-{:x}", at.pid, at.start, at.end));
        let same = |file: &File| {
            file.metadata().is_ok_and(|metadata| {
                let device = (nix::sys::stat::major(metadata.dev()), nix::sys::stat::minor(metadata.dev()));
                // Layered file systems (overlayfs, btrfs) report another device for the file than for the mapping; the inode must
                // match in any case.
                metadata.is_file()
                    && metadata.ino() == inode
                    && (device.0 == 0 || device == (u64::from(major), u64::from(minor)))
            })
        };
        let open = |path: PathBuf| {
            let nonblocking = nix::fcntl::OFlag::O_NONBLOCK.bits() | nix::fcntl::OFlag::O_NOCTTY.bits();
            OpenOptions::new().read(true).custom_flags(nonblocking).open(path).ok()
        };
        open(through_mapping)
            .filter(|file| file.metadata().is_ok_and(|metadata| metadata.is_file()))
            .or_else(|| open(PathBuf::from(in_process)).filter(same))
            .or_else(|| open(PathBuf::from(path)).filter(same))
    }
}

/// The vdso as this process has it: every 64-bit process of one kernel has the same. None where the kernel gives none.
#[must_use]
pub fn own_vdso() -> Option<Arc<Image>> {
    use std::io::{Read, Seek, SeekFrom};
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let range = maps.lines().find(|line| line.ends_with("[vdso]"))?.split_whitespace().next()?;
    let (start, end) = range.split_once('-')?;
    let (start, end) = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
    let mut bytes = vec![0; usize::try_from(end.checked_sub(start)?).ok().filter(|len| *len <= 1 << 20)?];
    let mut memory = File::open("/proc/self/mem").ok()?;
    memory.seek(SeekFrom::Start(start)).ok()?;
    memory.read_exact(&mut bytes).ok()?;
    let id = image::identify(&bytes).ok()?;
    let procedures = image::procedures_of(&bytes, Some(&id), &[]).ok().map(|(procedures, _)| procedures);
    let name = "[vdso]".to_owned();
    Some(Arc::new(Image {
        id,
        kind: ImageKind::Vdso,
        path: name.clone(),
        name,
        size_bytes: Some(end - start),
        procedures,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here() -> MappedAt {
        MappedAt { pid: std::process::id(), start: 0, end: 0 }
    }

    #[test]
    fn a_file_without_a_build_id_in_its_record_is_opened_and_read() {
        let path = std::env::current_exe().unwrap();
        let metadata = path.metadata().unwrap();
        let (major, minor) =
            (nix::sys::stat::major(metadata.dev()) as u32, nix::sys::stat::minor(metadata.dev()) as u32);
        let mut files = Files::default();
        let name = path.as_os_str().as_encoded_bytes();
        let image = files
            .intern(MappedFileId::Inode { major, minor, inode: metadata.ino() }, name)
            .image(here(), None)
            .unwrap();
        assert_eq!(image.id, image::identify_file(&File::open(&path).unwrap()).unwrap());
        assert_eq!(image.size_bytes, Some(metadata.len()));
        assert_eq!(image.name, path.file_name().unwrap().to_str().unwrap());
        let other =
            files.intern(MappedFileId::Inode { major, minor, inode: metadata.ino() + 1 }, name).image(here(), None);
        assert_eq!(other.unwrap_err(), Reason::FileGone, "the path now leads to another file");
    }

    #[test]
    fn labels_of_the_kernel_are_not_files() {
        let mut files = Files::default();
        let none = MappedFileId::Inode { major: 0, minor: 0, inode: 0 };
        for (path, reason) in
            [("//anon", Reason::Anonymous), ("[vsyscall]", Reason::Vsyscall), ("[vdso]", Reason::Unidentified)]
        {
            assert_eq!(files.intern(none.clone(), path.as_bytes()).image(here(), None).unwrap_err(), reason, "{path}");
        }
        let vdso = own_vdso().expect("this kernel gives a vdso");
        assert_eq!(files.intern(none, b"[vdso] ").image(here(), Some(&vdso)).unwrap_err(), Reason::Anonymous);
        assert!(
            vdso.procedures
                .as_ref()
                .is_some_and(|procedures| procedures.iter().any(|p| p.name().contains("clock_gettime")))
        );
    }

    #[test]
    fn a_build_id_needs_no_file() {
        let file = Files::default().intern(MappedFileId::BuildId(vec![0xab; 20]), b"/gone/for/ever (deleted)");
        let image = file.image(here(), None).unwrap();
        assert_eq!((image.name.as_str(), image.path.as_str()), ("ever", "/gone/for/ever"));
        assert_eq!(image.id.to_string(), "ab".repeat(20));
    }

    /// A program without build id was rebuilt in place between two runs, and both runs' samples went to the first build.
    #[test]
    fn an_inode_that_nobody_maps_is_looked_at_again() {
        let mut files = Files::default();
        let id = MappedFileId::Inode { major: 0, minor: 1, inode: 2 };
        let first = files.intern(id.clone(), b"/bin/x");
        assert!(Arc::ptr_eq(&first, &files.intern(id.clone(), b"/bin/x")), "one that is mapped is the same");
        let weak = Arc::downgrade(&first);
        drop(first);
        files.intern(id, b"/bin/x");
        assert!(weak.upgrade().is_none());
    }

    #[test]
    fn files_that_nobody_maps_are_forgotten() {
        let mut files = Files::default();
        let kept = files.intern(MappedFileId::BuildId(vec![1; 20]), b"/kept");
        for n in 0..FILES_MAX as u64 * 2 {
            files.intern(MappedFileId::Inode { major: 0, minor: 0, inode: n }, b"/passing");
        }
        assert!(files.len() <= FILES_MAX);
        assert!(Arc::ptr_eq(&kept, &files.intern(MappedFileId::BuildId(vec![1; 20]), b"/kept")));
    }
}
