//! What a process says of itself to readers of OpenTelemetry's records: the names of their keys.
//!
//! A mapping named `OTEL_CTX` has a head: signature (8 bytes), version (4), bytes of the payload
//! (4), time of publication (8; 0 while it changes), address of the payload (8). The payload is a
//! message of protocol buffers, `ProcessContext`: `resource` (1), and further attributes (2), among
//! them how records of threads are read and the names of their keys. In earlier drafts the payload
//! is the message `Resource`, whose attributes (1) have them.
//!
//! # Sources
//!
//! oteps/profiles/4719-process-ctx.md and 4947-thread-ctx.md of OpenTelemetry's specification;
//! `AnyValue` and `KeyValue` of opentelemetry/proto/common/v1/common.proto; "Encoding",
//! protobuf.dev.

use crate::python::Memory;

/// Begins of the mapping's name: a file in memory that is named or not, and anonymous memory.
const NAMES: [&str; 3] = ["[anon_shmem:OTEL_CTX]", "/memfd:OTEL_CTX", "[anon:OTEL_CTX]"];
const SIGNATURE: &[u8; 8] = b"OTEL_CTX";
/// The version of the head that is known.
const VERSION: u32 = 2;
/// Most bytes that are read of the payload of a process context. It has the names of up to 256 keys
/// and the attributes of a service, which fit.
const PAYLOAD_MAX: u32 = 64 << 10;
/// Most keys: records have them as a byte.
const KEYS_MAX: usize = 256;
/// Most bytes of a key's name that are kept.
const KEY_BYTES_MAX: usize = 64;
/// How records of threads are read, as far as it is known.
const SCHEMAS: [&[u8]; 2] = [b"tls_v1", b"tlsdesc_v1_dev"];
/// Wire types.
const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const LENGTH: u64 = 2;
const FIXED32: u64 = 5;

/// The names of keys by number, of a process with this text of /proc/PID/maps. None: it says none,
/// or changes them just now, or its records are read otherwise.
pub fn keys(memory: &impl Memory, maps: &[u8]) -> Option<Vec<String>> {
    let begin = maps.split(|byte| *byte == b'\n').find_map(|line| {
        let line = std::str::from_utf8(line).ok()?;
        let (start, rest) = line.split_once('-')?;
        // Behind the first address: the end, rights, offset, device, inode, name.
        let name = rest.split_whitespace().nth(5)?;
        let is_it = NAMES.iter().any(|begin| name.starts_with(begin));
        is_it.then(|| u64::from_str_radix(start, 16).ok()).flatten()
    })?;
    let head = |at: u64| memory.word(begin.wrapping_add(at));
    let (signature, numbers, published) = (head(0)?, head(8)?, head(16)?);
    let (version, size) = (numbers as u32, (numbers >> 32) as u32);
    if signature.to_le_bytes() != *SIGNATURE || version != VERSION || published == 0 {
        return None;
    }
    let mut payload = vec![0; size.min(PAYLOAD_MAX) as usize];
    if size > PAYLOAD_MAX || memory.read(head(24)?, &mut payload) != payload.len() {
        return None;
    }
    (head(16)? == published).then(|| keys_of(&payload)).flatten()
}

/// The names in a payload.
fn keys_of(payload: &[u8]) -> Option<Vec<String>> {
    let resources = messages(payload, 1);
    let nested = resources.clone().flat_map(|resource| messages(resource, 1));
    let mut is_known = false;
    let mut keys = Vec::new();
    for pair in messages(payload, 2).chain(resources).chain(nested) {
        let Some(value) = messages(pair, 2).next() else { continue };
        match messages(pair, 1).next() {
            Some(b"threadlocal.schema_version") => {
                is_known = messages(value, 1).next().is_some_and(|of| SCHEMAS.contains(&of));
            }
            Some(b"threadlocal.attribute_key_map") => {
                let list = messages(value, 5).next().unwrap_or_default();
                let texts = messages(list, 1).map(|of| messages(of, 1).next().unwrap_or_default());
                let texts = texts.map(|text| text.get(..KEY_BYTES_MAX).unwrap_or(text));
                keys = texts
                    .take(KEYS_MAX)
                    .map(|text| String::from_utf8_lossy(text).into_owned())
                    .collect();
            }
            _ => {}
        }
    }
    is_known.then_some(keys)
}

/// The values of a field of bytes in a message, as far as the message makes sense.
fn messages(mut message: &[u8], field: u64) -> impl Iterator<Item = &[u8]> + Clone {
    std::iter::from_fn(move || {
        loop {
            let tag = varint(&mut message)?;
            let len = match tag & 7 {
                VARINT => {
                    varint(&mut message)?;
                    continue;
                }
                FIXED64 => 8,
                LENGTH => varint(&mut message)?,
                FIXED32 => 4,
                _ => return None,
            };
            let (value, rest) = message.split_at_checked(usize::try_from(len).ok()?)?;
            message = rest;
            if tag == field << 3 | LENGTH {
                return Some(value);
            }
        }
    })
}

fn varint(message: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = message.split_first()?;
        *message = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::python::tests::Bytes;

    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        [&[number << 3 | 2, u8::try_from(bytes.len()).unwrap()][..], bytes].concat()
    }

    fn pair(key: &str, value: &[u8]) -> Vec<u8> {
        [field(1, key.as_bytes()), field(2, value)].concat()
    }

    /// The two pairs that readers of records need.
    fn pairs(schema: &str) -> [Vec<u8>; 2] {
        let names = ["http_route", "user_id"].map(|name| field(1, &field(1, name.as_bytes())));
        [
            pair("threadlocal.schema_version", &field(1, schema.as_bytes())),
            pair("threadlocal.attribute_key_map", &field(5, &names.concat())),
        ]
    }

    #[test]
    fn keys_are_found_in_each_draft_of_the_payload() {
        let known = Some(vec!["http_route".to_owned(), "user_id".to_owned()]);
        let payload = |number| pairs("tlsdesc_v1_dev").map(|pair| field(number, &pair)).concat();
        assert_eq!(keys_of(&payload(2)), known);
        assert_eq!(keys_of(&payload(1)), known, "the payload is a resource");
        assert_eq!(keys_of(&field(1, &payload(1))), known, "in the resource");
        let fixed = [&[0x18, 7, 0x21, 0, 0, 0, 0, 0, 0, 0, 0][..], &payload(2)].concat();
        assert_eq!(keys_of(&fixed), known, "fields of other types are passed over");
        let other = pairs("go_pprof_labels_v1").map(|pair| field(2, &pair)).concat();
        assert_eq!(keys_of(&other), None);
        assert_eq!(keys_of(&[]), None);
        // Flipped and cut payloads say something or nothing.
        let whole = payload(2);
        for at in 0..whole.len() {
            let _ = keys_of(&whole[..at]);
            for bit in 0..8 {
                let mut flipped = whole.clone();
                flipped[at] ^= 1 << bit;
                let _ = keys_of(&flipped);
            }
        }
    }

    #[test]
    fn a_payload_is_read_once_it_is_published() {
        let payload = pairs("tls_v1").map(|pair| field(2, &pair)).concat();
        let maps = b"5000-6000 rw-p 00000000 00:01 77   /memfd:OTEL_CTX (deleted)\n";
        let read = |version: u64, published, size: u64| {
            let signature = u64::from_le_bytes(*SIGNATURE);
            let head = [(0x5000, signature), (0x5008, version | size << 32), (0x5010, published)];
            let words = payload.chunks(8).map(|chunk| {
                let mut word = [0; 8];
                word[..chunk.len()].copy_from_slice(chunk);
                u64::from_le_bytes(word)
            });
            let words = (0x9000..).step_by(8).zip(words);
            let all: Vec<(u64, u64)> =
                head.into_iter().chain([(0x5018, 0x9000)]).chain(words).collect();
            let memory = Bytes::default();
            memory.put_words(0, &all);
            keys(&memory, maps)
        };
        let size = payload.len() as u64;
        assert_eq!(read(2, 9, size).map(|keys| keys.len()), Some(2));
        assert_eq!(read(2, 0, size), None, "it changes");
        assert_eq!(read(3, 9, size), None);
        assert_eq!(read(2, 9, u64::from(u32::MAX)), None);
        assert_eq!(keys(&Bytes::default(), b"5000-6000 rw-p 0 00:01 77 /memfd:OTHER\n"), None);
    }
}
