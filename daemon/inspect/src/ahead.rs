//! Programs that read ahead, in the words that the sampler runs.

use abi::{AHEAD_OPERATIONS_MAX, AheadKind};
use code::interpret::{AheadOperation, Operation};

const _: () = assert!(code::interpret::OPERATIONS_MAX == AHEAD_OPERATIONS_MAX);
const _: () = assert!(code::interpret::LINES_MAX == abi::LINES_MAX);
const _: () = assert!(code::interpret::LINE_BYTES == abi::LINE_BYTES);
const _: () = assert!(code::interpret::WINDOW_BYTES == abi::STACK_BYTES);

/// The words of a program.
pub(crate) fn words(program: &[AheadOperation]) -> Vec<u64> {
    program.iter().map(|operation| word(*operation)).collect()
}

fn word(operation: AheadOperation) -> u64 {
    match operation {
        AheadOperation::Line(at, offset) => AheadKind::Line.word(at.0, 0, 0, offset),
        AheadOperation::Load { at, offset, bytes } => AheadKind::Load.word(at.0, 0, bytes, offset),
        AheadOperation::Sum { a, b, shift, offset } => AheadKind::Sum.word(a.0, b.0, shift, offset),
        AheadOperation::Binary(operation, a, b) => {
            let kind = match operation {
                Operation::Subtract => AheadKind::Subtract,
                Operation::Multiply => AheadKind::Multiply,
                Operation::And => AheadKind::And,
                Operation::Or => AheadKind::Or,
                Operation::Xor => AheadKind::Xor,
                Operation::Right => AheadKind::Right,
                Operation::RightSigned => AheadKind::RightSigned,
            };
            kind.word(a.0, b.0, 0, 0)
        }
        AheadOperation::Extended { a, bytes, signed } => {
            let kind = if signed { AheadKind::ExtendedSigned } else { AheadKind::Extended };
            kind.word(a.0, 0, 8 * bytes, 0)
        }
    }
}
