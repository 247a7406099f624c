//! Walks of call stacks are charged to the users of the processes. Where the budget does not pay
//! for all walks, each user gets an equal part of it, unless he needs less, and only some of the
//! stacks of a user who needs more are walked. Otherwise a user whose stacks take 125 us each
//! would leave few stacks to everybody else.

use address_spaces::users::Payer;
use kernel::budget::fair_part;
use std::collections::HashMap;
use std::time::Instant;

/// Most users whose costs are known. The stacks of others are all walked.
const PAYERS_MAX: usize = 1024;
/// At least one of so many stacks of a user is walked.
const EVERY_MAX: u32 = 256;
/// Weight of the costs of earlier terms relative to those of the next one.
const KEPT: f64 = 0.5;

/// The costs of users' stacks.
pub struct Charges {
    of: HashMap<Payer, Charge>,
    since: Instant,
}

#[derive(Clone, Copy, Default)]
struct Charge {
    /// Stacks taken in this term.
    taken: u64,
    /// Stacks walked, and CPU time of that in ns: of this term, and with less weight of those
    /// before.
    walked: f64,
    ns: f64,
    /// One of so many stacks is walked; 0 is 1.
    every: u32,
}

impl Default for Charges {
    fn default() -> Self {
        Self { of: HashMap::new(), since: Instant::now() }
    }
}

impl Charges {
    /// Counts a stack of a user. Returns N where one of N stacks of that user is to be walked.
    pub fn taken(&mut self, payer: Payer) -> u32 {
        if self.of.len() >= PAYERS_MAX && !self.of.contains_key(&payer) {
            return 1;
        }
        let charge = self.of.entry(payer).or_default();
        charge.taken += 1;
        charge.every.max(1)
    }

    /// Charges a user with the CPU time of walking some stacks, in ns.
    pub fn walked(&mut self, payer: Payer, stacks: u64, ns: u64) {
        if let Some(charge) = self.of.get_mut(&payer) {
            charge.walked += stacks as f64;
            charge.ns += ns as f64;
        }
    }

    /// Ends a term and shares the CPU time of the next one: `ns_per_s` for all walks. `more` is the
    /// factor by which the sampler would take more stacks if walks cost nothing.
    pub fn share(&mut self, now: Instant, ns_per_s: f64, more: f64) {
        let seconds = now.saturating_duration_since(self.since).as_secs_f64();
        self.since = now;
        self.of.retain(|_, charge| charge.taken > 0);
        let need = |charge: &Charge| {
            let each = if charge.walked > 0.0 { charge.ns / charge.walked } else { 0.0 };
            charge.taken as f64 * each * more.max(1.0)
        };
        let part = fair_part(self.of.values().map(need), ns_per_s * seconds);
        // A single user takes nothing away from others.
        let alone = self.of.len() == 1;
        for charge in self.of.values_mut() {
            let every = if alone { 1.0 } else { (need(charge) / part).ceil() };
            charge.every = (every as u32).clamp(1, EVERY_MAX);
            (charge.walked, charge.ns, charge.taken) = (charge.walked * KEPT, charge.ns * KEPT, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Walks of 125 us of one user left 16 stacks a second for all instead of 62.
    #[test]
    fn dear_stacks_are_thinned_and_cheap_ones_are_not() {
        let (honest, hostile) = (Payer::User(1), Payer::User(2));
        let mut charges = Charges::default();
        let begun = charges.since;
        let mut term = |at_s: u64, ns_per_s: f64, hostile_taken: u64| {
            for _ in 0..500 {
                charges.taken(honest);
            }
            (0..hostile_taken).for_each(|_| assert!(charges.taken(hostile) > 0));
            charges.walked(honest, 500, 500 * 24_000);
            charges.walked(hostile, hostile_taken, hostile_taken * 125_000);
            charges.share(begun + Duration::from_secs(at_s), ns_per_s, 1.0);
            (charges.taken(honest), charges.taken(hostile))
        };
        // 12 ms and 62.5 ms in ten seconds of 3 ms each: 18 ms are left for those of 62.5.
        assert_eq!(term(10, 3e6, 500), (1, 4));
        assert_eq!(term(20, 30e6, 500), (1, 1), "there is enough for all");
        assert_eq!(term(30, 1e6, 500), (3, 13), "5 ms each");
    }

    #[test]
    fn a_user_alone_takes_nothing_away_from_others() {
        let mut charges = Charges::default();
        charges.taken(Payer::User(1));
        charges.walked(Payer::User(1), 1, u64::MAX);
        charges.share(charges.since + Duration::from_secs(10), 1.0, 1.0);
        assert_eq!(charges.taken(Payer::User(1)), 1);
    }
}
