//! A review of a large made-up fleet as a page, at which `cargo xtask face` looks:
//! `cargo run --example large -- ROWS > review.html`.

use std::io::{self, Write};

use review::report::{
    BuildRow, ChangeKind, ChangeRow, Estimate, Fleet, HalfHost, Hosts, ImageRow, Ledger,
    MachineRow, Report, SeenRow, ServiceRow, SkewRow, TREND_WEEKS, TopRow, UnlikeRow,
};
use review::{Settings, page, tax};

const SERVICES: [&str; 12] = [
    "web-front",
    "search",
    "store-read",
    "store-write",
    "ads-rank",
    "mail",
    "logs",
    "billing",
    "maps-tiles",
    "video-encode",
    "auth",
    "[kernel]",
];
const IMAGES: [&str; 8] = [
    "server",
    "libc.so.6",
    "libstdc++.so.6",
    "libprotobuf.so.32",
    "libcrypto.so.3",
    "libz.so.1",
    "librank.so",
    "[kernel]",
];
const PARTS: [&str; 12] = [
    "index::Posting",
    "rank::Model",
    "cache::Shard",
    "http::Parser",
    "store::Block",
    "table::Row",
    "query::Plan",
    "json::Value",
    "codec::Frame",
    "tile::Mesh",
    "auth::Token",
    "log::Record",
];
const TAX: [&str; 8] = [
    "malloc",
    "__memmove_avx_unaligned_erms",
    "deflate_fast",
    "_int_free",
    "ZSTD_compressBlock_fast",
    "google::protobuf::internal::TcParser::MiniParse(google::protobuf::MessageLite*)",
    "crc32c::ExtendSse42(unsigned int, unsigned char const*, unsigned long)",
    "pthread_mutex_lock",
];

/// A linear congruential generator (Knuth, MMIX): the same fleet every time.
struct Random(u64);

impl Random {
    fn unit(&mut self) -> f64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn of<'a>(&mut self, names: &[&'a str]) -> &'a str {
        let at = (self.unit() * names.len() as f64) as usize;
        names.get(at).copied().unwrap_or_default()
    }
}

/// Names that a page must survive.
fn hostile(number: usize) -> Option<String> {
    Some(match number {
        11 => "</script><script>document.title = 'broken'</script>".to_owned(),
        12 => "\"><img src=x onerror=\"document.title = 'broken'\">'&amp;`${1}`".to_owned(),
        13 => "\u{202e}desrever\u{2066} \u{1b}[31mred\n\0next".to_owned(),
        14 => format!("fleet::{}::end", "nested<".repeat(600)),
        15 => "__proto__".to_owned(),
        16 => String::new(),
        _ => return None,
    })
}

fn procedure(number: usize, random: &mut Random) -> String {
    if let Some(name) = hostile(number) {
        return name;
    }
    let [a, b, c] = [random.of(&PARTS), random.of(&PARTS), random.of(&PARTS)];
    match number {
        _ if number.is_multiple_of(9) => random.of(&TAX).to_owned(),
        _ if number.is_multiple_of(2) => {
            format!("fleet::{a}<fleet::{b}>::visit_{number}(fleet::{c} const&, unsigned long)")
        }
        _ => format!("<fleet::{a} as core::iter::Iterator>::fold::step_{number}"),
    }
}

fn rows(count: usize, random: &mut Random) -> Vec<TopRow> {
    let row = |number: usize| {
        // Zipf's law: the share of a procedure falls with its rank.
        let core_hours = 40_000.0 / (number as f64 + 4.0);
        let begins = (random.unit() * 30.0) as usize;
        let mut level = core_hours * (0.7 + 0.6 * random.unit());
        let mut trend: Vec<Option<f64>> = (0..TREND_WEEKS)
            .map(|week| {
                level *= 0.94 + 0.12 * random.unit();
                let gap = random.unit() < 0.02;
                (week + 4 >= begins && !gap).then_some(level)
            })
            .collect();
        trend.pop();
        trend.push(Some(core_hours));
        TopRow {
            service: random.of(&SERVICES).to_owned(),
            image: random.of(&IMAGES).to_owned(),
            procedure: procedure(number, random),
            core_hours,
            hosts: 1 + (2_000.0 * random.unit()) as u64,
            trend,
            ..TopRow::default()
        }
    };
    (0..count).map(row).collect()
}

fn of_services(report: &mut Report) {
    let all = report.fleet.core_hours;
    for row in &mut report.top {
        row.share = row.core_hours / all;
    }
    for (at, name) in SERVICES.iter().enumerate() {
        let of = |row: &&TopRow| row.service == *name;
        let core_hours: f64 = report.top.iter().filter(of).map(|row| row.core_hours).sum();
        let hosts = 200 + 100 * at as u64;
        report.services.push(ServiceRow {
            service: (*name).to_owned(),
            core_hours,
            share: core_hours / all,
            hosts,
            change: Some(0.03 - 0.01 * at as f64),
            ..ServiceRow::default()
        });
        for image in IMAGES {
            let of = |row: &&TopRow| row.service == *name && row.image == image;
            let core_hours: f64 = report.top.iter().filter(of).map(|row| row.core_hours).sum();
            report.images.push(ImageRow {
                service: (*name).to_owned(),
                image: image.to_owned(),
                core_hours,
                share: core_hours / all,
                hosts,
                ..ImageRow::default()
            });
        }
    }
    report.services.sort_by(|a, b| b.core_hours.total_cmp(&a.core_hours));
    report.images.sort_by(|a, b| b.core_hours.total_cmp(&a.core_hours));
}

fn of_changes(report: &mut Report, random: &mut Random) {
    let changed = |kind: ChangeKind, row: &TopRow, random: &mut Random| {
        let value = 0.12 * (random.unit() - 0.4);
        let reach = 0.2 * value.abs() + 0.002;
        let is_build = kind == ChangeKind::Build;
        ChangeRow {
            kind,
            service: row.service.clone(),
            image: row.image.clone(),
            procedure: row.procedure.clone(),
            build_old: if is_build { "8d3f6c20c64dcb6d0f" } else { "" }.to_owned(),
            build_new: if is_build { "1b9efac2047ed3a7b5" } else { "" }.to_owned(),
            change: Estimate { value, low: value - reach, high: value + reach },
            q: 0.04 * random.unit(),
            hosts: row.hosts,
            cores: row.core_hours / 168.0 * value,
            same_day: random.unit(),
            ..ChangeRow::default()
        }
    };
    let some: Vec<TopRow> = report.top.iter().step_by(37).take(30).cloned().collect();
    report.changed = some.iter().map(|row| changed(ChangeKind::Build, row, random)).collect();
    report.between_weeks =
        some.iter().skip(20).map(|row| changed(ChangeKind::Week, row, random)).collect();
    for rows in [&mut report.changed, &mut report.between_weeks] {
        rows.sort_by(|a, b| b.cores.abs().total_cmp(&a.cores.abs()));
    }
    if let Some(first) = report.changed.first_mut() {
        first.moved_with = vec!["fleet::cache::Shard::get_inline".to_owned()];
    }
    let seen = |row: &TopRow| SeenRow {
        service: row.service.clone(),
        image: row.image.clone(),
        procedure: row.procedure.clone(),
        core_hours: row.core_hours,
        hosts: row.hosts,
        ..SeenRow::default()
    };
    report.new = some.iter().skip(10).take(12).map(seen).collect();
    report.gone = some.iter().skip(22).take(4).map(seen).collect();
}

fn of_hosts(report: &mut Report) {
    report.hosts = Hosts {
        expected: 2_000,
        heard: 1_988,
        silent: (0..12).map(|at| format!("host-{:04}", at * 131)).collect(),
        half: vec![HalfHost { host: "host-0042".to_owned(), covered: 0.31 }],
        clocks: Vec::new(),
    };
    report.ledger = Ledger {
        taken: 14_812_004_112,
        facts: 9_801_004_112,
        idle: 4_500_000_000,
        unresolved: [("no symbols".to_owned(), 400_000_000), ("exited".to_owned(), 90_000_000)]
            .into(),
        lost: [("buffer full".to_owned(), 21_000_000)].into(),
    };
    let machine = |machine: &str, hosts: u64, share: f64| MachineRow {
        machine: machine.to_owned(),
        hosts,
        cpus: hosts * 64,
        core_hours: report.fleet.core_hours * share,
        busy: 0.2 + share / 3.0,
    };
    report.machines = vec![
        machine("x86_64 AMD EPYC 7B13", 1_100, 0.6),
        machine("x86_64 Intel Xeon 8481C", 600, 0.3),
        machine("aarch64 Neoverse-N1", 288, 0.1),
    ];
    let build = |build: &str, share: f64, first_s: i64| BuildRow {
        build: build.to_owned(),
        hosts: (300.0 * share) as u64,
        share,
        first_s,
        last_s: 1_795_400_000,
        not_judged: None,
    };
    report.skew = vec![SkewRow {
        service: "search".to_owned(),
        image: "server".to_owned(),
        builds: vec![
            build("1b9efac2047ed3a7b5", 0.62, 1_795_100_000),
            build("8d3f6c20c64dcb6d0f", 0.36, 1_793_000_000),
            build("77aa01", 0.02, 1_788_000_000),
        ],
    }];
    report.unlike = vec![UnlikeRow {
        service: "search".to_owned(),
        host: "host-0777".to_owned(),
        distance: 0.41,
        expected: 0.06,
        procedure: "memcpy".to_owned(),
    }];
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let count = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(20_000);
    let mut random = Random(47);
    let mut report = Report {
        week: "2026-W47".to_owned(),
        event: "cpu-clock".to_owned(),
        drill: "dcpi-fleet drill --week 2026-W47 --service {service} --image {image} \
                --procedure {procedure}"
            .to_owned(),
        top: rows(count, &mut random),
        ..Report::default()
    };
    let core_hours = report.top.iter().map(|row| row.core_hours).sum();
    report.fleet = Fleet {
        core_hours,
        busy_cores: core_hours / 168.0,
        cpus: 127_232,
        change: Some(0.012),
        money: None,
    };
    of_services(&mut report);
    of_changes(&mut report, &mut random);
    of_hosts(&mut report);
    let settings = Settings::parse(
        Some("currency = \"EUR\"\ncore_hour = 0.021\n"),
        Some(
            "[service]\nsearch = \"search\"\nstore = \"storage\"\nads = \"ads\"\n\
             web = \"front\"\n[image]\nlibc = \"runtime\"\n[procedure]\n\
             \"fleet::rank\" = \"rank\"\n",
        ),
        Some(
            "[[finding]]\nid = \"F-7\"\nservice = \"search\"\nimage = \"server\"\n\
             procedure = \"fleet::rank::Model::score\"\ntext = \"score in one pass\"\n\
             promised_cores = 12\nweek = \"2026-W45\"\n",
        ),
    )?;
    report.findings = vec![review::report::FindingRow {
        id: "F-7".to_owned(),
        got: vec![
            review::report::GotWeek {
                week: "2026-W46".to_owned(),
                value: 4.0,
                low: 1.0,
                high: 7.0,
            },
            review::report::GotWeek {
                week: "2026-W47".to_owned(),
                value: 9.5,
                low: 8.0,
                high: 11.0,
            },
        ],
        ..Default::default()
    }];
    settings.apply(&mut report);
    if let Some(first) = report.changed.first_mut() {
        first.accepted = Some("checks that security asked for (F-7, 2026-W46)".to_owned());
    }
    report.tax = tax::of(&report);
    let mut out = io::stdout().lock();
    page::write(&report, "measured", &mut out)?;
    out.flush()?;
    Ok(())
}
