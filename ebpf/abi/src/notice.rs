//! Notices: the datagrams in which the loader hook (`loader-hook/`) tells the daemon of the objects
//! that the dynamic loader mapped in one go.
//!
//! Writer: the hook, inside a program that it must not disturb, so nothing here allocates, panics
//! or reads a clock. Reader: the daemon, which believes none of it: anybody may write anything to
//! its socket.
//!
//! All numbers are little-endian and unaligned:
//!
//! ```text
//! datagram  magic "DCPL", version u16, objects u16, pid u32
//! object    base u64, start u64, end u64, length of the build id u8, 0 u8, length of the path u16,
//!           build id, path
//! ```

/// The first bytes of every datagram.
pub const MAGIC: [u8; 4] = *b"DCPL";

/// Version of this format. A reader refuses all others.
pub const VERSION: u16 = 1;

/// Longest datagram, in bytes. The buffer is memory of the program that the hook is in; objects
/// that do not fit begin another datagram.
pub const DATAGRAM_MAX: usize = 3072;

/// Longest build id that is sent, in bytes: SHA-1 has 20, SHA-512 has 64. A longer one is left out.
pub const BUILD_ID_MAX: usize = 64;

/// Longest path that is sent, in bytes. A longer one is left out, because half a path names another
/// file.
pub const PATH_MAX: usize = 1024;

/// Bytes before the first object.
pub const HEADER_BYTES: usize = 12;

/// Bytes of an object before its build id and path.
const OBJECT_BYTES: usize = 28;
/// Position in the header of the number of objects, which [`push`] increments.
const OBJECTS_AT: usize = 6;

/// One object that the dynamic loader mapped: a program or a library.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoaderNotice<'a> {
    /// Difference between the addresses in memory and those in the file (`l_addr` in link.h).
    pub base: u64,
    /// First address of the object's executable segments; equal to `end` when the hook could not
    /// tell.
    pub start: u64,
    /// First address after these segments.
    pub end: u64,
    /// GNU build id; empty: none, or longer than [`BUILD_ID_MAX`].
    pub build_id: &'a [u8],
    /// Path as the loader has it, relative paths and symbolic links included; empty: none, or
    /// longer than [`PATH_MAX`].
    pub path: &'a [u8],
}

/// Begins a datagram and returns the bytes used. None when the buffer is too small.
pub fn begin(buffer: &mut [u8], pid: u32) -> Option<usize> {
    let mut at = Some(0);
    for bytes in [&MAGIC[..], &VERSION.to_le_bytes(), &0_u16.to_le_bytes(), &pid.to_le_bytes()] {
        at = put(buffer, at?, bytes);
    }
    at
}

/// Adds an object to a datagram of which `used` bytes are used, and returns the bytes used then.
/// None when the object does not fit; the datagram then is as before.
#[must_use]
pub fn push(buffer: &mut [u8], used: usize, object: &LoaderNotice<'_>) -> Option<usize> {
    let build_id = if object.build_id.len() > BUILD_ID_MAX { &[] } else { object.build_id };
    let path = if object.path.len() > PATH_MAX { &[] } else { object.path };
    let objects = u16_at(buffer, OBJECTS_AT)?.checked_add(1)?;
    let lengths = [build_id.len() as u8, 0];
    let mut at = Some(used);
    for bytes in [
        &object.base.to_le_bytes()[..],
        &object.start.to_le_bytes(),
        &object.end.to_le_bytes(),
        &lengths,
        &(path.len() as u16).to_le_bytes(),
        build_id,
        path,
    ] {
        at = put(buffer, at?, bytes);
    }
    put(buffer, OBJECTS_AT, &objects.to_le_bytes())?;
    at
}

/// A decoded datagram: nothing in it can be trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// Process id as the sender sees itself, in its own pid namespace.
    pub pid: u32,
    objects: u16,
    rest: &'a [u8],
}

impl<'a> Datagram<'a> {
    /// Reads the header. None when the bytes are no datagram of this version.
    #[must_use]
    pub fn decode(bytes: &'a [u8]) -> Option<Self> {
        if bytes.len() > DATAGRAM_MAX
            || bytes.get(..MAGIC.len())? != MAGIC
            || u16_at(bytes, 4)? != VERSION
        {
            return None;
        }
        let pid = u32::from_le_bytes(bytes.get(8..12)?.try_into().ok()?);
        Some(Self { pid, objects: u16_at(bytes, OBJECTS_AT)?, rest: bytes.get(HEADER_BYTES..)? })
    }
}

/// Yields the objects in order, and ends early where the bytes do.
impl<'a> Iterator for Datagram<'a> {
    type Item = LoaderNotice<'a>;

    fn next(&mut self) -> Option<LoaderNotice<'a>> {
        self.objects = self.objects.checked_sub(1)?;
        let (fixed, rest) = self.rest.split_at_checked(OBJECT_BYTES)?;
        let (build_id, path) = (usize::from(*fixed.get(24)?), usize::from(u16_at(fixed, 26)?));
        let (build_id, rest) =
            rest.split_at_checked(build_id).filter(|(id, _)| id.len() <= BUILD_ID_MAX)?;
        let (path, rest) =
            rest.split_at_checked(path).filter(|(path, _)| path.len() <= PATH_MAX)?;
        let word = |at: usize| Some(u64::from_le_bytes(fixed.get(at..at + 8)?.try_into().ok()?));
        self.rest = rest;
        Some(LoaderNotice { base: word(0)?, start: word(8)?, end: word(16)?, build_id, path })
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

/// Copies `bytes` to `at` and returns the position after them.
fn put(buffer: &mut [u8], at: usize, bytes: &[u8]) -> Option<usize> {
    let end = at.checked_add(bytes.len())?;
    let place = buffer.get_mut(at..end)?;
    // Not copy_from_slice: it holds a panic for lengths that differ, and no panic may be linked
    // into the hook.
    place.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    Some(end)
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    const LIBC: LoaderNotice<'_> = LoaderNotice {
        base: 0x7000,
        start: 0x8000,
        end: 0x9000,
        build_id: &[7; 20],
        path: b"/lib/libc.so.6",
    };
    const PROGRAM: LoaderNotice<'_> =
        LoaderNotice { base: 0, start: 1, end: u64::MAX, build_id: &[], path: b"" };

    fn datagram(objects: &[LoaderNotice<'_>]) -> Vec<u8> {
        let mut buffer = [0; DATAGRAM_MAX];
        let used = objects.iter().try_fold(begin(&mut buffer, 42).unwrap(), |used, object| {
            push(&mut buffer, used, object)
        });
        buffer[..used.unwrap()].to_vec()
    }

    #[test]
    fn what_is_written_is_read() {
        for objects in [&[][..], &[LIBC], &[PROGRAM, LIBC, LIBC]] {
            let bytes = datagram(objects);
            let read = Datagram::decode(&bytes).unwrap();
            assert_eq!(read.pid, 42);
            assert_eq!(read.collect::<Vec<_>>(), objects);
        }
    }

    #[test]
    fn what_is_too_long_is_left_out() {
        let (id, path) = ([1; BUILD_ID_MAX + 1], [b'x'; PATH_MAX + 1]);
        for (object, expected) in [
            (LoaderNotice { build_id: &id, ..LIBC }, LoaderNotice { build_id: &[], ..LIBC }),
            (LoaderNotice { path: &path, ..LIBC }, LoaderNotice { path: &[], ..LIBC }),
            (
                LoaderNotice { build_id: &id[1..], path: &path[1..], ..LIBC },
                LoaderNotice { build_id: &id[1..], path: &path[1..], ..LIBC },
            ),
        ] {
            assert_eq!(
                Datagram::decode(&datagram(&[object])).unwrap().collect::<Vec<_>>(),
                [expected]
            );
        }
    }

    #[test]
    fn what_does_not_fit_leaves_the_datagram_as_it_was() {
        let mut buffer = [0; HEADER_BYTES + 2 * (OBJECT_BYTES + 34) + 20];
        let mut used = begin(&mut buffer, 1).unwrap();
        let mut objects = 0;
        while let Some(more) = push(&mut buffer, used, &LIBC) {
            (used, objects) = (more, objects + 1);
        }
        assert_eq!(objects, 2);
        assert_eq!(Datagram::decode(&buffer[..used]).unwrap().collect::<Vec<_>>(), [LIBC, LIBC]);
        assert_eq!((begin(&mut [0; HEADER_BYTES - 1], 1), push(&mut [], 0, &LIBC)), (None, None));
        assert_eq!(push(&mut buffer, usize::MAX, &LIBC), None);
    }

    /// Any user may write to the daemon's socket.
    #[test]
    fn cut_and_flipped_datagrams_are_read_without_a_panic() {
        let whole = datagram(&[PROGRAM, LIBC]);
        for len in 0..whole.len() {
            let cut = Datagram::decode(&whole[..len]).into_iter().flatten().count();
            assert!(cut < 2, "{len}");
        }
        for at in 0..whole.len() {
            for flip in [0x01, 0x80, 0xff] {
                let mut bytes = whole.clone();
                bytes[at] ^= flip;
                let read = Datagram::decode(&bytes);
                assert_eq!(read.is_none(), at < 6, "byte {at}");
                for object in read.into_iter().flatten() {
                    assert!(object.build_id.len() <= BUILD_ID_MAX && object.path.len() <= PATH_MAX);
                }
            }
        }
        let mut counted = whole.clone();
        counted[OBJECTS_AT..OBJECTS_AT + 2].copy_from_slice(&[0xff, 0xff]);
        assert_eq!(
            Datagram::decode(&counted).unwrap().count(),
            2,
            "more objects announced than there are"
        );
        assert_eq!(Datagram::decode(&[&whole[..], &[0; DATAGRAM_MAX]].concat()), None);
    }
}
