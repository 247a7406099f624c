//! The rings in which samplers leave call stacks: one writer, the sampler on that CPU, and one
//! reader, the daemon.
//!
//! The sampler writes a record and then adds its bytes to `written` with an atomic operation. The
//! daemon copies the record, wipes it in the ring, and then adds its bytes to `taken`, which frees
//! the place.

use super::KernelError;
use super::mapped::Mapped;
use abi::{
    ATTRIBUTES_BYTES_MAX, PYTHON_FRAMES_MAX, PythonFrame, RUNTIME_FRAMES_MAX, RuntimeFrame,
    STACK_DATA_BYTES, STACK_KERNEL_BYTES, STACK_RING_BYTES, StackRecord, StackRing, WAIT_LINES,
    WALK_FRAMES_MAX, WaitLine,
};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{Ordering, fence};

/// One CPU's part of the map `STACK_DATA`.
#[repr(C, align(4096))]
#[derive(Clone, Copy)]
pub(super) struct Data([u8; STACK_DATA_BYTES]);

/// A call stack as the sampler left it. Wiped when it is dropped.
pub struct RawStack {
    /// Thread, time, weight, registers.
    pub record: StackRecord,
    /// Frames of CPython, innermost first.
    pub python: Vec<PythonFrame>,
    /// The thread's attributes, as `record.attribute_kind` says.
    pub attributes: Vec<u8>,
    /// Return addresses in the kernel, innermost first; the first is the sampled address.
    pub kernel: Vec<u64>,
    /// Addresses of user code that the sampler has walked: of the next instruction in the
    /// innermost frame, within the call in others.
    pub user: Vec<u64>,
    /// Words of some of these frames, innermost first.
    pub runtime: Vec<RuntimeFrame>,
    /// Bytes of the user stack from `record.begin` on.
    pub stack: Vec<u8>,
}

impl RawStack {
    /// Overwrites the copy of the stack and leaves none.
    pub fn lose_copy(&mut self) {
        std::hint::black_box(&mut self.stack).fill(0);
        self.stack = Vec::new();
        self.record.stack_bytes = 0;
    }

    /// Overwrites registers and stack.
    pub fn wipe(&mut self) {
        // `black_box` keeps the compiler from leaving out writes that nothing reads.
        std::hint::black_box(&mut self.stack).fill(0);
        std::hint::black_box(&mut self.record.registers).fill(0);
    }
}

impl Drop for RawStack {
    fn drop(&mut self) {
        self.wipe();
    }
}

/// Further results of taking stacks out of the rings.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StacksTaken {
    /// Stacks that found no room since the last time.
    pub dropped: u64,
    /// Waits of threads that found no place for their times, or lost it, since the last time.
    pub crowded: u64,
    /// Part of the fullest ring that was filled, 0 to 1.
    pub fill: f64,
}

/// The rings of all possible CPUs.
pub struct StackRings {
    rings: Mapped<StackRing>,
    data: Mapped<Data>,
}

impl StackRings {
    /// Maps the rings of `cpus` possible CPUs.
    pub fn new(
        rings: BorrowedFd<'_>,
        data: BorrowedFd<'_>,
        cpus: usize,
    ) -> Result<Self, KernelError> {
        Ok(Self {
            rings: Mapped::new(rings, cpus, "rings of call stacks")?,
            data: Mapped::new(data, cpus, "call stacks")?,
        })
    }

    /// Moves the records of `cpu` to `into` and wipes them in the ring. Returns how many records
    /// the CPU ever had to drop, and how many waits it had no place for, both of which wrap, and
    /// the part of the ring that was filled.
    pub fn take(&self, cpu: usize, into: &mut Vec<RawStack>) -> ([u32; 2], f64) {
        let (Some(ring), Some(data)) = (self.rings.pointer(cpu), self.data.pointer(cpu)) else {
            return ([0; 2], 0.0);
        };
        // SAFETY: inside the mapping; aligned words, of which the sampler writes all but `taken`,
        // and the daemon that one.
        let (written, counts, taken) = unsafe {
            let written = (&raw const (*ring).written).read_volatile();
            let dropped = (&raw const (*ring).dropped).read_volatile();
            let crowded = (&raw const (*ring).crowded).read_volatile();
            (written, [dropped, crowded], (&raw const (*ring).taken).read_volatile())
        };
        fence(Ordering::Acquire);
        let fill = f64::from(written.wrapping_sub(taken)) / STACK_RING_BYTES as f64;
        let mut at = taken;
        while at != written {
            let left = written.wrapping_sub(at) as usize;
            let Some(length) = copy(data.cast(), at as usize % STACK_RING_BYTES, left, into) else {
                tracing::error!(cpu, "a ring of call stacks is damaged; its stacks are dropped");
                break;
            };
            at = at.wrapping_add(length as u32);
        }
        fence(Ordering::Release);
        // SAFETY: as above.
        unsafe { (&raw mut (*ring).taken).write_volatile(written) };
        (counts, fill)
    }
}

/// The times of threads.
pub struct WaitTimes(Mapped<WaitLine>);

impl WaitTimes {
    /// Maps the lines.
    pub fn new(lines: BorrowedFd<'_>) -> Result<Self, KernelError> {
        Mapped::new(lines, WAIT_LINES, "times of threads").map(Self)
    }

    /// Forgets all times.
    pub fn clear(&self) {
        (0..WAIT_LINES).for_each(|at| self.0.write(at, WaitLine::default()));
    }

    /// Copies the lines that are in use to `into`. A line may be written meanwhile: each of its
    /// words is right.
    pub fn read(&self, into: &mut Vec<WaitLine>) {
        into.extend((0..WAIT_LINES).filter_map(|at| self.0.read(at)).filter(|line| line.tid != 0));
    }
}

/// Copies the record at `at` into `into` and wipes it: its bytes in the ring. None where the record
/// contradicts itself or the `left` bytes that were written.
fn copy(data: *mut u8, at: usize, left: usize, into: &mut Vec<RawStack>) -> Option<usize> {
    let head = size_of::<StackRecord>();
    if left < head || !at.is_multiple_of(8) {
        return None;
    }
    // SAFETY: at < STACK_RING_BYTES, and a head more is inside the CPU's data; aligned to 8, as the
    // record is; every bit pattern is a valid record.
    let record = unsafe { data.add(at).cast::<StackRecord>().read_volatile() };
    let (python_frames, user_frames) = (record.python_frames as usize, record.user_frames as usize);
    let runtime_frames = record.runtime_frames as usize;
    let attribute_bytes = record.attribute_bytes as usize;
    if python_frames > PYTHON_FRAMES_MAX
        || user_frames > WALK_FRAMES_MAX
        || runtime_frames > RUNTIME_FRAMES_MAX
        || attribute_bytes > ATTRIBUTES_BYTES_MAX
        || !attribute_bytes.is_multiple_of(8)
    {
        return None;
    }
    let python_bytes = python_frames * size_of::<PythonFrame>();
    let kernel_bytes = record.kernel_bytes as usize;
    let kernel_room = if kernel_bytes > 0 { STACK_KERNEL_BYTES } else { 0 };
    let stack_bytes = record.stack_bytes as usize;
    let runtime_bytes = runtime_frames * size_of::<RuntimeFrame>();
    let before_kernel = head + python_bytes + attribute_bytes;
    let before = before_kernel + kernel_room + 8 * user_frames + runtime_bytes;
    let length = before.checked_add(stack_bytes)?.checked_next_multiple_of(8)?;
    if kernel_bytes > STACK_KERNEL_BYTES
        || record.bytes as usize != length
        || length > left
        || at + length > STACK_DATA_BYTES
    {
        return None;
    }
    let mut python = vec![PythonFrame::default(); python_frames];
    let mut attributes = vec![0_u8; attribute_bytes];
    let mut kernel = vec![0_u64; kernel_bytes / 8];
    let mut user = vec![0_u64; user_frames];
    let mut runtime = vec![RuntimeFrame::default(); runtime_frames];
    let mut stack = vec![0_u8; stack_bytes];
    // SAFETY: all parts lie inside the record, which lies inside the CPU's data (checked above);
    // the sampler does not write a record that it has finished and that is not taken yet.
    unsafe {
        let python_at = data.add(at + head);
        python_at.cast::<PythonFrame>().copy_to_nonoverlapping(python.as_mut_ptr(), python_frames);
        let attributes_at = python_at.add(python_bytes);
        attributes_at.copy_to_nonoverlapping(attributes.as_mut_ptr(), attribute_bytes);
        let kernel_at = attributes_at.add(attribute_bytes);
        kernel_at.cast::<u64>().copy_to_nonoverlapping(kernel.as_mut_ptr(), kernel.len());
        let user_at = kernel_at.add(kernel_room);
        user_at.cast::<u64>().copy_to_nonoverlapping(user.as_mut_ptr(), user_frames);
        let runtime_at = user_at.add(8 * user_frames).cast::<RuntimeFrame>();
        runtime_at.copy_to_nonoverlapping(runtime.as_mut_ptr(), runtime_frames);
        let stack_at = runtime_at.add(runtime_frames).cast::<u8>();
        stack_at.copy_to_nonoverlapping(stack.as_mut_ptr(), stack_bytes);
        data.add(at).write_bytes(0, length);
    }
    into.push(RawStack { record, python, attributes, kernel, user, runtime, stack });
    Some(length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    fn rings() -> StackRings {
        let file = |bytes: usize| {
            let file = tempfile::tempfile().unwrap();
            file.set_len(bytes as u64).unwrap();
            file
        };
        let (rings, data) = (file(2 * size_of::<StackRing>()), file(2 * STACK_DATA_BYTES));
        StackRings::new(rings.as_fd(), data.as_fd(), 2).unwrap()
    }

    /// Writes a record as the sampler does: its bytes.
    fn put(
        rings: &StackRings,
        (cpu, at): (usize, u32),
        (python, attributes): (&[PythonFrame], &[u8]),
        (kernel, user, runtime): (&[u64], &[u64], &[RuntimeFrame]),
        stack: &[u8],
    ) -> u32 {
        let kernel_room = if kernel.is_empty() { 0 } else { STACK_KERNEL_BYTES };
        let head = size_of::<StackRecord>() + size_of_val(python);
        let before_kernel = head + attributes.len();
        let before_runtime = before_kernel + kernel_room + size_of_val(user);
        let before_stack = before_runtime + size_of_val(runtime);
        let bytes = (before_stack + stack.len()).next_multiple_of(8) as u32;
        let record = StackRecord {
            bytes,
            kernel_bytes: 8 * kernel.len() as u32,
            stack_bytes: stack.len() as u32,
            tid: at,
            python_frames: python.len() as u32,
            attribute_bytes: attributes.len() as u32,
            user_frames: user.len() as u32,
            runtime_frames: runtime.len() as u32,
            registers: [7; 34],
            ..StackRecord::EMPTY
        };
        let data: *mut u8 = rings.data.pointer(cpu).unwrap().cast();
        // SAFETY: the record lies inside the CPU's data, which the test alone uses.
        unsafe {
            let to = data.add(at as usize % STACK_RING_BYTES);
            to.cast::<StackRecord>().write(record);
            let after = to.add(size_of::<StackRecord>()).cast();
            python.as_ptr().copy_to_nonoverlapping(after, python.len());
            attributes.as_ptr().copy_to_nonoverlapping(to.add(head), attributes.len());
            kernel.as_ptr().copy_to_nonoverlapping(to.add(before_kernel).cast(), kernel.len());
            let user_to = to.add(before_kernel + kernel_room).cast();
            user.as_ptr().copy_to_nonoverlapping(user_to, user.len());
            let runtime_to = to.add(before_runtime).cast();
            runtime.as_ptr().copy_to_nonoverlapping(runtime_to, runtime.len());
            stack.as_ptr().copy_to_nonoverlapping(to.add(before_stack), stack.len());
        }
        bytes
    }

    #[test]
    fn each_stack_is_given_once_and_wiped() {
        let rings = rings();
        // Around the end of the ring, and of the numbers.
        let begin = u32::MAX - 4095;
        let ring = |written, taken| StackRing {
            written,
            taken,
            dropped: 3,
            crowded: 4,
            ..StackRing::default()
        };
        let mut at = begin;
        let frames = [PythonFrame { code: 4, instruction: 5, flags: 6 }; 2];
        let noted = [RuntimeFrame { number: 1, reserved: 0, words: [7, 8, 9, 10] }; 3];
        let parts = (&[1, 2, 3][..], &[4, 5][..], &noted[..]);
        at = at.wrapping_add(put(&rings, (1, at), (&frames, &[11; 24]), parts, &[9; 5000]));
        at = at.wrapping_add(put(&rings, (1, at), (&[], &[]), (&[], &[], &[]), &[8; 13]));
        rings.rings.write(1, ring(at, begin));
        let mut into = Vec::new();
        assert_eq!(rings.take(1, &mut into).0, [3, 4]);
        let [first, second] = &into[..] else { panic!("{} stacks", into.len()) };
        assert_eq!(
            (first.kernel.as_slice(), first.stack.as_slice()),
            (&[1, 2, 3][..], &[9; 5000][..])
        );
        assert_eq!((first.python.as_slice(), second.python.len()), (&frames[..], 0));
        assert_eq!((first.attributes.as_slice(), second.attributes.len()), (&[11; 24][..], 0));
        assert_eq!((first.user.as_slice(), second.user.len()), (&[4, 5][..], 0));
        assert_eq!((first.runtime.as_slice(), second.runtime.len()), (&noted[..], 0));
        assert_eq!((second.kernel.len(), second.stack.as_slice()), (0, &[8; 13][..]));
        assert_eq!(first.record.registers, [7; 34]);
        let data: *const u8 = rings.data.pointer(1).unwrap().cast();
        // SAFETY: inside the CPU's data.
        let byte = |at| unsafe { data.add(at).read_volatile() };
        let is_wiped = (0..STACK_DATA_BYTES).all(|at| byte(at) == 0);
        assert!(is_wiped, "nothing stays behind");
        into.clear();
        rings.take(1, &mut into);
        assert!(into.is_empty());
        assert_eq!(rings.take(2, &mut into), ([0; 2], 0.0), "no such CPU");
    }

    #[test]
    fn a_damaged_ring_gives_nothing_and_goes_on() {
        let rings = rings();
        let mut into = Vec::new();
        let ring = |written, taken| StackRing { written, taken, ..StackRing::default() };
        for (claimed, field) in [
            (16, 0),
            (u32::MAX, 0),
            (2000, 1),
            (0, 2),
            (u32::MAX, 3),
            (1, 3),
            (2, 4),
            (u32::MAX, 4),
            (3, 5),
            (u32::MAX, 5),
            (8, 6),
            (4, 6),
            (u32::MAX, 6),
        ] {
            let bytes = put(&rings, (0, 0), (&[], &[]), (&[], &[], &[]), &[1; 100]);
            let data: *mut StackRecord = rings.data.pointer(0).unwrap().cast();
            let (stack_bytes, kernel_bytes) = (claimed, claimed);
            // SAFETY: the record that was just written.
            unsafe {
                match field {
                    0 => (*data).bytes = claimed,
                    1 => (*data).kernel_bytes = kernel_bytes,
                    3 => (*data).python_frames = claimed,
                    4 => (*data).user_frames = claimed,
                    5 => (*data).runtime_frames = claimed,
                    6 => (*data).attribute_bytes = claimed,
                    _ => (*data).stack_bytes = stack_bytes,
                }
            }
            rings.rings.write(0, ring(bytes, 0));
            rings.take(0, &mut into);
            assert!(into.is_empty(), "{claimed} in field {field}");
            assert_eq!(rings.rings.read(0).unwrap().taken, bytes, "the ring is free again");
        }
    }
}
