//! `dcpi top` in a terminal of tmux(1): its keys, one after the other, and what is on the screen
//! then. Needs root, as the tests of privileged.rs do.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};
use tests::daemon::{Place, assert_closes, start_by_time};
use tests::workload::Workload;
use tests::{binary, require_root, succeed};

const PATIENCE: Duration = Duration::from_secs(60);

/// A terminal of 80 columns and 24 lines, of a server of its own.
struct Terminal {
    socket: PathBuf,
}

impl Terminal {
    fn running(place: &Place, words: &str) -> Self {
        let terminal = Self { socket: place.path().join("tmux") };
        terminal.ask(&["new-session", "-d", "-x", "80", "-y", "24", words]);
        terminal
    }

    fn ask(&self, arguments: &[&str]) -> String {
        let mut tmux = Command::new("tmux");
        tmux.args(["-f", "/dev/null", "-S"]).arg(&self.socket).args(arguments);
        succeed(tmux.env("LC_ALL", "C.UTF-8"))
    }

    fn screen(&self) -> String {
        self.ask(&["capture-pane", "-p"])
    }

    fn press(&self, keys: &[&str]) {
        let mut arguments = vec!["send-keys"];
        arguments.extend(keys);
        self.ask(&arguments);
    }

    /// The screen, as soon as it has all of these texts.
    fn until(&self, texts: &[&str]) -> String {
        let end = Instant::now() + PATIENCE;
        loop {
            let screen = self.screen();
            if texts.iter().all(|text| screen.contains(text)) {
                return screen;
            }
            assert!(Instant::now() < end, "never {texts:?} on:\n{screen}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let mut tmux = Command::new("tmux");
        // The server is gone already where dcpi top ended.
        let _ = tmux.arg("-S").arg(&self.socket).arg("kill-server").output();
    }
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn top_goes_into_a_command_and_a_procedure() {
    require_root();
    let place = Place::default();
    let workload = Workload::build(place.path(), "two_functions22", &[]);
    let dcpid = start_by_time(&place);
    let running = workload.start(300);
    let (dcpi, control) = (binary("dcpi"), place.control());
    let words = format!("{} top --control {} -d 500ms", dcpi.display(), control.display());
    let terminal = Terminal::running(&place, &words);
    terminal.until(&["three_quarters", "seconds", "CPUs", "with calls", "? help"]);
    terminal.press(&["?"]);
    terminal.until(&["dcpi top: keys", "space, p"]);
    terminal.press(&["x", "c"]);
    terminal.until(&["command", "two_functions22"]);
    terminal.press(&["/", "two_f", "Enter"]);
    terminal.until(&["only with \"two_f\"", "1 row"]);
    terminal.press(&["Enter"]);
    terminal.until(&["of two_functions22 by samples; only", "three_quarters", "main"]);
    terminal.press(&["Escape"]);
    terminal.until(&["of two_functions22 by samples; shares"]);
    terminal.press(&["Enter"]);
    // Callers and instructions of the procedure with most of the time.
    terminal.until(&["three_quarters of two_functions22", "called by ", " ret", "CPUs"]);
    terminal.press(&["Space"]);
    terminal.until(&["FROZEN"]);
    terminal.press(&["Space", "Left"]);
    terminal.until(&["one_quarter", "procedure"]);
    terminal.ask(&["resize-window", "-x", "120", "-y", "30"]);
    let wide = terminal.until(&["three_quarters", "95 % confidence"]);
    assert!(wide.lines().all(|line| line.chars().count() <= 120), "{wide}");
    terminal.press(&["q"]);
    drop(running);
    assert_closes(&dcpid.status().samples);
}
