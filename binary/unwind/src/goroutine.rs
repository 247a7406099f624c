//! From the stack of a thread to that of the goroutine which runs on the thread.
//!
//! Go's runtime works for a goroutine on a stack of the thread's own: the collector of garbage, the
//! allocator, C. The procedures that change to that stack (`runtime.systemstack`,
//! `runtime.asmcgocall`) change back after their calls, by a few loads. Where the runtime has what
//! they load differs by version; the code of the program itself says it. So the instructions behind
//! the call are followed here, and what they load becomes a rule, which the sampler follows in the
//! thread's memory (`ebpf/src/goroutine.h`). Code that does anything else says nothing.
//!
//! # Sources
//!
//! Of Go's source, 1.18 to 1.26, src/runtime/asm_amd64.s: `systemstack`, `asmcgocall` and
//! `gosave_systemstack_switch`, which keeps the stack pointer that is loaded; src/runtime/go_tls.h;
//! src/cmd/internal/obj/x86/obj6.go (`progedit`), how `g` is loaded relative to %fs. Intel SDM,
//! volume 2, chapter 2 (encodings).

/// Most instructions behind the call that are looked at; there are 5 to 8.
const INSTRUCTIONS_MAX: usize = 12;
/// Bytes of these instructions, at most.
pub const BEHIND_BYTES: usize = 64;
/// Number of the stack pointer in instructions.
const STACK_POINTER: u8 = 4;
/// Segment override of %fs.
const FS: u8 = 0x64;

/// Where a thread that is on its own stack has the stack of its goroutine. Distances are in bytes,
/// multiples of 8.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct Goroutine {
    /// What leads to its stack pointer.
    pub way: Way,
    /// Distance of the return address from its stack pointer, at most 24.
    pub frame_bytes: u8,
}

/// What leads to the stack pointer of a goroutine.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// The thread's `g`.
    Thread {
        /// Distance of `g` from the thread's pointer, less than 4 MiB on either side.
        g_at: i32,
        /// Offset of the `m` in a `g`, at most 120.
        m_at: u16,
        /// Offset of the goroutine in an `m`, at most 8184.
        current_at: u16,
        /// Offset of the stack pointer in a `g`, at most 120.
        stack_pointer_at: u16,
    },
    /// The frame of the procedure that has called C.
    Frame {
        /// Distance of the goroutine from the frame's stack pointer, at most 120.
        goroutine_at: u16,
        /// Distance of the depth of the goroutine's stack, at most 120.
        depth_at: u16,
        /// Offset in a `g` of the end of the stack, at most 8184.
        end_at: u16,
    },
}

/// What a register has, as far as it is known.
#[derive(Copy, Clone, Default)]
enum Value {
    #[default]
    Unknown,
    Number(i32),
    /// `g` of the thread, by its distance from the thread's pointer.
    OwnG(i32),
    /// Its `m`, by the offset in `g`.
    M(i32, i32),
    /// The goroutine, by the offset in `m`.
    Current(i32, i32, i32),
    /// A word of the frame.
    Kept(i32),
    /// The end of the stack of the goroutine in a word of the frame.
    End(i32, i32),
    /// A stack pointer.
    Found(Way),
}

/// An operand of an instruction.
enum Operand {
    Register(u8),
    /// A distance from a register's value, or from 0.
    Memory(Option<u8>, i32),
}

/// The way to the goroutine whose stack the code changes back to. `code` begins at a return address
/// of a procedure whose frame has `frame_bytes` below its own return address.
pub fn behind_call(code: &[u8], frame_bytes: u64) -> Option<Goroutine> {
    let frame_bytes = u8::try_from(frame_bytes).ok();
    let frame_bytes = frame_bytes.filter(|bytes| *bytes <= 24 && bytes % 8 == 0)?;
    let mut code = Code { rest: code, values: [Value::Unknown; 16] };
    for _ in 0..INSTRUCTIONS_MAX {
        if code.step()? == STACK_POINTER {
            let Value::Found(way) = code.value(STACK_POINTER) else { return None };
            return Some(Goroutine { way, frame_bytes });
        }
    }
    None
}

/// The way to the goroutine in the code of a procedure that changes to the thread's stack and back.
/// None where it says nothing, or two things.
pub fn way_in(code: &[u8]) -> Option<Way> {
    let found = (0..code.len()).filter_map(|at| behind_call(code.get(at..)?, 0));
    let mut ways =
        found.map(|goroutine| goroutine.way).filter(|way| matches!(way, Way::Thread { .. }));
    let way = ways.next()?;
    ways.all(|other| other == way).then_some(way)
}

/// Where a `g` has the goroutine's labels, by the code of `runtime/pprof.runtime_setProfLabel`:
/// the one field of a structure that it loads and stores far from the structure's begin. At most
/// 2040.
pub fn labels_at(code: &[u8]) -> Option<u16> {
    let mut found = None;
    for bytes in code.windows(7) {
        // REX.W, MOV of a word, a base other than the stack pointer with a distance of 32 bits.
        let [0x48..=0x4f, 0x89 | 0x8b, operands, distance @ ..] = bytes else { continue };
        if operands >> 6 != 2 || operands & 7 == STACK_POINTER {
            continue;
        }
        let distance = offset(i32::from_le_bytes(*distance.first_chunk()?), 2040)?;
        if found.is_some_and(|found| found != distance) {
            return None;
        }
        found = Some(distance);
    }
    found
}

/// Instructions that are followed, and registers by number.
struct Code<'a> {
    rest: &'a [u8],
    values: [Value; 16],
}

impl Code<'_> {
    /// Follows an instruction. Returns the number of the register that it has set, or that of none.
    fn step(&mut self) -> Option<u8> {
        const NONE: u8 = 16;
        let mut first = self.byte()?;
        let is_of_thread = first == FS;
        if is_of_thread {
            first = self.byte()?;
        }
        // All operands have 64 bits.
        let rex = Some(first).filter(|byte| byte & 0xf8 == 0x48)?;
        let opcode = self.byte()?;
        let (register, operand) = self.operands(rex)?;
        let (set, value) = match (opcode, operand) {
            (0x8b, Operand::Register(from)) => (register, self.value(from)),
            (0x8b, Operand::Memory(base, distance)) => {
                (register, self.loaded(is_of_thread, base, distance)?)
            }
            (0x89, Operand::Register(to)) => (to, self.value(register)),
            (0x89, Operand::Memory(..)) => return Some(NONE),
            (0x2b, Operand::Memory(Some(STACK_POINTER), depth_at)) if !is_of_thread => {
                let Value::End(goroutine_at, end_at) = self.value(register) else { return None };
                (register, Value::Found(frame(goroutine_at, depth_at, end_at)?))
            }
            (0xc7, Operand::Register(to)) => (to, Value::Number(self.number()?)),
            _ => return None,
        };
        *self.values.get_mut(usize::from(set))? = value;
        Some(set)
    }

    /// The word at a distance from a register's value, or from the thread's pointer and that.
    fn loaded(&self, is_of_thread: bool, base: Option<u8>, distance: i32) -> Option<Value> {
        let base_value = base.map(|base| self.value(base));
        Some(match (is_of_thread, base_value) {
            (true, None) => Value::OwnG(distance),
            (true, Some(Value::Number(number))) => Value::OwnG(number.checked_add(distance)?),
            (false, _) if base == Some(STACK_POINTER) => Value::Kept(distance),
            (false, Some(Value::OwnG(g_at))) => Value::M(g_at, distance),
            (false, Some(Value::M(g_at, m_at))) => Value::Current(g_at, m_at, distance),
            (false, Some(Value::Current(g_at, m_at, current_at))) => {
                Value::Found(thread(g_at, m_at, current_at, distance)?)
            }
            (false, Some(Value::Kept(goroutine_at))) => Value::End(goroutine_at, distance),
            _ => return None,
        })
    }

    fn value(&self, register: u8) -> Value {
        self.values.get(usize::from(register)).copied().unwrap_or_default()
    }

    /// The register and the other operand of an instruction that has both.
    fn operands(&mut self, rex: u8) -> Option<(u8, Operand)> {
        let byte = self.byte()?;
        let register = byte >> 3 & 7 | (rex & 4) << 1;
        let (form, low) = (byte >> 6, byte & 7);
        let other = low | (rex & 1) << 3;
        if form == 3 {
            return Some((register, Operand::Register(other)));
        }
        // A byte without index follows; of other bases it is not needed.
        let base = match low {
            4 => match (self.byte()?, form) {
                (0x24, _) => Some(other),
                (0x25, 0) => None,
                _ => return None,
            },
            // Relative to the program counter.
            5 if form == 0 => return None,
            _ => Some(other),
        };
        let distance = match form {
            0 if base.is_some() => 0,
            1 => i32::from(self.byte()?.cast_signed()),
            _ => self.number()?,
        };
        Some((register, Operand::Memory(base, distance)))
    }

    fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*byte)
    }

    fn number(&mut self) -> Option<i32> {
        let (number, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(i32::from_le_bytes(*number))
    }
}

fn thread(g_at: i32, m_at: i32, current_at: i32, stack_pointer_at: i32) -> Option<Way> {
    let is_near = g_at % 8 == 0 && g_at.unsigned_abs() < 4 << 20;
    is_near.then_some(Way::Thread {
        g_at,
        m_at: offset(m_at, 120)?,
        current_at: offset(current_at, 8184)?,
        stack_pointer_at: offset(stack_pointer_at, 120)?,
    })
}

fn frame(goroutine_at: i32, depth_at: i32, end_at: i32) -> Option<Way> {
    Some(Way::Frame {
        goroutine_at: offset(goroutine_at, 120)?,
        depth_at: offset(depth_at, 120)?,
        end_at: offset(end_at, 8184)?,
    })
}

fn offset(distance: i32, most: u16) -> Option<u16> {
    u16::try_from(distance).ok().filter(|offset| *offset <= most && offset % 8 == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAY: Way = Way::Thread { g_at: -8, m_at: 48, current_at: 192, stack_pointer_at: 56 };

    /// mov %fs:-8, %rax; mov 48(%rax), %rbx; mov 192(%rbx), %rax; mov %rax, %fs:-8;
    /// mov 56(%rax), %rsp: Go 1.19 to 1.26.
    const SYSTEMSTACK: &[u8] = &[
        0x64, 0x48, 0x8b, 0x04, 0x25, 0xf8, 0xff, 0xff, 0xff, 0x48, 0x8b, 0x58, 0x30, 0x48, 0x8b,
        0x83, 0xc0, 0, 0, 0, 0x64, 0x48, 0x89, 0x04, 0x25, 0xf8, 0xff, 0xff, 0xff, 0x48, 0x8b,
        0x60, 0x38,
    ];
    /// mov $-8, %rcx; mov %fs:(%rcx), %rax; and as before: position-independent programs.
    const INDEPENDENT: &[u8] = &[
        0x48, 0xc7, 0xc1, 0xf8, 0xff, 0xff, 0xff, 0x64, 0x48, 0x8b, 0x01, 0x48, 0x8b, 0x58, 0x30,
        0x48, 0x8b, 0x83, 0xc0, 0, 0, 0, 0x64, 0x48, 0x89, 0x01, 0x48, 0x8b, 0x60, 0x38,
    ];
    /// mov 8(%rsp), %rdi; mov 8(%rdi), %rsi; sub (%rsp), %rsi; mov %rdi, %fs:-8;
    /// mov %rsi, %rsp: Go 1.22 to 1.26.
    const ASMCGOCALL: &[u8] = &[
        0x48, 0x8b, 0x7c, 0x24, 0x08, 0x48, 0x8b, 0x77, 0x08, 0x48, 0x2b, 0x34, 0x24, 0x64, 0x48,
        0x89, 0x3c, 0x25, 0xf8, 0xff, 0xff, 0xff, 0x48, 0x89, 0xf4,
    ];
    /// mov (%rsp), %rsi; mov %rsi, %rsp: where the thread was on its own stack already.
    const ON_ITS_OWN: &[u8] = &[0x48, 0x8b, 0x34, 0x24, 0x48, 0x89, 0xf4];

    #[test]
    fn the_way_back_is_that_of_the_code() {
        let way = |code: &[u8]| behind_call(code, 8).map(|found| found.way);
        assert_eq!(way(SYSTEMSTACK), Some(WAY));
        assert_eq!(way(INDEPENDENT), Some(WAY));
        let in_c = Way::Frame { goroutine_at: 8, depth_at: 0, end_at: 8 };
        assert_eq!(way(ASMCGOCALL), Some(in_c));
        assert_eq!(way(ON_ITS_OWN), None);
        assert_eq!(behind_call(SYSTEMSTACK, 0).map(|found| found.frame_bytes), Some(0));
        assert_eq!(behind_call(SYSTEMSTACK, 32), None, "a larger frame than Go's are");
    }

    /// `runtime/pprof.runtime_setProfLabel` from the test of the write barrier on: Go 1.19, and Go
    /// 1.21 to 1.27.
    const SETS_LABELS: [&[u8]; 2] = [
        &[
            0x75, 0x09, 0x49, 0x89, 0x86, 0x68, 0x01, 0, 0, 0xeb, 0x0f, 0x4c, 0x89, 0xf7, 0x48,
            0x81, 0xc7, 0x68, 0x01, 0, 0, 0xe8, 0x4d, 0x38, 0, 0,
        ],
        &[
            0x74, 0x13, 0x49, 0x8b, 0x8e, 0x60, 0x01, 0, 0, 0xe8, 0x99, 0x56, 0, 0, 0x49, 0x89,
            0x03, 0x49, 0x89, 0x4b, 0x08, 0x48, 0x8b, 0x0c, 0x24, 0x48, 0x89, 0x81, 0x60, 0x01, 0,
            0,
        ],
    ];

    #[test]
    fn the_place_of_labels_is_that_of_the_code() {
        assert_eq!(SETS_LABELS.map(labels_at), [Some(0x168), Some(0x160)]);
        assert_eq!(labels_at(&SETS_LABELS.concat()), None, "two places");
        assert_eq!(labels_at(SYSTEMSTACK), Some(192), "of another procedure");
        let code = [&[0xc3; 5][..], SYSTEMSTACK].concat();
        assert_eq!((way_in(&code), way_in(ASMCGOCALL), way_in(&[])), (Some(WAY), None, None));
    }

    #[test]
    fn other_code_says_nothing() {
        for good in [SYSTEMSTACK, INDEPENDENT, ASMCGOCALL] {
            for len in 0..good.len() {
                assert_eq!(behind_call(&good[..len], 8), None, "{len}");
            }
            for place in 0..good.len() {
                for byte in 0..=u8::MAX {
                    let mut code = good.to_vec();
                    code[place] = byte;
                    // A change of an offset is another offset; nothing else leads elsewhere.
                    if let Some(Goroutine { way, frame_bytes }) = behind_call(&code, 8) {
                        assert_eq!(frame_bytes, 8);
                        match way {
                            Way::Thread { g_at, m_at, current_at, stack_pointer_at } => {
                                assert!(g_at % 8 == 0 && m_at <= 120 && stack_pointer_at <= 120);
                                assert!(current_at <= 8184);
                            }
                            Way::Frame { goroutine_at, depth_at, end_at } => {
                                assert!(goroutine_at <= 120 && depth_at <= 120 && end_at <= 8184);
                            }
                        }
                    }
                }
            }
        }
    }
}
