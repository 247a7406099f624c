//! Attributes that programs set for their own threads, as a sampler copies them, and what a process
//! says of their names.

use crate::runtime_memory::{BASE, Bytes};
use crate::word;
use abi::{ATTRIBUTES_BYTES_MAX, StackRecord};
use inspect::attributes::process_context::keys;
use inspect::questions::AttributesFound;
use model::KeptAttributes;
use sampling::call_stacks::attributes::AttributeLooks;
use std::time::Instant;

/// Reads attributes. The input is their kind, their length, they themselves, and memory, which
/// begins with the head of the process's description.
pub fn read(mut bytes: &[u8]) {
    let kind = word(&mut bytes) as u32;
    let len = (word(&mut bytes) as usize).min(ATTRIBUTES_BYTES_MAX).min(bytes.len());
    let (copied, memory) = bytes.split_at(len);
    let maps = format!("{BASE:x}-{:x} rw-p 00000000 00:01 7 /memfd:OTEL_CTX\n", BASE + 4096);
    let keys = keys(&Bytes(memory), maps.as_bytes()).unwrap_or_default();
    assert!(keys.len() <= 256);
    let mut looks = AttributeLooks::default();
    let now = Instant::now();
    let _ = looks.wants(7, now);
    let layout = abi::AttributeLayout::default();
    let _ = looks.note(7, Some(AttributesFound { layout, keys }), now);
    let record = StackRecord { attribute_kind: kind % 5, space: 7, ..StackRecord::EMPTY };
    let read = looks.read(&record, copied, KeptAttributes::Traces);
    assert!(read.iter().all(|(key, value)| !format!("{key}{value}").contains(char::is_control)));
}

/// A label; a record with one attribute, and its name.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let head = |kind: u64, len: u64| [kind, len].map(u64::to_le_bytes).concat();
    let mut label = head(2, 104);
    label.extend([5, 2].map(u32::to_le_bytes).concat());
    label.extend(b"route");
    label.resize(16 + 8 + 32, 0);
    label.extend(b"/a");
    label.resize(16 + 104, 0);
    let mut record = head(3, 32);
    record.extend([&[0xab; 24][..], &[1, 1, 4, 0], b"\x00\x02/a"].concat());
    let field = |number: u8, bytes: &[u8]| {
        [&[number << 3 | 2, u8::try_from(bytes.len()).unwrap()][..], bytes].concat()
    };
    let pair = |key: &[u8], value: &[u8]| field(2, &[field(1, key), field(2, value)].concat());
    let payload = [
        pair(b"threadlocal.schema_version", &field(1, b"tls_v1")),
        pair(b"threadlocal.attribute_key_map", &field(5, &field(1, &field(1, b"route")))),
    ]
    .concat();
    record.extend(b"OTEL_CTX");
    record.extend([2, payload.len() as u64 as u32].map(u32::to_le_bytes).concat());
    record.extend([1, BASE + 32].map(u64::to_le_bytes).concat());
    record.extend(payload);
    vec![label, record]
}
