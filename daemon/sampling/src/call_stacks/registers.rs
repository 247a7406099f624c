//! Registers of user code in a stack's record.

use abi::StackRecord;

/// Whether the registers are of 64-bit code. `__USER32_CS` is another segment than `__USER_CS`
/// (arch/x86/include/asm/segment.h); arm64: `PSR_MODE32_BIT` of pstate.
fn is_64_bit(record: &StackRecord) -> bool {
    let register = |number: usize| record.registers.get(number).copied().unwrap_or(0);
    if cfg!(target_arch = "x86_64") { register(17) == 0x33 } else { register(33) & 1 << 4 == 0 }
}

/// Whether the code's stack is copied and walked: that of arm's 32-bit code is not.
pub fn is_walked(record: &StackRecord) -> bool {
    cfg!(target_arch = "x86_64") || is_64_bit(record)
}

/// The registers in DWARF's order, and the program counter last. x86: of `struct pt_regs`
/// (arch/x86/include/asm/ptrace.h), of 32-bit code the eight that it has; arm64: of `struct
/// user_pt_regs`, which has that order.
pub fn dwarf_registers(record: &StackRecord) -> Vec<u64> {
    const X86: &[usize] = &[10, 11, 12, 5, 19, 4, 13, 14, 16];
    const X86_64: &[usize] = &[10, 12, 11, 5, 13, 14, 4, 19, 9, 8, 7, 6, 3, 2, 1, 0, 16];
    let register = |number: usize| record.registers.get(number).copied().unwrap_or(0);
    if !cfg!(target_arch = "x86_64") {
        return (0..33).map(register).collect();
    }
    let order = if is_64_bit(record) { X86_64 } else { X86 };
    order.iter().map(|&number| register(number)).collect()
}

#[cfg(test)]
#[cfg(target_arch = "x86_64")]
mod tests {
    use super::*;

    #[test]
    fn the_code_segment_tells_32_bit_code() {
        let mut record = StackRecord::EMPTY;
        record.registers[16] = 0x0804_8123;
        record.registers[17] = 0x33;
        assert!(is_64_bit(&record));
        record.registers[17] = 0x23;
        assert!(!is_64_bit(&record) && is_walked(&record));
        record.registers[19] = 0xffff_d000;
        let narrow = dwarf_registers(&record);
        assert_eq!((narrow.len(), narrow[4], narrow[8]), (9, 0xffff_d000, 0x0804_8123));
    }
}
