//! The loader hook's notices: a Unix datagram socket that every program may write to, and the check
//! of what they say.
//!
//! A notice is only a hint. It is first compared with the kernel's records. Only if they have no
//! such mapping is the sender looked up in /proc, and only mappings that /proc shows are added, and
//! only of the build that the notice names. The process is the one that the kernel names
//! (SCM_CREDENTIALS, unix(7)), not the one in the notice, so no process can report mappings for
//! another.
//!
//! The socket is read together with the kernel's records, ten times a second, and not when a
//! datagram arrives: waking the daemon would cost the sending program more than the rest of the
//! hook. A datagram that does not fit into the socket's queue meanwhile (`net.unix.max_dgram_qlen`,
//! 10 or 512 datagrams) is dropped by its sender.

use crate::mappings::Mappings;
use crate::system::System;
use abi::notice::{DATAGRAM_MAX, Datagram};
use image::ImageId;
use inspect::open_mapped::MappedAt;
use inspect::questions::{BuildIdOf, FileAt};
use kernel::clock;
use kernel::latin1::Bytes;
use kernel::procfs::MapsLine;
use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, UnixAddr, UnixCredentials, recvmsg, setsockopt, sockopt,
};
use std::collections::HashMap;
use std::io::{self, IoSliceMut};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use wire::LoaderStatus;

/// Datagrams read at once; the rest waits in the socket's queue.
const DATAGRAMS_MAX: usize = 256;
/// Objects that wait for the next drain; more are refused.
const WAITING_MAX: usize = 4096;
/// Processes looked up in /proc per second, each once, and the CPU time that this may take: a
/// single process with 65530 mappings uses all of it.
const LOOKS_MAX: usize = 64;
const LOOKS_CPU_NS: u64 = 20_000_000;
const LOOKS_TERM_NS: u64 = 1_000_000_000;

/// Why the socket could not be bound.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot listen to the loader hook on {path} ({source}); choose another --loader-socket, or off"
)]
pub struct LoaderError {
    path: String,
    source: io::Error,
}

/// An object that a process claims to have mapped.
struct Hint {
    /// As the kernel names the sender.
    pid: u32,
    /// First address of its code.
    address: u64,
    build: Option<ImageId>,
    /// The answer of /proc when the notice came, if /proc was read.
    seen: Option<Arc<Seen>>,
}

/// The mappings of a process in /proc, with the time of reading them.
struct Seen {
    lines: Option<Vec<MapsLine>>,
    time_ns: u64,
}

/// Look-ups of the current second.
#[derive(Default)]
struct Looks {
    began_ns: u64,
    cpu_ns: u64,
    seen: HashMap<u32, Arc<Seen>>,
}

/// The bound socket; its file is removed on drop.
struct Bound {
    socket: UnixDatagram,
    path: PathBuf,
}

/// The socket and the notices received. Without a socket (the default) it does nothing.
#[derive(Default)]
pub struct Notices {
    socket: Option<Bound>,
    waiting: Vec<Hint>,
    looks: Looks,
    /// The kernel has dropped records since the last drain.
    is_doubtful: bool,
    counts: LoaderStatus,
    /// Answers questions about senders.
    system: System,
}

impl Notices {
    /// Binds the socket, to which any user may send. A socket left by a dead daemon is replaced;
    /// any other file is not.
    ///
    /// # Errors
    /// Another process listens on the path, or the system refuses.
    pub fn bind(path: &Path) -> Result<Self, LoaderError> {
        let fail = |source| LoaderError { path: path.display().to_string(), source };
        if UnixDatagram::unbound().and_then(|probe| probe.connect(path)).is_ok() {
            return Err(fail(io::Error::new(
                io::ErrorKind::AddrInUse,
                "another dcpid listens there",
            )));
        }
        if path.symlink_metadata().is_ok_and(|metadata| metadata.file_type().is_socket()) {
            std::fs::remove_file(path).map_err(fail)?;
        }
        if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            std::fs::create_dir_all(parent).map_err(fail)?;
        }
        let socket = UnixDatagram::bind(path).map_err(fail)?;
        socket.set_nonblocking(true).map_err(fail)?;
        setsockopt(&socket, sockopt::PassCred, &true).map_err(|error| fail(error.into()))?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666)).map_err(fail)?;
        Ok(Self { socket: Some(Bound { socket, path: path.to_owned() }), ..Self::default() })
    }

    /// Asks about senders there.
    #[must_use]
    pub fn asking(self, system: System) -> Self {
        Self { system, ..self }
    }

    /// Notices so far.
    pub fn counts(&self) -> LoaderStatus {
        self.counts.clone()
    }

    /// Reads the waiting notices. If the kernel has dropped records, the senders are looked up at
    /// once, because they may end before the next drain.
    pub fn read(&mut self, records_were_lost: bool, now_ns: u64) {
        self.is_doubtful |= records_were_lost;
        // One byte more than the limit, so that a datagram that is too long is noticed.
        let mut bytes = [0; DATAGRAM_MAX + 1];
        for _ in 0..DATAGRAMS_MAX {
            let received =
                self.socket.as_ref().and_then(|bound| receive(&bound.socket, &mut bytes));
            let Some((len, pid)) = received else { break };
            self.take(bytes.get(..len).unwrap_or_default(), pid, now_ns);
        }
    }

    fn take(&mut self, datagram: &[u8], pid: Option<u32>, now_ns: u64) {
        let (Some(pid), Some(objects)) = (pid, Datagram::decode(datagram)) else {
            self.counts.received += 1;
            self.counts.refused += 1;
            return;
        };
        for object in objects {
            let build = ImageId::from_build_id(object.build_id);
            self.admit(Hint { pid, address: object.start, build, seen: None }, now_ns);
        }
    }

    fn admit(&mut self, mut hint: Hint, now_ns: u64) {
        self.counts.received += 1;
        if self.waiting.len() >= WAITING_MAX {
            self.counts.refused += 1;
            return;
        }
        if self.is_doubtful {
            hint.seen = self.looks.look(hint.pid, &self.system, now_ns);
        }
        self.waiting.push(hint);
    }

    /// Compares the waiting notices with the known mappings. Call it when all records before
    /// `now_ns` are applied.
    pub fn judge(&mut self, mappings: &mut Mappings, now_ns: u64) {
        for hint in std::mem::take(&mut self.waiting) {
            if mappings.shows(hint.pid, hint.address) {
                self.counts.known += 1;
            } else if self.learn(hint, mappings, now_ns).is_some() {
                self.counts.learnt += 1;
            } else {
                self.counts.refused += 1;
            }
        }
        self.is_doubtful = false;
    }

    /// Adds the mapping that /proc shows at the hint's address; None if /proc shows no mapping or
    /// another build, or must not be read now.
    fn learn(&mut self, hint: Hint, mappings: &mut Mappings, now_ns: u64) -> Option<()> {
        let seen = hint.seen.or_else(|| self.looks.look(hint.pid, &mappings.system, now_ns))?;
        if mappings.has_left_since(hint.pid, seen.time_ns) {
            return None; // what was seen was another program's
        }
        let line = seen
            .lines
            .as_ref()?
            .iter()
            .find(|line| (line.start..line.end).contains(&hint.address))?;
        if let Some(build) = hint.build {
            let found =
                self.looks.spend(&mappings.system, || build_in(hint.pid, line, &mappings.system));
            found?.filter(|found| *found == build)?;
        }
        let at = MappedAt { pid: hint.pid, start: line.start, end: line.end };
        let file = mappings.files.look_at(&line.file, &line.path, at, now_ns);
        mappings.take_up(hint.pid, line, file, now_ns);
        // A limit may have refused it.
        mappings.shows(hint.pid, hint.address).then_some(())
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        // A socket left behind is replaced by the next daemon.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Looks {
    /// The process's mappings from /proc, read at most once per second. None when the limit of
    /// look-ups is reached.
    fn look(&mut self, pid: u32, system: &System, now_ns: u64) -> Option<Arc<Seen>> {
        if now_ns.saturating_sub(self.began_ns) >= LOOKS_TERM_NS {
            *self = Self { began_ns: now_ns, ..Self::default() };
        }
        if !self.seen.contains_key(&pid) {
            if self.seen.len() >= LOOKS_MAX {
                return None;
            }
            let lines =
                self.spend(system, || system.maps(pid).filter(|lines| !lines.is_empty()))?;
            self.seen.insert(pid, Arc::new(Seen { lines, time_ns: now_ns }));
        }
        self.seen.get(&pid).cloned()
    }

    /// Reads /proc if this second's CPU time is not used up.
    fn spend<T>(&mut self, system: &System, work: impl FnOnce() -> T) -> Option<T> {
        if self.cpu_ns >= LOOKS_CPU_NS {
            return None;
        }
        let cpu_ns = || clock::thread_cpu_ns() + system.inspectors().own_cpu_ns();
        let before = cpu_ns();
        let result = work();
        self.cpu_ns += cpu_ns().saturating_sub(before);
        Some(result)
    }
}

/// The build id of the very file that the process has there.
fn build_in(pid: u32, line: &MapsLine, system: &System) -> Option<ImageId> {
    let at = MappedAt { pid, start: line.start, end: line.end };
    let file = FileAt { id: line.file.clone(), path: Bytes(line.path.clone()), at };
    let Bytes(id) = system.inspectors().ask(BuildIdOf(file))??;
    ImageId::from_build_id(&id)
}

/// One datagram: its length, and who sent it as the kernel says. None when there is none.
fn receive(socket: &UnixDatagram, bytes: &mut [u8]) -> Option<(usize, Option<u32>)> {
    // Room for the credentials only: descriptors that somebody sends along are dropped by the
    // kernel.
    let mut space = nix::cmsg_space!(UnixCredentials);
    let mut parts = [IoSliceMut::new(bytes)];
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_CMSG_CLOEXEC;
    let message =
        recvmsg::<UnixAddr>(socket.as_raw_fd(), &mut parts, Some(&mut space), flags).ok()?;
    let pid = message.cmsgs().ok().into_iter().flatten().find_map(|control| match control {
        ControlMessageOwned::ScmCredentials(credentials) => {
            u32::try_from(credentials.pid()).ok().filter(|pid| *pid > 0)
        }
        _ => None,
    });
    Some((message.bytes, pid))
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::notice::{self, LoaderNotice};
    use kernel::procfs::executable_mappings;
    use nix::sys::socket::{ControlMessage, sendmsg};
    use std::io::{IoSlice, Read};
    use std::process::{Child, Command, Stdio};

    const SECOND: u64 = 1_000_000_000;

    struct Place {
        directory: tempfile::TempDir,
        notices: Notices,
        mappings: Mappings,
    }

    impl Place {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let notices = Notices::bind(&directory.path().join("l.sock")).unwrap();
            Self { directory, notices, mappings: Mappings::default() }
        }

        fn send(&self, datagram: &[u8]) -> io::Result<usize> {
            let sender = UnixDatagram::unbound().unwrap();
            sender.set_nonblocking(true).unwrap();
            sender.send_to(datagram, self.directory.path().join("l.sock"))
        }

        /// Reads and judges: received, known, learnt, refused so far.
        fn counts(&mut self, now_ns: u64) -> [u64; 4] {
            self.notices.read(false, now_ns);
            self.notices.judge(&mut self.mappings, now_ns);
            let LoaderStatus { received, known, learnt, refused } = self.notices.counts();
            [received, known, learnt, refused]
        }
    }

    fn datagram(pid: u32, address: u64, build_id: &[u8]) -> Vec<u8> {
        let mut buffer = [0; DATAGRAM_MAX];
        let used = notice::begin(&mut buffer, pid).unwrap();
        let object =
            LoaderNotice { base: 0, start: address, end: address + 1, build_id, path: b"/x" };
        let used = notice::push(&mut buffer, used, &object).unwrap();
        buffer[..used].to_vec()
    }

    /// An address in this program's code, and its build id.
    fn own() -> (u64, Vec<u8>) {
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let id = image::build_id_of_file(&file).unwrap();
        (
            own as fn() -> (u64, Vec<u8>) as usize as u64,
            id.and_then(|id| Some(id.build_id()?.to_vec())).unwrap_or_default(),
        )
    }

    /// A process that does nothing, and where its code is.
    struct Sleeper {
        child: Child,
        address: u64,
    }

    impl Sleeper {
        fn new() -> Self {
            let child = Command::new("sleep").arg("100").stdout(Stdio::null()).spawn().unwrap();
            let mut sleeper = Self { child, address: 0 };
            while sleeper.address == 0 {
                // Until its exec is done, its code is ours.
                let lines = executable_mappings(sleeper.child.id()).unwrap_or_default();
                sleeper.address = lines
                    .iter()
                    .find(|line| line.path.ends_with(b"sleep"))
                    .map_or(0, |line| line.start);
                std::thread::yield_now();
            }
            sleeper
        }
    }

    impl Drop for Sleeper {
        fn drop(&mut self) {
            self.child.kill().unwrap();
            self.child.wait().unwrap();
        }
    }

    #[test]
    fn what_no_record_told_is_learnt_once() {
        let mut place = Place::new();
        let (address, build_id) = own();
        place.send(&datagram(std::process::id(), address, &build_id)).unwrap();
        assert_eq!(place.counts(SECOND), [1, 0, 1, 0]);
        place.send(&datagram(std::process::id(), address, &build_id)).unwrap();
        assert_eq!(place.counts(SECOND), [2, 1, 1, 0], "now it is known");
        assert!(place.mappings.shows(std::process::id(), address));
    }

    #[test]
    fn forged_notices_are_not_believed() {
        let (address, build_id) = own();
        let other = Sleeper::new();
        for (story, forged) in [
            ("another process's address", datagram(other.child.id(), other.address, &[])),
            ("no such address", datagram(std::process::id(), 0x1000, &build_id)),
            ("another build", datagram(std::process::id(), address, &[7; 20])),
            ("no notice", b"garbage".to_vec()),
            ("too long", vec![0; DATAGRAM_MAX + 100]),
        ] {
            let mut place = Place::new();
            place.send(&forged).unwrap();
            assert_eq!(place.counts(SECOND), [1, 0, 0, 1], "{story}");
            assert!(place.mappings.is_empty(), "{story}");
        }
    }

    /// A process that named another in its notice: the kernel says who it is.
    #[test]
    fn nobody_speaks_for_another_process() {
        let mut place = Place::new();
        let (address, build_id) = own();
        place.send(&datagram(1, address, &build_id)).unwrap();
        assert_eq!(place.counts(SECOND), [1, 0, 1, 0]);
        assert!(
            place.mappings.shows(std::process::id(), address) && !place.mappings.shows(1, address)
        );
    }

    /// Records were dropped in a storm of short processes, and at the drain the processes that had
    /// sent notices were no longer in /proc.
    #[test]
    fn after_lost_records_a_process_is_looked_at_while_it_lives() {
        for (records_were_lost, expected) in [(true, [1, 0, 1, 0]), (false, [1, 0, 0, 1])] {
            let mut place = Place::new();
            let sleeper = Sleeper::new();
            place.notices.read(records_were_lost, SECOND);
            place.notices.admit(
                Hint { pid: sleeper.child.id(), address: sleeper.address, build: None, seen: None },
                SECOND,
            );
            drop(sleeper);
            assert_eq!(place.counts(SECOND), expected, "records were lost: {records_were_lost}");
        }
    }

    #[test]
    fn a_flood_is_bounded() {
        let mut place = Place::new();
        let (address, _) = own();
        let mut buffer = [0; DATAGRAM_MAX];
        let mut used = notice::begin(&mut buffer, 1).unwrap();
        let object = LoaderNotice { start: address, ..LoaderNotice::default() };
        while let Some(more) = notice::push(&mut buffer, used, &object) {
            used = more;
        }
        while place.notices.counts.refused == 0 {
            while place.send(&buffer[..used]).is_ok() {}
            place.notices.read(false, SECOND);
        }
        assert_eq!(place.notices.waiting.len(), WAITING_MAX);
        let [received, known, learnt, refused] = place.counts(SECOND);
        assert_eq!((learnt, received), (1, known + learnt + refused), "one look for all of them");
        // Many processes: each is looked up once in a second, and no more than so many of all.
        place.notices.waiting = (0..1000)
            .map(|n| Hint { pid: (1 << abi::PID_BITS) + n, address, build: None, seen: None })
            .collect();
        place.notices.judge(&mut place.mappings, 2 * SECOND);
        assert!(place.notices.looks.seen.len() <= LOOKS_MAX);
    }

    #[test]
    fn descriptors_that_somebody_sends_are_not_kept() {
        let mut place = Place::new();
        let (mut reader, writer) = io::pipe().unwrap();
        let sender = UnixDatagram::unbound().unwrap();
        sender.connect(place.directory.path().join("l.sock")).unwrap();
        let (parts, descriptors) = ([IoSlice::new(b"x")], [writer.as_raw_fd()]);
        let control = [ControlMessage::ScmRights(&descriptors)];
        sendmsg::<()>(sender.as_raw_fd(), &parts, &control, MsgFlags::empty(), None).unwrap();
        drop(writer);
        assert_eq!(place.counts(SECOND), [1, 0, 0, 1]);
        nix::fcntl::fcntl(&reader, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK))
            .unwrap();
        assert_eq!(reader.read(&mut [0]).unwrap(), 0, "its last writer is closed");
    }

    #[test]
    fn a_socket_that_a_dead_daemon_left_is_replaced_and_nothing_else() {
        let place = Place::new();
        let path = place.directory.path().join("l.sock");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o666);
        let error = Notices::bind(&path).err().unwrap().to_string();
        assert!(error.contains("another dcpid") && error.contains("--loader-socket"), "{error}");
        drop(place.notices);
        assert!(!path.exists());
        drop(UnixDatagram::bind(&path).unwrap());
        drop(Notices::bind(&path).unwrap());
        std::fs::write(&path, "a file").unwrap();
        assert!(Notices::bind(&path).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"a file");
    }
}
