//! From walked call stacks to frames of images and offsets: the look-ups of samples, for each
//! frame.

use crate::resolve::Resolver;
use abi::COMM_BYTES;
use address_spaces::jit::{Asked, JitPlace, Late};
use address_spaces::mapped_files::Image;
use address_spaces::mappings::{AddressMap, Mapping};
use address_spaces::scopes::Tags;
use image::ImageOffset;
use inspect::open_mapped::MappedAt;
use inspect::questions::{RuntimeFunction, RuntimeRun};
use model::{Cut, Frame, INTERPRETED, Observation, Thread, Unresolved, Wait};
use pending::{Pending, StackEvent};
use profiledb::Scope;
use sampling::call_stacks::{WalkedStack, process_of};
use sampling::waits::{self, CountedWait};
use std::sync::Arc;

/// Why a stack is not counted: one of its images is left out.
struct LeftOut;

/// Begin of the name of the kernel's procedure in which a CPU goes from one thread to another.
const SWITCH: &str = "__schedule";

/// Frames, thread and scope of a stack.
type Framed = (Vec<Frame>, Thread, Option<Arc<Scope>>);

/// The functions that a native frame ran, those of the stack, the one whose own time it is, and
/// whether the frame is the stack's last one.
type Run<'a> = (&'a RuntimeRun, &'a [RuntimeFunction], (Option<(u32, u32)>, bool));

/// The process whose frames are resolved.
struct Process<'a> {
    pid: u32,
    generation: u16,
    map: Option<&'a AddressMap>,
    tags: Tags,
}

impl Resolver<'_> {
    /// Counts each stack in `pending`. Returns the number of stacks that are left out, because
    /// their process is or one of their images is.
    pub fn resolve_stacks(&mut self, stacks: Vec<WalkedStack>, pending: &mut Pending) -> u64 {
        let mut excluded = 0;
        for stack in stacks {
            match self.resolve_stack(&stack, pending) {
                Ok(true) => {}
                Ok(false) => self.spaces.late.stacks.push((stack, self.window)),
                Err(LeftOut) => excluded += 1,
            }
        }
        excluded
    }

    /// Counts a stack; false: the code of one of its frames may have a name later.
    fn resolve_stack(
        &mut self,
        stack: &WalkedStack,
        pending: &mut Pending,
    ) -> Result<bool, LeftOut> {
        self.spaces.late.has_late_frame = false;
        let (frames, thread, scope) = self.frames(stack, &stack.kernel, pending)?;
        if self.spaces.late.has_late_frame && self.spaces.late.takes_stacks() {
            return Ok(false);
        }
        let payer = self.spaces.mappings.payer(thread.pid);
        pending.count_stack(0, scope, (&frames, &thread), stack.record.weight, payer);
        Ok(true)
    }

    /// Counts a wait in `pending`, unless its process or one of its images is left out.
    pub fn resolve_wait(&mut self, wait: &CountedWait<'_>, pending: &mut Pending) {
        let mut symbols: Vec<String> = Vec::new();
        for address in &wait.stack.kernel {
            let symbol = self.spaces.kernel.place(*address).map(|place| place.symbol.to_owned());
            symbols.push(symbol.unwrap_or_default());
        }
        // What is within the switch is the sampler.
        let switch = symbols.iter().position(|symbol| symbol.starts_with(SWITCH)).unwrap_or(0);
        let kernel = wait.stack.kernel.get(switch..).unwrap_or_default();
        let framed = self.frames(wait.stack, kernel, pending);
        let Ok((mut frames, thread, scope)) = framed else { return };
        let payer = self.spaces.mappings.payer(thread.pid);
        let is_blocked = wait.blocked_ns + wait.before_ns > 0;
        // Of a thread that was seen awake it is not known whether it was pushed off its CPU.
        let without_cpu = match is_blocked || wait.is_seen {
            true => Wait::Runnable,
            false => Wait::Preempted,
        };
        let for_what = waits::reasons::reason(symbols.iter().map(String::as_str));
        let has_stack = !wait.stack.kernel.is_empty() || !wait.stack.user.is_empty();
        for (event, why, ns, before_ns, has_owed) in [
            (StackEvent::OffCpu, for_what, wait.blocked_ns, wait.before_ns, is_blocked),
            (StackEvent::Runnable, without_cpu, wait.runnable_ns, 0, !is_blocked),
        ] {
            if ns > 0 {
                let known = frames.len();
                // Without a stack the reason of a wait is not known.
                if has_stack || event == StackEvent::Runnable {
                    frames.push(Frame::Wait(why));
                }
                let owed_ns = if has_owed { wait.owed_ns } else { 0 };
                let due_ns = if event == StackEvent::OffCpu { wait.due_ns } else { 0 };
                let value = wait.value(ns, before_ns, owed_ns, due_ns);
                pending.add_stack(event, scope.clone(), (&frames, &thread), value, payer);
                frames.truncate(known);
            }
        }
    }

    /// The frames of a stack from the thread's first to the innermost, its thread and its scope.
    fn frames(
        &mut self,
        stack: &WalkedStack,
        kernel: &[u64],
        pending: &mut Pending,
    ) -> Result<Framed, LeftOut> {
        let (pid, generation) = process_of(&stack.record);
        let time_ns = stack.record.time_ns;
        let space = match &stack.space {
            // What was not walked was not looked up either.
            None if stack.cut == Some(Cut::Unexpected) => {
                self.spaces.mappings.space_known((pid, generation), self.window, time_ns)
            }
            space => space.clone(),
        };
        let (map, tags) = match &space {
            Some((map, tags)) => (Some(map.as_ref()), tags.clone()),
            None => (None, self.spaces.mappings.tags_of_process(pid, time_ns)),
        };
        if tags.excluded() {
            return Err(LeftOut);
        }
        let process = Process { pid, generation, map, tags };
        let mut frames = Vec::with_capacity(1 + stack.user.len() + stack.kernel.len());
        frames.extend(stack.cut.map(Frame::Cut));
        let mut runs = stack.runs.iter().rev().peekable();
        for (depth, address) in stack.user.iter().enumerate().rev() {
            match runs.next_if(|run| run.depth as usize == depth) {
                Some(run) => {
                    // What the loop calls for an operation runs the loop's function.
                    let of_loop = stack.runs.get(1).filter(|it| it.depth == 1);
                    let is_operation = depth == 0 && run.frames.is_empty();
                    let innermost = of_loop.filter(|_| is_operation).unwrap_or(run).frames.first();
                    let innermost = innermost.copied().flatten();
                    let is_last = depth == 0 && kernel.is_empty();
                    let run = (run, stack.functions.as_slice(), (innermost, is_last));
                    self.runtime_frames(&process, run, *address, pending, &mut frames)?;
                }
                None => frames.extend(self.user_frame(&process, *address, pending)?),
            }
        }
        for (depth, address) in kernel.iter().enumerate().rev() {
            // Return addresses, except for the first.
            let lookup = address.wrapping_sub(u64::from(depth > 0));
            frames.extend(self.kernel_frame(lookup, pending)?);
        }
        let thread = Thread {
            command: text_of(&stack.record.command),
            pid,
            name: text_of(&stack.record.name),
            tid: stack.record.tid,
            attributes: stack.attributes.clone(),
        };
        Ok((frames, thread, process.tags.scope().cloned()))
    }

    /// Adds the functions that stand in the place of the native frame at `address`. The native
    /// frame stays, too, where some of its functions were not copied or cannot be read, and where
    /// it is the stack's last one: samples of the functions' own time are in its procedure.
    /// `innermost` is the function that has that time.
    fn runtime_frames(
        &mut self,
        process: &Process<'_>,
        (run, functions, (innermost, is_last)): Run<'_>,
        address: u64,
        pending: &mut Pending,
        frames: &mut Vec<Frame>,
    ) -> Result<(), LeftOut> {
        let user = self.spaces.mappings.payer(process.pid);
        let mut was_native = false;
        let unread = run.is_part.then_some(&None);
        for frame in unread.into_iter().chain(run.frames.iter().rev()) {
            let function = frame.and_then(|(number, line)| {
                functions.get(number as usize).map(|function| (function, line))
            });
            match function {
                Some((function, line)) => {
                    let place = self.spaces.scripts.place(function, line, user);
                    if self.has_room_for(&place.image, process.pid, pending)? {
                        pending.name(&place.image.id, place.range, &place.name);
                        frames.push(Frame::Code(place.image.id, place.offset));
                    }
                    was_native = false;
                }
                None if was_native => {}
                None => {
                    frames.extend(self.user_frame(process, address, pending)?);
                    was_native = true;
                }
            }
        }
        if (is_last || run.frames.is_empty()) && !was_native {
            let innermost = innermost.and_then(|(number, _)| functions.get(number as usize));
            let place = self.user_place(process, address, pending)?;
            if let Some((function, (image, offset))) = innermost.zip(place.as_ref()) {
                let interpreted = Observation::Value(*offset, function.language.number());
                pending.observe(image, &INTERPRETED, interpreted);
            }
            frames.extend(place.map(|(image, offset)| Frame::Code(image.id, offset)));
        }
        Ok(())
    }

    /// Whether the epoch has room for an image of a frame.
    fn has_room_for(
        &mut self,
        image: &Arc<Image>,
        pid: u32,
        pending: &mut Pending,
    ) -> Result<bool, LeftOut> {
        if self.spaces.mappings.tagger.rules().exclude_images.contain(image) {
            return Err(LeftOut);
        }
        Ok(self.has_room(image, pid, pending) && pending.admit(image))
    }

    fn kernel_frame(
        &mut self,
        address: u64,
        pending: &mut Pending,
    ) -> Result<Option<Frame>, LeftOut> {
        let Ok(place) = self.spaces.kernel.place(address) else { return Ok(None) };
        if self.spaces.mappings.tagger.rules().exclude_images.contain(&place.image) {
            return Err(LeftOut);
        }
        if !pending.admit(&place.image) {
            return Ok(None);
        }
        pending.name(&place.image.id, place.symbol_range, place.symbol);
        Ok(Some(Frame::Code(place.image.id, place.offset)))
    }

    /// The frame of an address; None where the epoch has no room for its image.
    fn user_frame(
        &mut self,
        process: &Process<'_>,
        address: u64,
        pending: &mut Pending,
    ) -> Result<Option<Frame>, LeftOut> {
        let place = self.user_place(process, address, pending)?;
        Ok(place.map(|(image, offset)| Frame::Code(image.id, offset)))
    }

    /// The place of an address, likewise.
    fn user_place(
        &mut self,
        process: &Process<'_>,
        address: u64,
        pending: &mut Pending,
    ) -> Result<Option<(Arc<Image>, ImageOffset)>, LeftOut> {
        let mapping = process.map.and_then(|map| map.find(address));
        let found = match mapping {
            Some(mapping) => self.placed(process, mapping, address, pending),
            None => Err(Unresolved::NoMapping),
        };
        let (image, offset) = match found {
            Ok(found) => found,
            Err(reason) => {
                let program = process.map.and_then(|map| map.iter().find(|it| it.file.is_file()));
                let name = program.map_or("?".to_owned(), |mapping| mapping.file.shown().0);
                let Some(image) = self.spaces.unknown.of(&name, reason) else { return Ok(None) };
                (image, ImageOffset(0))
            }
        };
        let has_room = self.has_room_for(&image, process.pid, pending)?;
        Ok(has_room.then_some((image, offset)))
    }

    fn placed(
        &mut self,
        process: &Process<'_>,
        mapping: &Mapping,
        address: u64,
        pending: &mut Pending,
    ) -> Result<(Arc<Image>, ImageOffset), Unresolved> {
        let at = MappedAt { pid: process.pid, start: mapping.start, end: mapping.end };
        let asked = Asked {
            pid: process.pid,
            generation: process.generation,
            address,
            now_ns: self.window.to_ns,
        };
        if self.spaces.jit.has_regions(process.pid)
            && let Some(place) = self.spaces.jit.registered(asked)
        {
            pending.name(&place.image.id, place.range.clone(), &place.name);
            return Ok((place.image, place.offset));
        }
        match self.image_of(mapping, at) {
            Ok(image) => {
                let offset = (address - mapping.start).wrapping_add(mapping.file_offset);
                let offset = ImageOffset(offset);
                if let Some(procedure) =
                    image.procedures.as_ref().and_then(|procedures| procedures.find(offset))
                {
                    let range = procedure.start.0..procedure.end.0;
                    pending.name(&image.id, range, procedure.name());
                }
                Ok((image, offset))
            }
            Err(reason) => {
                let place = self.generated(asked, reason, mapping)?;
                self.spaces.jit.want_bytes(process.pid, &place);
                pending.name(&place.image.id, place.range.clone(), &place.name);
                Ok((place.image, place.offset))
            }
        }
    }
}

impl Resolver<'_> {
    /// The generated code of a frame.
    fn generated(
        &mut self,
        asked: Asked,
        reason: Unresolved,
        mapping: &Mapping,
    ) -> Result<JitPlace, Unresolved> {
        if self.spaces.jit.is_awaited(asked) {
            let now_ns = self.spaces.late.now_ns.max(self.window.to_ns);
            let mappings = &self.spaces.mappings;
            return match self.spaces.jit.late(asked, (now_ns, reason), mapping, mappings) {
                Late::Named(place) => Ok(place),
                Late::NotYet(why) => {
                    self.spaces.late.has_late_frame = true;
                    Err(why)
                }
                Late::Never(why) => Err(why),
            };
        }
        let found = self.spaces.jit.place(asked, reason, mapping, &self.spaces.mappings);
        found.inspect_err(|why| {
            let is_late = self.spaces.jit.awaits(asked, self.window.from_ns, *why);
            self.spaces.late.has_late_frame |= is_late;
        })
    }
}

/// A thread's name. Bytes that are no text become `?`, so that no report has to escape them.
fn text_of(name: &[u8; COMM_BYTES]) -> String {
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    let printable = |character: char| match character.is_control() || character == '\u{fffd}' {
        true => '?',
        false => character,
    };
    String::from_utf8_lossy(name).chars().map(printable).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_threads_are_text() {
        let name = |bytes: &[u8]| {
            let mut name = [0; COMM_BYTES];
            name[..bytes.len()].copy_from_slice(bytes);
            text_of(&name)
        };
        assert_eq!(name(b"opt cgu.0"), "opt cgu.0");
        assert_eq!(name(b"a\nb\x1b[2J\xff"), "a?b?[2J?");
        assert_eq!(name(&[b'x'; COMM_BYTES]), "xxxxxxxxxxxxxxxx");
        assert_eq!(name(b""), "");
    }
}
