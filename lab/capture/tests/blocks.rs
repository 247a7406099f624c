//! Executions of blocks by events compiled in, against exact counts of the same code without.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests panic to fail")]

use capture::blocks::{Area, Capture, Captured, blocks_of};
use exact::own::Own;
use exact::{Engine as _, Streams};
use image::ImageOffset;
use std::path::{Path, PathBuf};
use std::process::Command;
use trace::event::Facts;
use trace::sequence::{self, Writer};

fn built(path: &str, next: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let path = root.join(path);
    assert!(
        path.exists(),
        "{} is missing; build it first: {next}, or cargo xtask test",
        path.display()
    );
    path
}

/// A program compiled in two ways.
struct Pair {
    folder: tempfile::TempDir,
}

impl Pair {
    fn compile(source: &str, options: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let wrapper = built("target/blocks", "cargo xtask blocks");
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(source);
        let compiler = if source.ends_with(".cc") { "g++" } else { "gcc" };
        for (name, under) in [("events", ""), ("plain", "plain")] {
            let mut command = Command::new(compiler);
            command.arg("-B").arg(wrapper.join(under).join(""));
            let specs = wrapper.join(under).join("dcpi.specs");
            command.arg(format!("-specs={}", specs.display())).arg("-o");
            command.arg(folder.path().join(name)).arg(&path).arg("-pthread").args(options);
            let output = command.output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs the program with events, which loses none; what was captured, its output, the trace.
    fn traced(&self) -> (Captured, String, Vec<u8>) {
        let mut file = Vec::new();
        let writer = Writer::new(&mut file, &Facts::default()).unwrap();
        let area = Area::new(true).unwrap();
        let mut command = Command::new(self.path("events"));
        command.env(tracer::area::VARIABLE, area.path());
        let mut capture = Capture::new(area, writer);
        let out = self.path("out");
        command.stdout(std::fs::File::create(&out).unwrap());
        let mut child = command.spawn().unwrap();
        let status = loop {
            let status = child.try_wait().unwrap();
            capture.poll(false).unwrap();
            if let Some(status) = status {
                break status;
            }
        };
        while capture.poll(true).unwrap() > 0 {}
        assert!(status.success(), "{status}");
        let (captured, writer) = capture.end();
        writer.finish(&Facts::default()).unwrap();
        (captured, std::fs::read_to_string(out).unwrap(), file)
    }

    /// Compares executions of each block with what the engine of exact counts says of the plain
    /// program.
    fn compare(&self) {
        let (captured, said, file) = self.traced();
        assert_eq!((captured.lost, captured.unknown), (0, 0));
        assert_eq!(captured.problems, Vec::<String>::new());
        let plain = Command::new(self.path("plain")).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&plain.stdout), said);
        let (program, _) = blocks_of(&self.path("plain")).unwrap();
        let engine = Own {
            program: built("target/blockcount/dcpi-blockcount", "cargo xtask blockcount"),
            jumps: false,
            modelled: None,
        };
        let run = engine.run(&[self.path("plain").into()], Streams::default()).unwrap();
        let path = self.path("plain").canonicalize().unwrap();
        let exact = run.counts.files.iter().find(|file| file.file.path == path).unwrap();
        let (events, counts) = &captured.programs[0];
        assert_eq!(events.blocks.len(), program.blocks.len());
        let mut executed = 0;
        for (index, block) in program.blocks.iter().enumerate().filter(|(_, it)| it.offset > 0) {
            let exact = exact.executed.get(&ImageOffset(block.offset)).copied().unwrap_or_default();
            assert_eq!(
                counts[index], exact,
                "{} #{} at {:#x}, line {}",
                block.procedure, block.number, block.offset, block.line
            );
            executed += u64::from(exact > 0);
        }
        assert!(executed > 20, "{executed}");
        let mut events = 0;
        let all = sequence::read(file.as_slice(), |_, _, some| events += some.len()).unwrap();
        assert_eq!((all.cut, events as u64), (None, captured.events));
    }
}

const LEVELS: [&str; 4] = ["-O0", "-O1", "-O2", "-O3"];

#[test]
fn callbacks_jumps_threads_signals_and_children_are_counted_exactly() {
    for level in LEVELS {
        Pair::compile("ways.c", &[level, "-g"]).compare();
    }
    Pair::compile("ways.c", &["-O2", "-fcf-protection", "-ffunction-sections"]).compare();
    Pair::compile("ways.c", &["-O2", "-fPIC"]).compare();
    Pair::compile("ways.c", &["-O2", "-no-pie", "-static"]).compare();
}

#[test]
fn exceptions_are_counted_exactly() {
    for level in LEVELS {
        Pair::compile("throws.cc", &[level, "-g"]).compare();
    }
}

#[test]
fn blocks_of_a_thread_are_in_their_order() {
    let pair = Pair::compile("order.c", &["-O1", "-g"]);
    let (captured, _, file) = pair.traced();
    let mut lines = Vec::new();
    sequence::read(file.as_slice(), |known, stream, events| {
        assert_eq!(known.streams[stream as usize].handlers, 0);
        let program = &known.programs[0];
        for event in events {
            let chain = program.chain(*event).map(|index| program.blocks[index as usize].line);
            lines.extend(chain);
        }
    })
    .unwrap();
    assert_eq!(captured.streams.len(), 1);
    // step() is at line 4 to 7: its odd numbers come to line 5, the others to line 6.
    lines.retain(|line| [5, 6].contains(line));
    assert_eq!(lines, [6, 5, 6, 5, 6, 5]);
}
