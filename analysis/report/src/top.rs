//! `dcpi top --once`.

use std::io::{self, Write};

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
        /// whether rows and shares include the idle loop
        pub with_idle (text): bool;
        /// procedures or images, those with the most samples first
        pub rows (rows): Vec<TopRow>;
        /// missing or doubtful data
        pub problems (text): Vec<Problem>;
    }
}

crate::fields! {
    /// A procedure or image.
    #[derive(Clone, Debug)]
    pub struct TopRow {
        /// name; absent with `-i`
        pub procedure (maybe): String => "procedure";
        /// name; absent: unknown code
        pub image (maybe): String => "image";
        /// samples
        pub samples: u64, "samples" => "EVENT";
        /// their share of `counted`
        pub share: Share, "share" => "EVENT_share" | "EVENT_low" | "EVENT_high";
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
        format!("shares of {}, intervals of {sure} % confidence", counted(self.counted, "sample"))
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
        writeln!(out, "{}\n{}\n", self.head(), self.foot())?;
        let mut table = Table::default();
        ["samples", "%", "low–high"].into_iter().for_each(|title| table.number(title, ""));
        table.procedures("procedure");
        table.names("image");
        let suffixes = self.suffixes();
        for row in &self.rows {
            let mut cells: Vec<Cell> = row.numbers().into_iter().map(Cell::from).collect();
            cells.push(Cell::name(suffixes.shown(&row.image, &row.procedure, style.full_names)));
            cells.push(Cell::name(&row.image));
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
