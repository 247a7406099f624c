//! Moments as typed after `--since` and `--until`.

use std::str::FromStr;
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use profiledb::{EpochId, Stretch};

use crate::zone::Zone;

const DAY_S: u64 = 86_400;

/// A moment, as typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Moment {
    /// Date and time of day with its distance from UTC (RFC 3339), in seconds since 1970 UTC.
    At(u64),
    /// Date and time of day where the reader is, as seconds since 1970 of the clock on the wall.
    Local(u64),
    /// The last such time of day where the reader is, in seconds from midnight on.
    Clock(u64),
    /// This many seconds ago.
    Ago(u64),
}

impl Moment {
    /// Seconds since 1970 UTC.
    fn unix_s(&self, now_unix_s: u64, zone: &Zone) -> u64 {
        match self {
            Self::At(unix_s) => *unix_s,
            Self::Local(local_s) => zone.unix_s(*local_s),
            Self::Ago(seconds) => now_unix_s.saturating_sub(*seconds),
            Self::Clock(seconds) => {
                let today = zone.local_s(now_unix_s) / DAY_S * DAY_S;
                let at = |day: u64| zone.unix_s(day.saturating_add(*seconds));
                if at(today) > now_unix_s { at(today.saturating_sub(DAY_S)) } else { at(today) }
            }
        }
    }
}

impl FromStr for Moment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = ago(text).map(Self::Ago).or_else(|| clock(text).map(Self::Clock));
        known.or_else(|| dated(text)).ok_or_else(|| {
            "is no moment: HH:MM, -10min, -2h, 2026-11-24T14:00:00Z or 2026-11-24T14:00+01:00"
                .to_owned()
        })
    }
}

/// `-10min`.
fn ago(text: &str) -> Option<u64> {
    let text = text.strip_prefix('-')?;
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    let unit_s = match unit.trim() {
        "s" => 1,
        "m" | "min" => 60,
        "h" => 3600,
        "d" => DAY_S,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(unit_s)
}

/// Seconds from midnight of `14:00` and `14:00:30`.
fn clock(text: &str) -> Option<u64> {
    let mut parts = text.split(':');
    let mut part = |below: u64| {
        let text = parts.next()?;
        let is_number = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse().ok().filter(|number| is_number && *number < below)
    };
    let (hours, minutes) = (part(24)?, part(60)?);
    let seconds = if text.len() > 5 { part(60)? } else { 0 };
    let is_all = parts.next().is_none();
    is_all.then_some(hours * 3600 + minutes * 60 + seconds)
}

/// Date and time of day, with or without distance from UTC.
fn dated(text: &str) -> Option<Moment> {
    let (date, rest) = (text.get(..10)?, text.get(11..)?);
    text.get(10..11).filter(|between| ["T", "t", " "].contains(between))?;
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != ':').unwrap_or(rest.len());
    let (time, zone) = rest.split_at(end);
    let midnight = format!("{}-000000", date.split('-').collect::<String>());
    let is_date = date.len() == 10 && date.matches('-').count() == 2;
    let midnight = midnight.parse::<EpochId>().ok().filter(|_| is_date)?.unix_s();
    let local_s = midnight.checked_add(clock(time)?)?;
    // Fractions of a second are ignored, because merges have whole seconds.
    let fraction =
        zone.strip_prefix('.').map(|zone| zone.trim_start_matches(|c: char| c.is_ascii_digit()));
    match fraction.unwrap_or(zone) {
        "" => Some(Moment::Local(local_s)),
        "Z" | "z" => Some(Moment::At(local_s)),
        zone => {
            let distance = clock(zone.get(1..).filter(|_| zone.len() == 6)?)?;
            match zone.get(..1)? {
                "+" => local_s.checked_sub(distance).map(Moment::At),
                "-" => local_s.checked_add(distance).map(Moment::At),
                _ => None,
            }
        }
    }
}

/// The moment that `-10min` and `14:03` are told from, in seconds since 1970 UTC: one for the whole
/// command, so that two stretches of it touch where they are typed so.
pub fn now_unix_s() -> u64 {
    static NOW: OnceLock<u64> = OnceLock::new();
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    *NOW.get_or_init(now)
}

/// The stretch between two moments as typed; without one, from the start of time or until now.
///
/// # Errors
/// A stretch of no time, or of the future, in words.
pub fn stretch(
    since: Option<&Moment>,
    until: Option<&Moment>,
    now_unix_s: u64,
    zone: &Zone,
) -> Result<Option<Stretch>, String> {
    if since.is_none() && until.is_none() {
        return Ok(None);
    }
    let since_unix_s = since.map_or(0, |since| since.unix_s(now_unix_s, zone));
    let mut until_unix_s = until.map_or(u64::MAX, |until| until.unix_s(now_unix_s, zone));
    if since_unix_s > now_unix_s {
        return Err("--since is in the future; name a time that has been".to_owned());
    }
    // From 14:00 to 14:10, asked at 14:05.
    if matches!(until, Some(Moment::Clock(_))) && until_unix_s <= since_unix_s && since.is_some() {
        until_unix_s = until_unix_s.saturating_add(DAY_S);
    }
    if until_unix_s <= since_unix_s {
        return Err("--until is not after --since; name a later one".to_owned());
    }
    Ok(Some(Stretch { since_unix_s, until_unix_s }))
}

/// `2026-11-24T14:00:00Z`, as `--since` takes it.
pub fn rfc3339(unix_s: u64) -> String {
    let epoch = EpochId::from_unix_s(unix_s);
    let part = |from: usize, to: usize| epoch.as_str().get(from..to).unwrap_or_default();
    let (date, time) = ([(0, 4), (4, 6), (6, 8)], [(9, 11), (11, 13), (13, 15)]);
    let [date, time] = [(date, "-"), (time, ":")]
        .map(|(parts, between)| parts.map(|(from, to)| part(from, to)).join(between));
    format!("{date}T{time}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2025-11-21 04:02:33 UTC.
    const NOW: u64 = 1_763_697_753;

    fn at(text: &str) -> Option<u64> {
        let berlin = Zone::of_rule("CET-1CEST,M3.5.0,M10.5.0/3").unwrap();
        text.parse::<Moment>().ok().map(|moment| moment.unix_s(NOW, &berlin))
    }

    #[test]
    fn moments_are_understood() {
        let day = NOW - NOW % DAY_S;
        for (text, expected) in [
            ("2025-11-21T04:02:33Z", NOW),
            ("2025-11-21t05:02:33.999+01:00", NOW),
            ("2025-11-20T23:32:33-04:30", NOW),
            ("2025-11-21 05:02", NOW - 33),
            ("2025-07-21T06:02:00", 1_753_070_520),
            ("-10min", NOW - 600),
            ("-2h", NOW - 7200),
            ("-1d", NOW - DAY_S),
            ("-0s", NOW),
            ("-18446744073709551615s", 0),
            // It is 05:02:33 in Berlin.
            ("05:02", day + 4 * 3600 + 120),
            ("05:02:34", day + 4 * 3600 + 154 - DAY_S),
            ("14:00", day + 13 * 3600 - DAY_S),
            ("00:30", day - 1800),
        ] {
            assert_eq!(at(text), Some(expected), "{text}");
        }
        for text in [
            "",
            "-",
            "14",
            "14:0",
            "24:00",
            "14:60",
            "14:00:60",
            "14:00:00:00",
            "-10",
            "-10x",
            "10min",
            "-99999999999999999999h",
            "2025-02-30T00:00:00Z",
            "2025-11-21",
            "2025-11-21T04:02:33X",
            "2025-11-21T04:02:33+1:00",
            "1969-12-31T00:00:00Z",
            "99999-01-01T00:00Z",
            "é4:00",
            "now",
            "2025-11-21T04:02:33+01:0é",
        ] {
            assert_eq!(at(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_stretch_is_of_some_time_that_was() {
        let utc = Zone::default();
        let of = |since: &str, until: &str| {
            let parse = |text: &str| (!text.is_empty()).then(|| text.parse::<Moment>().unwrap());
            stretch(parse(since).as_ref(), parse(until).as_ref(), NOW, &utc)
                .map(|stretch| stretch.map(|s| (s.since_unix_s, s.until_unix_s)))
        };
        let day = NOW - NOW % DAY_S;
        assert_eq!(of("", ""), Ok(None));
        assert_eq!(of("-1h", ""), Ok(Some((NOW - 3600, u64::MAX))));
        assert_eq!(of("", "-1h"), Ok(Some((0, NOW - 3600))));
        assert_eq!(of("04:00", "04:10"), Ok(Some((day + 14_400, day + 15_000))), "not over yet");
        assert_eq!(of("23:50", "00:10"), Ok(Some((day - 600, day + 600))));
        assert_eq!(
            of("2099-01-01T00:00:00Z", ""),
            Err("--since is in the future; name a time that has been".to_owned())
        );
        let none = Err("--until is not after --since; name a later one".to_owned());
        assert_eq!(of("-1h", "-1h"), none);
        assert_eq!(of("-1h", "-2h"), none);
    }
}
