//! Sums of a week for a review: the procedures with the most time, images, services, builds.

use std::collections::{BTreeMap, HashMap};

use judge::Untested;
use tables::{Head, HostWeek, ImageWeek, Load, Rollup, Skew};

use crate::builds::OfBuilds;
use crate::dimensions::Dimensions;

/// Procedures of a service with the most time, of all services.
#[derive(Debug, Default)]
pub(crate) struct Heads {
    rows: Vec<Rollup>,
}

impl Heads {
    /// Adds those of a service.
    pub(crate) fn add(&mut self, rows: Vec<Rollup>, most: usize) {
        self.rows.extend(rows);
        // Not more than twice as many as are kept are held, except for those of one service.
        if self.rows.len() > 4 * most {
            self.keep(most);
        }
    }

    fn keep(&mut self, most: usize) {
        let mut by_procedure: HashMap<(i64, i64), f64> = HashMap::new();
        for row in &self.rows {
            *by_procedure.entry((row.service, row.procedure)).or_default() += row.core_s;
        }
        let mut order: Vec<((i64, i64), f64)> = by_procedure.into_iter().collect();
        order.sort_by(|(a, of_a), (b, of_b)| of_b.total_cmp(of_a).then(a.cmp(b)));
        order.truncate(most);
        let order: HashMap<(i64, i64), usize> =
            order.into_iter().enumerate().map(|(at, (key, _))| (key, at)).collect();
        let at = |row: &Rollup| order.get(&(row.service, row.procedure)).copied();
        self.rows.retain(|row| at(row).is_some());
        self.rows.sort_by(|a, b| at(a).cmp(&at(b)).then_with(|| a.machine.cmp(&b.machine)));
    }

    /// The procedures with the most time, the most first.
    pub(crate) fn finish(mut self, most: usize, dimensions: &Dimensions) -> Vec<Head> {
        self.keep(most);
        let images = dimensions.images();
        let head = |row: Rollup| Head {
            service: dimensions.service(row.service),
            image: images.get(&row.image).cloned().unwrap_or_default(),
            procedure: dimensions.procedure(row.procedure),
            service_id: row.service,
            id: row.procedure,
            machine: row.machine,
            core_s: row.core_s,
            samples: row.samples,
            hosts: row.hosts,
        };
        self.rows.into_iter().map(head).collect()
    }
}

/// The largest procedures among rollups.
pub(crate) fn largest(rows: &[Rollup], most: usize) -> Vec<i64> {
    let mut samples: BTreeMap<i64, i64> = BTreeMap::new();
    for row in rows {
        *samples.entry(row.procedure).or_default() += row.samples;
    }
    let mut order: Vec<(i64, i64)> = samples.into_iter().collect();
    order.sort_by_key(|(procedure, samples)| (-samples, *procedure));
    order.into_iter().take(most).map(|(procedure, _)| procedure).collect()
}

/// A service and its images, by type of machine.
pub(crate) fn images(
    loads: &[Load],
    hosts: &HashMap<i64, &HostWeek>,
    dimensions: &Dimensions,
) -> Vec<ImageWeek> {
    /// Core-seconds, samples, hosts.
    type Sum = (f64, i64, std::collections::BTreeSet<i64>);
    let mut sums: BTreeMap<(Option<i64>, &str), Sum> = BTreeMap::new();
    for load in loads {
        let machine = hosts.get(&load.host).map_or("", |host| host.machine.as_str());
        for image in [None, Some(load.image)] {
            let sum = sums.entry((image, machine)).or_default();
            sum.0 += load.samples as f64 * load.weight / 1e9;
            sum.1 = sum.1.saturating_add(load.samples);
            sum.2.insert(load.host);
        }
    }
    let names = dimensions.images();
    let service = loads.first().map_or(0, |load| load.service);
    let row =
        |((image, machine), (core_s, samples, hosts)): ((Option<i64>, &str), Sum)| ImageWeek {
            service: dimensions.service(service),
            image: image.and_then(|image| names.get(&image).cloned()).unwrap_or_default(),
            machine: machine.to_owned(),
            core_s,
            samples,
            hosts: i64::try_from(hosts.len()).unwrap_or(i64::MAX),
        };
    sums.into_iter().map(row).collect()
}

/// The builds of images of a service that has several.
pub(crate) fn skews(loads: &[Load], found: &OfBuilds, dimensions: &Dimensions) -> Vec<Skew> {
    let mut core_s: HashMap<(i64, i64), f64> = HashMap::new();
    for load in loads {
        let sum = core_s.entry((load.image, load.build)).or_default();
        *sum += load.samples as f64 * load.weight / 1e9;
    }
    let images = dimensions.images();
    let service = dimensions.service(loads.first().map_or(0, |load| load.service));
    let row = |(image, build): (i64, i64), hosts: u64| {
        let of = dimensions.builds.get(&build);
        let both = found.on_both.get(&(image, build)).copied();
        Skew {
            service: service.clone(),
            image: images.get(&image).cloned().unwrap_or_default(),
            build: dimensions.build(build),
            hosts: i64::try_from(hosts).unwrap_or(i64::MAX),
            core_s: core_s.get(&(image, build)).copied().unwrap_or_default(),
            first_s: of.map_or(0, |of| of.first_s),
            last_s: of.map_or(0, |of| of.last_s),
            hosts_before: both.map_or(0, |both| i64::try_from(both).unwrap_or(i64::MAX)),
            // Those that are compared have their reason afterwards.
            untested: if both == Some(0) {
                Untested::Hosts.word().to_owned()
            } else {
                String::new()
            },
        }
    };
    let several: std::collections::BTreeSet<i64> =
        found.last_on.keys().map(|(image, _)| *image).collect();
    let mut builds: Vec<(i64, i64)> =
        core_s.keys().copied().filter(|(image, _)| several.contains(image)).collect();
    builds.sort_unstable();
    let hosts = |of: &(i64, i64)| found.last_on.get(of).copied().unwrap_or_default();
    builds.iter().map(|of| row(*of, hosts(of))).collect()
}
