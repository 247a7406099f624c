//! Hosts unlike those that run the same service.

use std::collections::HashMap;

use judge::fellows::{Distance, Fellow, unlike};
use judge::{LEVEL, discoveries};
use tables::{Fact, HostShare, Load};

use crate::dimensions::Dimensions;

/// Procedures of a service that are looked at, those with the most samples.
pub(crate) const PROCEDURES: usize = 100;

/// The hosts of a service with their distances.
#[derive(Debug, Default)]
pub(crate) struct Fellows {
    rows: Vec<(HostShare, f64)>,
}

impl Fellows {
    /// Adds a service: its loads, and the samples of its largest procedures by host.
    pub(crate) fn add(
        &mut self,
        loads: &[Load],
        largest: &[Fact],
        dimensions: &Dimensions,
        names: &HashMap<i64, String>,
    ) {
        let mut hosts: HashMap<i64, (u64, f64)> = HashMap::new();
        for load in loads {
            let sum = hosts.entry(load.host).or_default();
            sum.0 += whole(load.samples);
            sum.1 += load.samples as f64 * load.weight / 1e9;
        }
        let mut procedures: Vec<i64> = largest.iter().map(|fact| fact.procedure).collect();
        procedures.sort_unstable();
        procedures.dedup();
        let samples: HashMap<(i64, i64), u64> =
            largest.iter().map(|fact| ((fact.procedure, fact.host), whole(fact.samples))).collect();
        let of = |procedure: i64, host: i64| {
            samples.get(&(procedure, host)).copied().unwrap_or_default()
        };
        let mut hosts: Vec<(i64, (u64, f64))> = hosts.into_iter().collect();
        hosts.sort_by_key(|(host, _)| *host);
        let fellow = |procedure: &i64| {
            let on = |(host, (all, _)): &(i64, (u64, f64))| (of(*procedure, *host), *all);
            Fellow::of(&hosts.iter().map(on).collect::<Vec<_>>())
        };
        let fellows: Vec<Fellow> = procedures.iter().map(fellow).collect();
        let distance = |(host, (all, _)): &(i64, (u64, f64))| {
            let rows = procedures.iter().zip(&fellows);
            Distance::of(rows.map(|(procedure, fellow)| (of(*procedure, *host), *fellow)), *all)
        };
        let distances: Vec<Distance> = hosts.iter().map(distance).collect();
        let service = loads.first().map_or(0, |load| load.service);
        for (((host, (_, core_s)), distance), p) in
            hosts.iter().zip(&distances).zip(unlike(&distances))
        {
            let most = distance.most.and_then(|at| procedures.get(at));
            let row = HostShare {
                service: dimensions.service(service),
                host: names.get(host).cloned().unwrap_or_default(),
                core_s: *core_s,
                distance: distance.distance,
                expected: distance.expected,
                procedure: most.map(|of| dimensions.procedure(*of)).unwrap_or_default(),
                q: 1.0,
            };
            self.rows.push((row, p));
        }
    }

    /// The hosts that are unlike their fellows, and that not by chance.
    pub(crate) fn judge(self) -> Vec<HostShare> {
        let p: Vec<f64> = self.rows.iter().map(|(_, p)| *p).collect();
        let found = discoveries(&p, LEVEL);
        let rows = self.rows.into_iter().zip(found.q).zip(found.marked);
        let marked = rows.filter(|(_, marked)| *marked);
        let mut marked: Vec<HostShare> =
            marked.map(|(((row, _), q), _)| HostShare { q, ..row }).collect();
        marked.sort_by(|a, b| b.distance.total_cmp(&a.distance));
        marked
    }
}

fn whole(number: i64) -> u64 {
    u64::try_from(number).unwrap_or_default()
}
