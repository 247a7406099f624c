//! Compares the output of the commands with the schemas of `dcpi help schema`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::Permissions;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::Path;

use boon::{Compiler, SchemaIndex, Schemas};
use image::{ImageId, ImageKind};
use report::Schema;
use serde_json::{Value, json};
use wire::{Counts, EventCounts, ImageCounts, Reply, StackCounts};

use crate::database::{
    Db, Epoch, START, clock, cycles, kernel, named, runs, two_events, typical, variable,
};
use crate::list::sampled;
use crate::runs::{dcpi, on};
use crate::truth::counts;
use crate::why::{copies, copies_counted, copies_on_arm};

/// Sets that are compared, before and after.
const SETS: [&str; 3] = ["-1 latest", "-2..latest all", "label:before unit:web.service"];

/// Reports of call stacks.
const CALLS: [&str; 9] = [
    "prof --inclusive",
    "prof --by command",
    "prof --by-attribute route",
    "prof --by thread --event cpu-clock",
    "callers copy",
    "callees parse",
    "tree",
    "tree --bottom-up",
    "tree --from copy",
];

/// Fields that no schema names are refused: readers ignore these, and nobody would miss them here.
fn strict(schema: &mut Value) {
    if let Some(object) = schema.as_object_mut()
        && object.contains_key("properties")
        && object.get("type").is_some()
    {
        object.entry("additionalProperties").or_insert(Value::Bool(false));
    }
    match schema {
        Value::Object(fields) => fields.values_mut().for_each(strict),
        Value::Array(elements) => elements.iter_mut().for_each(strict),
        _ => {}
    }
}

/// The schemas, for a validator, and the titles of CSV that were printed.
struct Printed {
    schemas: Schemas,
    known: BTreeMap<&'static str, (Schema, SchemaIndex)>,
    titles: BTreeMap<&'static str, BTreeSet<&'static str>>,
    commands: BTreeSet<&'static str>,
}

impl Printed {
    fn new() -> Self {
        let (mut schemas, mut compiler) = (Schemas::new(), Compiler::new());
        let known = dcpi::schemas().into_iter().map(|schema| {
            let mut json: Value = serde_json::from_str(&schema.json()).unwrap();
            strict(&mut json);
            let at = format!("https://dcpi/{}.json", schema.name);
            compiler.add_resource(&at, json).unwrap();
            let index = compiler.compile(&at, &mut schemas).unwrap();
            (schema.name, (schema, index))
        });
        let known = known.collect();
        Self { schemas, known, titles: BTreeMap::new(), commands: BTreeSet::new() }
    }

    /// The error in an object, if there is one.
    fn wrong(&self, command: &str, json: &Value) -> Option<String> {
        let (_, index) = &self.known[command];
        self.schemas.validate(json, *index).err().map(|error| error.to_string())
    }

    fn take(&mut self, command: &str, json: &[u8], csv: &[u8]) {
        let json: Value =
            serde_json::from_slice(json).unwrap_or_else(|error| panic!("{command}: {error}"));
        assert_eq!(self.wrong(command, &json), None, "{command}: {json:#}");
        let csv = String::from_utf8(csv.to_vec()).unwrap();
        let schema = self.known[command].0.clone();
        self.commands.insert(schema.name);
        let printed = self.titles.entry(schema.name).or_default();
        for title in csv.lines().next().unwrap().split(',') {
            let stated = schema.titles();
            let stated = stated.iter().find(|stated| is_title(command, stated, title));
            printed.insert(stated.unwrap_or_else(|| panic!("{command}: CSV has {title}")));
        }
    }

    fn run(&mut self, db: &Db, words: &str) {
        let [json, csv] = ["json", "csv"].map(|format| {
            let output = on(db, &format!("{words} --format {format}"));
            assert!(matches!(output.status.code(), Some(0 | 1)), "{words}: {output:?}");
            output.stdout
        });
        self.take(words.split(' ').next().unwrap(), &json, &csv);
    }

    /// What commands print that measure, not read: of times, machines, traces, observers.
    fn measurements(&mut self, db: &Db) {
        let [json, csv] = ["json", "csv"].map(|format| traced(db, &["--format", format]));
        self.take("trace", &json, &csv);
        let [json, csv] = ["json", "csv"].map(|format| blocks(db, format));
        self.take("trace-blocks", &json, &csv);
        assert_eq!(self.wrong("trace-events", &trace_events(db)), None);
        self.commands.insert("trace-events");
        let corrected =
            ["json", "csv"].map(|format| told(db, &costed(), &["--correct", "--format", format]));
        let [json, csv] = corrected;
        self.take("correction", &json, &csv);
        let (json, csv) = perturbed();
        self.take("perturb", &json, &csv);
        self.take("count", &count(db, "json"), &count(db, "csv"));
        self.take("machine", &machine("json"), &machine("csv"));
        self.take("time", &time("json"), &time("csv"));
    }
}

/// Whether a printed title is the stated one, in which words stand for names.
fn is_title(command: &str, stated: &str, title: &str) -> bool {
    let of_sets = ["A", "B"].into_iter().enumerate().any(|(at, word)| {
        let names = SETS.iter().filter_map(|sets| sets.split(' ').nth(at));
        let rest = stated.strip_prefix(word).filter(|rest| ["", "_samples"].contains(rest));
        names.zip(rest.into_iter().cycle()).any(|(name, rest)| title == format!("{name}{rest}"))
    });
    let events = ["cpu-clock", "cycles", "L1-icache-load-misses"].into_iter();
    let mut keys = events.chain(["label", "unit", "pid"]);
    stated == title
        || command == "diff" && of_sets
        || keys.any(|key| {
            let replaced =
                stated.replace("EVENT", key).replace("only_WHAT", &format!("only_{key}"));
            replaced != stated && replaced == title
        })
}

/// What a daemon answers `dcpi top --once`, which asks twice.
fn answer_top(listener: &UnixListener) {
    for _ in 0..2 {
        let (mut client, _) = listener.accept().unwrap();
        BufReader::new(client.try_clone().unwrap()).read_line(&mut String::new()).unwrap();
        let unresolved = [("x".to_owned(), 1)].into();
        let event = EventCounts {
            name: "cpu-clock".into(),
            unit: "ns".into(),
            period: 1_000_000,
            unresolved,
            ..EventCounts::default()
        };
        let image = ImageCounts {
            id: "i".into(),
            kind: "kernel".into(),
            name: "[kernel]".into(),
            path: String::new(),
            places: vec![vec![(16, 3)]],
            symbols: vec![(0, 32, "f".into())],
        };
        let stacks = StackCounts {
            images: vec!["i".into()],
            frames: vec![(0, 0, 20), (1, 0, 16)],
            processes: vec![("app".into(), 7)],
            times: vec![(1, 0, 3, 3_000_000)],
            loops: Vec::new(),
        };
        let (events, images, stacks) = (vec![event], vec![image], vec![stacks]);
        let counts = Counts { since_ms: 2000, events, images, stacks, beyond: 0 };
        let reply = Reply { counts: Some(Box::new(counts)), ..Reply::default() };
        client.write_all(&reply.encode().unwrap()).unwrap();
    }
}

fn top(db: &Db, format: &str, more: &[&str]) -> Vec<u8> {
    let path = db.root().with_file_name(format!("socket-{format}{}", more.len()));
    let listener = UnixListener::bind(&path).unwrap();
    // Nobody waits for it: should the command not ask twice, the test fails and does not hang.
    std::thread::spawn(move || answer_top(&listener));
    let mut command = dcpi();
    command.args(["top", "--once", "-d", "500ms", "--format", format, "--control"]).arg(&path);
    let output = command.args(more).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    output.stdout
}

/// What is told of a recording that was left.
/// What `dcpi doctor` says where no dcpid runs.
fn doctor(db: &Db, format: &str) -> Vec<u8> {
    let mut command = dcpi();
    command.args(["doctor", "--control", "/nowhere", "--format", format, "--db"]).arg(db.root());
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

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

/// `dcpi machine`, as quick as it can be.
fn machine(format: &str) -> Vec<u8> {
    let mut command = dcpi();
    let output = command.args(["machine", "--seconds", "1", "--format", format]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    output.stdout
}

/// What is told of a command.
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
        amount: Moved::default(),
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

/// The events of a trace, as those of one object.
fn trace_events(db: &Db) -> Value {
    let text = String::from_utf8(traced(db, &["--to", "json"])).unwrap();
    let mut lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let mut all = lines.next().unwrap();
    all["events"] = lines.collect();
    all
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
fn all_that_is_printed_is_as_the_schemas_say() {
    let mut printed = Printed::new();
    let mut run =
        |db: &Db, commands: &[&str]| commands.iter().for_each(|words| printed.run(db, words));
    let with_code = one(typical());
    with_code.keep("node-7", Path::new("/bin/true"));
    run(&with_code, &["epochs"]);
    let over_time = crate::time::recorded();
    run(&over_time, &["timeline --by command", "timeline", "timeline -n 1 --by thread"]);
    run(&over_time, &["prof --since 2026-11-05T11:08:00Z"]);
    run(&one(two_events()), &["timeline --event imiss"]);
    run(&one(typical()), &["prof", "prof -i", "epochs", "images", "cat", "topcounts"]);
    run(&one(two_events()), &["prof -n 1", "topcounts --sort imiss/cycles", "images"]);
    run(&one(runs()), &["epochs", "prof --label before", "prof --pid 4711"]);
    for by in ["label", "unit", "pid", "container", "pod", "namespace"] {
        run(&one(runs()), &[&format!("prof --by {by}")]);
    }
    run(
        &one(runs()),
        &["prof --unit web.service", &format!("diff {}", SETS[2]), "stats unit:web.service latest"],
    );
    let copies = copies();
    run(
        &copies,
        &[
            "calc copy copy",
            "why",
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
    printed.measurements(&copies);
    printed.take("clean", &clean(&copies, "json"), &clean(&copies, "csv"));
    printed.take("doctor", &doctor(&copies, "json"), &doctor(&copies, "csv"));
    for more in [&[][..], &["--by", "process"]] {
        printed.take("top", &top(&copies, "json", more), &top(&copies, "csv", more));
    }

    let all =
        |(name, (schema, _)): (&&'static str, &(Schema, SchemaIndex))| (*name, schema.titles());
    let never: Vec<String> = printed
        .known
        .iter()
        .map(all)
        .flat_map(|(name, titles)| titles.into_iter().map(move |title| (name, title)))
        .filter(|(name, title)| !printed.titles.get(name).is_some_and(|of| of.contains(title)))
        .map(|(name, title)| format!("{name}: CSV never has {title}"))
        .collect();
    assert!(never.is_empty(), "{}", never.join("\n"));
    let commands: BTreeSet<&str> = printed.known.keys().copied().collect();
    assert_eq!(printed.commands, commands);
}

/// The test above can fail.
#[test]
fn other_output_is_refused() {
    let printed = Printed::new();
    let output = on(&one(typical()), "prof --format json");
    let right: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(printed.wrong("prof", &right), None);
    type Mutation = fn(&mut Value);
    let mutations: [(&str, Mutation); 6] = [
        ("a new field of a row", |json| json["rows"][0]["new"] = json!(1)),
        ("a field of another type", |json| json["rows"][0]["cumulative"] = json!("0.5")),
        ("a field that is null", |json| json["events"][0]["name"] = Value::Null),
        ("a count that is no number", |json| json["rows"][0]["counts"]["cycles"] = json!([1])),
        ("another version", |json| json["schema"]["version"] = json!(2)),
        ("a field less", |json| {
            json["rows"][0].as_object_mut().unwrap().remove("share").unwrap();
        }),
    ];
    for (what, mutate) in mutations {
        let mut wrong = right.clone();
        mutate(&mut wrong);
        assert!(printed.wrong("prof", &wrong).is_some(), "{what} is not refused");
    }
}

#[test]
fn schemas_are_listed_and_printed() {
    let of = |words: &[&str]| dcpi().args(["help", "schema"]).args(words).output().unwrap();
    let listed = String::from_utf8(of(&[]).stdout).unwrap();
    assert!(listed.lines().any(|name| name == "prof"), "{listed}");
    let schema: Value = serde_json::from_slice(&of(&["prof"]).stdout).unwrap();
    assert_eq!(schema["properties"]["schema"]["properties"]["name"]["const"], "dcpi.prof");
    let share = &schema["properties"]["rows"]["items"]["properties"]["share"];
    assert_eq!((&share["unit"], &share["csv"][0]), (&json!("share"), &json!("EVENT_share")));
    let unknown = of(&["prff"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("there is no schema prff"));
}
