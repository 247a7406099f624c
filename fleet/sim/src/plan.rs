//! The parts of a fleet: images with their procedures and builds, services, hosts.

use tables::{Build, Name, Service, id};

use crate::config::{Config, What};
use crate::random::{Factors, hash, unit};

/// Seconds of a week and of a day.
pub(crate) const WEEK_S: f64 = 604_800.0;
pub(crate) const DAY_S: f64 = 86_400.0;
/// The first day of week 0: Monday 2026-09-28, in days since 1970.
pub(crate) const FIRST_DAY: i64 = 20_724;

/// Parts of a service's time in its own image, in shared libraries and in the kernel.
const PARTS: [f64; 3] = [0.55, 0.25, 0.20];
/// The part of the procedures of a library, and of the kernel, that a service calls.
const CALLED: [f64; 2] = [0.4, 0.25];
/// Types of machines: name, speed beside the first, part of the hosts.
pub(crate) const MACHINES: [(&str, f64, f64); 3] = [
    ("x86_64 Model A, 2.9 GHz", 1.0, 0.5),
    ("x86_64 Model B, 3.6 GHz", 1.25, 0.3),
    ("aarch64 Model C, 2.3 GHz", 0.8, 0.2),
];

/// An image.
#[derive(Debug)]
pub(crate) struct Image {
    pub(crate) name: String,
    pub(crate) id: i64,
    pub(crate) procedures: Vec<(i64, String)>,
    /// Weeks from build to build, 0: never; and in which of them.
    every: i64,
    phase: i64,
    /// The changes that builds make.
    pub(crate) steps: Vec<Step>,
}

/// The factor of a procedure's cost before a build and from it on.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Step {
    build: i64,
    procedure: usize,
    before: f64,
    after: f64,
}

impl Image {
    fn new(name: String, names: Vec<String>, every: i64, phase: i64) -> Self {
        let procedures = names.into_iter().map(|of| (id(&[&name, &of]), of)).collect();
        Self { id: id(&[&name]), name, procedures, every, phase, steps: Vec::new() }
    }

    /// Whether a build is rolled out in the week. Week 0 has none.
    pub(crate) const fn released(&self, week: i64) -> bool {
        self.every > 0 && week >= 1 && (week + self.phase) % self.every == 0
    }

    /// The number of the build that all hosts should have when the week begins.
    pub(crate) const fn build_before(&self, week: i64) -> i64 {
        if self.every <= 0 || week < 2 {
            return 0;
        }
        (week - 1 + self.phase) / self.every - self.phase / self.every
    }

    /// The text of a build: a build id.
    pub(crate) fn text(&self, build: i64) -> String {
        let part = |salt: u64| hash(&[self.id as u64, build as u64, salt]);
        format!("{:016x}{:016x}{:08x}", part(1), part(2), part(3) >> 32)
    }

    pub(crate) fn build_id(&self, build: i64) -> i64 {
        id(&[&self.name, &self.text(build)])
    }

    /// The factors of the costs of procedures in a build; empty where nothing ever changes.
    pub(crate) fn factors(&self, build: i64) -> Vec<f64> {
        if self.steps.is_empty() {
            return Vec::new();
        }
        let mut factors = vec![1.0; self.procedures.len()];
        for step in &self.steps {
            if let Some(factor) = factors.get_mut(step.procedure) {
                *factor *= if build >= step.build { step.after } else { step.before };
            }
        }
        factors
    }
}

/// A procedure that a service calls.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Called {
    pub(crate) procedure: usize,
    pub(crate) id: i64,
    /// Share of the service's time, before any build changes it.
    pub(crate) share: f64,
    /// For hashes.
    pub(crate) key: u64,
}

/// A service: its images, each with the procedures called.
#[derive(Debug)]
pub(crate) struct Runs {
    pub(crate) name: String,
    pub(crate) id: i64,
    pub(crate) images: Vec<(usize, Vec<Called>)>,
}

/// A host.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    pub(crate) name: String,
    pub(crate) id: i64,
    pub(crate) machine: usize,
    pub(crate) cpus: i64,
    /// Services and the cores that each has in the mean, on the first type of machine.
    pub(crate) services: Vec<(usize, f64)>,
    /// Seconds by which its clock is ahead.
    pub(crate) ahead_s: i64,
    /// Samples beside the mean of hosts.
    pub(crate) rate: f64,
}

/// The images: of the services, the shared libraries, the kernel.
pub(crate) fn images(config: &Config) -> Vec<Image> {
    let [own, library, kernel] = config.weeks_per_build;
    let names = |of: &str, count: usize| (0..count).map(|at| format!("{of}_{at:04}")).collect();
    let mut images: Vec<Image> = (0..config.services)
        .map(|at| {
            let names = names("handle", config.own_procedures);
            Image::new(service_name(at), names, own, at as i64)
        })
        .collect();
    for at in 0..config.libraries {
        let mut names: Vec<String> = names(&format!("lib{at:02}"), config.library_procedures);
        // Code without a symbol.
        names.push(String::new());
        images.push(Image::new(format!("lib{at:02}.so.1"), names, library, at as i64 + 1));
    }
    let names = names("sys", config.kernel_procedures);
    images.push(Image::new("vmlinux".to_owned(), names, kernel, 5));
    for plant in config.plants.iter().filter(|plant| plant.service < config.services) {
        if let Some(image) = images.get_mut(plant.service) {
            change(image, plant.week, &plant.what, config);
        }
    }
    images
}

fn service_name(at: usize) -> String {
    format!("service{at:02}")
}

/// The shares of an image's own procedures, by rank: Zipf's law, whose first ranks are flattened.
pub(crate) fn own_shares(config: &Config) -> Vec<f64> {
    let zipf = |rank: usize| (rank as f64 + 3.0).powf(-1.05);
    let all = (0..config.own_procedures).map(zipf).sum::<f64>();
    (0..config.own_procedures).map(|rank| PARTS[0] * zipf(rank) / all).collect()
}

/// Adds what a planted change does to an image.
fn change(image: &mut Image, week: i64, what: &What, config: &Config) {
    let build = image.build_before(week) + 1;
    let mut step = |procedure: usize, before: f64, after: f64| {
        image.steps.push(Step { build, procedure, before, after });
    };
    match what {
        What::Cost { rank, relative } => step(*rank, 1.0, 1.0 + relative),
        What::Gone { rank } => step(*rank, 1.0, 0.0),
        What::Moved { from, to, part } => {
            let shares = own_shares(config);
            let share = |rank: usize| shares.get(rank).copied().unwrap_or(0.0);
            step(*from, 1.0, 1.0 - part);
            for rank in to {
                let more = share(*from) * part / to.len() as f64;
                step(*rank, 1.0, 1.0 + more / share(*rank));
            }
        }
        What::New { .. } => {
            step(image.procedures.len(), 0.0, 1.0);
            let name = format!("added_{:04}", image.procedures.len());
            image.procedures.push((id(&[&image.name, &name]), name));
        }
    }
}

/// The services.
pub(crate) fn services(config: &Config, images: &[Image]) -> Vec<Runs> {
    (0..config.services)
        .map(|at| {
            let name = service_name(at);
            let mut runs = Runs { id: id(&[&name]), name, images: Vec::new() };
            runs.images.push((at, own(at, config, images)));
            let first = config.services;
            // As many libraries one after the other, from one by chance.
            let start = hash(&[config.seed, 11, at as u64]) as usize % config.libraries.max(1);
            let count = config.libraries_per_service.min(config.libraries);
            for library in (start..start + count).map(|of| first + of % config.libraries) {
                let part = PARTS[1] / count as f64;
                runs.images.push((library, called(at, library, part, CALLED[0], config, images)));
            }
            let kernel = first + config.libraries;
            runs.images.push((kernel, called(at, kernel, PARTS[2], CALLED[1], config, images)));
            runs
        })
        .collect()
}

fn key(service: usize, image: usize, procedure: usize, config: &Config) -> u64 {
    hash(&[config.seed, 12, service as u64, image as u64, procedure as u64])
}

fn own(at: usize, config: &Config, images: &[Image]) -> Vec<Called> {
    let Some(image) = images.get(at) else { return Vec::new() };
    let mut added =
        config.plants.iter().filter(|plant| plant.service == at).filter_map(|plant| {
            if let What::New { share } = plant.what { Some(share) } else { None }
        });
    let shares = own_shares(config);
    let of = |(procedure, (id, _)): (usize, &(i64, String))| Called {
        procedure,
        id: *id,
        share: shares.get(procedure).copied().or_else(|| added.next()).unwrap_or(0.0),
        key: key(at, at, procedure, config),
    };
    image.procedures.iter().enumerate().map(of).collect()
}

/// The procedures of a library or the kernel that a service calls; they have `part` of its time.
fn called(
    service: usize,
    at: usize,
    part: f64,
    of_all: f64,
    config: &Config,
    images: &[Image],
) -> Vec<Called> {
    let Some(image) = images.get(at) else { return Vec::new() };
    let each = Factors::new(1.0);
    let of = |(procedure, (id, _)): (usize, &(i64, String))| {
        let key = key(service, at, procedure, config);
        let share = (procedure as f64 + 3.0).powf(-1.05) * each.of(key);
        (unit(hash(&[key, 1])) < of_all).then_some(Called { procedure, id: *id, share, key })
    };
    let mut called: Vec<Called> = image.procedures.iter().enumerate().filter_map(of).collect();
    let all: f64 = called.iter().map(|called| called.share).sum();
    called.iter_mut().for_each(|called| called.share *= part / all);
    called
}

/// The hosts.
pub(crate) fn hosts(config: &Config) -> Vec<Host> {
    let parts = placement(config);
    let rates = Factors::new(0.5);
    let host = |at: usize| {
        let draw = |salt: u64| hash(&[config.seed, 13, salt, at as u64]);
        let mut left = unit(draw(1));
        let machine = MACHINES.iter().position(|(.., part)| {
            left -= part;
            left < 0.0
        });
        let cpus = 16 << (draw(2) % 3);
        let on_it = |service: &usize| {
            parts.get(*service).is_some_and(|part| unit(draw(100 + *service as u64)) < *part)
        };
        let mut services: Vec<usize> = (0..config.services).filter(on_it).collect();
        if services.is_empty() {
            services.push(draw(3) as usize % config.services.max(1));
        }
        let busy = cpus as f64 * (0.2 + 0.25 * unit(draw(4)));
        let weights: Vec<f64> =
            services.iter().map(|service| 0.3 + unit(draw(1000 + *service as u64))).collect();
        let all: f64 = weights.iter().sum();
        let cores = weights.iter().map(|weight| busy * weight / all);
        let wrong = unit(draw(5)) < config.wrong_clocks;
        let ahead_s = ((unit(draw(6)) - 0.5) * 4.0 * DAY_S) as i64;
        let name = format!("host{at:05}");
        Host {
            id: id(&[&name]),
            name,
            machine: machine.unwrap_or(0),
            cpus,
            services: services.into_iter().zip(cores).collect(),
            ahead_s: if wrong { ahead_s } else { 0 },
            rate: rates.of(draw(7)),
        }
    };
    (0..config.hosts).map(host).collect()
}

/// The part of the hosts that each service is on: by its rank, at most 1, in total what the
/// configuration says.
fn placement(config: &Config) -> Vec<f64> {
    let rank = |at: usize| (at as f64 + 2.0).powf(-0.8);
    let wanted = config.services_per_host.min(config.services as f64);
    let mut scale = wanted / (0..config.services).map(rank).sum::<f64>().max(f64::MIN_POSITIVE);
    let parts =
        |scale: f64| (0..config.services).map(|at| (scale * rank(at)).min(1.0)).collect::<Vec<_>>();
    // The part above 1 goes to the others.
    for _ in 0..30 {
        scale *= wanted / parts(scale).iter().sum::<f64>().max(f64::MIN_POSITIVE);
    }
    parts(scale)
}

/// Rows of names.
pub(crate) fn names(images: &[Image]) -> Vec<Name> {
    let of = |image: &Image| {
        let image_id = image.id;
        let name = move |(procedure, name): &(i64, String)| Name {
            procedure: *procedure,
            image: image_id,
            name: name.clone(),
        };
        image.procedures.iter().map(name).collect::<Vec<_>>()
    };
    images.iter().flat_map(of).collect()
}

/// Rows of services.
pub(crate) fn service_rows(services: &[Runs]) -> Vec<Service> {
    services.iter().map(|of| Service { service: of.id, name: of.name.clone() }).collect()
}

/// Rows of the builds that may run in a week.
pub(crate) fn builds(images: &[Image], week: i64) -> Vec<Build> {
    let begin = |week: i64| (FIRST_DAY + 7 * week) * 86_400;
    let of = |image: &Image| {
        let before = image.build_before(week);
        let late = image.released(week - 1);
        let oldest = if late { before - 1 } else { before };
        let newest = if image.released(week) { before + 1 } else { before };
        // A build begins in the week of its roll-out.
        let first_week = |build: i64| {
            (0..=week).rev().find(|of| image.released(*of) && image.build_before(*of) + 1 == build)
        };
        let row = |build: i64| Build {
            build: image.build_id(build),
            image: image.id,
            image_name: image.name.clone(),
            text: image.text(build),
            path: format!("/opt/{}", image.name),
            quality: 3,
            first_s: begin(first_week(build).unwrap_or(0)),
            last_s: begin(week + 1) - 1,
        };
        (oldest..=newest).map(row).collect::<Vec<_>>()
    };
    images.iter().flat_map(of).collect()
}
