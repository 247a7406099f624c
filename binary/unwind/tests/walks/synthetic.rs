//! ELF files made by hand: code, an unwind table and its index in one segment.

use unwind::{Code, Image, Machine, Space};

/// First address of the file's segment, before loading.
pub const BASE: u64 = 0x10000;
/// Where the code begins in the file.
pub const CODE: u64 = 0x1000;
/// The load bias.
pub const BIAS: u64 = 0x5500_0000_0000;

/// A procedure and its entry in the table.
pub struct Procedure {
    /// Offset in the code, and length, in bytes.
    pub begin: u32,
    pub len: u32,
    pub is_signal: bool,
    /// Call frame instructions.
    pub instructions: Vec<u8>,
}

/// A file with this code and table, whose procedures are in order.
pub fn file(machine: Machine, code: &[u8], procedures: &[Procedure]) -> Vec<u8> {
    let mut file = vec![0; CODE as usize];
    file.extend(code);
    file.resize(file.len().next_multiple_of(16), 0);
    let mut rows = Vec::new();
    for procedure in procedures {
        let cie = file.len();
        append_cie(&mut file, machine, procedure.is_signal);
        let fde = file.len();
        let begin = CODE as usize + procedure.begin as usize;
        let mut body = Vec::new();
        body.extend(((fde + 4 - cie) as u32).to_le_bytes());
        body.extend((begin as i32 - (fde as i32 + 8)).to_le_bytes());
        body.extend(procedure.len.to_le_bytes());
        body.push(0);
        body.extend(&procedure.instructions);
        append_entry(&mut file, &body);
        rows.push((begin as i32, fde as i32));
    }
    let index = file.len() as i32;
    file.extend([1, 0x1b, 0x03, 0x3b]);
    file.extend((CODE as i32 - index - 4).to_le_bytes());
    file.extend((rows.len() as u32).to_le_bytes());
    for (begin, fde) in rows {
        file.extend((begin - index).to_le_bytes());
        file.extend((fde - index).to_le_bytes());
    }
    let index_len = file.len() as u64 - index as u64;
    let header = header(machine, file.len() as u64, index as u64, index_len);
    file[..header.len()].copy_from_slice(&header);
    file
}

fn append_cie(file: &mut Vec<u8>, machine: Machine, is_signal: bool) {
    let mut body = vec![0, 0, 0, 0, 1];
    body.extend(if is_signal { &b"zRS\0"[..] } else { b"zR\0" });
    let (code_factor, column) = match machine {
        Machine::X86 => (1, 8),
        Machine::X86_64 => (1, 16),
        Machine::Aarch64 => (4, 30),
    };
    // Factors of code and data (-8), the return address's column, the addresses' encoding.
    body.extend([code_factor, 0x78, column, 1, 0x1b]);
    body.extend(match machine {
        // The CFA is esp + 8, the return address 8 bytes below it.
        Machine::X86 => &[0x0c, 4, 8, 0x88, 1],
        // The CFA is rsp + 8, the return address 8 bytes below it.
        Machine::X86_64 => &[0x0c, 7, 8, 0x90, 1][..],
        // The CFA is sp.
        Machine::Aarch64 => &[0x0c, 31, 0],
    });
    append_entry(file, &body);
}

fn append_entry(file: &mut Vec<u8>, body: &[u8]) {
    let len = (body.len() + 4).next_multiple_of(8) - 4;
    file.extend((len as u32).to_le_bytes());
    file.extend(body);
    file.resize(file.len() + len - body.len(), 0);
}

fn header(machine: Machine, len: u64, index: u64, index_len: u64) -> Vec<u8> {
    let number: u16 = match machine {
        Machine::X86 => return narrow_header(len, index, index_len),
        Machine::X86_64 => 62,
        Machine::Aarch64 => 183,
    };
    let mut header = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    header.extend([3, 0]);
    header.extend(number.to_le_bytes());
    header.extend(1u32.to_le_bytes());
    // Entry, program headers, section headers.
    [0, 64, 0].iter().for_each(|word: &u64| header.extend(word.to_le_bytes()));
    header.extend(0u32.to_le_bytes());
    [64, 56, 2, 64, 0, 0].iter().for_each(|half: &u16| header.extend(half.to_le_bytes()));
    for (kind, offset, len) in [(1u32, 0, len), (0x6474_e550, index, index_len)] {
        header.extend(kind.to_le_bytes());
        header.extend(5u32.to_le_bytes());
        let address = BASE + offset;
        for word in [offset, address, address, len, len, 16] {
            header.extend(word.to_le_bytes());
        }
    }
    header
}

/// The same for 32-bit x86.
fn narrow_header(len: u64, index: u64, index_len: u64) -> Vec<u8> {
    let mut header = b"\x7fELF\x01\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    [3u16, 3].iter().for_each(|half| header.extend(half.to_le_bytes()));
    // Version, entry, program headers, section headers, flags.
    [1u32, 0, 52, 0, 0].iter().for_each(|word| header.extend(word.to_le_bytes()));
    [52u16, 32, 2, 40, 0, 0].iter().for_each(|half| header.extend(half.to_le_bytes()));
    for (kind, offset, len) in [(1, 0, len), (0x6474_e550, index, index_len)] {
        let address = BASE + offset;
        for word in [kind, offset, address, address, len, len, 5, 16] {
            header.extend((word as u32).to_le_bytes());
        }
    }
    header
}

/// One file mapped as a whole, at [`BIAS`] beyond its own addresses, and nothing else.
pub struct OneFile {
    pub image: Image,
    pub len: u64,
}

impl Space for OneFile {
    fn code_at(&self, address: u64) -> Code {
        let offset = address.wrapping_sub(BIAS + BASE);
        if offset < self.len {
            Code::File { image: self.image, offset, frame_pointers: false }
        } else {
            Code::None
        }
    }
}

/// The address in the process of a place in the code.
pub const fn address(into_code: u64) -> u64 {
    BIAS + BASE + CODE + into_code
}
