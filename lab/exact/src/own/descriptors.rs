//! Receives a descriptor of each file when code is mapped from it, and holds it to the end of the
//! run: as long as it is held, a file that is deleted can be read, and no other file gets its
//! device and inode.

use crate::file::key;
use blockcount::area::SOCKET;
use rustix::cmsg_space;
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

/// Most descriptors that are held: a run of `configure` makes and deletes some thousand programs.
/// Beyond, files are found by their paths only. A deleted file takes its place on the disk until
/// the end of the run.
const HELD_MAX: usize = 16_384;
/// Descriptors that are left for everything else.
const LEFT: u64 = 256;

/// Files by device and inode.
pub(super) type Held = BTreeMap<(u64, u64), File>;

/// A thread that receives.
pub(super) struct Receiver {
    path: PathBuf,
    /// Connected to the thread's own socket, for its end.
    end: UnixDatagram,
    thread: JoinHandle<Held>,
}

impl Receiver {
    /// Listens in a folder of counts.
    ///
    /// # Errors
    /// Returns the errors of sockets.
    pub(super) fn listen(folder: &Path) -> io::Result<Self> {
        let path = folder.join(SOCKET);
        let socket = UnixDatagram::bind(&path)?;
        let end = UnixDatagram::unbound()?;
        end.connect(&path)?;
        let thread = std::thread::Builder::new().spawn(move || receive(&socket))?;
        Ok(Self { path, end, thread })
    }

    /// Ends the thread, after what was sent until now. Returns what it holds.
    pub(super) fn end(self) -> Held {
        // Nothing is sent from now on, and what is in the folder are counts.
        let _ = fs::remove_file(&self.path);
        match self.end.send(b"e") {
            Ok(_) => self.thread.join().unwrap_or_default(),
            Err(_) => Held::new(),
        }
    }
}

fn receive(socket: &UnixDatagram) -> Held {
    let mut held = Held::new();
    let mut limit = 0;
    loop {
        let mut byte = [0];
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut byte)];
        match recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(_) => return held,
        }
        for message in control.drain() {
            let RecvAncillaryMessage::ScmRights(descriptors) = message else { continue };
            for file in descriptors.map(File::from) {
                let known = file.metadata().ok().filter(Metadata::is_file);
                if let Some(known) = known.filter(|_| held.len() < HELD_MAX) {
                    held.entry(key(&known)).or_insert(file);
                }
            }
        }
        if byte == [b'e'] {
            return held;
        }
        if held.len() as u64 + LEFT > limit {
            limit = raise_limit(held.len() as u64 + 2 * LEFT);
        }
    }
}

/// Raises the number of descriptors that this process may have to at least `wanted`, if it may.
/// The command has begun by then, and has the limit of before. Returns the limit.
fn raise_limit(wanted: u64) -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let soft = limit.current.unwrap_or(u64::MAX);
    let raised = (2 * wanted).min(limit.maximum.unwrap_or(u64::MAX));
    let raised_limit = Rlimit { current: Some(raised), ..limit };
    if wanted > soft && setrlimit(Resource::Nofile, raised_limit).is_ok() { raised } else { soft }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests panic to fail")]
mod tests {
    use super::*;
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    use std::io::IoSlice;
    use std::os::fd::AsFd as _;

    #[test]
    fn each_file_is_held_once_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let receiver = Receiver::listen(folder.path()).unwrap();
        let sender = UnixDatagram::unbound().unwrap();
        sender.connect(folder.path().join(SOCKET)).unwrap();
        let send = |path: &Path| {
            let descriptors = [File::open(path).unwrap()];
            let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            let descriptors = descriptors.each_ref().map(|file| file.as_fd());
            assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
            let bytes = [IoSlice::new(b"f")];
            sendmsg(&sender, &bytes, &mut control, SendFlags::empty()).unwrap();
        };
        let (one, two) = (folder.path().join("one"), folder.path().join("two"));
        fs::write(&one, "1").unwrap();
        fs::write(&two, "2").unwrap();
        let keys = [&one, &two].map(|path| key(&fs::metadata(path).unwrap()));
        for path in [&one, &two, &one, folder.path()] {
            send(path);
        }
        fs::remove_file(&one).unwrap();
        let held = receiver.end();
        assert_eq!(held.keys().copied().collect::<Vec<_>>().len(), 2);
        assert!(keys.iter().all(|key| held.contains_key(key)));
        assert!(!folder.path().join(SOCKET).exists());
    }
}
