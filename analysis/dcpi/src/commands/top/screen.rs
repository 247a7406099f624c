//! The screen of `dcpi top`: its contents and its keys. The module knows no terminal.

use image::without_suffix;
use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use ratatui::termion::event::Key;

use super::calls::Process;
use super::history::BARS;
use super::listing::Line;
use super::window::{Sort, View, Wanted};
use names::shorten::{Suffixes, fit as fit_procedure, shorten};
use report::{TopReport, TopRow, counted, escape};

/// Widths of the columns samples, share and interval, in characters: enough for most numbers.
const SAMPLES_WIDTH: usize = 11;
const SHARE_WIDTH: usize = 6;
const INTERVAL_WIDTH: usize = 12;
/// Narrower terminals do without the interval, and then without samples.
const INTERVAL_FROM: u16 = 60;
const SAMPLES_FROM: u16 = 40;
/// Narrower terminals do without the last minutes.
const HISTORY_FROM: u16 = 100;
/// An image's name takes a third of the names' room, within these.
const IMAGE_WIDTH: (usize, usize) = (8, 32);
const FILTER_MAX: usize = 100;
/// Share of a procedure's samples from which on an instruction is bold.
const HOT: f64 = 0.1;
const KEYS: &str =
    "? help  q quit  Enter into  c commands  i images  / filter  s sort  space freeze";
/// What `?` shows.
const HELP: &[&str] = &[
    "Enter, Right  into the row: the procedures of a command, process or image; the callers and",
    "              instructions of a procedure",
    "Left, Esc     back; the filter goes first; q ends",
    "c             by procedure, command, process in turn (of call stacks); i: by image",
    "s             sorts by samples, procedure, image, time with calls in turn",
    "/             shows only rows with this text; Enter keeps it, Esc clears it",
    "space, p      freezes the screen; what comes meanwhile is counted",
    "a             all since the start, or the last seconds; z starts at zero",
    "e             the next event; I: with the idle loop",
    "up, down, page, Home, End (j, k, g, G) move",
    "",
    "seconds and CPUs are the row's own; 1.00 CPUs is one CPU that is busy all the time; bars are",
    "its last 5 minutes, each of 30 s, the highest full (100 columns and more)",
];
/// Callers that a procedure's page shows.
const CALLERS: usize = 6;

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    Draw,
    Quit,
    Zero,
    /// Into the chosen row.
    Into,
}

/// The page of a procedure.
#[derive(Clone, Debug, Default)]
pub(super) struct Page {
    pub(super) image: String,
    pub(super) procedure: String,
    /// With the seconds, or occurrences, of the procedure that are theirs.
    pub(super) callers: Vec<(String, f64)>,
    /// Causes of its time, a line each; none until they are found.
    pub(super) causes: Option<Vec<String>>,
    /// Source lines and instructions; none until they are read.
    pub(super) lines: Option<Vec<Line>>,
}

#[derive(Debug, Default)]
pub(super) struct Screen {
    pub(super) wanted: Wanted,
    /// Whether new samples leave the screen as it is.
    pub(super) frozen: bool,
    /// Error of the last request to dcpid.
    pub(super) trouble: Option<String>,
    typed: Option<String>,
    pub(super) page_of: Option<Page>,
    is_help: bool,
    chosen: usize,
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
        if std::mem::take(&mut self.is_help) && key != Key::Ctrl('c') {
            return Ask::Draw;
        }
        match key {
            Key::Char('q') | Key::Ctrl('c') => return Ask::Quit,
            Key::Char('?') => self.is_help = true,
            Key::Char('\n') | Key::Right if self.page_of.is_none() => return Ask::Into,
            Key::Esc | Key::Left | Key::Backspace if self.page_of.is_some() => {
                (self.page_of, self.first) = (None, 0);
            }
            Key::Esc if self.wanted.filter.is_empty() && self.wanted.inside.is_some() => {
                self.leave();
            }
            Key::Esc if self.wanted.filter.is_empty() => return Ask::Quit,
            Key::Esc => self.wanted.filter.clear(),
            Key::Left | Key::Backspace => self.leave(),
            Key::Char('c') => {
                let view = match self.wanted.view {
                    View::Procedures | View::Images => View::Commands,
                    View::Commands => View::Processes,
                    View::Processes => View::Procedures,
                };
                self.show(view);
                self.wanted.inside = None;
            }
            Key::Char('z') => return Ask::Zero,
            Key::Char(' ' | 'p') => self.frozen = !self.frozen,
            Key::Char('s') => {
                self.wanted.sort = match self.wanted.sort {
                    Sort::Samples => Sort::Procedure,
                    Sort::Procedure => Sort::Image,
                    Sort::Image => Sort::Inclusive,
                    Sort::Inclusive => Sort::Samples,
                }
            }
            Key::Char('i') => {
                let is_images = self.wanted.view == View::Images;
                self.show(if is_images { View::Procedures } else { View::Images });
            }
            Key::Char('a') => self.wanted.all = !self.wanted.all,
            Key::Char('I') => self.wanted.idle = !self.wanted.idle,
            Key::Char('e') => {
                self.wanted.event = (self.wanted.event + 1).checked_rem(events).unwrap_or(0)
            }
            Key::Char('/') => self.typed = Some(self.wanted.filter.clone()),
            Key::Down | Key::Char('j') => self.go(1, 0),
            Key::Up | Key::Char('k') => self.go(-1, 0),
            Key::PageDown => self.go(page as isize, page as isize),
            Key::PageUp => self.go(-(page as isize), -(page as isize)),
            Key::Home | Key::Char('g') => self.go(isize::MIN, isize::MIN),
            Key::End | Key::Char('G') => self.go(isize::MAX, isize::MAX),
            _ => {}
        }
        Ask::Draw
    }

    /// Moves the chosen row, and the first that is shown. A procedure's page has no chosen line.
    fn go(&mut self, by: isize, first_by: isize) {
        let first_by = if self.page_of.is_some() { by } else { first_by };
        self.chosen = self.chosen.saturating_add_signed(by);
        self.first = self.first.saturating_add_signed(first_by);
    }

    fn show(&mut self, view: View) {
        (self.wanted.view, self.chosen, self.first) = (view, 0, 0);
    }

    /// Out of a command or process.
    fn leave(&mut self) {
        if let Some((_, pid)) = self.wanted.inside.take() {
            self.show(if pid > 0 { View::Processes } else { View::Commands });
        }
    }

    /// Goes into the chosen row: the page of a procedure is to be filled, or the rows change.
    pub(super) fn go_into(&mut self, report: &TopReport) {
        let Some(row) = report.rows.get(self.chosen) else { return };
        if !row.command.is_empty() {
            let inside: Process = (row.command.clone(), row.pid.unwrap_or(0));
            self.wanted.inside = Some(inside);
            self.show(View::Procedures);
        } else if self.wanted.view == View::Images {
            self.wanted.filter.clone_from(&row.image);
            self.show(View::Procedures);
        } else {
            let (image, procedure) = (row.image.clone(), row.procedure.clone());
            self.page_of = Some(Page { image, procedure, ..Page::default() });
            self.first = 0;
        }
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
        if self.is_help {
            let lines = ["dcpi top: keys", ""].iter().chain(HELP);
            (0..).zip(lines).for_each(|(at, text)| line(buffer, area, at, text, Style::new()));
            return;
        }
        if self.page_of.is_some() {
            return self.draw_page(buffer, area, report);
        }
        let rows = report.rows.len();
        self.chosen = self.chosen.min(rows.saturating_sub(1));
        let least = self.chosen.saturating_sub(page.saturating_sub(1));
        self.first = self.first.min(rows.saturating_sub(page)).clamp(least, self.chosen.max(least));
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let reversed = Style::new().add_modifier(Modifier::REVERSED);
        let frozen = if self.frozen { "  FROZEN (space)" } else { "" };
        let of = if self.wanted.all { " since the start" } else { "" };
        let head =
            if report.event.is_empty() { "waiting for samples".to_owned() } else { report.head() };
        line(buffer, area, 0, &format!("dcpi top  {head}{of}{frozen}"), bold);
        line(buffer, area, 1, &self.second(report), Style::new());
        let is_timed = report.rows.iter().any(|row| row.seconds.is_some());
        let look = (area.width, self.wanted.view, is_timed);
        line(buffer, area, 2, &row_line(&titles(), look), reversed);
        let suffixes = report.suffixes();
        let shown = report.rows.iter().enumerate().skip(self.first).take(page);
        for (at, (number, row)) in (3..).zip(shown) {
            let style = if number == self.chosen { bold } else { Style::new() };
            line(buffer, area, at, &row_line(&cells(row, &suffixes), look), style);
        }
        if report.rows.is_empty() && page > 0 {
            let none = if self.wanted.filter.is_empty() && report.of_stacks {
                "no call stacks yet; dcpid takes none with --stacks off"
            } else if self.wanted.filter.is_empty() {
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

    /// The page of a procedure: its row, its callers, its instructions.
    fn draw_page(&mut self, buffer: &mut Buffer, area: Rect, report: &TopReport) {
        let Some(page) = &self.page_of else { return };
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let is_it = |row: &&TopRow| row.image == page.image && row.procedure == page.procedure;
        let row = report.rows.iter().find(is_it).map_or(String::new(), |row| {
            let [_, share, _] = row.numbers();
            let cpus = row.cpus.map_or(String::new(), |cpus| format!(", {cpus:.2} CPUs"));
            let with = row.inclusive_s.map_or(String::new(), |s| format!(", {s:.2} s with calls"));
            let seconds = row.seconds.map_or(String::new(), |s| format!(", {s:.2} s"));
            format!("{share} %{seconds}{cpus}{with}")
        });
        let head = format!("{} of {}: {row}", page.procedure, page.image);
        let mut lines: Vec<(String, Style)> = vec![(escape(&head).into_owned(), bold)];
        let history = report.rows.iter().find(is_it).map(|row| row.history.as_str());
        if let Some(history) = history.filter(|history| !history.trim().is_empty()) {
            lines.push((format!("{history}  in the last 5 minutes"), Style::new()));
        }
        let looking = ["looking for causes in the database".to_owned()];
        for cause in page.causes.as_deref().unwrap_or(&looking) {
            lines.push((format!("why: {}", escape(cause)), Style::new()));
        }
        let all: f64 = page.callers.iter().map(|(_, time)| time).sum();
        for (caller, time) in page.callers.iter().take(CALLERS) {
            let share = 100.0 * time / all.max(f64::MIN_POSITIVE);
            let text = format!("{share:>6.2} %  called by {}", escape(caller));
            lines.push((text, Style::new()));
        }
        lines.push((String::new(), Style::new()));
        let room = usize::from(area.height).saturating_sub(lines.len() + 1);
        let code = page.lines.as_deref().unwrap_or_default();
        if code.is_empty() {
            let none = match page.lines {
                Some(_) => "no instructions: its code is in no file here",
                None => "reading its code",
            };
            lines.push((none.to_owned(), Style::new()));
        }
        self.page = room;
        self.first = self.first.min(code.len().saturating_sub(room));
        let samples: u64 = code.iter().filter_map(|line| line.samples).sum();
        for Line { samples: of_line, text } in code.iter().skip(self.first).take(room) {
            let text = escape(text);
            let share = of_line.map_or(0.0, |of| of as f64 / samples.max(1) as f64);
            let style = if share >= HOT { bold } else { Style::new() };
            lines.push(match of_line {
                Some(0) => (format!("{:10}{text}", ""), style),
                Some(_) => (format!("{:>6.2} %  {text}", 100.0 * share), style),
                None => (text.into_owned(), style),
            });
        }
        let last = area.height.saturating_sub(1);
        for (at, (text, style)) in (0..last).zip(&lines) {
            line(buffer, area, at, text, *style);
        }
        let frozen = if self.frozen { "FROZEN  " } else { "" };
        let keys = "Left, Esc back  arrows, pages move  space freeze  ? help  q quit";
        line(buffer, area, last, &format!("{frozen}{keys}"), Style::new());
    }

    fn second(&self, report: &TopReport) -> String {
        let inside = match &self.wanted.inside {
            Some((command, 0)) => format!(" of {}", escape(command)),
            Some((command, pid)) => format!(" of {} [{pid}]", escape(command)),
            None => String::new(),
        };
        let sort = match self.wanted.sort {
            Sort::Samples => "samples",
            Sort::Procedure => "procedure",
            Sort::Image => "image",
            Sort::Inclusive => "time with calls",
        };
        let filter = match self.wanted.filter.as_str() {
            "" => String::new(),
            filter => format!("; only with {:?}", escape(filter)),
        };
        let first =
            if self.first > 0 { format!("; from row {}", self.first + 1) } else { String::new() };
        // Settings changed by keys come first, because narrow terminals cut off the rest.
        format!(
            "{}{inside} by {sort}{filter}{first}; {}",
            counted(report.rows.len() as u64, "row"),
            report.foot()
        )
    }
}

/// The texts of a row.
struct Cells {
    samples: String,
    share: String,
    interval: String,
    seconds: String,
    cpus: String,
    inclusive: String,
    history: String,
    procedure: String,
    image: String,
    command: String,
    pid: String,
}

fn titles() -> Cells {
    let [samples, share, interval, procedure, image] =
        ["samples", "%", "low–high", "procedure", "image"].map(str::to_owned);
    let [seconds, cpus, inclusive, history, command, pid] =
        ["seconds", "CPUs", "with calls", "last 5 min", "command", "pid"].map(str::to_owned);
    Cells {
        samples,
        share,
        interval,
        seconds,
        cpus,
        inclusive,
        history,
        procedure,
        image,
        command,
        pid,
    }
}

fn cells(row: &TopRow, suffixes: &Suffixes<'_>) -> Cells {
    let [samples, share, interval] = row.numbers();
    let procedure = match suffixes.needed(&row.image, &row.procedure) {
        true => &row.procedure,
        false => without_suffix(&row.procedure),
    };
    let number = |value: Option<f64>| value.map(|value| format!("{value:.2}")).unwrap_or_default();
    Cells {
        samples,
        share,
        interval,
        seconds: number(row.seconds),
        cpus: number(row.cpus),
        inclusive: number(row.inclusive_s),
        history: row.history.clone(),
        procedure: escape(procedure).into_owned(),
        image: escape(&row.image).into_owned(),
        command: escape(&row.command).into_owned(),
        pid: row.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string()),
    }
}

/// A row as wide as the terminal, with as many columns as fit: of time, where the event counts it,
/// else of samples.
fn row_line(cells: &Cells, (width, view, is_timed): (u16, View, bool)) -> String {
    let mut text = String::new();
    let Cells { samples, share, interval, seconds, cpus, inclusive, .. } = cells;
    match is_timed {
        true if width >= INTERVAL_FROM => {
            text.push_str(&format!("{seconds:>7}  {cpus:>6}  {share:>SHARE_WIDTH$}  "));
            text.push_str(&format!("{inclusive:>10}  "));
        }
        true if width >= SAMPLES_FROM => {
            text.push_str(&format!("{cpus:>6}  {share:>SHARE_WIDTH$}  "));
        }
        true => text.push_str(&format!("{share:>SHARE_WIDTH$}  ")),
        false => {
            if width >= SAMPLES_FROM {
                text.push_str(&format!("{samples:>SAMPLES_WIDTH$}  "));
            }
            text.push_str(&format!("{share:>SHARE_WIDTH$}  "));
            if width >= INTERVAL_FROM {
                text.push_str(&format!("{interval:>INTERVAL_WIDTH$}  "));
            }
        }
    }
    if width >= HISTORY_FROM {
        text.push_str(&format!("{:BARS$}  ", cells.history));
    }
    let room = usize::from(width).saturating_sub(text.chars().count());
    let Cells { procedure, image, command, pid, .. } = cells;
    match view {
        // The few that are in none stand where images do.
        View::Images => {
            let name = if image.is_empty() { procedure } else { image };
            text.push_str(&fit(shorten, name, room));
        }
        View::Commands => text.push_str(&fit(shorten, command, room)),
        View::Processes => text.push_str(&fit(shorten, &format!("{pid:>8}  {command}"), room)),
        View::Procedures => {
            let of_image = room.div_ceil(3).clamp(IMAGE_WIDTH.0, IMAGE_WIDTH.1).min(room);
            let of_procedure = room.saturating_sub(of_image + 2);
            let procedure = fit(fit_procedure, procedure, of_procedure);
            let image = fit(shorten, image, of_image);
            text.push_str(&format!("{procedure:of_procedure$}  {image}"));
        }
    }
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

? help  q quit  Enter into  c commands  i images  / filter  s sort  space freeze
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
        keys(&mut screen, "esss G");
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
                        screen.wanted.view = if by_image { View::Images } else { View::Processes };
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
