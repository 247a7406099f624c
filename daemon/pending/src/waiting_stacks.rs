//! Call stacks that wait for the next merge.

use address_spaces::users::Payer;
use image::ImageId;
use model::{Attributes, Cut, Frame, OFF_CPU, RUNNABLE, Stacks, Thread, Value};
use profiledb::{Scope, StacksKey};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// Most nodes, threads and values of waiting call stacks, about 60 bytes each; an hour of compiling
/// has 200,000. A user can have as many as are still free, so that a user with ever new stacks gets
/// half, and others have room. Further stacks are counted without frames and thread.
const STACKS_SIZE_MAX: usize = 500_000;

/// Most sets of attributes of threads that a user's stacks of one merge are kept apart by; values
/// such as numbers of customers have no end. Stacks with further sets have [`Attributes::MORE`].
const SETS_MAX: usize = 1024;
/// Most sets among these that hold the identity of a request (`trace_id`, `span_id`). Beyond that,
/// stacks lose the identity and keep their other attributes. A set with an identity takes about 40
/// bytes of a merge; without this limit one user would add 20 MB a day.
const REQUESTS_MAX: usize = 128;

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
    /// Attributes of users' threads, and the number of them with an identity of a request.
    sets: HashMap<Payer, (HashSet<Attributes>, usize)>,
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
        let bounded = self.bounded(thread, payer);
        let thread = bounded.as_ref().unwrap_or(thread);
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

    /// The thread with fewer attributes, where those of its user are too many.
    fn bounded(&mut self, thread: &Thread, payer: Payer) -> Option<Thread> {
        if thread.attributes.is_empty() {
            return None;
        }
        let (sets, requests) = self.sets.entry(payer).or_default();
        if sets.contains(&thread.attributes) {
            return None;
        }
        let mut attributes = thread.attributes.clone();
        let has_request = attributes.has_request();
        let loses_request = has_request && *requests >= REQUESTS_MAX;
        if loses_request {
            attributes = attributes.without_request();
        }
        if sets.len() >= SETS_MAX && !sets.contains(&attributes) {
            attributes = Attributes::more();
        } else if sets.insert(attributes.clone()) && has_request && !loses_request {
            *requests += 1;
        }
        (attributes != thread.attributes).then(|| Thread { attributes, ..thread.clone() })
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

    /// A service of requests without end, each with an identity and a customer of its own.
    #[test]
    fn attributes_without_end_are_bounded_for_each_user() {
        let mut waiting = WaitingStacks::default();
        let frame = [Frame::Code(ImageId::from_build_id(&[1]).unwrap(), ImageOffset(16))];
        let mut add = |pairs: &[(&str, String)], payer| {
            let pairs = pairs.iter().map(|(key, value)| ((*key).to_owned(), value.clone()));
            let thread = Thread { attributes: Attributes::of(pairs), ..Thread::default() };
            let stack = (&frame[..], &thread);
            waiting.add(StackEvent::Sampled(0), None, stack, Value::of_one(1024), payer);
        };
        for number in 0..3000 {
            let [trace, span] = [format!("{number:032x}"), format!("{number:016x}")];
            let route = "/a".to_owned();
            add(&[("route", route), ("trace_id", trace), ("span_id", span)], Payer::User(1));
        }
        (0..3000).for_each(|number| add(&[("customer", number.to_string())], Payer::User(2)));
        let delta = waiting.delta(|_| "cycles".to_owned());
        let stacks = delta.values().next().unwrap();
        let of = |is: &dyn Fn(&Attributes) -> bool| {
            let values = stacks.values().filter(|(_, thread, _)| is(&thread.attributes));
            values.fold((0, 0), |(sets, sum), (.., value)| (sets + 1, sum + value.stacks))
        };
        assert_eq!(of(&Attributes::has_request), (REQUESTS_MAX, REQUESTS_MAX as u64));
        let is_route = |of: &Attributes| of.get("route").is_some() && !of.has_request();
        assert_eq!(of(&is_route), (1, 3000 - REQUESTS_MAX as u64));
        assert_eq!(of(&|of| of.get("customer").is_some()), (SETS_MAX, SETS_MAX as u64));
        assert_eq!(of(&|of| *of == Attributes::more()), (1, 3000 - SETS_MAX as u64));
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
