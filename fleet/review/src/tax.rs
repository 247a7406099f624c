//! The fleet's tax: work below the services' own code, which all of them do.
//!
//! The kinds are those of S. Kanev et al., "Profiling a warehouse-scale computer", ISCA 2015,
//! section 4 and figure 4: allocation, data movement, compression, protocol buffers, remote calls,
//! hashing; and the kernel, which they count beside the tax. Encryption and locking are ours.
//!
//! A procedure is of a kind by its name alone. A copy that the compiler inlined counts where it was
//! inlined, and a procedure that only calls `memcpy` does not count: the tax is a lower bound.

use std::collections::BTreeMap;
use std::fmt;

use crate::report::{Report, TaxRow};

/// A kind of work.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Memory taken and given back.
    Allocation,
    /// Bytes moved, set or compared.
    Copying,
    /// Compression and decompression.
    Compression,
    /// Data structures to bytes and back.
    Serialisation,
    /// Remote procedure calls, without what they carry.
    RemoteCalls,
    /// Hashes and checksums.
    Hashing,
    /// Encryption, and TLS around it.
    Encryption,
    /// Locks of user space, taken or waited for.
    Locking,
    /// All of the kernel.
    Kernel,
}

impl Kind {
    /// The kind's name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allocation => "allocation",
            Self::Copying => "copying",
            Self::Compression => "compression",
            Self::Serialisation => "serialisation",
            Self::RemoteCalls => "remote calls",
            Self::Hashing => "hashing",
            Self::Encryption => "encryption",
            Self::Locking => "locking",
            Self::Kernel => "kernel",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// First characters of images whose every procedure is of a kind.
#[rustfmt::skip]
const IMAGES: [(Kind, &[&str]); 6] = [
    (Kind::Kernel, &[
        "[kernel", "vmlinux",
    ]),
    (Kind::Allocation, &[
        "libjemalloc", "libtcmalloc", "libmimalloc",
    ]),
    (Kind::Compression, &[
        "libz.so", "libzstd.so", "liblz4.so", "libsnappy.so", "libbrotli", "liblzma.so",
        "libbz2.so",
    ]),
    (Kind::Serialisation, &[
        "libprotobuf", "libthrift", "libjson-c", "libmsgpack",
    ]),
    (Kind::Encryption, &[
        "libcrypto.so", "libssl.so", "libgnutls.so", "libmbedcrypto.so",
    ]),
    (Kind::RemoteCalls, &[
        "libgrpc",
    ]),
];

/// Names of procedures, or of the namespaces or types that they are of, without leading
/// underscores and without the star of Go's `(*Mutex)`. A `*` stands for what may follow: at the
/// end for anything, within for letters, digits and underscores.
#[rustfmt::skip]
const PROCEDURES: [(Kind, &[&str]); 8] = [
    (Kind::Allocation, &[
        "malloc", "calloc", "realloc", "free", "cfree", "memalign", "aligned_alloc",
        "posix_memalign", "libc_malloc", "libc_calloc", "libc_realloc", "libc_free",
        "libc_memalign", "int_malloc", "int_free*", "int_realloc", "int_memalign",
        "malloc_consolidate", "unlink_chunk*", "sysmalloc", "tcache_*", "operator new*",
        "operator delete*", "tcmalloc::*", "tc_malloc*", "tc_free*", "tc_new*", "tc_delete*",
        "je_*", "arena_malloc*", "arena_dalloc*", "mi_malloc*", "mi_free*", "mi_heap_*",
        "rust_alloc*", "rust_dealloc", "rust_realloc", "rdl_*", "rg_alloc*", "alloc::alloc::*",
        "alloc::raw_vec::*", "runtime.malloc*", "runtime.newobject", "runtime.growslice",
        "runtime.gc*", "runtime.scanobject", "runtime.(mspan)*", "runtime.(mcache)*",
        "runtime.(mcentral)*", "runtime.(mheap)*",
    ]),
    (Kind::Copying, &[
        "memcpy*", "memmove*", "memset*", "mempcpy*", "memcmp*", "bcmp", "bcopy", "bzero",
        "strcpy*", "strncpy*", "wmemset*", "runtime.memmove", "runtime.memclr*",
    ]),
    (Kind::Compression, &[
        "deflate*", "inflate*", "longest_match*", "compress_block", "crc32_z_combine", "ZSTD_*",
        "HUF_*", "FSE_*", "LZ4_*", "LZ4F_*", "snappy::*", "Brotli*", "lzma_*", "BZ2_*",
        "flate2::*", "miniz_oxide::*", "zstd::*", "zstd_safe::*", "lz4_flex::*",
        "snap::compress::*", "snap::decompress::*", "brotli::*", "brotli_decompressor::*",
        "compress/flate.*", "compress/gzip.*",
    ]),
    (Kind::Serialisation, &[
        "google::protobuf::*", "upb_*", "prost::*", "protobuf::*", "apache::thrift::*",
        "thrift::*", "rapidjson::*", "simdjson::*", "nlohmann::*", "Json::*", "folly::parseJson*",
        "folly::json::*", "flatbuffers::*", "capnp::*", "msgpack::*", "serde::*", "serde_core::*",
        "serde_json::*", "simd_json::*", "bincode::*", "rmp_serde::*", "ciborium::*",
        "postcard::*", "encoding/json.*", "google.golang.org/protobuf/*", "encoding/gob.*",
    ]),
    (Kind::RemoteCalls, &[
        "grpc::*", "grpc_*", "grpc_core::*", "brpc::*", "tonic::*", "tarpc::*",
        "google.golang.org/grpc*", "net/rpc.*",
    ]),
    (Kind::Hashing, &[
        "crc32*", "crc32c*", "crc_*", "adler32*", "SHA1_*", "SHA256_*", "SHA512_*", "sha1_*",
        "sha256_*", "sha512_*", "MD5_*", "md5_*", "KeccakF1600*", "XXH*", "CityHash*",
        "farmhash*", "MurmurHash*", "murmurhash*", "HighwayHash*", "blake3*", "blake2*",
        "absl::hash_internal::*", "absl::lts_*::hash_internal::*", "std::_Hash_bytes",
        "Hash_bytes", "core::hash::*", "std::hash::*", "ahash::*", "rustc_hash::*", "fxhash::*",
        "siphasher::*", "twox_hash::*", "sha1::*", "sha2::*", "sha3::*", "md5::*", "crc32fast::*",
        "crc32c::*", "runtime.memhash*", "runtime.strhash*", "runtime.aeshash*", "hash/crc32.*",
        "crypto/sha256.*",
    ]),
    (Kind::Encryption, &[
        "EVP_*", "SSL_*", "ssl3_*", "tls1_*", "tls13_*", "AES_*", "aes_*", "aesni_*", "vpaes_*",
        "gcm_*", "GCM_*", "CRYPTO_*", "ChaCha20*", "chacha20*", "Poly1305*", "poly1305_*",
        "bn_mul*", "bn_sqr*", "bn_*mont*", "BN_*", "ecp_nistz256*", "x25519_*", "RSA_*", "EC_*",
        "rustls::*", "ring::aead::*", "ring::digest::*", "ring::ec::*", "ring::hmac::*",
        "ring::rsa::*", "ring_core_*", "aws_lc_*", "bssl::*", "crypto/tls.*", "crypto/aes.*",
        "crypto/internal/*",
    ]),
    (Kind::Locking, &[
        "pthread_mutex_*", "pthread_rwlock_*", "pthread_spin_*", "pthread_cond_*", "lll_lock_*",
        "lll_unlock_*", "lll_mutex_*", "sem_wait*", "sem_post", "std::mutex::*",
        "std::condition_variable::*", "std::sync::mutex::*", "std::sync::rwlock::*",
        "std::sync::condvar::*", "std::sync::poison::*", "std::sys::sync::*", "absl::Mutex::*",
        "absl::CondVar::*", "absl::lts_*::Mutex::*", "absl::lts_*::CondVar::*",
        "std::__1::mutex::*", "absl::base_internal::SpinLock::*", "folly::SharedMutexImpl*",
        "parking_lot::*", "parking_lot_core::*", "tokio::sync::batch_semaphore::*",
        "tokio::sync::mutex::*", "runtime.lock*", "runtime.unlock*", "runtime.futex*",
        "sync.(Mutex)*", "sync.(RWMutex)*", "internal/sync.(Mutex)*",
    ]),
];

/// The kind of a procedure; None: it is the service's own work.
#[must_use]
pub fn kind(image: &str, procedure: &str) -> Option<Kind> {
    // A module of the kernel, perhaps compressed: `ext4.ko.zst`.
    if image.contains(".ko.") || image.ends_with(".ko") {
        return Some(Kind::Kernel);
    }
    let of_image =
        |(_, images): &&(Kind, &[&str])| images.iter().any(|first| image.starts_with(first));
    if let Some((kind, _)) = IMAGES.iter().find(of_image) {
        return Some(*kind);
    }
    let procedure = procedure.replace("(*", "(");
    let heads = heads(&procedure);
    let is_of = |(_, names): &&(Kind, &[&str])| {
        heads.iter().any(|head| names.iter().any(|name| is_named(head, name)))
    };
    PROCEDURES.iter().find(is_of).map(|(kind, _)| *kind)
}

/// The kinds of a report's procedures, the most core-hours first.
#[must_use]
pub fn of(report: &Report) -> Vec<TaxRow> {
    let mut sums: BTreeMap<Kind, (f64, Option<f64>)> = BTreeMap::new();
    for row in &report.top {
        let Some(kind) = kind(&row.image, &row.procedure) else { continue };
        let sum = sums.entry(kind).or_default();
        sum.0 += row.core_hours;
        sum.1 = row.money.map(|money| money + sum.1.unwrap_or(0.0)).or(sum.1);
    }
    let all = report.fleet.core_hours;
    let mut rows: Vec<TaxRow> = sums
        .into_iter()
        .map(|(kind, (core_hours, money))| TaxRow {
            kind: kind.name().to_owned(),
            core_hours,
            share: if all > 0.0 { core_hours / all } else { 0.0 },
            money,
        })
        .collect();
    rows.sort_by(|a, b| b.core_hours.total_cmp(&a.core_hours));
    rows
}

/// The places in a name where the procedure's own path begins: the start; behind the return type of
/// a C++ template; in Rust, the type and the trait of `<T as Trait>::f` and `<impl Trait for T>`.
/// Template arguments and parameters are no such places: a vector of messages is a vector.
fn heads(name: &str) -> Vec<&str> {
    let mut heads = Vec::new();
    let mut add = |at: usize| {
        let head = name.get(at..).unwrap_or_default();
        heads.push(head.trim_start_matches(['<', '&', '_', '*']));
    };
    add(0);
    let mut depth = 0_usize;
    for (at, c) in name.char_indices() {
        let before = name.get(..at).unwrap_or_default();
        match c {
            '<' if !before.ends_with("operator") => depth += 1,
            '>' if !before.ends_with(['-', '=']) => depth = depth.saturating_sub(1),
            // `runtime.(mheap).alloc` has its parameters nowhere.
            '(' if depth == 0 && !before.ends_with('.') => break,
            ' ' if depth == 0 && !before.ends_with("operator") => add(at + 1),
            ' ' if depth == 1 && (before.ends_with(" as") || before.ends_with("<impl")) => {
                add(at + 1);
            }
            _ => {}
        }
    }
    heads
}

/// Whether a path begins with a name of the table.
fn is_named(path: &str, name: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    match name.split_once('*') {
        Some((first, "")) => path.starts_with(first),
        Some((first, rest)) => path.strip_prefix(first).is_some_and(|after| {
            let end = after.find(|c| !is_part(c)).unwrap_or(after.len());
            (0..=end).any(|at| after.get(at..).is_some_and(|after| is_named(after, rest)))
        }),
        // Versions (`malloc@plt`), clones (`free.part.0`) and parameters may follow.
        None => path
            .strip_prefix(name)
            .is_some_and(|after| !after.starts_with(is_part) && !after.starts_with("::")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Fleet, TopRow};

    /// Names as demanglers write them, of glibc, C++, Rust and Go.
    #[test]
    fn real_names_are_of_their_kinds() {
        use Kind::*;
        for (name, expected) in [
            ("malloc", Allocation),
            ("_int_malloc", Allocation),
            ("__libc_calloc", Allocation),
            ("cfree@GLIBC_2.2.5", Allocation),
            ("_int_free_merge_chunk", Allocation),
            ("operator new(unsigned long)", Allocation),
            ("operator delete[](void*, unsigned long)", Allocation),
            ("tcmalloc::tcmalloc_internal::CentralFreeList::RemoveRange(void**, int)", Allocation),
            ("je_arena_malloc_hard", Allocation),
            ("__rdl_alloc", Allocation),
            ("alloc::raw_vec::RawVecInner<A>::finish_grow", Allocation),
            ("<alloc::alloc::Global as core::alloc::Allocator>::allocate", Allocation),
            ("runtime.mallocgc", Allocation),
            ("runtime.(*mheap).allocSpan", Allocation),
            ("__memmove_avx_unaligned_erms", Copying),
            ("__memset_evex_unaligned", Copying),
            ("memcpy@plt", Copying),
            ("__memcmp_avx2_movbe", Copying),
            ("deflate_slow", Compression),
            ("inflate_fast", Compression),
            ("ZSTD_compressBlock_doubleFast", Compression),
            ("HUF_decompress4X1_usingDTable_internal_fast", Compression),
            ("LZ4_decompress_safe", Compression),
            ("snappy::internal::CompressFragment(char const*, unsigned long, char*)", Compression),
            ("BrotliDecoderDecompressStream", Compression),
            ("miniz_oxide::inflate::core::decompress", Compression),
            ("google::protobuf::internal::TcParser::MiniParse(int)", Serialisation),
            ("bool google::protobuf::internal::MergeFromImpl<false>(int)", Serialisation),
            (
                "rapidjson::GenericReader<rapidjson::UTF8<char>, A>::ParseString<0u>()",
                Serialisation,
            ),
            ("<serde_json::ser::Compound<W, F> as serde::ser::SerializeMap>::end", Serialisation),
            ("shop::_::<impl serde::de::Deserialize for shop::Order>::deserialize", Serialisation),
            ("<shop::Order as serde::ser::Serialize>::serialize", Serialisation),
            ("prost::encoding::decode_varint_slice", Serialisation),
            ("apache::thrift::protocol::TCompactProtocolT<T>::readVarint64(long&)", Serialisation),
            ("encoding/json.(*decodeState).object", Serialisation),
            ("grpc_core::HPackParser::Parse(grpc_slice const&)", RemoteCalls),
            ("tonic::codec::decode::StreamingInner::decode_chunk", RemoteCalls),
            ("crc32c::ExtendSse42(unsigned int, unsigned char const*)", Hashing),
            ("sha256_block_data_order_shaext", Hashing),
            ("XXH3_64bits", Hashing),
            ("std::_Hash_bytes(void const*, unsigned long, unsigned long)", Hashing),
            ("<core::hash::sip::Hasher<S> as core::hash::Hasher>::write", Hashing),
            ("absl::lts_20240116::hash_internal::MixingHashState::Mix(unsigned long)", Hashing),
            ("aesni_ctr32_encrypt_blocks", Encryption),
            ("gcm_ghash_avx", Encryption),
            ("bn_sqr8x_mont", Encryption),
            ("rustls::conn::ConnectionCommon<Data>::process_new_packets", Encryption),
            ("pthread_mutex_lock", Locking),
            ("___pthread_mutex_lock", Locking),
            ("__lll_lock_wait", Locking),
            ("absl::Mutex::LockSlow(int)", Locking),
            ("absl::lts_20240116::Mutex::LockSlow(int)", Locking),
            ("std::sys::sync::mutex::futex::Mutex::lock_contended", Locking),
            ("parking_lot::raw_mutex::RawMutex::lock_slow", Locking),
        ] {
            assert_eq!(kind("main", name), Some(expected), "{name}");
        }
    }

    #[test]
    fn the_work_of_services_is_no_tax() {
        for name in [
            "main",
            "",
            "malloc_statistics_page",
            "freeze_order",
            "Shop::free_shipping()",
            "std::vector<google::protobuf::Message*>::push_back(google::protobuf::Message*)",
            "void shop::add<serde_json::Value>(serde_json::Value)",
            "core::ptr::drop_in_place<serde_json::Value>",
            "shop::malloc(int)",
            "malloc::Pool::get()",
            "hash_join",
            "ring::Buffer::push(int)",
            "std::sync::mpsc::Receiver<T>::recv",
            "std::_Hashtable<int, int>::find(int const&)",
            "hashbrown::map::HashMap<K, V>::insert",
            "operator<<(std::ostream&, tcmalloc::Stats const&)",
            "shop::Order::operator->() const",
        ] {
            assert_eq!(kind("main", name), None, "{name}");
        }
    }

    #[test]
    fn images_decide_before_names() {
        for (image, expected) in [
            ("[kernel]", Kind::Kernel),
            ("ext4.ko.zst", Kind::Kernel),
            ("libz.so.1.3.1", Kind::Compression),
            ("libcrypto.so.3", Kind::Encryption),
            ("libtcmalloc_minimal.so.4", Kind::Allocation),
        ] {
            assert_eq!(kind(image, "memcpy"), Some(expected), "{image}");
        }
        assert_eq!(kind("libzebra.so", "f"), None);
    }

    #[test]
    fn kinds_add_up() {
        let row = |procedure: &str, core_hours, money| TopRow {
            procedure: procedure.to_owned(),
            core_hours,
            money,
            ..TopRow::default()
        };
        let report = Report {
            fleet: Fleet { core_hours: 40.0, ..Fleet::default() },
            top: vec![
                row("malloc", 2.0, Some(1.0)),
                row("main", 20.0, Some(9.0)),
                row("free", 1.0, None),
                row("memcpy", 4.0, None),
            ],
            ..Report::default()
        };
        let rows = of(&report);
        let rows: Vec<_> = rows
            .iter()
            .map(|row| (row.kind.as_str(), row.core_hours, row.share, row.money))
            .collect();
        assert_eq!(rows, [("copying", 4.0, 0.1, None), ("allocation", 3.0, 0.075, Some(1.0))]);
    }
}
