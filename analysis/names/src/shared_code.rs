//! How sure the own time is of functions that a compiler put into one piece of code.
//!
//! HotSpot keeps for few instructions of its code which of the inlined methods they are of: calls,
//! and places where the program may be stopped. A sample in between counts for the method of the
//! next such place, as JFR has it. So within a piece of code any time may be another function's of
//! those that were seen there; and a function that was seen inlined anywhere may have time in the
//! code of each of its callers.

use std::collections::{BTreeMap, BTreeSet};

use image::{ImageId, ImageOffset};
use model::SourcePlace;

/// A function of a source file: the file, and where the function's places begin.
pub type Function = (ImageId, u64);

/// The function of a place in a source file.
pub fn function_of((file, place): (ImageId, ImageOffset)) -> Function {
    (file, SourcePlace::of(place).function().start)
}

/// Pieces of code, with functions that were seen there.
#[derive(Debug, Default)]
pub struct SharedCode {
    /// Of each piece, its functions with their times.
    pieces: Vec<BTreeMap<Function, f64>>,
    /// Functions that were seen in one piece with a caller of theirs.
    inlined: BTreeSet<Function>,
    /// By function, its callers in stacks.
    callers: BTreeMap<Function, BTreeSet<Function>>,
}

impl SharedCode {
    /// Notes a piece of code: the times of the functions that were seen there, and the callers that
    /// each has in the stacks.
    pub fn note(
        &mut self,
        times: BTreeMap<Function, f64>,
        callers: &BTreeMap<Function, BTreeSet<Function>>,
    ) {
        for (function, of) in callers {
            let mut others = times.keys().filter(|other| *other != function);
            if others.any(|other| of.contains(other)) {
                self.inlined.insert(*function);
            }
            self.callers.entry(*function).or_default().extend(of);
        }
        self.pieces.push(times);
    }

    /// By function, how much of its own time may be others', and how much of others' may be its
    /// own. What functions of one file have of each other's is no doubt where the files are the
    /// rows (`of_files`).
    pub fn shifts(&self, of_files: bool) -> BTreeMap<Function, (f64, f64)> {
        let is_other = |one: &Function, other: &Function| {
            if of_files { one.0 != other.0 } else { one != other }
        };
        let none = BTreeSet::new();
        let mut shifts: BTreeMap<Function, (f64, f64)> = BTreeMap::new();
        for times in &self.pieces {
            let mut doubted: BTreeSet<Function> = BTreeSet::new();
            let inlined = self.inlined.iter().filter(|of| !times.contains_key(of));
            for function in inlined.chain(times.keys()) {
                let callers = self.callers.get(function).unwrap_or(&none);
                let is_here = times.contains_key(function);
                let others = times.iter().filter(|(other, _)| is_other(function, other));
                for (other, time) in others.filter(|(other, _)| is_here || callers.contains(other))
                {
                    shifts.entry(*function).or_default().1 += time;
                    doubted.insert(*other);
                }
            }
            for (function, time) in times.iter().filter(|(of, _)| doubted.contains(of)) {
                shifts.entry(*function).or_default().0 += time;
            }
        }
        shifts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `main` and `f` are in one piece of code; `g` was seen inlined into `h`, and is also called
    /// by `f`.
    #[test]
    fn functions_may_have_the_time_of_what_they_share_code_with() {
        let function = |file: &str, line| {
            let place = SourcePlace { first_line: line, name: line, line };
            function_of((ImageId::from_name(file, "java"), place.offset()))
        };
        let [main, f, g] = [1, 2, 3].map(|line| function("A.java", line));
        let h = function("H.java", 9);
        let mut code = SharedCode::default();
        let callers = BTreeMap::from([(f, BTreeSet::from([main]))]);
        code.note(BTreeMap::from([(main, 2.0), (f, 60.0)]), &callers);
        let callers = BTreeMap::from([(g, BTreeSet::from([h, f, main]))]);
        code.note(BTreeMap::from([(h, 5.0), (g, 20.0)]), &callers);
        code.note(BTreeMap::from([(f, 7.0)]), &BTreeMap::new());
        let shifts = code.shifts(false);
        assert_eq!(shifts[&main], (2.0, 60.0));
        assert_eq!(shifts[&h], (5.0, 20.0));
        assert_eq!(shifts[&g], (20.0, 5.0 + 2.0 + 60.0 + 7.0));
        assert_eq!(shifts[&f], (67.0, 2.0), "of both pieces");
        let of_files = code.shifts(true);
        assert_eq!(of_files, BTreeMap::from([(g, (20.0, 5.0)), (h, (5.0, 20.0))]));
    }
}
