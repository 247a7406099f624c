//! A set-associative cache with the least recently used line replaced.

/// Which bits of a line's number choose its set by chance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mixed {
    /// None: sets follow addresses.
    Nothing,
    /// Those of its page, whose physical address is not known; within it sets follow addresses.
    Pages,
    /// All: the slices of a shared cache are chosen by a hash.
    All,
}

/// Lines of the largest cache that is modelled, 256 MiB.
const LINES_MAX: f64 = 4_194_304.0;

#[derive(Debug)]
pub(crate) struct Cache {
    /// Numbers of lines plus one, set after set, in each the most recently used first.
    lines: Vec<u64>,
    ways: usize,
    sets: u64,
    mixed: Mixed,
}

/// Spreads the bits of a number (the finaliser of splitmix64).
pub(crate) fn mix(number: u64) -> u64 {
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

impl Cache {
    pub(crate) fn new(lines: f64, ways: usize, mixed: Mixed) -> Self {
        let lines = if lines.is_finite() { lines.clamp(1.0, LINES_MAX) } else { 1.0 };
        let sets = (lines / ways as f64).round().max(1.0) as u64;
        Self { lines: vec![0; sets as usize * ways], ways, sets, mixed }
    }

    /// Whether a line is there; it is afterwards.
    pub(crate) fn access(&mut self, line: u64) -> bool {
        let number = match self.mixed {
            Mixed::Nothing => line,
            Mixed::Pages => mix(line >> 6) << 6 | line & 63,
            Mixed::All => mix(line),
        };
        let start = (number % self.sets) as usize * self.ways;
        let Some(set) = self.lines.get_mut(start..start + self.ways) else { return false };
        let key = line.wrapping_add(1);
        let place = set.iter().position(|known| *known == key);
        let upto = place.unwrap_or(set.len() - 1);
        if let Some(front) = set.get_mut(..=upto) {
            front.rotate_right(1);
        }
        if let Some(first) = set.first_mut() {
            *first = key;
        }
        place.is_some()
    }
}
