//! `dcpi list` and `dcpi prof --lines`, of a program that is compiled for the test.

use std::path::{Path, PathBuf};
use std::process::Command;

use image::{ImageId, ImageKind, ImageOffset};
use serde_json::Value;

use crate::database::{Db, Epoch, START, clock, cycles, idle, image, imiss, named};
use crate::runs::{json, on, refused, shown};

/// `work` has a loop on line 9 in which `step` is inlined, whose work is on line 3.
const SOURCE: &str = "\
static inline __attribute__((always_inline)) unsigned step(unsigned x)
{
    return (x ^ (x << 13)) * 2654435761u;
}
__attribute__((noinline)) unsigned work(unsigned n)
{
    unsigned x = 1;
    for (unsigned i = 0; i < n; i++)
        x = step(x) + i;
    return x;
}
__attribute__((noinline)) int workers(int n) { return n * 7; }
int labourers_too(int n) __attribute__((alias(\"workers\")));
int main(int argc, char **argv) { (void)argv; return (int)work((unsigned)argc * 1000u) + \
workers(argc); }
";

/// A database with samples of a program, and the program.
pub struct Sampled {
    pub db: Db,
    program: PathBuf,
    directory: tempfile::TempDir,
    /// Where the procedure `work` is in the file.
    work: (ImageOffset, ImageOffset),
    id: ImageId,
}

/// 100 samples at each fourth byte of `work`, 5 in `workers`.
pub fn sampled(flags: &[&str]) -> Sampled {
    let directory = tempfile::tempdir().unwrap();
    let (source, program) = (directory.path().join("program.c"), directory.path().join("program"));
    std::fs::write(&source, SOURCE).unwrap();
    let built = Command::new("cc")
        .args(["-O1", "-Wl,--build-id"])
        .args(flags)
        .arg(&source)
        .arg("-o")
        .arg(&program)
        .status();
    assert!(built.unwrap().success());
    let id = image::identify_file(&std::fs::File::open(&program).unwrap()).unwrap();
    let (procedures, _) = image::procedures(&program, None, &[]).unwrap();
    let find = |name: &str| procedures.iter().find(|procedure| procedure.name() == name).unwrap();
    let (work, workers) = (find("work"), find("workers"));
    let record = named(id, ImageKind::File, "program", program.to_str().unwrap());
    let mut counts: Vec<(u64, u64)> =
        (work.start.0..work.end.0).step_by(4).map(|at| (at, 100)).collect();
    counts.push((workers.start.0, 5));
    let gone = image(ImageKind::File, "gone", "/opt/app/gone");
    let kernel = image(ImageKind::Kernel, "[kernel]", "");
    let db = Db::new();
    db.epoch(
        "node-7",
        Epoch::new(START, vec![cycles(), imiss()])
            .samples("cycles", &record, &counts)
            .samples("L1-icache-load-misses", &record, &counts[..1])
            .samples("cycles", &gone, &[(0x10, 3)])
            .samples("cycles", &kernel, &[(0x20, 4), (0x24, 5)])
            .symbols(&kernel, &[(0x20, 0x40, "schedule"), (0x40, 0x60, "schedule_tail")]),
    );
    let work = (work.start, work.end);
    Sampled { db, program, directory, work, id }
}

fn of_line(lines: &Value, function: &str, line: u64) -> u64 {
    let lines = lines.as_array().unwrap().iter();
    let same = lines.filter(|row| {
        row["line"] == line && (row["function"] == function || row["procedure"] == function)
    });
    same.filter_map(|row| row["counts"]["cycles"].as_u64()).sum()
}

#[test]
fn source_and_instructions_with_their_samples() {
    let sampled = sampled(&["-g"]);
    let report = json(&sampled.db, "list program work");
    assert_eq!((&report["procedure"], &report["isa"]), (&"work".into(), &"x86-64".into()));
    let all = (sampled.work.1.0 - sampled.work.0.0).div_ceil(4) * 100;
    assert_eq!(report["counts"]["cycles"], all);
    let instructions = report["instructions"].as_array().unwrap();
    let sum: u64 = instructions.iter().filter_map(|row| row["counts"]["cycles"].as_u64()).sum();
    assert_eq!(sum, all, "no sample is left out");
    let bytes: u64 = instructions.iter().filter_map(|row| row["len"].as_u64()).sum();
    assert_eq!(bytes, sampled.work.1.0 - sampled.work.0.0);
    let lines = &report["lines"];
    assert!(of_line(lines, "step", 3) > 0 && of_line(lines, "work", 8) > 0, "{lines:#}");
    let inlined = instructions.iter().find(|row| row["source"]["function"] == "step").unwrap();
    assert_eq!(
        (&inlined["inlined_at"][0]["function"], &inlined["inlined_at"][0]["line"]),
        (&"work".into(), &9.into())
    );
    assert_eq!(report["problems"].as_array().unwrap().len(), 0);

    let text = shown(&sampled.db, "list program work --wide");
    assert!(
        text.contains(
            "program.c:3  return (x ^ (x << 13)) * 2654435761u;  [step, inlined at program.c:9]"
        ),
        "{text}"
    );
    assert!(text.contains(" ↑\n") && text.contains("> "), "{text}");
    let text = shown(&sampled.db, "list program work");
    assert!(
        text.lines().all(|line| line.chars().count() <= 120) && !text.contains('\x1b'),
        "{text}"
    );
    let source = shown(&sampled.db, "list program work --source");
    assert!(source.contains("8      for (unsigned i = 0; i < n; i++)\n"), "{source}");
    assert!(source.contains("step (") && source.contains("inlined here"), "{source}");
    let intel = shown(&sampled.db, "list program work --asm --intel");
    assert!(
        intel.contains("ret\n") && !intel.contains("%e") && !intel.contains("program.c:"),
        "{intel}"
    );
    let csv = shown(&sampled.db, "list program work --format csv");
    assert!(
        csv.starts_with("address,instruction,target,function,file,line,cycles,cycles_share,"),
        "{csv}"
    );
    assert_eq!(csv.lines().count(), instructions.len() + 1);
    let csv = shown(&sampled.db, "list program work --source --format csv");
    assert!(
        csv.lines().any(|row| row.starts_with("step,") && row.contains("/program.c,3,")),
        "{csv}"
    );
}

#[test]
fn a_procedure_is_meant_by_name_part_or_address() {
    let sampled = sampled(&["-g"]);
    let procedure =
        |words: &str| json(&sampled.db, words)["procedure"].as_str().unwrap().to_owned();
    assert_eq!(procedure("list program work"), "work");
    assert_eq!(procedure("list program orkers"), "workers");
    let address = json(&sampled.db, "list program work")["instructions"][1]["address"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(procedure(&format!("list program {address}")), "work");
    assert_eq!(procedure(&format!("list {} workers", sampled.id)), "workers");
    // By another symbol's name for it, too; it is called the same everywhere.
    assert_eq!(procedure("list program labourers_too"), "workers");
    assert_eq!(procedure("calc program labourers_too --machine znver3"), "workers");
    assert!(
        shown(&sampled.db, "list program workers --asm").contains("\nalso        labourers_too\n")
    );
    assert_eq!(
        json(&sampled.db, "list program workers --asm")["aliases"],
        serde_json::json!(["labourers_too"])
    );
    let rows = json(&sampled.db, "prof program");
    let names: Vec<&str> = rows["rows"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|row| row["procedure"].as_str())
        .collect();
    assert_eq!(names, ["work", "workers"]);
    let line = refused(&sampled.db, "list program wor");
    assert!(
        line.starts_with("\"wor\" matches 2: work [0x") && line.contains("]; workers [0x"),
        "{line}"
    );
    let line = refused(&sampled.db, "list program nothing");
    assert!(
        line.starts_with(
            "no procedure of program has the name or address \"nothing\"; for procedures"
        ),
        "{line}"
    );
    let line = refused(&sampled.db, "list gone x");
    assert!(line.contains("the procedures of gone are not known: the file is gone"), "{line}");
    refused(&sampled.db, "list nosuch x");
    refused(&sampled.db, "list program 0xffffffffffffffff");
    refused(&sampled.db, "list program work --asm --source");
}

#[test]
fn what_is_missing_is_said_and_the_rest_is_shown() {
    // A build without debug information; then one whose source is gone; then one whose file is.
    let plain = sampled(&[]);
    let text = shown(&plain.db, "list program work");
    assert!(
        text.contains("ret\n")
            && text.contains("note: program: no source lines: neither the image nor a debug file"),
        "{text}"
    );
    assert_eq!(json(&plain.db, "list program work --source")["lines"], Value::Array(Vec::new()));

    let sampled = sampled(&["-g"]);
    let source = sampled.directory.path().join("program.c");
    let moved = sampled.directory.path().join("moved");
    std::fs::create_dir(&moved).unwrap();
    std::fs::rename(&source, moved.join("program.c")).unwrap();
    let text = shown(&sampled.db, "list program work");
    let said = format!(
        "note: source files not found: {}; name their directory with --source-dir",
        source.display()
    );
    assert!(text.contains("program.c:3") && text.contains("ret\n"), "{text}");
    assert_eq!(text.matches(&said).count(), 1, "{text}");
    let text = shown(&sampled.db, &format!("list program work --source-dir {}", moved.display()));
    assert!(text.contains("2654435761u") && !text.contains("not found"), "{text}");

    sampled.db.keep("node-7", &sampled.program);
    let before = json(&sampled.db, "list program work --asm");
    replace(&sampled.program);
    let report = json(&sampled.db, "list program work");
    assert_eq!(without_source(&report), without_source(&before));
    let kinds: Vec<&str> =
        report["problems"].as_array().unwrap().iter().filter_map(|p| p["kind"].as_str()).collect();
    assert_eq!(kinds, ["from_code_store", "no_lines"]);
}

/// Another build takes the program's place.
fn replace(program: &Path) {
    std::fs::remove_file(program).unwrap();
    std::fs::copy("/bin/true", program).unwrap();
}

fn without_source(report: &Value) -> Vec<(Value, Value)> {
    let rows = report["instructions"].as_array().unwrap();
    rows.iter().map(|row| (row["text"].clone(), row["counts"].clone())).collect()
}

#[test]
fn debug_information_that_was_cut_takes_nothing_else_with_it() {
    let sampled = sampled(&["-g"]);
    let before = json(&sampled.db, "list program work");
    let bytes = std::fs::read(&sampled.program).unwrap();
    // Behind the build id and the code, before the section headers: somewhere in the debug
    // information.
    for part in [3, 4, 5] {
        let mut broken = bytes.clone();
        let from = broken.len() * part / 8;
        broken[from..from + 400].fill(0xff);
        std::fs::write(&sampled.program, &broken).unwrap();
        let output = on(&sampled.db, "list program work --format json");
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(without_source(&report), without_source(&before));
    }
}

#[test]
fn kernel_procedures_are_listed_by_offset() {
    let sampled = sampled(&[]);
    let text = shown(&sampled.db, "list kernel schedule");
    assert!(text.contains("\n      4  44.44"), "{text}");
    assert!(
        text.contains("note: [kernel]: instructions are not known, only addresses with samples: "),
        "{text}"
    );
    let report = json(&sampled.db, "list kernel schedule");
    assert_eq!(report["instructions"][1]["address"], "0x24");
    assert_eq!((&report["isa"], &report["instructions"][1]["text"]), (&Value::Null, &Value::Null));
    let text = shown(&sampled.db, "list kernel schedule_tail");
    let next = format!(
        "the procedure has no samples; procedures with samples: dcpi prof --db {} [kernel]",
        sampled.db.root_text()
    );
    assert!(text.contains(&next), "{text}");
    let told = refused(&sampled.db, "calc kernel schedule");
    assert!(
        told.contains("schedule: its instructions cannot be read: the code of the running kernel is in no file;"),
        "{told}"
    );
}

/// The results of `dcpi calc` for each instruction, beside its samples.
#[test]
fn listings_say_why_where_that_is_asked() {
    let sampled = sampled(&["-g"]);
    let plain = json(&sampled.db, "list program work");
    let (report, calc) = (
        json(&sampled.db, "list program work --why --machine znver4"),
        json(&sampled.db, "calc program work --machine znver4"),
    );
    assert_eq!((&report["machine"], &report["why_not"]), (&"znver4".into(), &Value::Null));
    let told: Vec<&Value> = calc["blocks"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|block| block["instructions"].as_array().unwrap())
        .collect();
    assert!(told.len() > 5);
    for told in told {
        let rows = report["instructions"].as_array().unwrap();
        let row = rows.iter().find(|row| row["address"] == told["address"]).unwrap();
        for key in [
            "frequency",
            "best_cpi",
            "cpi",
            "cpi_most",
            "unexplained",
            "culprits",
            "counts",
            "text",
        ] {
            assert!(
                row[key] == told[key] && !row["frequency"]["confidence"].is_null(),
                "{key}: {row:#}, not {told:#}"
            );
        }
    }
    // The loop's own edges and blocks have intervals of the same form.
    for one in calc["blocks"].as_array().unwrap().iter().chain(calc["edges"].as_array().unwrap()) {
        let frequency = &one["frequency"];
        let [low, value, high] = ["low", "value", "high"].map(|key| frequency[key].as_f64());
        // Where confidence is low, no bound is known.
        let is_low = frequency["confidence"] == "low";
        assert!(low.is_none() == is_low && high.is_none() == is_low, "{one:#}");
        assert!(is_low || low <= value && value <= high && value.is_some(), "{one:#}");
    }
    assert_eq!(calc["events"].as_array().unwrap().len(), 2);
    // Nothing else is new, and nothing at all where nobody asks.
    let without = |report: &Value| {
        let mut report = report.clone();
        for key in [
            "machine",
            "cycles_factor_least",
            "cycles_factor",
            "cycles_measured",
            "cycles_known",
            "why_not",
        ] {
            report.as_object_mut().unwrap().remove(key);
        }
        for row in report["instructions"].as_array_mut().unwrap() {
            for key in ["frequency", "best_cpi", "cpi", "cpi_most", "unexplained", "culprits"] {
                row.as_object_mut().unwrap().remove(key);
            }
        }
        report
    };
    assert_eq!((&without(&report), &without(&plain)), (&plain, &plain));
}

#[test]
fn text_and_csv_of_a_listing_say_why_and_what_is_not_known() {
    let sampled = sampled(&["-g"]);
    let text = shown(&sampled.db, "list program work --why --machine znver4 --event cycles");
    let titles = text
        .lines()
        .find(|line| line.trim_start().starts_with("samples  ") && line.contains('±'))
        .unwrap();
    assert!(titles.split_whitespace().skip(3).eq(["call", "confidence", "worst"]), "{titles}");
    assert!(text.lines().all(|line| line.chars().count() <= 120), "{text}");
    assert!(text.contains("\ncycles      not known: samples of time alone"), "{text}");
    assert!(text.contains("ret\n"), "{text}");
    let csv = shown(&sampled.db, "list program work --why --machine znver4 --format csv");
    assert!(
        csv.lines()
            .next()
            .unwrap()
            .ends_with(",runs,runs_low,runs_high,confidence,best_cpi,cpi,cpi_most,letters"),
        "{csv}"
    );
    let commas = |line: &str| {
        line.split('"').step_by(2).map(|part| part.matches(',').count()).sum::<usize>()
    };
    assert!(csv.lines().all(|line| commas(line) == commas(csv.lines().next().unwrap())), "{csv}");
    // The listing marks unknown values.
    for (words, why) in [
        ("program work --why", "the database does not name the processor; name it with --machine"),
        (
            "program workers --why --machine znver4",
            "the procedure has 5 samples of time; estimates need 100",
        ),
        (
            "kernel schedule --why --machine znver4",
            "the procedure has 9 samples of time; estimates need 100",
        ),
    ] {
        let text = shown(&sampled.db, &format!("list {words}"));
        assert!(text.contains(&format!("\ncycles      not known: {why}\n")), "{text}");
        assert_eq!(json(&sampled.db, &format!("list {words}"))["why_not"], why);
    }
    refused(&sampled.db, "list program work --why --source");
    refused(&sampled.db, "list program work --machine 486");
}

/// A processor that is assumed is named without `-v`: the numbers may be another one's.
#[test]
fn an_assumed_processor_is_named_in_every_head() {
    let sampled = sampled(&["-g"]);
    let heads = |words: &str| {
        let mut brief = crate::runs::dcpi();
        brief.env_remove("DCPI_VERBOSE").args(words.split(' ')).arg("--db").arg(sampled.db.root());
        String::from_utf8(brief.output().unwrap().stdout).unwrap()
    };
    let words = "calc program work --event cycles";
    assert!(heads(words).contains(", assumed: "), "{}", heads(words));
    assert!(!heads(&format!("{words} --machine znver4")).contains("\nmachine "));
}

/// The page's listings have the same.
#[test]
fn pages_say_why_where_that_is_asked() {
    let sampled = sampled(&["-g"]);
    let listing = |words: &str| {
        let page = shown(&sampled.db, &format!("html -o - {words}"));
        let mut listings = crate::runs::reports(&page).into_iter();
        let is_of = |report: &Value| report["procedure"] == "work";
        listings.find(|(words, report)| words.starts_with("list ") && is_of(report)).unwrap().1
    };
    let unknown = listing("--why")["why_not"].to_string();
    assert!(unknown.contains("does not name the processor; name it with --machine"), "{unknown}");
    let known = listing("--why --machine znver4");
    let lines = known["instructions"].as_array().unwrap();
    assert!(lines.iter().any(|line| line["frequency"]["confidence"].is_string()), "{known:#}");
    assert!(listing("")["instructions"][0].get("frequency").is_none());
}

#[test]
fn rows_may_be_source_lines() {
    let sampled = sampled(&["-g"]);
    let report = json(&sampled.db, "prof --lines");
    assert_eq!(report["by"], "line");
    let rows = &report["rows"];
    let list = json(&sampled.db, "list program work");
    for (function, line) in [("step", 3), ("work", 8), ("work", 9)] {
        assert_eq!(
            of_line(rows, function, line),
            of_line(&list["lines"], function, line),
            "{function}:{line}"
        );
    }
    let sum: u64 =
        rows.as_array().unwrap().iter().filter_map(|row| row["counts"]["cycles"].as_u64()).sum();
    assert_eq!(sum, report["events"][0]["counted"], "no sample is left out");
    let text = shown(&sampled.db, "prof --lines");
    assert!(text.contains("program.c:3") && text.contains("[no procedures: file gone]"), "{text}");
    let csv = shown(&sampled.db, "prof --lines --format csv");
    assert!(csv.starts_with("procedure,file,line,image,image_id,cycles,"), "{csv}");
    // The same event where only one was sampled.
    let one = Db::new();
    let record = named(sampled.id, ImageKind::File, "program", sampled.program.to_str().unwrap());
    one.epoch(
        "node-7",
        Epoch::new(START, vec![clock()]).samples("cpu-clock", &record, &[(sampled.work.0.0, 7)]),
    );
    assert!(shown(&one, "prof --lines").contains("program.c:"));
}

/// `prof` leaves the idle loop out, and `list` had shares of samples with it: 2 % there was 1 %
/// here.
#[test]
fn shares_are_of_what_is_not_idle() {
    let db = Db::new();
    let kernel = image(ImageKind::Kernel, "[kernel]", "");
    let epoch = Epoch::new(START, vec![clock()])
        .samples("cpu-clock", &kernel, &[(0x20, 250), (0x40, 750)])
        .samples("cpu-clock", &idle(), &[(0x10, 9000)])
        .symbols(&kernel, &[(0x20, 0x40, "schedule"), (0x40, 0x60, "schedule_tail")])
        .symbols(&idle(), &[(0, 0x40, "default_idle")]);
    db.epoch("node-7", epoch);
    let listed = shown(&db, "list kernel schedule");
    assert!(
        listed.contains("250 samples here, 25.00 % of 1,000 that are not idle, one every"),
        "{listed}"
    );
    assert!(
        shown(&db, "prof").lines().any(|row| row.contains("25.00") && row.contains("schedule"))
    );
    let listed = shown(&db, "list idle default_idle");
    assert!(listed.contains("9,000 samples here, 90.00 % of 10,000, one every"), "{listed}");
    assert_eq!(json(&db, "list kernel schedule")["events"][0]["idle"], 9000);
}
