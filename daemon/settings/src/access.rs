//! Access to dcpid: which users may send which requests, and the modes, groups and addresses of the
//! sockets.

use std::net::SocketAddr;
use std::path::PathBuf;
use wire::Request;

/// The users that may connect, and their rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Mode of the socket.
    pub mode: u32,
    /// Group of the socket; None: dcpid's own.
    pub group: Option<u32>,
    /// Rights of clients that are neither root nor dcpid's own user.
    pub rights: Rights,
}

/// The requests that a client may make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// Requests that change nothing but the client's own label.
    Read,
    /// All requests.
    Control,
}

impl Rights {
    /// Whether a user may make a request. Root and dcpid's own user may make all requests.
    pub fn allow(self, request: &Request, user: u32) -> bool {
        let own = user == 0 || user == nix::unistd::geteuid().as_raw();
        match request {
            Request::Status
            | Request::Flush
            | Request::Counts { .. }
            | Request::Label { pid: None, .. } => true,
            Request::Epoch { .. }
            | Request::Label { .. }
            | Request::Quit
            | Request::Register(_)
            | Request::Unregister { .. } => own || self == Self::Control,
        }
    }
}

/// The place where metrics are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A Unix socket, with the control socket's mode and group.
    Unix(PathBuf),
    /// An address that only this machine reaches.
    Loopback(SocketAddr),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_who_may_read_label_only_themselves() {
        let label = |pid, start_time| Request::Label { pid, start_time, label: "x".into() };
        assert!(
            !Rights::Read.allow(&label(Some(9), None), u32::MAX)
                && Rights::Read.allow(&label(Some(9), None), 0)
        );
        assert!(
            !Rights::Read.allow(&Request::Quit, u32::MAX)
                && Rights::Control.allow(&Request::Quit, u32::MAX)
        );
        assert!(
            Rights::Read.allow(&label(None, None), u32::MAX)
                && Rights::Read.allow(&Request::Status, u32::MAX)
        );
    }
}
