//! Parses records of perf's rings (perf_event_open(2), "MMAP layout"; linux/perf_event.h).
//!
//! Every event of the rings has the same fields in its samples, `IDENTIFIER | TID | TIME | CPU`,
//! and behind its other records (`sample_id_all`), so a record can be read before its event is
//! known. Tracepoints have `RAW` behind them.

/// PERF_RECORD_LOST and so on.
const LOST: u32 = 2;
const COMM: u32 = 3;
const EXIT: u32 = 4;
const FORK: u32 = 7;
const SAMPLE: u32 = 9;
const SWITCH: u32 = 14;
/// PERF_RECORD_MISC_SWITCH_OUT: the thread leaves the CPU.
const MISC_SWITCH_OUT: u16 = 1 << 13;
/// PERF_RECORD_MISC_SWITCH_OUT_PREEMPT: it leaves the CPU although it could run.
const MISC_SWITCH_OUT_PREEMPT: u16 = 1 << 14;
/// Bytes of the fields after a record that is no sample.
const TRAILER_BYTES: usize = 32;

/// A record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// ns on the rings' clock.
    pub(crate) time_ns: u64,
    pub(crate) pid: u32,
    pub(crate) tid: u32,
    pub(crate) cpu: u32,
    pub(crate) kind: RecordKind,
}

/// The content of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RecordKind {
    /// An event occurred: its id (PERF_SAMPLE_IDENTIFIER), and the tracepoint's record.
    Sample { id: u64, raw: Vec<u8> },
    /// The thread's command changed.
    Comm(String),
    /// The thread began another one.
    Fork { pid: u32, tid: u32 },
    /// The thread ended.
    Exit,
    /// The thread left the CPU.
    SwitchOut { preempted: bool },
    /// The thread came to the CPU.
    SwitchIn,
    /// Records were lost, because the ring was full.
    Lost { records: u64 },
}

/// Native-endian fields of a record, read from the front.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
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
}

/// Parses a record from its type, its flags, and the bytes after its header. None for other types
/// and for records that are too short.
pub(crate) fn parse(kind: u32, misc: u16, bytes: &[u8]) -> Option<Record> {
    if kind == SAMPLE {
        return parse_sample(bytes);
    }
    let (body, trailer) = bytes.split_at_checked(bytes.len().checked_sub(TRAILER_BYTES)?)?;
    let mut trailer = Fields(trailer);
    let (mut pid, mut tid, time_ns) = (trailer.u32()?, trailer.u32()?, trailer.u64()?);
    let cpu = trailer.u32()?;
    let mut body = Fields(body);
    let kind = match kind {
        LOST => {
            let _id = body.u64()?; // of the event that found room again, not of the lost ones
            RecordKind::Lost { records: body.u64()? }
        }
        COMM => {
            (pid, tid) = (body.u32()?, body.u32()?);
            let name = body.0.split(|byte| *byte == 0).next()?;
            RecordKind::Comm(String::from_utf8_lossy(name).into_owned())
        }
        FORK => {
            let (child, parent) = (body.u32()?, body.u32()?);
            let (child_tid, parent_tid) = (body.u32()?, body.u32()?);
            (pid, tid) = (parent, parent_tid);
            RecordKind::Fork { pid: child, tid: child_tid }
        }
        EXIT => {
            (pid, _, tid) = (body.u32()?, body.u32()?, body.u32()?);
            RecordKind::Exit
        }
        SWITCH if misc & MISC_SWITCH_OUT != 0 => {
            RecordKind::SwitchOut { preempted: misc & MISC_SWITCH_OUT_PREEMPT != 0 }
        }
        SWITCH => RecordKind::SwitchIn,
        _ => return None,
    };
    Some(Record { time_ns, pid, tid, cpu, kind })
}

fn parse_sample(bytes: &[u8]) -> Option<Record> {
    let mut fields = Fields(bytes);
    let id = fields.u64()?;
    let (pid, tid, time_ns) = (fields.u32()?, fields.u32()?, fields.u64()?);
    let (cpu, _) = (fields.u32()?, fields.u32()?);
    let raw = match fields.u32() {
        Some(length) => fields.0.get(..usize::try_from(length).ok()?)?.to_vec(),
        None => Vec::new(),
    };
    Some(Record { time_ns, pid, tid, cpu, kind: RecordKind::Sample { id, raw } })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(parts: &[&[u8]]) -> Vec<u8> {
        parts.concat()
    }

    fn trailer() -> Vec<u8> {
        let (pid, tid) = (10_u32.to_ne_bytes(), 11_u32.to_ne_bytes());
        let (time, cpu) = (77_u64.to_ne_bytes(), 1_u64.to_ne_bytes());
        bytes(&[&pid, &tid, &time, &cpu, &5_u64.to_ne_bytes()])
    }

    #[test]
    fn records_are_as_the_manual_has_them() {
        let of = |tid, kind| Some(Record { time_ns: 77, pid: 10, tid, cpu: 1, kind });
        let fork = bytes(&[
            &12_u32.to_ne_bytes(),
            &10_u32.to_ne_bytes(),
            &12_u32.to_ne_bytes(),
            &11_u32.to_ne_bytes(),
            &77_u64.to_ne_bytes(),
            &trailer(),
        ]);
        assert_eq!(parse(FORK, 0, &fork), of(11, RecordKind::Fork { pid: 12, tid: 12 }));
        let comm =
            bytes(&[&10_u32.to_ne_bytes(), &10_u32.to_ne_bytes(), b"lua\0\0\0\0\0", &trailer()]);
        assert_eq!(parse(COMM, 1 << 13, &comm), of(10, RecordKind::Comm("lua".into())));
        assert_eq!(parse(SWITCH, 0, &trailer()), of(11, RecordKind::SwitchIn));
        let out = |preempted| of(11, RecordKind::SwitchOut { preempted });
        assert_eq!(parse(SWITCH, MISC_SWITCH_OUT, &trailer()), out(false));
        assert_eq!(parse(SWITCH, MISC_SWITCH_OUT | MISC_SWITCH_OUT_PREEMPT, &trailer()), out(true));
        let lost = bytes(&[&9_u64.to_ne_bytes(), &44_u64.to_ne_bytes(), &trailer()]);
        assert_eq!(parse(LOST, 0, &lost), of(11, RecordKind::Lost { records: 44 }));
        assert_eq!(parse(99, 0, &lost), None);
    }

    #[test]
    fn what_is_too_short_is_no_record() {
        let plain = bytes(&[
            &3_u64.to_ne_bytes(),
            &10_u32.to_ne_bytes(),
            &11_u32.to_ne_bytes(),
            &77_u64.to_ne_bytes(),
            &1_u64.to_ne_bytes(),
        ]);
        let sample = |raw: &[u8]| {
            let kind = RecordKind::Sample { id: 3, raw: raw.to_vec() };
            Some(Record { time_ns: 77, pid: 10, tid: 11, cpu: 1, kind })
        };
        assert_eq!(parse(SAMPLE, 0, &plain), sample(&[]));
        let raw = bytes(&[&plain, &4_u32.to_ne_bytes(), b"abcd"]);
        assert_eq!(parse(SAMPLE, 0, &raw), sample(b"abcd"));
        for length in 0..plain.len() {
            assert_eq!(parse(SAMPLE, 0, &plain[..length]), None);
        }
        assert_eq!(parse(SAMPLE, 0, &raw[..raw.len() - 1]), None);
        for length in 0..TRAILER_BYTES {
            assert_eq!(parse(SWITCH, 0, &trailer()[..length]), None);
        }
    }
}
