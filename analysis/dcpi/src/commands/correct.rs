//! `dcpi trace --correct`: a trace, ours or of another tool, without what tracing cost.

use std::collections::HashSet;
use std::io::BufReader;
use std::path::Path;

use capture::sites::stepped_procedures;
use measure::models::Range;
use measure::models::alpha::OF_PROGRAMS;
use query::error::AnalysisError;
use report::{CorrectedTime, CorrectionReport, CorrectionRow, CostRow, ShownRows, Unbounded};
use trace::correct::{Correction, InSitu, Says, Times, correct};
use trace::{Cost, EventKind, Trace, calibration, formats};

use super::calibrate::{Traced, costs};
use super::passing::pass_on;
use super::record::shell_word;
use crate::plain_file;

/// How costs were measured that are those in vitro by a factor, from runs without events.
const IN_SITU: &str = "in situ";
/// The value of `--calibration` that requests a measurement on this machine.
const HERE: &str = "here";

/// Reads a trace of whatever format.
pub(super) fn read(file: &Path) -> Result<Trace, AnalysisError> {
    let refused = |why: String| AnalysisError::Refused(format!("{}: {why}", file.display()));
    let opened = plain_file::open(file).map_err(|error| refused(error.to_string()))?;
    formats::read(BufReader::new(opened)).map_err(|error| refused(error.to_string()))
}

/// Corrects the trace of a file; costs are those of `calibration`, else its own. Of procedures of
/// `probed` it is looked up how the kernel executes their first instruction.
///
/// # Errors
/// [`AnalysisError::Refused`] where nothing says what events cost, or events are missing.
pub(super) fn corrected(
    file: &Path,
    trace: &mut Trace,
    calibration: Option<&Path>,
    probed: Option<&Path>,
) -> Result<CorrectionReport, AnalysisError> {
    if let Some(image) = probed {
        let stepped =
            stepped_procedures(image).map_err(|error| AnalysisError::Refused(error.to_string()))?;
        for name in &mut trace.names {
            let procedure = probed_procedure(&name.text);
            let known = stepped.get(procedure).copied();
            name.stepped = name.stepped.or(known);
        }
    }
    match calibration {
        None => {}
        Some(here) if here == Path::new(HERE) => {
            // A signal ends this process only when its probes are removed.
            let stopped = pass_on()?;
            let measured = costs(kinds(trace), &stopped);
            if let Some(signal) = stopped.signal() {
                let why = format!("signal {signal} ended the calibration; nothing was corrected");
                return Err(AnalysisError::Refused(why));
            }
            trace.facts.costs = measured?;
        }
        Some(other) => {
            let refused =
                |why: String| AnalysisError::Refused(format!("{}: {why}", other.display()));
            let other = read(other)?;
            trace.facts.costs =
                calibration::costs(&other).map_err(|error| refused(error.to_string()))?;
        }
    }
    let correction = correct(trace)
        .map_err(|error| AnalysisError::Refused(format!("{}: {error}", file.display())))?;
    Ok(report(file, trace, &correction))
}

/// The procedure of a probe of perf: `probe_lua:luaH_get`, or `luaH_get__return` of its return.
fn probed_procedure(name: &str) -> &str {
    let name = name.rsplit_once(':').map_or(name, |(_, name)| name);
    name.strip_suffix("__return").unwrap_or(name)
}

fn kinds(trace: &Trace) -> Traced {
    let has = |kind: EventKind| trace.events.iter().any(|event| event.kind == kind);
    let returning: HashSet<_> = trace
        .events
        .iter()
        .filter(|event| event.kind == EventKind::Exit)
        .map(|event| event.name)
        .collect();
    let mut entered = trace.events.iter().filter(|event| event.kind == EventKind::Enter);
    Traced {
        calls: !returning.is_empty(),
        entries: has(EventKind::Instant) || entered.any(|event| !returning.contains(&event.name)),
        syscalls: has(EventKind::SyscallEnter),
        sched: has(EventKind::SwitchOut),
    }
}

fn report(file: &Path, trace: &Trace, correction: &Correction) -> CorrectionReport {
    let words = trace.facts.command.iter().map(|word| shell_word(Path::new(word)));
    let time = |of: Times, unknown: u64| CorrectedTime {
        measured_ns: of.measured,
        corrected_ns: of.corrected,
        unbounded: match of.is_wide_by_unknown(unknown) {
            true => Some(Unbounded::CostUnknown),
            false => correction.is_sampled.then_some(Unbounded::CallsLeftOut),
        },
    };
    let unknown = correction.unknown_events;
    let row = |row: &trace::correct::Row| CorrectionRow {
        name: trace.names.get(row.name.0 as usize).map(|of| of.text.clone()).unwrap_or_default(),
        kind: row.kind.word(),
        calls: row.calls,
        time_ns: time(row.inclusive, row.unknown),
    };
    let mut notes = trace.facts.notes.clone();
    if trace.facts.untraced.is_some() && correction.in_situ.is_none() {
        notes.push(
            "runs without events say nothing of the costs here: the traced run has no events that \
             cost time, or lost some, or has some of unknown cost"
                .to_owned(),
        );
    }
    if !correction.unknown.is_empty() {
        let kinds: Vec<&str> = correction.unknown.iter().map(|kind| kind.word()).collect();
        notes.push(format!(
            "what these events cost is not known, and left in: {}",
            kinds.join(", ")
        ));
    }
    let lost = trace.facts.lost.iter().fold(0_u64, |sum, lost| sum.saturating_add(lost.events));
    if lost > 0 {
        notes.push(format!(
            "{lost} events were lost: their cost is left in, and makes the interval of the total \
             wider; trace again with a larger --ring"
        ));
    }
    CorrectionReport {
        file: file.display().to_string(),
        command: words.collect::<Vec<_>>().join(" "),
        elapsed_ns: time(correction.elapsed, unknown),
        on_cpu_ns: correction.on_cpu.map(|of| time(of, unknown)),
        threads: correction.threads as u64,
        events: correction.events,
        cost_ns: correction.cost_ns,
        slowdown: correction.slowdown,
        relative_spread: correction.relative_spread,
        error: correction.error(),
        costs: trace
            .facts
            .costs
            .iter()
            .zip(&correction.costs)
            .filter_map(|(cost, taken)| Some(cost_row(cost, (*taken)?, correction.in_situ)))
            .collect(),
        in_situ: correction.in_situ.map(|of| report::InSituCosts {
            runs: of.runs as u64,
            factor: of.factor,
            says: match of.says {
                Says::Taken => report::InSituSays::Taken,
                Says::LessExact => report::InSituSays::LessExact,
                Says::Contradict => report::InSituSays::Contradict,
            },
        }),
        rows: correction.rows.iter().map(row).collect(),
        shown: ShownRows::default(),
        notes,
    }
}

fn cost_row(cost: &Cost, taken: Range, in_situ: Option<InSitu>) -> CostRow {
    let mut of = cost.kind.word().to_owned();
    of += match cost.stepped {
        Some(true) => ", instruction executed out of line",
        Some(false) => ", instruction emulated",
        None => "",
    };
    of += match cost.with_return {
        Some(true) => ", with returns",
        Some(false) => ", without returns",
        None => "",
    };
    let how = match in_situ {
        Some(InSitu { says: Says::Taken, .. }) => IN_SITU.to_owned(),
        _ if cost.in_vitro => {
            format!("{}, times {} as in programs", cost.how, OF_PROGRAMS.0)
        }
        _ => cost.how.clone(),
    };
    CostRow { of, ns: taken, how }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn perfs_probes_are_procedures() {
        assert_eq!(probed_procedure("probe_lua:luaH_get"), "luaH_get");
        assert_eq!(probed_procedure("probe_lua:luaH_get__return"), "luaH_get");
        assert_eq!(probed_procedure("luaH_get"), "luaH_get");
    }
}
