//! `bench truth`: accuracy of estimates over twenty-one programs, a line of `dcpi truth` for each
//! (the paper's figures 8 and 9). Estimates were tuned on eight of them, which have a mean of their
//! own.

use super::machine;
use super::profilers::build;
use super::repeatable::{self, Program};
use super::{FOLDER, count, json, option, refuse_others, require_root};
use crate::process::output;
use crate::{Outcome, blockcount, packages};
use anyhow::Context as _;
use std::fs;
use std::process::Stdio;

/// Largest errors of estimates whose shares are reported, in percent.
const WITHIN: [u32; 3] = [5, 10, 15];
/// Required shares in percent, means over the programs of each kind: of blocks within each of
/// [`WITHIN`], weighted by samples; of edges within 10 %, weighted by executions (the paper's
/// figure 9 has 58); of blocks marked as sure within 10 %.
const BLOCKS_ASKED: [f64; 3] = [68.0, 74.0, 77.0];
const EDGES_ASKED: f64 = 63.0;
const HIGH_ASKED: f64 = 90.0;

/// Shares in percent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Line {
    samples: f64,
    blocks: [f64; 3],
    edges: [f64; 3],
    /// Share of samples in blocks marked as sure; and of these, the share within 10 %.
    high: f64,
    high_right: f64,
    /// Of blocks that are off by more than 15 %, the share marked as unsure: low.
    wrong_low: f64,
    /// Share of samples in procedures whose cycles are known; and of these, the share whose true
    /// cycles are in the range told.
    cycles: [f64; 2],
}

pub fn run(arguments: &[&str]) -> anyhow::Result<Outcome> {
    refuse_others("truth", arguments, &[], &["--seconds", "--engine"])?;
    let engine = option(arguments, "--engine")?.map(|engine| format!(" --engine {engine}"));
    let engine = engine.unwrap_or_default();
    require_root("truth")?;
    // As many samples as dcpid takes of a program in a minute and a quarter, and as many snapshots
    // as in an hour. Runs differ by a point, and those of half the time are one lower.
    let seconds = count(arguments, "--seconds", 75)?;
    packages::ensure(packages::COMPILER.iter().chain(&packages::WALKED).chain(&packages::COUNTED))?;
    let folder = format!("{FOLDER}/truth");
    fs::create_dir_all(&folder).with_context(|| format!("creating {folder}"))?;
    build(&folder, &["dcpid", "dcpilabel", "dcpi"])?;
    blockcount::build()?;
    let beside = format!("{folder}/dcpi-blockcount");
    fs::copy(blockcount::PROGRAM, &beside).with_context(|| format!("writing {beside}"))?;
    println!("{}", machine::description());
    println!(
        "{:<8} {:>9} {:>18} {:>18} {:>5} {:>6} {:>10} {:>7} {:>6}",
        "program",
        "samples",
        "blocks 5/10/15 %",
        "edges 5/10/15 %",
        "high",
        "right",
        "wrong: low",
        "cycles",
        "right"
    );
    let mut enough = true;
    for (kind, programs) in [
        ("tuned", repeatable::programs(&folder)?),
        ("others", repeatable::later_programs(&folder)?),
    ] {
        let mut lines = Vec::new();
        for program in programs {
            let line = measured(&program, &folder, (seconds, &engine))
                .with_context(|| format!("dcpi truth of {}", program.name))?;
            println!("{}", line.shown(program.name));
            lines.push(line);
        }
        let mean = Line::mean(&lines);
        println!("{}", mean.shown(kind));
        enough &= mean.is_enough();
    }
    println!(
        "blocks: shares of samples; edges: of executions; high: of samples, and how many of these are within 10 %;"
    );
    println!(
        "wrong: low: of what is off by more than 15 %, so much is called low; cycles: of samples, known; right: of these, true ones in the range told"
    );
    println!("tuned: the mean of the eight programs above it, on which estimates were tuned");
    println!(
        "asked of both means: blocks {BLOCKS_ASKED:?}, edges within 10 % {EDGES_ASKED}, high within 10 % {HIGH_ASKED}: {}",
        if enough { "reached" } else { "not reached" }
    );
    Ok(if enough { Outcome::Clean } else { Outcome::Problems })
}

fn measured(
    program: &Program,
    folder: &str,
    (seconds, engine): (u64, &str),
) -> anyhow::Result<Line> {
    let words = format!("{folder}/dcpi truth --format json --seconds {seconds}{engine} --");
    let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
    Line::of(&output(program.under(&words).stdout(Stdio::piped()).stderr(Stdio::piped()))?)
}

impl Line {
    /// Reads the output of `dcpi truth --format json`.
    fn of(report: &str) -> anyhow::Result<Self> {
        let number = |path: &[&str]| {
            json::number_at(report, path)
                .with_context(|| format!("its report has no {}", path.join(".")))
        };
        let within = |path: &[&str]| -> anyhow::Result<[f64; 3]> {
            let mut shares = [0.0; 3];
            for (share, percent) in shares.iter_mut().zip(WITHIN) {
                *share = 100.0 * number(&[path, &[&format!("within_{percent}")]].concat())?;
            }
            Ok(shares)
        };
        let (mut weight, mut wrong, mut wrong_low, mut high, mut high_right) =
            (0.0, 0.0, 0.0, 0.0, 0.0);
        for level in ["low", "medium", "high"] {
            let path = ["confidence", level];
            // The report leaves out a level that no block has.
            let Some(of) = json::number_at(report, &["confidence", level, "of"]) else { continue };
            let [_, right, near] = within(&path)?;
            weight += of;
            wrong += of * (100.0 - near);
            match level {
                "low" => wrong_low = of * (100.0 - near),
                "high" => (high, high_right) = (of, right),
                _ => {}
            }
        }
        Ok(Self {
            samples: number(&["samples"])?,
            blocks: within(&["blocks"])?,
            edges: within(&["edges"])?,
            high: 100.0 * high / weight,
            high_right,
            wrong_low: if wrong > 0.0 { 100.0 * wrong_low / wrong } else { 100.0 },
            // No procedure's cycles are known: the report has no number.
            cycles: ["known", "right"]
                .map(|name| 100.0 * json::number_at(report, &["cycles", name]).unwrap_or_default()),
        })
    }

    fn mean(lines: &[Self]) -> Self {
        let mean =
            |of: &dyn Fn(&Self) -> f64| lines.iter().map(of).sum::<f64>() / lines.len() as f64;
        let three = |of: fn(&Self) -> &[f64; 3]| {
            std::array::from_fn(|i| mean(&|line| of(line).get(i).copied().unwrap_or(0.0)))
        };
        Self {
            samples: mean(&|line| line.samples),
            blocks: three(|line| &line.blocks),
            edges: three(|line| &line.edges),
            high: mean(&|line| line.high),
            high_right: mean(&|line| line.high_right),
            wrong_low: mean(&|line| line.wrong_low),
            cycles: {
                // Of programs with more known cycles more is right or wrong.
                let known = mean(&|line| line.cycles[0]);
                let right = mean(&|line| line.cycles[0] * line.cycles[1]);
                [known, if known > 0.0 { right / known } else { 0.0 }]
            },
        }
    }

    fn is_enough(&self) -> bool {
        let [_, edges, _] = self.edges;
        let blocks = self.blocks.iter().zip(&BLOCKS_ASKED).all(|(reached, asked)| reached >= asked);
        blocks && edges >= EDGES_ASKED && self.high_right >= HIGH_ASKED
    }

    fn shown(&self, name: &str) -> String {
        let three = |[a, b, c]: [f64; 3]| format!("{a:.1} / {b:.1} / {c:.1}");
        format!(
            "{name:<8} {:>9.0} {:>18} {:>18} {:>5.0} {:>6.0} {:>10.0} {:>7.0} {:>6.0}",
            self.samples,
            three(self.blocks),
            three(self.edges),
            self.high,
            self.high_right,
            self.wrong_low,
            self.cycles[0],
            self.cycles[1]
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_becomes_a_line() {
        let shares = |a: f64, of: u32| {
            format!(
                r#"{{"within_5": {a}, "within_10": {}, "within_15": {}, "of": {of}}}"#,
                a + 0.1,
                a + 0.2
            )
        };
        let report = format!(
            r#"{{"samples": 100, "blocks": {}, "edges": {}, "confidence": {{"low": {}, "medium": {}, "high": {}}}, "cycles": {{"known": 0.5, "right": 1}}}}"#,
            shares(0.7, 100),
            shares(0.6, 5),
            shares(0.2, 20),
            shares(0.6, 20),
            shares(0.8, 60)
        );
        let line = Line::of(&report).unwrap();
        assert_eq!(
            (line.samples, line.high.round(), line.high_right.round(), line.cycles),
            (100.0, 60.0, 90.0, [50.0, 100.0])
        );
        // Wrong are 12 of the 20 that are called low, 4 of the next 20 and none of the others.
        assert_eq!(line.wrong_low.round(), 75.0);
        assert_eq!(line.edges.map(f64::round), [60.0, 70.0, 80.0]);
        let better = Line { high_right: 95.0, ..line };
        assert!(better.is_enough() && !Line::mean(&[better, Line::default()]).is_enough());
        assert!(Line::of(&report.replace("medium", "none")).unwrap().high == 75.0);
        assert!(Line::of("{}").is_err());
    }
}
