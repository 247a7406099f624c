//! Identifies LuaJIT among a process's files, and reads in its interpreter's code where it has what
//! is needed.

use abi::{LuaJitLayout, RuntimeLayout};
use image::{ImageOffset, Layout as FileLayout, Vaddr, exports_of_file, large_procedures_of_file};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;

/// Symbols that LuaJIT has and Lua lacks.
const SYMBOLS: [&str; 2] = ["luaJIT_setmode", "lua_newstate"];
/// What stands before the version, as `luajit -v` says it.
const VERSION_AFTER: &[u8] = b"LuaJIT 2.";
/// Bytes of the version that are told, and of a file that it is looked for in.
const VERSION_BYTES: usize = 24;
const SEARCHED_BYTES: usize = 4 << 20;
/// Least and most length of the interpreter's code, in bytes: it has 16 KiB.
const VM_BYTES_MIN: u64 = 8 << 10;
const VM_BYTES_MAX: u64 = 256 << 10;

/// `add $number, %r14`: from the global state to the interpreter's jumps.
const TO_JUMPS: [u8; 3] = [0x49, 0x81, 0xc6];
/// How the interpreter enters a trace (`BC_JLOOP`). It loads the table of traces from a distance
/// from its jumps, and from this the trace, whose code is at 88; and the state, which is at 16 in
/// its frame.
const LOADS_TRACES: [u8; 3] = [0x49, 0x8b, 0x8e];
const LOADS_TRACE: [u8; 13] =
    [0x48, 0x8b, 0x04, 0xc1, 0x48, 0x8b, 0x40, 0x58, 0x48, 0x8b, 0x6c, 0x24, 0x10];
/// It then writes its base to a distance from its jumps, and the state behind.
const WRITES_BASE: [u8; 3] = [0x49, 0x89, 0x96];
const WRITES_STATE: [u8; 3] = [0x49, 0x89, 0xae];
/// Two registers that only traces use are saved below the frame.
const SAVES: [u8; 14] =
    [0x48, 0x83, 0xec, 0x10, 0x4c, 0x89, 0x64, 0x24, 0x10, 0x4c, 0x89, 0x6c, 0x24, 0x08];

/// What the interpreter's code tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Distances {
    /// From the global state to the interpreter's jumps.
    pub jumps: u32,
    /// From the global state to the base in traces.
    pub jit_base: u32,
    /// From the global state to the address of the table of traces.
    pub traces: u32,
}

/// A file with a LuaJIT. Addresses are the file's.
#[derive(Debug)]
pub struct Program {
    /// The interpreter's code.
    vm: Range<u64>,
    /// Where it has what is needed.
    pub distances: Distances,
    layout: FileLayout,
}

/// Whether a file of this path may be a LuaJIT: `luajit`, `libluajit-5.1.so.2.1.0`.
pub fn may_be_luajit(path: &[u8]) -> bool {
    let path = path.strip_suffix(b" (deleted)").unwrap_or(path);
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    name.starts_with(b"luajit") || name.starts_with(b"libluajit")
}

/// What the interpreter's code tells; None: it is not as in builds that are known.
pub fn distances(code: &[u8]) -> Option<Distances> {
    let number = |at: usize| code.get(at..)?.first_chunk().map(|bytes| i32::from_le_bytes(*bytes));
    let find = |what: &[u8]| code.windows(what.len()).position(|bytes| bytes == what);
    let jumps = number(find(&TO_JUMPS)? + TO_JUMPS.len())?;
    let loads = find(&LOADS_TRACE)?;
    let begins = loads.checked_sub(LOADS_TRACES.len() + 4)?;
    let writes = loads + LOADS_TRACE.len();
    let state = writes + WRITES_BASE.len() + 4;
    let saves = state + WRITES_STATE.len() + 4;
    let has = |at: usize, what: &[u8]| code.get(at..).is_some_and(|code| code.starts_with(what));
    let is_known = has(begins, &LOADS_TRACES)
        && has(writes, &WRITES_BASE)
        && has(state, &WRITES_STATE)
        && has(saves, &SAVES);
    let from_state = |at: usize| u32::try_from(jumps.checked_add(number(at)?)?).ok();
    is_known.then_some(())?;
    Some(Distances {
        jumps: u32::try_from(jumps).ok()?,
        jit_base: from_state(writes + WRITES_BASE.len())?,
        traces: from_state(begins + LOADS_TRACES.len())?,
    })
}

/// The version in a file's bytes.
pub fn version_in(bytes: &[u8]) -> Option<String> {
    let at = bytes.windows(VERSION_AFTER.len()).position(|bytes| bytes == VERSION_AFTER)?;
    let text = bytes.get(at..)?.split(|byte| *byte == 0).next()?;
    let text = text.get(..text.len().min(VERSION_BYTES))?;
    let is_plain = text.iter().all(|byte| (b' '..=b'~').contains(byte));
    is_plain.then(|| String::from_utf8_lossy(text).into_owned())
}

impl Program {
    /// The LuaJIT of a file; None: it has none. The error names a build that is not known.
    pub fn of_file(file: &File) -> Option<Result<Self, String>> {
        exports_of_file(file, &SYMBOLS).ok()?.iter().all(Option::is_some).then_some(())?;
        let layout = FileLayout::of_file(file).ok()?;
        let known = || {
            let procedures = large_procedures_of_file(file, VM_BYTES_MIN).ok()?;
            // The interpreter is one procedure of the unwind table.
            procedures.into_iter().filter(|of| of.end - of.start <= VM_BYTES_MAX).find_map(|vm| {
                let ImageOffset(at) = layout.vaddr_to_file_offset(Vaddr(vm.start))?;
                let mut code = vec![0; usize::try_from(vm.end - vm.start).ok()?];
                file.read_exact_at(&mut code, at).ok()?;
                Some((vm, distances(&code)?))
            })
        };
        if let Some((vm, distances)) = known().filter(|_| cfg!(target_arch = "x86_64")) {
            return Some(Ok(Self { vm, distances, layout }));
        }
        let mut bytes = vec![0; SEARCHED_BYTES];
        let read = file.read_at(&mut bytes, 0).unwrap_or(0);
        bytes.truncate(read);
        let version = version_in(&bytes).unwrap_or_else(|| "LuaJIT".to_owned());
        Some(Err(format!("{version} of this build is not known")))
    }

    /// Difference between a process's addresses and the file's, where it has the byte at this
    /// offset mapped at `address`.
    pub fn bias(&self, address: u64, file_offset: u64) -> Option<u64> {
        self.layout.bias(address, ImageOffset(file_offset))
    }

    /// Whether an address of a process is in the interpreter.
    pub fn is_in_vm(&self, address: u64, bias: u64) -> bool {
        self.vm.contains(&address.wrapping_sub(bias))
    }

    /// How the sampler finds the calls.
    pub fn layout(&self, bias: u64) -> RuntimeLayout {
        let luajit = LuaJitLayout {
            vm_at: self.vm.start.wrapping_add(bias),
            vm_bytes: u32::try_from(self.vm.end - self.vm.start).unwrap_or(0),
            jit_base_at: self.distances.jit_base,
        };
        RuntimeLayout { luajit, ..RuntimeLayout::default() }
    }
}
