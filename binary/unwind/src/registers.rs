//! Registers of the instruction sets, by their DWARF numbers.

/// An instruction set.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Machine {
    /// 32-bit programs of x86; DWARF numbers by the System V ABI, Intel386 supplement 1.1, table
    /// 2.14: eax, ecx, edx, ebx, esp, ebp, esi, edi, return address.
    X86,
    /// x86-64; DWARF numbers by the System V ABI, AMD64 supplement, figure 3.36: rax, rdx, rcx,
    /// rbx, rsi, rdi, rbp, rsp, r8 to r15, return address.
    X86_64,
    /// arm64; DWARF numbers by "DWARF for the Arm 64-bit Architecture", section 4.1: x0 to x30,
    /// sp.
    Aarch64,
}

/// Registers 0 to 31 of every machine: rip and sp of arm64 included.
pub const REGISTERS: u8 = 32;

impl Machine {
    /// DWARF number of the stack pointer.
    pub const fn stack_pointer(self) -> u8 {
        match self {
            Self::X86 => 4,
            Self::X86_64 => 7,
            Self::Aarch64 => 31,
        }
    }

    /// DWARF number of the frame pointer.
    pub const fn frame_pointer(self) -> u8 {
        match self {
            Self::X86 => 5,
            Self::X86_64 => 6,
            Self::Aarch64 => 29,
        }
    }

    /// Column of the return address.
    pub(crate) const fn return_column(self) -> u8 {
        match self {
            Self::X86 => 8,
            Self::X86_64 => 16,
            Self::Aarch64 => 30,
        }
    }

    /// Bytes of an address, and of a word that a call or a push puts on the stack.
    pub(crate) const fn word_bytes(self) -> u8 {
        match self {
            Self::X86 => 4,
            Self::X86_64 | Self::Aarch64 => 8,
        }
    }

    /// Whether calls put the return address on the stack.
    pub(crate) const fn pushes_return_address(self) -> bool {
        matches!(self, Self::X86 | Self::X86_64)
    }

    /// A bit for each register that a procedure leaves as it found it (System V ABI, Intel386
    /// supplement, table 2.3, AMD64 supplement, section 3.2.1; AAPCS64, section 6.1.1), the stack
    /// pointer left out.
    pub(crate) const fn callee_saved(self) -> u32 {
        match self {
            Self::X86 => 1 << 3 | 1 << 5 | 1 << 6 | 1 << 7,
            Self::X86_64 => 1 << 3 | 1 << 6 | 0xf << 12,
            Self::Aarch64 => 0x7ff << 19,
        }
    }
}

/// The registers of a thread in one frame, of which some are known.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Registers {
    machine: Machine,
    /// Address of the next instruction.
    pub pc: u64,
    known: u32,
    values: [u64; REGISTERS as usize],
}

impl Registers {
    /// Only the address of the next instruction is known.
    pub const fn new(machine: Machine, pc: u64) -> Self {
        Self { machine, pc, known: 0, values: [0; REGISTERS as usize] }
    }

    /// All of 32-bit x86, in the order of their DWARF numbers: eax, ecx, edx, ebx, esp, ebp, esi,
    /// edi.
    pub fn x86(pc: u64, values: &[u64; 8]) -> Self {
        let mut registers = Self::new(Machine::X86, pc);
        (0..).zip(values).for_each(|(number, &value)| registers.set(number, Some(value)));
        registers
    }

    /// All of x86-64, in the order of their DWARF numbers: rax, rdx, rcx, rbx, rsi, rdi, rbp, rsp,
    /// r8 to r15.
    pub fn x86_64(pc: u64, values: &[u64; 16]) -> Self {
        let mut registers = Self::new(Machine::X86_64, pc);
        (0..).zip(values).for_each(|(number, &value)| registers.set(number, Some(value)));
        registers
    }

    /// All of arm64: x0 to x30, sp.
    pub fn aarch64(pc: u64, values: &[u64; 32]) -> Self {
        let mut registers = Self::new(Machine::Aarch64, pc);
        (0..).zip(values).for_each(|(number, &value)| registers.set(number, Some(value)));
        registers
    }

    /// The architecture of the registers.
    pub const fn machine(&self) -> Machine {
        self.machine
    }

    /// The value of the register with this DWARF number, if known.
    pub fn get(&self, number: u8) -> Option<u64> {
        let known = self.known.checked_shr(u32::from(number)).unwrap_or(0) & 1 == 1;
        self.values.get(usize::from(number)).copied().filter(|_| known)
    }

    /// Sets the register with this DWARF number, or makes it unknown. Numbers that are not of a
    /// general register do nothing.
    pub fn set(&mut self, number: u8, value: Option<u64>) {
        let Some(place) = self.values.get_mut(usize::from(number)) else { return };
        *place = value.unwrap_or(0);
        let bit = 1 << number;
        if value.is_some() { self.known |= bit } else { self.known &= !bit }
    }

    /// The stack pointer, if known.
    pub fn stack_pointer(&self) -> Option<u64> {
        self.get(self.machine.stack_pointer())
    }

    /// The frame pointer's register, if known, whatever the procedure uses it for.
    pub fn frame_pointer(&self) -> Option<u64> {
        self.get(self.machine.frame_pointer())
    }
}
