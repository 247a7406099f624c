//! SpeedShop's experiments: what each samples here.
//!
//! SpeedShop's overflow intervals are those of a processor of 195 MHz. One of today does about 32
//! times as much in a second, so the intervals here are the next primes above 32 times SpeedShop's,
//! and at least dcpid's smallest period. Primes keep samples out of step with loops.

use std::str::FromStr;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Experiment {
    /// Its name, as typed.
    pub(super) name: String,
    pub(super) kind: Kind,
}

/// The events that an experiment samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Wall-clock time of threads, running or not.
    Usertime,
    /// An event, at a normal and at a shorter interval.
    Sampled { event: &'static str, normal: u64, fast: u64, is_fast: bool },
    /// The events of `--event`.
    Named,
    /// Each floating-point exception.
    Exceptions,
}

/// Experiments of an event: SpeedShop's name, the event, and its intervals in the event's unit,
/// the normal one and that of the fast variant.
const SAMPLED: [(&str, &str, u64, u64); 7] = [
    ("pcsamp", "cpu-clock", 10_000_000, 1_000_000),
    ("gi_hwc", "instructions", 1_048_681, 209_701),
    ("cy_hwc", "cycles", 525_157, 120_929),
    ("ic_hwc", "L1-icache-load-misses", 65_699, 13_411),
    ("dc_hwc", "L1-dcache-load-misses", 65_699, 13_411),
    ("dsc_hwc", "LLC-load-misses", 4201, 1009),
    ("tlb_hwc", "dTLB-load-misses", 8231, 1697),
];

/// Experiments that there are not, and why.
const REFUSED: [(&str, &str); 3] = [
    ("ideal", "counts every execution of an instruction, which samples cannot: dcpi ideal"),
    (
        "isc_hwc",
        "needs an event of instruction misses in the second-level cache, and Linux has no such \
         name for all processors; name the processor's own: --experiment prof_hwc --event \
         PMU/TERM=VALUE,.../:4201",
    ),
    (
        "gfp_hwc",
        "needs an event of floating-point instructions, and Linux has no such name for all \
         processors; name the processor's own: --experiment prof_hwc --event \
         PMU/TERM=VALUE,.../:1048681",
    ),
];

impl Experiment {
    /// The events to sample, as dcpid takes them; none: those of `--event`.
    pub(super) fn events(&self) -> Vec<String> {
        match self.kind {
            Kind::Usertime => vec!["cpu-clock".to_owned()],
            Kind::Sampled { event, normal, fast, is_fast } => {
                vec![format!("{event}:{}", if is_fast { fast } else { normal })]
            }
            Kind::Named | Kind::Exceptions => Vec::new(),
        }
    }

    /// The experiment of the same event with the other interval.
    pub(super) fn other(&self) -> Result<Self, String> {
        let name = &self.name;
        match self.kind {
            Kind::Sampled { event, normal, fast, is_fast } => {
                let name = match (is_fast, name.strip_prefix('f')) {
                    (true, Some(normal)) => normal.to_owned(),
                    _ => format!("f{name}"),
                };
                let kind = Kind::Sampled { event, normal, fast, is_fast: !is_fast };
                Ok(Self { name, kind })
            }
            Kind::Usertime | Kind::Exceptions => Err(format!(
                "--agree compares two intervals, and {name} has one; dcpi diff compares two runs"
            )),
            Kind::Named => Err(format!(
                "--agree compares two intervals that SpeedShop names, and {name} has the one of \
                 --event; record twice, and compare with dcpi diff"
            )),
        }
    }
}

impl FromStr for Experiment {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        // 16 or 32 bits for a count: here all have 64.
        let plain = match name.strip_suffix('x') {
            Some(plain) if plain.ends_with("pcsamp") => plain,
            _ => name,
        };
        let of = |kind| Ok(Self { name: name.to_owned(), kind });
        match plain {
            "usertime" => return of(Kind::Usertime),
            "prof_hwc" => return of(Kind::Named),
            "fpe" => return of(Kind::Exceptions),
            _ => {}
        }
        for (is_fast, known) in [(false, Some(plain)), (true, plain.strip_prefix('f'))] {
            let Some(known) = known else { continue };
            if let Some((_, event, normal, fast)) = SAMPLED.iter().find(|(is, ..)| *is == known) {
                return of(Kind::Sampled { event, normal: *normal, fast: *fast, is_fast });
            }
            if let Some((_, why)) = REFUSED.iter().find(|(is, _)| *is == known) {
                return Err(format!("{name} {why}"));
            }
        }
        let known: Vec<&str> = SAMPLED.iter().map(|(name, ..)| *name).collect();
        Err(format!(
            "is none of usertime, fpe, {}, prof_hwc, or of one of these with f before it",
            known.join(", ")
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experiments_are_speedshops() {
        for (name, event) in [
            ("usertime", "cpu-clock"),
            ("pcsamp", "cpu-clock:10000000"),
            ("pcsampx", "cpu-clock:10000000"),
            ("fpcsamp", "cpu-clock:1000000"),
            ("gi_hwc", "instructions:1048681"),
            ("fcy_hwc", "cycles:120929"),
            ("fdsc_hwc", "LLC-load-misses:1009"),
        ] {
            assert_eq!(name.parse::<Experiment>().unwrap().events(), [event], "{name}");
        }
        assert!("prof_hwc".parse::<Experiment>().unwrap().events().is_empty());
        for (name, said) in [
            ("ideal", "dcpi ideal"),
            ("fgfp_hwc", "prof_hwc"),
            ("isc_hwc", "second-level"),
            ("usertimex", "none of usertime, fpe, pcsamp, gi_hwc"),
            ("ffpe", "none of usertime"),
            ("", "none of usertime"),
        ] {
            let why = name.parse::<Experiment>().unwrap_err();
            assert!(why.contains(said), "{name}: {why}");
        }
    }

    #[test]
    fn the_other_interval_of_an_experiment_is_that_of_its_twin() {
        for (name, twin) in [("pcsamp", "fpcsamp"), ("fpcsamp", "pcsamp"), ("tlb_hwc", "ftlb_hwc")]
        {
            let other = name.parse::<Experiment>().unwrap().other().unwrap();
            assert_eq!(other, twin.parse().unwrap());
        }
        for name in ["usertime", "prof_hwc", "fpe"] {
            let why = name.parse::<Experiment>().unwrap().other().unwrap_err();
            assert!(why.contains("dcpi diff"), "{why}");
        }
    }

    /// An interval that a loop's length divides would always hit the same instruction of it.
    #[test]
    fn intervals_of_counters_are_primes_within_dcpids_limits() {
        for (name, event, normal, fast) in SAMPLED {
            if event != "cpu-clock" {
                for interval in [normal, fast] {
                    assert!((2..1024).all(|by| interval % by != 0 || interval == by), "{name}");
                    assert!(interval >= 1000, "{name}");
                }
            }
            assert!(normal / fast >= 4, "{name}");
        }
    }
}
