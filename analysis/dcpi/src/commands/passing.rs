//! Signals for a command that another part of the program waits for.

use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use super::record::in_foreground;
use crate::signals;

/// The signal that asked this process to stop, once there is one.
#[derive(Clone, Debug, Default)]
pub(super) struct Stopped(Arc<AtomicI32>);

impl Stopped {
    /// The first signal. Who runs several commands starts no further one then.
    pub(super) fn signal(&self) -> Option<i32> {
        Some(self.0.load(Ordering::SeqCst)).filter(|signal| *signal != 0)
    }

    /// The exit code that reports it, as a shell has it: 128 + its number.
    pub(super) fn code(&self) -> Option<u8> {
        u8::try_from(128 + self.signal()?).ok()
    }
}

/// From now on signals that would end this process end the commands that it runs, and this process
/// reports what it has of them. What Ctrl-C sends has gone to the commands already.
pub(super) fn pass_on() -> io::Result<Stopped> {
    let stopped = Stopped::default();
    let told = stopped.clone();
    let heard = signals::hear(&[SIGINT, SIGTERM, SIGHUP, SIGQUIT])?;
    std::thread::Builder::new().name("pass on".into()).spawn(move || {
        for signal in heard {
            // A further signal is passed on as well; the first one is reported.
            let _ = told.0.compare_exchange(0, signal, Ordering::SeqCst, Ordering::SeqCst);
            if [SIGINT, SIGQUIT].contains(&signal) && in_foreground() {
                continue;
            }
            let Some(signal) = rustix::process::Signal::from_named_raw(signal) else { continue };
            for child in children() {
                let _ = rustix::process::kill_process(child, signal); // it may have ended
            }
        }
    })?;
    Ok(stopped)
}

/// Child processes, by `/proc/PID/task/TID/children` (proc(5)).
fn children() -> Vec<rustix::process::Pid> {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let pids = |list: String| {
        let numbers = list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok());
        numbers.filter_map(rustix::process::Pid::from_raw).collect::<Vec<_>>()
    };
    lists.flat_map(pids).collect()
}
