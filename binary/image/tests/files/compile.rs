//! Compiles programs and asks binutils about them.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// A directory with the program's source, gone when dropped.
pub struct Workshop {
    dir: TempDir,
}

impl Workshop {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("program.c"), include_str!("program.c")).unwrap();
        Self { dir }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Compiles the program to `out`.
    pub fn cc(&self, out: &str, flags: &[&str]) -> PathBuf {
        let mut command = Command::new("cc");
        command.args(["-O1", "-fasynchronous-unwind-tables", "program.c", "-o", out]);
        self.run(command.args(flags));
        self.path(out)
    }

    /// Runs a tool of binutils here.
    pub fn tool(&self, tool: &str, args: &[&str]) -> String {
        self.run(Command::new(tool).args(args))
    }

    fn run(&self, command: &mut Command) -> String {
        let output = command.current_dir(self.dir.path()).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command:?}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The symbols of code that nm(1) shows with a size: address, size, name.
    pub fn nm(&self, file: &str) -> Vec<(u64, u64, String)> {
        let text = self.tool("nm", &["-S", "--defined-only", file]);
        let hex = |text: &str| u64::from_str_radix(text, 16).unwrap();
        text.lines()
            .filter_map(|line| {
                let fields: Vec<&str> = line.split_whitespace().collect();
                match fields[..] {
                    [address, size, "t" | "T" | "W" | "i", name] => {
                        Some((hex(address), hex(size), name.to_owned()))
                    }
                    _ => None,
                }
            })
            .collect()
    }

    /// The address that nm(1) shows for a symbol.
    pub fn address(&self, file: &str, symbol: &str) -> u64 {
        let text = self.tool("nm", &[file]);
        let line = text.lines().find(|line| line.ends_with(&format!(" {symbol}")));
        let line = line.unwrap_or_else(|| panic!("no {symbol} in {file}"));
        u64::from_str_radix(line.split_whitespace().next().unwrap(), 16).unwrap()
    }

    /// The build id that readelf(1) shows.
    pub fn build_id(&self, file: &str) -> String {
        let text = self.tool("readelf", &["-n", file]);
        let id = text.split_once("Build ID: ").unwrap().1;
        id.lines().next().unwrap().to_owned()
    }
}

pub fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap()
}
