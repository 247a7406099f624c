//! What instructions of A64 ask of a processor: as much as can be said without tables of one.

use super::fields::Word;
use super::{LEN, order};
use crate::isa::flow::Flow;
use crate::isa::work::Work;

pub(in crate::isa) fn work(bytes: &[u8]) -> Option<Work> {
    let (word, ordered) = (Word::of(bytes)?, order(bytes, 0)?);
    Some(Work {
        len: LEN,
        calls: matches!(ordered.flow, Flow::Call { .. }),
        conditional: matches!(ordered.flow, Flow::Conditional { .. }),
        // `svc`.
        enters_kernel: word.is(0xffe0_001f, 0xd400_0001),
        ..Work::default()
    })
}
