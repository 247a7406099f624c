//! The parameters of a simulated fleet.

/// How much things vary, each as a standard deviation of the logarithm.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Noise {
    /// For a procedure, between hosts, constant in time.
    pub host: f64,
    /// Of a procedure on a host from week to week, and from build to build in a week.
    pub host_week: f64,
    /// For a procedure, from week to week, the same on all hosts.
    pub week: f64,
    /// Of a procedure from day to day, on all hosts alike: what a roll-out over days confuses with
    /// a build.
    pub day: f64,
    /// For a procedure, from build to build, the same on all hosts: its code has other addresses.
    pub build: f64,
    /// For a procedure, between types of machines.
    pub machine: f64,
    /// For a service's load on a host, from day to day.
    pub load: f64,
}

impl Default for Noise {
    fn default() -> Self {
        Self {
            host: 0.2,
            host_week: 0.04,
            week: 0.003,
            day: 0.0,
            build: 0.0,
            machine: 0.1,
            load: 0.1,
        }
    }
}

/// A change of a service's own image, planted.
#[derive(Clone, Debug, PartialEq)]
pub struct Plant {
    /// Number of the service.
    pub service: usize,
    /// The week in which the build with the change is rolled out: one in which the service has a
    /// roll-out ([`Fleet::releases`](crate::Fleet::releases)).
    pub week: i64,
    /// The change.
    pub what: What,
}

/// The planted changes. Ranks are those of the image's procedures by their time, from 0.
#[derive(Clone, Debug, PartialEq)]
pub enum What {
    /// The procedure's cost times `1 + relative`.
    Cost {
        /// Rank.
        rank: usize,
        /// 0.03: 3 % more.
        relative: f64,
    },
    /// A procedure that was in no build before.
    New {
        /// Its share of the service's time.
        share: f64,
    },
    /// The procedure is not in the build.
    Gone {
        /// Rank.
        rank: usize,
    },
    /// A part of the procedure's cost is in others, in equal parts: it was inlined there.
    Moved {
        /// Rank.
        from: usize,
        /// Ranks.
        to: Vec<usize>,
        /// The part, 0..=1. At 1 the procedure is gone.
        part: f64,
    },
}

/// What a fleet is like. [`Config::default`] is the fleet of the measurements, [`Config::small`]
/// one for tests.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Everything follows from it.
    pub seed: u64,
    /// Hosts.
    pub hosts: usize,
    /// Services, of which the first are on most hosts.
    pub services: usize,
    /// Services on a host, in the mean.
    pub services_per_host: f64,
    /// Shared libraries.
    pub libraries: usize,
    /// Shared libraries that a service uses.
    pub libraries_per_service: usize,
    /// Procedures of a service's own image.
    pub own_procedures: usize,
    /// Procedures of a shared library.
    pub library_procedures: usize,
    /// Procedures of the kernel.
    pub kernel_procedures: usize,
    /// Samples that a host takes in a week, in the mean of hosts: each has its own rate.
    pub samples_per_host_week: f64,
    /// How much things vary.
    pub noise: Noise,
    /// Weeks from one build to the next: of a service's own image, of a library, of the kernel. 0:
    /// never a new one.
    pub weeks_per_build: [i64; 3],
    /// The part of the hosts that a roll-out reaches in the week after only.
    pub late: f64,
    /// The part of the hosts that report nothing in a week, and that report half of it.
    pub silent: [f64; 2],
    /// The part of the hosts whose clock is wrong, up to two days ahead or behind.
    pub wrong_clocks: f64,
    /// Planted changes.
    pub plants: Vec<Plant>,
}

impl Default for Config {
    /// 2,000 hosts, 40 services, 72 images, 49,000 procedures, about 7,400 facts a host-week;
    /// changes of every kind, all in week 1.
    fn default() -> Self {
        let plant = |service, what| Plant { service, week: 1, what };
        Self {
            seed: 1,
            hosts: 2000,
            services: 40,
            services_per_host: 2.0,
            libraries: 31,
            libraries_per_service: 8,
            own_procedures: 710,
            library_procedures: 570,
            kernel_procedures: 2930,
            samples_per_host_week: 4e6,
            noise: Noise::default(),
            weeks_per_build: [3, 6, 12],
            late: 0.04,
            silent: [0.01, 0.02],
            wrong_clocks: 0.01,
            // Services 2, 5, 8 and on have a roll-out in week 1.
            plants: vec![
                plant(2, What::Cost { rank: 10, relative: 0.03 }),
                plant(2, What::Gone { rank: 30 }),
                plant(5, What::New { share: 0.004 }),
                plant(5, What::Cost { rank: 3, relative: -0.10 }),
                plant(8, What::Moved { from: 12, to: vec![5], part: 1.0 }),
                plant(11, What::Moved { from: 6, to: vec![20, 25, 40], part: 0.6 }),
            ],
        }
    }
}

impl Config {
    /// 40 hosts, 6 services, for tests: changes as in the default one.
    #[must_use]
    pub fn small() -> Self {
        let mut config = Self {
            hosts: 40,
            services: 6,
            libraries: 4,
            libraries_per_service: 2,
            own_procedures: 120,
            library_procedures: 60,
            kernel_procedures: 100,
            samples_per_host_week: 1e6,
            silent: [0.05, 0.05],
            wrong_clocks: 0.05,
            ..Self::default()
        };
        config.plants.retain(|plant| plant.service < config.services);
        config
    }

    /// One service of 2,000 procedures on this many hosts, whose image has a new build each week;
    /// without planted changes.
    #[must_use]
    pub fn service(hosts: usize, seed: u64) -> Self {
        Self {
            seed,
            hosts,
            services: 1,
            services_per_host: 1.0,
            libraries: 4,
            libraries_per_service: 4,
            own_procedures: 1400,
            library_procedures: 300,
            kernel_procedures: 800,
            samples_per_host_week: 4e6,
            weeks_per_build: [1, 0, 0],
            plants: Vec::new(),
            ..Self::default()
        }
    }
}
