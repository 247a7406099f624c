//! The screen of `dcpi top`: its contents and its keys. The module knows no terminal.

use image::without_suffix;
use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use ratatui::termion::event::Key;

use super::window::{Sort, Wanted};
use names::shorten::{Suffixes, fit as fit_procedure, shorten};
use report::{TopReport, TopRow, counted, escape};

/// Widths of the columns samples, share and interval, in characters: enough for most numbers.
const SAMPLES_WIDTH: usize = 11;
const SHARE_WIDTH: usize = 6;
const INTERVAL_WIDTH: usize = 12;
/// Narrower terminals do without the interval, and then without samples.
const INTERVAL_FROM: u16 = 60;
const SAMPLES_FROM: u16 = 40;
/// An image's name takes a third of the names' room, within these.
const IMAGE_WIDTH: (usize, usize) = (8, 32);
const FILTER_MAX: usize = 100;
const KEYS: &str =
    "q quit  space freeze  s sort  i images  / filter  a all/latest  I idle  e event  z zero";

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    Draw,
    Quit,
    Zero,
}

#[derive(Debug, Default)]
pub(super) struct Screen {
    pub(super) wanted: Wanted,
    /// Whether new samples leave the screen as it is.
    pub(super) frozen: bool,
    /// Error of the last request to dcpid.
    pub(super) trouble: Option<String>,
    typed: Option<String>,
    first: usize,
    /// Rows on a page, when it was drawn last.
    page: usize,
}

impl Screen {
    pub(super) fn new(wanted: Wanted) -> Self {
        Self { wanted, ..Self::default() }
    }

    /// Handles a key. `events` is the number of events that are sampled.
    pub(super) fn key(&mut self, key: Key, events: usize) -> Ask {
        if let Some(mut typed) = self.typed.take() {
            match key {
                Key::Char('\n') => {}
                Key::Esc => typed.clear(),
                Key::Backspace => drop(typed.pop()),
                Key::Ctrl('u') => typed.clear(),
                Key::Ctrl('c') => return Ask::Quit,
                Key::Char(c) if !c.is_control() && typed.len() < FILTER_MAX => typed.push(c),
                _ => {}
            }
            self.wanted.filter.clone_from(&typed);
            self.first = 0;
            self.typed = (!matches!(key, Key::Char('\n') | Key::Esc)).then_some(typed);
            return Ask::Draw;
        }
        let page = self.page.max(1);
        match key {
            Key::Char('q') | Key::Ctrl('c') => return Ask::Quit,
            Key::Esc if self.wanted.filter.is_empty() => return Ask::Quit,
            Key::Esc => self.wanted.filter.clear(),
            Key::Char('z') => return Ask::Zero,
            Key::Char(' ' | 'p') => self.frozen = !self.frozen,
            Key::Char('s') => {
                self.wanted.sort = match self.wanted.sort {
                    Sort::Samples => Sort::Procedure,
                    Sort::Procedure => Sort::Image,
                    Sort::Image => Sort::Samples,
                }
            }
            Key::Char('i') => self.wanted.by_image = !self.wanted.by_image,
            Key::Char('a') => self.wanted.all = !self.wanted.all,
            Key::Char('I') => self.wanted.idle = !self.wanted.idle,
            Key::Char('e') => {
                self.wanted.event = (self.wanted.event + 1).checked_rem(events).unwrap_or(0)
            }
            Key::Char('/') => self.typed = Some(self.wanted.filter.clone()),
            Key::Down | Key::Char('j') => self.first = self.first.saturating_add(1),
            Key::Up | Key::Char('k') => self.first = self.first.saturating_sub(1),
            Key::PageDown => self.first = self.first.saturating_add(page),
            Key::PageUp => self.first = self.first.saturating_sub(page),
            Key::Home | Key::Char('g') => self.first = 0,
            Key::End | Key::Char('G') => self.first = usize::MAX,
            _ => {}
        }
        Ask::Draw
    }

    pub(super) fn draw(&mut self, frame: &mut Frame<'_>, report: &TopReport) {
        let area = frame.area();
        self.draw_on(frame.buffer_mut(), area, report);
    }

    fn draw_on(&mut self, buffer: &mut Buffer, area: Rect, report: &TopReport) {
        // Three lines above the rows, and one below them where there is room.
        let foot = u16::from(area.height > 5);
        let page = usize::from(area.height.saturating_sub(3 + foot));
        self.page = page;
        self.first = self.first.min(report.rows.len().saturating_sub(page));
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let reversed = Style::new().add_modifier(Modifier::REVERSED);
        let frozen = if self.frozen { "  FROZEN (space)" } else { "" };
        let of = if self.wanted.all { " since the start" } else { "" };
        let head =
            if report.event.is_empty() { "waiting for samples".to_owned() } else { report.head() };
        line(buffer, area, 0, &format!("dcpi top  {head}{of}{frozen}"), bold);
        line(buffer, area, 1, &self.second(report), Style::new());
        line(buffer, area, 2, &row_line(&titles(), area.width, self.wanted.by_image), reversed);
        let suffixes = report.suffixes();
        for (at, row) in (3..).zip(report.rows.iter().skip(self.first).take(page)) {
            line(
                buffer,
                area,
                at,
                &row_line(&cells(row, &suffixes), area.width, self.wanted.by_image),
                Style::new(),
            );
        }
        if report.rows.is_empty() && page > 0 {
            let none = if self.wanted.filter.is_empty() {
                "no samples yet"
            } else {
                "no row matches the filter"
            };
            line(buffer, area, 3, none, Style::new());
        }
        if foot > 0 {
            let last = area.height - 1;
            match (&self.trouble, &self.typed) {
                (_, Some(typed)) => line(
                    buffer,
                    area,
                    last,
                    &format!("filter: {typed}_  (Enter keeps, Esc clears)"),
                    bold,
                ),
                (Some(trouble), None) => line(buffer, area, last, &escape(trouble), bold),
                (None, None) => line(buffer, area, last, KEYS, Style::new()),
            }
        }
    }

    fn second(&self, report: &TopReport) -> String {
        let sort = match self.wanted.sort {
            Sort::Samples => "samples",
            Sort::Procedure => "procedure",
            Sort::Image => "image",
        };
        let filter = match self.wanted.filter.as_str() {
            "" => String::new(),
            filter => format!("; only with {:?}", escape(filter)),
        };
        let first =
            if self.first > 0 { format!("; from row {}", self.first + 1) } else { String::new() };
        // Settings changed by keys come first, because narrow terminals cut off the rest.
        format!(
            "{} by {sort}{filter}{first}; {}",
            counted(report.rows.len() as u64, "row"),
            report.foot()
        )
    }
}

/// Samples, share, interval, procedure, image.
type Cells = [String; 5];

fn titles() -> Cells {
    ["samples", "%", "low–high", "procedure", "image"].map(str::to_owned)
}

fn cells(row: &TopRow, suffixes: &Suffixes<'_>) -> Cells {
    let [samples, share, interval] = row.numbers();
    let procedure = if suffixes.needed(&row.image, &row.procedure) {
        &row.procedure
    } else {
        without_suffix(&row.procedure)
    };
    [samples, share, interval, escape(procedure).into_owned(), escape(&row.image).into_owned()]
}

/// A row as wide as the terminal, with as many columns as fit.
fn row_line(
    [samples, share, interval, procedure, image]: &Cells,
    width: u16,
    by_image: bool,
) -> String {
    let mut text = String::new();
    if width >= SAMPLES_FROM {
        text.push_str(&format!("{samples:>SAMPLES_WIDTH$}  "));
    }
    text.push_str(&format!("{share:>SHARE_WIDTH$}  "));
    if width >= INTERVAL_FROM {
        text.push_str(&format!("{interval:>INTERVAL_WIDTH$}  "));
    }
    let room = usize::from(width).saturating_sub(text.chars().count());
    // By image the few that are in none stand where images do.
    if by_image {
        let name = if image.is_empty() { procedure } else { image };
        text.push_str(&fit(shorten, name, room));
        return text;
    }
    let of_image = (room / 3).clamp(IMAGE_WIDTH.0, IMAGE_WIDTH.1).min(room);
    let of_procedure = room.saturating_sub(of_image + 2);
    let procedure = fit(fit_procedure, procedure, of_procedure);
    text.push_str(&format!("{procedure:of_procedure$}  {}", fit(shorten, image, of_image)));
    text
}

/// A name of at most `most` characters; `cut` shortens longer names if at least three fit.
fn fit(cut: fn(&str, usize) -> String, name: &str, most: usize) -> String {
    cut(name, most).chars().take(most).collect()
}

/// Writes a line; what does not fit is cut.
fn line(buffer: &mut Buffer, area: Rect, at: u16, text: &str, style: Style) {
    if at < area.height && area.width > 0 {
        let width = usize::from(area.width);
        // The whole line has the style.
        let text = format!("{text:width$}");
        buffer.set_stringn(area.x, area.y + at, text, width, style);
    }
}

#[cfg(test)]
mod tests {
    use super::super::names::Named;
    use super::super::window::Window;
    use super::super::window::tests::{counts, named};
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use stats::Confidence;
    use std::time::Duration;

    fn window(named: Named) -> Window {
        let mut window = Window::new(Duration::from_secs(10));
        window.add(&counts(2000), named);
        window
    }

    fn drawn(screen: &mut Screen, window: &Window, width: u16, height: u16) -> String {
        let report = window.report(&screen.wanted, Confidence::from_percent(95.0).unwrap());
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| screen.draw(frame, &report)).unwrap();
        let buffer = terminal.backend().buffer();
        let row = |y| {
            (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned()
        };
        (0..height).map(row).collect::<Vec<_>>().join("\n")
    }

    fn keys(screen: &mut Screen, keys: &str) {
        keys.chars().for_each(|c| assert_ne!(screen.key(Key::Char(c), 2), Ask::Quit, "{c}"));
    }

    fn example() -> Window {
        window(named(&[
            ("[kernel]", "copy_page", 9000),
            ("libc.so.6", "memcpy", 1000),
            ("app", "<alloc::vec::Vec<T> as core::iter::Extend<T>>::extend_desugared", 12),
            ("[idle]", "wait", 10_012),
            ("", "[unresolved: no mapping]", 3),
        ]))
    }

    #[test]
    fn a_screen_of_80_columns() {
        let expected = "\
dcpi top  cycles: 20,027 samples in 2.0 s, 49.99 % idle, 1 lost
4 rows by samples; shares of 10,015 samples, intervals of 95 % confidence
    samples       %      low–high  procedure                      image
      9,000   89.87   89.26–90.44  copy_page                      [kernel]
      1,000    9.99    9.41–10.59  memcpy                         libc.so.6
         12    0.12     0.07–0.21  …extend_desugared              app
          3    0.03     0.01–0.09  [unresolved: no mapping]

q quit  space freeze  s sort  i images  / filter  a all/latest  I idle  e event
";
        let found = drawn(&mut Screen::default(), &example(), 80, 9);
        for (found, expected) in found.lines().zip(expected.lines()) {
            // The columns of names share the remaining width.
            let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
            assert_eq!(words(found), words(expected));
        }
    }

    #[test]
    fn keys_change_what_is_shown() {
        let (mut screen, window) = (Screen::default(), example());
        keys(&mut screen, "i");
        assert!(drawn(&mut screen, &window, 80, 9).contains("9.99    9.41–10.59  libc.so.6"));
        keys(&mut screen, "I");
        assert!(drawn(&mut screen, &window, 80, 9).contains("[idle]"));
        keys(&mut screen, "iIs/mem");
        let typing = drawn(&mut screen, &window, 80, 9);
        assert!(
            typing.contains("filter: mem_")
                && typing.contains("1 row by procedure; only with \"mem\""),
            "{typing}"
        );
        keys(&mut screen, "q\n");
        assert!(drawn(&mut screen, &window, 80, 9).contains("no row matches the filter"));
        assert_eq!(screen.key(Key::Esc, 2), Ask::Draw, "the filter goes first");
        keys(&mut screen, "ess G");
        let end = drawn(&mut screen, &window, 80, 9);
        assert!(end.contains("FROZEN"), "{end}");
        assert_eq!((screen.wanted.event, screen.wanted.sort), (1, Sort::Samples));
        assert_eq!(screen.key(Key::Char('z'), 2), Ask::Zero);
        for key in [Key::Char('q'), Key::Ctrl('c'), Key::Esc] {
            assert_eq!(Screen::default().key(key, 0), Ask::Quit);
        }
        assert_eq!(Screen::default().key(Key::Char('e'), 0), Ask::Draw, "no events yet");
    }

    #[test]
    fn rows_scroll_and_stop_at_the_end() {
        let rows: Vec<_> = (0..50).map(|at| ("a", format!("f{at:02}"), 100 - at)).collect();
        let rows: Vec<_> =
            rows.iter().map(|(image, name, n)| (*image, name.as_str(), *n)).collect();
        let (mut screen, window) = (Screen::default(), window(named(&rows)));
        let shown = |screen: &mut Screen| drawn(screen, &window, 80, 14);
        assert!(shown(&mut screen).contains("f09") && !shown(&mut screen).contains("f10"));
        screen.key(Key::PageDown, 1);
        assert!(shown(&mut screen).contains("f10") && shown(&mut screen).contains("from row 11"));
        screen.key(Key::End, 1);
        screen.key(Key::Down, 1);
        assert!(shown(&mut screen).contains("f49") && shown(&mut screen).contains("f40"));
        screen.key(Key::Home, 1);
        assert!(shown(&mut screen).contains("f00"));
    }

    /// Every size draws, and what a procedure's name holds reaches no terminal.
    #[test]
    fn any_size_and_any_name() {
        let hostile = named(&[
            ("im\x1b[2Jage", "\x1b]0;x\x07名前の長い手続き\u{202e}", u64::MAX),
            ("", "", 1),
            ("a", "", 1),
        ]);
        for named in [hostile, Named::new()] {
            let window = window(named);
            for by_image in [false, true] {
                for width in (0..70).chain([200, 1000]) {
                    for height in [0, 1, 2, 3, 4, 5, 6, 7, 50] {
                        let mut screen = Screen::default();
                        screen.wanted.by_image = by_image;
                        screen.trouble = Some("gone\x1b[2J".to_owned());
                        let text = drawn(&mut screen, &window, width, height);
                        assert!(
                            !text.contains('\x1b') && !text.contains('\u{202e}'),
                            "{width}x{height}: {text}"
                        );
                    }
                }
            }
        }
    }
}
