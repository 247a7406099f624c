//! The unwind rules of addresses, read from the files and cached.

use std::collections::HashMap;

use crate::call::{CALL_BYTES_MAX, Call, call_before};
use crate::go_table::{keeps_stack_pointer, sets_stack_pointer};
use crate::goroutine::{self, BEHIND_BYTES, Goroutine};
use crate::pages::{Pages, Work};
use crate::registers::Machine;
use crate::rule::{self, Cfa, Entry, Interpreter, NoRule, Rule, StackPointer};
use crate::rules::{Known, Rules, Site};
use crate::signal::{BACK_IN_TRAMPOLINE, CONTEXT_START_BYTES, TRAMPOLINE_BYTES_MAX};
use crate::signal::{is_context_start, is_trampoline};
use crate::simple::{
    self, BLOCK_BYTES, CHECKED_BEFORE, CHECKED_BYTES, Extent, FrameRule, Learnt, code_check, fewer,
};
use crate::source::ReadAt;
use crate::table::{File, Table};

/// Bytes of code at an ELF file's entry point that count as the program's first frame where no
/// table covers them: the dynamic loader's `_start` of Debian 12 has 61 (constructors run below
/// it), musl's 22.
const ENTRY_BYTES: u64 = 64;

/// Most bytes of code of a procedure that are searched for changes of the stack pointer: Go's
/// procedures with such changes are short.
const CODE_BEFORE_MAX: u64 = 256;

/// Bytes after a place without rule at which a rule is looked for again.
const UNCOVERED_STEP: u64 = 4;

struct Mapped {
    source: Box<dyn ReadAt + Send>,
    /// None until the first look; then None inside if the file is no ELF file.
    table: Option<Option<Table>>,
}

/// The files, and their cached data.
pub struct Lookup {
    files: HashMap<u32, Mapped, foldhash::fast::FixedState>,
    next: u32,
    pub pages: Pages,
    pub rules: Rules,
    interpreter: Box<Interpreter>,
    entry: Entry,
    /// Blocks whose rules were learnt before.
    told: Told,
    /// Whether the code before return addresses is looked at.
    pub checks_calls: bool,
}

/// Bytes of a block that have a rule, one bit each. None: all have.
type Covered = Option<Box<[u64; BLOCK_BYTES as usize / 64]>>;

/// Blocks of files, by number and address. All are forgotten when there are many.
#[derive(Default)]
struct Told(HashMap<(u32, u64), Covered, foldhash::fast::RandomState>);

/// Most blocks that are remembered: twice as many as the sampler has rules.
const TOLD_MAX: usize = 65536;

impl Told {
    fn add(&mut self, place: Place, learnt: &Learnt) {
        if self.0.len() >= TOLD_MAX {
            self.0.clear();
        }
        let covered = (!learnt.is_complete()).then(|| Box::new(learnt.covered()));
        self.0.insert((place.image, learnt.address), covered);
    }

    /// Whether the rules of a block were told, and that of this place of it among them.
    fn has(&self, place: Place, block: u64) -> Option<bool> {
        let covered = self.0.get(&(place.image, block))?;
        let into = place.address - block;
        let word = |words: &[u64; 4]| words.get(into as usize / 64).copied().unwrap_or_default();
        Some(covered.as_ref().is_none_or(|words| word(words) >> (into % 64) & 1 == 1))
    }
}

/// What is learnt of the code around a place.
pub struct Around {
    /// Rules of blocks.
    pub learnt: Vec<Learnt>,
    /// Whether the rules of its block were learnt before, and that of the place among them.
    pub told: Option<bool>,
}

/// A place in a file, as a walk meets it.
#[derive(Copy, Clone)]
pub struct Place {
    image: u32,
    offset: u64,
    /// The file's own address.
    pub address: u64,
    machine: Machine,
    /// The file's own address of the program's begin.
    entry: u64,
    /// Whether the file has a table of Go's, which covers all code that keeps frame pointers.
    pub is_go: bool,
}

impl Place {
    fn key(self) -> (u32, u64) {
        (self.image, self.address)
    }

    /// The place at another address of the same segment.
    fn moved_to(self, address: u64) -> Option<Self> {
        self.moved(address.cast_signed().checked_sub(self.address.cast_signed())?)
    }

    /// The place `distance` bytes further.
    fn moved(self, distance: i64) -> Option<Self> {
        let address = self.address.checked_add_signed(distance)?;
        let offset = self.offset.checked_add_signed(distance)?;
        Some(Self { address, offset, ..self })
    }
}

impl Lookup {
    pub fn new() -> Self {
        Self {
            files: HashMap::default(),
            next: 0,
            pages: Pages::default(),
            rules: Rules::default(),
            interpreter: Box::new(Interpreter::new_in()),
            entry: Entry::default(),
            told: Told::default(),
            checks_calls: true,
        }
    }

    pub fn add(&mut self, source: Box<dyn ReadAt + Send>) -> u32 {
        let number = self.next;
        self.next += 1;
        self.files.insert(number, Mapped { source, table: None });
        number
    }

    pub fn remove(&mut self, image: u32) {
        self.files.remove(&image);
        self.told.0.retain(|(of, _), _| *of != image);
        self.pages.forget(image);
        self.rules.forget(image);
    }

    pub fn empty(&mut self) {
        self.files.keys().for_each(|&file| self.pages.forget(file));
        self.rules = Rules::default();
        self.files.values_mut().for_each(|file| file.table = None);
    }

    /// Bytes of memory that the tables of files hold.
    pub fn table_bytes(&self) -> usize {
        let tables = self.files.values().filter_map(|file| file.table.as_ref()?.as_ref());
        tables.map(Table::bytes).sum()
    }

    pub fn rule(&self, number: u32) -> Option<&Rule> {
        self.rules.rule(number)
    }

    /// The place at `offset` of a file. None if the file is not known, is for another machine, or
    /// maps nothing from there.
    pub fn place(
        &mut self,
        image: u32,
        offset: u64,
        machine: Machine,
        work: &mut Work,
    ) -> Option<Place> {
        let file = self.files.get_mut(&image)?;
        if file.table.is_none() {
            let source = &*file.source;
            let table =
                Table::read(&mut File { number: image, source, pages: &mut self.pages, work });
            // Data skipped because of the work limit may still exist.
            if work.is_spent() {
                return None;
            }
            file.table = Some(table);
        }
        let table = file.table.as_ref()?.as_ref()?;
        let headers = &table.headers;
        let address = headers.address(offset).filter(|_| headers.machine == machine)?;
        let (entry, is_go) = (headers.entry, table.go.is_some());
        Some(Place { image, offset, address, machine, entry, is_go })
    }

    /// The cached rule for an instruction to be executed next.
    pub fn exact(&mut self, place: Place, work: &mut Work) -> Known {
        if let Some(known) = self.rules.uncovered(place.key()) {
            return known;
        }
        let known = self.row(place, work);
        if known != Known::None {
            return self.before_a_switch(known, place, work);
        }
        let is_in_trampoline = |distance: &i64| {
            place.moved(*distance).is_some_and(|place| self.is_trampoline_code(place, work))
        };
        let known = if BACK_IN_TRAMPOLINE.iter().any(is_in_trampoline) {
            Known::Trampoline
        } else {
            match self.after_system_call(place, work) {
                Some(known) => known,
                None => self.uncovered(place, work),
            }
        };
        if !work.is_spent() {
            self.rules.add_uncovered(place.key(), known);
        }
        known
    }

    /// The cached rule for the return address after `place`.
    pub fn site(&mut self, place: Place, work: &mut Work) -> Site {
        if let Some(site) = self.rules.site(place.key()) {
            return site;
        }
        let mut known = self.row(place, work);
        let call = if self.checks_calls { self.call_before(place, work) } else { None };
        let is_called = matches!(call, Some(Call::Direct(_) | Call::Indirect));
        if let Some(after) = place.moved(1) {
            if self.is_trampoline_code(after, work) {
                known = Known::Trampoline;
            } else if let Some(signal) = self.signal_rule_at(after, !is_called, work) {
                known = signal;
            } else if !is_called && self.is_context_start_at(after, work) {
                known = Known::First;
            } else if known == Known::None {
                known = self.uncovered(place, work);
            }
        }
        let known = self.at_a_call(known, place, call, work);
        let site = Site { known, call, check: self.check(place, work) };
        if !work.is_spent() {
            self.rules.add_site(place.key(), site);
        }
        site
    }

    /// What is known of an instruction to be executed next, of a procedure that sets the stack
    /// pointer: before that the rule holds.
    fn before_a_switch(&mut self, known: Known, place: Place, work: &mut Work) -> Known {
        let Known::Rule { rule, entry } = known else { return known };
        let holds = match self.rule(rule).map(|rule| rule.stack_pointer) {
            Some(StackPointer::Followed) => true,
            Some(StackPointer::Kept) => self.has_kept(place, entry, work),
            Some(StackPointer::Unknown) => entry == place.address,
            Some(_) => {
                let code = self.code_before(place, entry, work);
                code.is_some_and(|code| !sets_stack_pointer(place.machine, &code))
            }
            None => false,
        };
        if holds { known } else { Known::NoRule }
    }

    /// Whether the code of a procedure before `place` puts the stack pointer where the rule takes
    /// it from.
    fn has_kept(&mut self, place: Place, entry: u64, work: &mut Work) -> bool {
        let code = self.code_before(place, entry, work);
        code.is_some_and(|code| keeps_stack_pointer(place.machine, &code))
    }

    /// The code of a procedure from its entry to `place`, if it is short.
    fn code_before(&mut self, place: Place, entry: u64, work: &mut Work) -> Option<Vec<u8>> {
        let back = place.address.checked_sub(entry).filter(|&back| back <= CODE_BEFORE_MAX)?;
        let mut code = vec![0; usize::try_from(back).ok()?];
        let begin = place.moved(-i64::try_from(back).ok()?)?;
        self.read_code(begin, &mut code, work)?;
        Some(code)
    }

    /// The cached facts about a procedure that may set the stack pointer, at its calls.
    fn at_a_call(
        &mut self,
        known: Known,
        place: Place,
        call: Option<Call>,
        work: &mut Work,
    ) -> Known {
        let Known::Rule { rule, entry } = known else { return known };
        let Some(rule) = self.rule(rule) else { return Known::NoRule };
        match (rule.stack_pointer, call) {
            (StackPointer::Followed, _) => known,
            (StackPointer::SwitchedForCalls, Some(Call::Direct(_) | Call::Indirect)) => {
                Known::First
            }
            (StackPointer::SwitchedForSomeCalls, Some(Call::Direct(_) | Call::Indirect)) => {
                let cfa = rule.cfa.clone();
                match self.code_before(place, entry, work) {
                    Some(code) if sets_stack_pointer(place.machine, &code) => {
                        self.goroutine(place, &cfa, work).map_or(Known::First, Known::Goroutine)
                    }
                    Some(_) => known,
                    None => Known::NoRule,
                }
            }
            (StackPointer::ReturnedForIndirectCalls, Some(Call::Indirect)) => known,
            (StackPointer::Kept, Some(Call::Indirect)) if self.has_kept(place, entry, work) => {
                known
            }
            _ => Known::NoRule,
        }
    }

    /// What the code behind a call says of the goroutine whose stack it changes back to.
    fn goroutine(&mut self, place: Place, cfa: &Cfa, work: &mut Work) -> Option<Goroutine> {
        let Cfa::Register(_, distance) = cfa else { return None };
        let frame_bytes = u64::try_from(*distance).ok()?.checked_sub(8)?;
        if place.machine != Machine::X86_64 {
            return None;
        }
        let mut code = [0; BEHIND_BYTES];
        let read = self.read_from(place, 1, &mut code, work);
        goroutine::behind_call(code.get(..read)?, frame_bytes)
    }

    /// The rule at an address, by the row of the table that covers it.
    fn row(&mut self, place: Place, work: &mut Work) -> Known {
        if let Some(known) = self.rules.row(place.key()) {
            return known;
        }
        match self.read_row(place, work) {
            Ok(row) => self.rules.add_row(place.image, row),
            Err(_) => Known::None,
        }
    }

    fn read_row(&mut self, place: Place, work: &mut Work) -> Result<rule::Row, NoRule> {
        let file = self.files.get(&place.image).ok_or(NoRule::NotCovered)?;
        let table = file.table.as_ref().and_then(Option::as_ref).ok_or(NoRule::NotCovered)?;
        let source = &*file.source;
        let mut reader = File { number: place.image, source, pages: &mut self.pages, work };
        // A program of Go may have parts in C, with an unwind table.
        if let Some(go) = &table.go
            && let found @ (Ok(_) | Err(NoRule::Broken)) = go.row(&mut reader, place.address)
        {
            return found;
        }
        let found = match table.find(&mut reader, place.address, &mut self.entry) {
            Some(()) => rule::row(&self.entry, place.machine, place.address, &mut self.interpreter),
            None => Err(NoRule::NotCovered),
        };
        match found {
            Err(NoRule::NotCovered) => {
                table.stub(&mut reader, place.address).ok_or(NoRule::NotCovered)
            }
            found => found,
        }
    }

    /// What a place is that no table covers: the first frame of a program whose entry point no
    /// table covers either, or nothing known.
    fn uncovered(&mut self, place: Place, work: &mut Work) -> Known {
        let into = place.address.checked_sub(place.entry);
        let entry = into.filter(|&into| into < ENTRY_BYTES).and_then(|into| {
            let back = i64::try_from(into).ok()?;
            place.moved(-back)
        });
        match entry {
            Some(entry) if self.row(entry, work) == Known::None => Known::First,
            _ => Known::None,
        }
    }

    /// The rule before a system call after which no table covers the code. glibc's `clone3` has no
    /// rule there, because a new thread comes out of the call as well, on another stack; the
    /// calling thread is there as long as the kernel works for it. For a new thread the rule finds
    /// no return address that follows a call, so only checked walks go on.
    fn after_system_call(&mut self, place: Place, work: &mut Work) -> Option<Known> {
        const SYSCALL: [u8; 2] = [0x0f, 0x05];
        if place.machine != Machine::X86_64 || !self.checks_calls {
            return None;
        }
        let mut code = [0; SYSCALL.len()];
        self.read_code(place.moved(-2)?, &mut code, work)?;
        let known = self.row(place.moved(-3)?, work);
        (code == SYSCALL && known != Known::None).then_some(known)
    }

    /// Copies code that starts `distance` bytes after `place`. Returns the number of bytes copied.
    pub fn read_from(
        &mut self,
        place: Place,
        distance: i64,
        into: &mut [u8],
        work: &mut Work,
    ) -> usize {
        place.moved(distance).map_or(0, |place| self.read_some(place, into, work))
    }

    /// The rules of the code around `place`: of its block, and of those beside it that begin in
    /// the same procedure. None if they were learnt before, unless the sampler has missed that of
    /// the place. Addresses are the file's own; load biases are multiples of a block's length.
    pub fn around(&mut self, place: Place, is_missed: bool, work: &mut Work) -> Around {
        let block = place.address - place.address % BLOCK_BYTES;
        let told = self.told.has(place, block);
        let mut around = Around { learnt: Vec::new(), told };
        if told.is_some() && !is_missed {
            return around;
        }
        let Known::Rule { entry, .. } = self.row(place, work) else { return around };
        around.learnt.extend(self.learnt(place, block, work));
        if told.is_some() {
            return around;
        }
        for beside in [block.wrapping_sub(BLOCK_BYTES), block.wrapping_add(BLOCK_BYTES)] {
            let known = place.moved_to(beside).map(|begin| self.row(begin, work));
            let is_of_procedure =
                matches!(known, Some(Known::Rule { entry: of, .. }) if of == entry);
            if is_of_procedure && !self.told.0.contains_key(&(place.image, beside)) {
                around.learnt.extend(self.learnt(place, beside, work));
            }
        }
        if !work.is_spent() {
            around.learnt.iter().for_each(|learnt| self.told.add(place, learnt));
        }
        around
    }

    /// The rules of the block from `begin` on.
    fn learnt(&mut self, place: Place, begin: u64, work: &mut Work) -> Option<Learnt> {
        let check = self.check_from(place, begin, work)?;
        let end = begin.checked_add(BLOCK_BYTES)?;
        let mut rows: Vec<(u16, FrameRule)> = Vec::new();
        let mut at = begin;
        while at < end {
            let here = place.moved_to(at)?;
            let (rule, next) = match self.row(here, work) {
                Known::Rule { rule, .. } => {
                    let row = self.rules.row_range(here.key())?;
                    (self.simple(rule, here), row.end)
                }
                _ => (FrameRule::Other, at + UNCOVERED_STEP),
            };
            if rows.last().is_none_or(|(_, last)| *last != rule) {
                rows.push(((at - begin) as u16, rule));
            }
            if next <= at {
                break;
            }
            at = next;
        }
        let mut rules = fewer(rows).into_iter();
        let (_, rule) = rules.next()?;
        let then = rules.map(|(begin, rule)| (begin as u8, rule)).collect();
        let extent = Extent::Block;
        Some(Learnt { address: begin, extent, rule, then, check, is_of_file: true })
    }

    /// The simplest form of a rule that holds at calls as well as elsewhere.
    fn simple(&self, rule: u32, place: Place) -> FrameRule {
        let is_plain = |rule: &&Rule| {
            rule.stack_pointer == StackPointer::Followed && matches!(rule.cfa, Cfa::Register(..))
        };
        let rule = self.rules.rule(rule).filter(is_plain);
        let of_row = |rule| simple::of_row(rule, place.machine, place.address, true);
        rule.map_or(FrameRule::Other, of_row)
    }

    /// [`code_check`] of the code from `begin` on, in the file of `place`.
    fn check_from(&mut self, place: Place, begin: u64, work: &mut Work) -> Option<u16> {
        let at = begin.checked_add(CHECKED_BEFORE)?;
        self.check(place.moved_to(at)?, work)
    }

    /// [`code_check`] of the code around `place`.
    pub fn check(&mut self, place: Place, work: &mut Work) -> Option<u16> {
        let mut code = [0; CHECKED_BYTES];
        self.read_code(place.moved(-(CHECKED_BEFORE as i64))?, &mut code, work)?;
        Some(code_check(&code))
    }

    fn call_before(&mut self, place: Place, work: &mut Work) -> Option<Call> {
        let end = place.offset.checked_add(1)?;
        let begin = end.saturating_sub(CALL_BYTES_MAX as u64);
        let mut bytes = [0; CALL_BYTES_MAX];
        let bytes = bytes.get_mut(..usize::try_from(end - begin).ok()?)?;
        self.read_code(Place { offset: begin, ..place }, bytes, work)?;
        Some(call_before(place.machine, bytes, place.address.wrapping_add(1)))
    }

    /// The rule of a signal's trampoline that begins here, if it is to be looked for. The address
    /// before it belongs to whatever the linker put there.
    fn signal_rule_at(&mut self, place: Place, is_wanted: bool, work: &mut Work) -> Option<Known> {
        let known = if is_wanted { self.row(place, work) } else { Known::None };
        let Known::Rule { rule, entry } = known else { return None };
        let is_signal = entry == place.address && self.rule(rule)?.is_signal;
        is_signal.then_some(known)
    }

    fn is_trampoline_code(&mut self, place: Place, work: &mut Work) -> bool {
        let mut bytes = [0; TRAMPOLINE_BYTES_MAX];
        let read = self.read_some(place, &mut bytes, work);
        is_trampoline(place.machine, bytes.get(..read).unwrap_or_default())
    }

    /// Whether a context of its own begins here (glibc's `makecontext`), as if this first
    /// instruction of a procedure had called the one below. The table of `__start_context` (glibc
    /// 2.36) does not say that it has no caller, so its code has to.
    fn is_context_start_at(&mut self, place: Place, work: &mut Work) -> bool {
        let mut code = [0; CONTEXT_START_BYTES];
        self.read_code(place, &mut code, work).is_some()
            && is_context_start(place.machine, &code)
            && matches!(self.row(place, work), Known::Rule { entry, .. } if entry == place.address)
    }

    /// Code is read past the pages that are kept: what is found there is.
    fn read_code(&mut self, place: Place, into: &mut [u8], work: &mut Work) -> Option<()> {
        (self.read_some(place, into, work) == into.len()).then_some(())
    }

    fn read_some(&mut self, place: Place, into: &mut [u8], work: &mut Work) -> usize {
        let Some(file) = self.files.get(&place.image) else { return 0 };
        self.pages.read_once(&*file.source, place.offset, into, work)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_remembers_which_of_its_bytes_have_a_rule() {
        let place = |address| Place {
            image: 1,
            offset: address,
            address,
            machine: Machine::X86_64,
            entry: 0,
            is_go: false,
        };
        let learnt = |address, then| Learnt {
            address,
            extent: Extent::Block,
            rule: FrameRule::FramePointer,
            then,
            check: 0,
            is_of_file: true,
        };
        let mut told = Told::default();
        assert_eq!(told.has(place(0x1010), 0x1000), None);
        told.add(place(0x1010), &learnt(0x1000, vec![(9, FrameRule::Signal)]));
        assert_eq!(told.has(place(0x1010), 0x1000), Some(true));
        let then = vec![(66, FrameRule::Other), (68, FrameRule::Signal), (255, FrameRule::Other)];
        told.add(place(0x1210), &learnt(0x1200, then));
        for (into, is_told) in
            [(0, true), (65, true), (66, false), (67, false), (68, true), (254, true), (255, false)]
        {
            assert_eq!(told.has(place(0x1200 + into), 0x1200), Some(is_told), "{into}");
        }
        assert_eq!(told.has(place(0x1310), 0x1300), None);
    }
}
