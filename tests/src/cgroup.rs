//! Control groups made for a test.

use crate::workload::Running;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Longest time for which a group still lists a process that has ended.
const PATIENCE: Duration = Duration::from_secs(5);

/// A control group, removed at the end.
pub struct Group(PathBuf);

impl Group {
    /// A group below the root of the unified hierarchy.
    ///
    /// # Panics
    /// When there is no such hierarchy, or the group exists.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        let root = mounts.lines().find_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let (place, kind) = (fields.next()?, fields.next()?);
            (kind == "cgroup2").then(|| PathBuf::from(place))
        });
        let group =
            Self(root.expect("the unified hierarchy of control groups is mounted").join(name));
        std::fs::create_dir(&group.0).unwrap();
        group
    }

    /// The program, run in the group for this many seconds.
    ///
    /// # Panics
    /// When the program cannot be started.
    #[must_use]
    pub fn run_inside(&self, program: &Path, seconds: &str) -> Running {
        self.start_inside(Command::new(program).arg(seconds))
    }

    /// The command, started in the group with its own environment.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn start_inside(&self, inner: &Command) -> Running {
        let script = "echo $$ > \"$0\"/cgroup.procs && exec \"$@\"";
        let mut command = Command::new("sh");
        command.args(["-c", script]).arg(&self.0).arg(inner.get_program()).args(inner.get_args());
        let set = inner.get_envs().filter_map(|(name, value)| Some((name, value?)));
        Running::start(command.envs(set))
    }

    /// CPU time that the kernel has accounted to the group, and the part of it in the kernel, s.
    ///
    /// # Panics
    /// When the group does not say.
    #[must_use]
    pub fn cpu_s(&self) -> (f64, f64) {
        let text = std::fs::read_to_string(self.0.join("cpu.stat")).unwrap();
        let of = |key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap();
            line.trim().parse::<f64>().unwrap() / 1e6
        };
        (of("usage_usec "), of("system_usec "))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let begin = Instant::now();
        while std::fs::remove_dir(&self.0).is_err() && begin.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
