//! What bursts of a process recorded, through models of the processor.

use std::collections::BTreeMap;
use std::path::Path;

use blockcount::area::reader::{Counted, CountedBlock, Location, ReadError, records};
use blockcount::area::{kind, record};
use simulate::{Model, Sizes, Tally};

/// Part of a process's records that only fills the models.
const WARM_PART: u64 = 3;
/// Words of a burst that are not counted: the first level of the caches and the histories of the
/// predictors fill within as many.
const WARM_WORDS: u64 = 1 << 14;

/// Where the records of a process are in their course.
struct Course<'a> {
    model: Model,
    blocks: &'a [CountedBlock],
    tallies: Vec<Option<Box<[Tally]>>>,
    /// The block that is executed.
    block: usize,
    /// The begin of a range of huge pages whose end comes next.
    huge_from: Option<u64>,
    position: u64,
    warm: u64,
    burst: u64,
}

/// Feeds the models with the records of the area at a path; what its instructions did.
///
/// # Errors
/// Returns the errors of [`records`].
pub(super) fn modelled(
    path: &Path,
    counted: &Counted,
    sizes: &Sizes,
) -> Result<BTreeMap<(usize, u64), Tally>, ReadError> {
    let mut all = BTreeMap::new();
    if counted.header.records == 0 {
        return Ok(all);
    }
    let mut course = Course {
        model: Model::new(sizes),
        blocks: &counted.blocks,
        tallies: vec![None; counted.blocks.len()],
        block: usize::MAX,
        huge_from: None,
        position: 0,
        warm: counted.header.records / WARM_PART,
        burst: 0,
    };
    records(path, &counted.header, |word| {
        course.next(word);
    })?;
    for (places, tallies) in counted.places().iter().zip(&course.tallies) {
        let Some(tallies) = tallies else { continue };
        for (place, tally) in places.iter().zip(tallies) {
            let Some(Location { file, offset }) = *place else { continue };
            all.entry((file, offset)).or_insert_with(Tally::default).add(tally);
        }
    }
    Ok(all)
}

impl Course<'_> {
    /// Takes the next word; None where it makes no sense.
    fn next(&mut self, word: u64) -> Option<()> {
        self.position += 1;
        let number = record::number(word);
        match word & ((1 << record::NUMBER) - 1) {
            record::HUGE if number == 0 => self.model.forget_huge_pages(),
            record::HUGE => match self.huge_from.take() {
                None => self.huge_from = Some(number),
                Some(from) => self.model.huge_pages(from..number),
            },
            record::BURST => {
                self.burst = self.position;
                self.block = usize::MAX;
                self.model.begin();
            }
            record::BLOCK => {
                self.block = usize::try_from(number).ok()?;
                self.model.counts =
                    self.position > self.warm && self.position - self.burst > WARM_WORDS;
                let block = self.blocks.get(self.block)?;
                let tallies = self.tallies.get_mut(self.block)?.get_or_insert_with(|| {
                    vec![Tally::default(); block.lengths.len()].into_boxed_slice()
                });
                let counted = u64::from(self.model.counts);
                tallies.iter_mut().for_each(|tally| tally.executions += counted);
                let (at, len) = (block.block.address, u64::from(block.block.len));
                self.model.fetch(at, len, tallies.first_mut()?);
                if block.block.kind == kind::CALL {
                    self.model.call(block.end());
                }
            }
            record::ACCESS => {
                let (instruction, bytes, _) = record::access(word);
                let block = self.blocks.get(self.block)?;
                let at = block.block.address.wrapping_add(instruction as u64);
                let tally = self.tallies.get_mut(self.block)?.as_mut()?.get_mut(instruction)?;
                self.model.access(at, number, bytes, tally);
            }
            record::BRANCH => {
                let block = self.blocks.get(self.block)?;
                let tally = self.tallies.get_mut(self.block)?.as_mut()?.last_mut()?;
                self.model.branch(block.last(), number != 0, tally);
            }
            record::TARGET => {
                let block = self.blocks.get(self.block)?;
                let tally = self.tallies.get_mut(self.block)?.as_mut()?.last_mut()?;
                if block.block.kind == kind::RETURN {
                    self.model.returns(number, tally);
                } else {
                    self.model.indirect(block.last(), number, tally);
                }
                if block.block.kind == kind::INDIRECT_CALL {
                    self.model.call(block.end());
                }
            }
            _ => {}
        }
        Some(())
    }
}
