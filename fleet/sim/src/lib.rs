//! A simulated fleet: facts of hosts, roll-outs and planted changes.
//!
//! [`Fleet::host_week`] gives the rows of one host in one week as the store would have them, so
//! that a fleet of any size needs the memory of one host. [`Fleet::truth`] says what was planted.
//! [`sums`] adds rows up to what `judge` takes, in plain loops that tests compare SQL with;
//! [`experiment`] tells how often judgements are right.
#![forbid(unsafe_code)]

mod config;
pub mod experiment;
mod host;
mod plan;
mod random;
pub mod sums;
mod truth;

pub use config::{Config, Noise, Plant, What};
pub use host::HostWeek;
pub use truth::Truth;

use plan::{Host, Image, Runs};
use random::Factors;
use tables::{Build, Name, Service};

/// A fleet.
pub struct Fleet {
    config: Config,
    images: Vec<Image>,
    services: Vec<Runs>,
    hosts: Vec<Host>,
    factors: AllFactors,
}

/// Factors by which things vary.
struct AllFactors {
    host: Factors,
    host_week: Factors,
    week: Factors,
    day: Factors,
    build: Factors,
    machine: Factors,
    load: Factors,
}

impl Fleet {
    /// The fleet of a configuration. Plants of services that there are not are left out.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let images = plan::images(&config);
        let services = plan::services(&config, &images);
        let hosts = plan::hosts(&config);
        let noise = config.noise;
        let factors = AllFactors {
            host: Factors::new(noise.host),
            host_week: Factors::new(noise.host_week),
            week: Factors::new(noise.week),
            day: Factors::new(noise.day),
            build: Factors::new(noise.build),
            machine: Factors::new(noise.machine),
            load: Factors::new(noise.load),
        };
        Self { config, images, services, hosts, factors }
    }

    /// The number of hosts.
    #[must_use]
    pub const fn hosts(&self) -> usize {
        self.hosts.len()
    }

    /// Seconds since 1970 at which a week begins: Monday 00:00 UTC; week 0 is 2026-W40.
    #[must_use]
    pub const fn begin_s(week: i64) -> i64 {
        (plan::FIRST_DAY + 7 * week) * 86_400
    }

    /// Whether a service has a roll-out of its own image in a week.
    #[must_use]
    pub fn releases(&self, service: usize, week: i64) -> bool {
        service < self.services.len()
            && self.images.get(service).is_some_and(|image| image.released(week))
    }

    /// The names of all procedures.
    #[must_use]
    pub fn names(&self) -> Vec<Name> {
        plan::names(&self.images)
    }

    /// All services.
    #[must_use]
    pub fn services(&self) -> Vec<Service> {
        plan::service_rows(&self.services)
    }

    /// The builds that may run on some host in a week. First and last are those of its weeks.
    #[must_use]
    pub fn builds(&self, week: i64) -> Vec<Build> {
        plan::builds(&self.images, week)
    }

    /// Numbers of the first service, of its own image, and of the builds before and after the
    /// roll-out of a week; zeros where there is no service.
    #[must_use]
    pub fn first(&self, week: i64) -> (i64, i64, [i64; 2]) {
        let (Some(service), Some(image)) = (self.services.first(), self.images.first()) else {
            return (0, 0, [0, 0]);
        };
        let before = image.build_before(week);
        (service.id, image.id, [before, before + 1].map(|build| image.build_id(build)))
    }
}
