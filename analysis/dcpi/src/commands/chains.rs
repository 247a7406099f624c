//! Chains of calls in `dcpi prof --inclusive`: procedures that start programs and threads, have no
//! time of their own and only call one other. In texts they are in the row of the last one.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use calls::{Estimate, SubjectId, Timed};
use report::Row;

/// Most calls from a procedure to the one that it leads to: between those that start a program are
/// some of the C library, which lead to other programs as well.
const APART_MAX: usize = 4;

/// Procedures that start programs and threads, of the GNU C library and musl.
const STARTS: [&str; 9] = [
    "_start",
    "_start_c",
    "__libc_start_main",
    "__libc_start_main_impl",
    "__libc_start_call_main",
    "libc_start_main_stage2",
    "clone3",
    "__clone",
    "start_thread",
];

/// Which procedure each leads to for all of its time, as far as a text shows.
pub(super) struct Chains(BTreeMap<SubjectId, SubjectId>);

impl Chains {
    /// `inclusive` has the estimates of the same stacks, by subject.
    pub(super) fn of(timed: &Timed, inclusive: &[Estimate]) -> Self {
        let contexts = timed.contexts();
        // Time, and the fewest calls apart.
        let mut calls: HashMap<(SubjectId, SubjectId), (f64, usize)> = HashMap::new();
        let mut own: HashMap<SubjectId, f64> = HashMap::new();
        for (entry, time) in timed.entries() {
            let path: Vec<SubjectId> = contexts.path(entry.node).map(|(_, of)| of).collect();
            if let Some(innermost) = path.first() {
                *own.entry(*innermost).or_default() += time;
            }
            let mut pairs: BTreeMap<(SubjectId, SubjectId), usize> = BTreeMap::new();
            for (at, callee) in path.iter().enumerate() {
                for (apart, caller) in (1..=APART_MAX).zip(path.iter().skip(at + 1)) {
                    let known = pairs.entry((*caller, *callee)).or_insert(apart);
                    *known = apart.min(*known);
                }
            }
            for (pair, apart) in pairs {
                let known = calls.entry(pair).or_insert((0.0, apart));
                *known = (known.0 + time, apart.min(known.1));
            }
        }
        let whole = timed.whole().occurrences.max(f64::MIN_POSITIVE);
        let shown = |time: f64| report::percent(time / whole);
        let all = |subject: SubjectId| {
            inclusive.get(subject as usize).map(|of| report::percent(of.share.value))
        };
        let none = shown(0.0);
        let is_chain = |((caller, callee), (time, _)): &((SubjectId, SubjectId), (f64, usize))| {
            let with_calls = all(*caller);
            caller != callee
                && shown(own.get(caller).copied().unwrap_or(0.0)) == none
                && with_calls.as_ref().is_some_and(|all| *all != none && *all == shown(*time))
                && with_calls == all(*callee)
        };
        let mut callees: BTreeMap<SubjectId, BTreeSet<(usize, SubjectId)>> = BTreeMap::new();
        for ((caller, callee), (_, apart)) in calls.into_iter().filter(is_chain) {
            callees.entry(caller).or_default().insert((apart, callee));
        }
        let nearest = |(caller, callees): (SubjectId, BTreeSet<(usize, SubjectId)>)| {
            callees.first().map(|(_, callee)| (caller, *callee))
        };
        let mut chains = Self(callees.into_iter().filter_map(nearest).collect());
        let ends: Vec<bool> = chains.0.keys().map(|caller| chains.ends(*caller)).collect();
        let mut ends = ends.into_iter();
        chains.0.retain(|_, _| ends.next() == Some(true));
        chains
    }

    /// Whether the chain is no ring.
    fn ends(&self, from: SubjectId) -> bool {
        let mut at = from;
        (0..=self.0.len()).any(|_| match self.0.get(&at) {
            Some(callee) => {
                at = *callee;
                false
            }
            None => true,
        })
    }

    /// Takes the rows of procedures that only lead to another into the row of that.
    pub(super) fn fold(&self, rows: Vec<(SubjectId, Row)>) -> Vec<Row> {
        let numbers: BTreeSet<SubjectId> = rows.iter().map(|(number, _)| *number).collect();
        let names: BTreeMap<SubjectId, String> = rows
            .iter()
            .filter_map(|(number, row)| Some((*number, row.procedure.as_ref()?.name.clone())))
            .collect();
        // A program's own functions keep their rows: one may be what is looked for.
        let starts = |number: SubjectId| {
            names.get(&number).is_some_and(|name| STARTS.contains(&name.as_str()))
        };
        let into = |number: SubjectId| {
            self.0.get(&number).filter(|to| starts(number) && numbers.contains(to))
        };
        let mut callers: BTreeMap<SubjectId, Vec<SubjectId>> = BTreeMap::new();
        for (number, _) in &rows {
            if let Some(to) = into(*number) {
                callers.entry(*to).or_default().push(*number);
            }
        }
        // Of several callers none is the chain's.
        let before = |number: SubjectId| match callers.get(&number).map(Vec::as_slice) {
            Some([one]) => Some(*one),
            _ => None,
        };
        let is_within =
            |number: SubjectId| into(number).is_some_and(|to| before(*to) == Some(number));
        let mut kept = Vec::new();
        for (number, mut row) in rows {
            if is_within(number) {
                continue;
            }
            let mut at = number;
            while let Some(caller) = before(at) {
                row.above.extend(names.get(&caller).cloned());
                at = caller;
            }
            row.above.reverse();
            kept.push(row);
        }
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::prof::row;
    use report::ProcedureName;

    fn rows(names: &[&str]) -> Vec<(SubjectId, Row)> {
        let named = |name: &&str| ProcedureName {
            name: (*name).to_owned(),
            address: None,
            ambiguous: false,
            needs_suffix: false,
            inlined: false,
        };
        let rows = names.iter().map(|name| row(Some(named(name)), None, Vec::new(), Vec::new()));
        (0..).zip(rows).collect()
    }

    fn told(chains: &[(SubjectId, SubjectId)], names: &[&str]) -> Vec<String> {
        let folded = Chains(chains.iter().copied().collect()).fold(rows(names));
        let told = folded.into_iter().map(|row| {
            let name = row.procedure.map(|of| of.name).unwrap_or_default();
            row.above.into_iter().chain([name]).collect::<Vec<_>>().join(" > ")
        });
        told.collect()
    }

    /// 12 of the first 20 rows were those that start programs.
    #[test]
    fn what_only_leads_to_another_is_in_its_row() {
        let names = ["main", "_start", "__libc_start_main", "hot"];
        assert_eq!(told(&[(1, 2), (2, 0)], &names), ["_start > __libc_start_main > main", "hot"]);
        // Two lead to one: both stay; so does a function of the program's own.
        assert_eq!(told(&[(1, 0), (2, 0)], &names), names);
        assert_eq!(told(&[(0, 3)], &names), names);
        // The last one has no row.
        assert_eq!(told(&[(1, 9)], &names), names);
    }

    #[test]
    fn rings_are_no_chains() {
        let ring = Chains([(1, 2), (2, 1), (3, 4)].into());
        assert!(!ring.ends(1) && ring.ends(3) && ring.ends(4));
    }
}
