use super::*;

fn normal(random: &mut fastrand::Rng) -> f64 {
    (-2.0 * (1.0 - random.f64()).ln()).sqrt() * (std::f64::consts::TAU * random.f64()).cos()
}

/// A week of so many hosts, host and day each of their own size; a host changes its build at the
/// start of a day. Within a host, days are alike: half of the noise is the host's half-week.
fn week(
    hosts: usize,
    cost: f64,
    changes: impl Fn(usize) -> i64,
    random: &mut fastrand::Rng,
) -> Vec<Cell> {
    let days: Vec<f64> = (0..7).map(|_| 0.3 * normal(random)).collect();
    let mut cells = Vec::new();
    for host in 0..hosts {
        let size = 1.0 + normal(random);
        let halves = [0.03 * normal(random), 0.03 * normal(random)];
        for (day, of_day) in days.iter().enumerate() {
            let new = day as i64 >= changes(host);
            let log = size + of_day + halves[day / 4] + 0.03 * normal(random);
            let log = log + if new { f64::ln_1p(cost) } else { 0.0 };
            cells.push(Cell {
                host: host as i64,
                day: day as i64,
                new,
                core_s: DAY_S * log.exp(),
                covered_s: DAY_S,
            });
        }
    }
    cells
}

fn told(cells: &[Cell]) -> Result<Cost, Untold> {
    cores(cells, Confidence::default())
}

#[test]
fn a_cost_is_told_from_days_and_hosts() {
    let mut random = fastrand::Rng::with_seed(1);
    let staggered = |host: usize| 1 + (host % 5) as i64;
    let (mut held, mut found) = (0, 0);
    for _ in 0..100 {
        let cost = told(&week(100, 0.03, staggered, &mut random)).unwrap();
        held += usize::from((cost.low..=cost.high).contains(&0.03));
        found += usize::from(cost.p < 0.05);
        assert_eq!((cost.changed, cost.hosts), (100, 100));
    }
    assert!((90..=99).contains(&held) && found >= 90, "{held} {found}");
    // All on one day beside hosts that did not change: these are the control.
    let controlled = |host: usize| if host.is_multiple_of(2) { 3 } else { 9 };
    let cost = told(&week(200, -0.05, controlled, &mut random)).unwrap();
    assert!((cost.value + 0.05).abs() < 0.03 && cost.p < 0.01 && cost.changed == 100, "{cost:?}");
}

#[test]
fn no_cost_is_seldom_seen_even_with_three_hosts() {
    let mut random = fastrand::Rng::with_seed(2);
    for changed in [3, 30] {
        let few = |host: usize| if host < changed { 2 + host as i64 % 3 } else { 9 };
        let seen = (0..300).filter(|_| told(&week(60, 0.0, few, &mut random)).unwrap().p < 0.05);
        let seen = seen.count();
        // 15 give or take 4.
        assert!(seen <= 28, "{changed}: {seen} of 300");
    }
}

#[test]
fn what_cannot_be_told_from_the_day_is_no_number() {
    let mut random = fastrand::Rng::with_seed(3);
    assert_eq!(told(&week(100, 0.5, |_| 3, &mut random)), Err(Untold::SameDay));
    // With a single host set apart, the result would rest on that host alone.
    let one = |host: usize| if host == 0 { 5 } else { 3 };
    assert_eq!(told(&week(100, 0.5, one, &mut random)), Err(Untold::SameDay));
    assert_eq!(told(&week(100, 0.5, |_| 9, &mut random)), Err(Untold::Hosts));
    assert_eq!(told(&week(2, 0.5, |host| 2 + host as i64, &mut random)), Err(Untold::Hosts));
    assert_eq!(told(&[]), Err(Untold::Hosts));
}

#[test]
fn days_with_both_builds_and_short_ones_are_left_out() {
    let mut random = fastrand::Rng::with_seed(4);
    let mut cells = week(50, 0.02, |host| 2 + host as i64 % 3, &mut random);
    let before = told(&cells).unwrap();
    // An hour that is a hundred times as busy; cells that say nothing.
    let busy = Cell { host: 1, day: 20, new: true, core_s: 3.6e5, covered_s: 3600.0 };
    let bad = [0.0, -1.0, f64::NAN, f64::INFINITY].map(|core_s| Cell { core_s, ..busy });
    cells.push(busy);
    cells.extend(bad.iter().map(|cell| Cell { covered_s: DAY_S, day: 21, host: 3, ..*cell }));
    cells.extend([f64::NAN, f64::INFINITY].map(|covered_s| Cell { covered_s, day: 22, ..busy }));
    assert_eq!(told(&cells).unwrap(), before);
    // A second cell of a day takes the day out.
    let twice: Vec<Cell> = cells.iter().flat_map(|cell| [*cell, *cell]).collect();
    assert_eq!(told(&twice), Err(Untold::Hosts));
}

#[test]
fn without_noise_there_is_no_certainty() {
    let cells: Vec<Cell> = (0..10)
        .flat_map(|host| {
            (0..7).map(move |day| {
                let new = day > host % 4;
                Cell { host, day, new, core_s: 1000.0, covered_s: DAY_S }
            })
        })
        .collect();
    let cost = told(&cells).unwrap();
    assert!(cost.p > 0.5 && cost.value.abs() < 1e-9, "{cost:?}");
}
