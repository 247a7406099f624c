//! Machine code of translated blocks, piece by piece.

use crate::context::{self, Field, RAX, RCX, SCRATCH, SCRATCH_2};
use crate::decode::Decoded;
use crate::liveness::Method;
use crate::memory;

/// Lengths of pieces, bytes; what a signal finds within them depends on these.
pub mod length {
    /// A register to or from the context.
    pub const MOVE: u64 = 9;
    /// `inc` of a counter.
    pub const COUNT_FLAGS: u64 = 9;
    pub const COUNT_REGISTER: u64 = 9 + 4 + 9;
    pub const COUNT_KEPT: u64 = 9 + COUNT_REGISTER + 9;
    /// Conditional branch with a displacement of 32 bits.
    pub const CONDITIONAL: u64 = 6;
    pub const POP: u64 = 1;
    pub const PUSH: u64 = 6;
    /// Instructions that a jump may replace.
    pub const REPLACEABLE: u64 = 5;
    /// The part of a system call up to and including the instruction `syscall`.
    pub const WITH_CALL: u64 = 20;
}

/// Lines of the processor's cache: a displacement that is patched lies within one.
const LINE: u64 = 64;

/// Bytes before code at `at` that keep a displacement `ahead` bytes further within a cache line.
pub fn alignment(at: u64, ahead: u64) -> u64 {
    let first = (at + ahead) % LINE;
    if first > LINE - 4 { LINE - first } else { 0 }
}

/// Writes code from `at` on.
#[derive(Clone, Copy, Debug)]
pub struct Emitter {
    pub at: u64,
}

impl Emitter {
    pub fn put(&mut self, bytes: &[u8]) {
        memory::put(self.at, bytes);
        self.at += bytes.len() as u64;
    }

    fn put_i32(&mut self, value: i32) {
        self.put(&value.to_le_bytes());
    }

    /// `mov` between a register and a field of the context.
    fn context_move(&mut self, opcode: u8, register: u8, field: Field) {
        let rex = 0x48 | (register >> 3) << 2;
        self.put(&[0x65, rex, opcode, 0x04 | (register & 7) << 3, 0x25]);
        self.put_i32(field);
    }

    pub fn load(&mut self, register: u8, field: Field) {
        self.context_move(0x8b, register, field);
    }

    pub fn save(&mut self, register: u8, field: Field) {
        self.context_move(0x89, register, field);
    }

    /// `mov qword ptr gs:[field], value`
    pub fn set(&mut self, field: Field, value: i32) {
        self.put(&[0x65, 0x48, 0xc7, 0x04, 0x25]);
        self.put_i32(field);
        self.put_i32(value);
    }

    /// `jmp qword ptr gs:[field]`
    pub fn jump_by(&mut self, field: Field) {
        self.put(&[0x65, 0xff, 0x24, 0x25]);
        self.put_i32(field);
    }

    pub fn jump(&mut self, to: u64) {
        self.put(&[0xe9]);
        self.relative(to);
    }

    /// A displacement of 32 bits that ends an instruction.
    pub fn relative(&mut self, to: u64) {
        let displacement = to.wrapping_sub(self.at + 4) as i32;
        self.put_i32(displacement);
    }

    /// One instruction that does nothing, which a jump may replace in one store.
    pub fn replaceable(&mut self) {
        while !self.at.is_multiple_of(8) {
            self.put(&[0x90]);
        }
        self.put(&[0x0f, 0x1f, 0x44, 0x00, 0x00]);
    }

    /// Instructions that do nothing, so that a displacement `ahead` bytes from here lies within a
    /// cache line.
    pub fn align_displacement(&mut self, ahead: u64) {
        match alignment(self.at, ahead) {
            0 => {}
            1 => self.put(&[0x90]),
            2 => self.put(&[0x66, 0x90]),
            _ => self.put(&[0x0f, 0x1f, 0x00]),
        }
    }

    /// `mov register, value`
    pub fn wide(&mut self, register: u8, value: u64) {
        self.put(&[0x48 | register >> 3, 0xb8 | register & 7]);
        self.put(&value.to_le_bytes());
    }

    /// Adds one to a counter.
    pub fn count(&mut self, counter: u32, method: Method) {
        let field = field_of(counter);
        match method {
            Method::Flags => {
                self.put(&[0x65, 0x48, 0xff, 0x04, 0x25]);
                self.put_i32(field);
            }
            Method::Register(register) => self.count_in(register, field),
            Method::Kept(register) => {
                self.save(register, SCRATCH);
                self.count_in(register, field);
                self.load(register, SCRATCH);
            }
        }
    }

    fn count_in(&mut self, register: u8, field: Field) {
        self.load(register, field);
        // lea register, [register+1]
        let (rex, modrm) = ((register >> 3) * 5, (register & 7) * 9);
        self.put(&[0x48 | rex, 0x8d, 0x40 | modrm, 1]);
        self.save(register, field);
    }

    /// The two registers that indirect branches use.
    pub fn save_pair(&mut self) {
        self.save(RAX, SCRATCH);
        self.save(RCX, SCRATCH_2);
    }

    pub fn load_pair(&mut self) {
        self.load(RCX, SCRATCH_2);
        self.load(RAX, SCRATCH);
    }

    /// Looks the address in rax up in the table of targets, and jumps; to `miss` without an
    /// entry. No flags change.
    pub fn look_up(&mut self, miss: u64) {
        // movzx ecx, ax; lea rcx, [rcx+rcx]; mov rcx, gs:[rcx*8+TARGETS]
        self.put(&[0x0f, 0xb7, 0xc8, 0x48, 0x8d, 0x0c, 0x09, 0x65, 0x48, 0x8b, 0x0c, 0xcd]);
        self.put_i32(context::TARGETS);
        // lea rcx, [rcx+rax]; jrcxz +5
        self.put(&[0x48, 0x8d, 0x0c, 0x01, 0xe3, 0x05]);
        self.jump(miss);
        // movzx ecx, ax; lea rcx, [rcx+rcx]; jmp gs:[rcx*8+TARGETS+8]
        self.put(&[0x0f, 0xb7, 0xc8, 0x48, 0x8d, 0x0c, 0x09, 0x65, 0xff, 0x24, 0xcd]);
        self.put_i32(context::TARGETS + 8);
    }

    /// Looks the address in rax up in the second table, and jumps; goes on without an entry. No
    /// flags change.
    pub fn look_up_again(&mut self) {
        self.mix();
        // mov rcx, gs:[rcx*8+TARGETS_2]; lea rcx, [rcx+rax]; jrcxz +2; jmp over
        self.put(&[0x65, 0x48, 0x8b, 0x0c, 0xcd]);
        self.put_i32(context::TARGETS_2);
        self.put(&[0x48, 0x8d, 0x0c, 0x01, 0xe3, 0x02, 0xeb, 0x17]);
        self.mix();
        // jmp gs:[rcx*8+TARGETS_2+8]
        self.put(&[0x65, 0xff, 0x24, 0xcd]);
        self.put_i32(context::TARGETS_2 + 8);
    }

    /// The place in the second table, in units of 8 bytes.
    fn mix(&mut self) {
        // mov ecx, eax; bswap ecx; lea ecx, [rcx+rax]; movzx ecx, cx; lea rcx, [rcx+rcx]
        self.put(&[0x89, 0xc1, 0x0f, 0xc9, 0x8d, 0x0c, 0x01, 0x0f, 0xb7, 0xc9]);
        self.put(&[0x48, 0x8d, 0x0c, 0x09, 0x90]);
    }

    /// An instruction as it is, except for data that it addresses relative to itself. `spare` is a
    /// register that it leaves alone. Whether the data is out of reach, so that `spare` was used.
    pub fn copy(&mut self, decoded: &Decoded, spare: impl FnOnce() -> u8) -> bool {
        let bytes = decoded.bytes();
        if decoded.displacement == 0 {
            self.put(bytes);
            return false;
        }
        let target = decoded.instruction.ip_rel_memory_address();
        let (head, tail) = bytes.split_at_checked(decoded.displacement).unwrap_or((bytes, &[]));
        let tail = tail.get(4..).unwrap_or_default();
        if let Some(displacement) = self.reach(target, bytes.len()) {
            self.put(head);
            self.put_i32(displacement);
            self.put(tail);
            return false;
        }
        let spare = spare();
        self.save(spare, SCRATCH);
        self.wide(spare, target);
        if let [prefixes @ .., modrm] = head {
            self.put(prefixes);
            // The base is `spare` now, without displacement.
            self.put(&[modrm & 0x38 | spare]);
        }
        self.put(tail);
        self.load(spare, SCRATCH);
        true
    }

    fn reach(self, target: u64, len: usize) -> Option<i32> {
        i32::try_from(target.wrapping_sub(self.at + len as u64) as i64).ok()
    }

    /// `mov rax, target` of an indirect call or jump; false when its bytes are not as expected.
    pub fn target_to_rax(&mut self, decoded: &Decoded) -> bool {
        const PREFIXES: [u8; 8] = [0x66, 0x64, 0xf2, 0xf3, 0x2e, 0x3e, 0x26, 0x36];
        let mut bytes = decoded.bytes();
        let mut rex = 0x48;
        while let Some((first, rest)) = bytes.split_first() {
            if matches!(*first, 0x64 | 0x67) {
                self.put(&[*first]);
            } else if first & 0xf0 == 0x40 {
                rex |= first & 3;
            } else if !PREFIXES.contains(first) {
                break;
            }
            bytes = rest;
        }
        let [0xff, modrm, rest @ ..] = bytes else { return false };
        let modrm = modrm & 0xc7;
        if decoded.displacement == 0 {
            self.put(&[rex, 0x8b, modrm]);
            self.put(rest);
            return true;
        }
        let target = decoded.instruction.ip_rel_memory_address();
        if let Some(displacement) = self.reach(target, 7) {
            self.put(&[0x48, 0x8b, modrm]);
            self.put_i32(displacement);
        } else {
            self.wide(RAX, target);
            // mov rax, [rax]
            self.put(&[0x48, 0x8b, 0x00]);
        }
        true
    }

    /// A system call: one that the engine looks at goes to `looked_at`, with all registers but
    /// rcx, which the call clobbers. Returns the address of the call itself.
    pub fn system_call(&mut self, looked_at: u64, next: u64) -> u64 {
        // movzx ecx, ax; movzx ecx, byte ptr gs:[rcx+LOOKED_AT]; jrcxz +5
        self.put(&[0x0f, 0xb7, 0xc8, 0x65, 0x0f, 0xb6, 0x89]);
        self.put_i32(context::LOOKED_AT);
        self.put(&[0xe3, 0x05]);
        self.jump(looked_at);
        let direct = self.at;
        self.put(&[0x0f, 0x05]);
        self.wide(RCX, next);
        direct
    }
}

/// Displacement of a counter from the context.
fn field_of(counter: u32) -> Field {
    context::COUNTERS.wrapping_add_unsigned(counter.wrapping_mul(8))
}
