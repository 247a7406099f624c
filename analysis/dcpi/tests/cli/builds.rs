//! Recordings of two builds: which is faster, by how much, and where.

use crate::sets::marked;
use image::ImageKind;
use profiledb::ImageRecord;
use serde_json::Value;

use crate::database::{Db, Epoch, START, clock, image, kernel};
use crate::runs::{json, refused, shown};

const CLOCK: &str = "cpu-clock";

/// What `dcpi record -o DIR -- PROGRAM` writes: samples of its three procedures, and 900 of others.
fn recording(program: &'static str, counts: [u64; 3]) -> Db {
    let of_program: ImageRecord = image(ImageKind::File, program, &format!("/opt/{program}"));
    let offsets = [0x1000, 0x1100, 0x1200];
    let counts: Vec<(u64, u64)> = offsets.into_iter().zip(counts).collect();
    let names = [(0x1000, 0x1080, "hot"), (0x1100, 0x1180, "parse"), (0x1200, 0x1280, "print")];
    let mut epoch = Epoch::new(START, vec![clock()])
        .samples(CLOCK, &kernel(), &[(0x1000, 900)])
        .scoped((Some(program), None, None), CLOCK, &of_program, &counts)
        .symbols(&of_program, &names);
    epoch.delta.facts.state(&model::OpensOn(program.to_owned()));
    let db = Db::new();
    db.epoch("node-7", epoch);
    db
}

/// The set of these databases.
fn set(dbs: &[Db]) -> String {
    dbs.iter().map(|db| format!("db:{}", db.root_text())).collect::<Vec<_>>().join(",")
}

fn verdict(report: &Value) -> (&str, Option<&str>) {
    let totals = &report["totals"];
    (totals["verdict"].as_str().unwrap(), totals["why"].as_str())
}

/// The hot procedure of the faster build was marked `+28.5 %`, as its share of a smaller total
/// rises; a set could not have several recordings, and builds with other file names did not meet.
#[test]
fn of_recordings_of_two_builds_one_is_faster() {
    let old = [[4010, 1990, 510], [3950, 2040, 480], [4060, 2010, 505]];
    let old = old.map(|counts| recording("old", counts));
    let new = [[2410, 610, 505], [2380, 590, 490], [2450, 600, 515]];
    let new = new.map(|counts| recording("new", counts));
    let again = [[4030, 2020, 495], [3980, 1970, 520], [4040, 2030, 500]];
    let again = again.map(|counts| recording("old", counts));
    let db = &old[0];
    let both = format!("diff {} {}", set(&old), set(&new));

    let report = json(db, &format!("{both} --map old=new"));
    assert_eq!(verdict(&report), ("faster", None));
    assert_eq!(marked(&report), ["hot", "parse"]);
    let totals = &report["totals"];
    assert_eq!(
        (totals["parts"].clone(), totals["runs"].clone()),
        (serde_json::json!([3, 3]), true.into())
    );
    let number = |key: &str| totals["ratio"][key].as_f64().unwrap();
    assert!((number("value") - 10_550.0 / 19_555.0).abs() < 1e-6, "{totals}");
    assert!(number("low") > 0.5 && number("high") < 0.58, "{totals}");
    assert_eq!(report["sets"][1]["dbs"].as_array().unwrap().len(), 3);
    assert_eq!(
        (report["measure"].as_str(), report["rows"].as_array().unwrap().len()),
        (Some("samples"), 3)
    );
    let text = shown(db, &format!("{both} --map /opt/old=new"));
    assert!(text.contains("total       1.254 s → 676.3 ms per run, ratio 0.540, 0.5"), "{text}");
    assert!(text.contains("verdict     faster, by 3 runs before and 3 after\n"), "{text}");
    assert!(!text.contains("--map"), "{text}");

    // Shares are of sets that need not have done the same work.
    let shares = json(db, &format!("{both} --map old=new --shares"));
    assert_eq!(verdict(&shares), ("none", Some("not_same_work")));
    assert!(shares["totals"]["ratio"].is_null());
    assert_eq!(verdict(&json(db, &format!("{both} -a"))), ("none", Some("not_same_work")));

    let same = json(db, &format!("diff {} {}", set(&old), set(&again)));
    assert_eq!((verdict(&same), marked(&same)), (("no_difference_shown", None), vec![]));
    let back = json(db, &format!("diff {} {} --map new=old", set(&new), set(&old)));
    assert_eq!(verdict(&back), ("slower", None));

    // Sampling error alone cannot tell, and explains what is less than itself.
    let one = format!("diff {} {}", set(&old[..1]), set(&new[..1]));
    let text = shown(db, &one);
    assert!(text.contains("verdict     less by samples: 0.52 to 0.56 times\n"), "{text}");
    assert!(text.contains("most of set 1 is old, most of set 2 is new"), "{text}");
    assert_eq!(verdict(&json(db, &one)), ("cannot_tell", Some("one_run")));
    let one = json(db, &format!("diff {} {}", set(&old[..1]), set(&again[..1])));
    assert_eq!(verdict(&one), ("no_difference_shown", None));

    let stats = json(db, &format!("stats {} {} --map old=new", set(&old), set(&new)));
    assert_eq!(stats["sets"][0]["epochs"].as_array().unwrap().len(), 3);
    assert_eq!(stats["rows"].as_array().unwrap().len(), 3);

    for (words, said) in [
        (
            format!("{both} --map odd=new"),
            "--map names \"odd\", which no set has; the images with most samples are old, new",
        ),
        (format!("diff {},{} latest", set(&old), set(&old[1..2])), "has db:"),
        (format!("diff db:{0},db:{0}/ latest", db.root_text()), "names the database"),
    ] {
        let output = crate::runs::on(db, &words);
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && error.contains(said), "{words}: {error}");
    }
    assert!(refused(db, &format!("{both} --map odd=new")).contains("; "));
}
