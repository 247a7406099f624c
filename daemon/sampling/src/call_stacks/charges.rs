//! Who pays for walks: where not all stacks can be walked, each user's walks cost the same part of
//! what all may cost, as far as they need it. Otherwise a user whose stacks are made to be dear
//! would take those of everybody.

use address_spaces::users::Payer;
use std::collections::HashMap;
use std::time::Instant;

/// Most users with separate costs; those beyond are not thinned.
const PAYERS_MAX: usize = 1024;
/// Largest factor by which a user's stacks are thinned.
const EVERY_MAX: u32 = 256;
/// Part of the costs that stay known from term to term.
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
    /// A stack was taken: the number of stacks of which one is walked.
    pub fn taken(&mut self, payer: Payer) -> u32 {
        if self.of.len() >= PAYERS_MAX && !self.of.contains_key(&payer) {
            return 1;
        }
        let charge = self.of.entry(payer).or_default();
        charge.taken += 1;
        charge.every.max(1)
    }

    /// So many stacks were walked in so much CPU time.
    pub fn walked(&mut self, payer: Payer, stacks: u64, ns: u64) {
        if let Some(charge) = self.of.get_mut(&payer) {
            charge.walked += stacks as f64;
            charge.ns += ns as f64;
        }
    }

    /// Ends a term: walks may cost `ns_per_s`, and `more` times as many stacks were taken if they
    /// cost nothing.
    pub fn share(&mut self, now: Instant, ns_per_s: f64, more: f64) {
        let seconds = now.saturating_duration_since(self.since).as_secs_f64();
        self.since = now;
        self.of.retain(|_, charge| charge.taken > 0);
        let need = |charge: &Charge| {
            let each = if charge.walked > 0.0 { charge.ns / charge.walked } else { 0.0 };
            charge.taken as f64 * each * more.max(1.0)
        };
        let mut needs: Vec<f64> = self.of.values().map(need).collect();
        needs.sort_by(f64::total_cmp);
        let (mut left, mut users) = (ns_per_s * seconds, needs.len());
        let mut part = f64::INFINITY;
        for need in needs {
            part = left / users as f64;
            if need > part {
                break;
            }
            (left, users, part) = (left - need, users - 1, f64::INFINITY);
        }
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
