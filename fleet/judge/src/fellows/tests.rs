use super::*;
use crate::discoveries;

fn normal(random: &mut fastrand::Rng) -> f64 {
    (-2.0 * (1.0 - random.f64()).ln()).sqrt() * (std::f64::consts::TAU * random.f64()).cos()
}

/// Samples of procedures on hosts, which vary by 20 % for good; `odd` spends twelve times as much
/// in the seventh.
fn hosts(count: usize, odd: Option<usize>, random: &mut fastrand::Rng) -> Vec<Vec<u64>> {
    let host = |host| {
        let size = 1e6 * normal(random).exp();
        let of = |rank: usize| {
            let times = if odd == Some(host) && rank == 7 { 12.0 } else { 1.0 };
            let mean = size / (rank + 3) as f64 * (0.2 * normal(random)).exp() * times;
            (mean + mean.sqrt() * normal(random)).round().max(0.0) as u64
        };
        (0..200).map(of).collect()
    };
    (0..count).map(host).collect()
}

fn distances(hosts: &[Vec<u64>]) -> Vec<Distance> {
    let all: Vec<u64> = hosts.iter().map(|rows| rows.iter().sum()).collect();
    let fellow = |row: usize| {
        let of: Vec<(u64, u64)> =
            hosts.iter().zip(&all).map(|(rows, all)| (rows[row], *all)).collect();
        Fellow::of(&of)
    };
    let fellows: Vec<Fellow> = (0..200).map(fellow).collect();
    let of = |(rows, all): (&Vec<u64>, &u64)| {
        Distance::of(rows.iter().copied().zip(fellows.iter().copied()), *all)
    };
    hosts.iter().zip(&all).map(of).collect()
}

#[test]
fn the_odd_host_is_named_with_what_differs() {
    let mut random = fastrand::Rng::with_seed(1);
    let distances = distances(&hosts(100, Some(42), &mut random));
    let found = discoveries(&unlike(&distances), 0.05).marked;
    assert!(found[42], "{:?}", distances[42]);
    assert_eq!(distances[42].most, Some(7));
    assert!(found.iter().filter(|marked| **marked).count() <= 2);
    // The others are about as far as expected.
    let ratio = distances[0].distance / distances[0].expected;
    assert!((0.7..1.4).contains(&ratio), "{:?}", distances[0]);
}

#[test]
fn hosts_that_are_alike_are_seldom_named() {
    let mut random = fastrand::Rng::with_seed(2);
    let named = (0..100).filter(|_| {
        let distances = distances(&hosts(40, None, &mut random));
        discoveries(&unlike(&distances), 0.05).marked.contains(&true)
    });
    let named = named.count();
    assert!(named <= 15, "{named} of 100");
}

#[test]
fn spread_is_what_sampling_does_not_explain() {
    let mut random = fastrand::Rng::with_seed(3);
    let mut hosts = |samples: f64, spread: f64| -> Vec<(u64, u64)> {
        let mut host = || {
            let mean = samples * (spread * normal(&mut random)).exp();
            ((mean + mean.sqrt() * normal(&mut random)).max(0.0) as u64, (samples * 100.0) as u64)
        };
        (0..2000).map(|_| host()).collect()
    };
    let fellow = Fellow::of(&hosts(1000.0, 0.2));
    assert!((fellow.spread - 0.2).abs() < 0.02 && (fellow.median - 0.01).abs() < 2e-4);
    assert!(Fellow::of(&hosts(1000.0, 0.0)).spread < 0.01);
}

#[test]
fn nothing_is_unlike_nothing() {
    assert_eq!(Fellow::of(&[]), Fellow::default());
    assert_eq!(Fellow::of(&[(5, 0), (0, 0)]), Fellow::default());
    assert_eq!(Distance::of([(5, Fellow::default())], 0), Distance::default());
    assert_eq!(unlike(&[]), Vec::<f64>::new());
    assert_eq!(unlike(&[Distance::default(); 20]), [1.0; 20]);
    let bad = Fellow { median: f64::NAN, spread: f64::INFINITY };
    assert_eq!(Distance::of([(5, bad)], 10).most, None);
    let of = |distance| Distance { distance, expected: 0.1, most: None };
    // Seven hosts say nothing of each other; of equal ones one that is a hair farther is none.
    assert_eq!(unlike(&[of(0.1), of(0.1), of(0.1), of(0.1), of(0.1), of(0.1), of(9.0)]), [1.0; 7]);
    let mut equal = vec![of(0.1); 30];
    equal.push(of(0.101));
    assert!(unlike(&equal).iter().all(|p| *p > 0.5));
    equal.push(of(f64::NAN));
    equal.push(Distance { expected: 0.0, ..of(0.5) });
    assert_eq!(unlike(&equal)[31..], [1.0, 1.0]);
}
