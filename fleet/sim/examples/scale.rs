//! The size and speed of the default fleet: `cargo run --release -p sim --example scale [HOSTS]`.

use std::collections::BTreeSet;
use std::time::Instant;

use sim::{Config, Fleet};

fn main() {
    let hosts = std::env::args().nth(1).and_then(|hosts| hosts.parse().ok());
    let config = Config { hosts: hosts.unwrap_or(2000), ..Config::default() };
    let fleet = Fleet::new(config);
    let start = Instant::now();
    let (mut facts, mut loads, mut heard, mut taken, mut idle) = (0, 0, 0, 0, 0);
    let mut procedures = BTreeSet::new();
    for host in 0..fleet.hosts() {
        let rows = fleet.host_week(1, host);
        heard += usize::from(!rows.epochs.is_empty());
        (facts, loads) = (facts + rows.facts.len(), loads + rows.loads.len());
        taken += rows.epochs.iter().map(|epoch| epoch.taken).sum::<i64>();
        idle += rows.epochs.iter().map(|epoch| epoch.idle).sum::<i64>();
        if host % 50 == 0 {
            procedures.extend(rows.facts.iter().map(|fact| fact.procedure));
        }
    }
    println!(
        "{heard} of {} hosts heard, {} services, {} procedures ({} seen on one host of 50)",
        fleet.hosts(),
        fleet.services().len(),
        fleet.names().len(),
        procedures.len()
    );
    println!(
        "{facts} facts, {} a host; {loads} loads; {taken} samples, {:.2} idle; {:.1} s a week",
        facts / heard.max(1),
        idle as f64 / taken as f64,
        start.elapsed().as_secs_f64()
    );
}
