//! The hook's state between two calls of the loader: the datagram under construction, and the
//! socket that it goes to.

use crate::elf::{Segments, build_id};
use crate::memory::{self, PAGE};
use crate::stack::{self, Start};
use crate::system;
use abi::notice::{self, DATAGRAM_MAX, HEADER_BYTES, LoaderNotice, PATH_MAX};
use core::ffi::c_char;

/// Socket of dcpid unless the environment names another.
const SOCKET: &[u8] = b"/run/dcpi/loader.sock";
/// Environment variable that names another socket; empty: nothing is sent. Ignored in programs that
/// gained rights by their exec.
const VARIABLE: &[u8] = b"DCPI_LOADER_SOCKET=";
/// Bytes of `sun_path`, its NUL included (unix(7)).
const SOCKET_PATH_MAX: usize = 108;
/// `AF_UNIX`, as the first two bytes of an address.
const FAMILY: [u8; 2] = 1_u16.to_ne_bytes();
/// Objects among which the loader itself is looked for. The loader reports the program first and
/// itself next; a later glibc may report others between them.
const OBJECTS_BEFORE_LOADER_MAX: u32 = 4;
/// Bytes of a program header.
const HEADER: usize = 56;

/// An object, as the loader reports it.
pub struct Object {
    /// Load bias: address in memory minus address in the file.
    pub base: usize,
    /// Address of its dynamic section.
    pub dynamic: usize,
    /// Its path, null or ending in NUL.
    pub name: *const c_char,
}

/// All of the hook's memory. It is zero at first, so that it takes no room in the file.
pub struct Audit {
    opened: u32,
    /// Base and dynamic section of the program, until the stack is found.
    program: (usize, usize),
    start: Start,
    is_started: bool,
    /// The socket's address (`sockaddr_un`). The next field has its length; with 0, nothing is
    /// sent.
    address: [u8; FAMILY.len() + SOCKET_PATH_MAX],
    address_len: usize,
    datagram: [u8; DATAGRAM_MAX],
    datagram_len: usize,
}

impl Audit {
    /// The state before the first object.
    pub const fn new() -> Self {
        Self {
            opened: 0,
            program: (0, 0),
            start: Start::UNKNOWN,
            is_started: false,
            address: [0; FAMILY.len() + SOCKET_PATH_MAX],
            address_len: 0,
            datagram: [0; DATAGRAM_MAX],
            datagram_len: 0,
        }
    }

    /// Adds an object that was just mapped to the datagram.
    pub fn opened(&mut self, object: &Object) {
        self.opened = self.opened.saturating_add(1);
        if self.opened == 1 {
            // The program's headers and path are found through the stack. ld.so, which is reported
            // next, exports the address where the stack starts.
            self.program = (object.base, object.dynamic);
            return;
        }
        if !self.is_started && self.opened <= OBJECTS_BEFORE_LOADER_MAX {
            // SAFETY: the loader has mapped and accepted the object.
            if let Some(stack) = unsafe { stack::beginning(object.base, object.dynamic) } {
                // SAFETY: ld.so tells where the stack begins, and the program, which could write
                // there, has not run yet.
                self.begin(unsafe { Start::read(stack) });
            }
        }
        if !self.is_started || object.base == self.start.vdso {
            return; // the kernel's own library is in no file
        }
        // SAFETY: the loader's strings end in NUL and stay while the object does.
        let path = unsafe { memory::string(object.name.cast(), PATH_MAX) };
        let Some(page) = memory::page(object.base) else { return };
        let Some(segments) = Segments::of_file(page) else { return };
        self.note(segments, object.base, object.dynamic, path);
    }

    /// Sends the datagram with the objects noted so far, and empties it.
    pub fn tell(&mut self) {
        let datagram = self.datagram.get(..self.datagram_len).unwrap_or_default();
        let address = self.address.get(..self.address_len).unwrap_or_default();
        if datagram.len() > HEADER_BYTES && !address.is_empty() {
            system::send(address, datagram);
        }
        self.datagram_len = 0;
    }

    /// Reads the program and the socket's path from the stack, which was just found.
    fn begin(&mut self, start: Start) {
        (self.start, self.is_started) = (start, true);
        // SAFETY: the program has not run yet.
        let variable =
            unsafe { start.variable(VARIABLE, SOCKET_PATH_MAX - 1) }.filter(|_| !start.secure);
        let path = match variable {
            None => SOCKET,
            Some(path) => path.unwrap_or_default(), // too long for any socket: nobody is told
        };
        if !path.is_empty() {
            self.address
                .iter_mut()
                .zip(FAMILY.iter().chain(path))
                .for_each(|(to, from)| *to = *from);
            self.address_len = FAMILY.len() + path.len() + 1;
        }
        let (base, dynamic) = self.program;
        if start.headers == 0 || start.headers_len > PAGE / HEADER {
            return;
        }
        // SAFETY: the kernel has mapped the program and tells where its headers are.
        let table = unsafe { memory::bytes(start.headers, HEADER * start.headers_len) };
        // SAFETY: the kernel's strings end in NUL.
        let path = unsafe { memory::string(start.path as *const u8, PATH_MAX) };
        self.note(Segments::new(table), base, dynamic, path);
    }

    fn note(&mut self, segments: Segments<'_>, base: usize, dynamic: usize, path: Option<&[u8]>) {
        if self.address_len == 0 || !segments.are_of(base, dynamic) {
            return;
        }
        let Some((start, end)) = segments.code() else { return };
        let build_id = segments.notes().find_map(|(address, len, align)| {
            // SAFETY: these are the object's headers, for its dynamic section is where they say;
            // they say that the note is a part of what the loader maps readable, and nobody writes
            // it while the loader holds its lock.
            build_id(unsafe { memory::bytes(base.wrapping_add(address), len) }, align)
        });
        let object = LoaderNotice {
            base: base as u64,
            start: base.wrapping_add(start) as u64,
            end: base.wrapping_add(end) as u64,
            build_id: build_id.unwrap_or_default(),
            path: path.unwrap_or_default(),
        };
        if !self.push(&object) {
            self.tell();
            self.push(&object);
        }
    }

    fn push(&mut self, object: &LoaderNotice<'_>) -> bool {
        if self.datagram_len == 0 {
            self.datagram_len = notice::begin(&mut self.datagram, system::pid()).unwrap_or(0);
        }
        match notice::push(&mut self.datagram, self.datagram_len, object) {
            Some(len) => {
                self.datagram_len = len;
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixDatagram;

    /// The address that a program with this environment tells.
    fn address(variable: &std::ffi::CStr, secure: usize) -> Vec<u8> {
        const AT_SECURE: usize = 23;
        let stack = [0, 0, variable.as_ptr() as usize, 0, AT_SECURE, secure, 0, 0];
        let mut audit = Audit::new();
        // SAFETY: laid out as the kernel does.
        audit.begin(unsafe { Start::read(stack.as_ptr() as usize) });
        audit.address[..audit.address_len].to_vec()
    }

    #[test]
    fn the_environment_names_the_socket_unless_it_is_a_strangers() {
        let named = [&FAMILY[..], b"/x\0"].concat();
        let default = [&FAMILY[..], SOCKET, b"\0"].concat();
        let long = std::ffi::CString::new([VARIABLE, &[b'x'; SOCKET_PATH_MAX]].concat()).unwrap();
        for (variable, secure, expected) in [
            (c"DCPI_LOADER_SOCKET=/x", 0, &named),
            (c"DCPI_LOADER_SOCKET=/x", 1, &default),
            (c"DCPI=/x", 0, &default),
            (c"DCPI_LOADER_SOCKET=", 0, &Vec::new()),
            (&long, 0, &Vec::new()),
        ] {
            assert_eq!(&address(variable, secure), expected, "{variable:?} {secure}");
        }
    }

    /// Objects that fill more than one datagram, and one whose base is not an address of a page.
    #[test]
    fn objects_are_noted_and_told() {
        let directory = std::env::temp_dir().join(format!("dcpi-audit-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let path = directory.join("s");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_nonblocking(true).unwrap();
        let mut audit = Audit { is_started: true, opened: 1, ..Audit::new() };
        let address = [&FAMILY[..], path.as_os_str().as_encoded_bytes(), b"\0"].concat();
        audit.address[..address.len()].copy_from_slice(&address);
        audit.address_len = address.len();

        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let libc = maps.lines().find(|line| line.contains("/libc.so")).unwrap();
        let base = usize::from_str_radix(libc.split('-').next().unwrap(), 16).unwrap();
        // Where its dynamic section is: the first word that its headers agree to.
        let segments = Segments::of_file(memory::page(base).unwrap()).unwrap();
        let dynamic =
            (base..base + (8 << 20)).step_by(8).find(|at| segments.are_of(base, *at)).unwrap();
        let object =
            |base, dynamic, name: &std::ffi::CStr| Object { base, dynamic, name: name.as_ptr() };
        let received = || {
            let mut bytes = [0; 4096];
            let len = socket.recv(&mut bytes).ok()?;
            Some(
                notice::Datagram::decode(&bytes[..len])
                    .unwrap()
                    .map(|object| object.path.to_vec())
                    .collect::<Vec<_>>(),
            )
        };
        for strange in [
            object(base, dynamic + 8, c"x"),
            object(base + 8, dynamic, c"x"),
            object(1 << 62, dynamic, c"x"),
        ] {
            audit.opened(&strange);
        }
        audit.tell();
        assert_eq!(received(), None, "nothing was noted");
        (0..60).for_each(|_| audit.opened(&object(base, dynamic, c"/lib/libc.so.6")));
        let full = received().unwrap().len();
        assert!((30..60).contains(&full), "a full datagram is sent at once");
        audit.tell();
        let rest = received().unwrap();
        assert_eq!((full + rest.len(), rest[0].as_slice()), (60, &b"/lib/libc.so.6"[..]));
        audit.tell();
        assert_eq!(received(), None, "what was told is forgotten");
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
