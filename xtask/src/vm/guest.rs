//! One guest: a kernel under QEMU's emulation, from its start to the result of its test.

use super::Architecture;
use anyhow::Context as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// On the host's clock. An idle machine needs a tenth of it, one with a load of 8 more than 300 s.
const PATIENCE: Duration = Duration::from_secs(900);

/// QEMU, unpacked and not installed.
pub struct Qemu {
    /// Where its packages were unpacked.
    pub folder: PathBuf,
}

/// The result of a guest's test.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Said {
    /// `uname -r`.
    pub release: String,
    /// Checks that held.
    pub held: usize,
    /// Checks that did not, and other failures.
    pub failures: Vec<String>,
    /// Entries that deserve a place in the table.
    pub differences: Vec<String>,
}

impl Qemu {
    /// Boots a kernel and waits for its end. The serial console goes to `log`.
    ///
    /// Always with -icount: the guest's time is then its instructions, its counters are exact, and
    /// a busy host only makes it slower.
    pub fn boot(
        &self,
        architecture: Architecture,
        kernel: &Path,
        initramfs: &Path,
        log: &Path,
    ) -> anyhow::Result<Said> {
        let usr = self.folder.join("usr");
        let machine = match architecture {
            Architecture::Amd64 => "qemu-system-x86_64 -M q35 -accel tcg -cpu max",
            Architecture::Arm64 => "qemu-system-aarch64 -M virt,gic-version=3 -cpu neoverse-n1",
        };
        let mut words = machine.split(' ');
        let mut command = Command::new(usr.join("bin").join(words.next().unwrap_or_default()));
        command.args(words).args(["-smp", "2", "-m", "768", "-icount", "shift=2,sleep=off"]);
        command.args(["-nodefaults", "-display", "none", "-serial", "stdio", "-no-reboot"]);
        command.arg("-L").arg(usr.join("share/qemu")).arg("-L").arg(usr.join("share/seabios"));
        command.arg("-kernel").arg(kernel).arg("-initrd").arg(initramfs);
        command.arg("-append").arg(format!("console={} panic=-1 quiet", architecture.console()));
        let libraries =
            [usr.join("lib/x86_64-linux-gnu"), self.folder.join("lib/x86_64-linux-gnu")];
        command.env("LD_LIBRARY_PATH", std::env::join_paths(libraries)?);

        let console = fs::File::create(log).with_context(|| format!("making {}", log.display()))?;
        command.stdin(Stdio::null()).stdout(console.try_clone()?).stderr(console);
        let in_time = ends(
            command.spawn().with_context(|| format!("starting {:?}", command.get_program()))?,
        )?;
        let text = String::from_utf8_lossy(&fs::read(log)?).replace('\r', "");
        fs::write(log, &text)?;
        let mut said = said(&text);
        if !in_time {
            said.failures.push(format!("did not end in {} s", PATIENCE.as_secs()));
        }
        Ok(said)
    }
}

/// Waits for a child; false when it had to be killed.
fn ends(mut child: Child) -> anyhow::Result<bool> {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if child.try_wait()?.is_some() {
            return Ok(true);
        }
        std::thread::sleep(Duration::from_millis(50)); // std cannot wait for a child with a timeout
    }
    child.kill()?;
    child.wait()?;
    Ok(false)
}

/// Reads the console; tests/vm/test.sh describes its lines.
fn said(console: &str) -> Said {
    let mut said = Said::default();
    let mut failed = None;
    for line in console.lines() {
        // The kernel writes to the same console, and may have left its line open.
        let Some((_, line)) = line.split_once("GUEST").map(|(_, rest)| ((), rest)) else {
            continue;
        };
        match line.split_once(' ') {
            Some(("-RESULT", count)) => failed = count.trim().parse::<usize>().ok(),
            Some(("", rest)) => match rest.split_once(' ') {
                Some(("kernel", release)) => said.release = release.to_owned(),
                Some(("ok", _)) => said.held += 1,
                Some(("FAIL", what)) => said.failures.push(what.to_owned()),
                Some(("differs", what)) => said.differences.push(what.to_owned()),
                _ => {}
            },
            _ => {}
        }
    }
    match failed {
        None => {
            let last =
                console.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("nothing");
            said.failures
                .push(format!("the guest ended without a result; its last line: {}", last.trim()));
        }
        // A test that checked nothing, or a line that was lost.
        Some(count) if said.held == 0 || count != said.failures.len() => {
            said.failures.push(format!("{count} failures counted, {} checks held", said.held));
        }
        Some(_) => {}
    }
    said
}

#[cfg(test)]
mod tests {
    use super::said;

    #[test]
    fn what_a_console_says() {
        let good = "[    0.1] noise\nGUEST kernel 6.1.0 aarch64\nGUEST ok ledger: 5\n[  1.0] xGUEST ok more\n\
                    GUEST differs event: cycles\nGUEST-RESULT 0\n[   9.9] reboot: Power down\n";
        let all = said(good);
        assert_eq!((all.release.as_str(), all.held, all.failures.len()), ("6.1.0 aarch64", 2, 0));
        assert_eq!(all.differences, ["event: cycles"]);
        for (console, words) in [
            ("", "last line: nothing"),
            ("GUEST ok x\nKernel panic\n\n", "last line: Kernel panic"),
            ("GUEST-RESULT 0\n", "0 checks held"),
            ("GUEST ok x\nGUEST-RESULT 1\n", "1 failures counted"),
            ("GUEST ok x\nGUEST FAIL ledger: 1 != 2\nGUEST-RESULT 1\n", "ledger: 1 != 2"),
        ] {
            let failures = said(console).failures;
            assert_eq!(failures.len(), 1, "{console:?}: {failures:?}");
            assert!(failures[0].contains(words), "{console:?}: {failures:?}");
        }
    }
}
