//! Rules that walks have met, kept.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use crate::call::Call;
use crate::goroutine::Goroutine;
use crate::rule::{Row, Rule};

/// Largest number of return addresses kept with their rules.
pub const SITES_MAX: usize = 65536;
/// Largest number of rows kept, by their ranges.
pub const ROWS_MAX: usize = 65536;
/// Largest number of addresses kept that no row covers.
pub const UNCOVERED_MAX: usize = 16384;
/// Number of distinct rules above which all are forgotten before the next walk. Other agents allow
/// this many for a whole machine.
pub const RULES_MAX: usize = 16384;

/// The cached rule of an address.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Known {
    /// Number of the rule, and the first address of its procedure's FDE, the file's own.
    Rule { rule: u32, entry: u64 },
    /// Code that a signal handler returns to, which no table covers.
    Trampoline,
    /// The first frame of a stack, by its code or its place.
    First,
    /// The procedure has changed from the stack of a goroutine.
    Goroutine(Goroutine),
    /// The table covers the address, but does not hold there.
    NoRule,
    /// No table covers the address, or none that could be read.
    None,
}

/// What is known of a return address: the rule at the address before it, and the call there.
#[derive(Copy, Clone, Debug)]
pub struct Site {
    pub known: Known,
    /// None: the code could not be read, or was not asked for.
    pub call: Option<Call>,
    /// [`crate::simple::code_check`] of the code around it, if it could be read.
    pub check: Option<u16>,
}

/// A place in a file: the file's number and an address, the file's own.
pub type Place = (u32, u64);

/// The cache. Each table that is full is emptied: what is hot is back after one walk, and no order
/// of use needs to be kept.
#[derive(Default)]
pub struct Rules {
    rules: Vec<Rule>,
    numbers: HashMap<Rule, u32, foldhash::fast::RandomState>,
    sites: HashMap<Place, Site, foldhash::fast::RandomState>,
    /// Addresses of instructions that no row covers.
    uncovered: HashMap<Place, Known, foldhash::fast::RandomState>,
    /// By the first address of the row: its end, the rule's number, the first address of the FDE.
    rows: BTreeMap<Place, (u64, u32, u64)>,
    /// How often a full table was emptied.
    pub emptied: u64,
}

impl Rules {
    pub fn rule(&self, number: u32) -> Option<&Rule> {
        self.rules.get(number as usize)
    }

    /// Forgets all rules if there are too many: only between walks, which hold their numbers.
    pub fn make_room(&mut self) {
        if self.rules.len() >= RULES_MAX {
            let emptied = self.emptied + 1;
            *self = Self { emptied, ..Self::default() };
        }
    }

    pub fn uncovered(&self, place: Place) -> Option<Known> {
        self.uncovered.get(&place).copied()
    }

    pub fn add_uncovered(&mut self, place: Place, known: Known) {
        if self.uncovered.len() >= UNCOVERED_MAX {
            self.uncovered.clear();
            self.emptied += 1;
        }
        self.uncovered.insert(place, known);
    }

    pub fn site(&self, place: Place) -> Option<Site> {
        self.sites.get(&place).copied()
    }

    pub fn add_site(&mut self, place: Place, site: Site) {
        if self.sites.len() >= SITES_MAX {
            self.sites.clear();
            self.emptied += 1;
        }
        self.sites.insert(place, site);
    }

    /// The rule of the row that covers the place.
    pub fn row(&self, (file, address): Place) -> Option<Known> {
        let (&(_, _), &(end, rule, entry)) =
            self.rows.range((file, 0)..=(file, address)).next_back()?;
        (address < end).then_some(Known::Rule { rule, entry })
    }

    /// The addresses of the row that covers a place.
    pub fn row_range(&self, (file, address): Place) -> Option<Range<u64>> {
        let row = self.rows.range((file, 0)..=(file, address)).next_back();
        row.map(|(&(_, begin), &(end, ..))| begin..end).filter(|row| row.contains(&address))
    }

    pub fn add_row(&mut self, file: u32, row: Row) -> Known {
        if self.rows.len() >= ROWS_MAX {
            self.rows.clear();
            self.emptied += 1;
        }
        let rule = match self.numbers.get(&row.rule) {
            Some(&number) => number,
            None => {
                let number = self.rules.len() as u32;
                self.rules.push(row.rule.clone());
                self.numbers.insert(row.rule, number);
                number
            }
        };
        self.rows.insert((file, row.begin), (row.end, rule, row.entry));
        Known::Rule { rule, entry: row.entry }
    }

    /// Forgets the cached rules of `file`.
    pub fn forget(&mut self, file: u32) {
        self.sites.retain(|&(of, _), _| of != file);
        self.rows.retain(|&(of, _), _| of != file);
        self.uncovered.retain(|&(of, _), _| of != file);
    }

    /// Numbers of sites, rows and rules.
    pub fn sizes(&self) -> (usize, usize, usize) {
        (self.sites.len(), self.rows.len(), self.rules.len())
    }

    /// Bytes of memory, about: a BTreeMap's nodes are three quarters full.
    pub fn bytes(&self) -> usize {
        let site = size_of::<Place>() + size_of::<Site>() + 1;
        let row = (size_of::<Place>() + size_of::<(u64, u32, u64)>()) * 4 / 3;
        let rule = 2 * size_of::<Rule>() + 4 + 6 * size_of::<(u8, crate::rule::Saved)>() * 2;
        let uncovered = size_of::<Place>() + size_of::<Known>() + 1;
        self.sites.capacity() * site
            + self.uncovered.capacity() * uncovered
            + self.rows.len() * row
            + self.rules.len() * rule
    }
}
