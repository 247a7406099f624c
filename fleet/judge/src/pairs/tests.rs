use super::*;

/// A standard normal number (Box and Muller).
fn normal(random: &mut fastrand::Rng) -> f64 {
    (-2.0 * (1.0 - random.f64()).ln()).sqrt() * (std::f64::consts::TAU * random.f64()).cos()
}

/// The sums of hosts, each with the samples of both sides and of each procedure on both.
fn group(hosts: &[([f64; 2], Vec<[f64; 2]>)]) -> Group {
    let mut group = Group::default();
    for ([n1, n2], rows) in hosts {
        let w = weight(*n1, *n2);
        group.pairs += 1;
        group.w += w;
        group.w2 += w * w;
        group.sampling += w * w * (1.0 / n1 + 1.0 / n2);
        group.samples_old += *n1 as u64;
        group.samples_new += *n2 as u64;
        group.rows.resize(rows.len(), Sums::default());
        for (sums, [x1, x2]) in group.rows.iter_mut().zip(rows) {
            let d = x2 / n2 - x1 / n1;
            sums.wd += w * d;
            sums.w2d += w * w * d;
            sums.w2d2 += w * w * d * d;
            sums.w_old += w * x1 / n1;
            sums.hosts += u64::from(x1 + x2 > 0.0);
            sums.samples_old += *x1 as u64;
            sums.samples_new += *x2 as u64;
        }
    }
    group
}

/// Hosts of very different sizes, on which procedures of these shares vary by 20 % for good and by
/// 4 % on each side; on the new side each has its factor. Counts are normal: there are many.
fn hosts(
    count: usize,
    shares: &[f64],
    factors: &[f64],
    random: &mut fastrand::Rng,
) -> Vec<([f64; 2], Vec<[f64; 2]>)> {
    let host = |_| {
        let size = 1e6 * (1.5 * normal(random)).exp();
        // A roll-out reaches the host early or late.
        let early = 0.1 + 0.8 * random.f64();
        let n = [size * early, size * (1.0 - early)];
        let rows: Vec<[f64; 2]> = shares
            .iter()
            .zip(factors)
            .map(|(share, factor)| {
                let share = share * (0.2 * normal(random)).exp();
                let mut side = |n: f64, factor: f64| {
                    let mean = n * share * factor * (0.04 * normal(random)).exp();
                    (mean + mean.sqrt() * normal(random)).round().max(0.0)
                };
                [side(n[0], 1.0), side(n[1], *factor)]
            })
            .collect();
        (n.map(f64::round), rows)
    };
    (0..count).map(host).collect()
}

fn judged(group: &Group, rule: &Rule) -> (Typical, Vec<Judged>) {
    let (typical, mut judged) = paired(std::slice::from_ref(group), rule).pop().unwrap();
    mark(&mut judged, 0.05);
    (typical, judged)
}

#[test]
fn by_hand() {
    // Two hosts of equal weight: 10 % to 11 %, and 20 % to 23 %.
    let group = group(&[([1e6, 1e6], vec![[1e5, 1.1e5]]), ([1e6, 1e6], vec![[2e5, 2.3e5]])]);
    let rule = Rule { spread_least: 0.0, ..Rule::builds() };
    let row = judged(&group, &rule).1[0];
    assert!((row.share_old - 0.15).abs() < 1e-12 && (row.share_change - 0.02).abs() < 1e-12);
    assert!((row.value - 0.02 / 0.15).abs() < 1e-12);
    // The changes are 0.01 and 0.03: standard error 0.01, t is 2 with one degree of freedom.
    assert!((row.share_sd - 0.01).abs() < 1e-12, "{row:?}");
    assert!((row.p - 0.295_167).abs() < 1e-5, "{row:?}");
}

#[test]
fn three_percent_are_found_among_procedures_that_vary_and_nothing_else() {
    let mut random = fastrand::Rng::with_seed(5);
    let shares: Vec<f64> = (0..400).map(|rank| 0.15 / (f64::from(rank) + 3.0)).collect();
    let (mut found, mut wrong, mut held, mut rows) = (0, 0, 0, 0);
    for _ in 0..20 {
        let mut factors = vec![1.0; shares.len()];
        factors[15] = 1.03;
        let (_, judged) =
            judged(&group(&hosts(300, &shares, &factors, &mut random)), &Rule::builds());
        found += usize::from(judged[15].marked);
        wrong += judged.iter().filter(|row| row.marked).count() - usize::from(judged[15].marked);
        held += judged
            .iter()
            .zip(&factors)
            .filter(|(row, factor)| (row.low..=row.high).contains(&(**factor - 1.0)))
            .count();
        rows += judged.len();
    }
    assert!(found >= 18 && wrong <= 3, "{found} found, {wrong} wrong");
    let held = held as f64 / rows as f64;
    assert!((0.94..0.99).contains(&held), "intervals hold the truth {held} of the time");
}

#[test]
fn one_that_grew_is_not_seen_as_all_others_that_fell() {
    let mut random = fastrand::Rng::with_seed(6);
    let shares = vec![0.01; 100];
    // A tenth of the time doubles: shares of the others fall by a tenth.
    let mut factors = vec![1.0 / 1.1; 100];
    factors[..10].fill(2.0 / 1.1);
    let (typical, judged) =
        judged(&group(&hosts(100, &shares, &factors, &mut random)), &Rule::builds());
    assert!((typical.change + 0.0909).abs() < 0.005, "{typical:?}");
    assert!(judged[..10].iter().all(|row| row.marked && (row.value - 1.0).abs() < 0.1));
    assert!(judged[10..].iter().filter(|row| row.marked).count() <= 2);
}

#[test]
fn what_all_hosts_share_is_no_certainty_however_many_they_are() {
    let mut random = fastrand::Rng::with_seed(7);
    let shares = vec![0.002; 200];
    let marked = |spread: f64, random: &mut fastrand::Rng| {
        let factors: Vec<f64> = (0..200).map(|_| (spread * normal(random)).exp()).collect();
        let group = group(&hosts(2000, &shares, &factors, random));
        judged(&group, &Rule::weeks()).1.iter().filter(|row| row.marked).count()
    };
    let of: Vec<usize> = (0..10).map(|_| marked(0.02, &mut random)).collect();
    assert!(of.iter().sum::<usize>() <= 4, "{of:?}");
}

#[test]
fn few_samples_and_few_hosts_are_not_certain() {
    // Every host has 2 samples in a million before, and none in a hundred after: the difference is
    // the same on all hosts, and nothing.
    let group = group(&vec![([1e4, 100.0], vec![[2.0, 0.0]]); 50]);
    let row = judged(&group, &Rule { share_least: 1e-5, ..Rule::builds() }).1[0];
    assert!(row.p > 0.3 && !row.marked && row.high > 0.5, "{row:?}");
    // A single pair is no spread.
    let one = super::tests::group(&[([1e6, 1e6], vec![[1e5, 9e5]])]);
    assert_eq!(judged(&one, &Rule::builds()).1[0].untested, Some(Untested::Hosts));
    // One of a thousand hosts has the procedure.
    let mut hosts = vec![([1e6, 1e6], vec![[0.0, 0.0]]); 999];
    hosts.push(([1e6, 1e6], vec![[1e5, 9e5]]));
    let row = judged(&super::tests::group(&hosts), &Rule::builds()).1[0];
    assert_eq!((row.untested, row.marked), (Some(Untested::Hosts), false));
}

#[test]
fn new_and_small_procedures_are_not_tested() {
    let group = group(&vec![([1e6, 1e6], vec![[0.0, 5000.0], [20.0, 30.0], [5000.0, 0.0]]); 40]);
    let (_, rows) = judged(&group, &Rule::builds());
    assert_eq!(rows[0].untested, Some(Untested::New));
    assert_eq!(rows[1].untested, Some(Untested::Small));
    // Gone is a change by -100 %.
    assert!(rows[2].marked && (rows[2].value + 1.0).abs() < 1e-9 && rows[2].low == -1.0);
}

#[test]
fn groups_are_one_family_and_small_ones_have_the_spread_of_all() {
    let mut random = fastrand::Rng::with_seed(8);
    let shares = vec![0.01; 10];
    let of = |random: &mut fastrand::Rng| {
        let factors: Vec<f64> = (0..10).map(|_| (0.03 * normal(random)).exp()).collect();
        group(&hosts(1000, &shares, &factors, random))
    };
    let groups: Vec<Group> = (0..30).map(|_| of(&mut random)).collect();
    let mut judged = paired(&groups, &Rule::builds());
    assert!(judged.iter().all(|(typical, _)| (0.02..0.04).contains(&typical.spread)));
    assert!(judged.iter().all(|(typical, _)| typical.change == 0.0));
    mark(judged.iter_mut().flat_map(|(_, rows)| rows), 0.05);
    let marked = judged.iter().flat_map(|(_, rows)| rows).filter(|row| row.marked).count();
    assert!(marked <= 3, "{marked}");
}

/// For arbitrary sums, the computation terminates and returns a probability and an interval.
#[test]
fn nonsense_is_no_panic_and_no_certainty() {
    let mut random = fastrand::Rng::with_seed(9);
    let values = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        1e-3,
        1e5,
        1e12,
        1e300,
        -1e300,
        1e-300,
        5e-324,
        f64::MAX,
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
    ];
    let counts = [0, 1, 2, 3, 40, 1_000_000, u64::MAX - 1, u64::MAX];
    let real = |of: &mut fastrand::Rng| values[of.usize(..values.len())];
    let count = |of: &mut fastrand::Rng| counts[of.usize(..counts.len())];
    for _ in 0..5000 {
        let of = &mut random;
        let mut row = || Sums {
            wd: real(of),
            w2d: real(of),
            w2d2: real(of),
            w_old: real(of),
            hosts: count(of),
            samples_old: count(of),
            samples_new: count(of),
        };
        let rows: Vec<Sums> = (0..25).map(|_| row()).collect();
        let group = Group {
            pairs: count(of),
            w: real(of),
            w2: real(of),
            sampling: real(of),
            samples_old: count(of),
            samples_new: count(of),
            rows,
        };
        let (_, rows) = judged(&group, &Rule::builds());
        assert_eq!(rows.len(), 25);
        for row in rows {
            assert!((0.0..=1.0).contains(&row.p) && (0.0..=1.0).contains(&row.q), "{row:?}");
            assert!(row.low <= row.value && row.value <= row.high, "{row:?} of {group:?}");
            assert!(row.untested.is_none() || (row.p == 1.0 && !row.marked), "{row:?}");
            assert!(group.pairs >= 2 || !row.marked, "{row:?}");
        }
    }
}
