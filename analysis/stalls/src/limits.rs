//! Fewest and most samples that a suspect can have taken.

use crate::causes::Suspect;
use crate::explain::Instruction;
use crate::scale::Scale;

/// The stall of an instruction, in samples, and the scales that are possible.
pub(crate) struct Stall<'a> {
    pub(crate) instruction: &'a Instruction,
    /// The likeliest scale, and the one that 19 of 20 procedures are below.
    pub(crate) scale: Scale,
    /// The lowest and the highest scale, with the uncertainty of the executions.
    pub(crate) bounds: (f64, f64),
    /// Samples beyond the best case, 0 where chance explains them.
    pub(crate) samples: f64,
    /// The same at the upper limit of the scale, less what no suspect explains.
    pub(crate) sure: f64,
    /// The share of other instructions, if the skid of samples is not known.
    pub(crate) nearby: Nearby,
}

/// Instructions so near that their samples may be those of the instruction, and the other way
/// round.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct Nearby {
    /// Their samples beyond the best case, at the lowest scale.
    samples: f64,
    /// Samples that their suspects can account for.
    suspected: f64,
    /// The same without the suspects that are of data in memory.
    suspected_besides_data: f64,
}

impl Nearby {
    /// The instructions of a block that are at most `scatter` from the one at index `at`. `excess`
    /// has the samples of each beyond its best case at the lowest scale; `samples_per_cycle` is the
    /// highest.
    pub(crate) fn of(
        instructions: &[Instruction],
        at: usize,
        scatter: usize,
        (excess, samples_per_cycle): (&[f64], f64),
    ) -> Self {
        let mut this = Self::default();
        let range = at.saturating_sub(scatter)..=at + scatter;
        let others = instructions.iter().zip(excess).enumerate();
        for (_, (other, excess)) in others.filter(|(i, _)| *i != at && range.contains(i)) {
            this.samples += excess.max(0.0);
            for suspect in &other.suspects {
                let samples = suspect.usual_cycles_max * other.executions * samples_per_cycle;
                this.suspected += samples;
                if !suspect.cause.is_of_data() {
                    this.suspected_besides_data += samples;
                }
            }
        }
        this
    }
}

impl Stall<'_> {
    /// Samples of some cycles of each execution, at a scale.
    fn samples_of(&self, cycles: f64, scale: f64) -> f64 {
        let Self { instruction, .. } = self;
        let runs = instruction.executions * self.scale.samples_per_cycle > 0.0;
        if runs { cycles * instruction.executions * scale } else { 0.0 }
    }

    /// Most samples that a suspect can account for at the likeliest scale.
    pub(crate) fn most(&self, suspect: &Suspect) -> f64 {
        self.samples_of(suspect.cycles_max, self.scale.samples_per_cycle)
    }

    /// Fewest and most samples of a suspect beside the others. The fewest remain if the others take
    /// as much as they usually can, and executions are the most that 19 of 20 procedures have.
    pub(crate) fn limits<'b>(
        &self,
        suspect: &Suspect,
        others: impl Iterator<Item = &'b Suspect>,
    ) -> (f64, f64) {
        let usual = |other: &Suspect| self.samples_of(other.usual_cycles_max, self.scale.upper);
        let low = self.sure - others.map(usual).sum::<f64>() - self.nearby.suspected;
        let samples = self.instruction.samples + self.nearby.samples;
        let at_most = samples_max(self.instruction, samples, suspect, self.bounds);
        let high = (self.samples + self.nearby.samples).min(self.most(suspect)).max(at_most);
        (low.clamp(0.0, high), high)
    }

    /// Fewest and most samples of all suspects together that are of data in memory; None without
    /// any.
    pub(crate) fn limits_of_data(&self, suspects: &[(Suspect, usize)]) -> Option<(f64, f64)> {
        let suspects = || suspects.iter().map(|(suspect, _)| suspect);
        let of_data = || suspects().filter(|suspect| suspect.cause.is_of_data());
        let first = *of_data().next()?;
        let cycles_max = of_data().map(|suspect| suspect.cycles_max).sum();
        let together = Suspect { cycles_max, usual_cycles_max: cycles_max, ..first };
        let nearby = Nearby { suspected: self.nearby.suspected_besides_data, ..self.nearby };
        let others = suspects().filter(|suspect| !suspect.cause.is_of_data());
        Some(Stall { nearby, ..*self }.limits(&together, others))
    }
}

/// Most samples that a suspect can have taken over all scales from `least` to `most`, the
/// uncertainty of the block's executions included. A lower scale means less time in the best case
/// and so more to explain, but a suspect's limit in cycles is worth fewer samples. `samples` are
/// those that may be of the instruction.
fn samples_max(
    instruction: &Instruction,
    samples: f64,
    suspect: &Suspect,
    (least, most): (f64, f64),
) -> f64 {
    let cycles = instruction.best.cycles + suspect.cycles_max;
    if instruction.executions <= 0.0 || !cycles.is_finite() || cycles <= 0.0 {
        return samples;
    }
    let scale = (samples / (instruction.executions * cycles)).min(most).max(least);
    let stall = samples - instruction.executions * instruction.best.cycles * scale;
    stall.min(suspect.cycles_max * instruction.executions * scale).max(0.0)
}
