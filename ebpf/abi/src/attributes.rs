//! Attributes that a program sets for its own threads: labels of Go's goroutines
//! (`runtime/pprof`), and OpenTelemetry's record of the current request.

use core::mem::{offset_of, size_of};

/// Most labels of a goroutine that are copied; of a map of Go's those in its first bucket.
pub const ATTRIBUTES_MAX: usize = 8;
/// Bytes of a label's key that are copied.
pub const ATTRIBUTE_KEY_BYTES: usize = 32;
/// Bytes of a label's value that are copied.
pub const ATTRIBUTE_VALUE_BYTES: usize = 64;
/// Bytes of the head of OpenTelemetry's record.
pub const ATTRIBUTES_HEAD_BYTES: usize = 28;
/// Most bytes of OpenTelemetry's record that are copied: as many as OTEP 4947 recommends at most.
pub const ATTRIBUTES_RECORD_BYTES: usize = 640;
/// Most bytes of attributes behind a [`crate::StackRecord`].
pub const ATTRIBUTES_BYTES_MAX: usize = ATTRIBUTES_MAX * size_of::<Attribute>();

/// In [`AttributeLayout::kind`]: the process sets none that are known.
pub const ATTRIBUTES_NONE: u32 = 0;
/// Labels of goroutines, in a map (until Go 1.23): [`Attribute`]s are copied.
pub const ATTRIBUTES_IN_MAP: u32 = 1;
/// Labels of goroutines, in a list (since Go 1.24): likewise.
pub const ATTRIBUTES_IN_LIST: u32 = 2;
/// OpenTelemetry's record: the record is copied.
pub const ATTRIBUTES_IN_RECORD: u32 = 3;

/// Where threads have the attributes that the program sets for them. Offsets are in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttributeLayout {
    /// [`ATTRIBUTES_NONE`] and so on.
    pub kind: u32,
    /// From the thread's pointer, or from the begin of the module's memory: the address of the `g`
    /// that runs, or of the record.
    pub thread_at: i32,
    /// Number of the module whose memory of the thread has the address of the record; 0: the
    /// distance is from the thread's pointer.
    pub module: u32,
    /// In a `g`: its `m`.
    pub m_at: u16,
    /// In an `m`: its goroutine.
    pub current_at: u16,
    /// In a `g`: its labels.
    pub labels_at: u16,
    /// Bytes of an entry in the thread's table of modules.
    pub module_bytes: u16,
    /// Fills up.
    pub reserved: u32,
}

/// A label of a goroutine.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attribute {
    /// Length of the key; its first bytes are copied.
    pub key_bytes: u32,
    /// Length of the value; likewise.
    pub value_bytes: u32,
    /// The key's begin. What is behind it is not defined.
    pub key: [u8; ATTRIBUTE_KEY_BYTES],
    /// The value's begin, likewise.
    pub value: [u8; ATTRIBUTE_VALUE_BYTES],
}

const _: () = {
    assert!(size_of::<AttributeLayout>() == 24);
    assert!(offset_of!(AttributeLayout, module_bytes) == 18);
    assert!(size_of::<Attribute>() == 104 && ATTRIBUTES_RECORD_BYTES <= ATTRIBUTES_BYTES_MAX);
};
