//! Programs of Go, which have a table of their own.

use std::process::Command;

use tempfile::TempDir;
use unwind::{Code, End, Image, Machine, Registers, Space, Unwinder, Window};

use crate::hostile::{STACK, cases, walk};
use crate::synthetic::{BASE, BIAS};

/// Builds a program of `programs/` with the options and variables, and returns its path.
fn built(directory: &TempDir, name: &str, options: &[&str], variables: &[(&str, &str)]) -> String {
    let source = format!("{}/tests/walks/programs/{name}", env!("CARGO_MANIFEST_DIR"));
    let path = directory.path().join(name).to_str().unwrap().to_owned();
    let mut command = Command::new("go");
    command.arg("build").args(options).args(["-o", &path, &source]);
    // Tests may run without a home.
    command.env("GOCACHE", directory.path().join("cache")).env("GO111MODULE", "off");
    let status = command.envs(variables.iter().copied()).status().unwrap();
    assert!(status.success(), "go build: is golang-go installed?");
    path
}

/// All instructions of what the comment in `calls.go` names, in the runtime, too.
#[test]
#[cfg(target_arch = "x86_64")]
fn calls_of_go() {
    let directory = TempDir::new().unwrap();
    for (options, steps) in
        [(&[][..], 400_000), (&["-ldflags", "-s -w"], 100_000), (&["-buildmode=pie"], 200_000)]
    {
        let program = built(&directory, "calls.go", options, &[("CGO_ENABLED", "0")]);
        let whole = crate::programs::stepped(&[&program], 2000, steps);
        assert!(whole > 0.98, "{options:?}: {whole}");
    }
}

/// A file mapped as a whole.
struct Mapped {
    image: Image,
    len: u64,
}

impl Space for Mapped {
    fn code_at(&self, address: u64) -> Code {
        let offset = address.wrapping_sub(BIAS + BASE);
        let code = Code::File { image: self.image, offset, frame_pointers: true };
        if offset < self.len { code } else { Code::None }
    }
}

/// Words of A64 code from a procedure's begin on.
fn words(bytes: &[u8], offset: u64) -> impl Iterator<Item = (u64, u32)> {
    let code = &bytes[offset as usize..offset as usize + 400];
    (offset..).step_by(4).zip(code.chunks(4).map(|word| {
        let word: [u8; 4] = word.try_into().unwrap();
        u32::from_le_bytes(word)
    }))
}

/// A link register holds the return address of procedures without a frame; others have put it at
/// the stack pointer.
#[test]
fn stacks_of_arm64_are_walked_by_the_table() {
    let directory = TempDir::new().unwrap();
    for options in [&["-ldflags", "-w"][..], &["-buildmode=pie"]] {
        let variables = [("GOARCH", "arm64"), ("CGO_ENABLED", "0")];
        let path = built(&directory, "calls.go", options, &variables);
        let names = Command::new("go").args(["tool", "nm", &path]).output().unwrap();
        let names = String::from_utf8(names.stdout).unwrap();
        // Go's linker maps the file's first bytes at 0x10000.
        let place = |name: &str| {
            let line = names.lines().find(|line| line.ends_with(&format!(" {name}"))).unwrap();
            let address = line.split_ascii_whitespace().next().unwrap();
            u64::from_str_radix(address, 16).unwrap() - 0x10000
        };
        let bytes = std::fs::read(&path).unwrap();
        let leaf = place("main.leaf");
        // The places after a call of `callee`, and after the instruction that makes the frame,
        // `str x30, [sp, #-n]!`, with n.
        let after_call = |caller: &str, callee: u64| {
            let mut code = words(&bytes, place(caller));
            let is_call = |at: u64, word: u32| {
                let distance = i64::from((word << 6).cast_signed() >> 6) * 4;
                word >> 26 == 0b10_0101 && at.wrapping_add_signed(distance) == callee
            };
            code.find(|&(at, word)| is_call(at, word)).unwrap().0 + 4
        };
        let frame = |name: &str| {
            let mut code = words(&bytes, place(name));
            let (at, word) = code.find(|(_, word)| word & 0xffe0_0fff == 0xf800_0ffe).unwrap();
            (at + 4, u64::from((word >> 12 & 0x1ff).wrapping_neg() & 0x1ff))
        };
        let address = |place: u64| BIAS + BASE + place;
        let in_inner = address(after_call("main.inner", leaf));
        let in_worker = address(after_call("main.worker", place("main.inner")));
        let in_goexit = address(place("runtime.goexit.abi0") + 4);
        let (inner_begun, inner_frame) = frame("main.inner");
        let (_, worker_frame) = frame("main.worker");
        // `inner`'s frame, then `worker`'s.
        let mut stack = vec![0u8; (inner_frame + worker_frame) as usize + 16];
        stack[..8].copy_from_slice(&in_worker.to_le_bytes());
        let above = inner_frame as usize;
        stack[above..above + 8].copy_from_slice(&in_goexit.to_le_bytes());
        let walked = |pc: u64, link: u64, top: u64| {
            let mut unwinder = Unwinder::new();
            let len = bytes.len() as u64;
            let space = Mapped { image: unwinder.add(Box::new(bytes.clone())), len };
            let mut values = [7; 32];
            (values[30], values[31]) = (link, STACK + top);
            let registers = Registers::aarch64(pc, &values);
            let windows = [Window { address: STACK, bytes: &stack }];
            let mut frames = Vec::new();
            let end = unwinder.walk(&registers, &windows, &space, &mut frames);
            let found: Vec<u64> = frames.iter().map(|frame| frame.address).collect();
            (end, found)
        };
        let pc = address(leaf + 4);
        let expected = vec![pc, in_inner, in_worker, in_goexit];
        assert_eq!(walked(pc, in_inner, 0), (End::Whole, expected));
        // Before and after the frame is made.
        let (pc, expected) = (address(place("main.inner")), [in_worker, in_goexit]);
        let expected = [&[pc][..], &expected].concat();
        assert_eq!(walked(pc, in_worker, inner_frame), (End::Whole, expected));
        let pc = address(inner_begun);
        assert_eq!(walked(pc, 1, 0), (End::Whole, vec![pc, in_worker, in_goexit]));
    }
}

/// Headers, rows and sections that say something else, and files that end early.
#[test]
fn tables_cut_and_changed() {
    let directory = TempDir::new().unwrap();
    for options in [&["-ldflags", "-s -w"][..], &["-buildmode=pie", "-ldflags", "-s -w"]] {
        let path = built(&directory, "calls.go", options, &[("CGO_ENABLED", "0")]);
        let good = std::fs::read(&path).unwrap();
        let magic = [0xff, 0xff, 0xff, 0, 0, 1, 8];
        let table = good.windows(7).position(|bytes| bytes == magic).unwrap() - 1;
        let rows = u64::from_le_bytes(good[table + 64..table + 72].try_into().unwrap());
        let rows = table + rows as usize;
        let sections = u64::from_le_bytes(good[40..48].try_into().unwrap()) as usize;
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..cases() / 4 {
            let mut bytes = good.clone();
            for _ in 0..random.usize(1..100) {
                let place = match random.u8(..4) {
                    0 => table + random.usize(..72),
                    1 => rows + random.usize(..40_000),
                    2 => sections + random.usize(..25 * 64),
                    _ => table + random.usize(..bytes.len() - table),
                };
                if let Some(byte) = bytes.get_mut(place) {
                    *byte = random.u8(..);
                }
            }
            if random.u8(..4) == 0 {
                bytes.truncate(random.usize(..bytes.len()));
            }
            let code = |random: &mut fastrand::Rng| BIAS + BASE + random.u64(0x1000..0x80000);
            let mut registers = Registers::new(Machine::X86_64, code(&mut random));
            registers.set(6, Some(STACK + 64));
            registers.set(7, Some(STACK));
            let stack: Vec<u8> = (0..0x200).flat_map(|_| code(&mut random).to_le_bytes()).collect();
            walk(bytes, &registers, &stack);
        }
    }
}

/// The registers in the goroutine's frame to which the outermost frame returns, as the sampler
/// finds them (`ebpf/src/goroutine.h`).
#[cfg(target_arch = "x86_64")]
fn in_goroutine(
    space: &crate::process::Mapped,
    thread: u64,
    top: u64,
    goroutine: unwind::Goroutine,
) -> Registers {
    use unwind::Way;

    let word = |at: u64| u64::from_le_bytes(space.memory(at, 8).try_into().unwrap());
    let below = |at: u64, distance: u16| word(at + u64::from(distance));
    let (g, sp) = match goroutine.way {
        Way::Thread { g_at, m_at, current_at, stack_pointer_at } => {
            let own = word(thread.wrapping_add_signed(g_at.into()));
            let m = below(own, m_at);
            assert_eq!(word(m), own, "the thread is on its own stack");
            let current = below(m, current_at);
            (current, below(current, stack_pointer_at))
        }
        Way::Frame { goroutine_at, depth_at, end_at } => {
            let g = below(top, goroutine_at);
            (g, below(g, end_at) - below(top, depth_at))
        }
    };
    assert!((word(g)..word(g + 8)).contains(&sp), "it is within the goroutine's stack");
    let at = sp + u64::from(goroutine.frame_bytes);
    let mut registers = Registers::new(Machine::X86_64, word(at));
    registers.set(7, Some(at + 8));
    registers
}

/// A program with cgo whose table has no section of its own: C, called by Go, calls Go back, and
/// all stacks are whole, the goroutine's and C's. From C, and from work of the runtime on the
/// thread's stack, the way that was learnt leads to the goroutine.
#[test]
#[cfg(target_arch = "x86_64")]
fn stacks_of_go_and_c_are_whole() {
    use crate::process::{Mapped, known, registers};
    use crate::shadow::learnt_goroutine;
    use nix::sys::ptrace::{self, Options};
    use nix::sys::wait::{WaitPidFlag, waitpid};
    use nix::unistd::Pid;

    const STOPS: usize = 400;
    let directory = TempDir::new().unwrap();
    let options = ["-buildmode=pie", "-ldflags", "-s -w"];
    let path = built(&directory, "callbacks.go", &options, &[("CGO_ENABLED", "1")]);
    let mut command = Command::new(&path);
    // Signals by which Go takes a thread away from a goroutine would stop the thread, too.
    command.env("GOMAXPROCS", "1").env("GODEBUG", "asyncpreemptoff=1");
    let mut child = command.spawn().unwrap();
    let thread = Pid::from_raw(child.id().cast_signed());
    ptrace::seize(thread, Options::PTRACE_O_EXITKILL).unwrap();
    let mut unwinder = Unwinder::new();
    let mut space = Mapped::new(thread);
    let mut frames = Vec::new();
    let (mut whole, mut deepest, mut in_c, mut in_runtime) = (0, 0, 0, 0);
    for _ in 0..STOPS {
        std::thread::sleep(std::time::Duration::from_millis(1));
        ptrace::interrupt(thread).unwrap();
        waitpid(thread, Some(WaitPidFlag::__WALL)).unwrap();
        space.refresh(&mut unwinder);
        let user = registers(thread).unwrap();
        let bytes = space.memory(user.rsp - 128, 256 << 10);
        let windows = [Window { address: user.rsp - 128, bytes: &bytes }];
        let mut end = unwinder.walk(&known(&user), &windows, &space, &mut frames);
        if let Some(goroutine) = learnt_goroutine(&unwinder, &frames) {
            assert_eq!(end, End::Window);
            let top = frames.last().unwrap().stack_pointer.unwrap();
            let registers = in_goroutine(&space, user.fs_base, top, goroutine);
            let at = registers.stack_pointer().unwrap();
            let bytes = space.memory(at, 16 << 10);
            let windows = [Window { address: at, bytes: &bytes }];
            let mut callers = Vec::new();
            end = unwinder.resume(&registers, &windows, &space, &mut callers);
            assert!(!callers.is_empty());
            frames.extend(callers);
            match goroutine.way {
                unwind::Way::Frame { .. } => in_c += 1,
                unwind::Way::Thread { .. } => in_runtime += 1,
            }
        }
        whole += usize::from(end == End::Whole);
        deepest = deepest.max(frames.len());
        ptrace::cont(thread, None).unwrap();
    }
    child.kill().unwrap();
    let _ = child.wait();
    assert!(whole * 100 >= STOPS * 97, "{whole} of {STOPS}");
    // qsort's recursion.
    assert!(deepest > 6, "{deepest}");
    assert!(in_c > 40 && in_runtime > 0, "{in_c} and {in_runtime} of {STOPS}");
}
