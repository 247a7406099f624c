//! Asks one of the statements about a closed week as `close` does, and prints seconds, rows and the
//! peak of memory: `ask STORE WEEK STATEMENT SERVICE|each|all`. `each`: service after service;
//! `all`: once, of all services. For `engine/crosscheck/beside.py`.
#![allow(clippy::expect_used)]

use std::collections::BTreeMap;
use std::time::Instant;

use engine::Engine;
use store::{FileEntry, Manifest, Store, Week};
use tables::{Fact, HostWeek, Pair, Table, from_parquet};

/// Memory of the engine, as `close` has it by default.
const MEMORY_BYTES: usize = 1 << 30;

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_stack_size(16 << 20)
        .build()
        .expect("a runtime starts");
    runtime.block_on(ask());
}

async fn ask() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, week, statement, services] = arguments.as_slice() else {
        eprintln!("ask STORE WEEK STATEMENT SERVICE|each|all");
        std::process::exit(2);
    };
    let store = Store::at(address).expect("the store opens");
    let week: Week = week.parse().expect("a week");
    let now = Manifest::newest(&store, week).await.expect("the week's manifest");
    let before = Manifest::newest(&store, week.before(1)).await.expect("the manifest before");
    let pairs = pairs(&store, &now).await;
    let of: Vec<Option<i64>> = match services.as_str() {
        "all" => vec![None],
        "each" => pairs.keys().map(|service| Some(*service)).collect(),
        one => vec![Some(one.parse().expect("a service's number"))],
    };
    let (_, sql) = weeks::STATEMENTS.iter().find(|(name, _)| name == statement).expect("its name");
    let engine = Engine::local(&store, MEMORY_BYTES).expect("an engine");
    let hosts = now.files_of(Table::HostWeeks.name(), "time");
    engine.register::<HostWeek>("host_weeks", hosts).expect("hosts");
    let begin = Instant::now();
    let mut rows = 0;
    for service in of {
        let is_of = |file: &&FileEntry| service.is_none() || file.service == service;
        let facts = now.files_of(Table::Facts.name(), "time").filter(is_of);
        engine.register::<Fact>("facts", facts).expect("facts");
        let facts = before.files_of(Table::Facts.name(), "time").filter(is_of);
        engine.register::<Fact>("facts_before", facts).expect("facts");
        let of_pairs = pairs.iter().filter(|(of, _)| service.is_none_or(|service| service == **of));
        engine.register::<Pair>("pairs", of_pairs.map(|(_, file)| file)).expect("pairs");
        let sql = sql.replace(":service", &service.unwrap_or_default().to_string());
        let batches = engine.batches(&sql).await.expect("an answer");
        rows += batches.iter().map(|batch| batch.num_rows()).sum::<usize>();
    }
    println!("{:.3} {rows} {}", begin.elapsed().as_secs_f64(), peak_mb());
}

/// The file of each service's pairs.
async fn pairs(store: &Store, manifest: &Manifest) -> BTreeMap<i64, FileEntry> {
    let mut pairs = BTreeMap::new();
    for file in manifest.files_of(Table::Pairs.name(), "time") {
        let bytes = store.get(&file.key).await.expect("a store").expect("a file");
        let rows = from_parquet::<Pair>(bytes).expect("pairs");
        pairs.extend(rows.first().map(|pair| (pair.service, file.clone())));
    }
    pairs
}

/// The peak of this process's memory in MB.
fn peak_mb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or_default() / 1024
}
