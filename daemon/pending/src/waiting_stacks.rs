//! Call stacks that wait for the next merge.

use address_spaces::users::Payer;
use image::ImageId;
use model::{Cut, Frame, OFF_CPU, RUNNABLE, Stacks, Thread, Value};
use profiledb::{Scope, StacksKey};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// Most nodes, threads and values of waiting call stacks, about 60 bytes each; an hour of compiling
/// has 200,000. A user can have as many as are still free, so that a user with ever new stacks gets
/// half, and others have room. Further stacks are counted without frames and thread.
const STACKS_SIZE_MAX: usize = 500_000;

/// The event that call stacks are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StackEvent {
    /// A sampled event, by number.
    Sampled(usize),
    /// Time in which threads were blocked.
    OffCpu,
    /// Time in which threads were awake without CPU.
    Runnable,
}

/// Call stacks by event and scope.
#[derive(Debug, Default)]
pub struct WaitingStacks {
    stacks: BTreeMap<(StackEvent, Option<Arc<Scope>>), Stacks>,
    /// Sizes of what users have brought ([`Stacks::size`]), and their sum.
    sizes: HashMap<Payer, usize>,
    size: usize,
}

impl WaitingStacks {
    /// Adds a stack that `payer` brings, frames from the thread's first to the innermost.
    pub(super) fn add(
        &mut self,
        event: StackEvent,
        scope: Option<Arc<Scope>>,
        (frames, thread): (&[Frame], &Thread),
        value: Value,
        payer: Payer,
    ) {
        let stacks = self.stacks.entry((event, scope)).or_default();
        let before = stacks.size();
        let of_payer = self.sizes.entry(payer).or_default();
        if *of_payer < STACKS_SIZE_MAX.saturating_sub(self.size) {
            stacks.add_stack(frames.iter().copied(), thread, value);
        } else {
            let unknown = [Frame::Cut(Cut::TooManyStacks)];
            stacks.add_stack(unknown, &Thread::default(), value);
        }
        let more = stacks.size() - before;
        *of_payer += more;
        self.size += more;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.stacks.is_empty()
    }

    /// The images of all frames.
    pub(super) fn images(&self) -> BTreeSet<ImageId> {
        let frames = self.stacks.values().flat_map(Stacks::distinct_frames);
        let image = |frame: &Frame| match frame {
            Frame::Code(image, _) => Some(*image),
            Frame::Cut(_) | Frame::Wait(_) => None,
        };
        frames.filter_map(image).collect()
    }

    /// Adds stacks that could not be written.
    pub(super) fn absorb(&mut self, other: Self) {
        for (key, stacks) in other.stacks {
            match self.stacks.entry(key) {
                Entry::Vacant(vacant) => drop(vacant.insert(stacks)),
                Entry::Occupied(mut mine) => mine.get_mut().merge(&stacks),
            }
        }
        for (payer, size) in other.sizes {
            *self.sizes.entry(payer).or_default() += size;
        }
        self.size += other.size;
    }

    /// The stacks as the database takes them; `name` gives the name of a sampled event.
    pub(super) fn delta(&self, name: impl Fn(usize) -> String) -> BTreeMap<StacksKey, Stacks> {
        let named = |((event, scope), stacks): (&(StackEvent, Option<Arc<Scope>>), &Stacks)| {
            let event = match event {
                StackEvent::Sampled(event) => name(*event),
                StackEvent::OffCpu => OFF_CPU.to_owned(),
                StackEvent::Runnable => RUNNABLE.to_owned(),
            };
            let scope = scope.as_deref().cloned().unwrap_or_default();
            (StacksKey { event, scope }, stacks.clone())
        };
        self.stacks.iter().map(named).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::ImageOffset;

    /// One user's distinct stacks left no room for those of other users.
    #[test]
    fn a_flood_of_stacks_costs_the_user_who_sends_it() {
        let mut waiting = WaitingStacks::default();
        let image = ImageId::from_build_id(&[1]).unwrap();
        let enemy = Thread { command: "enemy".into(), ..Thread::default() };
        let mut add = |offset: u64, thread: &Thread, payer| {
            let frames = (0..100).map(|depth| Frame::Code(image, ImageOffset(offset + depth)));
            let frames: Vec<Frame> = frames.collect();
            let stack = (&frames[..], thread);
            waiting.add(StackEvent::Sampled(0), None, stack, Value::of_one(1024), payer);
        };
        (0..8_000).for_each(|stack| add(1000 * stack, &enemy, Payer::User(1001)));
        let mine = Thread { command: "mine".into(), ..Thread::default() };
        (0..1_000).for_each(|stack| add(7 + 1000 * stack, &mine, Payer::User(1000)));
        assert!(waiting.size < STACKS_SIZE_MAX, "{}", waiting.size);
        let delta = waiting.delta(|_| "cycles".to_owned());
        let mut of_command = BTreeMap::<String, u64>::new();
        for (_, thread, value) in delta.values().flat_map(|stacks| stacks.values()) {
            *of_command.entry(thread.command.clone()).or_default() += value.stacks;
        }
        let expected = [("", 5524), ("enemy", 2476), ("mine", 1000)];
        assert_eq!(of_command, expected.map(|(name, n)| (name.to_owned(), n)).into());
    }

    #[test]
    fn stacks_that_could_not_be_written_are_added_to_later_ones() {
        let frame = Frame::Code(ImageId::from_build_id(&[1]).unwrap(), ImageOffset(16));
        let one = || {
            let mut waiting = WaitingStacks::default();
            let value = Value::of_one(1024);
            let stack = (&[frame][..], &Thread::default());
            waiting.add(StackEvent::OffCpu, None, stack, value, Payer::Nobody);
            waiting
        };
        let mut sum = one();
        sum.absorb(one());
        let delta = sum.delta(|_| String::new());
        let (key, stacks) = delta.iter().next().unwrap();
        assert_eq!((key.event.as_str(), stacks.total().stacks, delta.len()), (OFF_CPU, 2, 1));
    }
}
