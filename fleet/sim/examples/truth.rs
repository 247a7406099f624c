//! The rate of correct judgements for services with known changes; takes minutes on two cores.
//!
//! `cargo run --release -p sim --example truth`

#![allow(clippy::expect_used, reason = "a program for the measurer's terminal")]

use std::sync::Mutex;
use std::thread;

use sim::experiment::{Marks, Sides, Way, plants, table};
use sim::{Config, Fleet};

const WAYS: [(Way, &str); 4] = [
    (Way::Pooled, "pooled samples"),
    (Way::Unpaired, "hosts, each side for itself"),
    (Way::Paired, "hosts paired"),
    (Way::Review, "the review"),
];
const THREADS: usize = 2;
/// Seed of the first fleet.
const SEED: u64 = 1;

/// The simulated fleet.
#[derive(Copy, Clone)]
struct Column {
    sides: Sides,
    hosts: usize,
    /// Noise that a week's hosts share.
    week: f64,
    /// Noise that a day's hosts share.
    day: f64,
    fleets: u64,
}

const COLUMNS: [Column; 6] = [
    Column { sides: Sides::Weeks, hosts: 300, week: 0.01, day: 0.0, fleets: 20 },
    Column { sides: Sides::Weeks, hosts: 300, week: 0.003, day: 0.0, fleets: 20 },
    Column { sides: Sides::Builds, hosts: 300, week: 0.003, day: 0.0, fleets: 100 },
    Column { sides: Sides::Builds, hosts: 300, week: 0.003, day: 0.01, fleets: 20 },
    Column { sides: Sides::Builds, hosts: 50, week: 0.003, day: 0.0, fleets: 100 },
    Column { sides: Sides::Builds, hosts: 1000, week: 0.003, day: 0.0, fleets: 20 },
];

impl Column {
    fn name(self) -> String {
        let sides = if self.sides == Sides::Builds { "builds in a week" } else { "weeks" };
        let Self { hosts, week, day, fleets, .. } = self;
        let [week, day] = [week, day].map(|noise| 100.0 * noise);
        format!("{sides}, {hosts} hosts, weeks {week} %, days {day} %, {fleets} fleets")
    }

    fn config(self, seed: u64) -> Config {
        let mut config = Config::service(self.hosts, seed);
        config.noise.week = self.week;
        config.noise.day = self.day;
        config
    }

    /// Marks in as many fleets, whose procedures of these ranks are 3 % dearer, so many of them;
    /// and how often the review's interval holds the 3 %.
    fn changed(self, count: usize, ranks: std::ops::Range<usize>) -> ([Marks; 4], usize) {
        let of = |seed: u64| {
            let plants = plants(count, 0.03, ranks.clone(), seed);
            let fleet = Fleet::new(Config { plants, ..self.config(seed) });
            let table = table(&fleet, 1, self.sides);
            let changes = table.changes();
            let held = changes.iter().filter(|(low, high)| (*low..=*high).contains(&0.03)).count();
            (WAYS.map(|(way, _)| table.marks(way)), held)
        };
        each(SEED..SEED + self.fleets, of)
    }

    /// Marks in a hundred weeks in which nothing is changed.
    fn quiet(self) -> [Marks; 4] {
        let fleet = Fleet::new(self.config(77));
        let of = |week: u64| {
            let table = table(&fleet, week as i64, self.sides);
            (WAYS.map(|(way, _)| table.marks(way)), 0)
        };
        each(1..101, of).0
    }
}

/// The sum over all numbers, by several threads.
fn each(
    numbers: std::ops::Range<u64>,
    of: impl Fn(u64) -> ([Marks; 4], usize) + Sync,
) -> ([Marks; 4], usize) {
    let (left, sums) = (Mutex::new(numbers), Mutex::new(([Marks::default(); 4], 0)));
    let next = || left.lock().expect("no thread panics").next();
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while let Some(number) = next() {
                    let (marks, held) = of(number);
                    let mut sums = sums.lock().expect("no thread panics");
                    sums.0.iter_mut().zip(marks).for_each(|(sum, marks)| *sum += marks);
                    sums.1 += held;
                }
            });
        }
    });
    sums.into_inner().expect("no thread panics")
}

fn print(column: Column, marks: &[Marks; 4]) {
    println!("{}", column.name());
    for (marks, (_, way)) in marks.iter().zip(WAYS) {
        let found =
            if marks.real > 0 { format!("{:.0} %", 100.0 * marks.found()) } else { "-".to_owned() };
        let Marks { marked, wrong, alarms, .. } = marks;
        println!("  {way:<28} {marked:>8} {wrong:>8} {found:>8} {alarms:>8}");
    }
}

fn head(what: &str) {
    println!("\n{what}\n{:<30} {:>8} {:>8} {:>8} {:>8}", "", "marked", "false", "found", "alarms");
}

fn main() {
    for (count, ranks, what) in [
        (1, 0..80, "3 % in 1 procedure, of at least 0.1 % of the service's time"),
        (20, 0..600, "3 % in 20 procedures, of at least 0.015 %"),
    ] {
        head(what);
        for column in COLUMNS {
            let (marks, held) = column.changed(count, ranks.clone());
            print(column, &marks);
            println!("  95 % intervals hold 3 %: {held} of {}", count * column.fleets as usize);
        }
    }
    head("100 weeks of one fleet, nothing changed");
    for column in COLUMNS.iter().take(4) {
        print(Column { fleets: 1, ..*column }, &column.quiet());
    }
}
