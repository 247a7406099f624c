//! Processes and threads that run already, to be recorded.

use std::fs;

use query::error::AnalysisError;

use super::label_of;

/// The processes that `dcpi record` records when they are already running.
pub(super) struct Attached {
    processes: Vec<Process>,
    /// The threads whose stacks the report has; none: those of all threads.
    pub(super) tids: Vec<u32>,
}

/// A process, and its start time, which no other process of that number has.
pub(super) struct Process {
    pub(super) pid: u32,
    pub(super) start_time: u64,
    command: String,
}

impl Attached {
    /// Finds the processes of these numbers, or those that these threads belong to; None where
    /// neither are given.
    ///
    /// # Errors
    /// [`AnalysisError::Refused`] for a number that nothing has.
    pub(super) fn find(pids: &[u32], tids: &[u32]) -> Result<Option<Self>, AnalysisError> {
        let mut numbers = pids.to_vec();
        for tid in tids {
            numbers.push(process_of(*tid).ok_or_else(|| gone("thread", *tid, "ps -eL"))?);
        }
        numbers.sort_unstable();
        numbers.dedup();
        let mut processes = Vec::with_capacity(numbers.len());
        for pid in numbers {
            // The numbers of threads are names in /proc, too.
            match process_of(pid) {
                Some(process) if process != pid => {
                    return Err(AnalysisError::Refused(format!(
                        "cannot record: {pid} is a thread of process {process}; --tid {pid} \
                         records its call stacks"
                    )));
                }
                _ => {}
            }
            processes.push(Process::find(pid).ok_or_else(|| gone("process", pid, "ps -e"))?);
        }
        let tids = tids.to_vec();
        Ok((!processes.is_empty()).then_some(Self { processes, tids }))
    }

    pub(super) fn processes(&self) -> &[Process] {
        &self.processes
    }

    /// The label of the recording: the command with its process number; of many processes their
    /// number.
    pub(super) fn label(&self) -> String {
        let one = |process: &Process| format!("{} {}", process.command, process.pid);
        let all = self.processes.iter().map(one).collect::<Vec<_>>().join(", ");
        if all.len() <= super::LABEL_BYTES_MAX {
            all
        } else {
            format!("{} processes", self.processes.len())
        }
    }

    pub(super) fn have_ended(&self) -> bool {
        let runs = |process: &Process| {
            Process::find(process.pid).is_some_and(|now| now.start_time == process.start_time)
        };
        !self.processes.iter().any(runs)
    }
}

impl Process {
    /// The process of a number, unless it has ended and only its parent has not noticed: its first
    /// thread may have ended before others.
    fn find(pid: u32) -> Option<Self> {
        let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
        let threads = || fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
        let (process, has_ended) = Self::parse(pid, &String::from_utf8_lossy(&stat))?;
        (!has_ended || threads() > 1).then_some(process)
    }

    /// Reads the fields of proc_pid_stat(5): the command in parentheses, which it may have itself,
    /// behind it the state, and the start time as the 22nd field. With whether the first thread has
    /// ended.
    fn parse(pid: u32, stat: &str) -> Option<(Self, bool)> {
        let (begin, behind) = stat.rsplit_once(')')?;
        let command = begin.split_once('(')?.1;
        let mut fields = behind.split_whitespace();
        let has_ended = ["Z", "X"].contains(&fields.next()?);
        let start_time = fields.nth(18)?.parse().ok()?;
        Some((Self { pid, start_time, command: label_of(command) }, has_ended))
    }
}

fn process_of(tid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
    status
        .lines()
        .find_map(|line| line.strip_prefix("Tgid:"))
        .and_then(|pid| pid.trim().parse().ok())
}

fn gone(what: &str, number: u32, list: &str) -> AnalysisError {
    AnalysisError::Refused(format!("cannot record: there is no {what} {number}; see {list}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_found_by_their_numbers_and_by_their_threads() {
        let me = std::process::id();
        let tid: u32 = std::thread::spawn(|| {
            let own = fs::read_link("/proc/thread-self").unwrap();
            let tid = own.file_name().unwrap().to_str().unwrap().parse().unwrap();
            let of_thread = Attached::find(&[], &[tid]).unwrap().unwrap();
            assert_eq!(of_thread.processes()[0].pid, std::process::id());
            assert!(Attached::find(&[tid], &[]).is_err_and(|error| {
                error.to_string().contains(&format!("--tid {tid} records"))
            }));
            tid
        })
        .join()
        .unwrap();
        let attached = Attached::find(&[me, me], &[]).unwrap().unwrap();
        assert_eq!(attached.processes().len(), 1);
        assert!(attached.label().ends_with(&format!(" {me}")) && !attached.have_ended());
        assert!(Attached::find(&[], &[]).unwrap().is_none());
        let none = Attached::find(&[u32::MAX], &[]).map(drop).unwrap_err().to_string();
        assert_eq!(none, format!("cannot record: there is no process {}; see ps -e", u32::MAX));
        let none = Attached::find(&[], &[u32::MAX]).map(drop).unwrap_err().to_string();
        assert!(none.contains("there is no thread"), "{none}, once {tid}");
    }

    #[test]
    fn a_command_may_have_parentheses_and_who_has_ended_is_gone() {
        let stat = |state: &str| {
            format!("7 (a) b (c)) {state} 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 99 20")
        };
        let (process, has_ended) = Process::parse(7, &stat("S")).unwrap();
        assert!(!has_ended);
        assert_eq!((process.command.as_str(), process.start_time), ("a) b (c)", 99));
        assert!(Process::parse(7, &stat("Z")).is_some_and(|(_, has_ended)| has_ended));
        assert!(Process::parse(7, "7 (a").is_none() && Process::parse(7, "").is_none());
    }

    #[test]
    fn many_processes_are_counted_in_the_label() {
        let process = |pid| Process { pid, start_time: 0, command: "worker".to_owned() };
        let of = |pids: std::ops::Range<u32>| {
            Attached { processes: pids.map(process).collect(), tids: Vec::new() }.label()
        };
        assert_eq!(of(1..3), "worker 1, worker 2");
        assert_eq!(of(1..100), "99 processes");
    }
}
