//! A small fleet's rows, and what judgements see of what was planted.

use std::collections::{BTreeMap, BTreeSet};

use judge::cores::{Cell, cores};
use judge::moved::{Shift, moved};
use judge::{Judged, LEVEL, Rule, Side, mark, one_sided, paired};
use sim::sums::{Paired, by_build};
use sim::{Config, Fleet, HostWeek, Truth, What};
use stats::Confidence;

fn small() -> Fleet {
    Fleet::new(Config::small())
}

#[test]
fn every_hosts_account_closes() {
    let fleet = small();
    let mut heard = 0;
    for week in 0..3 {
        for host in 0..fleet.hosts() {
            let rows = fleet.host_week(week, host);
            let HostWeek { facts, loads, epochs, missed } = &rows;
            heard += usize::from(!epochs.is_empty());
            let all: i64 = facts.iter().map(|fact| fact.samples).sum();
            assert_eq!(all, loads.iter().map(|load| load.samples).sum::<i64>());
            assert_eq!(all, epochs.iter().map(|epoch| epoch.facts).sum::<i64>());
            for epoch in epochs {
                let told = epoch.facts + epoch.idle + epoch.unresolved + epoch.lost;
                assert_eq!(epoch.taken, told);
                assert!(epoch.begin_s < epoch.end_s && epoch.end_s - epoch.begin_s <= 86_400);
                // As many samples as the CPUs' time gives, except for chance.
                let time = epoch.cpus as f64 * (epoch.end_s - epoch.begin_s) as f64 * 1e9;
                let taken = epoch.taken as f64 * epoch.weight / time;
                assert!((taken - 1.0).abs() < 0.2 || epoch.taken < 1000, "{taken} of {epoch:?}");
            }
            for (fate, of_epochs) in [
                ("unresolved", epochs.iter().map(|epoch| epoch.unresolved).sum::<i64>()),
                ("lost", epochs.iter().map(|epoch| epoch.lost).sum()),
            ] {
                let by_reason = missed.iter().filter(|missed| missed.fate == fate);
                assert_eq!(of_epochs, by_reason.map(|missed| missed.samples).sum::<i64>());
            }
            // The same by service, image and build; each fact once.
            let mut sums: BTreeMap<(i64, i64, i64), i64> = BTreeMap::new();
            for fact in facts {
                *sums.entry((fact.service, fact.image, fact.build)).or_default() += fact.samples;
            }
            for load in loads {
                *sums.entry((load.service, load.image, load.build)).or_default() -= load.samples;
            }
            assert!(sums.values().all(|sum| *sum == 0), "{sums:?}");
            let key = |fact: &tables::Fact| {
                (fact.service, fact.image, fact.build, fact.procedure, fact.host)
            };
            assert_eq!(facts.iter().map(key).collect::<BTreeSet<_>>().len(), facts.len());
        }
    }
    assert!((90..120).contains(&heard), "{heard} of 120 host-weeks were heard of");
}

#[test]
fn rows_follow_from_the_seed_alone_and_have_names() {
    let (fleet, again) = (small(), small());
    let other = Fleet::new(Config { seed: 2, ..Config::small() });
    let rows = fleet.host_week(1, 7);
    // In any order of asking.
    let _ = again.host_week(2, 3);
    assert_eq!(rows, again.host_week(1, 7));
    assert_ne!(rows.facts, other.host_week(1, 7).facts);
    assert_eq!(fleet.host_week(1, 40), HostWeek::default());
    let names: BTreeSet<(i64, i64)> =
        fleet.names().iter().map(|name| (name.image, name.procedure)).collect();
    let services: BTreeSet<i64> = fleet.services().iter().map(|service| service.service).collect();
    for week in 0..8 {
        let builds = fleet.builds(week);
        let known: BTreeSet<(i64, i64)> =
            builds.iter().map(|build| (build.image, build.build)).collect();
        assert_eq!(known.len(), builds.len());
        for host in 0..fleet.hosts() {
            for fact in fleet.host_week(week, host).facts {
                assert!(names.contains(&(fact.image, fact.procedure)));
                assert!(known.contains(&(fact.image, fact.build)), "week {week}: {fact:?}");
                assert!(services.contains(&fact.service));
            }
        }
    }
}

#[test]
fn some_hosts_are_silent_or_half_or_of_another_time() {
    let fleet = Fleet::new(Config { hosts: 400, samples_per_host_week: 1e4, ..Config::small() });
    let (mut silent, mut half, mut ahead, mut behind) = (0, 0, 0, 0);
    let monday = Fleet::begin_s(1);
    for host in 0..400 {
        let epochs = fleet.host_week(1, host).epochs;
        let covered: i64 = epochs.iter().map(|epoch| epoch.end_s - epoch.begin_s).sum();
        silent += usize::from(covered == 0);
        half += usize::from(covered > 0 && covered < 400_000);
        ahead += usize::from(epochs.iter().any(|epoch| epoch.ahead_s > 0));
        behind += usize::from(epochs.iter().any(|epoch| epoch.begin_s < monday));
    }
    for count in [silent, half] {
        assert!((8..=35).contains(&count), "{silent} {half}");
    }
    assert!((3..=20).contains(&ahead) && (3..=20).contains(&behind), "{ahead} {behind}");
}

#[test]
fn a_fleet_of_nothing_has_no_rows() {
    let bare = Config { plants: Vec::new(), ..Config::small() };
    for config in [
        Config { hosts: 0, ..Config::small() },
        Config { services: 0, ..Config::small() },
        Config { libraries: 0, kernel_procedures: 0, own_procedures: 0, ..bare },
        Config { silent: [1.0, 0.0], ..Config::small() },
    ] {
        let fleet = Fleet::new(config);
        let facts = (0..fleet.hosts()).flat_map(|host| fleet.host_week(1, host).facts);
        assert_eq!(facts.count(), 0);
    }
}

/// Twelve services on 150 hosts, in the week of the default plants.
struct Reviewed {
    fleet: Fleet,
    rows: Vec<HostWeek>,
}

impl Reviewed {
    fn new() -> Self {
        let config =
            Config { hosts: 150, services: 12, services_per_host: 9.0, ..Config::default() };
        let fleet = Fleet::new(Config { samples_per_host_week: 3e7, ..config });
        let rows = (0..fleet.hosts()).map(|host| fleet.host_week(1, host)).collect();
        Self { fleet, rows }
    }

    /// The rows of the comparison in which a truth is, with their procedures.
    fn judged(&self, truth: &Truth) -> (Vec<i64>, Vec<Judged>, Vec<judge::Sums>, [u64; 2]) {
        let image = tables::id(&[&truth.image]);
        let mut sums = Paired::default();
        for rows in &self.rows {
            let mut sides = by_build(rows, truth.service_id, image);
            let mut side = |build: i64| sides.remove(&build).unwrap_or_default();
            let (old, new) = (side(truth.build_old), side(truth.build_new));
            sums.add(&old, &new);
        }
        let (group, keys) = sums.group();
        let of = [group.samples_old, group.samples_new];
        let (_, mut judged) =
            paired(std::slice::from_ref(&group), &Rule::builds()).pop().unwrap_or_default();
        mark(&mut judged, LEVEL);
        (keys.into_iter().map(|(_, procedure)| procedure).collect(), judged, group.rows, of)
    }
}

/// A row for each kind of plant: what the review has to say of it.
#[test]
fn every_kind_of_plant_is_seen_for_what_it_is() {
    let reviewed = Reviewed::new();
    let truths = reviewed.fleet.truth();
    assert_eq!(truths.len(), 6);
    let mut all = 0;
    for truth in &truths {
        let (keys, judged, sums, of) = reviewed.judged(truth);
        let row = |id: i64| keys.iter().position(|key| *key == id).expect("a row");
        let (id, name, ..) = &truth.procedures[0];
        let first = judged[row(*id)];
        match &truth.what {
            What::Cost { relative, .. } => {
                assert!(first.marked, "{name}: {first:?}");
                assert!((first.low..=first.high).contains(relative), "{relative}: {first:?}");
            }
            What::Gone { .. } => {
                assert!(first.marked && first.value < -0.99, "{first:?}");
                let sums = sums[row(*id)];
                let gone = one_sided([sums.samples_old, sums.samples_new], of, sums.hosts);
                assert!(gone.is_some_and(|gone| gone.side == Side::Old && gone.p < 1e-9));
            }
            What::New { share } => {
                let sums = sums[row(*id)];
                let new = one_sided([sums.samples_old, sums.samples_new], of, sums.hosts);
                let new = new.expect("one side only");
                assert!(new.side == Side::New && new.p < 1e-9, "{new:?}");
                assert!((new.share / share - 1.0).abs() < 0.3, "{new:?}, not {share}");
            }
            What::Moved { .. } => {
                let marked: Vec<usize> =
                    (0..judged.len()).filter(|row| judged[*row].marked).collect();
                let shift = |row: &usize| {
                    let Judged { share_change, share_sd, .. } = judged[*row];
                    Shift { change: share_change, sd: share_sd }
                };
                let shifts: Vec<Shift> = marked.iter().map(shift).collect();
                let moves = moved(&shifts, Confidence::default());
                let ids = |numbers: &[usize]| {
                    numbers.iter().map(|at| keys[marked[*at]]).collect::<BTreeSet<_>>()
                };
                let expected: BTreeSet<i64> =
                    truth.procedures[1..].iter().map(|(id, ..)| *id).collect();
                assert!(
                    moves.iter().any(|of| ids(&of.from) == [*id].into() && ids(&of.to) == expected),
                    "{moves:?} of {shifts:?}"
                );
            }
        }
        let planted =
            |id: &i64| truths.iter().any(|truth| truth.procedures.iter().any(|(of, ..)| of == id));
        all += keys.iter().zip(&judged).filter(|(id, row)| row.marked && !planted(id)).count();
    }
    assert!(all <= 1, "{all} marks of what nobody changed");
}

/// A service whose procedures are all dearer: no share tells, its cores do.
#[test]
fn cores_are_told_by_days_and_hosts() {
    let mut config = Config { samples_per_host_week: 1e6, late: 0.1, ..Config::service(200, 4) };
    config.own_procedures = 30;
    let dearer =
        |rank| sim::Plant { service: 0, week: 1, what: What::Cost { rank, relative: 0.2 } };
    config.plants = (0..30).map(dearer).collect();
    let fleet = Fleet::new(config);
    let (service, image, [_, new]) = fleet.first(1);
    let mut cells: Vec<Cell> = Vec::new();
    for host in 0..fleet.hosts() {
        let rows = fleet.host_week(1, host);
        let mut by_day: BTreeMap<(i64, bool), f64> = BTreeMap::new();
        let own: BTreeMap<i64, BTreeSet<i64>> = rows
            .loads
            .iter()
            .filter(|load| load.image == image)
            .fold(BTreeMap::new(), |mut builds, load| {
                builds.entry(load.day).or_insert_with(BTreeSet::new).insert(load.build);
                builds
            });
        for load in rows.loads.iter().filter(|load| load.service == service) {
            for build in own.get(&load.day).into_iter().flatten() {
                let cell = by_day.entry((load.day, *build == new)).or_default();
                *cell += load.samples as f64 * load.weight / 1e9;
            }
        }
        let covered: BTreeMap<i64, f64> = rows
            .epochs
            .iter()
            .map(|epoch| (epoch.begin_s / 86_400, (epoch.end_s - epoch.begin_s) as f64))
            .collect();
        cells.extend(by_day.into_iter().map(|((day, new), core_s)| Cell {
            host: host as i64,
            day,
            new,
            core_s,
            covered_s: covered.get(&day).copied().unwrap_or(0.0),
        }));
    }
    let cost = cores(&cells, Confidence::default()).expect("hosts changed on different days");
    // 20 % of the 55 % of the time in the image.
    assert!(cost.low < 0.11 && cost.high > 0.11, "{cost:?}");
    assert!(cost.p < 0.001 && cost.changed > 100, "{cost:?}");
}
