//! The Firefox profiler's processed profile format (github.com/firefox-devtools/profiler,
//! docs-developer/processed-profile-format.md and CHANGELOG-formats.md), in its version 47, which
//! later ones upgrade.
//!
//! A thread for each event; a sample for each place, weighted with the place's samples. The stack
//! is the image, the procedure, and the calls that were inlined. Samples here have no time of their
//! own: the time axis counts places and means nothing.

use std::collections::HashMap;
use std::io::{self, Write};

use image::{Frame, ImageId, ImageKind};
use serde_json::{Value, json};

use super::{Carried, Image, Place, Resolved, UNKNOWN_CODE};

/// The version that is written.
const VERSION: u32 = 47;
/// Largest whole number that JavaScript keeps exactly (2^53 - 1).
const NUMBER_MAX: u64 = (1 << 53) - 1;
/// `resourceTable.type` of a library.
const LIBRARY: u32 = 1;
/// What images are; an index into this is a category.
const CATEGORIES: [(&str, &str); 5] = [
    ("User", "yellow"),
    ("Kernel", "orange"),
    ("Made at run time", "blue"),
    ("Idle", "transparent"),
    ("Other", "grey"),
];

/// Writes the samples of all events.
///
/// # Errors
/// Those of `out`.
pub fn write(resolved: &Resolved, out: &mut dyn Write) -> io::Result<Carried> {
    let categories = CATEGORIES
        .map(|(name, color)| json!({"name": name, "color": color, "subcategories": ["Other"]}));
    let comments = resolved.comments();
    let comments = comments
        .iter()
        .map(|comment| json!({"label": "Note", "format": "string", "value": comment}));
    let threads: Vec<Value> =
        (0..resolved.events.len()).map(|event| thread(resolved, event)).collect();
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
    let code_id = image.id.build_id().map(|_| image.id.to_string());
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

fn thread(resolved: &Resolved, event: usize) -> Value {
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
    thread.value(&event.name)
}

impl Thread {
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

    /// A stack of something that is no procedure.
    fn label(&mut self, name: &str, prefix: Option<usize>, category: usize) -> usize {
        let function = self.function(name, None, None);
        let frame = self.frames.len();
        self.frames.push(StackFrame { function, address: None, depth: 0, category, line: None });
        self.stack(frame, prefix, category)
    }

    /// The stack of a place: image, procedure, inlined calls.
    fn place(
        &mut self,
        image: &Image,
        place: &Place,
        (root, resource, category): (usize, usize, usize),
    ) -> usize {
        let names = image.functions(place);
        let mut stack = root;
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
            stack = self.stack(self.frames.len() - 1, Some(stack), category);
        }
        stack
    }

    fn value(&self, name: &str) -> Value {
        let count = self.samples.len();
        json!({
            "name": name, "processName": "dcpi", "processType": "default", "isMainThread": true,
            "pid": "0", "tid": 0,
            "processStartupTime": 0, "processShutdownTime": null, "registerTime": 0, "unregisterTime": null, "pausedRanges": [],
            "stringArray": self.strings,
            "samples": {
                "length": count,
                "stack": self.samples.iter().map(|(stack, _)| stack).collect::<Vec<_>>(),
                "time": (0..count).collect::<Vec<_>>(),
                "weight": self.samples.iter().map(|(_, weight)| weight).collect::<Vec<_>>(),
                "weightType": "samples",
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
    use super::super::test_profile::{with_lines, written};
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
    fn a_debug_id_is_a_guid_of_mixed_order() {
        let id = ImageId::from_build_id(&std::array::from_fn::<u8, 20, _>(|at| at as u8)).unwrap();
        assert_eq!(debug_id(&id), "030201000504070608090A0B0C0D0E0F0");
        assert_eq!(debug_id(&ImageId::from_name("x", "")), "000000000000000000000000000000000");
    }
}
