//! Parses records of perf's rings (perf_event_open(2), "MMAP layout"). Samples of all events have
//! the fields `IP | TID | TIME | PERIOD`, other records end in `TID | TIME`.

/// PERF_RECORD_LOST and so on (linux/perf_event.h).
const LOST: u32 = 2;
const COMM: u32 = 3;
const FORK: u32 = 7;
const SAMPLE: u32 = 9;
const MMAP2: u32 = 10;
const LOST_SAMPLES: u32 = 13;
/// PERF_RECORD_MISC_COMM_EXEC: the name is new because a program was executed.
const MISC_COMM_EXEC: u16 = 1 << 13;
/// PROT_EXEC.
const EXECUTABLE: u32 = 4;
/// Bytes of the fields that follow a record that is not a sample.
const TRAILER_BYTES: usize = 16;

/// A record.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Recorded {
    /// Something happened in a process.
    Seen(Seen),
    /// This many records were lost.
    Lost(u64),
}

/// A record of a process.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Seen {
    /// ns on perf's clock.
    pub(super) time_ns: u64,
    pub(super) pid: u32,
    pub(super) what: What,
}

/// The content of a record.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum What {
    /// The process executed a program of this name (comm: 15 bytes at most).
    Executed(Vec<u8>),
    /// The process was forked by this one.
    Forked(u32),
    /// Code was mapped.
    Mapped(Mapping),
    /// A sample at this address that stands for this many units.
    Tick(u64, u64),
    /// This many occurrences of the event with this number.
    Event(u32, u64),
}

/// A mapping of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mapping {
    /// First address.
    pub(super) begin: u64,
    /// Length in bytes.
    pub(super) len: u64,
    /// Offset of `begin` in the file.
    pub(super) offset: u64,
    /// The file's path, or a name in brackets.
    pub(super) path: String,
}

/// Native-endian fields of a record, read from the front.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn u32(&mut self) -> Option<u32> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_ne_bytes(*first))
    }

    fn u64(&mut self) -> Option<u64> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_ne_bytes(*first))
    }

    /// Text up to a zero byte.
    fn text(&self) -> Vec<u8> {
        self.0.split(|byte| *byte == 0).next().unwrap_or_default().to_vec()
    }
}

/// Parses a record from its type, its flags, and the bytes after its header. None for other
/// records, and for records that are too short.
pub(super) fn parse(kind: u32, misc: u16, bytes: &[u8]) -> Option<Recorded> {
    if kind == SAMPLE {
        let mut fields = Fields(bytes);
        let (ip, pid, _tid) = (fields.u64()?, fields.u32()?, fields.u32()?);
        let (time_ns, period) = (fields.u64()?, fields.u64()?);
        return Some(Recorded::Seen(Seen { time_ns, pid, what: What::Tick(ip, period) }));
    }
    let (body, trailer) = bytes.split_at_checked(bytes.len().checked_sub(TRAILER_BYTES)?)?;
    let (mut body, mut trailer) = (Fields(body), Fields(trailer));
    let (_, time_ns) = (trailer.u64()?, trailer.u64()?);
    let (pid, what) = match kind {
        LOST => return Some(Recorded::Lost((body.u64()?, body.u64()?).1)),
        LOST_SAMPLES => return Some(Recorded::Lost(body.u64()?)),
        COMM if misc & MISC_COMM_EXEC != 0 => {
            let (pid, _tid) = (body.u32()?, body.u32()?);
            (pid, What::Executed(body.text()))
        }
        FORK => {
            let (pid, parent) = (body.u32()?, body.u32()?);
            if pid == parent {
                return None; // a thread
            }
            (pid, What::Forked(parent))
        }
        MMAP2 => {
            let (pid, _tid) = (body.u32()?, body.u32()?);
            let (begin, len, offset) = (body.u64()?, body.u64()?, body.u64()?);
            // Device and inode, or a build id: 24 bytes either way.
            let _file = (body.u64()?, body.u64()?, body.u64()?);
            let (protection, _flags) = (body.u32()?, body.u32()?);
            if protection & EXECUTABLE == 0 {
                return None;
            }
            let path = String::from_utf8_lossy(&body.text()).into_owned();
            (pid, What::Mapped(Mapping { begin, len, offset, path }))
        }
        _ => return None,
    };
    Some(Recorded::Seen(Seen { time_ns, pid, what }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(parts: &[u64]) -> Vec<u8> {
        parts.iter().flat_map(|part| part.to_ne_bytes()).collect()
    }

    fn two(low: u32, high: u32) -> u64 {
        u64::from(low) | u64::from(high) << 32
    }

    #[test]
    fn records_are_as_the_manual_has_them() {
        let seen = |time_ns, pid, what| Some(Recorded::Seen(Seen { time_ns, pid, what }));
        let sample = words(&[0x1234, two(7, 8), 99, 250_000]);
        assert_eq!(parse(SAMPLE, 2, &sample), seen(99, 7, What::Tick(0x1234, 250_000)));
        let trailer = [two(7, 8), 99];
        let comm = [words(&[two(7, 7)]), b"lua\0\0\0\0\0".to_vec(), words(&trailer)].concat();
        let executed = What::Executed(b"lua".to_vec());
        assert_eq!(parse(COMM, MISC_COMM_EXEC, &comm), seen(99, 7, executed));
        assert_eq!(parse(COMM, 0, &comm), None, "a thread that takes another name is no exec");
        let fork = words(&[two(9, 7), two(9, 7), 98, two(7, 8), 99]);
        assert_eq!(parse(FORK, 0, &fork), seen(99, 9, What::Forked(7)));
        let thread = words(&[two(7, 7), two(9, 7), 98, two(7, 8), 99]);
        assert_eq!(parse(FORK, 0, &thread), None);
        assert_eq!(parse(LOST, 0, &words(&[1, 5, 0, 99])), Some(Recorded::Lost(5)));
        let map = |protection| {
            let head = words(&[two(7, 7), 0x1000, 0x2000, 0x3000, 1, 2, 3, two(protection, 2)]);
            [head, b"/bin/lua".to_vec(), words(&[0]), words(&trailer)].concat()
        };
        let path = "/bin/lua".to_owned();
        let mapping = Mapping { begin: 0x1000, len: 0x2000, offset: 0x3000, path };
        assert_eq!(parse(MMAP2, 0, &map(5)), seen(99, 7, What::Mapped(mapping)));
        assert_eq!(parse(MMAP2, 0, &map(1)), None, "data is not code");
        for kind in 0..20 {
            for len in 0..24 {
                let _ = parse(kind, u16::MAX, &vec![0xff; len]); // must not panic
            }
        }
    }
}
