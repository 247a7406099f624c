//! `dcpi lost` as plain data, as text, JSON and CSV.

use std::collections::BTreeSet;
use std::io::{self, Write};

use image::ImageId;
use stalls::{Cause, Culprit};
use stats::{Confidence, Occurrences};

use super::costs::{CulpritEntry, cycle, digits, letters, meanings, told};
use super::fields::{Address, Cycles, Executions, Fraction, Interval, Shown};
use super::json::{Head, ProblemEntry};
use super::quantity::{counted, percent, thousands};
use super::table::{Cell, Colour, Table};
use super::text::{self, brief, head, note, problem_lines, selection};
use super::{ImageName, ProcedureName, Report, Selection, Style, Suffixes};
use query::problem::Problem;
use query::scope::ScopeChoice;

crate::fields! {
    /// Cycles are those of one run of the command.
    #[derive(Debug)]
    pub struct LostReport {
        pub selection (flat): Selection as Head<'_>;
        /// the command whose samples and counts these are
        pub whose (text): ScopeChoice;
        /// runs that were sampled for each that was counted
        pub runs: f64;
        /// clock of the CPUs as measured; null where the event counts cycles
        pub hertz: Option<f64>, "1/s";
        /// the model that ideal cycles are of, as LLVM names it
        pub machine: String;
        pub confidence: Confidence;
        /// all code, by samples
        pub spent: Occurrences as Interval<Cycles>, "cycles";
        /// of these, code whose executions were not counted
        pub uncounted: Occurrences as Interval<Cycles>, "cycles";
        /// the counted executions on the model of the processor
        pub ideal: f64 as Cycles;
        /// `spent` without `uncounted` and `ideal`
        lost: Cycles = |it| Cycles(it.lost());
        /// whether rows are blocks
        pub by_block (text): bool;
        pub rows (rows): Vec<LostRow>;
        /// rows beyond `-n`
        pub omitted (text): usize;
        pub problems: Vec<Problem> as Vec<ProblemEntry<'_>>;
    }

    /// A procedure or a block, in one run.
    #[derive(Debug)]
    pub struct LostRow {
        pub of_image (text): ImageName;
        pub of_procedure (text): ProcedureName;
        /// name
        image: &str = |it| it.of_image.name.as_str() => "image";
        /// its id
        image_id: ImageId = |it| it.of_image.id;
        /// name
        procedure: &str = |it| it.of_procedure.name.as_str() => "procedure";
        /// with `--by block`; null and empty for procedures
        pub block: Option<LostBlock>;
        /// of all sampled runs
        pub samples: u64, "samples" => "samples";
        /// its time
        pub spent: Occurrences as Interval<Cycles>, "cycles"
            => "spent" | "spent_low" | "spent_high";
        /// its executions on the model
        pub ideal: f64 as Cycles => "ideal";
        /// `spent` without `ideal`, which may be below 0
        lost: Interval<Cycles> = |it| Interval::shown(&it.lost()), "cycles";
        /// `spent` by `ideal`; no ratio where nothing was executed
        ratio: Option<Interval<Fraction>> = |it| it.ratio().as_ref().map(Shown::shown);
    }

    /// A block.
    #[derive(Debug)]
    pub struct LostBlock {
        /// first instruction
        pub start: u64 as Address => "block";
        /// behind its last instruction
        pub end: u64 as Address;
        /// executions of the block in a run
        pub executions: f64 as Executions => "executions";
        /// possible causes of the longest stall among its instructions
        pub causes (text): Vec<Culprit>;
        /// whether the causes leave a part of that stall unexplained
        pub unexplained (text): bool;
        /// possible causes of the block's longest stall
        culprits: Vec<CulpritEntry> = |it| CulpritEntry::all(told(&it.causes), true);
    }
}

impl LostRow {
    /// Cycles of a run beyond the ideal ones.
    pub fn lost(&self) -> Occurrences {
        let of = |spent: f64| spent - self.ideal;
        Occurrences {
            value: of(self.spent.value),
            low: of(self.spent.low),
            high: of(self.spent.high),
        }
    }

    /// Cycles by ideal cycles; none where nothing was executed.
    fn ratio(&self) -> Option<Occurrences> {
        let of = |spent: f64| spent / self.ideal;
        (self.ideal > 0.0).then(|| Occurrences {
            value: of(self.spent.value),
            low: of(self.spent.low),
            high: of(self.spent.high),
        })
    }
}

impl LostReport {
    fn share(&self, cycles: f64) -> f64 {
        cycles / self.spent.value.max(f64::MIN_POSITIVE)
    }

    /// Cycles of counted code beyond the ideal ones.
    fn lost(&self) -> f64 {
        self.spent.value - self.uncounted.value - self.ideal
    }

    /// Cycles as time, where the frequency is known.
    fn time(&self, cycles: f64) -> String {
        match self.hertz {
            Some(hertz) => format!("{} ms", digits(cycles / hertz * 1e3)),
            None => format!("{} million cycles", digits(cycles / 1e6)),
        }
    }

    fn table(&self, style: &Style) -> Table {
        let mut table = Table::default();
        table.number("lost %", "of the time");
        table.number("from–to", "of the time");
        table.number("time %", "of the time");
        table.number("times ideal", "");
        table.number("from–to", "times ideal");
        if self.by_block {
            table.number("executed", "");
            table.number("cycles", "");
            table.number("ideal", "cycles");
            table.words("may be");
            table.words("address");
        }
        table.procedures("procedure");
        table.names("image");
        let names = self.rows.iter();
        let names = names.map(|row| (row.of_image.name.as_str(), row.of_procedure.name.as_str()));
        let suffixes = Suffixes::of(names);
        for row in &self.rows {
            let lost = row.lost();
            let share = |cycles: f64| signed_percent(self.share(cycles));
            let ratio = row.ratio();
            let mut cells = vec![
                share(lost.value),
                format!("{}–{}", share(lost.low), share(lost.high)),
                percent(self.share(row.spent.value)),
                ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{:.2}", ratio.value)),
                ratio.map_or_else(String::new, |ratio| {
                    format!("{:.2}–{:.2}", ratio.low, ratio.high)
                }),
            ];
            if let Some(block) = &row.block {
                cells.extend([
                    thousands(block.executions as u64),
                    cycle(row.spent.value / block.executions),
                    cycle(row.ideal / block.executions),
                    letters(&block.causes, block.unexplained),
                    format!("{:#x}", block.start),
                ]);
            }
            let mut cells: Vec<Cell> = cells.into_iter().map(Cell::from).collect();
            let (image, procedure) = (&row.of_image.name, &row.of_procedure.name);
            cells.push(Cell::name(suffixes.shown(image, procedure, style.full_names)));
            cells.push(Cell::name(image));
            table.coloured(cells, Colour::of_share(self.share(lost.value)));
        }
        table
    }
}

/// A share of 1 in percent; negative shares are allowed.
fn signed_percent(share: f64) -> String {
    if share < 0.0 { format!("-{}", percent(-share)) } else { percent(share) }
}

impl LostReport {
    fn verbose_head(&self, time: &str, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        selection(&self.selection, style, out)?;
        let runs = format!("{} sampled for one counted, {}", digits(self.runs), self.whose.shown());
        head(style, out, "runs", &runs)?;
        if let Some(hertz) = self.hertz {
            head(style, out, "clock", &format!("{:.2} GHz", hertz / 1e9))?;
        }
        head(style, out, "machine", &self.machine)?;
        head(style, out, "time", time)
    }
}

impl Report for LostReport {
    const NAME: &'static str = "lost";
    type Fields<'a> = &'a Self;

    fn text(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        let part = |cycles: f64| format!("{} %", signed_percent(self.share(cycles)));
        let time = format!(
            "{} a run: {} ideal, {} lost, {} in code that was not counted (kernel, generated)",
            self.time(self.spent.value),
            part(self.ideal),
            part(self.lost()),
            part(self.uncounted.value),
        );
        if style.verbose {
            self.verbose_head(&time, style, out)?;
        } else {
            brief(&time, &self.selection, &self.whose, style, out)?;
        }
        writeln!(out)?;
        self.table(style).write(style, out)?;
        if self.omitted > 0 {
            let what = if self.by_block { "more block" } else { "more procedure" };
            writeln!(out, "{} (-n 0 shows all)", counted(self.omitted as u64, what))?;
        }
        writeln!(out)?;
        let confidence = format!(
            "from–to: {} % confidence; lost: cycles beyond those of the model, where all loads hit \
             the first cache and no branch is mispredicted",
            self.confidence.percent()
        );
        note(style, out, &confidence)?;
        let blocks = self.rows.iter().filter_map(|row| row.block.as_ref());
        let causes: BTreeSet<Cause> =
            blocks.flat_map(|block| told(&block.causes)).map(|told| told.cause).collect();
        if !causes.is_empty() {
            let meanings = meanings(&causes.into_iter().collect::<Vec<_>>());
            note(style, out, &format!("may be: {meanings}? none of these"))?;
        }
        problem_lines(text::told(&self.problems, style))
            .iter()
            .try_for_each(|line| note(style, out, line))
    }

    fn json(&self) -> &Self {
        self
    }

    fn columns(&self) -> Option<Vec<&'static str>> {
        let mut titles = vec!["image", "procedure", "block", "samples"];
        titles.extend(["spent", "spent_low", "spent_high", "ideal", "executions"]);
        Some(titles)
    }

    fn problems(&self) -> &[Problem] {
        &self.problems
    }
}
