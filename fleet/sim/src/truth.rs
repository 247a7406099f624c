//! The planted changes.

use crate::plan::own_shares;
use crate::{Fleet, What};

/// A planted change, by names and numbers of the tables.
#[derive(Clone, Debug, PartialEq)]
pub struct Truth {
    /// The service's name.
    pub service: String,
    /// The service's number.
    pub service_id: i64,
    /// The image's name: the service's own.
    pub image: String,
    /// The week of the roll-out.
    pub week: i64,
    /// Number of the old build.
    pub build_old: i64,
    /// Number of the new build.
    pub build_new: i64,
    /// The planted changes.
    pub what: What,
    /// Each procedure that it changed: number, name, share of the service's time before and its
    /// change.
    pub procedures: Vec<(i64, String, f64, f64)>,
}

impl Fleet {
    /// What was planted, in the order of the configuration. Plants of services that there are not,
    /// of ranks that there are not, and of weeks without a roll-out are in no build, and not here.
    #[must_use]
    pub fn truth(&self) -> Vec<Truth> {
        let mut added = vec![self.config.own_procedures; self.services.len()];
        let shares = own_shares(&self.config);
        let mut truths = Vec::new();
        for plant in &self.config.plants {
            let (Some(runs), Some(image), Some(next)) = (
                self.services.get(plant.service),
                self.images.get(plant.service),
                added.get_mut(plant.service),
            ) else {
                continue;
            };
            let share = |rank: usize| shares.get(rank).copied().unwrap_or(0.0);
            let changed: Vec<(usize, f64, f64)> = match &plant.what {
                What::Cost { rank, relative } => {
                    vec![(*rank, share(*rank), share(*rank) * relative)]
                }
                What::Gone { rank } => vec![(*rank, share(*rank), -share(*rank))],
                What::New { share } => {
                    *next += 1;
                    vec![(*next - 1, 0.0, *share)]
                }
                What::Moved { from, to, part } => {
                    let cost = share(*from) * part;
                    let each = cost / to.len() as f64;
                    let grew = to.iter().map(|to| (*to, share(*to), each));
                    std::iter::once((*from, share(*from), -cost)).chain(grew).collect()
                }
            };
            let procedures: Vec<_> = changed
                .into_iter()
                .filter_map(|(at, share, change)| {
                    let (id, name) = image.procedures.get(at)?;
                    Some((*id, name.clone(), share, change))
                })
                .collect();
            if procedures.is_empty() || !image.released(plant.week) {
                continue;
            }
            let before = image.build_before(plant.week);
            truths.push(Truth {
                service: runs.name.clone(),
                service_id: runs.id,
                image: image.name.clone(),
                week: plant.week,
                build_old: image.build_id(before),
                build_new: image.build_id(before + 1),
                what: plant.what.clone(),
                procedures,
            });
        }
        truths
    }
}
