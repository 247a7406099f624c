//! Tests of walks, word by word. `binary/code/tests/walks/arm.rs` holds them against an emulated
//! processor.

use image::{ImageOffset, Vaddr};

use super::{Aarch64, State};
use crate::interpret::tests::Code;
use crate::interpret::{
    AheadOperation, AheadSlot, Bits, BranchKind, CodeView, InstructionSet, Line, MemoryAccess,
    Place, Stop, Walker, Window,
};

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// With x0 to x3, the stack pointer at 0x8000, all else 0.
fn sampled(registers: [u64; 4], nzcv: u64) -> State {
    let mut all = [0; super::REGISTERS];
    all[..4].copy_from_slice(&registers);
    all[31] = 0x8000;
    Aarch64::sampled(&all, nzcv)
}

/// Of each branch of a walk: its kind and where it goes; and why the walk ends.
fn walk(words: &[u32], state: State, stack: &[u64]) -> (Vec<(BranchKind, u64)>, Stop) {
    let (code, stack) =
        (bytes(words), stack.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>());
    let window = Window { begin: Vaddr(0x8000), bytes: &stack, lines: &[] };
    let mut walker = Walker::<Aarch64>::new(64);
    let (edges, stop) = walker.walk(Vaddr(0x1000), state, window, &mut Code(&code));
    (edges.iter().map(|edge| (edge.kind, edge.to.0)).collect(), stop)
}

/// The state after one instruction.
fn after(word: u32, state: State) -> State {
    let code = bytes(&[word]);
    let mut walker = Walker::<Aarch64>::new(64);
    let view = &mut Code(&code);
    let mut walk = walker.begin(Vaddr(0x1000), state, Window::default(), view);
    walk.step();
    walk.state().clone()
}

/// Words as llvm-mc assembles them, with x1, x2 and x3 before, and x0 after.
#[test]
fn every_form_computes_what_the_manual_says() {
    let minus = |value: u64| value.wrapping_neg();
    let all: [(u32, [u64; 3], u64); 34] = [
        (0x8b02_0c20, [5, 6, 0], 53),            // add x0, x1, x2, lsl #3
        (0x0b02_0020, [u64::MAX, 2, 0], 1),      // add w0, w1, w2
        (0xcb22_c020, [10, 0xffff_ffff, 0], 11), // sub x0, x1, w2, sxtw
        (0x9a02_0020, [1, 2, 0], 4),             // adc x0, x1, x2: C is 1
        (0xda02_0020, [9, 2, 0], 7),             // sbc x0, x1, x2
        (0x9240_1c20, [0x1ff, 0, 0], 0xff),      // and x0, x1, #0xff
        (0xaa22_03e0, [0, 5, 0], !5),            // mvn x0, x2
        (0xcac2_1020, [0, 0x1234, 0], 0x4000_0000_0000_0123), // eor x0, x1, x2, ror #4
        (0x1ac2_2c20, [0x12, 4, 0], 0x2000_0001), // ror w0, w1, w2
        (0x9ac2_2820, [minus(64), 68, 0], minus(4)), // asr x0, x1, x2
        (0xd344_fc20, [0x123, 0, 0], 0x12),      // lsr x0, x1, #4
        (0xd37c_ec20, [0x123, 0, 0], 0x1230),    // lsl x0, x1, #4
        (0x1304_1c20, [0x180, 0, 0], 0xffff_fff8), // sbfx w0, w1, #4, #4
        (0x9340_7c20, [0xffff_fffe, 0, 0], minus(2)), // sxtw x0, w1
        (0x331c_0c20, [0xabc, 0, 0], 0xc7),      // bfi w0, w1, #4, #4: x0 was 7
        (0xb347_2420, [0x380, 0, 0], 7),         // bfxil x0, x1, #7, #3
        (0x93c2_1020, [0xf, 0x20, 0], 0xf000_0000_0000_0002), // extr x0, x1, x2, #4
        (0x9a82_0420, [8, 9, 0], 10),            // csinc x0, x1, x2, eq
        (0xda82_1420, [8, 9, 0], 8),             // csneg x0, x1, x2, ne
        (0x9b02_0c20, [3, 4, 5], 17),            // madd x0, x1, x2, x3
        (0x1b02_8c20, [3, 4, 5], 0xffff_fff9),   // msub w0, w1, w2, w3
        (0x9b22_0c20, [0xffff_ffff, 4, 5], 1),   // smaddl x0, w1, w2, x3
        (0x9ba2_7c20, [0xffff_ffff, 4, 0], 0x3_ffff_fffc), // umull x0, w1, w2
        (0x9b42_7c20, [minus(1), 4, 0], minus(1)), // smulh x0, x1, x2
        (0x9bc2_7c20, [minus(1), 4, 0], 3),      // umulh x0, x1, x2
        (0x9ac2_0c20, [minus(9), 2, 0], minus(4)), // sdiv x0, x1, x2
        (0x9ac2_0820, [9, 0, 0], 0),             // udiv x0, x1, x2
        (0x1ac2_0c20, [1 << 31, 0xffff_ffff, 0], 1 << 31), // sdiv w0, w1, w2
        (0xdac0_0020, [1, 0, 0], 1 << 63),       // rbit x0, x1
        (0xdac0_0820, [0x11_2233_4455_6677, 0, 0], 0x3322_1100_7766_5544), // rev32 x0, x1
        (0x5ac0_1020, [1, 0, 0], 31),            // clz w0, w1
        (0xdac0_1420, [minus(2), 0, 0], 62),     // cls x0, x1
        (0x92c0_0020, [0, 0, 0], !(1 << 32)),    // mov x0, #-0x100000001
        (0xf2a0_0020, [0, 0, 0], 0x1_0007),      // movk x0, #1, lsl #16
    ];
    for (word, [x1, x2, x3], x0) in all {
        let state = after(word, sampled([7, x1, x2, x3], 1 << 29));
        assert_eq!(state.registers[0], Bits::known(x0), "{word:08x}");
    }
    // adr x0, .+8; adrp x0, page of .+0x1000
    let address = |word| after(word, sampled([0; 4], 0)).registers[0].get();
    assert_eq!((address(0x1000_0040), address(0xb000_0000)), (Some(0x1008), Some(0x2000)));
}

#[test]
fn flags_are_those_of_the_manual() {
    // N, Z, C, V of: cmp x1, x2; cmn w1, w2; tst x1, x2; ccmp x1, x2, #9, eq; the same, ne.
    let of = |word, x1, x2| after(word, sampled([0, x1, x2, 0], 0b0010 << 28)).flags;
    for (word, x1, x2, nzcv) in [
        (0xeb02_003f_u32, 5, 5, 0b0110),
        (0xeb02_003f, 4, 5, 0b1000),
        (0xeb02_003f, 1 << 63, 1, 0b0011),
        (0x2b02_003f, 0x7fff_ffff, 1, 0b1001),
        (0x2b02_003f, 0xffff_ffff, 1, 0b0110),
        (0xea02_003f, 2, 1, 0b0100),
        (0xfa42_0029, 5, 5, 0b1001),
        (0xfa42_1029, 5, 5, 0b0110),
    ] {
        let flags = of(word, x1, x2);
        assert!((0..16).all(|other| flags.may_be_nzcv(other << 28) == (other == nzcv)), "{word:x}");
    }
    // rmif x1, #0, #15
    assert!((0..16).all(|nzcv| of(0xba00_042f, 0, 0).may_be_nzcv(nzcv << 28)));
}

#[test]
fn what_is_not_modelled_is_unknown_and_the_rest_is_not() {
    let known = |word| {
        let state = after(word, sampled([1, 2, 3, 4], 0));
        [0, 1, 2, 31].map(|number| state.registers[number].get())
    };
    let sp = Some(0x8000);
    // crc32x w0, w1, x2; fmov x0, d1; mrs x0, tpidr_el0; addg sp, sp, #0, #0
    for word in [0x9ac2_4c20, 0x9e66_0020, 0xd53b_d040] {
        assert_eq!(known(word), [None, Some(2), Some(3), sp], "{word:x}");
    }
    assert_eq!(known(0x9180_03ff)[3], None);
    // ldadd x2, x0, [x1]; ldxr x0, [x1]; stxr w0, x2, [x1]
    for word in [0xf822_0020, 0xc85f_7c20, 0xc800_7c22] {
        assert_eq!(known(word), [None, Some(2), Some(3), sp], "{word:x}");
    }
    // ld1 {v0.16b}, [x1], #16; ld1 {v0.16b}, [x1], x2; ldr q0, [x1], #16
    assert_eq!(known(0x4cdf_7020), [Some(1), Some(18), Some(3), sp]);
    assert_eq!(known(0x4cc2_7020), [Some(1), None, Some(3), sp]);
    assert_eq!(known(0x3cc1_0420), [Some(1), Some(18), Some(3), sp]);
    // ldr x1, [x1], #8: the base register is loaded too, which processors do as they like.
    assert_eq!(known(0xf840_8421)[1], None);
    // svc #0; udf #0; brk #1: the walk ends.
    for word in [0xd400_0001, 0, 0xd420_0020] {
        assert_eq!(walk(&[word], sampled([0; 4], 0), &[]).1, Stop::NotFollowed, "{word:x}");
    }
}

#[test]
fn a_counted_loop_and_a_return_through_the_stack() {
    use BranchKind::{Call, NotTaken, Return, Taken};
    // f: stp x29, x30, [sp, #-16]!; bl g; ldp x29, x30, [sp], #16; ret
    // g: mov x0, #2; L: subs x0, x0, #1; b.ne L; str x0, [x9]; ret
    let code = [
        0xa9bf_7bfd,
        0x9400_0003,
        0xa8c1_7bfd,
        0xd65f_03c0,
        0xd280_0040,
        0xf100_0400,
        0x54ff_ffe1,
        0xf900_0120,
        0xd65f_03c0,
    ];
    let mut state = sampled([0; 4], 0);
    state.registers[30] = Bits::known(0x4320);
    // A store through an unknown pointer leaves the frame record.
    state.registers[9] = Bits::UNKNOWN;
    let edges = [(Call, 0x1010), (Taken, 0x1014), (NotTaken, 0x101c), (Return, 0x1008)];
    let (walked, stop) = walk(&code, state, &[]);
    assert_eq!((&walked[..4], walked[4], stop), (&edges[..], (Return, 0x4320), Stop::NoCode));
}

#[test]
fn a_signature_is_taken_away_and_tags_are_not_looked_at() {
    // paciasp; str x30, [sp, #-16]!; ldr x30, [sp], #16; autiasp; ret
    let code = [0xd503_233f, 0xf81f_0ffe, 0xf841_07fe, 0xd503_23bf, 0xd65f_03c0];
    let mut state = sampled([0; 4], 0);
    state.registers[30] = Bits::known(0x7123_4567_8900);
    let walked = walk(&code, state, &[]).0;
    assert_eq!(walked, [(BranchKind::Return, 0x7123_4567_8900)]);
    // retaa, with a signature that was on the stack: ldr x30, [sp], #16; retaa
    let walked = walk(&[0xf841_07fe, 0xd65f_0bff], sampled([0; 4], 0), &[0x0035_7123_4567_8900]).0;
    assert_eq!(walked, [(BranchKind::Return, 0x7123_4567_8900)]);
    // str x1, [x0]; ldr x2, [x3]; cbz x2, .+8, where x0 and x3 differ in their tags.
    let code = [0xf900_0001, 0xf940_0062, 0xb400_0042];
    let walked = walk(&code, sampled([0x0b00_0000_0000_9000, 5, 0, 0x9000], 0), &[]).0;
    assert_eq!(walked, [(BranchKind::NotTaken, 0x100c)]);
}

/// Code at 0x1000, and a table of a switch at 0x1100.
struct Switch<'a>(Code<'a>);

impl CodeView for Switch<'_> {
    fn place(&mut self, address: Vaddr) -> Option<Place> {
        self.0.place(address)
    }
    fn bytes(&mut self, image: u32, offset: ImageOffset, into: &mut [u8]) -> usize {
        self.0.bytes(image, offset, into)
    }
    fn constant(&mut self, address: Vaddr, len: u8) -> Option<u64> {
        (address.0 == 0x1102 && len == 1).then_some(0xfe)
    }
}

#[test]
fn a_switch_goes_where_its_table_says() {
    // adr x1, 0x1100; ldrb w1, [x1, w0, uxtw]; adr x0, .+8; add x1, x0, w1, sxtb #2; br x1
    let code = bytes(&[0x1000_0801, 0x3860_4821, 0x1000_0040, 0x8b21_8801, 0xd61f_0020]);
    let mut walker = Walker::<Aarch64>::new(64);
    let state = sampled([2, 0, 0, 0], 0);
    let mut view = Switch(Code(&code));
    let (edges, _) = walker.walk(Vaddr(0x1000), state, Window::default(), &mut view);
    assert_eq!((edges[0].kind, edges[0].to), (BranchKind::IndirectJump, Vaddr(0x1008)));
    let access = MemoryAccess { address: 0x1102, bytes: 1, reads: true, writes: false };
    assert_eq!(walker.accesses()[0], (Vaddr(0x1004), access));
}

#[test]
fn rounds_of_loops_are_told() {
    let rounds = |words: &[u32], state| {
        let code = bytes(words);
        let mut walker = Walker::<Aarch64>::new(64);
        walker.walk(Vaddr(0x1000), state, Window::default(), &mut Code(&code));
        walker.rounds().map(|rounds| rounds.rounds).collect::<Vec<_>>()
    };
    // L: add x0, x0, #8; cmp x0, x1; b.ne L
    let code = [0x9100_2000, 0xeb01_001f, 0x54ff_ffc1];
    assert_eq!(rounds(&code, sampled([0x1000, 0x9000, 0, 0], 0)), [4095]);
    // L: add w0, w0, #1; cmp w0, w1; b.lo L: unsigned, and C is what a borrow is not.
    let code = [0x1100_0400, 0x6b01_001f, 0x54ff_ffc3];
    assert_eq!(rounds(&code, sampled([0, 70_000, 0, 0], 0)), [69_999]);
    // L: sub w0, w0, #1; cbnz w0, L
    assert_eq!(rounds(&[0x5100_0400, 0x35ff_ffe0], sampled([1000, 0, 0, 0], 0)), [999]);
    // L: sub x0, x0, #1; tbz x0, #63, L
    assert_eq!(rounds(&[0xd100_0400, 0xb6ff_ffe0], sampled([1000, 0, 0, 0], 0)), [1000]);
}

fn read_ahead(words: &[u32]) -> Vec<AheadOperation> {
    let code = bytes(words);
    Walker::<Aarch64>::new(64).read_ahead(Vaddr(0x1000), &mut Code(&code))
}

#[test]
fn memory_that_branches_depend_on_is_read_ahead() {
    let (first, second) = (AheadSlot::FIRST, AheadSlot(AheadSlot::FIRST.0 + 1));
    // L: ldr w2, [x0, x1, lsl #2]; cmp w2, w3; b.lt .+8; add w4, w4, #1; add x1, x1, #1; b L
    let table = [0xb861_7802, 0x6b03_005f, 0x5400_004b, 0x1100_0484, 0x9100_0421, 0x17ff_fffb];
    let program = read_ahead(&table);
    let sum = AheadOperation::Sum { a: AheadSlot(0), b: AheadSlot(1), shift: 2, offset: 0 };
    let lines = [0, 64, 128].map(|offset| AheadOperation::Line(first, offset));
    assert_eq!((program[0], &program[1..4]), (sum, &lines[..]), "{program:?}");
    // L: ldr x0, [x0, #8]; cbnz x0, L; ret
    let program = read_ahead(&[0xf940_0400, 0xb5ff_ffe0, 0xd65f_03c0]);
    let line = |at| AheadOperation::Line(at, 8);
    let load = |at| AheadOperation::Load { at, offset: 8, bytes: 8 };
    let chain = [line(AheadSlot(0)), load(AheadSlot(0)), line(second), load(second)];
    assert_eq!(program[..4], chain);
    // L: ldr x2, [x0], #8; add x3, x3, x2; subs x1, x1, #1; b.ne L; ret: what only the data need.
    let sum = [0xf840_8402, 0x8b02_0063, 0xf100_0421, 0x54ff_ffa1, 0xd65f_03c0];
    assert_eq!(read_ahead(&sum), []);
}

#[test]
fn copied_lines_are_loaded() {
    // ldp w0, w1, [x2, #60]; cbnz w1, .+8: the pair is in two lines.
    let code = bytes(&[0x2947_8440, 0x3500_0041]);
    let line = |address, byte| Line { address: Vaddr(address), bytes: [byte; 64] };
    let lines = [line(0x9000, 1), line(0x9040, 0)];
    let mut walker = Walker::<Aarch64>::new(64);
    let window = Window { lines: &lines, ..Window::default() };
    let state = sampled([0, 0, 0x9000, 0], 0);
    let (edges, _) = walker.walk(Vaddr(0x1000), state, window, &mut Code(&code));
    assert_eq!(edges[0].kind, BranchKind::NotTaken);
}
