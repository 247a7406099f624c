//! `docs/src/output.md`, held against what the commands print.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::Permissions;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;

use image::{ImageId, ImageKind};
use serde_json::Value;
use wire::{Counts, EventCounts, ImageCounts, Reply};

use crate::database::{
    Db, Epoch, START, clock, cycles, kernel, named, runs, two_events, typical, variable,
};
use crate::list::sampled;
use crate::runs::{dcpi, on};
use crate::truth::counts;
use crate::why::{copies, copies_counted, copies_on_arm};

/// The section of what all commands have.
const COMMON: &str = "Every report";

/// Sets that are compared, before and after.
const SETS: [&str; 3] = ["-1 latest", "-2..latest all", "label:before unit:web.service"];

/// What no command prints here: `dcpi time --function` needs root; cycles are true where callgrind
/// ran the command itself, and these programs have no code whose ways are unknown; notes are of
/// what the machine lacks.
const NOT_HERE: [(&str, &str); 31] = [
    ("calc", "findings[].address"),
    ("calc", "findings[].kind"),
    ("count", "notes[]"),
    ("machine", "not_found[].name"), // all are found where nobody disturbs
    ("machine", "not_found[].unit"),
    ("machine", "not_found[].stated"),
    ("trace", "never[]"), // of a capture, which needs root
    ("time", "a.function.procedure"),
    ("time", "a.function.ns.value"),
    ("time", "a.function.ns.low"),
    ("time", "a.function.ns.high"),
    ("time", "a.function.share"),
    ("time", "a.function.calls"),
    ("time", "a.function.samples"),
    ("time", "b.function.procedure"),
    ("time", "b.function.ns.value"),
    ("time", "b.function.ns.low"),
    ("time", "b.function.ns.high"),
    ("time", "b.function.share"),
    ("time", "b.function.calls"),
    ("time", "b.function.samples"),
    ("time", "notes[]"),
    ("trace-blocks", "samples"), // of programs that are sampled, which needs root
    ("trace-blocks", "rows[].time.value"),
    ("trace-blocks", "rows[].time.low"),
    ("trace-blocks", "rows[].time.high"),
    ("truth", "cycles.least"),
    ("truth", "cycles.most"),
    ("truth", "cycles.right"),
    ("truth", "cycles.told"),
    ("truth", "rows[].cycles[]"),
];

/// Reports of call stacks.
const CALLS: [&str; 6] = [
    "prof --inclusive",
    "callers copy",
    "callees parse",
    "tree",
    "tree --bottom-up",
    "tree --from copy",
];

/// The fields of a command, and which of them were printed.
#[derive(Default)]
struct Section {
    json: BTreeSet<String>,
    csv: BTreeSet<String>,
}

fn sections(page: &str) -> BTreeMap<&str, Section> {
    let mut sections: BTreeMap<&str, Section> = BTreeMap::new();
    let mut name = "";
    for line in page.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            name = heading.strip_prefix("dcpi ").unwrap_or(heading);
        }
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [json, csv, _, _] = cells.as_slice() else { continue };
        let section = sections.entry(name).or_default();
        let field = |cell: &str| Some(cell.strip_prefix('`')?.strip_suffix('`')?.to_owned());
        let (json, csv) = (field(json), field(csv));
        assert!(
            json.is_some()
                || csv.is_some()
                || line.starts_with("| JSON")
                || line.starts_with("|---"),
            "{line}"
        );
        section.json.extend(json);
        section.csv.extend(csv);
    }
    sections
}

/// The paths of all fields of an object, as the page writes them, where `known` has them.
fn paths(value: &Value, at: &str, known: &BTreeSet<&String>, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            let open = format!("{at}{{");
            let map = known
                .iter()
                .find_map(|path| Some((path.strip_prefix(&open)?.split_once('}')?.0, path)));
            for (name, value) in fields {
                let path = match map {
                    Some((any, _)) => format!("{open}{any}}}"),
                    None if at.is_empty() => name.clone(),
                    None => format!("{at}.{name}"),
                };
                paths(value, &path, known, found);
            }
        }
        // Else a list that is always empty here would never be missed on the page.
        Value::Array(elements) if elements.is_empty() => {
            let on_page =
                |path: &&String| path.strip_prefix(at).is_some_and(|rest| rest.starts_with("[]"));
            if !known.iter().any(on_page) {
                found.insert(format!("{at}[]"));
            }
        }
        Value::Array(elements) => {
            elements.iter().for_each(|value| paths(value, &format!("{at}[]"), known, found))
        }
        // Of an object that may be missing the page has the fields only.
        Value::Null
            if known.iter().any(|path| {
                path.strip_prefix(at).is_some_and(|rest| rest.starts_with(['.', '[']))
            }) => {}
        _ => {
            found.insert(at.to_owned());
        }
    }
}

/// An event's name in a title, as the page writes it; and sets' names.
fn title(command: &str, title: &str) -> String {
    let mut title = title.to_owned();
    for event in ["cpu-clock", "cycles", "L1-icache-load-misses"] {
        if let Some(rest) =
            title.strip_prefix(event).filter(|rest| rest.is_empty() || rest.starts_with('_'))
        {
            if event == "cycles" && ["calc", "topstalls"].contains(&command) {
                continue; // columns of their own
            }
            title = format!("EVENT{rest}");
        }
    }
    for (set, name) in SETS.iter().flat_map(|sets| sets.split(' ').zip(["A", "B"])) {
        if let Some(rest) = title.strip_prefix(set).filter(|rest| ["", "_samples"].contains(rest)) {
            title = format!("{name}{rest}");
        }
    }
    title
}

/// What the commands printed, by their names.
#[derive(Default)]
struct Printed {
    json: BTreeMap<String, BTreeSet<String>>,
    csv: BTreeMap<String, BTreeSet<String>>,
}

impl Printed {
    fn take(&mut self, command: &str, json: &[u8], csv: &[u8], sections: &BTreeMap<&str, Section>) {
        let known = sections[command].json.iter().chain(&sections[COMMON].json).collect();
        let json: Value =
            serde_json::from_slice(json).unwrap_or_else(|error| panic!("{command}: {error}"));
        assert_eq!(json["schema"]["name"], format!("dcpi.{command}"));
        assert!(json["schema"]["version"].as_u64() >= Some(1), "{command}");
        paths(&json, "", &known, self.json.entry(command.to_owned()).or_default());
        let titles = String::from_utf8(csv.to_vec()).unwrap();
        let titles = titles.lines().next().unwrap().split(',').map(|name| title(command, name));
        self.csv.entry(command.to_owned()).or_default().extend(titles);
    }

    fn run(&mut self, db: &Db, words: &str, sections: &BTreeMap<&str, Section>) {
        let [json, csv] = ["json", "csv"].map(|format| {
            let output = on(db, &format!("{words} --format {format}"));
            assert!(matches!(output.status.code(), Some(0 | 1)), "{words}: {output:?}");
            output.stdout
        });
        self.take(words.split(' ').next().unwrap(), &json, &csv, sections);
    }

    /// What commands print that measure, not read: of times, machines, traces, observers.
    fn measurements(&mut self, db: &Db, sections: &BTreeMap<&str, Section>) {
        let [json, csv] = ["json", "csv"].map(|format| traced(db, &["--format", format]));
        self.take("trace", &json, &csv, sections);
        let [json, csv] = ["json", "csv"].map(|format| blocks(db, format));
        self.take("trace-blocks", &json, &csv, sections);
        let known = sections["trace-events"].json.iter().chain(&sections[COMMON].json).collect();
        self.json.insert("trace-events".to_owned(), trace_events(db, &known));
        let corrected =
            ["json", "csv"].map(|format| told(db, &costed(), &["--correct", "--format", format]));
        let [json, csv] = corrected;
        self.take("correction", &json, &csv, sections);
        let (json, csv) = perturbed();
        self.take("perturb", &json, &csv, sections);
        self.take("count", &count(db, "json"), &count(db, "csv"), sections);
        self.take("machine", &machine("json"), &machine("csv"), sections);
        self.take("time", &time("json"), &time("csv"), sections);
    }

    /// What is on the page and was not printed, and the other way round.
    fn differences(&self, sections: &BTreeMap<&str, Section>) -> Vec<String> {
        let mut wrong = Vec::new();
        let common = &sections[COMMON];
        for (command, section) in sections.iter().filter(|(name, _)| **name != COMMON) {
            let empty = BTreeSet::new();
            let (json, csv) = (
                self.json.get(*command).unwrap_or(&empty),
                self.csv.get(*command).unwrap_or(&empty),
            );
            let not_told = json
                .iter()
                .filter(|path| !section.json.contains(*path) && !common.json.contains(*path));
            wrong.extend(not_told.map(|path| format!("{command} prints {path}")));
            let missing = section
                .json
                .difference(json)
                .filter(|path| !NOT_HERE.contains(&(*command, path.as_str())));
            wrong.extend(missing.map(|path| format!("{command} does not print {path}")));
            wrong.extend(
                csv.difference(&section.csv).map(|title| format!("{command}: CSV has {title}")),
            );
            wrong.extend(
                section
                    .csv
                    .difference(csv)
                    .map(|title| format!("{command}: CSV does not have {title}")),
            );
        }
        let all: BTreeSet<&String> = self.json.values().flatten().collect();
        wrong.extend(
            common
                .json
                .iter()
                .filter(|path| !all.contains(path))
                .map(|path| format!("nobody prints {path}")),
        );
        wrong
    }
}

/// What a daemon answers `dcpi top --once`, which asks twice.
fn answer_top(listener: &UnixListener) {
    for _ in 0..2 {
        let (mut client, _) = listener.accept().unwrap();
        BufReader::new(client.try_clone().unwrap()).read_line(&mut String::new()).unwrap();
        let unresolved = [("x".to_owned(), 1)].into();
        let event = EventCounts { name: "cycles".into(), unresolved, ..EventCounts::default() };
        let image = ImageCounts {
            id: "i".into(),
            kind: "kernel".into(),
            name: "[kernel]".into(),
            path: String::new(),
            places: vec![vec![(16, 3)]],
            symbols: vec![(0, 32, "f".into())],
        };
        let counts = Counts { since_ms: 2000, events: vec![event], images: vec![image], beyond: 0 };
        let reply = Reply { counts: Some(Box::new(counts)), ..Reply::default() };
        client.write_all(&reply.encode().unwrap()).unwrap();
    }
}

fn top(db: &Db, format: &str) -> Vec<u8> {
    let path = db.root().with_file_name(format!("socket-{format}"));
    let listener = UnixListener::bind(&path).unwrap();
    // Nobody waits for it: should the command not ask twice, the test fails and does not hang.
    std::thread::spawn(move || answer_top(&listener));
    let mut command = dcpi();
    command.args(["top", "--once", "-d", "500ms", "--format", format, "--control"]).arg(&path);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    output.stdout
}

/// What is told of a recording that was left.
fn clean(db: &Db, format: &str) -> Vec<u8> {
    let place = db.root().with_file_name("left");
    std::fs::create_dir_all(place.join("dcpi-record-17-000123")).unwrap();
    std::fs::set_permissions(place.join("dcpi-record-17-000123"), Permissions::from_mode(0o700))
        .unwrap();
    let output = dcpi()
        .env("TMPDIR", place)
        .args(["clean", "--dry-run", "--format", format])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    output.stdout
}

/// What is told of a command.
/// `dcpi machine`, as quick as it can be.
fn machine(format: &str) -> Vec<u8> {
    let mut command = dcpi();
    let output = command.args(["machine", "--seconds", "1", "--format", format]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    output.stdout
}

fn count(db: &Db, format: &str) -> Vec<u8> {
    let to = db.root().with_file_name(format!("count-{format}"));
    let mut command = dcpi();
    command.args(["count", "--format", format, "--to"]).arg(&to);
    let output = command.args(["--", "true"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    std::fs::read(to).unwrap()
}

/// What is told of two commands.
fn time(format: &str) -> Vec<u8> {
    let words = ["time", "--layouts", "2", "-r", "2", "--format", format, "true", "--", "true"];
    let output = dcpi().args(words).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    output.stdout
}

/// A trace with everything that traces have.
fn whole_trace() -> trace::Trace {
    use trace::{
        Corrected, Cost, Event, EventKind, Interval, Lost, Name, NameKind, Sampled, Thread,
        Untraced,
    };
    let mut name = Name::new(NameKind::Procedure, "f");
    name.image = "/bin/f".into();
    let interval = Interval { low: 900.0, value: 1000.0, high: 1100.0 };
    let how = "in vitro".to_owned();
    let cost = Cost {
        kind: EventKind::Enter,
        alpha_ns: interval,
        spread_ns: Some(50.0),
        how,
        in_vitro: true,
        stepped: Some(true),
        with_return: Some(false),
    };
    let facts = trace::Facts {
        command: vec!["f".into()],
        host: "node-7".into(),
        clock: "CLOCK_MONOTONIC".into(),
        source: "dcpi trace".into(),
        lost: vec![Lost { name: "f".into(), reason: "ring_full".into(), events: 2 }],
        costs: vec![cost],
        untraced: Some(Untraced { traced_cpu_ns: 9000.0, cpu_ns: vec![5000.0, 5100.0, 4900.0] }),
        sampled: Some(Sampled { keep: 1, of: 2 }),
        notes: vec!["a remark".into()],
        ..trace::Facts::default()
    };
    let event =
        |time_ns, kind| Event { time_ns, kind, cpu: trace::event::Cpu::new(1), ..Event::default() };
    let kinds = [EventKind::Enter, EventKind::SwitchOut, EventKind::SwitchIn, EventKind::Exit];
    let events: Vec<Event> = (1..).zip(kinds).map(|(at, kind)| event(at * 1000, kind)).collect();
    let corrected = |event: &Event| Corrected {
        low_ns: event.time_ns - 9,
        value_ns: event.time_ns - 5,
        high_ns: event.time_ns,
    };
    let corrected = events.iter().map(corrected).collect();
    let threads = vec![Thread { pid: 7, tid: 8, command: "f".into() }];
    trace::Trace { facts, names: vec![name], threads, events, corrected, cut: None }
}

/// The same with a cost of every event, and none lost, so that runs without events say something.
fn costed() -> trace::Trace {
    let mut trace = whole_trace();
    trace.facts.lost.clear();
    let kinds: Vec<trace::EventKind> = trace.events.iter().map(|event| event.kind).collect();
    let of = |kind| trace::Cost {
        kind,
        stepped: None,
        with_return: None,
        ..trace.facts.costs[0].clone()
    };
    trace.facts.costs = kinds.into_iter().map(of).collect();
    trace
}

/// What is told of a trace: its report in that format, or its events as an object a line.
fn traced(db: &Db, arguments: &[&str]) -> Vec<u8> {
    told(db, &whole_trace(), arguments)
}

fn told(db: &Db, of: &trace::Trace, arguments: &[&str]) -> Vec<u8> {
    let path = db.root().with_file_name("whole.trace");
    let (_, bytes) = trace::writer::write(of, Vec::new()).unwrap();
    std::fs::write(&path, bytes).unwrap();
    let output = dcpi().arg("trace").arg(path).args(arguments).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    output.stdout
}

/// What is told of an observer. Runs of it need root, so this is the report alone.
fn perturbed() -> (Vec<u8>, Vec<u8>) {
    use report::{FalseAlarms, Group, MetricRow, Moved, PerturbReport, Relation, Report as _};
    let relation = |with: Option<&str>| Relation {
        with: with.map(str::to_owned),
        baseline: 0.8,
        spread: 0.1,
        observed: 0.4,
        deviations: -4.0,
        chance: 0.001,
        changed: true,
    };
    let metric = MetricRow {
        name: "f".into(),
        is_time: true,
        moved: Moved::default(),
        inner: Some(relation(Some("g"))),
        inner_changed: 1,
        outer: Some(relation(None)),
        perturbed: true,
        unknown: false,
    };
    let report = PerturbReport {
        metrics: vec![metric],
        groups: vec![Group { items: vec!["f".into()], perturbed: true }],
        false_alarms: Some(FalseAlarms { trials: 100, flagged: 1, pool: 54 }),
        notes: vec!["a remark".into()],
        ..PerturbReport::default()
    };
    let mut json = serde_json::to_value(report.json()).unwrap();
    json["schema"] = serde_json::json!({ "name": "dcpi.perturb", "version": 1 });
    let mut csv = Vec::new();
    report.csv(&mut csv).unwrap();
    (json.to_string().into_bytes(), csv)
}

/// What is told of a trace of basic blocks that lost some.
fn blocks(db: &Db, format: &str) -> Vec<u8> {
    use trace::sequence::{Block, Program, Stream, Writer};
    let path = db.root().with_file_name("blocks.trace");
    let lost = trace::Lost { name: "block".into(), reason: "ring_full".into(), events: 9 };
    let facts = trace::Facts { lost: vec![lost], ..trace::Facts::default() };
    let mut writer = Writer::new(std::fs::File::create(&path).unwrap(), &facts).unwrap();
    let block = Block {
        offset: 0x1000,
        procedure: "f".into(),
        file: "f.c".into(),
        line: 3,
        ..Block::default()
    };
    let program = Program { path: "/usr/bin/f".into(), blocks: vec![block] };
    writer.program(&program).unwrap();
    let stream = writer.stream(&Stream { pid: 7, tid: 8, ..Stream::default() }).unwrap();
    writer.events(stream.unwrap(), &[0, 0]).unwrap();
    writer.finish(&facts).unwrap();
    let words = ["trace", "--blocks", "--format", format];
    let output = dcpi().args(words).arg(path).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    output.stdout
}

/// The fields of events, as those of one object.
fn trace_events(db: &Db, known: &BTreeSet<&String>) -> BTreeSet<String> {
    let text = String::from_utf8(traced(db, &["--to", "json"])).unwrap();
    let mut lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let mut all = lines.next().unwrap();
    assert_eq!(all["schema"]["name"], "dcpi.trace-events");
    all["events"] = lines.collect();
    let mut found = BTreeSet::new();
    paths(&all, "", known, &mut found);
    found
}

/// A database with this epoch only.
fn one(epoch: Epoch) -> Db {
    let db = Db::new();
    db.epoch("node-7", epoch);
    db
}

/// A database with an epoch without samples, and images of one name.
fn odd() -> Db {
    let variable = variable();
    variable.epoch(
        "node-7",
        Epoch { label: Some("empty"), ..Epoch::new(START + 500_000, vec![cycles()]) },
    );
    let file = |id: u8, path: &str| {
        named(ImageId::from_build_id(&[id, 9]).unwrap(), ImageKind::File, "app", path)
    };
    let both = Epoch::new(START + 600_000, vec![cycles()])
        .samples("cycles", &file(1, "/a/app"), &[(0, 700)])
        .samples("cycles", &file(2, "/b/app"), &[(0, 800)])
        .lost("cycles", "spill_full", 4);
    variable.epoch("node-7", both);
    variable
}

/// Two epochs of one host.
fn pair() -> Db {
    let pair = Db::new();
    for start in [START, START + 5000] {
        let epoch =
            Epoch::new(start, vec![clock()]).samples("cpu-clock", &kernel(), &[(0x1000, 500)]);
        pair.epoch(
            "node-7",
            epoch.unresolved("cpu-clock", "anonymous_memory", 4).lost("cpu-clock", "spill_full", 4),
        );
    }
    pair
}

/// An integrator had to guess what the fields of JSON and CSV are, and in which unit.
#[test]
fn every_field_that_is_printed_is_on_the_page_and_the_other_way_round() {
    let page =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src/output.md"))
            .unwrap();
    let sections = sections(&page);
    let mut printed = Printed::default();
    let mut run = |db: &Db, commands: &[&str]| {
        commands.iter().for_each(|words| printed.run(db, words, &sections))
    };
    let with_code = one(typical());
    with_code.keep("node-7", &std::env::current_exe().unwrap());
    run(&with_code, &["epochs"]);
    let over_time = crate::time::recorded();
    run(&over_time, &["timeline --by command", "timeline", "timeline -n 1 --by thread"]);
    run(&over_time, &["prof --since 2026-11-05T11:08:00Z"]);
    run(&one(two_events()), &["timeline --event imiss"]);
    run(&one(typical()), &["prof", "prof -i", "epochs", "images", "cat", "topcounts"]);
    run(&one(two_events()), &["prof -n 1", "topcounts --sort imiss/cycles", "images"]);
    run(&one(runs()), &["epochs", "prof --by label", "prof --by unit", "prof --by pid"]);
    run(&one(runs()), &["prof --label before", "prof --pid 4711"]);
    run(
        &one(runs()),
        &["prof --unit web.service", &format!("diff {}", SETS[2]), "stats unit:web.service latest"],
    );
    let copies = copies();
    run(
        &copies,
        &[
            "calc copy copy",
            "whatcg",
            "topstalls",
            "list copy copy --why",
            "cat --edges",
            "prof --lines",
        ],
    );
    run(
        &copies_on_arm(false),
        &["calc copy copy --machine cortex-a53", "whatcg --machine cortex-a53"],
    );
    run(&copies, &[&format!("truth {}", counts(&copies, "./copy", 0))]);
    let program = sampled(&["-g"]);
    run(
        &program.db,
        &[
            "list program work",
            "list program work --source",
            "list program workers",
            "list program main",
            "calc program workers",
            "prof --lines",
        ],
    );
    let variable = odd();
    run(&variable, &["stats all --each", "stats all --each -i", &format!("diff {}", SETS[1])]);
    run(&pair(), &[&format!("diff {}", SETS[0]), "stats -1 latest"]);
    let damaged = one(typical());
    std::fs::write(damaged.root().join("stranger"), "?").unwrap();
    run(&damaged, &["check"]);
    damaged.damage(|lost| matches!(lost, profiledb::Lost::Samples { .. }));
    run(&damaged, &["cat", "prof"]);
    run(&crate::stacks::db(), &CALLS);
    run(&copies_counted(), &["lost", "lost --by block"]);
    printed.measurements(&copies, &sections);
    printed.take("clean", &clean(&copies, "json"), &clean(&copies, "csv"), &sections);
    printed.take("top", &top(&copies, "json"), &top(&copies, "csv"), &sections);

    let wrong = printed.differences(&sections);
    assert!(
        wrong.is_empty(),
        "docs/src/output.md and what is printed differ:\n{}",
        wrong.join("\n")
    );
}
