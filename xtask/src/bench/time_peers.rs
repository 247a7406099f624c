//! Rates at which hyperfine and criterion report a difference between builds that differ in link
//! order alone.

use super::time::Bench;
use crate::process::{command, must, output};
use anyhow::Context as _;
use serde_json::Value;
use std::fs;
use std::process::Command;

/// Manifest of a package that benchmarks with criterion, apart from this workspace, so that its
/// dependencies are not ours.
const MANIFEST: &str = r#"[package]
name = "peer"
version = "0.0.0"
edition = "2021"
[workspace]
[lib]
bench = false
[dev-dependencies]
criterion = { version = "=0.5.1", default-features = false, features = ["cargo_bench_support"] }
[[bench]]
name = "peer"
harness = false
"#;
/// A benchmark that runs the command in $PEER.
const SOURCE: &str = r#"use criterion::{criterion_group, criterion_main, Criterion};
fn run(c: &mut Criterion) {
    let line = std::env::var("PEER").unwrap();
    let words: Vec<&str> = line.split(' ').collect();
    c.bench_function("work", |b| {
        b.iter(|| {
            let mut command = std::process::Command::new(words[0]);
            assert!(command.args(&words[1..]).status().unwrap().success())
        })
    });
}
criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(std::time::Duration::from_millis(500))
        .measurement_time(std::time::Duration::from_secs(2))
        .without_plots();
    targets = run
}
criterion_main!(benches);
"#;

/// Name of a tool's criterion, and the number of wrong answers.
pub type Said = (String, u32);

/// Wrong answers of hyperfine: by its summary (the ratio's distance from 1 is more than its "±"),
/// and by a t-test of its runs (its scripts/welch_ttest.py).
pub fn hyperfine(bench: &Bench, pairs: u64) -> anyhow::Result<Vec<Said>> {
    let file = format!("{}/hyperfine.json", bench.folder());
    let (mut summary, mut welch) = (0, 0);
    for pair in 0..pairs {
        bench.link([2 * pair, 2 * pair + 1])?;
        let mut hyperfine = command("hyperfine -N --warmup 2 --runs 30 --style none --export-json");
        let _ = output(hyperfine.arg(&file).args(bench.same_work()))?;
        let text = fs::read_to_string(&file).with_context(|| format!("reading {file}"))?;
        let [a, b] = times(&text).context("hyperfine's JSON has no two lists of times")?;
        let ((mean_a, sd_a), (mean_b, sd_b)) = (moments(&a), moments(&b));
        let ratio = mean_a.max(mean_b) / mean_a.min(mean_b);
        // As hyperfine computes its "±": relative deviations, added in squares.
        let reach = ratio * ((sd_a / mean_a).powi(2) + (sd_b / mean_b).powi(2)).sqrt();
        summary += u32::from(ratio - 1.0 > reach);
        let error = (sd_a * sd_a / a.len() as f64 + sd_b * sd_b / b.len() as f64).sqrt();
        // t of 58 degrees of freedom at 5 %, or of some fewer where deviations differ.
        welch += u32::from((mean_a - mean_b).abs() > 2.0 * error);
    }
    Ok(vec![
        ("hyperfine, its summary".to_owned(), summary),
        ("hyperfine, t-test of runs".to_owned(), welch),
    ])
}

/// Wrong answers of criterion: "Performance has improved" or "regressed" against the saved
/// baseline.
pub fn criterion(bench: &Bench, pairs: u64) -> anyhow::Result<Said> {
    let folder = format!("{}/criterion", bench.folder());
    fs::create_dir_all(format!("{folder}/benches"))?;
    fs::create_dir_all(format!("{folder}/src"))?;
    fs::write(format!("{folder}/Cargo.toml"), MANIFEST)?;
    fs::write(format!("{folder}/src/lib.rs"), "")?;
    fs::write(format!("{folder}/benches/peer.rs"), SOURCE)?;
    must(command("cargo bench -q --no-run").current_dir(&folder))?;
    let root = std::env::current_dir()?;
    let [a, b] = bench.same_work().map(|work| {
        // criterion runs in its own folder.
        let words = work.split(' ').map(|word| match word.contains('/') {
            true => root.join(word).display().to_string(),
            false => word.to_owned(),
        });
        words.collect::<Vec<_>>().join(" ")
    });
    let measure = |work: &str, option: &str| {
        let mut bench = Command::new("cargo");
        bench.args(["bench", "-q", "--", option, "pair"]).env("PEER", work).current_dir(&folder);
        output(&mut bench)
    };
    let mut wrong = 0;
    for pair in 0..pairs {
        bench.link([2 * pair, 2 * pair + 1])?;
        measure(&a, "--save-baseline")?;
        let said = measure(&b, "--baseline")?;
        let says = ["Performance has improved", "Performance has regressed"];
        wrong += u32::from(says.iter().any(|says| said.contains(says)));
    }
    Ok(("criterion".to_owned(), wrong))
}

/// The two lists of times in hyperfine's JSON.
fn times(text: &str) -> Option<[Vec<f64>; 2]> {
    let told: Value = serde_json::from_str(text).ok()?;
    let list = |command: usize| {
        let times = told.pointer(&format!("/results/{command}/times"))?.as_array()?;
        Some(times.iter().filter_map(Value::as_f64).collect::<Vec<f64>>())
    };
    let both = [list(0)?, list(1)?];
    both.iter().all(|list| list.len() > 1).then_some(both)
}

/// Mean and standard deviation.
pub fn moments(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    (mean, (values.iter().map(|of| (of - mean).powi(2)).sum::<f64>() / (n - 1.0)).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_both_commands_are_read() {
        let text = r#"{"results":[{"times": [1.0, 3.0], "x": []}, {"times": [2,4]}]}"#;
        assert_eq!(times(text), Some([vec![1.0, 3.0], vec![2.0, 4.0]]));
        assert_eq!(times("{}"), None);
        assert_eq!(moments(&[1.0, 3.0]), (2.0, 2.0_f64.sqrt()));
    }
}
