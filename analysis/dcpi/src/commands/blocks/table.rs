//! Executions of blocks as a report.

use std::io::{self, Write};

use query::problem::Problem;
use report::{Report, Style};
use serde::Serialize;
use stats::Share;
use trace::sequence::{Block, Program};

/// Rows in text, unless others are asked for: as many as a screen has.
const ROWS: usize = 30;

/// Executions of the blocks of a command's programs.
pub(super) struct Table {
    pub(super) rows: Vec<Row>,
    /// At most so many rows, 0: all; None: all but in text.
    pub(super) rows_max: Option<usize>,
    /// Samples that shares of time are of; None where nothing was sampled.
    pub(super) samples: Option<u64>,
    /// Whether events were lost, so that executions are too few.
    pub(super) is_partial: bool,
    /// What a reader should know, one sentence each.
    pub(super) notes: Vec<String>,
}

/// A block.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    program: String,
    procedure: String,
    /// Which of its procedure's blocks it is, from 0.
    block: u32,
    #[serde(skip_serializing_if = "String::is_empty")]
    file: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
    offset: String,
    executions: u64,
    /// Share of the time of the program without events.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "share")]
    pub(super) time: Option<Share>,
    /// Index in the program's list.
    #[serde(skip)]
    pub(super) index: usize,
    #[serde(skip)]
    pub(super) program_index: usize,
}

#[expect(clippy::ref_option, reason = "serde passes the field")]
fn share<S: serde::Serializer>(share: &Option<Share>, to: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Bounds {
        low: f64,
        value: f64,
        high: f64,
    }
    share.map(|Share { value, low, high }| Bounds { low, value, high }).serialize(to)
}

impl Row {
    pub(super) fn of(program: &Program, index: usize, block: &Block, executions: u64) -> Self {
        Self {
            program: program.path.clone(),
            procedure: block.procedure.clone(),
            block: block.number,
            file: block.file.clone(),
            line: (block.line > 0).then_some(block.line),
            offset: format!("{:#x}", block.offset),
            executions,
            time: None,
            index,
            program_index: 0,
        }
    }

    /// Procedure and number.
    pub(super) fn name(&self) -> String {
        let name = if self.procedure.is_empty() { &self.offset } else { &self.procedure };
        format!("{name} #{}", self.block)
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

    /// The rows that are asked for, else so many, 0: all.
    fn shown(&self, default: usize) -> &[Row] {
        let most = self.rows_max.unwrap_or(default);
        let shown = if most == 0 { self.rows.len() } else { most.min(self.rows.len()) };
        self.rows.get(..shown).unwrap_or_default()
    }

    /// Orders rows by their time.
    pub(super) fn sort_by_time(&mut self) {
        let time = |row: &Row| row.time.map_or(-1.0, |share| share.value);
        self.rows.sort_by(|a, b| time(b).total_cmp(&time(a)));
    }
}

#[derive(Serialize)]
struct Json<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    samples: Option<u64>,
    rows: &'a [Row],
    notes: &'a [String],
}

impl Report for Table {
    const NAME: &'static str = "trace-blocks";

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

    fn json(&self) -> impl Serialize + '_ {
        Json { samples: self.samples, rows: self.shown(0), notes: &self.notes }
    }

    fn csv(&self, out: &mut dyn Write) -> io::Result<()> {
        let titles = [
            "program",
            "procedure",
            "block",
            "file",
            "line",
            "offset",
            "executions",
            "time",
            "time_low",
            "time_high",
        ];
        report::record(out, &titles.map(str::to_owned))?;
        for row in self.shown(0) {
            let time =
                |of: fn(Share) -> f64| row.time.map_or(String::new(), |it| of(it).to_string());
            let cells = [
                row.program.clone(),
                row.procedure.clone(),
                row.block.to_string(),
                row.file.clone(),
                row.line.map_or(String::new(), |line| line.to_string()),
                row.offset.clone(),
                row.executions.to_string(),
                time(|share| share.value),
                time(|share| share.low),
                time(|share| share.high),
            ];
            report::record(out, &cells)?;
        }
        Ok(())
    }

    fn problems(&self) -> &[Problem] {
        &[]
    }
}
