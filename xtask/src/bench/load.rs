//! Load beside the measured program: processes that take all the CPU time they can get.

use anyhow::Context as _;
use std::process::{Child, Command, Stdio};

/// Busy loops. They end when the value is dropped, and when this process is killed.
pub struct Load(Vec<Child>);

impl Load {
    pub fn start(count: u64) -> anyhow::Result<Self> {
        let mut load = Self(Vec::new());
        for _ in 0..count {
            load.0.push(ends_with_us("while :; do :; done").spawn().context("starting a loop")?);
        }
        Ok(load)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill(); // it may have been killed already
            let _ = child.wait();
        }
    }
}

/// A shell with this script, which the kernel kills when the thread that started it ends.
fn ends_with_us(script: &str) -> Command {
    let mut shell = Command::new("setpriv");
    shell.args(["--pdeathsig", "KILL", "sh", "-c", script]).stdin(Stdio::null());
    shell
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;

    /// The loops of a killed bench kept the CPUs busy until they were noticed.
    #[test]
    fn a_loop_ends_with_the_thread_that_started_it() {
        // Without a drop, as when the process is killed. What sleeps in the loop's place holds a
        // pipe, which ends with it.
        let started = std::thread::spawn(|| {
            let mut sleeps = ends_with_us("echo begun; exec sleep 1000");
            let mut child = sleeps.stdout(Stdio::piped()).spawn().unwrap();
            let mut out = child.stdout.take().unwrap();
            let mut begun = [0; 6];
            out.read_exact(&mut begun).unwrap();
            (child, out)
        });
        let (mut child, mut out) = started.join().unwrap();
        let mut rest = Vec::new();
        out.read_to_end(&mut rest).unwrap();
        assert!(rest.is_empty() && !child.wait().unwrap().success());
    }
}
