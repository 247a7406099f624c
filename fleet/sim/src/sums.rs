//! The sums of rows that `judge` takes: a plain reference implementation for the SQL.

use std::collections::BTreeMap;

use judge::{Group, Sums, weight};
use tables::Fact;

use crate::HostWeek;

/// A comparison's sums, as they come host by host.
#[derive(Clone, Debug, Default)]
pub struct Paired {
    group: Group,
    rows: BTreeMap<(i64, i64), Sums>,
}

/// A side of a pair: the service's time on the host, and its procedures', by image and number.
#[derive(Clone, Debug, Default)]
pub struct Side {
    /// Samples of the service.
    pub samples: f64,
    /// Events of the service: `y`.
    pub events: f64,
    /// Samples and events of procedures: `x`, by image and procedure.
    pub rows: BTreeMap<(i64, i64), (u64, f64)>,
}

impl Paired {
    /// Adds a host that has both sides; one without time on a side is no pair.
    pub fn add(&mut self, old: &Side, new: &Side) {
        let (y1, y2) = (old.events, new.events);
        let w = weight(old.samples, new.samples);
        if y1 <= 0.0 || y2 <= 0.0 || w <= 0.0 {
            return;
        }
        self.group.pairs += 1;
        self.group.w += w;
        self.group.w2 += w * w;
        self.group.sampling += w * w * (1.0 / old.samples + 1.0 / new.samples);
        self.group.samples_old += old.samples.round() as u64;
        self.group.samples_new += new.samples.round() as u64;
        let keys = old.rows.keys().chain(new.rows.keys().filter(|key| !old.rows.contains_key(key)));
        for key in keys {
            let (n1, x1) = old.rows.get(key).copied().unwrap_or_default();
            let (n2, x2) = new.rows.get(key).copied().unwrap_or_default();
            let d = x2 / y2 - x1 / y1;
            let sums = self.rows.entry(*key).or_default();
            sums.wd += w * d;
            sums.w2d += w * w * d;
            sums.w2d2 += w * w * d * d;
            sums.w_old += w * x1 / y1;
            sums.hosts += 1;
            sums.samples_old += n1;
            sums.samples_new += n2;
        }
    }

    /// The group, and the image and procedure of each of its rows.
    #[must_use]
    pub fn group(self) -> (Group, Vec<(i64, i64)>) {
        let (keys, rows) = self.rows.into_iter().unzip();
        (Group { rows, ..self.group }, keys)
    }
}

/// The sides of a host's builds of an image in a service, by build.
///
/// The service's time while a build ran is that of whole days, and of a day with several builds the
/// part that the build has of the image's samples.
#[must_use]
pub fn by_build(rows: &HostWeek, service: i64, image: i64) -> BTreeMap<i64, Side> {
    let loads = || rows.loads.iter().filter(|load| load.service == service);
    // Samples of a day: of the service, of the image.
    let mut days: BTreeMap<i64, (i64, i64)> = BTreeMap::new();
    for load in loads() {
        let day = days.entry(load.day).or_default();
        day.0 += load.samples;
        day.1 += if load.image == image { load.samples } else { 0 };
    }
    let mut sides: BTreeMap<i64, Side> = BTreeMap::new();
    for load in loads().filter(|load| load.image == image) {
        let (all, of_image) = days.get(&load.day).copied().unwrap_or((0, 1));
        let samples = load.samples as f64 / of_image as f64 * all as f64;
        let side = sides.entry(load.build).or_default();
        side.samples += samples;
        side.events += samples * load.weight;
    }
    for fact in rows.facts.iter().filter(|fact| fact.service == service && fact.image == image) {
        if let Some(side) = sides.get_mut(&fact.build) {
            add(side, fact);
        }
    }
    sides
}

/// The side of a host's week in a service: all builds.
#[must_use]
pub fn by_week(rows: &HostWeek, service: i64) -> Side {
    let mut side = Side::default();
    for fact in rows.facts.iter().filter(|fact| fact.service == service) {
        side.samples += fact.samples as f64;
        side.events += fact.samples as f64 * fact.weight;
        add(&mut side, fact);
    }
    side
}

fn add(side: &mut Side, fact: &Fact) {
    let slot = side.rows.entry((fact.image, fact.procedure)).or_default();
    slot.0 += fact.samples as u64;
    slot.1 += fact.samples as f64 * fact.weight;
}
