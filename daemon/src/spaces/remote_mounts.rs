//! Files that a program or another machine serves: FUSE, NFS and the like. Whoever asks for them
//! waits for an answer that may never come, so that any user could have the daemon stand still, and
//! not even end. So nothing here asks before it knows: a handle says which mount it is of
//! (statx(2), from what the kernel knows already), and the list of mounts says what that is.

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use rustix::fs::{AtFlags, MemfdFlags, StatxFlags};
use std::fs::{File, OpenOptions};
use std::io::Read as _;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::OnceLock;

/// Bytes of a list of mounts that are looked at: our own namespace's, and another's, which any user
/// may have made long. With a longer one nothing is known to be local.
const MOUNTINFO_BYTES_MAX: (u64, u64) = (4 << 20, 256 << 10);
/// Kinds of file systems that ask others, beside all of FUSE.
const SERVED: [&str; 11] =
    ["nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "afs", "autofs", "lustre", "coda", "orangefs"];

/// Whether a file system of this kind, as mountinfo names it, asks a program or another machine.
#[must_use]
pub fn asks_others(kind: &str) -> bool {
    kind == "fuse" || kind == "fuseblk" || kind.starts_with("fuse.") || SERVED.contains(&kind)
}

/// What a mapping of a process is of, as a handle that can be looked at but not read (O_PATH). None
/// when it is gone, or somebody else serves it.
#[must_use]
pub fn mapped(pid: u32, start: u64, end: u64) -> Option<File> {
    // The link leads to the file itself: nobody is asked for a name on the way.
    let link = format!("/proc/{pid}/map_files/{start:x}-{end:x}");
    let handle =
        OpenOptions::new().read(true).custom_flags(OFlag::O_PATH.bits()).open(link).ok()?;
    local(handle, &mounts(&pid.to_string())?)
}

/// What a path leads to for the process `pid` ("self": for us), as such a handle. The path is the
/// kernel's, without links. None when there is nothing, or it, or anything on the way, is served by
/// somebody else.
#[must_use]
pub fn at(pid: &str, path: &Path) -> Option<File> {
    let mounts = mounts(pid)?;
    let asks = |line: &str| {
        Mount::parse(line)
            .is_some_and(|mount| asks_others(mount.kind) && path.starts_with(mount.place))
    };
    // Mount points with blanks are escaped: where there are such, nothing below them is reached by
    // name.
    if mounts.lines().any(asks) || (mounts.contains("\\0") && has_escaped(path)) {
        return None;
    }
    let flags = (OFlag::O_PATH | OFlag::O_DIRECTORY).bits();
    let root =
        OpenOptions::new().read(true).custom_flags(flags).open(format!("/proc/{pid}/root")).ok()?;
    let resolve = ResolveFlag::RESOLVE_IN_ROOT
        | ResolveFlag::RESOLVE_NO_MAGICLINKS
        | ResolveFlag::RESOLVE_NO_SYMLINKS;
    let how = OpenHow::new().flags(OFlag::O_PATH | OFlag::O_CLOEXEC).resolve(resolve);
    let found = openat2(root, path.strip_prefix("/").ok()?, how).ok()?;
    local(File::from(found), &mounts)
}

/// One line of proc_pid_mountinfo(5).
struct Mount<'a> {
    number: u64,
    place: &'a str,
    kind: &'a str,
}

impl<'a> Mount<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (mount, source) = line.split_once(" - ")?;
        let mut words = mount.split(' ');
        Some(Self {
            number: words.next()?.parse().ok()?,
            place: words.nth(3)?,
            kind: source.split(' ').next()?,
        })
    }
}

/// Bytes that mountinfo writes as `\040` and the like.
fn has_escaped(path: &Path) -> bool {
    path.as_os_str()
        .as_encoded_bytes()
        .iter()
        .any(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\\' | b'#'))
}

fn mounts(pid: &str) -> Option<String> {
    let namespace = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
    let ours = namespace(pid)? == namespace("self")?;
    let limit = if ours { MOUNTINFO_BYTES_MAX.0 } else { MOUNTINFO_BYTES_MAX.1 };
    let mut text = Vec::new();
    let file = File::open(format!("/proc/{pid}/mountinfo")).ok()?;
    let read = file.take(limit).read_to_end(&mut text).ok()?;
    // Bytes that are no text are of names that are not looked for by name.
    ((read as u64) < limit).then(|| String::from_utf8_lossy(&text).into_owned())
}

/// The handle, if its mount is of a kind that asks nobody.
fn local(handle: File, mounts: &str) -> Option<File> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let known = rustix::fs::statx(handle.as_fd(), "", flags, StatxFlags::MNT_ID).ok()?;
    let of = |text: &str| {
        let mount =
            text.lines().filter_map(Mount::parse).find(|mount| mount.number == known.stx_mnt_id);
        mount.map(|mount| asks_others(mount.kind))
    };
    // Another namespace's mount, perhaps ours; none that anybody sees: memory of the kernel's own
    // mount, or a disk that was unmounted meanwhile.
    let asks = of(mounts).or_else(|| of(&self::mounts("self")?));
    let unseen = || known.stx_dev_major == 0 && Some((0, known.stx_dev_minor)) != memory();
    (!asks.unwrap_or_else(unseen)).then_some(handle)
}

/// The device of files that are in memory only (memfd_create).
fn memory() -> Option<(u32, u32)> {
    static MEMORY: OnceLock<Option<(u32, u32)>> = OnceLock::new();
    *MEMORY.get_or_init(|| {
        let device = File::from(rustix::fs::memfd_create("served", MemfdFlags::CLOEXEC).ok()?)
            .metadata()
            .ok()?
            .dev();
        let part = |part: u64| u32::try_from(part).ok();
        Some((part(nix::sys::stat::major(device))?, part(nix::sys::stat::minor(device))?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn files_of_disks_and_of_memory_are_local() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().canonicalize().unwrap().join("file");
        std::fs::write(&path, "x").unwrap();
        let handle = at("self", &path).unwrap();
        assert_eq!(handle.metadata().unwrap().ino(), path.metadata().unwrap().ino());
        std::os::unix::fs::symlink(&path, directory.path().join("link")).unwrap();
        assert!(
            at("self", &directory.path().canonicalize().unwrap().join("link")).is_none(),
            "the kernel's paths have none"
        );
        assert!(
            at("self", Path::new("relative")).is_none()
                && at("self", Path::new("/does/not/exist")).is_none()
        );
        let mut memory = File::from(rustix::fs::memfd_create("x", MemfdFlags::CLOEXEC).unwrap());
        memory.write_all(b"x").unwrap();
        assert!(local(memory, &mounts("self").unwrap()).is_some());
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let own = maps.lines().find(|line| line.contains(" r-xp ") && line.contains('/')).unwrap();
        let (start, end) = own.split(' ').next().unwrap().split_once('-').unwrap();
        let number = |text| u64::from_str_radix(text, 16).unwrap();
        // Others' mappings need a capability, and one's own too.
        let root = nix::unistd::geteuid().is_root();
        assert_eq!(mapped(std::process::id(), number(start), number(end)).is_some(), root);
    }

    #[test]
    fn what_is_served_is_told_by_its_mount() {
        for (kind, expected) in [
            ("fuse", true),
            ("fuse.sshfs", true),
            ("fuseblk", true),
            ("nfs4", true),
            ("ext4", false),
            ("fusectl", false),
        ] {
            assert_eq!(asks_others(kind), expected, "{kind}");
        }
        let mount = Mount::parse("30 22 0:30 /a /mnt\\040x rw shared:2 master:3 - nfs4 host:/x rw")
            .unwrap();
        assert_eq!((mount.number, mount.place, mount.kind), (30, "/mnt\\040x", "nfs4"));
        assert!(Mount::parse("rubbish - x").is_none() && Mount::parse("").is_none());
        // The same file, were its mount another.
        let file = || File::open("/proc/self/exe").unwrap();
        let known =
            rustix::fs::statx(file().as_fd(), "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID).unwrap();
        let mount = |kind: &str| format!("{} 1 0:30 / / rw - {kind} x rw\n", known.stx_mnt_id);
        assert!(
            local(file(), &mount("ext4")).is_some() && local(file(), &mount("fuse.x")).is_none()
        );
    }
}
