//! Weeks of ISO 8601, which begin on Monday, by UTC.

use std::fmt;
use std::str::FromStr;

const DAY_S: i64 = 86_400;

/// A week of ISO 8601: `2026-W47`.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Week {
    /// Monday, in days since 1970-01-01.
    monday: i64,
}

impl Week {
    /// The week of a time, in seconds since 1970 UTC.
    #[must_use]
    pub const fn of(unix_s: i64) -> Self {
        let day = unix_s.div_euclid(DAY_S);
        // 1970-01-01 was a Thursday.
        Self { monday: day - (day + 3).rem_euclid(7) }
    }

    /// Its start, in seconds since 1970 UTC.
    #[must_use]
    pub const fn begin_s(self) -> i64 {
        self.monday * DAY_S
    }

    /// Its end, in seconds since 1970 UTC.
    #[must_use]
    pub const fn end_s(self) -> i64 {
        (self.monday + 7) * DAY_S
    }

    /// The week this many weeks before.
    #[must_use]
    pub const fn before(self, weeks: i64) -> Self {
        Self { monday: self.monday - 7 * weeks }
    }

    /// Year and number. The week belongs to the year of its Thursday.
    fn year_and_number(self) -> (i64, i64) {
        let thursday = self.monday + 3;
        let year = year_of(thursday);
        (year, (thursday - days_before(year)) / 7 + 1)
    }
}

/// Days from 1970-01-01 to the first of January of a year (proleptic Gregorian calendar).
const fn days_before(year: i64) -> i64 {
    let of = year - 1;
    of * 365 + of.div_euclid(4) - of.div_euclid(100) + of.div_euclid(400) - 719_162
}

const fn year_of(day: i64) -> i64 {
    // A year has 365.2425 days in the mean: this is the year, or one too many or few.
    let mut year = 1970 + (day * 10_000).div_euclid(3_652_425);
    while days_before(year) > day {
        year -= 1;
    }
    while days_before(year + 1) <= day {
        year += 1;
    }
    year
}

impl fmt::Display for Week {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, number) = self.year_and_number();
        write!(f, "{year:04}-W{number:02}")
    }
}

impl FromStr for Week {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refused = || format!("{text:?} is no week of ISO 8601, such as 2026-W47");
        let (year, number) = text.split_once("-W").ok_or_else(refused)?;
        if year.len() != 4 || number.len() != 2 {
            return Err(refused());
        }
        let year: u16 = year.parse().map_err(|_| refused())?;
        let number: u8 = number.parse().map_err(|_| refused())?;
        // January 4 is in the first week.
        let first = Self::of((days_before(i64::from(year)) + 3) * DAY_S);
        let week = first.before(1 - i64::from(number));
        if week.to_string() == text { Ok(week) } else { Err(refused()) }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn weeks_are_those_of_the_calendar() {
        // By `date -u -d @TIME +%G-W%V`.
        for (unix_s, week) in [
            (0, "1970-W01"),
            (1_795_632_000, "2026-W48"),
            (1_798_761_600, "2026-W53"),
            (1_798_934_399, "2026-W53"),
            (1_798_934_400, "2026-W53"),
            (1_735_516_800, "2025-W01"),
            (951_782_400, "2000-W09"),
        ] {
            assert_eq!(Week::of(unix_s).to_string(), week, "{unix_s}");
        }
        let week: Week = "2026-W47".parse().unwrap();
        assert_eq!(Week::of(week.begin_s()), week);
        assert_eq!(Week::of(week.end_s() - 1), week);
        assert_eq!(Week::of(week.end_s()).before(1), week);
        assert_eq!(week.before(47).to_string(), "2025-W52");
    }

    #[test]
    fn what_is_no_week_is_refused() {
        for text in ["", "2026-47", "2026-W00", "2025-W53", "2026-W54", "26-W1", "2026-W4７"] {
            text.parse::<Week>().unwrap_err();
        }
        for year in 1970..2100 {
            for number in 1..=52 {
                let text = format!("{year}-W{number:02}");
                assert_eq!(text.parse::<Week>().unwrap().to_string(), text);
            }
        }
    }
}
