//! Identifies BEAM among a process's files: its version, and where it has what is needed.

use super::modules::Modules;
use crate::python::Memory;
use crate::questions::RuntimeFound;
use abi::{ERLANG_AREAS_MAX, ErlangArea, ErlangLayout, RuntimeLayout};
use image::{Export, ImageOffset, Layout as FileLayout, Vaddr, exports_of_file};
use std::fs::File;
use std::os::unix::fs::FileExt as _;

/// The symbols: the list of GDB's interface; the release; whether code is generated; what leads to
/// the thread's scheduler; the variable with the return address of first functions.
const SYMBOLS: [&str; 5] = [
    "__jit_debug_descriptor",
    "etp_otp_release",
    "etp_beamasm",
    "erts_get_scheduler_data",
    "beam_normal_exit",
];
/// Longest number of a release, in bytes.
const RELEASE_MAX: usize = 4;
/// `mov variable(%rip), %edi` and `jmp`: how `erts_get_scheduler_data` asks for the word of
/// `pthread_getspecific` with the key in that variable.
const LOADS_KEY: [u8; 2] = [0x8b, 0x3d];
const JUMPS: u8 = 0xe9;
/// In glibc's `struct pthread` of x86-64: the first 32 words of `pthread_setspecific`, each behind
/// the number of its uses (nptl/descr.h, `specific_1stblock`; the same since glibc 2.4).
const KEYS_AT: i32 = 0x310;
const KEYS: u32 = 32;
/// Most bytes of the scheduler's loop.
const LOOP_BYTES_MAX: usize = 4096;
/// `mov distance(%r13), %rsp`: how generated code returns to the stack of Erlang's.
const TO_ERLANG: [u8; 3] = [0x49, 0x8b, 0x65];

/// A file with a BEAM. Addresses are the file's.
#[derive(Debug)]
pub struct Program {
    release: String,
    generates: bool,
    descriptor: u64,
    /// The variable with the scheduler's key.
    key: Option<u64>,
    exit: Option<u64>,
    layout: FileLayout,
}

/// Whether a file of this path may be a BEAM: `beam.smp`.
pub fn may_be_erlang(path: &[u8]) -> bool {
    let path = path.strip_suffix(b" (deleted)").unwrap_or(path);
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    name.starts_with(b"beam.") && name.ends_with(b"smp")
}

impl Program {
    /// The BEAM of a file; None: it has none that tells what it generates.
    pub fn of_file(file: &File) -> Option<Self> {
        let exports = exports_of_file(file, &SYMBOLS).ok()?;
        let [descriptor, release, generates, scheduler, exit] = exports.try_into().ok()?;
        let layout = FileLayout::of_file(file).ok()?;
        let address = |export: Option<Export>| export.map(|Export { vaddr: Vaddr(at), .. }| at);
        let read = |vaddr: u64, bytes: &mut [u8]| {
            let ImageOffset(at) = layout.vaddr_to_file_offset(Vaddr(vaddr))?;
            file.read_at(bytes, at).ok()
        };
        let mut text = [0; RELEASE_MAX];
        // Builds that hide their symbols, as Debian's of 29, have names for nothing.
        match address(release) {
            Some(at) => _ = read(at, &mut text)?,
            None => text = *b"0\0\0\0",
        }
        let release = text.split(|byte| *byte == 0).next().unwrap_or_default();
        let release = std::str::from_utf8(release).ok()?;
        let is_number = release.bytes().all(|byte| byte.is_ascii_digit()) && !release.is_empty();
        let mut generates_code = [0; 4];
        let _ = address(generates).and_then(|at| read(at, &mut generates_code));
        let mut code = [0; 7];
        let scheduler = address(scheduler);
        let _ = scheduler.and_then(|at| read(at, &mut code));
        let key = scheduler.and_then(|at| key_of(at, code));
        is_number.then(|| Self {
            release: release.to_owned(),
            generates: generates_code == [1, 0, 0, 0],
            descriptor: address(descriptor).unwrap_or(0),
            key,
            exit: address(exit),
            layout,
        })
    }

    /// Difference between a process's addresses and the file's, where it has the byte at this
    /// offset mapped at `address`.
    pub fn bias(&self, address: u64, file_offset: u64) -> Option<u64> {
        self.layout.bias(address, ImageOffset(file_offset))
    }

    /// Address in a process of the head of the list of modules.
    pub fn descriptor(&self, bias: u64) -> u64 {
        self.descriptor.wrapping_add(bias)
    }

    /// Where the sampler finds frames of Erlang's. `generated`: the areas of generated code.
    pub fn look(
        &self,
        memory: &impl Memory,
        bias: u64,
        modules: &mut Modules,
        generated: &[(u64, u64)],
    ) -> RuntimeFound {
        let version = match self.release.as_str() {
            "0" => "an Erlang/OTP that hides its symbols".to_owned(),
            release => format!("Erlang/OTP {release}"),
        };
        if self.release == "0" {
            return RuntimeFound::Refused(format!("{version} is not known"));
        }
        if !self.generates || self.descriptor == 0 {
            return RuntimeFound::Refused(format!("{version} without generated code is not known"));
        }
        // In ErtsSchedulerData `current_process`, in Process `stop`: read in processes of Debian's
        // 25.2.3 and 27.3.4. That 26 is as both is not tried; where it were not, its stacks would
        // lead to no return address, and be cut.
        let offsets = match self.release.as_str() {
            "25" | "26" | "27" if cfg!(target_arch = "x86_64") => Some((0xa8, 0x58)),
            _ => None,
        };
        let Some((process_at, stack_at)) = offsets else {
            return RuntimeFound::Refused(format!("stacks of {version} are not known"));
        };
        let other_build = RuntimeFound::Refused(format!("{version} of this build is not known"));
        let (Some(key), Some(exit)) = (self.key, self.exit) else { return other_build };
        let [key, exit] = [key, exit].map(|at| at.wrapping_add(bias));
        let Some(layout) = layout(memory, (key, exit), modules, generated) else {
            return RuntimeFound::NotYet;
        };
        let erlang = ErlangLayout { process_at, stack_at, ..layout };
        if !returns_by(memory, &erlang) {
            return other_build;
        }
        RuntimeFound::Layout(RuntimeLayout { erlang, ..RuntimeLayout::default() })
    }
}

/// The parts of the layout that a process tells, the addresses of whose variables are given. None:
/// it has not begun yet, or its scheduler's key is beyond those that threads have room for.
fn layout(
    memory: &impl Memory,
    (key, exit): (u64, u64),
    modules: &mut Modules,
    generated: &[(u64, u64)],
) -> Option<ErlangLayout> {
    let mut number = [0; 4];
    let read = memory.read(key, &mut number);
    let number = u32::from_le_bytes(number);
    if read != 4 || number >= KEYS {
        return None;
    }
    let scheduler_at = KEYS_AT + 16 * number as i32 + 8;
    let exit_at = memory.word(exit).filter(|at| *at != 0)?;
    let code = modules.global(memory, "process_main")?;
    let loop_bytes = u32::try_from(code.end.checked_sub(code.start)?).ok()?;
    let mut areas = [ErlangArea::default(); ERLANG_AREAS_MAX];
    let with_modules = generated.iter().filter(|(begin, end)| modules.any_in(*begin..*end));
    let mut found: Vec<ErlangArea> = with_modules
        .map(|(begin, end)| ErlangArea { start: *begin, len: end.saturating_sub(*begin) })
        .collect();
    // Of more areas, the largest ones have the most code.
    found.sort_by_key(|area| std::cmp::Reverse(area.len));
    areas.iter_mut().zip(&found).for_each(|(to, area)| *to = *area);
    let loop_at = code.start;
    let known = ErlangLayout {
        areas,
        loop_at,
        loop_bytes,
        scheduler_at,
        exit_at,
        ..ErlangLayout::default()
    };
    (!found.is_empty()).then_some(known)
}

/// The address of the variable that the code of `erts_get_scheduler_data` at `at` reads.
fn key_of(at: u64, code: [u8; 7]) -> Option<u64> {
    let [first, second, distance @ .., jump] = code;
    let distance = i32::from_le_bytes(distance);
    let is_known = [first, second] == LOADS_KEY && jump == JUMPS;
    is_known.then(|| at.wrapping_add(6).wrapping_add_signed(distance.into()))
}

/// Whether the scheduler's loop goes to the stack of Erlang's as the layout says.
fn returns_by(memory: &impl Memory, layout: &ErlangLayout) -> bool {
    let mut code = vec![0; (layout.loop_bytes as usize).min(LOOP_BYTES_MAX)];
    let read = memory.read(layout.loop_at, &mut code);
    let code = code.get(..read).unwrap_or_default();
    let distance =
        |code: &[u8]| code.strip_prefix(&TO_ERLANG).and_then(|rest| rest.first().copied());
    let mut distances = code.windows(TO_ERLANG.len() + 1).filter_map(distance);
    distances.next().is_some_and(|at| u16::from(at) == layout.stack_at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_virtual_machine_is_known_by_the_name_of_its_file() {
        assert!(may_be_erlang(b"/usr/lib/erlang/erts-13.1.5/bin/beam.smp"));
        assert!(may_be_erlang(b"/opt/release/erts-14.2/bin/beam.debug.smp (deleted)"));
        assert!(!may_be_erlang(b"/usr/lib/beam.smp/erl") && !may_be_erlang(b"beam"));
    }

    #[test]
    fn the_key_is_in_a_variable() {
        let code = [0x8b, 0x3d, 0xb2, 0x20, 0x38, 0, 0xe9];
        assert_eq!(key_of(0x797d0, code), Some(0x3f_b888));
        assert_eq!(key_of(0x797d0, [0x55; 7]), None);
    }
}
