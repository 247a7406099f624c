//! Two builds of a service, compared before their week is closed: a gate for deploys.

use std::collections::{BTreeMap, HashMap, HashSet};

use engine::Engine;
use ingest::TIME;
use judge::cores::{Cell, Cost, Untold, cores};
use stats::Confidence;
use store::{Manifest, Store, Week};
use tables::{Build, Change, EpochRow, Load, PairSum, Table, id};

use crate::builds::of_some;
use crate::changes::Comparisons;
use crate::close::CloseError;
use crate::dimensions::{Dimensions, rows};
use crate::statement;

/// The question.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The week of the roll-out; the one before it is looked at as well.
    pub week: Week,
    /// The service.
    pub service: String,
    /// First characters of the ids of the old build and of the new one.
    pub builds: [String; 2],
    /// Memory of the engine, in bytes.
    pub memory_bytes: usize,
}

/// The answer.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// The image.
    pub image: String,
    /// The ids of the old build and of the new one.
    pub builds: [String; 2],
    /// Hosts that ran both, and only the old one, and only the new one.
    pub hosts: [usize; 3],
    /// Relative change of the service's cores, the day's load apart; or why it cannot be
    /// determined.
    pub cores: Result<Cost, Untold>,
    /// Busy cores of the service, in the mean over the hosts and the time profiled.
    pub busy_cores: f64,
    /// Core-seconds of the service, in both weeks.
    pub service_core_s: f64,
    /// The whole image's part of the service's time; None where too few hosts ran both.
    pub image_change: Option<Change>,
    /// Procedures that changed, and that not by chance.
    pub procedures: Vec<Change>,
}

/// Compares two builds of a service on the hosts that ran both.
///
/// # Errors
/// [`CloseError::Builds`] where the service did not run them; of the store.
pub async fn compare(store: &Store, asked: &Asked) -> Result<Comparison, CloseError> {
    let mut of = Rows::default();
    let manifests = [
        Manifest::newest(store, asked.week.before(1)).await?,
        Manifest::newest(store, asked.week).await?,
    ];
    let mut facts = Vec::new();
    for manifest in &manifests {
        of.read(store, manifest, &asked.service).await?;
        facts.extend(manifest.files_of(Table::Facts.name(), TIME));
    }
    let [old, new] = asked.builds.each_ref().map(|text| of.build(text));
    let (old, new) = (old?, new?);
    if old.image != new.image || old.build == new.build {
        let why = format!("{} and {} are not two builds of one image", old.text, new.text);
        return Err(CloseError::Builds(why));
    }
    let loads = &of.loads;
    let mut found =
        of_some(loads, &of.dimensions.builds, |build| build == old.build || build == new.build);
    found.pairs.retain(|pair| pair.image == old.image);
    // Builds in the order that was asked for, whichever the fleet saw first.
    let is_turned = found.pairs.first().is_some_and(|pair| pair.build_old != old.build);
    if is_turned {
        let why = format!("the fleet saw {} before {}; turn them round", new.text, old.text);
        return Err(CloseError::Builds(why));
    }
    let engine = Engine::local(store, asked.memory_bytes)?;
    let service = id(&[&asked.service]);
    let mut compared = Comparisons::default();
    if !found.pairs.is_empty() {
        let facts = facts.into_iter().filter(|file| file.service.is_none_or(|of| of == service));
        engine.register(Table::Facts, "facts", facts)?;
        engine.register_rows("pairs", &found.pairs)?;
        let sums = engine.rows::<PairSum>(&statement("builds", service)).await?;
        compared.add_builds(loads, &found, &sums);
    }
    let (changes, _) = compared.judge(&of.dimensions, &HashSet::new(), &[]);
    let is_image = |change: &&Change| change.procedure.is_empty();
    let cells = of.cells(old.image, [old.build, new.build]);
    Ok(Comparison {
        image: old.image_name.clone(),
        builds: [old.text.clone(), new.text.clone()],
        hosts: of.hosts([old.build, new.build]),
        cores: cores(&cells, Confidence::default()),
        busy_cores: busy(&cells),
        service_core_s: loads.iter().map(|load| load.samples as f64 * load.weight / 1e9).sum(),
        image_change: changes.iter().find(is_image).cloned(),
        procedures: changes.into_iter().filter(|change| !change.procedure.is_empty()).collect(),
    })
}

/// Busy cores of all hosts.
fn busy(cells: &[Cell]) -> f64 {
    let mut hosts: BTreeMap<i64, (f64, f64)> = BTreeMap::new();
    for cell in cells {
        let host = hosts.entry(cell.host).or_default();
        host.0 += cell.core_s;
        host.1 += cell.covered_s;
    }
    let known = hosts.values().filter(|(_, covered)| *covered > 0.0);
    // The sum of none is -0.
    known.map(|(core_s, covered)| core_s / covered).sum::<f64>() + 0.0
}

/// The facts of the service.
#[derive(Default)]
struct Rows {
    loads: Vec<Load>,
    dimensions: Dimensions,
    /// Seconds profiled, by host and day.
    covered: HashMap<(i64, i64), f64>,
}

impl Rows {
    async fn read(
        &mut self,
        store: &Store,
        manifest: &Manifest,
        service: &str,
    ) -> Result<(), CloseError> {
        let wanted = id(&[service]);
        rows(store, manifest, TIME, |load: Load| {
            if load.service == wanted {
                self.loads.push(load);
            }
        })
        .await?;
        rows(store, manifest, TIME, |epoch: EpochRow| {
            let day = epoch.begin_s.div_euclid(86_400);
            let seconds = epoch.end_s.saturating_sub(epoch.begin_s) as f64;
            *self.covered.entry((epoch.host, day)).or_default() += seconds.max(0.0);
        })
        .await?;
        self.dimensions.add(store, manifest).await?;
        self.loads.sort_by_key(|load| (load.image, load.build, load.host, load.day));
        Ok(())
    }

    /// The build of the service whose id begins with this text.
    fn build(&self, text: &str) -> Result<Build, CloseError> {
        let ran: HashSet<i64> = self.loads.iter().map(|load| load.build).collect();
        let mut found = self
            .dimensions
            .builds
            .values()
            .filter(|build| build.text.starts_with(text) && ran.contains(&build.build));
        match (found.next(), found.next()) {
            (Some(build), None) => Ok(build.clone()),
            (None, _) => Err(CloseError::Builds(format!(
                "the service ran no build {text} in this week and the one before; \
                 dcpi-fleet review names builds, dcpi-fleet ingest takes what was pushed since"
            ))),
            (Some(_), Some(_)) => Err(CloseError::Builds(format!(
                "several builds begin with {text}; give more of it"
            ))),
        }
    }

    /// Hosts that ran both builds, only the old, only the new.
    fn hosts(&self, [old, new]: [i64; 2]) -> [usize; 3] {
        let ran = |build: i64| -> HashSet<i64> {
            self.loads.iter().filter(|load| load.build == build).map(|load| load.host).collect()
        };
        let (old, new) = (ran(old), ran(new));
        let both = old.intersection(&new).count();
        [both, old.len() - both, new.len() - both]
    }

    /// The service's core-seconds by host and day, where one of the builds ran alone.
    fn cells(&self, image: i64, [old, new]: [i64; 2]) -> Vec<Cell> {
        let mut days: BTreeMap<(i64, i64), (f64, HashSet<i64>)> = BTreeMap::new();
        for load in &self.loads {
            let (core_s, builds) = days.entry((load.host, load.day)).or_default();
            *core_s += load.samples as f64 * load.weight / 1e9;
            if load.image == image {
                builds.insert(load.build);
            }
        }
        let cell = |((host, day), (core_s, builds)): ((i64, i64), (f64, HashSet<i64>))| {
            let mut builds = builds.into_iter();
            let (Some(build), None) = (builds.next(), builds.next()) else { return None };
            let covered_s = self.covered.get(&(host, day)).copied().unwrap_or(0.0);
            let is_wanted = build == old || build == new;
            is_wanted.then_some(Cell { host, day, new: build == new, core_s, covered_s })
        };
        days.into_iter().filter_map(cell).collect()
    }
}
