//! The tags of processes, which determine the scope of their samples: labels, control groups and
//! exclusions.

use super::process::Process;
use super::{Mappings, Window};
use crate::mapped_files::MappedFile;
use crate::scopes::{LABELS_MAX, Rules, Tagger, Tags};
use crate::system::System;
use inspect::open_mapped::MappedAt;
use kernel::{RecordKind, TimedRecord};
use profiledb::DbError;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Control groups that wait for their process's exec to be applied.
const FORESEEN_MAX: usize = 65_536;

/// Why a process is not labelled; each is one line with the next step.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabelError {
    /// The label is not valid in the database.
    #[error("{0}; choose another label")]
    Name(#[from] DbError),
    /// No process has that number, or it is not the intended process.
    #[error("no process has the number {pid} any more; see ps")]
    Gone {
        /// The number.
        pid: u32,
    },
    /// The number is one of a thread.
    #[error("{pid} is a thread of process {process}; label the process")]
    Thread {
        /// The number.
        pid: u32,
        /// The process it belongs to.
        process: u32,
    },
    /// Too many labels are in force.
    #[error(
        "{LABELS_MAX} labels are in force, which is the limit; end a labelled run first, or take one of its labels"
    )]
    TooManyLabels,
    /// Too many processes are known.
    #[error("dcpid knows as many processes as it can; see dcpictl status")]
    TooManyProcesses,
}

impl Process {
    /// Reads the process's control group, if it is needed and not yet known.
    pub(super) fn read_cgroup(&mut self, pid: u32, tagger: &mut Tagger, system: &System) {
        let Some(now) = self.versions.last_mut().filter(|now| now.tags.unread()) else { return };
        // A process that has ended is in no group (a zombie is shown at the root of version 1's
        // hierarchies).
        let cgroup = if self.ended_ns.is_none() { system.cgroup(pid) } else { None };
        now.tags = tagger.read(&now.tags, cgroup.as_deref(), system);
    }

    /// The control group was read when the exec was reported, because the process may be gone
    /// later.
    pub(super) fn has_cgroup(&mut self, cgroup: &[u8], tagger: &mut Tagger, system: &System) {
        if let Some(now) = self.versions.last_mut() {
            now.tags = tagger.read(&now.tags, Some(cgroup), system);
        }
    }

    fn tags_mut(&mut self) -> Option<&mut Tags> {
        self.versions.last_mut().map(|now| &mut now.tags)
    }
}

/// The tags of a process whose fork was not recorded: its parent's tags, if any process has tags.
pub(super) fn of_parent(
    processes: &HashMap<u32, Process, foldhash::fast::RandomState>,
    tagger: &Tagger,
    system: &System,
    pid: u32,
) -> Tags {
    let parent = || processes.get(&system.parent(pid)?)?.versions.last();
    let inherited = if tagger.in_use() { parent().map(|parent| parent.tags.clone()) } else { None };
    inherited
        .map_or_else(|| tagger.unknown(), |tags| tags.with_unread(tagger.rules().want_cgroups()))
}

impl Mappings {
    /// Sets the rules for known and future processes. Call it before the first drain.
    pub fn keep_apart(&mut self, rules: Rules) {
        self.tagger = Tagger::new(rules);
        let unknown = self.tagger.unknown();
        self.processes
            .values_mut()
            .filter_map(Process::tags_mut)
            .for_each(|tags| *tags = unknown.clone());
        let excluded = self.tagger.rules().exclude_pids.clone();
        if excluded.is_empty() {
            return;
        }
        let parents = parents(&self.system);
        // A process that has ended since the scan may have been a child; a record names its parent,
        // unless it is too old to matter.
        self.processes.retain(|pid, _| parents.contains_key(pid));
        for pid in with_descendants(&excluded, &parents) {
            let tagger = &self.tagger;
            if let Some(tags) = self.processes.get_mut(&pid).and_then(Process::tags_mut) {
                *tags = tagger.left_out(tags);
            }
        }
    }

    /// Reads, for a record that the next drain applies, the facts that may be gone by then: the
    /// user of its process, the control group of a process that execed, where control groups
    /// matter, and the version of a file, which the kernel identifies by inode only. Records must
    /// come in the order of their times. Returns whether the record reports a file that no process
    /// has mapped before.
    pub fn foresee(&mut self, record: &mut TimedRecord) -> bool {
        self.users.foresee(&record.kind, &self.system);
        match record.kind {
            RecordKind::File { pid, start, size_low, changed_ns, number } => {
                self.files.hear_of(pid, start, (size_low, changed_ns), number);
            }
            RecordKind::Lost { .. } => self.files.forget_what_was_told(),
            _ => {}
        }
        if let RecordKind::Mmap(mmap) = &mut record.kind {
            let at = MappedAt {
                pid: mmap.pid,
                start: mmap.start,
                end: mmap.start.saturating_add(mmap.len),
            };
            mmap.file = self.files.look_at(&mmap.file, &mmap.path, at, record.time_ns);
            let news = !self.files.have(&mmap.file, &mmap.path);
            self.files.read_early(&mmap.file, &mmap.path, at);
            return news;
        }
        if let RecordKind::Exec { pid } = record.kind
            && self.tagger.rules().want_cgroups()
            && self.foreseen.len() < FORESEEN_MAX
            && let Some(cgroup) = self.system.cgroup(pid)
        {
            self.foreseen.insert(pid, cgroup);
        }
        false
    }

    /// Labels a process from `now_ns` on: it, the children that it will have, and where
    /// `with_children`, those that run already, with theirs. `start_time` is field 22 of
    /// /proc/PID/stat, to be sure that the number still means the process that was meant.
    ///
    /// Returns the processes that are labelled now. Their text must no longer be counted together
    /// with other processes' text.
    ///
    /// # Errors
    /// The reason why the process is not labelled; in this case no process is.
    pub fn label(
        &mut self,
        pid: u32,
        start_time: Option<u64>,
        (label, with_children): (&str, bool),
        now_ns: u64,
    ) -> Result<Vec<u32>, LabelError> {
        profiledb::check_label(label)?;
        let started = self.system.start_time(pid).ok_or(LabelError::Gone { pid })?;
        if start_time.is_some_and(|meant| meant != started) {
            return Err(LabelError::Gone { pid });
        }
        let process = self.system.process_of(pid).ok_or(LabelError::Gone { pid })?;
        if process != pid {
            return Err(LabelError::Thread { pid, process });
        }
        self.process(pid).ok_or(LabelError::TooManyProcesses)?;
        let all = if with_children {
            with_descendants(&[pid], &parents(&self.system))
        } else {
            HashSet::from([pid])
        };
        for pid in &all {
            let process = self.processes.get_mut(pid);
            let Some(now) = process.and_then(|process| process.versions.last_mut()) else {
                continue;
            };
            let labelled = self.tagger.labelled(&now.tags, label);
            let labelled = labelled.ok_or(LabelError::TooManyLabels)?;
            now.tags_before = Some((std::mem::replace(&mut now.tags, labelled), now_ns));
        }
        let mut all: Vec<u32> = all.into_iter().collect();
        all.sort_unstable(); // as a replay of the recording does
        Ok(all)
    }

    /// The number under which the sampler is to count kernel code that runs for this process from
    /// now on; 0: it must count by process. None: the process has ended, and its number may be
    /// another's.
    pub fn kernel_scope(&mut self, pid: u32) -> Option<u32> {
        let process = self.processes.get_mut(&pid).filter(|process| process.ended_ns.is_none())?;
        process.read_cgroup(pid, &mut self.tagger, &self.system);
        let tags = process.tags_mut()?.clone();
        Some(self.tagger.kernel_scope(&tags))
    }

    /// The tags of that generation of `pid` when the samples of this window were taken; no tags if
    /// that is not known.
    pub fn tags(&mut self, pid: u32, generation: u16, window: Window) -> Tags {
        let Some(process) = self.processes.get_mut(&pid) else { return Tags::default() };
        process.read_cgroup(pid, &mut self.tagger, &self.system);
        let then =
            || process.versions.iter().rev().filter(|version| version.until_ns >= window.from_ns);
        let known = then().find(|version| version.has(generation));
        let version = known.or_else(|| then().find(|version| version.generations.is_none()));
        version.map(|version| version.tags.clone()).unwrap_or_default()
    }

    /// The program that a process runs, and its tags: for that generation, or, if that is not
    /// known, the current ones. The program is the mapped file with the lowest addresses: the
    /// kernel maps programs below their interpreter and libraries (`ELF_ET_DYN_BASE`). None for a
    /// process that is not known, or has no file mapped.
    pub fn program(&mut self, pid: u32, generation: u16) -> Option<(Arc<MappedFile>, Tags)> {
        let process = self.processes.get_mut(&pid)?;
        process.read_cgroup(pid, &mut self.tagger, &self.system);
        let versions = || process.versions.iter().rev();
        let version =
            versions().find(|version| version.has(generation)).or_else(|| versions().next())?;
        let of_file = version.map.iter().find(|mapping| mapping.file.is_file());
        of_file.map(|mapping| (mapping.file.clone(), version.tags.clone()))
    }
}

/// These processes and all their descendants, according to /proc. Reads the parent of each running
/// process.
fn parents(system: &System) -> HashMap<u32, u32> {
    system.processes().into_iter().filter_map(|pid| Some((pid, system.parent(pid)?))).collect()
}

fn with_descendants(pids: &[u32], parents: &HashMap<u32, u32>) -> HashSet<u32> {
    let mut all: HashSet<u32> = pids.iter().copied().collect();
    // Each iteration adds one generation of children. The tree of processes is finite, and records
    // report processes that fork meanwhile.
    loop {
        let known = all.len();
        let children: Vec<u32> = parents
            .iter()
            .filter(|(_, parent)| all.contains(parent))
            .map(|(pid, _)| *pid)
            .collect();
        all.extend(children);
        if all.len() == known {
            return all;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroups;
    use crate::cgroups::Pattern;
    use kernel::procfs;
    use kernel::{MappedFileId, Record};
    use std::process::{Child, Command, Stdio};

    const PID: u32 = (1 << abi::PID_BITS) - 9; // no such process can exist

    fn at(time_ns: u64, kind: RecordKind) -> TimedRecord {
        TimedRecord { time_ns, kind }
    }

    fn mmap(time_ns: u64, pid: u32, start: u64) -> TimedRecord {
        let file = MappedFileId::BuildId(vec![7; 20]);
        at(
            time_ns,
            RecordKind::Mmap(Record {
                pid,
                start,
                len: 0x100,
                file_offset: 0,
                path: b"/bin/x".to_vec(),
                file,
            }),
        )
    }

    fn label(mappings: &mut Mappings, pid: u32, window: (u64, u64)) -> Option<String> {
        let window = Window { from_ns: window.0, to_ns: window.1 };
        let found = mappings.find(pid, 0, 0x1000, window).unwrap();
        let tags = mappings.tags(pid, 0, window);
        assert_eq!(found.tags.scope(), tags.scope(), "user code and kernel code agree");
        tags.scope().and_then(|scope| scope.label.clone())
    }

    /// A shell with a child that runs already; killed at the end.
    struct Family(Child);

    impl Family {
        fn new() -> (Self, u32) {
            use std::io::{BufRead as _, BufReader};
            let mut shell = Command::new("sh");
            shell
                .args(["-c", "sleep 100 & echo $!; wait"])
                .stdin(Stdio::null())
                .stdout(Stdio::piped());
            let mut shell = shell.spawn().unwrap();
            let mut line = String::new();
            BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
            (Self(shell), line.trim().parse().unwrap())
        }
    }

    impl Drop for Family {
        fn drop(&mut self) {
            let _ = Command::new("kill").arg(procfs_children(self.0.id())).status();
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn procfs_children(pid: u32) -> String {
        std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))
            .unwrap_or_default()
            .trim()
            .to_owned()
    }

    #[test]
    fn children_inherit_a_label_and_keep_it_over_exec() {
        let mut mappings = Mappings::default();
        let me = std::process::id();
        mappings.apply(mmap(1, me, 0x1000));
        mappings.apply(mmap(1, PID, 0x1000));
        mappings.label(me, procfs::start_time(me), ("run", false), 0).unwrap();
        mappings.apply(at(2, RecordKind::Fork { pid: PID + 1, parent: me }));
        mappings.apply(at(3, RecordKind::Exec { pid: PID + 1 }));
        mappings.apply(mmap(4, PID + 1, 0x1000));
        mappings.apply(at(5, RecordKind::Fork { pid: PID + 2, parent: PID + 1 }));
        for (pid, expected) in
            [(me, Some("run")), (PID + 1, Some("run")), (PID + 2, Some("run")), (PID, None)]
        {
            assert_eq!(label(&mut mappings, pid, (0, 9)).as_deref(), expected, "{pid}");
        }
        mappings.label(me, None, ("again", false), 0).unwrap();
        assert_eq!(label(&mut mappings, me, (0, 9)).as_deref(), Some("again"));
        assert_eq!(
            label(&mut mappings, PID + 1, (0, 9)).as_deref(),
            Some("run"),
            "who was forked before keeps its own"
        );
    }

    /// A process number that is used again is another process: what the first was labelled is none
    /// of its business.
    #[test]
    fn a_reused_number_does_not_inherit_a_label() {
        let mut mappings = Mappings::default();
        let me = std::process::id();
        mappings.apply(mmap(1, PID, 0x1000));
        mappings.apply(mmap(1, me, 0x1000));
        mappings.label(me, None, ("run", false), 0).unwrap();
        mappings.apply(at(2, RecordKind::Fork { pid: PID + 1, parent: me }));
        mappings.apply(at(
            3,
            RecordKind::Execed { pid: PID + 1, generation: 5, program: None, user: None },
        ));
        mappings.apply(at(4, RecordKind::Exit { pid: PID + 1 }));
        mappings.apply(at(5, RecordKind::Fork { pid: PID + 1, parent: PID }));
        let window = Window { from_ns: 0, to_ns: 9 };
        let mut labelled = |generation| {
            mappings.find(PID + 1, generation, 0x1000, window).unwrap().tags.scope().is_some()
        };
        assert!(labelled(5), "samples of the first, in the same drain");
        assert!(!labelled(6));
        mappings.forget_ended(Window { from_ns: 20, to_ns: 30 });
        let window = Window { from_ns: 20, to_ns: 30 };
        assert!(mappings.find(PID + 1, 6, 0x1000, window).unwrap().tags.scope().is_none());
    }

    #[test]
    fn children_that_run_already_are_labelled_where_that_is_asked_for() {
        let (family, child) = Family::new();
        let parent = family.0.id();
        for (with_children, expected) in [(false, None), (true, Some("run"))] {
            let mut mappings = Mappings::default();
            mappings.apply(mmap(1, parent, 0x1000));
            mappings.apply(mmap(1, child, 0x1000));
            mappings.label(parent, procfs::start_time(parent), ("run", with_children), 0).unwrap();
            assert_eq!(label(&mut mappings, child, (0, 9)).as_deref(), expected);
            // And a process whose fork had no record.
            assert!(mappings.read_process(std::process::id(), 1, None));
            assert!(
                of_parent(&mappings.processes, &mappings.tagger, &mappings.system, child)
                    .scope()
                    .is_some()
            );
        }
    }

    #[test]
    fn who_cannot_be_labelled_is_told_why() {
        let mut mappings = Mappings::default();
        let me = std::process::id();
        let start = procfs::start_time(me).unwrap();
        for (pid, start_time, label, why) in [
            (me, None, "a/b", "label \"a/b\" contains a slash; choose another label"),
            (me, None, "", "label \"\" is empty; choose another label"),
            (me, Some(start + 1), "x", "any more; see ps"),
            (PID, None, "x", "no process has the number"),
        ] {
            let error = mappings.label(pid, start_time, (label, false), 0).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        let thread = std::thread::spawn(|| {
            let task = std::fs::read_link("/proc/thread-self").unwrap();
            task.file_name().unwrap().to_str().unwrap().parse().unwrap()
        });
        // It may have ended by now, and then it is gone.
        let error =
            mappings.label(thread.join().unwrap(), None, ("x", false), 0).unwrap_err().to_string();
        assert!(error.contains("is a thread of") || error.contains("any more"), "{error}");
        assert!(!mappings.tagger.in_use());
    }

    #[test]
    fn processes_and_groups_are_left_out_with_their_children() {
        let (family, child) = Family::new();
        let parent = family.0.id();
        let mut mappings = Mappings::default();
        for pid in [parent, child, PID] {
            mappings.apply(mmap(1, pid, 0x1000));
        }
        mappings.keep_apart(Rules { exclude_pids: vec![parent], ..Rules::default() });
        mappings.apply(at(2, RecordKind::Fork { pid: PID + 1, parent: child }));
        mappings.apply(at(3, RecordKind::Exec { pid: PID + 1 }));
        let window = Window { from_ns: 0, to_ns: 9 };
        let mut excluded = |pid| mappings.tags(pid, 0, window).excluded();
        assert!(excluded(parent) && excluded(child) && excluded(PID + 1) && !excluded(PID));

        let own = cgroups::of_process(std::process::id()).unwrap();
        // At the root nobody can be told apart by group; then the rule must not hit either.
        let named = cgroups::unit_name(&own).unwrap_or_else(|| "nobody.service".into());
        let mut mappings = Mappings::default();
        mappings.apply(mmap(1, std::process::id(), 0x1000));
        mappings.keep_apart(Rules {
            exclude_cgroups: vec![Pattern::new(&named).unwrap()],
            ..Rules::default()
        });
        assert_eq!(mappings.tags(std::process::id(), 0, window).excluded(), own.len() > 1);
    }
}
