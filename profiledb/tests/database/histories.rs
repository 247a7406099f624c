//! Random histories, against a map in memory that does the same.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::simulated::SimulatedDisk;
use image::ImageOffset;
use model::{BranchRounds, EDGES, Edges, FIRST_EDGES, Profile, ROUNDS, Values};
use profiledb::storage::{Directory, Storage};
use profiledb::{Database, ProfileKey, Symbol, Writer};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::fixture::{
    EVENTS, HOST, NOW, add, delta, image, profile, read_database, root, start, symbol,
};

/// Image, index of the event, offset, count, whose: nobody's, or of a label.
type Sample = (u8, usize, u64, u64, u8);

/// What happens to a database.
#[derive(Clone, Debug)]
enum Step {
    Merge(Vec<Sample>, Option<(u8, u64)>),
    /// The daemon ends and starts again.
    Restart,
    /// A reboot between the two.
    Reboot,
    NextEpoch,
    Seal,
    /// This many calls of fold with that budget.
    Fold(u8, u64),
}

fn step() -> impl Strategy<Value = Step> {
    let sample = (0_u8..4, 0_usize..2, 0_u64..12, 0_u64..1000, 0_u8..4);
    prop_oneof![
        6 => (vec(sample, 0..12), prop::option::of((0_u8..4, 0_u64..9)))
            .prop_map(|(samples, symbol)| Step::Merge(samples, symbol)),
        2 => Just(Step::Restart),
        1 => Just(Step::Reboot),
        1 => Just(Step::NextEpoch),
        1 => Just(Step::Seal),
        4 => (1_u8..6, 1_u64..400).prop_map(|(calls, budget)| Step::Fold(calls, budget)),
    ]
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Model {
    counts: BTreeMap<(ProfileKey, u64), u64>,
    symbols: BTreeMap<(image::ImageId, u64), Symbol>,
    sealed: bool,
    merges: u64,
    edges: u64,
}

/// What the database should hold after these steps, epoch by epoch; and the database.
fn run(storage: &Arc<dyn Storage>, root: &std::path::Path, steps: &[Step]) -> Vec<Model> {
    let open = || Writer::open_on(storage.clone(), root, HOST).unwrap();
    let mut boot = 1;
    let mut now = NOW;
    let mut models = vec![Model::default()];
    let mut writer = open();
    writer.begin(start(now), false).unwrap();
    for step in steps {
        now += 10;
        let mut start = start(now);
        start.machine.boot_id = format!("boot-{boot}");
        if writer.epoch().is_none() && !matches!(step, Step::Fold(..)) {
            writer.begin(start.clone(), false).unwrap();
            models.push(Model::default());
        }
        let model = models.last_mut().unwrap();
        match step {
            Step::Merge(samples, symbol) => merge(&mut writer, model, now, samples, *symbol),
            Step::Restart => {
                drop(writer);
                writer = open();
                writer.begin(start, false).unwrap();
            }
            Step::Reboot => {
                boot += 1;
                start.machine.boot_id = format!("boot-{boot}");
                drop(writer);
                writer = open();
                writer.begin(start, false).unwrap();
                model.sealed = true;
                models.push(Model::default());
            }
            Step::NextEpoch => {
                writer.next_epoch(start).unwrap();
                model.sealed = true;
                models.push(Model::default());
            }
            Step::Fold(calls, budget) => {
                for _ in 0..*calls {
                    writer.fold(*budget, now).unwrap();
                }
            }
            Step::Seal => {
                writer.seal(now).unwrap();
                model.sealed = true;
            }
        }
    }
    models
}

fn merge(
    writer: &mut Writer,
    model: &mut Model,
    now: u64,
    samples: &[Sample],
    named: Option<(u8, u64)>,
) {
    let unscoped: Vec<(u8, &str, u64, u64)> = samples
        .iter()
        .map(|(image, event, offset, count, _)| (*image, EVENTS[*event], *offset, *count))
        .collect();
    let mut delta = delta(now, &unscoped);
    delta.profiles.clear();
    for (number, event, offset, count, whose) in samples {
        let label = (*whose > 0).then(|| format!("run {whose}"));
        let key = crate::fixture::scoped(*number, EVENTS[*event], label.as_deref());
        add(&mut delta, key.clone(), Profile::from_counts([(ImageOffset(*offset), *count)]));
        if *count > 0 {
            *model.counts.entry((key, *offset)).or_default() += count;
        }
    }
    if let Some((number, offset)) = named {
        let symbol = symbol(offset, offset + now % 100, &format!("at {now}"));
        delta.symbols.insert(image(number), vec![symbol.clone()]);
        let met = crate::fixture::record(number, now);
        delta.images.insert(met.id, met);
        model.symbols.insert((image(number), offset), symbol);
    }
    for (number, _, offset, count, _) in samples {
        let edges = Edges::from_counts([((ImageOffset(*offset), ImageOffset(offset / 2)), *count)]);
        add(&mut delta, ProfileKey::of(image(*number), &EDGES), edges.clone());
        add(&mut delta, ProfileKey::of(image(*number), &FIRST_EDGES), edges);
        let turns = BranchRounds {
            branch: ImageOffset(*offset),
            jumps: offset % 2 == 0,
            rounds: offset + 1,
        };
        let value = turns.value().unwrap();
        add(
            &mut delta,
            ProfileKey::of(image(*number), &ROUNDS),
            Values::from_counts([(value, *count)]),
        );
        model.edges += count;
    }
    writer.merge(&delta).unwrap();
    model.merges += 1;
}

fn compare(storage: &Arc<dyn Storage>, root: &std::path::Path, models: &[Model]) {
    let database = Database::open_on(storage.clone(), root).unwrap();
    let read = read_database(&database).unwrap();
    assert_eq!(read.len(), models.len());
    for (state, model) in read.values().zip(models) {
        let (mut expected, mut found) = (BTreeMap::<ProfileKey, Profile>::new(), BTreeMap::new());
        for ((key, offset), count) in &model.counts {
            let profile = expected.entry(key.clone()).or_default();
            profile.add(ImageOffset(*offset), *count);
        }
        let mut observed: BTreeMap<&str, u64> = BTreeMap::new();
        for (key, counts) in &state.profiles {
            match key.measure.period() {
                Some(_) => drop(found.insert(key.clone(), profile(counts))),
                None => *observed.entry(key.name()).or_default() += counts.total(),
            }
        }
        assert_eq!(found, expected);
        let symbols: Vec<&Symbol> = state.symbols.values().flatten().collect();
        assert_eq!(symbols, model.symbols.values().collect::<Vec<_>>());
        assert_eq!(state.meta.ended_unix_s.is_some(), model.sealed);
        assert_eq!(state.meta.merges, model.merges + u64::from(model.sealed));
        let all = if model.edges > 0 { vec![model.edges; 3] } else { Vec::new() };
        assert_eq!(observed.into_values().collect::<Vec<_>>(), all);
        for key in expected.keys() {
            assert!(state.images.contains_key(&key.image));
        }
    }
}

proptest! {
    #[test]
    fn random_histories_read_back(steps in vec(step(), 0..25)) {
        let storage: Arc<dyn Storage> = Arc::new(SimulatedDisk::new());
        let models = run(&storage, &root(), &steps);
        compare(&storage, &root(), &models);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]
    #[test]
    fn random_histories_read_back_from_a_real_disk(steps in vec(step(), 0..12)) {
        let dir = tempfile::tempdir().unwrap();
        let storage: Arc<dyn Storage> = Arc::new(Directory);
        let models = run(&storage, dir.path(), &steps);
        compare(&storage, dir.path(), &models);
    }
}
