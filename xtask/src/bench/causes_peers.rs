//! Beside `bench why --causes`: what `perf annotate` and callgrind show of the same programs, and
//! whether that leads to the cause. Neither names causes, so an engineer's reading of their output
//! is written down here, in the peers' favour.

use crate::process::{command, output};
use std::fs;
use std::process::Stdio;

/// What a tool shows first, and the mechanisms that an engineer would read from it.
pub struct Shown {
    pub text: String,
    pub leads_to: Vec<&'static str>,
}

impl Shown {
    fn nothing(why: &str) -> Self {
        Self { text: why.to_owned(), leads_to: Vec::new() }
    }
}

/// Instructions and symbols that say themselves why they take long, by a part of their text.
const SELF_EVIDENT: [(&str, &[&str]); 20] = [
    ("div", &["divider"]),
    ("sqrt", &["divider"]),
    ("lock ", &["locked_instruction", "contended_line", "false_sharing"]),
    ("xchg", &["locked_instruction", "contended_line"]),
    ("cpuid", &["hypervisor_trap"]),
    ("mfence", &["serialising_instruction"]),
    ("lfence", &["serialising_instruction"]),
    ("pause", &["spinning"]),
    ("call   *", &["indirect_mispredict"]),
    ("jmp    *", &["indirect_mispredict"]),
    ("ret", &["return_mispredict"]),
    ("clear_page", &["page_fault"]),
    ("page_fault", &["page_fault"]),
    ("copy_user", &["kernel_copy"]),
    ("copy_to_user", &["kernel_copy"]),
    ("syscall", &["system_call"]),
    ("malloc", &["allocator"]),
    ("free", &["allocator"]),
    ("_PyEval", &["interpreter"]),
    ("mallocgc", &["allocator"]),
];

/// A load may wait for any level of the memory, and for its translation: the listing does not tell.
const LOAD: [&str; 4] = ["load_from_l2", "load_from_l3", "load_from_memory", "page_walk"];

/// The hottest symbol of `perf record`, and its hottest instruction by `perf annotate`.
pub fn perf(folder: &str, words: &[String]) -> Shown {
    let data = format!("{folder}/annotated.data");
    let mut record = command(&format!("perf record -q -e cpu-clock -F 999 -N -o {data} --"));
    let ran = record.args(words).stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !ran.is_ok_and(|status| status.success()) {
        return Shown::nothing("perf fails");
    }
    let mut report = command(&format!("perf report --stdio -i {data} --sort sym"));
    let report = output(&mut report).unwrap_or_default();
    let mut rows = report.lines().filter(|line| !line.starts_with('#'));
    let row = rows.find(|line| line.contains("] ")).unwrap_or_default();
    let symbol = row.split_once("] ").map_or("", |(_, name)| name.trim());
    let mut annotate = command(&format!("perf annotate --stdio -i {data} -s"));
    let listing = annotate.arg(symbol).stderr(Stdio::null()).output();
    let listing = listing.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let instruction = hottest(&listing.unwrap_or_default());
    let shown = format!("{symbol} `{instruction}`");
    let evident = SELF_EVIDENT.iter().filter(|(part, _)| shown.contains(part));
    let mut leads_to: Vec<&str> = evident.flat_map(|(_, to)| to.iter().copied()).collect();
    if leads_to.is_empty() && loads(&instruction) {
        leads_to.extend(LOAD);
    }
    Shown { text: shown, leads_to }
}

/// The instruction with the largest percentage of an annotated listing.
fn hottest(listing: &str) -> String {
    let rows = listing.lines().filter_map(|line| {
        let (percent, rest) = line.split_once(':')?;
        let (_, text) = rest.split_once(':')?;
        Some((percent.trim().parse::<f64>().ok()?, text.trim()))
    });
    let first = rows.max_by(|(a, _), (b, _)| a.total_cmp(b));
    first.map_or_else(String::new, |(_, text)| text.to_owned())
}

/// Whether an instruction in AT&T's syntax reads memory: its operand in parentheses is no
/// destination.
fn loads(instruction: &str) -> bool {
    let is_address = instruction.starts_with("lea") || instruction.starts_with("nop");
    instruction.contains('(') && !is_address && !instruction.ends_with(')')
}

/// The terms of the cost that KCachegrind estimates from callgrind's events ("cycle estimation":
/// 1 for an instruction, 10 for a miss of a first level or a misprediction, 100 for one of the last
/// level), and the mechanisms that each means.
const TERMS: [(&str, f64, &[&str], &[&str]); 5] = [
    (
        "instructions",
        1.0,
        &["Ir"],
        &["at_limit", "throughput", "allocator", "interpreter", "dependency_chain"],
    ),
    ("misses of L1d", 10.0, &["D1mr", "D1mw"], &["load_from_l2", "load_from_l3", "store_buffer"]),
    (
        "misses of the last level",
        100.0,
        &["DLmr", "DLmw"],
        &["load_from_memory", "load_from_l3", "memory_bandwidth", "page_walk"],
    ),
    ("misses of code", 10.0, &["I1mr", "ILmr"], &["instruction_fetch"]),
    (
        "mispredictions",
        10.0,
        &["Bcm", "Bim"],
        &["branch_mispredict", "indirect_mispredict", "return_mispredict"],
    ),
];

/// The costliest simulated event of callgrind (a kind of misses, or mispredictions), if its cost is
/// at least a quarter of that of the instructions; else the instructions.
pub fn callgrind(folder: &str, words: &[String]) -> Shown {
    let mut run = command("valgrind --tool=callgrind --cache-sim=yes --branch-sim=yes");
    run.arg(format!("--callgrind-out-file={folder}/callgrind.out")).args(words);
    let said = match run.stdin(Stdio::null()).output() {
        Ok(output) if output.status.success() => output.stderr,
        _ => return Shown::nothing("valgrind fails"),
    };
    let _ = fs::remove_file(format!("{folder}/callgrind.out"));
    let said = String::from_utf8_lossy(&said);
    let words_after = |title: &str| -> Vec<String> {
        let line = said.lines().find_map(|line| line.split_once(title).map(|(_, rest)| rest));
        let line = line.and_then(|line| line.split_once(": ")).map_or("", |(_, words)| words);
        line.split_whitespace().map(str::to_owned).collect()
    };
    let (events, counts) = (words_after("Events "), words_after("Collected "));
    let count = |event: &&str| {
        let at = events.iter().position(|name| name == event);
        let count = at.and_then(|at| counts.get(at)?.parse::<f64>().ok());
        count.unwrap_or_default()
    };
    let cost = |(_, each, of, _): &(_, f64, &[&str], _)| each * of.iter().map(count).sum::<f64>();
    let [instructions, others @ ..] = &TERMS;
    let needed = cost(instructions);
    let most = others.iter().max_by(|a, b| cost(a).total_cmp(&cost(b)));
    let term = most.filter(|most| 4.0 * cost(most) > needed).unwrap_or(instructions);
    let text =
        format!("{} ({:.2} of the instructions' cost)", term.0, cost(term) / needed.max(1.0));
    Shown { text, leads_to: term.3.to_vec() }
}
