//! A small made-up review as text, JSON and page. `BLESS=1 cargo test -p review` writes the golden
//! files again; review the diff.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::path::Path;

use review::report::{
    BuildRow, ChangeKind, ChangeRow, ClockHost, Estimate, FindingRow, Fleet, GotWeek, HalfHost,
    Hosts, ImageRow, Ledger, MachineRow, SeenRow, ServiceRow, SkewRow, TREND_WEEKS, TopRow,
    UnlikeRow,
};
use review::{Report, Settings, json, page, tax, text};

/// A name that would be markup, a command of a terminal, and the end of a script.
const HOSTILE: &str = "</script><script>alert(1)</script><!-- \u{202e}\u{1b}[2J\n\"'&";

fn top(names: [&str; 3], core_hours: f64, hosts: u64) -> TopRow {
    let [service, image, procedure] = names.map(str::to_owned);
    let mut trend = vec![None; TREND_WEEKS - 3];
    trend.extend([Some(core_hours * 0.9), Some(core_hours / 1.1), Some(core_hours)]);
    let share = core_hours / 1_680.0;
    TopRow { service, image, procedure, core_hours, share, hosts, trend, ..TopRow::default() }
}

fn changed(kind: ChangeKind, procedure: &str, value: f64, cores: f64) -> ChangeRow {
    let of_build = |build: &str| match kind {
        ChangeKind::Build => build.to_owned(),
        ChangeKind::Week => String::new(),
    };
    ChangeRow {
        kind,
        service: "search".to_owned(),
        image: "server".to_owned(),
        build_old: of_build("8d3f6c20c64dcb6d0f11"),
        build_new: of_build("1b9efac2047ed3a7b522"),
        procedure: procedure.to_owned(),
        change: Estimate { value, low: value - 0.004, high: value + 0.004 },
        q: 0.001,
        hosts: 301,
        cores,
        ..ChangeRow::default()
    }
}

fn seen(procedure: &str, core_hours: f64) -> SeenRow {
    SeenRow {
        service: "web".to_owned(),
        image: "server".to_owned(),
        procedure: procedure.to_owned(),
        core_hours,
        hosts: 3,
        ..SeenRow::default()
    }
}

fn service(name: &str, core_hours: f64, machine: &str, change: Option<f64>) -> ServiceRow {
    ServiceRow {
        service: name.to_owned(),
        core_hours,
        share: core_hours / 1_680.0,
        hosts: 40,
        change,
        machines: [(machine.to_owned(), core_hours)].into(),
        ..ServiceRow::default()
    }
}

fn of_fleet(report: &mut Report) {
    report.hosts = Hosts {
        expected: 50,
        heard: 43,
        silent: (1..=7).map(|at| format!("host-{at}")).collect(),
        half: vec![HalfHost { host: "host-9".to_owned(), covered: 0.31 }],
        clocks: vec![ClockHost { host: "host-11".to_owned(), ahead_s: 3_720 }],
    };
    report.ledger = Ledger {
        taken: 10_000_000,
        facts: 6_048_000,
        idle: 3_700_000,
        unresolved: [("no symbols".to_owned(), 150_000), ("exited".to_owned(), 50_000)].into(),
        lost: [("buffer full".to_owned(), 52_000)].into(),
    };
    report.fleet = Fleet {
        core_hours: 1_680.0,
        busy_cores: 10.0,
        cpus: 344,
        change: Some(0.012),
        money: None,
    };
    report.services = vec![
        service("search", 1_200.0, "x86_64 EPYC", Some(0.02)),
        service("web", 480.0, "aarch64 N1", None),
    ];
    report.images = vec![ImageRow {
        service: "search".to_owned(),
        image: "server".to_owned(),
        core_hours: 900.0,
        share: 900.0 / 1_680.0,
        hosts: 40,
        ..ImageRow::default()
    }];
    report.machines = vec![MachineRow {
        machine: "x86_64 EPYC".to_owned(),
        hosts: 30,
        cpus: 240,
        core_hours: 1_200.0,
        busy: 0.41,
    }];
    let build = |build: &str, hosts: u64, share: f64| BuildRow {
        build: build.to_owned(),
        hosts,
        share,
        first_s: 1_795_100_000,
        last_s: 1_795_400_000,
        not_judged: (hosts < 20)
            .then(|| "1 host ran it and the build before, two are needed".into()),
    };
    report.skew = vec![SkewRow {
        service: "search".to_owned(),
        image: "server".to_owned(),
        builds: vec![
            build("1b9efac2047ed3a7b522", 25, 0.62),
            build("8d3f6c20c64dcb6d0f11", 15, 0.38),
        ],
    }];
    report.unlike = vec![UnlikeRow {
        service: "web".to_owned(),
        host: "host-17".to_owned(),
        distance: 0.41,
        expected: 0.06,
        procedure: "memcpy".to_owned(),
    }];
}

fn report() -> Report {
    let long = "fleet::rank::Model<fleet::index::Posting<fleet::table::Row>, 16>::score(float)";
    let mut report = Report {
        week: "2026-W47".to_owned(),
        event: "cpu-clock".to_owned(),
        drill: "dcpi-fleet drill --week 2026-W47 --service {service} --image {image} \
                --procedure {procedure}"
            .to_owned(),
        top: vec![
            top(["search", "server", long], 500.0, 40),
            top(["search", "libc.so.6", "__memmove_avx_unaligned_erms"], 84.0, 43),
            top(["web", "[kernel]", "clear_page_erms"], 42.0, 43),
            top(["web", "server", ""], 4.2, 3),
            top(["web", "server", HOSTILE], 0.000_1, 1),
        ],
        changed: vec![
            ChangeRow {
                same_day: 0.8,
                moved_with: vec!["fleet::rank::sum".to_owned()],
                ..changed(ChangeKind::Build, long, 0.0235, 0.7)
            },
            changed(ChangeKind::Build, "", -0.01, -0.3),
        ],
        between_weeks: vec![changed(ChangeKind::Week, "fleet::load", 0.08, 0.02)],
        new: vec![seen("fleet::fresh", 3.0)],
        gone: vec![seen("fleet::old", 1.5)],
        seldom: vec![seen("fleet::leap_year", 0.2)],
        findings: vec![FindingRow {
            id: "F-7".to_owned(),
            got: vec![GotWeek { week: "2026-W47".to_owned(), value: 2.0, low: 1.0, high: 3.5 }],
            ..FindingRow::default()
        }],
        ..Report::default()
    };
    of_fleet(&mut report);
    let prices = "currency = \"EUR\"\ncore_hour = 0.02\n[machines]\n\"aarch64 N1\" = 0.01\n";
    let owners = "[service]\nsearch = \"search team\"\n[image]\nlibc = \"runtime\"\n";
    let findings = "[[finding]]\nid = \"F-7\"\nservice = \"search\"\nimage = \"server\"\n\
                    text = \"one pass over the postings\"\npromised_cores = 3\n\
                    week = \"2026-W45\"\n";
    Settings::parse(Some(prices), Some(owners), Some(findings)).unwrap().apply(&mut report);
    report.tax = tax::of(&report);
    report
}

fn golden(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(committed == text, "{name} is another; BLESS=1 takes it:\n{text}");
}

fn written(report: &Report, style: text::Style) -> String {
    let mut out = Vec::new();
    text::write(report, style, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn text_is_for_a_terminal() {
    let report = report();
    let shown = written(&report, text::Style { columns: 100, rows: 20 });
    golden("review.txt", &shown);
    assert!(shown.lines().all(|line| line.chars().all(|c| !c.is_control() && c != '\u{202e}')));
    for columns in [80, 100, 140] {
        let shown = written(&report, text::Style { columns, rows: 20 });
        // A command is never broken: it is there to be copied.
        let wide = |line: &&str| line.chars().count() > columns && !line.contains("dcpi-fleet");
        assert_eq!(shown.lines().find(wide), None);
    }
    let few = written(&report, text::Style { columns: 100, rows: 1 });
    assert!(few.contains("\n4 more\n") && !few.contains("clear_page_erms"), "{few}");
}

#[test]
fn an_empty_report_has_a_head_only() {
    let shown = written(&Report::default(), text::Style { columns: 80, rows: 20 });
    assert!(shown.lines().count() < 6 && !shown.contains("NaN"), "{shown}");
}

#[test]
fn a_ledger_that_does_not_close_is_said_aloud() {
    let mut report = report();
    report.ledger.lost.clear();
    let shown = written(&report, text::Style { columns: 100, rows: 1 });
    assert!(shown.contains("NOT accounted for: 52000"), "{shown}");
    assert!(page_of(&report).contains("NOT accounted for: 52000"));
}

#[test]
fn json_is_an_interface() {
    let report = report();
    let mut out = Vec::new();
    json::write(&report, &mut out).unwrap();
    golden("review.json", &String::from_utf8(out.clone()).unwrap());
    let again: Report = serde_json::from_slice(&out).unwrap();
    assert_eq!(again.top[4].procedure, HOSTILE);
    assert_eq!((again.schema.name.as_str(), again.schema.version), ("dcpi-fleet-review", 1));
    // All but the digits behind the ninth come back.
    let mut twice = Vec::new();
    json::write(&again, &mut twice).unwrap();
    assert_eq!(twice, out);
}

fn page_of(report: &Report) -> String {
    let mut out = Vec::new();
    page::write(report, "guess-me-not", &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn data_of(page: &str) -> serde_json::Value {
    let begin = "<script type=\"application/json\" id=\"report-0\">";
    let (_, data) = page.split_once(begin).unwrap();
    serde_json::from_str(data.split_once("</script>").unwrap().0).unwrap()
}

#[test]
fn names_are_data_in_the_page() {
    let mut report = report();
    // Wherever a name of a host's may be.
    report.event = HOSTILE.to_owned();
    report.week = HOSTILE.to_owned();
    report.currency = Some(HOSTILE.to_owned());
    report.hosts.silent.push(HOSTILE.to_owned());
    report.ledger.lost.insert(HOSTILE.to_owned(), 0);
    report.services[0].machines.insert(HOSTILE.to_owned(), 1.0);
    report.machines[0].machine = HOSTILE.to_owned();
    report.changed[0].moved_with = vec![HOSTILE.to_owned()];
    report.skew[0].builds[0].build = HOSTILE.to_owned();
    let page = page_of(&report);
    assert!(!page.contains("<script>alert"));
    // The configuration, the data, the script, and no more.
    assert_eq!(page.matches("<script").count(), 3);
    assert_eq!(page.matches("</script").count(), 3);
    assert!(page.chars().all(|c| c == '\n' || !c.is_control() && c != '\u{202e}'));
    assert!(page.contains("script-src 'nonce-guess-me-not'; style-src 'nonce-guess-me-not'"));
    assert!(page.contains("default-src 'none'"));
    let data = data_of(&page);
    let shown = HOSTILE.replace('\u{202e}', "\\u{202e}").replace('\u{1b}', "\\x1b");
    let shown = shown.replace('\n', "\\n");
    assert_eq!(data["report"]["skew"][0]["builds"][0]["build"], shown);
    // The command of such a name names it all the same.
    let word = review::report::shell_word(HOSTILE);
    assert_eq!(data["words"][&shown], word);
    assert!(report.drill_command("web", "server", HOSTILE).ends_with(&word));
}

#[test]
fn rows_of_the_page_are_columns_of_numbers() {
    let report = report();
    let data = data_of(&page_of(&report));
    let top = &data["top"];
    for (at, row) in report.top.iter().enumerate() {
        let name = |column: &str| {
            let number = top[column][at].as_u64().unwrap();
            data["names"][usize::try_from(number).unwrap()].as_str().unwrap().to_owned()
        };
        assert_eq!((name("service"), name("image")), (row.service.clone(), row.image.clone()));
        assert_eq!(top["hosts"][at], row.hosts);
        let hours = top["core_hours"][at].as_f64().unwrap();
        assert!((hours / row.core_hours - 1.0).abs() < 1e-4);
    }
    assert_eq!(top["owner"][3], -1);
    let digits = top["trend"].as_str().unwrap().len();
    assert_eq!(digits, report.top.len() * TREND_WEEKS * 2);
    // Each name once.
    let names = data["names"].as_array().unwrap();
    assert_eq!(names.iter().filter(|name| *name == "web").count(), 1);
    assert!(data["report"]["top"].as_array().unwrap().is_empty());
}
