//! Asking inspectors, each question with a deadline.

use super::answers::{Desk, Find};
use super::blame::{Blame, Blamed, Counts, User};
use super::frames::{Connection, Used};
use super::questions::{Identified, Known, Question};
use crate::file_facts::FileFacts;
use kernel::clock;
use std::io;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Longest time for which the daemon's loop waits for an answer. Most answers take 0.1 ms; the
/// mappings of a process with 65530 of them take 30 ms. A longer wait would delay `dcpictl status`.
pub const LOOP_PATIENCE: Duration = Duration::from_millis(300);
/// Time that threads other than the loop wait for an answer.
pub const THREAD_PATIENCE: Duration = Duration::from_secs(5);
/// Longest time that a wait is prolonged while the inspector waits for a CPU: on a host with eight
/// busy threads for each CPU, it has one for a few ms in a second.
const WITHOUT_CPU_MAX: Duration = Duration::from_secs(3);
/// An inspector that has not answered for this long is given up: its own alarm has ended it by
/// then, unless it waits in a way that nothing ends.
const LATE_MAX: Duration = Duration::from_secs(12);
/// Inspectors of one asker that may be late at once. More questions have no answer until one of
/// these is back or given up.
const LATE_INSPECTORS_MAX: usize = 8;
/// After a failed connection the next is tried this much later.
const RETRY: Duration = Duration::from_secs(1);

/// The receiver of questions. The default one answers them in this process: for tests, and for
/// replays, which ask none.
#[derive(Clone)]
pub struct Inspectors(Answerer);

#[derive(Clone)]
enum Answerer {
    ThisProcess(Arc<Mutex<Desk>>),
    Inspectors(Arc<Asker>),
}

impl Default for Inspectors {
    fn default() -> Self {
        Self(Answerer::ThisProcess(Arc::default()))
    }
}

impl std::fmt::Debug for Inspectors {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("Inspectors").field(&self.asker()).finish()
    }
}

#[derive(Debug)]
struct Asker {
    address: SocketAddr,
    patience: Duration,
    blame: Arc<Mutex<Blame>>,
    line: Mutex<Line>,
    /// CPU time of this asker's inspectors, in ns.
    cpu_ns: AtomicU64,
    /// The last attempt to reach an inspector failed.
    is_broken: Arc<AtomicBool>,
}

#[derive(Debug, Default)]
struct Line {
    idle: Option<Connection>,
    late: Vec<Late>,
    /// Late answers of inspectors.
    learnt: Vec<(Known, FileFacts, FileFacts)>,
    retry_at: Option<Instant>,
    /// Connections so far: what one inspector holds open, no other has.
    connections: u64,
}

#[derive(Debug)]
struct Late {
    connection: Connection,
    since: Instant,
    /// The question was [`Identify`](super::questions::Identify), whose answer is still useful.
    is_identify: bool,
}

/// Counts, users that kept inspectors waiting, and whether there are inspectors at all.
#[derive(Clone, Debug, Default)]
pub struct Standing {
    /// The question.
    pub counts: Counts,
    /// Users that kept inspectors waiting.
    pub users: Vec<Blamed>,
    /// No inspector can be reached.
    pub is_broken: bool,
}

impl Inspectors {
    /// Asks the inspectors behind that socket, each question for at most `patience`.
    pub fn at(address: SocketAddr, patience: Duration) -> Self {
        Self(Answerer::Inspectors(Arc::new(Asker {
            address,
            patience,
            blame: Arc::default(),
            line: Mutex::default(),
            cpu_ns: AtomicU64::default(),
            is_broken: Arc::default(),
        })))
    }

    fn asker(&self) -> Option<&Asker> {
        match &self.0 {
            Answerer::ThisProcess(_) => None,
            Answerer::Inspectors(asker) => Some(asker),
        }
    }

    /// Another asker, with its own inspector but the same record of blame.
    pub fn another(&self, patience: Duration) -> Self {
        let Answerer::Inspectors(asker) = &self.0 else { return Self::default() };
        Self(Answerer::Inspectors(Arc::new(Asker {
            address: asker.address.clone(),
            patience,
            blame: asker.blame.clone(),
            line: Mutex::default(),
            cpu_ns: AtomicU64::default(),
            is_broken: asker.is_broken.clone(),
        })))
    }

    /// The answer. `None`: there was none in time, or the process that the question is about has
    /// kept inspectors waiting before.
    pub fn ask<Asked: Find>(&self, question: Asked) -> Option<Asked::Answer> {
        match &self.0 {
            Answerer::ThisProcess(desk) => Some(question.find(&mut lock(desk))),
            Answerer::Inspectors(asker) => asker.ask(question),
        }
    }

    /// Whether questions about a process are withheld now.
    pub fn withhold(&self, pid: u32) -> bool {
        let Some(asker) = self.asker() else { return false };
        lock(&asker.blame).is_silent(pid, Instant::now())
    }

    /// The number of the inspector that is asked: another after one was given up.
    pub fn connection(&self) -> u64 {
        self.asker().map_or(0, |asker| lock(&asker.line).connections)
    }

    /// Late answers about files since the last call.
    pub fn take_learnt(&self) -> Vec<(Known, FileFacts, FileFacts)> {
        let Some(asker) = self.asker() else { return Vec::new() };
        let mut line = lock(&asker.line);
        line.look_at_late(asker);
        std::mem::take(&mut line.learnt)
    }

    /// How it stands.
    pub fn standing(&self) -> Standing {
        let Some(asker) = self.asker() else { return Standing::default() };
        let blame = lock(&asker.blame);
        let is_broken = asker.is_broken.load(Ordering::Relaxed);
        Standing { counts: blame.counts, users: blame.users(), is_broken }
    }

    /// CPU time of this asker's inspectors, in ns.
    pub fn own_cpu_ns(&self) -> u64 {
        self.asker().map_or(0, |asker| asker.cpu_ns.load(Ordering::Relaxed))
    }
}

/// Whether an inspector that has worked on a question for this long waits for a CPU, and has had
/// one for less than half of the time.
fn lacks_cpu(before: Used, waited: Duration) -> bool {
    let cpu_ns = kernel::procfs::cpu_ns_if_runnable(before.pid);
    let used = cpu_ns.map(|cpu_ns| Duration::from_nanos(cpu_ns.saturating_sub(before.cpu_ns)));
    used.is_some_and(|used| used < waited / 2)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The data is consistent even if a thread panicked, because each change is one call.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Asker {
    fn ask<Asked: Find>(&self, question: Asked) -> Option<Asked::Answer> {
        let pid = question.pid();
        let begun = Instant::now();
        let mut line = lock(&self.line);
        if pid.is_some_and(|pid| lock(&self.blame).is_silent(pid, begun)) {
            lock(&self.blame).counts.withheld += 1;
            return None;
        }
        let mut connection = self.connection(&mut line, begun)?;
        // Before the question: a process that is asked about may be gone when there is no answer.
        let user = pid.map(User::of_process);
        let question: Question = question.into();
        let is_identify = matches!(question, Question::Identify(_));
        let sent = connection.send(&question, Used::default());
        let before = connection.peer;
        let received = match sent {
            Ok(()) => self.receive::<Asked>(&mut connection, begun),
            Err(error) => Err(error),
        };
        self.used(before, connection.peer);
        let mut blame = lock(&self.blame);
        blame.counts.asked += 1;
        let (waited, now) = (begun.elapsed(), Instant::now());
        match received {
            Ok(Some(answer)) => {
                line.idle = Some(connection);
                if self.patience <= LOOP_PATIENCE
                    && let Some((pid, user)) = pid.zip(user)
                {
                    blame.answered(pid, user, waited, now);
                }
                return Some(answer);
            }
            Ok(None) => line.late.push(Late { connection, since: begun, is_identify }),
            // It died of the question: of a file that takes too much memory, or at its alarm.
            Err(error) => tracing::debug!(%error, ?pid, "an inspector ended over a question"),
        }
        blame.counts.unanswered += 1;
        if let Some((pid, user)) = pid.zip(user) {
            blame.waited(pid, user, waited.max(self.patience.min(LOOP_PATIENCE)), now);
            tracing::warn!(
                pid,
                "no answer about this process within {} ms; it is not asked about for a while",
                waited.as_millis()
            );
        }
        None
    }

    /// Waits for an answer: longer while the inspector has no CPU, for which nobody that it looks
    /// at is to blame.
    fn receive<Asked: Find>(
        &self,
        connection: &mut Connection,
        begun: Instant,
    ) -> io::Result<Option<Asked::Answer>> {
        let mut until = begun + self.patience;
        let last = until + WITHOUT_CPU_MAX;
        loop {
            let received = connection.receive::<Asked::Answer>(Some(until))?;
            if received.is_some() || until >= last || !lacks_cpu(connection.peer, begun.elapsed()) {
                return Ok(received);
            }
            until = (until + self.patience).min(last);
        }
    }

    fn used(&self, before: Used, now: Used) {
        let cpu_ns = now.cpu_ns.saturating_sub(before.cpu_ns);
        self.cpu_ns.fetch_add(cpu_ns, Ordering::Relaxed);
        ALL_CPU_NS.fetch_add(cpu_ns, Ordering::Relaxed);
        let counts = &mut lock(&self.blame).counts;
        counts.peak_bytes = counts.peak_bytes.max(now.peak_bytes);
    }

    /// An inspector that waits for a question.
    fn connection(&self, line: &mut Line, now: Instant) -> Option<Connection> {
        line.look_at_late(self);
        if let Some(idle) = line.idle.take() {
            return Some(idle);
        }
        if line.late.len() >= LATE_INSPECTORS_MAX || line.retry_at.is_some_and(|at| at > now) {
            return None;
        }
        let stream = UnixStream::connect_addr(&self.address).and_then(|stream| {
            stream.set_write_timeout(Some(self.patience))?;
            Ok(stream)
        });
        let was_broken = self.is_broken.swap(stream.is_err(), Ordering::Relaxed);
        match stream {
            Ok(stream) => {
                line.connections += 1;
                line.retry_at = None;
                lock(&self.blame).counts.inspectors += 1;
                Some(Connection::new(stream))
            }
            Err(error) => {
                if !was_broken {
                    tracing::error!(
                        "no inspector can be reached ({error}): files and processes have no names"
                    );
                }
                line.retry_at = Some(now + RETRY);
                None
            }
        }
    }
}

impl Line {
    /// Takes answers that came late, and gives up inspectors that are too late.
    fn look_at_late(&mut self, asker: &Asker) {
        let now = Instant::now();
        for mut late in std::mem::take(&mut self.late) {
            let before = late.connection.peer;
            let answered = if late.is_identify {
                let found = late.connection.receive::<Identified>(Some(now));
                found.map(|found| {
                    let is_some = found.is_some();
                    if let Some(Identified::Known(known, before, after)) = found {
                        self.learnt.push((known, before, after));
                    }
                    is_some
                })
            } else {
                late.connection.receive_any(now)
            };
            asker.used(before, late.connection.peer);
            match answered {
                Ok(true) if self.idle.is_none() => self.idle = Some(late.connection),
                Ok(false) if late.since + LATE_MAX > now => self.late.push(late),
                Ok(_) | Err(_) => {} // dropping the connection ends the inspector
            }
        }
    }
}

/// CPU time of all inspectors of this process, in ns.
static ALL_CPU_NS: AtomicU64 = AtomicU64::new(0);

/// CPU time of this process and its inspectors, in ns: what the budget is about.
pub fn cpu_ns_of_all() -> u64 {
    clock::process_cpu_ns() + ALL_CPU_NS.load(Ordering::Relaxed)
}

/// The address of a socket with a name that no file has (unix(7), abstract).
///
/// # Errors
/// None that are known: the name is short.
pub fn nameless_address() -> io::Result<SocketAddr> {
    use std::os::linux::net::SocketAddrExt as _;
    SocketAddr::from_abstract_name(format!("dcpid-inspector-{:032x}", fastrand::u128(..)))
}

#[cfg(test)]
mod tests {
    use super::super::inspector;
    use super::super::questions::Mappings;
    use super::*;
    use std::os::unix::net::UnixListener;

    /// Inspectors as threads of this process; they never answer questions about `hung` processes.
    fn inspectors(hung: u32) -> Inspectors {
        let address = nameless_address().unwrap();
        let listener = UnixListener::bind_addr(&address).unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                std::thread::spawn(move || {
                    let mut desk = Desk::default();
                    let mut connection = Connection::new(stream.unwrap());
                    while let Ok(Some(question)) = connection.receive::<Question>(None) {
                        if matches!(question, Question::Mappings(Mappings { pid }) if pid == hung) {
                            std::thread::sleep(Duration::from_secs(3600));
                        }
                        inspector::answer(question, &mut desk, &mut connection).unwrap();
                    }
                });
            }
        });
        Inspectors::at(address, Duration::from_millis(100))
    }

    #[test]
    fn who_does_not_let_an_inspector_answer_costs_nobody_else_an_answer() {
        let mut hung = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let (inspectors, me) = (inspectors(hung.id()), std::process::id());
        let ask = |pid| inspectors.ask(Mappings { pid }).map(|lines| lines.is_some());
        assert_eq!(ask(me), Some(true));
        assert_eq!(ask(u32::MAX), Some(false), "gone");
        assert_eq!((ask(hung.id()), inspectors.withhold(hung.id())), (None, true));
        assert_eq!((ask(me), inspectors.withhold(me)), (Some(true), false));
        assert_eq!(ask(hung.id()), None);
        let Standing { counts, users, is_broken } = inspectors.standing();
        assert_eq!((counts.asked, counts.unanswered, counts.withheld), (4, 1, 1));
        assert_eq!((counts.inspectors, users[0].pid, is_broken), (2, hung.id(), false));
        let another = inspectors.another(LOOP_PATIENCE);
        assert!(another.ask(Mappings { pid: hung.id() }).is_none(), "it is blamed for all");
        hung.kill().unwrap();
        hung.wait().unwrap();
    }

    #[test]
    fn who_works_on_a_cpu_or_sleeps_does_not_lack_one() {
        let second = Duration::from_secs(1);
        let of = |pid, cpu_ns| Used { pid, cpu_ns, peak_bytes: 0 };
        // The thread that asks runs.
        let me = nix::unistd::gettid().as_raw() as u32;
        let own = kernel::procfs::cpu_ns_if_runnable(me).unwrap();
        assert!(lacks_cpu(of(me, own), second));
        assert!(!lacks_cpu(of(me, 0), Duration::from_nanos(own)));
        let mut asleep = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        std::thread::sleep(Duration::from_millis(50));
        assert!(!lacks_cpu(of(asleep.id(), 0), second));
        asleep.kill().unwrap();
        asleep.wait().unwrap();
        assert!(!lacks_cpu(Used::default(), second), "it has not answered yet");
    }

    /// A file server that ended the process that used it when dcpid asked had all of dcpid's time.
    #[test]
    fn a_process_that_ends_when_it_is_asked_about_costs_its_user_time() {
        let mut process = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = process.id();
        let address = nameless_address().unwrap();
        let listener = UnixListener::bind_addr(&address).unwrap();
        let silent = std::thread::spawn(move || {
            let mut connection = Connection::new(listener.accept().unwrap().0);
            assert!(connection.receive::<Question>(None).unwrap().is_some());
            process.kill().unwrap();
            process.wait().unwrap();
            connection // open, and never an answer
        });
        let inspectors = Inspectors::at(address, LOOP_PATIENCE);
        assert!(inspectors.ask(Mappings { pid }).is_none());
        let users = inspectors.standing().users;
        let me = User::of(nix::unistd::getuid().as_raw());
        assert_eq!(users.iter().map(|blamed| blamed.user).collect::<Vec<_>>(), [me]);
        drop(silent.join().unwrap());
    }

    #[test]
    fn without_inspectors_nothing_is_answered_and_said_once() {
        let inspectors = Inspectors::at(nameless_address().unwrap(), LOOP_PATIENCE);
        for _ in 0..3 {
            assert!(inspectors.ask(Mappings { pid: std::process::id() }).is_none());
        }
        assert!(inspectors.standing().is_broken);
    }
}
