//! Counts words in a tree map for the seconds given, and prints {"words": ...}: Rust, whose names
//! are mangled.
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

fn main() {
    let seconds = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(1);
    let end = Instant::now() + Duration::from_secs(seconds);
    let (mut state, mut words) = (1_u64, BTreeMap::new());
    while Instant::now() < end {
        for _ in 0..10_000 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            *words.entry((state >> 48).to_string()).or_insert(0_u64) += 1;
        }
    }
    println!("{{\"words\": {}}}", words.len());
}
