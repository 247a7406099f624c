//! The report that `dcpi record` prints at its end.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use annotate::excerpts;
use calls::{USERTIME, USERTIME_SAMPLE_NS};
use names::procedures::Places;
use query::error::AnalysisError;
use query::load::Samples;
use report::{ProfReport, bytes, counted};

use super::super::{clean, diff, inclusive, prof, write};
use super::Record;
use crate::options::{self, Prof};

/// A recording: its place in a database, and its samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Recorded {
    pub(super) db: PathBuf,
    pub(super) host: String,
    /// First and last epoch.
    pub(super) epochs: (String, String),
    pub(super) samples: u64,
}

impl Recorded {
    /// Arguments of `dcpi prof` that select the recording.
    fn selection(&self, label: Option<&str>) -> Vec<OsString> {
        let (first, last) = &self.epochs;
        let epoch = if first == last { first.clone() } else { format!("{first}..{last}") };
        let mut words: Vec<OsString> = vec!["--db".into(), self.db.clone().into()];
        words.extend(["--host", &self.host, "--epoch", &epoch].map(OsString::from));
        // In one word: a label may begin with a dash.
        words.extend(label.map(|label| OsString::from(format!("--label={label}"))));
        words
    }
}

/// The part of a recording that its report is of.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Part<'a> {
    /// The label of the processes; None: the whole machine.
    pub(super) label: Option<&'a str>,
    /// CPU time of the command by the kernel's accounting, s.
    pub(super) used_s: Option<f64>,
    /// The threads whose stacks are reported; none: all threads.
    pub(super) tids: &'a [u32],
    /// Whether the report is of wall-clock time.
    pub(super) usertime: bool,
}

impl Part<'_> {
    /// Options of `dcpi prof` that choose the report.
    fn options(&self) -> Vec<OsString> {
        let mut words: Vec<OsString> = Vec::new();
        if self.usertime || !self.tids.is_empty() {
            words.push("--inclusive".into());
        }
        if self.usertime {
            words.extend(["--event", USERTIME].map(OsString::from));
        }
        if !self.tids.is_empty() {
            let tids: Vec<String> = self.tids.iter().map(u32::to_string).collect();
            words.extend([OsString::from("--tid"), tids.join(",").into()]);
        }
        words
    }
}

pub(super) fn show(
    args: &Record,
    recorded: &Recorded,
    part: Part<'_>,
    took: Duration,
    out: &mut dyn Write,
) -> Result<(), AnalysisError> {
    let mut words = recorded.selection(part.label);
    words.extend(part.options());
    words.extend(args.rows.into_iter().flat_map(|rows| ["-n".into(), rows.to_string().into()]));
    let prof: Prof = options::typed(words).map_err(|error| {
        AnalysisError::Refused(format!("cannot report: {}; see dcpi prof --help", error.kind()))
    })?;
    writeln!(out)?;
    let mut sampled_s = None;
    match read(&prof, &mut sampled_s) {
        Ok(report) => {
            let outcome = write(&report, &prof.output, out)?;
            outcome.aside.iter().try_for_each(|line| writeln!(out, "{line}"))?;
            if part.usertime {
                usertime(&report, out)?;
            }
        }
        Err(AnalysisError::NoScope { .. }) => {
            let name = part.label.unwrap_or_default();
            writeln!(
                out,
                "{name} has no samples: it used too little CPU time; for a higher rate: \
                 --event cpu-clock@20000"
            )?;
        }
        Err(AnalysisError::Empty { .. }) => writeln!(out, "no samples; record for longer")?,
        // Beside a report on nothing, the recording is there.
        Err(error @ AnalysisError::Refused(_)) if !part.options().is_empty() => {
            writeln!(out, "{error}")?;
        }
        Err(error) => return Err(error),
    }
    end(args, recorded, part, (took, sampled_s), out)
}

/// The report. `sampled_s` gets the CPU time that its samples stand for.
fn read(prof: &Prof, sampled_s: &mut Option<f64>) -> Result<ProfReport, AnalysisError> {
    let question = prof.chosen.question(&prof.images)?;
    if prof.inclusive {
        return inclusive::report(prof);
    }
    let mut samples = prof::with_interpreted(prof, &question)?;
    *sampled_s = sampled_cpu_s(&samples);
    prof::report(prof, &mut samples)
}

/// The wall-clock time of all threads, as SpeedShop counted it.
fn usertime(report: &ProfReport, out: &mut dyn Write) -> Result<(), AnalysisError> {
    let ns = report.events.first().map_or(0.0, |column| column.counted.occurrences);
    let samples = counted((ns / USERTIME_SAMPLE_NS).round() as u64, "sample");
    Ok(writeln!(
        out,
        "usertime: {:.2} s of wall-clock time of all threads, {samples} of 30 ms; --event off-cpu \
         and --event runnable tell what the threads waited for",
        ns / 1e9
    )?)
}

/// The last lines: the recording, its location, and the command that shows it again.
fn end(
    args: &Record,
    recorded: &Recorded,
    part: Part<'_>,
    (took, sampled_s): (Duration, Option<f64>),
    out: &mut dyn Write,
) -> Result<(), AnalysisError> {
    let debug_roots = Places::with_debug_roots(Vec::new()).debug_roots;
    // A database with other samples, or one that cannot be written, keeps all code: only its size
    // differs.
    if let Err(error) = excerpts::take(&recorded.db, &recorded.host, &debug_roots) {
        writeln!(
            out,
            "note: the recording keeps the code of procedures without samples, too: {error}"
        )?;
    }
    let (samples, seconds) = (recorded.samples, took.as_secs_f64());
    let db = shell_word(&recorded.db);
    let times = part
        .label
        .zip(sampled_s)
        .map(|(label, sampled_s)| cpu_times(label, sampled_s, part.used_s))
        .unwrap_or_default();
    let all = part.label.map(|_| " (-a: the whole machine)").unwrap_or_default();
    let words = part.options();
    let options: String = words.iter().map(|word| format!(" {}", word.display())).collect();
    writeln!(
        out,
        "\nrecorded {samples} samples in {seconds:.1} s; {times}to see the report again: \
         dcpi prof --db {db}{options}{all}"
    )?;
    let size = bytes(clean::size_bytes(&recorded.db));
    match args.db {
        Some(_) => writeln!(out, "{size} in {db}")?,
        None => writeln!(out, "{size} in {db}; to remove recordings: dcpi clean")?,
    }
    Ok(out.flush()?)
}

/// Compares the profiles of two recordings of one command, at two intervals. The rows that differ
/// follow the verdict.
pub(super) fn agreement(
    recorded: [&Recorded; 2],
    names: [&str; 2],
    label: &str,
    out: &mut dyn Write,
) -> Result<(), AnalysisError> {
    let [a, b] = recorded;
    let set = |of: &Recorded| OsString::from(format!("epoch:{}..{}", of.epochs.0, of.epochs.1));
    let mut words = vec![set(a), set(b), "--db".into(), a.db.clone().into()];
    words.extend(["--host".into(), OsString::from(&a.host), format!("--label={label}").into()]);
    words.extend(["-n", "10", "--shares"].map(OsString::from));
    let args: diff::DiffArgs = options::typed(words).map_err(|error| {
        AnalysisError::Refused(format!("cannot compare: {}; see dcpi diff --help", error.kind()))
    })?;
    let report = diff::report(&args)?;
    let differ = report.rows.iter().filter(|row| row.judged.significant).count() as u64;
    let [a, b] = names;
    if differ == 0 {
        return Ok(writeln!(
            out,
            "\n{a} and {b} agree: no procedure's share differs by more than chance (95 % \
             confidence, all procedures together)"
        )?);
    }
    let procedures = counted(differ, "procedure");
    writeln!(
        out,
        "\n{a} and {b} do not agree: the shares of {procedures} differ by more than chance (95 % \
         confidence). An interval is in step with the program, or the program did not do the same \
         twice:\n"
    )?;
    write(&report, &args.with.output, out).map(drop)
}

/// CPU time that the samples stand for, including those of unknown code, s. None where no event
/// counts time in ns.
fn sampled_cpu_s(samples: &Samples) -> Option<f64> {
    let (event, _) = samples.time().ok()?;
    let event = samples.events.get(event).filter(|event| event.unit == "ns")?;
    Some(event.taken.occurrences / 1e9)
}

/// CPU time of a command by its samples, and by the kernel's accounting.
fn cpu_times(label: &str, sampled_s: f64, used_s: Option<f64>) -> String {
    let used = used_s
        .map(|used| format!(", {} by the kernel's accounting", cpu_time(used)))
        .unwrap_or_default();
    format!("{label} used {} of CPU time by its samples{used}; ", cpu_time(sampled_s))
}

/// CPU time with its unit: below 1 s in ms, since two digits of seconds make nothing of a short
/// command.
fn cpu_time(seconds: f64) -> String {
    match seconds * 1e3 {
        ms if ms < 9.995 => format!("{ms:.2} ms"),
        ms if ms < 999.5 => format!("{ms:.0} ms"),
        _ => format!("{seconds:.2} s"),
    }
}

/// A path as a shell takes it for one word.
pub(in crate::commands) fn shell_word(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_alphanumeric() || "/._-+,:@%".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The CPU time of `true` was 0.00 s by both accounts.
    #[test]
    fn cpu_time_below_a_second_is_in_ms() {
        assert_eq!(
            [0.0, 0.0004, 0.0123, 0.9994].map(cpu_time),
            ["0.00 ms", "0.40 ms", "12 ms", "999 ms"]
        );
        assert_eq!([0.9996, 1.0, 12.345].map(cpu_time), ["1.00 s", "1.00 s", "12.35 s"]);
        assert_eq!(
            cpu_times("ls", 0.0, Some(0.0021)),
            "ls used 0.00 ms of CPU time by its samples, 2.10 ms by the kernel's accounting; "
        );
    }

    #[test]
    fn what_is_shown_to_be_typed_again_can_be() {
        for (path, word) in
            [("/tmp/db", "/tmp/db"), ("/a b", "'/a b'"), ("it's", "'it'\\''s'"), ("", "''")]
        {
            assert_eq!(shell_word(Path::new(path)), word);
        }
        let epochs = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        let mut recorded = Recorded {
            db: "/d".into(),
            host: "h".into(),
            epochs: epochs("20260101-000000", "20260101-000000"),
            samples: 1,
        };
        let words = |recorded: &Recorded| {
            let words =
                recorded.selection(Some("-x")).into_iter().map(|word| word.into_string().unwrap());
            words.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(words(&recorded), "--db /d --host h --epoch 20260101-000000 --label=-x");
        recorded.epochs = epochs("20260101-000000", "20260101-000100");
        assert!(words(&recorded).contains("--epoch 20260101-000000..20260101-000100"));
        assert!(options::typed::<Prof>(recorded.selection(Some("-x"))).is_ok());
    }

    #[test]
    fn reports_of_threads_and_of_wall_clock_time_can_be_seen_again() {
        let words = |part: Part<'_>| {
            let words = part.options().into_iter().map(|word| word.into_string().unwrap());
            let words: Vec<String> = words.collect();
            assert!(options::typed::<Prof>(words.iter().map(OsString::from)).is_ok());
            words.join(" ")
        };
        assert_eq!(words(Part::default()), "");
        let threads = Part { tids: &[7, 9], ..Part::default() };
        assert_eq!(words(threads), "--inclusive --tid 7,9");
        let usertime = Part { usertime: true, ..Part::default() };
        assert_eq!(words(usertime), "--inclusive --event usertime");
    }
}
