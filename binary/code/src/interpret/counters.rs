//! How often an instruction was executed between two samples of one thread, from a register or a
//! word of the stack that it counts in.
//!
//! Where all that happens to a register is that one instruction adds a constant to it, the
//! register's difference between two samples is the number of executions times the constant. The
//! same where one of several instructions does so in each round of a loop. The difference of two
//! activations of a loop is of any size and sign, so readers must look at several pairs:
//! [`Execution::times`] says nothing alone.

use std::collections::BTreeMap;

use image::Vaddr;

use super::ahead::Ahead;
use super::expression::{Node, Value};
use super::{CodeView, Edge, InstructionSet, Place, STEPS_MAX, Walker, Way, Window};

/// Instructions told of one pair of samples, at most.
const TOLD_MAX: usize = 4;

/// A sample, as far as counters need it.
#[derive(Copy, Clone, Debug)]
pub struct CounterSample<'a> {
    /// Address of the next instruction.
    pub at: Vaddr,
    /// The general registers, in the order of their numbers.
    pub registers: &'a [u64],
    /// The top of the stack.
    pub stack: Window<'a>,
}

impl CounterSample<'_> {
    fn register(&self, number: u8) -> Option<u64> {
        self.registers.get(usize::from(number)).copied()
    }

    /// The `bytes` bytes at an address of the stack.
    fn word(&self, address: u64, bytes: u8) -> Option<u64> {
        let begin = usize::try_from(address.checked_sub(self.stack.begin.0)?).ok()?;
        let word = self.stack.bytes.get(begin..begin.checked_add(bytes.into())?)?;
        Some(word.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }
}

/// How often an instruction was executed between two samples.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Execution {
    /// The instruction.
    pub at: Vaddr,
    /// Whether it is one of several, one of which is executed in each round of the loop: the number
    /// is that of the rounds.
    pub is_round: bool,
    /// The number of times; None where the samples are not of one run of the loop.
    pub times: Option<u64>,
}

/// A place that may count.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Home {
    Register(u8),
    /// The bytes of the stack at a distance from a register's first value.
    Word {
        register: u8,
        distance: i64,
        bytes: u8,
    },
}

impl Home {
    /// What a sample has there.
    fn value(self, first: CounterSample<'_>, sample: CounterSample<'_>) -> Option<u64> {
        match self {
            Self::Register(number) => sample.register(number),
            // Both samples are of one frame, but the register may point elsewhere at the second.
            Self::Word { register, distance, bytes } => {
                sample.word(first.register(register)?.wrapping_add_signed(distance), bytes)
            }
        }
    }
}

/// What a walk did to a place.
#[derive(Copy, Clone, Debug, Default)]
struct Track {
    /// What was added so far.
    added: i64,
    /// The first of the instructions that add, and how much each time.
    step: Option<(Vaddr, i64)>,
    /// Whether there are several.
    is_one_of_several: bool,
    /// How often they were met.
    met: u32,
    /// The same when the walk last came back to where it began.
    met_before: u32,
    /// Bytes that are counted in; those above are zero. 0: not known yet.
    bytes: u8,
    /// Whether something else is there now.
    is_away: bool,
    /// Whether different amounts are added.
    is_unfit: bool,
    /// Whether that was so when the walk last came back to where it began.
    was_away: bool,
    /// Whether the count was there when the walk came to the second sample's instruction.
    is_in_second: bool,
}

impl Track {
    /// Notes what is there after the instruction at `at`: the first value plus `added`, in so many
    /// bytes, or something else.
    fn note(&mut self, at: Vaddr, holds: Option<(i64, u8)>) {
        self.is_away = holds.is_none();
        let Some((added, bytes)) = holds.filter(|(added, _)| *added != self.added) else { return };
        let amount = added.wrapping_sub(self.added);
        let (first, before) = *self.step.get_or_insert((at, amount));
        self.is_one_of_several |= first != at;
        self.is_unfit |= before != amount;
        self.step = Some((first.min(at), before));
        self.is_unfit |= self.bytes != 0 && self.bytes != bytes;
        (self.added, self.bytes) = (added, bytes);
        self.met += 1;
    }
}

/// The places that a walk wrote to.
#[derive(Default)]
struct Tracks {
    homes: BTreeMap<Home, Track>,
    /// How often it came back to where it began.
    returns: u32,
    /// Whether it ended in a procedure that the first one called, which gives registers back.
    is_deeper: bool,
}

impl<I: InstructionSet> Walker<I> {
    /// Instructions of which `first` and `second`, two samples of one thread, tell how often they
    /// were executed in between. The last walk must be the one from `first`.
    pub fn executions<V: CodeView>(
        &mut self,
        first: CounterSample<'_>,
        second: CounterSample<'_>,
        view: &mut V,
    ) -> Vec<Execution> {
        let edges = std::mem::take(&mut self.edges);
        let mut tracks = Tracks::default();
        self.track(&edges, first, second, view, &mut tracks);
        self.edges = edges;
        let mut told: Vec<Execution> = Vec::new();
        for (home, track) in tracks.homes {
            let Tracks { returns, is_deeper, .. } = tracks;
            let is_round = track.is_one_of_several;
            let is_loop = if is_round {
                returns > 0 && returns == track.met_before
            } else {
                returns > 0 || track.met > 1
            };
            let is_away = if returns > 0 && is_deeper { track.was_away } else { track.is_away };
            let is_fit = !track.is_unfit && !is_away && track.is_in_second && is_loop;
            let Some((at, step)) = track.step.filter(|_| is_fit) else { continue };
            let Some((before, after)) = home.value(first, first).zip(home.value(first, second))
            else {
                continue;
            };
            let unused = 64 - 8 * u32::from(track.bytes.clamp(1, 8));
            let difference = (after.wrapping_sub(before) << unused).cast_signed() >> unused;
            let times = difference.checked_rem(step).filter(|rest| *rest == 0);
            let times = times.and(difference.checked_div(step));
            let times = times.and_then(|times| u64::try_from(times).ok());
            // Two counters of one loop agree.
            if times.is_none() || !told.iter().any(|told| told.times == times) {
                told.push(Execution { at, is_round, times });
            }
        }
        told.sort_unstable_by_key(|told| (told.times.is_none(), told.at));
        told.truncate(TOLD_MAX);
        told
    }

    /// Goes the way of the last walk again, with expressions, and then on where branches usually
    /// led.
    fn track<V: CodeView>(
        &mut self,
        edges: &[Edge],
        first: CounterSample<'_>,
        second: CounterSample<'_>,
        view: &mut V,
        tracks: &mut Tracks,
    ) -> Option<()> {
        let mut ahead = Ahead::exact(first.at, I::REGISTERS);
        let mut edges = edges.iter().peekable();
        let mut at = first.at;
        let mut place: Option<Place> = None;
        let is_general = |number: u8| number != I::STACK_POINTER;
        let mut registers: Vec<Option<Value>> =
            (0..I::REGISTERS as u8).map(|number| ahead.register(number)).collect();
        for step in 0..STEPS_MAX {
            let moved = ahead.register(I::STACK_POINTER).and_then(|stack| {
                (home(&ahead, stack)? == (Home::Register(I::STACK_POINTER), 8))
                    .then_some(stack.offset)
            });
            tracks.is_deeper = moved.is_some_and(|moved| moved < 0);
            if at == first.at && step > 0 && moved == Some(0) {
                tracks.returns += 1;
                for track in tracks.homes.values_mut() {
                    (track.was_away, track.met_before) = (track.is_away, track.met);
                }
            }
            let stack = |of: CounterSample<'_>| of.register(I::STACK_POINTER);
            if at == second.at
                && let Some(moved) = moved
                && stack(first)?.wrapping_add_signed(moved) == stack(second)?
            {
                tracks.homes.values_mut().for_each(|track| track.is_in_second |= !track.is_away);
                for number in (0..I::REGISTERS as u8).filter(|number| is_general(*number)) {
                    let holds = holds(&ahead, Home::Register(number), ahead.register(number));
                    let track = tracks.homes.entry(Home::Register(number)).or_default();
                    track.is_in_second |= holds.is_some();
                }
            }
            let is_in = |place: &Place| place.begin <= at && at < place.end;
            place = place.filter(is_in).or_else(|| view.place(at).filter(is_in));
            let instruction = *self.instruction(place?, at, view)?;
            let next = Vaddr(at.0.wrapping_add(I::len(&instruction) as u64));
            let stores = ahead.stores().len();
            let way = I::look_ahead(&instruction, at.0, &mut ahead, view);
            for (number, before) in (0_u8..).zip(&mut registers) {
                let value = ahead.register(number);
                // Most instructions change one register.
                if value == *before || !is_general(number) {
                    continue;
                }
                *before = value;
                let register = Home::Register(number);
                let holds = holds(&ahead, register, value);
                tracks.homes.entry(register).or_default().note(at, holds);
            }
            for (address, bytes, value) in ahead.stores().get(stores..).unwrap_or_default() {
                let Some((Home::Register(register), 8)) = home(&ahead, *address) else { continue };
                let word = Home::Word { register, distance: address.offset, bytes: *bytes };
                let holds = holds(&ahead, word, *value);
                tracks.homes.entry(word).or_default().note(at, holds);
            }
            let walked = edges.next_if(|edge| edge.from == at).map(|edge| edge.to);
            let branch = place?.number_of(at)?;
            at = match (walked, way) {
                (_, Way::Next) => next,
                (Some(to), _) | (None, Way::To(to)) => to,
                (None, Way::Either(to)) => match self.seen.usual(branch, at) {
                    Some(to) => to,
                    None if to <= at => to,
                    None => next,
                },
                (None, Way::Seen) => self.seen.usual(branch, at)?,
                (None, Way::Ends) => return None,
            };
        }
        Some(())
    }
}

/// What a value has added to the first value of a place, if it is no more than that.
fn holds(ahead: &Ahead, at: Home, value: Option<Value>) -> Option<(i64, u8)> {
    let value = value?;
    let (of, bytes) = home(ahead, value)?;
    (of == at).then_some((value.offset, bytes))
}

/// The place whose first value an expression is, and how many of its bytes.
fn home(ahead: &Ahead, value: Value) -> Option<(Home, u8)> {
    match ahead.expressions.get(value.node?)? {
        Node::Register(number) => Some((Home::Register(number), 8)),
        Node::Extended { a, bytes, .. } => {
            let (home, _) = home(ahead, Value { node: Some(a), offset: 0 })?;
            (bytes >= 4).then_some((home, bytes))
        }
        Node::Load { address, bytes } => {
            let register = ahead.expressions.get(address.node?)?;
            let Node::Register(register) = register else { return None };
            let word = Home::Word { register, distance: address.offset, bytes };
            (bytes >= 4).then_some((word, bytes))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interpret::Line;
    use crate::interpret::tests::Code;
    use crate::isa::x86_64::{State, X86_64};

    const RCX: usize = 1;
    const RSP: usize = 4;

    /// What two samples at these places tell, with these values of rcx and of the word at rsp + 4.
    fn executions(code: &[u8], samples: [(u64, u64, u32); 2]) -> Vec<Execution> {
        let stacks = samples.map(|(.., word)| u64::from(word).rotate_left(32).to_le_bytes());
        let registers = samples.map(|(_, rcx, _)| {
            let mut registers = [0; 16];
            (registers[RCX], registers[RSP]) = (rcx, 0x8000);
            registers
        });
        let lines: &[Line] = &[];
        let window = |bytes| Window { begin: Vaddr(0x8000), bytes, lines };
        let [first, second] = [0, 1].map(|n| CounterSample {
            at: Vaddr(samples[n].0),
            registers: &registers[n],
            stack: window(&stacks[n]),
        });
        let mut walker = Walker::<X86_64>::new(64);
        walker.walk(first.at, State::sampled(registers[0], 0), first.stack, &mut Code(code));
        walker.executions(first, second, &mut Code(code))
    }

    fn told(at: u64, is_round: bool, times: Option<u64>) -> Vec<Execution> {
        vec![Execution { at: Vaddr(at), is_round, times }]
    }

    #[test]
    fn a_register_counts_the_rounds() {
        // L: mov rdx, [rdi]; add rcx, 4; cmp rcx, rsi; jne L
        let code = [0x48, 0x8b, 0x17, 0x48, 0x83, 0xc1, 4, 0x48, 0x39, 0xf1, 0x75, 0xf4];
        let after = |rcx, at| executions(&code, [(0x1000, 400, 0), (at, rcx, 0)]);
        assert_eq!(after(4400, 0x1000), told(0x1003, false, Some(1000)));
        assert_eq!(after(4404, 0x1007), told(0x1003, false, Some(1001)));
        assert_eq!(after(400, 0x1000), told(0x1003, false, Some(0)));
        for begun_anew in [396, 4402] {
            assert_eq!(after(begun_anew, 0x1000), told(0x1003, false, None));
        }
    }

    #[test]
    fn a_word_of_the_stack_counts_them() {
        // L: add dword [rsp+4], 1; cmp [rsp+4], esi; jne L
        let code = [0x83, 0x44, 0x24, 4, 1, 0x39, 0x74, 0x24, 4, 0x75, 0xf5];
        let times = executions(&code, [(0x1000, 0, 7), (0x1005, 0, 1007)]);
        assert_eq!(times, told(0x1000, false, Some(1000)));
    }

    #[test]
    fn either_side_of_a_branch_counts_a_round() {
        // L: test cl, 2; je E; inc rcx; jmp L; E: inc rcx; jmp L
        let code =
            [0xf6, 0xc1, 2, 0x74, 5, 0x48, 0xff, 0xc1, 0xeb, 0xf6, 0x48, 0xff, 0xc1, 0xeb, 0xf1];
        let times = executions(&code, [(0x1000, 8, 0), (0x1000, 108, 0)]);
        assert_eq!(times, told(0x1005, true, Some(100)));
    }

    #[test]
    fn what_changes_otherwise_counts_nothing() {
        // L: add rcx, 4; add rcx, 2; jmp L
        let twice = [0x48, 0x83, 0xc1, 4, 0x48, 0x83, 0xc1, 2, 0xeb, 0xf6];
        // L: inc rcx; and ecx, 7; jmp L
        let around = [0x48, 0xff, 0xc1, 0x83, 0xe1, 7, 0xeb, 0xf8];
        // L: add rcx, rdx; jmp L
        let by_another = [0x48, 0x01, 0xd1, 0xeb, 0xfb];
        // inc rcx; ret
        let once = [0x48, 0xff, 0xc1, 0xc3];
        for code in [&twice[..], &around, &by_another, &once] {
            assert_eq!(executions(code, [(0x1000, 6, 0), (0x1000, 12, 0)]), [], "{code:x?}");
        }
    }
}
