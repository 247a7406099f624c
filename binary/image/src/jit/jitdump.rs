//! jitdump: a header, then records that each begin with their size
//! (tools/perf/Documentation/jitdump-specification.txt, version 1).
//!
//! Written by V8 (`node --perf-prof`), CPython (`-X perf_jit`), LLVM's and OpenJ9's listeners. Two
//! records matter here: code was loaded, and code was moved. Source lines and unwinding data are
//! skipped; of the code itself only the place in the file is noted.

use super::{Code, NAME_MAX};

/// "JiTD" as a word in the writer's byte order.
const MAGIC: u32 = 0x4A69_5444;
/// The only version of the format so far.
const VERSION: u32 = 1;
/// Bytes of the header, which every version has.
pub const HEADER: usize = 40;
/// Bytes that each record begins with: id, size, time.
const PREFIX: usize = 16;
/// Bytes of a record of loaded code before its name; below, of a record of moved code.
const LOAD: usize = 56;
const MOVE: usize = 64;
/// Numbers of the kinds of records.
const CODE_LOAD: u32 = 0;
const CODE_MOVE: u32 = 1;
/// Bytes of a dump that suffice to read a record: the fields of any kind, and the longest name.
pub const RECORD_MIN: usize = MOVE + NAME_MAX;

/// The header.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Header {
    /// Bytes before the first record.
    pub size: u64,
    /// The instruction set of its code, as in an ELF file (`e_machine`).
    pub machine: u16,
    /// The writer's process number, in its own pid namespace.
    pub pid: u32,
    swapped: bool,
}

/// The content of a record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event<'a> {
    /// Code was generated.
    Load {
        /// The code, without a place in the dump.
        code: Code<'a>,
        /// Bytes from the start of the record to those of the code; None: it has none.
        bytes_at: Option<u64>,
    },
    /// Code was moved.
    Move {
        /// The old address.
        from: u64,
        /// The new address.
        to: u64,
    },
    /// Any other record: source lines, unwinding data, the end, or a kind later than this program.
    Other,
}

/// The result of reading a record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step<'a> {
    /// A record. The next one begins `size` bytes after the start of this one, which may be beyond
    /// the bytes given.
    Record {
        /// The content.
        event: Event<'a>,
        /// Bytes of the whole record.
        size: u64,
    },
    /// The record is incomplete: give more bytes, or come back when the file has grown.
    More,
    /// The bytes are no record, and no later record can be found.
    Damaged,
}

/// Reads the header; None while it is incomplete, or when the bytes are no dump.
pub fn header(bytes: &[u8]) -> Option<Header> {
    let bytes = bytes.get(..HEADER)?;
    let magic = word(bytes, 0, false)?;
    let swapped = magic == MAGIC.swap_bytes();
    if (magic != MAGIC && !swapped) || word(bytes, 4, swapped)? != VERSION {
        return None;
    }
    let size = word(bytes, 8, swapped).filter(|size| *size as usize >= HEADER)?;
    let machine = word(bytes, 12, swapped)? as u16; // numbers of machines have 16 bits
    Some(Header { size: u64::from(size), machine, pid: word(bytes, 20, swapped)?, swapped })
}

impl Header {
    /// Reads the record at the start of `bytes`; [`RECORD_MIN`] bytes suffice.
    pub fn next<'a>(&self, bytes: &'a [u8]) -> Step<'a> {
        let (Some(id), Some(size)) = (word(bytes, 0, self.swapped), word(bytes, 4, self.swapped))
        else {
            return Step::More;
        };
        let min = match id {
            CODE_LOAD => LOAD + 1,
            CODE_MOVE => MOVE,
            _ => PREFIX,
        };
        let whole = size as usize;
        if whole < min {
            return Step::Damaged;
        }
        let needed = if id == CODE_LOAD { whole.min(RECORD_MIN) } else { min };
        let Some(record) = bytes.get(..needed) else { return Step::More };
        let event = match id {
            CODE_LOAD => self.load(record),
            CODE_MOVE => self.relocate(record),
            _ => None,
        };
        Step::Record { event: event.unwrap_or(Event::Other), size: u64::from(size) }
    }

    /// Fields after the prefix: pid, tid, virtual address, address of the code, its size, its
    /// number; then its name with a NUL, and the code, with which the record ends.
    fn load<'a>(&self, record: &'a [u8]) -> Option<Event<'a>> {
        let (start, size) = (long(record, 32, self.swapped)?, long(record, 40, self.swapped)?);
        let made_ns = long(record, 8, self.swapped)?;
        let code = Code::new(start, size, record.get(LOAD..)?)?;
        let whole = u64::from(word(record, 4, self.swapped)?);
        let bytes_at = whole.checked_sub(size).filter(|at| *at > LOAD as u64);
        Some(Event::Load { code: Code { made_ns, ..code }, bytes_at })
    }

    /// Fields after the prefix: pid, tid, virtual address, old address, new address, size, number.
    fn relocate(&self, record: &[u8]) -> Option<Event<'static>> {
        Some(Event::Move {
            from: long(record, 32, self.swapped)?,
            to: long(record, 40, self.swapped)?,
        })
    }
}

fn word(bytes: &[u8], at: usize, swapped: bool) -> Option<u32> {
    let word = u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?);
    Some(if swapped { word.swap_bytes() } else { word })
}

fn long(bytes: &[u8], at: usize, swapped: bool) -> Option<u64> {
    let long = u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?);
    Some(if swapped { long.swap_bytes() } else { long })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A dump in the making, in this machine's byte order or the other.
    struct Dump {
        bytes: Vec<u8>,
        swapped: bool,
    }

    impl Dump {
        fn new(swapped: bool) -> Self {
            let mut dump = Self { bytes: Vec::new(), swapped };
            for word in [MAGIC, 1, 40, 62, 0, 4711] {
                dump.word(word);
            }
            dump.long(99).long(0);
            dump
        }

        fn word(&mut self, word: u32) -> &mut Self {
            self.bytes.extend(if self.swapped { word.swap_bytes() } else { word }.to_ne_bytes());
            self
        }

        fn long(&mut self, long: u64) -> &mut Self {
            self.bytes.extend(if self.swapped { long.swap_bytes() } else { long }.to_ne_bytes());
            self
        }

        fn load(&mut self, start: u64, size: u64, name: &[u8]) -> &mut Self {
            self.word(CODE_LOAD)
                .word((LOAD + name.len() + 1 + size as usize) as u32)
                .long(1)
                .word(4711)
                .word(4711);
            self.long(start).long(start).long(size).long(0).bytes.extend(name);
            self.bytes.push(0);
            self.bytes.extend(vec![0x90; size as usize]);
            self
        }

        fn relocate(&mut self, from: u64, to: u64) -> &mut Self {
            self.word(CODE_MOVE).word(MOVE as u32).long(2).word(4711).word(4711);
            self.long(from).long(from).long(to).long(8).long(0)
        }

        fn other(&mut self, id: u32, len: u32) -> &mut Self {
            self.word(id).word(16 + len).long(3).bytes.extend(vec![7; len as usize]);
            self
        }
    }

    /// The events from a dump that is read this many bytes at a time, and whether the dump was
    /// damaged.
    fn told(bytes: &[u8], window: usize) -> (Vec<String>, bool) {
        let mut found = Vec::new();
        let Some(header) = header(bytes) else { return (found, true) };
        let mut at = header.size as usize;
        loop {
            let rest = bytes.get(at..).unwrap_or_default();
            match header.next(&rest[..window.min(rest.len())]) {
                Step::Record { event, size } => {
                    found.push(match event {
                        Event::Load { code, .. } => {
                            format!("{:x} {:x} {}", code.start, code.size, code.name)
                        }
                        Event::Move { from, to } => format!("{from:x} -> {to:x}"),
                        Event::Other => "-".to_owned(),
                    });
                    at += size as usize;
                }
                Step::More => return (found, false),
                Step::Damaged => return (found, true),
            }
        }
    }

    fn sample(swapped: bool) -> Vec<u8> {
        let mut dump = Dump::new(swapped);
        dump.other(2, 40)
            .load(0x7000, 64, b"py::f:/a b.py")
            .other(4, 24)
            .relocate(0x7000, 0x8000)
            .other(3, 0)
            .other(77, 3);
        dump.load(0x9000, 10, b"g");
        dump.bytes
    }

    #[test]
    fn records_in_either_byte_order_and_any_window() {
        let expected = ["-", "7000 40 py::f:/a b.py", "-", "7000 -> 8000", "-", "-", "9000 a g"];
        for swapped in [false, true] {
            for window in [RECORD_MIN, 1 << 20] {
                assert_eq!(
                    told(&sample(swapped), window),
                    (expected.map(str::to_owned).to_vec(), false)
                );
            }
        }
        assert_eq!(header(&sample(true)).map(|header| (header.size, header.pid)), Some((40, 4711)));
        assert_eq!(header(&sample(true)).map(|header| header.machine), Some(62));
    }

    #[test]
    fn what_is_no_dump_has_no_header() {
        let good = Dump::new(false).bytes;
        assert!(header(&good).is_some());
        for (at, bad) in [(0, 0), (4, 2), (8, 39)] {
            let mut bytes = good.clone();
            bytes[at..at + 4].copy_from_slice(&u32::to_ne_bytes(bad));
            assert_eq!(header(&bytes), None, "{at}");
        }
        assert_eq!(header(&good[..39]), None);
        assert_eq!(header(b""), None);
    }

    #[test]
    fn a_record_without_room_for_itself_ends_the_reading() {
        for (id, size) in [(CODE_LOAD, 56), (CODE_LOAD, 0), (CODE_MOVE, 63), (2, 15), (99, 0)] {
            let mut dump = Dump::new(false);
            dump.word(id).word(size).bytes.extend([0; 100]);
            assert_eq!(told(&dump.bytes, 1000), (vec![], true), "{id} {size}");
        }
    }

    #[test]
    fn the_bytes_are_at_the_end_of_the_record() {
        let mut dump = Dump::new(true);
        dump.load(0x7000, 3, b"a name").bytes.extend(b"behind");
        let record = &dump.bytes[40..];
        let step = header(&dump.bytes).unwrap().next(record);
        let Step::Record { event: Event::Load { bytes_at, .. }, .. } = step else { panic!() };
        assert_eq!(record[bytes_at.unwrap() as usize..], *b"\x90\x90\x90behind");
    }

    /// A writer that gives a code's size and leaves its bytes out.
    #[test]
    fn a_record_without_its_code_has_no_place_for_it() {
        let mut dump = Dump::new(false);
        dump.load(0x7000, 0, b"f");
        dump.bytes[40 + 40..40 + 48].copy_from_slice(&64_u64.to_ne_bytes());
        let step = header(&dump.bytes).unwrap().next(&dump.bytes[40..]);
        let Step::Record { event: Event::Load { code, bytes_at }, .. } = step else { panic!() };
        assert_eq!((code.size, bytes_at), (64, None));
    }

    #[test]
    fn a_cut_dump_tells_what_is_whole() {
        let whole = sample(false);
        let (all, _) = told(&whole, 1 << 20);
        for cut in 40..whole.len() {
            let (some, damaged) = told(&whole[..cut], 1 << 20);
            assert!(!damaged && all.starts_with(&some), "{cut}: {some:?}");
        }
    }

    proptest! {
        #[test]
        fn flipped_bits_never_panic(at in 0_usize..400, bit in 0_u8..8) {
            let mut bytes = sample(false);
            let at = at % bytes.len();
            bytes[at] ^= 1 << bit;
            let (records, _) = told(&bytes, RECORD_MIN);
            prop_assert!(records.len() <= bytes.len() / PREFIX);
        }

        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), swapped: bool) {
            let header = Header { size: 40, machine: 62, pid: 1, swapped };
            if let Step::Record { size, .. } = header.next(&bytes) {
                prop_assert!(size >= PREFIX as u64);
            }
        }
    }
}
