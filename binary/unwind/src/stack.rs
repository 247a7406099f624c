//! Copied parts of a stack.

use crate::registers::{Machine, Registers};

/// Bytes of a thread's stack, copied from `address` on.
#[derive(Copy, Clone, Debug)]
pub struct Window<'a> {
    /// Address of the first byte.
    pub address: u64,
    /// The bytes, in the order of their addresses.
    pub bytes: &'a [u8],
}

/// Why a word of the stack is not there.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Missing {
    /// The word lies above the start of the lowest window, where a larger copy would have it.
    NotCopied,
    /// The word lies below the windows, or so far above that no stack reaches there.
    NoStack,
}

/// Farthest above the lowest window that a stack is believed to reach, in bytes. Stacks of 8 MiB
/// are usual; above this distance an address is a value that is not an address.
const STACK_BYTES_MAX: u64 = 1 << 30;

/// The copied windows of one stack, lowest first or in any order.
#[derive(Clone, Debug)]
pub struct Stack<'a> {
    windows: &'a [Window<'a>],
    lowest: u64,
    machine: Machine,
}

impl<'a> Stack<'a> {
    pub fn new(machine: Machine, windows: &'a [Window<'a>]) -> Self {
        let lowest = windows.iter().map(|window| window.address).min().unwrap_or(u64::MAX);
        Self { windows, lowest, machine }
    }

    /// From here on the words of the stack that a signal interrupted are asked for. It may be
    /// another one, below or far above the handler's.
    pub fn interrupted(&mut self, registers: &Registers) {
        self.lowest = registers.stack_pointer().unwrap_or(self.lowest);
    }

    /// The little-endian number in the `len` bytes (1 to 8) at `address`.
    pub fn read(&self, address: u64, len: u8) -> Result<u64, Missing> {
        let len = usize::from(len.clamp(1, 8));
        for window in self.windows {
            let Some(into) = address.checked_sub(window.address) else { continue };
            let Ok(into) = usize::try_from(into) else { continue };
            let bytes = into.checked_add(len).and_then(|end| window.bytes.get(into..end));
            if let Some(bytes) = bytes {
                let mut value = [0; 8];
                value.iter_mut().zip(bytes).for_each(|(into, &byte)| *into = byte);
                return Ok(u64::from_le_bytes(value));
            }
        }
        let above = address.checked_sub(self.lowest);
        let near = above.is_some_and(|above| above < STACK_BYTES_MAX);
        Err(if near { Missing::NotCopied } else { Missing::NoStack })
    }

    pub fn word(&self, address: u64) -> Result<u64, Missing> {
        self.read(address, self.machine.word_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::{Missing, STACK_BYTES_MAX, Stack, Window};
    use crate::registers::Machine;

    #[test]
    fn words_come_from_the_window_that_has_them() {
        let low: Vec<u8> = (0..64).collect();
        let high = [0xff; 16];
        let windows =
            [Window { address: 0x1000, bytes: &low }, Window { address: 0x9000, bytes: &high }];
        let stack = Stack::new(Machine::X86_64, &windows);
        assert_eq!(stack.word(0x1008), Ok(0x0f0e_0d0c_0b0a_0908));
        assert_eq!(stack.read(0x1002, 2), Ok(0x0302));
        assert_eq!(stack.word(0x9008), Ok(u64::MAX));
        assert_eq!(stack.word(0x1039), Err(Missing::NotCopied));
        assert_eq!(stack.word(0x9009), Err(Missing::NotCopied));
        assert_eq!(stack.word(0x0fff), Err(Missing::NoStack));
        assert_eq!(stack.word(0x1000 + STACK_BYTES_MAX), Err(Missing::NoStack));
        assert_eq!(stack.word(u64::MAX), Err(Missing::NoStack));
        assert_eq!(Stack::new(Machine::X86_64, &[]).word(0x1000), Err(Missing::NoStack));
        assert_eq!(Stack::new(Machine::X86, &windows).word(0x1008), Ok(0x0b0a_0908));
    }
}
