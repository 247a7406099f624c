//! Numbers with their units, for people.

pub(super) use profiledb::moment;

/// 1234567 as `1,234,567`.
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number of things: `1 procedure`, `1,234 procedures`, `2 processes`.
pub fn counted(number: u64, noun: &str) -> String {
    let ending = match noun {
        _ if number == 1 => "",
        noun if noun.ends_with('s') => "es",
        _ => "s",
    };
    format!("{} {noun}{ending}", thousands(number))
}

/// A share as percent, without the sign: two decimals. A share that is not 0 does not look like it.
pub fn percent(share: f64) -> String {
    let percent = share * 100.0;
    if percent > 0.0 && percent < 0.005 { "<0.01".to_owned() } else { format!("{percent:.2}") }
}

/// A percentage such as 95 or 99.9 as it was typed.
pub(super) fn plain(number: f64) -> String {
    number.to_string()
}

/// Seconds as `25 min 3 s`: the two largest units.
pub(super) fn duration(seconds: u64) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3600, "h"), (60, "min"), (1, "s")];
    let Some(largest) = UNITS.iter().position(|(unit, _)| seconds >= *unit) else {
        return "0 s".to_owned();
    };
    let mut rest = seconds;
    let mut parts = Vec::new();
    for (unit, name) in UNITS.iter().skip(largest).take(2) {
        if rest >= *unit {
            parts.push(format!("{} {name}", rest / unit));
        }
        rest %= unit;
    }
    parts.join(" ")
}

/// Bytes with a binary unit: `1.2 MiB`.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut size = bytes as f64;
    let mut unit = "B";
    for larger in UNITS {
        // A value that would be printed as 1024.0 becomes 1.0 of the next unit.
        if size < 1023.95 {
            break;
        }
        size /= 1024.0;
        unit = larger;
    }
    format!("{size:.1} {unit}")
}

/// The mean distance of samples, as in "a sample every ...".
pub(super) fn period(period: u64, unit: &str) -> String {
    match unit {
        "ns" => format!("{} per CPU", nanoseconds(period)),
        "count" => counted(period, "event"),
        unit => format!("{} {unit}", thousands(period)),
    }
}

pub(super) fn nanoseconds(ns: u64) -> String {
    let (size, unit) = match ns {
        0 => return "0 s".to_owned(),
        1..1_000 => (1.0, "ns"),
        1_000..1_000_000 => (1e3, "µs"),
        1_000_000..1_000_000_000 => (1e6, "ms"),
        _ => (1e9, "s"),
    };
    let number = format!("{:.1}", ns as f64 / size);
    format!("{} {unit}", number.strip_suffix(".0").unwrap_or(&number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(thousands(number), text);
        }
        assert_eq!(thousands(u64::MAX), "18,446,744,073,709,551,615");
    }

    #[test]
    fn percent_has_two_decimals() {
        for (share, text) in [
            (0.0, "0.00"),
            (0.000_01, "<0.01"),
            (0.000_05, "0.01"),
            (0.123_456, "12.35"),
            (1.0, "100.00"),
        ] {
            assert_eq!(percent(share), text);
        }
        assert_eq!((plain(95.0), plain(99.9)), ("95".to_owned(), "99.9".to_owned()));
    }

    #[test]
    fn durations_have_two_units() {
        for (seconds, text) in [
            (0, "0 s"),
            (59, "59 s"),
            (60, "1 min"),
            (1503, "25 min 3 s"),
            (3600, "1 h"),
            (3605, "1 h"),
            (7384, "2 h 3 min"),
            (90_000, "1 d 1 h"),
        ] {
            assert_eq!(duration(seconds), text);
        }
    }

    #[test]
    fn sizes_periods_and_moments() {
        for (size, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1_048_575, "1.0 MiB"),
            (1_300_000, "1.2 MiB"),
            (u64::MAX, "16777216.0 TiB"),
        ] {
            assert_eq!(bytes(size), text);
        }
        assert_eq!(period(500_000, "ns"), "500 µs per CPU");
        assert_eq!(nanoseconds(192_308), "192.3 µs");
        assert_eq!(
            (nanoseconds(10), nanoseconds(2_000_000_000)),
            ("10 ns".to_owned(), "2 s".to_owned())
        );
        assert_eq!(period(62_000, "cycles"), "62,000 cycles");
        assert_eq!(period(2000, "count"), "2,000 events");
        assert_eq!(moment(0), "1970-01-01 00:00:00");
        assert_eq!(moment(1_793_873_700), "2026-11-05 10:15:00");
    }
}
