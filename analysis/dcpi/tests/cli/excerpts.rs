//! What a recording keeps of code is enough for reports on its samples.

use std::path::Path;

use image::{ImageId, ImageKind, ImageOffset};
use profiledb::ImageRecord;
use serde_json::Value;

use crate::database::{Db, Epoch, START, clock};
use crate::runs::{json, on};

/// The record of a program.
fn record(program: &Path, id: ImageId) -> ImageRecord {
    ImageRecord {
        id,
        kind: ImageKind::File,
        name: "program".into(),
        path: program.to_str().unwrap().into(),
        size_bytes: None,
        first_seen_unix_s: START,
        last_seen_unix_s: START,
    }
}

/// A report without what it says about where the code came from.
fn report(db: &Db, words: &str) -> Value {
    let mut report = json(db, words);
    report.as_object_mut().unwrap().remove("problems");
    report
}

/// A recording left 371 MB, nearly all of it code without a sample. Reports must say from the
/// excerpt what they said from the file.
#[test]
fn reports_on_samples_are_the_same_from_an_excerpt() {
    let db = Db::new();
    let program = db.root().with_file_name("program");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let file = std::fs::File::open(&program).unwrap();
    let id = image::identify_file(&file).unwrap();
    let data = std::fs::read(&program).unwrap();
    let (procedures, _) = image::procedures_of(&data, None, &[]).unwrap();
    let fits = |procedure: &&image::Procedure| (300..3000).contains(&procedure.size_bytes());
    let chosen: Vec<ImageOffset> =
        procedures.iter().filter(fits).step_by(211).take(12).map(|p| p.start).collect();
    let others = procedures.iter().filter(fits).skip(100).step_by(211).take(20);
    assert_eq!(chosen.len(), 12);
    let counts: Vec<(u64, u64)> = chosen.iter().map(|start| (start.0, 500)).collect();
    db.epoch(
        "a",
        Epoch::new(START, vec![clock()]).samples("cpu-clock", &record(&program, id), &counts),
    );
    db.keep("a", &program);
    let layout = image::Layout::of(&data).unwrap();
    let address = |start: &ImageOffset| layout.file_offset_to_vaddr(*start).unwrap().0;
    let words: Vec<String> = chosen
        .iter()
        .map(address)
        .flat_map(|at| [format!("calc program {at:#x}"), format!("list program {at:#x}")])
        .chain([
            "prof".to_owned(),
            "whatcg".to_owned(),
            "topstalls -n 0 --min-confidence L".to_owned(),
        ])
        .collect();
    let calc = |words: &&String| words.starts_with("calc");
    let from_file: Vec<Value> = words.iter().filter(calc).map(|words| report(&db, words)).collect();
    std::fs::remove_file(&program).unwrap();
    let from_whole: Vec<Value> =
        words.iter().filter(calc).map(|words| report(&db, words)).collect();
    assert_eq!(from_file, from_whole);
    let before: Vec<Value> = words.iter().map(|words| report(&db, words)).collect();
    let saved = annotate::excerpts::take(&db.root(), "a", &[]).unwrap();
    assert!(saved.after * 2 < saved.before, "{saved:?}");
    assert_eq!(annotate::excerpts::take(&db.root(), "a", &[]).unwrap().before, saved.after, "once");
    assert!(profiledb::check(&db.root()).unwrap().is_empty());
    for (words, before) in words.iter().zip(&before) {
        assert_eq!(&report(&db, words), before, "{words}");
    }
    // Code that was left out is not there, rather than something else: most of it.
    let addresses = others.map(|other| address(&other.start));
    let missing = addresses.filter(|at| {
        let output = on(&db, &format!("list program {at:#x}"));
        !String::from_utf8(output.stdout).unwrap().contains("%rsp")
    });
    assert!(missing.count() > 10);
    let epochs = json(&db, "epochs");
    let (store, size) = (&epochs["code_stores"][0], saved.after);
    assert_eq!(
        (&store["host"], &store["images"], &store["size_bytes"]),
        (&"a".into(), &1.into(), &size.into())
    );
    assert!(
        crate::runs::shown(&db, "epochs").contains("code kept beside the epochs of a: 1 image, ")
    );
}
