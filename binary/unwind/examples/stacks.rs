//! Measures walks of a program that runs: `stacks [-n SAMPLES] [-f NAME] -- COMMAND...` stops the
//! command and its children again and again, walks each stack from copies of several sizes, and
//! prints the share of whole stacks, the ends, what a walk costs, and what the walker holds. With
//! `-f`, code made at run time keeps frame pointers, and so do files with NAME in theirs.
#![allow(clippy::print_stdout, clippy::unwrap_used, clippy::indexing_slicing, reason = "a bench")]

#[cfg(target_arch = "x86_64")]
#[path = "../tests/walks/process.rs"]
mod process;

#[cfg(target_arch = "x86_64")]
mod measure {
    use std::collections::BTreeMap;
    use std::process::{Command, Stdio};
    use std::thread::sleep;
    use std::time::{Duration, Instant};

    use nix::sys::ptrace::{self, Options};
    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::Pid;
    use unwind::{End, Frame, Proof, Registers, Unwinder, Window};

    use crate::process::{Mapped, known, registers};

    /// Bytes of stack copied from the red zone's end on.
    const WINDOWS: [usize; 9] =
        [512, 1 << 10, 2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 1 << 20];
    const RED_ZONE: u64 = 128;

    /// The state at a stop.
    struct Snapshot {
        registers: Registers,
        begin: u64,
        stack: Vec<u8>,
        /// Number of the process's mappings, as they were.
        space: usize,
    }

    pub fn run(samples: usize, frame_pointers: Option<&String>, command: &[String]) {
        let mut unwinder = Unwinder::new();
        let mut spaces: Vec<Mapped> = Vec::new();
        let begin = Instant::now();
        let snapshots = record(samples, frame_pointers, command, &mut unwinder, &mut spaces);
        let seconds = begin.elapsed().as_secs_f64();
        println!("{}: {} snapshots in {seconds:.0} s", command.join(" "), snapshots.len());
        shares(&snapshots, &spaces, &mut unwinder);
        let figures = unwinder.figures();
        let times = times(&snapshots, &spaces, &mut unwinder);
        println!("  a walk from 1 MiB: first {:.1} us, again {:.2} us", times.0, times.1);
        println!("  {figures:?}");
    }

    fn record(
        samples: usize,
        frame_pointers: Option<&String>,
        command: &[String],
        unwinder: &mut Unwinder,
        spaces: &mut Vec<Mapped>,
    ) -> Vec<Snapshot> {
        let mut snapshots = Vec::new();
        let mut of_process = BTreeMap::new();
        while snapshots.len() < samples {
            let mut child = Command::new(&command[0])
                .args(&command[1..])
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            let root = child.id();
            while snapshots.len() < samples && matches!(child.try_wait(), Ok(None)) {
                sleep(Duration::from_millis(3));
                for thread in running(root) {
                    let pid = thread.0;
                    if !stop(thread.1) {
                        continue;
                    }
                    let mappings = std::fs::read_to_string(format!("/proc/{pid}/maps"));
                    let number = *of_process
                        .entry((pid, mappings.unwrap_or_default()))
                        .or_insert_with(|| {
                            let mut space = Mapped::new(pid);
                            if let Some(last) = spaces.last() {
                                space.know_files_of(last);
                            }
                            space.frame_pointers = frame_pointers.cloned();
                            space.refresh(unwinder);
                            spaces.push(space);
                            spaces.len() - 1
                        });
                    if let Some(user) = registers(thread.1) {
                        let begin = user.rsp - RED_ZONE;
                        let stack = spaces[number].memory(begin, WINDOWS[8]);
                        let registers = known(&user);
                        snapshots.push(Snapshot { registers, begin, stack, space: number });
                    }
                    let _ = ptrace::detach(thread.1, None);
                }
            }
            let _ = child.kill();
            let _ = child.wait();
        }
        snapshots
    }

    /// Threads that run in user mode of the process and its descendants: (process, thread).
    fn running(root: u32) -> Vec<(Pid, Pid)> {
        let mut found = Vec::new();
        let mut processes = vec![root];
        while let Some(process) = processes.pop() {
            let Ok(tasks) = std::fs::read_dir(format!("/proc/{process}/task")) else { continue };
            for task in tasks.flatten() {
                let Ok(number) = task.file_name().to_string_lossy().parse::<i32>() else {
                    continue;
                };
                let path = task.path();
                let stat = std::fs::read_to_string(path.join("stat")).unwrap_or_default();
                if stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('R')) {
                    found.push((Pid::from_raw(process.cast_signed()), Pid::from_raw(number)));
                }
                let children = std::fs::read_to_string(path.join("children")).unwrap_or_default();
                processes
                    .extend(children.split_whitespace().filter_map(|it| it.parse::<u32>().ok()));
            }
        }
        found
    }

    fn stop(thread: Pid) -> bool {
        if ptrace::seize(thread, Options::empty()).is_err() || ptrace::interrupt(thread).is_err() {
            return false;
        }
        let flags = Some(nix::sys::wait::WaitPidFlag::__WALL);
        match waitpid(thread, flags) {
            Ok(WaitStatus::PtraceEvent(..)) => true,
            Ok(WaitStatus::Stopped(_, signal)) => {
                let _ = ptrace::detach(thread, signal);
                false
            }
            _ => false,
        }
    }

    fn shares(snapshots: &[Snapshot], spaces: &[Mapped], unwinder: &mut Unwinder) {
        let mut frames = Vec::new();
        let mut text = String::new();
        let mut ends: BTreeMap<End, usize> = BTreeMap::new();
        let mut proofs: BTreeMap<Proof, usize> = BTreeMap::new();
        let mut stops: BTreeMap<String, usize> = BTreeMap::new();
        let mut counts = Vec::new();
        for window in WINDOWS {
            let mut whole = 0;
            for snapshot in snapshots {
                let end = walk(snapshot, window, spaces, unwinder, &mut frames);
                whole += usize::from(end == End::Whole);
                if window == WINDOWS[8] {
                    *ends.entry(end).or_default() += 1;
                    counts.push(frames.len());
                    frames.iter().for_each(|frame| *proofs.entry(frame.proof).or_default() += 1);
                    if end != End::Whole {
                        let last = frames.last().map_or(0, |frame| frame.lookup);
                        let at = spaces[snapshot.space].describe(last);
                        *stops.entry(format!("{} {at}", end.name())).or_default() += 1;
                    }
                }
            }
            let share = 100.0 * whole as f64 / snapshots.len() as f64;
            text += &format!(" {window}: {share:.1} %,");
        }
        println!("  whole by bytes copied:{}", text.trim_end_matches(','));
        second_windows(snapshots, spaces, unwinder);
        counts.sort_unstable();
        println!("  ends {ends:?}, proofs {proofs:?}");
        println!("  frames: median {}, most {:?}", counts[counts.len() / 2], counts.last());
        let mut stops: Vec<_> = stops.into_iter().collect();
        stops.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        stops.iter().take(6).for_each(|(at, count)| println!("    {count} {at}"));
    }

    /// The share of whole stacks with 4 KiB more, beyond the largest frame of each stack.
    fn second_windows(snapshots: &[Snapshot], spaces: &[Mapped], unwinder: &mut Unwinder) {
        let mut frames = Vec::new();
        let mut text = String::new();
        for bytes in [2 << 10, 4 << 10, 8 << 10, 16 << 10] {
            let mut whole = 0;
            for snapshot in snapshots {
                walk(snapshot, WINDOWS[8], spaces, unwinder, &mut frames);
                let stacks: Vec<u64> = frames.iter().filter_map(|it| it.stack_pointer).collect();
                let gap = stacks.windows(2).max_by_key(|pair| pair[1].saturating_sub(pair[0]));
                // Saved registers lie below the end of a frame.
                let far = gap.map_or(0, |pair| pair[1].saturating_sub(128 + snapshot.begin));
                let far = (far as usize).min(snapshot.stack.len());
                let far_bytes = &snapshot.stack[far..(far + 4096).min(snapshot.stack.len())];
                let near = snapshot.stack.get(..bytes).unwrap_or(&snapshot.stack);
                let windows = [
                    Window { address: snapshot.begin, bytes: near },
                    Window { address: snapshot.begin + far as u64, bytes: far_bytes },
                ];
                let space = &spaces[snapshot.space];
                let end = unwinder.walk(&snapshot.registers, &windows, space, &mut frames);
                whole += usize::from(end == End::Whole);
            }
            let share = 100.0 * whole as f64 / snapshots.len() as f64;
            text += &format!(" {bytes}: {share:.1} %,");
        }
        println!("  with 4 KiB beyond the largest frame:{}", text.trim_end_matches(','));
    }

    /// Microseconds of a walk: the first of a new walker over all files, and later ones.
    fn times(snapshots: &[Snapshot], spaces: &[Mapped], unwinder: &mut Unwinder) -> (f64, f64) {
        let mut frames: Vec<Frame> = Vec::new();
        let mut once = |unwinder: &mut Unwinder| {
            let begin = Instant::now();
            for snapshot in snapshots {
                walk(snapshot, WINDOWS[8], spaces, unwinder, &mut frames);
            }
            begin.elapsed().as_secs_f64() * 1e6 / snapshots.len() as f64
        };
        unwinder.empty();
        let first = once(unwinder);
        (first, (0..5).map(|_| once(unwinder)).fold(f64::MAX, f64::min))
    }

    fn walk(
        snapshot: &Snapshot,
        bytes: usize,
        spaces: &[Mapped],
        unwinder: &mut Unwinder,
        frames: &mut Vec<Frame>,
    ) -> End {
        let stack = snapshot.stack.get(..bytes).unwrap_or(&snapshot.stack);
        let windows = [Window { address: snapshot.begin, bytes: stack }];
        unwinder.walk(&snapshot.registers, &windows, &spaces[snapshot.space], frames)
    }
}

#[cfg(target_arch = "x86_64")]
fn main() {
    let mut arguments = std::env::args().skip(1).peekable();
    let mut samples = 500;
    let mut frame_pointers = None;
    while let Some(word) = arguments.next_if(|word| word.starts_with('-') && word != "--") {
        match word.as_str() {
            "-n" => samples = arguments.next().unwrap().parse().unwrap(),
            _ => frame_pointers = arguments.next(),
        }
    }
    let command: Vec<String> = arguments.skip_while(|word| word == "--").collect();
    measure::run(samples, frame_pointers.as_ref(), &command);
}

#[cfg(not(target_arch = "x86_64"))]
fn main() {}
