//! Executions of blocks as a report.

use std::io::{self, Write};

use report::fields::{Address, Shown};
use report::{Report, Style};
use stats::Share;
use trace::sequence::{Block, Program};

/// Default number of rows in text: as many as fit on a screen.
const ROWS: usize = 30;

/// Executions of the blocks of a command's programs.
pub struct Table {
    pub(super) rows: Vec<Row>,
    /// Largest number of rows; 0: all; None: all in JSON and CSV, the default number in text.
    pub(super) rows_max: Option<usize>,
    /// Samples that shares of time are of; None where nothing was sampled.
    pub(super) samples: Option<u64>,
    /// Whether events were lost, so that executions are too few.
    pub(super) is_partial: bool,
    pub(super) notes: Vec<String>,
}

report::fields! {
    /// A block.
    #[derive(Clone, Debug)]
    pub struct Row {
        /// path
        program: String => "program";
        /// name
        procedure: String => "procedure";
        /// which of its procedure's blocks it is, from 0
        block: u32 => "block";
        /// source file
        file (maybe): String => "file";
        /// source line of its first instruction
        line (maybe): Option<u32> => "line";
        /// file offset of its first instruction
        offset: Address, "offset" => "offset";
        /// executions, by events compiled in
        executions: u64 => "executions";
        /// of the time of the program without events
        pub(super) time (maybe): Option<Share> as Option<TimeJson>, "share"
            => "time_low" | "time" | "time_high";
        /// index in the program's list
        pub(super) index (text): usize;
        pub(super) program_index (text): usize;
    }

    /// A share of the time.
    #[derive(Debug)]
    pub struct TimeJson {
        /// lower end of its interval of 95 %
        low: f64;
        value: f64;
        /// upper end of its interval of 95 %
        high: f64;
    }

    /// The report of `dcpi trace --blocks`.
    #[derive(Debug)]
    pub struct BlocksJson<'a> {
        /// that shares of time are of; not there where nothing was sampled
        samples (maybe): Option<u64>, "samples";
        rows (rows): &'a [Row];
        /// what a reader should know, one sentence each
        notes: &'a [String];
    }
}

impl Shown<&Share> for TimeJson {
    fn shown(of: &Share) -> Self {
        let Share { value, low, high } = *of;
        Self { low, value, high }
    }
}

impl Row {
    pub(super) fn of(program: &Program, index: usize, block: &Block, executions: u64) -> Self {
        Self {
            program: program.path.clone(),
            procedure: block.procedure.clone(),
            block: block.number,
            file: block.file.clone(),
            line: (block.line > 0).then_some(block.line),
            offset: Address(block.offset),
            executions,
            time: None,
            index,
            program_index: 0,
        }
    }

    /// Procedure and number.
    pub(super) fn name(&self) -> String {
        match self.procedure.as_str() {
            "" => format!("{:#x} #{}", self.offset.0, self.block),
            name => format!("{name} #{}", self.block),
        }
    }

    /// The source line, without directories.
    pub(super) fn place(&self) -> String {
        let file = self.file.rsplit('/').next().unwrap_or_default();
        self.line.map_or_else(|| file.to_owned(), |line| format!("{file}:{line}"))
    }
}

impl Table {
    pub(super) fn of(programs: &[(Program, Vec<u64>)]) -> Self {
        let mut rows = Vec::new();
        for (number, (program, counts)) in programs.iter().enumerate() {
            for (index, (block, count)) in program.blocks.iter().zip(counts).enumerate() {
                if *count > 0 {
                    let row = Row::of(program, index, block, *count);
                    rows.push(Row { program_index: number, ..row });
                }
            }
        }
        rows.sort_by_key(|row| std::cmp::Reverse(row.executions));
        Self { rows, rows_max: None, samples: None, is_partial: false, notes: Vec::new() }
    }

    /// The requested number of rows, or else this number; 0: all.
    fn shown(&self, default: usize) -> &[Row] {
        let most = self.rows_max.unwrap_or(default);
        let shown = if most == 0 { self.rows.len() } else { most.min(self.rows.len()) };
        self.rows.get(..shown).unwrap_or_default()
    }

    pub(super) fn sort_by_time(&mut self) {
        let time = |row: &Row| row.time.map_or(-1.0, |share| share.value);
        self.rows.sort_by(|a, b| time(b).total_cmp(&time(a)));
    }
}

impl Report for Table {
    const NAME: &'static str = "trace-blocks";
    type Fields<'a> = BlocksJson<'a>;

    fn text(&self, _style: &Style, out: &mut dyn Write) -> io::Result<()> {
        let rows = self.shown(ROWS);
        let shown = rows.len();
        let width = rows.iter().map(|row| row.name().chars().count()).max().unwrap_or(0).min(40);
        match self.samples {
            Some(samples) => writeln!(
                out,
                "\nexecutions: {}, of the program with events\ntime: {} of the program without \
                 events, 95 % intervals\n\n{:>15}  {:>24}  {:width$}  line",
                if self.is_partial { "too few" } else { "exact" },
                report::counted(samples, "sample"),
                "executions",
                "time",
                "block"
            )?,
            None => writeln!(out, "\n{:>15}  {:width$}  line", "executions", "block")?,
        }
        for row in rows {
            write!(out, "{:>15}  ", report::thousands(row.executions))?;
            if self.samples.is_some() {
                let time = row.time.map_or_else(
                    || "?".to_owned(),
                    |Share { value, low, high }| {
                        let [value, low, high] = [value, low, high].map(|it| it * 100.0);
                        format!("{value:.2} % [{low:.2}, {high:.2}]")
                    },
                );
                write!(out, "{time:>24}  ")?;
            }
            let (name, place) = (report::escape(&row.name()).into_owned(), row.place());
            writeln!(out, "{name:width$}  {}", report::escape(&place))?;
        }
        if shown < self.rows.len() {
            let left = report::counted((self.rows.len() - shown) as u64, "block");
            writeln!(out, "{left} more: -n 0 shows all")?;
        }
        self.notes.iter().try_for_each(|note| writeln!(out, "note: {}", report::escape(note)))
    }

    fn json(&self) -> BlocksJson<'_> {
        BlocksJson { samples: self.samples, rows: self.shown(0), notes: &self.notes }
    }

    fn columns(&self) -> Option<Vec<&'static str>> {
        let mut titles = vec!["program", "procedure", "block", "file", "line", "offset"];
        titles.extend(["executions", "time", "time_low", "time_high"]);
        Some(titles)
    }
}
