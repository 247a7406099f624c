//! Malicious files of an ordinary user, which the daemon inspects, writes or reads. These tests
//! need root, as those of privileged.rs do, and run attackers as nobody.

use crate::hostile::{as_nobody, assert_well, nobodys_folder, start};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use tests::daemon::Place;
use tests::report::prof;
use tests::workload::{Running, Workload};
use tests::{binary, refuse, require_root, run, succeed};

/// The user that `enemy.h` becomes.
const ENEMY: u32 = 12345;

/// A user who ran a new build id every half millisecond made the directory of the next segment
/// larger than a segment may have; every merge after that failed, and 2.3 million samples of
/// everybody were lost at the end.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_flood_of_build_ids_costs_its_user_and_no_merge() {
    require_root();
    let place = Place::default();
    let known = Workload::build(place.path(), "two_functions", &[]);
    let flood = Workload::build(place.path(), "image_flood", &[]);
    let folder = nobodys_folder(&place);
    let daemon = start(&place);
    let mut command = as_nobody(&folder, flood.program());
    let running = Running::start(command.args(["24000", "500"]));
    let known = known.run(6);
    assert_eq!(running.wait().number("images"), 24_000.0);
    assert_well(&place, &daemon, known);
    let refused = daemon.status().samples.unresolved.get("too_many_images").copied();
    let prof = prof(&place.db(), &["-i", "--idle"]);
    let counted = prof.of_image("flood").count();
    eprintln!("{counted} images of the flood counted, {refused:?} samples of it refused");
    // The allowance of one user (`image_allowance.rs`), and at most its return of an hour.
    assert!((4000..=8192 + 1024).contains(&counted), "{counted}");
    assert!(refused.unwrap_or(0) > 1000, "{refused:?}");
    assert!(daemon.terminate().success());
}

/// Programs of a user had a build id of root's program: whichever ran first named the samples of
/// all, and they were added up.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_users_program_with_the_build_id_of_roots_is_another_image() {
    require_root();
    let place = Place::default();
    let build_id = "-Wl,--build-id=0x00112233445566778899aabbccddeeff01234567";
    let folder = nobodys_folder(&place);
    let known = Workload::build(place.path(), "two_functions", &[build_id]);
    let flags = ["-static", "-no-pie", build_id];
    let impostor = Workload::build(&folder, "impostor", &flags);
    std::os::unix::fs::chown(impostor.program(), Some(ENEMY), Some(ENEMY)).unwrap();
    // As `su` is: root's, and of a build of its own.
    let risen = Workload::build(place.path(), "impostor2", &["-static", "-no-pie"]);
    let set_user_id = std::fs::Permissions::from_mode(0o4755);
    std::fs::set_permissions(risen.program(), set_user_id).unwrap();
    let daemon = start(&place);
    // Maps its libraries as root and is nobody when the daemon looks: the libraries are root's.
    let _ = as_nobody(&folder, known.program()).arg("0.1").status().unwrap();
    let impersonate = |how: &[&str]| {
        let mut command = Command::new(impostor.program());
        Running::start(command.args(how))
    };
    // Before the other programs, so that the name is free.
    let _ = impersonate(&["spin", "0.5"]).wait();
    let path = known.program().to_str().unwrap();
    let enemies = [
        impersonate(&["spin", "2"]),
        impersonate(&["mapped", "2"]),
        impersonate(&["bound", "2", path]),
        impersonate(&["risen", "1.3", risen.program().to_str().unwrap()]),
    ];
    let truth = known.run(3);
    let enemies: f64 = enemies.into_iter().map(|enemy| enemy.wait().number("cpu_s")).sum();
    daemon.flush();
    let report = prof(&place.db(), &["-i", "--idle"]);
    let id = build_id.trim_start_matches("-Wl,--build-id=0x");
    let is_users = |image_id: &str| image_id.ends_with(&format!("-u{ENEMY}"));
    let of = |users: bool| {
        let of_id = report.rows.iter().filter(|row| row.image_id.starts_with(id));
        let rows: Vec<_> = of_id.filter(|row| is_users(&row.image_id) == users).collect();
        let samples = rows.iter().map(|row| row.samples()).sum();
        (rows.len(), report.seconds(samples))
    };
    let (roots, users) = (of(false), of(true));
    eprintln!("root's {roots:?}, {}; the user's {users:?}, {enemies}", truth.number("cpu_s"));
    assert_eq!((roots.0, users.0), (1, 1));
    let is_about = |seconds: f64, expected: f64| (seconds - expected).abs() < 0.1 * expected;
    assert!(is_about(roots.1, truth.number("cpu_s")));
    assert!(is_about(users.1, enemies + 0.5));
    // Names are those of the program that each image is.
    let report = prof(&place.db(), &["--idle"]);
    for row in report.rows.iter().filter(|row| row.image_id.starts_with(id)) {
        let procedure = row.procedure.as_deref().unwrap_or_default();
        let is_roots = ["three_quarters", "one_quarter"].contains(&procedure);
        let share = row.share().value;
        assert!(share < 0.02 || is_roots != is_users(&row.image_id), "{row:?}");
    }
    assert!(!daemon.log().contains("another build"), "{}", daemon.log());
    assert!(daemon.terminate().success());
}

/// The attack by a process that is older than the daemon, which finds it in `/proc`.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_users_program_that_runs_before_the_daemon_is_the_users() {
    require_root();
    let place = Place::default();
    let folder = nobodys_folder(&place);
    let build_id = "-Wl,--build-id=0x00112233445566778899aabbccddeeff01234568";
    let impostor = Workload::build(&folder, "impostor", &["-static", "-no-pie", build_id]);
    std::os::unix::fs::chown(impostor.program(), Some(ENEMY), Some(ENEMY)).unwrap();
    let mut command = Command::new(impostor.program());
    let running = Running::start(command.args(["spin", "4"]));
    let daemon = start(&place);
    let cpu_s = running.wait().number("cpu_s");
    daemon.flush();
    let report = prof(&place.db(), &["-i", "--idle"]);
    let rows: Vec<_> = report.of_image("impostor").collect();
    eprintln!("{rows:?}, {cpu_s}");
    let [row] = rows.as_slice() else { panic!("{} rows", rows.len()) };
    assert!(row.image_id.contains("34568-") && row.image_id.ends_with(&format!("-u{ENEMY}")));
    assert!(row.samples() > 1000);
    assert!(daemon.terminate().success());
}

/// Root wrote over any file, led by links in a database folder that another user had made.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_database_that_another_user_made_is_refused_by_every_writer() {
    require_root();
    let place = Place::default();
    let folder = nobodys_folder(&place);
    let precious = place.path().join("precious");
    std::fs::write(&precious, "root's").unwrap();
    // A database of root's to copy from.
    let daemon = place.start();
    daemon.flush();
    let host = daemon.status().host;
    assert!(daemon.terminate().success());

    // Nobody's database, made by its owner, with a link under each name that a writer writes to.
    let script = "umask 022; mkdir -p db/hosts/$1 && echo 'dcpi database 2' >db/format &&
        ln -s $2 db/hosts/$1/lock && ln -s $2 db/format.$1.tmp && ln -s $2 db/lock";
    let made = succeed(
        as_nobody(&folder, Path::new("/bin/sh")).args(["-c", script, "sh", &host]).arg(&precious),
    );
    assert_eq!(made, "");
    let theirs = folder.join("db");
    let dcpi = |arguments: &[&str]| {
        let mut command = Command::new(binary("dcpi"));
        command.args(arguments);
        command
    };
    let mut copy = dcpi(&["copy"]);
    copy.arg("--db").arg(place.db()).arg("--to").arg(&theirs);
    let mut merge = dcpi(&["merge"]);
    merge.arg("--db").arg(place.db()).arg("--to").arg(&theirs);
    let daemon = place.dcpid_on(&theirs, &place.control());
    for (command, what) in [(daemon, "dcpid"), (copy, "copy"), (merge, "merge")] {
        let mut command = command;
        let line = refuse(&mut command);
        assert!(line.contains("belongs to user 65534"), "{what}: {line}");
    }
    assert_eq!(std::fs::read_to_string(&precious).unwrap(), "root's");
    assert!(!theirs.join("hosts").join(&host).join("code").exists());
}

/// The owner of the folder above a database can replace it while it is written.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_database_that_is_replaced_by_a_link_is_not_written_through_it() {
    require_root();
    let place = Place::default();
    let folder = nobodys_folder(&place);
    let (db, victim) = (folder.join("db"), place.path().join("victim"));
    std::fs::create_dir(&victim).unwrap();
    let daemon = place.start_as(place.dcpid_on(&db, &place.control()));
    daemon.flush();
    let enemy = |script: &str| {
        let _ = succeed(
            as_nobody(&folder, Path::new("/bin/sh")).args(["-c", script, "sh"]).arg(&victim),
        );
    };
    enemy("mv db gone && ln -s $1 db");
    let error = String::from_utf8(run(&mut place.dcpictl(&["flush"])).stderr).unwrap();
    assert!(error.contains("keeps the samples"), "{error}");
    assert_eq!(std::fs::read_dir(&victim).unwrap().count(), 0);
    enemy("rm db && mv gone db");
    daemon.flush();
    tests::daemon::assert_closes(&daemon.status().samples);
    assert!(daemon.terminate().success());
}

/// `sudo dcpi list` printed a file that only root may read: the debug information of a user's
/// program named it as its source.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_source_that_its_owner_may_not_read_is_not_printed() {
    require_root();
    let place = Place::default();
    let folder = nobodys_folder(&place);
    let secret = place.path().join("secret");
    std::fs::write(&secret, "the password is swordfish\n".repeat(200)).unwrap();
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
    // A program of the user nobody whose debug information names the file.
    let source = folder.join("spy.c");
    let text = format!(
        "#line 1 \"{}\"\nvolatile unsigned long x;\nint main(void) {{\n  \
         for (unsigned long i = 0; i < 3000000000u; i++)\n    x += i;\n  return 0;\n}}\n",
        secret.display()
    );
    std::fs::write(&source, text).unwrap();
    let _ = succeed(
        as_nobody(&folder, Path::new("/usr/bin/env"))
            .args(["cc", "-g", "-O1", "-o", "spy"])
            .arg(&source),
    );
    let daemon = start(&place);
    let _ = succeed(&mut as_nobody(&folder, &folder.join("spy")));
    daemon.flush();
    assert!(daemon.terminate().success());
    let list = |more: &[&str]| {
        let mut command = Command::new(binary("dcpi"));
        command.arg("list").arg("--db").arg(place.db()).args(["spy", "main"]).args(more);
        let output = run(&mut command);
        let (out, err) =
            (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
        assert!(output.status.success(), "{out}{err}");
        format!("{out}{err}")
    };
    let text = list(&["--source"]);
    assert!(!text.contains("swordfish"), "{text}");
    assert!(text.contains("source not read") && text.contains("--source-dir"), "{text}");
    let consent = list(&["--source", "--source-dir", place.path().to_str().unwrap()]);
    assert!(consent.contains("swordfish"), "{consent}");
    // The same program as root's own.
    let spy = folder.join("spy");
    std::os::unix::fs::chown(&spy, Some(0), Some(0)).unwrap();
    assert!(list(&["--source"]).contains("swordfish"));
}
