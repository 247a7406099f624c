//! Questions and answers as bytes on a stream socket: a frame has its length, then what its sender
//! has used, then the message.

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::time::Instant;

/// Bytes of a message. The longest are the mappings of a process with 65530 of them
/// (vm.max_map_count), which fit with paths of 200 bytes. With a larger limit the unfinished
/// answers of 24 late inspectors would take the daemon's memory; an answer beyond it is none.
const MESSAGE_BYTES_MAX: usize = 16 << 20;
/// Length and process (4 bytes each), CPU time in ns and memory in bytes (8 bytes each), all little
/// endian.
const HEAD_BYTES: usize = 24;
/// Bytes that are read at once.
const READ_BYTES: usize = 64 << 10;

/// What a process has used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// The process.
    pub pid: u32,
    /// CPU time, in ns.
    pub cpu_ns: u64,
    /// The most memory that was resident, in bytes.
    pub peak_bytes: u64,
}

impl Used {
    /// What this process has used.
    pub fn by_this_process() -> Self {
        let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_SELF);
        let peak_kib = usage.map_or(0, |usage| usage.max_rss());
        let peak_bytes = u64::try_from(peak_kib).unwrap_or(0) << 10;
        Self { pid: std::process::id(), cpu_ns: kernel::clock::process_cpu_ns(), peak_bytes }
    }
}

/// One end of a connection.
#[derive(Debug)]
pub struct Connection {
    stream: UnixStream,
    received: Vec<u8>,
    /// What the other end had used when it sent its last message.
    pub peer: Used,
}

impl Connection {
    /// Speaks frames on a stream.
    pub fn new(stream: UnixStream) -> Self {
        Self { stream, received: Vec::new(), peer: Used::default() }
    }

    /// Sends a message.
    ///
    /// # Errors
    /// The other end is gone, or does not read.
    pub fn send(&mut self, message: &impl Serialize, used: Used) -> io::Result<()> {
        let mut frame = vec![0; HEAD_BYTES];
        frame = postcard::to_extend(message, frame).map_err(io::Error::other)?;
        let len = u32::try_from(frame.len() - HEAD_BYTES).map_err(io::Error::other)?;
        let words = [len, used.pid].into_iter().flat_map(u32::to_le_bytes);
        let used = [used.cpu_ns, used.peak_bytes].into_iter().flat_map(u64::to_le_bytes);
        let head = words.chain(used);
        frame.iter_mut().zip(head).for_each(|(to, from)| *to = from);
        let written = self.stream.write_all(&frame);
        wipe(&mut frame);
        written
    }

    /// The next message. `None`: there is none until then; what has come of it is kept.
    ///
    /// # Errors
    /// The other end is gone, or what it sends is not a message.
    pub fn receive<Message: DeserializeOwned>(
        &mut self,
        until: Option<Instant>,
    ) -> io::Result<Option<Message>> {
        self.wait(until, |message| postcard::from_bytes(message).map_err(io::Error::other))
    }

    /// Whether a message has come, whatever it says.
    pub fn receive_any(&mut self, until: Instant) -> io::Result<bool> {
        Ok(self.wait(Some(until), |_| Ok(()))?.is_some())
    }

    fn wait<Message>(
        &mut self,
        until: Option<Instant>,
        decode: impl Fn(&[u8]) -> io::Result<Message>,
    ) -> io::Result<Option<Message>> {
        loop {
            if let Some((peer, message)) = self.whole()? {
                let decoded = decode(message)?;
                let used = HEAD_BYTES + message.len();
                self.peer = peer;
                wipe(self.received.get_mut(..used).unwrap_or_default());
                self.received.drain(..used);
                self.received.shrink_to(READ_BYTES);
                return Ok(Some(decoded));
            }
            let timeout = match until {
                None => PollTimeout::NONE,
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    // Rounded up: a wait of 0 ms would spin through the last millisecond.
                    let ms = left.as_micros().div_ceil(1000);
                    PollTimeout::try_from(ms).unwrap_or(PollTimeout::MAX)
                }
            };
            let mut polled = [PollFd::new(self.stream.as_fd(), PollFlags::POLLIN)];
            match poll(&mut polled, timeout) {
                Ok(0) => return Ok(None),
                Ok(_) => self.read()?,
                Err(nix::errno::Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn read(&mut self) -> io::Result<()> {
        let before = self.received.len();
        self.received.resize(before + READ_BYTES, 0);
        let read = self.stream.read(self.received.get_mut(before..).unwrap_or_default());
        self.received.truncate(before + *read.as_ref().unwrap_or(&0));
        match read {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            other => other.map(drop),
        }
    }

    /// A whole frame, if it has come: what the sender has used, and the message.
    fn whole(&self) -> io::Result<Option<(Used, &[u8])>> {
        let Some((len, rest)) = self.received.split_first_chunk() else { return Ok(None) };
        let len = u32::from_le_bytes(*len) as usize;
        if len > MESSAGE_BYTES_MAX {
            return Err(io::Error::other("a message is longer than any can be"));
        }
        let Some((pid, rest)) = rest.split_first_chunk() else { return Ok(None) };
        let Some((cpu_ns, rest)) = rest.split_first_chunk() else { return Ok(None) };
        let Some((peak_bytes, rest)) = rest.split_first_chunk() else { return Ok(None) };
        let [cpu_ns, peak_bytes] = [*cpu_ns, *peak_bytes].map(u64::from_le_bytes);
        let used = Used { pid: u32::from_le_bytes(*pid), cpu_ns, peak_bytes };
        Ok(rest.get(..len).map(|message| (used, message)))
    }
}

/// Registers and stacks pass here, so what has been sent or read does not stay in memory.
fn wipe(bytes: &mut [u8]) {
    // The compiler must not optimise this away, although the written bytes are never read.
    std::hint::black_box(bytes).fill(0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn messages_come_whole_or_not_yet() {
        let (one, mut other) = UnixStream::pair().unwrap();
        let mut one = Connection::new(one);
        let soon = || Some(Instant::now() + Duration::from_millis(5));
        assert_eq!(one.receive::<String>(soon()).unwrap(), None);
        let text = "x".repeat(200_000);
        let sent = text.clone();
        let sender = std::thread::spawn(move || {
            let mut end = Connection::new(other.try_clone().unwrap());
            end.send(&sent, Used { pid: 5, cpu_ns: 7, peak_bytes: 9 }).unwrap();
            other.write_all(&[1, 0, 0]).unwrap();
            other
        });
        assert_eq!(one.receive::<String>(None).unwrap(), Some(text));
        assert_eq!(one.peer, Used { pid: 5, cpu_ns: 7, peak_bytes: 9 });
        let mut other = sender.join().unwrap();
        assert_eq!(one.receive::<u8>(soon()).unwrap(), None, "three bytes are no frame");
        other.write_all(&[0; HEAD_BYTES - 3]).unwrap();
        assert_eq!(one.receive::<u8>(soon()).unwrap(), None);
        other.write_all(&[9]).unwrap();
        assert_eq!(one.receive::<u8>(soon()).unwrap(), Some(9));
        other.write_all(&[0xff; HEAD_BYTES]).unwrap();
        assert!(one.receive::<u8>(soon()).is_err(), "4 GiB");
    }

    #[test]
    fn an_end_that_is_gone_is_an_error() {
        let (one, other) = UnixStream::pair().unwrap();
        drop(other);
        let mut one = Connection::new(one);
        assert!(one.receive::<u8>(None).is_err());
        assert!(one.send(&1_u8, Used::default()).is_err());
    }
}
