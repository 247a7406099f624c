//! How often judgements are right: `cargo run --release -p sim --example truth`.

use std::thread;

use sim::experiment::{Marks, Sides, Way, plants, table};
use sim::{Config, Fleet};

const WAYS: [(Way, &str); 4] = [
    (Way::Pooled, "pooled samples"),
    (Way::Unpaired, "hosts, each week for itself"),
    (Way::Paired, "hosts, paired"),
    (Way::Review, "review: typical change and spread"),
];

/// What is simulated: comparison, hosts, noise that a week's hosts share.
const COLUMNS: [(Sides, usize, f64, &str); 5] = [
    (Sides::Weeks, 300, 0.01, "weeks, 1 %"),
    (Sides::Weeks, 300, 0.003, "weeks, 0.3 %"),
    (Sides::Builds, 300, 0.003, "builds"),
    (Sides::Builds, 50, 0.003, "builds, 50 hosts"),
    (Sides::Builds, 1000, 0.003, "builds, 1,000 hosts"),
];

fn config(hosts: usize, week: f64, seed: u64) -> Config {
    let mut config = Config::service(hosts, seed);
    config.noise.week = week;
    config
}

/// Fleets with so many procedures changed by 3 %, judged in all ways.
fn fleets(
    (sides, hosts, week, _): (Sides, usize, f64, &str),
    seeds: std::ops::Range<u64>,
    count: usize,
    ranks: std::ops::Range<usize>,
) -> ([Marks; 4], Vec<(f64, f64)>) {
    let mut marks = [Marks::default(); 4];
    let mut changes = Vec::new();
    for seed in seeds {
        let mut config = config(hosts, week, seed);
        config.plants = plants(count, 0.03, ranks.clone(), seed);
        let table = table(&Fleet::new(config), 1, sides);
        marks.iter_mut().zip(WAYS).for_each(|(sum, (way, _))| *sum += table.marks(way));
        changes.extend(table.changes());
    }
    (marks, changes)
}

/// 100 weeks in which nothing was changed: in how many each way marks something.
fn quiet(sides: Sides, week: f64, seed: u64) -> [Marks; 4] {
    let fleet = Fleet::new(config(300, week, seed));
    let mut marks = [Marks::default(); 4];
    for week in 1..=100 {
        let table = table(&fleet, week, sides);
        marks.iter_mut().zip(WAYS).for_each(|(sum, (way, _))| *sum += table.marks(way));
    }
    marks
}

fn print(what: &str, marks: &[Marks; 4]) {
    for (marks, (_, way)) in marks.iter().zip(WAYS) {
        println!(
            "{what:<34} {way:<34} {:>6} {:>6} {:>6.0} % {:>6}",
            marks.marked,
            marks.wrong,
            100.0 * marks.found(),
            marks.alarms
        );
    }
}

fn main() {
    let head =
        || println!("{:<69} {:>6} {:>6} {:>8} {:>6}", "", "marked", "false", "found", "alarms");
    println!("20 fleets, 3 % in 1 procedure of at least 0.1 % of the service's time\n");
    head();
    for column in COLUMNS {
        let halves = thread::scope(|scope| {
            [1..11, 11..21]
                .map(|seeds| scope.spawn(move || fleets(column, seeds, 1, 0..80)))
                .map(|half| half.join().expect("a thread"))
        });
        print(column.3, &sum(halves.each_ref().map(|(marks, _)| *marks)));
    }
    println!("\n20 fleets, 3 % in 20 procedures of at least 0.01 %\n");
    head();
    for column in COLUMNS {
        let halves = thread::scope(|scope| {
            [1..11, 11..21]
                .map(|seeds| scope.spawn(move || fleets(column, seeds, 20, 0..600)))
                .map(|half| half.join().expect("a thread"))
        });
        print(column.3, &sum(halves.each_ref().map(|(marks, _)| *marks)));
        let changes = halves.iter().flat_map(|(_, changes)| changes).collect::<Vec<_>>();
        let held = changes.iter().filter(|(value, reach)| (value - 0.03).abs() <= *reach).count();
        println!("{:<34} intervals hold 3 %: {held} of {}", column.3, changes.len());
    }
    println!("\n100 weeks without a change, 300 hosts\n");
    head();
    let cases = [
        (Sides::Weeks, 0.01, "weeks, 1 %"),
        (Sides::Weeks, 0.003, "weeks, 0.3 %"),
        (Sides::Builds, 0.003, "builds"),
    ];
    for (sides, week, what) in cases {
        print(what, &quiet(sides, week, 77));
    }
}

fn sum(halves: [[Marks; 4]; 2]) -> [Marks; 4] {
    let [mut sums, other] = halves;
    sums.iter_mut().zip(other).for_each(|(sum, other)| *sum += other);
    sums
}
