//! Reads the list of basic blocks in a program that was compiled with events, or with the list
//! alone.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use image::{Binary, DebugInfo, Vaddr, default_debug_roots};
use trace::sequence::{BLOCKS_MAX, Block, Program};

/// The ELF section with the list (`lab/asm-events/src/rewrite.rs`).
const SECTION: &str = ".debug_dcpi_blocks";
/// Bit in the address of a block that is chained to the one before it.
const CHAINED: u64 = 1 << 63;
/// Largest distance between first and last block, in bytes, for which a table by address is made.
const TABLE_MAX: u64 = 64 << 20;

/// A program whose blocks cannot be determined.
#[derive(Debug, thiserror::Error)]
pub enum BlocksError {
    /// The file is no ELF file, or damaged.
    #[error("{path}: {error}", path = path.display())]
    Unreadable {
        /// The program.
        path: PathBuf,
        /// Why.
        error: image::ImageError,
    },
    /// The file has no list.
    #[error(
        "{path} has no list of blocks: compile and link it with $(dcpi trace --cflags), unstripped",
        path = path.display()
    )]
    NoList {
        /// The program.
        path: PathBuf,
    },
    /// The list is longer than any that is read.
    #[error(
        "{path}: its list of blocks is damaged, or has more than 4,194,304; compile it again",
        path = path.display()
    )]
    TooLong {
        /// The program.
        path: PathBuf,
    },
}

/// The addresses of a program's blocks.
#[derive(Debug)]
pub struct Located {
    /// Address of the ELF header.
    header: u64,
    first: u64,
    /// For each address from the first block on, one more than the block's index; empty where the
    /// program is too large for that.
    table: Vec<u32>,
    by_address: HashMap<u64, u32>,
}

impl Located {
    /// The block of an event: `origin` is the distance of the events' origin from the ELF header,
    /// and `event` that of the block from the origin, backwards.
    #[must_use]
    pub fn index(&self, origin: u64, event: i32) -> Option<u32> {
        let address =
            self.header.wrapping_add(origin).wrapping_sub(i64::from(event).cast_unsigned());
        if self.table.is_empty() {
            return self.by_address.get(&address).copied();
        }
        let place = usize::try_from(address.checked_sub(self.first)?).ok()?;
        self.table.get(place)?.checked_sub(1)
    }
}

/// The basic blocks of a program, in the order of its object files. Blocks that the linker left out
/// of the program keep their index, and have the offset 0.
///
/// # Errors
/// [`BlocksError`].
pub fn blocks_of(path: &Path) -> Result<(Program, Located), BlocksError> {
    let unreadable = |error| BlocksError::Unreadable { path: path.to_path_buf(), error };
    let binary = Binary::open(path, None).map_err(unreadable)?;
    let list = binary.section(SECTION, BLOCKS_MAX as u64 * 8).map_err(unreadable)?;
    let list = list.ok_or_else(|| BlocksError::NoList { path: path.to_path_buf() })?;
    let (words, rest) = list.as_chunks::<8>();
    if !rest.is_empty() || words.len() > BLOCKS_MAX {
        return Err(BlocksError::TooLong { path: path.to_path_buf() });
    }
    let roots = default_debug_roots();
    let (procedures, _) = binary.procedures(&roots).map_err(unreadable)?;
    let mut findings = Vec::new();
    let debug = DebugInfo::of(&binary, &roots, &mut findings);
    let lines = debug.as_ref().and_then(|debug| debug.lines().ok());
    let mut numbers: HashMap<u64, u32> = HashMap::new();
    let mut addresses = HashMap::new();
    let mut blocks = Vec::with_capacity(words.len());
    for (index, word) in (0_u32..).zip(words) {
        let word = u64::from_le_bytes(*word);
        let (address, chained) = (word & !CHAINED, word & CHAINED != 0);
        let mut block = Block { chained, ..Block::default() };
        if let Some(offset) = binary.layout().vaddr_to_file_offset(Vaddr(address)) {
            block.offset = offset.0;
            if let Some(procedure) = procedures.find(offset) {
                block.procedure = procedure.name().to_owned();
                let number = numbers.entry(procedure.start.0).or_default();
                block.number = *number;
                *number += 1;
            }
            let frame = lines.as_ref().and_then(|it| it.frames(Vaddr(address)).into_iter().next());
            if let Some(frame) = frame {
                block.file = frame.file.unwrap_or_default();
                block.line = frame.line.unwrap_or_default();
            }
            addresses.insert(address, index);
        }
        blocks.push(block);
    }
    let program = Program { path: path.display().to_string(), blocks };
    Ok((program, locate(&binary, addresses)))
}

fn locate(binary: &Binary, by_address: HashMap<u64, u32>) -> Located {
    let header =
        binary.layout().file_offset_to_vaddr(image::ImageOffset(0)).map_or(0, |vaddr| vaddr.0);
    let first = by_address.keys().min().copied().unwrap_or_default();
    let last = by_address.keys().max().copied().unwrap_or_default();
    let mut located = Located { header, first, table: Vec::new(), by_address };
    if let Ok(span) = usize::try_from(last - first)
        && last - first < TABLE_MAX
    {
        located.table = vec![0; span + 1];
        for (address, index) in &located.by_address {
            let place = usize::try_from(address - first).unwrap_or(usize::MAX);
            if let Some(entry) = located.table.get_mut(place) {
                *entry = index + 1;
            }
        }
        located.by_address.clear();
    }
    located
}
