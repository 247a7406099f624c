//! Functions that a compiler inlined, in reports by function and of call stacks: of a program that
//! is compiled for the test. `dcpi callers normalise` did not know a function that had 28 % of the
//! time and no code of its own.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use image::{ImageKind, ImageOffset};
use model::{Frame, Stacks, Thread, Value};
use profiledb::{Scope, StacksKey};
use serde_json::Value as Json;

use crate::database::{Db, Epoch, START, clock, named};
use crate::runs::{dcpi, json, refused, shown};

/// `mix` is inlined into `normalise`, and that into `each`, which is inlined into `work`, and into
/// `rest`. `half` is inlined into `rest`, and has code of its own for who has its address.
const SOURCE: &str = "\
#define INLINED static inline __attribute__((always_inline))
INLINED unsigned mix(unsigned x) { return (x ^ (x << 13)) * 2654435761u + (x >> 7); }
INLINED unsigned normalise(unsigned x) { return mix(x) % 1000003u + mix(x >> 3); }
INLINED unsigned each(unsigned n)
{
    unsigned x = 1;
    for (unsigned i = 0; i < n; i++)
        x = normalise(x) ^ i;
    return x;
}
__attribute__((noipa)) unsigned scale_apart(unsigned x) { return x % 77u; }
INLINED unsigned scale(unsigned x) { return x % 7919u * 31u; }
INLINED unsigned half(unsigned x) { return (x ^ (x >> 3)) * 77u % 31u; }
unsigned (*volatile halved)(unsigned) = half;
__attribute__((noipa)) unsigned work(unsigned n) { return each(n) + scale(n); }
__attribute__((noipa)) unsigned rest(unsigned n) { return normalise(n) + scale_apart(half(n)); }
__attribute__((noipa)) unsigned run(unsigned n) { return work(n) + rest(n); }
int main(int argc, char **argv) { (void)argv; return (int)run(halved((unsigned)argc * 1000u)); }
";

struct Program {
    db: Db,
    path: PathBuf,
    _directory: tempfile::TempDir,
}

fn compiled(flags: &[&str]) -> Program {
    let directory = tempfile::tempdir().unwrap();
    let (source, path) = (directory.path().join("app.c"), directory.path().join("app"));
    std::fs::write(&source, SOURCE).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-O2", "-Wl,--build-id"]).args(flags).arg(&source).arg("-o").arg(&path);
    assert!(cc.status().unwrap().success());
    sampled(&path, directory)
}

/// Samples and a stack at each second byte of `work`, `rest` and `half`, called by `run`; of
/// `scale_apart` samples only.
fn sampled(path: &Path, directory: tempfile::TempDir) -> Program {
    let id = image::identify_file(&std::fs::File::open(path).unwrap()).unwrap();
    let (procedures, _) = image::procedures(path, None, &[]).unwrap();
    let find = |name: &str| procedures.iter().find(|procedure| procedure.name() == name).unwrap();
    let record = named(id, ImageKind::File, "app", path.to_str().unwrap());
    let code = |offset: u64| Frame::Code(id, ImageOffset(offset));
    let (mut stacks, mut counts) = (Stacks::new(), Vec::new());
    let thread =
        Thread { command: "app".into(), pid: 7, name: "app".into(), tid: 7, ..Thread::default() };
    for procedure in ["work", "rest", "half"].map(find) {
        for at in (procedure.start.0..procedure.end.0).step_by(2) {
            counts.push((at, 10));
            let callers = [find("main").start.0 + 8, find("run").start.0 + 8].map(code);
            let frames = [callers[0], callers[1], code(at)];
            stacks.add_stack(frames, &thread, Value::of_one(20_000_000));
        }
    }
    counts.push((find("scale_apart").start.0, 50));
    let db = Db::new();
    let mut epoch = Epoch::new(START, vec![clock()]).samples("cpu-clock", &record, &counts);
    let key = StacksKey { event: "cpu-clock".into(), scope: Scope::default() };
    epoch.delta.stacks.insert(key, stacks);
    db.epoch("node-7", epoch);
    Program { db, path: path.to_owned(), _directory: directory }
}

fn rows(report: &Json) -> &[Json] {
    report["rows"].as_array().unwrap()
}

/// Shares of rows by name and whether they are inlined.
fn shares(report: &Json, key: &str) -> BTreeMap<(String, bool), f64> {
    let share = |row: &Json| {
        let of = if row[key]["value"].is_number() { &row[key] } else { &row[key]["cpu-clock"] };
        let name = row["procedure"].as_str().unwrap().to_owned();
        ((name, row["inlined"] == true), of["value"].as_f64().unwrap())
    };
    rows(report).iter().map(share).collect()
}

/// The share of each function with all that it called, by an export that has source lines.
fn exported(db: &Db) -> BTreeMap<String, f64> {
    let folded = shown(db, "export --to folded --lines -o -");
    let (mut sums, mut all) = (BTreeMap::new(), 0.0);
    for line in folded.lines() {
        let (stack, samples) = line.rsplit_once(' ').unwrap();
        let samples: f64 = samples.parse().unwrap();
        let mut names: Vec<&str> = stack.split(';').collect();
        names.sort_unstable();
        names.dedup();
        names.into_iter().for_each(|name| *sums.entry(name.to_owned()).or_default() += samples);
        all += samples;
    }
    sums.values_mut().for_each(|sum: &mut f64| *sum /= all);
    sums
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() < 0.002
}

#[test]
fn functions_have_rows_of_their_own_with_the_shares_of_exports() {
    let program = compiled(&["-g"]);
    let db = &program.db;
    let exported = exported(db);
    let inclusive = json(db, "prof --inclusive -n 0");
    let shares_of = shares(&inclusive, "inclusive");
    for (name, inlined) in [
        ("work", false),
        ("rest", false),
        ("each", true),
        ("normalise", true),
        ("mix", true),
        ("scale", true),
    ] {
        let share = shares_of[&(name.to_owned(), inlined)];
        assert!(near(share, exported[name]), "{name}: {share} {}", exported[name]);
        let low = rows(&inclusive)
            .iter()
            .find(|row| row["procedure"] == name && row["inlined"] == inlined)
            .map(|row| row["inclusive"]["cpu-clock"]["low"].as_f64().unwrap());
        assert!(low.unwrap() <= share && share > 0.0, "{name}");
    }
    // Own time: each sample is of one function, the innermost; by source line it is the same.
    let own = json(db, "prof --inlined -n 0");
    let by_line = json(db, "prof --lines -n 0");
    for name in ["work", "each", "normalise", "mix", "scale", "rest"] {
        let of = |report: &Json| -> u64 {
            let rows = rows(report).iter().filter(|row| row["procedure"] == name);
            rows.map(|row| row["counts"]["cpu-clock"].as_u64().unwrap()).sum()
        };
        assert_eq!(of(&own), of(&by_line), "{name}");
        assert_eq!(of(&own), of(&inclusive), "{name}");
    }
    let all: u64 = rows(&own).iter().map(|row| row["counts"]["cpu-clock"].as_u64().unwrap()).sum();
    assert_eq!(all, own["events"][0]["counted"]);
    let text = shown(db, "prof --inlined");
    assert!(text.contains(" mix (inlined)  ") && !text.contains("work (inlined)"), "{text}");
    let csv = shown(db, "prof --inlined --format csv");
    assert!(
        csv.starts_with("procedure,image,image_id,address,inlined,language,cpu-clock,"),
        "{csv}"
    );
    // Procedures alone, with what is inlined into them, as they were.
    let procedures = json(db, "prof --inclusive --no-inlined -n 0");
    let flat = json(db, "prof -n 0");
    for name in ["work", "rest"] {
        let key = (name.to_owned(), false);
        assert_eq!(shares(&procedures, "share")[&key], shares(&flat, "share")[&key]);
        assert!(near(shares(&procedures, "inclusive")[&key], exported[name]));
    }
    assert!(shares(&procedures, "share").keys().all(|(_, inlined)| !inlined));
}

#[test]
fn callers_callees_trees_and_drawings_have_inlined_functions() {
    let program = compiled(&["-g"]);
    let db = &program.db;
    let callers = json(db, "callers normalise");
    assert_eq!((&callers["procedure"], &callers["inlined"]), (&"normalise".into(), &true.into()));
    assert!(near(callers["inclusive"]["value"].as_f64().unwrap(), exported(db)["normalise"]));
    let found = shares(&callers, "share");
    let names: Vec<_> = found.keys().map(|(name, inlined)| (name.as_str(), *inlined)).collect();
    assert_eq!(names, [("each", true), ("rest", false)]);
    assert!(near(found.values().sum(), 1.0));
    let callees = shares(&json(db, "callees normalise"), "share");
    let names: Vec<_> = callees.keys().map(|(name, inlined)| (name.as_str(), *inlined)).collect();
    assert_eq!(names, [("[itself]", false), ("mix", true)]);
    let text = shown(db, "callers mix");
    assert!(text.contains("procedure   mix (inlined) of app: "), "{text}");
    assert!(text.contains("  normalise (inlined)  app"), "{text}");
    let tree = json(db, "tree --min 0");
    let path = rows(&tree).iter().find(|row| row["procedure"] == "mix").unwrap();
    let mut names = vec![path["procedure"].as_str().unwrap()];
    let mut at = path["parent"].as_u64();
    while let Some(row) = at.map(|at| &rows(&tree)[at as usize]) {
        names.push(row["procedure"].as_str().unwrap());
        at = row["parent"].as_u64();
    }
    assert_eq!(names, ["mix", "normalise", "each", "work", "run", "main"]);
    let own: f64 = rows(&tree).iter().map(|row| row["own"].as_f64().unwrap()).sum();
    assert!(near(own, 1.0), "{own}");
    let text = shown(db, "tree --min 0");
    assert!(text.contains("     mix (inlined)"), "{text}");
    let from = json(db, "tree --from normalise --bottom-up");
    assert_eq!(from["from"]["inlined"], true, "{from}");
    let drawn = shown(db, "flame -o - --min 0");
    assert!(drawn.contains("<title>mix (inlined) (app): "), "{drawn}");
    assert!(!shown(db, "tree --no-inlined --min 0").contains("inlined"));
    assert!(!shown(db, "flame -o - --no-inlined").contains("inlined"));
    let callers = shares(&json(db, "callers scale_apart --no-inlined"), "share");
    assert!(callers.keys().all(|(_, inlined)| !inlined));
    assert!(refused(db, "callers normalise --no-inlined").contains("no procedure"));
}

/// `callers nap` answered for `short_naps` as if that were its name.
#[test]
fn names_are_whole_or_said_to_be_parts() {
    let program = compiled(&["-g"]);
    let db = &program.db;
    let part = "no procedure is named \"ormal\"; normalise is the only one whose name has that";
    for words in ["callers ormal", "tree --from ormal"] {
        assert!(shown(db, words).contains(part), "{words}");
    }
    assert!(!shown(db, "callers normalise").contains("only one"));
    // `scale` is in the name of `scale_apart`, and a whole name.
    assert_eq!(json(db, "callers scale")["procedure"], "scale");
    assert!(refused(db, "callers a").contains("matches"));
    assert!(shown(db, "list app scale_apar").contains("no procedure is named \"scale_apar\""));
    // A procedure is meant before its copies in others, which are said to be there.
    let half = json(db, "callers half");
    assert_eq!(half["inlined"], false);
    assert_eq!(half["problems"][0]["kind"], "also_inlined", "{half}");
    let callers = shares(&half, "share");
    assert_eq!(callers.keys().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["run"]);
    let mut copies = dcpi();
    copies.args(["callers", "half (inlined)", "--format", "json", "--db"]).arg(db.root());
    let copies: Json = serde_json::from_slice(&copies.output().unwrap().stdout).unwrap();
    assert_eq!(shares(&copies, "share").into_keys().next().unwrap().0, "rest");
    let mut marked = dcpi();
    marked.args(["callees", "normalise (inlined)", "--db"]).arg(db.root());
    assert!(marked.status().unwrap().success());
}

#[test]
fn a_listing_of_code_that_is_elsewhere_says_where() {
    let program = compiled(&["-g"]);
    let db = &program.db;
    let said = refused(db, "list app normalise");
    assert!(
        said.contains("normalise has no code of its own, because it is inlined into work ("),
        "{said}"
    );
    assert!(
        said.contains(", rest (") && said.contains(" app work; for its callers: dcpi callers "),
        "{said}"
    );
    // A procedure's name is not looked for in vain.
    assert!(refused(db, "calc app scale").contains("inlined into work"));
    assert!(refused(db, "list app nothing").contains("no procedure"));
}

/// Without debug information there are procedures, and no complaint; with some that no compiler
/// wrote, too.
#[test]
fn what_is_not_known_to_be_inlined_is_the_procedures_own() {
    let plain = compiled(&["-g0"]);
    let own = shares(&json(&plain.db, "prof --inlined"), "share");
    assert!(own.keys().all(|(_, inlined)| !inlined));
    assert!(refused(&plain.db, "callers normalise").contains("no procedure"));
    let tree = json(&plain.db, "tree");
    assert_eq!(tree["problems"].as_array().unwrap().len(), 0, "{tree}");
    let flat = shares(&json(&plain.db, "prof"), "share");
    assert_eq!(own, flat.into_iter().collect());
    let hostile = nested(&plain);
    let report = json(&hostile.db, "prof --inlined");
    assert_eq!(shares(&report, "share"), own);
    assert_eq!(report["problems"][0]["kind"], "lines_cut", "{report}");
    assert!(shown(&hostile.db, "tree").contains("work"));
}

/// The program with debug information whose calls are inlined into each other 200,000 deep.
fn nested(plain: &Program) -> Program {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("app");
    // Abbreviations: 1 unit, 2 subprogram, 3 inlined_subroutine; all with children, the first two
    // with low_pc and high_pc.
    let mut abbreviations =
        vec![1, 0x11, 1, 0x11, 1, 0x12, 6, 0, 0, 2, 0x2e, 1, 0x11, 1, 0x12, 6, 0, 0];
    abbreviations.extend([3, 0x1d, 1, 0, 0, 0]);
    let mut unit = vec![4, 0, 0, 0, 0, 0, 8];
    for tag in [1_u8, 2] {
        unit.push(tag);
        unit.extend(0x1000_u64.to_le_bytes());
        unit.extend(0x1000_u32.to_le_bytes());
    }
    unit.extend(std::iter::repeat_n(3, 200_000));
    let mut info = (unit.len() as u32).to_le_bytes().to_vec();
    info.extend(unit);
    let mut objcopy = Command::new("objcopy");
    for (section, bytes) in [(".debug_info", &info), (".debug_abbrev", &abbreviations)] {
        let file = directory.path().join(section);
        std::fs::write(&file, bytes).unwrap();
        objcopy.arg("--add-section").arg(format!("{section}={}", file.display()));
    }
    assert!(objcopy.arg(&plain.path).arg(&path).status().unwrap().success());
    sampled(&path, directory)
}
