//! Reports of call stacks: `prof --inclusive`, `callers`, `callees`, `tree`, `flame`, `html`.

use image::{ImageKind, ImageOffset};
use model::{Attributes, Cut, Frame, Stacks, Thread, Value, Wait};
use profiledb::{ImageRecord, Scope, StacksKey};

use crate::database::{Db, Epoch, START, clock, image, kernel};
use crate::golden::check;
use crate::runs::{json, refused, report, reports, shown};

/// Weight of a stack: 20 ms, 50 stacks/s on each CPU.
const STACK_NS: u64 = 20_000_000;

fn code(image: &ImageRecord, offset: u64) -> Frame {
    Frame::Code(image.id, ImageOffset(offset))
}

fn thread(command: &str, pid: u32, name: &str, tid: u32) -> Thread {
    Thread { command: command.into(), pid, name: name.into(), tid, ..Thread::default() }
}

fn add(stacks: &mut Stacks, frames: &[Frame], thread: &Thread, count: u64, weight: u64) {
    for _ in 0..count {
        stacks.add_stack(frames.iter().copied(), thread, Value::of_one(weight));
    }
}

/// A server whose requests copy and, in another thread, write a log; a lock that both want; and
/// library code with a name of many words.
pub fn server() -> Epoch {
    let app = image(ImageKind::Vdso, "server", "[server]");
    let lib = image(ImageKind::Vdso, "libc", "[libc]");
    let gone = image(ImageKind::File, "gone", "/opt/app/gone");
    let [main, serve, parse] = [0, 0x50, 0x90].map(|at| code(&app, at));
    let [log, copy, lock] = [code(&app, 0xd0), code(&lib, 0x10), code(&lib, 0x50)];
    let clear = code(&kernel(), 0x1010);
    let (worker, logger) =
        (thread("server", 812, "worker", 815), thread("server", 812, "log", 816));
    let mut on = Stacks::new();
    add(&mut on, &[main, serve, parse, copy], &worker, 300, STACK_NS);
    add(&mut on, &[main, log, copy], &logger, 100, STACK_NS);
    add(&mut on, &[main, serve, parse], &worker, 200, STACK_NS);
    // A parser that calls itself.
    add(&mut on, &[main, serve, parse, parse, parse, copy], &worker, 50, STACK_NS);
    add(&mut on, &[main, serve, parse, clear], &worker, 40, STACK_NS);
    add(&mut on, &[Frame::Cut(Cut::Truncated), code(&gone, 0x1234), copy], &logger, 10, STACK_NS);
    let mut off = Stacks::new();
    let futex = Frame::Wait(Wait::Futex);
    add(&mut off, &[main, serve, lock, futex], &worker, 30, 7_000_000);
    add(&mut off, &[main, log, lock, futex], &logger, 10, 90_000_000);
    add(&mut off, &[main, log, Frame::Wait(Wait::Disk)], &logger, 5, 2_000_000);
    let mut epoch = Epoch::new(START, vec![clock()])
        .samples("cpu-clock", &app, &[(0x94, 20_000), (0xd4, 100)])
        .samples("cpu-clock", &lib, &[(0x18, 46_000), (0x54, 150), (0x94, 2_000)])
        .samples("cpu-clock", &kernel(), &[(0x1010, 4_000)])
        .symbols(
            &app,
            &[
                (0, 0x40, "main"),
                (0x40, 0x80, "serve(Request const&, std::vector<int, std::allocator<int> >)"),
                (0x80, 0xc0, "parse"),
                (0xc0, 0x100, "write_log"),
            ],
        )
        .symbols(&lib, &[(0, 0x40, "copy"), (0x40, 0x80, "lock"), (0x80, 0xc0, "unwalked")])
        .symbols(&kernel(), &[(0x1000, 0x1100, "clear_page_erms")])
        .unresolved("cpu-clock", "anonymous_memory", 321);
    epoch.delta.images.insert(gone.id, gone);
    for (event, stacks) in [("cpu-clock", on), ("off-cpu", off)] {
        let key = StacksKey { event: event.into(), scope: Scope::default() };
        epoch.delta.stacks.insert(key, stacks);
    }
    epoch
}

pub fn db() -> Db {
    let db = Db::new();
    db.epoch("node-7", server());
    db
}

#[test]
fn prof_with_calls() {
    let db = db();
    check("prof-inclusive.txt", &db, "prof --inclusive");
    check("prof-inclusive.json", &db, "prof --inclusive --format json");
    check("prof-inclusive.csv", &db, "prof --inclusive --format csv");
    check("prof-inclusive-off.txt", &db, "prof --inclusive --event off-cpu");
    check("prof-inclusive-both.txt", &db, "prof --inclusive --event cpu-clock,off-cpu");
}

#[test]
fn prof_by_command_process_and_thread() {
    let db = db();
    check("prof-by-command.txt", &db, "prof --by command");
    check("prof-by-pid-stacks.json", &db, "prof --by pid --format json");
    check("prof-by-thread.txt", &db, "prof --by thread --event off-cpu");
    check("prof-by-thread.csv", &db, "prof --by thread --event cpu-clock,off-cpu --format csv");
}

/// A server whose programmer set a route and, at times, a customer.
fn requests() -> Db {
    let app = image(ImageKind::Vdso, "server", "[server]");
    let [main, parse] = [0, 0x90].map(|at| code(&app, at));
    let of = |pairs: &[(&str, &str)]| {
        let pairs = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        Thread { attributes: Attributes::of(pairs), ..thread("server", 812, "worker", 815) }
    };
    let mut on = Stacks::new();
    let checkout = of(&[("route", "/checkout"), ("customer", "7")]);
    add(&mut on, &[main, parse], &checkout, 300, STACK_NS);
    add(&mut on, &[main], &of(&[("route", "/search")]), 100, STACK_NS);
    add(&mut on, &[main, parse], &of(&[]), 50, STACK_NS);
    let mut epoch = Epoch::new(START, vec![clock()])
        .samples("cpu-clock", &app, &[(0x94, 35_000), (0x14, 10_000)])
        .symbols(&app, &[(0, 0x40, "main"), (0x80, 0xc0, "parse")]);
    let key = StacksKey { event: "cpu-clock".into(), scope: Scope::default() };
    epoch.delta.stacks.insert(key, on);
    let db = Db::new();
    db.epoch("node-7", epoch);
    db
}

#[test]
fn stacks_by_attribute() {
    let db = requests();
    check("prof-by-attribute.txt", &db, "prof --by-attribute route");
    check("prof-by-attribute.json", &db, "prof --by-attribute customer --format json");
    check("prof-by-attribute.csv", &db, "prof --by-attribute route --format csv");
    check("tree-by-attribute.txt", &db, "tree --by-attribute route");
    check("tree-attribute.txt", &db, "tree --attribute route=/checkout --attribute customer=7");
    for (words, said) in [
        (
            "tree --attribute route=/pay",
            "no samples with attributes \"route=/pay\"; there are: customer=7, route=/checkout",
        ),
        ("tree --attribute route", "must be KEY=VALUE, such as route=/checkout"),
        ("prof --by-attribute route --by thread", "cannot be used with"),
    ] {
        let error = refused(&db, words);
        assert!(error.contains(said), "{words}: {error}");
    }
}

/// What is chosen by thread is told by the thread's own stacks: its shares are of these.
#[test]
fn stacks_of_one_thread_command_or_process() {
    let db = db();
    check("prof-inclusive-thread.txt", &db, "prof --inclusive --thread log");
    check("tree-pid.txt", &db, "tree --pid 812 --thread worker --event off-cpu");
    let rows = json(&db, "callees main --thread log")["rows"].clone();
    assert_eq!(rows[0]["procedure"], "write_log", "{rows}");
    let drawn = shown(&db, "flame -o - --command server --event cpu-clock --colour waiting");
    assert!(
        drawn.contains("class=\"n o0\"") && !drawn.contains("class=\"n o10\""),
        "all of it ran"
    );
    let all = json(&db, "tree --command server")["event"].clone();
    assert_eq!(all["stacks"], 700, "{all}");
    for (words, said) in [
        ("tree --command nobody", "no samples of command \"nobody\"; there are: server"),
        ("tree --pid 7", "no samples of process 7; there are: 812"),
        ("prof --thread log", "no samples of threads named \"log\""),
        ("prof --by command server", "rows from call stacks take no IMAGE"),
        ("timeline --thread log", "samples are not kept by command and thread, call stacks are"),
    ] {
        let error = refused(&db, words);
        assert!(error.contains(said), "{words}: {error}");
    }
}

/// What a command's stacks do not have was an empty table.
#[test]
fn who_else_called_a_procedure_is_told() {
    let db = db();
    for (words, said) in [
        ("callers copy --command nobody", "no samples of command \"nobody\"; there are: server"),
        (
            "callers write_log --thread worker",
            "no call stacks of cpu-clock of threads named \"worker\" have write_log; those of \
             \"server\" do",
        ),
        (
            "callees lock --thread worker --event cpu-clock",
            "no call stacks of cpu-clock of threads named \"worker\" have lock; other events may",
        ),
        ("tree --from log --thread worker", "no procedure"),
        ("tree --from lock --thread worker", "of threads named \"worker\" have lock"),
        ("prof --event off-cpu", "off-cpu has call stacks and no samples; see dcpi prof"),
        ("prof --event usertime", "usertime has call stacks and no samples"),
        ("timeline --event off-cpu", "off-cpu has call stacks and no samples"),
        ("prof gone", "gone has no samples of its own, only frames in call stacks; see dcpi"),
    ] {
        let error = refused(&db, words);
        assert!(error.contains(said), "{words}: {error}");
        assert_eq!(error.trim().lines().count(), 1, "{error}");
    }
}

#[test]
fn parts_of_trees() {
    let db = db();
    check("tree-from.txt", &db, "tree --from parse --no-kernel");
    check("tree-from-up.txt", &db, "tree --from copy --bottom-up --depth 2");
    let rows = json(&db, "tree --depth 1")["rows"].clone();
    assert!(rows.as_array().unwrap().iter().all(|row| row["depth"] == 0), "{rows}");
    let callees = |words: &str| {
        let rows = json(&db, words)["rows"].clone();
        let names = rows.as_array().unwrap().iter().map(|row| row["procedure"].to_string());
        names.collect::<Vec<_>>().join(" ")
    };
    assert!(callees("callees parse").contains("clear_page_erms"));
    assert!(!callees("callees parse --no-kernel").contains("clear_page_erms"));
    let drawn = shown(&db, "flame -o - --from parse --depth 1");
    assert!(drawn.contains(", from parse</title>") && !drawn.contains("data-name=\"copy\""));
}

/// An export of one command has the same time as its tree, with the units of the events.
#[test]
fn exports_of_one_command_or_thread() {
    let db = db();
    let folded = shown(&db, "export --to folded -o - --thread log --event cpu-clock");
    assert!(folded.contains("main;write_log;copy") && !folded.contains("parse"), "{folded}");
    let all = json(&db, "tree --thread log")["event"].clone();
    assert_eq!(all["stacks"], 110, "{all}");
    for (words, said) in [
        ("export --to folded -o - --thread nobody", "no samples of threads named \"nobody\""),
        ("export --to autofdo -o - --thread log", "only call stacks are kept by command"),
        ("export --to folded -o - --no-stacks --thread log", "only call stacks are kept"),
        ("export --to folded -o - server --thread log", "leave IMAGE out"),
    ] {
        let error = refused(&db, words);
        assert!(error.contains(said), "{words}: {error}");
    }
}

#[test]
fn a_page_of_one_command_or_thread() {
    let db = db();
    let page = shown(&db, "html -o - --thread log");
    assert!(page.contains("write_log") && !page.contains("clear_page_erms"), "{page}");
    let all = shown(&db, "html -o -");
    assert!(all.contains("write_log") && all.contains("clear_page_erms"));
    for (words, said) in [
        ("html -o - --thread nobody", "no samples of threads named \"nobody\""),
        ("html -o - --thread log --why", "--why explains samples"),
    ] {
        let error = refused(&db, words);
        assert!(error.contains(said), "{words}: {error}");
    }
}

#[test]
fn callers_and_callees() {
    let db = db();
    check("callers.txt", &db, "callers libc copy");
    check("callers.json", &db, "callers copy --format json");
    check("callers.csv", &db, "callers copy --format csv");
    check("callees.txt", &db, "callees parse");
    check("callers-futex.txt", &db, "callers futex --event off-cpu");
    check("callees-lock.json", &db, "callees lock --event off-cpu --format json");
}

#[test]
fn trees() {
    let db = db();
    check("tree.txt", &db, "tree");
    check("tree.json", &db, "tree --format json --min 5%");
    check("tree.csv", &db, "tree --format csv");
    check("tree-bottom-up.txt", &db, "tree --bottom-up --min 0");
    check("tree-threads.txt", &db, "tree --by-thread --event off-cpu --min 0");
}

/// A procedure that calls nothing has the same row with and without calls; every procedure's time
/// with its callees is at least its own time.
#[test]
fn inclusive_times_are_beside_those_of_samples() {
    let db = db();
    let (flat, calls) = (json(&db, "prof -n 0"), json(&db, "prof --inclusive -n 0"));
    let rows = calls["rows"].as_array().unwrap();
    for row in flat["rows"].as_array().unwrap() {
        let same = |other: &&serde_json::Value| {
            ["procedure", "image", "address"].iter().all(|key| row[*key] == other[*key])
        };
        let with = rows.iter().find(same).unwrap_or_else(|| panic!("{row}"));
        assert_eq!(with["counts"], row["counts"]);
        assert_eq!(with["share"], row["share"]);
        let [own, all] = ["share", "inclusive"].map(|key| with[key]["cpu-clock"]["value"].clone());
        assert!(all.as_f64().unwrap() >= own.as_f64().unwrap() - 1e-6, "{with}");
    }
    let main = rows.iter().find(|row| row["procedure"] == "main").unwrap();
    let share = main["inclusive"]["cpu-clock"]["value"].as_f64().unwrap();
    // What has no stack is below main, too: stacks of its image are.
    assert!(share > 0.97 && share < 0.99, "{main}");
}

#[test]
fn epochs_without_stacks_say_so_and_nothing_else_changes() {
    let db = Db::new();
    db.epoch("node-7", crate::database::typical());
    for words in ["prof --inclusive", "callers memcpy", "callees x", "tree", "flame -o -"] {
        let said = refused(&db, words);
        assert!(said.contains("these epochs have no call stacks"), "{words}: {said}");
        assert_eq!(said.trim().lines().count(), 1, "{said}");
    }
}

#[test]
fn what_cannot_be_found_is_told_with_the_next_step() {
    let db = db();
    for (words, said) in [
        ("callers nothing", "no procedure"),
        ("callers nowhere copy", "no image"),
        ("callers e", "matches 4"),
        ("callers copy --event cycles", "they have cpu-clock, off-cpu"),
        ("callers copy --event cpu-clock,off-cpu", "one event"),
        ("flame -o - --diff nowhere", "nowhere"),
        ("tree --min 101%", "must be a percentage from 0 to 100"),
        ("prof --inclusive --lines", "cannot be used with"),
    ] {
        let error = refused(&db, words);
        assert!(error.contains(said), "{words}: {error}");
        assert_eq!(error.trim().lines().count(), 1, "{error}");
    }
}

#[test]
fn a_flame_graph_has_every_call_with_its_time() {
    let db = db();
    let svg = shown(&db, "flame -o - --min 0");
    assert!(svg.starts_with("<svg xmlns=") && svg.ends_with("</svg>\n"));
    let titles: Vec<&str> = svg
        .split("<title>")
        .skip(1)
        .filter_map(|rest| rest.split_once("</title>"))
        .map(|(title, _)| title)
        .collect();
    assert!(titles.iter().any(|title| title.starts_with("main (server): ")), "{titles:?}");
    let cut = "serve(Request const&amp;, std::vector&lt;int, std::allocator&lt;int&gt; &gt;)";
    assert!(titles.iter().any(|title| title.starts_with(cut)), "{titles:?}");
    for words in [
        "flame -o - --icicle --by-thread",
        "flame -o - --event off-cpu,cpu-clock",
        "flame -o - --colour waiting",
        "flame -o - --diff latest",
    ] {
        assert!(shown(&db, words).ends_with("</svg>\n"), "{words}");
    }
    let both = shown(&db, "flame -o - --event off-cpu,cpu-clock --min 0");
    assert!(both.contains("class=\"n o10\"") && both.contains("class=\"n o0\""), "{both}");
}

#[test]
fn the_page_has_the_calls_of_each_event() {
    let page = shown(&db(), "html -o -");
    for event in ["cpu-clock", "off-cpu"] {
        let tree = report(&page, &format!("tree --min=0.02% --event={event}"));
        let rows = tree["rows"].as_array().unwrap();
        assert_eq!(tree["event"]["name"], event);
        assert!(rows.iter().any(|row| row["procedure"] == "main"), "{tree}");
    }
    let threads = report(&page, "tree --min=0.1% --event=cpu-clock --by-thread");
    assert_eq!(threads["rows"][0]["depth"], 0);
    assert!(reports(&page).iter().any(|(words, _)| words == "prof --by=thread --event=cpu-clock"));
}

#[test]
fn exports_have_stacks_unless_they_are_told_not_to() {
    let db = db();
    let folded = shown(&db, "export --to folded --event cpu-clock -o -");
    assert!(folded.contains("server;main;write_log;copy "), "{folded}");
    let flat = shown(&db, "export --to folded --no-stacks -o -");
    assert!(flat.contains("libc;copy 46000\n") && !flat.contains("main"), "{flat}");
    let sum = |text: &str| -> u64 {
        text.lines().map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum()
    };
    assert_eq!(sum(&folded), sum(&flat));
    let off = shown(&db, "export --to folded --event off-cpu -o -");
    assert!(off.contains("server;main;write_log;lock;[futex] 900000\n"), "{off}");
    for format in ["script --no-symbols", "speedscope", "firefox"] {
        let output = crate::runs::on(&db, &format!("export --to {format} -o -"));
        assert_eq!(output.status.code(), Some(0));
        let text = String::from_utf8(output.stdout).unwrap();
        let _: Option<serde_json::Value> =
            text.starts_with('{').then(|| serde_json::from_str(&text).unwrap());
        assert!(text.contains("off-cpu"), "{format}");
    }
    assert!(
        refused(&db, "export --to bolt server -o - --no-stacks").contains("--no-stacks is for")
    );
    assert!(refused(&db, "export --to folded --event x -o -").contains("off-cpu"));
}
