//! Identifies CPython among a process's files: its version, and the offsets of its structures.

use super::Memory;
use super::layouts::Layout;
use image::{
    Export, ImageOffset, Layout as FileLayout, Vaddr, exports_of_file, parts_of_procedure,
};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;

/// The symbols that are needed.
const SYMBOLS: [&str; 6] = [
    "_PyRuntime",
    "_PyEval_EvalFrameDefault",
    "PyCode_Type",
    "PyUnicode_Type",
    "PyBytes_Type",
    "Py_Version",
];

/// Addresses of types, which identify the kind of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Types {
    /// Of the code type.
    pub code: u64,
    /// Of the string type.
    pub string: u64,
    /// Of the bytes type.
    pub bytes: u64,
}

/// A file with a CPython. Addresses are the file's.
#[derive(Debug)]
pub struct Program {
    minor: u8,
    runtime: u64,
    types: Types,
    /// The evaluation loop, and parts of it that are elsewhere.
    loops: Vec<Range<u64>>,
    layout: FileLayout,
}

/// Whether a file of this path may be a CPython: `python3.11`, `libpython3.11.so.1.0`.
pub fn may_be_python(path: &[u8]) -> bool {
    let path = path.strip_suffix(b" (deleted)").unwrap_or(path);
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    name.starts_with(b"python") || name.starts_with(b"libpython3.")
}

/// The number after `python3.` in a path.
fn minor_of_path(path: &[u8]) -> Option<u8> {
    let name = path.rsplit(|byte| *byte == b'/').next()?;
    let name = std::str::from_utf8(name).ok()?;
    let (_, rest) = name.split_once("python3.")?;
    let digits = rest.split(|c: char| !c.is_ascii_digit()).next()?;
    // `d`: built for debugging, `t`: free-threaded. Their structures are others.
    let is_plain = !matches!(rest.as_bytes().get(digits.len()), Some(b'd' | b't'));
    digits.parse().ok().filter(|_| is_plain)
}

impl Program {
    /// The CPython of a file, if it has one of a version that is known.
    pub fn of_file(file: &File, path: &[u8]) -> Option<Self> {
        let exports = exports_of_file(file, &SYMBOLS).ok()?;
        let [runtime, eval, code, string, bytes, version] = exports.try_into().ok()?;
        let (eval, layout) = (eval?, FileLayout::of_file(file).ok()?);
        // From 3.11 on the file has its version in a constant of its own, PY_VERSION_HEX.
        let minor = match version {
            Some(Export { vaddr, .. }) => {
                let mut word = [0; 4];
                let ImageOffset(at) = layout.vaddr_to_file_offset(vaddr)?;
                file.read_exact_at(&mut word, at).ok()?;
                let [_, _, minor, major] = word;
                let is_plain = minor_of_path(path).is_none_or(|told| told == minor);
                Some(minor).filter(|_| major == 3 && is_plain)?
            }
            None => minor_of_path(path).filter(|minor| *minor < 11)?,
        };
        let address = |export: Option<Export>| export.map(|Export { vaddr: Vaddr(at), .. }| at);
        let begin = eval.vaddr.0;
        let of = begin..begin.checked_add(eval.size_bytes)?;
        Some(Self {
            minor,
            runtime: address(runtime)?,
            types: Types { code: address(code)?, string: address(string)?, bytes: address(bytes)? },
            loops: parts_of_procedure(file, of).ok()?,
            layout,
        })
    }

    /// Difference between a process's addresses and the file's, where it has the byte at this
    /// offset mapped at `address`.
    pub fn bias(&self, address: u64, file_offset: u64) -> Option<u64> {
        self.layout.bias(address, ImageOffset(file_offset))
    }

    /// Address of the runtime (`_PyRuntime`).
    pub fn runtime(&self, bias: u64) -> u64 {
        self.runtime.wrapping_add(bias)
    }

    /// The version's structures.
    pub fn layout(&self, memory: &impl Memory, bias: u64) -> Option<Layout> {
        Layout::of(self.minor, memory, self.runtime(bias))
    }

    /// Addresses of types in a process.
    pub fn types(&self, bias: u64) -> Types {
        let Types { code, string, bytes } = self.types;
        let moved = |address: u64| address.wrapping_add(bias);
        Types { code: moved(code), string: moved(string), bytes: moved(bytes) }
    }

    /// Whether code of the evaluation loop is at this address of the file.
    pub fn is_in_loop(&self, vaddr: u64) -> bool {
        self.loops.iter().any(|part| part.contains(&vaddr))
    }

    /// First instruction of the evaluation loop.
    pub fn loop_begin(&self) -> u64 {
        self.loops.first().map_or(0, |part| part.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_come_from_names_of_files() {
        for (path, minor) in [
            (&b"/usr/bin/python3.9"[..], Some(9)),
            (b"/x/libpython3.10.so.1.0", Some(10)),
            (b"/x/libpython3.13t.so.1.0", None),
            (b"/usr/bin/python3.11d", None),
            (b"/usr/bin/python3", None),
            (b"/usr/bin/python3.", None),
            (b"/usr/lib/libpython3.so", None),
            (b"/x/python3.999", None),
        ] {
            assert_eq!(minor_of_path(path), minor, "{}", String::from_utf8_lossy(path));
        }
        assert!(may_be_python(b"/usr/bin/python3.11 (deleted)"));
        assert!(!may_be_python(b"/usr/bin/perl") && !may_be_python(b"/python3.11/bin/x"));
    }
}
