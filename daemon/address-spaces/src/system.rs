//! The questions that resolution asks the system about processes, files and the kernel, behind one
//! handle.
//!
//! Live, a question that may never be answered goes to an inspector ([`inspect`]); numbers that the
//! kernel has at hand are read from `/proc`. While a recording is made, the answer is kept too. In
//! a replay only recorded answers are given, and this machine is never consulted: a question that
//! was not asked during the recording is answered as if the process or file were gone.

use crate::cgroups;
use image::kernel::{KernelPlace, Owner};
use image::{ImageId, ImageOffset};
use inspect::jit::code_events::CodeLook;
use inspect::jit::process::{self, Who};
use inspect::open_mapped::MappedAt;
use inspect::pool::Inspectors;
use inspect::questions::{self, IdentifyPath, Known, NarrowVdsoOf};
use inspect::vdso::StoredVdso;
use kernel::MappedFileId;
use kernel::latin1::Bytes;
use kernel::procfs::{self, MapsLine};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Answers kept at most. A recording of an hour on a busy host has fewer. Further answers are given
/// but not recorded, and [`System::refused`] counts them.
const ANSWERS_MAX: usize = 1_000_000;

/// Answers to one kind of question. Each holds from the step of the recording at which it was
/// given until the next: a step is one call for samples or for records.
#[derive(Clone, Debug)]
pub struct Table<Question, Answer>(BTreeMap<Question, Vec<(u32, Answer)>>);

impl<Question, Answer> Default for Table<Question, Answer> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<Question: Serialize, Answer: Serialize> Serialize for Table<Question, Answer> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(&self.0)
    }
}

impl<'de, Question, Answer> Deserialize<'de> for Table<Question, Answer>
where
    Question: Deserialize<'de> + Ord,
    Answer: Deserialize<'de>,
{
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Vec::deserialize(deserializer).map(|answers| Self(answers.into_iter().collect()))
    }
}

impl<Question: Ord, Answer: Clone + PartialEq> Table<Question, Answer> {
    /// Keeps an answer that differs from the last. Two within one step: the first stays. Returns
    /// whether it was new.
    fn keep(&mut self, question: Question, step: u32, answer: &Answer) -> bool {
        let known = self.0.entry(question).or_default();
        let is_new = known.last().is_none_or(|(at, last)| *at != step && last != answer);
        if is_new {
            known.push((step, answer.clone()));
        }
        is_new
    }

    /// The answer that held at a step; before the first, the first.
    fn at(&self, question: &Question, step: u32) -> Option<Answer> {
        let known = self.0.get(question)?;
        let until = known.partition_point(|(at, _)| *at <= step);
        known.get(until.saturating_sub(1)).map(|(_, answer)| answer.clone())
    }
}

/// The image of a file, or the name of the reason why it is not known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Identity {
    /// The image's id as text, and the file's size in bytes.
    Image(String, Option<u64>),
    /// The reason's name.
    Unknown(String),
}

/// Kernel code: a symbol with samples, or a piece of one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct KernelPiece {
    /// Address after the last byte.
    end: u64,
    /// `kernel`, `module`, `bpf` or `other`.
    owner: String,
    /// The owner's name.
    name: String,
    /// The symbol's first byte and the byte after its last, in the owner's image.
    symbol: (u64, u64),
    symbol_name: String,
}

/// The kernel's text as far as it was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedKernel {
    /// Begin and end of the text in which CPUs idle.
    idle: Option<(u64, u64)>,
    /// By the address of the first byte.
    pieces: BTreeMap<u64, KernelPiece>,
}

impl RecordedKernel {
    /// Keeps where an address lies.
    fn keep(&mut self, address: u64, place: &KernelPlace<'_>) {
        let start = address.wrapping_sub(place.offset.0.wrapping_sub(place.symbol_start.0));
        let (owner, name) = match place.owner {
            Owner::Kernel => ("kernel", ""),
            Owner::Module(name) => ("module", name),
            Owner::Bpf(name) => ("bpf", name),
            Owner::Other(name) => ("other", name),
        };
        let end = start.wrapping_add(place.symbol_end.0.wrapping_sub(place.symbol_start.0));
        // If code replaced other code at the same place, the first piece is kept.
        let is_apart = |(at, piece): (&u64, &KernelPiece)| *at == start || piece.end <= start;
        if end <= start || !self.pieces.range(..end).next_back().is_none_or(is_apart) {
            return;
        }
        self.pieces.entry(start).or_insert_with(|| KernelPiece {
            end,
            owner: owner.to_owned(),
            name: name.to_owned(),
            symbol: (place.symbol_start.0, place.symbol_end.0),
            symbol_name: place.symbol.to_owned(),
        });
    }

    /// The place of an address.
    pub fn place(&self, address: u64) -> Option<KernelPlace<'_>> {
        let (start, piece) = self.pieces.range(..=address).next_back()?;
        let owner = match piece.owner.as_str() {
            "kernel" => Owner::Kernel,
            "module" => Owner::Module(&piece.name),
            "bpf" => Owner::Bpf(&piece.name),
            _ => Owner::Other(&piece.name),
        };
        let (symbol_start, symbol_end) = piece.symbol;
        (address < piece.end).then(|| KernelPlace {
            owner,
            offset: ImageOffset(symbol_start.wrapping_add(address - start)),
            symbol_start: ImageOffset(symbol_start),
            symbol_end: ImageOffset(symbol_end),
            symbol: &piece.symbol_name,
        })
    }

    /// Addresses of the text in which CPUs idle.
    pub fn idle_text(&self) -> Option<std::ops::Range<u64>> {
        self.idle.map(|(start, end)| start..end)
    }
}

/// A file as the kernel's record describes it, and its path.
type FileQuestion = (MappedFileId, Bytes);

/// All answers.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Answers {
    processes: Table<(), Vec<u32>>,
    exists: Table<u32, bool>,
    start_time: Table<u32, Option<u64>>,
    parent: Table<u32, Option<u32>>,
    process_of: Table<u32, Option<u32>>,
    maps: Table<u32, Option<Vec<MapsLine>>>,
    cgroup: Table<u32, Option<Bytes>>,
    /// By the container's id.
    container: Table<String, Option<Bytes>>,
    user: Table<u32, Option<u32>>,
    who: Table<u32, Option<Who>>,
    is_still: Table<(u32, u64), bool>,
    /// By process, address and time.
    content: Table<(u32, u64, u64), Option<u64>>,
    identity: Table<FileQuestion, Option<Identity>>,
    registered_file: Table<Bytes, Option<Identity>>,
    /// By its size.
    vdso32: Table<u64, Option<StoredVdso>>,
    module_id: Table<String, Option<String>>,
    code_looks: BTreeMap<u32, VecDeque<CodeLook>>,
    kernel: RecordedKernel,
}

impl Answers {
    /// Whether they could have been given: no mapping ends before it begins, and no symbol of the
    /// kernel lies elsewhere than its code.
    ///
    /// # Errors
    /// What could not have been.
    pub fn check(&self) -> Result<(), String> {
        let lines = self.maps.0.values().flatten().filter_map(|(_, lines)| lines.as_ref());
        if lines.flatten().any(|line| line.start >= line.end) {
            return Err("a mapping ends before it begins".to_owned());
        }
        let is_place = |(start, piece): (&u64, &KernelPiece)| {
            let (symbol_start, symbol_end) = piece.symbol;
            let len = piece.end.checked_sub(*start).filter(|len| *len > 0);
            len.is_some_and(|len| symbol_start.checked_add(len) == Some(symbol_end))
        };
        let pieces = &self.kernel.pieces;
        let next = pieces.keys().skip(1);
        if !pieces.iter().all(is_place) || pieces.values().zip(next).any(|(one, at)| one.end > *at)
        {
            return Err("a symbol of the kernel has no place".to_owned());
        }
        Ok(())
    }
}

#[derive(Debug, Default)]
struct Kept {
    answers: Answers,
    is_replay: bool,
    step: u32,
    count: usize,
    refused: u64,
    /// Questions in a replay that the recording has no answer for.
    unanswered: u64,
}

/// The handle. Clones ask the same. The default one asks this machine, and looks itself.
#[derive(Clone, Debug, Default)]
pub struct System {
    recorded: Option<Arc<Mutex<Kept>>>,
    inspectors: Inspectors,
}

impl System {
    /// Asks this machine, through inspectors.
    pub fn through(inspectors: Inspectors) -> Self {
        Self { recorded: None, inspectors }
    }

    /// Keeps the answers from now on.
    #[must_use]
    pub fn recording(self) -> Self {
        Self { recorded: Some(Arc::default()), ..self }
    }

    /// Answers questions about strangers.
    pub fn inspectors(&self) -> &Inspectors {
        &self.inspectors
    }

    /// Whether nobody is asked about a process now, because it let an inspector wait.
    pub fn withholds(&self, pid: u32) -> bool {
        !self.is_replay() && self.inspectors.withhold(pid)
    }

    /// Gives these answers only.
    pub fn replay(answers: Answers) -> Self {
        let kept = Kept { answers, is_replay: true, ..Kept::default() };
        let recorded = Some(Arc::new(Mutex::new(kept)));
        Self { recorded, inspectors: Inspectors::default() }
    }

    /// Whether only recorded answers are given.
    pub fn is_replay(&self) -> bool {
        self.kept().is_some_and(|kept| kept.is_replay)
    }

    /// Whether answers are kept.
    pub fn is_recording(&self) -> bool {
        self.kept().is_some_and(|kept| !kept.is_replay)
    }

    /// The next step of the recording begins.
    pub fn next_step(&self) {
        if let Some(mut kept) = self.kept() {
            kept.step = kept.step.saturating_add(1);
        }
    }

    /// The answers kept so far.
    pub fn answers(&self) -> Answers {
        self.kept().map(|kept| kept.answers.clone()).unwrap_or_default()
    }

    /// Answers that were not kept because there were too many.
    pub fn refused(&self) -> u64 {
        self.kept().map_or(0, |kept| kept.refused)
    }

    /// Questions in a replay that the recording has no answer for.
    pub fn unanswered(&self) -> u64 {
        self.kept().map_or(0, |kept| kept.unanswered)
    }

    fn kept(&self) -> Option<MutexGuard<'_, Kept>> {
        // The data is consistent even if a thread panicked, because each change is one call.
        self.recorded.as_ref().map(|kept| kept.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn ask<Question: Ord, Answer: Clone + PartialEq + Default>(
        &self,
        table: impl Fn(&mut Answers) -> &mut Table<Question, Answer>,
        question: Question,
        live: impl FnOnce() -> Answer,
    ) -> Answer {
        let Some(mut kept) = self.kept() else { return live() };
        let step = kept.step;
        if kept.is_replay {
            let answer = table(&mut kept.answers).at(&question, step);
            kept.unanswered += u64::from(answer.is_none());
            return answer.unwrap_or_default();
        }
        drop(kept);
        let answer = live();
        if let Some(mut kept) = self.kept() {
            if kept.count < ANSWERS_MAX {
                let is_new = table(&mut kept.answers).keep(question, step, &answer);
                kept.count += usize::from(is_new);
            } else {
                kept.refused += 1;
            }
        }
        answer
    }

    /// [`procfs::processes`].
    pub fn processes(&self) -> Vec<u32> {
        self.ask(|answers| &mut answers.processes, (), procfs::processes)
    }

    /// [`procfs::exists`].
    pub fn exists(&self, pid: u32) -> bool {
        self.ask(|answers| &mut answers.exists, pid, || procfs::exists(pid))
    }

    /// [`procfs::start_time`].
    pub fn start_time(&self, pid: u32) -> Option<u64> {
        self.ask(|answers| &mut answers.start_time, pid, || procfs::start_time(pid))
    }

    /// [`procfs::parent`].
    pub fn parent(&self, pid: u32) -> Option<u32> {
        self.ask(|answers| &mut answers.parent, pid, || procfs::parent(pid))
    }

    /// [`procfs::process_of`].
    pub fn process_of(&self, pid: u32) -> Option<u32> {
        self.ask(|answers| &mut answers.process_of, pid, || procfs::process_of(pid))
    }

    /// Executable mappings of a process; None when it is gone, or no inspector can tell.
    pub fn maps(&self, pid: u32) -> Option<Vec<MapsLine>> {
        let live = || self.inspectors.ask(questions::Mappings { pid })?;
        self.ask(|answers| &mut answers.maps, pid, live)
    }

    /// [`cgroups::of_process`].
    pub fn cgroup(&self, pid: u32) -> Option<Vec<u8>> {
        let live = || cgroups::of_process(pid).map(Bytes);
        self.ask(|answers| &mut answers.cgroup, pid, live).map(|Bytes(path)| path)
    }

    /// The name of the image from which a container was made, or of its pod. Recordings of earlier
    /// versions do not contain the answer; a replay of them finds no image.
    pub fn image_of_container(&self, id: &str) -> Option<String> {
        let id = id.to_owned();
        let name = match self.kept().filter(|kept| kept.is_replay) {
            Some(kept) => kept.answers.container.at(&id, kept.step).flatten(),
            None => {
                let live =
                    || self.inspectors.ask(questions::ImageOfContainer { id: id.clone() })?;
                self.ask(|answers| &mut answers.container, id.clone(), live)
            }
        };
        name.map(|Bytes(name)| String::from_utf8_lossy(&name).into_owned())
    }

    /// [`procfs::user_of`]. A recording made before users were recorded has none.
    pub fn user(&self, pid: u32) -> Option<u32> {
        if let Some(kept) = self.kept().filter(|kept| kept.is_replay) {
            let step = kept.step;
            return kept.answers.user.at(&pid, step).flatten();
        }
        self.ask(|answers| &mut answers.user, pid, || procfs::user_of(pid))
    }

    /// Program, users and namespaces of a process; None when it is gone, or no inspector can tell.
    pub fn who(&self, pid: u32) -> Option<Who> {
        let live = || self.inspectors.ask(questions::Owner { pid })?;
        self.ask(|answers| &mut answers.who, pid, live)
    }

    /// [`process::is_still`].
    pub fn is_still(&self, pid: u32, ticks: u64) -> bool {
        self.ask(|answers| &mut answers.is_still, (pid, ticks), || process::is_still(pid, ticks))
    }

    /// The content of a file that process `pid` mapped at an address at a time.
    pub fn content(
        &self,
        (pid, start, time_ns): (u32, u64, u64),
        live: impl FnOnce() -> Option<u64>,
    ) -> Option<u64> {
        self.ask(|answers| &mut answers.content, (pid, start, time_ns), live)
    }

    /// The image of a mapped file. `None`: the recording has no answer.
    pub fn identity(
        &self,
        file: &MappedFileId,
        path: &[u8],
        live: impl FnOnce() -> Identity,
    ) -> Option<Identity> {
        let question = (file.clone(), Bytes(path.to_vec()));
        self.ask(|answers| &mut answers.identity, question, || Some(live()))
    }

    /// The image of a file that a registration names. `None`: the recording has no answer.
    pub fn registered_file(&self, path: &[u8]) -> Option<Identity> {
        let question = Bytes(path.to_vec());
        let live = || {
            Some(match self.inspectors.ask(IdentifyPath { path: question.clone() }) {
                Some(Ok((Known::Image(id), facts))) => {
                    Identity::Image(id.to_string(), Some(facts.size))
                }
                Some(Ok((Known::NotElf, _))) => Identity::Unknown("it is no ELF file".to_owned()),
                Some(Err(why)) => Identity::Unknown(why),
                None => Identity::Unknown("the file system does not answer".to_owned()),
            })
        };
        self.ask(|answers| &mut answers.registered_file, question.clone(), live)
    }

    /// The vdso of a 32-bit process; all such vdsos of this size are the same.
    pub fn vdso32(&self, at: MappedAt) -> Option<StoredVdso> {
        let live = || self.inspectors.ask(NarrowVdsoOf { at })?;
        self.ask(|answers| &mut answers.vdso32, at.end.saturating_sub(at.start), live)
    }

    /// The build id of a kernel module.
    pub fn module_id(&self, name: &str, live: impl FnOnce() -> Option<ImageId>) -> Option<ImageId> {
        let live = || live().map(|id| id.to_string());
        let id = self.ask(|answers| &mut answers.module_id, name.to_owned(), live)?;
        id.parse().ok()
    }

    /// One look at what a process says about its generated code. Each is given once.
    pub fn code_look(&self, pid: u32, live: impl FnOnce() -> CodeLook) -> CodeLook {
        let Some(mut kept) = self.kept() else { return live() };
        if kept.is_replay {
            let looks = kept.answers.code_looks.get_mut(&pid);
            let look = looks.and_then(VecDeque::pop_front);
            kept.unanswered += u64::from(look.is_none());
            return look.unwrap_or_default();
        }
        drop(kept);
        let look = live();
        if let Some(mut kept) = self.kept() {
            if kept.count + look.events.len() < ANSWERS_MAX {
                kept.count += 1 + look.events.len();
                kept.answers.code_looks.entry(pid).or_default().push_back(look.clone());
            } else {
                kept.refused += 1;
            }
        }
        look
    }

    /// Keeps where a kernel address lies, while a recording is made.
    pub fn keep_kernel(&self, address: u64, place: &KernelPlace<'_>) {
        if let Some(mut kept) = self.kept().filter(|kept| !kept.is_replay) {
            kept.answers.kernel.keep(address, place);
        }
    }

    /// Keeps where the kernel idles, while a recording is made.
    pub fn keep_idle_text(&self, idle: Option<std::ops::Range<u64>>) {
        if let Some(mut kept) = self.kept().filter(|kept| !kept.is_replay) {
            kept.answers.kernel.idle = idle.map(|idle| (idle.start, idle.end));
        }
    }

    /// The kernel's text as recorded. `None`: the kernel itself is to be asked.
    pub fn recorded_kernel(&self) -> Option<RecordedKernel> {
        self.kept().filter(|kept| kept.is_replay).map(|kept| kept.answers.kernel.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use inspect::jit::code_events::CodeEvent;

    #[test]
    fn an_answer_holds_until_another_was_given() {
        let system = System::default().recording();
        let ask = |system: &System, answer| system.ask(|answers| &mut answers.parent, 7, || answer);
        for answer in [Some(1), Some(1), Some(2), None] {
            assert_eq!(ask(&system, answer), answer, "live answers are given as they are");
            system.next_step();
        }
        let text = serde_json::to_string(&system.answers()).unwrap();
        let replay = System::replay(serde_json::from_str(&text).unwrap());
        for expected in [Some(1), Some(1), Some(2), None, None] {
            assert_eq!(ask(&replay, Some(9)), expected, "nothing is asked in a replay");
            replay.next_step();
        }
        assert_eq!((replay.parent(8), replay.unanswered()), (None, 1));
        assert!(replay.is_replay() && !system.is_replay() && !System::default().is_replay());
    }

    #[test]
    fn a_look_at_generated_code_is_given_once() {
        let look = CodeLook {
            events: vec![CodeEvent::Load(16, 4, "f".into()), CodeEvent::Move(16, 32)],
            bytes: 7,
            ..CodeLook::default()
        };
        let system = System::default().recording();
        assert_eq!(system.code_look(7, || look.clone()), look);
        let replay = System::replay(system.answers());
        assert_eq!(replay.code_look(7, CodeLook::default), look);
        assert_eq!(replay.code_look(7, || look.clone()), CodeLook::default());
        assert_eq!(replay.unanswered(), 1);
    }

    #[test]
    fn kernel_symbols_come_back_as_far_as_they_were_asked_for() {
        let list = "ffffffff81000000 T _stext\nffffffff81000100 T work\nffffffff81000300 T next\n\
            ffffffff81000400 T _etext\nffffffffc0000000 t run\t[driver]\n";
        let symbols = image::kernel::KernelSymbols::parse(list.as_bytes()).unwrap();
        let system = System::default().recording();
        let asked = [0xffff_ffff_8100_0180, 0xffff_ffff_8100_01ff, 0xffff_ffff_c000_0010];
        for address in asked {
            system.keep_kernel(address, &symbols.place(address).unwrap());
        }
        let kernel = System::replay(system.answers()).recorded_kernel().unwrap();
        for address in asked {
            assert_eq!(kernel.place(address), symbols.place(address), "{address:#x}");
        }
        assert_eq!(kernel.place(0xffff_ffff_8100_0310), None, "nobody asked for it");
    }
}
