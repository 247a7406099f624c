//! `examples/truth.rs` in small: what it says of twenty fleets and more must not get worse unseen.

use sim::experiment::{Marks, Sides, Way, plants, table};
use sim::{Config, Fleet};

const FLEETS: u64 = 6;

#[test]
fn builds_tell_three_percent_of_a_procedure_and_pooled_samples_tell_anything() {
    let (mut review, mut pooled) = (Marks::default(), Marks::default());
    for seed in 1..=FLEETS {
        let mut config = Config::service(300, seed);
        config.plants = plants(1, 0.03, 0..30, seed);
        let table = table(&Fleet::new(config), 1, Sides::Builds);
        review += table.marks(Way::Review);
        pooled += table.marks(Way::Pooled);
    }
    assert!(review.found() >= 0.8 && review.wrong <= 1, "{review:?}");
    assert!(pooled.wrong > 50 * pooled.real, "{pooled:?}");
}

#[test]
fn weeks_without_a_change_are_quiet() {
    let mut config = Config::service(100, 5);
    config.noise.week = 0.01;
    let fleet = Fleet::new(config);
    for (sides, alarms_most) in [(Sides::Builds, 1), (Sides::Weeks, 1)] {
        let mut marks = Marks::default();
        (1..=15).for_each(|week| marks += table(&fleet, week, sides).marks(Way::Review));
        assert!(marks.alarms <= alarms_most, "{sides:?}: {marks:?}");
        assert_eq!(marks.wrong, marks.marked);
    }
}
