//! `dcpi top --once`.

use std::io::{self, Write};

use super::fields::Fraction;
use super::quantity::{counted, percent, plain, thousands};
use super::table::{Cell, Colour, Table};
use super::{Report, Style, Suffixes, escape};
use query::problem::Problem;
use stats::{Confidence, Share};

crate::fields! {
    /// With `--once`. Shares are of `counted`.
    #[derive(Debug)]
    pub struct TopReport {
        /// the event, as perf calls it
        pub event: String;
        /// time in which the samples were taken
        pub span_s: f64, "s";
        /// samples taken and not lost
        pub total: u64, "samples";
        /// samples that shares are computed from
        pub counted: u64, "samples";
        /// samples in the idle loop
        pub idle: u64, "samples";
        /// samples in no row, of all events
        pub lost: u64, "samples";
        /// confidence of all intervals
        pub confidence: Confidence;
        /// whether samples are those of call stacks
        pub of_stacks (text): bool;
        /// whether rows and shares include the idle loop
        pub with_idle (text): bool;
        /// procedures or images, those with the most samples first
        pub rows (rows): Vec<TopRow>;
        /// missing or doubtful data
        pub problems (text): Vec<Problem>;
    }
}

crate::fields! {
    /// A procedure, image, command or process.
    #[derive(Clone, Debug, Default)]
    pub struct TopRow {
        /// with `--by command` or `process`: name of the process's first thread
        pub command (maybe): String => "command";
        /// with `--by process`: its number; absent: of processes that are joined by command
        pub pid (maybe): Option<u32> => "pid";
        /// name; absent with `-i`
        pub procedure (maybe): String => "procedure";
        /// name; absent: unknown code
        pub image (maybe): String => "image";
        /// samples
        pub samples: u64, "samples" => "EVENT";
        /// their share of `counted`
        pub share: Share, "share" => "EVENT_share" | "EVENT_low" | "EVENT_high";
        /// their time; absent: the event counts no time
        pub seconds (maybe): Option<f64> as Option<Fraction>, "s" => "seconds";
        /// time with all that it called, from call stacks; absent: none
        pub inclusive_s (maybe): Option<f64> as Option<Fraction>, "s" => "inclusive_s";
        /// time by `span_s`: CPUs that were busy with it
        pub cpus (maybe): Option<f64> as Option<Fraction> => "cpus";
        /// its time over the last minutes, as bars
        pub history (text): String;
    }
}

impl TopReport {
    /// Event, samples and time, in a line.
    pub fn head(&self) -> String {
        let whole = self.total.max(1) as f64;
        let idle = if self.with_idle {
            String::new()
        } else {
            format!(", {} % idle", percent(self.idle as f64 / whole))
        };
        let lost =
            if self.lost > 0 { format!(", {} lost", thousands(self.lost)) } else { String::new() };
        let (total, seconds) = (counted(self.total, "sample"), self.span_s);
        format!("{}: {total} in {seconds:.1} s{idle}{lost}", escape(&self.event))
    }

    /// The procedures whose names need the suffixes of compilers to be told apart.
    pub fn suffixes(&self) -> Suffixes<'_> {
        Suffixes::of(self.rows.iter().map(|row| (row.image.as_str(), row.procedure.as_str())))
    }

    /// The samples that shares are of, and the confidence, in a line.
    pub fn foot(&self) -> String {
        let sure = plain(self.confidence.percent());
        let noun = if self.of_stacks { "call stack" } else { "sample" };
        format!("shares of {}, intervals of {sure} % confidence", counted(self.counted, noun))
    }
}

impl TopRow {
    /// Samples, share, and the share's interval.
    pub fn numbers(&self) -> [String; 3] {
        let interval = format!("{}–{}", percent(self.share.low), percent(self.share.high));
        [thousands(self.samples), percent(self.share.value), interval]
    }
}

impl Report for TopReport {
    const NAME: &'static str = "top";
    type Fields<'a> = &'a Self;

    fn text(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{}", self.head())?;
        if style.verbose {
            writeln!(out, "{}", self.foot())?;
        }
        writeln!(out)?;
        let is_timed = self.rows.iter().any(|row| row.seconds.is_some());
        let mut table = Table::default();
        match is_timed {
            true => ["seconds", "CPUs", "%", "with calls s"].as_slice(),
            false => ["samples", "%", "low–high"].as_slice(),
        }
        .iter()
        .for_each(|title| table.number(title, ""));
        let is_by_process = self.rows.iter().any(|row| !row.command.is_empty());
        if is_by_process {
            table.number("pid", "");
            table.names("command");
        } else {
            table.procedures("procedure");
            table.names("image");
        }
        let suffixes = self.suffixes();
        for row in &self.rows {
            let [samples, share, interval] = row.numbers();
            let number =
                |value: Option<f64>| value.map(|value| format!("{value:.2}")).unwrap_or_default();
            let numbers = match is_timed {
                true => vec![number(row.seconds), number(row.cpus), share, number(row.inclusive_s)],
                false => vec![samples, share, interval],
            };
            let mut cells: Vec<Cell> = numbers.into_iter().map(Cell::from).collect();
            if is_by_process {
                cells.push(row.pid.map_or_else(String::new, |pid| pid.to_string()).into());
                cells.push(Cell::name(&row.command));
            } else {
                let name = suffixes.shown(&row.image, &row.procedure, style.full_names);
                cells.extend([Cell::name(name), Cell::name(&row.image)]);
            }
            table.coloured(cells, Colour::of_share(row.share.value));
        }
        table.write(style, out)
    }

    fn json(&self) -> &Self {
        self
    }

    fn keys(&self, _: &str) -> Vec<String> {
        vec![self.event.clone()]
    }

    fn problems(&self) -> &[Problem] {
        &self.problems
    }
}
