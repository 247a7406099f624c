//! The whole chain on six hosts: dcpid in containers, pushed, received, ingested, closed,
//! reviewed, and from a row of the review down to instructions and a compiler's profile.
//!
//! Each host is a container of systemd-nspawn over this machine's own files, read-only, with a host
//! name, a process namespace and a dcpid of its own. A dcpid counts samples of the other containers
//! as `other_pid_namespace`.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, clippy::expect_used)]

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;

/// Hosts of the fleet: of two builds on four hosts a review is sure or not as the machine's noise
/// comes.
const HOSTS: [&str; 6] = ["web1", "web2", "web3", "web4", "web5", "web6"];
/// Hosts that run at once. More of them share two cores and their cache, which is the noise.
const AT_ONCE: usize = 2;
/// Services of the fleet, labels of runs.
const SERVICES: [&str; 2] = ["shop", "cellar"];
/// Steps of a price in the old build and in the new one.
const STEPS: [(&str, u32); 2] = [("old", 4), ("new", 48)];
/// Longest time for a container, in s. It takes 30 on two cores that do little else.
const HOST_S: &str = "400";
/// Seconds of a week.
const WEEK_S: u64 = 7 * 86_400;

/// Samples by service, image and procedure.
type Samples = BTreeMap<[String; 3], u64>;

/// The programs of the main workspace: dcpid, dcpi, dcpictl, dcpilabel.
fn programs() -> PathBuf {
    let of_xtask = std::env::var_os("DCPI_PROGRAMS").map(PathBuf::from);
    let built = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/debug");
    let programs = of_xtask.unwrap_or_else(built);
    programs.canonicalize().expect("the programs; run cargo xtask fleet")
}

/// A command that finds the programs.
fn command(program: &str) -> Command {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new(program);
    command.env("PATH", format!("{}:{path}", programs().display())).stdin(Stdio::null());
    command
}

fn fleet(store: &Path, arguments: &[&str]) -> Command {
    let mut command = command(env!("CARGO_BIN_EXE_dcpi-fleet"));
    command.args(arguments).env("DCPI_FLEET_STORE", store);
    command
}

/// What a command says that ends with this code.
fn ends(command: &mut Command, code: i32) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let [out, err] = [stdout, stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert_eq!(status.code(), Some(code), "{command:?}\n{out}{err}");
    out
}

fn ok(command: &mut Command) -> String {
    ends(command, 0)
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// `dcpi-fleet receive` or `serve`, until it is dropped.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start(command: &mut Command) -> Self {
        let command = command.args(["--listen", "127.0.0.1:0"]);
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
        let (_, address) = line.split_once("address=").expect("it tells where it listens");
        let address = address.split(' ').next().unwrap().to_owned();
        Self { child, address }
    }

    /// The status and body of the answer to a request.
    fn ask(&self, method: &str, path: &str, host: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let head = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let _ = self.child.wait();
    }
}

/// The program, built in a directory.
fn build(to: &Path, compiler: &str, steps: u32, flags: &[String]) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/chain/shop.c");
    let mut command = Command::new(compiler);
    command.args(["-g", "-O2", "-Wl,--build-id"]).arg(format!("-DPRICE_STEPS={steps}"));
    ok(command.args(flags).arg("-o").arg(to).arg(source));
}

/// Runs a host to its end: what it said. `shared` is its `/shared`, which stays.
fn run_host(name: &str, shared: &Path, store: &str) -> String {
    let place = shared.with_file_name(format!("{name}-root"));
    std::fs::create_dir(&place).unwrap();
    // nspawn does not take the root itself. The mount ends with the container.
    let script = "mount --bind / \"$0\" && exec timeout \"$1\" systemd-nspawn --quiet \
                  --register=no --keep-unit --volatile=overlay --as-pid2 --console=pipe \
                  --capability=all '--system-call-filter=bpf perf_event_open' \
                  --directory=\"$0\" --machine=\"$2\" --hostname=\"$3\" \
                  --bind=\"$4\":/shared --bind-ro=\"$5\":/dcpi --bind-ro=\"$6\":/host.sh \
                  sh /host.sh \"$7\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script]).arg(&place).arg(HOST_S);
    command.arg(format!("dcpi-chain-{}-{name}", std::process::id())).arg(name).arg(shared);
    command.arg(programs());
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/chain/host.sh"));
    ok(command.arg(store).stdin(Stdio::null()))
}

/// Runs all hosts, some at once, which push to a receiver of the store.
fn run_hosts(place: &Path, store: &Path) {
    for host in HOSTS {
        let shared = place.join(host);
        for (name, steps) in STEPS {
            std::fs::create_dir_all(shared.join(name)).unwrap();
            build(&shared.join(name).join("shop"), "cc", steps, &[]);
        }
        build(&shared.join("cellar"), "cc", 2, &[]);
    }
    let receiver = Server::start(fleet(store, &["receive", "--store"]).arg(store));
    let url = format!("dcpi+http://{}", receiver.address);
    std::thread::scope(|scope| {
        for hosts in HOSTS.chunks(HOSTS.len() / AT_ONCE) {
            let url = url.as_str();
            scope.spawn(move || {
                for host in hosts {
                    let said = run_host(host, &place.join(host), url);
                    assert!(said.contains(&format!("{url}: 3 epochs, code of ")), "{said}");
                    assert!(said.ends_with(&format!("{url}: nothing new\n")), "{said}");
                }
            });
        }
    });
}

/// The report of `dcpi prof` of the epochs of a host that have ended: all but the last.
fn prof(place: &Path, host: &str, arguments: &[&str]) -> Value {
    let db = place.join(host).join("db");
    let entries = std::fs::read_dir(db.join("hosts").join(host)).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut epochs: Vec<String> = names.filter(|name| name.starts_with("20")).collect();
    epochs.sort();
    assert_eq!(epochs.len(), 4, "{epochs:?}");
    let mut command = command("dcpi");
    command
        .args(["prof", "--format", "json", "--epoch"])
        .arg(epochs[0].clone() + ".." + &epochs[2]);
    json(&ok(command.arg("--db").arg(db).args(arguments)))
}

/// The key, without a procedure where reports may name it in two ways: code without symbols, and
/// images of this machine, whose files and debug files tell `dcpi prof` names that hosts do not
/// send.
fn named([service, image, procedure]: [String; 3]) -> [String; 3] {
    let is_sent = ["shop", "cellar", "dcpid", "[kernel]"].contains(&image.as_str());
    let is_symbol = !procedure.starts_with("0x") && !procedure.starts_with("[.");
    let procedure = if is_sent && is_symbol { procedure } else { String::new() };
    [service, image, procedure]
}

/// Adds the rows of a report, by what service they are of, times `sign`.
fn add(sums: &mut BTreeMap<[String; 3], i64>, report: &Value, label: Option<&str>, sign: i64) {
    for row in report["rows"].as_array().unwrap() {
        let text = |name: &str| row[name].as_str().unwrap().to_owned();
        let service = match (label, text("kind").as_str()) {
            (_, "unresolved" | "idle") => continue,
            (Some(label), _) => label,
            (None, "kernel" | "module" | "bpf") => "[kernel]",
            (None, _) => "[other]",
        };
        let samples = row["counts"]["cpu-clock"].as_i64().unwrap();
        let key = [service.to_owned(), text("image"), text("procedure")];
        *sums.entry(named(key)).or_default() += sign * samples;
    }
}

/// The samples of all hosts, by `dcpi prof`.
fn by_prof(place: &Path) -> Samples {
    let mut sums = BTreeMap::new();
    for host in HOSTS {
        add(&mut sums, &prof(place, host, &[]), None, 1);
        for label in SERVICES {
            let labelled = prof(place, host, &["--label", label]);
            add(&mut sums, &labelled, None, -1);
            add(&mut sums, &labelled, Some(label), 1);
        }
    }
    let positive = |(key, samples): ([String; 3], i64)| {
        Some((key, u64::try_from(samples).unwrap())).filter(|(_, samples)| *samples > 0)
    };
    sums.into_iter().filter_map(positive).collect()
}

/// The samples of a review's rows, of which each stands for `period_ns`.
fn by_review(review: &Value, period_ns: f64) -> Samples {
    let mut sums = Samples::new();
    for row in review["top"].as_array().unwrap() {
        let key = ["service", "image", "procedure"].map(|of| row[of].as_str().unwrap().to_owned());
        let samples = row["core_hours"].as_f64().unwrap() * 3600.0 * 1e9 / period_ns;
        // The review has nine digits.
        assert!((samples - samples.round()).abs() < 0.01, "{row}: {samples} samples");
        *sums.entry(named(key)).or_default() += samples.round() as u64;
    }
    sums
}

/// The review has the samples of `dcpi prof`, and its ledger closes.
fn reviewed(place: &Path, review: &Value) {
    let reports = HOSTS.map(|host| prof(place, host, &["--idle"]));
    let event = |report: &Value| report["events"][0].clone();
    let period = event(&reports[0])["period"].as_f64().unwrap();
    let (theirs, ours) = (by_prof(place), by_review(review, period));
    for (key, samples) in &theirs {
        assert_eq!(ours.get(key), Some(samples), "{key:?}");
    }
    assert_eq!(theirs, ours);
    let all: u64 = ours.values().sum();
    let mut shares: BTreeMap<[String; 3], f64> = BTreeMap::new();
    for row in review["top"].as_array().unwrap() {
        let key = ["service", "image", "procedure"].map(|of| row[of].as_str().unwrap().to_owned());
        *shares.entry(named(key)).or_default() += row["share"].as_f64().unwrap();
    }
    for (key, share) in shares {
        let expected = theirs[&key] as f64 / all as f64;
        assert!((share - expected).abs() < 1e-8, "{key:?}: {share} {expected}");
    }
    let ledger = &review["ledger"];
    let sum =
        |of: &Value| -> u64 { of.as_object().unwrap().values().flat_map(Value::as_u64).sum() };
    let whole = |of: &Value| of.as_u64().unwrap();
    let [taken, facts, idle] = ["taken", "facts", "idle"].map(|part| whole(&ledger[part]));
    let missed = ["unresolved", "lost"].map(|part| sum(&ledger[part]));
    assert_eq!(taken, facts + idle + missed[0] + missed[1], "{ledger}");
    let of_hosts = |part: &dyn Fn(&Value) -> u64| -> u64 {
        reports.iter().map(|report| part(&event(report))).sum()
    };
    assert_eq!(idle, of_hosts(&|event| whole(&event["idle"])), "{ledger}");
    assert_eq!(missed[0], of_hosts(&|event| sum(&event["unresolved"])), "{ledger}");
    assert_eq!(missed[1], of_hosts(&|event| sum(&event["lost"])), "{ledger}");
    assert_eq!(taken, of_hosts(&|event| whole(&event["total"]) + sum(&event["lost"])), "{ledger}");
    assert_eq!(facts, all, "{ledger}");
    eprintln!("{} rows, {all} samples of {taken}", ours.len());
}

/// The sentence above the instruction with the most samples, which says why it waited, and the
/// instruction.
fn hottest(listing: &str) -> (String, String) {
    let lines: Vec<&str> = listing.lines().collect();
    let samples = |line: &str| {
        let mut words = line.split_whitespace();
        let samples = words.next()?.replace(',', "").parse::<u64>().ok()?;
        words.next()?.starts_with("0x").then_some(samples)
    };
    let at = (0..lines.len()).max_by_key(|at| samples(lines[*at])).unwrap();
    assert!(samples(lines[at]) > Some(100), "{listing}");
    let from = (0..at).rfind(|from| lines[*from].contains("stalled: ")).unwrap_or(at - 1);
    let why: Vec<&str> = lines[from..at].iter().map(|line| line.trim()).collect();
    (why.join(" "), lines[at].to_owned())
}

/// From rows of the review to instructions and causes, each by one command.
fn drilled(review: &Value, week: &str) {
    let program = Path::new(env!("CARGO_BIN_EXE_dcpi-fleet")).parent().unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    let listing = |procedure: &str| {
        let drill = review["drill"].as_str().unwrap();
        assert!(drill.contains(week), "{drill}");
        let names = [("{service}", "shop"), ("{image}", "shop"), ("{procedure}", procedure)];
        let line =
            names.iter().fold(drill.to_owned(), |line, (place, name)| line.replace(place, name));
        let mut bash = Command::new("bash");
        bash.args(["-c", &line]).stdin(Stdio::null());
        bash.env("PATH", format!("{}:{}:{path}", program.display(), programs().display()));
        ok(&mut bash)
    };
    let search = listing("search");
    let (why, instruction) = hottest(&search);
    let load = search.lines().find(|line| line.contains("mov (%")).unwrap();
    let address = load.split_whitespace().find(|word| word.starts_with("0x")).unwrap();
    // The sample is the load's, or of the instruction after it where hosts did not agree on skids.
    let is_load = instruction.contains(address) && why.contains("cache or TLB miss");
    let of_load = why.contains(&format!(" at {address}"));
    assert!(why.contains("stalled: cache or TLB miss") && (is_load || of_load), "{search}");
    eprintln!("{}\n{}", why.trim(), instruction.trim());
    let price = listing("price");
    assert!(price.contains("imul") && !price.contains("stalled: cache"), "{price}");
}

/// A compiler takes the profile of the fleet's epochs.
fn compiled(place: &Path, store: &Path, week: &str, build_id: &str) {
    let [db, profile, program] = ["drilled", "profile", "fed"].map(|name| place.join(name));
    let drill = ["drill", "--week", week, "--service", "shop", "--image", "shop", "-o"];
    ok(fleet(store, &drill).arg(&db));
    // Debug information stays where the program was built, by its id.
    let built = place.join(HOSTS[0]).join("new/shop");
    let debug = place.join("debug");
    // What follows is a hash of program headers.
    let (digits, _) = build_id.split_once('-').unwrap();
    let of_id = debug.join(".build-id").join(&digits[..2]);
    std::fs::create_dir_all(&of_id).unwrap();
    std::fs::copy(&built, of_id.join(format!("{}.debug", &digits[2..]))).unwrap();
    let mut export = command("dcpi");
    export.args(["export", "--to", "autofdo", "--db"]).arg(&db).arg("-o").arg(&profile);
    ok(export.arg("--debug-root").arg(debug).arg(build_id));
    let text = std::fs::read_to_string(&profile).unwrap();
    let has = |procedure: &str| text.lines().any(|line| line.starts_with(procedure));
    assert!(has("search:") && has("price:"), "{text}");
    let flag = format!("-fprofile-sample-use={}", profile.display());
    let (_, steps) = STEPS[1];
    build(&program, "clang-19", steps, std::slice::from_ref(&flag));
    assert_eq!(ok(Command::new(&program).arg("3")), ok(Command::new(built).arg("3")));
    let ir = place.join("fed.ll");
    build(&ir, "clang-19", steps, &[flag, "-S".to_owned(), "-emit-llvm".to_owned()]);
    let ir = std::fs::read_to_string(ir).unwrap();
    assert!(ir.contains("!\"branch_weights\"") && ir.contains("function_entry_count"), "{ir}");
}

/// The pages, and who may not have them.
fn served(store: &Path, week: &str, review: &Value) {
    let server = Server::start(&mut fleet(store, &["serve"]));
    let get = |path: &str| {
        let (status, body) = server.ask("GET", path, "localhost");
        assert_eq!(status, 200, "{path}: {body}");
        body
    };
    assert!(get("/").contains(&format!("<a href=\"/week/{week}\">")));
    assert!(get(&format!("/week/{week}")).contains("<html"));
    let mut same = json(&get(&format!("/week/{week}.json")));
    same["drill"] = review["drill"].clone();
    assert_eq!(&same, review);
    let drill = format!("/drill/{week}?service=shop&image=shop");
    let search = get(&format!("{drill}&procedure=search"));
    assert!(hottest(&search).0.contains("cache or TLB miss"), "{search}");
    assert!(get(&drill).contains("<html"));
    assert_eq!(server.ask("GET", "/", "evil.example").0, 421);
    assert_eq!(server.ask("POST", "/", "localhost").0, 405);
    assert_eq!(server.ask("GET", "/drill/x", "localhost").0, 404);
}

/// The builds of the shop by which review tells that a price costs more, the old one first.
fn compared(store: &Path, week: &str, review: &Value) -> [String; 2] {
    let changed = review["changed"].as_array().unwrap();
    let price = changed
        .iter()
        .find(|row| row["procedure"] == "price")
        .unwrap_or_else(|| panic!("a changed price: {review}"));
    let [old, new] = ["build_old", "build_new"].map(|of| price[of].as_str().unwrap().to_owned());
    let more = price["change"]["value"].as_f64().unwrap();
    assert!((0.3..12.0).contains(&more) && price["hosts"] == HOSTS.len(), "{price}");
    eprintln!("{price}");
    let ask = ["compare", "--week", week, "--format", "json", "--service", "shop", "--build"];
    let answer = json(&ends(fleet(store, &ask).args([&old, &new]), 1));
    assert_eq!(answer["hosts"]["both"], HOSTS.len(), "{answer}");
    assert_eq!(answer["verdict"], "costs", "{answer}");
    assert!(answer["why"][0].as_str().unwrap().ends_with(" in price"), "{answer}");
    ok(fleet(store, &ask).args([&old, &new]).args(["--rules"]).arg(rules(store)));
    [old, new]
}

/// Rules of which the new build breaks none.
fn rules(store: &Path) -> PathBuf {
    let path = store.with_file_name("rules.toml");
    std::fs::write(&path, "procedure_percent = 99\n").unwrap();
    path
}

#[test]
#[ignore = "needs root, systemd-nspawn, cc and clang-19: run by cargo xtask fleet"]
fn from_dcpid_on_six_hosts_to_a_compiler() {
    assert_eq!(std::fs::metadata("/proc/self").unwrap().uid(), 0, "needs root");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    // Epochs are of the week in which they begin; 1970 began on a Thursday.
    let left = WEEK_S - (now + 3 * 86_400) % WEEK_S;
    if left < 300 {
        std::thread::sleep(Duration::from_secs(left));
    }
    let place = tempfile::tempdir().unwrap();
    let store = place.path().join("store");
    std::fs::create_dir(&store).unwrap();
    run_hosts(place.path(), &store);
    let taken = ok(&mut fleet(&store, &["ingest"]));
    let (week, rest) = taken.split_once(": ").unwrap();
    assert_eq!(rest, format!("{} epochs taken\n", 3 * HOSTS.len()));
    assert_eq!(ok(&mut fleet(&store, &["ingest"])), "nothing new\n");
    ok(&mut fleet(&store, &["close", "--week", week]));
    let review = ok(&mut fleet(&store, &["review", "--week", week, "--format", "json"]));
    let review = json(&review);
    assert_eq!(review["hosts"]["heard"], HOSTS.len());
    assert_eq!(review["fleet"]["change"], Value::Null);
    reviewed(place.path(), &review);
    let [_, new] = compared(&store, week, &review);
    drilled(&review, week);
    compiled(place.path(), &store, week, &new);
    served(&store, week, &review);
}
