//! `dcpi why --try`: the command with one thing changed, timed by the rules of `dcpi time`.

use std::ffi::OsString;
use std::fs;

use report::{RunRow, TimeReport, WhyExperiment};

use crate::commands::time::{self, Time};
use crate::options;
use query::error::AnalysisError;

/// Layouts of an experiment, and runs in each: 24 runs of the command and of the changed one. With
/// fewer, changes of a few percent are not told apart from chance.
const LAYOUTS: u32 = 8;
const RUNS: u32 = 3;
/// Random orders of the runs that the layouts' differences are compared with.
const ORDERS: u32 = 999;
/// Seed of these orders: a report on the same times is the same.
const SEED: u64 = 1;
/// The setting of transparent huge pages.
const THP: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

/// Runs the experiments.
///
/// # Errors
/// Returns the errors of `dcpi time`.
pub(super) fn experiments(command: &[OsString]) -> Result<Vec<WhyExperiment>, AnalysisError> {
    let mut all = vec![huge_pages(command)?];
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let name = "one CPU";
    let what = "taskset -c 0: all threads on one CPU";
    if cpus == 1 {
        all.push(not_done(name, what, "there is one CPU only"));
        all.push(not_done("layouts", LAYOUT_CHANGE, "without another experiment"));
        return Ok(all);
    }
    let every = format!("0-{}", cpus - 1);
    let prefix = |cpus: &str| ["taskset", "-c", cpus].map(OsString::from).to_vec();
    let timed = beside((prefix(&every), prefix("0")), command)?;
    let layouts = layouts(&timed);
    all.push(told(name, what, &timed));
    all.push(layouts);
    Ok(all)
}

fn huge_pages(command: &[OsString]) -> Result<WhyExperiment, AnalysisError> {
    let name = "huge pages";
    let what = "GLIBC_TUNABLES=glibc.malloc.hugetlb=1: memory that malloc gets is in pages of 2 MiB \
                where the kernel has them";
    let setting = fs::read_to_string(THP).unwrap_or_default();
    if setting.contains("[never]") || setting.is_empty() {
        return Ok(not_done(name, what, "the kernel gives no transparent huge pages"));
    }
    if setting.contains("[always]") {
        return Ok(not_done(name, what, "the kernel gives huge pages to all memory anyway"));
    }
    let prefix = |with: u8| {
        let tunable = format!("GLIBC_TUNABLES=glibc.malloc.hugetlb={with}");
        vec!["env".into(), tunable.into()]
    };
    Ok(told(name, what, &beside((prefix(0), prefix(1)), command)?))
}

/// Times the command behind each of two prefixes.
fn beside(
    (first, second): (Vec<OsString>, Vec<OsString>),
    command: &[OsString],
) -> Result<TimeReport, AnalysisError> {
    let number = |number: u32| OsString::from(number.to_string());
    let mut words: Vec<OsString> = vec!["--ignore-failure".into(), "--layouts".into()];
    words.extend([number(LAYOUTS), "-r".into(), number(RUNS), "--".into()]);
    words.extend(first.into_iter().chain(command.iter().cloned()));
    words.push("--".into());
    words.extend(second.into_iter().chain(command.iter().cloned()));
    let args: Time = options::typed(words).map_err(super::wrong)?;
    Ok(time::timed(&args)?.1)
}

fn not_done(name: &'static str, what: &str, why: &str) -> WhyExperiment {
    let (change, low, high) = (None, None, None);
    let says = format!("not tried: {why}");
    WhyExperiment { name, what: what.to_owned(), change, low, high, says }
}

fn told(name: &'static str, what: &str, timed: &TimeReport) -> WhyExperiment {
    let change = timed.comparison.as_ref().map(|comparison| comparison.change);
    let says = match change {
        Some(change) if change.low <= 0.0 && change.high >= 0.0 => format!(
            "no difference that chance does not explain ({} to {})",
            percent(change.low),
            percent(change.high)
        ),
        Some(change) => format!(
            "{} of the time ({} to {})",
            percent(change.value),
            percent(change.low),
            percent(change.high)
        ),
        None => "nothing was measured".to_owned(),
    };
    WhyExperiment {
        name,
        what: what.to_owned(),
        change: change.map(|change| change.value),
        low: change.map(|change| change.low),
        high: change.map(|change| change.high),
        says,
    }
}

fn percent(share: f64) -> String {
    format!("{:+.1} %", 100.0 * share)
}

const LAYOUT_CHANGE: &str = "another size of the environment, other addresses, other places of the \
                             files in memory";

/// How far the times of layouts differ, in runs of the unchanged command.
fn layouts(timed: &TimeReport) -> WhyExperiment {
    let is_cpu = timed.clock.is_cpu();
    let time = |row: &RunRow| if is_cpu { row.cpu_s() } else { row.wall_s };
    let own = timed.runs.iter().filter(|row| row.command == 0 && !row.warm_up);
    let times: Vec<(usize, f64)> = own.map(|row| (row.layout, time(row).ln())).collect();
    let name = "layouts";
    let Some((low, high, is_chance)) = spread(&times) else {
        return not_done(name, LAYOUT_CHANGE, "too few runs");
    };
    let [low, high] = [low, high].map(|log| log.exp() - 1.0);
    let range = format!("{} to {}", percent(low), percent(high));
    let says = match is_chance {
        true => format!("no difference that chance does not explain ({range})"),
        false => format!("layouts take {range} of the time beside their mean"),
    };
    let change = (!is_chance).then_some(low);
    let (low, high) = (Some(low), Some(high));
    WhyExperiment { name, what: LAYOUT_CHANGE.to_owned(), change, low, high, says }
}

/// The lowest and highest mean of a layout beside the mean of all, and whether the same times in
/// random order differ as much between layouts, in more than 5 % of orders.
fn spread(times: &[(usize, f64)]) -> Option<(f64, f64, bool)> {
    let count = times.len() as f64;
    let mean = times.iter().map(|(_, time)| time).sum::<f64>() / count;
    let means = |values: &[f64]| -> Vec<(f64, f64)> {
        let layouts = times.iter().map(|(layout, _)| layout + 1).max().unwrap_or(0);
        let mut sums = vec![(0.0, 0.0); layouts];
        for ((layout, _), value) in times.iter().zip(values) {
            if let Some((sum, count)) = sums.get_mut(*layout) {
                *sum += value - mean;
                *count += 1.0;
            }
        }
        sums.retain(|(_, count)| *count > 0.0);
        sums.into_iter().map(|(sum, count)| (sum / count, count)).collect()
    };
    let between = |values: &[f64]| -> f64 {
        means(values).into_iter().map(|(mean, count)| mean * mean * count).sum()
    };
    let mut values: Vec<f64> = times.iter().map(|(_, time)| *time).collect();
    let own = means(&values);
    if own.len() < 3 || values.len() < 2 * own.len() || !mean.is_finite() {
        return None;
    }
    let as_run = between(&values);
    let mut random = fastrand::Rng::with_seed(SEED);
    let mut as_far = 0;
    for _ in 0..ORDERS {
        random.shuffle(&mut values);
        as_far += u32::from(between(&values) >= as_run);
    }
    let low = own.iter().map(|(mean, _)| *mean).fold(f64::INFINITY, f64::min);
    let high = own.iter().map(|(mean, _)| *mean).fold(f64::NEG_INFINITY, f64::max);
    Some((low, high, f64::from(as_far + 1) > 0.05 * f64::from(ORDERS + 1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_differ_where_their_runs_agree() {
        let runs = |of_layout: f64| -> Vec<(usize, f64)> {
            let noise = |run: usize| 0.01 * (run as f64 * 7.3).sin();
            let time = |run: usize| (run / 3, of_layout * ((run / 3) % 2) as f64 + noise(run));
            (0..24).map(time).collect()
        };
        assert!(spread(&runs(0.0)).is_some_and(|(.., is_chance)| is_chance));
        let (low, high, is_chance) = spread(&runs(0.1)).unwrap_or_default();
        assert!(!is_chance && low < -0.04 && high > 0.04, "{low} {high}");
        assert_eq!(spread(&[]), None);
    }
}
