//! What prefetchers foresee: steps of one instruction, and neighbouring lines of a page (Intel
//! optimization manual, 2024, 2.6.2.4: "IP-based stride prefetcher", "Streamer").

/// Instructions and pages that are followed; a core follows 32 pages.
const INSTRUCTIONS: u64 = 1024;
const PAGES: usize = 32;
/// Longest step of an instruction that is foreseen, bytes.
const STEP_MAX: u64 = 2048;
/// Steps in a row, and neighbouring lines in a row, behind which the next is foreseen.
const IN_A_ROW: u8 = 2;
/// Lines that a neighbour may be away.
const NEAR: i64 = 4;

#[derive(Clone, Copy, Debug, Default)]
struct Stepping {
    at: u64,
    last: u64,
    step: u64,
    in_a_row: u8,
}

#[derive(Clone, Copy, Debug, Default)]
struct Page {
    number: u64,
    line: i64,
    upwards: bool,
    in_a_row: u8,
}

#[derive(Debug)]
pub(crate) struct Streams {
    stepping: Vec<Stepping>,
    /// The most recently used first.
    pages: [Page; PAGES],
}

impl Default for Streams {
    fn default() -> Self {
        let stepping = vec![Stepping::default(); INSTRUCTIONS as usize];
        Self { stepping, pages: [Page::default(); PAGES] }
    }
}

impl Streams {
    /// Whether an access of the instruction `at` comes as the ones before let expect.
    pub(crate) fn foresees(&mut self, at: u64, address: u64) -> bool {
        // Both learn.
        let by_step = self.by_step(at, address);
        self.by_page(address) || by_step
    }

    fn by_step(&mut self, at: u64, address: u64) -> bool {
        let place = (super::cache::mix(at) % INSTRUCTIONS) as usize;
        let Some(known) = self.stepping.get_mut(place) else { return false };
        if known.at != at {
            *known = Stepping { at, last: address, ..Stepping::default() };
            return false;
        }
        let step = address.wrapping_sub(known.last);
        let same = step == known.step;
        let foreseen = same && known.in_a_row >= IN_A_ROW;
        known.in_a_row = if same { known.in_a_row.saturating_add(1) } else { 0 };
        (known.step, known.last) = (step, address);
        foreseen && (step.min(step.wrapping_neg())) <= STEP_MAX
    }

    fn by_page(&mut self, address: u64) -> bool {
        let (number, line) = (address >> 12, (address >> 6 & 63) as i64);
        let place = self.pages.iter().position(|page| page.number == number && page.in_a_row > 0);
        let upto = place.unwrap_or(PAGES - 1);
        if let Some(front) = self.pages.get_mut(..=upto) {
            front.rotate_right(1);
        }
        let Some(page) = self.pages.first_mut() else { return false };
        if place.is_none() {
            *page = Page { number, line, upwards: true, in_a_row: 1 };
            return false;
        }
        let by = line - page.line;
        if by == 0 {
            return false;
        }
        let near = by.abs() <= NEAR && (by > 0) == page.upwards;
        let foreseen = near && page.in_a_row > IN_A_ROW;
        page.in_a_row = if near { page.in_a_row.saturating_add(1) } else { 1 };
        page.upwards = by > 0;
        page.line = line;
        foreseen
    }
}
