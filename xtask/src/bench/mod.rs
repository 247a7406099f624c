//! What profiling costs, measured: `bench overhead` on this machine, `bench images` for new images
//! and short processes, `bench table` in a simulation of the sampler's table, `bench loader` for
//! the loader hook, `bench stacks` for call stacks, `bench waits` for those of waiting
//! threads, `bench db` for the database; how long reports
//! take: `bench reading`; what walks from sampled registers are worth: `bench walks`; how good
//! estimates are: `bench truth`; what exact counts cost: `bench ideal`; control-flow graphs of
//! everything that is installed: `bench cfg`; explanations of all of it: `bench why`; how much
//! faster programs become with profiles: `bench faster`; how well measurements of a machine agree:
//! `bench machine`; how right `dcpi time` is: `bench time`; what observing
//! does to programs: `bench perturb`; and whether anything leaks: `bench
//! soak`.

/// An enumeration whose values have names.
macro_rules! named {
    ($(#[$on:meta])* $see:vis enum $Enum:ident {
        $($(#[$of:meta])* $Value:ident = $name:literal,)+
    }) => {
        $(#[$on])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $see enum $Enum {
            $($(#[$of])* $Value,)+
        }

        impl $Enum {
            /// All values, in the order of the tables.
            $see const ALL: [Self; [$($name),+].len()] = [$(Self::$Value),+];

            /// The name in tables.
            $see fn name(self) -> &'static str {
                match self {
                    $(Self::$Value => $name,)+
                }
            }
        }
    };
}

mod beside;
mod branches;
mod causes;
mod causes_peers;
mod cfg;
mod costs;
mod db;
mod faster;
mod grid;
mod ideal;
mod images;
mod json;
mod load;
mod loader;
mod machine;
mod measured;
mod overhead;
mod perturb;
mod perturb_loops;
mod perturb_observers;
mod perturb_peers;
mod perturb_uprobes;
pub mod profilers;
mod programs;
mod reading;
mod recording;
mod repeatable;
mod report;
mod runs;
mod simulation;
mod soak;
mod stacks;
mod stacks_counted;
mod stacks_named;
mod statistics;
mod table;
mod time;
mod time_peers;
mod truth;
mod waits;
mod walks;
mod why;
mod workloads;

use crate::Outcome;
use crate::process::is_root;
use anyhow::{Context as _, bail};

/// Everything that the benchmarks write.
const FOLDER: &str = "target/bench";

type Benchmark = fn(&[&str]) -> anyhow::Result<Outcome>;

const BENCHMARKS: [(&str, Benchmark); 18] = [
    ("overhead", overhead::run),
    ("images", images::run),
    ("stacks", stacks::run),
    ("waits", waits::run),
    ("table", table::run),
    ("loader", loader::run),
    ("db", db::run),
    ("reading", reading::run),
    ("walks", walks::run),
    ("truth", truth::run),
    ("ideal", ideal::run),
    ("cfg", cfg::run),
    ("why", why::run),
    ("faster", faster::run),
    ("perturb", perturb::run),
    ("machine", measured::run),
    ("time", time::run),
    ("soak", soak::run),
];

/// The benchmarks' names.
#[cfg(test)]
pub fn names() -> impl Iterator<Item = &'static str> {
    BENCHMARKS.iter().map(|(name, _)| *name)
}

/// Runs the benchmark that is asked for.
pub fn run(arguments: &[&str]) -> anyhow::Result<Outcome> {
    let asked = arguments.split_first();
    let known = asked.and_then(|(asked, rest)| {
        let (_, benchmark) = BENCHMARKS.iter().find(|(name, _)| name == asked)?;
        Some((benchmark, rest))
    });
    let Some((benchmark, rest)) = known else {
        let names = BENCHMARKS.map(|(name, _)| name).join(", ");
        bail!("bench takes one of {names}; `cargo xtask` lists their options");
    };
    benchmark(rest)
}

fn require_root(task: &str) -> anyhow::Result<()> {
    if !is_root() {
        bail!(
            "bench {task} samples the whole machine, and that needs root; run: sudo -E env PATH=\"$PATH\" cargo xtask bench {task}"
        );
    }
    Ok(())
}

/// The value after the flag `name`, when the flag is there.
fn option<'a>(arguments: &[&'a str], name: &str) -> anyhow::Result<Option<&'a str>> {
    let Some(position) = arguments.iter().position(|argument| *argument == name) else {
        return Ok(None);
    };
    let value = arguments.get(position + 1).with_context(|| format!("{name} needs a value"))?;
    Ok(Some(value))
}

/// The whole number after the flag `name`, `default` without the flag.
fn count(arguments: &[&str], name: &str, default: u64) -> anyhow::Result<u64> {
    let Some(value) = option(arguments, name)? else { return Ok(default) };
    let number = value.parse().ok().filter(|number| (1..=1000).contains(number));
    number.with_context(|| format!("{name} {value}: must be a whole number from 1 to 1000"))
}

/// Absolute paths, and everything else.
fn parted<'a>(arguments: &[&'a str]) -> (Vec<&'a str>, Vec<&'a str>) {
    arguments.iter().partition(|argument| argument.starts_with('/'))
}

/// Refuses everything that is neither one of `flags` nor one of `valued` with its value.
fn refuse_others(
    task: &str,
    arguments: &[&str],
    flags: &[&str],
    valued: &[&str],
) -> anyhow::Result<()> {
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        if valued.contains(argument) {
            rest.next();
        } else if !flags.contains(argument) {
            bail!("bench {task} takes {}, not '{argument}'", [flags, valued].concat().join(", "));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_and_strangers_refused() {
        let arguments = ["--quick", "--rounds", "7"];
        assert_eq!(count(&arguments, "--rounds", 5).unwrap(), 7);
        assert_eq!(count(&arguments, "--seconds", 5).unwrap(), 5);
        assert!(count(&["--rounds", "many"], "--rounds", 5).is_err());
        assert!(count(&["--rounds"], "--rounds", 5).is_err());
        assert!(refuse_others("x", &arguments, &["--quick"], &["--rounds"]).is_ok());
        assert_eq!(parted(&["--quick", "/usr/lib"]), (vec!["/usr/lib"], vec!["--quick"]));
        assert!(refuse_others("x", &["--slow"], &["--quick"], &["--rounds"]).is_err());
    }
}
