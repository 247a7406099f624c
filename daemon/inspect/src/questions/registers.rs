//! Registers and memory that were sampled, and what walks from there have shown.

use super::FileAt;
use image::ImageId;
use serde::{Deserialize, Serialize};

/// Edges and rounds from registers that were sampled in one image.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Walk {
    /// The build.
    #[serde(with = "super::text")]
    pub image: ImageId,
    /// Its file.
    pub file: FileAt,
    /// The samples.
    pub samples: Vec<SampledRegisters>,
}

/// One sample's registers, and where the sampled process has the image.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SampledRegisters {
    /// Address of the mapping's first byte, and the one after its last.
    pub range: (u64, u64),
    /// File offset that the first byte shows.
    pub file_offset: u64,
    /// In the order of [`abi::SNAPSHOT_REGISTERS`].
    pub registers: Vec<u64>,
    /// Bytes from the stack pointer on.
    #[serde(with = "super::raw")]
    pub stack: Vec<u8>,
    /// Addresses of the lines.
    pub line_addresses: Vec<u64>,
    /// Lines of other memory, one after the other, of [`abi::LINE_BYTES`] each.
    #[serde(with = "super::raw")]
    pub lines: Vec<u8>,
    /// The kernel's numbers of the process and of the thread.
    pub process: u32,
    /// The second one.
    pub thread: u32,
    /// Where the next sample is of the same thread, which ran all the time between: that time in
    /// ns. Else 0.
    pub until_next_ns: u64,
    /// Whether the program that reads ahead from here is asked for.
    pub wants_ahead: bool,
}

/// The results of walks.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Walked {
    /// Where branches led.
    pub edges: Vec<WalkedEdge>,
    /// Branch, and rounds left in the form of [`model::BranchRounds::value`].
    pub rounds: Vec<(u64, i64)>,
    /// For each branch (its image offset) and outcome (a number of
    /// [`model::BranchOutcome::value`]), how often walks met it.
    pub outcomes: Vec<(u64, i64, u64)>,
    /// Image offsets of instructions, each with a number of [`model::ExecutionTime::value`].
    pub times: Vec<(u64, i64)>,
    /// For each instruction (its image offset) and kind of access (a number of
    /// [`model::Access::number`]), how often walks met it.
    pub accesses: Vec<(u64, i64, u64)>,
    /// Samples in code that could not be read.
    pub unresolved: u64,
    /// Samples that gave at least one edge.
    pub fruitful: u64,
    /// Programs that read ahead, each with the place in [`Walk::samples`] of the sample that asked.
    pub ahead: Vec<(usize, Vec<u64>)>,
}

/// Where a branch led in walks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WalkedEdge {
    /// Image offset of the branch.
    pub from: u64,
    /// That of the instruction executed next.
    pub to: u64,
    /// How often it was the first branch of its walk, and led there.
    pub first: u64,
    /// How often it led there in all.
    pub all: u64,
}

impl Drop for SampledRegisters {
    fn drop(&mut self) {
        std::hint::black_box(&mut self.registers).fill(0);
        std::hint::black_box(&mut self.stack).fill(0);
        std::hint::black_box(&mut self.lines).fill(0);
    }
}
