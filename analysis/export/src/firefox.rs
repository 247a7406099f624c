//! The Firefox profiler's processed profile format (github.com/firefox-devtools/profiler,
//! docs-developer/processed-profile-format.md and CHANGELOG-formats.md), in its version 47, which
//! later ones upgrade.
//!
//! A thread for each event and each thread that has call stacks of it, and one for the samples of
//! the event that have no call stack: a sample for each place, weighted with the place's samples,
//! whose stack is the image, the procedure, and the calls that were inlined. Samples here have no
//! time of their own: the time axis counts stacks and places and means nothing.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};

use image::{Frame, ImageId, ImageKind};
use serde_json::{Value, json};

use super::stacks::StackSample;
use super::{Carried, Image, Place, Resolved, UNKNOWN_CODE};

/// The version that is written.
const VERSION: u32 = 47;
/// Largest whole number that JavaScript keeps exactly (2^53 - 1).
const NUMBER_MAX: u64 = (1 << 53) - 1;
/// `resourceTable.type` of a library.
const LIBRARY: u32 = 1;
/// The kinds of images; an index into this list is a category.
const CATEGORIES: [(&str, &str); 5] = [
    ("User", "yellow"),
    ("Kernel", "orange"),
    ("Made at run time", "blue"),
    ("Idle", "transparent"),
    ("Other", "grey"),
];

/// Writes the samples of all events.
pub fn write(resolved: &Resolved, out: &mut dyn Write) -> io::Result<Carried> {
    let categories = CATEGORIES
        .map(|(name, color)| json!({"name": name, "color": color, "subcategories": ["Other"]}));
    let comments = resolved.comments();
    let comments = comments
        .iter()
        .map(|comment| json!({"label": "Note", "format": "string", "value": comment}));
    let threads: Vec<Value> =
        (0..resolved.events.len()).flat_map(|event| threads(resolved, event)).collect();
    let profile = json!({
        "meta": {
            "version": 24,
            "preprocessedProfileVersion": VERSION,
            "product": "dcpi",
            "importedFrom": "dcpi",
            "processType": 0,
            "stackwalk": 0,
            "debug": false,
            "symbolicated": true,
            "symbolicationNotSupported": true,
            "interval": 1,
            "startTime": resolved.started_unix_s.saturating_mul(1000),
            "categories": categories,
            "markerSchema": [],
            "extensions": {"length": 0, "id": [], "name": [], "baseURL": []},
            "extra": [{"label": "dcpi", "entries": comments.collect::<Vec<_>>()}],
            "sampleUnits": {"time": "ms", "eventDelay": "ms", "threadCPUDelta": "ns"},
            "usesOnlyOneStackType": true,
            "doesNotUseFrameImplementation": true,
            "sourceCodeIsNotOnSearchfox": true,
        },
        "libs": resolved.images.iter().map(library).collect::<Vec<_>>(),
        "pages": [],
        "threads": threads,
    });
    serde_json::to_writer(&mut *out, &profile)?;
    writeln!(out)?;
    let samples = resolved.events.iter().map(|event| event.samples.saturating_add(event.unknown()));
    let mut notes = vec!["the time axis has no meaning: samples have no times".to_owned()];
    if resolved.scopes.len() > 1 {
        notes.push(
            "the file sums up labels, units and processes; choose one with --label, --unit or --pid"
                .to_owned(),
        );
    }
    Ok(Carried { samples: samples.collect(), notes, ..Carried::default() })
}

fn library(image: &Image) -> Value {
    let (name, path, debug_id) = (&image.name, image.file(), debug_id(&image.id));
    let code_id = image.id.build_id().map(|_| image.id.alone().to_string());
    json!({
        "arch": "", "name": name, "path": path, "debugName": name, "debugPath": path,
        "breakpadId": debug_id, "codeId": code_id,
    })
}

/// A build id as Breakpad writes it: its first 16 bytes as a GUID, whose first three fields are
/// little endian, and an age of 0.
fn debug_id(id: &ImageId) -> String {
    let bytes = id.build_id().unwrap_or_default();
    let byte = |at: usize| bytes.get(at).copied().unwrap_or(0);
    let order = [3, 2, 1, 0, 5, 4, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15];
    let hex: String = order.iter().map(|at| format!("{:02X}", byte(*at))).collect();
    format!("{hex}0")
}

const fn category(kind: ImageKind) -> usize {
    match kind {
        ImageKind::File | ImageKind::Vdso => 0,
        ImageKind::Kernel | ImageKind::Module | ImageKind::Bpf => 1,
        ImageKind::Jit => 2,
        ImageKind::Idle => 3,
        ImageKind::Unresolved => OTHER,
    }
}

const OTHER: usize = 4;

/// The tables of a thread: columns, each table of one length.
#[derive(Default)]
struct Thread {
    strings: Vec<String>,
    string_numbers: HashMap<String, usize>,
    resources: Vec<(usize, usize)>,
    /// Name, resource, file.
    functions: Vec<Function>,
    function_numbers: HashMap<Function, usize>,
    frames: Vec<StackFrame>,
    /// Frame, the stack it is called from, category.
    stacks: Vec<(usize, Option<usize>, usize)>,
    stack_numbers: HashMap<(usize, Option<usize>), usize>,
    /// Stack, weight.
    samples: Vec<(usize, u64)>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Function {
    name: usize,
    resource: Option<usize>,
    file: Option<usize>,
}

struct StackFrame {
    function: usize,
    address: Option<u64>,
    depth: usize,
    category: usize,
    line: Option<u32>,
}

/// Most threads of an event; the lightest others are one.
const THREADS_MAX: usize = 200;

/// The threads of an event: that of samples without stacks, and those of stacks, by their time.
fn threads(resolved: &Resolved, event: usize) -> Vec<Value> {
    let stacks = &resolved.stacks;
    let mut of_thread: BTreeMap<usize, Vec<&StackSample>> = BTreeMap::new();
    for sample in stacks.samples.iter().filter(|sample| sample.event == event) {
        of_thread.entry(sample.thread).or_default().push(sample);
    }
    let mut by_time: Vec<(u64, usize, Vec<&StackSample>)> = of_thread
        .into_iter()
        .map(|(thread, samples)| {
            let time = samples.iter().fold(0_u64, |sum, of| sum.saturating_add(of.occurrences));
            (time, thread, samples)
        })
        .collect();
    by_time.sort_by_key(|(time, thread, _)| (Reverse(*time), *thread));
    let others = by_time.split_off(by_time.len().min(THREADS_MAX));
    let others: Vec<&StackSample> = others.into_iter().flat_map(|(.., samples)| samples).collect();
    let of_event = resolved.events.get(event).cloned().unwrap_or_default();
    let mut made = Vec::new();
    let flat = flat(resolved, event);
    if by_time.is_empty() || !flat.samples.is_empty() {
        made.push(flat.value(&of_event.name, WeightType::Samples, None));
    }
    let weights = if of_event.period == 0 { WeightType::Time } else { WeightType::Samples };
    let categories: Vec<usize> = resolved.images.iter().map(|image| category(image.kind)).collect();
    for (_, number, samples) in by_time {
        let thread = Thread::of_stacks(resolved, &categories, &samples, weights);
        let of = stacks.threads.get(number);
        let name = of.map_or("", |of| if of.name.is_empty() { &of.command } else { &of.name });
        made.push(thread.value(&format!("{name} ({})", of_event.name), weights, of));
    }
    if !others.is_empty() {
        let thread = Thread::of_stacks(resolved, &categories, &others, weights);
        made.push(thread.value(&format!("other threads ({})", of_event.name), weights, None));
    }
    made
}

/// The weight of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WeightType {
    Samples,
    /// Whole ms; less counts as one.
    Time,
}

impl WeightType {
    const fn name(self) -> &'static str {
        match self {
            Self::Samples => "samples",
            Self::Time => "tracing-ms",
        }
    }

    fn of(self, sample: &StackSample) -> u64 {
        const NS_PER_MS: u64 = 1_000_000;
        match self {
            Self::Samples => sample.samples,
            Self::Time => (sample.occurrences / NS_PER_MS).max(1),
        }
    }
}

/// The samples that have no call stack.
fn flat(resolved: &Resolved, event: usize) -> Thread {
    let mut thread = Thread::default();
    for (at, image) in resolved.images.iter().enumerate() {
        if image.samples(event) == 0 {
            continue;
        }
        let category = category(image.kind);
        let resource = thread.resource(&image.name, at);
        let root = thread.label(&image.name, None, category);
        for place in image.places.iter().filter(|place| place.samples(event) > 0) {
            let stack = thread.place(image, place, (root, resource, category));
            thread.samples.push((stack, place.samples(event)));
        }
    }
    let event = resolved.events.get(event).cloned().unwrap_or_default();
    if event.unknown() > 0 {
        let root = thread.label(UNKNOWN_CODE, None, OTHER);
        for (reason, samples) in &event.unresolved {
            let stack = thread.label(&format!("[{reason}]"), Some(root), OTHER);
            thread.samples.push((stack, *samples));
        }
    }
    thread
}

impl Thread {
    /// The tables of some stacks.
    fn of_stacks(
        resolved: &Resolved,
        categories: &[usize],
        samples: &[&StackSample],
        weights: WeightType,
    ) -> Self {
        let mut made = Self::default();
        let mut resources: HashMap<usize, usize> = HashMap::new();
        let mut frames: HashMap<&super::stacks::StackFrame, (Vec<usize>, usize)> = HashMap::new();
        for sample in samples {
            let path: Vec<_> = resolved.stacks.frames(sample.node).collect();
            let mut stack = None;
            for frame in path.into_iter().rev() {
                let (numbers, category) = frames.entry(frame).or_insert_with(|| {
                    let super::stacks::StackFrame::Place(number, _) = frame else {
                        return (vec![made.words(&resolved.frame_names(frame).concat())], OTHER);
                    };
                    let category = categories.get(*number).copied().unwrap_or(OTHER);
                    let Some((image, place)) = resolved.frame_place(frame) else {
                        return (Vec::new(), category);
                    };
                    let resource = *resources
                        .entry(*number)
                        .or_insert_with(|| made.resource(&image.name, *number));
                    (made.frames_of(image, place, (resource, category)), category)
                });
                for number in numbers {
                    stack = Some(made.stack(*number, stack, *category));
                }
            }
            if let Some(stack) = stack {
                made.samples.push((stack, weights.of(sample)));
            }
        }
        made
    }

    fn text(&mut self, text: &str) -> usize {
        if let Some(number) = self.string_numbers.get(text) {
            return *number;
        }
        let number = self.strings.len();
        self.strings.push(text.to_owned());
        self.string_numbers.insert(text.to_owned(), number);
        number
    }

    fn resource(&mut self, name: &str, library: usize) -> usize {
        let name = self.text(name);
        self.resources.push((library, name));
        self.resources.len() - 1
    }

    fn function(&mut self, name: &str, resource: Option<usize>, file: Option<&str>) -> usize {
        let function =
            Function { name: self.text(name), resource, file: file.map(|file| self.text(file)) };
        if let Some(number) = self.function_numbers.get(&function) {
            return *number;
        }
        let number = self.functions.len();
        self.functions.push(function.clone());
        self.function_numbers.insert(function, number);
        number
    }

    fn stack(&mut self, frame: usize, prefix: Option<usize>, category: usize) -> usize {
        let next = self.stacks.len();
        let number = *self.stack_numbers.entry((frame, prefix)).or_insert(next);
        if number == next {
            self.stacks.push((frame, prefix, category));
        }
        number
    }

    /// A stack of something that is not a procedure.
    fn label(&mut self, name: &str, prefix: Option<usize>, category: usize) -> usize {
        let frame = self.words(name);
        self.frames.iter_mut().skip(frame).for_each(|frame| frame.category = category);
        self.stack(frame, prefix, category)
    }

    /// A frame of something that is not a procedure.
    fn words(&mut self, name: &str) -> usize {
        let function = self.function(name, None, None);
        let category = OTHER;
        self.frames.push(StackFrame { function, address: None, depth: 0, category, line: None });
        self.frames.len() - 1
    }

    /// The stack of a place: image, procedure, inlined calls.
    fn place(
        &mut self,
        image: &Image,
        place: &Place,
        (root, resource, category): (usize, usize, usize),
    ) -> usize {
        let mut stack = root;
        for frame in self.frames_of(image, place, (resource, category)) {
            stack = self.stack(frame, Some(stack), category);
        }
        stack
    }

    /// The frames of a place: its procedure, and the calls inlined there.
    fn frames_of(
        &mut self,
        image: &Image,
        place: &Place,
        (resource, category): (usize, usize),
    ) -> Vec<usize> {
        let names = image.functions(place);
        let mut made = Vec::with_capacity(names.len());
        let frames = place.frames.iter().rev().map(Some).chain(std::iter::repeat(None));
        for (depth, (name, source)) in names.into_iter().zip(frames).enumerate() {
            let function = self.function(
                name,
                Some(resource),
                source.and_then(|frame: &Frame| frame.file.as_deref()),
            );
            let address = Some(place.address).filter(|address| *address <= NUMBER_MAX);
            let line = source.and_then(|frame| frame.line);
            self.frames.push(StackFrame { function, address, depth, category, line });
            made.push(self.frames.len() - 1);
        }
        made
    }

    fn value(&self, name: &str, weights: WeightType, of: Option<&model::Thread>) -> Value {
        let count = self.samples.len();
        let number = |number: Option<u32>| number.unwrap_or(0);
        let (pid, tid) = (number(of.map(|of| of.pid)), number(of.map(|of| of.tid)));
        let process = of.map(|of| of.command.as_str()).filter(|command| !command.is_empty());
        json!({
            "name": name, "processName": process.unwrap_or("dcpi"), "processType": "default",
            "isMainThread": of.is_none(), "pid": pid.to_string(), "tid": tid,
            "processStartupTime": 0, "processShutdownTime": null, "registerTime": 0, "unregisterTime": null, "pausedRanges": [],
            "stringArray": self.strings,
            "samples": {
                "length": count,
                "stack": self.samples.iter().map(|(stack, _)| stack).collect::<Vec<_>>(),
                "time": (0..count).collect::<Vec<_>>(),
                "weight": self.samples.iter().map(|(_, weight)| weight).collect::<Vec<_>>(),
                "weightType": weights.name(),
            },
            "markers": {
                "length": 0, "data": [], "name": [], "startTime": [], "endTime": [], "phase": [],
                "category": [],
            },
            "stackTable": {
                "length": self.stacks.len(),
                "frame": self.stacks.iter().map(|(frame, _, _)| frame).collect::<Vec<_>>(),
                "prefix": self.stacks.iter().map(|(_, prefix, _)| prefix).collect::<Vec<_>>(),
                "category": self.stacks.iter().map(|(_, _, category)| category).collect::<Vec<_>>(),
                "subcategory": vec![0; self.stacks.len()],
            },
            "frameTable": self.frame_table(),
            "funcTable": self.function_table(),
            "nativeSymbols": {
                "length": 0, "libIndex": [], "address": [], "name": [], "functionSize": [],
            },
            "resourceTable": {
                "length": self.resources.len(),
                "lib": self.resources.iter().map(|(library, _)| library).collect::<Vec<_>>(),
                "name": self.resources.iter().map(|(_, name)| name).collect::<Vec<_>>(),
                "host": vec![Value::Null; self.resources.len()],
                "type": vec![LIBRARY; self.resources.len()],
            },
        })
    }

    fn frame_table(&self) -> Value {
        let frames = &self.frames;
        let nothing = vec![Value::Null; frames.len()];
        json!({
            "length": frames.len(),
            "address": frames
                .iter()
                .map(|frame| frame.address.map_or(json!(-1), |address| json!(address)))
                .collect::<Vec<_>>(),
            "inlineDepth": frames.iter().map(|frame| frame.depth).collect::<Vec<_>>(),
            "category": frames.iter().map(|frame| frame.category).collect::<Vec<_>>(),
            "subcategory": vec![0; frames.len()],
            "func": frames.iter().map(|frame| frame.function).collect::<Vec<_>>(),
            "line": frames.iter().map(|frame| frame.line).collect::<Vec<_>>(),
            "nativeSymbol": nothing, "innerWindowID": nothing, "implementation": nothing,
            "column": nothing,
        })
    }

    fn function_table(&self) -> Value {
        let functions = &self.functions;
        let nothing = vec![Value::Null; functions.len()];
        let resource =
            |function: &Function| function.resource.map_or(json!(-1), |resource| json!(resource));
        json!({
            "length": functions.len(),
            "name": functions.iter().map(|function| function.name).collect::<Vec<_>>(),
            "resource": functions.iter().map(resource).collect::<Vec<_>>(),
            "fileName": functions.iter().map(|function| function.file).collect::<Vec<_>>(),
            "isJS": vec![false; functions.len()],
            "relevantForJS": vec![false; functions.len()],
            "lineNumber": nothing, "columnNumber": nothing,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_profile::{with_lines, with_stacks, written};
    use super::*;

    /// The stack of a sample, from its image on, by way of all tables.
    fn stack(thread: &Value, sample: usize) -> Vec<String> {
        let number = |value: &Value| usize::try_from(value.as_u64().unwrap()).unwrap();
        let mut at = Some(number(&thread["samples"]["stack"][sample]));
        let mut names = Vec::new();
        while let Some(stack) = at {
            let frame = number(&thread["stackTable"]["frame"][stack]);
            let function = number(&thread["frameTable"]["func"][frame]);
            let name = number(&thread["funcTable"]["name"][function]);
            names.insert(0, thread["stringArray"][name].as_str().unwrap().to_owned());
            at = thread["stackTable"]["prefix"][stack]
                .as_u64()
                .map(|prefix| usize::try_from(prefix).unwrap());
        }
        names
    }

    #[test]
    fn samples_lead_to_names_and_every_column_has_the_length_of_its_table() {
        let (text, carried) = written(|out| write(&with_lines(), out));
        assert_eq!(carried.samples, [75, 9]);
        let profile: Value = serde_json::from_str(&text).unwrap();
        let thread = &profile["threads"][0];
        let stacks: Vec<String> = (0..6).map(|sample| stack(thread, sample).join(" > ")).collect();
        let expected = [
            "app;1 > ns::f(int)",
            "app;1 > ns::f(int) > inl()",
            "app;1 > evil\nname",
            "app;1 > [unknown]",
            "[kernel] > clear_page",
            "gone > [no procedures: file gone]",
        ];
        assert_eq!(stacks, expected);
        assert_eq!(thread["samples"]["weight"], json!([40, 2, 1, 4, 20, 3, 5]));
        assert_eq!(profile["threads"][1]["samples"]["weight"], json!([1, 3, 5]));
        is_even(thread);
    }

    fn is_even(thread: &Value) {
        for table in [
            "samples",
            "stackTable",
            "frameTable",
            "funcTable",
            "resourceTable",
            "markers",
            "nativeSymbols",
        ] {
            let table = thread[table].as_object().unwrap();
            for (name, column) in table.iter().filter(|(_, column)| column.is_array()) {
                assert_eq!(column.as_array().unwrap().len() as u64, table["length"], "{name}");
            }
        }
    }

    #[test]
    fn threads_have_their_stacks() {
        let (text, _) = written(|out| write(&with_stacks(), out));
        let profile: Value = serde_json::from_str(&text).unwrap();
        let threads = profile["threads"].as_array().unwrap();
        threads.iter().for_each(is_even);
        let named = |name: &str| threads.iter().find(|of| of["name"] == name).unwrap();
        let worker = named("w 8 (cycles)");
        assert_eq!((&worker["pid"], &worker["tid"]), (&json!("7"), &json!(8)));
        assert_eq!(worker["processName"], "app;x");
        let stacks: Vec<String> = (0..2).map(|at| stack(worker, at).join(" > ")).collect();
        assert!(stacks.contains(&"[truncated] > evil\nname > ns::f(int)".to_owned()), "{stacks:?}");
        let off = named("w 9 (off-cpu)");
        assert_eq!(stack(off, 0).join(" > "), "evil\nname > ns::f(int) > [futex]");
        assert_eq!(off["samples"]["weight"], json!([5]));
        assert_eq!(off["samples"]["weightType"], "tracing-ms");
        assert_eq!(stack(named("cycles"), 0).join(" > "), "app;1 > ns::f(int)");
    }

    #[test]
    fn a_debug_id_is_a_guid_of_mixed_order() {
        let id = ImageId::from_build_id(&std::array::from_fn::<u8, 20, _>(|at| at as u8)).unwrap();
        assert_eq!(debug_id(&id), "030201000504070608090A0B0C0D0E0F0");
        assert_eq!(debug_id(&ImageId::from_name("x", "")), "000000000000000000000000000000000");
    }
}
