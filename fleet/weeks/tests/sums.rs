//! The SQL of a week against plain sums over a simulated fleet's rows, host by host.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, clippy::expect_used)]

use std::collections::{BTreeMap, BTreeSet, HashMap};

use engine::Engine;
use ingest::{Files, TIME, read_file};
use judge::Sums;
use sim::sums::{Paired, by_build, by_week};
use sim::{Config, Fleet};
use store::{EpochName, FileEntry, Manifest, Store, Week};
use tables::{Fact, HostWeek, Pair, PairSum, Rollup, Row, Table};
use weeks::{Closing, STATEMENTS, close, compact};

/// Hosts whose facts are in one file.
const HOSTS_AT_ONCE: usize = 13;

/// A fleet of which two weeks are in a store.
struct Simulated {
    fleet: Fleet,
    store: Store,
    /// The rows of each host in both weeks.
    hosts: Vec<[sim::HostWeek; 2]>,
}

fn week(number: i64) -> Week {
    Week::of(Fleet::begin_s(number))
}

impl Simulated {
    async fn new() -> Self {
        let fleet = Fleet::new(Config::small());
        let store = Store::at("memory:///").unwrap();
        let of = |host| [0, 1].map(|week| fleet.host_week(week, host));
        let hosts: Vec<[sim::HostWeek; 2]> = (0..fleet.hosts()).map(of).collect();
        for number in [0, 1] {
            let at = number as usize;
            let mut files = Files { store: &store, week: week(number), entries: Vec::new() };
            let mut next = Manifest::newest(&store, week(number)).await.unwrap();
            for some in hosts.chunks(HOSTS_AT_ONCE) {
                let all = |of: fn(&sim::HostWeek) -> &Vec<Fact>| -> Vec<Fact> {
                    some.iter().flat_map(|host| of(&host[at]).clone()).collect()
                };
                let mut facts = all(|host| &host.facts);
                facts.sort_by_key(|of| (of.service, of.image, of.build, of.procedure, of.host));
                let some = some.iter().map(|host| &host[at]);
                let loads: Vec<_> = some.clone().flat_map(|of| of.loads.clone()).collect();
                let epochs: Vec<_> = some.clone().flat_map(|of| of.epochs.clone()).collect();
                let missed: Vec<_> = some.flat_map(|of| of.missed.clone()).collect();
                let samples = facts.iter().map(|of| of.samples).sum();
                files.put(TIME, &facts, samples).await.unwrap();
                files.put(TIME, &loads, samples).await.unwrap();
                files.put(TIME, &epochs, 0).await.unwrap();
                files.put(TIME, &missed, 0).await.unwrap();
                next.epochs.extend(
                    epochs.iter().map(|of| EpochName {
                        host: of.name.clone(),
                        epoch: of.begin_s.to_string(),
                    }),
                );
            }
            files.put("", &fleet.names(), 0).await.unwrap();
            files.put("", &fleet.services(), 0).await.unwrap();
            files.put("", &fleet.builds(number), 0).await.unwrap();
            next.files = files.entries;
            assert!(next.put_next(&store, week(number)).await.unwrap());
        }
        Self { fleet, store, hosts }
    }

    async fn manifest(&self, number: i64) -> Manifest {
        Manifest::newest(&self.store, week(number)).await.unwrap()
    }

    async fn rows<R: Row>(&self, number: i64) -> Vec<R> {
        let mut rows = Vec::new();
        for file in self.manifest(number).await.files_of(R::TABLE.name(), TIME) {
            rows.extend(read_file::<R>(&self.store, file).await.unwrap());
        }
        rows
    }

    /// The rows of the second week's statement of a name, for a service.
    async fn ask<R: Row>(&self, engine: &Engine, name: &str, service: i64) -> Vec<R> {
        let (now, before) = (self.manifest(1).await, self.manifest(0).await);
        let files = |table: Table| now.files_of(table.name(), TIME);
        let of_service = |file: &&FileEntry| file.service == Some(service);
        let facts = files(Table::Facts).filter(of_service);
        engine.register(Table::Facts, "facts", facts).unwrap();
        engine.register(Table::Facts, "facts_before", before.files_of("facts", TIME)).unwrap();
        engine.register(Table::HostWeeks, "host_weeks", files(Table::HostWeeks)).unwrap();
        engine.register(Table::Pairs, "pairs", files(Table::Pairs)).unwrap();
        let (_, sql) = STATEMENTS.iter().find(|(of, _)| *of == name).unwrap();
        engine.rows(&sql.replace(":service", &service.to_string())).await.unwrap()
    }
}

fn near(a: f64, b: f64, scale: f64) -> bool {
    (a - b).abs() <= 1e-9 * (a.abs().max(b.abs()) + scale)
}

/// Rows by image, builds and procedure.
type BySums = BTreeMap<[i64; 4], Sums>;

fn assert_sums(found: &[PairSum], expected: &BySums) {
    assert!(!expected.is_empty());
    assert_eq!(found.len(), expected.len());
    for row in found {
        let key = [row.image, row.build_old, row.build_new, row.procedure];
        let of = expected.get(&key).unwrap_or_else(|| panic!("{row:?}"));
        let counts = [row.hosts, row.samples_old, row.samples_new].map(|of| of as u64);
        assert_eq!(counts, [of.hosts, of.samples_old, of.samples_new], "{row:?}");
        // For differences, the scale is that of their terms.
        assert!(near(row.w_old, of.w_old, 0.0), "{row:?} {of:?}");
        assert!(near(row.wd, of.wd, of.w_old), "{row:?} {of:?}");
        let w = (of.samples_old + of.samples_new) as f64;
        assert!(near(row.w2d, of.w2d, of.w_old * w), "{row:?} {of:?}");
        assert!(near(row.w2d2, of.w2d2, 0.0), "{row:?} {of:?}");
    }
}

/// Sums of pairs that were added host by host.
fn sums_of(paired: Paired, builds: [i64; 2]) -> BySums {
    let (group, keys) = paired.group();
    let key = |(image, procedure): (i64, i64)| [image, builds[0], builds[1], procedure];
    keys.into_iter().map(key).zip(group.rows).collect()
}

#[test]
fn sql_adds_up_as_a_loop_over_hosts_does() {
    run(async || {
        let of = Simulated::new().await;
        let closed = close(&of.store, week(1), &Closing::default()).await.unwrap();
        assert!(closed.facts > 5000, "{closed:?}");
        let engine = Engine::local(&of.store, 1 << 28).unwrap();
        let pairs: Vec<Pair> = of.rows(1).await;
        let mut compared = 0;
        for service in of.fleet.services() {
            let service = service.service;
            rollups(&of, &engine, service).await;
            let mut paired = Paired::default();
            for [before, now] in &of.hosts {
                paired.add(&by_week(before, service), &by_week(now, service));
            }
            let found = of.ask::<PairSum>(&engine, "movers", service).await;
            assert_sums(&found, &sums_of(paired, [0, 0]));
            let mut expected = BySums::new();
            let of_service = pairs.iter().filter(|of| of.service == service && of.image != 0);
            let builds: BTreeSet<[i64; 3]> =
                of_service.map(|of| [of.image, of.build_old, of.build_new]).collect();
            for [image, old, new] in builds {
                let mut paired = Paired::default();
                for [_, now] in &of.hosts {
                    let sides = by_build(now, service, image);
                    if let (Some(old), Some(new)) = (sides.get(&old), sides.get(&new)) {
                        paired.add(old, new);
                    }
                }
                expected.extend(sums_of(paired, [old, new]));
            }
            let found = of.ask::<PairSum>(&engine, "builds", service).await;
            if expected.is_empty() {
                assert!(found.is_empty());
            } else {
                compared += 1;
                assert_sums(&found, &expected);
            }
        }
        assert!(compared >= 2, "{compared} services have new builds");
    });
}

/// Samples, core-seconds and hosts by build, procedure and machine.
async fn rollups(of: &Simulated, engine: &Engine, service: i64) {
    type Sum = (i64, f64, BTreeSet<i64>);
    let mut expected: [BTreeMap<(i64, i64, i64, String), Sum>; 2] = Default::default();
    for [_, now] in &of.hosts {
        let machine = now.epochs.first().map(|epoch| epoch.machine.clone()).unwrap_or_default();
        for fact in now.facts.iter().filter(|fact| fact.service == service) {
            for (builds, build) in expected.iter_mut().zip([fact.build, 0]) {
                let key = (fact.image, build, fact.procedure, machine.clone());
                let sum = builds.entry(key).or_default();
                sum.0 += fact.samples;
                sum.1 += fact.samples as f64 * fact.weight / 1e9;
                sum.2.insert(fact.host);
            }
        }
    }
    for (name, expected) in ["rollups", "heads"].into_iter().zip(expected) {
        let found = of.ask::<Rollup>(engine, name, service).await;
        assert_eq!(found.len(), expected.len(), "{name}");
        for row in found {
            let key = (row.image, row.build, row.procedure, row.machine.clone());
            let (samples, core_s, hosts) = &expected[&key];
            assert_eq!((row.samples, row.hosts), (*samples, hosts.len() as i64), "{name} {row:?}");
            assert!(near(row.core_s, *core_s, 0.0), "{name} {row:?} {core_s}");
        }
    }
}

#[test]
fn the_account_over_all_hosts_closes() {
    run(async || {
        let of = Simulated::new().await;
        close(&of.store, week(1), &Closing::default()).await.unwrap();
        let found: Vec<HostWeek> = of.rows(1).await;
        let heard = of.hosts.iter().filter(|[_, now]| !now.epochs.is_empty());
        assert!(heard.clone().count() < of.hosts.len(), "some are silent");
        assert_eq!(found.len(), heard.clone().count());
        let by_name: HashMap<&str, &HostWeek> =
            found.iter().map(|host| (host.name.as_str(), host)).collect();
        for [_, now] in heard {
            let host = by_name[now.epochs[0].name.as_str()];
            let sum = |of: fn(&tables::EpochRow) -> i64| now.epochs.iter().map(of).sum::<i64>();
            assert_eq!(host.epochs, now.epochs.len() as i64);
            // Simulated epochs do not overlap.
            assert_eq!(host.covered_s, sum(|epoch| epoch.end_s - epoch.begin_s));
            assert_eq!(host.taken, sum(|epoch| epoch.taken));
            assert_eq!(host.facts, now.facts.iter().map(|fact| fact.samples).sum::<i64>());
            assert_eq!(host.facts, now.loads.iter().map(|load| load.samples).sum::<i64>());
            let missed = |fate: &str| -> i64 {
                now.missed.iter().filter(|of| of.fate == fate).map(|of| of.samples).sum()
            };
            assert_eq!((host.unresolved, host.lost), (missed("unresolved"), missed("lost")));
            assert_eq!(host.taken, host.facts + host.idle + host.unresolved + host.lost);
            let core_s: f64 =
                now.facts.iter().map(|fact| fact.samples as f64 * fact.weight / 1e9).sum();
            assert!(near(host.core_s, core_s, 0.0));
        }
    });
}

#[test]
fn compacting_leaves_all_sums_alone() {
    run(async || {
        let of = Simulated::new().await;
        let facts = async || {
            let mut sums: BTreeMap<[i64; 5], (i64, f64)> = BTreeMap::new();
            for fact in of.rows::<Fact>(1).await {
                let Fact { service, image, build, procedure, host, samples, weight } = fact;
                let sum = sums.entry([service, image, build, procedure, host]).or_default();
                sum.0 += samples;
                sum.1 += samples as f64 * weight;
            }
            sums
        };
        let (before, manifest) = (facts().await, of.manifest(1).await);
        compact(&of.store, week(1), &Closing::default()).await.unwrap();
        let (after, compacted) = (facts().await, of.manifest(1).await);
        assert_eq!(compacted.epochs, manifest.epochs);
        assert!(compacted.files.len() < manifest.files.len());
        let services: BTreeSet<Option<i64>> =
            compacted.files_of("facts", TIME).map(|file| file.service).collect();
        assert_eq!(services.len(), compacted.files_of("facts", TIME).count());
        assert!(before.keys().eq(after.keys()));
        for ((key, (samples, events)), (others, other)) in before.iter().zip(after.values()) {
            assert_eq!(samples, others, "{key:?}");
            assert!(near(*events, *other, 0.0), "{key:?}");
        }
        let entries = |of: &Manifest| of.files_of("facts", TIME).map(|of| of.samples).sum::<u64>();
        assert_eq!(entries(&manifest), entries(&compacted));
    });
}

/// Runs on threads whose stacks hold plans of questions that were not optimised, as the program.
fn run<W: Future<Output = ()>>(work: impl FnOnce() -> W + Send + 'static) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .thread_stack_size(16 << 20)
        .build()
        .unwrap();
    let thread = std::thread::Builder::new().stack_size(64 << 20);
    thread.spawn(move || runtime.block_on(work())).unwrap().join().unwrap();
}
