//! Laws that hold for all values.

use image::ImageOffset;
use model::{Edges, Profile};
use profiledb::codec::{decode_symbols, encode_symbols};
use profiledb::shapes;
use profiledb::{EpochId, ImageRecord, Symbol};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

use crate::fixture::{image, record};

/// Numbers of all magnitudes.
fn number() -> impl Strategy<Value = u64> {
    (any::<u64>(), 0_u32..64).prop_map(|(value, shift)| value >> shift)
}

fn profile() -> impl Strategy<Value = Profile> {
    // Few offsets, so that profiles meet; and counts up to the end of u64, so that they saturate.
    let offset = prop_oneof![0_u64..20, number()];
    vec((offset, number()), 0..40).prop_map(|counts| {
        Profile::from_counts(counts.into_iter().map(|(o, c)| (ImageOffset(o), c)))
    })
}

fn merged(a: &Profile, b: &Profile) -> Profile {
    let mut sum = a.clone();
    sum.merge(b);
    sum
}

fn symbols() -> impl Strategy<Value = Vec<Symbol>> {
    btree_map(number(), (number(), "\\PC{1,20}"), 0..30).prop_map(|symbols| {
        symbols
            .into_iter()
            .map(|(start, (size, name))| Symbol { start, end: start.saturating_add(size), name })
            .collect()
    })
}

fn edges() -> impl Strategy<Value = Edges> {
    let offset = || prop_oneof![0_u64..6, number()];
    let pair =
        |((from, to), count): ((u64, u64), u64)| ((ImageOffset(from), ImageOffset(to)), count);
    vec(((offset(), offset()), number()), 0..40)
        .prop_map(move |all| Edges::from_counts(all.into_iter().map(pair)))
}

proptest! {
    #[test]
    fn merging_is_commutative_and_associative(a in profile(), b in profile(), c in profile()) {
        prop_assert_eq!(merged(&a, &b), merged(&b, &a));
        prop_assert_eq!(merged(&merged(&a, &b), &c), merged(&a, &merged(&b, &c)));
        prop_assert_eq!(merged(&a, &Profile::new()), a);
    }

    #[test]
    fn merging_keeps_every_sample(
        counts in vec((0_u64..50, 0_u64..1 << 32), 0..60),
        cut in 0_usize..60
    ) {
        let cut = cut.min(counts.len());
        let of = |counts: &[(u64, u64)]| {
            Profile::from_counts(counts.iter().map(|(o, c)| (ImageOffset(*o), *c)))
        };
        let (left, right) = counts.split_at(cut);
        let sum = merged(&of(left), &of(right));
        prop_assert_eq!(sum.total(), counts.iter().map(|(_, c)| c).sum::<u64>());
        prop_assert_eq!(sum, of(&counts));
    }

    #[test]
    fn profiles_are_sorted_and_without_zeros(profile in profile()) {
        let entries: Vec<(ImageOffset, u64)> = profile.iter().collect();
        prop_assert!(entries.windows(2).all(|pair| pair[0].0.0 < pair[1].0.0));
        prop_assert!(entries.iter().all(|(_, count)| *count > 0));
        prop_assert_eq!(entries.len(), profile.len());
    }

    #[test]
    fn columns_read_back(profile in profile(), stride in 0_u32..5) {
        let spread = profile.iter().map(|(offset, count)| (ImageOffset(offset.0 << stride), count));
        let profile = Profile::from_counts(spread);
        let bytes = shapes::encode_samples(&profile);
        let decoded = shapes::decode_samples(&bytes, profile.len() as u64).unwrap();
        prop_assert_eq!(decoded, profile.clone());
        prop_assert!(shapes::decode_samples(&bytes, profile.len() as u64 + 1).is_err());
        for cut in 0..bytes.len() {
            prop_assert!(shapes::decode_samples(&bytes[..cut], profile.len() as u64).is_err());
        }
    }

    #[test]
    fn edges_read_back_and_merge_in_any_order(a in edges(), b in edges(), c in edges()) {
        let bytes = shapes::encode_edges(&a);
        prop_assert_eq!(shapes::decode_edges(&bytes, a.len() as u64).unwrap(), a.clone());
        let sum = |x: &Edges, y: &Edges| { let mut sum = x.clone(); sum.merge(y); sum };
        prop_assert_eq!(sum(&a, &b), sum(&b, &a));
        prop_assert_eq!(sum(&sum(&a, &b), &c), sum(&a, &sum(&b, &c)));
    }

    #[test]
    fn symbols_read_back(symbols in symbols()) {
        let bytes = encode_symbols(&image(1), &symbols);
        prop_assert_eq!(decode_symbols(&image(1), &bytes).unwrap(), symbols);
    }

    /// Every byte string has at most one meaning, and none makes a decoder panic.
    #[test]
    fn what_decodes_is_what_was_encoded(tail in vec(prop_oneof![0_u8..6, any::<u8>()], 0..24)) {
        let head = encode_symbols(&image(1), &[]);
        let symbols = [&head[..head.len() - 1], &tail[..]].concat();
        if let Ok(read) = decode_symbols(&image(1), &symbols) {
            prop_assert_eq!(encode_symbols(&image(1), &read), symbols);
        }
    }

    #[test]
    fn a_changed_payload_never_decodes_to_the_same(
        profile in profile(),
        at in any::<prop::sample::Index>(),
        flip in 1_u8..
    ) {
        let mut bytes = shapes::encode_samples(&profile);
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        if let Ok(other) = shapes::decode_samples(&bytes, profile.len() as u64) {
            prop_assert_ne!(other, profile);
        }
    }

    #[test]
    fn arbitrary_files_do_not_open(file in vec(any::<u8>(), 0..100)) {
        prop_assert!(profiledb::envelope::open(&file).is_err());
    }

    #[test]
    fn epochs_read_back(unix_s in 0_u64..253_402_300_800) {
        let id = EpochId::from_unix_s(unix_s);
        prop_assert_eq!(id.unix_s(), unix_s);
        prop_assert_eq!(id.to_string().parse::<EpochId>().unwrap(), id);
    }

    #[test]
    fn paths_read_back(
        bytes in vec(prop_oneof![Just(b'\\'), Just(b'x'), 0x30_u8..0x3a, any::<u8>()], 0..30)
    ) {
        use std::os::unix::ffi::OsStringExt;
        let path = std::path::PathBuf::from(std::ffi::OsString::from_vec(bytes));
        let mut record = record(1, 0);
        record.path = ImageRecord::escape_path(&path);
        prop_assert!(!record.path.chars().any(char::is_control));
        prop_assert_eq!(record.real_path(), path);
    }
}
