//! Programs that compute for about half a second.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub struct Program {
    pub name: String,
    path: PathBuf,
    arguments: Vec<String>,
}

impl Program {
    pub fn new(name: &str, path: impl Into<PathBuf>, arguments: &[&str]) -> Self {
        let arguments = arguments.iter().map(|&argument| argument.to_owned()).collect();
        Self { name: name.to_owned(), path: path.into(), arguments }
    }

    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    }
}

const C: &str = include_str!("programs/set.c");
const CPP: &str = include_str!("programs/set.cc");
const RUST: &str = include_str!("programs/set.rs");

fn run(command: &mut Command) {
    let status = command.status().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(status.success(), "{command:?}: {status}");
}

fn compiled(
    folder: &Path,
    name: &str,
    source: &str,
    compiler: &str,
    arguments: &[&str],
) -> PathBuf {
    let (file, program) = (folder.join(format!("{name}.source")), folder.join(name));
    std::fs::write(&file, source).unwrap();
    run(Command::new(compiler).args(arguments).arg("-o").arg(&program).arg(&file));
    program
}

/// Two megabytes of text and code, the same in every run on one machine.
fn input(folder: &Path) -> String {
    let path = folder.join("input");
    if !path.exists() {
        let mut bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        bytes.truncate(1 << 20);
        for line in 0..20_000_u64 {
            let word = line.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 50;
            bytes.extend(
                format!("line {line} of the text says {word} and {:x}\n", word * word).bytes(),
            );
        }
        std::fs::write(&path, bytes).unwrap();
    }
    path.to_str().unwrap().to_owned()
}

/// What every machine has that can build this: no program may be missing.
pub fn that_are_everywhere(folder: &Path) -> Vec<Program> {
    vec![
        Program::new("gzip", "/bin/gzip", &["-6", "-c", &input(folder)]),
        Program::new("c", compiled(folder, "c", C, "cc", &["-O2", "-xc"]), &[]),
        Program::new(
            "rust",
            compiled(folder, "rust", RUST, "rustc", &["-O", "--edition=2021"]),
            &[],
        ),
    ]
}

pub fn of_a_development_machine(folder: &Path) -> Vec<Program> {
    let input = input(folder);
    let sql = include_str!("programs/set.sql");
    let python = include_str!("programs/set.py");
    let cc1 = Command::new("gcc").arg("-print-prog-name=cc1").output().expect("gcc");
    let cc1 = String::from_utf8(cc1.stdout).unwrap().trim().to_owned();
    let preprocessed = folder.join("c.i");
    run(Command::new("gcc")
        .args(["-E", "-xc", "-o"])
        .arg(&preprocessed)
        .arg(folder.join("c.source")));
    vec![
        Program::new("bzip2", "/bin/bzip2", &["-9", "-c", &input]),
        Program::new("xz", "/usr/bin/xz", &["-3", "-T1", "-c", &input]),
        Program::new("sqlite3", "/usr/bin/sqlite3", &[":memory:", sql]),
        Program::new("python3", "/usr/bin/python3", &["-c", python]),
        Program::new(
            "cc1",
            cc1,
            &["-O3", "-quiet", "-o", "/dev/null", preprocessed.to_str().unwrap()],
        ),
        Program::new("c++", compiled(folder, "cpp", CPP, "g++", &["-O2", "-xc++"]), &[]),
        Program::new("c -O0", compiled(folder, "c0", C, "cc", &["-O0", "-xc"]), &[]),
    ]
}
