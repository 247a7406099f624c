//! The review of a week that was closed, from its sums: no fact is read.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use ingest::{TIME, read_file};
use review::report::{
    BuildRow, ChangeKind, ChangeRow, ClockHost, Estimate, FindingRow, Fleet, GotWeek, HalfHost,
    Hosts, ImageRow, Ledger, MachineRow, SeenRow, ServiceRow, SkewRow, TREND_WEEKS, TopRow,
    UnlikeRow,
};
use review::{Report, Settings};
use store::{Manifest, Store, StoreError, Week};
use tables::{Change, Head, HeadTime, HostShare, HostWeek, ImageWeek, Missed, Row, Skew, Table};

use crate::close::CloseError;
use crate::dimensions::rows;

/// Number of weeks before this one whose hosts are expected to report.
const EXPECTED_WEEKS: i64 = 4;
const WEEK_S: f64 = 604_800.0;
const HOUR_S: f64 = 3600.0;

/// Prices, owners and findings, from the store's `settings/`.
///
/// # Errors
/// [`CloseError::Settings`], or of the store.
pub async fn settings(store: &Store) -> Result<Settings, CloseError> {
    let mut texts = Vec::new();
    for name in ["prices", "owners", "findings"] {
        let text = store.get(&format!("settings/{name}.toml")).await?;
        texts.push(text.map(|text| String::from_utf8_lossy(&text).into_owned()));
    }
    let text = |at: usize| texts.get(at).and_then(Option::as_deref);
    Ok(Settings::parse(text(0), text(1), text(2))?)
}

/// The review of a week, for its event `time`. `drill` is the command of its rows.
///
/// # Errors
/// [`CloseError::Nothing`], [`CloseError::NotClosed`], or of the store.
pub async fn assemble(store: &Store, week: Week, drill: &str) -> Result<Report, CloseError> {
    let settings = settings(store).await?;
    let manifest = Manifest::newest(store, week).await?;
    if manifest.epochs.is_empty() {
        return Err(CloseError::Nothing(week));
    }
    // With epochs that came since, the sums of tables would not be of the same epochs.
    if !manifest.is_closed() {
        return Err(CloseError::NotClosed(week));
    }
    let mut of = Weeks { store, week, manifests: vec![manifest] };
    for before in 1..i64::try_from(TREND_WEEKS).unwrap_or(0) {
        let earlier = match Manifest::newest(store, week.before(before)).await {
            // The known part of this week is reported nevertheless.
            Err(StoreError::Damaged { .. }) => Manifest::default(),
            earlier => earlier?,
        };
        of.manifests.push(earlier);
    }
    let mut report = Report {
        week: week.to_string(),
        event: TIME.to_owned(),
        drill: drill.to_owned(),
        ..Report::default()
    };
    of.hosts(&mut report).await?;
    of.services(&mut report).await?;
    of.top(&mut report).await?;
    of.changes(&mut report).await?;
    of.others(&mut report).await?;
    of.findings(&mut report, &settings).await?;
    settings.apply(&mut report);
    report.tax = review::tax::of(&report);
    Ok(report)
}

/// The week and those before it, the newest first.
struct Weeks<'a> {
    store: &'a Store,
    week: Week,
    manifests: Vec<Manifest>,
}

impl Weeks<'_> {
    async fn rows<R: Row>(&self, before: usize) -> Result<Vec<R>, CloseError> {
        let mut all = Vec::new();
        if let Some(manifest) = self.manifests.get(before) {
            rows(self.store, manifest, TIME, |row: R| all.push(row)).await?;
        }
        Ok(all)
    }

    async fn hosts(&self, report: &mut Report) -> Result<(), CloseError> {
        let hosts: Vec<HostWeek> = self.rows(0).await?;
        let heard: BTreeSet<&str> = hosts.iter().map(|host| host.name.as_str()).collect();
        let mut expected: BTreeSet<String> = heard.iter().map(|&host| host.to_owned()).collect();
        for before in 1..=usize::try_from(EXPECTED_WEEKS).unwrap_or(0) {
            let earlier: Vec<HostWeek> = self.rows(before).await?;
            expected.extend(earlier.into_iter().map(|host| host.name));
        }
        let silent = expected.iter().filter(|host| !heard.contains(host.as_str())).cloned();
        let half = |host: &HostWeek| {
            let covered = host.covered_s as f64 / WEEK_S;
            (covered < 0.5).then(|| HalfHost { host: host.name.clone(), covered })
        };
        let clock = |host: &HostWeek| {
            let ahead_s = whole(host.ahead_s);
            (ahead_s > 0).then(|| ClockHost { host: host.name.clone(), ahead_s })
        };
        report.hosts = Hosts {
            expected: expected.len() as u64,
            heard: heard.len() as u64,
            silent: silent.collect(),
            half: hosts.iter().filter_map(half).collect(),
            clocks: hosts.iter().filter_map(clock).collect(),
        };
        report.ledger = Ledger::default();
        for host in &hosts {
            report.ledger.taken += whole(host.taken);
            report.ledger.facts += whole(host.facts);
            report.ledger.idle += whole(host.idle);
        }
        for missed in self.rows::<Missed>(0).await? {
            let fate = match missed.fate.as_str() {
                "lost" => &mut report.ledger.lost,
                _ => &mut report.ledger.unresolved,
            };
            *fate.entry(missed.reason).or_default() += whole(missed.samples);
        }
        let before = self.rows::<HostWeek>(1).await?;
        report.fleet = fleet(&hosts, &before);
        report.machines = machines(&hosts);
        Ok(())
    }

    async fn services(&self, report: &mut Report) -> Result<(), CloseError> {
        let all = report.fleet.core_hours;
        let sums = |rows: Vec<ImageWeek>| {
            let mut sums: BTreeMap<(String, String), Sum> = BTreeMap::new();
            for row in rows {
                let sum = sums.entry((row.service, row.image)).or_default();
                sum.core_hours += row.core_s / HOUR_S;
                sum.hosts += whole(row.hosts);
                *sum.machines.entry(row.machine).or_default() += row.core_s / HOUR_S;
            }
            sums
        };
        let mut before: BTreeMap<String, f64> = BTreeMap::new();
        for ((service, image), sum) in sums(self.rows(1).await?) {
            if image.is_empty() {
                before.insert(service, sum.core_hours);
            }
        }
        for ((service, image), Sum { core_hours, hosts, machines }) in sums(self.rows(0).await?) {
            let share = if all > 0.0 { core_hours / all } else { 0.0 };
            if image.is_empty() {
                let change = before.get(&service).filter(|before| **before > 0.0);
                let change = change.map(|before| core_hours / before - 1.0);
                let row = ServiceRow {
                    service,
                    core_hours,
                    share,
                    hosts,
                    change,
                    machines,
                    ..ServiceRow::default()
                };
                report.services.push(row);
            } else {
                let row =
                    ImageRow { service, image, core_hours, share, hosts, ..ImageRow::default() };
                report.images.push(row);
            }
        }
        report.services.sort_by(|a, b| b.core_hours.total_cmp(&a.core_hours));
        report.images.sort_by(|a, b| b.core_hours.total_cmp(&a.core_hours));
        Ok(())
    }

    async fn top(&self, report: &mut Report) -> Result<(), CloseError> {
        let all = report.fleet.core_hours;
        let mut at: HashMap<(i64, i64), usize> = HashMap::new();
        let weeks = self.manifests.len();
        for head in self.rows::<Head>(0).await? {
            let key = (head.service_id, head.id);
            let row = *at.entry(key).or_insert_with(|| {
                report.top.push(TopRow {
                    service: head.service.clone(),
                    image: head.image.clone(),
                    procedure: head.procedure.clone(),
                    trend: vec![None; weeks],
                    ..TopRow::default()
                });
                report.top.len() - 1
            });
            let Some(row) = report.top.get_mut(row) else { continue };
            row.core_hours += head.core_s / HOUR_S;
            row.hosts += whole(head.hosts);
        }
        for before in 0..weeks {
            let Some(manifest) = self.manifests.get(before) else { continue };
            for file in manifest.files_of(Table::Heads.name(), TIME) {
                for time in read_file::<HeadTime>(self.store, file).await? {
                    let row = at.get(&(time.service_id, time.id)).copied();
                    let row = row.and_then(|row| report.top.get_mut(row));
                    let slot = row.and_then(|row| row.trend.get_mut(weeks - 1 - before));
                    if let Some(slot) = slot {
                        *slot = Some(slot.unwrap_or(0.0) + time.core_s / HOUR_S);
                    }
                }
            }
        }
        for row in &mut report.top {
            row.share = if all > 0.0 { row.core_hours / all } else { 0.0 };
        }
        report.top.sort_by(|a, b| b.core_hours.total_cmp(&a.core_hours));
        Ok(())
    }

    async fn changes(&self, report: &mut Report) -> Result<(), CloseError> {
        // A service whose builds changed is judged by its builds.
        let changes: Vec<Change> = self.rows(0).await?;
        let rolled: BTreeSet<(String, String)> = changes
            .iter()
            .filter(|change| change.kind == "build")
            .map(|change| (change.service.clone(), change.image.clone()))
            .collect();
        for change in changes.into_iter().filter(|change| change.marked > 0) {
            let key = (change.service.clone(), change.image.clone());
            match change.kind.as_str() {
                "build" => report.changed.push(row(change)),
                "week" if !rolled.contains(&key) => report.between_weeks.push(row(change)),
                "new" => report.new.push(seen(change)),
                "gone" => report.gone.push(seen(change)),
                "seldom" => report.seldom.push(seen(change)),
                _ => {}
            }
        }
        Ok(())
    }

    async fn others(&self, report: &mut Report) -> Result<(), CloseError> {
        let unlike = |row: HostShare| UnlikeRow {
            service: row.service,
            host: row.host,
            distance: row.distance,
            expected: row.expected,
            procedure: row.procedure,
        };
        report.unlike = self.rows::<HostShare>(0).await?.into_iter().map(unlike).collect();
        let mut skews: BTreeMap<(String, String), Vec<Skew>> = BTreeMap::new();
        for skew in self.rows::<Skew>(0).await? {
            skews.entry((skew.service.clone(), skew.image.clone())).or_default().push(skew);
        }
        for ((service, image), mut builds) in skews {
            let all: f64 = builds.iter().map(|build| build.core_s).sum();
            builds.sort_by_key(|build| std::cmp::Reverse(build.first_s));
            let build = |build: Skew| BuildRow {
                share: if all > 0.0 { build.core_s / all } else { 0.0 },
                not_judged: not_judged(&build),
                build: build.build,
                hosts: whole(build.hosts),
                first_s: build.first_s,
                last_s: build.last_s,
            };
            let builds = builds.into_iter().map(build).collect();
            report.skew.push(SkewRow { service, image, builds });
        }
        Ok(())
    }

    /// What findings got, in each week from the one in which they were accepted: by builds where
    /// one was rolled out in the week, else from the week before.
    async fn findings(&self, report: &mut Report, settings: &Settings) -> Result<(), CloseError> {
        let watched = settings.watched();
        if watched.is_empty() {
            return Ok(());
        }
        let mut got: Vec<Vec<GotWeek>> = vec![Vec::new(); watched.len()];
        for before in (0..self.manifests.len()).rev() {
            let changes: Vec<Change> = self.rows(before).await?;
            let week = self.week.before(i64::try_from(before).unwrap_or(0)).to_string();
            for (finding, got) in watched.iter().zip(&mut got) {
                if week < finding.week {
                    continue;
                }
                let of = |kind: &str| -> Vec<&Change> {
                    let is_of = |change: &&Change| {
                        change.kind == kind
                            && change.service == finding.service
                            && change.image == finding.image
                            && change.procedure == finding.procedure
                    };
                    changes.iter().filter(is_of).collect()
                };
                let found = if of("build").is_empty() { of("week") } else { of("build") };
                got.extend(saved(&week, &found));
            }
        }
        // The settings fill in the rest.
        report.findings = watched
            .into_iter()
            .zip(got)
            .map(|(finding, got)| FindingRow { id: finding.id, got, ..FindingRow::default() })
            .collect();
        Ok(())
    }
}

/// Core-hours and hosts.
#[derive(Clone, Debug, Default)]
struct Sum {
    core_hours: f64,
    hosts: u64,
    machines: BTreeMap<String, f64>,
}

/// CPUs that were busy while a host was profiled.
fn busy(hosts: &[HostWeek]) -> f64 {
    let of = hosts.iter().filter(|host| host.covered_s > 0);
    of.map(|host| host.core_s / host.covered_s as f64).sum()
}

fn fleet(hosts: &[HostWeek], before: &[HostWeek]) -> Fleet {
    let (now, then) = (busy(hosts), busy(before));
    Fleet {
        core_hours: hosts.iter().map(|host| host.core_s / HOUR_S).sum(),
        busy_cores: now,
        cpus: hosts.iter().map(|host| whole(host.cpus)).sum(),
        change: (then > 0.0).then(|| now / then - 1.0),
        money: None,
    }
}

fn machines(hosts: &[HostWeek]) -> Vec<MachineRow> {
    let mut rows: BTreeMap<&str, (MachineRow, f64)> = BTreeMap::new();
    for host in hosts {
        let (row, capacity_s) = rows.entry(&host.machine).or_default();
        row.machine.clone_from(&host.machine);
        row.hosts += 1;
        row.cpus += whole(host.cpus);
        row.core_hours += host.core_s / HOUR_S;
        *capacity_s += host.covered_s as f64 * host.cpus as f64;
    }
    let row = |(mut row, capacity_s): (MachineRow, f64)| {
        row.busy = if capacity_s > 0.0 { row.core_hours * HOUR_S / capacity_s } else { 0.0 };
        row
    };
    let mut rows: Vec<MachineRow> = rows.into_values().map(row).collect();
    rows.sort_by(|a, b| b.core_hours.total_cmp(&a.core_hours));
    rows
}

fn row(change: Change) -> ChangeRow {
    let moved = change.moved.split('\n').filter(|name| !name.is_empty()).map(str::to_owned);
    ChangeRow {
        kind: if change.kind == "build" { ChangeKind::Build } else { ChangeKind::Week },
        moved_with: moved.collect(),
        service: change.service,
        image: change.image,
        build_old: change.build_old,
        build_new: change.build_new,
        procedure: change.procedure,
        change: Estimate { value: change.value, low: change.low, high: change.high },
        q: change.q,
        hosts: whole(change.hosts),
        cores: change.core_s / WEEK_S,
        money: None,
        owner: None,
        same_day: change.same_day,
        accepted: None,
    }
}

/// Why nothing is said of what a build changed, where it was not compared with the one before.
fn not_judged(build: &Skew) -> Option<String> {
    let hosts = match build.hosts_before {
        0 => "no host".to_owned(),
        1 => "1 host".to_owned(),
        hosts => format!("{hosts} hosts"),
    };
    let both = format!("{hosts} ran it and the build before");
    Some(match build.untested.as_str() {
        "" => return None,
        "hosts" if build.hosts_before < 2 => format!("{both}, two are needed"),
        "hosts" => format!("{both}, and one of them did nearly all of the work"),
        "small" => "the image has less than 0.01 % of the service's time".to_owned(),
        "new" => "the build before had no samples".to_owned(),
        _ => "its sums are impossible; please report this".to_owned(),
    })
}

fn seen(change: Change) -> SeenRow {
    SeenRow {
        service: change.service,
        image: change.image,
        procedure: change.procedure,
        core_hours: change.core_s.abs() / HOUR_S,
        hosts: whole(change.hosts),
        ..SeenRow::default()
    }
}

/// Cores saved by changes of one procedure in a week.
fn saved(week: &str, changes: &[&Change]) -> Option<GotWeek> {
    let known: Vec<&&Change> = changes.iter().filter(|change| change.value.abs() > 1e-12).collect();
    if known.is_empty() {
        return None;
    }
    // A decrease is a saving, so the ends of the interval are swapped.
    let cores = |of: fn(&Change) -> f64| -> f64 {
        known.iter().map(|change| -change.core_s / WEEK_S * of(change) / change.value).sum()
    };
    Some(GotWeek {
        week: week.to_owned(),
        value: cores(|change| change.value),
        low: cores(|change| change.high),
        high: cores(|change| change.low),
    })
}

fn whole(number: i64) -> u64 {
    u64::try_from(number).unwrap_or_default()
}
