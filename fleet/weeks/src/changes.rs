//! What changed: by builds on the same hosts in the week, and from the week before.

use std::collections::{BTreeMap, HashMap, HashSet};

use judge::moved::{Shift, moved};
use judge::{
    Group, Judged, LEVEL, Rule, Side, Sums, Untested, discoveries, mark, one_sided, paired,
};
use review::Watched;
use tables::{Change, Load, Pair, PairSum};

use crate::builds::OfBuilds;
use crate::dimensions::Dimensions;

/// Kinds of comparisons, as in `tables::Change`.
const BUILDS: &str = "build";
const WEEKS: &str = "week";

/// A comparison: its subject.
#[derive(Clone, Debug)]
struct Comparison {
    kind: &'static str,
    service: i64,
    builds: (i64, i64),
    same_day: f64,
    /// Core-seconds of the service in the week.
    core_s: f64,
    /// The procedures of the group's rows; 0: the whole image.
    procedures: Vec<i64>,
    /// Their images.
    images: Vec<i64>,
}

/// Names of a service, of an image and of its build.
pub(crate) type OfBuild = (String, String, String);

/// Comparisons of all services of a week.
#[derive(Debug, Default)]
pub(crate) struct Comparisons {
    of: Vec<Comparison>,
    groups: Vec<Group>,
}

impl Comparisons {
    /// Adds the builds of a service.
    pub(crate) fn add_builds(&mut self, loads: &[Load], found: &OfBuilds, sums: &[PairSum]) {
        let mut by_pair: BTreeMap<(i64, i64, i64), Vec<&PairSum>> = BTreeMap::new();
        for sum in sums {
            by_pair.entry((sum.image, sum.build_old, sum.build_new)).or_default().push(sum);
        }
        for (key, sums) in by_pair {
            let (image, old, new) = key;
            let is_of =
                |pair: &&Pair| (pair.image, pair.build_old, pair.build_new) == (image, old, new);
            let group = group(found.pairs.iter().filter(is_of));
            let of = |procedures: Vec<i64>| Comparison {
                kind: BUILDS,
                service: loads.first().map_or(0, |load| load.service),
                builds: (old, new),
                same_day: found.same_day.get(&key).copied().unwrap_or(0.0),
                core_s: core_s(loads),
                images: vec![image; procedures.len()],
                procedures,
            };
            // The whole image is a group of its own: of procedures, what is typical is subtracted.
            let whole = vec![found.images.get(&key).copied().unwrap_or_default()];
            self.push(of(vec![0]), Group { rows: whole, ..group.clone() });
            let rows = sums.iter().map(|sum| sums_of(sum)).collect();
            self.push(of(sums.iter().map(|sum| sum.procedure).collect()), Group { rows, ..group });
        }
    }

    /// Adds a service in this week and the one before.
    pub(crate) fn add_weeks(&mut self, loads: &[Load], pairs: &[Pair], sums: &[PairSum]) {
        let mut group = group(pairs.iter());
        group.rows.extend(sums.iter().map(sums_of));
        self.push(
            Comparison {
                kind: WEEKS,
                service: loads.first().map_or(0, |load| load.service),
                builds: (0, 0),
                same_day: 1.0,
                core_s: core_s(loads),
                procedures: sums.iter().map(|sum| sum.procedure).collect(),
                images: sums.iter().map(|sum| sum.image).collect(),
            },
            group,
        );
    }

    fn push(&mut self, of: Comparison, group: Group) {
        self.of.push(of);
        self.groups.push(group);
    }

    /// What changed, the most cores first: of builds and of weeks each the marked rows, and of
    /// builds the whole images. And why a build could not be compared with the one before.
    pub(crate) fn judge(
        self,
        dimensions: &Dimensions,
        known_before: &HashSet<i64>,
        watched: &[Watched],
    ) -> (Vec<Change>, HashMap<OfBuild, Untested>) {
        let mut untested = HashMap::new();
        let images = dimensions.images();
        let mut changes = Vec::new();
        for kind in [BUILDS, WEEKS] {
            let of: Vec<(&Comparison, &Group)> =
                self.of.iter().zip(&self.groups).filter(|(of, _)| of.kind == kind).collect();
            let groups: Vec<Group> = of.iter().map(|(_, group)| (*group).clone()).collect();
            let rule = if kind == BUILDS { Rule::builds() } else { Rule::weeks() };
            let mut judged: Vec<Vec<Judged>> =
                paired(&groups, &rule).into_iter().map(|(_, rows)| rows).collect();
            mark(judged.iter_mut().flatten(), LEVEL);
            for ((of, group), rows) in of.iter().zip(&judged) {
                let told = ChangeWriter { of, group, dimensions, images: &images, watched };
                if let Some((0, row)) = of.procedures.first().copied().zip(rows.first())
                    && let Some(why) = row.untested.filter(|_| kind == BUILDS)
                {
                    let Change { service, image, build_new, .. } = told.change(0, row);
                    untested.insert((service, image, build_new), why);
                }
                changes.extend(told.changes(rows));
            }
            changes.extend(sided(&of, dimensions, &images, known_before));
        }
        changes.sort_by(|a, b| b.core_s.abs().total_cmp(&a.core_s.abs()));
        // A procedure that a build added or removed is reported with the builds, and not again from
        // week to week.
        let key = |change: &Change| {
            (change.service.clone(), change.image.clone(), change.procedure.clone())
        };
        let is_sided = |change: &&Change| change.kind != BUILDS && change.kind != WEEKS;
        let of_builds: HashSet<_> = changes
            .iter()
            .filter(is_sided)
            .filter(|change| !change.build_new.is_empty())
            .map(key)
            .collect();
        changes.retain(|change| {
            let is_of_weeks = is_sided(&change) && change.build_new.is_empty();
            !(is_of_weeks && of_builds.contains(&key(change)))
        });
        (changes, untested)
    }
}

/// Writes the changes of one comparison.
struct ChangeWriter<'a> {
    of: &'a Comparison,
    group: &'a Group,
    dimensions: &'a Dimensions,
    images: &'a HashMap<i64, String>,
    watched: &'a [Watched],
}

impl ChangeWriter<'_> {
    fn changes(&self, rows: &[Judged]) -> Vec<Change> {
        let moves = self.moves(rows);
        let mut changes = Vec::new();
        for (at, row) in rows.iter().enumerate() {
            let procedure = self.of.procedures.get(at).copied().unwrap_or_default();
            let is_image = self.of.kind == BUILDS && procedure == 0;
            let is_known = !matches!(row.untested, Some(Untested::Hosts | Untested::Nonsense));
            if row.marked || (is_known && (is_image || self.is_watched(at))) {
                let mut change = self.change(at, row);
                if let Some(with) = moves.get(&at) {
                    change.moved = with.join("\n");
                }
                changes.push(change);
            }
        }
        changes
    }

    fn is_watched(&self, at: usize) -> bool {
        // Few are, and names of all rows are not looked up for none.
        let procedure = self.of.procedures.get(at).copied().unwrap_or_default();
        let image = self.of.images.get(at).and_then(|image| self.images.get(image));
        self.watched.iter().any(|watched| {
            image == Some(&watched.image)
                && watched.procedure == self.dimensions.procedure(procedure)
                && watched.service == self.dimensions.service(self.of.service)
        })
    }

    /// Names of the procedures that each row's time moved from or to.
    fn moves(&self, rows: &[Judged]) -> HashMap<usize, Vec<String>> {
        let mut by_image: BTreeMap<i64, Vec<usize>> = BTreeMap::new();
        for (at, row) in rows.iter().enumerate() {
            let procedure = self.of.procedures.get(at).copied().unwrap_or_default();
            if row.marked && procedure != 0 {
                let image = self.of.images.get(at).copied().unwrap_or_default();
                by_image.entry(image).or_default().push(at);
            }
        }
        let mut with = HashMap::new();
        for marked in by_image.values() {
            let shift = |at: &usize| {
                let row = rows.get(*at);
                row.map_or(Shift { change: 0.0, sd: 0.0 }, |row| Shift {
                    change: row.share_change,
                    sd: row.share_sd,
                })
            };
            let shifts: Vec<Shift> = marked.iter().map(shift).collect();
            for found in moved(&shifts, Rule::builds().confidence) {
                let names = |of: &[usize]| -> Vec<String> {
                    of.iter()
                        .filter_map(|at| self.of.procedures.get(*marked.get(*at)?))
                        .map(|procedure| self.dimensions.procedure(*procedure))
                        .collect()
                };
                for (some, others) in [(&found.from, &found.to), (&found.to, &found.from)] {
                    for at in some {
                        with.extend(marked.get(*at).map(|at| (*at, names(others))));
                    }
                }
            }
        }
        with
    }

    fn change(&self, at: usize, row: &Judged) -> Change {
        let Comparison { kind, service, builds: (old, new), same_day, core_s, .. } = self.of;
        let image = self.of.images.get(at).copied().unwrap_or_default();
        let procedure = self.of.procedures.get(at).copied().unwrap_or_default();
        Change {
            kind: (*kind).to_owned(),
            service: self.dimensions.service(*service),
            image: self.images.get(&image).cloned().unwrap_or_default(),
            procedure: self.dimensions.procedure(procedure),
            build_old: self.dimensions.build(*old),
            build_new: self.dimensions.build(*new),
            value: row.value,
            low: row.low,
            high: row.high,
            q: row.q,
            hosts: i64::try_from(self.group.pairs).unwrap_or(i64::MAX),
            core_s: row.share_change * core_s,
            marked: i64::from(row.marked),
            moved: String::new(),
            same_day: *same_day,
        }
    }
}

/// Procedures that one side only has, and that not by chance.
fn sided(
    of: &[(&Comparison, &Group)],
    dimensions: &Dimensions,
    images: &HashMap<i64, String>,
    known_before: &HashSet<i64>,
) -> Vec<Change> {
    let mut found = Vec::new();
    for (of, group) in of {
        for (at, sums) in group.rows.iter().enumerate() {
            let samples = [sums.samples_old, sums.samples_new];
            let all = [group.samples_old, group.samples_new];
            if let Some(sided) = one_sided(samples, all, sums.hosts) {
                found.push((*of, *group, at, sided));
            }
        }
    }
    let p: Vec<f64> = found.iter().map(|(.., sided)| sided.p).collect();
    let discovered = discoveries(&p, LEVEL);
    let mut changes = Vec::new();
    for (((of, group, at, sided), marked), q) in
        found.into_iter().zip(discovered.marked).zip(discovered.q)
    {
        if !marked {
            continue;
        }
        let procedure = of.procedures.get(at).copied().unwrap_or_default();
        let kind = match sided.side {
            Side::Old => "gone",
            // A build that never had it before brought it, however seldom it runs.
            Side::New if of.kind == WEEKS && known_before.contains(&procedure) => "seldom",
            Side::New => "new",
        };
        let told = ChangeWriter { of, group, dimensions, images, watched: &[] };
        let sign = if sided.side == Side::Old { -1.0 } else { 1.0 };
        let row = Judged {
            value: sign * sided.share,
            low: 0.0,
            high: 0.0,
            share_old: 0.0,
            share_change: sign * sided.share,
            share_sd: 0.0,
            p: sided.p,
            q,
            marked,
            untested: None,
        };
        changes.push(Change { kind: kind.to_owned(), ..told.change(at, &row) });
    }
    changes
}

fn core_s(loads: &[Load]) -> f64 {
    loads.iter().map(|load| load.samples as f64 * load.weight / 1e9).sum()
}

fn sums_of(sum: &PairSum) -> Sums {
    let whole = |number: i64| u64::try_from(number).unwrap_or_default();
    Sums {
        wd: sum.wd,
        w2d: sum.w2d,
        w2d2: sum.w2d2,
        w_old: sum.w_old,
        hosts: whole(sum.hosts),
        samples_old: whole(sum.samples_old),
        samples_new: whole(sum.samples_new),
    }
}

/// A group without rows.
fn group<'a>(pairs: impl Iterator<Item = &'a Pair>) -> Group {
    let mut group = Group::default();
    let (mut old, mut new) = (0.0, 0.0);
    for pair in pairs {
        group.pairs += 1;
        group.w += pair.w;
        group.w2 += pair.w * pair.w;
        group.sampling += pair.w * pair.w * (pair.samples_old.recip() + pair.samples_new.recip());
        old += pair.samples_old;
        new += pair.samples_new;
    }
    (group.samples_old, group.samples_new) = (old as u64, new as u64);
    group
}
