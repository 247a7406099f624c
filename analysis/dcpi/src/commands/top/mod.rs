//! `dcpi top`: what takes the time now, from a running dcpid.

use std::fs::File;
use std::io::{self, IsTerminal as _, Write};
use std::path::PathBuf;
use std::sync::Once;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use clap::{Args, ValueEnum};
use ratatui::Terminal;
use ratatui::backend::TermionBackend;
use ratatui::termion::event::Key;
use ratatui::termion::input::TermRead as _;
use ratatui::termion::raw::IntoRawMode as _;
use ratatui::termion::screen::IntoAlternateScreen as _;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGWINCH};
use wire::Counts;

use super::Outcome;
use crate::options::{DisplayArgs, Output, RowLimit};
use crate::signals;
use query::error::AnalysisError;

mod ask;
mod calls;
mod causes;
mod history;
mod listing;
mod names;
mod screen;
mod window;

use ask::Daemon;
use listing::Line;
use names::{Answer, Label, Names};
use screen::{Ask, Screen};
use window::{View, Wanted, Window, is_in};

/// The daemon forgets who does not ask for 30 s.
const INTERVAL: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(20));
const WINDOW: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(600));

/// `dcpi top`.
#[derive(Debug, Args)]
#[command(
    after_help = NOTES,
    mut_arg("rows", |rows| rows.help("At most N rows with --once, 0 for all"))
)]
pub struct Top {
    /// Time between two updates
    #[arg(
        short = 'd',
        long,
        value_name = "T",
        default_value = "2s",
        value_parser = interval,
        allow_hyphen_values = true
    )]
    pub interval: Duration,
    /// Show the samples of the last T
    #[arg(
        short = 'w',
        long,
        value_name = "T",
        default_value = "10s",
        value_parser = window,
        allow_hyphen_values = true
    )]
    pub window: Duration,
    /// Write one table, of the samples of the next interval, and end; needs no terminal
    #[arg(long)]
    pub once: bool,
    /// A row per image instead of per procedure
    #[arg(short = 'i', long = "images", conflicts_with = "by")]
    pub by_image: bool,
    /// A row per command or process, of call stacks, instead of per procedure
    #[arg(long, value_name = "WHAT", value_enum)]
    pub by: Option<ByProcess>,
    #[command(flatten)]
    pub max: RowLimit,
    /// Show only rows whose image or procedure contains this text; upper and lower case are alike
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub filter: String,
    #[command(flatten)]
    pub look: DisplayArgs,
    /// Control socket of dcpid
    #[arg(long, value_name = "PATH", default_value = "/run/dcpi/control.sock")]
    pub control: PathBuf,
    #[command(flatten)]
    pub output: Output,
}

/// Rows of `dcpi top --by`.
#[derive(Copy, Clone, Debug, PartialEq, Eq, ValueEnum)]
pub enum ByProcess {
    /// Processes of one name are one row.
    Command,
    /// A row for each.
    Process,
}

const NOTES: &str = "\
Keys: ? shows all. Enter goes into a row: from a command or process (c) to its procedures, from a \
procedure to its callers and instructions; Left or Esc goes back. space freezes the screen; s \
sorts; / filters; a switches between all samples since the start and those of the last T; z starts \
at zero; q ends.

Seconds are the row's own time in the last T, CPUs these by T; with calls: the time with all that \
was called, from call stacks. Rows by command and process, and what is in them, are of call stacks.

dcpi top writes nothing to disk. It needs the rights of dcpictl: root, or the group of the \
control socket.";

enum Message {
    Key(Key),
    Answer(Result<Box<(Counts, Answer)>, AnalysisError>),
    /// Source lines and instructions of a procedure.
    Listing(Label, Vec<Line>),
    /// Causes of a procedure's time.
    Causes(Label, Vec<String>),
    Signal(i32),
    /// The terminal has no more input.
    Gone,
}

pub(crate) fn run(args: &Top, out: &mut dyn Write) -> Result<Outcome, AnalysisError> {
    let daemon = Daemon::on(&args.control);
    let terminal = io::stdout().is_terminal() && io::stdin().is_terminal();
    if !args.once && !terminal {
        let why = "dcpi top needs a terminal; use --once for one table";
        return Err(AnalysisError::Refused(why.to_owned()));
    }
    // The watch begins here, and who may not ask is told before the screen is taken.
    daemon.ask()?;
    let wanted = Wanted {
        view: match args.by {
            Some(ByProcess::Command) => View::Commands,
            Some(ByProcess::Process) => View::Processes,
            None if args.by_image => View::Images,
            None => View::Procedures,
        },
        idle: args.look.idle,
        filter: args.filter.clone(),
        ..Wanted::default()
    };
    if args.once { once(args, &daemon, &wanted, out) } else { watch(args, daemon, wanted) }
}

fn once(
    args: &Top,
    daemon: &Daemon,
    wanted: &Wanted,
    out: &mut dyn Write,
) -> Result<Outcome, AnalysisError> {
    std::thread::sleep(args.interval);
    let counts = daemon.ask()?;
    let answer = Names::new(args.look.debug_root.clone()).answer(&counts);
    let mut window = Window::new(args.window);
    window.add(&counts, answer);
    let mut report = window.report(wanted, args.look.confidence);
    report.rows.truncate(args.max.of(report.rows.len()));
    super::write(&report, &args.output, out)
}

/// Shows the screen until the user ends it.
fn watch(args: &Top, daemon: Daemon, wanted: Wanted) -> Result<Outcome, AnalysisError> {
    let (sender, messages) = channel();
    hear_signals(sender.clone())?;
    hear_keys(sender.clone())?;
    let (wishes, wished) = channel();
    let (interval, debug_roots) = (args.interval, args.look.debug_root.clone());
    let worker = std::thread::Builder::new().name("counts".into());
    worker
        .spawn(move || keep_asking(&daemon, Names::new(debug_roots), interval, &sender, &wished))
        .map_err(terminal)?;
    restore_before_a_panic_is_told();
    let screen = io::stdout()
        .into_raw_mode()
        .and_then(|raw| raw.into_alternate_screen())
        .map_err(terminal)?;
    // Both guards restore the terminal when they are dropped, however that comes.
    let mut shown = Terminal::new(TermionBackend::new(screen)).map_err(terminal)?;
    shown.hide_cursor().map_err(terminal)?;
    let ended = show(args, wanted, &mut shown, (&messages, &wishes));
    shown.show_cursor().map_err(terminal)?;
    drop(wishes);
    ended
}

fn show<B: ratatui::backend::Backend<Error = io::Error>>(
    args: &Top,
    wanted: Wanted,
    shown: &mut Terminal<B>,
    (messages, wishes): (&Receiver<Message>, &Sender<Label>),
) -> Result<Outcome, AnalysisError> {
    let mut window = Window::new(args.window);
    let mut screen = Screen::new(wanted);
    let mut report = window.report(&screen.wanted, args.look.confidence);
    // Samples that arrive while the screen is frozen are counted and shown afterwards.
    let mut waiting: Vec<(Counts, Answer)> = Vec::new();
    loop {
        shown.draw(|frame| screen.draw(frame, &report)).map_err(terminal)?;
        let Ok(message) = messages.recv() else {
            return Err(AnalysisError::Refused(
                "a thread of dcpi top has failed; please report this".to_owned(),
            ));
        };
        match message {
            Message::Key(key) => match screen.key(key, window.events.len()) {
                Ask::Draw => {}
                Ask::Quit => return Ok(Outcome::default()),
                Ask::Into => {
                    screen.go_into(&report);
                    if let Some(page) = &screen.page_of {
                        let (image, procedure) = (page.image.clone(), page.procedure.clone());
                        // Where the labelling thread has ended, the next refresh reports its error.
                        let _ = wishes.send(Label { image, procedure, idle: false });
                    }
                }
                Ask::Zero => {
                    window.clear();
                    waiting.clear();
                }
            },
            Message::Answer(Ok(answer)) => {
                screen.trouble = None;
                waiting.push(*answer);
            }
            Message::Listing(of, lines) => {
                let page = screen.page_of.as_mut();
                if let Some(page) = page.filter(|page| page.procedure == of.procedure) {
                    page.lines = Some(lines);
                }
            }
            Message::Causes(of, causes) => {
                let page = screen.page_of.as_mut();
                if let Some(page) = page.filter(|page| page.procedure == of.procedure) {
                    page.causes = Some(causes);
                }
            }
            Message::Answer(Err(error)) => screen.trouble = Some(error.to_string()),
            Message::Signal(SIGWINCH) => {}
            Message::Signal(signal) => {
                return Ok(Outcome { code: u8::try_from(128 + signal).ok(), ..Outcome::default() });
            }
            Message::Gone => return Ok(Outcome::default()),
        }
        if !screen.frozen || waiting.len() > FROZEN_MAX {
            waiting.drain(..).for_each(|(counts, named)| window.add(&counts, named));
        }
        report = window.report(&screen.wanted, args.look.confidence);
        add_callers(&mut screen, &window);
    }
}

/// The callers of the procedure whose page is shown.
fn add_callers(screen: &mut Screen, window: &Window) {
    let inside = screen.wanted.inside.clone();
    let unit = window.unit_s(&screen.wanted).unwrap_or(1.0);
    let Some(page) = &mut screen.page_of else { return };
    let callers = window.calls(&screen.wanted).callers(
        |process| inside.as_ref().is_none_or(|inside| is_in(process, inside)),
        |label| label.image == page.image && label.procedure == page.procedure,
    );
    page.callers = callers.into_iter().map(|(name, time)| (name, time as f64 * unit)).collect();
}

/// Most answers that wait while the screen is frozen; beyond this, it continues by itself.
const FROZEN_MAX: usize = 300;

fn keep_asking(
    daemon: &Daemon,
    mut names: Names,
    interval: Duration,
    sender: &Sender<Message>,
    wished: &Receiver<Label>,
) {
    let mut page: Option<Label> = None;
    loop {
        let message = match wished.recv_timeout(interval) {
            Ok(label) => {
                page = Some(label.clone());
                look_for_causes(daemon, &label, sender);
                Message::Listing(label.clone(), names.listing(&label))
            }
            Err(RecvTimeoutError::Timeout) => Message::Answer(daemon.ask().map(|counts| {
                let answer = names.answer(&counts);
                let counts = Counts { images: Vec::new(), stacks: Vec::new(), ..counts };
                Box::new((counts, answer))
            })),
            Err(RecvTimeoutError::Disconnected) => return,
        };
        // A page goes on to count.
        let is_answer = matches!(message, Message::Answer(_));
        let more = page.as_ref().filter(|_| is_answer);
        let more = more.map(|label| Message::Listing(label.clone(), names.listing(label)));
        if [Some(message), more].into_iter().flatten().any(|it| sender.send(it).is_err()) {
            return;
        }
    }
}

/// Looks for the causes of a procedure's time, which takes seconds in a large database.
fn look_for_causes(daemon: &Daemon, label: &Label, sender: &Sender<Message>) {
    let (control, label, sender) = (daemon.control().to_owned(), label.clone(), sender.clone());
    let look = move || sender.send(Message::Causes(label.clone(), causes::of(&control, &label)));
    // Without a thread more the page has no causes.
    let _ = std::thread::Builder::new().name("causes".into()).spawn(move || drop(look()));
}

fn hear_signals(sender: Sender<Message>) -> Result<(), AnalysisError> {
    let heard = signals::hear(&[SIGINT, SIGTERM, SIGHUP, SIGWINCH]).map_err(terminal)?;
    let forward = move || heard.iter().try_for_each(|signal| sender.send(Message::Signal(signal)));
    let thread = std::thread::Builder::new().name("screen".into()).spawn(move || drop(forward()));
    thread.map(drop).map_err(terminal)
}

/// The thread ends with the program: a read of the terminal cannot be broken off.
fn hear_keys(sender: Sender<Message>) -> Result<(), AnalysisError> {
    let listen = move || {
        for key in io::stdin().keys().map_while(Result::ok) {
            if sender.send(Message::Key(key)).is_err() {
                return;
            }
        }
        let _ = sender.send(Message::Gone); // ending already
    };
    std::thread::Builder::new().name("keys".into()).spawn(listen).map(drop).map_err(terminal)
}

/// A panic's message would be on the screen that is left next.
fn restore_before_a_panic_is_told() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let told = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if let Ok(mut terminal) = File::options().write(true).open("/dev/tty") {
                let _ = terminal.write_all(b"\x1b[?1049l\x1b[?25h\r"); // nothing else can be done
            }
            told(panic);
        }));
    });
}

fn terminal(error: io::Error) -> AnalysisError {
    AnalysisError::Refused(format!("the terminal: {error}; use --once for one table"))
}

fn interval(text: &str) -> Result<Duration, String> {
    crate::options::parse_time(text, INTERVAL.0, INTERVAL.1)
}

fn window(text: &str) -> Result<Duration, String> {
    crate::options::parse_time(text, WINDOW.0, WINDOW.1)
}
