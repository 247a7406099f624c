//! Times of functions from 3 ns to 3 ms, for benchmarks of your own code, in criterion's habits.
//!
//! ```no_run
//! use dcpi_bench::{Bench, bench_group, bench_main, black_box};
//!
//! fn sums(bench: &mut Bench) {
//!     let numbers: Vec<u64> = (0..1000).collect();
//!     bench.bench_function("sum", |b| b.iter(|| black_box(&numbers).iter().sum::<u64>()));
//!     let mut group = bench.benchmark_group("sort");
//!     group.bench_function("1000", |b| {
//!         b.iter_batched(|| numbers.clone(), |mut all| all.sort_unstable_by(|a, b| b.cmp(a)));
//!     });
//! }
//!
//! bench_group!(benches, sums);
//! bench_main!(benches);
//! ```
//!
//! Differences from criterion:
//! - A function's pieces are spread over seconds, with sleep between, so that no neighbour's burst
//!   holds all of them; the result is where most undisturbed pieces are, not the mean of all.
//! - The share of pieces that were much slower is stated: a busy sibling thread makes two humps.
//! - The cost of the loop is measured in place, by doubling it: after a chain of multiplications it
//!   costs nothing, after independent additions one cycle.
//! - Functions that must be timed one by one are counted by steps of the clock where they are
//!   shorter than that can tell (Bernoulli counting), with Wilson's interval.
//!
//! Nothing here draws layouts of code: whether a change of the source makes a whole program faster,
//! `dcpi time --relink` tells.
#![forbid(unsafe_code)]

mod arguments;
mod estimate;
mod show;
mod timing;

pub use arguments::Settings;
pub use estimate::{Measured, Way};
pub use std::hint::black_box;

use std::time::Duration;

/// Runs functions and prints their times.
#[derive(Debug)]
pub struct Bench {
    settings: Settings,
    prefix: String,
    results: Vec<(String, Measured)>,
}

impl Bench {
    /// With settings of your own, and no output: for programs that want the numbers.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self { settings, prefix: String::new(), results: Vec::new() }
    }

    /// By the command line's words: a part of the names of functions, and options. For
    /// `bench_main`.
    ///
    /// # Errors
    /// One line about the argument that is not understood, or the requested help text.
    pub fn from_args() -> Result<Self, String> {
        Settings::of(std::env::args().skip(1)).map(Self::new)
    }

    /// Measures a function that `routine` gives to its [`Bencher`], and prints a line.
    pub fn bench_function(&mut self, name: &str, routine: impl FnOnce(&mut Bencher)) -> &mut Self {
        let name = match self.prefix.is_empty() {
            true => name.to_owned(),
            false => format!("{}/{name}", self.prefix),
        };
        if !self.settings.chooses(&name) {
            return self;
        }
        if self.settings.lists {
            show::say(&format!("{name}: benchmark"));
            return self;
        }
        let mut bencher = Bencher { settings: self.settings.clone(), measured: None };
        routine(&mut bencher);
        if let Some(measured) = bencher.measured {
            if self.settings.prints {
                show::say(&show::line(&name, &measured, self.settings.json));
            }
            self.results.push((name, measured));
        }
        self
    }

    /// A group: names of its functions begin with its name.
    pub fn benchmark_group(&mut self, name: &str) -> Group<'_> {
        let before = self.prefix.clone();
        self.prefix = if before.is_empty() { name.to_owned() } else { format!("{before}/{name}") };
        Group { bench: self, before }
    }

    /// The results so far, by name.
    #[must_use]
    pub fn results(&self) -> &[(String, Measured)] {
        &self.results
    }
}

/// Functions with a common name.
#[derive(Debug)]
pub struct Group<'a> {
    bench: &'a mut Bench,
    before: String,
}

impl Group<'_> {
    /// As [`Bench::bench_function`].
    pub fn bench_function(&mut self, name: &str, routine: impl FnOnce(&mut Bencher)) -> &mut Self {
        self.bench.bench_function(name, routine);
        self
    }

    /// Ends the group, as dropping it does.
    pub fn finish(self) {}
}

impl Drop for Group<'_> {
    fn drop(&mut self) {
        self.bench.prefix.clone_from(&self.before);
    }
}

/// Takes the function to measure.
#[derive(Debug)]
pub struct Bencher {
    settings: Settings,
    measured: Option<Measured>,
}

impl Bencher {
    /// Measures calls in a loop. Its result goes through [`black_box`]; what the function reads
    /// should, too.
    ///
    /// Calls that do not need each other's results overlap in the processor: the time is that of
    /// one of many calls. For the time from a call's begin to its end, let the next call need it.
    pub fn iter<R>(&mut self, mut function: impl FnMut() -> R) {
        self.measured = Some(match self.settings.once {
            true => timing::once(|| drop(black_box(function()))),
            false => timing::loops(&mut function, &self.settings),
        });
    }

    /// Measures each call by itself, between two reads of the clock; `setup` makes what the call
    /// consumes and is not measured. Below 10 ns the result is up to 8 ns too large, and the
    /// interval does not know that: such a call ends in the shadow of the clock's own read.
    pub fn iter_batched<I, R>(
        &mut self,
        mut setup: impl FnMut() -> I,
        mut routine: impl FnMut(I) -> R,
    ) {
        self.measured = Some(match self.settings.once {
            true => {
                let input = setup();
                timing::once(move || drop(black_box(routine(input))))
            }
            false => timing::shots(&mut setup, &mut routine, &self.settings),
        });
    }
}

/// Time over which a function's pieces are spread.
pub(crate) const SPREAD: Duration = Duration::from_secs(3);
/// Time over which a function's pieces are spread with `--quick`.
pub(crate) const SPREAD_QUICK: Duration = Duration::from_millis(500);

/// A function that runs functions that take a [`Bench`].
#[macro_export]
macro_rules! bench_group {
    ($name:ident, $($function:path),+ $(,)?) => {
        /// Runs the group's benchmarks.
        pub fn $name(bench: &mut $crate::Bench) {
            $($function(bench);)+
        }
    };
}

/// The `main` function of a benchmark (`harness = false` in Cargo.toml).
#[macro_export]
macro_rules! bench_main {
    ($($group:path),+ $(,)?) => {
        fn main() -> ::std::process::ExitCode {
            match $crate::Bench::from_args() {
                Ok(mut bench) => {
                    $($group(&mut bench);)+
                    ::std::process::ExitCode::SUCCESS
                }
                Err(says) => $crate::refuse(&says),
            }
        }
    };
}

/// Prints the error or the help text. For [`bench_main`].
#[must_use]
pub fn refuse(says: &str) -> std::process::ExitCode {
    show::refuse(says)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn once(words: &[&str]) -> Bench {
        let words = words.iter().map(|word| (*word).to_owned());
        Bench::new(Settings { prints: false, ..Settings::of(words).unwrap() })
    }

    #[test]
    fn names_are_chosen_and_groups_end() {
        let mut ran = Vec::new();
        let mut bench = once(&["--test", "b/"]);
        bench.bench_function("a", |_| ran.push("a"));
        let mut group = bench.benchmark_group("b");
        group.bench_function("x", |b| {
            ran.push("b/x");
            b.iter(|| 1 + 1);
        });
        group.finish();
        bench.bench_function("c", |_| ran.push("c"));
        assert_eq!(ran, ["b/x"]);
        assert_eq!(bench.results()[0].0, "b/x");
    }

    #[test]
    fn both_ways_run_what_they_are_given() {
        let mut bench = once(&["--test"]);
        let (mut looped, mut consumed) = (0, 0);
        bench.bench_function("loop", |b| b.iter(|| looped += 1));
        bench.bench_function("shot", |b| b.iter_batched(|| 7, |number| consumed += number));
        assert_eq!((looped, consumed), (1, 7));
    }
}
