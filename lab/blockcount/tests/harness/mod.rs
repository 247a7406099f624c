//! Runs programs under the engine and compares the counts with their known executions.
#![allow(dead_code, reason = "each test file needs a part")]
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests panic to fail")]

use blockcount::area::reader::{Counted, Flow};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The engine, which is not built by `cargo test`; `BLOCKCOUNT_ENGINE` names another build.
pub fn engine() -> PathBuf {
    if let Some(path) = std::env::var_os("BLOCKCOUNT_ENGINE") {
        return PathBuf::from(path);
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let path = root.join("target/blockcount/dcpi-blockcount");
    assert!(
        path.is_file(),
        "{} is missing; build it first: cargo xtask blockcount, or run cargo xtask test",
        path.display()
    );
    path
}

/// A folder with a compiled program and the counts of its runs.
pub struct Case {
    pub folder: tempfile::TempDir,
    pub program: PathBuf,
    areas: tempfile::TempDir,
}

/// A folder in memory, where files of counts cost least.
fn folder_of_areas() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

impl Case {
    /// Compiles a source of tests/programs.
    pub fn compile(source: &str, options: &[&str]) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(source);
        Self::compile_file(&path, options)
    }

    pub fn compile_file(path: &Path, options: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("program");
        let compiler = if path.extension().is_some_and(|end| end == "cc") { "g++" } else { "gcc" };
        let mut command = Command::new(compiler);
        command.args(["-O1", "-g0", "-pthread", "-o"]).arg(&program).arg(path).args(options);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Self { folder, program, areas: folder_of_areas() }
    }

    /// A case without a program of its own.
    pub fn of(program: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { folder, program: PathBuf::from(program), areas: folder_of_areas() }
    }

    /// Folder of areas.
    pub fn areas(&self) -> PathBuf {
        self.areas.path().to_owned()
    }

    /// The command that counts the program.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(engine());
        command.arg("--area").arg(self.areas()).arg("--edges").arg("--").arg(&self.program);
        command.args(arguments).current_dir(self.folder.path());
        command
    }

    /// Runs the program to its end, which must be good.
    pub fn run(&self, arguments: &[&str]) -> Output {
        let output = self.command(arguments).output().unwrap();
        assert!(
            output.status.success(),
            "{}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        output
    }

    /// The counts of all processes.
    pub fn counted(&self) -> Vec<Counted> {
        let files = std::fs::read_dir(self.areas()).unwrap();
        files.map(|file| Counted::open(&file.unwrap().path()).unwrap()).collect()
    }

    /// Sums of the executions of the program's instructions over all processes, by offset.
    pub fn executions(&self) -> BTreeMap<u64, u64> {
        executions(&self.counted(), &self.program)
    }

    /// The symbols of the program, by name.
    pub fn symbols(&self) -> BTreeMap<String, u64> {
        let output = Command::new("nm").arg(&self.program).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let symbol = |line: &str| {
            let mut words = line.split_whitespace();
            let (address, _, name) = (words.next()?, words.next()?, words.next()?);
            Some((name.to_owned(), u64::from_str_radix(address, 16).ok()?))
        };
        text.lines().filter_map(symbol).collect()
    }

    /// Compares with marks: the instructions from a symbol `at_N_NAME` up to the next mark are
    /// executed N times by each of `factor` processes or threads.
    pub fn check_marks(&self, factor: u64) {
        let executions = self.executions();
        let mut marks: Vec<(u64, Option<u64>)> = Vec::new();
        for (name, address) in self.symbols() {
            if let Some(rest) = name.strip_prefix("at_") {
                let times = rest.split('_').next().unwrap();
                marks.push((address, times.parse().ok()));
            }
        }
        marks.sort_unstable();
        assert!(marks.len() >= 2, "the program has no marks");
        let mut checked = 0;
        for pair in marks.windows(2) {
            let Some(times) = pair[0].1 else { continue };
            let found = executions.range(pair[0].0..pair[1].0);
            for (offset, count) in found {
                assert_eq!(*count, times * factor, "executions at {offset:#x}");
                checked += 1;
            }
        }
        assert!(checked > 0, "nothing at the marks was counted");
    }

    /// Checks the flow of all processes; each may end with this many threads.
    pub fn check_flow(&self, threads: usize) {
        for counted in self.counted() {
            check_flow(&counted, threads);
        }
    }
}

pub fn executions(counted: &[Counted], program: &Path) -> BTreeMap<u64, u64> {
    let mut sums = BTreeMap::new();
    for file in counted.iter().flat_map(Counted::files) {
        if file.path == program.as_os_str().as_encoded_bytes() {
            for (offset, (_, count)) in file.instructions {
                *sums.entry(offset).or_default() += count;
            }
        }
    }
    sums
}

pub fn check_flow(counted: &Counted, threads: usize) {
    let Flow { addresses, exact, differences } = counted.flow();
    assert!(exact > 0, "{exact} of {addresses} addresses are exact");
    let sum: i64 =
        differences.iter().map(|(_, executions, edges)| (executions - edges).abs()).sum();
    let shown: Vec<String> = differences
        .iter()
        .take(10)
        .map(|(at, executions, edges)| format!("{at:#x}: {executions} executions, {edges} edges"))
        .collect();
    assert!(sum <= threads as i64, "{sum} differences: {}", shown.join("; "));
}
