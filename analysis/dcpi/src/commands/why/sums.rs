//! Sums over procedures that do the same for programs: of the kernel, of runtimes.

use std::collections::BTreeMap;

use image::{ImageKind, ImageOffset};
use verdict::{Evidence, Hardware, Mechanism, Verdict, interprets, of_kernel, of_runtime};

use super::stacks::{BySite, KernelWork, Site};
use super::{SPREAD_BYTES, Whole, finding, of_share};
use annotate::evidence::hot_lines;
use names::procedures::Known;
use query::load::{self, ImageSamples};
use report::WhyFinding;
use stats::{Confidence, wilson};

/// Sums over procedures that do the same for programs.
#[derive(Default)]
pub(super) struct Sums {
    /// Samples of the kernel by what names of procedures say, and by procedure.
    kernel: BTreeMap<Mechanism, BTreeMap<Site, u64>>,
    /// All samples of the kernel.
    in_kernel: u64,
    /// Samples of runtimes, the same way.
    runtimes: BTreeMap<Mechanism, BTreeMap<Site, u64>>,
    /// Of each image with code: samples, and lines of 64 bytes that have 90 % of them.
    lines: Vec<(String, u64, usize)>,
    /// Procedures of code that was generated at run time, with their samples.
    generated: BTreeMap<Site, u64>,
    /// Samples of the procedure with the most of them, the kernel's left out.
    pub(super) largest: u64,
}

impl Sums {
    pub(super) fn add(&mut self, image: &ImageSamples, known: Option<&Known>, event: usize) {
        let Some(profile) = image.equal(event) else { return };
        let name = &image.record.name;
        let is_kernel = matches!(image.record.kind, ImageKind::Kernel | ImageKind::Module);
        let mut lines: BTreeMap<u64, u64> = BTreeMap::new();
        let mut procedures: BTreeMap<ImageOffset, (&str, u64)> = BTreeMap::new();
        let mut nameless = 0_u64;
        for (offset, count) in profile.iter() {
            let sum = lines.entry(offset.0 / 64).or_default();
            *sum = sum.saturating_add(count);
            let sum = match known.and_then(|known| known.procedures.find(offset)) {
                None => &mut nameless,
                Some(of) => &mut procedures.entry(of.start).or_insert((of.name(), 0)).1,
            };
            *sum = sum.saturating_add(count);
        }
        let nameless = (is_kernel && nameless > 0).then_some(("", nameless));
        for (procedure, count) in procedures.into_values().chain(nameless) {
            let mechanism = match is_kernel {
                true if procedure.is_empty() => Some(Mechanism::SystemCall),
                true => of_kernel(procedure),
                false => of_runtime(name, procedure),
            };
            if is_kernel {
                self.in_kernel = self.in_kernel.saturating_add(count);
            } else {
                self.largest = self.largest.max(count);
            }
            if image.record.kind == ImageKind::Jit {
                let sum = self.generated.entry((name.clone(), procedure.to_owned())).or_default();
                *sum = sum.saturating_add(count);
            }
            if let Some(mechanism) = mechanism {
                let key = (name.clone(), procedure.to_owned());
                let of = if is_kernel { &mut self.kernel } else { &mut self.runtimes };
                let sum = of.entry(mechanism).or_default().entry(key).or_default();
                *sum = sum.saturating_add(count);
            }
        }
        if !is_kernel {
            let all = load::sum(lines.values().copied());
            let hot =
                hot_lines(lines.into_values().map(|count| count as f64).collect(), all as f64);
            self.lines.push((name.clone(), all, hot));
        }
    }

    /// Findings of generated code that was not judged: whose it is.
    pub(super) fn generated(
        &self,
        whole: Whole,
        is_judged: impl Fn(&Site) -> bool,
    ) -> Vec<WhyFinding> {
        let all = self.generated.iter().filter(|(site, _)| !is_judged(site));
        let of = |(site, samples): (&Site, &u64)| {
            let text = "code that was generated at run time, which is not kept: nothing tells why";
            let evidence =
                Evidence { kind: "code", text: text.to_owned(), value: None, unit: None };
            let verdict = Verdict {
                mechanism: Mechanism::Unknown,
                probability: 0.5,
                gain: (0.0, 0.0, 1.0),
                at: None,
                evidence: vec![evidence],
                alternatives: Vec::new(),
            };
            let (image, procedure) = site.clone();
            finding(whole, *samples as f64, &verdict, (Some(image), Some(procedure)), None)
        };
        all.map(of).collect()
    }

    /// Whether a procedure is judged as a part of a runtime, and not by itself.
    pub(super) fn is_runtime(&self, image: &str, procedure: &str, whole: Whole) -> bool {
        let site = (image.to_owned(), procedure.to_owned());
        let with = |of: &BTreeMap<Site, u64>| of.get(&site).copied();
        of_runtime(image, procedure).is_some_and(|mechanism| {
            let samples = self.runtimes.get(&mechanism).and_then(with).unwrap_or(0);
            !is_apart(mechanism, procedure, samples, whole)
        })
    }

    /// Findings of the kernel's work and of runtimes' work. `work` is what call stacks say of the
    /// kernel.
    pub(super) fn findings(
        &self,
        whole: Whole,
        work: &KernelWork,
        interpreted: &BTreeMap<String, BTreeMap<Site, f64>>,
    ) -> Vec<WhyFinding> {
        let in_kernel = self.in_kernel as f64;
        let mut findings: Vec<WhyFinding> = Vec::new();
        if work.stacks >= STACKS_MIN && work.all > 0.0 {
            for (mechanism, sites) in &work.sites {
                let time: f64 = sites.values().sum();
                let samples = in_kernel * time / work.all;
                let names = work.names.get(mechanism).into_iter().flatten();
                let names = names.map(|(name, time)| (&**name, in_kernel * time / work.all));
                let mut evidence = vec![named(names.collect(), whole)];
                let mut name = (None, None);
                // Stacks that were cut name nobody.
                if let Some((site, most)) = most_of(sites).filter(|(site, _)| !site.1.is_empty()) {
                    let (image, procedure) = site;
                    let share = most / time;
                    let text = format!("{:.0} % of it for {procedure} ({image})", 100.0 * share);
                    evidence.push(Evidence::of("samples", text, share, "share"));
                    name = (Some(image.clone()), Some(procedure.clone()));
                }
                findings.push(of_kind(*mechanism, 0.96, evidence, (samples, whole), name));
            }
        } else {
            for (mechanism, procedures) in &self.kernel {
                let samples = load::sum(procedures.values().copied());
                let evidence = vec![named(by_name(procedures), whole)];
                let name = (Some("[kernel]".to_owned()), most(procedures));
                findings.push(of_kind(*mechanism, 0.8, evidence, (samples as f64, whole), name));
            }
        }
        for (mechanism, procedures) in &self.runtimes {
            let mut procedures = procedures.clone();
            procedures.retain(|(_, name), count| !is_apart(*mechanism, name, *count, whole));
            // Interpreters of several languages may run; allocators are one matter.
            let mut by_image: BTreeMap<String, BTreeMap<Site, u64>> = BTreeMap::new();
            for (site, count) in procedures {
                let is_one = *mechanism == Mechanism::Interpreter;
                let image = if is_one { site.0.clone() } else { String::new() };
                by_image.entry(image).or_default().insert(site, count);
            }
            let of = |(image, procedures): (&String, &BTreeMap<Site, u64>)| {
                of_runtimes(*mechanism, procedures, interpreted.get(image), whole)
            };
            findings.extend(by_image.iter().map(of));
        }
        findings
    }

    /// The image whose hot code is larger than the first-level cache, with its samples.
    pub(super) fn spread(&self, hardware: &Hardware) -> Option<(String, Verdict, u64)> {
        let (name, samples, lines) = self.lines.iter().max_by_key(|(_, samples, _)| *samples)?;
        let bytes = lines * 64;
        if bytes < SPREAD_BYTES || *samples < SPREAD_SAMPLES {
            return None;
        }
        let second = hardware.levels.iter().find(|level| level.number == 2);
        let text = format!(
            "its hot code is large: {} KiB have 90 % of its samples, and no loop has 20 %",
            bytes >> 10
        );
        let is_large = second.is_some_and(|second| bytes as f64 > second.bytes / 4.0);
        let verdict = Verdict {
            mechanism: Mechanism::InstructionFetch,
            probability: if is_large { 0.8 } else { 0.6 },
            gain: (0.4, 0.0, 0.9),
            at: None,
            evidence: vec![Evidence::of("code", text, bytes as f64, "bytes")],
            alternatives: Vec::new(),
        };
        Some((name.clone(), verdict, *samples))
    }
}

/// The finding of the work of runtimes: of allocators, or of one interpreter, with what it ran.
fn of_runtimes(
    mechanism: Mechanism,
    procedures: &BTreeMap<Site, u64>,
    interpreted: Option<&BTreeMap<Site, f64>>,
    whole: Whole,
) -> WhyFinding {
    let samples = load::sum(procedures.values().copied());
    let mut evidence = vec![named(by_name(procedures), whole)];
    if let Some(interpreted) = interpreted
        && let Some(((file, function), time)) = most_of(interpreted)
    {
        let share = time / interpreted.values().sum::<f64>();
        let text = format!("interpreting {function} ({file}): {:.0} % of it", 100.0 * share);
        evidence.push(Evidence::of("samples", text, share, "share"));
    }
    let most = procedures.iter().max_by_key(|(_, samples)| **samples);
    let name = most.map(|((image, procedure), _)| (image.clone(), procedure.clone())).unzip();
    of_kind(mechanism, 0.96, evidence, (samples as f64, whole), name)
}

/// Whether a helper of an interpreter takes so much of the time that it is judged by itself, as any
/// other code is.
fn is_apart(mechanism: Mechanism, procedure: &str, samples: u64, whole: Whole) -> bool {
    mechanism == Mechanism::Interpreter
        && !interprets(procedure)
        && samples as f64 >= APART_MIN * whole.samples as f64
}

/// Share of all samples from which on a helper of an interpreter is judged by itself. Set by hand:
/// a smaller one tears runtimes to pieces that nobody can change.
const APART_MIN: f64 = 0.25;

/// The site with the most time.
fn most_of(sites: &BTreeMap<Site, f64>) -> Option<(&Site, f64)> {
    let most = sites.iter().max_by(|(_, a), (_, b)| a.total_cmp(b))?;
    Some((most.0, *most.1))
}

/// As many samples are as sure about waits as the stacks of these, which have very different
/// lengths: an assumption that widens intervals.
const SURE_AS: f64 = 100.0;

/// Findings of the time in which threads did not run, of `all_ns`.
pub(super) fn waits(waited: &BySite, all_ns: f64) -> Vec<WhyFinding> {
    let of = |(mechanism, sites): (&Mechanism, &BTreeMap<Site, f64>)| {
        let ns: f64 = sites.values().sum();
        let (site, most) = most_of(sites)?;
        let share = wilson((SURE_AS * ns / all_ns) as u64, SURE_AS as u64, Confidence::default());
        let share = stats::Share { value: ns / all_ns, ..share };
        let (image, procedure) = site.clone();
        let most = 100.0 * most / ns;
        let whose = match procedure.is_empty() {
            true => format!("{most:.0} % of it of threads whose call stacks are not known"),
            false => format!("{most:.0} % of it in {procedure} ({image})"),
        };
        let text = format!("{:.2} s in all; {whose}", ns / 1e9);
        let verdict = Verdict {
            mechanism: *mechanism,
            probability: if *mechanism == Mechanism::Unknown { 0.5 } else { 0.96 },
            gain: (0.5, 0.0, 1.0),
            at: None,
            evidence: vec![Evidence::of("samples", text, ns / 1e9, "s")],
            alternatives: Vec::new(),
        };
        let named = |name: String| Some(name).filter(|name| !name.is_empty());
        Some(of_share(share, &verdict, (named(image), named(procedure)), None))
    };
    waited.iter().filter_map(of).collect()
}

/// Fewest samples of code whose bytes are judged.
const SPREAD_SAMPLES: u64 = 500;
/// Stacks of kernel code that tell what it does.
const STACKS_MIN: u64 = 30;

fn of_kind(
    mechanism: Mechanism,
    probability: f64,
    evidence: Vec<Evidence>,
    (samples, whole): (f64, Whole),
    name: (Option<String>, Option<String>),
) -> WhyFinding {
    let gain = (0.9, 0.0, 1.0);
    let alternatives = Vec::new();
    let verdict = Verdict { mechanism, probability, gain, at: None, evidence, alternatives };
    finding(whole, samples, &verdict, name, None)
}

/// The procedures with the most samples, in words.
fn named(mut procedures: Vec<(&str, f64)>, whole: Whole) -> Evidence {
    procedures.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    let share = |samples: f64| 100.0 * samples / whole.samples.max(1) as f64;
    let words = procedures.iter().take(4).filter(|(_, samples)| share(*samples) >= 0.1);
    let words = words.map(|(procedure, samples)| format!("{procedure} {:.1} %", share(*samples)));
    let all: f64 = procedures.iter().map(|(_, samples)| samples).sum();
    let text = format!("samples in {}", words.collect::<Vec<_>>().join(", "));
    Evidence::of("samples", text, all, "samples")
}

fn by_name(procedures: &BTreeMap<Site, u64>) -> Vec<(&str, f64)> {
    procedures.iter().map(|((_, name), samples)| (&**name, *samples as f64)).collect()
}

fn most(procedures: &BTreeMap<Site, u64>) -> Option<String> {
    let ((_, procedure), _) = procedures.iter().max_by_key(|(_, samples)| **samples)?;
    Some(procedure.clone()).filter(|name| !name.is_empty())
}
