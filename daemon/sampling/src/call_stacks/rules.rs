//! Rules of frames that walks have met, and which of them the sampler is given.
//!
//! Rules of code that is counted under a number hold for every process with that code. So the
//! number is used only where the process had the very code mapped that the number stands for, and
//! where the rule follows from the file alone. Other files have numbers for rules alone: the
//! sampler makes one from the state of each file that it sees mapped, and the daemon draws one for
//! each file that was mapped before. It tells the sampler where a process has such files when the
//! sampler misses rules of them. All other rules are of one address space.

use super::placed::PlacedStack;
use crate::sample_source::Order;
use abi::{
    Extent, FILE_SPACES_MAX, FileRange, FileRanges, PC_BITS, RULE_BLOCK_BYTES, RULES_MAX, RuleKey,
    SharedCode,
};
use address_spaces::mappings::{AddressMap, Mapping, Mappings};
use address_spaces::users::Payer;
use foldhash::fast::FixedState;
use inspect::learnt::LearntRule;
use kernel::MappedFileId;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::BuildHasher as _;
use std::sync::Arc;
use std::time::Instant;

/// New rules that one user may add at once. The kernel removes the rules that were used least
/// lately, so a flood removes few that are in use. A large compiler needs thousands.
const ADDED_AT_ONCE: u32 = 8192;
/// New rules that one user may add in a second.
const ADDED_PER_S: u32 = 2048;
/// Most users whose additions are counted; beyond, all begin anew.
const PAYERS_MAX: usize = 1024;
/// Most files with a number; beyond, all begin anew.
const NUMBERS_MAX: usize = 4096;

/// The rules that were learnt from some stacks of one process.
pub struct LearntRules {
    space: u32,
    payer: Payer,
    code: SharedCode,
    map: Arc<AddressMap>,
    /// Addresses of frames without rule, at which the sampler's walks ended.
    missed: BTreeSet<u64>,
    rules: Vec<LearntRule>,
}

impl LearntRules {
    /// The rules that were learnt from `jobs`. None if there are none.
    pub fn of(jobs: &[PlacedStack], rules: Vec<LearntRule>) -> Option<Self> {
        let job = jobs.iter().rfind(|job| !job.raw.user.is_empty() && job.space.is_some())?;
        if rules.is_empty() {
            return None;
        }
        let has_missed = |job: &&PlacedStack| job.raw.record.user != abi::USER_WALKED;
        let missed = jobs.iter().filter(has_missed).filter_map(|job| job.raw.user.last());
        Some(Self {
            space: job.raw.record.space,
            payer: job.payer,
            code: job.raw.record.code,
            map: job.space.as_ref()?.0.clone(),
            missed: missed.copied().collect(),
            rules,
        })
    }

    /// Whether the sampler's walks ended where they needed this rule.
    fn has_missed(&self, rule: &LearntRule) -> bool {
        let bytes = match rule.extent {
            Extent::Call | Extent::Next => 1,
            Extent::Block => RULE_BLOCK_BYTES,
        };
        let places = rule.address..rule.address.saturating_add(bytes);
        self.missed.range(places).next().is_some()
    }
}

/// Files whose rules hold in every process that maps them, and where processes map them.
#[derive(Default)]
struct FileNumbers {
    /// Of files with rules.
    numbers: HashMap<MappedFileId, u32>,
    /// What the sampler was last told, by address space.
    told: HashMap<u32, FileRanges>,
}

impl FileNumbers {
    /// The number of a file that has a rule: the sampler's, or one that is drawn for a file that
    /// was mapped before the sampler began.
    fn number(&mut self, file: &MappedFileId, of_sampler: Option<u32>) -> u32 {
        if self.numbers.len() >= NUMBERS_MAX {
            // Drawn numbers are not used twice: those of before lead to no rule of another file.
            self.numbers.clear();
        }
        let drawn = || fastrand::u32(1..);
        let number = self.numbers.entry(file.clone()).or_insert_with(drawn);
        *number = of_sampler.unwrap_or(*number);
        *number
    }

    /// Where a process has files with numbers: those with rules first.
    fn ranges(&self, mappings: &Mappings, learnt: &LearntRules) -> FileRanges {
        let range = |mapping: &Mapping, number| {
            let len = u32::try_from(mapping.end.checked_sub(mapping.start)?).ok()?;
            let (start, offset) = (mapping.start, mapping.file_offset);
            Some(FileRange { start, offset, len, number })
        };
        let with_rules = learnt
            .map
            .iter()
            .filter_map(|mapping| range(mapping, *self.numbers.get(&mapping.file.id)?));
        let others = learnt.map.iter().filter_map(|mapping| {
            let id = &mapping.file.id;
            let is_counted = learnt.code.find(mapping.start).is_some();
            if is_counted || self.numbers.contains_key(id) {
                return None;
            }
            range(mapping, mappings.files.number(id)?)
        });
        let mut all = FileRanges::default();
        all.iter_mut().zip(with_rules.chain(others)).for_each(|(to, range)| *to = range);
        all
    }

    /// Where the process has files with numbers, if the sampler may not know. `is_lost` says that
    /// it has not found a rule that it was given.
    fn untold(
        &mut self,
        learnt: &LearntRules,
        mappings: &Mappings,
        is_lost: bool,
    ) -> Option<FileRanges> {
        let ranges = self.ranges(mappings, learnt);
        if self.told.len() >= FILE_SPACES_MAX {
            self.told.clear();
        }
        let before = self.told.insert(learnt.space, ranges);
        (is_lost || before != Some(ranges)).then_some(ranges)
    }
}

/// The rules that the sampler was given.
#[derive(Default)]
pub struct Rules {
    files: FileNumbers,
    /// Hashes of their keys and words.
    given: HashSet<u64, FixedState>,
    /// How many rules each user may add now, and the time of that count.
    allowances: HashMap<Payer, (f64, Instant)>,
}

impl Rules {
    /// Orders by which the sampler has the rules of `learnt` that it does not have yet.
    pub fn orders(
        &mut self,
        learnt: &LearntRules,
        mappings: &Mappings,
        now: Instant,
    ) -> Vec<Order> {
        let mut left = self.allowance(learnt.payer, now);
        let (mut has_file, mut is_lost) = (false, false);
        let mut chosen = Vec::new();
        for rule in &learnt.rules {
            let key = self.key(learnt, rule, mappings);
            let hash = FixedState::default().hash_one((key, rule.words));
            let is_given = self.given.contains(&hash);
            // The kernel has removed it, or does not know where the process has the file.
            let is_missed = is_given && learnt.has_missed(rule);
            if left < 1.0 || (is_given && !is_missed) {
                continue;
            }
            if self.given.len() >= 2 * RULES_MAX {
                self.given.clear();
            }
            self.given.insert(hash);
            left -= 1.0;
            is_lost |= is_missed;
            has_file |= key.is_in_file();
            chosen.push((key, rule.words));
        }
        self.allowances.insert(learnt.payer, (left, now));
        let mut orders = Vec::new();
        if has_file && let Some(ranges) = self.files.untold(learnt, mappings, is_lost) {
            orders.push(Order::SetFileRanges(learnt.space, ranges));
        }
        if !chosen.is_empty() {
            orders.push(Order::AddRules(chosen));
        }
        orders
    }

    fn key(&mut self, learnt: &LearntRules, rule: &LearntRule, mappings: &Mappings) -> RuleKey {
        let LearntRule { address, extent, is_of_file, .. } = *rule;
        let of_space = RuleKey::in_space(learnt.space, address, extent);
        let Some(mapping) = learnt.map.find(address).filter(|_| is_of_file) else {
            return of_space;
        };
        if let Some((number, distance)) = learnt.code.find(address)
            && mappings.is_code_of((number, distance), mapping, address)
        {
            return RuleKey::in_program(number, distance, extent);
        }
        let offset = mapping.file_offset.wrapping_add(address - mapping.start);
        if !mapping.file.is_file() || offset >= 1 << PC_BITS {
            return of_space;
        }
        let file = &mapping.file.id;
        RuleKey::in_file(self.files.number(file, mappings.files.number(file)), offset, extent)
    }

    fn allowance(&mut self, payer: Payer, now: Instant) -> f64 {
        if self.allowances.len() >= PAYERS_MAX {
            self.allowances.clear();
        }
        let most = f64::from(ADDED_AT_ONCE);
        let (left, since) = *self.allowances.entry(payer).or_insert((most, now));
        (left + now.duration_since(since).as_secs_f64() * f64::from(ADDED_PER_S)).min(most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::RuleWords;
    use address_spaces::mapped_files::MappedFile;
    use std::time::Duration;

    const WORDS: RuleWords = [1, 0, 0, 0, 0, 0, 0, 0];

    fn learnt(addresses: std::ops::Range<u64>, missed: &[u64]) -> LearntRules {
        let rule =
            |address| LearntRule { address, extent: Extent::Call, is_of_file: true, words: WORDS };
        LearntRules {
            space: 7,
            payer: Payer::User(1),
            code: SharedCode::default(),
            map: Arc::default(),
            missed: missed.iter().copied().collect(),
            rules: addresses.map(rule).collect(),
        }
    }

    fn given(orders: Vec<Order>) -> Vec<(RuleKey, RuleWords)> {
        let rules = |order| if let Order::AddRules(rules) = order { rules } else { Vec::new() };
        orders.into_iter().flat_map(rules).collect()
    }

    #[test]
    fn rules_are_given_once_unless_the_sampler_has_lost_them() {
        let (mut rules, mappings, now) = (Rules::default(), Mappings::default(), Instant::now());
        let chosen = given(rules.orders(&learnt(0..3, &[]), &mappings, now));
        let key = |address| RuleKey::in_space(7, address, Extent::Call);
        assert_eq!(chosen, [(key(0), WORDS), (key(1), WORDS), (key(2), WORDS)]);
        let chosen = given(rules.orders(&learnt(1..4, &[2]), &mappings, now));
        assert_eq!(chosen, [(key(2), WORDS), (key(3), WORDS)]);
    }

    #[test]
    fn a_user_cannot_replace_all_rules() {
        let (mut rules, mappings, now) = (Rules::default(), Mappings::default(), Instant::now());
        let many = learnt(0..100_000, &[]);
        assert_eq!(given(rules.orders(&many, &mappings, now)).len(), RULES_MAX / 4);
        assert_eq!(given(rules.orders(&many, &mappings, now)).len(), 0);
        let later = now + Duration::from_secs(1);
        assert_eq!(given(rules.orders(&many, &mappings, later)).len(), RULES_MAX / 16);
    }

    fn mapped(file: &Arc<MappedFile>, start: u64, file_offset: u64) -> Arc<AddressMap> {
        let mut map = AddressMap::default();
        let mapping = Mapping { start, end: start + 0x1000, file_offset, file: file.clone() };
        map.insert(mapping);
        Arc::new(map)
    }

    /// A child with its parent's memory maps a file of its own over the C library: the parent's
    /// number of the library does not stand for that.
    #[test]
    fn a_number_is_used_only_for_the_code_that_it_stands_for() {
        let (mut rules, mut mappings) = (Rules::default(), Mappings::default());
        let id = |inode| MappedFileId::Inode { major: 8, minor: 1, inode };
        let own = mappings.files.intern(id(1), b"/home/mallory/own");
        let code = SharedCode { text: 0x1000, text_len: 0x1000, program: 9, ..Default::default() };
        let mut learnt = learnt(0x1234..0x1235, &[]);
        (learnt.code, learnt.map) = (code, mapped(&own, 0x1000, 0x4000));
        assert_eq!(code.find(0x1234), Some((9, 0x234)));
        let orders = rules.orders(&learnt, &mappings, Instant::now());
        let [Order::SetFileRanges(7, ranges), Order::AddRules(added)] = &orders[..] else {
            panic!("{orders:?}")
        };
        let number = ranges[0].number;
        assert_eq!(ranges[0], FileRange { start: 0x1000, offset: 0x4000, len: 0x1000, number });
        assert_eq!(*added, [(RuleKey::in_file(number, 0x4234, Extent::Call), WORDS)]);
        // Another process maps the file elsewhere: once it misses the rule the sampler is told
        // where, and again if it misses it still.
        (learnt.space, learnt.map) = (8, mapped(&own, 0x9000, 0x4000));
        learnt.rules[0].address = 0x9234;
        assert_eq!(rules.orders(&learnt, &mappings, Instant::now()), []);
        learnt.missed.insert(0x9234);
        for _ in 0..2 {
            let orders = rules.orders(&learnt, &mappings, Instant::now());
            let told = matches!(&orders[..], [Order::SetFileRanges(8, _), Order::AddRules(_)]);
            assert!(told, "{orders:?}");
        }
        // The sampler's own number of a file replaces one that was drawn.
        assert_eq!(rules.files.number(&own.id, Some(77)), 77);
        assert_eq!(rules.files.number(&own.id, None), 77);
        // What is true of one process is its own.
        learnt.rules[0].is_of_file = false;
        let own_rules = given(rules.orders(&learnt, &mappings, Instant::now()));
        assert_eq!(own_rules, [(RuleKey::in_space(8, 0x9234, Extent::Call), WORDS)]);
    }
}
