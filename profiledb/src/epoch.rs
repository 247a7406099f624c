//! Epoch ids: names made of the second in which an epoch began, in UTC.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{DbError, NameFault, NameKind};

/// Seconds of a day.
const DAY_S: u64 = 86_400;
/// The last second that four digits of year can name: 9999-12-31 23:59:59 UTC.
const LAST_UNIX_S: u64 = 253_402_300_799;

/// The name of an epoch, `YYYYMMDD-HHMMSS` in UTC. The order of names is the order of epochs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct EpochId(String);

impl EpochId {
    /// The epoch that begins at this second since 1970 UTC; past the year 9999, its last second.
    pub fn from_unix_s(unix_s: u64) -> Self {
        let unix_s = unix_s.min(LAST_UNIX_S);
        let (year, month, day) = civil_from_days(unix_s / DAY_S);
        let second = unix_s % DAY_S;
        let (hour, minute) = (second / 3600, second / 60 % 60);
        Self(format!("{year:04}{month:02}{day:02}-{hour:02}{minute:02}{:02}", second % 60))
    }

    /// The second since 1970 UTC in the name. An epoch may have got a name a little later than it
    /// began; `EpochMeta::started_unix_s` has the true time.
    pub fn unix_s(&self) -> u64 {
        parse(&self.0).unwrap_or(0)
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// `2026-11-24 14:00:00`, in UTC.
pub fn moment(unix_s: u64) -> String {
    let id = EpochId::from_unix_s(unix_s);
    let at = |from: usize, to: usize| id.as_str().get(from..to).unwrap_or("");
    format!("{}-{}-{} {}:{}:{}", at(0, 4), at(4, 6), at(6, 8), at(9, 11), at(11, 13), at(13, 15))
}

impl fmt::Display for EpochId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl FromStr for EpochId {
    type Err = DbError;

    fn from_str(text: &str) -> Result<Self, DbError> {
        match parse(text) {
            Some(_) => Ok(Self(text.to_owned())),
            None => Err(crate::naming::invalid(NameKind::Epoch, text, NameFault::NotATime)),
        }
    }
}

impl TryFrom<String> for EpochId {
    type Error = DbError;

    fn try_from(text: String) -> Result<Self, DbError> {
        text.parse()
    }
}

impl From<EpochId> for String {
    fn from(id: EpochId) -> Self {
        id.0
    }
}

/// Seconds since 1970 of a name; None when the name is no second since 1970.
fn parse(text: &str) -> Option<u64> {
    let (date, time) = text.split_once('-')?;
    if date.len() != 8 || time.len() != 6 {
        return None;
    }
    let number = |part: Option<&str>| -> Option<u64> {
        let part = part?;
        // `u64::from_str` alone would let a sign pass.
        if part.bytes().all(|b| b.is_ascii_digit()) { part.parse().ok() } else { None }
    };
    let (year, month, day) =
        (number(date.get(0..4))?, number(date.get(4..6))?, number(date.get(6..8))?);
    let (hour, minute, second) =
        (number(time.get(0..2))?, number(time.get(2..4))?, number(time.get(4..6))?);
    if year < 1970 || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let days = days_from_civil(year, month, day)?;
    Some(days * DAY_S + hour * 3600 + minute * 60 + second)
}

/// True for leap years of the Gregorian calendar.
const fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

/// Days of a month, 1..=12; 0 for any other month.
const fn days_in_month(year: u64, month: u64) -> u64 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if is_leap(year) => 29,
        2 => 28,
        1..=12 => 31,
        _ => 0,
    }
}

/// Days before the first of January of a year since the year 1.
const fn days_before_year(year: u64) -> u64 {
    let before = year - 1;
    before * 365 + before / 4 - before / 100 + before / 400
}

/// Days since 1970-01-01 of a date from 1970 on; none when there is no such date.
fn days_from_civil(year: u64, month: u64, day: u64) -> Option<u64> {
    if day == 0 || day > days_in_month(year, month) {
        return None;
    }
    let months: u64 = (1..month).map(|month| days_in_month(year, month)).sum();
    Some(days_before_year(year) - days_before_year(1970) + months + day - 1)
}

/// Year, month and day of a day since 1970-01-01.
fn civil_from_days(days: u64) -> (u64, u64, u64) {
    let since_year_one = days + days_before_year(1970);
    // Dividing by 366 days gives no year that is too late; a few steps bring it to the right one.
    let mut year = since_year_one / 366 + 1;
    while days_before_year(year + 1) <= since_year_one {
        year += 1;
    }
    let mut day = since_year_one - days_before_year(year);
    let mut month = 1;
    while month < 12 && day >= days_in_month(year, month) {
        day -= days_in_month(year, month);
        month += 1;
    }
    (year, month, day + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_seconds_have_known_names() {
        // `date -u -d @N +%Y%m%d-%H%M%S`
        for (unix_s, name) in [
            (0, "19700101-000000"),
            (951_782_399, "20000228-235959"),
            (951_782_400, "20000229-000000"),
            (1_078_099_199, "20040229-235959"),
            (1_763_697_753, "20251121-040233"),
            (4_107_542_400, "21000301-000000"),
            (4_107_542_399, "21000228-235959"),
            (LAST_UNIX_S, "99991231-235959"),
            (u64::MAX, "99991231-235959"),
        ] {
            let id = EpochId::from_unix_s(unix_s);
            assert_eq!(id.to_string(), name);
            assert_eq!(id.unix_s(), unix_s.min(LAST_UNIX_S));
            assert_eq!(name.parse::<EpochId>().unwrap(), id);
        }
    }

    #[test]
    fn what_is_no_second_is_no_epoch() {
        for text in [
            "",
            "latest",
            "20251121",
            "20251121-04023",
            "20251121-0402333",
            "20251321-000000",
            "20250229-000000",
            "20250100-000000",
            "20251121-240000",
            "20251121-006000",
            "19691231-235959",
            "+0251121-000000",
            "20251121_040233",
            "20251121-040233.tmp",
            "2025112\u{e9}-04023",
        ] {
            let error = text.parse::<EpochId>().unwrap_err();
            assert!(error.to_string().contains("YYYYMMDD-HHMMSS"), "{error}");
        }
    }

    #[test]
    fn names_are_in_the_order_of_time() {
        let mut last = EpochId::from_unix_s(0);
        for step in 1..20_000_u64 {
            let next = EpochId::from_unix_s(step * 100_003);
            assert!(last < next, "{last} {next}");
            assert_eq!(next.unix_s(), step * 100_003);
            last = next;
        }
    }
}
