//! Chooses the events that are sampled, and the CPUs of each: compares the events that were asked
//! for with the machine's.

use super::KernelError;
use super::refusal::{errno, refused};
use events::{DEVICES, Encoding, EventSpec, PlannedEvent, Pmus, Site, Unit};
use std::io;
use std::path::Path;

/// The events to sample: the events that were asked for, or `cycles`, or `cpu-clock` on a machine
/// without hardware counters.
///
/// # Errors
/// [`KernelError::Event`] and [`KernelError::Spec`] for an asked event that the machine does not
/// have.
pub fn resolve_event(
    specs: &[EventSpec],
    cpus: &[usize],
) -> Result<Vec<PlannedEvent>, KernelError> {
    let opens = |encoding: Encoding, cpu: usize| super::counters::try_open(encoding, cpu);
    let machine = Choice {
        pmus: Pmus::read(Path::new(DEVICES)),
        clock_hz: super::machine::clock_hz(),
        cpus,
        opens,
    };
    machine.choose(specs)
}

/// A machine, and a way to try it: `opens` tries an event on a CPU.
struct Choice<'a, Opens> {
    pmus: Pmus,
    clock_hz: u64,
    /// CPUs online.
    cpus: &'a [usize],
    opens: Opens,
}

impl<Opens: Fn(Encoding, usize) -> io::Result<()>> Choice<'_, Opens> {
    fn choose(&self, specs: &[EventSpec]) -> Result<Vec<PlannedEvent>, KernelError> {
        if specs.is_empty() {
            return Ok(vec![self.default_event()?]);
        }
        let mut plans = specs.iter().map(|spec| self.place(spec)).collect::<Result<Vec<_>, _>>()?;
        let counters = EventSpec::parse("cycles").is_ok_and(|cycles| self.place(&cycles).is_ok());
        for plan in plans.iter_mut().filter(|plan| plan.event.unit == Unit::Nanoseconds) {
            let why = if counters { "" } else { "; this machine has no hardware counters" };
            plan.remark(&format!(
                "{} is a timer: samples are time, not cycles{why}",
                plan.event.name
            ));
        }
        let groups: Vec<_> = plans.iter().map(|plan| (plan.mux, plan.event.name.clone())).collect();
        for plan in plans.iter_mut().filter(|plan| plan.mux.is_some()) {
            let others = groups
                .iter()
                .filter(|(group, name)| *group == plan.mux && *name != plan.event.name);
            let others: Vec<_> = others.map(|(_, name)| name.as_str()).collect();
            plan.remark(&format!("takes turns with {}", others.join(", ")));
        }
        Ok(plans)
    }

    fn default_event(&self) -> Result<PlannedEvent, KernelError> {
        let default = |name| Ok::<_, KernelError>(self.place(&EventSpec::parse(name)?));
        if let Ok(cycles) = default("cycles")? {
            return Ok(cycles);
        }
        let mut clock = default("cpu-clock")??;
        clock.note = Some(
            "no hardware counters on this machine: cpu-clock (a timer) instead of cycles"
                .to_owned(),
        );
        Ok(clock)
    }

    /// Finds the CPUs that have an event. CPUs of a kind that lacks the event are left out, with a
    /// remark; at least one CPU has it.
    fn place(&self, spec: &EventSpec) -> Result<PlannedEvent, KernelError> {
        let mut plan = spec.plan(self.clock_hz);
        let mut refusals: Vec<(Site, io::Error)> = Vec::new();
        for site in self.pmus.sites(&plan.event)? {
            if plan.sites.iter().any(|chosen| chosen.pmu == site.pmu) {
                continue; // it has it under another encoding
            }
            let tried = match self.cpus.iter().find(|cpu| site.has(**cpu)) {
                Some(cpu) => (self.opens)(site.encoding, *cpu),
                None => Err(io::Error::from_raw_os_error(errno::ENODEV)),
            };
            match tried {
                Ok(()) => plan.sites.push(site),
                Err(error) if is_lacking(&error) => refusals.push((site, error)),
                Err(error) => return Err(refused(&plan.event, error)),
            }
        }
        refusals.retain(|(refused, _)| !plan.sites.iter().any(|chosen| chosen.pmu == refused.pmu));
        refusals.dedup_by(|(a, _), (b, _)| a.pmu == b.pmu);
        if plan.sites.is_empty() {
            let error = refusals
                .pop()
                .map_or_else(|| io::Error::from_raw_os_error(errno::ENOENT), |(_, error)| error);
            return Err(refused(&plan.event, error));
        }
        for (site, error) in &refusals {
            let (pmu, cpus) = (
                site.pmu.as_deref().unwrap_or_default(),
                cpu_ranges(site.cpus.as_deref().unwrap_or_default()),
            );
            tracing::warn!(
                event = plan.event.name,
                pmu,
                cpus,
                "these CPUs lack the event ({error}): it is not sampled there"
            );
            plan.remark(&format!("not on the CPUs of {pmu} ({cpus}), which lack it"));
        }
        Ok(plan)
    }
}

/// Updates the CPUs that a PMU's events can be opened on, after CPUs came online.
pub fn follow(events: &mut [PlannedEvent]) {
    if events.iter().flat_map(|event| &event.sites).any(|site| site.pmu.is_some()) {
        let pmus = Pmus::read(Path::new(DEVICES));
        for site in events.iter_mut().flat_map(|event| &mut event.sites) {
            if let Some(cpus) = site.pmu.as_deref().and_then(|pmu| pmus.cpus(pmu)) {
                site.cpus = Some(cpus.to_vec());
            }
        }
    }
}

/// A list of CPUs as the kernel writes it: `0-3,8`.
fn cpu_ranges(cpus: &[usize]) -> String {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for &cpu in cpus {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(cpu) => *last = cpu,
            _ => ranges.push((cpu, cpu)),
        }
    }
    let shown = |(first, last): &(usize, usize)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    ranges.iter().map(shown).collect::<Vec<_>>().join(",")
}

/// Whether the error means that the machine lacks the event, and not that a right or a resource is
/// missing.
fn is_lacking(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(errno::ENOENT | errno::EOPNOTSUPP | errno::ENODEV | errno::EINVAL)
    )
}

#[cfg(test)]
#[path = "../../events/src/tree.rs"]
mod tree;

#[cfg(test)]
mod tests {
    use super::*;

    /// Events that a machine with these files and CPUs, whose kernel `takes` some encodings, would
    /// sample.
    fn choose(
        files: &[(&str, &str)],
        specs: &[EventSpec],
        takes: impl Fn(Encoding, usize) -> Result<(), i32>,
    ) -> Result<Vec<PlannedEvent>, String> {
        let directory = tempfile::tempdir().unwrap();
        tree::write(directory.path(), files);
        let opens = |encoding, cpu| takes(encoding, cpu).map_err(io::Error::from_raw_os_error);
        let cpus: Vec<usize> = (0..8).collect();
        let machine = Choice {
            pmus: Pmus::read(directory.path()),
            clock_hz: 1_000_000_000,
            cpus: &cpus,
            opens,
        };
        machine.choose(specs).map_err(|error| error.to_string())
    }

    fn specs(texts: &[&str]) -> Vec<EventSpec> {
        texts.iter().map(|text| EventSpec::parse(text).unwrap()).collect()
    }

    fn lacks_hardware(encoding: Encoding, _: usize) -> Result<(), i32> {
        if encoding.kind == 1 { Ok(()) } else { Err(errno::ENOENT) }
    }

    #[test]
    fn each_kind_of_core_has_its_own_encoding() {
        let extended = |encoding: Encoding, cpu: usize| {
            let right = if cpu < 4 { 4 } else { 10 };
            if encoding.config[0] >> 32 == right { Ok(()) } else { Err(errno::ENOENT) }
        };
        let plans = choose(&tree::HYBRID, &specs(&["cycles"]), extended).unwrap();
        let config = |cpu| plans[0].encoding(cpu).map(|encoding| encoding.config[0]);
        assert_eq!((config(0), config(7), config(8)), (Some(4 << 32), Some(10 << 32), None));
        assert_eq!(plans[0].note, None);
        // A kernel that wants the plain number there.
        let plain = |encoding: Encoding, _| {
            if encoding.config[0] >> 32 == 0 { Ok(()) } else { Err(errno::EINVAL) }
        };
        let plans = choose(&tree::HYBRID, &specs(&["instructions"]), plain).unwrap();
        assert_eq!(plans[0].sites.len(), 2);
        assert_eq!(plans[0].encoding(5).unwrap().config, [1, 0, 0]);
    }

    #[test]
    fn cores_that_lack_an_event_are_left_out_and_named() {
        let only_core = |_, cpu| if cpu < 4 { Ok(()) } else { Err(errno::ENOENT) };
        let plans =
            choose(&tree::HYBRID, &specs(&["LLC-load-misses", "r01c2"]), only_core).unwrap();
        for plan in plans {
            assert!(plan.encoding(3).is_some() && plan.encoding(4).is_none());
            assert_eq!(
                plan.note.as_deref(),
                Some("not on the CPUs of cpu_atom (4-7), which lack it")
            );
        }
        let plans =
            choose(&tree::HYBRID, &specs(&["cpu_atom/event=0x3c/"]), |_, _| Ok(())).unwrap();
        assert!(plans[0].encoding(3).is_none() && plans[0].encoding(4).is_some());
        assert_eq!(plans[0].note, None, "the others were not asked for");
    }

    #[test]
    fn what_the_machine_lacks_is_one_line() {
        for (files, text, words) in [
            (
                &tree::HYBRID[..],
                "cache-misses",
                "event 'cache-misses' cannot be sampled on this machine",
            ),
            (
                &tree::HYBRID,
                "cpu_core/event=0x3c/",
                "event 'cpu_core/event=0x3c/' cannot be sampled",
            ),
            (&tree::HYBRID, "cpu/event=0x3c/", "no PMU 'cpu'; it has cpu_atom, cpu_core, software"),
            (
                &tree::ARM,
                "armv8_pmuv3_0/bogus/",
                "has no term 'bogus'; it has the terms event, long, config",
            ),
            (
                &tree::INTEL,
                "uncore_imc/config=1/",
                "it has no such hardware counter: use --event cpu-clock",
            ),
            (&[], "rabc", "it has no such hardware counter"),
        ] {
            let error = choose(files, &specs(&[text]), lacks_hardware).unwrap_err();
            assert!(error.contains(words) && !error.contains('\n'), "{text}: {error}");
        }
        let denied = choose(&[], &specs(&["cycles"]), |_, _| Err(errno::EACCES)).unwrap_err();
        assert!(denied.contains("run dcpid as root"), "{denied}");
        // Its CPUs are 0 and 18; a machine of 8 has the first.
        assert!(
            choose(&tree::INTEL, &specs(&["uncore_imc/config=1/"]), |_, cpu| if cpu == 0 {
                Ok(())
            } else {
                Err(1)
            })
            .is_ok()
        );
    }

    #[test]
    fn the_default_and_the_notes_of_groups() {
        let plans = choose(&tree::INTEL, &[], lacks_hardware).unwrap();
        assert_eq!((plans[0].event.name.as_str(), plans.len()), ("cpu-clock", 1));
        assert!(plans[0].note.as_deref().unwrap().starts_with("no hardware counters"));
        assert_eq!(choose(&tree::INTEL, &[], |_, _| Ok(())).unwrap()[0].event.name, "cycles");
        let group = EventSpec::parse_group("cpu-clock,instructions,r08", 0).unwrap();
        let plans = choose(&tree::ARM, &group, |_, _| Ok(())).unwrap();
        assert_eq!(
            plans[0].note.as_deref(),
            Some(
                "cpu-clock is a timer: samples are time, not cycles; takes turns with instructions, r08"
            )
        );
        assert_eq!(plans[2].note.as_deref(), Some("takes turns with cpu-clock, instructions"));
    }

    #[test]
    fn lists_of_cpus() {
        for (cpus, text) in [(&[][..], ""), (&[3], "3"), (&[0, 1, 2, 3, 8], "0-3,8")] {
            assert_eq!(cpu_ranges(cpus), text);
        }
    }
}
