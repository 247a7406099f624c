//! The commands of README and guide that need root, each block in one shell, beside a dcpid of the
//! test. What they print differs from run to run, so only their exit codes count here.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use tests::daemon::Place;
use tests::guide::{Block, Mark, blocks, pages, root};
use tests::{binary, require_root, succeed};

/// Programs as the guide's reader has them: `sudo` is root already, and the control socket and the
/// database are the test's, not the machine's.
fn install_wrappers(place: &Place, bin: &Path) {
    let control = place.control();
    let (control, db) = (control.display(), place.db());
    let wrapper = |name: &str, script: String| {
        let path = bin.join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    };
    let real = |name: &str| binary(name).display().to_string();
    wrapper("sudo", "exec \"$@\"".to_owned());
    // The last --control counts, so that a block may name its own.
    for name in ["dcpictl", "dcpilabel"] {
        let program = real(name);
        let own = "for word in \"$@\"; do [ \"$word\" = --control ] && exec";
        let script =
            format!("{own} {program} \"$@\"; done\nexec {program} --control {control} \"$@\"");
        wrapper(name, script);
    }
    let dcpi = real("dcpi");
    let top = format!("[ \"$1\" = top ] && shift && exec {dcpi} top --control {control} \"$@\"");
    let db = db.display();
    let script = format!("{top}\nexport DCPIDB=\"${{DCPIDB:-{db}}}\"\nexec {dcpi} \"$@\"");
    wrapper("dcpi", script);
    wrapper("dcpid", format!("exec {} --config /dev/null \"$@\"", real("dcpid")));
}

/// Runs a block in a directory; `dcpi record` finds dcpid beside the dcpi that the wrapper starts.
fn run_block(block: &Block, bin: &Path, directory: &Path) {
    let commands: Vec<&str> = block.commands.iter().map(|shown| shown.command.as_str()).collect();
    let script = commands.join("\n");
    println!("{}:{}:\n{script}", block.page.display(), block.line);
    let mut shell = Command::new("sh");
    shell.args(["-e", "-c", &script]).current_dir(directory);
    shell.env("PATH", format!("{}:{}", bin.display(), std::env::var("PATH").unwrap()));
    shell.env("TMPDIR", directory).env_remove("DCPIDB");
    let _ = succeed(&mut shell);
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn commands_of_the_guide_that_need_root_work() {
    require_root();
    let root = root(env!("CARGO_MANIFEST_DIR"), 1);
    let place = Place::default();
    let bin = place.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    install_wrappers(&place, &bin);
    let daemon = place.start();
    let mut blocks_run = 0;
    for page in pages(&root) {
        let text = std::fs::read_to_string(root.join(&page)).unwrap();
        // Blocks of a page may build on each other, those of two pages may not. The example lies
        // as in a checkout.
        let directory = place.path().join(page.file_stem().unwrap());
        std::fs::create_dir_all(directory.join("docs")).unwrap();
        let example = root.join("docs/example");
        let _ = succeed(Command::new("cp").arg("-r").arg(example).arg(directory.join("docs")));
        for block in blocks(&page, &text).iter().filter(|block| block.mark == Mark::Root) {
            run_block(block, &bin, &directory);
            blocks_run += 1;
        }
    }
    assert!(blocks_run > 5, "{blocks_run} blocks: where are the pages?");
    assert!(daemon.terminate().success());
}

/// The page of metrics has those that dcpid serves, and no others.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn metrics_of_the_guide_are_those_that_dcpid_serves() {
    require_root();
    let root = root(env!("CARGO_MANIFEST_DIR"), 1);
    let page = std::fs::read_to_string(root.join("docs/src/metrics.md")).unwrap();
    let documented: std::collections::BTreeSet<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split(['`', '{']).next())
        .collect();
    let place = Place::default();
    let socket = place.path().join("metrics.sock");
    let mut dcpid = place.dcpid();
    dcpid.arg("--metrics").arg(&socket);
    let daemon = place.start_as(dcpid);
    let text = succeed(
        Command::new("curl").args(["-sf", "http://dcpid/metrics", "--unix-socket"]).arg(&socket),
    );
    let served: std::collections::BTreeSet<&str> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    assert_eq!(documented, served);
    assert!(daemon.terminate().success());
}
