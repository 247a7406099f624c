//! Makes the tables of processors (`stalls/machines/`) with llvm-mca, whose command is the first argument, for all forms of instructions in
//! the programs and libraries of this machine. `cargo xtask machines` runs it.
#![allow(clippy::indexing_slicing, reason = "a tool of ours on output of another")]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::{Context, bail};
use code::isa::work::Form;
use code::isa::{Isa, Syntax};
use image::{Layout, Vaddr};
use serde_json::Value;
use stalls::Machine;

const PLACES: [&str; 3] = ["/usr/bin", "/usr/lib/x86_64-linux-gnu", "/usr/lib/gcc/x86_64-linux-gnu"];
/// Files that are looked at: afterwards new forms are rare.
const FILES_MAX: usize = 800;

/// Cycles of the shortest division of integers (A. Fog, instruction tables, 2024: the least latency of DIV and IDIV of 32 and 64 bits).
const DIVIDES: [(&str, f64); 7] = [
    ("haswell", 22.0),
    ("skylake-avx512", 23.0),
    ("icelake-server", 12.0),
    ("sapphirerapids", 10.0),
    ("znver2", 8.0),
    ("znver3", 7.0),
    ("znver4", 7.0),
];

fn main() -> anyhow::Result<()> {
    let mca = env::args().nth(1).context("the first argument is llvm-mca's command")?;
    let mut files = Vec::new();
    PLACES.iter().for_each(|place| find(Path::new(place), &mut files));
    files.truncate(FILES_MAX);
    let mut forms = BTreeMap::new();
    files.iter().for_each(|file| look(file, &mut forms));
    let version = Command::new(&mca).arg("--version").output()?.stdout;
    let version = String::from_utf8(version)?;
    let version = version.lines().find(|line| line.contains("version")).unwrap_or_default().trim().to_owned();
    for machine in Machine::names() {
        let table = table(&mca, machine, &forms, &version)?;
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("machines").join(format!("{machine}.txt"));
        fs::write(&path, table)?;
    }
    Ok(())
}

fn find(place: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(place) else { return };
    let mut entries: Vec<_> = entries.flatten().collect();
    entries.sort_by_key(std::fs::DirEntry::path);
    for entry in entries {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => find(&entry.path(), files),
            Ok(kind) if kind.is_file() => files.push(entry.path()),
            _ => {}
        }
    }
}

/// Takes up one instruction of each form, in words.
fn look(file: &Path, forms: &mut BTreeMap<Form, (String, bool)>) {
    let Ok(bytes) = fs::read(file) else { return };
    if bytes.get(..5) != Some(b"\x7fELF\x02") || bytes.get(18..20) != Some(&[62, 0]) {
        return;
    }
    let Ok(layout) = Layout::of(&bytes) else { return };
    for segment in layout.segments().iter().filter(|segment| segment.executable) {
        let begin = segment.offset.0 as usize;
        let Some(mut code) = bytes.get(begin..begin.saturating_add(segment.file_size_bytes as usize)) else { continue };
        while !code.is_empty() {
            let Some(work) = Isa::X86_64.work(code) else {
                code = &code[1..];
                continue;
            };
            let (instruction, rest) = code.split_at(usize::from(work.len));
            forms.entry(work.form).or_insert_with(|| {
                let line = Isa::X86_64.disassemble(instruction, Vaddr(0x1000), Syntax::Att);
                (line.first().map(|line| line.text.clone()).unwrap_or_default(), work.loads.is_some())
            });
            code = rest;
        }
    }
}

fn table(mca: &str, machine: &str, forms: &BTreeMap<Form, (String, bool)>, version: &str) -> anyhow::Result<String> {
    // llvm-mca 22 crashes on these.
    let crashes = |text: &str| ["push %fs", "push %gs", "pop %fs", "pop %gs"].contains(&text);
    let lines: Vec<_> = forms.iter().filter(|(_, (text, _))| !crashes(text)).collect();
    let mut source = String::new();
    let input = env::temp_dir().join(format!("machines-{}.s", std::process::id()));
    // What the assembler does not take would be missing without being named: one region for each.
    for (number, (_, (text, _))) in lines.iter().enumerate() {
        writeln!(source, "# LLVM-MCA-BEGIN r{number}\n{text}\n# LLVM-MCA-END")?;
    }
    fs::write(&input, source)?;
    let json = |more: &[&str], input: &Path| -> anyhow::Result<Value> {
        let out = Command::new(mca)
            .args(["-mtriple=x86_64", &format!("-mcpu={machine}"), "--json", "--skip-unsupported-instructions=any"])
            .args(more)
            .arg(input)
            .output()?;
        serde_json::from_slice(&out.stdout).with_context(|| String::from_utf8_lossy(&out.stderr).into_owned())
    };
    let tables = json(&["-instruction-tables"], &input)?;
    fs::write(&input, "addq %rax, %rbx\n")?;
    let summary = json(&[], &input)?;
    fs::remove_file(&input)?;
    let width = &summary["CodeRegions"][0]["SummaryView"]["DispatchWidth"];
    let resources: Vec<String> = match tables["TargetInfo"]["Resources"].as_array() {
        Some(names) => names.iter().filter_map(|name| Some(name.as_str()?.to_owned())).collect(),
        None => bail!("llvm-mca names no resources of {machine}"),
    };
    let mut raw = Vec::new();
    for region in tables["CodeRegions"].as_array().context("no regions")? {
        let Some(number) = region["Name"].as_str().and_then(|name| name.strip_prefix('r')?.parse::<usize>().ok())
        else {
            continue;
        };
        let view = &region["InstructionInfoView"]["InstructionList"];
        let Some([instruction]) = view.as_array().map(Vec::as_slice) else { continue };
        let (Some(latency), Some(uops)) = (instruction["Latency"].as_f64(), instruction["NumMicroOpcodes"].as_f64())
        else {
            continue;
        };
        let pressure = region["ResourcePressureView"]["ResourcePressureInfo"].as_array();
        // The last entries are sums over all instructions.
        let uses: Vec<(usize, f64)> = pressure
            .into_iter()
            .flatten()
            .filter(|entry| entry["InstructionIndex"].as_u64() == Some(0))
            .filter_map(|entry| Some((entry["ResourceIndex"].as_u64()? as usize, entry["ResourceUsage"].as_f64()?)))
            .collect();
        raw.push((*lines[number].0, lines[number].1.1, latency, uops, units(&uses, &resources)));
    }
    written(machine, version, (width, raw))
}

/// A form, whether it loads, its latency, micro-operations and units.
type Raw = (Form, bool, f64, f64, String);

/// The table as it is kept: forms of the same cost in one line.
fn written(machine: &str, version: &str, (width, raw): (&Value, Vec<Raw>)) -> anyhow::Result<String> {
    let name = |form: Form| Isa::X86_64.form_name(form);
    let load = raw.iter().find(|(form, ..)| name(*form) == "Mov_r64_rm64_mem").context("no loads")?.2;
    let divides = DIVIDES.iter().find(|(name, _)| *name == machine).map_or(10.0, |(_, cycles)| *cycles);
    let intel = !machine.starts_with("znver");
    let mut grouped: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (form, loads, latency, uops, units) in raw {
        let name = name(form);
        // Models say 100 where they do not know.
        if latency >= 100.0 && !name.contains("iv_") {
            continue;
        }
        // A load and what is done with it are one until they are executed (Intel 64 optimization manual, "micro-fusion"); AMD's tables count so.
        let uops = if intel && name.ends_with("_mem") && uops > 1.0 { uops - 1.0 } else { uops };
        let latency = if loads { (latency - load).max(0.0) } else { latency };
        // How long a division takes depends on the numbers; models tell of the longest.
        let integers = name.starts_with("Div_") || name.starts_with("Idiv_");
        let (latency, units) = if integers { (latency.min(divides), "-".to_owned()) } else { (latency, units) };
        grouped.entry(format!("{latency} {uops} {units}")).or_default().insert(name);
    }
    let mut out = format!(
        "# {machine}, from {version}: cycles, micro-operations, units (any of these bits, for so many cycles), forms.\nwidth {width}\nload {load}\n"
    );
    for (cost, names) in grouped {
        let names: Vec<String> = names.into_iter().collect();
        writeln!(out, "{cost} {}", names.join(" "))?;
    }
    Ok(out)
}

/// Sets of units of which one is busy. Tables tell of each unit its part: those of one kind with the same part are a set.
fn units(uses: &[(usize, f64)], resources: &[String]) -> String {
    let stem = |unit: usize| {
        let name = resources.get(unit).map_or("", String::as_str);
        name.trim_end_matches(|c: char| c.is_ascii_digit() || c.is_control() || c == '.').to_owned()
    };
    let mut by_part: BTreeMap<u64, BTreeMap<String, (u64, f64)>> = BTreeMap::new();
    for (unit, part) in uses.iter().filter(|(unit, part)| *part > 0.0 && *unit < 64) {
        let set = by_part.entry((part * 1e4).round() as u64).or_default().entry(stem(*unit)).or_default();
        set.0 |= 1 << unit;
        set.1 += part;
    }
    let mut sets = Vec::new();
    for stems in by_part.values() {
        let whole = |cycles: f64| (cycles - cycles.round()).abs() < 0.01 && cycles > 0.5;
        let rest = stems.values().filter(|(_, cycles)| !whole(*cycles));
        let rest = rest.fold((0, 0.0), |sum, set| (sum.0 | set.0, sum.1 + set.1));
        sets.extend(stems.values().filter(|(_, cycles)| whole(*cycles)).copied());
        if rest.0 != 0 {
            sets.push(rest);
        }
    }
    if sets.is_empty() {
        return "-".to_owned();
    }
    let words: Vec<String> =
        sets.iter().map(|(bits, cycles)| format!("{bits:x}:{}", (cycles * 100.0).round() / 100.0)).collect();
    words.join(",")
}
