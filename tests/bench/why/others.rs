//! As others.c, of Rust's library.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::{Duration, Instant};

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

#[inline(never)]
fn add_odd(values: &[u32]) -> u64 {
    let mut sum = 0_u64;
    for value in values {
        if value & 1 == 1 {
            sum = sum.wrapping_add(black_box(u64::from(*value)));
        } else {
            sum ^= black_box(7);
        }
    }
    sum
}

fn odd(random: &mut Random, end: Instant) {
    let values: Vec<u32> = (0..100_000).map(|_| (random.next() >> 20) as u32).collect();
    while Instant::now() < end {
        black_box(add_odd(&values));
    }
}

fn tree(random: &mut Random, end: Instant) {
    let map: BTreeMap<u64, u64> = (0..2_000_000).map(|key| (key * 7919 % 2_000_003, key)).collect();
    while Instant::now() < end {
        for _ in 0..1000 {
            black_box(map.get(&(random.next() % 2_000_003)));
        }
    }
}

fn boxes(random: &mut Random, end: Instant) {
    let mut boxes: Vec<Box<[u64; 12]>> = (0..2_000_000).map(|n| Box::new([n; 12])).collect();
    for at in (1..boxes.len()).rev() {
        boxes.swap(at, (random.next() % (at as u64 + 1)) as usize);
    }
    while Instant::now() < end {
        black_box(boxes.iter().fold(0_u64, |sum, of| sum.wrapping_add(of[5])));
    }
}

fn main() {
    let programs: [(&str, &str, fn(&mut Random, Instant)); 3] = [
        ("odd", "branch_mispredict", odd),
        ("tree", "load_from_memory,load_from_l3,branch_mispredict,page_walk", tree),
        ("boxes", "load_from_memory,page_walk", boxes),
    ];
    let words: Vec<String> = std::env::args().collect();
    for (name, mechanisms, run) in programs {
        match &words[1..] {
            [wanted, seconds] if wanted == name => {
                let seconds = seconds.parse().expect("seconds");
                run(
                    &mut Random(88_172_645_463_325_252),
                    Instant::now() + Duration::from_secs_f64(seconds),
                );
            }
            [_, _] => {}
            _ => println!("{name} {mechanisms}"),
        }
    }
}
