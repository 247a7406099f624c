//! Axes: where values lie, and which numbers stand beside them.

/// How values are spread over an axis.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Scale {
    /// Equal differences have equal lengths.
    Linear,
    /// Equal ratios have equal lengths; ticks are powers of 2, numbered with Ki, Mi, Gi.
    Log2,
    /// The same with powers of 10.
    Log10,
}

/// Most ticks of an axis: more numbers would touch each other.
const TICKS_MAX: f64 = 8.0;

/// One axis of a plot.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// The quantity with its unit: `time (s)`.
    pub label: String,
    scale: Scale,
    low: f64,
    high: f64,
    is_whole: bool,
}

impl Axis {
    /// An axis from `low` to `high`. What no axis can have is mended: ends that are not numbers, in
    /// the wrong order or equal; and logarithms of 0 or less.
    pub fn new(label: &str, scale: Scale, low: f64, high: f64) -> Self {
        let (mut low, mut high) =
            if low.is_finite() && high.is_finite() { (low, high) } else { (0.0, 1.0) };
        if low > high {
            (low, high) = (high, low);
        }
        if scale == Scale::Linear {
            if high - low <= high.abs() * 1e-12 {
                let reach = (high.abs() * 0.1).max(0.5);
                (low, high) = (low - reach, high + reach);
            }
        } else {
            high = if high > 0.0 { high } else { 1.0 };
            low = if low > 0.0 { low } else { high / 1000.0 };
            if high / low < 1.0 + 1e-9 {
                (low, high) = (low / 2.0, high * 2.0);
            }
        }
        Self { label: label.to_owned(), scale, low, high, is_whole: false }
    }

    /// The same with ticks at whole numbers only.
    #[must_use]
    pub fn whole(self) -> Self {
        Self { is_whole: true, ..self }
    }

    /// An axis over all values; from 0 where it is linear and `from_zero` is asked.
    pub fn over(label: &str, scale: Scale, values: &[f64], from_zero: bool) -> Self {
        let known = values.iter().copied().filter(|value| value.is_finite());
        let ends = (f64::INFINITY, f64::NEG_INFINITY);
        let (mut low, high) = known.fold(ends, |(low, high), of| (low.min(of), high.max(of)));
        if from_zero && scale == Scale::Linear {
            low = low.min(0.0);
        }
        let room = if scale == Scale::Linear { (high - low) * 0.05 } else { 0.0 };
        Self::new(label, scale, if low == 0.0 { low } else { low - room }, high + room)
    }

    /// Where a value lies: 0 at the start of the axis, 1 at its end. Not finite for a logarithm of
    /// 0 or less.
    pub fn share(&self, value: f64) -> f64 {
        if self.scale == Scale::Linear {
            (value - self.low) / (self.high - self.low)
        } else if value > 0.0 {
            (value / self.low).ln() / (self.high / self.low).ln()
        } else {
            f64::NAN
        }
    }

    /// Values with ticks, and the numbers beside them.
    pub fn ticks(&self) -> Vec<(f64, String)> {
        let ticks: Vec<(f64, String)> = match self.scale {
            Scale::Linear => Vec::new(),
            Scale::Log2 => self.powers(2.0).map(|value| (value, binary(value))).collect(),
            Scale::Log10 => self.powers(10.0).map(|value| (value, decimal(value))).collect(),
        };
        // An axis from 2 to 8 has no power of 10.
        if ticks.len() < 2 { self.linear_ticks() } else { ticks }
    }

    fn linear_ticks(&self) -> Vec<(f64, String)> {
        let rough = (self.high - self.low) / TICKS_MAX;
        let power = 10_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0]
            .into_iter()
            .map(|factor| factor * power)
            .find(|step| *step >= rough * (1.0 - 1e-9))
            .unwrap_or(10.0 * power);
        let step = if self.is_whole { step.max(1.0) } else { step };
        let digits = (-step.log10().floor()).clamp(0.0, 12.0) as usize;
        let first = (self.low / step - 1e-9).ceil();
        let count = ((self.high / step + 1e-9).floor() - first).clamp(0.0, 2.0 * TICKS_MAX) as u32;
        let values = (0..=count).map(|index| (first + f64::from(index)) * step);
        let values = values.filter(|value| self.scale == Scale::Linear || *value > 0.0);
        // Adding 0 makes -0 a 0.
        values.map(|value| (value, format!("{:.digits$}", value + 0.0))).collect()
    }

    /// Powers of the base on the axis, so few that their numbers have room.
    fn powers(&self, base: f64) -> impl Iterator<Item = f64> {
        let (first, last) = (self.low.log(base), self.high.log(base));
        let (first, last) = ((first - 1e-9).ceil(), (last + 1e-9).floor());
        let every = ((last - first + 1.0) / TICKS_MAX).ceil().max(1.0);
        let count = ((last - first) / every).clamp(-1.0, 4.0 * TICKS_MAX) + 1.0;
        (0..count as u32).map(move |index| base.powf(first + f64::from(index) * every))
    }
}

/// A power of 2: `64`, `32Ki`, `1Mi`, `1/4`.
fn binary(value: f64) -> String {
    if value < 1.0 {
        return format!("1/{:.0}", 1.0 / value);
    }
    let mut value = value;
    for unit in ["", "Ki", "Mi", "Gi", "Ti"] {
        if value < 1024.0 {
            return format!("{value:.0}{unit}");
        }
        value /= 1024.0;
    }
    format!("{value:.0}Pi")
}

/// A power of 10: `0.001`, `100`, `1e6`.
fn decimal(value: f64) -> String {
    if (0.000_99..1e5).contains(&value) { value.to_string() } else { format!("{value:.0e}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(axis: &Axis) -> Vec<String> {
        axis.ticks().into_iter().map(|(_, number)| number).collect()
    }

    #[test]
    fn ticks_are_round_numbers() {
        let linear = Axis::new("", Scale::Linear, -0.3, 1.1);
        assert_eq!(numbers(&linear), ["-0.2", "0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
        let whole = Axis::new("", Scale::Linear, 0.5, 4.5).whole();
        assert_eq!(numbers(&whole), ["1", "2", "3", "4"]);
        let fine = Axis::new("", Scale::Linear, 0.6641, 0.6669);
        assert_eq!(numbers(&fine), ["0.6645", "0.6650", "0.6655", "0.6660", "0.6665"]);
        let sizes = Axis::new("", Scale::Log2, 4096.0, 64e6);
        assert_eq!(numbers(&sizes), ["4Ki", "16Ki", "64Ki", "256Ki", "1Mi", "4Mi", "16Mi"]);
        let ratios = Axis::new("", Scale::Log2, 0.2, 2.0);
        assert_eq!(numbers(&ratios), ["1/4", "1/2", "1", "2"]);
        let times = Axis::new("", Scale::Log10, 0.001, 1e6);
        assert_eq!(numbers(&times), ["0.001", "0.1", "10", "1000", "1e5"]);
        assert_eq!(numbers(&Axis::new("", Scale::Log10, 2.0, 8.0)).first().unwrap(), "2");
    }

    #[test]
    fn axes_of_nonsense_are_axes() {
        for (low, high) in [
            (1.0, 1.0),
            (0.0, 0.0),
            (5.0, 1.0),
            (f64::NAN, 1.0),
            (0.0, f64::INFINITY),
            (-2.0, -1.0),
        ] {
            for scale in [Scale::Linear, Scale::Log2, Scale::Log10] {
                let axis = Axis::new("", scale, low, high);
                let ticks = axis.ticks();
                assert!((1..=20).contains(&ticks.len()), "{axis:?}: {ticks:?}");
                assert!(ticks.iter().all(|(value, _)| axis.share(*value).is_finite()), "{axis:?}");
            }
        }
        let none = Axis::over("", Scale::Linear, &[], true);
        assert!(!none.ticks().is_empty());
    }

    #[test]
    fn an_axis_over_values_holds_them() {
        let axis = Axis::over("", Scale::Linear, &[3.0, f64::NAN, 5.0], false);
        assert!((0.0..0.1).contains(&axis.share(3.0)) && (0.9..1.0).contains(&axis.share(5.0)));
        let axis = Axis::over("", Scale::Linear, &[3.0, 5.0], true);
        assert_eq!(axis.share(0.0), 0.0);
    }
}
