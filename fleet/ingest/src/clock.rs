//! The nominal clock of a machine, by which cycles become time.

/// Clock that is assumed of CPUs whose name has none, in Hz.
const ASSUMED_HZ: f64 = 3e9;

/// The nominal clock in the name of a CPU model, as Intel writes it: `... @ 2.80GHz`.
///
/// Nominal clocks make cycles of different machines comparable, no more: a CPU's clock differs from
/// moment to moment.
pub(crate) fn nominal_hz(cpu_model: &str) -> f64 {
    let number = cpu_model.rsplit_once('@').and_then(|(_, rest)| {
        let (number, unit) = rest.trim().split_at_checked(rest.trim().len().checked_sub(3)?)?;
        let scale = match unit {
            "GHz" => 1e9,
            "MHz" => 1e6,
            _ => return None,
        };
        Some(number.trim().parse::<f64>().ok()? * scale)
    });
    number.filter(|hz| (1e8..1e11).contains(hz)).unwrap_or(ASSUMED_HZ)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_are_read_from_names() {
        for (model, hz) in [
            ("Intel(R) Xeon(R) CPU E5-2680 v4 @ 2.40GHz", 2.4e9),
            ("Intel(R) Atom(TM) @ 800MHz", 8e8),
            ("AMD EPYC 7B13", ASSUMED_HZ),
            ("x @ 1e99GHz", ASSUMED_HZ),
            ("@é", ASSUMED_HZ),
            ("@", ASSUMED_HZ),
        ] {
            assert!((nominal_hz(model) - hz).abs() < 1.0, "{model}");
        }
    }
}
