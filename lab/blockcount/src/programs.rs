//! Examines an executable file before an exec: the engine must return the kernel's errors, and
//! cannot follow every program.

use crate::system;
use alloc::vec::Vec;

/// Bytes read to identify a file, as many as the kernel reads (`BINPRM_BUF_SIZE`).
const HEAD: usize = 256;
/// Interpreters of interpreters that the kernel follows.
const INTERPRETERS_MAX: usize = 5;

/// The kind of an executable file.
#[derive(Debug, PartialEq, Eq)]
pub enum Program {
    /// A program of x86-64.
    Native,
    /// A script: its interpreter, with a final zero byte, and that one's argument.
    Script { interpreter: Vec<u8>, argument: Option<Vec<u8>> },
    /// A file that only the kernel can execute, with the reason.
    Foreign(&'static str),
}

/// The kind of the file at a path (with a final zero byte), or the error of its exec.
pub fn program(path: &[u8]) -> Result<Program, i64> {
    const X_OK: u64 = 1;
    let answer = system::access(path, X_OK);
    if system::is_error(answer) {
        return Err(answer);
    }
    let mut head = [0_u8; HEAD];
    let status;
    let len;
    match system::open(path, 0, 0) {
        Ok(file) => {
            len = system::read_at(file, &mut head, 0);
            status = system::status(file);
            system::close(file);
        }
        Err(system::EACCES) => return Ok(Program::Foreign("a program that may not be read")),
        Err(error) => return Err(error),
    }
    if !is_file(&status) {
        return Err(system::EACCES);
    }
    if gains_rights(path, &status) {
        return Ok(Program::Foreign("a set-user-ID program"));
    }
    let head = head.get(..len).unwrap_or_default();
    classify(head)
}

/// `struct stat`: the mode is in the low half of its fourth word.
fn mode(status: &[u64; 18]) -> u64 {
    let [_, _, _, mode, ..] = status;
    mode & 0xffff
}

pub fn is_file(status: &[u64; 18]) -> bool {
    mode(status) & 0o170_000 == 0o100_000
}

/// Whether executing a file gives rights of another user, or capabilities: the kernel gives them
/// to the program, not to the engine.
fn gains_rights(path: &[u8], status: &[u64; 18]) -> bool {
    let capability = system::attribute_len(path, c"security.capability");
    mode(status) & 0o4000 != 0 || mode(status) & 0o2010 == 0o2010 || capability > 0
}

fn classify(head: &[u8]) -> Result<Program, i64> {
    match head {
        [b'#', b'!', line @ ..] => script(line),
        [0x7f, b'E', b'L', b'F', class, _, ..] => {
            // EI_CLASS 2: 64 bits; e_machine 62: x86-64.
            match (class, head.get(18..20)) {
                (2, Some([62, 0])) => Ok(Program::Native),
                (1, Some([3, 0] | [62, 0])) => Ok(Program::Foreign("a program of 32 bits")),
                _ => Ok(Program::Foreign("a program of another processor")),
            }
        }
        _ => Ok(Program::Foreign("a file that only the kernel knows")),
    }
}

fn script(line: &[u8]) -> Result<Program, i64> {
    let end = line.iter().position(|byte| *byte == b'\n').unwrap_or(line.len());
    let line = line.get(..end).unwrap_or_default().trim_ascii();
    let blank = |byte: &u8| *byte == b' ' || *byte == b'\t';
    let end = line.iter().position(blank).unwrap_or(line.len());
    let (name, rest) = line.split_at_checked(end).unwrap_or_default();
    if name.is_empty() {
        return Err(system::ENOEXEC);
    }
    let terminated = |bytes: &[u8]| {
        let mut bytes = bytes.to_vec();
        bytes.push(0);
        bytes
    };
    let argument = rest.trim_ascii();
    let argument = (!argument.is_empty()).then(|| terminated(argument));
    Ok(Program::Script { interpreter: terminated(name), argument })
}

/// The program that executes a path.
pub struct Resolved {
    /// The path, or that of a script's interpreter, with a final zero byte.
    pub path: Vec<u8>,
    /// Words before the arguments: none, or for a script its interpreters, their arguments and the
    /// script's path.
    pub before: Vec<Vec<u8>>,
    pub program: Program,
}

/// The program that executes a path.
pub fn resolve(path: &[u8]) -> Result<Resolved, i64> {
    let mut path = path.to_vec();
    let mut before = Vec::new();
    for _ in 0..INTERPRETERS_MAX {
        match program(&path)? {
            Program::Script { interpreter, argument } => {
                // The script's own path replaces its first argument.
                if before.is_empty() {
                    before.push(path);
                }
                if let Some(argument) = argument {
                    before.insert(0, argument);
                }
                before.insert(0, interpreter.clone());
                path = interpreter;
            }
            program => return Ok(Resolved { path, before, program }),
        }
    }
    Err(system::ENOEXEC)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_file_is_shows_in_its_first_bytes() {
        let native = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\x3e\0";
        assert_eq!(classify(native), Ok(Program::Native));
        let old = b"\x7fELF\x01\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\x03\0";
        assert!(matches!(classify(old), Ok(Program::Foreign("a program of 32 bits"))));
        let arm = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\xb7\0";
        assert!(matches!(classify(arm), Ok(Program::Foreign(_))));
        let script = classify(b"#! /usr/bin/env  -S python3 \nimport os\n");
        let expected = Program::Script {
            interpreter: b"/usr/bin/env\0".to_vec(),
            argument: Some(b"-S python3\0".to_vec()),
        };
        assert_eq!(script, Ok(expected));
        assert_eq!(classify(b"#!\n"), Err(system::ENOEXEC));
    }

    #[test]
    fn programs_that_are_there_are_known() {
        assert_eq!(program(b"/usr/bin/true\0"), Ok(Program::Native));
        assert_eq!(program(b"/no/such/program\0"), Err(system::ENOENT));
        assert_eq!(program(b"/etc/passwd\0"), Err(system::EACCES));
        assert_eq!(program(b"/usr\0"), Err(system::EACCES));
    }
}
