//! Makes the tables of processors (`analysis/stalls/machines/`) with llvm-mca, whose command is the
//! first argument: of x86-64 for all forms of instructions in the programs and libraries of this
//! machine, of A64 for those in `a64.txt`. `cargo xtask machines` runs it.
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

const A64: &str = include_str!("a64.txt");
/// Features that older processors lack get the values of processors that have them.
const EXTENSIONS: &str = "-mattr=+lse,+crypto,+dotprod,+crc,+pauth";
const PLACES: [&str; 3] =
    ["/usr/bin", "/usr/lib/x86_64-linux-gnu", "/usr/lib/gcc/x86_64-linux-gnu"];
/// Files that are looked at: afterwards new forms are rare.
const FILES_MAX: usize = 800;

/// Cycles of the shortest division of integers (A. Fog, instruction tables, 2024: the least latency
/// of DIV and IDIV of 32 and 64 bits; Arm's software optimization guides of the processors, "divide
/// and multiply instructions"; others as LLVM has it).
const DIVIDES: [(&str, f64); 13] = [
    ("haswell", 22.0),
    ("skylake-avx512", 23.0),
    ("icelake-server", 12.0),
    ("sapphirerapids", 10.0),
    ("znver2", 8.0),
    ("znver3", 7.0),
    ("znver4", 7.0),
    ("cortex-a55", 3.0),
    ("cortex-a72", 4.0),
    ("neoverse-n1", 5.0),
    ("neoverse-n2", 5.0),
    ("neoverse-v1", 5.0),
    ("neoverse-v2", 5.0),
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
    let version =
        version.lines().find(|line| line.contains("version")).unwrap_or_default().trim().to_owned();
    let a64 = a64(&mca)?;
    for name in Isa::ALL.into_iter().flat_map(Machine::names) {
        let machine = Machine::named(name).with_context(|| format!("{name} is not known"))?;
        let asked =
            Asked { mca: &mca, machine: name, isa: machine.isa, in_order: machine.in_order() };
        let forms = if machine.isa == Isa::X86_64 { &forms } else { &a64 };
        let table = table(&asked, forms, &version)?;
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("machines").join(format!("{name}.txt"));
        fs::write(&path, table)?;
    }
    Ok(())
}

/// A processor for which a table is generated.
struct Asked<'a> {
    mca: &'a str,
    machine: &'a str,
    isa: Isa,
    in_order: bool,
}

impl Asked<'_> {
    /// The output of llvm-mca for all regions of a source.
    fn json(&self, more: &[&str], source: &str) -> anyhow::Result<Value> {
        let input = env::temp_dir().join(format!("machines-{}.s", std::process::id()));
        fs::write(&input, source)?;
        let triple = if self.isa == Isa::X86_64 { "-mtriple=x86_64" } else { "-mtriple=aarch64" };
        let mut command = Command::new(self.mca);
        command.args([
            triple,
            &format!("-mcpu={}", self.machine),
            "--json",
            "--skip-unsupported-instructions=any",
        ]);
        if self.isa == Isa::Aarch64 {
            command.arg(EXTENSIONS);
        }
        let out = command.args(more).arg(&input).output()?;
        fs::remove_file(&input)?;
        serde_json::from_slice(&out.stdout)
            .with_context(|| String::from_utf8_lossy(&out.stderr).into_owned())
    }

    /// Cycles from when the first of two instructions is issued until the second is, for each pair.
    fn gaps(&self, pairs: &[String]) -> anyhow::Result<Vec<Option<f64>>> {
        let source = regions(pairs.iter().map(String::as_str));
        let told = self.json(&["-timeline", "-iterations=1"], &source)?;
        let mut gaps = vec![None; pairs.len()];
        for region in told["CodeRegions"].as_array().context("no regions")? {
            let issued =
                |at: usize| region["TimelineView"]["TimelineInfo"][at]["CycleIssued"].as_f64();
            if let Some((number, first, second)) =
                numbered(region).zip(issued(0)).zip(issued(1)).map(|((n, a), b)| (n, a, b))
            {
                gaps[number] = Some(second - first);
            }
        }
        Ok(gaps)
    }
}

/// A region for each text: what the assembler does not take would be missing without being named.
fn regions<'a>(texts: impl Iterator<Item = &'a str>) -> String {
    let region = |(number, text)| format!("# LLVM-MCA-BEGIN r{number}\n{text}\n# LLVM-MCA-END\n");
    texts.enumerate().map(region).collect()
}

fn numbered(region: &Value) -> Option<usize> {
    region["Name"].as_str()?.strip_prefix('r')?.parse().ok()
}

/// The forms of A64, and an instruction of each, which is assembled to see whether it is of that
/// form.
fn a64(mca: &str) -> anyhow::Result<BTreeMap<Form, (String, bool)>> {
    let lines = A64.lines().filter(|line| !line.starts_with('#'));
    let mut named = Vec::new();
    for line in lines {
        let mut fields = line.split('|');
        let name = fields.next().unwrap_or_default();
        let both = [name.to_owned(), format!("{name}_wide")].into_iter().zip(fields);
        named.extend(
            both.filter(|(_, text)| !text.is_empty()).map(|(name, text)| (name, text.to_owned())),
        );
    }
    let source = env::temp_dir().join(format!("forms-{}.s", std::process::id()));
    let texts: Vec<&str> = named.iter().map(|(_, text)| text.as_str()).collect();
    fs::write(&source, texts.join("\n") + "\n")?;
    let mut mc = Command::new(mca.replace("mca", "mc"));
    let out = mc.args(["-triple=aarch64", EXTENSIONS, "-show-encoding"]).arg(&source).output()?;
    fs::remove_file(&source)?;
    let out = String::from_utf8(out.stdout)?;
    let words = out.lines().filter_map(|line| line.split_once("encoding: [")?.1.split_once(']'));
    let byte = |byte: &str| {
        u8::from_str_radix(byte.trim_start_matches("0x").trim_matches(['A', '\'']), 16).unwrap_or(0)
    };
    let words: Vec<Vec<u8>> = words.map(|(word, _)| word.split(',').map(byte).collect()).collect();
    if words.len() != named.len() {
        bail!("{} of {} instructions are assembled", words.len(), named.len());
    }
    let mut forms = BTreeMap::new();
    for ((name, text), word) in named.into_iter().zip(words) {
        let work = Isa::Aarch64.work(&word).with_context(|| format!("{text} is no instruction"))?;
        let own = Isa::Aarch64.form_name(work.form);
        if own != name {
            bail!("{text} is {own}, not {name}");
        }
        forms.insert(work.form, (text, work.loads.is_some()));
    }
    Ok(forms)
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
        let Some(mut code) =
            bytes.get(begin..begin.saturating_add(segment.file_size_bytes as usize))
        else {
            continue;
        };
        while !code.is_empty() {
            let Some(work) = Isa::X86_64.work(code) else {
                code = &code[1..];
                continue;
            };
            let (instruction, rest) = code.split_at(usize::from(work.len));
            forms.entry(work.form).or_insert_with(|| {
                let line = Isa::X86_64.disassemble(instruction, Vaddr(0x1000), Syntax::Att);
                (
                    line.first().map(|line| line.text.clone()).unwrap_or_default(),
                    work.loads.is_some(),
                )
            });
            code = rest;
        }
    }
}

fn table(
    asked: &Asked<'_>,
    forms: &BTreeMap<Form, (String, bool)>,
    version: &str,
) -> anyhow::Result<String> {
    let machine = asked.machine;
    // llvm-mca 22 crashes on these.
    let crashes = |text: &str| ["push %fs", "push %gs", "pop %fs", "pop %gs"].contains(&text);
    let lines: Vec<_> = forms.iter().filter(|(_, (text, _))| !crashes(text)).collect();
    let texts = || lines.iter().map(|(_, (text, _))| text.as_str());
    let tables = asked.json(&["-instruction-tables"], &regions(texts()))?;
    let summary = asked.json(
        &[],
        if asked.isa == Isa::X86_64 { "addq %rax, %rbx\n" } else { "add x0, x1, x2\n" },
    )?;
    let forwarded =
        if asked.in_order { forwarded(asked, &texts().collect::<Vec<_>>())? } else { Vec::new() };
    let width = &summary["CodeRegions"][0]["SummaryView"]["DispatchWidth"];
    let resources: Vec<String> = match tables["TargetInfo"]["Resources"].as_array() {
        Some(names) => names.iter().filter_map(|name| Some(name.as_str()?.to_owned())).collect(),
        None => bail!("llvm-mca names no resources of {machine}"),
    };
    let mut raw = Vec::new();
    for region in tables["CodeRegions"].as_array().context("no regions")? {
        let Some(number) = numbered(region) else { continue };
        let view = &region["InstructionInfoView"]["InstructionList"];
        let Some([instruction]) = view.as_array().map(Vec::as_slice) else { continue };
        let (Some(latency), Some(uops)) =
            (instruction["Latency"].as_f64(), instruction["NumMicroOpcodes"].as_f64())
        else {
            continue;
        };
        let pressure = region["ResourcePressureView"]["ResourcePressureInfo"].as_array();
        // The last entries are sums over all instructions.
        let uses: Vec<(usize, f64)> = pressure
            .into_iter()
            .flatten()
            .filter(|entry| entry["InstructionIndex"].as_u64() == Some(0))
            .filter_map(|entry| {
                Some((entry["ResourceIndex"].as_u64()? as usize, entry["ResourceUsage"].as_f64()?))
            })
            .collect();
        let (form, (_, loads)) = lines[number];
        let forwarded = forwarded.get(number).copied().unwrap_or_default();
        raw.push(Raw {
            form: *form,
            loads: *loads,
            latency,
            forwarded,
            uops,
            units: units(&uses, &resources),
        });
    }
    written(asked, version, (width, raw))
}

/// What a processor that issues in order hands on early: cycles until an addition can have the
/// result of each, where that is sooner than its latency; and how many cycles before an addition
/// would each must have that of one.
fn forwarded(asked: &Asked<'_>, texts: &[&str]) -> anyhow::Result<Vec<(Option<f64>, f64)>> {
    let after = |text: &&str| format!("{text}\nadd x20, x0, x21");
    let before = |text: &&str| format!("add x1, x20, x21\n{text}");
    let after = asked.gaps(&texts.iter().map(after).collect::<Vec<_>>())?;
    let before = asked.gaps(&texts.iter().map(before).collect::<Vec<_>>())?;
    let least =
        asked.gaps(&["add x1, x20, x21\nadd x0, x1, x2".to_owned()])?[0].context("no additions")?;
    let both = after.into_iter().zip(before).zip(texts);
    Ok(both
        .map(|((after, before), text)| {
            let makes = !text.starts_with("st")
                && text.split([' ', ',']).nth(1).is_some_and(|to| to == "x0" || to == "w0");
            // Addresses are already unique.
            let reads = !text.contains('[')
                && ["x1", "w1"].iter().any(|from| text.contains(&format!(", {from}")));
            (after.filter(|_| makes), before.filter(|_| reads).map_or(0.0, |before| before - least))
        })
        .collect())
}

/// A form, whether it loads, its latency, micro-operations and units; what it hands on early, and
/// needs early.
struct Raw {
    form: Form,
    loads: bool,
    latency: f64,
    forwarded: (Option<f64>, f64),
    uops: f64,
    units: String,
}

/// The table as it is kept: forms of the same cost in one line.
fn written(
    asked: &Asked<'_>,
    version: &str,
    (width, raw): (&Value, Vec<Raw>),
) -> anyhow::Result<String> {
    let (machine, name) = (asked.machine, |form: Form| asked.isa.form_name(form));
    let plain = if asked.isa == Isa::X86_64 { "Mov_r64_rm64_mem" } else { "ldr_wide" };
    let load = raw.iter().find(|raw| name(raw.form) == plain).context("no loads")?.latency;
    let divides = DIVIDES.iter().find(|(name, _)| *name == machine).map(|(_, cycles)| *cycles);
    let intel = asked.isa == Isa::X86_64 && !machine.starts_with("znver");
    let mut grouped: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for Raw { form, loads, latency, forwarded: (forwarded, early), uops, units } in raw {
        let name = name(form);
        // Models say 100 where they do not know.
        if latency >= 100.0 && !name.contains("iv_") {
            continue;
        }
        // A load and what is done with it are one until they are executed (Intel 64 optimization
        // manual, "micro-fusion"); AMD's tables count so.
        let uops = if intel && name.ends_with("_mem") && uops > 1.0 { uops - 1.0 } else { uops };
        let own = |cycles: f64| if loads { cycles - load } else { cycles };
        let latency = own(latency).max(0.0);
        // How long a division takes depends on the numbers; models report the longest.
        let integers =
            name.starts_with("Div_") || name.starts_with("Idiv_") || name.starts_with("sdiv");
        let (latency, units) = match divides {
            Some(least) if integers => (latency.min(least), "-".to_owned()),
            _ => (latency, units),
        };
        let forwarded = forwarded.map(own).filter(|cycles| *cycles < latency);
        let forwarded = forwarded.map_or_else(String::new, |cycles| format!("/{cycles}"));
        let early = if early > 0.0 { format!("+{early}") } else { String::new() };
        grouped
            .entry(format!("{latency}{forwarded}{early} {uops} {units}"))
            .or_default()
            .insert(name);
    }
    let order = if asked.in_order {
        ", /: until an addition has it, +: operands needed so much sooner"
    } else {
        ""
    };
    let mut out = format!(
        "# {machine}, from {version}: cycles{order}, micro-operations, units (any of these bits, for so many cycles), forms.\nwidth {width}\nload {load}\n"
    );
    for (cost, names) in grouped {
        let names: Vec<String> = names.into_iter().collect();
        writeln!(out, "{cost} {}", names.join(" "))?;
    }
    Ok(out)
}

/// Sets of units of which one is busy. Tables report each unit its part: those of one kind with the
/// same part are a set.
fn units(uses: &[(usize, f64)], resources: &[String]) -> String {
    let stem = |unit: usize| {
        let name = resources.get(unit).map_or("", String::as_str);
        name.trim_end_matches(|c: char| c.is_ascii_digit() || c.is_control() || c == '.').to_owned()
    };
    let mut by_part: BTreeMap<u64, BTreeMap<String, (u64, f64)>> = BTreeMap::new();
    for (unit, part) in uses.iter().filter(|(unit, part)| *part > 0.0 && *unit < 64) {
        let set =
            by_part.entry((part * 1e4).round() as u64).or_default().entry(stem(*unit)).or_default();
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
    let words: Vec<String> = sets
        .iter()
        .map(|(bits, cycles)| format!("{bits:x}:{}", (cycles * 100.0).round() / 100.0))
        .collect();
    words.join(",")
}
