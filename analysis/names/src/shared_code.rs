//! How sure the own time is of functions that a compiler inlined into each other.
//!
//! HotSpot keeps for few instructions of its code which of the inlined methods they are of: calls,
//! and places where the program may be stopped (`scopes` of the inspector). Samples in between
//! count for the innermost method that is active at the instructions on both sides, which may be a
//! caller of the right one. So a function that was seen inlined may have had the time of those that
//! called it, and they may have had less.

use std::collections::{BTreeMap, BTreeSet};

use image::{ImageId, ImageOffset};
use model::SourcePlace;

/// A function of a source file: the file, and where the function's places begin.
pub type Function = (ImageId, u64);

/// The function of a place in a source file.
pub fn function_of((file, place): (ImageId, ImageOffset)) -> Function {
    (file, SourcePlace::of(place).function().start)
}

/// Functions that were seen inlined into others.
#[derive(Debug, Default)]
pub struct Inlined {
    functions: BTreeSet<Function>,
    /// By function, its callers in stacks.
    callers: BTreeMap<Function, BTreeSet<Function>>,
}

impl Inlined {
    /// Notes the functions that ran in one piece of code, each with its callers.
    pub fn note(&mut self, callers: &BTreeMap<Function, BTreeSet<Function>>) {
        for (function, of) in callers {
            let mut others = callers.keys().filter(|other| *other != function);
            if others.any(|other| of.contains(other)) {
                self.functions.insert(*function);
            }
            self.callers.entry(*function).or_default().extend(of);
        }
    }

    /// By function, how much of its own time may be others', and how much of others' may be its
    /// own. `own`: the own times of all functions. `between_files`: what functions of one file have
    /// of each other's is no doubt.
    pub fn shifts(
        &self,
        own: &BTreeMap<Function, f64>,
        between_files: bool,
    ) -> BTreeMap<Function, (f64, f64)> {
        let mut shifts: BTreeMap<Function, (f64, f64)> = BTreeMap::new();
        for function in &self.functions {
            let callers = self.callers.get(function).into_iter().flatten();
            for caller in callers {
                let is_other =
                    if between_files { caller.0 != function.0 } else { caller != function };
                let Some(time) = own.get(caller).filter(|_| is_other) else { continue };
                shifts.entry(*function).or_default().1 += time;
                shifts.entry(*caller).or_default().0 = *time;
            }
        }
        shifts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `f`, of 60, is called by `main`, of 2, where it is inlined, and calls `g`, of 20, which is
    /// inlined elsewhere; `h` is in no code of another.
    #[test]
    fn functions_may_have_the_time_of_what_they_are_inlined_into() {
        let function = |file: &str, line| {
            let place = SourcePlace { first_line: line, name: line, line };
            function_of((ImageId::from_name(file, "java"), place.offset()))
        };
        let [main, f, g] = [1, 2, 3].map(|line| function("A.java", line));
        let h = function("H.java", 9);
        let mut inlined = Inlined::default();
        inlined.note(&BTreeMap::from([(main, BTreeSet::new()), (f, BTreeSet::from([main]))]));
        inlined.note(&BTreeMap::from([(h, BTreeSet::from([main, h])), (g, BTreeSet::from([h]))]));
        inlined.note(&BTreeMap::from([(g, BTreeSet::from([f, main]))]));
        let own = BTreeMap::from([(main, 2.0), (f, 60.0), (g, 20.0), (h, 5.0)]);
        let shifts = inlined.shifts(&own, false);
        let expected = [(main, (2.0, 0.0)), (f, (60.0, 2.0)), (g, (0.0, 67.0)), (h, (5.0, 0.0))];
        assert_eq!(shifts, BTreeMap::from(expected));
        let of_files = inlined.shifts(&own, true);
        assert_eq!(of_files, BTreeMap::from([(g, (0.0, 5.0)), (h, (5.0, 0.0))]));
    }
}
