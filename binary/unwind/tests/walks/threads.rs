//! Threads other than the first, stopped where they happen to be.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::thread::yield_now;

use nix::sys::ptrace::{self, Options};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use unwind::{End, Proof, Unwinder, Window};

use crate::process::{Mapped, known, registers};

const RED_ZONE: u64 = 128;
const STOPS: usize = 200;

/// A thread begins in `clone3`, whose table says that it has no caller.
#[test]
fn a_threads_stack_ends_where_the_thread_began() {
    let program = "import threading, json\ndef f():\n while True: json.dumps([{'a': [1, 2]}] * 9)\n\
                   threading.Thread(target=f).start()";
    let mut command = Command::new("/usr/bin/python3");
    let child = Killed(command.args(["-S", "-c", program]).stdout(Stdio::null()).spawn().unwrap());
    let process = Pid::from_raw(child.0.id().cast_signed());
    let thread = loop {
        let tasks = fs::read_dir(format!("/proc/{process}/task")).unwrap().flatten();
        let numbers = tasks.filter_map(|task| task.file_name().to_str()?.parse::<i32>().ok());
        if let Some(number) = numbers.into_iter().find(|&number| number != process.as_raw()) {
            break Pid::from_raw(number);
        }
        yield_now();
    };
    ptrace::seize(thread, Options::empty()).unwrap();
    let mut unwinder = Unwinder::new();
    let mut space = Mapped::new(process);
    let mut frames = Vec::new();
    let mut whole = 0;
    while whole < STOPS {
        ptrace::interrupt(thread).unwrap();
        let stopped = waitpid(thread, Some(WaitPidFlag::__WALL));
        assert!(matches!(stopped, Ok(WaitStatus::PtraceEvent(..))), "{stopped:?}");
        space.refresh(&mut unwinder);
        let user = registers(thread).unwrap();
        let begin = user.rsp - RED_ZONE;
        let bytes = space.memory(begin, 256 << 10);
        let windows = [Window { address: begin, bytes: &bytes }];
        let end = unwinder.walk(&known(&user), &windows, &space, &mut frames);
        // The first stops may be within `clone3`, whose stack has no caller yet.
        if end == End::Whole {
            whole += 1;
            let calls = frames.iter().skip(1);
            assert!(calls.clone().all(|it| matches!(it.proof, Proof::Call | Proof::Called)));
            let outermost = space.describe(frames.last().unwrap().lookup);
            assert!(outermost.contains("libc"), "{outermost}");
        } else {
            assert_eq!((end, frames.len()), (End::Refused, 1), "{}", space.describe(user.rip));
            assert_eq!(whole, 0, "a thread does not begin twice");
        }
        ptrace::cont(thread, None).unwrap();
    }
    // A traced thread would have to be waited for, or the process's end would not be reported.
    ptrace::interrupt(thread).unwrap();
    waitpid(thread, Some(WaitPidFlag::__WALL)).unwrap();
    ptrace::detach(thread, None).unwrap();
}

/// A process that ends with the test, also where that fails.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill().and_then(|()| self.0.wait());
    }
}
