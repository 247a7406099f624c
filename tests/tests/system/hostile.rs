//! Malicious processes of an ordinary user: the daemon survives them, keeps its memory bounded, and
//! profiles others correctly. These tests need root, as those of privileged.rs do. Similar tests:
//! edges.rs (code), generated.rs (files in /tmp), mappings.rs, storm.rs, abuse.rs (sockets).

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tests::daemon::{Daemon, Place, assert_closes};
use tests::report::prof;
use tests::workload::{Running, Truth, Workload};
use tests::{binary, require_root, succeed};

/// Limit of the daemon's resident memory under attack.
const RSS_MAX: u64 = 64 << 20;

pub(crate) fn start(place: &Place) -> Daemon<'_> {
    let mut command = place.dcpid();
    command.args(["--event", "cpu-clock@5200"]);
    place.start_as(command)
}

/// A command as nobody, in a directory.
pub(crate) fn as_nobody(directory: &Path, program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(program)
        .current_dir(directory);
    command
}

/// A folder that is not writable.
pub(crate) fn nobodys_folder(place: &Place) -> PathBuf {
    let directory = place.path().join("nobodys");
    std::fs::create_dir(&directory).unwrap();
    std::os::unix::fs::chown(&directory, Some(65534), Some(65534)).unwrap();
    directory
}

/// Fails the test unless a program beside malicious ones has its known shares, and the daemon is
/// healthy.
pub(crate) fn assert_well(place: &Place, daemon: &Daemon<'_>, known: Truth) {
    daemon.flush();
    let status = daemon.status();
    assert_closes(&status.samples);
    eprintln!(
        "{} KiB resident, {:.1} s of CPU time, {} records lost, {:?}, lost {:?}",
        status.daemon.rss_bytes >> 10,
        status.daemon.cpu_s,
        status.lost_records,
        status.samples.unresolved,
        status.samples.lost
    );
    assert!(status.daemon.rss_bytes < RSS_MAX, "{} bytes", status.daemon.rss_bytes);
    let prof = prof(&place.db(), &["two_functions", "--confidence", "99.9"]);
    let share = prof.row("two_functions", "three_quarters").share();
    let expected = known.number("three_quarters");
    eprintln!("three_quarters: {share:?}, {expected:.4} by its own clock");
    assert!((share.low - 0.02..=share.high + 0.02).contains(&expected), "{share:?}");
    // No name of a process can forge a line of the log.
    for line in daemon.log().lines() {
        assert!(line.starts_with("20") && !line.contains('\x1b'), "{line:?}");
    }
}

fn strange(what: &str, seconds: u32) -> f64 {
    require_root();
    let place = Place::default();
    let known = Workload::build(place.path(), "two_functions", &[]);
    let program = Workload::build(place.path(), "strange_maps", &[]);
    let directory = nobodys_folder(&place);
    let daemon = start(&place);
    let mut command = as_nobody(&directory, program.program());
    let running = Running::start(command.arg(seconds.to_string()).arg(what));
    let known = known.run(seconds - 1);
    let maps = running.wait().number("maps");
    eprintln!("{what}: {:.0} mappings a second", maps / f64::from(seconds));
    assert_well(&place, &daemon, known);
    for arguments in
        [&["prof", "-i"][..], &["prof"], &["images"], &["prof", "-i", "--format", "csv"]]
    {
        let text = succeed(
            Command::new(binary("dcpi"))
                .arg(arguments[0])
                .arg("--db")
                .arg(place.db())
                .args(&arguments[1..]),
        );
        assert!(!text.contains('\x1b') && !text.contains('\r'), "{text:?}");
    }
    let _ = succeed(Command::new(binary("dcpi")).arg("check").arg("--db").arg(place.db()));
    assert!(daemon.terminate().success());
    maps
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn names_of_files_do_no_harm() {
    let _ = strange("names", 6);
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_process_with_sixty_thousand_mappings_does_no_harm() {
    let _ = strange("giant", 6);
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn ten_thousand_mappings_a_second_do_no_harm() {
    // The number if nothing else runs.
    assert!(strange("storm", 8) > 8.0 * 2_000.0, "not enough of them");
}

/// A look through all known paths of a file for each mapping took two fifths of a CPU, and the
/// kernel dropped 440,340 records meanwhile.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn sixteen_thousand_names_of_one_file_do_no_harm() {
    assert!(strange("links", 8) > 2.0 * 16_000.0, "not every name twice");
}

/// Unmounts it, which also frees whoever waits for it.
struct Mounted<'a>(&'a Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg("--force").arg(self.0).status();
    }
}

/// A program in a file system that a process serves which does not answer the daemon: it was asked
/// for each file without build id, and the daemon stood still for ever, and could not even be
/// killed. Now an inspector stands still.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_file_system_that_does_not_answer_holds_up_nobody() {
    let place = Place::default();
    require_root();
    let known = Workload::build(place.path(), "two_functions", &[]);
    let server = Workload::build(place.path(), "served", &[]);
    let folder = place.path().join("other");
    std::fs::create_dir(&folder).unwrap();
    let daemon = start(&place);
    for build_id in ["none", "sha1"] {
        let served = Workload::build(
            &folder,
            "two_functions",
            &[&format!("-Wl,--build-id={build_id}"), "-Wl,--defsym=other=1"],
        );
        let (mount, log) =
            (place.path().join(build_id), place.path().join(format!("{build_id}.log")));
        std::fs::create_dir(&mount).unwrap();
        let mut command = Command::new(server.program());
        command.arg(served.program()).arg(&mount).arg(daemon.pid().to_string()).arg(&log);
        let mut serving = command.spawn().unwrap();
        let mounted = Mounted(&mount);
        let begun = Instant::now();
        while !std::fs::read_to_string(&log).is_ok_and(|text| text.starts_with('0')) {
            assert!(begun.elapsed() < Duration::from_secs(20), "it is not mounted");
            std::thread::sleep(Duration::from_millis(20)); // the pace of the questions
        }
        let mut command = as_nobody(place.path(), &mount.join("program"));
        let running = Running::start(command.arg("4"));
        let beside = known.run(3);
        let _ = running.wait();
        // In which the daemon might look for what has ended.
        std::thread::sleep(Duration::from_secs(2));
        let asked = std::fs::read_to_string(&log).unwrap();
        drop(mounted);
        let _ = serving.kill();
        let _ = serving.wait();
        assert_eq!(asked, "0\n", "build id {build_id}: the daemon itself has asked");
        assert_well(&place, &daemon, beside);
    }
    let prof = prof(&place.db(), &["-i", "--idle"]);
    eprintln!("{:?}", prof.unresolved);
    assert!(daemon.terminate().success());
}

/// Seconds of an attack: 7, or the number in `DCPI_ATTACK_S`.
fn attack_s() -> u32 {
    std::env::var("DCPI_ATTACK_S").map_or(7, |seconds| seconds.parse().unwrap())
}

/// Runs an attacker beside a program with known shares: the daemon answers, stays small, profiles
/// other processes correctly, and ends when told to. Returns its last status.
fn attacked(name: &str, arguments: &[&str]) -> wire::Status {
    require_root();
    let (place, attack_s) = (Place::default(), attack_s());
    let known = Workload::build(place.path(), "two_functions", &[]);
    let enemy = Workload::build(place.path(), name, &["-pthread", "-rdynamic"]);
    let folder = place.path().join("other");
    std::fs::create_dir(&folder).unwrap();
    // Without a build id, so that an inspector must look at the file.
    let flags = ["-Wl,--build-id=none", "-Wl,--defsym=other=1"];
    let other = Workload::build(&folder, "two_functions", &flags);
    let daemon = start(&place);
    let arguments: Vec<String> = arguments
        .iter()
        .map(|argument| match *argument {
            "PROGRAM" => other.program().display().to_string(),
            other => other.to_owned(),
        })
        .collect();
    // It is killed at the end; on a busy machine that is long after the attack was watched.
    let seconds = (10 * attack_s).to_string();
    let mut command = Command::new(enemy.program());
    let mut attack = command.args(&arguments).arg(&seconds).spawn().unwrap();
    let beside = known.start(attack_s - 2);
    let (begun, mut waits) = (Instant::now(), Vec::new());
    while begun.elapsed() < Duration::from_secs(u64::from(attack_s) - 1) {
        let asked = Instant::now();
        let _ = daemon.status();
        waits.push(asked.elapsed());
        std::thread::sleep(Duration::from_millis(100)); // the pace of the questions
    }
    waits.sort();
    let median = waits[waits.len() / 2];
    let slowest = waits.last().copied().unwrap();
    eprintln!("status: median {median:?}, slowest {slowest:?} of {}", waits.len());
    assert!(median < Duration::from_secs(1) && slowest < Duration::from_secs(5));
    let asked = Instant::now();
    daemon.flush();
    eprintln!("flush: {:?}", asked.elapsed());
    assert!(asked.elapsed() < Duration::from_secs(5));
    assert_well(&place, &daemon, beside.wait());
    let status = daemon.status();
    eprintln!("{:?}", status.inspectors);
    let told = Instant::now();
    assert!(daemon.terminate().success());
    eprintln!("ended after {:?}", told.elapsed());
    assert!(told.elapsed() < Duration::from_secs(5));
    assert_eq!(attack.try_wait().unwrap(), None, "the enemy has failed, or ended early");
    attack.kill().unwrap();
    attack.wait().unwrap();
    status
}

/// The user who kept inspectors waiting is named.
fn assert_named(status: &wire::Status) {
    let user = status.inspectors.users.iter().find(|user| user.uid == 12_345);
    assert!(user.is_some_and(|user| user.unanswered > 0), "{:?}", status.inspectors);
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn files_of_a_user_that_do_not_answer_cost_only_his_samples() {
    // The kernel itself refuses to ask a file system of a user namespace for others.
    let _ = attacked("unanswered", &["file", "PROGRAM"]);
}

/// A process that waits for a file below an overlay cannot be killed.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn an_overlay_over_files_that_do_not_answer_costs_only_its_users_samples() {
    assert_named(&attacked("unanswered", &["overlay", "PROGRAM"]));
}

/// The map of generated code is looked for in a /tmp that never answers.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_tmp_that_does_not_answer_costs_only_its_users_samples() {
    assert_named(&attacked("unanswered", &["tmp", "PROGRAM"]));
}

/// /proc/PID/maps waits for the lock of the address space, which its owner holds for ever.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_locked_address_space_costs_only_its_users_samples() {
    assert_named(&attacked("unanswered", &["lock", "PROGRAM"]));
}

/// All of the list of mounts was read: 128 MB of it.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn thirty_thousand_mounts_do_no_harm() {
    let _ = attacked("many_mounts", &["15"]);
}

/// A file that only root may read, bound over his map of generated code, gave names of procedures.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_file_of_root_is_nobody_elses_map_of_generated_code() {
    require_root();
    let place = Place::default();
    let enemy = Workload::build(place.path(), "bound_map", &[]);
    let secret = place.path().join("secret");
    std::fs::write(&secret, "10000010 10 the_password_of_root\n").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&secret, mode).unwrap();
    let daemon = start(&place);
    let mut command = Command::new(enemy.program());
    let _ = command.arg(&secret).args(["10000000", "3"]).status().unwrap(); // ends by its alarm
    daemon.flush();
    let refused = daemon.status().samples.unresolved.get("jit_map_refused").copied();
    assert!(refused.is_some_and(|samples| samples > 1000), "{refused:?}");
    let named = Command::new("grep").args(["-r", "the_password"]).arg(place.db()).status().unwrap();
    assert_eq!(named.code(), Some(1), "the database has it");
    assert!(daemon.terminate().success());
}

/// Its list of modules is a circle, its stacks of Erlang's have a frame in every word, or in every
/// 250 words, or cannot be read: a walk there ends after 2048 blocks of words.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_program_that_looks_like_erlangs_does_no_harm() {
    let status = attacked("beam.smp", &[]);
    let stacks = status.stacks.expect("stacks are on");
    eprintln!("{stacks:?}");
    assert!(stacks.frames > 0, "{stacks:?}");
}

/// Its calls lead nowhere, backwards, in circles, or on through a million of them, and its table
/// has a million traces that change all the time.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_program_that_looks_like_luajit_does_no_harm() {
    let status = attacked("luajit-liar", &[]);
    let stacks = status.stacks.expect("stacks are on");
    eprintln!("{stacks:?}");
    assert!(stacks.frames > 0, "{stacks:?}");
}
