//! Loops that make more or fewer rounds than in the build before: what a change of the code's data
//! or of its algorithm shows as, where the instructions stay the same.

use std::collections::{BTreeMap, BTreeSet};

use annotate::evidence::LoopRounds;
use annotate::explained::{self, Asked, Explanation};
use image::ImageId;
use names::procedures::Places;
use query::error::AnalysisError;
use query::load::{ImageSamples, Samples};
use report::{WhyBuildBefore, WhyEvidence, WhyFinding};
use stalls::Machine;
use stats::Share;
use verdict::SAMPLES_MIN;

use super::Judged;

/// A procedure of a build.
type Of = (ImageId, String);

/// Factor each way from which on a number of rounds is too vague to be compared.
const VAGUE: f64 = 10.0;

/// The loops of procedures, by number; none of a name that several procedures of a build have.
#[derive(Debug, Default)]
pub(super) struct Loops(BTreeMap<Of, Option<Vec<LoopRounds>>>);

/// The loops of a procedure.
pub(super) fn of(found: &Explanation<'_>) -> (Of, Vec<LoopRounds>) {
    let of = (found.image.record.id, found.procedure.name().to_owned());
    (of, found.graph.loop_rounds())
}

impl Loops {
    pub(super) fn add(&mut self, (of, loops): (Of, Vec<LoopRounds>)) {
        let is_again = self.0.contains_key(&of);
        self.0.insert(of, (!is_again).then_some(loops));
    }

    fn of(&self, of: &Of) -> Option<&Vec<LoopRounds>> {
        self.0.get(of)?.as_ref()
    }

    /// Tells findings of loops how many rounds the loop makes in the build before, where these are
    /// more or fewer by more than both intervals. In that build the procedure may have too few
    /// samples for a finding: a loop that makes few rounds is cheap.
    pub(super) fn compare(
        mut self,
        findings: &mut [WhyFinding],
        judged: &[Judged],
        (samples, machine, places): (&Samples, &Machine, &Places),
    ) -> Result<(), AnalysisError> {
        let pairs = findings.iter_mut().filter_map(|found| {
            let of = (found.image_id?, found.procedure.clone()?);
            let before = before(found, samples)?;
            let is_it = |one: &&Judged| {
                one.is_loop
                    && (one.image, &one.procedure) == (of.0, &of.1)
                    && Some(one.address()) == found.address
            };
            let header = judged.iter().find(is_it)?.begin;
            Some((found, header, (before, of.1.clone()), of))
        });
        let pairs: Vec<_> = pairs.collect();
        let missing: BTreeSet<Of> = pairs
            .iter()
            .map(|(.., before, _)| before.clone())
            .filter(|of| !self.0.contains_key(of))
            .collect();
        if !missing.is_empty() {
            let asked = Asked {
                machine,
                procedure: None,
                except: None,
                only: Some(&missing),
                least: SAMPLES_MIN,
                syntax: None,
            };
            // What cannot be read of an image was told when its procedures were looked for.
            let mut told = Vec::new();
            explained::each(samples, &asked, places, &mut told, of, |of| self.add(of))?;
        }
        for (found, header, before, of) in pairs {
            let both = self.of(&of).zip(self.of(&before));
            let rounds = both.and_then(|(own, before)| rounds(header, own, before));
            if let Some([rounds, rounds_before]) = rounds {
                tell(found, WhyBuildBefore { image_id: before.0, rounds, rounds_before });
            }
        }
        Ok(())
    }
}

/// The build that was seen last before that of a finding, of those of the same name.
fn before(found: &WhyFinding, samples: &Samples) -> Option<ImageId> {
    let seen =
        |image: &&ImageSamples| (image.record.first_seen_unix_s, image.record.last_seen_unix_s);
    let builds = || {
        samples.images.iter().filter(|image| {
            image.wanted
                && image.unresolved().is_none()
                && found.image.as_ref() == Some(&image.record.name)
        })
    };
    let own = builds().find(|image| found.image_id == Some(image.record.id))?;
    let earlier = builds().filter(|image| seen(image) < seen(&own));
    earlier.max_by_key(seen).map(|image| image.record.id)
}

/// The rounds of the loop with this header, and of the same loop in the build before, if they
/// differ by more than their intervals. Loops are the same by their number, in procedures whose
/// loops are as many and in each other in the same way: addresses differ between builds, and a
/// compiler that unrolls a loop makes another one beside it.
fn rounds(header: u64, own: &[LoopRounds], before: &[LoopRounds]) -> Option<[Share; 2]> {
    let nested = |loops: &[LoopRounds]| -> Vec<_> { loops.iter().map(|one| one.parent).collect() };
    if nested(own) != nested(before) {
        return None;
    }
    let number = own.iter().position(|one| one.header == header)?;
    let [own, before] = [own, before].map(|loops| {
        let (value, factor) = loops.get(number)?.rounds.filter(|(_, factor)| *factor < VAGUE)?;
        // An entry makes a round at least.
        Some(Share { value, low: (value / factor).max(1.0_f64.min(value)), high: value * factor })
    });
    let (own, before) = own.zip(before)?;
    (own.low > before.high || own.high < before.low).then_some([own, before])
}

/// Adds the evidence, in the place of the number of rounds in the one build.
fn tell(found: &mut WhyFinding, before: WhyBuildBefore) {
    found.evidence.retain(|one| one.unit != Some("rounds"));
    let evidence = WhyEvidence {
        kind: "time",
        text: before.to_string(),
        value: Some(before.rounds.value),
        unit: Some("rounds"),
    };
    found.evidence.insert(0, evidence);
    found.build_before = Some(before);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(header: u64, parent: Option<usize>, rounds: (f64, f64)) -> LoopRounds {
        LoopRounds { header, parent, rounds: Some(rounds) }
    }

    /// A hash table whose new hash has 52 items in a bucket: the same loop at another address.
    #[test]
    fn rounds_differ_by_more_than_their_intervals_or_nothing_is_said() {
        let old = [one(0x10, None, (1.008, 2.0))];
        let new = [one(0x20, None, (88.0, 2.0))];
        let [own, before] = rounds(0x20, &new, &old).unwrap();
        assert_eq!((own.low, own.high), (44.0, 176.0));
        assert_eq!((before.value, before.low, before.high), (1.008, 1.0, 2.016));
        assert!(rounds(0x10, &old, &new).is_some(), "fewer rounds");
        let near = [one(0x20, None, (3.5, 2.0))];
        assert_eq!(rounds(0x20, &near, &old), None);
        // A loop of 48 rounds in both builds, of which few samples tell how often it is left.
        let vague = [(307.0, 10.0), (42.0, 10.0)].map(|rounds| [one(0x20, None, rounds)]);
        assert_eq!(rounds(0x20, &vague[0], &vague[1]), None);
        // Another loop was added: which is which is not known.
        let unrolled = [one(0x20, None, (88.0, 2.0)), one(0x30, None, (2.0, 2.0))];
        assert_eq!(rounds(0x20, &unrolled, &old), None);
        let nested = [one(0x08, None, (1.0, 2.0)), one(0x10, Some(0), (1.0, 2.0))];
        assert_eq!(rounds(0x20, &unrolled, &nested), None);
    }
}
