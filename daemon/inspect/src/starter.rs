//! Starting inspectors: one for each connection to a socket, as inetd does.
//!
//! Under systemd the unit `dcpid-inspector.service` is the starter, and dcpid itself never has the
//! rights to look. Elsewhere dcpid starts the starter before it gives those rights up.

use super::inspector;
use super::pool::nameless_address;
use nix::sys::socket::{getsockopt, sockopt};
use std::ffi::CString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Inspectors at once. Those that cannot be ended count, so that nobody can fill the machine with
/// them.
const INSPECTORS_MAX: usize = 64;
/// The program of this very process, whatever its path leads to by now.
const OWN_PROGRAM: &str = "/proc/self/exe";
/// What `ps` shows of an inspector: 15 bytes, the most that the kernel keeps (TASK_COMM_LEN).
const INSPECTOR_NAME: &str = "dcpid-inspector";
/// The hidden options of dcpid: to be an inspector on standard input, to be a starter.
pub const INSPECT: &str = "--inspect";
/// See [`INSPECT`].
pub const INSPECTIONS: &str = "--inspections";

/// Starts a starter as a child that ends with this process; gives the address to ask at.
///
/// # Errors
/// The system refuses.
pub fn spawn() -> io::Result<SocketAddr> {
    let address = nameless_address()?;
    let listener = UnixListener::bind_addr(&address)?;
    let stdin = Stdio::from(OwnedFd::from(listener));
    Command::new(OWN_PROGRAM).args([INSPECTIONS, "-"]).stdin(stdin).spawn()?;
    Ok(address)
}

/// Starts inspectors for whoever connects to the socket at `path`, or, for `-`, to the one that is
/// this process's standard input. Ends with the process that started it, or by a signal.
///
/// # Errors
/// The socket cannot be made.
pub fn run(path: &Path) -> io::Result<()> {
    let stdin = || rustix::stdio::stdin();
    let listener = if path == Path::new("-") {
        let inherited = UnixListener::from(rustix::io::fcntl_dupfd_cloexec(stdin(), 3)?);
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
        inherited
    } else {
        bind(path)?
    };
    let own = nix::unistd::geteuid().as_raw();
    let mut inspectors: Vec<Child> = Vec::new();
    // Without a service manager there is nobody to notify.
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    loop {
        let (stream, _) = match listener.accept() {
            Ok(accepted) => accepted,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        inspectors.retain_mut(|inspector| matches!(inspector.try_wait(), Ok(None)));
        let peer = getsockopt(&stream, sockopt::PeerCredentials)?;
        if peer.uid() != own {
            tracing::warn!(uid = peer.uid(), pid = peer.pid(), "refused to look for a stranger");
            continue;
        }
        if inspectors.len() >= INSPECTORS_MAX {
            tracing::warn!("{INSPECTORS_MAX} inspectors wait for answers that do not come");
            continue;
        }
        let mut inspector = Command::new(OWN_PROGRAM);
        inspector.arg0(INSPECTOR_NAME).arg(INSPECT).stdin(Stdio::from(OwnedFd::from(stream)));
        match inspector.spawn() {
            Ok(child) => inspectors.push(child),
            Err(error) => tracing::error!(%error, "an inspector could not be started"),
        }
    }
}

/// Is an inspector for whoever is at the other end of the standard input.
pub fn inspect() -> io::Result<()> {
    // The command's name is that of the program file's link, `exe`.
    let _ = rustix::thread::set_name(&CString::new(INSPECTOR_NAME)?);
    let stdin = rustix::stdio::stdin();
    inspector::serve(UnixStream::from(rustix::io::fcntl_dupfd_cloexec(stdin, 3)?))
}

fn bind(path: &Path) -> io::Result<UnixListener> {
    if path.symlink_metadata().is_ok_and(|found| found.file_type().is_socket()) {
        std::fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}
