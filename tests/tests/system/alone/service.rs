//! The package on a machine with systemd: installed, in service, replaced, hanging, removed. Needs
//! root and a container to boot.

use serde_json::Value;
use std::path::Path;
use std::process::Command;
use tests::container::{Container, package};
use tests::daemon::Place;
use tests::guide::root;
use tests::workload::Workload;
use tests::{binary, require_root, succeed};
use wire::Status;

/// Samples on disk, of all epochs: with an image, and without.
fn on_disk(container: &Container) -> u64 {
    let text = container.ok("dcpi prof -i -n 0 --idle --epoch all --format json");
    let report: Value = serde_json::from_str(&text).unwrap();
    let counts = |row: &Value| {
        row["counts"].as_object().unwrap().values().filter_map(Value::as_u64).sum::<u64>()
    };
    let sum =
        |map: &Value| map.as_object().unwrap().values().filter_map(Value::as_u64).sum::<u64>();
    report["rows"].as_array().unwrap().iter().map(counts).sum::<u64>() + sum(&report["unresolved"])
}

/// Samples that dcpid has taken since it started, and how many of them are lost.
fn taken(container: &Container) -> (u64, u64) {
    let status: Status = serde_json::from_str(&container.ok("dcpictl status --json")).unwrap();
    (status.samples.taken, status.samples.lost())
}

fn main_pid(container: &Container) -> String {
    container.ok("systemctl show --property=MainPID --value dcpid").trim().to_owned()
}

/// Root does everything, the group reads, others nothing.
fn access(container: &Container) {
    container.ok("useradd --system --groups dcpi reader");
    let as_user = |user: &str, line: &str| {
        format!("setpriv --reuid={user} --regid={user} --init-groups {line}")
    };
    for line in ["dcpictl status", "dcpictl flush", "dcpi prof -i", "dcpilabel mine true"] {
        container.ok(&as_user("reader", line));
        let stranger =
            container.run(&as_user("nobody", line).replace("--regid=nobody", "--regid=nogroup"));
        assert_eq!(stranger.status.code(), Some(2), "{line}: {stranger:?}");
    }
    for line in ["dcpictl quit", "dcpictl epoch", "dcpictl label 1 x"] {
        let refused = container.run(&as_user("reader", line));
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(
            refused.status.code() == Some(2) && said.contains("only root may ask"),
            "{line}: {said}"
        );
    }
    assert_eq!(
        container.ok("find /var/lib/dcpi -perm /0027 -not -type l"),
        "",
        "others read nothing, the group writes nothing"
    );
}

/// dcpid runs as its own user, with few capabilities, without CAP_BPF.
fn privilege(container: &Container) {
    let status = container.ok(&format!("cat /proc/{}/status", main_pid(container)));
    let field = |name: &str| {
        status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned()
    };
    let user = container.ok("id -u dcpi");
    assert!(
        field("Uid:").split_whitespace().all(|uid| uid == user.trim()) && user.trim() != "0",
        "{status}"
    );
    // CAP_SYSLOG, CAP_PERFMON: not CAP_DAC_READ_SEARCH, CAP_SYS_PTRACE, CAP_CHECKPOINT_RESTORE.
    let expected = 1_u64 << 34 | 1 << 38;
    for (set, expected) in
        [("CapEff:", expected), ("CapPrm:", expected), ("CapAmb:", 0), ("CapInh:", 0)]
    {
        assert_eq!(u64::from_str_radix(&field(set), 16).unwrap(), expected, "{set} {}", field(set));
    }
    assert_eq!((field("NoNewPrivs:").as_str(), field("Seccomp:").as_str()), ("1", "2"));
}

/// The inspectors have what dcpid has given up, and answer it.
fn inspected(container: &Container) {
    let pid = container.ok("systemctl show --property MainPID --value dcpid-inspector");
    let status = container.ok(&format!("cat /proc/{}/status", pid.trim()));
    let held = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap().trim();
    // CAP_DAC_READ_SEARCH, CAP_SYS_PTRACE, CAP_CHECKPOINT_RESTORE.
    assert_eq!(u64::from_str_radix(held, 16).unwrap(), 1_u64 << 2 | 1 << 19 | 1 << 40);
    let status: serde_json::Value =
        serde_json::from_str(&container.ok("dcpictl --json status")).unwrap();
    let inspectors = &status["inspectors"];
    assert_eq!(inspectors["reachable"], true, "{inspectors}");
    assert!(inspectors["asked"].as_u64().unwrap() > 0, "{inspectors}");
}

/// systemd's report on the units.
fn judged(container: &Container) {
    for unit in ["dcpid.service", "dcpid-inspector.service"] {
        let verified = format!("systemd-analyze verify --man=no /lib/systemd/system/{unit}");
        let verified = container.run(&verified);
        assert!(verified.status.success() && verified.stderr.is_empty(), "{verified:?}");
        let security = container.ok(&format!("systemd-analyze security --no-pager {unit}"));
        let overall =
            security.lines().find(|line| line.contains("Overall exposure level")).unwrap();
        eprintln!("{}", overall.trim());
        let score = overall
            .split(": ")
            .nth(1)
            .and_then(|rest| rest.split(' ').next()?.parse::<f64>().ok())
            .unwrap();
        assert!(score < 2.0, "{security}");
    }
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn the_packaged_service_loses_nothing_that_was_acknowledged() {
    require_root();
    let place = Place::default();
    let _workload = Workload::build(place.path(), "two_functions", &["-static"]);
    let container = Container::boot(place.path());
    eprintln!("{}", package());
    let install = "dpkg --install /package/dcpi_*.deb";
    container.ok(install);
    container.ok("systemctl is-active dcpid && systemctl is-enabled dcpid");
    // A drop-in, so that a hang is found within the patience of a test.
    container
        .ok("mkdir -p /run/systemd/system/dcpid.service.d && printf '[Service]\\nWatchdogSec=2\\nRestartSec=1\\n' \
        > /run/systemd/system/dcpid.service.d/test.conf && systemctl daemon-reload && systemctl \
        restart dcpid");
    // The data that earlier daemons wrote.
    let mut base = on_disk(&container);
    privilege(&container);
    access(&container);
    inspected(&container);
    judged(&container);
    let work = "/shared/two_functions 1 > /dev/null";
    container.ok(&format!("{work} && dcpictl flush"));
    let prof = container.ok("dcpi prof two_functions");
    assert!(prof.contains("three_quarters") && prof.contains("one_quarter"), "{prof}");
    for (story, line) in [
        ("restart", "systemctl restart dcpid"),
        ("stop", "systemctl stop dcpid && ! systemctl is-active dcpid && systemctl start dcpid"),
        ("upgrade", install),
    ] {
        container.ok(work);
        let ((taken, lost), pid) = (taken(&container), main_pid(&container));
        container.ok(line);
        let after = on_disk(&container);
        eprintln!(
            "{story}: {base} samples on disk when it started, {taken} taken; {after} on disk after it"
        );
        assert!(after >= base + taken && lost == 0 && main_pid(&container) != pid, "{story}");
        base = after;
        container.ok("systemctl is-active dcpid && dcpi check");
    }
    // A hang: the loop does not turn, the service manager ends it and starts another.
    container.ok(&format!("{work} && dcpictl flush"));
    let (before, pid) = (on_disk(&container), main_pid(&container));
    container.ok(&format!("kill -STOP {pid}"));
    container.until(&format!("test \"$(systemctl show --property=MainPID --value dcpid)\" -gt 0 && test \"$(systemctl show --property=MainPID --value dcpid)\" != {pid} && systemctl is-active dcpid"));
    let after = on_disk(&container);
    eprintln!("hang: {before} samples on disk, {after} after it");
    assert!(after >= before, "acknowledged samples are lost");
    assert_eq!(container.ok("systemctl show --property=NRestarts --value dcpid").trim(), "1");
    container.ok("dcpi check");
    removed(&container);
    by_hand(&container, place.path());
}

/// Commands of the guide that install the service without a package.
const INSTALL_BY_HAND: [&str; 8] = [
    "sudo install target/release/dcpi target/release/dcpid \\
      target/release/dcpictl target/release/dcpilabel /usr/bin",
    "sudo install -D -m 644 -t /etc/systemd/system systemd/*.service systemd/dcpi.slice",
    "sudo install -D -m 644 -t /etc/sysusers.d systemd/sysusers.d/dcpi.conf",
    "sudo install -D -m 644 -t /etc/tmpfiles.d systemd/tmpfiles.d/dcpi.conf",
    "sudo install -D -m 644 -t /etc/dcpi systemd/dcpid.toml",
    "sudo systemd-sysusers dcpi.conf",
    "sudo systemd-tmpfiles --create dcpi.conf",
    "sudo systemctl enable --now dcpid",
];

/// Commands of the guide that remove what the others installed.
const REMOVE_BY_HAND: [&str; 4] = [
    "sudo systemctl disable --now dcpid dcpid-inspector dcpi-push",
    "sudo rm -rf /usr/bin/dcpi /usr/bin/dcpid /usr/bin/dcpictl /usr/bin/dcpilabel \\
      /etc/systemd/system/dcpid.service /etc/systemd/system/dcpid-inspector.service \\
      /etc/systemd/system/dcpi.slice /etc/sysusers.d/dcpi.conf /etc/tmpfiles.d/dcpi.conf \\
      /etc/systemd/system/dcpi-push.service \\
      /etc/dcpi /run/dcpi /var/lib/dcpi /var/lib/dcpi-push",
    "sudo userdel dcpi-push && sudo userdel dcpi",
    "sudo systemctl daemon-reload",
];

/// Installed from a checkout and removed, by the commands of the guide. `shared` is `/shared` in
/// the container.
fn by_hand(container: &Container, shared: &Path) {
    let root = root(env!("CARGO_MANIFEST_DIR"), 1);
    let page = std::fs::read_to_string(root.join("docs/src/operate.md")).unwrap();
    let programs = shared.join("checkout/target/release");
    std::fs::create_dir_all(&programs).unwrap();
    for name in ["dcpi", "dcpid", "dcpictl", "dcpilabel"] {
        std::fs::copy(binary(name), programs.join(name)).unwrap();
    }
    let units = root.join("systemd");
    let _ = succeed(Command::new("cp").arg("-r").arg(units).arg(shared.join("checkout")));
    let run = |line: &str| {
        assert!(page.contains(&format!("$ {line}\n")), "not in the guide: {line}");
        container.ok(&format!("cd /shared/checkout && {}", line.replace("sudo ", "")));
    };
    INSTALL_BY_HAND.into_iter().for_each(run);
    container.ok("systemctl is-active dcpid && systemctl is-enabled dcpid");
    inspected(container);
    container.ok("/shared/two_functions 1 > /dev/null && dcpictl flush");
    let prof = container.ok("dcpi prof two_functions");
    assert!(prof.contains("three_quarters") && prof.contains("one_quarter"), "{prof}");
    REMOVE_BY_HAND.into_iter().for_each(run);
    assert_eq!(container.ok(LEFT), "");
}

/// Prints files of ours that are left.
const LEFT: &str = "find / -xdev -name '*dcpi*' -not -path '/proc/*' -not -path '/sys/*' \
    -not -path '/shared*' -not -path '/package*' -not -path '/sys/fs/cgroup/*' \
    -not -path '/run/systemd/system/dcpid.service.d*'";

/// Removed, and then purged: nothing is left.
fn removed(container: &Container) {
    let before = on_disk(container);
    container.ok("userdel reader && dpkg --remove dcpi");
    assert!(
        before > 0 && container.is("test -d /var/lib/dcpi/hosts && test -f /etc/dcpi/dcpid.toml"),
        "data stay"
    );
    assert!(!container.is("systemctl cat dcpid"), "the unit is gone");
    container.ok("dpkg --purge dcpi");
    assert_eq!(container.ok(LEFT), "");
    assert!(!container.is("getent passwd dcpi") && !container.is("getent group dcpi"));
}
