//! A measure that nobody in the house knows is written, folded, merged, copied and read as any
//! other.

use image::ImageOffset;
use model::{Counts, Edges, Facts, Measure, Profile, Shape, Values, Weight};
use profiledb::{Database, DbError, ProfileKey, copy_epoch, merge_epochs, seal};

use crate::fixture::{
    EVENTS, HOST, NOW, add, delta, image, problems, read, read_only_epoch, root, start, storage,
    writer,
};
use crate::simulated::SimulatedDisk;

/// Page faults by the place of the instruction that took them: one constant is all of it.
static PAGE_FAULTS: Measure = Measure::observed("page_faults", Shape::Places);
static CALLS: Measure = Measure::observed("calls", Shape::Pairs);
static ALLOCATED: Measure = Measure::observed("allocated", Shape::Values);

fn observed(times: u64) -> [(&'static Measure, Counts); 3] {
    let at = ImageOffset;
    [
        (&PAGE_FAULTS, Profile::from_counts([(at(0x10), times), (at(0x2000), 1)]).into()),
        (&CALLS, Edges::from_counts([((at(0x10), at(0x40)), times)]).into()),
        (&ALLOCATED, Values::from_counts([((at(0x10), 4096), times), ((at(0x10), -1), 2)]).into()),
    ]
}

#[test]
fn a_new_measure_of_each_shape_goes_all_the_way() {
    let disk = SimulatedDisk::new();
    let mut daemon = writer(&disk);
    daemon.begin(start(NOW), false).unwrap();
    let key = |measure| ProfileKey::of(image(0), measure);
    for merge in 1..=6 {
        let mut delta = delta(NOW + merge, &[(0, EVENTS[0], 0x10, 3)]);
        observed(merge)
            .into_iter()
            .for_each(|(measure, counts)| add(&mut delta, key(measure), counts));
        daemon.merge(&delta).unwrap();
    }
    let expected = |state: &crate::fixture::EpochState, times: u64, merges: u64| {
        assert_eq!(state.observed::<Profile>(&PAGE_FAULTS, image(0)).get(ImageOffset(0x10)), times);
        assert_eq!(
            state.observed::<Profile>(&PAGE_FAULTS, image(0)).get(ImageOffset(0x2000)),
            merges
        );
        assert_eq!(state.observed::<Edges>(&CALLS, image(0)).total(), times);
        assert_eq!(
            state.observed::<Values>(&ALLOCATED, image(0)).get((ImageOffset(0x10), -1)),
            2 * merges
        );
    };
    expected(&read_only_epoch(&disk), 21, 6);
    drop(daemon);
    let database = Database::open_on(storage(&disk), &root()).unwrap();
    seal(&database, HOST).unwrap();
    expected(&read_only_epoch(&disk), 21, 6);
    assert_eq!(problems(&disk), Vec::<String>::new());
    // Reports of samples do not take it for an event.
    let epoch = database.epoch(HOST, &database.epochs(HOST).unwrap()[0]).unwrap();
    assert!(
        epoch
            .profiles()
            .unwrap()
            .iter()
            .all(|key| key.measure.weight == Weight::Period(key.period()))
    );
    let other = SimulatedDisk::new();
    drop(writer(&other));
    let target = Database::open_on(storage(&other), &root()).unwrap();
    copy_epoch(&epoch, &target).unwrap();
    merge_epochs(&[epoch.clone(), epoch], &target, "sum", None, &Facts::default()).unwrap();
    let all = read(&other).unwrap();
    all.iter().for_each(|((host, _), state)| {
        if host == "sum" { expected(state, 42, 12) } else { expected(state, 21, 6) }
    });
    assert_eq!((all.len(), problems(&other)), (2, Vec::<String>::new()));
}

#[test]
fn a_measure_with_an_events_name_or_counts_of_another_shape_are_refused() {
    let disk = SimulatedDisk::new();
    let mut daemon = writer(&disk);
    daemon.begin(start(NOW), false).unwrap();
    for (measure, counts) in [
        (Measure::observed(EVENTS[0], Shape::Places), Counts::none(Shape::Places)),
        (Measure::observed("calls", Shape::Pairs), Counts::none(Shape::Values)),
        (Measure::samples("nobody's", 7), Counts::none(Shape::Places)),
        (Measure::observed("", Shape::Pairs), Counts::none(Shape::Pairs)),
    ] {
        let mut delta = delta(NOW + 1, &[(0, EVENTS[0], 0x10, 3)]);
        delta.profiles.insert(ProfileKey::of(image(0), &measure), counts);
        let error = daemon.merge(&delta).unwrap_err();
        assert!(
            matches!(error, DbError::UnknownEvent { .. } | DbError::InvalidName { .. }),
            "{error}"
        );
    }
}
