//! The reader's time zone, for times of day as people type them.

use std::io::Read as _;
use std::path::{Path, PathBuf};

/// Most bytes of a file of a time zone. The largest of tzdata have 4 KiB.
const FILE_BYTES_MAX: u64 = 64 << 10;
const DAY_S: i64 = 86_400;

/// Distances of local time from UTC, by time (RFC 9636).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Zone {
    /// Times, in seconds since 1970 UTC, from which local time has an offset, in seconds.
    changes: Vec<(i64, i64)>,
    /// The distance before all changes.
    first_s: i64,
    /// The rule after the last change.
    rule: Option<Rule>,
}

/// A rule of POSIX's `TZ`: standard time, and summer time where there is one.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    standard_s: i64,
    summer: Option<Summer>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Summer {
    distance_s: i64,
    begin: Turn,
    end: Turn,
}

/// Day and time of a turn of the clock: month, week (5: the last) and day of the week from Sunday.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Turn {
    month: i64,
    week: i64,
    day: i64,
    time_s: i64,
}

impl Zone {
    /// The zone of this process: that of `$TZ`, else of /etc/localtime; UTC where neither can be
    /// read.
    pub fn here() -> Self {
        let named = std::env::var("TZ").ok();
        let path = match named.as_deref().map(|name| name.trim_start_matches(':')) {
            Some("") => return Self::default(),
            Some(name) if name.starts_with('/') => PathBuf::from(name),
            Some(name) => {
                let zones = Path::new("/usr/share/zoneinfo");
                if name.split('/').any(|part| part == "..") || !zones.join(name).is_file() {
                    return Self::of_rule(name).unwrap_or_default();
                }
                zones.join(name)
            }
            None => PathBuf::from("/etc/localtime"),
        };
        let mut bytes = Vec::new();
        let read = std::fs::File::open(path)
            .and_then(|file| file.take(FILE_BYTES_MAX).read_to_end(&mut bytes));
        read.ok().and_then(|_| Self::parse(&bytes)).unwrap_or_default()
    }

    /// The zone of a rule as in `$TZ`: `CET-1CEST,M3.5.0,M10.5.0/3`.
    pub fn of_rule(text: &str) -> Option<Self> {
        Some(Self { rule: Some(rule(text)?), ..Self::default() })
    }

    /// The zone in a file of version 2 or later.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let (counts, first) = header(bytes)?;
        let old = counts.bytes(4)?;
        let (counts, rest) = header(first.get(old..)?)?;
        let (block, rest) = rest.split_at_checked(counts.bytes(8)?)?;
        let (times, block) = block.split_at_checked(counts.times.checked_mul(8)?)?;
        let (kinds, block) = block.split_at_checked(counts.times)?;
        let distance = |kind: usize| {
            let at = kind.checked_mul(6)?;
            let bytes = block.get(at..at.checked_add(4)?)?;
            Some(i64::from(i32::from_be_bytes(bytes.try_into().ok()?)))
        };
        let times = times.as_chunks::<8>().0.iter().map(|time| i64::from_be_bytes(*time));
        let changes: Option<Vec<_>> =
            times.zip(kinds).map(|(time, kind)| Some((time, distance((*kind).into())?))).collect();
        let footer = rest.strip_prefix(b"\n")?;
        let footer = std::str::from_utf8(footer.split(|byte| *byte == b'\n').next()?).ok()?;
        Some(Self { changes: changes?, first_s: distance(0)?, rule: rule(footer) })
    }

    /// Seconds by which local time is ahead of UTC at a time, in seconds since 1970 UTC.
    fn distance_s(&self, unix_s: i64) -> i64 {
        let at = self.changes.partition_point(|(time, _)| *time <= unix_s);
        match (&self.rule, at.checked_sub(1).and_then(|at| self.changes.get(at))) {
            (Some(rule), _) if at == self.changes.len() => rule.distance_s(unix_s),
            (_, Some((_, distance))) => *distance,
            _ => self.first_s,
        }
    }

    /// Seconds since 1970 of the clock on the wall.
    pub fn local_s(&self, unix_s: u64) -> u64 {
        let distance = self.distance_s(i64::try_from(unix_s).unwrap_or(i64::MAX));
        unix_s.saturating_add_signed(distance)
    }

    /// The time of a clock on the wall, in seconds since 1970 UTC.
    pub fn unix_s(&self, local_s: u64) -> u64 {
        let local = i64::try_from(local_s).unwrap_or(i64::MAX);
        let near = local.saturating_sub(self.distance_s(local));
        local_s.saturating_add_signed(-self.distance_s(near))
    }
}

/// The numbers in a header that determine the length of a block.
struct Counts {
    times: usize,
    kinds: usize,
    letters: usize,
    leaps: usize,
    marks: usize,
}

impl Counts {
    /// Bytes of a block with times of this many bytes.
    fn bytes(&self, time_bytes: usize) -> Option<usize> {
        let times = self.times.checked_mul(time_bytes + 1)?;
        let leaps = self.leaps.checked_mul(time_bytes + 4)?;
        let kinds = self.kinds.checked_mul(6)?;
        [leaps, kinds, self.letters, self.marks]
            .iter()
            .try_fold(times, |sum, n| sum.checked_add(*n))
    }
}

/// The header of a block, and the bytes after it.
fn header(bytes: &[u8]) -> Option<(Counts, &[u8])> {
    let rest = bytes.strip_prefix(b"TZif")?;
    let (head, rest) = rest.split_at_checked(40)?;
    let (version, head) = (head.first()?, head.get(16..)?);
    let mut numbers = head.as_chunks::<4>().0.iter().map(|number| u32::from_be_bytes(*number));
    let mut next = || usize::try_from(numbers.next()?).ok();
    let marks = next()?.checked_add(next()?)?;
    let (leaps, times, kinds, letters) = (next()?, next()?, next()?, next()?);
    (*version >= b'2').then_some((Counts { times, kinds, letters, leaps, marks }, rest))
}

fn rule(text: &str) -> Option<Rule> {
    let (standard_s, rest) = distance(after_name(text)?)?;
    if rest.is_empty() {
        return Some(Rule { standard_s, summer: None });
    }
    let rest = after_name(rest)?;
    let (distance_s, rest) =
        if rest.starts_with(',') { (standard_s + 3600, rest) } else { distance(rest)? };
    let mut turns = rest.strip_prefix(',')?.split(',').map(turn);
    let summer = Summer { distance_s, begin: turns.next()??, end: turns.next()?? };
    turns.next().is_none().then_some(Rule { standard_s, summer: Some(summer) })
}

/// What follows a zone's name: at least three letters, or anything in angle brackets.
fn after_name(text: &str) -> Option<&str> {
    if let Some(quoted) = text.strip_prefix('<') {
        return quoted.split_once('>').map(|(_, rest)| rest);
    }
    let end = text.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(text.len());
    text.get(end..).filter(|_| end >= 3)
}

/// Seconds ahead of UTC (POSIX writes seconds behind UTC), and the text that follows.
fn distance(text: &str) -> Option<(i64, &str)> {
    let end = text.find(|c: char| !(c.is_ascii_digit() || "+-:".contains(c)));
    let (number, rest) = text.split_at(end.unwrap_or(text.len()));
    Some((-seconds(number)?, rest))
}

/// Seconds of `[+-]h[:m[:s]]`, at most a week.
fn seconds(text: &str) -> Option<i64> {
    let is_negative = text.starts_with('-');
    let mut sum = 0_i64;
    let mut unit = 3600;
    for part in text.trim_start_matches(['+', '-']).split(':') {
        sum += part.parse::<i64>().ok().filter(|part| (0..=167).contains(part))? * unit;
        unit /= 60;
    }
    Some(if is_negative { -sum } else { sum })
}

/// `M3.5.0/2`. Rules by day of the year, which only a few zones of tzdata have, are not supported;
/// such zones have standard time only.
fn turn(text: &str) -> Option<Turn> {
    let (day, time) = text.split_once('/').unwrap_or((text, "2"));
    let mut numbers = day.strip_prefix('M')?.split('.').map(|number| number.parse::<i64>().ok());
    let mut next = |range: std::ops::RangeInclusive<i64>| {
        numbers.next().flatten().filter(|number| range.contains(number))
    };
    let (month, week, day) = (next(1..=12)?, next(1..=5)?, next(0..=6)?);
    Some(Turn { month, week, day, time_s: seconds(time)? })
}

impl Rule {
    fn distance_s(&self, unix_s: i64) -> i64 {
        let Some(summer) = &self.summer else { return self.standard_s };
        let year = year(unix_s.saturating_add(self.standard_s));
        let begin = summer.begin.local_s(year) - self.standard_s;
        let end = summer.end.local_s(year) - summer.distance_s;
        let is_summer = if begin < end {
            (begin..end).contains(&unix_s)
        } else {
            !(end..begin).contains(&unix_s)
        };
        if is_summer { summer.distance_s } else { self.standard_s }
    }
}

impl Turn {
    /// Seconds since 1970 of the clock on the wall, in a year.
    fn local_s(&self, year: i64) -> i64 {
        let first = days(year, self.month);
        let next = if self.month == 12 { days(year + 1, 1) } else { days(year, self.month + 1) };
        // 1970 began on a Thursday.
        let to_day = (self.day - (first + 4)).rem_euclid(7);
        let mut day = first + to_day + (self.week - 1) * 7;
        while day >= next {
            day -= 7;
        }
        day * DAY_S + self.time_s
    }
}

/// Days from 1970 to the start of a month, in the Gregorian calendar.
fn days(year: i64, month: i64) -> i64 {
    // March is the first month of a year here, so that leap days are at its end.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let leaps = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    // Days of months from March on: 31, 30, 31, 30, 31, and again.
    year * 365 + leaps + (153 * month + 2) / 5 - 719_468
}

/// The year of a time in seconds since 1970.
fn year(local_s: i64) -> i64 {
    let day = local_s.div_euclid(DAY_S).clamp(-719_468, 1 << 40);
    let near = 1970 + day.div_euclid(366);
    (near..).take_while(|year| days(*year, 1) <= day).last().unwrap_or(near)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `date +%z` says for Europe/Berlin, around the turns of 2025 and in the far future.
    #[test]
    fn a_rule_turns_the_clock() {
        let berlin = Zone::of_rule("CET-1CEST,M3.5.0,M10.5.0/3").unwrap();
        for (unix_s, hours) in [
            (0, 1),
            (1_743_296_399, 1),
            (1_743_296_400, 2),
            (1_761_440_399, 2),
            (1_761_440_400, 1),
            (4_118_310_000, 2),
        ] {
            assert_eq!(berlin.distance_s(unix_s), hours * 3600, "{unix_s}");
        }
        // Summer is around the new year.
        let sydney = Zone::of_rule("AEST-10AEDT,M10.1.0,M4.1.0/3").unwrap();
        assert_eq!(
            (sydney.distance_s(1_736_000_000), sydney.distance_s(1_752_000_000)),
            (39600, 36000)
        );
        let kathmandu = Zone::of_rule("<+0545>-5:45").unwrap();
        assert_eq!((kathmandu.local_s(0), kathmandu.unix_s(20_700)), (20_700, 0));
        for text in
            ["", "C", "CET", "CET-1CEST", "CET-1CEST,J60,J300", "<x", "CET-1000", "CET--", "UTC0x"]
        {
            assert_eq!(Zone::of_rule(text), None, "{text}");
        }
    }

    /// A zone of two kinds and one change, then a rule, in the form of RFC 9636.
    fn file() -> Vec<u8> {
        let header = |times: u32, kinds: u32, letters: u32| {
            let mut bytes = b"TZif2".to_vec();
            bytes.extend([0; 15]);
            for number in [0, 0, 0, times, kinds, letters] {
                bytes.extend(number.to_be_bytes());
            }
            bytes
        };
        let mut bytes = header(0, 1, 1);
        bytes.extend([0; 7]);
        bytes.extend(header(1, 2, 4));
        bytes.extend(1000_i64.to_be_bytes());
        bytes.push(1);
        for distance in [60_i32, 7200] {
            bytes.extend(distance.to_be_bytes());
            bytes.extend([0; 2]);
        }
        bytes.extend(*b"LMT\0\nEET-2\n");
        bytes
    }

    #[test]
    fn a_file_has_changes_and_a_rule_and_damage_is_none() {
        let zone = Zone::parse(&file()).unwrap();
        assert_eq!(
            [0, 999, 1000, i64::MAX].map(|time| zone.distance_s(time)),
            [60, 60, 7200, 7200]
        );
        for cut in 0..file().len() - 7 {
            assert_eq!(Zone::parse(&file()[..cut]), None, "{cut}");
        }
        for at in 0..file().len() {
            for byte in [0, 1, 0x7f, 0xff] {
                let mut changed = file();
                changed[at] = byte;
                if let Some(zone) = Zone::parse(&changed) {
                    let _ = (zone.local_s(u64::MAX), zone.unix_s(0), zone.unix_s(1 << 40));
                }
            }
        }
    }
}
