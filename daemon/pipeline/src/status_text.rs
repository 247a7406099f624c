//! The status as text, as `dcpictl status` prints it: lines of a name and a sentence.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use wire::{
    ApartStatus, ChangeStatus, CodeStoreStatus, CostStatus, CpuStatus, DaemonStatus, EdgesStatus,
    EventStatus, GeneratedStatus, InspectorsStatus, LoaderStatus, OverheadStatus, RateStatus,
    RestraintStatus, StacksStatus, Status, TableStatus, WaitStatus, WaitsStatus,
};

/// Labels that the text lists; of further ones it states the number.
const LABELS_SHOWN: usize = 8;

/// The text of a status. `now_unix_s`, in seconds since 1970 UTC, makes ages of the times in it.
pub fn text(status: &Status, now_unix_s: u64) -> String {
    let mut text = String::new();
    let samples = &status.samples;
    let of_taken = |part: u64| {
        if samples.taken == 0 { 0.0 } else { 100.0 * part as f64 / samples.taken as f64 }
    };
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "{name:<12}{value}"); // writing to a String cannot fail
    };
    line("dcpid", format!("{} on {}, up {} s", status.version, status.host, status.uptime_s));
    let db_size = size(status.db.bytes);
    line("epoch", format!("{} in {} ({db_size})", status.epoch, status.db.path));
    for event in &status.events {
        line("event", event_text(event));
    }
    line(
        "samples",
        format!("{} taken, {} merged, {} pending", samples.taken, samples.merged, samples.pending),
    );
    for (name, reasons) in [("unresolved", &samples.unresolved), ("lost", &samples.lost)] {
        for (reason, count) in reasons {
            line(name, format!("{count} ({:.3} %) {}", of_taken(*count), explained(reason)));
        }
    }
    cpu_lines(&status.cpus).into_iter().for_each(|(name, value)| line(name, value));
    line("table", table_text(&status.table));
    status
        .handler
        .ns_per_sample
        .iter()
        .for_each(|ns| line("handler", format!("{ns:.0} ns per sample")));
    line("daemon", daemon_text(&status.daemon));
    overhead_lines(&status.overhead, now_unix_s)
        .into_iter()
        .for_each(|(name, value)| line(name, value));
    apart_lines(&status.apart).into_iter().for_each(|(name, value)| line(name, value));
    line("knows", format!("{} processes, {} mapped files", status.processes, status.images));
    status.edges.iter().for_each(|edges| line("edges", edges_text(edges)));
    status.stacks.iter().for_each(|stacks| line("stacks", stacks_text(stacks)));
    status.waits.iter().for_each(|waits| line("waits", waits_text(waits)));
    status.code_store.iter().for_each(|store| line("code", code_store_text(store)));
    if status.generated.processes > 0 {
        line("generated", generated_text(&status.generated));
    }
    if status.lost_records > 0 {
        let meaning = "the rings were full; those processes are looked up in /proc, or their samples are unresolved";
        line(
            "records",
            format!("{} of mappings dropped by the kernel: {meaning}", status.lost_records),
        );
    }
    if let refused @ 1.. = status.refused {
        line(
            "refused",
            format!("{refused} processes and mappings beyond the limits; their samples unresolved"),
        );
    }
    restraint_text(&status.restraint).into_iter().for_each(|value| line("restraint", value));
    loader_text(&status.loader).into_iter().for_each(|value| line("loader", value));
    inspectors_text(&status.inspectors).into_iter().for_each(|value| line("inspectors", value));
    if let Some(error) = &status.merge_error {
        line("merge", format!("FAILED: {error}"));
    }
    text
}

/// CPUs that missed more than a thousandth of their samples, and CPUs that were offline.
fn cpu_lines(cpus: &[CpuStatus]) -> Vec<(&'static str, String)> {
    let mut lines = Vec::new();
    for cpu in cpus.iter().filter(|cpu| cpu.missed.values().sum::<u64>() * 1000 > cpu.implied) {
        let reasons: Vec<_> =
            cpu.missed.iter().map(|(reason, samples)| format!("{samples} {reason}")).collect();
        let reasons = reasons.join(", ");
        let (cpu, implied) = (cpu.cpu, cpu.implied);
        lines.push(("missed", format!("CPU {cpu}: {reasons} of {implied} that its events imply")));
    }
    for CpuStatus { cpu, offline, offline_s, .. } in cpus.iter().filter(|cpu| cpu.offline > 0) {
        let times = if *offline == 1 { "once".to_owned() } else { format!("{offline} times") };
        let text = format!("CPU {cpu}: {times}, not sampled for {offline_s:.1} s because of that");
        lines.push(("offline", text));
    }
    lines
}

/// The level of activity and its reason; `None` while all is sampled.
fn restraint_text(restraint: &RestraintStatus) -> Option<String> {
    let why = restraint.why.as_ref()?;
    let doing = match restraint.doing.as_str() {
        "nothing" => "nothing is sampled",
        _ => "counts only, no snapshots",
    };
    Some(format!("{doing}: {why}"))
}

fn event_text(event: &EventStatus) -> String {
    let note = event.note.as_ref().map(|note| format!(" - {note}")).unwrap_or_default();
    // A division of 0 by 0 gives no number, which is not shown.
    let share = event.running_ns as f64 / event.enabled_ns as f64;
    let part = if share < 0.999 {
        format!(", counted {:.1} % of the time", 100.0 * share)
    } else {
        String::new()
    };
    format!(
        "{} every {} {} on average: {} samples{part}{note}",
        event.name, event.period, event.unit, event.samples
    )
}

fn table_text(table: &TableStatus) -> String {
    let TableStatus { hits, misses, places, bytes_per_cpu } = table;
    let samples = (hits + misses) as f64;
    let (found, together) =
        (100.0 * *hits as f64 / samples.max(1.0), samples / (*places).max(1) as f64);
    format!(
        "{found:.1} % of samples found their place; {together:.1} to a place and drain; {} per CPU",
        size(*bytes_per_cpu)
    )
}

fn daemon_text(daemon: &DaemonStatus) -> String {
    let DaemonStatus { cpu_s, start_cpu_s, rss_bytes, ns_per_sample } = daemon;
    let each = ns_per_sample.map(|ns| format!(", then {ns:.0} ns per sample")).unwrap_or_default();
    format!(
        "{cpu_s:.2} s of CPU time, {start_cpu_s:.2} s of it to start{each}; {} resident",
        size(*rss_bytes)
    )
}

/// Lines about the overhead, as names and sentences; empty without a budget.
fn overhead_lines(overhead: &OverheadStatus, now_unix_s: u64) -> Vec<(&'static str, String)> {
    let (Some(budget), Some(ns)) = (overhead.budget, overhead.ns_per_sample) else {
        return Vec::new();
    };
    let ago = |unix_s: u64| {
        let s = now_unix_s.saturating_sub(unix_s);
        if s < 120 { format!("{s} s ago") } else { format!("{} min ago", s / 60) }
    };
    let measured =
        overhead.measured.as_ref().map_or("assumed: it could not be measured".to_owned(), |cost| {
            let CostStatus { unix_s, windows, quiet, low_ns, high_ns } = cost;
            format!(
                "{low_ns:.0} to {high_ns:.0} in {quiet} quiet of {windows} windows, {}",
                ago(*unix_s)
            )
        });
    let now = overhead.share.map_or(String::new(), |share| {
        let mut items: Vec<_> = overhead.items.iter().collect();
        items.sort_by(|a, b| b.1.total_cmp(a.1));
        let item = |(name, part): (&String, &f64)| {
            format!("{} {:.2} %", name.replace('_', " "), 100.0 * part)
        };
        let items: Vec<String> = items.into_iter().map(item).collect();
        format!(", {:.2} % in the last half minute: {}", 100.0 * share, items.join(", "))
    });
    let cost = format!("{ns:.0} ns per sample with its interrupt ({measured})");
    let mut lines =
        vec![("overhead", cost), ("budget", format!("{} % of all CPU time{now}", 100.0 * budget))];
    lines.extend(overhead.rate.as_ref().map(|rate| {
        let RateStatus { per_s, allowed_per_s, last_change } = rate;
        let change = last_change.as_ref().map_or("the same since the start".to_owned(), |change| {
            let ChangeStatus { unix_s, from_per_s, to_per_s, why } = change;
            format!("{from_per_s} became {to_per_s} {}: {why}", ago(*unix_s))
        });
        ("rate", format!("{per_s}/s/CPU; the cost allows {allowed_per_s}/s/CPU; {change}"))
    }));
    lines
}

/// Lines about scopes, as names and sentences; empty where nothing is kept apart.
fn apart_lines(apart: &ApartStatus) -> Vec<(&'static str, String)> {
    let mut lines = Vec::new();
    if !apart.labels.is_empty() {
        let shown: Vec<_> = apart.labels.iter().take(LABELS_SHOWN).map(String::as_str).collect();
        let more = apart.labels.len() - shown.len();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        lines.push(("labels", format!("{}{more}", shown.join(", "))));
    }
    let (samples, processes) = (apart.samples_widened, apart.units_refused);
    if samples + processes > 0 {
        let why =
            "too many labels, units and processes are kept apart; begin a new epoch, or keep fewer";
        lines.push((
            "apart",
            format!("{samples} samples, {processes} processes less finely than asked for: {why}"),
        ));
    }
    lines
}

fn edges_text(snapshots: &EdgesStatus) -> String {
    let EdgesStatus { rate_per_s, taken, dropped, unresolved, edges, .. } = snapshots;
    let each = snapshots.ns_per_snapshot.map(|ns| format!(", {ns:.0} ns each")).unwrap_or_default();
    format!(
        "{edges} from {taken} snapshots of registers ({dropped} dropped, {unresolved} unresolved){each}; at most {rate_per_s:.0}/s/CPU"
    )
}

/// Programs with cut stacks that the text names.
const PROGRAMS_NAMED: usize = 3;

fn stacks_text(stacks: &StacksStatus) -> String {
    let StacksStatus { rate_per_s, taken, dropped, whole, cut, programs, .. } = stacks;
    let walked = whole + cut.values().sum::<u64>();
    let each = stacks.ns_per_stack.map(|ns| format!(", {ns:.0} ns each")).unwrap_or_default();
    let reasons = |cut: &BTreeMap<String, u64>| {
        let mut cut: Vec<_> = cut.iter().filter(|(_, stacks)| **stacks > 0).collect();
        cut.sort_by_key(|(_, stacks)| std::cmp::Reverse(**stacks));
        let of = |(reason, stacks): (&String, &u64)| format!("{stacks} {reason}");
        cut.into_iter().map(of).collect::<Vec<_>>().join(", ")
    };
    let whole_share = match walked {
        0 => String::new(),
        _ => {
            let percent = |part: u64, of: u64| 100.0 * part as f64 / of.max(1) as f64;
            let with_user_code = stacks.by_sampler + stacks.by_inspector;
            let by_sampler = percent(stacks.by_sampler, with_user_code);
            let whole = percent(*whole, walked);
            format!(", {whole:.1} % whole, {by_sampler:.1} % walked in the kernel")
        }
    };
    let mut text = format!(
        "{taken} taken ({dropped} dropped for want of room){whole_share}{each}; at most \
         {rate_per_s:.0}/s/CPU"
    );
    let cut_programs = programs.iter().filter(|program| program.cut.values().any(|n| *n > 0));
    for program in cut_programs.take(PROGRAMS_NAMED) {
        let of = program.whole + program.cut.values().sum::<u64>();
        text += &format!("; {} {} of {of}", program.program, reasons(&program.cut));
    }
    let StacksStatus { named, named_differs, named_without, thinned, differing, .. } = stacks;
    if *differing > 0 {
        text += &format!("; {differing} walked otherwise by unwind tables");
    }
    if *thinned > 0 {
        text += &format!("; {thinned} of users whose stacks cost much are stood for by others");
    }
    if *named_without > 0 {
        text +=
            &format!("; {named_without} processes have no functions of runtimes for want of room");
    }
    match (named, named_differs) {
        (0, 0) => {}
        (_, 0) => text += &format!("; {named} with functions of runtimes"),
        _ => {
            text +=
                &format!("; {named} with functions of runtimes, {named_differs} that did not fit")
        }
    }
    text
}

fn waits_text(waits: &WaitsStatus) -> String {
    let WaitsStatus { scale_s, switches_per_s, taken, lost, threads, .. } = waits;
    let Some(scale_s) = scale_s else {
        let passes = match waits.pass_s {
            Some(pass_s) => format!(
                "waiting threads are looked for every {pass_s:.1} s instead, without their own stacks: {} were met",
                waits.seen
            ),
            None => "none are taken".to_owned(),
        };
        return format!(
            "{switches_per_s:.0} switches of threads/s/CPU are too many to follow within the budget; {passes}"
        );
    };
    let WaitsStatus { wall_s, on_s, blocked_s, runnable_s, .. } = waits;
    format!(
        "{threads} threads in {wall_s:.0} s: {on_s:.1} s on CPU, {blocked_s:.1} blocked, {runnable_s:.1} runnable; stacks of {taken} waits ({lost} lost), of all of {:.0} ms; {switches_per_s:.0} switches/s/CPU",
        1000.0 * scale_s
    )
}

fn code_store_text(store: &CodeStoreStatus) -> String {
    let CodeStoreStatus { images, bytes, limit_bytes, waiting, refused, removed, .. } = store;
    let more = [(*waiting, "waiting"), (*refused, "refused"), (*removed, "removed for others")];
    let more: String =
        more.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!(", {n} {what}")).collect();
    format!("{images} images kept, {} of {}{more}", size(*bytes), size(*limit_bytes))
}

fn generated_text(generated: &GeneratedStatus) -> String {
    let (memory, refused) = (size(generated.bytes), generated.refused);
    let refused =
        if refused > 0 { format!("; {refused} refused at the limits") } else { String::new() };
    let GeneratedStatus { pieces, regions, processes, .. } = generated;
    format!(
        "{pieces} pieces of code and {regions} registered regions of {processes} processes, {memory}{refused}"
    )
}

/// The sentence about the loader hook; None before the first notice.
fn loader_text(loader: &LoaderStatus) -> Option<String> {
    let LoaderStatus { received, known, learnt, refused } = loader;
    (*received > 0)
        .then(|| format!("{received} notices: {known} known already, {learnt} learnt from /proc, {refused} refused"))
}

/// Questions that were not answered, and a line for each user whose processes are to blame. None
/// while all are answered.
fn inspectors_text(inspectors: &InspectorsStatus) -> Vec<String> {
    let InspectorsStatus { asked, unanswered, withheld, reachable, users, .. } = inspectors;
    if *asked > 0 && !*reachable {
        return vec![
            "NONE can be reached: processes and files have no names; see dcpid's log".into(),
        ];
    }
    if *unanswered == 0 {
        return Vec::new();
    }
    let all = format!(
        "{unanswered} of {asked} questions about processes and files had no answer in time, {withheld} more were not asked"
    );
    let user = |user: &WaitStatus| {
        let WaitStatus { uid, unanswered, pid, program } = user;
        format!("  {unanswered} about processes of user {uid}, the last one {pid} ({program})")
    };
    std::iter::once(all).chain(users.iter().map(user)).collect()
}

/// A number of bytes with its unit: KiB from 1 KiB, MiB from 10 MiB on.
fn size(bytes: u64) -> String {
    const MIB: u64 = 1 << 20;
    match bytes {
        0..1024 => format!("{bytes} bytes"),
        _ if bytes < 10 * MIB => format!("{} KiB", bytes / 1024),
        _ => format!("{} MiB", bytes / MIB),
    }
}

/// A reason with its meaning.
fn explained(reason: &str) -> String {
    model::meaning(reason)
        .map_or_else(|| reason.to_owned(), |meaning| format!("{reason}: {meaning}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// README states limits in KiB and MiB, which a reader did not find in bytes.
    #[test]
    fn sizes_have_the_units_of_readme() {
        let shown = [0, 1, 528_640, 10 << 20, 512 << 20].map(size);
        assert_eq!(shown, ["0 bytes", "1 bytes", "516 KiB", "10 MiB", "512 MiB"]);
    }

    /// The status said what a sample costs, but not of what that was the median, nor why the rate
    /// was what it was.
    #[test]
    fn the_rate_is_explained() {
        let now = 1_800_000_000;
        let last_change = Some(ChangeStatus {
            unix_s: now - 600,
            from_per_s: 2600,
            to_per_s: 1300,
            why: "sampling cost 1.9 times the budget".into(),
        });
        let overhead = OverheadStatus {
            budget: Some(0.01),
            share: Some(0.0062),
            sampling_share: Some(0.0052),
            daemon_share: Some(0.001),
            items: [("samples", 0.0052), ("rest", 0.001)]
                .map(|(item, part)| (item.to_owned(), part))
                .into(),
            ns_per_sample: Some(4010.0),
            measured: Some(CostStatus {
                unix_s: now - 7,
                windows: 24,
                quiet: 18,
                low_ns: 3890.0,
                high_ns: 4620.0,
            }),
            rate: Some(RateStatus { per_s: 1300, allowed_per_s: 1850, last_change }),
        };
        let shown = |overhead: &OverheadStatus| {
            let lines = overhead_lines(overhead, now)
                .into_iter()
                .map(|(name, value)| format!("{name}: {value}"));
            lines.collect::<Vec<_>>().join("\n")
        };
        assert_eq!(
            shown(&overhead),
            "overhead: 4010 ns per sample with its interrupt (3890 to 4620 in 18 quiet of 24 windows, 7 s ago)\n\
             budget: 1 % of all CPU time, 0.62 % in the last half minute: samples 0.52 %, rest \
             0.10 %\n\
             rate: 1300/s/CPU; the cost allows 1850/s/CPU; 2600 became 1300 10 min ago: sampling \
             cost 1.9 times the budget"
        );
        let fresh = OverheadStatus {
            share: None,
            measured: None,
            rate: Some(RateStatus::default()),
            ..overhead
        };
        assert_eq!(
            shown(&fresh),
            "overhead: 4010 ns per sample with its interrupt (assumed: it could not be measured)\n\
             budget: 1 % of all CPU time\nrate: 0/s/CPU; the cost allows 0/s/CPU; the same since \
             the start"
        );
        assert_eq!(shown(&OverheadStatus::default()), "");
    }
}
