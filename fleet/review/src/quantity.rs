//! Numbers for people.

/// `1234567` as `1,234,567`.
pub(crate) fn thousands(number: u64) -> String {
    grouped(&number.to_string())
}

fn grouped(digits: &str) -> String {
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1 host`, `1,234 hosts`, `2 processes`.
pub(crate) fn counted(number: u64, noun: &str) -> String {
    let ending = match noun {
        _ if number == 1 => "",
        noun if noun.ends_with('s') => "es",
        _ => "s",
    };
    format!("{} {noun}{ending}", thousands(number))
}

/// A number with as many decimals as it takes to show three digits, at most 3: `1,234`, `12.3`,
/// `0.012`.
pub(crate) fn amount(number: f64) -> String {
    let size = number.abs();
    let decimals = match size {
        _ if !size.is_finite() => return "?".to_owned(),
        _ if size >= 99.95 => 0,
        _ if size >= 9.995 => 1,
        _ if size >= 0.9995 => 2,
        _ if size == 0.0 => 0,
        _ => 3,
    };
    if size > 0.0 && size < 0.0005 {
        return if number < 0.0 { "-<0.001" } else { "<0.001" }.to_owned();
    }
    let text = format!("{size:.decimals$}");
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    format!("{}{}{rest}", if number < 0.0 { "-" } else { "" }, grouped(whole))
}

/// The same with a sign.
pub(crate) fn signed(number: f64) -> String {
    format!("{}{}", if number > 0.0 { "+" } else { "" }, amount(number))
}

/// A share or relative change as percent with two decimals, without the sign `%`.
pub(crate) fn percent(share: f64) -> String {
    let percent = share * 100.0;
    match percent {
        _ if !percent.is_finite() => "?".to_owned(),
        _ if percent > 0.0 && percent < 0.005 => "<0.01".to_owned(),
        // Not `-0.00`.
        _ if percent.abs() < 0.005 => "0.00".to_owned(),
        _ => format!("{percent:.2}"),
    }
}

/// The same of a change: with a plus sign.
pub(crate) fn change(relative: f64) -> String {
    let text = percent(relative);
    if relative > 0.0 && !text.starts_with(['<', '0']) || text.starts_with("0.") && relative >= 5e-5
    {
        format!("+{text}")
    } else {
        text
    }
}

/// Seconds since 1970 UTC as a day: `2026-11-05`.
pub(crate) fn day(unix_s: i64) -> String {
    // Days to a date: H. Hinnant, "chrono-compatible low-level date algorithms", civil_from_days.
    let z = unix_s.div_euclid(86_400) + 719_468;
    let era = z.div_euclid(146_097);
    let of_era = z.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_digits_that_people_read() {
        for (number, text) in [
            (0.0, "0"),
            (0.000_1, "<0.001"),
            (0.012_34, "0.012"),
            (0.999_9, "1.00"),
            (1.234, "1.23"),
            (99.96, "100"),
            (12.34, "12.3"),
            (1_234_567.8, "1,234,568"),
            (-1_234.0, "-1,234"),
            (f64::NAN, "?"),
        ] {
            assert_eq!(amount(number), text);
        }
        assert_eq!((signed(3.0), signed(-3.0)), ("+3.00".to_owned(), "-3.00".to_owned()));
        assert_eq!(
            (counted(1, "host"), counted(1200, "pass")),
            ("1 host".into(), "1,200 passes".into())
        );
    }

    #[test]
    fn changes_have_signs() {
        for (relative, text) in [
            (0.023_5, "+2.35"),
            (-0.023_5, "-2.35"),
            (0.002, "+0.20"),
            (0.0, "0.00"),
            (-1e-9, "0.00"),
            (1e-9, "<0.01"),
            (12.0, "+1200.00"),
        ] {
            assert_eq!(change(relative), text);
        }
    }

    #[test]
    fn days_are_those_of_the_calendar() {
        // By `date -u -d @TIME +%F`.
        for (unix_s, text) in [
            (0, "1970-01-01"),
            (951_782_400, "2000-02-29"),
            (1_795_632_000, "2026-11-25"),
            (-1, "1969-12-31"),
        ] {
            assert_eq!(day(unix_s), text);
        }
    }
}
