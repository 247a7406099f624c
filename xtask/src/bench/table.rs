//! `bench table`: recommends size, ways, policy and drain interval of the sampler's table, by
//! simulation of recorded samples (SOSP 1997, section 5.4).

use super::costs::{Cost, WORTH_A_CHANGE, model};
use super::grid::{BUCKETS, Cell, INTERVALS_S, WAYS, best, simulate};
use super::recording::{self, Phase};
use super::simulation::{Counts, DEFAULT, IN_PAGE, Policy, Shape};
use super::{FOLDER, count, option, refuse_others, require_root};
use crate::Outcome;
use crate::packages;
use anyhow::Context as _;
use std::collections::HashSet;
use std::fmt::Write as _;
use std::fs;
use std::time::Instant;

/// Records samples unless a recording is given, simulates, and prints the recommendation.
pub fn run(arguments: &[&str]) -> anyhow::Result<Outcome> {
    refuse_others("table", arguments, &[], &["--recording", "--seconds"])?;
    let seconds = count(arguments, "--seconds", 45)?;
    let path = match option(arguments, "--recording")? {
        Some(path) => path.to_owned(),
        None => {
            require_root("table")?;
            packages::ensure(packages::COMPILER.iter().chain(&packages::BENCH_TOOLS))?;
            fs::create_dir_all(FOLDER)?;
            recording::record(seconds)?
        }
    };
    let phases = recording::read(&path)?;
    println!("\nrecording {path}");
    print!("{}", described(&phases));
    let started = Instant::now();
    let cells = simulate(&phases)?;
    println!("{} shapes simulated in {:.0} s\n", cells.len(), started.elapsed().as_secs_f64());
    fs::create_dir_all(FOLDER)?;
    let csv = format!("{FOLDER}/table.csv");
    fs::write(&csv, comma_separated(&cells)).with_context(|| format!("writing {csv}"))?;
    for (title, shapes) in sections() {
        let rows = shapes.iter().filter_map(|shape| cells.iter().find(|cell| cell.shape == *shape));
        println!(
            "{title}\n{}",
            rows.fold(heading(), |text, cell| text + &row(&cell.shape, &cell.counts))
        );
    }
    print!("{}", least(&phases));
    let best = best(&cells)?;
    for (name, shape) in [("the default", DEFAULT), ("the recommended shape", best.shape)] {
        println!("{name}, by phase\n{}", by_phase(&shape, &phases));
    }
    print!("{}", recommendation(&best, &cells)?);
    println!("all shapes: {csv}");
    Ok(Outcome::Clean)
}

fn described(phases: &[Phase]) -> String {
    let mut text = String::new();
    for Phase { name, samples } in phases {
        let part = |of: usize| 100.0 * of as f64 / samples.len().max(1) as f64;
        let first = samples.first().map_or(0, |sample| sample.time_us);
        let seconds = samples.last().map_or(0, |sample| sample.time_us - first) as f64 / 1e6;
        let places: HashSet<_> = samples.iter().map(|sample| (sample.pid, sample.pc)).collect();
        let processes: HashSet<_> = samples.iter().map(|sample| sample.pid).collect();
        let kernel = samples.iter().filter(|sample| sample.is_kernel()).count();
        let _ = writeln!(
            text,
            "  {name:<8} {seconds:>5.1} s {:>8} samples, {:.0} % in the kernel, of {} processes at {} places",
            samples.len(),
            part(kernel),
            processes.len(),
            places.len(),
        );
    }
    text
}

/// Shapes that differ from the default in one or two ways, under their titles.
fn sections() -> Vec<(&'static str, Vec<Shape>)> {
    let sizes = WAYS.iter().flat_map(|ways| {
        BUCKETS.iter().map(|buckets| Shape { ways: *ways, buckets: *buckets, ..DEFAULT })
    });
    let policies = [IN_PAGE, 1024, 4096].into_iter().flat_map(|buckets| {
        Policy::ALL.into_iter().map(move |policy| Shape { policy, buckets, ..DEFAULT })
    });
    let intervals = [IN_PAGE, 4096].into_iter().flat_map(|buckets| {
        INTERVALS_S.into_iter().map(move |interval_s| Shape { interval_s, buckets, ..DEFAULT })
    });
    let kernel = [IN_PAGE, 1024, 4096].into_iter().flat_map(|buckets| {
        [true, false].into_iter().map(move |kernel_shared| Shape {
            kernel_shared,
            buckets,
            ..DEFAULT
        })
    });
    let retained = [IN_PAGE, 4096].into_iter().flat_map(|buckets| {
        [true, false].into_iter().map(move |retained| Shape { retained, buckets, ..DEFAULT })
    });
    vec![
        ("places left in the table by a drain, or emptied", retained.collect()),
        ("ways and size", sizes.collect()),
        ("policy", policies.collect()),
        ("drain interval", intervals.collect()),
        ("kernel addresses shared by all processes, or per process", kernel.collect()),
    ]
}

fn heading() -> String {
    format!(
        "  {:>4} {:>7} {:>13} {:>5} {:>7} {:>6}  {:>6} {:>9} {:>8} {:>8} {:>10}  {:>7} {:>6} {:>6}  {:>9}\n",
        "ways",
        "buckets",
        "policy",
        "drain",
        "kernel",
        "drains",
        "miss %",
        "spilled %",
        "handed %",
        "places %",
        "spill peak",
        "handler",
        "daemon",
        "sum",
        "KiB/CPU"
    )
}

fn row(shape: &Shape, counts: &Counts) -> String {
    let cost = Cost::of(shape, counts);
    let percent = |part: u64| 100.0 * counts.per_sample(part);
    format!(
        "  {:>4} {:>7} {:>13} {:>3} s {:>7} {:>6}  {:>6.2} {:>9.2} {:>8.2} {:>8.2} {:>10}  {:>7.1} {:>6.1} {:>6.1}  {:>9}{}\n",
        shape.ways,
        shape.buckets,
        shape.policy.name(),
        shape.interval_s,
        if shape.kernel_shared { "shared" } else { "per pid" },
        if shape.retained { "leave" } else { "empty" },
        percent(counts.misses),
        percent(counts.spilled),
        percent(counts.spilled + counts.drained),
        percent(counts.places),
        counts.spill_peak,
        cost.handler_ns,
        cost.daemon_ns,
        cost.total_ns(),
        Cell { shape: *shape, counts: *counts }.bytes() / 1024,
        if *shape == DEFAULT { "  <- default" } else { "" },
    )
}

/// Least misses of any table, by interval, in words.
fn least(phases: &[Phase]) -> String {
    let samples: usize = phases.iter().map(|phase| phase.samples.len()).sum();
    let rates = INTERVALS_S.map(|interval_s| {
        let shape = Shape { interval_s, ..DEFAULT };
        let misses: u64 = phases.iter().map(|phase| shape.least_misses(&phase.samples)).sum();
        format!("{:.2} at {interval_s} s", 100.0 * misses as f64 / samples.max(1) as f64)
    });
    format!("A table without limits misses, %: {}.\n\n", rates.join(", "))
}

fn by_phase(shape: &Shape, phases: &[Phase]) -> String {
    phases.iter().fold(heading(), |text, phase| {
        let row = row(shape, &shape.simulate(&phase.samples));
        format!("{text}{}  {}\n", row.trim_end(), phase.name)
    })
}

fn recommendation(best: &Cell, cells: &[Cell]) -> anyhow::Result<String> {
    let default =
        cells.iter().find(|cell| cell.shape == DEFAULT).context("the default was not simulated")?;
    if best.shape == DEFAULT {
        return Ok(format!(
            "{}Recommended: the default, {:.0} ns per sample and {} KiB per CPU; no shape that can be built and fits is more than {:.0} % cheaper.\n",
            model(),
            best.cost().total_ns(),
            best.bytes() / 1024,
            100.0 * WORTH_A_CHANGE,
        ));
    }
    let (cost, was) = (best.cost().total_ns(), default.cost().total_ns());
    let Shape { ways, buckets, policy, interval_s, kernel_shared, retained } = best.shape;
    Ok(format!(
        "{}Recommended: {ways} ways, {} buckets, {}, drain every {interval_s} s ({}), kernel addresses {}: {cost:.0} ns per sample and {} KiB per CPU;\n\
         the default costs {was:.0} ns ({:+.0} %) and takes {} KiB.\n",
        model(),
        buckets,
        policy.name(),
        if retained { "places stay" } else { "emptied" },
        if kernel_shared { "shared" } else { "per process" },
        best.bytes() / 1024,
        100.0 * (was / cost - 1.0),
        default.bytes() / 1024,
    ))
}

fn comma_separated(cells: &[Cell]) -> String {
    let head = "ways,buckets,policy,drain_s,kernel_shared,retained,samples,misses,spilled,drained,places,spill_peak,handler_ns,daemon_ns,bytes_per_cpu\n";
    cells.iter().fold(head.to_owned(), |text, cell| {
        let (shape, counts, cost) = (&cell.shape, &cell.counts, cell.cost());
        format!(
            "{text}{},{},{},{},{},{},{},{},{},{},{},{},{:.2},{:.2},{}\n",
            shape.ways,
            shape.buckets,
            shape.policy.name(),
            shape.interval_s,
            shape.kernel_shared,
            shape.retained,
            counts.samples,
            counts.misses,
            counts.spilled,
            counts.drained,
            counts.places,
            counts.spill_peak,
            cost.handler_ns,
            cost.daemon_ns,
            cell.bytes(),
        )
    })
}
