//! Tables of sets that were drawn from known programs: what is marked, how often, and whether
//! intervals hold the truth. The same each time.

use super::*;
use crate::chance::Chance;

fn at(percent: f64) -> Confidence {
    Confidence::from_percent(percent).unwrap()
}

/// A program's procedures as profiles have them: few large ones and a long tail.
fn procedures(count: usize, samples: f64) -> Vec<f64> {
    let sizes: Vec<f64> = (1..=count).map(|rank| 1.0 / rank as f64).collect();
    let sum: f64 = sizes.iter().sum();
    sizes.into_iter().map(|size| size / sum * samples).collect()
}

/// Draws sets of epochs of these means, and makes a table of them. Each epoch's procedures differ
/// from their means by `spread`, a fraction.
fn table(
    measure: Measure,
    sets: [&[f64]; 2],
    epochs: usize,
    spread: f64,
    chance: &mut Chance,
) -> Vec<Compared> {
    let drawn = sets.map(|means| {
        let epoch = |_| {
            let one = |mean: &f64| {
                let mean = mean / epochs as f64 * (spread * chance.normal()).exp();
                chance.samples(mean)
            };
            means.iter().map(one).collect::<Vec<f64>>()
        };
        (0..epochs).map(epoch).collect::<Vec<_>>()
    });
    let part = |epoch: &Vec<f64>, row: usize| Counted {
        samples: epoch[row],
        of: if measure == Measure::Share { epoch.iter().sum() } else { 1.0 },
    };
    let row = |row: usize| {
        let parts = [&drawn[0], &drawn[1]]
            .map(|set| set.iter().map(|epoch| part(epoch, row)).collect::<Vec<_>>());
        Compared { a: common(&parts[0]), b: common(&parts[1]), parts }
    };
    let enough = |row: &Compared| row.a.samples + row.b.samples >= 10.0;
    (0..sets[0].len()).map(row).filter(enough).collect()
}

/// In how many of so many tables of unchanged programs something is marked.
fn false_tables(
    measure: Measure,
    means: &[f64],
    epochs: usize,
    spread: f64,
    tables: usize,
) -> usize {
    let mut chance = Chance::seeded(7);
    let marked = |_: &usize| {
        let rows = table(measure, [means, means], epochs, spread, &mut chance);
        changes(measure, &rows, at(95.0)).1.iter().any(|row| row.significant)
    };
    (0..tables).filter(marked).count()
}

#[test]
fn two_sets_of_the_same_are_left_alone() {
    for measure in [Measure::Share, Measure::Amount] {
        for (count, samples) in [(3, 40_000.0), (30, 5000.0), (300, 100_000.0)] {
            let means = procedures(count, samples);
            // 5 % of 200 are 10, give or take 3.1.
            for epochs in [1, 4] {
                let marked = false_tables(measure, &means, epochs, 0.0, 200);
                assert!(
                    marked <= 18,
                    "{measure:?}, {count} procedures in {epochs} epochs: {marked} of 200"
                );
            }
        }
    }
}

/// Programs do not do the same in each run: with several epochs this is seen, and allowed for.
#[test]
fn sets_that_vary_by_themselves_are_left_alone() {
    for measure in [Measure::Share, Measure::Amount] {
        let means = procedures(100, 200_000.0);
        for epochs in [2, 4] {
            let several = false_tables(measure, &means, epochs, 0.05, 200);
            // From two epochs each a row's own spread is hardly known.
            let most = if epochs == 2 { 26 } else { 18 };
            assert!(several <= most, "{measure:?}, {epochs} epochs: {several} of 200");
        }
        // With one epoch nothing but sampling is known, and that is not enough: so the report says.
        // Of amounts, the large rows tell the spread of all.
        let one = false_tables(measure, &means, 1, 0.05, 200);
        let expected = if measure == Measure::Share { 101..=200 } else { 10..=60 };
        assert!(expected.contains(&one), "{measure:?}: {one} of 200");
    }
}

/// Of 40,000 samples one procedure has 10,000, and needs 5 % more. By sampling, the two differ by
/// 143 give or take, and by 500 because they do.
#[test]
fn five_percent_of_ten_thousand_samples_are_found() {
    let mut before = procedures(100, 30_000.0);
    before.push(10_000.0);
    let mut after = before.clone();
    after[100] *= 1.05;
    for (measure, epochs, least) in
        [(Measure::Amount, 1, 65), (Measure::Amount, 5, 55), (Measure::Share, 1, 50)]
    {
        let mut chance = Chance::seeded(11);
        let (mut found, mut others) = (0, 0);
        for _ in 0..100 {
            let rows = table(measure, [&before, &after], epochs, 0.0, &mut chance);
            let judged = changes(measure, &rows, at(95.0)).1;
            let (last, rest) = judged.split_last().unwrap();
            found += usize::from(last.significant);
            others += usize::from(rest.iter().any(|row| row.significant));
        }
        assert!(found >= least, "{measure:?}, {epochs} epochs: found in {found} of 100");
        assert!(others <= 10, "{measure:?}: {others} of 100");
    }
    // Four times the samples: always.
    let (before, after): (Vec<f64>, Vec<f64>) =
        (before.iter().map(|n| 4.0 * n).collect(), after.iter().map(|n| 4.0 * n).collect());
    let mut chance = Chance::seeded(13);
    for _ in 0..20 {
        let rows = table(Measure::Share, [&before, &after], 1, 0.0, &mut chance);
        let judged = changes(Measure::Share, &rows, at(95.0)).1;
        assert!(judged.last().unwrap().significant);
    }
}

#[test]
fn intervals_hold_the_true_change() {
    let mut chance = Chance::seeded(17);
    for (measure, a, b) in [
        (Measure::Share, 4.0, 9.0),
        (Measure::Share, 500.0, 500.0),
        (Measure::Amount, 3.0, 0.5),
        (Measure::Amount, 90.0, 150.0),
        // By the second, of an hour and of a minute.
        (Measure::Rate, 0.1, 0.1),
        (Measure::Rate, 2.0, 3.0),
    ] {
        let mut held = 0;
        for _ in 0..2000 {
            let mut seconds = [3600.0, 60.0].into_iter();
            let mut counted = |mean: f64, chance: &mut Chance| match measure {
                Measure::Amount => Counted { samples: chance.samples(mean), of: 1.0 },
                Measure::Rate => {
                    let of = seconds.next().unwrap();
                    Counted { samples: chance.samples(mean * of), of }
                }
                Measure::Share => {
                    let (samples, others) = (chance.samples(mean), chance.samples(1000.0 - mean));
                    Counted { samples, of: samples + others }
                }
            };
            let (before, after) = (counted(a, &mut chance), counted(b, &mut chance));
            let change = change(measure, before, after, Spread::default(), at(95.0));
            let truth = if measure == Measure::Share { (b - a) / 1000.0 } else { b - a };
            assert!(change.low <= change.value && change.value <= change.high, "{change:?}");
            held += usize::from((change.low..=change.high).contains(&truth));
        }
        assert!((1870..=1995).contains(&held), "{measure:?} {a} {b}: {held} of 2000");
    }
}

#[test]
fn few_samples_are_tested_exactly() {
    let p = |a: f64, b: f64| {
        let counted = |samples| Counted { samples, of: 1e6 };
        change(Measure::Share, counted(a), counted(b), Spread::default(), at(95.0)).p
    };
    // All twelve on one side: 2 of 4096 ways.
    assert!((p(12.0, 0.0) - 2.0 / 4096.0).abs() < 1e-4, "{}", p(12.0, 0.0));
    assert_eq!(p(0.0, 0.0), 1.0);
    assert_eq!(p(6.0, 6.0), 1.0);
    assert!(p(1e5, 1.1e5) < 1e-30);
    // One of the sets is a tenth of the other: 5 of 12 in it is not so rare as its deviation says.
    let small = change(
        Measure::Amount,
        Counted { samples: 5.0, of: 1.0 },
        Counted { samples: 7.0, of: 9.0 },
        Spread::default(),
        at(95.0),
    );
    assert!((small.p - 2.0 * 0.004_329).abs() < 1e-4, "{small:?}");
}

#[test]
fn nothing_is_known_of_no_samples() {
    let some = Counted { samples: 10.0, of: 100.0 };
    for (a, b) in [
        (some, Counted::default()),
        (Counted::default(), some),
        (Counted::default(), Counted::default()),
    ] {
        let change = change(Measure::Share, a, b, Spread::default(), at(95.0));
        assert_eq!((change.low, change.high, change.p), (-1.0, 1.0, 1.0));
    }
    assert_eq!(dispersion(Measure::Share, &[vec![some], vec![Counted::default(), some]]), None);
    assert_eq!(same(Measure::Share, &[Counted::default(), some], Spread::default()), 1.0);
    assert_eq!(deviation_by_sampling(Measure::Share, &[]), 0.0);
    assert!(changes(Measure::Share, &[], at(95.0)).1.is_empty());
}

#[test]
fn the_spread_is_the_rows_own_or_the_typical_one() {
    let of = |samples: f64| Counted { samples, of: 1.0 };
    // 100 give or take 10 by sampling: these are 100 give or take 30, from two sets of two and
    // three.
    let parts = [vec![of(70.0), of(130.0)], vec![of(100.0), of(70.0), of(130.0)]];
    let own = dispersion(Measure::Amount, &parts).unwrap();
    assert!((own.factor - 12.0).abs() < 1e-9 && own.df == 3.0, "{own:?}");
    assert_eq!(spread(None, 0.5), Spread::default());
    assert_eq!(spread(Some(Spread { factor: 1.5, df: 3.0 }), 2.0).factor, 2.0);
    let larger = spread(Some(own), 2.0);
    assert!((larger.df - 3.0 * 1.44).abs() < 1e-9 && larger.factor == own.factor, "{larger:?}");
    // Less sure: the interval is wider, and the change less remarkable.
    let sure = change(Measure::Amount, of(100.0), of(200.0), Spread::default(), at(95.0));
    let unsure = change(Measure::Amount, of(100.0), of(200.0), larger, at(95.0));
    assert!(
        unsure.low < sure.low && unsure.high > sure.high && unsure.p > sure.p,
        "{sure:?} {unsure:?}"
    );
}
