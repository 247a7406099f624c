//! Results as lines of text or JSON.

use std::io::{self, Write as _};
use std::process::ExitCode;

use crate::estimate::{Measured, Way};

/// Width of names in a line, in characters.
const NAME: usize = 30;

/// Writes a line to standard output. Errors are ignored: the reader may have closed it.
pub(crate) fn say(line: &str) {
    let _ = writeln!(io::stdout(), "{line}");
}

pub(crate) fn refuse(says: &str) -> ExitCode {
    if says.contains('\n') {
        say(says);
        return ExitCode::SUCCESS;
    }
    let _ = writeln!(io::stderr(), "dcpi-bench: {says}"); // nowhere left to say it
    ExitCode::from(2)
}

/// A time with its unit: four digits.
fn amount(ns: f64) -> String {
    let units = [(1e9, "s"), (1e6, "ms"), (1e3, "µs")];
    let (factor, unit) = units.into_iter().find(|unit| ns >= unit.0).unwrap_or((1.0, "ns"));
    let value = ns / factor;
    let digits = if value >= 100.0 {
        1
    } else if value >= 10.0 {
        2
    } else {
        3
    };
    format!("{value:.digits$} {unit}")
}

pub(crate) fn line(name: &str, measured: &Measured, json: bool) -> String {
    let Measured { ns, slow_share, slow_factor, overhead_ns, pieces, way } = *measured;
    let how = match way {
        Way::Loops { calls } => format!("loops of {calls}"),
        Way::Shots => "single calls".to_owned(),
        Way::Bernoulli => "single calls, by steps of the clock".to_owned(),
        Way::Once => return format!("{name:NAME$}  ran"),
    };
    if json {
        let name: String = name
            .chars()
            .map(|c| if c == '"' || c == '\\' || c.is_control() { '_' } else { c })
            .collect();
        return format!(
            "{{\"schema\":{{\"name\":\"dcpi.bench\",\"version\":1}},\"name\":\"{name}\",\"ns\":{{\"value\":{},\"low\":{},\"high\":{}}},\"slow_share\":{slow_share},\"slow_factor\":{slow_factor},\"overhead_ns\":{overhead_ns},\"pieces\":{pieces},\"how\":\"{how}\"}}",
            ns.value, ns.low, ns.high
        );
    }
    let (value, low, high) = (amount(ns.value), amount(ns.low), amount(ns.high));
    let slow = match slow_share {
        share if share < 0.005 => String::new(),
        share if slow_factor > 1.0 => {
            format!("; {:.0} % of pieces slow, {slow_factor:.1} times", share * 100.0)
        }
        share => format!("; {:.0} % of pieces slow", share * 100.0),
    };
    format!("{name:NAME$}  {value:>10}  ({low} to {high}); {pieces} {how}{slow}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use measure::Interval;

    #[test]
    fn lines_say_times_with_units() {
        let measured = Measured {
            ns: Interval { value: 1234.5, low: 1230.0, high: 1240.0 },
            slow_share: 0.21,
            slow_factor: 1.9,
            overhead_ns: 0.0,
            pieces: 1800,
            way: Way::Loops { calls: 16 },
        };
        let text = line("a/b", &measured, false);
        for part in [
            "a/b  ",
            "1.234 µs",
            "(1.230 µs to 1.240 µs)",
            "1800 loops of 16",
            "21 % of pieces slow, 1.9 times",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let json = line("a\"b", &measured, true);
        assert!(json.contains("\"name\":\"a_b\",\"ns\":{\"value\":1234.5,"), "{json}");
    }
}
