//! The time of rows over the last minutes, as bars.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use report::TopRow;

/// Time that bars show.
const SPAN: Duration = Duration::from_secs(300);
/// Characters of a row's bars, each of 30 s.
pub(super) const BARS: usize = 10;
/// Most rows of one answer that are remembered, those with the most time.
const ROWS_MAX: usize = 300;
const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// What tells rows apart: image, procedure, command, and process or 0.
type Key = (String, String, String, u32);

/// The time of the rows of each answer, the newest last.
#[derive(Debug, Default)]
pub(super) struct History {
    steps: VecDeque<(Duration, HashMap<Key, f64>)>,
}

/// Bars by row.
pub(super) type Bars = HashMap<Key, [f64; BARS]>;

fn key(row: &TopRow) -> Key {
    let names = (row.image.clone(), row.procedure.clone(), row.command.clone());
    (names.0, names.1, names.2, row.pid.unwrap_or(0))
}

/// The row's time, or its samples where the event counts no time.
fn time(row: &TopRow) -> f64 {
    row.seconds.unwrap_or(row.samples as f64)
}

impl History {
    /// Adds the rows of an answer for this time, each view's with the most time first.
    pub(super) fn add(&mut self, span: Duration, views: impl Iterator<Item = Vec<TopRow>>) {
        let rows = views.flat_map(|rows| rows.into_iter().take(ROWS_MAX));
        self.steps.push_back((span, rows.map(|row| (key(&row), time(&row))).collect()));
        // The oldest goes when those after it fill the time.
        while self.steps.iter().skip(1).map(|(span, _)| *span).sum::<Duration>() >= SPAN {
            self.steps.pop_front();
        }
    }

    /// The bars of all rows.
    pub(super) fn bars(&self) -> Bars {
        let mut bars = Bars::new();
        let mut ago = Duration::ZERO;
        for (span, rows) in self.steps.iter().rev() {
            // An answer counts where its middle is.
            let middle = ago.saturating_add(*span / 2).as_secs_f64() / SPAN.as_secs_f64();
            let back = ((middle * BARS as f64) as usize).min(BARS - 1);
            ago = ago.saturating_add(*span);
            for (key, time) in rows {
                let of_row = bars.entry(key.clone()).or_default();
                of_row.iter_mut().rev().skip(back).take(1).for_each(|sum| *sum += time);
            }
        }
        bars
    }
}

/// A row's bars, the highest of which is full; blank where it took no time or was not watched.
pub(super) fn text(bars: &Bars, row: &TopRow) -> String {
    let Some(of_row) = bars.get(&key(row)) else { return String::new() };
    let most = of_row.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    let level = |time: &f64| match *time > 0.0 {
        false => ' ',
        true => {
            let at = (time / most * (LEVELS.len() - 1) as f64).round() as usize;
            LEVELS.get(at).copied().unwrap_or('█')
        }
    };
    of_row.iter().map(level).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(procedure: &str, seconds: f64) -> TopRow {
        TopRow { procedure: procedure.to_owned(), seconds: Some(seconds), ..TopRow::default() }
    }

    #[test]
    fn bars_are_of_the_last_minutes_the_newest_to_the_right() {
        let mut history = History::default();
        let half_a_minute = Duration::from_secs(30);
        for at in 0..12 {
            let rows = vec![row("steady", 2.0), row("rising", f64::from(at))];
            history.add(half_a_minute, std::iter::once(rows));
        }
        history.add(half_a_minute, std::iter::once(vec![row("steady", 2.0)]));
        let bars = history.bars();
        assert_eq!(text(&bars, &row("steady", 0.0)), "██████████");
        assert_eq!(text(&bars, &row("rising", 0.0)), "▃▄▄▅▅▆▇▇█ ");
        assert_eq!(text(&bars, &row("another", 0.0)), "");
    }
}
