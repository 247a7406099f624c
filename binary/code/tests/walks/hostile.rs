//! Walks through bytes that nobody wrote as code, from registers that nobody had, with a memory
//! that answers whatever it likes: never a panic, never more than 64 instructions.
//! `WALKS_FUZZ=100000000 cargo test --release -p code --test walks hostile` goes on for longer.

use code::interpret::{
    Bits, CodeView, InstructionSet, OPERATIONS_MAX, Place, STEPS_MAX, Step, Stop, Walker, Window,
};
use code::isa::aarch64::Aarch64;
use code::isa::x86_64::{Flags, State, X86_64};
use fastrand::Rng;
use image::{ImageOffset, Layout, Vaddr};

/// A view that may contradict itself from call to call.
struct Liar<'a> {
    random: Rng,
    code: &'a [u8],
    begin: u64,
    /// Of 256 answers, how many are chance; with 0 nothing is constant.
    lies: u8,
}

impl Liar<'_> {
    fn lies(&mut self) -> bool {
        self.random.u8(..) < self.lies
    }
}

impl CodeView for Liar<'_> {
    fn place(&mut self, address: Vaddr) -> Option<Place> {
        if self.lies() {
            let (begin, end) = (Vaddr(self.random.u64(..)), Vaddr(self.random.u64(..)));
            return Some(Place {
                image: self.random.u32(..),
                begin,
                end,
                offset: ImageOffset(self.random.u64(..)),
            });
        }
        let end = Vaddr(self.begin.wrapping_add(self.code.len() as u64));
        let place = Place { image: 1, begin: Vaddr(self.begin), end, offset: ImageOffset(0) };
        (place.begin <= address && address < end).then_some(place)
    }

    fn bytes(&mut self, _: u32, offset: ImageOffset, into: &mut [u8]) -> usize {
        if self.lies() {
            into.fill_with(|| self.random.u8(..));
            // More than fit, too.
            return self.random.usize(0..40);
        }
        let rest = usize::try_from(offset.0)
            .ok()
            .and_then(|offset| self.code.get(offset..))
            .unwrap_or_default();
        let len = rest.len().min(into.len());
        into[..len].copy_from_slice(&rest[..len]);
        len
    }

    fn constant(&mut self, address: Vaddr, _: u8) -> Option<u64> {
        match self.random.u8(0..4) {
            _ if self.lies == 0 => None,
            0 => None,
            1 => Some(self.random.u64(..)),
            // A target in the code.
            _ => Some(self.begin.wrapping_add(address.0 % (self.code.len() as u64).max(1))),
        }
    }
}

fn state(random: &mut Rng, near: u64) -> State {
    let registers = std::array::from_fn(|_| match random.u8(0..4) {
        0 => random.u64(..),
        1 => random.u64(0..100),
        _ => near.wrapping_add(random.u64(0..600)),
    });
    let mut state = State::sampled(registers, random.u64(..));
    for register in &mut state.registers {
        if random.u8(0..4) == 0 {
            *register = Bits::partly(register.least(), random.u64(..) & random.u64(..));
        }
    }
    state.flags = Flags::sampled(random.u64(..));
    state
}

/// The instructions of this very program.
fn own_code() -> Vec<u8> {
    let file = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    let layout = Layout::of(&file).unwrap();
    let code = layout.segments().iter().find(|segment| segment.executable).unwrap();
    file[code.offset.0 as usize..][..code.file_size_bytes as usize].to_vec()
}

/// Walks from `at`, and says how long it was.
fn walk<I: InstructionSet>(
    walker: &mut Walker<I>,
    at: u64,
    state: I::State,
    window: Window<'_>,
    view: &mut Liar<'_>,
) -> usize {
    let mut walk = walker.begin(Vaddr(at), state.clone(), window, view);
    let mut steps = 0;
    while !matches!(walk.step(), Step::Stop(_)) {
        steps += 1;
        assert!(steps <= STEPS_MAX);
    }
    assert!(matches!(walk.step(), Step::Stop(_)), "what has ended does not go on");
    drop(walk);
    let (edges, _) = walker.walk(Vaddr(at), state, window, view);
    assert!(edges.len() <= STEPS_MAX);
    steps
}

#[test]
fn whatever_the_bytes_are_a_walk_ends() {
    walks_end::<X86_64>(&own_code(), state);
    // Words of all groups; loads, stores, branches and arithmetic more often.
    let mut random = Rng::with_seed(4);
    let heads = [0x1000_0000, 0x3860_4800, 0x5400_0000, 0x7100_0000, 0x8b20_8800, 0xa9bf_7bfd];
    let word = |_| match random.u8(..8) {
        0 => random.u32(..),
        1 => 0x17ff_fff0 | random.u32(..16),
        _ => heads[random.usize(..heads.len())] ^ random.u32(..) & 0x000f_fcff,
    };
    let words: Vec<u8> = (0..1 << 16).map(word).flat_map(u32::to_le_bytes).collect();
    walks_end::<Aarch64>(&words, |random, near| {
        let registers: [u64; 32] = std::array::from_fn(|_| match random.u8(0..4) {
            0 => random.u64(..),
            1 => random.u64(0..100),
            _ => near.wrapping_add(random.u64(0..600)),
        });
        Aarch64::sampled(&registers[..random.usize(20..=32)], random.u64(..))
    });
}

fn walks_end<I: InstructionSet>(own: &[u8], state: impl Fn(&mut Rng, u64) -> I::State) {
    let rounds: u64 =
        std::env::var("WALKS_FUZZ").map_or(60_000, |rounds| rounds.parse().expect("a number"));
    let mut random = Rng::with_seed(rounds);
    let mut long = 0;
    let (mut steps, mut ahead) = (0, 0);
    let mut walker = Walker::<I>::new(256);
    for round in 0..rounds {
        let len = random.usize(1..400);
        // Real code entered anywhere, with and without damage; and chance.
        let from = random.usize(0..own.len() - len) & !3;
        let mut code = own[from..from + len].to_vec();
        match round % 4 {
            0 => code.fill_with(|| random.u8(..)),
            1 => code
                .iter_mut()
                .for_each(|byte| *byte ^= if random.u8(0..16) == 0 { random.u8(..) } else { 0 }),
            _ => {}
        }
        let begin = match random.u8(0..8) {
            0 => u64::MAX - random.u64(0..500),
            1 => random.u64(0..16),
            _ => 0x5555_0000_0000 + random.u64(0..4096),
        };
        let mut stack = vec![0; random.usize(0..600)];
        stack.fill_with(|| random.u8(..));
        let near = begin.wrapping_add(random.u64(0..2)).wrapping_sub(random.u64(0..64));
        let lies = [1, 1, 20, 200][random.usize(0..4)];
        let stack_begin = Vaddr(near.wrapping_add(random.u64(0..64)));
        let window = Window { begin: stack_begin, bytes: &stack, lines: &[] };
        if round % 64 == 0 {
            // What an image's number stands for changes here, so nothing may be remembered.
            walker = Walker::new(1 << random.u8(0..9));
        }
        let mut view = Liar { random: random.fork(), code: &code, begin, lies };
        let at = begin.wrapping_add(random.u64(0..len as u64));
        let taken = walk(&mut walker, at, state(&mut random, near), window, &mut view);
        steps += taken;
        let read = walker.read_ahead(Vaddr(at), &mut view);
        assert!(read.len() <= OPERATIONS_MAX);
        ahead += read.len();
        long += u64::from(taken == STEPS_MAX);
    }
    println!("{} walks, {steps} instructions, {long} walks of full length", rounds * 2);
    assert!(long > 0 && ahead > 0, "no walk was long, or none reads ahead: nothing is tested");
}

#[test]
fn a_jump_to_itself_is_followed_until_the_walk_is_long() {
    let mut view = Liar { random: Rng::with_seed(1), code: &[0xeb, 0xfe], begin: 0x1000, lies: 0 };
    let mut walker = Walker::<X86_64>::new(16);
    let state = State::sampled([0; 16], 0);
    let (edges, stop) = walker.walk(Vaddr(0x1000), state, Window::default(), &mut view);
    assert_eq!((edges.len(), stop), (STEPS_MAX, Stop::Steps));
    assert!(edges.iter().all(|edge| edge.to == Vaddr(0x1000)));
}

#[test]
fn the_middle_of_an_instruction_and_code_that_is_gone_end_a_walk() {
    // mov eax, 0xc3060606; entered one byte later: no instruction. Then a jump out of the code, and
    // one that is cut by its end.
    let stop = |code: &[u8], at: u64| {
        let mut view = Liar { random: Rng::with_seed(1), code, begin: 0x1000, lies: 0 };
        let mut walker = Walker::<X86_64>::new(16);
        let state = State::sampled([0; 16], 0);
        let (edges, stop) = walker.walk(Vaddr(at), state, Window::default(), &mut view);
        (edges.len(), stop)
    };
    assert_eq!(stop(&[0xb8, 0x06, 0x06, 0x06, 0xc3], 0x1001), (0, Stop::NoInstruction));
    assert_eq!(stop(&[0xeb, 0x10], 0x1000), (1, Stop::NoCode));
    assert_eq!(stop(&[0x90, 0xe9, 0, 0], 0x1000), (0, Stop::NoInstruction));
    assert_eq!(stop(&[0x90], 0x999), (0, Stop::NoCode));
    // A return with nothing known of the stack; a system call; ud2.
    assert_eq!(stop(&[0xc3], 0x1000), (0, Stop::UnknownTarget));
    assert_eq!(stop(&[0x0f, 0x05], 0x1000), (0, Stop::NotFollowed));
    assert_eq!(stop(&[0x0f, 0x0b], 0x1000), (0, Stop::NotFollowed));
}
