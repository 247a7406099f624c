//! What samples stand for, and whose those of unknown code are.

use image::{ImageId, ImageKind};
use profiledb::EventMeta;

use super::database::{Db, Epoch, START, clock, cycles, kernel, named};
use super::runs::{json, refused, shown};

const CLOCK: &str = "cpu-clock";

fn one(epoch: Epoch) -> Db {
    let db = Db::new();
    db.epoch("node-7", epoch);
    db
}

fn every(period: u64) -> EventMeta {
    EventMeta { period, ..cycles() }
}

/// `whatcg` told of 1,366 of 1,223 samples: those of procedures were weighed, all others were not.
#[test]
fn findings_are_shares_of_time_where_the_period_changed() {
    let other = || named(ImageId::from_name("other", ""), ImageKind::Vdso, "other", "/other");
    let both = |epoch: Epoch, samples: [u64; 2]| {
        let epoch = epoch.symbols(&kernel(), &[(0x1000, 0x2000, "clear_page_erms")]);
        let epoch = epoch.samples("cycles", &kernel(), &[(0x1000, samples[0])]);
        epoch.samples("cycles", &other(), &[(0, samples[1])])
    };
    let first = both(Epoch::new(START, vec![every(1000)]), [3000, 1000]);
    let db = one(both(first.at_period("cycles", 4000), [500, 500]));
    let report = json(&db, "why");
    let found = &report["findings"][0];
    assert_eq!(found["mechanism"], "page_fault", "{report}");
    let share = |key: &str| found["share"][key].as_f64().unwrap();
    // (3000 * 1000 + 500 * 4000) of 8,000,000, and not 3500 of 5000 samples.
    assert!((share("value") - 0.625).abs() < 1e-6, "{found}");
    // As sure as Kish's effective 3200 samples.
    assert!((0.60..0.612).contains(&share("low")), "{found}");
    assert!((0.638..0.65).contains(&share("high")), "{found}");
    let table = json(&db, "whatcg");
    assert_eq!(table["samples"], 5000, "{table}");
}

/// `prof --epoch all` said 10.85 % (10.73 to 10.96) where weighting by period gives 7.1 %: samples
/// of all rates were added up as if they stood for as much.
#[test]
fn samples_of_different_periods_weigh_what_they_stand_for() {
    let other = || named(ImageId::from_name("other", ""), ImageKind::Vdso, "other", "/other");
    let both = |epoch: Epoch, samples: [u64; 2]| {
        let epoch = epoch.symbols(&kernel(), &[(0x1000, 0x2000, "work")]);
        epoch.samples("cycles", &kernel(), &[(0x1000, samples[0])]).samples(
            "cycles",
            &other(),
            &[(0, samples[1])],
        )
    };
    let (apart, inside) = (Db::new(), Db::new());
    apart.epoch("a", both(Epoch::new(START, vec![every(1000)]), [300, 100]));
    apart.epoch("a", both(Epoch::new(START + 5000, vec![every(4000)]), [50, 50]));
    // The same in one epoch, whose rate changed.
    inside.epoch(
        "a",
        both(
            both(Epoch::new(START, vec![every(1000)]), [300, 100]).at_period("cycles", 4000),
            [50, 50],
        ),
    );
    for db in [apart, inside] {
        let report = json(&db, "prof --epoch all");
        // The mean that makes samples times period right: (400 * 1000 + 100 * 4000) / 500.
        assert_eq!(report["events"][0]["period"], 1600);
        let row = &report["rows"][1];
        assert_eq!((&row["image"], &row["counts"]["cycles"]), (&"other".into(), &150.into()));
        let share = |key: &str| row["share"]["cycles"][key].as_f64().unwrap();
        // (100 * 1000 + 50 * 4000) of 800,000, and not 150 of 500 samples.
        assert!((share("value") - 0.375).abs() < 1e-8);
        // Kish's effective size of all samples: 800,000^2 / (400 * 1000^2 + 100 * 4000^2) = 320;
        // Wilson's of .375 of 320 is .324 to .429. The row's own samples weigh more, so its
        // interval is wider.
        assert!(
            share("low") < 0.324
                && share("low") > 0.30
                && share("high") > 0.429
                && share("high") < 0.46,
            "{row}"
        );
        let text = shown(&db, "prof --epoch all");
        assert!(
            text.contains(
                "note: samples have 2 periods, from 1000 to 4000 cycles: shares and times weigh"
            ),
            "{text}"
        );
        // Rows are ranked by what they stand for, in every command.
        let listed = json(&db, "images --epoch all");
        assert_eq!(listed["rows"][1]["counts"]["cycles"], 150);
        let instructions = json(&db, "topcounts --epoch all");
        assert!(
            (instructions["rows"][1]["share"]["cycles"]["value"].as_f64().unwrap() - 0.375).abs()
                < 1e-8
        );
    }
}

/// Sixteen rates of the budget's ladder (daemon/pipeline/src/governor.rs), samples per second and
/// CPU.
const RATES: [u64; 16] =
    [5200, 3700, 2600, 1850, 1300, 920, 650, 460, 325, 230, 160, 115, 80, 57, 40, 28];

/// The budget changed the rate four times in four minutes, and each step weighed by itself. A day
/// with fifty changes of the rate, with procedures that are busy at other times of the day: in 95
/// of 100 such days the true shares are within their intervals.
#[test]
fn shares_of_days_with_fifty_rates_are_within_their_intervals() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let (mut days_right, mut right, mut all) = (0, 0, 0);
    for _ in 0..100 {
        let mut epoch = Epoch::new(START, vec![clock()]);
        let mut truth = [0.0_f64; 3];
        let mut step = 8;
        for _ in 0..50 {
            step = (step + random.below(5) as usize).saturating_sub(2).min(RATES.len() - 1);
            let (rate, seconds) = (RATES[step], 2 + random.below(20));
            // What runs goes with the rate: the dearer a sample, the more of the first.
            let first = 0.05 + 0.5 * step as f64 / RATES.len() as f64;
            let second = (1.0 - first) * random.below(100) as f64 / 100.0;
            let shares = [first, second, 1.0 - first - second];
            let mut counts = [0_u64; 3];
            for _ in 0..rate * seconds / 10 {
                let at = random.below(1_000_000) as f64 / 1e6;
                counts[if at < first {
                    0
                } else if at < first + second {
                    1
                } else {
                    2
                }] += 1;
            }
            truth.iter_mut().zip(shares).for_each(|(sum, share)| *sum += share * seconds as f64);
            epoch = epoch.at_period(CLOCK, 10_000_000_000 / rate);
            for (at, count) in counts.into_iter().enumerate().filter(|(_, count)| *count > 0) {
                epoch = epoch.samples(CLOCK, &kernel_part(at), &[(0, count)]);
            }
        }
        let db = one(epoch);
        let report = json(&db, "prof -i");
        assert_eq!(report["epochs"].as_array().unwrap().len(), 1);
        let time: f64 = truth.iter().sum();
        let mut day_right = false;
        for (at, truth) in truth.iter().enumerate() {
            let name = format!("part{at}");
            let row = report["rows"]
                .as_array()
                .unwrap()
                .iter()
                .find(|row| row["image"] == name.as_str())
                .unwrap();
            let end = |key: &str| row["share"][CLOCK][key].as_f64().unwrap();
            let inside = end("low") <= truth / time && truth / time <= end("high");
            right += u32::from(inside);
            all += 1;
            if at == 0 {
                day_right = inside;
            }
        }
        days_right += u32::from(day_right);
    }
    // Of 300 shares, 285 +- 4 at 95 %; the first procedure's of 100 days, 95 +- 2.
    assert!(
        days_right >= 91 && right * 100 >= all * 92,
        "{days_right} of 100 days, {right} of {all} shares"
    );
    println!("{days_right} of 100 days, {right} of {all} shares");
}

fn kernel_part(at: usize) -> profiledb::ImageRecord {
    let name = format!("part{at}");
    named(ImageId::from_name(&name, ""), ImageKind::Vdso, &name, &name)
}

/// xorshift64 (Marsaglia 2003): the same numbers each time.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }
}

/// `dcpi record -- node hot.js` reported 1,171 samples of 22,816: those of code made at run time
/// had lost the label.
#[test]
fn a_labels_report_has_its_samples_of_unknown_code_by_program_and_reason() {
    let unknown = |program: &str| {
        let id = ImageId::unresolved(program, "jit_without_map");
        named(id, ImageKind::Unresolved, program, "jit_without_map")
    };
    let run = (Some("run"), None, None);
    let db = one(Epoch::new(START, vec![clock()])
        .symbols(&kernel(), &[(0x1000, 0x2000, "work")])
        .scoped(run, CLOCK, &kernel(), &[(0x1000, 1_171)])
        .scoped(run, CLOCK, &unknown("node"), &[(0, 21_645)])
        .samples(CLOCK, &unknown("java"), &[(0, 50)])
        .samples(CLOCK, &kernel(), &[(0x2000, 9)])
        .unresolved(CLOCK, "jit_without_map", 30)
        .unresolved(CLOCK, "unknown_process", 4));
    let of_run = json(&db, "prof --label run");
    assert_eq!(
        (&of_run["events"][0]["total"], &of_run["events"][0]["counted"]),
        (&22_816.into(), &22_816.into())
    );
    assert_eq!(of_run["unresolved"], serde_json::json!({"jit_without_map": 21_645}));
    let first = &of_run["rows"][0];
    let name = (first["procedure"].as_str().unwrap(), first["image"].as_str().unwrap());
    assert_eq!(
        (name, &first["counts"][CLOCK]),
        (("[unresolved: jit without map]", "node"), &21_645.into())
    );
    let text = shown(&db, "prof --label run");
    assert!(text.contains("jit without map: run node with --perf-basic-prof"), "{text}");
    let all = json(&db, "prof -i");
    let names: Vec<_> =
        all["rows"].as_array().unwrap().iter().map(|row| row["image"].as_str().unwrap()).collect();
    let unresolved = |of: &str| format!("[unresolved: jit without map]{of}");
    let expected = [unresolved(" node"), "[kernel]".into(), unresolved(" java"), unresolved("")];
    assert_eq!(names, [&expected[..], &["[unresolved: unknown process]".to_owned()]].concat());
    assert_eq!(
        all["unresolved"],
        serde_json::json!({"jit_without_map": 21_725, "unknown_process": 4})
    );
    let by_label = json(&db, "prof --by label");
    assert_eq!(by_label["rows"][0]["counts"][CLOCK], 22_816);
    // Its name is that of the program, which is not meant.
    assert!(refused(&db, "prof node").contains("no image"), "{}", refused(&db, "prof node"));
}

/// A database of `dcpi record -- COMMAND` showed the whole machine, and each further command needed
/// `--label`.
#[test]
fn a_recording_opens_on_what_was_recorded() {
    let mut epoch = Epoch::new(START, vec![clock()])
        .symbols(&kernel(), &[(0x1000, 0x2000, "work")])
        .scoped((Some("run"), None, None), CLOCK, &kernel(), &[(0x1000, 7)])
        .samples(CLOCK, &kernel(), &[(0x1000, 900)]);
    epoch.delta.facts.state(&model::OpensOn("run".to_owned()));
    let db = one(epoch);
    let total = |words: &str| json(&db, words)["events"][0]["total"].clone();
    assert_eq!(
        (total("prof"), total("prof -a"), total("images"), total("images -a")),
        (7.into(), 907.into(), 7.into(), 907.into())
    );
    assert_eq!(json(&db, "prof --by label")["rows"].as_array().unwrap().len(), 2);
    assert!(shown(&db, "prof").contains("only        samples labelled \"run\""));
}

/// An epoch that recorded a command, with as many samples of it, and 900 of others.
fn recording(label: &'static str, start: u64, samples: u64) -> Epoch {
    let mut epoch = Epoch::new(start, vec![clock()])
        .symbols(&kernel(), &[(0x1000, 0x2000, "work")])
        .samples(CLOCK, &kernel(), &[(0x1000, 900)]);
    if samples > 0 {
        epoch = epoch.scoped((Some(label), None, None), CLOCK, &kernel(), &[(0x1000, samples)]);
    }
    epoch.delta.facts.state(&model::OpensOn(label.to_owned()));
    epoch
}

/// `dcpi diff` compared the whole machine, and marked procedures of another user's compiler.
#[test]
fn sets_of_recordings_are_of_what_was_recorded() {
    let db = Db::new();
    db.epoch("node-7", recording("before", START, 200));
    db.epoch("node-7", recording("after", START + 9_000, 300));
    let totals = |words: &str| {
        let sets = json(&db, words)["sets"].clone();
        sets.as_array()
            .unwrap()
            .iter()
            .map(|set| set["counted"].as_u64().unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!(totals("diff -1 latest"), [200, 300]);
    assert_eq!(totals("diff -a -1 latest"), [1100, 1200]);
    assert_eq!(totals("stats --each all --epoch all"), [200, 300]);
    assert!(
        shown(&db, "diff -1 latest").contains("300 samples of 20261105-124500, labelled \"after\"")
    );
}

/// Reports showed everybody's samples, without a word, where the command had none and where several
/// were recorded.
#[test]
fn a_report_of_everybody_says_so() {
    let none = one(recording("sleep", START, 0));
    let error = refused(&none, "prof");
    assert!(
        error.contains("the recorded command sleep has no samples") && error.contains("-a shows"),
        "{error}"
    );
    assert_eq!(json(&none, "prof -a")["events"][0]["total"], 900);
    let db = Db::new();
    db.epoch("node-7", recording("before", START, 200));
    db.epoch("node-7", recording("after", START + 9_000, 300));
    let both = shown(&db, "prof --epoch all");
    assert!(
        both.contains(
            "the samples are of the whole machine: these epochs recorded several commands (after, before)"
        ),
        "{both}"
    );
    assert!(!shown(&db, "prof").contains("whole machine"));
}
