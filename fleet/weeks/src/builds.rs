//! Pairs: hosts that ran two builds of an image in a week, and hosts that ran a service in two
//! weeks.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use judge::Sums;
use tables::{Build, Load, Pair};

/// Events and samples.
#[derive(Copy, Clone, Debug, Default)]
struct Sum {
    events: f64,
    samples: f64,
}

impl Sum {
    fn add(&mut self, other: Self) {
        self.events += other.events;
        self.samples += other.samples;
    }

    fn part(self, share: f64) -> Self {
        Self { events: self.events * share, samples: self.samples * share }
    }
}

fn of(load: &Load) -> Sum {
    let samples = load.samples as f64;
    Sum { events: samples * load.weight, samples }
}

/// A build of an image on a host.
#[derive(Copy, Clone, Debug)]
struct Ran {
    /// The work of the service while it ran.
    service: Sum,
    /// What it did itself.
    image: Sum,
    /// First and last day.
    first: i64,
    last: i64,
}

/// The pairs of a service's builds, and of each comparison the share of hosts that changed on the
/// day on which most did.
pub(crate) struct OfBuilds {
    pub(crate) pairs: Vec<Pair>,
    /// The sums of whole images.
    pub(crate) images: HashMap<(i64, i64, i64), Sums>,
    pub(crate) same_day: HashMap<(i64, i64, i64), f64>,
    /// For each image with several builds: each build, and the hosts on which it ran last.
    pub(crate) last_on: BTreeMap<(i64, i64), u64>,
    /// Each of these builds but the first, and the hosts that ran the one before, too.
    pub(crate) on_both: BTreeMap<(i64, i64), u64>,
}

/// Pairs builds that follow one another, by when the fleet saw them first. `loads` are those of one
/// service.
pub(crate) fn of_builds(loads: &[Load], builds: &HashMap<i64, Build>) -> OfBuilds {
    of_some(loads, builds, |_| true)
}

/// As [`of_builds`], of builds that are wanted only, as if there were no others.
pub(crate) fn of_some(
    loads: &[Load],
    builds: &HashMap<i64, Build>,
    is_wanted: impl Fn(i64) -> bool,
) -> OfBuilds {
    let mut images: BTreeMap<i64, BTreeSet<i64>> = BTreeMap::new();
    for load in loads {
        images.entry(load.image).or_default().insert(load.build);
    }
    images.retain(|_, builds| builds.len() > 1);
    let ran = ran(loads, &images);
    let mut found = OfBuilds {
        pairs: Vec::new(),
        images: HashMap::new(),
        same_day: HashMap::new(),
        last_on: BTreeMap::new(),
        on_both: BTreeMap::new(),
    };
    for (&image, of_image) in &images {
        let mut order: Vec<i64> = of_image.iter().copied().filter(|of| is_wanted(*of)).collect();
        let first = |build: &i64| builds.get(build).map_or(i64::MAX, |build| build.first_s);
        order.sort_by_key(|build| (first(build), *build));
        let empty = HashMap::new();
        let on = |build: &i64| ran.get(&(image, *build)).unwrap_or(&empty);
        let mut last: HashMap<i64, (i64, i64)> = HashMap::new();
        for build in &order {
            for (host, of) in on(build) {
                let newest = last.entry(*host).or_insert((of.last, *build));
                if of.last >= newest.0 {
                    *newest = (of.last, *build);
                }
            }
        }
        for (_, build) in last.values() {
            *found.last_on.entry((image, *build)).or_default() += 1;
        }
        for two in order.windows(2) {
            let [old, new] = two else { continue };
            let mut days: HashMap<i64, u64> = HashMap::new();
            let mut hosts: Vec<(&i64, &Ran)> = on(old).iter().collect();
            hosts.sort_by_key(|(host, _)| **host);
            for (host, before) in hosts {
                let Some(after) = on(new).get(host) else { continue };
                let pair = pair([image, *old, *new, *host], before.service, after.service);
                let Some(pair) = pair else { continue };
                add(found.images.entry((image, *old, *new)).or_default(), &pair, before, after);
                found.pairs.push(pair);
                *days.entry(after.first).or_default() += 1;
            }
            found.on_both.insert((image, *new), days.values().sum());
            let (most, all) = (days.values().max().copied(), days.values().sum::<u64>());
            let share = most.map_or(0.0, |most| most as f64 / all as f64);
            found.same_day.insert((image, *old, *new), share);
        }
    }
    let service = loads.first().map_or(0, |load| load.service);
    found.pairs.iter_mut().for_each(|pair| pair.service = service);
    found
}

/// What the service did on each host while each build of these images ran. On a day on which
/// several ran, its time is theirs as the image's samples are.
fn ran(
    loads: &[Load],
    images: &BTreeMap<i64, BTreeSet<i64>>,
) -> HashMap<(i64, i64), HashMap<i64, Ran>> {
    let mut days: HashMap<(i64, i64), Sum> = HashMap::new();
    let mut image_days: HashMap<(i64, i64, i64), f64> = HashMap::new();
    for load in loads {
        days.entry((load.host, load.day)).or_default().add(of(load));
        if images.contains_key(&load.image) {
            let of_image = image_days.entry((load.image, load.host, load.day)).or_default();
            *of_image += of(load).events;
        }
    }
    let mut ran: HashMap<(i64, i64), HashMap<i64, Ran>> = HashMap::new();
    for load in loads.iter().filter(|load| images.contains_key(&load.image)) {
        let of_image = image_days.get(&(load.image, load.host, load.day)).copied().unwrap_or(0.0);
        let all = days.get(&(load.host, load.day)).copied().unwrap_or_default();
        if of_image <= 0.0 {
            continue;
        }
        let service = all.part(of(load).events / of_image);
        let on_host = ran.entry((load.image, load.build)).or_default();
        on_host
            .entry(load.host)
            .and_modify(|ran| {
                ran.service.add(service);
                ran.image.add(of(load));
                ran.first = ran.first.min(load.day);
                ran.last = ran.last.max(load.day);
            })
            .or_insert(Ran { service, image: of(load), first: load.day, last: load.day });
    }
    ran
}

/// Adds a pair to the sums of the whole image.
fn add(sums: &mut Sums, pair: &Pair, before: &Ran, after: &Ran) {
    let old = before.image.events / pair.y_old;
    let d = after.image.events / pair.y_new - old;
    sums.wd += pair.w * d;
    sums.w2d += pair.w * pair.w * d;
    sums.w2d2 += pair.w * pair.w * d * d;
    sums.w_old += pair.w * old;
    sums.hosts += 1;
    // Whole samples: a load has no part of one.
    sums.samples_old += before.image.samples as u64;
    sums.samples_new += after.image.samples as u64;
}

/// The pairs of a service in two weeks. Both loads are those of one service.
pub(crate) fn of_weeks(before: &[Load], now: &[Load]) -> Vec<Pair> {
    let by_host = |loads: &[Load]| {
        let mut hosts: BTreeMap<i64, Sum> = BTreeMap::new();
        for load in loads {
            hosts.entry(load.host).or_default().add(of(load));
        }
        hosts
    };
    let (before, now_by_host) = (by_host(before), by_host(now));
    let service = now.first().map_or(0, |load| load.service);
    let both = before.iter().filter_map(|(host, old)| {
        let new = now_by_host.get(host)?;
        Some(Pair { service, ..pair([0, 0, 0, *host], *old, *new)? })
    });
    both.collect()
}

fn pair([image, build_old, build_new, host]: [i64; 4], old: Sum, new: Sum) -> Option<Pair> {
    let (y_old, y_new) = (old.events, new.events);
    (y_old > 0.0 && y_new > 0.0).then(|| Pair {
        service: 0,
        image,
        build_old,
        build_new,
        host,
        y_old,
        y_new,
        samples_old: old.samples,
        samples_new: new.samples,
        w: judge::weight(old.samples, new.samples),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;

    fn load(image: i64, build: i64, host: i64, day: i64, samples: i64) -> Load {
        Load { service: 9, image, build, host, day, samples, weight: 2.0 }
    }

    fn build(build: i64, first_s: i64) -> (i64, Build) {
        (build, Build { build, image: 1, first_s, ..Build::default() })
    }

    #[test]
    fn a_host_that_changes_its_build_is_a_pair() {
        // Build 20 is older than 10. On day 2 both ran, a third of the time the old one; host 8
        // has the old one only. Image 5 has one build and counts for the service.
        let loads = [
            load(1, 20, 7, 1, 60),
            load(5, 50, 7, 1, 40),
            load(1, 20, 7, 2, 10),
            load(1, 10, 7, 2, 20),
            load(5, 50, 7, 2, 60),
            load(1, 10, 7, 3, 100),
            load(1, 20, 8, 1, 5),
        ];
        let builds = [build(10, 1000), build(20, 500)].into_iter().collect();
        let found = of_builds(&loads, &builds);
        assert_eq!(found.pairs.len(), 1);
        let pair = &found.pairs[0];
        assert_eq!((pair.service, pair.image, pair.build_old, pair.build_new), (9, 1, 20, 10));
        assert_eq!((pair.samples_old, pair.samples_new), (130.0, 160.0));
        assert_eq!((pair.y_old, pair.y_new), (260.0, 320.0));
        assert_eq!(found.same_day[&(1, 20, 10)], 1.0);
        assert_eq!(found.on_both, [((1, 10), 1)].into_iter().collect());
        assert_eq!(found.last_on, [((1, 10), 1), ((1, 20), 1)].into_iter().collect());
    }

    #[test]
    fn weeks_are_paired_by_hosts_in_both() {
        let before = [load(1, 1, 7, 1, 10), load(2, 2, 7, 2, 30), load(1, 1, 8, 1, 1)];
        let now = [load(1, 1, 7, 8, 20), load(1, 1, 9, 8, 20)];
        let pairs = of_weeks(&before, &now);
        assert_eq!(pairs.len(), 1);
        assert_eq!((pairs[0].host, pairs[0].y_old, pairs[0].y_new), (7, 80.0, 40.0));
    }
}
