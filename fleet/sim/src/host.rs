//! A host's week: what it would have put into the store, summed as the store sums.

use fastrand::Rng;
use tables::{EpochRow, Fact, Load, Missed};

use crate::Fleet;
use crate::plan::{Called, DAY_S, FIRST_DAY, Host, Image, MACHINES, Runs, WEEK_S};
use crate::random::{binomial, hash, mix, poisson, unit};

/// Samples of unknown code and dropped ones, as parts of the busy ones, by reason.
const MISSED: [(&str, &str, f64); 4] = [
    ("unresolved", "no_mapping", 0.0025),
    ("unresolved", "no_image", 0.0005),
    ("lost", "table_full", 0.0003),
    ("lost", "killed", 0.0002),
];
/// Seconds after its end at which an epoch is put.
const PUT_AFTER_S: i64 = 300;
/// Amplitude of the load over a day; load at weekends.
const DIURNAL: f64 = 0.35;
const WEEKEND: f64 = 0.75;

/// The rows of a host in a week. A host that is silent has none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HostWeek {
    /// By service, image, build and procedure.
    pub facts: Vec<Fact>,
    /// The same samples by service, image, build and day.
    pub loads: Vec<Load>,
    /// An epoch for each day.
    pub epochs: Vec<EpochRow>,
    /// The missed samples of the epochs, by reason.
    pub missed: Vec<Missed>,
}

/// The values shared by all services of a host in a week.
struct Scene<'a> {
    fleet: &'a Fleet,
    host: &'a Host,
    /// The host's number in the fleet.
    at: u64,
    week: i64,
    /// Seconds of the week that the host was profiled.
    covered: (f64, f64),
    /// Nanoseconds that a sample stands for.
    weight: f64,
}

/// A part of the week in which an image is of one build.
type Span = (i64, f64, f64);

impl Fleet {
    /// The rows of a host in a week: a pure function of the configuration, week and host, so that
    /// hosts may be asked for in any order, and by many threads. Weeks count from 0; rows are
    /// in no order.
    #[must_use]
    pub fn host_week(&self, week: i64, host: usize) -> HostWeek {
        let mut rows = HostWeek::default();
        let (Some(of), Some(covered)) = (self.hosts.get(host), self.covered(week, host)) else {
            return rows;
        };
        let taken = self.config.samples_per_host_week
            * of.rate
            * self.factors.load.of(hash(&[self.config.seed, 21, week as u64, host as u64]));
        let weight = (of.cpus as f64 * WEEK_S * 1e9 / taken.max(1.0)).round().max(1.0);
        let scene = Scene { fleet: self, host: of, at: host as u64, week, covered, weight };
        let mut random = Rng::with_seed(hash(&[self.config.seed, 22, week as u64, host as u64]));
        let mut by_day = [0; 7];
        for (service, cores) in &of.services {
            if let Some(runs) = self.services.get(*service) {
                scene.service(runs, *service, *cores, &mut by_day, &mut rows, &mut random);
            }
        }
        scene.epochs(&by_day, &mut rows, &mut random);
        rows
    }

    /// The seconds of the week in which the host is profiled; None where it is silent.
    fn covered(&self, week: i64, host: usize) -> Option<(f64, f64)> {
        let draw = |salt: u64| unit(hash(&[self.config.seed, 23, salt, week as u64, host as u64]));
        let [silent, half] = self.config.silent;
        let fate = draw(1);
        if fate < silent {
            None
        } else if fate < silent + half {
            let begin = draw(2) * WEEK_S / 2.0;
            Some((begin, begin + WEEK_S / 2.0))
        } else {
            Some((0.0, WEEK_S))
        }
    }
}

impl Scene<'_> {
    /// The builds of an image on this host, and when each ran.
    fn spans(&self, at: usize, image: &Image) -> Vec<Span> {
        let draw = |week: i64, salt: u64| {
            unit(hash(&[self.fleet.config.seed, 24, salt, at as u64, week as u64, self.at]))
        };
        let late = |week: i64| draw(week, 1) < self.fleet.config.late;
        let mut build = image.build_before(self.week);
        let mut spans = Vec::new();
        let mut begin = 0.0;
        if image.released(self.week - 1) && late(self.week - 1) {
            // Monday; the others changed from Tuesday to Friday of their week.
            let end = draw(self.week - 1, 2) * DAY_S;
            spans.push((build - 1, begin, end));
            begin = end;
        }
        if image.released(self.week) && !late(self.week) {
            let end = (1.0 + 4.0 * draw(self.week, 2)) * DAY_S;
            spans.push((build, begin, end));
            (build, begin) = (build + 1, end);
        }
        spans.push((build, begin, WEEK_S));
        spans
    }

    /// Core-seconds of a service, for each core that it has in the mean, in a part of the week, by
    /// day.
    fn load(&self, service: usize, (_, begin, end): Span) -> [f64; 7] {
        let (begin, end) = (begin.max(self.covered.0), end.min(self.covered.1));
        let mut by_day = [0.0; 7];
        for (day, slot) in by_day.iter_mut().enumerate() {
            let first = day as f64 * DAY_S;
            let (from, to) = (begin.max(first), end.min(first + DAY_S));
            if from < to {
                let turn = std::f64::consts::TAU;
                let wave = |at: f64| (turn * (at / DAY_S - 0.6)).sin() * DAY_S / turn;
                let seed = self.fleet.config.seed;
                let when = (7 * self.week + day as i64) as u64;
                let all = hash(&[seed, 25, service as u64, when]);
                let own = hash(&[seed, 26, service as u64, when, self.at]);
                let factors = &self.fleet.factors.load;
                let weekend = if day >= 5 { WEEKEND } else { 1.0 };
                *slot = (to - from + DIURNAL * (wave(to) - wave(from)))
                    * weekend
                    * factors.of(all)
                    * factors.of(own);
            }
        }
        by_day
    }

    fn service(
        &self,
        runs: &Runs,
        service: usize,
        cores: f64,
        by_day: &mut [u64; 7],
        rows: &mut HostWeek,
        random: &mut Rng,
    ) {
        let speed = MACHINES.get(self.host.machine).map_or(1.0, |(_, speed, _)| *speed);
        for (at, called) in &runs.images {
            let Some(image) = self.fleet.images.get(*at) else { continue };
            for span in self.spans(*at, image) {
                let load = self.load(service, span);
                let scale = cores / speed * 1e9 / self.weight;
                let build = image.build_id(span.0);
                let to = Fact {
                    service: runs.id,
                    image: image.id,
                    build,
                    procedure: 0,
                    host: self.host.id,
                    samples: 0,
                    weight: self.weight,
                };
                let cost = (image.factors(span.0), load.map(|load| load * scale));
                let samples = self.facts(called, &cost, span.0, &to, rows, random);
                self.loads(samples, &load, &to, by_day, rows, random);
            }
        }
    }

    /// The facts of an image in one build, from the factors of its procedures and its samples
    /// expected by day; gives their samples.
    fn facts(
        &self,
        called: &[Called],
        (changed, by_day): &(Vec<f64>, [f64; 7]),
        build: i64,
        of: &Fact,
        rows: &mut HostWeek,
        random: &mut Rng,
    ) -> u64 {
        let factors = &self.fleet.factors;
        let (week, build) = (self.week as u64, build as u64);
        let keys = [
            hash(&[1, self.at]),
            hash(&[2, self.at, week, build]),
            hash(&[3, week]),
            hash(&[4, build]),
            hash(&[5, self.host.machine as u64]),
        ];
        let each =
            [&factors.host, &factors.host_week, &factors.week, &factors.build, &factors.machine];
        let days: Vec<(u64, f64)> = by_day
            .iter()
            .enumerate()
            .map(|(day, samples)| (hash(&[6, 7 * week + day as u64]), *samples))
            .filter(|(_, samples)| *samples > 0.0)
            .collect();
        let expected = by_day.iter().sum::<f64>();
        let mut all = 0;
        for called in called {
            let mut mean = called.share;
            mean *= if self.fleet.config.noise.day > 0.0 {
                let of_day =
                    |(key, samples): &(u64, f64)| samples * factors.day.of(mix(called.key ^ key));
                days.iter().map(of_day).sum()
            } else {
                expected
            };
            mean *= changed.get(called.procedure).copied().unwrap_or(1.0);
            for (key, factors) in keys.iter().zip(each) {
                mean *= factors.of(mix(called.key ^ key));
            }
            let samples = poisson(mean, random);
            if samples > 0 {
                all += samples;
                let (procedure, samples) = (called.id, samples as i64);
                rows.facts.push(Fact { procedure, samples, ..of.clone() });
            }
        }
        all
    }

    /// The samples of an image in one build, by day.
    fn loads(
        &self,
        samples: u64,
        load: &[f64; 7],
        of: &Fact,
        by_day: &mut [u64; 7],
        rows: &mut HostWeek,
        random: &mut Rng,
    ) {
        let (mut left, mut load_left) = (samples, load.iter().sum::<f64>());
        let last = load.iter().rposition(|load| *load > 0.0);
        for (day, (load, sum)) in load.iter().zip(by_day).enumerate() {
            let samples =
                if Some(day) == last { left } else { binomial(left, load / load_left, random) };
            left -= samples;
            load_left -= load;
            *sum += samples;
            if samples > 0 {
                rows.loads.push(Load {
                    service: of.service,
                    image: of.image,
                    build: of.build,
                    host: of.host,
                    day: self.day(day),
                    samples: samples as i64,
                    weight: of.weight,
                });
            }
        }
    }

    /// The day that the host's clock shows when such a day of the week begins.
    const fn day(&self, day: usize) -> i64 {
        let begin_s = (FIRST_DAY + 7 * self.week + day as i64) * 86_400;
        (begin_s + self.host.ahead_s).div_euclid(86_400)
    }

    /// The epochs, one a day, and what they missed: their accounts close.
    fn epochs(&self, by_day: &[u64; 7], rows: &mut HostWeek, random: &mut Rng) {
        let mut missed = [0; MISSED.len()];
        for (day, facts) in by_day.iter().enumerate() {
            let first = day as f64 * DAY_S;
            let begin = first.max(self.covered.0).floor();
            let end = (first + DAY_S).min(self.covered.1).floor();
            if begin >= end {
                continue;
            }
            let busy = *facts as f64;
            let drawn = MISSED.map(|(.., part)| poisson(busy * part, random));
            missed.iter_mut().zip(drawn).for_each(|(sum, drawn)| *sum += drawn);
            let [unmapped, no_image, full, killed] = drawn;
            let (unresolved, lost) = (unmapped + no_image, full + killed);
            let time = self.host.cpus as f64 * (end - begin) * 1e9 / self.weight;
            // A host that is busier than its CPUs allow has no idle time: noise of the model.
            let idle = poisson(time - busy, random);
            let begin_s = (FIRST_DAY + 7 * self.week) * 86_400 + self.host.ahead_s;
            rows.epochs.push(EpochRow {
                host: self.host.id,
                name: self.host.name.clone(),
                begin_s: begin_s + begin as i64,
                end_s: begin_s + end as i64,
                ahead_s: (self.host.ahead_s - PUT_AFTER_S).max(0),
                machine: MACHINES
                    .get(self.host.machine)
                    .map_or_else(String::new, |(name, ..)| (*name).to_owned()),
                cpus: self.host.cpus,
                taken: (facts + idle + unresolved + lost) as i64,
                facts: *facts as i64,
                idle: idle as i64,
                unresolved: unresolved as i64,
                lost: lost as i64,
                weight: self.weight,
            });
        }
        for ((fate, reason, _), samples) in MISSED.iter().zip(missed) {
            if samples > 0 {
                rows.missed.push(Missed {
                    host: self.host.id,
                    fate: (*fate).to_owned(),
                    reason: (*reason).to_owned(),
                    samples: samples as i64,
                });
            }
        }
    }
}
