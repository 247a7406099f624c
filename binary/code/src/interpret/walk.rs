//! The walk forward from a sample.

use image::Vaddr;

use super::cache::Cache;
use super::memory::Stores;
use super::rounds::{Rounds, Visits};
use super::seen::Seen;
use super::{
    Bits, BranchKind, CodeView, InstructionSet, Memory, MemoryAccess, Place, Slot, Step, Stop,
    Window,
};

/// Most instructions of a walk. The first outcome of a branch after a sample is biased, because the
/// sample's place was chosen by time, and the second one is further away: reading ahead with 64
/// instructions leaves an error of 0.040 in probabilities of bzip2's branches, with 256 0.028, with
/// 512 0.026, with 1000 0.022 (gzip: 0.011, 0.010, 0.008, 0.007), by single steps from 1,500
/// samples.
pub const STEPS_MAX: usize = 512;

/// Instructions of a walk whose accesses to memory are told. More tell of more rounds of the same
/// loop, and take more time.
const ACCESSES_STEPS_MAX: usize = 128;

/// A branch, and the instruction that was executed next.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Edge {
    /// Kind of the branch.
    pub kind: BranchKind,
    /// Address of the branch.
    pub from: Vaddr,
    /// Address of the next instruction: the one after the branch, where a conditional branch is not
    /// taken.
    pub to: Vaddr,
}

/// Follows threads of one instruction set. The walker keeps decoded instructions by image, so one
/// walker serves all processes.
#[derive(Debug)]
pub struct Walker<I: InstructionSet> {
    cache: Cache<I::Instruction>,
    decoder: I::Decoder,
    stores: Stores,
    pub(super) edges: Vec<Edge>,
    visits: Visits,
    accesses: Vec<(Vaddr, MemoryAccess)>,
    pub(super) seen: Seen,
}

impl<I: InstructionSet> Walker<I> {
    /// A walker that keeps at least `instructions` decoded instructions, each of about 128 bytes.
    /// 16384 are plenty.
    pub fn new(instructions: usize) -> Self {
        Self {
            cache: Cache::new(instructions),
            decoder: I::Decoder::default(),
            stores: Stores::default(),
            edges: Vec::new(),
            visits: Visits::default(),
            accesses: Vec::new(),
            seen: Seen::default(),
        }
    }

    /// Follows a thread that is about to execute the instruction at `at` in `state`, with the bytes
    /// of `window` on its stack. The thread must have been interrupted in the mode of the
    /// instruction set (64-bit mode for x86-64), and not in a system call, in which the registers
    /// are of different moments. Returns the branches that were met, at most [`STEPS_MAX`], in
    /// order, and why the walk ended. The first branch, if no call is before it, is that of the
    /// sampled block.
    pub fn walk<V: CodeView>(
        &mut self,
        at: Vaddr,
        state: I::State,
        window: Window<'_>,
        view: &mut V,
    ) -> (&[Edge], Stop) {
        let mut walk = self.begin(at, state, window, view);
        let stop = loop {
            if let Step::Stop(stop) = walk.step() {
                break stop;
            }
        };
        drop(walk);
        (&self.edges, stop)
    }

    /// The accesses to memory of the first instructions of the last walk, as far as addresses are
    /// known, in order.
    pub fn accesses(&self) -> &[(Vaddr, MemoryAccess)] {
        &self.accesses
    }

    /// For the loops that the last walk began in: the number of times in a row that their tests go
    /// the same way, where their comparisons tell it.
    pub fn rounds(&self) -> impl Iterator<Item = Rounds> + '_ {
        self.visits.rounds(&self.edges)
    }

    /// Begins the same walk, for a caller that executes it instruction by instruction.
    pub fn begin<'a, 'w, V: CodeView>(
        &'a mut self,
        at: Vaddr,
        state: I::State,
        window: Window<'w>,
        view: &'a mut V,
    ) -> Walk<'a, 'w, I, V> {
        self.edges.clear();
        self.visits.clear();
        self.accesses.clear();
        let stores = std::mem::take(&mut self.stores);
        Walk {
            walker: self,
            view,
            at,
            state,
            memory: Memory::new(window, stores),
            place: None,
            steps: 0,
            begin: at,
            ended: None,
        }
    }

    pub(super) fn instruction<V: CodeView>(
        &mut self,
        place: Place,
        at: Vaddr,
        view: &mut V,
    ) -> Option<&I::Instruction> {
        let into = at.0 - place.begin.0;
        let (image, offset) = place.number_of(at)?;
        let decoder = &mut self.decoder;
        let decoded = self.cache.get(image, offset, || {
            let mut bytes = [0; 16];
            let room = bytes.get_mut(..I::LEN_MAX)?;
            let len = view.bytes(image, offset, room);
            I::decode(decoder, room.get(..len)?)
        })?;
        // The last instruction of a piece may be cut: the bytes that follow in the file need not be
        // those that follow in memory.
        (into.saturating_add(I::len(decoded) as u64) <= place.end.0 - place.begin.0)
            .then_some(decoded)
    }
}

/// A walk under way.
#[derive(Debug)]
pub struct Walk<'a, 'w, I: InstructionSet, V> {
    walker: &'a mut Walker<I>,
    view: &'a mut V,
    at: Vaddr,
    state: I::State,
    memory: Memory<'w>,
    /// The piece of code that the last instruction was in.
    place: Option<Place>,
    steps: usize,
    begin: Vaddr,
    ended: Option<Stop>,
}

impl<I: InstructionSet, V: CodeView> Walk<'_, '_, I, V> {
    /// Address of the instruction that is executed next.
    pub fn at(&self) -> Vaddr {
        self.at
    }

    /// The known state before that instruction.
    pub fn state(&self) -> &I::State {
        &self.state
    }

    /// The known part of the `len` bytes, 1 to 8, at `address`.
    pub fn load(&mut self, address: Vaddr, len: u8, slot: Slot) -> Bits {
        self.memory.load(Some(address.0), len, slot, self.view)
    }

    /// Executes one instruction. After a [`Step::Stop`] every further call returns the same, and
    /// the state is not valid.
    pub fn step(&mut self) -> Step {
        if let Some(stop) = self.ended {
            return Step::Stop(stop);
        }
        let step = self.follow();
        if let Step::Stop(stop) = step {
            self.ended = Some(stop);
        }
        step
    }

    fn follow(&mut self) -> Step {
        if self.steps >= STEPS_MAX {
            return Step::Stop(Stop::Steps);
        }
        let at = self.at;
        let visits = &mut self.walker.visits;
        if at == self.begin && self.steps > 0 && visits.returned.is_none() {
            visits.returned = Some(visits.decided.len());
        }
        if !self.place.is_some_and(|place| place.begin <= at && at < place.end) {
            self.place = self.view.place(at).filter(|place| place.begin <= at && at < place.end);
        }
        let Some(place) = self.place else { return Step::Stop(Stop::NoCode) };
        let Some(instruction) = self.walker.instruction(place, at, self.view) else {
            return Step::Stop(Stop::NoInstruction);
        };
        let is_told = self.steps < ACCESSES_STEPS_MAX;
        let access = is_told.then(|| I::access(instruction, at.0, &self.state)).flatten();
        let step = I::execute(instruction, at.0, &mut self.state, &mut self.memory, self.view);
        let next = Vaddr(at.0.wrapping_add(I::len(instruction) as u64));
        let decided = match step {
            Step::Branch { kind: BranchKind::Taken | BranchKind::NotTaken, .. } => {
                I::decided(instruction, &self.state)
            }
            _ => None,
        };
        self.walker.accesses.extend(access.map(|access| (at, access)));
        self.at = match step {
            Step::Next => next,
            Step::Branch { kind, to } => {
                self.walker.edges.push(Edge { kind, from: at, to });
                if kind.depends()
                    && let Some(branch) = place.number_of(at)
                {
                    self.walker.seen.add(branch, at, to);
                }
                self.walker.visits.decided.push((decided, self.steps));
                to
            }
            Step::Stop(_) => return step,
        };
        self.steps += 1;
        step
    }
}

impl<I: InstructionSet, V> Drop for Walk<'_, '_, I, V> {
    /// Hands the room for stores to the next walk.
    fn drop(&mut self) {
        self.walker.stores = std::mem::take(&mut self.memory).into_stores();
    }
}
