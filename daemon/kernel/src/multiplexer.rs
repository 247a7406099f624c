//! Multiplexing of events: the events of a group take turns on each CPU (SOSP 1997, section 4.1:
//! events multiplexed finely).
//!
//! One event of each group is enabled at a time on each CPU, so the kernel never has to multiplex.
//! Turns have random lengths, drawn for each CPU by itself: otherwise work that a program does in
//! step with one clock could fall into the turns of one event only.

use super::counted::Counted;
use events::PlannedEvent;

/// Length of a turn in ticks, all lengths equally likely. Longer turns let a program's phases fall
/// into one event's turns; shorter ones cost more system calls.
const TICKS: std::ops::RangeInclusive<u32> = 1..=3;

/// The groups on one CPU.
#[derive(Clone, Debug, Default)]
pub struct Multiplexer {
    groups: Vec<Group>,
    /// No event counts any more.
    ended: bool,
}

#[derive(Clone, Debug)]
struct Group {
    /// Numbers of the group's events, at least one.
    members: Vec<usize>,
    /// Index of the event whose turn it is.
    now: usize,
    ticks_left: u32,
}

/// A change of turns in a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Event to be disabled, before the other is enabled.
    pub ends: usize,
    /// Event to be enabled.
    pub begins: usize,
}

impl Multiplexer {
    /// The groups of the events that are open on a CPU. Each group begins with a random member.
    pub fn new(events: &[PlannedEvent], is_open: impl Fn(usize) -> bool) -> Self {
        let mut groups = std::collections::BTreeMap::<usize, Vec<usize>>::new();
        for (number, event) in events.iter().enumerate().filter(|(number, _)| is_open(*number)) {
            event.mux.iter().for_each(|group| groups.entry(*group).or_default().push(number));
        }
        let group = |members: Vec<usize>| {
            let now = fastrand::usize(..members.len().max(1));
            Group { members, now, ticks_left: fastrand::u32(TICKS) }
        };
        Self { groups: groups.into_values().map(group).collect(), ended: false }
    }

    /// Whether an event may count now.
    pub fn may_count(&self, event: usize) -> bool {
        let group = self.groups.iter().find(|group| group.members.contains(&event));
        group.is_none_or(|group| group.members.get(group.now) == Some(&event))
    }

    /// Advances by a tick, and returns the turns that change.
    pub fn tick(&mut self) -> Vec<Change> {
        let groups = self.groups.iter_mut().filter(|_| !self.ended);
        groups.filter_map(Group::tick).collect()
    }

    /// Ends the turns for good.
    pub fn end(&mut self) {
        self.ended = true;
    }

    /// Gives each event of a group the time in which any event of the group was enabled, because an
    /// event should count all that time.
    pub fn share_time(&self, counted: &mut [Counted]) {
        for group in &self.groups {
            let enabled =
                |event: &usize| counted.get(*event).map_or(0, |counted| counted.enabled_ns);
            let of_all: u64 = group.members.iter().map(enabled).sum();
            for event in &group.members {
                if let Some(counted) = counted.get_mut(*event) {
                    counted.enabled_ns = of_all;
                }
            }
        }
    }
}

impl Group {
    fn tick(&mut self) -> Option<Change> {
        self.ticks_left = self.ticks_left.saturating_sub(1);
        if self.ticks_left > 0 || self.members.len() < 2 {
            return None;
        }
        self.ticks_left = fastrand::u32(TICKS);
        let next = (self.now + 1) % self.members.len();
        let change =
            Change { ends: *self.members.get(self.now)?, begins: *self.members.get(next)? };
        self.now = next;
        Some(change)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use events::EventSpec;
    use std::collections::BTreeSet;

    /// cycles; instructions and branches; cache-misses, dmiss and imiss.
    fn events() -> Vec<PlannedEvent> {
        let mut specs = vec![EventSpec::parse("cycles").unwrap()];
        specs.extend(EventSpec::parse_group("instructions,branches", 0).unwrap());
        specs.extend(EventSpec::parse_group("cache-misses,dmiss,imiss", 1).unwrap());
        specs.iter().map(|spec| spec.plan(1_000_000_000)).collect()
    }

    #[test]
    fn one_of_each_group_counts_at_any_time_and_all_as_often() {
        let mut turns = Multiplexer::new(&events(), |_| true);
        // The events that a kernel would have enabled.
        let mut enabled: BTreeSet<usize> = (0..6).filter(|event| turns.may_count(*event)).collect();
        let mut ticks = [0_u32; 6];
        let mut lengths = BTreeSet::new();
        let mut since = None;
        for tick in 0..60_000 {
            for change in turns.tick() {
                assert!(enabled.remove(&change.ends), "only what counts can stop");
                assert!(enabled.insert(change.begins));
                if change.ends <= 2 {
                    lengths.extend(since.replace(tick).map(|since| tick - since));
                }
            }
            assert_eq!(enabled.range(1..=2).count(), 1);
            assert_eq!(enabled.range(3..=5).count(), 1);
            assert!(
                enabled.contains(&0)
                    && (0..6).all(|event| turns.may_count(event) == enabled.contains(&event))
            );
            enabled.iter().for_each(|event| ticks[*event] += 1);
        }
        assert_eq!(
            lengths.iter().copied().collect::<Vec<_>>(),
            [1, 2, 3],
            "turns have random lengths"
        );
        // A turn's length has a standard deviation of 0.8 ticks and about 10000 turns are of each
        // event: 80 ticks, 0.4 %.
        for (event, share) in
            [(0, 1.0), (1, 0.5), (2, 0.5), (3, 1.0 / 3.0), (4, 1.0 / 3.0), (5, 1.0 / 3.0)]
        {
            let part = f64::from(ticks[event]) / 60_000.0;
            assert!((part - share).abs() < 0.02 * share, "{event}: {part}");
        }
    }

    #[test]
    fn a_member_that_is_not_open_here_has_no_turn_and_one_alone_always_counts() {
        let mut turns = Multiplexer::new(&events(), |event| event != 2 && event != 4);
        for _ in 0..100 {
            assert!(turns.may_count(1) && turns.may_count(3) != turns.may_count(5));
            assert!(
                turns
                    .tick()
                    .iter()
                    .all(|change| [3, 5].contains(&change.ends) && [3, 5].contains(&change.begins))
            );
        }
        turns.end();
        assert!((0..100).all(|_| turns.tick().is_empty()), "what was stopped is not begun again");
        assert!(Multiplexer::new(&[], |_| true).tick().is_empty());
    }

    #[test]
    fn a_member_should_have_counted_while_any_of_its_group_did() {
        let turns = Multiplexer::new(&events(), |event| event != 5);
        let mut counted = [(10, 9), (4, 4), (6, 3), (1, 1), (9, 9), (7, 7)]
            .map(|(enabled_ns, running_ns)| Counted { implied: 5, enabled_ns, running_ns });
        turns.share_time(&mut counted);
        let times = counted.map(|counted| (counted.enabled_ns, counted.running_ns));
        assert_eq!(times, [(10, 9), (10, 4), (10, 3), (10, 1), (10, 9), (7, 7)]);
    }
}
